"""services/fabric/rollout.py: in which order instances are started and restarted, what is waited
for in between, and what is left where somebody ends it. The instances are none: each call is noted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError
from raylay.services.fabric.plan import FabricChanges, FabricRecord, bring_up_to_date
from raylay.services.fabric.rollout import Progress, Rollout


def settings_of(**regions: int) -> FabricSettings:
    builder = FabricBuilder("shop")
    for name, count in regions.items():
        builder.region(name, count)
    if len(regions) > 1:
        builder.connect_regions()
    return builder.settings()


class Noted:
    """A fabric's handle, control and instances in one, which only note what is done to them.

    Attributes:
        calls: what was done, in order.
        down: those that are not ready.
        fails_at: a call that raises.
    """

    def __init__(self, settings: FabricSettings, directory: Path) -> None:
        record = FabricRecord("shop", str(directory), settings.to_json())
        bring_up_to_date(record, settings)
        self.settings: Any = settings
        self.record: Any = record
        self.running = {each.name for each in settings.instances}
        record.settled = sorted(self.running)
        self.calls: list[str] = []
        self.kept: list[tuple[list[str], list[str]]] = []
        self.waited: list[Any] = []
        self.down: set[str] = set()
        self.behind: set[str] = set()
        """Whose links had not caught up before."""
        self.settled_at_launch: dict[str, bool] = {}
        self.fails_at = ""
        self.unused: set[str] = set()
        """Instances that Ray has never started."""
        self.away = ""
        """Why the host of each is away; empty: none is."""
        parts: Any = self
        self.rollout = Rollout(parts, parts, parts, parts)

    @property
    def declared(self) -> Any:
        return self.settings

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails_at:
            raise FabricError(f"{call} failed")

    def refresh(self) -> None:
        pass

    def known(self) -> Any:
        return self.settings, self.record

    def keep(self, record: Any) -> None:
        self.kept.append((list(record.starting), list(record.restarting)))
        self.record = record

    def actor(self, name: str) -> Any:
        return name if name in self.running else None

    def check_ports(self, *_: Any) -> None:
        pass

    def check_tls(self, *_: Any) -> None:
        pass

    def authorize(self, names: Any, call: str, **_: Any) -> None:
        self._note(f"authorize {call}")

    def caller_for(self, name: str) -> Any:
        return None

    def host_away(self, name: str) -> str:
        return self.away

    def status(self) -> dict[str, Any]:
        return {"instances": self.statuses(sorted(self.running))}

    def statuses(self, names: Any, timeout_s: float = 0) -> list[dict[str, Any]]:
        wanted = names or [each.name for each in self.settings.instances]
        return [
            {
                "name": name,
                "ready": name in self.running and name not in self.down,
                "destinations": {
                    to.name: {"caught_up": name not in self.behind}
                    for instance, to in self.settings.links()
                    if instance.name == name
                },
            }
            for name in wanted
        ]

    def launch(self, instance: Any) -> None:
        self.running.add(instance.name)
        assert self.kept, "what is to be done is written down before it begins"
        self.settled_at_launch[instance.name] = instance.name in self.record.settled
        assert {"London-1", "Paris-1"} <= set(self.record.settled), "nor do others lose that"
        self._note(f"launch {instance.name}")

    def restart(self, name: str, timeout_s: float, **_: Any) -> None:
        self._note(f"restart {name}")
        self.down.discard(name)

    def wait_running(self, name: str, timeout_s: float = 0) -> None:
        self._note(f"running {name}")

    def is_unused(self, name: str) -> bool:
        return name in self.unused

    def end(self, name: str) -> None:
        self._note(f"end {name}")
        self.running.discard(name)

    def wait_ready(self, name: str | None = None, timeout_s: float = 0) -> None:
        self._note(f"ready {name}")

    def wait_connected(self, timeout_s: float = 0, *, only: Any = None) -> None:
        self.waited.append(only if only is None else set(only))
        self._note("connected")

    def check(self, name: str, *, force: bool, leaving: Any, gone: Any) -> None:
        self._note(f"check {name} of {' '.join(leaving)} behind {' '.join(gone) or 'none'}")

    def stop(self, name: str, *, force: bool, leaving: Any, progress: Any) -> None:
        self._note(f"stop {name}")
        self.running.discard(name)
        self.record.stopped = [*self.record.stopped, name]
        self.record.drained = [*self.record.drained, name]

    def settle(self) -> None:
        self.record.settled = [each.name for each in self.settings.instances]
        self.keep(self.record)

    def done(self) -> list[str]:
        """What was started and restarted, and waited for."""
        wanted = ("launch", "running", "restart", "ready", "connected")
        return [call for call in self.calls if call.startswith(wanted)]


@pytest.fixture
def shop(tmp_path: Path) -> Noted:
    return Noted(settings_of(London=2, Paris=1), tmp_path)


def test_nothing_that_is_as_it_was_is_touched(shop: Noted) -> None:
    assert shop.rollout.apply(settings_of(London=2, Paris=1)) == FabricChanges((), ())
    assert shop.done() == []


def test_a_new_region_is_started_and_then_those_that_link_to_it_restart_one_by_one(
    shop: Noted,
) -> None:
    progress = Progress()
    found = shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1), progress=progress)
    assert found.started == ("Rome-1",)
    assert set(found.restarted) == {"London-1", "London-2", "Paris-1"}
    begin, running, *rest = shop.done()
    assert (begin, running, rest[0]) == ("launch Rome-1", "running Rome-1", "ready Rome-1")
    assert [call.split()[0] for call in rest[1:]] == ["restart", "connected"] * 3
    assert progress.left == [] and progress.started == ["Rome-1"]
    assert shop.kept[-1] == ([], []) and "Rome-1" in shop.record.settled
    # Whoever goes on with it after an interrupt reads what is left there.
    left = [len(restarting) for _, restarting in shop.kept]
    assert list(dict.fromkeys(left)) == [3, 2, 1, 0]


def test_between_restarts_links_among_those_that_are_done_have_caught_up(shop: Noted) -> None:
    """With one that still runs as before a check at connect may rightly refuse."""
    shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1))
    restarted = [call.split()[1] for call in shop.calls if call.startswith("restart")]
    ends = {
        (instance.name, to.name): {instance.name, *to.to} for instance, to in shop.settings.links()
    }
    for number, waited in enumerate(shop.waited, 1):
        pending = set(restarted[number:])
        assert all(not ends[link] & pending for link in waited)
        old = {link for link, both in ends.items() if not both & {*pending, "Rome-1"}}
        assert old <= waited, "none that may be waited for is left out"


def test_links_that_had_not_caught_up_before_are_not_waited_for(shop: Noted) -> None:
    shop.behind = {"Paris-1"}
    shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1))
    assert shop.settled_at_launch == {"Rome-1": False}, "the first of its group"
    assert shop.waited and not any(link[0] == "Paris-1" for each in shop.waited for link in each)
    assert any(link[0] == "London-1" for each in shop.waited for link in each)


def test_a_new_member_of_a_group_is_ready_only_when_its_group_knows_of_it(shop: Noted) -> None:
    """It catches up with the others first, who are told of it by their restart."""
    shop.rollout.apply(settings_of(London=3, Paris=1))
    done = shop.done()
    assert done[0] == "launch London-3" and done[-1] == "ready London-3"
    assert done.index("restart London-1") < done.index("ready London-3")
    # It is told that an empty directory is a lost disk: so it waits for a peer.
    assert shop.settled_at_launch == {"London-3": True}


@pytest.mark.parametrize("error", [FabricError("it does not run after 9 s"), KeyboardInterrupt()])
def test_where_a_new_member_has_no_process_nobody_is_restarted_and_all_is_as_it_was(
    shop: Noted, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Ray starts no process for it, it might not start one for those that end."""
    before, settled = shop.record.settings, [*shop.record.settled]

    def fail(name: str, timeout_s: float) -> None:
        raise error

    monkeypatch.setattr(shop, "wait_running", fail)
    progress = Progress()
    with pytest.raises(type(error)) as raised:
        shop.rollout.apply(settings_of(London=3, Paris=1), progress=progress)
    if isinstance(error, FabricError):
        assert "does not run after 9 s. No instance was restarted" in str(raised.value)
        assert "apply the file again" in str(raised.value)
    assert shop.done() == ["launch London-3"] and shop.calls[-1] == "end London-3"
    assert progress.line() == "nothing was changed"
    assert (shop.record.settings, shop.record.settled) == (before, settled)
    assert shop.kept[-1] == ([], []) and shop.settings.to_json() == before
    monkeypatch.undo()
    assert shop.rollout.apply(settings_of(London=3, Paris=1)).started == ("London-3",)


def test_one_that_has_never_run_is_removed_without_being_asked(shop: Noted) -> None:
    """No instance can have messages of it alone."""
    shop.rollout.apply(settings_of(London=3, Paris=1))
    shop.calls.clear()
    shop.unused = {"London-3"}
    progress = Progress()
    found = shop.rollout.apply(settings_of(London=2, Paris=1), progress=progress)
    assert found.removed == ("London-3",) and progress.removed == ["London-3"]
    assert not any(call.startswith(("check", "stop")) for call in shop.calls)
    assert shop.calls.index("end London-3") < shop.calls.index("restart London-1")
    assert "London-3" not in shop.record.ports


def test_who_goes_on_with_what_is_left_starts_and_restarts_no_more_than_that(shop: Noted) -> None:
    wanted = settings_of(London=2, Paris=1, Rome=1)
    shop.fails_at = "restart London-2"
    progress = Progress()
    with pytest.raises(FabricError, match="restart London-2 failed"):
        shop.rollout.apply(wanted, progress=progress)
    assert progress.started == ["Rome-1"] and progress.restarted == ["London-1"]
    assert progress.left[0] == "London-2" and "London-1" not in progress.left
    assert "the same command again goes on" in progress.line()
    assert "London-1" not in shop.record.restarting
    shop.fails_at = ""
    shop.calls.clear()
    found = shop.rollout.apply(wanted)
    assert "launch Rome-1" not in shop.calls and "restart London-1" not in shop.calls
    assert found.restarted[0] == "London-2"
    assert shop.kept[-1] == ([], [])


def test_the_former_file_restarts_nobody_that_an_interrupted_apply_left_as_it_was(
    shop: Noted,
) -> None:
    former = settings_of(London=2, Paris=1)
    # The apply is killed between two restarts, or in one: that instance may have either file.
    shop.fails_at = "restart London-2"
    with pytest.raises(FabricError):
        shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1))
    shop.fails_at = ""
    shop.record.restarting["London-2"] = ""
    shop.unused = {"Rome-1"}
    found = shop.rollout.apply(former)
    assert found.removed == ("Rome-1",)
    assert found.restarted == ("London-1", "London-2"), "Paris-1 has never run otherwise"
    assert shop.record.restarting == {}


def test_one_that_two_applies_left_as_it_was_is_known_by_what_it_runs_with(shop: Noted) -> None:
    former = settings_of(London=2, Paris=1)
    for region in ("Rome", "Oslo"):
        shop.fails_at = "restart London-1"
        with pytest.raises(FabricError):
            shop.rollout.apply(settings_of(London=2, Paris=1, **{region: 1}))
        shop.unused = {"Rome-1", "Oslo-1"}
    shop.fails_at = ""
    assert shop.rollout.apply(former).restarted == ()


def test_who_may_not_changes_nothing(shop: Noted) -> None:
    shop.fails_at = "authorize apply"
    before = shop.record.settings
    with pytest.raises(FabricError):
        shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1))
    assert shop.done() == [] and shop.kept == [] and shop.record.settings == before


# -- instances that are gone ---------------------------------------------------------------------
def test_one_that_is_gone_is_stopped_and_then_its_peers_are_restarted(shop: Noted) -> None:
    progress = Progress()
    found = shop.rollout.apply(settings_of(London=1, Paris=1), progress=progress)
    assert found.removed == ("London-2",) and found.directories[0].endswith("London-2")
    acts = [call for call in shop.calls if call.startswith(("check", "stop", "restart"))]
    assert acts == [
        "check London-2 of London-2 behind none",
        "stop London-2",
        "restart London-1",
        "restart Paris-1",
    ]
    assert "London-2" not in shop.record.ports
    lists = (shop.record.stopped, shop.record.drained, shop.record.settled)
    assert not any("London-2" in each for each in lists)
    assert progress.removed == ["London-2"] and not progress.left
    assert "removed: London-2" in progress.line()


def test_a_whole_region_may_go_and_all_are_checked_before_the_first_is_stopped(shop: Noted) -> None:
    shop.fails_at = "check London-2 of London-1 London-2 behind London-1"
    only_paris = settings_of(Paris=1)
    with pytest.raises(FabricError):
        shop.rollout.apply(only_paris)
    assert not any(call.startswith("stop") for call in shop.calls) and shop.kept == []
    shop.fails_at = ""
    found = shop.rollout.apply(only_paris)
    assert found.removed == ("London-1", "London-2") and found.restarted == ("Paris-1",)


def test_a_dry_run_says_what_would_be_done(shop: Noted) -> None:
    before = shop.record.settings
    found = shop.rollout.apply(settings_of(London=1, Paris=1, Rome=1), dry_run=True)
    assert (found.started, found.removed) == (("Rome-1",), ("London-2",))
    assert set(found.restarted) == {"London-1", "Paris-1"}
    assert shop.done() == [] and shop.kept == [] and shop.record.settings == before
    assert not any(call.startswith("stop") for call in shop.calls)


def test_an_apply_that_was_interrupted_goes_on_with_the_removal(shop: Noted) -> None:
    """It was stopped, and the new record was not written."""
    shop.stop("London-2", force=False, leaving=(), progress=None)
    shop.calls.clear()
    assert shop.rollout.apply(settings_of(London=1, Paris=1)).removed == ("London-2",)
    assert not any(call.startswith(("check", "stop")) for call in shop.calls)


def test_a_stopped_one_that_may_have_more_is_removed_by_force_alone(shop: Noted) -> None:
    shop.stop("London-2", force=False, leaving=(), progress=None)
    shop.record.drained = []
    with pytest.raises(FabricError, match=r"raylay start London-2.*--force"):
        shop.rollout.apply(settings_of(London=1, Paris=1))
    found = shop.rollout.apply(settings_of(London=1, Paris=1), force=True)
    assert found.removed == ("London-2",)


def test_new_instances_alone_cannot_replace_a_group(shop: Noted) -> None:
    builder = FabricBuilder("shop")
    builder.region("London", 2)
    builder.region("Paris", ["Paris-7"])
    with pytest.raises(FabricError, match="of group Paris only new instances would be left"):
        shop.rollout.apply(builder.connect_regions().settings())
    assert shop.calls == []


def test_stopped_instances_are_passed_over_by_an_apply(shop: Noted) -> None:
    shop.record.stopped = ["London-2"]
    shop.running.discard("London-2")
    found = shop.rollout.apply(settings_of(London=2, Paris=1, Rome=1))
    assert set(found.restarted) == {"London-1", "Paris-1"}
    assert shop.record.stopped == ["London-2"]


# -- rolling restarts ----------------------------------------------------------------------------
def test_instances_restart_one_by_one_each_behind_caught_up_links(shop: Noted) -> None:
    progress = Progress(on_restart=lambda name: shop.calls.append(f"restart of {name} is done"))
    shop.rollout.restart(progress=progress)
    expected = ["connected"]
    for name in ("London-1", "London-2", "Paris-1"):
        expected += [f"restart {name}", "connected", f"restart of {name} is done"]
    assert shop.done() == expected
    assert all(each is None for each in shop.waited), "all links"


def test_those_that_are_down_go_first_and_wait_for_links_with_ready_ones_alone(shop: Noted) -> None:
    shop.down = {"London-2", "Paris-1"}
    shop.rollout.restart(["London-1", "London-2"])
    assert shop.done()[:2] == ["restart London-2", "connected"]
    first = shop.waited[0]
    assert first and all("Paris-1" not in {name, to} for name, to in first)
    assert shop.done()[2:] == ["connected", "restart London-1", "connected"]


def test_where_links_have_not_caught_up_nobody_is_restarted(shop: Noted) -> None:
    shop.fails_at = "connected"
    with pytest.raises(FabricError):
        shop.rollout.restart()
    assert shop.done() == ["connected"]


def test_who_is_named_and_does_not_exist_restarts_nobody(shop: Noted) -> None:
    with pytest.raises(Exception, match="Rome-1"):
        shop.rollout.restart(["London-1", "Rome-1"])
    assert shop.calls == []


def test_who_is_away_with_its_host_is_not_restarted(tmp_path: Path) -> None:
    shop = Noted(settings_of(London=2), tmp_path)
    shop.down = {"London-2"}
    shop.away = "its host is away"
    with pytest.raises(FabricError, match="London-2 is not restarted: its host is away"):
        shop.rollout.restart()
    assert shop.done() == []
