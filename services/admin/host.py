"""The values of the host: `/amps/host` (behaviour.md 9.3), read from the operating system."""

from __future__ import annotations

import socket
from typing import Any

import psutil

from raylay.services.admin.tree import Branch, Collection

HostSample = Branch
_CPU = ("user", "system", "idle", "iowait")
PSEUDO_FILE_SYSTEMS = frozenset(("squashfs", "tmpfs", "devtmpfs", "overlay"))
DISKS_MAX = 64
"""Mount points that are told, first in the order of the operating system."""


class HostReader:
    """Reads the host. Owner: one thread. Rates and percentages are of the time since its last
    reading; the first one has none."""

    def __init__(self) -> None:
        self._name = socket.gethostname()
        psutil.cpu_times_percent(percpu=False)

    def read(self) -> HostSample:
        """Returns `/amps/host`. May block for the time of a few system calls."""
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
        counters = psutil.disk_io_counters(perdisk=True) or {}
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
            found.append(
                (
                    part.mountpoint,
                    {
                        "mount_point": part.mountpoint,
                        "file_system_free_percent": round(100 - usage.percent, 1),
                        "bytes_read": None if io is None else io.read_bytes,
                        "bytes_written": None if io is None else io.write_bytes,
                    },
                )
            )
        return found

    @staticmethod
    def _network() -> dict[str, Branch]:
        return {
            name: {
                "bytes_in": each.bytes_recv,
                "bytes_out": each.bytes_sent,
                "packets_in": each.packets_recv,
                "packets_out": each.packets_sent,
                "errors": each.errin + each.errout,
            }
            for name, each in psutil.net_io_counters(pernic=True).items()
        }
