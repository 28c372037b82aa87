"""Makes a data directory from a backup (backup_manifest.py has the form)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from raylay.services.config.instance import MOVED_ASIDE
from raylay.services.errors import StorageError
from raylay.services.server.data.backup_manifest import (
    DATA_DIRECTORY,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    BackupFile,
    BackupManifest,
    check_room,
    sha256_of,
)
from raylay.services.server.data.data_directory import GENERATION_KEY
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY, STATE_FILE
from raylay.storage.backup import change_store, copy_file
from raylay.storage.files import FileLock, make_directory, move_durably, sync_directory
from raylay.storage.wipe import LOCK_FILE

RESTORING_SUFFIX = ".restoring"
RESTORE_LOCK = "restore.lock"


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The place of a restored data directory.

    Attributes:
        directory: the data directory.
        generation: generation that the fabric's record gives the instance.
    """

    directory: Path
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restoration.

    Attributes:
        directory: the restored data directory.
        moved: what was there before and where it was moved to, pairs of paths.
    """

    directory: Path
    moved: tuple[tuple[Path, Path], ...] = ()


def check_backup(backup: Path, told: Callable[[str], None] = lambda _: None) -> BackupManifest:
    """Reads a backup, each file of it. Returns its manifest.

    Args:
        told: called with the name of each file before it is read.

    Raises:
        StorageError: it is no backup, was not finished, or a file is missing or damaged; names the
            file.
    """
    path = backup / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        if backup.name.endswith(PARTIAL_SUFFIX):
            raise StorageError(
                f"{backup} is a backup that was not finished: use another one", str(backup)
            ) from None
        why = getattr(error, "strerror", None) or error
        raise StorageError(
            f"{backup} is no backup of an instance: {path.name}: {why}", str(path)
        ) from None
    manifest = BackupManifest.of(text, str(path))
    for file in manifest.files:
        told(file.path)
        check_file(backup / file.path, file)
    return manifest


def check_file(path: Path, file: BackupFile) -> None:
    """Refuses a file that is not what the manifest says.

    Raises:
        StorageError: it is missing or damaged.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes == file.size_bytes and sha256_of(path) == file.sha256:
            return
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}: use another backup", str(path)
        ) from None
    why = "its checksum does not fit"
    if size_bytes != file.size_bytes:
        why = f"it has {size_bytes:,} bytes of {file.size_bytes:,}"
    raise StorageError(f"{path} is damaged: {why}: use another backup", str(path))


def restore(
    backup: Path, manifest: BackupManifest, target: RestoreTarget, *, force: bool
) -> RestoreResult:
    """Makes a data directory from a checked backup. Its instance begins as another incarnation, and
    admits clients when it has caught up with a peer of its group.

    Args:
        force: whether what is in the place is moved aside; otherwise it is an error.

    Raises:
        StorageLocked: the instance runs, or another process restores it.
        StorageError: the place is not empty, or a file cannot be copied. What was there is there
            still.
    """
    directory = target.directory
    occupied = [path for path in _places(manifest, directory) if _is_occupied(path)]
    lock = _lock_of(directory)
    try:
        if occupied and not force:
            raise StorageError(
                f"{occupied[0]} is not empty: move it away, or give --force, which moves it aside",
                str(occupied[0]),
            )
        make_directory(directory.parent)
        check_room(directory.parent, manifest.size_bytes)
        staging = directory.with_name(directory.name + RESTORING_SUFFIX)
        make_directory(staging)
        with FileLock(staging / RESTORE_LOCK):
            try:
                _fill(backup, manifest, target, staging)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            moved = [
                (path, path.with_name(f"{path.name}{MOVED_ASIDE}{stamp}")) for path in occupied
            ]
            (staging / RESTORE_LOCK).unlink()
            _put_in_place(staging, directory, moved)
    finally:
        if lock is not None:
            lock.release()
    return RestoreResult(directory, tuple(moved))


def _put_in_place(staging: Path, directory: Path, moved: list[tuple[Path, Path]]) -> None:
    """Moves what is there aside, and the restored directory into its place; if that fails, moves
    everything back."""
    done: list[tuple[Path, Path]] = []
    try:
        for before, after in (*moved, (staging, directory)):
            move_durably(before, after)
            done.append((before, after))
    except OSError as error:
        for before, after in reversed(done):
            move_durably(after, before)
        shutil.rmtree(staging, ignore_errors=True)
        raise StorageError(
            f"{error.filename} cannot be moved: {error.strerror}: nothing was changed",
            str(error.filename),
        ) from None


def _places(manifest: BackupManifest, directory: Path) -> list[Path]:
    """Returns the directories that belong to the data. An archive of later segments would
    contradict the restored journal, which has the earlier ones itself."""
    return [directory, *([Path(manifest.archive)] if manifest.archive else [])]


def _is_occupied(path: Path) -> bool:
    try:
        return any(path.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True


def _lock_of(directory: Path) -> FileLock | None:
    """Takes the lock of the journal in the place, so that no instance begins there meanwhile."""
    journal = directory / JOURNAL_DIRECTORY
    return FileLock(journal / LOCK_FILE) if journal.is_dir() else None


def _fill(backup: Path, manifest: BackupManifest, target: RestoreTarget, staging: Path) -> None:
    for leftover in staging.iterdir():
        if leftover.name != RESTORE_LOCK:
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    for file in manifest.files:
        path = PurePosixPath(file.path)
        if path.parts[0] != DATA_DIRECTORY:
            continue
        copy = staging.joinpath(*path.parts[1:])
        make_directory(copy.parent)
        copy_file(backup / file.path, copy)
        # Also what was copied was read from a disk.
        check_file(copy, file)
    if target.generation > manifest.generation:
        # The instance was moved since, and the directory is that of its present generation.
        key = GENERATION_KEY.encode()
        change_store(staging / STATE_FILE, {key: target.generation.to_bytes(8, "big")})
    for folder in {staging, *(path.parent for path in staging.rglob("*"))}:
        sync_directory(folder)
