"""Compressing, archiving, removing and tidying segments; beside a running instance or in it.

Each change writes aside, syncs, renames, syncs the directory, and only then unlinks what it
replaces: whatever the instant of a SIGKILL, every segment is there whole in at least one form.
One process at a time changes files (`maintenance.lock`); a segment that a reader uses is passed
over and may be tried again later.
"""

from __future__ import annotations

import filecmp
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from raylay.services.errors import CorruptRecord, StorageError
from raylay.storage.archive import archive_of, check_archive, take_archive
from raylay.storage.compressed import ZSTD_LEVEL_DEFAULT, Container, write_container
from raylay.storage.files import (
    ASIDE_SUFFIX,
    FileLock,
    copy_durably,
    fault_point,
    holders_of,
    make_directory,
    make_shared,
    read_text,
    replaced_durably,
    shared_lock,
    sync_directory,
    try_exclusive,
    write_text_durably,
)
from raylay.storage.journal import Outcome
from raylay.storage.read_holds import held_read
from raylay.storage.segments import (
    EnvironmentSegment,
    OpenSegment,
    SegmentFile,
    all_files,
    block_last_txid,
    list_segments,
)

SPARE_STEM = "spare"
FLOOR_FILE = "removable"
MAINTENANCE_LOCK = "maintenance.lock"
IN_USE = "in use by a reader"
"""Prefix of the note of a segment that a reader has open."""
BLOCKS_READ_BYTES = 4 * 1024 * 1024


def write_floor(directory: Path, before_txid: int) -> None:
    """Persists the instance's floor for removal, for tools in other processes.

    Raises:
        StorageError: it cannot be written. That of 0, which takes no space, is the file's absence.
    """
    path = directory / FLOOR_FILE
    try:
        if not before_txid:
            path.unlink(missing_ok=True)
            sync_directory(directory)
        else:
            # On a full disk, too: `raylay journal remove` frees it, and asks here what may go.
            write_text_durably(path, json.dumps({"before_txid": before_txid}))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}", str(path)) from error


def read_floor(directory: Path) -> int:
    """Segments whose last transaction id is below this may be removed; 0: none."""
    try:
        value = json.loads(read_text(directory / FLOOR_FILE))["before_txid"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return value if isinstance(value, int) and value > 0 else 0


class SegmentMaintenance:
    """Changes the files of sealed segments.

    Owner: the journal's maintenance thread, or a tool. Holds the maintenance lock per call.

    Args:
        directory: the journal's directory.
        archive_directory: directory to which `archive` moves segments; made when it is missing.
        level: zstd level of `compress`.
    """

    def __init__(
        self,
        directory: Path,
        archive_directory: Path | None = None,
        *,
        level: int = ZSTD_LEVEL_DEFAULT,
    ) -> None:
        self._directory = directory
        self._archive = archive_directory or archive_of(directory)
        self._level = level

    def _exclusively(self) -> FileLock:
        return FileLock(self._directory / MAINTENANCE_LOCK, wait=True)

    def closed_segments(self) -> list[tuple[SegmentFile, int]]:
        """(file, last transaction id) of each segment that has a successor, oldest first."""
        files = list_segments(self._directory, self._archive)
        return [(file, following.first_txid - 1) for file, following in itertools.pairwise(files)]

    # -- compress ----------------------------------------------------------------------------
    def compress(self, before_txid: int | None = None) -> list[Outcome]:
        """Compresses sealed segments wholly below `before_txid` (None: all), in place."""
        return self._change(
            before_txid,
            lambda file: file.suffix == ".sealed",
            lambda file: file.path.with_suffix(".zst"),
            self._write_compressed,
            "compressed",
        )

    def _write_compressed(self, file: SegmentFile, target: Path) -> None:
        with replaced_durably(target, target.with_name(target.name + ASIDE_SUFFIX)) as aside:
            self._write_aside(file, aside)

    def _write_aside(self, file: SegmentFile, aside: Path) -> None:
        segment = EnvironmentSegment(file)
        try:
            write_container(
                aside,
                file.first_txid,
                segment.last_txid(),
                every_block(segment),
                segment.entries(),
                level=self._level,
            )
        finally:
            segment.close()
        fault_point("compress.written")
        written = Container(aside)
        try:
            written.verify()
        finally:
            written.close()

    # -- archive -----------------------------------------------------------------------------
    def archive(self, before_txid: int | None = None) -> list[Outcome]:
        """Moves sealed or compressed segments wholly below `before_txid` (None: all).

        Raises:
            StorageError: there is no archive directory.
        """
        archive = self._archive
        if archive is None:
            raise StorageError(
                f"{self._directory} has no archive directory: name one", str(self._directory)
            )
        make_directory(archive)
        with self._exclusively():
            holds_segments = any(file.archived for file in all_files(self._directory, archive))
            take_archive(self._directory, archive, holds_segments)
        return self._change(
            before_txid,
            lambda file: not file.archived and file.suffix != ".live",
            lambda file: archive / file.path.name,
            lambda file, target: copy_durably(file.path, target),
            "archived",
        )

    def _change(
        self,
        before_txid: int | None,
        wanted: Callable[[SegmentFile], bool],
        target_of: Callable[[SegmentFile], Path],
        write: Callable[[SegmentFile, Path], None],
        word: str,
    ) -> list[Outcome]:
        """Writes the new form of each wanted segment, then unlinks the old one."""
        outcomes: list[Outcome] = []
        with self._exclusively():
            for file, last_txid in self.closed_segments():
                if not wanted(file) or (before_txid is not None and last_txid >= before_txid):
                    continue
                target = target_of(file)
                note = self._replace(file, target, write)
                done = not note
                outcomes.append(
                    Outcome(
                        file.first_txid,
                        last_txid,
                        target if done else file.path,
                        done,
                        note or word,
                    )
                )
        return outcomes

    def _replace(
        self, file: SegmentFile, target: Path, write: Callable[[SegmentFile, Path], None]
    ) -> str:
        """Returns why it was not done, or nothing."""
        try:
            fd = shared_lock(file.path)
        except FileNotFoundError:
            return "gone"
        try:
            if not try_exclusive(fd):
                return _in_use(file.path)
            make_shared(fd)
            try:
                write(file, target)
            except OSError as error:
                raise StorageError(
                    f"{target} cannot be written: {error.strerror or error}; {file.path} stays as "
                    "it is",
                    str(target),
                ) from error
            fault_point("replace.renamed")
            if not try_exclusive(fd):
                # A reader came meanwhile. Both forms are whole; keep the one that is in use.
                os.unlink(target)
                sync_directory(target.parent)
                return _in_use(file.path)
            os.unlink(file.path)
            fault_point("replace.unlinked")
            sync_directory(file.path.parent)
            return ""
        finally:
            os.close(fd)

    # -- remove ------------------------------------------------------------------------------
    def remove(
        self,
        before_txid: int,
        floor: Callable[[], int] | None = None,
        *,
        force: bool = False,
        keep: Callable[[SegmentFile, int], bool] | None = None,
    ) -> list[Outcome]:
        """Removes segments wholly below `before_txid`, oldest first, never leaving a gap.

        Stops at the first one that may not go: the live one, one in use, one at or above the floor
        (None: what the instance persisted) or one that a read has planned (read_holds.py) unless
        forced, one that `keep` wants (asked with its last transaction id). The floor may move back
        meanwhile: each segment is measured by what it is when nothing but the unlink is left to do.
        """
        outcomes: list[Outcome] = []
        with self._exclusively():
            planned = None if force else held_read(self._directory)
            for file, last_txid in self.closed_segments():
                if last_txid >= before_txid or (keep is not None and keep(file, last_txid)):
                    break
                note = ""
                if file.suffix == ".live":
                    note = "not sealed yet"
                elif planned is not None and last_txid >= planned[0]:
                    note = f"{IN_USE}: {planned[1]}"
                else:
                    note = self._unlink_unused(file, None if force else last_txid, floor)
                outcomes.append(
                    Outcome(file.first_txid, last_txid, file.path, not note, note or "removed")
                )
                if note:
                    break
        return outcomes

    def _unlink_unused(
        self, file: SegmentFile, last_txid: int | None, floor: Callable[[], int] | None
    ) -> str:
        """Returns why it was not done, or nothing. `last_txid` None: whatever the floor is."""
        try:
            fd = shared_lock(file.path)
        except FileNotFoundError:
            return "gone"
        try:
            if not try_exclusive(fd):
                return _in_use(file.path)
            released = floor() if floor is not None else read_floor(self._directory)
            if last_txid is not None and last_txid >= released:
                return f"still needed: the instance released ids below {released} only"
            # A crashed change may have left it in two forms: all go, the one in use last, since a
            # form that came back would be a segment behind a gap.
            for other in all_files(self._directory, self._archive):
                if other.first_txid == file.first_txid and other.path != file.path:
                    os.unlink(other.path)
                    sync_directory(other.path.parent)
            os.unlink(file.path)
            fault_point("remove.unlinked")
            sync_directory(file.path.parent)
            return ""
        finally:
            os.close(fd)

    # -- recovery ----------------------------------------------------------------------------
    def tidy(self) -> None:
        """Clears what a crash left behind. Only for the owner of the directory, at its start.

        Raises:
            StorageError: a file cannot be removed.
        """
        with self._exclusively():
            if self._archive is not None:
                check_archive(self._directory, self._archive)
            for folder in (self._directory, self._archive):
                if folder is None or not folder.is_dir():
                    continue
                for path in list(folder.iterdir()):
                    name = path.name
                    aside = name.endswith(ASIDE_SUFFIX)
                    spare = folder == self._directory and name.startswith(SPARE_STEM + "-")
                    segment = path.with_name(name.removesuffix("-lock"))
                    orphan = name.endswith(".live-lock") and not segment.exists()
                    if aside or spare or orphan:
                        path.unlink()
            self._settle_duplicates()

    def _settle_duplicates(self) -> None:
        files = all_files(self._directory, self._archive)
        for older, newer in itertools.pairwise(files):
            if older.first_txid != newer.first_txid:
                continue
            # Sorted: the local before the archived, the sealed before the compressed.
            if self._is_whole(older, newer):
                older.path.unlink()
                sync_directory(older.path.parent)
            else:
                newer.path.unlink()
                sync_directory(newer.path.parent)
                self._settle_duplicates()
                return

    @staticmethod
    def _is_whole(older: SegmentFile, newer: SegmentFile) -> bool:
        if older.suffix == newer.suffix:
            return filecmp.cmp(older.path, newer.path, shallow=False)
        if newer.suffix != ".zst":
            return False
        try:
            container = Container(newer.path)
        except CorruptRecord:
            return False
        try:
            container.verify()
        except CorruptRecord:
            return False
        finally:
            container.close()
        return True


def _in_use(path: Path) -> str:
    pids = holders_of(path)
    named = f" (process {', '.join(map(str, pids))})" if pids else ""
    return IN_USE + named


def every_block(segment: OpenSegment) -> Iterator[tuple[int, bytes]]:
    """All blocks of a segment; no read transaction outlives a step."""
    at = segment.first_txid
    last_txid = segment.last_txid()
    while at <= last_txid:
        blocks = segment.blocks(at, BLOCKS_READ_BYTES)
        for key, block in blocks:
            if key >= at:
                yield key, block
        at = block_last_txid(blocks[-1][1], segment.file.path) + 1
