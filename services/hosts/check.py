"""The check of a host before instances run on it: facts in, findings out.

Each finding has the value that was found, the wanted value, the reason, and the command that
changes it. Nothing here looks at a host: `commands/host.py` gathers the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Level = Literal["ok", "change", "wrong"]
"""`change`: instances run, but not as well as they could. `wrong`: they fail sooner or later."""

MIB = 1024 * 1024
GIB = 1024 * MIB
PYTHON_MIN = (3, 11)
RAY_MIN = (2, 54)
FILES_BASE = 1_024
FILES_AN_INSTANCE = 512
"""Files that an instance opens: segments, links, and those of Ray."""
PROCESSES_AN_INSTANCE = 64
"""Processes of an instance. Threads count as processes: Ray's worker has about 30, and each link is
one more."""
MEMORY_BASE_BYTES = GIB
MEMORY_AN_INSTANCE_BYTES = 512 * MIB
DISK_FREE_MIN_BYTES = 10 * GIB
FSYNC_GOOD_MS = 5.0
FSYNC_MAX_MS = 50.0
CLOCK_OFFSET_MAX_MS = 100.0
BACKLOG_MIN = 1_024
SOCKET_BUFFER_MIN_BYTES = 4 * MIB
EPHEMERAL_PORT_MIN = 32_768
"""Lower end of the wanted range of ephemeral ports; the ports of instances are chosen below it."""
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs"})
COPYING_FILE_SYSTEMS = frozenset({"btrfs", "zfs", "bcachefs"})
_WHY_NO_FILE_SYSTEM = {
    "overlay": "an overlay may be removed with its container",
    **dict.fromkeys(
        COPYING_FILE_SYSTEMS,
        "it copies overwritten blocks: acks take longer, and where its disk is full behind a "
        "snapshot or a restore, writes through a mapping end the process (SIGBUS)",
    ),
}


@dataclass(slots=True)
class HostFacts:
    """The facts about a host. None: unknown.

    Attributes:
        clients: the number of client connections that its instances are to hold.
        fsync_ms: the second slowest of a few syncs in the data directory.
        clock_synchronised: whether the kernel reports a synchronised clock.
        ports_taken: the wanted ports that are taken, each with what is known of the process that
            has it.
        kernel: the kernel settings that matter, by their sysctl names.
        open_paths: the files of the data, the secrets and Ray's token that others may read or
            change.
    """

    instances: int = 1
    clients: int = 1_000
    directory: str = "."
    open_files: int | None = None
    processes: int | None = None
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_free_bytes: int | None = None
    file_system: str = ""
    fsync_ms: float | None = None
    disk_error: str = ""
    clock_synchronised: bool | None = None
    clock_offset_ms: float | None = None
    processors: int | None = None
    python: tuple[int, ...] = ()
    ray: tuple[int, ...] = ()
    ports_taken: Mapping[int, str] = field(default_factory=dict)
    kernel: Mapping[str, str] = field(default_factory=dict)
    open_paths: Sequence[OpenPath] | None = None


class OpenPath(NamedTuple):
    """A file or directory that is open to others.

    Attributes:
        change: the command that closes it.
        changes: whether others may change it or its content; otherwise they may read it.
    """

    path: str
    text: str
    change: str
    changes: bool


class HostFinding(NamedTuple):
    """One line of the report."""

    what: str
    level: Level
    found: str
    wanted: str
    why: str
    change: str = ""
    """The command to run, or what to do; empty: nothing."""


def examine(facts: HostFacts) -> list[HostFinding]:
    """Returns all findings, in a fixed order. Facts that are unknown are left out."""
    return [*_limits(facts), *_memory(facts), *examine_disk(facts), *_access(facts),
            *_clock(facts), *_network(facts),            *_software(facts)]  # fmt: skip


def worst(findings: list[HostFinding]) -> Level:
    levels = {finding.level for finding in findings}
    return "wrong" if "wrong" in levels else "change" if "change" in levels else "ok"


def _least(
    what: str,
    found: int | None,
    wanted: int,
    why: str,
    change: str,
    *,
    level: Level = "wrong",
    unit: int = 1,
    name: str = "",
) -> list[HostFinding]:
    """Returns the finding on a value that should be at least `wanted`."""
    if found is None:
        return []
    enough = found >= wanted
    digits = 1 if unit == GIB else 0
    shown, asked = (f"{value / unit:,.{digits}f} {name}".strip() for value in (found, wanted))
    if found >= 1 << 62:
        shown = "unlimited"
    return [
        HostFinding(what, "ok" if enough else level, shown, f"{asked} or more", why,
                "" if enough else change)
    ]  # fmt: skip


def _limits(facts: HostFacts) -> list[HostFinding]:
    files = FILES_BASE + FILES_AN_INSTANCE * facts.instances + facts.clients
    processes = 1_024 + PROCESSES_AN_INSTANCE * facts.instances * 4
    return [
        *_least(
            "open files",
            facts.open_files,
            files,
            f"{facts.instances} instances with {facts.clients:,} clients hold as many sockets, "
            "segments and pipes",
            f"LimitNOFILE={max(files, 65_536)} in the systemd unit, or `ulimit -n "
            f"{max(files, 65_536)}` before `ray start` (/etc/security/limits.conf keeps it)",
        ),
        *_least(
            "processes",
            facts.processes,
            processes,
            "each instance and each link is a process of some 30 threads",
            f"LimitNPROC={max(processes, 65_536)} in the systemd unit, or `ulimit -u "
            f"{max(processes, 65_536)}`",
        ),
        *_least(
            "processors",
            facts.processors,
            2,
            "one for instances, one for everything else on the host",
            "a host with two or more",
            level="change",
        ),
    ]


def _memory(facts: HostFacts) -> list[HostFinding]:
    wanted = MEMORY_BASE_BYTES + MEMORY_AN_INSTANCE_BYTES * facts.instances
    found = _least(
        "memory available",
        facts.memory_available_bytes,
        wanted,
        "Ray's own processes take 1 GiB, an instance with its links half of one",
        "fewer instances on this host, or more memory",
        unit=MIB,
        name="MiB",
    )
    if facts.swap_used_bytes:
        found.append(
            HostFinding(
                "swap in use",
                "change",
                f"{facts.swap_used_bytes / MIB:,.0f} MiB",
                "none",
                "an instance that is read back from swap misses heartbeats",
                "sudo sysctl -w vm.swappiness=1 (in /etc/sysctl.d/60-raylay.conf to keep it)",
            )
        )
    overcommit = facts.kernel.get("vm.overcommit_memory")
    if overcommit is not None:
        strict = overcommit == "2"
        found.append(
            HostFinding(
                "vm.overcommit_memory",
                "wrong" if strict else "ok",
                overcommit,
                "0 or 1",
                "journal segments are memory maps that are larger than their content",
                "sudo sysctl -w vm.overcommit_memory=0" if strict else "",
            )
        )
    maps = facts.kernel.get("vm.max_map_count")
    if maps is not None:
        found += _least(
            "vm.max_map_count",
            int(maps),
            65_530,
            "each open journal segment is a memory map",
            "sudo sysctl -w vm.max_map_count=262144",
            level="change",
        )
    return found


def examine_disk(facts: HostFacts) -> list[HostFinding]:
    """Returns the findings of the disk under the data directory."""
    if facts.disk_error:
        return [
            HostFinding(
                "data directory", "wrong", facts.disk_error, "a directory that can be written",
                f"{facts.directory} will hold the journals",
                f"sudo mkdir -p {facts.directory} && sudo chown $USER {facts.directory}",
            )
        ]  # fmt: skip
    found = _least(
        "disk free",
        facts.disk_free_bytes,
        DISK_FREE_MIN_BYTES,
        "a full disk stops publishers; a resync of a day's traffic needs that day's journal",
        "retention in the fabric's `journal` section, or a larger disk (docs/operations.md)",
        level="change",
        unit=GIB,
        name="GiB",
    )
    kind = facts.file_system
    if kind:
        level: Level = (
            "wrong" if kind in MEMORY_FILE_SYSTEMS | NETWORK_FILE_SYSTEMS
            else "change" if kind in _WHY_NO_FILE_SYSTEM
            else "ok"
        )  # fmt: skip
        found.append(
            HostFinding(
                "file system",
                level,
                kind,
                "ext4 or xfs on a disk of this host",
                _WHY_NO_FILE_SYSTEM.get(
                    kind,
                    "acknowledged messages must survive a power failure, and LMDB needs shared "
                    "memory maps",
                ),
                "" if level == "ok" else "another data directory: --directory of `raylay up`",
            )
        )
    if facts.fsync_ms is not None:
        slow: Level = (
            "wrong" if facts.fsync_ms > FSYNC_MAX_MS
            else "change" if facts.fsync_ms > FSYNC_GOOD_MS
            else "ok"
        )  # fmt: skip
        found.append(
            HostFinding(
                "fsync",
                slow,
                f"{facts.fsync_ms:.2f} ms",
                f"{FSYNC_GOOD_MS:g} ms or less",
                "a publisher with a sync destination waits for two of them",
                "" if slow == "ok" else "a disk with a power-safe write cache (NVMe of the data "
                "centre kind), not shared with others that sync",
            )
        )  # fmt: skip
    return found


def _access(facts: HostFacts) -> list[HostFinding]:
    if facts.open_paths is None:
        return []
    wanted = "this user alone"
    if not facts.open_paths:
        return [
            HostFinding(
                "access", "ok", wanted, wanted, "messages and secrets lie there unencrypted"
            )
        ]
    return [
        HostFinding(
            f"access to {open_path.path}",
            "wrong" if open_path.changes else "change",
            open_path.text,
            wanted,
            "a user who can change it controls the instances" if open_path.changes
            else "messages or secrets lie there unencrypted",
            open_path.change,
        )
        for open_path in facts.open_paths
    ]  # fmt: skip


def _clock(facts: HostFacts) -> list[HostFinding]:
    found = []
    if facts.clock_synchronised is not None:
        found.append(
            HostFinding(
                "clock",
                "ok" if facts.clock_synchronised else "change",
                "synchronised" if facts.clock_synchronised else "not synchronised",
                "synchronised by NTP",
                "bookmarks by time, ages and traces of several hosts are compared",
                "" if facts.clock_synchronised else "sudo apt-get install chrony",
            )
        )
    if facts.clock_offset_ms is not None:
        small = abs(facts.clock_offset_ms) <= CLOCK_OFFSET_MAX_MS
        found.append(
            HostFinding(
                "clock offset",
                "ok" if small else "change",
                f"{facts.clock_offset_ms:+.1f} ms",
                f"{CLOCK_OFFSET_MAX_MS:g} ms or less",
                "retention by age and bookmarks by time are off by as much",
                "" if small else "sudo chronyc makestep",
            )
        )
    return found


def _network(facts: HostFacts) -> list[HostFinding]:
    found = []
    backlog = facts.kernel.get("net.core.somaxconn")
    if backlog is not None:
        found += _least(
            "net.core.somaxconn",
            int(backlog),
            BACKLOG_MIN,
            "all clients of a failed instance connect to its peer at once",
            "sudo sysctl -w net.core.somaxconn=4096",
            level="change",
        )
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        value = facts.kernel.get(name)
        if value is not None:
            found += _least(
                f"{name} (maximum)",
                int(value.split()[-1]),
                SOCKET_BUFFER_MIN_BYTES,
                "a link over 80 ms carries at most its buffer in each round trip: 4 MiB are "
                "50 MB/s",
                f"sudo sysctl -w {name}='4096 131072 16777216'",
                level="change",
                unit=MIB,
                name="MiB",
            )
    ports = facts.kernel.get("net.ipv4.ip_local_port_range")
    if ports is not None:
        found += _least(
            "net.ipv4.ip_local_port_range (first)",
            int(ports.split()[0]),
            EPHEMERAL_PORT_MIN,
            "instances listen on ports below this range; an outgoing connection could take one "
            "of theirs",
            "sudo sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
            level="change",
        )
    found += [
        HostFinding(
            f"port {port}",
            "wrong",
            f"taken{f' by {who}' if who else ''}",
            "free",
            "an instance is to listen on it",
            f"end what listens on it (`sudo ss -ltnp sport = :{port}`), or give another port",
        )
        for port, who in sorted(facts.ports_taken.items())
    ]
    return found


def _software(facts: HostFacts) -> list[HostFinding]:
    found = []
    for what, version, wanted, why, change in (
        ("Python", facts.python, PYTHON_MIN, "the same on all hosts of a Ray cluster",
         "sudo apt-get install python3 python3-venv"),
        ("Ray", facts.ray, RAY_MIN, (
            "Raylay needs node labels and tokens; the version must be the same on all hosts"
        ),
         "pip install --upgrade 'ray[default]'"),
    ):  # fmt: skip
        if version:
            enough = version >= wanted
            found.append(
                HostFinding(
                    what,
                    "ok" if enough else "wrong",
                    ".".join(map(str, version)),
                    f"{'.'.join(map(str, wanted))} or newer",
                    why,
                    "" if enough else change,
                )
            )
    return found
