"""Makes a backup of a data directory while its instance runs or is down (backup_manifest.py has the
form).

The state and the SOW records are copied before the journal, and the journal ends with everything
that was committed until then. So they are what a crash at that moment could have left, and the
recovery folds the rest of the journal into them.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.replication import recovery
from raylay.services.server.data.backup_manifest import (
    DATA_DIRECTORY,
    MANIFEST_FILE,
    PARTIAL_SUFFIX,
    RECORD_FILE,
    BackupFile,
    BackupManifest,
    Row,
    check_room,
    sha256_of,
)
from raylay.services.server.data.data_directory import (
    FILE_KEY,
    GENERATION_KEY,
    INCARNATION_KEY,
)
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY, STATE_FILE
from raylay.services.server.links.bootstrap import MARKER_FILE
from raylay.services.server.sow.stored_topics import SOW_FILE
from raylay.storage.backup import change_store, copy_file, copy_journal, copy_store
from raylay.storage.environment import read_only
from raylay.storage.files import make_directory, move_durably, sync_directory, write_durably
from raylay.storage.lmdb_structure import check_structure
from raylay.storage.segments import list_segments
from raylay.storage.sow import valid_txids
from raylay.storage.verify import VerifyResult, verify_journal


def make_backup(directory: Path, place: Path, fabric: str, record: str) -> Iterator[Row]:
    """Makes a backup of a data directory, and verifies it. Yields `{"step": text}` for each step,
    and at last `{"backup": path, "manifest": text}`. To be run in a process of its own: LMDB ends a
    process that meets a damaged page.

    Args:
        place: the directory in which the backup's directory is made.
        record: the text of the fabric's record; empty: there is none.

    Raises:
        StorageError: a file cannot be copied, or the copy is not sound; nothing is left of it.
    """
    try:
        config = InstanceConfig.load(directory)
    except ConfigurationError as error:
        raise StorageError(f"{error}: there is nothing to back up", str(directory)) from None
    if (directory / MARKER_FILE).exists():
        raise StorageError(
            f"{directory} is being filled from a peer: back it up when its instance has caught up",
            str(directory),
        )
    began_s = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began_s))
    final = place / f"{config.name}-{stamp}"
    partial = final.with_name(final.name + PARTIAL_SUFFIX)
    make_directory(place)
    if final.exists() or partial.exists():
        raise StorageError(f"{final} exists already: try again in a second", str(final))
    check_room(place, _size_of(directory))
    make_directory(partial)
    try:
        yield from _filled(directory, partial, config, fabric, record, began_s)
        sync_directory(partial)
        move_durably(partial, final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    yield {"backup": str(final), "manifest": (final / MANIFEST_FILE).read_text()}


def _filled(
    directory: Path, partial: Path, config: InstanceConfig, fabric: str, record: str, began_s: float
) -> Iterator[Row]:
    data = partial / DATA_DIRECTORY
    make_directory(data)
    if record:
        write_durably(partial / RECORD_FILE, record.encode())
    yield {"step": "copying the state"}
    copy_file(directory / INSTANCE_FILE, data / INSTANCE_FILE)
    copy_store(directory / STATE_FILE, data / STATE_FILE)
    # A copy of the copy that has the same number by chance must not be taken for the original.
    change_store(data / STATE_FILE, {FILE_KEY.encode(): None})
    if (directory / SOW_FILE).exists():
        yield {"step": "copying the SOW records"}
        copy_store(directory / SOW_FILE, data / SOW_FILE)
    yield {"step": "copying the journal"}
    journal = data / JOURNAL_DIRECTORY
    last_txid = copy_journal(directory / JOURNAL_DIRECTORY, journal, lambda _: None)
    yield {"step": "verifying the copy"}
    messages = _verified(data, last_txid)
    for leftover in data.rglob("*-lock"):
        leftover.unlink()
    yield {"step": "computing checksums"}
    segments = list_segments(journal, None)
    incarnation, generation = _identity(data / STATE_FILE)
    manifest = BackupManifest(
        release=importlib.metadata.version("raylay"),
        fabric=fabric,
        instance=config.name,
        group=config.group,
        incarnation=f"{incarnation:016x}",
        generation=generation,
        directory=str(directory.absolute()),
        archive=str(Path(config.journal.archive_directory).absolute())
        if config.journal.archive_directory
        else "",
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s)),
        first_txid=segments[0].first_txid if segments else 1,
        last_txid=last_txid,
        messages=messages,
        files=tuple(_files_of(partial)),
    )
    write_durably(partial / MANIFEST_FILE, manifest.text().encode())
    for folder in {path.parent for path in partial.rglob("*")}:
        sync_directory(folder)


def _identity(state: Path) -> tuple[int, int]:
    """Returns the incarnation and the generation in a copied state."""
    with read_only(state, lock=False) as transaction:
        found = (transaction.get(key.encode()) or b"" for key in (INCARNATION_KEY, GENERATION_KEY))
        incarnation, generation = (int.from_bytes(value, "big") for value in found)
    return incarnation, generation


def _verified(data: Path, last_txid: int) -> int:
    """Opens the copied files as a recovery does, and reads each record. Returns the number of
    messages.

    Raises:
        StorageError: something is damaged, missing, or of a later time than the journal.
    """
    verified = VerifyResult()
    for damage in verify_journal(data / JOURNAL_DIRECTORY, None, verified):
        raise StorageError(
            f"the copy is not sound: {damage.path}, byte {damage.offset}: {damage.text}; "
            "`raylay journal verify` says whether the journal is",
            str(damage.path),
        )
    for name in (STATE_FILE, SOW_FILE):
        path = data / name
        if not path.exists():
            continue
        check_structure(path)
        try:
            with read_only(path, lock=False) as transaction:
                known_txid = _known_txid(name, transaction)
        except lmdb.Error as error:
            raise StorageError(f"{path} cannot be read: {error}", str(path)) from error
        if known_txid > last_txid:
            raise StorageError(
                f"the copy is not sound: {path} knows of transaction {known_txid}, and the journal "
                f"ends with {last_txid}",
                str(path),
            )
    return verified.messages


def _known_txid(name: str, transaction: Any) -> int:
    """Returns the last transaction id that a store says that the journal has."""
    if name == SOW_FILE:
        return max(valid_txids(transaction), default=0)
    prefix = recovery.PREFIX.encode()
    hints: dict[str, bytes] = {}
    with transaction.cursor() as cursor:
        there = cursor.set_range(prefix)
        while there and bytes(cursor.key()).startswith(prefix):
            hints[bytes(cursor.key()).decode()] = bytes(cursor.value())
            there = cursor.next()
    return recovery.committed_txid_of(hints)


def _files_of(directory: Path) -> Iterator[BackupFile]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            yield BackupFile(name, path.stat().st_size, sha256_of(path))


def _size_of(directory: Path) -> int:
    """Returns the bytes that a copy of the state, the SOW records and the newest segment may take.
    Sealed segments are linked where they can be, and are not counted."""
    segments = list_segments(directory / JOURNAL_DIRECTORY, None)
    paths = [directory / STATE_FILE, directory / SOW_FILE]
    paths += [file.path for file in segments if file.suffix == ".live"]
    return sum(path.stat().st_blocks * 512 for path in paths if path.exists())
