"""The speed of a disk in the words of a publisher: measured syncs in, sentences out.

Nothing here touches a disk: `storage/sync_speed.py` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raylay.services.hosts.check import HostFacts, HostFinding, examine_disk
from raylay.services.hosts.latency import quantile

KIB = 1024
MESSAGE_BYTES = 1024
"""Size of the message by which a rate of bytes is explained."""


@dataclass(frozen=True, slots=True)
class SyncMeasurement:
    """The time of synced writes of one size.

    Attributes:
        write_bytes: bytes that each write made durable.
        took_ms: time of each write, in milliseconds; at least one.
    """

    write_bytes: int
    took_ms: Sequence[float]

    @property
    def commits_per_s(self) -> float:
        """Commits of this size that the disk takes one after the other in a second."""
        return 1000 * len(self.took_ms) / max(sum(self.took_ms), 1e-6)

    @property
    def bytes_per_s(self) -> float:
        """Bytes that become durable in a second, at commits of this size."""
        return self.commits_per_s * self.write_bytes

    def quantile_ms(self, share: float) -> float:
        """Returns the time within which this share of the writes was durable."""
        return quantile(self.took_ms, share)


def as_json(measurement: SyncMeasurement) -> dict[str, Any]:
    """Returns a measurement for programs; times in milliseconds."""
    return {
        "write_bytes": measurement.write_bytes,
        "writes": len(measurement.took_ms),
        "commits_per_second": round(measurement.commits_per_s, 1),
        "bytes_per_second": round(measurement.bytes_per_s),
        "p50_ms": round(measurement.quantile_ms(0.5), 3),
        "p99_ms": round(measurement.quantile_ms(0.99), 3),
        "max_ms": round(max(measurement.took_ms), 3),
    }


def acks_lines(measurements: Sequence[SyncMeasurement]) -> list[str]:
    """Returns what the measurements mean for acknowledgments, a sentence each.

    Args:
        measurements: at least one. The smallest write explains a publisher that waits for each ack,
            and the write with the most bytes a second many publishers that do not wait.
    """
    small = min(measurements, key=lambda each: each.write_bytes)
    most = max(measurements, key=lambda each: each.bytes_per_s)
    half, nearly = small.quantile_ms(0.5), small.quantile_ms(0.99)
    return [
        f"an ack without a sync destination waits for one sync: {_ms(half)}, and "
        f"{_ms(nearly)} for one in a hundred",
        f"an ack with a sync destination waits for two, on two disks, and for the round trip: "
        f"{_ms(2 * half)} and the round trip, where both disks are like this one",
        f"a publisher that waits for each ack before its next message gets at most "
        f"{small.commits_per_s:,.0f} messages/s without a sync destination, "
        f"{small.commits_per_s / 2:,.0f} with one",
        f"messages that arrive together share a commit: at {size_text(most.write_bytes)} a commit "
        f"the disk takes {most.bytes_per_s / 1e6:,.1f} MB/s, which is "
        f"{most.bytes_per_s / MESSAGE_BYTES:,.0f} messages/s of 1 KiB",
    ]


def judge(facts: HostFacts, measurements: Sequence[SyncMeasurement]) -> list[HostFinding]:
    """Returns the findings about the disk, as `raylay check host` shows them. The time of a sync is
    judged by its 99th percentile.

    Args:
        measurements: measured writes, of which the smallest is judged; empty: the disk could not be
            measured.
    """
    if measurements:
        small = min(measurements, key=lambda each: each.write_bytes)
        facts.fsync_ms = small.quantile_ms(0.99)
    return examine_disk(facts)


def size_text(size: int) -> str:
    """Returns a size of whole KiB or MiB, such as `64 KiB`."""
    if size % (KIB * KIB) == 0:
        return f"{size // (KIB * KIB)} MiB"
    return f"{size // KIB} KiB"


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"
