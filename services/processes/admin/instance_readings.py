"""Values of an instance that its administrator's process reads by itself, from the operating system
and from the instance's files, so that the instance spends nothing on them. Blocks: for a thread."""

from __future__ import annotations

import getpass
import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from raylay.services.errors import RaylayError
from raylay.services.messages.types.registry import BUILT_IN
from raylay.services.security.modules import HIDDEN
from raylay.storage.journal_reader import LmdbJournalReader

SEGMENTS_S = 5.0
"""Time, in seconds, between two looks at the files of the journal."""
SHOWN_VARIABLES = re.compile(
    r"(LANG|LC_[A-Z]+|TZ|PATH|PWD|HOME|USER|SHELL|HOSTNAME|TMPDIR|VIRTUAL_ENV|PYTHON[A-Z]+|"
    r"MALLOC_[A-Z_]+|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES)\Z"
)
"""Environment variables whose values are shown. Of others, which may be secrets, only the names
are."""
VARIABLES_MAX = 500
SOCKET_FILES = ("tcp", "tcp6")
PROCESSES_MAX = 200


class InstanceReadings:
    """See the file's docstring. Owner: one thread at a time. Lifecycle: one instance, in any number
    of its lives.

    Args:
        instance_file: name of the file of the instance's configuration.
    """

    def __init__(
        self, instance_file: str = "instance.json", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance_file = instance_file
        self._clock = clock
        self._process: psutil.Process | None = None
        self._others: dict[int, psutil.Process] = {}
        self._fixed: dict[str, Any] = {}
        self._journal: LmdbJournalReader | None = None
        self._journal_of = ("", "")
        self._segments: list[dict[str, Any]] = []
        self._segments_s: float | None = None
        self.problem = ""
        """Reason why the journal's files cannot be read, as a sentence; empty: they can."""

    def read(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that go with a snapshot of the instance."""
        found = self._of_process(int(snapshot["pid"]))
        directory = snapshot.get("directory", "")
        found["config_path"] = str(Path(directory) / self._instance_file) if directory else ""
        found["message_types"] = tuple(BUILT_IN)
        found["version"] = _version()
        found["processes"] = list(self._processes(snapshot))
        journal = snapshot.get("journal_directory", "")
        if journal and snapshot.get("ready") is not None:
            found["segments"] = self._segments_of(journal, snapshot.get("archive_directory", ""))
        found["journal_problem"] = self.problem
        path = Path(directory) / "sow.lmdb"
        with suppress(OSError):
            found["sow_bytes"] = path.stat().st_blocks * 512
            found["sow_path"] = str(path)
        return found

    # -- processes -----------------------------------------------------------------------------
    def _of_process(self, pid: int) -> dict[str, Any]:
        try:
            if self._process is None or self._process.pid != pid:
                self._process = psutil.Process(pid)
                self._process.cpu_percent()
                self._fixed = self._fixed_of(self._process)
            with self._process.oneshot():
                memory, cpu = self._process.memory_info(), self._process.cpu_times()
                return {
                    **self._fixed,
                    "memory": {"rss": memory.rss, "vmsize": memory.vms},
                    "cpu": {
                        "percent": self._process.cpu_percent(),
                        "user_seconds": cpu.user,
                        "system_seconds": cpu.system,
                        "raylay": {
                            "threads": self._process.num_threads(),
                            "context_switches": self._process.num_ctx_switches().voluntary,
                        },
                    },
                    "socket_queues": socket_queues(pid),
                }
        except (psutil.Error, OSError):
            # It has just ended, or it is of another user: the other values are still true.
            self._process = None
            return {}

    def _fixed_of(self, process: psutil.Process) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, read in (
            ("cwd", process.cwd),
            ("user_id", process.username),
            ("environment", lambda: shown_environment(process.environ())),
        ):
            try:
                found[name] = read()
            except (psutil.Error, OSError, KeyError):
                continue
        found.setdefault("user_id", getpass.getuser())
        return found

    def _processes(self, snapshot: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the other processes of the instance: its links, its queues' owners, its
        buffers."""
        named = [
            *((f"link {name}", each) for name, each in snapshot.get("destinations", {}).items()),
            *((f"queue {name}", each) for name, each in snapshot.get("queues", {}).items()),
            *((f"buffer {each['pool']}", each) for each in snapshot.get("capacity", ())),
        ]
        before, self._others = self._others, {}
        for name, each in named[:PROCESSES_MAX]:
            pid = each.get("pid")
            if not pid:
                continue
            try:
                process = before.get(pid) or psutil.Process(pid)
                self._others[pid] = process
                yield {
                    "name": name,
                    "pid": pid,
                    "cpu_percent": process.cpu_percent(),
                    "rss": process.memory_info().rss,
                }
            except (psutil.Error, OSError):
                self._others.pop(pid, None)

    # -- the journal ---------------------------------------------------------------------------
    def _segments_of(self, directory: str, archive: str) -> list[dict[str, Any]]:
        now_s = self._clock()
        if self._segments_s is not None and now_s - self._segments_s < SEGMENTS_S:
            return self._segments
        self._segments_s = now_s
        try:
            if self._journal is None or self._journal_of != (directory, archive):
                self.close()
                self._journal = LmdbJournalReader(Path(directory), archive or None)
                self._journal_of = directory, archive
            self._segments = [
                {
                    "first_txid": each.first_txid,
                    "last_txid": each.last_txid,
                    "state": each.state,
                    "archived": each.archived,
                    "path": str(each.path),
                    "bytes_on_disk": each.bytes_on_disk,
                    "records": each.records,
                    "first_time_us": each.first_time_us,
                    "last_time_us": each.last_time_us,
                }
                for each in self._journal.segments()
            ]
            # Nothing of the journal stays open: what retention removes is to be free at once.
            self._journal.release()
            self.problem = ""
        except (RaylayError, OSError) as error:
            self.close()
            self.problem = str(error)
        return self._segments

    def close(self) -> None:
        """Closes the journal's files."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def shown_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables by name, with `***` for values that may be secrets."""
    return {
        name: value if SHOWN_VARIABLES.match(name) else HIDDEN
        for name, value in sorted(variables.items())[:VARIABLES_MAX]
    }


def socket_queues(pid: int, root: str = "/proc") -> dict[str, tuple[int, int]]:
    """Returns the bytes that the kernel holds of each TCP connection in the network of a process:
    those received and not read, and those sent and not acknowledged, by the address of the other
    side."""
    found: dict[str, tuple[int, int]] = {}
    for name in SOCKET_FILES:
        try:
            lines = Path(f"{root}/{pid}/net/{name}").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines[1:]:
            columns = line.split()
            if len(columns) < 5 or columns[3] != "01":
                continue  # listens, or is ending
            sent, _, received = columns[4].partition(":")
            found[_address(columns[2])] = int(received, 16), int(sent, 16)
    return found


def _address(text: str) -> str:
    """Returns `host:port` of an address as the kernel writes it, each word in the host's byte
    order."""
    host, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    if len(raw) == 16 and raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    if len(raw) == 4:
        return f"{'.'.join(map(str, raw))}:{int(port, 16)}"
    return f"{ipaddress.IPv6Address(raw)}:{int(port, 16)}"


def _version() -> str:
    try:
        return version("raylay")
    except PackageNotFoundError:
        return ""
