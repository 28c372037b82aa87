"""The fixtures that the figures share: fabrics on one local Ray, and bodies of messages."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from raylay.services.client import Client
from raylay.services.fabric import Fabric, Topic
from raylay.services.hosts.latency import quantile
from raylay.services.replication.membership.validation import ALWAYS_CHECKED, CHECKS

BY_AGE = "failover-by-age"
"""The pair of `failover_pair` that waits for the age."""
REST_S_MAX = 15.0
REST_COMMITS = 50
REST_COMMIT_MS = 1.0
REST_PAUSE_S = 0.2


class Figure(NamedTuple):
    """One line of the result."""

    name: str
    value: float
    unit: str


class Bench:
    """The fabrics, each started when a figure first needs it.

    All of them use the default durability (fsync) and the default trace sampling, into files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fabrics: dict[str, Fabric] = {}
        self._clients = 0

    def fabric(
        self,
        name: str,
        instances: int,
        downgrade: Mapping[str, Any] | None = None,
        **sections: Any,
    ) -> Fabric:
        """A region of some instances: `single`, or a sync pair.

        Args:
            downgrade: the section of that name; None: no destination is ever downgraded.
            sections: others, as `sow_topics`.
        """
        found = self._fabrics.get(name)
        if found is None:
            found = Fabric(
                name,
                topics=[Topic("bench/.*")],
                tracing={"directory": "traces"},
                logs={"target": "file", "level": "warning"},
                downgrade=downgrade,
                **sections,
            )
            found.region(name, instances=instances).start(self.directory / name)
            found.wait_connected()
            self._fabrics[name] = found
        return found

    def single(self) -> Fabric:
        """One instance."""
        return self.fabric("single", 1)

    def pair(self) -> Fabric:
        """A sync pair that is never downgraded: each ack is two copies on disk."""
        return self.fabric("pair", 2)

    def failover_pair(self, *, by_evidence: bool = True) -> Fabric:
        """A sync pair with downgrade Age 500 ms, which evidence that a process has ended precedes;
        or one that waits for the age."""
        name = "failover" if by_evidence else BY_AGE
        return self.fabric(name, 2, {"age": "500ms", "by_evidence": by_evidence})

    def checked_pair(self, *, checked: bool) -> Fabric:
        """A sync pair whose links check everything at connect and compress what they send, or
        one whose links do neither."""
        name = "checked" if checked else "plain"
        found = self._fabrics.get(name)
        if found is None:
            found = Fabric(
                name,
                topics=[Topic("bench/.*")],
                tracing={"directory": "traces"},
                logs={"target": "file", "level": "warning"},
            )
            left_out = () if checked else tuple(c for c in CHECKS if c not in ALWAYS_CHECKED)
            names = (f"{name}-1", f"{name}-2")
            for one in names:
                found.instance(one, group=name)
            for one, other in (names, names[::-1]):
                found.destination(
                    one,
                    to=other,
                    sync=True,
                    pass_through=".*",
                    compression=checked,
                    exclude_validation=left_out,
                )
            found.start(self.directory / name)
            found.wait_connected()
            self._fabrics[name] = found
        return found

    def stop(self, name: str) -> None:
        """Stops a fabric that no later figure needs, so that it takes no processor."""
        found = self._fabrics.pop(name, None)
        if found is not None:
            found.stop()

    def close(self) -> None:
        """Stops them all; the one that started Ray last."""
        for name in reversed(list(self._fabrics)):
            self.stop(name)

    def client(self, fabric: Fabric, **options: object) -> Client:
        """A client under a new name."""
        self._clients += 1
        return fabric.client(f"bench-{self._clients}", **options)


@contextmanager
def bench() -> Iterator[Bench]:
    """A Bench in a temporary directory, on the disk that TMPDIR names."""
    with tempfile.TemporaryDirectory(prefix="raylay-bench-") as directory:
        made = Bench(Path(directory))
        try:
            yield made
        finally:
            made.close()


def rest_disk(directory: Path, wait_s: float = REST_S_MAX) -> bool:
    """Waits until synced commits are fast again, up to `wait_s`. Whether they are.

    Disks of virtual machines are often throttled: after a figure that wrote much, each sync takes
    8 ms for some seconds, and the next figure would measure the one before it.
    """
    environment = lmdb.open(str(directory / "rest"), map_size=1 << 24, subdir=False)
    deadline_s = time.monotonic() + wait_s
    try:
        while True:
            took_ms = []
            for _ in range(REST_COMMITS):
                started_s = time.perf_counter()
                with environment.begin(write=True) as transaction:
                    transaction.put(b"rest", b"x" * 128)
                took_ms.append((time.perf_counter() - started_s) * 1000)
            if quantile(took_ms, 0.9) < REST_COMMIT_MS:
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(REST_PAUSE_S)
    finally:
        environment.close()


def body(length_bytes: int) -> bytes:
    """A JSON body of this length."""
    front, back = b'{"text": "', b'"}'
    return front + b"x" * (length_bytes - len(front) - len(back)) + back


async def publish_all(client: Client, topic: str, message: bytes, count: int) -> float:
    """Publishes `count` messages and waits for the last persisted ack. Returns seconds."""
    publish = client.publish
    started_s = time.perf_counter()
    for _ in range(count):
        await publish(topic, message)
    await client.flush()
    return time.perf_counter() - started_s


async def best_of(runs: int, run: Callable[[], Awaitable[float]]) -> float:
    """The best of several runs: what the machine can do when nothing else disturbs it."""
    return max([await run() for _ in range(runs)])
