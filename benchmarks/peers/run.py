"""`make bench-peers`: Raylay and the brokers that this machine has, on the same loads.

One JSON line a figure, then a table with ratios on stderr. Each broker runs in a process of its
own, one after the other; its servers are started on loopback with their data below TMPDIR, and
ended by their process ids. What is measured, and what is not equal: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent / "build" / "peers"
"""Where `make bench-peers` puts the peers' Python clients and nats-server, away from Raylay's."""
sys.path[1:1] = [str(HERE.parent)]
sys.path.append(str(CLIENTS))

from context import rest_disk  # noqa: E402
from jetstream_peer import JetStream  # noqa: E402
from loads import QUICK, Figure, Loads, Size  # noqa: E402
from peer import Peer  # noqa: E402
from rabbitmq_peer import RabbitMQ  # noqa: E402
from raylay_peer import Raylay  # noqa: E402
from redis_peer import Redis  # noqa: E402

from raylay.services.server.process import new_loop  # noqa: E402

PEERS: dict[str, type[Peer]] = {
    "raylay": Raylay,
    "redis": Redis,
    "jetstream": JetStream,
    "rabbitmq": RabbitMQ,
}
PEER_S_MAX = 380.0
"""A broker that takes longer is ended, and the next one begins."""
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
}


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


async def measure(peer: Peer, asked: list[str], size: Size, directory: Path) -> bool:
    """Runs the loads on a broker and prints the figures. Whether all could be measured."""
    whole = True
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # A refused connection is tried again.
    try:
        await peer.start(directory)
        loads, rest_s = Loads(peer, size), REST_S_MAX
        for name in asked:
            # What another broker wrote must not be this one's.
            began_s = time.monotonic()
            rested = rest_disk(directory, max(0.0, rest_s))
            rest_s -= time.monotonic() - began_s
            try:
                async with asyncio.timeout(LOAD_S_MAX):
                    figures = await LOADS[name](loads, name)
            except Exception as error:
                whole = False
                print(f"bench-peers: {peer.name}: {name}: {error!r}", file=sys.stderr, flush=True)
                continue
            for figure in figures:
                line = {"peer": peer.name, "figure": figure.name, "value": rounded(figure.value)}
                busy = {} if rested else {"disk": "busy"}
                print(json.dumps({**line, "unit": figure.unit, **figure.more, **busy}), flush=True)
    finally:
        await peer.stop()
    return whole


def rounded(value: float) -> float:
    """Whole numbers above 1,000, three digits behind the point below."""
    return round(value) if value >= 1000 else round(value, 3)


def run_apart(name: str, found: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """The figures of a broker that a process of its own measures, and whether none is missing."""
    command = [
        sys.executable,
        __file__,
        "--worker",
        "--peers",
        name,
        "--only",
        ",".join(found.only),
    ]
    command += ["--quick"] if found.quick else []
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        # An interrupt lets it stop its servers; those of a killed worker end with it.
        timers = [
            threading.Timer(PEER_S_MAX, worker.send_signal, (signal.SIGINT,)),
            threading.Timer(PEER_S_MAX + STOP_S_MAX, worker.kill),
        ]
        for timer in timers:
            timer.start()
        for line in worker.stdout:
            print(line, end="", flush=True)
            lines.append(json.loads(line))
        worker.wait()
        for timer in timers:
            timer.cancel()
    return lines, worker.returncode == 0


def table(lines: list[dict[str, Any]]) -> str:
    """The figures of all brokers side by side, those of others with Raylay's share of them."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["figure"], {})[line["peer"]] = line
    peers = [name for name in PEERS if any(name in row for row in found.values())]
    rows = [["figure", *peers, "unit"], ["---"] * (len(peers) + 2)]
    for figure, row in found.items():
        cells = []
        ours = row.get("raylay")
        for name in peers:
            line = row.get(name)
            cell = f"{line['value']:,}" if line else "-"
            if line and ours and name != "raylay" and line["value"]:
                cell += f" (x{ours['value'] / line['value']:.2f})"
            cell += " busy disk" if line and "disk" in line else ""
            cells.append(cell)
        rows.append([figure, *cells, next(iter(row.values()))["unit"]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


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
            whole = runner.run(measure(PEERS[name](), found.only, size, Path(directory)))
        return 0 if whole else 1
    started_s, lines, whole = time.monotonic(), [], True
    for name in found.peers:
        if missing := PEERS[name].missing():
            print(f"bench-peers: {name} is left out: {missing}", file=sys.stderr, flush=True)
            continue
        measured, all_there = run_apart(name, found)
        whole = whole and all_there
        lines += measured
    print(table(lines), file=sys.stderr)
    print(f"bench-peers: {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
