"""services/processes/admin/host.py: the values of the host."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest

from raylay.services.admin.tree import Collection
from raylay.services.processes.admin.host import (
    HostReader,
    anonymous_bytes,
    requests_in_progress,
)

Disk = namedtuple("Disk", "read_bytes write_bytes read_count write_count read_time write_time")
Part = namedtuple("Part", "device mountpoint fstype")
Usage = namedtuple("Usage", "percent")


@pytest.mark.covers("Administration", "`host`: processors, disks, memory, name, network")
def test_disks_have_rates_and_waits_of_the_time_between_two_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = {"sda": Disk(0, 0, 0, 0, 0, 0)}
    parts = [Part("/dev/sda", "/", "ext4"), Part("x", "/t", "tmpfs"), Part("/dev/sdb", "/b", "xfs")]

    def usage(path: str) -> Usage:
        if path == "/b":
            raise OSError
        return Usage(25.0)

    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: dict(counters))
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: parts)
    monkeypatch.setattr(psutil, "disk_usage", usage)
    now = [10.0]
    reader = HostReader(lambda: now[0])
    reader.read()
    now[0] = 12.0
    counters["sda"] = Disk(2000, 100, 4, 0, 6, 0)
    disks: Any = reader.read()["disks"]
    assert isinstance(disks, Collection) and list(disks.branches) == ["/"]
    disk = disks.branches["/"]
    assert disk["read_bytes_per_sec"] == 1000.0 and disk["write_bytes_per_sec"] == 50.0
    assert (disk["read_await"], disk["write_await"]) == (1.5, None)
    assert disk["file_system_free_percent"] == 75.0


@pytest.mark.covers("Administration", "`host`: processors, disks, memory, name, network")
def test_the_network_has_rates() -> None:
    now = [10.0]
    reader = HostReader(lambda: now[0])
    reader.read()
    now[0] = 11.0
    network: Any = reader.read()["network"]
    assert all(each["bytes_in_per_second"] is not None for each in network.branches.values())


def test_what_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    memory = tmp_path / "meminfo"
    assert anonymous_bytes(memory) is None
    memory.write_text("MemTotal: 9 kB\nAnonPages:      12 kB\n")
    assert anonymous_bytes(memory) == 12 * 1024
    memory.write_text("MemTotal: 9 kB\n")
    assert anonymous_bytes(memory) is None
    assert requests_in_progress("sda", tmp_path) is None
    (tmp_path / "sda").mkdir()
    (tmp_path / "sda" / "inflight").write_text("       2        3\n")
    assert requests_in_progress("sda", tmp_path) == 5
