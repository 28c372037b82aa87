"""Figures of an instance's process and disks for its metrics, which are looked up at each scrape.

A disk that hangs must not keep a scrape from its answer, which is what tells of it: the disks are
looked at in a thread of their own, and a scrape waits for it only briefly.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import Metric

DISK_LOOK_S = 0.2
"""Most seconds that a scrape waits for a look at the disks. After that it has the last figures."""


class Places(NamedTuple):
    """The process of an instance, and the directory of its journal."""

    pid: int
    journal_directory: str


class DiskFigures:
    """Sizes of an instance's files and disk.

    Owner: its metrics. `take` is called on one thread at a time.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._looking: threading.Thread | None = None

    def take(self, places: Places, wait_s: float | None = None) -> dict[str, int]:
        """Returns `journal_bytes`, `disk_free_bytes` and `disk_bytes`: those of now, or the last
        ones where the disk does not answer. A figure that is not known is left out."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, args=(places,), daemon=True)
            self._looking.start()
            self._looking.join(DISK_LOOK_S if wait_s is None else wait_s)
        return self._last

    def _look(self, places: Places) -> None:
        found: dict[str, int] = {}
        with suppress(OSError):
            found["journal_bytes"] = _bytes_in(places.journal_directory)
        with suppress(OSError):
            usage = shutil.disk_usage(places.journal_directory)
            found |= {"disk_free_bytes": usage.free, "disk_bytes": usage.total}
        self._last = found


def _bytes_in(directory: str) -> int:
    """Returns the bytes that the files of a directory take on the disk: a segment that is written
    has its full length from the beginning."""
    found = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            # Segments are removed meanwhile.
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    found += entry.stat(follow_symlinks=False).st_blocks * 512
    return found


class ProcessMetrics:
    """Prometheus' usual metrics of a process, `process_…`, with the label `instance`.

    Args:
        pid: returns the id of the process; 0: it is not known.
    """

    def __init__(self, instance_name: str, pid: Callable[[], int]) -> None:
        from prometheus_client import ProcessCollector

        self._labels = {"instance": instance_name}
        self._pid = pid
        self._collector = ProcessCollector(pid=pid, registry=None)

    def collect(self) -> Iterable[Metric]:
        """Returns the metrics, for a `CollectorRegistry`."""
        if not self._pid():
            return []
        found = list(self._collector.collect())
        for metric in found:
            metric.samples = [each._replace(labels=self._labels) for each in metric.samples]
        return found


def build_labels() -> dict[str, str]:
    """Returns the labels of `raylay_build_info`."""
    import platform
    from importlib.metadata import version

    return {"version": version("raylay"), "python": platform.python_version()}


def places_of(snapshot: Any) -> Places | None:
    """Returns the places that a snapshot names; None: it names none."""
    found = snapshot.get("places")
    return Places(**found) if found else None
