"""A fabric of real actors: end to end, under SIGKILL, from another process, stopped and started."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
from cluster.conftest import declare
from cluster.load import journal_of, run_load

from raylay.services.client import EPOCH, Client, Connected, WaitingForSafeInstance
from raylay.services.drills.verdict import PublishRecord, SequenceStretch, judge
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric, lookup
from raylay.services.fabric.plan import FabricRecord
from raylay.services.fabric.records.registry import REGISTRY_VARIABLE

pytestmark = pytest.mark.cluster


def test_a_message_reaches_every_region(whole: Fabric) -> None:
    async def go() -> list[bytes]:
        async with (
            whole.client("desk", group="near") as desk,
            whole.client("archive", group="far") as archive,
        ):
            await desk.publish("sales/one", b'{"sale": 1}')
            await desk.flush()
            subscription = await archive.subscribe("sales/one", bookmark=EPOCH)
            async for message in subscription:
                return [message.body]
        return []

    assert asyncio.run(go()) == [b'{"sale": 1}']
    held = journal_of(whole, "near-2")
    assert any(stretch.topic == b"sales/one" for stretch in held)


def title(pid: int) -> str:
    """What `ps` says of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().rstrip()
    except OSError:
        return ""


def await_title(wanted: str, pid: Callable[[], int]) -> None:
    deadline_s = time.monotonic() + 120  # a busy machine starts a process slowly
    while (found := title(pid())) != wanted:
        # During a call it is the call's, as with any actor.
        assert time.monotonic() < deadline_s, f"{found} is not {wanted}"
        time.sleep(0.02)


def test_processes_are_called_what_they_are(whole: Fabric) -> None:
    for instance in whole.status()["instances"]:
        await_title(f"ray::{instance['name']}", partial(int, instance["pid"]))
        for name, link in instance["destinations"].items():
            await_title(f"ray::{instance['name']}→{name}", partial(int, link["pid"]))
    # And one that Ray starts again, although nobody calls it.
    before = whole.kill("far-1")
    await_title("ray::far-1", lambda: (pid := whole.pid("far-1")) * (pid != before))


@pytest.mark.covers("Laws", "1 no acknowledged loss", note="on real processes")
@pytest.mark.covers("The replication chapters", "a spare takes over when the first fails")
def test_sigkill_of_the_instance_under_load(whole: Fabric) -> None:
    killed: list[str] = []

    async def kill(client: Client) -> None:
        killed.append(client.instance)
        await asyncio.to_thread(whole.kill, client.instance)

    verdict = asyncio.run(run_load(whole, "instance", kill, groups=("near", "far")))
    assert verdict.valid, verdict
    assert verdict.persisted == 20_000
    assert killed == ["near-1"]
    assert len(verdict.places) == 5


@pytest.mark.slow
@pytest.mark.covers("The replication chapters", "instances talk only by replication")
def test_an_instance_that_stays_away_is_done_without(whole: Fabric) -> None:
    async def kill(client: Client) -> None:
        await asyncio.to_thread(whole.kill, client.instance, restart=False)
        # It comes back only when it is told to, while the load goes on.
        asyncio.get_running_loop().call_later(2.0, restart)

    def restart() -> None:
        tasks.append(asyncio.ensure_future(asyncio.to_thread(whole.restart, "near-1")))

    tasks: list[asyncio.Future[None]] = []

    async def go() -> None:
        verdict = await run_load(whole, "away", kill, groups=("near",))
        await asyncio.gather(*tasks)
        assert verdict.valid, verdict

    asyncio.run(go())
    assert [event["event"] for event in whole.events()].count("downgraded") >= 1


@pytest.mark.covers("Replication", "a lost disk admits clients only when it has caught up")
def test_a_lost_disk_is_filled_from_the_peer(whole: Fabric) -> None:
    def incarnation() -> str:
        return str(whole.status()["instances"][1]["incarnation"])

    async def publish() -> None:
        async with whole.client("loser", group="near") as client:
            for number in range(5_000):
                await client.publish("sales/lost", b'{"sale": %d}' % number)
            await client.flush()

    asyncio.run(publish())

    def published(name: str) -> list[SequenceStretch]:
        # What instances say of the drills' queue is of the instance that says it.
        return [each for each in journal_of(whole, name) if not each.topic.startswith(b"raylay/")]

    before, had = incarnation(), published("near-1")
    whole.kill("near-2", restart=False)
    shutil.rmtree(whole.data_directory("near-2"))
    whole.restart("near-2")
    whole.wait_connected()
    assert incarnation() != before
    verdict = judge({"journal near-2": published("near-2")}, recorded(had))
    assert verdict.valid, verdict


def recorded(stretches: Iterable[SequenceStretch]) -> PublishRecord:
    """What a journal holds, as if its publishers had recorded it."""
    record = PublishRecord()
    for stretch in stretches:
        record.add(stretch.publisher, stretch.first, stretch.last, stretch.last)
    return record


@pytest.mark.slow
def test_attaching_from_another_process(whole: Fabric) -> None:
    script = (
        "import json\n"
        "from raylay.services.fabric import Fabric\n"
        "with Fabric.attach('shops') as fabric:\n"
        "    fabric.admit('near-1')\n"
        "    fabric.downgrade('near-1', 'near-2')\n"
        "    near = fabric.status()['instances'][0]\n"
        "    fabric.upgrade('near-1', 'near-2')\n"
        "    print(json.dumps([near['name'], near['ready'], near['pid'],\n"
        # By age it may be upgraded before anybody looks at it.
        "                      any(e['event'] == 'downgraded' and e['why'] == 'by hand'\n"
        "                          for e in fabric.events() if e['instance'] == 'near-1'),\n"
        "                      [s.address for s in fabric.servers('far')]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "near-1",
        True,
        whole.pid("near-1"),
        True,
        [server.address for server in whole.servers("far")],
    ]
    whole.wait_ready()


def test_attaching_to_none_is_an_error(whole: Fabric) -> None:
    with pytest.raises(FabricError, match=r"no fabric nowhere runs here; there are .*shops"):
        Fabric.attach("nowhere")


def test_clients_find_servers_by_fabric_name(whole: Fabric) -> None:
    async def go() -> str:
        async with Client("by-name", servers=lookup("shops", "far"), group="far") as client:
            return client.instance

    assert asyncio.run(go()) == "far-1"
    with pytest.raises(ConfigurationError, match="name one group of near, far"):
        whole.client("nobody")


def test_wrong_names_are_errors_that_say_what_there_is(whole: Fabric) -> None:
    with pytest.raises(ConfigurationError, match="no instance x; it has near-1, near-2, far-1"):
        whole.kill("x")
    with pytest.raises(FabricError, match="near-1 has no destination x"):
        whole.downgrade("near-1", "x")
    with pytest.raises(FabricError, match="near-1 has no destination x"):
        whole.kill_link("near-1", "x")


def test_a_second_fabric_of_one_name_is_refused(whole: Fabric, tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="fabric shops runs already"):
        declare().start(tmp_path)
    assert whole.status()["instances"][0]["ready"]


@pytest.mark.slow
def test_a_directory_that_another_fabric_uses_is_refused(whole: Fabric, tmp_path: Path) -> None:
    # It never becomes ready: as long as a busy machine needs to say why.
    for timeout_s in (4, 20, 60):
        other = Fabric("other").instance("thief", directory=str(whole.data_directory("far-1")))
        with pytest.raises(FabricError) as refused:
            other.start(tmp_path, timeout_s=timeout_s)
        if "far-1" in str(refused.value):
            break
    assert "far-1" in str(refused.value)
    whole.wait_ready("far-1")


@pytest.mark.covers("The replication chapters", "incoming transports")
def test_a_port_in_use_is_named(whole: Fabric, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fabric = Fabric("blocked").instance("solo", client_port=port)
        with pytest.raises(FabricError, match=f"solo: client port {port} .*in use"):
            fabric.start(tmp_path)


@pytest.mark.covers("The replication chapters", "each part can be restarted on its own")
@pytest.mark.slow
def test_stopped_and_started_again_on_the_same_data(whole: Fabric, tmp_path: Path) -> None:
    def solo() -> Fabric:
        return Fabric("again", topics=["t"]).region("only", 2)

    async def publish(fabric: Fabric) -> None:
        async with fabric.client("writer") as client:
            for number in range(100):
                await client.publish("t", b"%d" % number)
            await client.flush()

    async def read(fabric: Fabric) -> list[bytes]:
        async with fabric.client("reader") as client:
            subscription = await client.subscribe("t", bookmark=EPOCH)
            bodies: list[bytes] = []
            async for message in subscription:
                bodies.append(message.body)
                if len(bodies) == 200:
                    break
            return bodies

    async def killed_at_once(fabric: Fabric) -> list[object]:
        """What a client is told whose instance is killed before anything else happens."""
        told: list[object] = []
        again = asyncio.Event()

        def note(event: object) -> None:
            told.append(event)
            if isinstance(event, Connected):
                again.set()

        async with fabric.client("early", on_event=note) as client:
            again.clear()
            await asyncio.to_thread(fabric.kill, client.instance)
            await asyncio.wait_for(again.wait(), 60)
        return told

    with solo().start(tmp_path) as first:
        # Started is: who publishes now is answered, whose instance dies goes to the other one.
        states = [each["destinations"].values() for each in first.status()["instances"]]
        assert [(link["caught_up"], link["safe"]) for (link,) in states] == [(True, True)] * 2
        addresses = [server.address for server in first.servers()]
        asyncio.run(publish(first))
    with solo().start(tmp_path) as second:
        assert [server.address for server in second.servers()] == addresses
        asyncio.run(publish(second))
        bodies = asyncio.run(read(second))
    with solo().start(tmp_path) as third:
        told = asyncio.run(killed_at_once(third))
        assert not [event for event in told if isinstance(event, WaitingForSafeInstance)], told
    assert bodies == [b"%d" % number for number in range(100)] * 2
    # The shared fabric's Ray was not taken down with it.
    assert whole.status()["instances"][0]["ready"]


def test_a_start_on_another_host_changes_nothing(
    whole: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that knows nothing of the running fabric but the Ray that it joins."""
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    before = FabricRecord.load(whole.directory)
    configs = {path: path.read_text() for path in whole.directory.glob("*/instance.json")}
    for place in (tmp_path / "elsewhere", whole.directory):
        with pytest.raises(FabricError, match="fabric shops runs already, in "):
            declare().start(place)
    assert not (tmp_path / "elsewhere" / "fabric.json").exists()
    assert FabricRecord.load(whole.directory) == before
    assert len(configs) == 3 and all(path.read_text() == configs[path] for path in configs)
    with Fabric.attach("shops", "auto") as attached:
        assert attached.servers("near") == whole.servers("near")


def test_what_another_host_changed_is_taken_over(
    whole: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looked before is refused; who looks now sees it, whatever its own file says."""
    stale = FabricRecord.load(whole.directory)
    assert stale is not None
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(REGISTRY_VARIABLE, str(tmp_path))
        with Fabric.attach("shops", "auto") as other:
            other.instances.settle()
    with pytest.raises(FabricError, match="shops was changed by another command meanwhile"):
        whole.handle.keep(stale)
    stale.save()
    with Fabric.attach("shops") as attached:
        assert attached.handle.known()[1].number == stale.number + 1
    kept = FabricRecord.load(whole.directory)
    assert kept is not None and kept.number == stale.number + 1
    whole.handle.refresh()
    whole.instances.settle()
