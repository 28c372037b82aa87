"""The process of Ray's head (its GCS) on this host: its command, and the start with that once
more."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.ray_access import POLL_S, head_address
from raylay.services.fabric.records.registry import RegistryEntry
from raylay.services.net.ray_head import answers_as_head

KEPT_FILE = "ray-head.json"
"""Name of the file in the fabric's directory that holds the command of Ray's head, where the head
runs on this host and keeps its memory on the disk or in Redis."""
HEAD_S_MAX = 60.0
"""Most time that a started GCS takes until it listens."""
ANSWER_S = 2.0
DEPLOYED = "`bash ~/raylay/deploy/start.sh` starts the head of a cluster of deploy/ on its host"


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

    def keep(self, path: Path) -> None:
        """Writes the command to a file. Only the owner may read it: the environment may hold
        secrets."""
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)


def gcs_port() -> int:
    """Returns the port of the GCS of the Ray cluster that this process is connected to."""
    return int(head_address().rpartition(":")[2])


def gcs_process(port: int) -> tuple[int, list[str], dict[str, str]]:
    """Returns (pid, command, environment) of the GCS on this host.

    Raises:
        FabricError: no GCS runs here on that port.
    """
    listening = listening_sockets(port)
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


def listening_sockets(port: int) -> set[str]:
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


def let_start(guard: subprocess.Popen[bytes]) -> None:
    """Lets a guard process start the GCS now."""
    assert guard.stdin is not None
    guard.stdin.close()


def await_head(port: int, wait_s: float) -> bool:
    """Returns whether something listens on the port of this host within the time."""
    deadline_s = time.monotonic() + wait_s
    while not listening_sockets(port):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


# -- the head of a fabric ----------------------------------------------------------------------
def keep_head(directory: Path) -> str:
    """Keeps the command of Ray's head in the fabric's directory, if the head runs on this host and
    its memory outlives its process. Returns why it was not kept; empty: it was.

    Raises:
        OSError: the file cannot be written.
    """
    path = directory / KEPT_FILE
    try:
        port = gcs_port()
        _, command, environment = gcs_process(port)
    except FabricError:
        path.unlink(missing_ok=True)
        return "it runs on another host, or as another user"
    if not is_durable(command, environment):
        path.unlink(missing_ok=True)
        return "it keeps its state in memory only, so that one that comes back knows nobody"
    HeadCommand(port, raylet_pid(port), command, environment).keep(path)
    return ""


def start_head(entry: RegistryEntry) -> str:
    """Starts Ray's head of a fabric again on this host, with the command that `keep_head` kept, and
    returns a sentence when it answers.

    Raises:
        FabricError: it cannot be started here; says what to do.
    """
    if answers_as_head(entry.address, ANSWER_S):
        return f"Ray's head at {entry.address} answers"
    path = Path(entry.directory) / KEPT_FILE
    try:
        kept = HeadCommand(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FabricError(
            f"Ray's head at {entry.address} does not answer, and this host does not know how it "
            f"was started ({path} is not there): it runs on another host, or keeps its state in "
            f"memory only, and one that comes back would know nobody. {DEPLOYED}; where its state "
            "is in memory, wait until the nodes have ended, then `raylay up FILE`"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise FabricError(f"{path} cannot be read: {error}") from None
    if listening_sockets(kept.port):
        raise FabricError(
            f"a process listens on port {kept.port} and does not answer as Ray's head: it hangs, "
            "or another program took the port. End it, then give this command again; `ss -tlnp "
            f"sport = :{kept.port}` names it"
        )
    raylet = raylet_pid(kept.port)
    if not raylet:
        raise FabricError(
            f"the node of Ray's head at {entry.address} has ended, too, and a head needs its node: "
            f"start Ray on this host again. {DEPLOYED}"
        )
    let_start(guard_gcs(replace(kept, raylet=raylet), 0.0, 0))
    if not await_head(kept.port, HEAD_S_MAX):
        raise FabricError(
            f"Ray's head did not start within {HEAD_S_MAX:.0f} s; {path} has its command"
        )
    return f"Ray's head runs again, on port {kept.port}: the nodes register with it by themselves"
