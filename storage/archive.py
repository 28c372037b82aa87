"""The archive of a journal: its directory, which the journal remembers, and the id by which the
archive knows its journal.

    JOURNAL/archive.json        {"directory": absolute path, "id": 16 hex digits}
    ARCHIVE/archive-id.json     {"id": 16 hex digits}

A journal has one archive, and an archive one journal, because segments of two journals can have the
same names. The instance, its links and every tool find archived segments by the first file,
whichever process moved them there.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from raylay.services.errors import StorageError
from raylay.storage.files import read_text, write_durably, write_text_durably

POINTER_FILE = "archive.json"
ID_FILE = "archive-id.json"


def archive_of(journal: Path) -> Path | None:
    """Returns the directory of the journal's archived segments; None if none were ever archived.

    Raises:
        StorageError: `archive.json` is damaged.
    """
    found = _read(journal / POINTER_FILE)
    return Path(found["directory"]) if found else None


def check_archive(journal: Path, archive: Path) -> None:
    """Refuses a directory that is not the archive of this journal.

    Raises:
        StorageError: the archive belongs to another journal, or the journal has another archive;
            the message says which.
    """
    mine, theirs = _read(journal / POINTER_FILE), _read(archive / ID_FILE)
    if mine and Path(mine["directory"]) != archive.absolute():
        raise StorageError(
            f"{journal} has its archived segments in {mine['directory']}: give that directory, "
            f"or move the segments and correct {journal / POINTER_FILE}",
            str(archive),
        )
    if theirs and theirs["id"] != mine.get("id"):
        raise StorageError(
            f"{archive} is the archive of another journal than {journal}: their segments have the "
            "same names, give each journal a directory of its own",
            str(archive),
        )


def take_archive(journal: Path, archive: Path, holds_segments: bool) -> None:
    """Makes a directory the journal's archive, unless it is already.

    Raises:
        StorageError: `check_archive` refuses the directory, or it `holds_segments` and has no
            archive id.
    """
    check_archive(journal, archive)
    mine = _read(journal / POINTER_FILE)
    if _read(archive / ID_FILE):
        return
    if holds_segments:
        raise StorageError(
            f"{archive} holds segments of a journal already: give {journal} a directory of its own",
            str(archive),
        )
    if not mine:
        mine = {"directory": str(archive.absolute()), "id": os.urandom(8).hex()}
        _point(journal / POINTER_FILE, json.dumps(mine))
    write_durably(archive / ID_FILE, json.dumps({"id": mine["id"]}).encode() + b"\n")


def _point(path: Path, text: str) -> None:
    """Writes the pointer to the archive in a way that can succeed on a full disk, which archiving
    would free."""
    try:
        write_text_durably(path, text)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; free a few KiB on that disk, and archive again" if is_full else ""
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}{advice}", str(path)
        ) from error


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}", str(path)) from None
    wanted = ("id",) if path.name == ID_FILE else ("directory", "id")
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in wanted):
        raise StorageError(f"{path} does not say {' and '.join(wanted)}", str(path))
    return found
