"""services/telemetry/catalogue.py: every event that Raylay reports or logs has a code, and words
that help."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.codes_page import PAGE, page

from raylay.services.processes.actions import action_server
from raylay.services.telemetry import catalogue
from raylay.services.telemetry.catalogue import BY_EVENT, code_of, found_for
from raylay.services.telemetry.event_entry import NOTHING_TO_DO
from raylay.services.telemetry.event_table import CATEGORIES, ENTRIES

ROOT = Path(__file__).parents[3]
REPORTS = frozenset(
    ("report", "event", "warning", "error", "keep", "write", "add", "_event", "_tell", "_report")
)
NAME = re.compile(r"[a-z]+(_[a-z]+)+")
NO_EVENTS = frozenset(("dead_lettered",))


def events_in(path: Path) -> set[str]:
    """Returns the names of events that a file reports by a literal."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        first = node.args[0]
        if (
            (name in REPORTS or name in ("EventReport", "SowFinding"))
            and isinstance(first, ast.Constant)
            and isinstance(first.value, str)
            and NAME.fullmatch(first.value)
        ):
            found.add(first.value)
        if any(
            keyword.arg == "kill_failed" and isinstance(keyword.value, ast.Constant)
            for keyword in node.keywords
        ):
            found |= {
                str(keyword.value.value)
                for keyword in node.keywords
                if keyword.arg == "kill_failed" and isinstance(keyword.value, ast.Constant)
            }
    return found


@pytest.mark.covers("Administration", "every event has a code and an explanation")
def test_every_event_that_is_reported_is_in_the_catalogue() -> None:
    folders = ("server", "processes", "replication", "core", "queues", "sow")
    files = [path for name in folders for path in (ROOT / "services" / name).rglob("*.py")]
    found = {event: path for path in files for event in events_in(path)}
    assert len(found) > 80, "the events are found"
    missing = {event: path.name for event, path in found.items() if event not in BY_EVENT}
    assert not missing, f"give each of these a code in services/telemetry/event_table.py: {missing}"


LOGGERS = frozenset(("log", "_log", "logger", "_logger"))
WRITES = frozenset(("report", "debug", "event", "warning", "error", "critical", "emergency"))


def logged_in(tree: ast.Module) -> set[str]:
    """Returns the level and the name of each event that a file logs itself; of a name that is put
    together at run time its source."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr not in WRITES:
            continue
        of = function.value
        name = getattr(of, "attr", getattr(of, "id", ""))
        if name in LOGGERS or (isinstance(of, ast.Call) and ast.unparse(of.func) == "logs.get"):
            first = node.args[0]
            level = "info" if function.attr == "event" else function.attr
            event = first.value if isinstance(first, ast.Constant) else ast.unparse(first)
            found.add(f"{level} {event}")
    return found


def kinds_of_programs() -> set[str]:
    """Returns the kinds of the processes beside an instance, each of which logs `KIND_ended`."""
    programs = (ROOT / "services" / "processes").rglob("run_*.py")
    return {
        kind
        for path in programs
        for kind in re.findall(r"run_program\(\s*\"(\w+)\"", path.read_text())
    }


@pytest.mark.covers("Logging", "every line of a log has a code")
def test_every_line_of_a_log_has_a_code() -> None:
    found: dict[str, str] = {}
    for room in ("services", "storage", "actors"):
        for path in (ROOT / room).rglob("*.py"):
            if "logging.getLogger(" in path.read_text(encoding="utf-8"):
                # A library in somebody else's process: a client, a command, Spark.
                rooms = ("client", "fabric", "pipeline", "cli.py")
                assert path.parts[len(ROOT.parts) + 1] in rooms, path
                continue
            events = logged_in(ast.parse(path.read_text(encoding="utf-8")))
            found |= dict.fromkeys(events, str(path.relative_to(ROOT)))
    # Those of an instance go through its `EventLog`: the test above looks for them.
    assert found.pop("report event") == "services/server/event_log.py"
    runner = "services/processes/actions/action_server.py"
    assert found.pop("report name") == runner
    found |= {f"report {event}": runner for event in action_server._EVENTS.values()}
    running = "services/processes/running.py"
    assert found.pop("report f'{self._kind}_ended'") == running
    found |= {f"report {kind}_ended": running for kind in kinds_of_programs()}
    assert {"emergency fatal", "error link_failed", "report queue_owner_ended"} <= set(found)
    known = {f"{level} {each.event}" for each in ENTRIES for level in (each.level, "report")}
    missing = {event: where for event, where in found.items() if event not in known}
    assert not missing, (
        "give each of these a code, and the level with which it is logged, in "
        f"services/telemetry/event_table.py: {missing}"
    )


@pytest.mark.parametrize(
    ("source", "events"),
    [
        ("logs.get('x').error('a', b=1)", {"error a"}),
        ("self._log.warning(f'{kind}_b')", {"warning f'{kind}_b'"}),
        ("logger.event(event)", {"info event"}),
        ("other.error('c'); logs.rotate()", set()),
    ],
)
def test_what_a_file_logs_is_found(source: str, events: set[str]) -> None:
    assert logged_in(ast.parse(source)) == events


def test_codes_and_names_stand_for_one_event_each() -> None:
    codes = [each.code for each in ENTRIES]
    assert len(set(codes)) == len(codes) and len(BY_EVENT) == len(codes)
    for number in CATEGORIES:
        own = [code for code in codes if code.startswith(f"{number}-")]
        # Nothing is ever taken out: a code that was printed once must be found for ever.
        assert own == [f"{number}-{count:04}" for count in range(1, len(own) + 1)]
    assert codes == sorted(codes)


@pytest.mark.covers("Administration", "every event has a code and an explanation")
def test_every_entry_helps() -> None:
    for entry in ENTRIES:
        for text in (entry.what, entry.why, entry.action):
            assert not text or (text.rstrip(")")[-1] in "." and text[0] in f"`{text[0].upper()}"), (
                entry
            )
        if entry.level != "info":
            assert entry.action != NOTHING_TO_DO, f"{entry.event}: say what to do"


@pytest.mark.covers("Logging", "`raylay error` explains")
@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("21-0010", ["downgraded"]),
        ("0a-0001", ["logon_denied"]),
        ("downgraded", ["downgraded"]),
        (
            "2026-01-02T03:04:05.123456Z warning Chicago-1 instance 21-0010 downgraded "
            "destination=London why=late",
            ["downgraded"],
        ),
        ("link_refused and upstream_refused", ["link_refused", "upstream_refused"]),
        ("front log cannot", ["front_log_failed"]),
        ("99-9999", []),
        ("no such words at all", []),
        ("", []),
    ],
)
def test_what_is_looked_for_is_found(text: str, events: list[str]) -> None:
    assert [each.event for each in found_for(text)] == events


def test_an_event_without_an_entry_has_no_code() -> None:
    assert code_of("downgraded") == "21-0010" and code_of("of_nobody") == ""


def test_the_categories_hold_all_entries() -> None:
    found = [entry for _, _, of in catalogue.by_category() for entry in of]
    assert found == list(ENTRIES)


def test_the_page_is_what_the_catalogue_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make codes-page"
