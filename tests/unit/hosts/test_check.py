"""What `raylay check host` finds, and that what it gathers is what this host has."""

from __future__ import annotations

import json
import os
import resource
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raylay.services.commands.host import check_app, gather, version_of
from raylay.services.commands.shared.host_facts import lines_of
from raylay.services.hosts.check import GIB, MIB, HostFacts, HostFinding, OpenPath, examine, worst

GOOD = {
    "instances": 2,
    "clients": 1_000,
    "open_files": 1 << 20,
    "processes": 1 << 17,
    "processors": 8,
    "memory_available_bytes": 16 * GIB,
    "swap_used_bytes": 0,
    "disk_free_bytes": 500 * GIB,
    "file_system": "ext4",
    "fsync_ms": 0.4,
    "clock_synchronised": True,
    "clock_offset_ms": -0.2,
    "python": (3, 11, 7),
    "ray": (2, 60, 0),
    "kernel": {
        "vm.overcommit_memory": "0",
        "vm.max_map_count": "65530",
        "net.core.somaxconn": "4096",
        "net.ipv4.tcp_rmem": "4096\t131072\t6291456",
        "net.ipv4.tcp_wmem": "4096 16384 4194304",
        "net.ipv4.ip_local_port_range": "32768\t60999",
    },
}


def facts(**changed: object) -> HostFacts:
    return HostFacts(**{**GOOD, **changed})  # type: ignore[arg-type]


def found(**changed: object) -> dict[str, HostFinding]:
    """What is not as it should be, by name."""
    return {each.what: each for each in examine(facts(**changed)) if each.level != "ok"}


def kernel(name: str, value: str) -> dict[str, str]:
    return {**GOOD["kernel"], name: value}  # type: ignore[dict-item]


def test_a_good_host_has_nothing_to_change() -> None:
    findings = examine(facts())
    assert worst(findings) == "ok" and len(findings) > 14
    assert all(not each.change and each.why and each.wanted for each in findings)


@pytest.mark.covers("Deployment", "a host's limits")
@pytest.mark.parametrize(
    ("changed", "what", "level", "command"),
    [
        ({"open_files": 1_024}, "open files", "wrong", "LimitNOFILE=65536"),
        ({"processes": 1_024}, "processes", "wrong", "LimitNPROC=65536"),
        ({"processors": 1}, "processors", "change", "two or more"),
        ({"memory_available_bytes": 2047 * MIB}, "memory available", "wrong", "more memory"),
        ({"swap_used_bytes": MIB}, "swap in use", "change", "vm.swappiness=1"),
        ({"disk_free_bytes": 9 * GIB}, "disk free", "change", "retention"),
        ({"file_system": "tmpfs"}, "file system", "wrong", "another data directory"),
        ({"file_system": "nfs4"}, "file system", "wrong", "another data directory"),
        ({"file_system": "overlay"}, "file system", "change", "another data directory"),
        ({"file_system": "btrfs"}, "file system", "change", "another data directory"),
        ({"file_system": "zfs"}, "file system", "change", "another data directory"),
        ({"fsync_ms": 8.0}, "fsync", "change", "write cache"),
        ({"fsync_ms": 80.0}, "fsync", "wrong", "write cache"),
        ({"disk_error": "/data: Permission denied"}, "data directory", "wrong", "chown"),
        ({"clock_synchronised": False}, "clock", "change", "chrony"),
        ({"clock_offset_ms": -250.0}, "clock offset", "change", "makestep"),
        ({"python": (3, 10, 2)}, "Python", "wrong", "apt-get install"),
        ({"ray": (2, 49, 1)}, "Ray", "wrong", "pip install"),
        ({"ports_taken": {9007: "nginx"}}, "port 9007", "wrong", "sport = :9007"),
        ({"kernel": kernel("vm.overcommit_memory", "2")}, "vm.overcommit_memory", "wrong", "=0"),
        ({"kernel": kernel("vm.max_map_count", "4096")}, "vm.max_map_count", "change", "262144"),
        ({"kernel": kernel("net.core.somaxconn", "128")}, "net.core.somaxconn", "change", "4096"),
        (
            {"kernel": kernel("net.ipv4.tcp_wmem", "4096 16384 262144")},
            "net.ipv4.tcp_wmem (maximum)",
            "change",
            "tcp_wmem=",
        ),
        (
            {"kernel": kernel("net.ipv4.ip_local_port_range", "1024 60999")},
            "net.ipv4.ip_local_port_range (first)",
            "change",
            "32768",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_is_to_be_changed_is_found_alone_with_its_command(
    changed: dict[str, object], what: str, level: str, command: str
) -> None:
    findings = found(**changed)
    assert list(findings) == [what]
    assert findings[what].level == level
    assert command in findings[what].change
    assert len(lines_of(findings[what])) == 3


@pytest.mark.covers("Configuration", "what is open all the same is said with the command")
def test_what_is_open_to_others_is_found_with_the_command_that_closes_it() -> None:
    assert [each.level for each in examine(facts(open_paths=[])) if each.what == "access"] == ["ok"]
    read = OpenPath(
        "/data/a", "every user of this host may read /data/a", "chmod 700 /data/a", False
    )
    change = OpenPath("/data", "a group may change /data", "chmod go-w /data", True)
    findings = found(open_paths=[read, change])
    assert [(each.what, each.level, each.change) for each in findings.values()] == [
        ("access to /data/a", "change", "chmod 700 /data/a"),
        ("access to /data", "wrong", "chmod go-w /data"),
    ]


def test_limits_grow_with_instances_and_clients() -> None:
    assert not found(open_files=4_096)
    assert "open files" in found(open_files=4_096, clients=10_000)
    assert "memory available" in found(memory_available_bytes=4 * GIB, instances=8)


def test_what_is_not_known_is_not_judged() -> None:
    assert examine(HostFacts()) == []


@pytest.mark.parametrize(
    ("text", "version"), [("2.60.0", (2, 60, 0)), ("3.0rc1", (3, 0)), ("dev", ())]
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version


@pytest.mark.covers("Deployment", "a host's limits")
def test_this_hosts_facts_are_gathered(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        seen = gather(tmp_path / "not" / "yet", 1, 10, [port])
    assert seen.open_files in (resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**63 - 1)
    assert seen.ports_taken == {port: ""}
    assert seen.disk_free_bytes and seen.file_system and not seen.disk_error
    assert seen.fsync_ms is not None and seen.fsync_ms > 0
    assert seen.memory_available_bytes and seen.processors == len(os.sched_getaffinity(0))
    assert seen.kernel["net.core.somaxconn"].isdigit() and seen.ray >= (2, 50)


def test_the_exit_status_says_whether_something_is_wrong(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = CliRunner().invoke(
            check_app, ["host", "--directory", str(tmp_path), "--json", "--port", str(port)]
        )
    told = {each["what"]: each for each in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert told[f"port {port}"]["level"] == "wrong"
    assert told["Python"]["level"] == "ok"


@pytest.mark.parametrize("port", ["99999", "-1", "0", "x"])
def test_what_is_no_port_is_refused(port: str) -> None:
    done = CliRunner().invoke(check_app, ["host", "--port", port])
    assert done.exit_code == 2 and "--port" in done.output
