"""services/telemetry/log_options.py: which events go to which targets."""

from __future__ import annotations

import msgspec
import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.log_options import (
    DEVELOPER,
    ERROR,
    INFO,
    LEVELS,
    NONE,
    TRACE,
    WARNING,
    EventFilter,
    LogOptions,
    LogTarget,
    from_environment,
    options_of,
    to_environment,
)

CLIENT = "client_connected"  # 07-0001
LINK = "link_connected"  # 21-…


def taken(target: LogTarget) -> list[str]:
    """Returns the levels whose events, of a name without a code, go to a target."""
    events = EventFilter(target)
    return [name for name, level in LEVELS.items() if level < NONE and events.takes(level, "x")]


@pytest.mark.covers("Logging", "`Level`")
def test_a_level_takes_what_is_above_it() -> None:
    names = [name for name in LEVELS if name != "none"]
    for at, name in enumerate(names):
        assert taken(LogTarget(level=name)) == names[at:]
        assert EventFilter(LogTarget(level=name)).lowest == LEVELS[name]
    assert taken(LogTarget(level="none")) == []
    assert EventFilter(LogTarget(level="none")).lowest == NONE


@pytest.mark.covers("Logging", "`Levels`")
def test_levels_are_added_one_by_one() -> None:
    target = LogTarget(level="none", levels=("trace", "info"))
    assert taken(target) == ["trace", "info"]
    assert EventFilter(target).lowest == TRACE
    target = LogTarget(level="error", levels=("trace", "none"))
    assert taken(target) == ["trace", "error", "critical", "emergency"]


@pytest.mark.covers("Logging", "`IncludeErrors`, `ExcludeErrors`")
@pytest.mark.parametrize("written", ["07-0001", "07", "07-.*", "0[78]-0{3}1", CLIENT, "client_.*"])
def test_what_is_included_goes_there_whatever_its_level(written: str) -> None:
    events = EventFilter(LogTarget(level="none", include=(written,)))
    assert events.takes(DEVELOPER, CLIENT) and not events.takes(ERROR, LINK)
    assert events.lowest == DEVELOPER


@pytest.mark.covers("Logging", "`IncludeErrors`, `ExcludeErrors`")
@pytest.mark.parametrize("written", ["07-0001", "07", "07-.*", CLIENT])
def test_an_exclusion_wins(written: str) -> None:
    events = EventFilter(LogTarget(level="info", include=("07-0001",), exclude=(written,)))
    assert not events.takes(ERROR, CLIENT) and events.excludes(CLIENT)
    assert events.takes(WARNING, LINK) and events.takes(INFO, LINK)


def test_a_category_is_no_beginning_of_another_code() -> None:
    events = EventFilter(LogTarget(level="none", include=("0a",)))
    assert events.takes(INFO, "logon_denied")  # 0A-0001
    assert not events.takes(INFO, CLIENT)
    assert not EventFilter(LogTarget(level="none", include=("07-000",))).takes(INFO, CLIENT)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"level": "debug"}, "log level 'debug' is unknown: choose from developer, trace"),
        ({"levels": ("info", "loud")}, "log level 'loud'"),
        ({"target": "gzip"}, "`gzip`, which needs a directory"),
        ({"include": ("12-(",)}, "neither a code such as 21-0002, a category such as 21 nor"),
        ({"exclude": ("",)}, "an empty code"),
        ({"options": ("LOG_EVERYTHING",)}, "choose from LOG_CONS"),
        ({"facility": "LOG_MAIL"}, "choose from LOG_USER"),
        ({"file_name": "%Q"}, "unknown symbol"),
        ({"rotation_bytes": -1}, "at least 0"),
        ({"kept_bytes": -1}, "at least 0"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        LogTarget(**wrong)  # type: ignore[arg-type]


def test_what_is_kept_is_four_files_unless_it_is_said() -> None:
    assert LogTarget(rotation_bytes=10).files_bytes_max == 40
    assert LogTarget(rotation_bytes=10, kept_bytes=0).files_bytes_max == 0
    assert LogTarget(rotation_bytes=10, kept_bytes=25).files_bytes_max == 25


@pytest.mark.covers("Logging", "one format of options")
def test_one_format_passes_through_the_environment() -> None:
    targets = [
        LogTarget("error", "syslog", options=("LOG_PID",), facility="LOG_LOCAL1", ident="a"),
        LogTarget("none", "gzip", "/l", levels=("info",), include=("07",), file_name="a-%n.log"),
    ]
    options = options_of(targets)
    assert options.targets[1:] == (targets[1],) and options.facility == "LOG_LOCAL1"
    assert from_environment(to_environment(options)) == options
    as_list = msgspec.json.encode(targets).decode()
    assert from_environment({"RAYLAY_LOGS": as_list}) == options
    assert from_environment({}) == LogOptions()
    assert options_of([]) == LogOptions(target="none")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        "7",
        '{"levl": "info"}',
        '[{"also": []}, {"x": 1}]',
        '{"also": [{"x": 1}]}',
        '{"level": "loud"}',
        '{"level": 3}',
        "stdout",
    ],
)
def test_a_wrong_variable_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^RAYLAY_LOGS: .*: give the options"):
        from_environment({"RAYLAY_LOGS": text})
