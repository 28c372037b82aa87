"""The drill reports on this host: listed, and served as pages that can do nothing."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from raylay.services.errors import ConfigurationError

JSON_NAME = "report.json"
PAGE_NAME = "report.html"
REPORTS_MAX = 100
"""Reports that are listed, the newest ones."""
FOLDERS_MAX = 5_000
FILE_BYTES_MAX = 64 * 1024 * 1024
KEPT_MAX = 500


class _DrillReport(msgspec.Struct):
    """The parts of a report that the list shows."""

    drill: str = ""
    fabric: str = ""
    valid: bool = False
    began_us: int = 0
    ended_us: int = 0


@dataclass(frozen=True, slots=True)
class DrillReportFile:
    """A folder with a report.

    Attributes:
        id: its name; a second folder of this name has a number, too.
        changed_ns: time of its last change.
    """

    id: str
    folder: Path
    changed_ns: int


class DrillReports:
    """See the file's docstring. Its methods read files, and may block: call them in a thread, one
    at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, int], dict[str, Any]] = OrderedDict()

    def listed(self, directories: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the newest reports, each as `/raylay/drills.json` has it."""
        return [self._entry(each) for each in found_in(directories)[:REPORTS_MAX]]

    def read(self, directories: Sequence[str], name: str, *, as_json: bool) -> bytes:
        """Returns the page of a report, or its JSON.

        Raises:
            ConfigurationError: there is none, or it cannot be read.
        """
        # What is served is what was found: no name becomes a path.
        found = next((each for each in found_in(directories) if each.id == name), None)
        if found is None:
            raise ConfigurationError(f"no drill report {name[:200]!r} is on this host")
        path = found.folder / (JSON_NAME if as_json else PAGE_NAME)
        try:
            return _read(path)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None

    def _entry(self, each: DrillReportFile) -> dict[str, Any]:
        key = (each.folder, each.changed_ns)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = _entry(each)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return found


def _entry(each: DrillReportFile) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(_read(each.folder / JSON_NAME), type=_DrillReport)
    except (OSError, ValueError, RecursionError) as error:
        return {
            "id": each.id,
            "name": each.id,
            "fabric": "",
            "time_us": each.changed_ns // 1000,
            "seconds": None,
            "verdict": "unreadable",
            "why": str(error)[:200],
            "href": None,
        }
    return {
        "id": each.id,
        "name": told.drill[:200],
        "fabric": told.fabric[:200],
        "time_us": told.began_us,
        "seconds": max(0, told.ended_us - told.began_us) // 1_000_000,
        "verdict": "clean" if told.valid else "bad",
        "why": "",
        "href": f"raylay/drills/{each.id}",
    }


def _read(path: Path) -> bytes:
    """Reads a file, no more of it than `FILE_BYTES_MAX`. A link to elsewhere is not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise OSError(0, f"it is no file, or has more than {FILE_BYTES_MAX:,} bytes")
        return file.read(FILE_BYTES_MAX)


def found_in(directories: Sequence[str]) -> list[DrillReportFile]:
    """Returns the folders with a report, the newest first."""
    found: list[DrillReportFile] = []
    names: set[str] = set()
    for at, directory in enumerate(directories):
        for folder, changed_ns in _folders(Path(directory)):
            name = folder.name if folder.name not in names else f"{folder.name}~{at}"
            names.add(name)
            found.append(DrillReportFile(name, folder, changed_ns))
    return sorted(found, key=lambda each: (-each.changed_ns, each.id))


def _folders(directory: Path) -> Iterator[tuple[Path, int]]:
    try:
        with os.scandir(directory) as entries:
            for at, entry in enumerate(entries):
                if at >= FOLDERS_MAX:
                    return
                if not entry.is_dir(follow_symlinks=False) or not _is_name(entry.name):
                    continue
                folder = Path(entry.path)
                try:
                    status = os.lstat(folder / JSON_NAME)
                except OSError:
                    continue  # no report, or one that is being written
                yield folder, status.st_mtime_ns
    except OSError:
        return  # most hosts have none


def _is_name(name: str) -> bool:
    """Returns whether a folder's name can stand in an address as it is."""
    return (
        len(name) <= 200
        and all((each.isalnum() and each.isascii()) or each in "-_." for each in name)
        and not name.startswith(".")
    )
