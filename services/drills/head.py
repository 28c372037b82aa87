"""Kills and stops Ray's head (its GCS), and brings it back through a process that outlives the
drill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from raylay.services.drills.faults import (
    POLL_S,
    FaultPlaces,
    MomentaryFault,
    signal_all,
    stop_for,
)
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError

HEAD_FILE = "drill-head.json"
"""Name of the file in the fabric's directory that holds the head's command while a drill keeps
Ray's GCS dead."""
GUARD_S_MAX = 5.0
HEAD_S_MAX = 60.0
"""Most time that a started GCS takes until it listens."""


@dataclass(frozen=True, slots=True)
class HeadCommand:
    """The command that starts Ray's GCS again.

    Attributes:
        raylet: the pid of the head's raylet; the GCS ends with it.
    """

    port: int
    raylet: int
    command: list[str]
    environment: Mapping[str, str]

    def keep(self, directory: Path) -> None:
        """Writes the command to a file, for the process that starts the GCS if this one dies. Only
        the owner may read the file: the environment may hold secrets."""
        path = directory / HEAD_FILE
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)


class HeadFault(MomentaryFault):
    """SIGKILL or SIGSTOP of Ray's GCS. A killed GCS is started again, which needs a durable
    storage."""

    def __init__(self, places: FaultPlaces, *, kill: bool) -> None:
        self._places = places
        self._kill = kill
        self._pid = 0
        self._head: HeadCommand | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        """Checks that this host can break the GCS and bring it back.

        Raises:
            FabricError: the GCS runs on another host, or would lose its state.
        """
        _, command, environment = gcs_process(gcs_port())
        if self._kill and not is_durable(command, environment):
            raise FabricError(
                "Ray's GCS keeps its state in memory only: killing it would end this Ray "
                "cluster. Let it store its state in RocksDB or Redis (GCS_STORAGE of "
                "cluster.yaml; the Ray of a fabric that is marked for drills when it starts "
                "does), or use the fault stop_gcs"
            )

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        self.check()
        port = gcs_port()
        self._pid, command, environment = gcs_process(port)
        away_s = step.lasts_ms / 1000
        if not self._kill:
            stop_for(self._pid, away_s)
            return []
        self._head = HeadCommand(port, raylet_pid(port), command, environment)
        # Before the kill: a drill that dies in between leaves no Ray without its head.
        self._head.keep(self._places.fabric.directory)
        self._guard = guard_gcs(self._head, away_s + GUARD_S_MAX, self._pid)
        signal_all([self._pid], signal.SIGKILL)
        return ["the GCS is started again with the same command, on its storage"]

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        if self._head is None:
            if self._pid:
                signal_all([self._pid], signal.SIGCONT)
            return
        if self._guard is not None and self._guard.poll() is None:
            _let_start(self._guard)
        elif not _listening(self._head.port):
            _let_start(guard_gcs(self._head, 0.0, self._pid))
        if _await_head(self._head.port, HEAD_S_MAX):
            (self._places.fabric.directory / HEAD_FILE).unlink(missing_ok=True)
        self._head = None


def gcs_port() -> int:
    """Returns the port of the GCS of the Ray cluster that this process is connected to."""
    import ray

    return int(str(ray.get_runtime_context().gcs_address).rpartition(":")[2])


def gcs_process(port: int) -> tuple[int, list[str], dict[str, str]]:
    """Returns (pid, command, environment) of the GCS on this host.

    Raises:
        FabricError: no GCS runs here on that port.
    """
    listening = _listening(port)
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            command = (path / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
            if not command or not command[0].endswith("gcs_server"):
                continue
            if not any(os.readlink(each) in listening for each in (path / "fd").iterdir()):
                continue
            told = (path / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        environment = dict(each.split("=", 1) for each in told if "=" in each)
        # Where it was free to choose its port, it must find that one again.
        chosen = "--gcs_server_port="
        command = [
            chosen + str(port) if argument.startswith(chosen) else argument for argument in command
        ]
        return int(path.name), command, environment
    raise FabricError(f"no GCS with port {port} runs on this host: run this drill on Ray's head")


def _listening(port: int) -> set[str]:
    """Returns the names, as `/proc/PID/fd` shows them, of the sockets that listen on a port of this
    host."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                values = line.split()
                if values[3] == "0A" and int(values[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{values[9]}]")
    return found


def is_durable(command: list[str], environment: Mapping[str, str]) -> bool:
    """Returns whether a GCS with this command and environment keeps its state in Redis or
    RocksDB."""
    return environment.get("RAY_gcs_storage") == "rocksdb" or any(
        argument.startswith("--redis_address=") and len(argument) > 16 for argument in command
    )


def raylet_pid(port: int) -> int:
    """Returns the pid of the raylet on this host that belongs to the GCS on this port; 0: there is
    none."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                if command[0].endswith("/raylet") and any(
                    argument.startswith("--gcs-address=") and argument.endswith(f":{port}")
                    for argument in command
                ):
                    return int(path.name)
    return 0


GUARD = """
timeout "$AWAY_S" cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "/proc/$KILLED/exe" ] || break; sleep 0.2; done
[ -e "/proc/$KILLED/exe" ] && exit
"$@" </dev/null &
while kill -0 $! && kill -0 "$RAYLET"; do sleep 1; done
kill $!
"""
"""Shell script that starts a GCS when its input ends, which happens when the drill's process ends,
or after AWAY_S, unless process KILLED is still there. The processes that started this Ray do not
know the new GCS and do not end it, so the script ends it when the head's raylet has ended."""


def guard_gcs(head: HeadCommand, away_s: float, killed: int) -> subprocess.Popen[bytes]:
    """Starts a guard process in a session of its own, which starts a killed GCS again: when its
    input is closed, when this process has ended, or after `away_s`."""
    values = f"AWAY_S={away_s:.3f}; KILLED={killed}; RAYLET={head.raylet}"
    return subprocess.Popen(
        ["/bin/sh", "-c", f"{values}\n{GUARD}", "raylay-gcs", *head.command],
        env=dict(head.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _let_start(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()


def bring_head_back(directory: Path) -> list[str]:
    """Starts Ray's GCS again where a killed drill left none, with the command in the fabric's
    directory. Returns a sentence for each thing that was done.

    Raises:
        FabricError: the GCS did not start.
    """
    path = directory / HEAD_FILE
    try:
        head = HeadCommand(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        return [f"{path} cannot be read: {error}"]
    # The guard of that drill has most likely started it by itself.
    if not _await_head(head.port, GUARD_S_MAX):
        _let_start(guard_gcs(head, 0.0, 0))
        if not _await_head(head.port, HEAD_S_MAX):
            raise FabricError(
                f"Ray's GCS did not start within {HEAD_S_MAX:.0f} s: start this Ray again, or see "
                f"the command in {path}"
            )
    path.unlink(missing_ok=True)
    return [f"Ray's GCS runs again, on port {head.port}"]


def _await_head(port: int, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while not _listening(port):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
