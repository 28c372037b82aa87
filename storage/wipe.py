"""Empties the directory of a journal whose content is of no use, such as an unfinished copy."""

from __future__ import annotations

from pathlib import Path

from raylay.services.errors import StorageError
from raylay.storage.files import FileLock, sync_directory
from raylay.storage.front import front_files, remove_front
from raylay.storage.segments import all_files

LOCK_FILE = "lock"
_KEPT = frozenset((LOCK_FILE, "archive.json"))


def wipe_journal(directory: Path, archive: Path | None) -> int:
    """Removes all files of the journal, also archived segments. No process may have the
    journal open. Returns the number of removed files.

    Args:
        archive: the directory of archived segments; None: there is none.

    Raises:
        StorageLocked: another process has the journal open.
        StorageError: a file cannot be removed; the error names it.
    """
    with FileLock(directory / LOCK_FILE):
        # What is in front of the newest segment goes before it: without it, it would seem damaged.
        in_front = len(front_files(directory))
        try:
            remove_front(directory)
        except OSError as error:
            raise StorageError(
                f"{directory}: the front log cannot be removed: {error}", str(directory)
            ) from error
        found = [file.path for file in all_files(directory, archive)]
        # The newest first: what is left by a crash in between is a log without a gap.
        found.reverse()
        found += [path for path in directory.iterdir() if path not in found]
        removed = in_front
        for path in found:
            if path.name in _KEPT or not path.is_file():
                continue
            try:
                path.unlink()
            except OSError as error:
                raise StorageError(
                    f"{path} cannot be removed: {error.strerror}", str(path)
                ) from error
            removed += 1
        for place in {path.parent for path in found}:
            sync_directory(place)
    return removed
