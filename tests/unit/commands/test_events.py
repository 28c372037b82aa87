"""The selection of the events that `raylay events` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.commands.events import EventSelection, kinds_of, since_of
from raylay.services.commands.shared.earlier_events import EarlierEvents
from raylay.services.commands.shared.kept_logs import FabricPlace
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.telemetry.kept_log import kept_log_directory

pytestmark = pytest.mark.covers("Fabrics and tracing", "events are selected by")


def event(name: str = "downgraded", instance: str = "A-1", time_us: int = 5) -> dict[str, object]:
    return {"event": name, "instance": instance, "time_us": time_us, "number": 1}


def test_without_options_all_are_shown() -> None:
    assert EventSelection().takes(event())


def test_each_option_leaves_out_the_others() -> None:
    assert not EventSelection(instances=frozenset({"A-2"})).takes(event())
    assert EventSelection(instances=frozenset({"A-1", "A-2"})).takes(event())
    assert not EventSelection(kinds=frozenset({"upgraded"})).takes(event())
    assert EventSelection(kinds=frozenset({"downgraded"})).takes(event())
    assert not EventSelection(since_us=6).takes(event())
    assert EventSelection(since_us=5).takes(event())


def test_a_kind_is_a_name_a_code_or_a_category() -> None:
    assert kinds_of(["downgraded"]) == {"downgraded"}
    one = kinds_of(["00-0018"])
    assert one == {"events_missed"}
    assert one < kinds_of(["00"])
    with pytest.raises(ConfigurationError, match="did you mean downgraded"):
        kinds_of(["downgrade"])
    with pytest.raises(ConfigurationError, match=r"docs/codes\.md"):
        kinds_of(["99"])


def test_since_is_an_interval_or_a_time() -> None:
    now_us = 1_000_000_000
    assert since_of("10m", now_us) == now_us - 600_000_000
    assert since_of("1970-01-01T00:00:05", now_us) == 5_000_000
    assert since_of("1970-01-01T01:00:05+01:00", now_us) == 5_000_000
    with pytest.raises(ConfigurationError, match="--since soon: give an interval"):
        since_of("soon", now_us)


def test_an_instance_that_the_fabric_never_had_is_no_selection(tmp_path: Path) -> None:
    """An instance that was taken out of the fabric leaves its log."""
    place = FabricPlace("f", [tmp_path], {"east-1": "", "east-2": ""}, None)
    kept_log_directory(tmp_path, "gone-1").mkdir(parents=True)
    EarlierEvents(place, ["east-2", "gone-1"], 0, pytest.fail).refuse_unknown()
    with pytest.raises(FabricError, match="fabric f has no instance 'east-3': did you mean"):
        EarlierEvents(place, ["east-2", "east-3"], 0, pytest.fail).refuse_unknown()
    with pytest.raises(FabricError, match="there is no instance 'zz': there are none"):
        EarlierEvents(None, ["zz"], 0, pytest.fail).refuse_unknown()
