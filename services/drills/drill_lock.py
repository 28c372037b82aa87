"""The lock of a running drill: one drill at a time on a fabric, and the repair of what an
interrupted drill left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from raylay.services.drills.faults import (
    FaultPlaces,
    lost_disks,
    signal_all,
)
from raylay.services.drills.head import bring_head_back
from raylay.services.drills.scenario import DrillScenario
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.cluster.head_process import gcs_port, gcs_process
from raylay.services.fabric.records.registry import process_start
from raylay.services.server.fault_injection import REFUSED, release
from raylay.storage.files import sync_directory, write_durably

MARK_FILE = "drill.json"
"""Name of the lock's file in the fabric's directory; the file exists while a drill runs."""


class DrillLock:
    """The lock that lets one drill at a time run on a fabric: a file in the fabric's directory that
    names the drill's process.

    Raises:
        FabricError: on entering: another drill runs.
    """

    def __init__(self, fabric: Fabric, number: str, scenario: DrillScenario) -> None:
        self._path = fabric.directory / MARK_FILE
        self._fabric = fabric.name
        self._text = json.dumps(
            {
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "number": number,
                "scenario": scenario.name,
            }
        )

    def __enter__(self) -> None:
        # A hard link to a complete file, so that no process reads one that is being written.
        aside = self._path.with_name(f".{MARK_FILE}.{os.getpid()}")
        try:
            write_durably(aside, self._text.encode("utf-8"))
            os.link(aside, self._path)
            sync_directory(self._path.parent)
        except FileExistsError:
            refuse_running(self._path.parent, self._fabric)
            raise FabricError(
                f"drill {_marked(self._path).get('scenario', '(unknown)')} on {self._fabric} did "
                "not end in good order: its faults end by themselves; heal what is left with "
                f"`raylay drill --clean --fabric {self._fabric}`"
            ) from None
        finally:
            aside.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _marked(path: Path) -> dict[str, Any]:
    """Returns the content of a lock file; an empty dict where the file is missing or torn."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def refuse_running(directory: Path, fabric: str) -> None:
    """Refuses a fabric on which a drill runs.

    Raises:
        FabricError: a drill runs; the error names it and its process.
    """
    told = _marked(directory / MARK_FILE)
    try:
        running = process_start(int(told["pid"])) == int(told["start"]) > 0
    except (KeyError, ValueError, TypeError):
        return
    if running:
        raise FabricError(
            f"drill {told.get('scenario', '(unknown)')} runs on {fabric} already, as process "
            f"{told['pid']}: wait until it ends, or end it with Ctrl-C or SIGTERM, which heals "
            "its faults"
        )


def check_allowed(fabric: Fabric) -> None:
    """Refuses a fabric that is not marked for drills.

    Raises:
        ConfigurationError: the fabric is not marked.
    """
    if fabric.declared.drills != "allowed":
        raise ConfigurationError(f"fabric {fabric.name}: {REFUSED}")


def clean(fabric: Fabric) -> list[str]:
    """Heals at once the faults that a killed drill left behind, which would otherwise end by
    themselves a little later. Returns a sentence for each thing that was done.

    Raises:
        ConfigurationError: the fabric is not marked for drills.
        FabricError: the drill still runs, or an instance refuses.
    """
    check_allowed(fabric)
    refuse_running(fabric.directory, fabric.name)
    fabric.authorize(
        [instance.name for instance in fabric.declared.instances], "drill", kind="clean"
    )
    done = bring_head_back(fabric.directory) + mend(FaultPlaces(fabric))
    fabric.end_errands()
    path = fabric.directory / MARK_FILE
    if path.exists():
        path.unlink()
        done.append(f"{path} removed")
    return done


def mend(places: FaultPlaces) -> list[str]:
    """Heals every fault that may be left in a fabric. Returns a sentence for each thing that was
    done."""
    done = []
    fabric = places.fabric
    for instance in fabric.declared.instances:
        name = instance.name
        places.errand(name, release, places.directory(name))
        done += [
            f"{name}: what was on its lost disk is still in {path}: remove it if you do not need it"
            for path in places.errand(name, lost_disks, places.directory(name))
        ]
        pid = fabric.pid(name)
        if pid:
            places.errand(name, signal_all, [pid], signal.SIGCONT)
        try:
            status = places.status(name)
            for destination, to in status.get("destinations", {}).items():
                fabric.inject(name, "line", 0.0, destination=destination)
                if to.get("pid"):
                    places.errand(name, signal_all, [int(to["pid"])], signal.SIGCONT)
            for kind in ("clock", "disk"):
                fabric.inject(name, kind, 0.0)
        except FabricError as error:
            done.append(f"{name} cannot be asked: {error}")
        else:
            done.append(
                f"{name}: its lines are open, its clock and disk are as before, its process runs"
            )
    with contextlib.suppress(FabricError):
        pid, *_ = gcs_process(gcs_port())
        signal_all([pid], signal.SIGCONT)
    return done
