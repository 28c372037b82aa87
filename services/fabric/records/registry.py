"""The registry of this user's fabrics on this machine, by which `raylay status` in another shell
finds them.

One small file a fabric, in the user's runtime directory. It says how to reach Ray and where the
fabric's directory is; everything else is asked of the instances. A file of a process that is gone
is removed when it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.services.fabric.files import write_private_text
from raylay.storage.files import make_directory, sync_directory

REGISTRY_VARIABLE = "RAYLAY_RUNTIME_DIR"
STOPPED_SUFFIX = ".stopped"
FABRIC_FILE = "fabric.json"
"""File with the record of a fabric, in its directory."""


@dataclass(slots=True)
class RegistryEntry:
    """One running fabric.

    Attributes:
        address: address of Ray's head, for `ray.init`.
        host_pid: the process that started Ray and ends it when it ends; 0: Ray was running before.
        auth_mode: Ray's RAY_AUTH_MODE, which a process that connects needs as well.
        host_start: start time of that process, in clock ticks since boot, because a pid may be used
            again.
        copied: whether the directory holds only a copy of the record, because the fabric was
            started on another host.
    """

    name: str
    directory: str
    address: str
    host_pid: int = 0
    host_start: int = 0
    auth_mode: str = ""
    copied: bool = False

    @property
    def alive(self) -> bool:
        """Returns whether the process that holds Ray is there; true where Ray was running
        before."""
        return not self.host_pid or (
            process_start(self.host_pid) == self.host_start and self.host_start > 0
        )


def process_start(pid: int) -> int:
    """Returns the start of a process, in clock ticks since boot; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The second field is the command in brackets and may hold spaces; then field 3 is the state.
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def registry_directory() -> Path:
    """Returns the user's own directory for these files, and makes it if it does not exist.

    Raises:
        FabricError: the directory belongs to another user, or cannot be made.
    """
    return own_directory(runtime_path())


def runtime_path() -> Path:
    """Returns the path of that directory, which may not be there yet."""
    chosen = os.environ.get(REGISTRY_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"raylay-{os.getuid()}"


def own_directory(path: Path, remedy: str = f"set {REGISTRY_VARIABLE}") -> Path:
    """Makes a directory of this user when it is not there, and returns it.

    Args:
        remedy: sentence on what the user can do where that fails.

    Raises:
        FabricError: the directory belongs to another user, or cannot be made.
    """
    try:
        make_directory(path)
        owner = path.stat().st_uid
    except OSError as error:
        raise FabricError(f"{path} cannot be made: {error.strerror}: {remedy}") from None
    if owner != os.getuid():
        raise FabricError(f"{path} belongs to another user: {remedy}")
    return path


def register(entry: RegistryEntry) -> None:
    """Writes the file of a fabric.

    Raises:
        FabricError: the disk does not take it.
    """
    write_private_text(registry_directory() / f"{entry.name}.json", json.dumps(asdict(entry)))


def copy_directory(name: str) -> Path:
    """Returns the directory for the record of a fabric that was started elsewhere."""
    return registry_directory() / f"{name}.elsewhere"


def unregister(name: str) -> None:
    """Removes the registry's file of a fabric, if there is one, and the copy of its record. The
    note of the fabric's directory stays."""
    _note_stopped(registry_directory() / f"{name}.json")
    shutil.rmtree(copy_directory(name), ignore_errors=True)


def find(name: str) -> RegistryEntry | None:
    """Returns the running fabric with this name; None: none runs."""
    path = registry_directory() / f"{name}.json"
    try:
        entry = RegistryEntry(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    if not entry.alive:
        _note_stopped(path)
        return None
    return entry


def _note_stopped(path: Path) -> None:
    # A file that cannot be removed does no harm: its process is gone.
    with suppress(OSError):
        path.replace(path.with_suffix(STOPPED_SUFFIX))
        sync_directory(path.parent)


def notes() -> list[RegistryEntry]:
    """Returns the notes on fabrics that ran once and do not now. A note whose directory is gone is
    removed."""
    found = []
    for path in sorted(registry_directory().glob(f"*{STOPPED_SUFFIX}")):
        try:
            entry = RegistryEntry(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue
        if entry.copied or not Path(entry.directory).is_dir():
            with suppress(OSError):
                path.unlink()
        else:
            found.append(entry)
    return found


def running() -> list[RegistryEntry]:
    """Returns all running fabrics that this user started on this machine."""
    names = sorted(path.stem for path in registry_directory().glob("*.json"))
    return [entry for name in names if (entry := find(name)) is not None]
