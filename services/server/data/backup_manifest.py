"""The form of a backup of a data directory.

A backup is a directory:

    backup.json             the manifest: what the backup is of, and size and SHA-256 of each file
    fabric.json             the record of the instance's fabric, as it was
    data/instance.json      the instance's configuration
    data/state.lmdb         its state, without the mark of the directory that it belongs to
    data/sow.lmdb           the records of its SOW topics, if it has any
    data/journal/           its journal (storage/backup.py), archived segments included

It has no queue states, which belong to an incarnation and are rebuilt from the journal, no history
of statistics, and nothing that an instance makes anew at its start.

The state and the SOW records are copied before the journal, and the journal ends with everything
that was committed until then. So they are what a crash at that moment could have left, and the
recovery folds the rest of the journal into them.

A directory with the suffix `.partial` is a backup that was not finished.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from raylay.services.config import json_text
from raylay.services.errors import ConfigurationError, StorageError, StorageFull
from raylay.storage.backup import COPY_BYTES

MANIFEST_FILE = "backup.json"
RECORD_FILE = "fabric.json"
DATA_DIRECTORY = "data"
PARTIAL_SUFFIX = ".partial"
LEFT_BYTES_MIN = 32 * 1024 * 1024
"""Free space, in bytes, that must remain behind a backup or a restored directory."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup.

    Attributes:
        path: path in the backup's directory, with slashes.
        size_bytes: its size.
        sha256: SHA-256 of its content, in hexadecimal digits.
    """

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The description of a backup.

    Attributes:
        release: release of Raylay that made it.
        fabric: name of the fabric.
        instance: name of the instance.
        group: the instance's group.
        incarnation: incarnation of the data directory, in hexadecimal digits.
        generation: generation of the instance.
        directory: absolute path of the data directory.
        archive: absolute path of the directory of archived segments, of which the backup has the
            segments; empty: there is none.
        time: time at which the backup was begun, in UTC.
        first_txid: first transaction id of the journal.
        last_txid: last transaction id of the journal; 0: it is empty.
        messages: number of messages in the journal.
        files: all files except the manifest.
        checksum: SHA-256 of the manifest's text with an empty checksum.
    """

    release: str
    fabric: str
    instance: str
    group: str
    incarnation: str
    generation: int
    directory: str
    archive: str
    time: str
    first_txid: int
    last_txid: int
    messages: int
    files: tuple[BackupFile, ...]
    checksum: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def text(self) -> str:
        """Returns the manifest as JSON, with its checksum."""
        return json_text.written(replace(self, checksum=self._checksum()))

    def _checksum(self) -> str:
        return hashlib.sha256(json_text.written(replace(self, checksum="")).encode()).hexdigest()

    @classmethod
    def of(cls, text: str, where: str) -> BackupManifest:
        """Reads what `text` wrote.

        Raises:
            StorageError: it is no manifest, was changed, or names a file outside of the backup.
        """
        try:
            found = json_text.read(cls, text, where, "use the release that wrote it")
        except ConfigurationError as error:
            raise StorageError(str(error), where) from None
        if found.checksum != found._checksum():
            raise StorageError(
                f"{where} is damaged: its checksum does not fit: use another backup", where
            )
        for file in found.files:
            path = PurePosixPath(file.path)
            is_inside = file.path == RECORD_FILE or path.parts[:1] == (DATA_DIRECTORY,)
            if not is_inside or ".." in path.parts:
                raise StorageError(
                    f"{where} names a file outside of the backup: {file.path}", where
                )
        return found

    def as_json(self) -> Row:
        """Returns the manifest as an object for programs, without the files."""
        values: Row = msgspec.to_builtins(self)
        return values | {"files": len(self.files), "size_bytes": self.size_bytes}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(COPY_BYTES):
            digest.update(part)
    return digest.hexdigest()


def check_room(place: Path, wanted_bytes: int) -> None:
    """Refuses a place where too little space is free.

    Raises:
        StorageFull: less than `wanted_bytes` and some more are free.
    """
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < wanted_bytes + LEFT_BYTES_MIN:
        raise StorageFull(
            f"{place}: {wanted_bytes:,} bytes are needed, and {LEFT_BYTES_MIN:,} more are to stay "
            f"free; {free_bytes:,} are free: free some space, or give a directory on another disk",
            str(place),
        )
