"""The laws of the tree that a machine can check: who imports whom, what stays pure and small.

actors ──▶ services, storage        storage ──▶ value types of services only
the pure part of services ──▶ the pure part of services
nobody ──▶ actors, but the fabric launcher
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support.pure_rooms import is_pure

# In one process of those that run the tests: each that has one of these reads the whole tree.
pytestmark = pytest.mark.xdist_group("architecture")

ROOT = Path(__file__).parents[2]
PARTS = ("actors", "services", "storage")
WATCHED = (*PARTS, "tests", "benchmarks", "examples", "deploy", "docs")

# Sockets, clocks, disks, chance, threads and actors: what a value-in, values-out core never has.
BANNED_IN_PURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "http",
        "importlib",
        "io",
        "lmdb",
        "logging",
        "multiprocessing",
        "opentelemetry",
        "os",
        "pathlib",
        "prometheus_client",
        "pyspark",
        "queue",
        "random",
        "ray",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
    }
)
BANNED_CALLS_IN_PURE = frozenset({"open", "__import__", "print", "input", "exec", "eval"})
VALUE_TYPES = (
    "raylay.services.errors",
    "raylay.services.messages",
)
# Which rooms of services a room may import; errors.py always. What is missing here is forbidden.
ROOMS: dict[str, frozenset[str]] = {
    room: frozenset(others.split())
    for room, others in {
        "actions": "expressions messages replication",
        "messages": "",
        "expressions": "messages",
        "capacity": "messages",
        "plugins": (
            "core expressions messages queues replication security sow storage subscriptions views"
        ),
        "replication": "expressions messages",
        # Beside what clients speak, it packs what links and their instances tell one another.
        "protocol": "actions messages queues replication",
        "subscriptions": "expressions messages replication sow",
        "core": "messages queues replication sow subscriptions views",
        "sow": "expressions messages",
        "views": "expressions messages sow subscriptions",
        "queues": "expressions messages",
        "security": "expressions messages",
        "topology": "messages replication",
        "telemetry": "messages storage",
        "client": "messages net protocol queues storage",
        "configuration": (
            "actions capacity config messages net plugins queues replication security sow "
            "telemetry views"
        ),
        "net": "protocol storage",
        # What processes start with.
        "config": (
            "actions capacity messages net protocol queues replication security sow storage "
            "telemetry views"
        ),
        "server": (
            "actions capacity config core messages net plugins protocol queues replication "
            "security sow storage subscriptions telemetry views"
        ),
        "admin": "messages security telemetry",
        "processes": (
            "actions admin client config expressions messages net plugins protocol queues "
            "replication security server sow storage telemetry"
        ),
        "fabric": (
            "admin capacity client config configuration messages net replication security server "
            "storage telemetry topology"
        ),
        "reports": "messages",
        "hosts": "",
        # Files for a browser.
        "console": "",
        "verification": "messages queues replication",
        "drills": (
            "client configuration fabric hosts messages queues replication reports "
            "server storage telemetry verification"
        ),
        "pipeline": (
            "client commands config configuration core expressions fabric messages plugins "
            "replication reports server sow storage subscriptions topology"
        ),
        # Files of instances, read from another process.
        "inspection": "messages queues replication sow storage",
        "commands": (
            "client config configuration drills expressions fabric hosts inspection messages net "
            "plugins protocol reports security server sow storage telemetry topology"
        ),
    }.items()
}
# Where a room may import a few files of another one only, and why.
ONLY = {
    # A process beside an instance's reads what it is given and is prepared alike: with the server
    # itself it would load what it never runs.
    ("processes", "server"): frozenset({"services/server/process.py"}),
    # The options of logs are one format, from a file to each process.
    ("configuration", "telemetry"): frozenset({"services/telemetry/log_options.py"}),
    # Its commands print alike.
    ("pipeline", "commands"): frozenset(
        {"services/commands/shared/interrupts.py", "services/commands/shared/printing.py"}
    ),
}
# Files that stand in no room, and the rooms that they may import.
WITHOUT_ROOM = {
    "cli.py": frozenset({"commands", "pipeline", "telemetry"}),
    # It imports cli.py when it runs.
    "entry.py": frozenset({"cli.py"}),
    "errors.py": frozenset(),
    # Installed as the package `raylay` itself (pyproject.toml): what a script needs.
    # The settings, too: it names them for editors, and imports each when it is used.
    "api": frozenset(
        {"capacity", "client", "config", "configuration", "fabric", "messages", "replication"}
    ),
    "__init__.py": frozenset(),
}
LAUNCHERS = ("services/fabric/",)

FUNCTION_LINES_MAX = 90
# Functions that are longer, with their length. A number here may only fall: the test fails when
# the function grew, and when it shrank until the number is lowered or the entry removed.
LONG_FUNCTIONS: dict[str, int] = {}
LINE_LENGTH_MAX = 100

FILE_LINES_MAX = 900
# Files that are longer, with their length and the reason why they have one job all the same. A
# number here may only fall, in steps, so that a change that takes out ten lines need not come here.
FILE_LINES_STEP = 50
LONG_FILES: dict[str, int] = {
    "services/telemetry/event_table.py": 950,  # one table; declarations only
}
# The files that import one another in a circle, an import for type checkers alone included: who
# changes one of them has to know them all. A circle here may only lose members.
CYCLES: tuple[frozenset[str], ...] = ()

# Pure modules that need no test file of their own, and why.
WITHOUT_TEST_FILE = {
    "services/errors.py": "declarations only",
    "services/client/events.py": "declarations only",
    "services/core/batch.py": "declarations only",
    "services/client/publishing/publish_store.py": "declarations only",
    "services/expressions/functions/__init__.py": "unit/expressions/functions/test_registry.py",
    "services/expressions/functions/aggregates.py": "unit/expressions/functions/test_registry.py",
    "services/expressions/tree.py": "declarations only",
    "services/verification/laws/acks.py": "sim/test_checkers.py",
    "services/verification/laws/journals.py": "sim/test_checkers.py",
    "services/verification/laws/logs.py": "sim/test_checkers.py",
    "services/verification/laws/publish_stores.py": "sim/test_checkers.py",
    "services/verification/laws/serving.py": "sim/test_checkers.py",
    "services/verification/laws/queues.py": "sim/test_queues.py",
    "services/verification/queue_history.py": "declarations only",
    "services/verification/violation.py": "sim/test_checkers.py",
    "services/queues/decisions.py": "declarations only",
    "services/views/conflated_topic.py": "unit/core/test_conflation.py",
    "services/views/definition.py": "unit/core/test_views.py",
    "services/views/groups.py": "unit/views/test_group_fold.py",
    "services/views/projection.py": "unit/views/test_group_fold.py",
    "services/views/sources.py": "unit/views/test_join_fold.py",
    "services/views/view.py": "unit/core/test_views.py",
    "services/security/credentials.py": "unit/security/test_modules.py",
    "services/messages/types/abilities.py": "declarations only",
    "services/telemetry/action_events.py": "declarations only",
    "services/telemetry/event_entry.py": "declarations only",
    "services/telemetry/event_table.py": "declarations only",
    "services/messages/types/definitions.py": "declarations only",
    "services/protocol/child/buffer_control.py": "unit/server/clients/test_slow_clients_control.py",
    "services/protocol/link/tunnel.py": "golden/test_protocol_replication.py",
    "services/protocol/header_values.py": "golden/test_protocol_session.py",
    "services/protocol/client/queue_commands.py": "golden/test_protocol_session.py",
    "services/protocol/client/subscribe.py": "golden/test_protocol_session.py",
    "services/queues/replicated_state.py": "unit/queues/test_machine.py",
    "services/queues/message.py": "declarations only",
    "services/replication/effects.py": "declarations only",
    "services/replication/instance/__init__.py": "imports only",
    "services/replication/instance/pending_replies.py": "declarations only",
    "services/replication/instance/machine.py": "unit/replication/instance/test_machine.py",
    "services/replication/values.py": "declarations only",
}


def files(*folders: str, suffix: str = ".py") -> list[Path]:
    """The files of the folders, in order."""
    found = [path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    """The path from the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module", autouse=True)
def kept() -> Iterator[None]:
    """Trees are very many objects: to look for garbage among them takes longer than to parse."""
    gc.disable()
    yield
    parsed.cache_clear()
    gc.enable()


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node below one that is no expression, nor in one: those are most of them."""
    waiting = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(node, ast.expr):
                yield node
                waiting.append(node)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a file, those inside functions included.

    `from raylay.services import errors` gives `raylay.services.errors`.
    """
    package = ["raylay", *path.relative_to(ROOT).parent.parts]
    for node in statements(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = ROOT.joinpath(*module.split(".")[1:], alias.name)
                is_module = module.startswith("raylay") and (
                    inner.is_dir() or inner.with_suffix(".py").is_file()
                )
                yield node.lineno, f"{module}.{alias.name}" if is_module else module


def is_within(module: str, *parents: str) -> bool:
    """Whether the module is one of the parents or lies below one."""
    return any(module == parent or module.startswith(parent + ".") for parent in parents)


def file_of(module: str) -> str:
    """The file of a raylay module; a package stands for its folder."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return name_of(path) + ("/" if path.is_dir() else ".py")


def wrong_imports(path: Path) -> Iterator[str]:
    """What a file of the tree imports against the arrows."""
    name = name_of(path)
    part = name.split("/")[0]
    for line, module in sorted(set(imports(path))):
        where = f"{name}:{line} imports {module}"
        if is_within(module, *PARTS):
            yield f"{where}: write raylay.{module}"
        launches = part == "actors" or name.startswith(LAUNCHERS)
        if is_within(module, "raylay.actors") and not launches:
            yield f"{where}: only the fabric launcher imports actors"
        of_services = is_within(module, "raylay.services")
        if part == "storage" and of_services and not is_within(module, *VALUE_TYPES):
            yield f"{where}: storage imports only value types of services"
        if is_pure(name):
            if module.split(".")[0] in BANNED_IN_PURE:
                yield f"{where}: a pure file has no I/O, clock, chance or actor"
            if is_within(module, "raylay") and not is_pure(file_of(module)):
                yield f"{where}: a pure file imports pure files only"


def room_of(name: str) -> str:
    """The room of a file: `storage` and `actors` are one each."""
    part, _, rest = name.partition("/")
    return rest.partition("/")[0] if part == "services" else part


def wrong_rooms(graph: dict[str, set[str]]) -> Iterator[str]:
    """What a file of services imports from a room that its own may not know."""
    for name, others in graph.items():
        room = room_of(name)
        if not name.startswith("services/"):
            continue
        if room not in ROOMS and room not in WITHOUT_ROOM:
            yield f"{name}: {room} is in no table of this test"
            continue
        allowed = ROOMS[room] if room in ROOMS else WITHOUT_ROOM[room]
        for other in sorted(others):
            there = room_of(other)
            # Who may import actors is looked at above, file by file.
            if there not in (*allowed, room, "errors.py", "actors"):
                yield f"{name} imports {other}: {room} may not know {there}"
            elif other not in ONLY.get((room, there), (other,)):
                yield f"{name} imports {other}: of {there} {room} may know a few files only"


def test_rooms_know_whom_they_may() -> None:
    graph = import_graph()
    wrong = list(wrong_rooms(graph))
    assert not wrong, "\n".join(wrong)
    used = {(room_of(name), room_of(other)) for name, found in graph.items() for other in found}
    unused = [f"{a} {b}" for a, allowed in ROOMS.items() for b in allowed if (a, b) not in used]
    assert not unused, f"take out of ROOMS what nobody needs any more: {unused}"


@pytest.mark.parametrize(
    ("name", "other", "wrong"),
    [
        ("services/server/x.py", "services/replication/y.py", False),
        ("services/server/x.py", "services/fabric/y.py", True),
        ("services/messages/x.py", "services/replication/y.py", True),
        ("services/messages/x.py", "services/errors.py", False),
        ("services/subscriptions/x.py", "storage/journal.py", True),
        ("services/nowhere/x.py", "services/errors.py", True),
        ("services/loose.py", "services/errors.py", True),
        ("services/cli.py", "services/server/y.py", True),
        ("services/processes/link/x.py", "services/config/instance.py", False),
        ("services/processes/link/x.py", "services/server/y.py", True),
        ("services/server/x.py", "services/processes/link/y.py", True),
    ],
)
def test_the_table_of_rooms_is_checked(name: str, other: str, wrong: bool) -> None:
    assert bool(list(wrong_rooms({name: {other}}))) == wrong


def test_imports_follow_the_arrows() -> None:
    wrong = [text for path in files(*PARTS) for text in wrong_imports(path)]
    assert not wrong, "\n".join(wrong)


def test_pure_files_call_nothing_that_reaches_out() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno} calls {node.func.id}"
        for path in files("services")
        if is_pure(name_of(path))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in BANNED_CALLS_IN_PURE
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "source", "reason"),
    [
        ("storage/x.py", "from raylay.services.telemetry.tracing import Tracing", "value types"),
        ("storage/x.py", "import raylay.actors.instance", "fabric launcher"),
        ("services/cli.py", "from raylay.actors import launch", "fabric launcher"),
        ("services/messages/x.py", "import os.path", "no I/O"),
        ("services/messages/x.py", "def f():\n    from time import time_ns", "no I/O"),
        ("services/replication/x.py", "from raylay.services import tracing", "pure files only"),
        ("services/replication/x.py", "from ..client import machine as m", None),
        ("services/replication/x.py", "from .. import logs", "pure files only"),
        ("services/replication/x.py", "from raylay.storage.journal import Journal", "pure files"),
        ("services/x.py", "from services.errors import RaylayError", "write raylay."),
        ("storage/x.py", "from raylay.services.messages.ranges import SequenceSet", None),
        ("storage/x.py", "import lmdb, os, time", None),
        ("services/fabric/fabric.py", "from raylay.actors.launch import start", None),
        ("actors/x.py", "from raylay.actors import launch\nimport raylay.storage.journal", None),
    ],
)
def test_the_arrows_are_checked(
    name: str, source: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "parsed", lambda _: ast.parse(source))
    found = list(wrong_imports(ROOT / name))
    assert bool(found) == bool(reason), found
    if reason:
        assert any(reason in text for text in found)


def remote_uses(tree: ast.Module) -> Iterator[int]:
    """The lines that use `ray.remote`, as a decorator or as a call, however it is named."""
    names = {
        alias.asname or alias.name
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ray"
        for alias in node.names
        if alias.name == "remote"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "remote":
            if isinstance(node.value, ast.Name) and node.value.id == "ray":
                yield node.lineno
        elif isinstance(node, ast.Name) and node.id in names:
            yield node.lineno


ACTOR_LAUNCHERS = tuple(f"actors/launch{what}.py" for what in ("", "_program"))


def test_actor_classes_are_made_in_the_launcher_only() -> None:
    wrong = [
        f"{name_of(path)}:{line}"
        for path in files(*PARTS)
        if name_of(path) not in ACTOR_LAUNCHERS
        for line in remote_uses(parsed(path))
    ]
    assert not wrong, f"ray.remote outside the launchers of actors/: {wrong}"


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("import ray\n@ray.remote\nclass A: ...", 1),
        ("import ray\n@ray.remote(num_cpus=0)\nclass A: ...", 1),
        ("from ray import remote as r\nr(A)", 1),
        ("handle.status.remote()", 0),
    ],
)
def test_uses_of_remote_are_found(source: str, uses: int) -> None:
    assert len(list(remote_uses(ast.parse(source)))) == uses


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """(qualified name, function) of every function, methods and nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.expr):
            yield from functions(node, prefix)


def test_functions_fit_a_screen() -> None:
    wrong = []
    long = dict(LONG_FUNCTIONS)
    for path in files(*PARTS, "tests", "benchmarks", "examples"):
        for name, node in functions(parsed(path)):
            # Without signature and docstring, which a reader takes in at a glance.
            code = node.body[1:] if ast.get_docstring(node) else node.body
            assert node.end_lineno is not None
            length = node.end_lineno - code[0].lineno + 1 if code else 0
            where = f"{name_of(path)}:{name}"
            limit = long.pop(where, FUNCTION_LINES_MAX)
            if length > limit:
                wrong.append(f"{where} has {length} lines, the limit is {limit}")
            elif limit > FUNCTION_LINES_MAX and length < limit:
                wrong.append(f"{where} shrank to {length} lines: lower its limit from {limit}")
    wrong += [f"{where} is no more: take it out of LONG_FUNCTIONS" for where in long]
    assert not wrong, "\n".join(wrong)


def file_lengths() -> dict[str, int]:
    """The lines of every file that has more than a file should."""
    found = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files(*PARTS)
    }
    return {name: lines for name, lines in found.items() if lines > FILE_LINES_MAX}


def wrong_lengths(found: dict[str, int], listed: dict[str, int]) -> Iterator[str]:
    """Where the list and the files differ."""
    for name in sorted(found.keys() | listed.keys()):
        lines, limit = found.get(name, 0), listed.get(name, FILE_LINES_MAX)
        if lines > limit:
            yield f"{name} has {lines} lines, the limit is {limit}"
        elif not lines:
            yield f"{name} fits by now, or is no more: take it out of LONG_FILES"
        elif lines <= limit - FILE_LINES_STEP:
            yield f"{name} shrank to {lines} lines: lower its limit from {limit}"


def test_files_have_one_subject() -> None:
    wrong = list(wrong_lengths(file_lengths(), LONG_FILES))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("found", "listed", "wrong"),
    [
        ({}, {}, ""),
        ({"a": 901}, {}, "the limit is 900"),
        ({"a": 1002}, {"a": 1001}, "the limit is 1001"),
        ({"a": 1001}, {"a": 1001}, ""),
        ({"a": 952}, {"a": 1001}, ""),
        ({"a": 951}, {"a": 1001}, "lower its limit"),
        ({}, {"a": 1001}, "take it out"),
    ],
)
def test_the_list_of_lengths_only_falls(
    found: dict[str, int], listed: dict[str, int], wrong: str
) -> None:
    told = list(wrong_lengths(found, listed))
    assert bool(told) == bool(wrong)
    assert all(wrong in each for each in told)


@cache
def import_graph() -> dict[str, set[str]]:
    """The files that each file imports."""
    every = {name_of(path): path for path in files(*PARTS)}
    graph = {}
    for name, path in every.items():
        named = (file_of(module) for _, module in imports(path) if is_within(module, "raylay"))
        found = {f"{each}__init__.py" if each.endswith("/") else each for each in named}
        graph[name] = {each for each in found if each in every and each != name}
    return graph


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The files that reach one another, in groups of at least two."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen: set[str] = set()
        waiting = list(graph[name])
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting += graph[each]
        reached[name] = seen
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }


def wrong_cycles(found: set[frozenset[str]], listed: tuple[frozenset[str], ...]) -> Iterator[str]:
    """Where the list and the circles differ."""
    for circle in found:
        if not any(circle <= known for known in listed):
            yield f"these import one another: {', '.join(sorted(circle))}"
    for known in listed:
        inside = [circle for circle in found if circle <= known]
        if known not in inside:
            left = "; ".join(", ".join(sorted(circle)) for circle in inside) or "nothing"
            yield f"of the circle with {min(known)} there is left {left}: lower CYCLES to it"


def test_no_more_files_import_one_another() -> None:
    wrong = list(wrong_cycles(cycles(import_graph()), CYCLES))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("edges", "listed", "wrong"),
    [
        ("ab bc", [], ""),
        ("ab ba", [], "import one another: a, b"),
        ("ab ba bc", ["ab"], ""),
        ("ab bc ca", ["ab"], "import one another: a, b, c"),
        ("ab ba", ["abc"], "left a, b"),
        ("ab", ["ab"], "left nothing"),
    ],
)
def test_the_list_of_cycles_only_shrinks(edges: str, listed: list[str], wrong: str) -> None:
    graph: dict[str, set[str]] = {name: set() for name in "abc"}
    for tail, head in edges.split():
        graph[tail].add(head)
    told = list(wrong_cycles(cycles(graph), tuple(map(frozenset, listed))))
    assert bool(told) == bool(wrong), told
    assert not wrong or any(wrong in each for each in told), told


def test_only_the_runners_know_the_whole_server() -> None:
    """Its parts are handed what they need: who imports the server could reach all of it."""
    whole = "services/server/instance_server.py"
    found = {name for name, imported in import_graph().items() if whole in imported}
    assert found == {"services/server/run_instance.py", "services/server/runner.py"}


# Where a file or directory is renamed, beside `write_durably`: each syncs the directory behind it.
RENAMING = {
    "services/drills/faults.py": "a disk that is lost",
    "services/fabric/records/registry.py": "the entry of a fabric that stopped",
    "services/server/sow/stored_topics.py": "a damaged store",
    "services/pipeline/archive.py": "files of the lake, whose folders are synced together",
    "services/pipeline/publishing/staging.py": "a file that Arrow writes",
    "storage/environment.py": "a store that is compacted",
    "storage/files.py": "its home",
    "storage/front.py": "a file that is filled",
    "storage/lmdb_journal.py": "segments",
    "storage/queue.py": "a damaged store",
    "storage/repair.py": "a damaged front log",
    "storage/state.py": "an empty store",
}


def test_files_are_replaced_in_one_place() -> None:
    """A rename without a sync of its directory is undone by a power cut."""
    found = set()
    for path in files(*PARTS):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, name = ast.unparse(node.func.value), node.func.attr
            # `replace` of a text has two arguments, that of a path has one.
            of_path = name == "replace" and len(node.args) == 1 and not node.keywords
            if name == "rename" or of_path or (owner == "os" and name == "replace"):
                found.add(name_of(path))
    assert found == RENAMING.keys()
    for name in found:
        assert "sync_directory" in (ROOT / name).read_text(encoding="utf-8"), name


def open_makings(tree: ast.Module) -> Iterator[int]:
    """The lines of calls that make a file or a directory which others may enter or read, where the
    umask lets them. An `open` for writing has the modes of the directory around it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        if owner == "lmdb" and name == "open":
            is_private = any(
                keyword.arg == "mode" and ast.unparse(keyword.value) in PRIVATE_MODES
                for keyword in node.keywords
            )
        elif owner == "os" and name == "open":
            # What the flags are called elsewhere is not followed: a mode is given to make a file.
            makes = len(node.args) > 2 or "O_CREAT" in ast.unparse(node)
            is_private = not makes or (
                len(node.args) > 2 and ast.unparse(node.args[2]) in PRIVATE_MODES
            )
        else:
            is_private = name not in ("mkdir", "makedirs", "touch", "mkfifo", "chmod", "umask")
        if not is_private:
            yield node.lineno


PRIVATE_MODES = ("PRIVATE_FILE_MODE", "0o600", "384")
# Where a mode is another one, and why.
OPEN_MAKINGS = {
    "services/pipeline/session.py": "a program of this user, in a directory of its own",
    "storage/files.py": "its home",
}


@pytest.mark.covers("Configuration", "what is made on the disk is its owner's alone")
def test_what_is_made_on_the_disk_is_its_owners_alone() -> None:
    """A umask of 022, the usual one, lets every user of the host read messages and keys."""
    found = {name_of(path): [*open_makings(parsed(path))] for path in files(*PARTS)}
    wrong = {name: lines for name, lines in found.items() if lines and name not in OPEN_MAKINGS}
    assert not wrong, f"make it with what storage/files.py has: {wrong}"
    assert all(found[name] for name in OPEN_MAKINGS), "one of the exceptions is none any more"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("lmdb.open(path)", True),
        ("lmdb.open(path, mode=0o644)", True),
        ("lmdb.open(path, mode=PRIVATE_FILE_MODE)", False),
        ("os.open(path, os.O_RDWR | os.O_CREAT)", True),
        ("os.open(path, flags, 0o644)", True),
        ("os.open(path, flags, 0o600)", False),
        ("os.open(path, os.O_RDONLY)", False),
        ("path.mkdir(parents=True)", True),
        ("os.makedirs(path)", True),
        ("mark.touch()", True),
        ("os.chmod(path, 0o600)", True),
        ("make_directory(path)", False),
    ],
)
def test_the_modes_of_what_is_made_are_checked(source: str, wrong: bool) -> None:
    assert bool([*open_makings(ast.parse(source))]) is wrong


def text_files() -> list[Path]:
    """What people read and write in this tree."""
    suffixes = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".json", ".xml")
    found = [path for suffix in suffixes for path in files(*WATCHED, suffix=suffix)]
    return found + [path for path in ROOT.iterdir() if path.suffix in suffixes]


def test_lines_are_short() -> None:
    wrong = [
        f"{name_of(path)}:{number} has {len(line)} characters"
        for path in files(*PARTS, "tests", "benchmarks", "examples")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX
    ]
    assert not wrong, "\n".join(wrong)


LEFT_BEHIND = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:wo" r"rk|ro" r"ot|ho" r"me)/")


def test_nothing_is_left_behind() -> None:
    wrong = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LEFT_BEHIND.search(line) or MACHINE_PATH.search(line)
    ]
    assert not wrong, "\n".join(wrong)


# Rooms whose functions and methods a user of the package calls: each of these owes a docstring.
# Elsewhere no docstring is better than one that repeats the name, so only modules and public
# classes owe one.
DOCUMENTED_FUNCTIONS = ("services/client/", "services/fabric/", "services/api/")


def without_docstring(
    tree: ast.AST, prefix: str = "", functions_too: bool = True
) -> Iterator[tuple[int, str]]:
    """Public classes without a docstring, and public functions where users import them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If):  # definitions under TYPE_CHECKING or a version check
            yield from without_docstring(node, prefix, functions_too)
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if isinstance(node, Function) and not functions_too:
            continue
        # A setter and an overload are documented by the definition that they belong to.
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        belongs = "overload" in decorators or any(d.endswith(".setter") for d in decorators)
        if not belongs and not ast.get_docstring(node):
            yield node.lineno, prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from without_docstring(node, f"{prefix}{node.name}.", functions_too)


def test_what_users_and_readers_rely_on_has_a_docstring() -> None:
    wrong = []
    for path in files(*PARTS):
        tree = parsed(path)
        if tree.body and not ast.get_docstring(tree):
            wrong.append(f"{name_of(path)}: the module")
        functions_too = name_of(path).startswith(DOCUMENTED_FUNCTIONS)
        wrong += [
            f"{name_of(path)}:{line} {name}"
            for line, name in without_docstring(tree, functions_too=functions_too)
        ]
    assert not wrong, "\n".join(wrong)


# A reader wants to know what a thing is or does: a docstring starts with a noun or a verb.
QUESTION_WORDS = ("What", "Of", "Whether", "Who", "Whose", "How", "Which", "Where", "Why", "When")
QUESTIONS_MAX = {ast.Module: 0, ast.ClassDef: 0, ast.FunctionDef: 0}
"""Docstrings that start with one of these, by what they belong to. They may only become fewer."""


def questions(trees: Iterable[ast.Module]) -> dict[type[ast.AST], list[str]]:
    """The first lines of docstrings that start with a question word."""
    found: dict[type[ast.AST], list[str]] = {kind: [] for kind in QUESTIONS_MAX}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if re.match(rf"({'|'.join(QUESTION_WORDS)})\b", first):
                    kind = ast.FunctionDef if isinstance(node, Function) else type(node)
                    found[kind].append(first)
    return found


def test_docstrings_are_statements() -> None:
    found = questions(parsed(path) for path in files(*PARTS))
    for kind, lines in found.items():
        assert len(lines) <= QUESTIONS_MAX[kind], (
            f"{len(lines)} docstrings of a {kind.__name__} start with one of {QUESTION_WORDS}, "
            f"{QUESTIONS_MAX[kind]} may: start those that you wrote with a noun or a verb"
        )


def test_a_docstring_that_is_a_question_is_found() -> None:
    tree = ast.parse('"""The parts."""\nclass A:\n    """What it is.\n\n    More."""\n')
    assert questions([tree]) == {ast.Module: [], ast.ClassDef: ["What it is."], ast.FunctionDef: []}


def names_twice(trees: dict[str, ast.Module]) -> list[str]:
    """The names of classes at the top of files that more than one file has, with those files."""
    places: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def test_nobody_asks_whether_an_object_is_half_built() -> None:
    """An attribute that may be missing is declared as one that may be None."""
    asks = {name_of(path) for path in files(*PARTS) if "hasattr(" in path.read_text("utf-8")}
    # Spark's predicates have no common base that says which have a value.
    assert asks == {"services/pipeline/tables/source.py"}


def is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(each).rpartition(".")[2] for each in method.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


class CallableNames:
    """The names in a tree by which a rule tells that something is called.

    Attributes:
        methods: of methods that no class has an attribute of the name of.
        annotated: of attributes that are annotated as callables, or as a class that is called.
    """

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        methods: set[str] = set()
        values: set[str] = set()
        self.annotated: set[str] = set()
        nodes = [node for tree in trees for node in ast.walk(tree)]
        called = {
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef)
            and any(isinstance(e, ast.FunctionDef) and e.name == "__call__" for e in node.body)
        }
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        (values if is_property(each) else methods).add(each.name)
            elif isinstance(node, ast.AnnAssign):
                target = node.target
                name = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
                words = set(re.findall(r"\w+", ast.unparse(node.annotation)))
                (self.annotated if words & {"Callable", *called} else values).add(name)
            elif isinstance(node, ast.Assign):
                stored = (each for target in node.targets for each in ast.walk(target))
                values |= {each.attr for each in stored if isinstance(each, ast.Attribute)}
        self.all_methods = methods
        self.methods = methods - values


def targets_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment, with what is assigned to it."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value = node.value  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        else:
            yield target, value


def patched_callables(tree: ast.Module, names: CallableNames) -> Iterator[str]:
    """The assignments that put a callable into an attribute of another object. Attributes with a
    capital are of other libraries, as the handlers of a parser."""

    def is_called(value: ast.expr, name: str, functions: set[str], handed: set[str]) -> bool:
        if isinstance(value, ast.IfExp):
            return any(is_called(e, name, functions, handed) for e in (value.body, value.orelse))
        if isinstance(value, ast.BoolOp):
            return any(is_called(each, name, functions, handed) for each in value.values)
        if isinstance(value, ast.Call):
            return ast.unparse(value.func) in ("partial", "functools.partial")
        if isinstance(value, ast.Name):
            return value.id in functions or (value.id in handed and name in names.annotated)
        if isinstance(value, ast.Attribute):
            is_named = name in names.annotated and value.attr in names.all_methods
            return is_named or value.attr in names.methods
        return isinstance(value, ast.Lambda)

    everywhere = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = {
            node.name
            for node in ast.walk(function)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not function
        }
        arguments = (*function.args.args, *function.args.kwonlyargs)
        handed = {
            each.arg
            for each in arguments
            if each.annotation is not None and "Callable[" in ast.unparse(each.annotation)
        }
        for node in ast.walk(function):
            for target, value in targets_of(node):
                if (
                    isinstance(target, ast.Attribute)
                    and ast.unparse(target.value) not in ("self", "cls")
                    and target.attr.islower()
                    and is_called(value, target.attr, everywhere | inner, handed)
                ):
                    yield f"{node.lineno} {ast.unparse(node)}"  # type: ignore[attr-defined]


LATE_ATTRIBUTES = frozenset(
    (
        "services/net/impaired.py transport",
        "services/net/tls_stream.py _tls",
        "services/processes/admin/statistics_thread.py _store",
        "services/processes/link/pump.py reader",
        "services/processes/link/runtime.py loop",
        "services/processes/link/runtime.py outbox",
        "services/processes/queue_owner/owner_server.py _instance",
        "services/processes/queue_owner/owner_server.py _loop",
        "services/processes/queue_owner/owner_server.py _outbox",
        "services/processes/queue_owner/owner_server.py _traces",
        "services/processes/slow_client_buffer/buffer_server.py _instance",
        "services/processes/slow_client_buffer/buffer_server.py _loop",
        "services/processes/slow_client_buffer/buffer_server.py _store",
        "services/server/clients/buffered_connection.py _buffer",
        "services/server/clients/replay_members.py replay",
        "services/verification/laws/logs.py lost_copies",
    )
)
"""The attributes that a constructor declares and somebody sets later. This list only shrinks."""


def test_what_is_made_is_complete() -> None:
    """An attribute that a constructor only declares is an AttributeError until somebody sets it,
    and no tool sees that: hand the value to the constructor, and make the object when the value
    exists."""
    found = {
        f"{name_of(path)} {node.target.attr}"
        for path in files(*PARTS)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.AnnAssign)
        and node.value is None
        and isinstance(node.target, ast.Attribute)
    }
    assert found <= LATE_ATTRIBUTES, f"hand these to the constructor: {found - LATE_ATTRIBUTES}"
    assert found >= LATE_ATTRIBUTES, f"mended, take out: {LATE_ATTRIBUTES - found}"


def test_nobody_waits_so_that_a_cancellation_is_lost() -> None:
    """`asyncio.wait_for` of Python 3.11 returns the result, and swallows a cancellation, where both
    come together; `asyncio.timeout` does not."""
    wrong = [name_of(path) for path in files(*PARTS) if "wait_for(" in path.read_text()]
    # This file waits for a condition of `threading`.
    assert wrong == ["storage/environment.py"]


def test_nobody_puts_a_callable_into_another_object() -> None:
    """What an object calls it is given when it is made. Of two parts that call one another one is
    handed an object that is made before both: a table, a map, a clock."""
    names = CallableNames([parsed(path) for path in files(*PARTS)])
    wrong = {
        f"{name_of(path)}:{each}"
        for path in files(*PARTS)
        for each in patched_callables(parsed(path), names)
    }
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("door.acknowledging = lambda keys: None", True),
        ("queues.reachable = self._reachable", True),
        ("self.upstreams.met = self.queues.named", True),
        ("reader.holds = partial(print, 1)", True),
        ("commits.slowed_s = queues.slowed_s", True),
        ("machine.arrived = inner", True),
        ("machine.arrived, machine.other = inner, 1", True),
        ("keeper.pass_on = told", True),
        ("keeper.pass_on = self.named if told else None", True),
        ("self.told = lambda: None", False),
        ("self.told = told", False),
        ("keeper.count = given", False),
        ("keeper.count = self.count", False),
        ("keeper.count = self.named()", False),
        ("parser.StartElementHandler = inner", False),
        ("sessions[1] = inner", False),
    ],
)
def test_a_callable_that_is_put_into_another_object_is_found(body: str, wrong: bool) -> None:
    tree = ast.parse(
        "class A:\n"
        "    pass_on: Callable[[int], None]\n"
        "    count: int\n"
        "    slowed_s: B | None\n"
        "    def named(self): ...\n"
        "    def _reachable(self): ...\n"
        "    def work(self, told: Callable[[int], None], given: int):\n"
        "        def inner(): ...\n"
        f"        {body}\n"
        "class B(Protocol):\n"
        "    def __call__(self): ...\n"
        "class C:\n"
        "    def slowed_s(self): ...\n"
    )
    assert bool(list(patched_callables(tree, CallableNames([tree])))) is wrong


def misnamed_files(path: Path) -> Iterator[str]:
    """The files that strings of a module name without their path, and that are not beside it."""
    bases = (path.parent, path.parent.parent, ROOT / "services", ROOT)
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in re.findall(r"(?<![\w./-])((?:[a-z_]+/)*[a-z_]+\.py)\b", node.value):
                if not any((base / name).exists() for base in bases):
                    yield f"{name_of(path)}:{node.lineno} {name}"


def test_files_that_docstrings_name_are_there() -> None:
    wrong = [each for path in files(*PARTS) for each in misnamed_files(path)]
    assert not wrong, "\n".join(wrong)


def test_a_class_name_stands_for_one_class() -> None:
    wrong = names_twice({name_of(path): parsed(path) for path in files(*PARTS)})
    assert not wrong, "\n".join(wrong)


def test_a_name_of_two_classes_is_found() -> None:
    one, other = ast.parse("class A: ...\nclass B: ..."), ast.parse("class A: ...")
    assert names_twice({"a.py": one, "b.py": other}) == ["A: a.py, b.py"]


def test_every_module_says_annotations_are_not_evaluated() -> None:
    wrong = [
        name_of(path)
        for path in files(*PARTS, "tests", "benchmarks", "examples")
        if any(not isinstance(node, ast.Expr) for node in parsed(path).body)
        and "from __future__ import annotations" not in path.read_text(encoding="utf-8")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_pure_module_has_a_test_file() -> None:
    tests = {path.stem for path in files("tests") if path.name.startswith("test_")}
    wrong = []
    listed = dict(WITHOUT_TEST_FILE)
    for path in files("services"):
        name = name_of(path)
        if not is_pure(name) or len(parsed(path).body) <= 1:
            continue  # Nothing, or a docstring alone.
        # Names need not be unique in the tree: a test file may say a folder, too.
        folders = path.relative_to(ROOT).parts[1:-1]
        stems = (f"test_{path.stem}", *(f"test_{folder}_{path.stem}" for folder in folders))
        tested = any(
            test == stem or test.startswith(stem + "_") for test in tests for stem in stems
        )
        if name in listed:
            del listed[name]
        elif not tested:
            wrong.append(f"{name} has no tests/**/{stems[0]}.py")
    wrong += [f"{name} is no more: take it out of WITHOUT_TEST_FILE" for name in listed]
    assert not wrong, "\n".join(wrong)


DIFFERENT_IN_EACH_PROCESS = frozenset(
    {
        "datetime.now",
        "os.getpid",
        "os.urandom",
        "time.monotonic",
        "time.time",
        "time.time_ns",
        "uuid.uuid4",
        "wall_us",
    }
)


def cases_that_change(tree: ast.AST) -> Iterator[int]:
    """Yields the lines of parametrized cases whose value is another in each process."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if "parametrize" not in ast.unparse(decorator).split("(")[0]:
                continue
            for call in (each for each in ast.walk(decorator) if isinstance(each, ast.Call)):
                name = ast.unparse(call.func)
                stamped = name == "gzip.compress" and all(
                    each.arg != "mtime" for each in call.keywords
                )
                if stamped or name in DIFFERENT_IN_EACH_PROCESS:
                    yield call.lineno


def test_names_of_cases_are_the_same_in_each_process() -> None:
    """Processes that share the tests refuse to begin where one has other names of cases."""
    wrong = [
        f"{name_of(path)}:{line}: the value of the case is another in each process"
        for path in files("tests")
        for line in cases_that_change(parsed(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("gzip.compress(b'')", True),
        ("gzip.compress(b'', mtime=0)", False),
        ("time.time()", True),
        ("sorted('ab')", False),
    ],
)
def test_cases_that_change_are_found(case: str, wrong: bool) -> None:
    source = f"@pytest.mark.parametrize('value', [{case}])\ndef test(value): ...\n"
    assert bool([*cases_that_change(ast.parse(source))]) is wrong
