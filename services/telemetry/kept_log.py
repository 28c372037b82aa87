"""The log that every instance of a fabric keeps on its disk, as `raylay logs` and `raylay events`
read it: files `FABRIC/log/INSTANCE/PROCESS-NUMBER.log` of JSON lines, of the instance and of the
processes beside it.

The files are read while they are written, and after their process was killed: then its last line
may be torn. The process that follows goes on behind it.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from raylay.services.messages.plain_text import plain, plain_value
from raylay.services.telemetry.log_options import LEVELS

KEPT_NAMES = "%p-%n.log"
LINE_BYTES_MAX = 1024 * 1024
"""Limit on the bytes of a line; a longer one is damaged."""
LINE_KEYS = ("time", "level", "process", "logger", "code", "event")
UNTOLD_EVENTS = frozenset(("diagnostics", "log_lines_lost"))
"""Lines of an instance that are no events of it."""
_NAME = re.compile(r"(.+)-(\d{5,})\.log")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
LogLine = dict[str, Any]
"""The fields of a line, and `time_us`: its time in microseconds since 1970."""


def kept_log_directory(directory: str | PurePath, instance: str) -> Path:
    """Returns the directory of an instance's kept log.

    Args:
        directory: the fabric's.
    """
    return Path(directory) / "log" / (_UNSAFE.sub("_", instance) or "_")


class KeptLog:
    """The kept log of one instance, read again and again: each look yields the lines behind those
    of the last one.

    Args:
        directory: see `kept_log_directory`; it may not be there.
        process: the process whose lines are read; empty: all.
        since_us: time in microseconds since 1970; files that end earlier are not read.

    Attributes:
        damaged: number of lines that cannot be read, such as the torn last line of a process that
            was killed.
    """

    def __init__(self, directory: Path, process: str = "", since_us: int = 0) -> None:
        self._directory = directory
        self._since_ns = since_us * 1_000
        self._process = _UNSAFE.sub("_", process)
        self._places: dict[str, tuple[int, int]] = {}
        """Number of the file, and position in it behind the last line read, by process."""
        self.damaged = 0

    def look(self) -> Iterator[LogLine]:
        """Yields the lines that came since the last look, in the order of their times.

        Raises:
            OSError: the directory or a file cannot be read. A directory that is not there has no
                lines.
        """
        return heapq.merge(
            *(self._lines(process, numbers) for process, numbers in sorted(self._files().items())),
            key=lambda line: line["time_us"],
        )

    def _files(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return {}
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None and self._process in ("", match[1]):
                found.setdefault(match[1], []).append(int(match[2]))
        return {process: sorted(numbers) for process, numbers in found.items()}

    def _lines(self, process: str, numbers: list[int]) -> Iterator[LogLine]:
        for number in numbers:
            at, position = self._places.get(process, (-1, 0))
            if number < at:
                continue
            if number > at:
                position = 0
            is_last = number == numbers[-1]
            try:
                with (self._directory / f"{process}-{number:05}.log").open("rb") as file:
                    yield from self._lines_of(file, process, number, position, is_last)
            except FileNotFoundError:
                continue  # The oldest one was removed meanwhile.

    def _lines_of(
        self, file: Any, process: str, number: int, position: int, is_last: bool
    ) -> Iterator[LogLine]:
        status = os.fstat(file.fileno())
        if not is_last and status.st_mtime_ns < self._since_ns:
            return
        if status.st_size < position:
            position = 0  # It was emptied.
        file.seek(position)
        self._places[process] = number, position
        while data := file.readline(LINE_BYTES_MAX):
            if not data.endswith(b"\n"):
                if is_last and len(data) < LINE_BYTES_MAX:
                    return  # It is being written, or torn: the next look tells.
                self.damaged += 1
                while data and not data.endswith(b"\n"):
                    data = file.readline(LINE_BYTES_MAX)
                self._places[process] = number, file.tell()
                continue
            self._places[process] = number, file.tell()
            line = parsed_line(data)
            if line is not None:
                yield line
            elif data.strip():
                self.damaged += 1


def parsed_line(data: bytes) -> LogLine | None:
    """Returns the fields of a line; None: it is damaged."""
    try:
        line = json.loads(data)
        if not isinstance(line, dict):
            return None
        moment = datetime.fromisoformat(line["time"])
        if moment.tzinfo is None or not all(isinstance(line[key], str) for key in LINE_KEYS):
            return None
    except (ValueError, KeyError, TypeError):
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    line["time_us"] = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return line


def is_at_least(line: Mapping[str, Any], level: str) -> bool:
    """Returns whether a line has this level or a higher one. A line of an unknown level has."""
    return LEVELS.get(line["level"], LEVELS[level]) >= LEVELS[level]


def line_text(line: Mapping[str, Any]) -> str:
    """Formats a line as the text format of logs does."""
    front = (plain(line[key]) for key in LINE_KEYS)
    fields = (
        f"{plain(key)}={plain_value(value)}"
        for key, value in line.items()
        if key not in LINE_KEYS and key != "time_us"
    )
    return " ".join((*filter(None, front), *fields))


def kept_events(directory: Path, instance: str) -> Iterator[dict[str, Any]]:
    """Yields the events of an instance in its kept log, oldest first, as `Fabric.events` does, and
    without numbers.

    Args:
        directory: the log's (`kept_log_directory`).

    Raises:
        OSError: the files cannot be read.
    """
    return events_among(KeptLog(directory, instance).look(), instance)


def events_among(lines: Iterable[LogLine], instance: str) -> Iterator[dict[str, Any]]:
    """Yields the events of an instance from lines of its kept log. The log also has lines of the
    processes beside the instance, which are no events."""
    for line in lines:
        if line["process"] != instance or line["logger"] != "instance":
            continue
        if line["event"] in UNTOLD_EVENTS:
            continue
        details = {key: value for key, value in line.items() if key not in LINE_KEYS}
        yield {**details, "instance": instance, "event": line["event"]}
