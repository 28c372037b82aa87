"""Kills and stops Ray's head (its GCS), and brings it back through a process that outlives the
drill."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from raylay.services.drills.faults import (
    FaultPlaces,
    MomentaryFault,
    signal_all,
    stop_for,
)
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.head_process import (
    HEAD_S_MAX,
    HeadCommand,
    await_head,
    gcs_port,
    gcs_process,
    guard_gcs,
    is_durable,
    let_start,
    listening_sockets,
    raylet_pid,
)

HEAD_FILE = "drill-head.json"
"""Name of the file in the fabric's directory that holds the head's command while a drill keeps
Ray's GCS dead."""
GUARD_S_MAX = 5.0


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
        self._head.keep(self._places.fabric.directory / HEAD_FILE)
        self._guard = guard_gcs(self._head, away_s + GUARD_S_MAX, self._pid)
        signal_all([self._pid], signal.SIGKILL)
        return ["the GCS is started again with the same command, on its storage"]

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        if self._head is None:
            if self._pid:
                signal_all([self._pid], signal.SIGCONT)
            return
        if self._guard is not None and self._guard.poll() is None:
            let_start(self._guard)
        elif not listening_sockets(self._head.port):
            let_start(guard_gcs(self._head, 0.0, self._pid))
        if await_head(self._head.port, HEAD_S_MAX):
            (self._places.fabric.directory / HEAD_FILE).unlink(missing_ok=True)
        self._head = None


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
    if not await_head(head.port, GUARD_S_MAX):
        let_start(guard_gcs(head, 0.0, 0))
        if not await_head(head.port, HEAD_S_MAX):
            raise FabricError(
                f"Ray's GCS did not start within {HEAD_S_MAX:.0f} s: start this Ray again, or see "
                f"the command in {path}"
            )
    path.unlink(missing_ok=True)
    return [f"Ray's GCS runs again, on port {head.port}"]
