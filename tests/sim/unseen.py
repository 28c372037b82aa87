"""The lines of the pure rooms that no seed runs: `python -m sim.unseen --seeds N [--base B]`.

The simulator proves what its seeds run and nothing else. So the lines that they do not run are
counted, and each of them is in `unseen.txt` with the reason: by its file, its class or function, or
its text in there, so that edits elsewhere leave the entry true. A line without an entry fails.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import coverage

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PURE = (
    "services/core/*.py",
    "services/messages/ranges.py",
    "services/messages/shared.py",
    "services/messages/stateful.py",
    "services/messages/topic_sets.py",
    "services/messages/topics.py",
    "services/replication/**/*.py",
    "services/subscriptions/*.py",
    "services/client/failover.py",
    "services/client/machine.py",
    "services/client/outbox.py",
    "services/client/resumption.py",
    "services/client/resumptions.py",
)
EXPLAINED = HERE / "unseen.txt"

Line = tuple[str, str, str]
"""Its file below the root, the qualified name of its function (empty: the module), its text."""


def pure_files() -> list[Path]:
    """The rooms whose decisions the simulator is to run."""
    return sorted(path for pattern in PURE for path in ROOT.glob(pattern))


def run_measured(seeds: Sequence[int]) -> dict[str, set[int]]:
    """Runs seeds in this process. Returns the lines run, by file; imports are not counted."""
    files = [str(path) for path in pure_files()]
    measured = coverage.Coverage(data_file=None, include=files, config_file=False)
    measured.start()
    # Behind the start: a module that is imported only now is measured from its first line.
    from sim import run

    failed = [seed for seed in seeds if run.run_seed(seed).violations]
    measured.stop()
    if failed:
        print(f"seeds that fail (make sim shows why): {failed}", file=sys.stderr)
    data = measured.get_data()
    return {name: set(data.lines(name) or ()) for name in data.measured_files()}


def lines_run(base: int, seeds: int, processes: int) -> dict[str, set[int]]:
    """Runs seeds in several processes. Returns the lines that any of them ran, by file."""
    shares = [range(base + part, base + seeds, processes) for part in range(processes)]
    found: dict[str, set[int]] = defaultdict(set)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for share in pool.imap_unordered(run_measured, shares):
            for name, lines in share.items():
                found[name] |= lines
    return found


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Qualified name, first and last line of each function, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef):
                yield name, node.body[0].lineno, node.end_lineno or node.lineno
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, prefix)


def refusals(tree: ast.AST) -> set[int]:
    """The lines that only raise, those of handlers that do nothing else included: what a unit test
    shows with bad input, which no simulated machine sends."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.body[0].lineno in found:
            found.add(node.lineno)
    return found


def unseen(ran: dict[str, set[int]]) -> list[tuple[int, Line]]:
    """The statements within functions that are not among the lines run, with their numbers, but
    for those that refuse."""
    found = []
    for path in pure_files():
        text = path.read_text()
        lines = text.splitlines()
        file = str(path.relative_to(ROOT))
        statements = coverage.Coverage(data_file=None, config_file=False).analysis2(str(path))[1]
        tree = ast.parse(text)
        missing = sorted(set(statements) - ran.get(str(path), set()) - refusals(tree))
        spans = list(functions(tree))
        for number in missing:
            inside = [name for name, first, last in spans if first <= number <= last]
            if inside:
                found.append((number, (file, inside[-1], lines[number - 1].strip())))
    return found


def explained(text: str) -> dict[Line, str]:
    """Entry to reason, of what `unseen.txt` says: a reason ends with a colon, its entries follow,
    indented. Of an entry for a whole function the text is empty, of one for a file its name too.

    Raises:
        ValueError: an entry without a reason, or for a file, function or line that is not there.
    """
    found: dict[Line, str] = {}
    there = {str(path.relative_to(ROOT)): path.read_text() for path in pure_files()}
    reason = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            reason = line if reason.endswith(":") else f"{reason} {line}".strip()
            continue
        file, _, rest = line.strip().partition(" ")
        function, _, code = rest.partition(": ")
        where = f"{EXPLAINED.name}, line {number}"
        if not reason.endswith(":"):
            raise ValueError(f"{where}: an entry without a reason")
        name = function.rpartition(".")[2]
        if file not in there or name not in there[file] or code not in there[file]:
            raise ValueError(f"{where}: {line.strip()} is not there")
        found[(file, function, code)] = reason
    return found


def is_explained(line: Line, known: dict[Line, str]) -> bool:
    """Whether there is an entry for a line, its function, its class or its file."""
    file, function, _ = line
    names = function.split(".")
    outer = [".".join(names[:count]) for count in range(len(names) + 1)]
    return line in known or any((file, name, "") in known for name in outer)


def report(found: Iterable[tuple[int, Line]], known: dict[Line, str]) -> list[str]:
    """The lines that nothing explains, as `unseen.txt` would have them, with their numbers."""
    return [
        f"  {file} {function}: {code}  # line {number}"
        for number, (file, function, code) in found
        if not is_explained((file, function, code), known)
    ]


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit status: 1 where a line is neither run nor explained."""
    parser = argparse.ArgumentParser(prog="sim.unseen", description="Lines that no seed runs.")
    parser.add_argument("--seeds", type=int, default=600, help="how many")
    parser.add_argument("--base", type=int, default=1_000_000, help="the first one")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    started_s = time.perf_counter()
    found = unseen(lines_run(options.base, options.seeds, options.processes))
    known = explained(EXPLAINED.read_text())
    new = report(found, known)
    print("\n".join(new))
    print(
        f"sim.unseen: {options.seeds} seeds, {len(found)} lines not run, {len(new)} of them "
        f"unexplained, {time.perf_counter() - started_s:.1f} s"
    )
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
