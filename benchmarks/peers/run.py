"""`make bench-peers`: Raylay and the brokers that this machine has, on the same loads.

One JSON line a figure, then a table with ratios on stderr. Each broker is measured by a process of
its own: one after the other, but for loads of single messages, of which Raylay and a peer run
slices in turn. Servers are started on loopback with their data below TMPDIR, and ended by their
process ids. What is measured, and what is not equal: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent / "build" / "peers"
"""Where `make bench-peers` puts the peers' Python clients and nats-server, away from Raylay's."""
sys.path[1:1] = [str(HERE.parent)]
sys.path.append(str(CLIENTS))

from context import rest_disk  # noqa: E402
from jetstream_peer import JetStream  # noqa: E402
from loads import QUICK, Figure, Loads, Size  # noqa: E402
from peer import START_S_MAX, Peer  # noqa: E402
from rabbitmq_peer import RabbitMQ  # noqa: E402
from raylay_peer import Raylay  # noqa: E402
from redis_peer import Redis  # noqa: E402

from raylay.services.server.process import new_loop  # noqa: E402

RAYLAY = "raylay"
T = TypeVar("T")
PEERS: dict[str, type[Peer]] = {
    "raylay": Raylay,
    "redis": Redis,
    "jetstream": JetStream,
    "rabbitmq": RabbitMQ,
}
PEER_S_MAX = 560.0
"""A broker that takes longer for the loads that it runs alone is ended."""
STOP_S_MAX = 30.0
LOAD_S_MAX = 120.0
REST_S_MAX = 30.0
"""Of one broker: on a disk that is always busy the run goes on, and its lines say so."""
LOADS: dict[str, Callable[[Loads, str], Awaitable[list[Figure]]]] = {
    "memory_idle_mb": lambda loads, name: loads.memory(name),
    "w1": lambda loads, name: loads.one_at_a_time(name),
    "paced_1000": lambda loads, name: loads.paced(name, 1_000),
    "paced_10000": lambda loads, name: loads.paced(name, 10_000),
    "paced_10000_spinning": lambda loads, name: loads.paced(name, 10_000, spins=True),
    "publish_128B_1pub": lambda loads, name: loads.publish(name, 1, 128),
    "publish_128B_4pub": lambda loads, name: loads.publish(name, 4, 128),
    "publish_1KiB_1pub": lambda loads, name: loads.publish(name, 1, 1024),
    "publish_1KiB_4pub": lambda loads, name: loads.publish(name, 4, 1024),
    "fanout_10": lambda loads, name: loads.fanout(name),
    "replay": lambda loads, name: loads.replay(name),
    "failover": lambda loads, name: loads.failover(name),
    "failover_by_age": lambda loads, name: loads.failover(name, by_age=True),
    "sow_publish": lambda loads, name: loads.publish_state(name),
    "sow_one": lambda loads, name: loads.put_and_get(name),
    "sow_watch_1000": lambda loads, name: loads.paced(name, 1_000, state=True),
    "queue_1_backlog_1": lambda loads, name: loads.queue(name, 1, 1),
    "queue_1_backlog_100": lambda loads, name: loads.queue(name, 1, 100),
    "queue_4_backlog_1": lambda loads, name: loads.queue(name, 4, 1),
    "queue_4_backlog_100": lambda loads, name: loads.queue(name, 4, 100),
}
IN_TURN = (
    "w1",
    "paced_1000",
    "paced_10000",
    "paced_10000_spinning",
    "sow_one",
    "sow_watch_1000",
)
"""Loads of single messages: a machine's processors and disk change from second to second by more
than the brokers differ, so Raylay and a peer run slices of them in turn."""


def options(arguments: list[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__.splitlines()[0])
    names = {"--only": LOADS, "--peers": PEERS}
    for option, known in names.items():
        parser.add_argument(option, default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="a small run: seconds a broker")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args(arguments)
    for option, known in names.items():
        asked = getattr(found, option[2:]).split(",")
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"{option} {','.join(unknown)}: there are {', '.join(known)}")
        setattr(found, option[2:], asked)
    return found


async def work(peer: Peer, size: Size, directory: Path) -> None:
    """Starts a broker, and runs a load on it for each line of stdin: `LOAD` or `LOAD rests`, the
    latter once the disk rests. Answers with the figures in one line of JSON."""
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # A refused connection is tried again.
    asked = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(asked), sys.stdin
    )
    try:
        await peer.start(directory)
        loads, rest_s = Loads(peer, size), REST_S_MAX
        while line := await asked.readline():
            name, _, rests = line.decode().strip().partition(" ")
            busy: dict[str, Any] = {}
            if rests:
                # What another load wrote must not be this one's.
                began_s = time.monotonic()
                busy = {} if rest_disk(directory, max(0.0, rest_s)) else {"disk": "busy"}
                rest_s -= time.monotonic() - began_s
            try:
                async with asyncio.timeout(LOAD_S_MAX):
                    figures = await LOADS[name](loads, name)
            except Exception as error:
                answer: dict[str, Any] = {"error": f"{peer.name}: {name}: {error!r}"}
            else:
                found = [{**vars(figure), "more": {**figure.more, **busy}} for figure in figures]
                answer = {"figures": found}
            print(json.dumps(answer), flush=True)
    finally:
        await peer.stop()


def rounded(value: float) -> float:
    """Whole numbers above 1,000, three digits behind the point below."""
    return round(value) if value >= 1000 else round(value, 3)


class Failed(Exception):
    """A load could not be measured."""


class Worker:
    """A process of its own that holds a broker and runs loads on it."""

    def __init__(self, name: str, *, quick: bool) -> None:
        self.name = name
        command = [sys.executable, __file__, "--worker", "--peers", name]
        self._process = subprocess.Popen(
            command + ["--quick"] * quick, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._within(STOP_S_MAX, self._process.wait)

    def _within(self, limit_s: float, waits: Callable[[], T]) -> T:
        # An interrupt lets it stop its servers; those of a killed worker end with it.
        timers = [
            threading.Timer(limit_s, self._process.send_signal, (signal.SIGINT,)),
            threading.Timer(limit_s + STOP_S_MAX, self._process.kill),
        ]
        for timer in timers:
            timer.start()
        try:
            return waits()
        finally:
            for timer in timers:
                timer.cancel()

    def run(self, load: str, *, rests: bool) -> list[Figure]:
        """The figures of a load.

        Raises:
            Failed: it could not be measured.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(load + " rests" * rests, file=self._process.stdin, flush=True)
            limit_s = START_S_MAX + REST_S_MAX + LOAD_S_MAX + STOP_S_MAX
            line = self._within(limit_s, self._process.stdout.readline)
        except OSError as error:
            raise Failed(f"{self.name}: {load}: {error!r}") from None
        if not line:
            raise Failed(f"{self.name}: {load}: its process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return [Figure(**figure) for figure in answer["figures"]]


class Report:
    """Prints the figures as they come and keeps them; knows whether one is missing."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.whole = True

    def add(self, peer: str, figure: Figure, **more: Any) -> None:
        """One line of JSON."""
        line = {"peer": peer, "figure": figure.name, "value": rounded(figure.value)}
        line |= {"unit": figure.unit, **figure.more, **more}
        print(json.dumps(line), flush=True)
        self.lines.append(line)

    def fail(self, why: object) -> None:
        """A figure that is missing."""
        self.whole = False
        print(f"bench-peers: {why}", file=sys.stderr, flush=True)


def run_alone(name: str, loads: list[str], report: Report, *, quick: bool) -> None:
    """The loads that a broker runs with no other one beside it."""
    end_s = time.monotonic() + PEER_S_MAX
    with Worker(name, quick=quick) as worker:
        for load in loads:
            if time.monotonic() > end_s:
                report.fail(f"{name}: {load}: left out, it has taken {PEER_S_MAX:.0f} s")
                continue
            try:
                for figure in worker.run(load, rests=True):
                    report.add(name, figure)
            except Failed as failed:
                report.fail(failed)


def run_in_turn(names: list[str], loads: list[str], report: Report, *, quick: bool) -> None:
    """Slices of loads, on one broker or on two in turn, and the median of each figure. Of two, the
    second one's lines have the median and the quartiles of Raylay's value divided by its own,
    slice by slice."""
    count = (QUICK if quick else Size()).slices
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, quick=quick)) for name in names]
        for load in loads:
            found: dict[str, list[list[Figure]]] = {name: [] for name in names}
            try:
                for number in range(count):
                    for worker in workers if number % 2 else reversed(workers):
                        found[worker.name].append(worker.run(load, rests=number == 0))
            except Failed as failed:
                report.fail(failed)
                continue
            columns = {name: list(zip(*slices, strict=True)) for name, slices in found.items()}
            for name in names:
                for position, column in enumerate(columns[name]):
                    more: dict[str, Any] = {}
                    if len(names) > 1:
                        (more["beside"],) = (other for other in names if other != name)
                        if name != RAYLAY:
                            more |= ratio_of(columns[RAYLAY][position], column)
                    report.add(name, middle(column), **more)


def middle(slices: Sequence[Figure]) -> Figure:
    """The median of a figure, with the messages of all slices."""
    more: dict[str, Any] = {"slices": len(slices)}
    for each in slices:
        more |= {key: value for key, value in each.more.items() if key in ("disk", "rate")}
    if "messages" in slices[0].more:
        more["messages"] = sum(each.more["messages"] for each in slices)
        held = zip(*(each.more["held"] for each in slices), strict=True)
        more["held"] = [sum(counts) for counts in held]
    value = statistics.median(each.value for each in slices)
    return Figure(slices[0].name, value, slices[0].unit, more)


def ratio_of(ours: Sequence[Figure], theirs: Sequence[Figure]) -> dict[str, Any]:
    """Of slices in turn, the median of the ratios and its quartiles."""
    ratios = [one.value / other.value for one, other in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"ratio": round(median, 3), "quartiles": [round(low, 3), round(high, 3)]}


def table(lines: list[dict[str, Any]]) -> str:
    """The figures of all brokers side by side, those of others with Raylay's share of them."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in lines:
        found.setdefault(line["figure"], {}).setdefault(line["peer"], []).append(line)
    peers = [name for name in PEERS if any(name in row for row in found.values())]
    rows = [["figure", *peers, "unit"], ["---"] * (len(peers) + 2)]
    for figure in sorted(found, key=lambda name: order_of(name)):
        row = found[figure]
        # Raylay has a value beside each of its peers.
        values = {name: statistics.median(line["value"] for line in row[name]) for name in row}
        cells = []
        for name in peers:
            cell = f"{rounded(values[name]):,}" if name in row else "-"
            if name in row and RAYLAY in row and name != RAYLAY and values[name]:
                ratio = row[name][0].get("ratio", values[RAYLAY] / values[name])
                cell += f" (x{ratio:.2f})"
            cell += " busy disk" if any("disk" in line for line in row.get(name, ())) else ""
            cells.append(cell)
        rows.append([figure, *cells, next(iter(row.values()))[0]["unit"]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def order_of(figure: str) -> int:
    """Where a figure's load is among the loads: the longest name that the figure's begins with."""
    loads = [name for name in LOADS if figure.startswith(name)]
    return list(LOADS).index(max(loads, key=len))


def main() -> int:
    """The command."""
    found = options(sys.argv[1:])
    if found.worker:
        (name,) = found.peers
        size = QUICK if found.quick else Size()
        with (
            tempfile.TemporaryDirectory(prefix="raylay-peers-") as directory,
            asyncio.Runner(loop_factory=new_loop) as runner,
        ):
            runner.run(work(PEERS[name](), size, Path(directory)))
        return 0
    started_s, report, peers = time.monotonic(), Report(), []
    for name in found.peers:
        if missing := PEERS[name].missing():
            print(f"bench-peers: {name} is left out: {missing}", file=sys.stderr, flush=True)
        else:
            peers.append(name)
    in_turn = [load for load in IN_TURN if load in found.only]
    alone = [load for load in found.only if load not in in_turn]
    if alone:
        for name in peers:
            if loads := [load for load in alone if load not in PEERS[name].lacks]:
                run_alone(name, loads, report, quick=found.quick)
    if in_turn:
        others = [name for name in peers if name != RAYLAY]
    beside = RAYLAY in peers and others
    for names in [[RAYLAY, name] for name in others] if beside else [[name] for name in peers]:
        lacking = frozenset().union(*(PEERS[name].lacks for name in names))
        if loads := [load for load in in_turn if load not in lacking]:
            run_in_turn(names, loads, report, quick=found.quick)
    print(table(report.lines), file=sys.stderr)
    print(f"bench-peers: {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0 if report.whole else 1


if __name__ == "__main__":
    sys.exit(main())
