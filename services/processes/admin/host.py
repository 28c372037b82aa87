"""The values of the host: `/amps/host` (behaviour.md 9.3), read from the operating system."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from raylay.services.admin.rates import CounterRates
from raylay.services.admin.tree import Branch, Collection, Node

HostSample = Branch
_CPU = ("user", "system", "idle", "iowait")
PSEUDO_FILE_SYSTEMS = frozenset(("squashfs", "tmpfs", "devtmpfs", "overlay"))
DISKS_MAX = 64
"""Most mount points that are shown, in the order of the operating system."""
BLOCK_DEVICES = Path("/sys/class/block")
MEMORY_FILE = Path("/proc/meminfo")


class HostReader:
    """Reads the host. Owner: one thread at a time. Rates and percentages are of the time since its
    last reading; the first one has none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = socket.gethostname()
        self._clock = clock
        self._rates = CounterRates()
        self._disk_times: dict[str, Any] = {}
        """Counters of each block device at the last reading."""
        psutil.cpu_times_percent(percpu=False)

    def read(self) -> HostSample:
        """Returns `/amps/host`. May block for the time of a few system calls."""
        self._rates.begin(round(self._clock() * 1_000_000))
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return {
            "name": self._name,
            "cpus": Collection("cpu", self._cpus()),
            "disks": Collection("disk", dict(self._disks())),
            "memory": {
                "total": memory.total,
                "available": memory.available,
                "free": memory.free,
                "in_use": memory.used,
                "anonymous": anonymous_bytes(),
                "buffers": getattr(memory, "buffers", None),
                "cached": getattr(memory, "cached", None),
                "swap_total": swap.total,
                "swap_free": swap.free,
            },
            "network": Collection("interface", self._network()),
        }

    def _cpus(self) -> dict[str, Branch]:
        found = {"all": psutil.cpu_times_percent(percpu=False)}
        found |= {
            str(each): times for each, times in enumerate(psutil.cpu_times_percent(percpu=True))
        }
        return {
            name: {f"{kind}_percent": getattr(times, kind, None) for kind in _CPU}
            for name, times in found.items()
        }

    def _disks(self) -> list[tuple[str, Branch]]:
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        before, self._disk_times = self._disk_times, counters
        found: list[tuple[str, Branch]] = []
        for part in psutil.disk_partitions(all=False)[:DISKS_MAX]:
            if part.fstype in PSEUDO_FILE_SYSTEMS:
                continue
            try:
                usage = psutil.disk_usage(part.mountpoint)
            except OSError:
                continue  # unmounted, or of another user, since it was listed
            device = part.device.rpartition("/")[2]
            io: Any = counters.get(device)
            values: dict[str, Node] = {
                "mount_point": part.mountpoint,
                "file_system_free_percent": round(100 - usage.percent, 1),
                "in_progress": requests_in_progress(device),
                "read_await": _wait_ms(before.get(device), io, "read"),
                "write_await": _wait_ms(before.get(device), io, "write"),
            }
            for name in ("read_bytes", "write_bytes"):
                count = None if io is None else getattr(io, name)
                values[name] = count
                key = "disk", part.mountpoint, name
                values[f"{name}_per_sec"] = None if count is None else self._rates.of(key, count)
            found.append((part.mountpoint, values))
        return found

    def _network(self) -> dict[str, Branch]:
        found: dict[str, Branch] = {}
        for name, each in psutil.net_io_counters(pernic=True).items():
            values: dict[str, Node] = {}
            for counter, count in (
                ("bytes_in", each.bytes_recv),
                ("bytes_out", each.bytes_sent),
                ("packets_in", each.packets_recv),
                ("packets_out", each.packets_sent),
            ):
                values[counter] = count
                values[f"{counter}_per_second"] = self._rates.of(("net", name, counter), count)
            found[name] = {**values, "errors": each.errin + each.errout}
        return found


def anonymous_bytes(path: Path = MEMORY_FILE) -> int | None:
    """Returns the memory of processes that no file holds, in bytes; None: it is not known."""
    with suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("AnonPages:"):
                return int(line.split()[1]) * 1024
    return None


def requests_in_progress(device: str, devices: Path = BLOCK_DEVICES) -> int | None:
    """Returns the number of requests that a block device works on; None: it is not known."""
    with suppress(OSError, ValueError):
        return sum(map(int, (devices / device / "inflight").read_text(encoding="ascii").split()))
    return None


def _wait_ms(before: Any, now: Any, kind: str) -> float | None:
    """Returns the mean time of a request since the last reading, in milliseconds; None: there was
    none."""
    if before is None or now is None:
        return None
    count = getattr(now, f"{kind}_count") - getattr(before, f"{kind}_count")
    spent_ms = getattr(now, f"{kind}_time") - getattr(before, f"{kind}_time")
    return round(spent_ms / count, 3) if count > 0 and spent_ms >= 0 else None
