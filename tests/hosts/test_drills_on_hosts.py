"""Every drill on hosts, a power cut among them, and a lost host whose instance is moved.

Run by `make soak-hosts` (root), ten minutes and more; `RAYLAY_HOSTS_LINE='--delay-ms 20 --loss 1%'`
puts such a line between the regions.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts.conftest import DIRECTORY, Cluster, running, wait_until
from hosts.load import Load

from raylay.services.drills.scenario import built_in

pytestmark = [pytest.mark.hosts, pytest.mark.soak, pytest.mark.timeout(0)]

ELSEWHERE = {"lost-disk": ("chicago-2", "--target Chicago-2")}
"""Drills that are run on another host than the head's, and how."""
POWER = '''
import sys, time
from pathlib import Path
from raylay.services.drills import report
from raylay.services.drills.drill import Drill
from raylay.services.drills.scenario import parse
from raylay.services.fabric import Fabric

class Power:
    """Asks whoever holds the plugs, and waits until it is done."""
    def _ask(self, what):
        asked, done = Path("power", what), Path("power", what + ".done")
        asked.touch()
        while not done.exists():
            time.sleep(0.05)
    def inject(self, step, hit):
        self._ask("off")
        return ["its host lost power"]
    def renew(self, step, hit, left_s):
        pass
    def heal(self, step, hit):
        self._ask("on")

steps = [{"fault": "kill_node", "target": "NewYork", "for": "10s"}]
with Fabric.attach("flights") as fabric:
    scenario = parse({"name": "power-cut", "steps": steps}, "power")
    result = Drill(fabric, scenario, injectors={"kill_node": Power()}, tell=print).run()
    page = report.write(result, Path("drills/power-cut"))
print(("clean: " if result.valid else "BAD: ") + report.verdict_sentence(result))
print("report:", page)
'''


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three regions on four hosts, and the head's."""
    with running(tmp_path_factory.mktemp("wide"), "head", "Chicago=2", "NewYork", "London") as made:
        wait_until("whole", made.is_whole)
        yield made


@pytest.mark.parametrize("name", built_in())
def test_a_drill_is_clean(wide: Cluster, name: str) -> None:
    host, options = ELSEWHERE.get(name, ("head", ""))
    told = wide.on(host, f"raylay drill {name} --fabric flights {options} 2>&1", check=False)
    print(told)
    assert re.search(r"^clean: All [1-9]", told, re.MULTILINE), told
    wait_until("whole", wide.is_whole)


def test_a_power_cut_is_clean(wide: Cluster) -> None:
    """A whole host goes, and comes back: an injector of one's own."""
    power = wide.home("head") / "power"
    wide.on("head", "mkdir power")
    errors: list[BaseException] = []

    def hold_the_plugs() -> None:
        try:
            wait_until("asked for off", (power / "off").exists, every_s=0.05)
            wide.ground("kill", "newyork-1")
            (power / "off.done").touch()
            wait_until("asked for on", (power / "on").exists, every_s=0.05)
            wide.ground("start", "newyork-1")
            wide.on("newyork-1", "bash ~/raylay/deploy/start.sh")
            (power / "on.done").touch()
        except BaseException as error:
            errors.append(error)
            raise

    holder = threading.Thread(target=hold_the_plugs, daemon=True)
    holder.start()
    told = wide.on("head", "python - 2>&1", given=POWER, check=False)
    print(told)
    assert not errors, errors
    assert re.search(r"^clean: All [1-9]", told, re.MULTILINE), told
    wait_until("whole", wide.is_whole)


def test_an_instance_of_a_lost_host_is_moved(wide: Cluster) -> None:
    """And what was left behind is sent back to the fabric when the host returns."""
    (victim,) = (
        name for name, place in wide.record().nodes.items() if place.labels["host"] == "chicago-2"
    )
    with Load(wide, "moved", publishers=("Chicago", "London")) as load:
        load.await_progress("Chicago")
        wide.ground("kill", "chicago-2")
        load.await_progress("Chicago", "London", "NewYork", messages=400)
        wait_until("missed", lambda: wide.living() == wide.hosts - 1)
        told = wide.on("head", f"raylay relocate {victim} --to chicago-1")
        assert f"{victim} lives on host=chicago-1" in told and "generation 1" in told, told
        wait_until("whole", wide.is_whole)
        load.await_progress("Chicago", "London", "NewYork", messages=400)
        wide.ground("start", "chicago-2")
        wide.on("chicago-2", "bash ~/raylay/deploy/start.sh")
        wait_until("back", lambda: wide.living() == wide.hosts)
    verdict = load.verdict()
    assert verdict.valid, verdict
    assert verdict.persisted == verdict.published > 0
    left = f"{wide.record().directory}/{victim}"
    assert Path(left).name == victim and Path(left).parent.name == DIRECTORY
    assert left in wide.on("head", "raylay status", check=False)
    told = wide.on("chicago-2", f"raylay journal salvage {left}")
    assert "the fabric has all its messages" in told, told
