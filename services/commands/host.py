"""`raylay check host`: gathers the facts that `hosts/check.py` judges."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.instance_check import check_instance
from raylay.services.commands.shared.host_facts import (
    gather_file_system,
    lines_of,
    place_of,
    read_text,
)
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.commands.storage import check_storage
from raylay.services.hosts.check import HostFacts, OpenPath, examine, worst
from raylay.storage.sync_speed import measure_syncs

FSYNC_TIMES = 21
FSYNC_BYTES = 16 * 1024
FSYNC_SECONDS_MAX = 3.0
"""Most time that the measurement takes, however slow the disk."""
COMMAND_TIMEOUT_S = 5.0
PORT_MAX = 65_535
KERNEL_SETTINGS = (
    "vm.overcommit_memory",
    "vm.max_map_count",
    "net.core.somaxconn",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.ip_local_port_range",
)
TIME_ERROR = 5
"""Result of adjtimex where the clock is not synchronised."""

check_app = typer.Typer(
    add_completion=False, help="Check the hosts of a fabric.", no_args_is_help=True
)


@check_app.callback()
def _check() -> None:
    pass


check_app.command("instance")(check_instance)
check_app.command("storage")(check_storage)


@check_app.command("host")
def check_host(
    directory: Annotated[
        Path, typer.Option("--directory", help="The directory for the journals.")
    ] = Path("data"),
    instances: Annotated[int, typer.Option(min=1, help="Instances on this host.")] = 2,
    clients: Annotated[
        int, typer.Option(min=0, help="The number of their client connections.")
    ] = 1_000,
    port: Annotated[
        list[int] | None,
        typer.Option("--port", min=1, max=PORT_MAX, help="A port that must be free; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """Show what to change on this host: limits, memory, disk, file access, clock, kernel, versions,
    ports.

    Exit code 1 where something is wrong; what would merely be better leaves it 0.
    """
    findings = examine(gather(directory, instances, clients, port or []))
    if as_json:
        echo_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            for line in lines_of(finding):
                echo(line)
    if worst(findings) == "wrong":
        raise typer.Exit(1)


def gather(directory: Path, instances: int, clients: int, ports: list[int]) -> HostFacts:
    """Gathers the facts of this host that can be found out."""
    from raylay.services.fabric.checks import exposure  # late: it takes half a second

    facts = HostFacts(instances=instances, clients=clients, directory=str(directory))
    facts.open_files = _limit(resource.RLIMIT_NOFILE)
    facts.processes = _limit(resource.RLIMIT_NPROC)
    facts.processors = len(os.sched_getaffinity(0))
    memory = _memory_table()
    facts.memory_bytes = memory.get("MemTotal")
    facts.memory_available_bytes = memory.get("MemAvailable")
    if "SwapTotal" in memory and "SwapFree" in memory:
        facts.swap_used_bytes = memory["SwapTotal"] - memory["SwapFree"]
    _gather_disk(facts, directory)
    facts.open_paths = [
        OpenPath(each.path, each.text, each.change, each.right == "change")
        for each in exposure.of_host(directory)
    ]
    facts.clock_synchronised = _clock_is_synchronised()
    facts.clock_offset_ms = _clock_offset_ms()
    facts.python = tuple(sys.version_info[:3])
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts.ray = version_of(importlib.metadata.version("ray"))
    facts.ports_taken = {port: "" for port in ports if _is_taken(port)}
    facts.kernel = {
        name: text
        for name in KERNEL_SETTINGS
        if (text := read_text(Path("/proc/sys", *name.split(".")))) is not None
    }
    return facts


def version_of(text: str) -> tuple[int, ...]:
    """`2.60.0rc1` as (2, 60, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _limit(kind: int) -> int:
    soft, _ = resource.getrlimit(kind)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _memory_table() -> dict[str, int]:
    found = {}
    for line in (read_text(Path("/proc/meminfo")) or "").splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = int(rest[:-3]) * 1024
    return found


def _gather_disk(facts: HostFacts, directory: Path) -> None:
    place = place_of(directory)
    try:
        gather_file_system(facts, place)
        found_ms = measure_syncs(place, FSYNC_BYTES, FSYNC_TIMES, FSYNC_SECONDS_MAX)
    except OSError as error:
        facts.disk_error = f"{place}: {error.strerror}"
        return
    # The second slowest, because the slowest may have waited for another process.
    facts.fsync_ms = sorted(found_ms)[-2] if len(found_ms) > 1 else found_ms[0]


def _clock_is_synchronised() -> bool | None:
    """Asks the kernel whether the clock is synchronised; None where it cannot be asked."""
    try:
        libc = ctypes.CDLL(None)
        # struct timex is 208 bytes here and grows with nothing that is read.
        state = libc.adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != TIME_ERROR)


def _clock_offset_ms() -> float | None:
    """Returns the offset of the clock that chrony reports; None where there is none."""
    tool = shutil.which("chronyc")
    if tool is None:
        return None
    try:
        text = subprocess.run(
            [tool, "-c", "tracking"],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=True,
        ).stdout
        return float(text.split(",")[4]) * 1000
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
