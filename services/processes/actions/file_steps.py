"""Compression and removal of files by actions, and the use of file systems.

A pattern may match anything that a person writes into a configuration, so what is an instance's own
is refused: files of a data directory, journals, stores. Files that any process has open, links,
directories and all that is no regular file are passed over. Nothing is searched recursively.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from raylay.services.errors import ConfigurationError, StorageError
from raylay.storage.files import COMPRESSED_SUFFIX, compress_durably

MATCHES_MAX = 100_000
"""Most files that one step looks at."""
OWN_SUFFIXES = (
    *(".journal", ".live", ".sealed", ".lmdb", ".mdb", ".sock", ".aside"),
    *(".db", ".db-wal", ".db-shm", ".db-journal"),
)
"""Endings of files that hold messages or state of an instance, wherever they lie."""
OWN_NAME = re.compile(
    r"journal-[0-9a-f]{16}\..+|front-(?:\d+|end)|fabric\.json|(?:up\.|maintenance\.)?lock|removable"
)
"""Names of an instance's files whose endings are not enough to know them: segments (compressed or
damaged ones included), the front log, the record of a fabric, and locks."""
MARKS = ("instance.json", "archive.json", "archive-id.json")
"""Files that mark a directory as an instance's, or an archive of journals."""
LOG = re.compile(r".+\.log(\.\d+)*(\.gz)?")
"""Names of log files, which may be treated in a data directory too."""


class FileChoice(NamedTuple):
    """The files that a step treats.

    Attributes:
        pattern: pattern of paths, as a shell reads it.
        age_s: seconds since the last change below which a file is left; 0: any age.
        keep: number of the newest files that are left.
        count_max: most files that are treated; None: any number.
    """

    pattern: str
    age_s: float = 0.0
    keep: int = 0
    count_max: int | None = None


class FileStepOutcome(NamedTuple):
    """The result of a step.

    Attributes:
        done: number of files that were treated.
        open, own: number of files that were left because a process has them open, or because they
            are an instance's own.
    """

    done: int
    open: int
    own: int

    def __str__(self) -> str:
        left = [(self.open, "in use"), (self.own, "an instance's own")]
        told = "; ".join(f"{count:,} left, {why}" for count, why in left if count)
        return f"{self.done:,} files" + (f"; {told}" if told else "")


class FileSteps:
    """See the file's docstring. Methods block, and may be called from any thread.

    Args:
        directory: data directory of the instance; relative patterns begin there.
        own_directories: further directories with files of the instance.
    """

    def __init__(self, directory: Path, own_directories: Iterable[Path] = ()) -> None:
        self._directory = directory
        self._own = [Path(os.path.realpath(each)) for each in (directory, *own_directories)]

    def remove(self, choice: FileChoice) -> FileStepOutcome:
        """Removes files.

        Raises:
            ConfigurationError: the pattern cannot be used, or matches only files of an instance.
            StorageError: a file cannot be removed; the text names the file.
        """
        files, outcome = self._chosen(choice)
        done = 0
        for path in files:
            try:
                path.unlink()
            except FileNotFoundError:
                continue  # another process removed it
            except OSError as error:
                raise StorageError(
                    f"{path} cannot be removed: {error.strerror or error}; {done:,} were", str(path)
                ) from None
            done += 1
        return outcome._replace(done=done)

    def compress(self, choice: FileChoice) -> FileStepOutcome:
        """Replaces files by compressed ones, whose names end in `.gz`. Compressed files are passed
        over.

        Raises:
            ConfigurationError: the pattern cannot be used, or matches only files of an instance.
            StorageError: a file cannot be compressed and is left as it was; the text names it.
        """
        files, outcome = self._chosen(choice, compressed=False)
        done = 0
        for path in files:
            try:
                done += compress_durably(path)
            except OSError as error:
                raise StorageError(
                    f"{path} cannot be compressed: {error.strerror or error}; {done:,} were",
                    str(path),
                ) from None
        return outcome._replace(done=done)

    def _chosen(
        self, choice: FileChoice, *, compressed: bool = True
    ) -> tuple[list[Path], FileStepOutcome]:
        pattern = choice.pattern
        if not pattern.strip() or "\0" in pattern:
            raise ConfigurationError("the pattern is empty: give one such as /var/log/app/*.log")
        if "**" in pattern:
            raise ConfigurationError(
                f"the pattern {pattern!r} has `**`: directories are not searched; give a pattern "
                "for each of them"
            )
        found: list[tuple[float, Path]] = []
        own = 0
        for text in glob.iglob(os.path.join(self._directory, pattern)):
            path = Path(text)
            state = _regular(path)
            if state is None or (not compressed and path.suffix == COMPRESSED_SUFFIX):
                continue
            if self._is_own(path):
                own += 1
                continue
            found.append((state.st_mtime, path))
            if len(found) > MATCHES_MAX:
                raise ConfigurationError(
                    f"the pattern {pattern!r} matches more than {MATCHES_MAX:,} files: narrow it"
                )
        if own and not found:
            raise ConfigurationError(
                f"the pattern {pattern!r} matches {own:,} files, all of them an instance's own: "
                "they are left. Journals have actions of their own"
            )
        found.sort(key=lambda each: (-each[0], each[1]))
        before_s = time.time() - choice.age_s
        old = [path for changed_s, path in found[choice.keep :] if changed_s <= before_s]
        old.reverse()
        in_use = open_files() if old else frozenset()
        free = [path for path in old if _identity(path) not in in_use]
        chosen = free if choice.count_max is None else free[: choice.count_max]
        return chosen, FileStepOutcome(0, len(old) - len(free), own)

    def _is_own(self, path: Path) -> bool:
        """Returns whether a file belongs to an instance, of this fabric or of another one."""
        if path.name.removesuffix("-lock").endswith(OWN_SUFFIXES) or path.name in MARKS:
            return True
        if OWN_NAME.fullmatch(path.name):
            return True
        directory = Path(os.path.realpath(path.parent))
        places = (directory, *directory.parents)
        if any(own in places for own in self._own[1:]):
            return True
        is_data = self._own[0] in places or any(
            (place / mark).exists() for place in places[:3] for mark in MARKS
        )
        return is_data and LOG.fullmatch(path.name) is None


def _regular(path: Path) -> os.stat_result | None:
    """Returns the state of a regular file; None: it is a link, a directory, or gone."""
    with suppress(OSError):
        state = path.lstat()
        if stat.S_ISREG(state.st_mode):
            return state
    return None


def _identity(path: Path) -> tuple[int, int]:
    try:
        state = path.lstat()
    except OSError:
        return 0, 0
    return state.st_dev, state.st_ino


def open_files() -> frozenset[tuple[int, int]]:
    """Returns device and number of each file that a process of this host has open, as far as this
    user may see that."""
    found: set[tuple[int, int]] = set()
    for process in glob.iglob("/proc/[0-9]*/fd"):
        with suppress(OSError), os.scandir(process) as entries:
            for entry in entries:
                with suppress(OSError):
                    state = os.stat(entry.path)
                    if stat.S_ISREG(state.st_mode):
                        found.add((state.st_dev, state.st_ino))
    return frozenset(found)


def used_percent(path: str) -> float:
    """Returns the share of a file system that is in use, as `df` shows it.

    Raises:
        StorageError: there is no such path.
    """
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise StorageError(
            f"the file system of {path} cannot be read: {error.strerror or error}", path
        ) from None
    used = found.f_blocks - found.f_bfree
    return 100 * used / max(1, used + found.f_bavail)
