"""Structured logs: one line for each event, with fields instead of prose.

logger = logs.get("instance") logger.event("link_connected", destination="London-1")

2026-01-02T03:04:05.123456Z info Chicago-1 instance 21-0002 link_connected destination=London-1

The code is that of the event in the catalogue (`raylay error 21-0002`).

A process sets the targets of its events once (`configure`); until then warnings and errors go to
stderr. Each line is one write, so lines of threads and processes do not mix. Logging never raises
and never waits: a line that a target does not take is counted (`status`, `lost_lines`), and the
next line that the target takes follows one that says how many are missing. Nothing is logged for
each message.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raylay.services.messages.plain_text import json_line, plain, plain_value
from raylay.services.telemetry.catalogue import BY_EVENT, code_of
from raylay.services.telemetry.log_options import (
    CRITICAL,
    DEVELOPER,
    EMERGENCY,
    ERROR,
    INFO,
    LEVEL_NAMES,
    LEVELS,
    NONE,
    WARNING,
    EventFilter,
    LogOptions,
    LogTarget,
    from_environment,
    to_environment,
)
from raylay.services.telemetry.log_targets import BackgroundPlace, LogPlace, LossNote, place_of

__all__ = [
    "LogOptions",
    "LogTarget",
    "Logger",
    "close",
    "configure",
    "from_environment",
    "get",
    "rotate",
    "status",
    "to_environment",
]

LINE_FIELDS = ("time", "level", "process", "logger", "code", "event")
_CHOSEN_MAX = 4_096


class _TargetWriter:
    """One target: the filter and the format of its events, and the number of lost lines."""

    def __init__(self, options: LogTarget, place: LogPlace, note: LossNote) -> None:
        self._place = place
        self._note = note
        self._lock = threading.Lock()
        self.format = options.format
        self.filter = EventFilter(options)
        self.options = options
        self._lost = 0
        """Lines lost since the target was configured."""
        self._lost_now = 0
        """Lines lost since the target last took one."""
        self._failure = ""

    @property
    def lost(self) -> int:
        """Returns the number of lines lost since the target was configured."""
        own = self._place.lost if isinstance(self._place, BackgroundPlace) else 0
        return self._lost + own

    @property
    def failure(self) -> str:
        """Returns why the last line was lost; empty: it was taken."""
        own = self._place.failure if isinstance(self._place, BackgroundPlace) else ""
        return self._failure or own

    def write(self, level: int, line: bytes) -> None:
        """Writes a line, or counts it."""
        with self._lock:
            lines = [(level, line)]
            if self._lost_now and not self.filter.excludes("log_lines_lost"):
                lines.insert(0, self._note(self._lost_now, self._failure))
            try:
                taken = self._place.write(lines)
            except (OSError, ValueError) as error:
                self._failure = str(error)
                self._lost += 1
                self._lost_now += 1
                return
            if taken == len(lines):
                self._failure = ""
                self._lost_now = 0
            else:  # the note alone
                self._lost += 1
                self._lost_now = 1

    def rotate(self) -> Path | None:
        with self._lock:
            return self._place.rotate()

    def close(self) -> None:
        with self._lock:
            self._place.close()


class _Sink:
    """The targets of all loggers of the process. `configure` replaces it."""

    __slots__ = ("_chosen", "_process", "level", "targets")

    def __init__(self, process_name: str, options: LogOptions, is_child: bool = False) -> None:
        self._process = process_name
        self.targets: list[_TargetWriter] = []
        try:
            for each in options.targets:
                note = _loss_note(process_name, each)
                place = place_of(each, process_name, is_child, note)
                if place is not None:
                    self.targets.append(_TargetWriter(each, place, note))
        except Exception:
            self.close()
            raise
        self.level = min((each.filter.lowest for each in self.targets), default=NONE)
        self._chosen: dict[tuple[int, str], tuple[_TargetWriter, ...]] = {}

    def write(self, level: int, name: str, event: str, fields: Mapping[str, object]) -> None:
        """Formats a line once in each format, and writes it to the targets that take it."""
        chosen = self._chosen.get((level, event))
        if chosen is None:
            chosen = tuple(each for each in self.targets if each.filter.takes(level, event))
            if len(self._chosen) < _CHOSEN_MAX:
                self._chosen[level, event] = chosen
        lines: dict[str, bytes] = {}
        for target in chosen:
            line = lines.get(target.format)
            if line is None:
                line = _line(target.format, self._process, level, name, event, fields)
                lines[target.format] = line
            target.write(level, line)

    def close(self) -> None:
        for each in self.targets:
            each.close()


def _loss_note(process: str, target: LogTarget) -> LossNote:
    def note(lost: int, why: str) -> tuple[int, bytes]:
        fields = {"lines": lost, "target": target.target, "text": why}
        return WARNING, _line(target.format, process, WARNING, "log", "log_lines_lost", fields)

    return note


def _line(
    format: str, process: str, level: int, name: str, event: str, fields: Mapping[str, object]
) -> bytes:
    seconds, rest_ns = divmod(time.time_ns(), 1_000_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    stamp = f"{stamp}.{rest_ns // 1000:06d}Z"
    if format == "json":
        line = json_line(
            {
                "time": stamp,
                "level": LEVEL_NAMES[level],
                "process": process,
                "logger": name,
                "code": code_of(event),
                "event": event,
                **{_free(key): value for key, value in fields.items()},
            },
            default=str,
            separators=(",", ":"),
        )
    else:
        parts = [stamp, LEVEL_NAMES[level], process, name, code_of(event), plain(event)]
        parts += [f"{plain(key)}={_text(value)}" for key, value in fields.items()]
        line = " ".join(filter(None, parts))
    return line.encode("utf-8", "replace")


def _free(key: str) -> str:
    """Renames a field of an event that has the name of a field of the line."""
    return f"{key}_" if key in LINE_FIELDS else key


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain_value(value.hex() if isinstance(value, bytes) else value)


_sink = _Sink("", LogOptions(level="warning"))


class Logger:
    """Writes the events of one part of the process. Made by `get`; costs a comparison when off."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def debugging(self) -> bool:
        """Returns whether events of the level `developer` are written. Ask this before fields are
        computed for one."""
        return _sink.level <= DEVELOPER

    def debug(self, event: str, /, **fields: object) -> None:
        """Writes an event of the level `developer`: it only helps to find a fault."""
        if _sink.level <= DEVELOPER:
            _write(DEVELOPER, self.name, event, fields)

    def report(self, event: str, /, **fields: object) -> None:
        """Writes an event at the level that the catalogue has for it; `info` without one."""
        entry = BY_EVENT.get(event)
        level = INFO if entry is None else LEVELS[entry.level]
        if _sink.level <= level:
            _write(level, self.name, event, fields)

    def event(self, event: str, /, **fields: object) -> None:
        """Writes an event that an operator may want to know."""
        if _sink.level <= INFO:
            _write(INFO, self.name, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Writes an event after which the work goes on, but not as it should."""
        if _sink.level <= WARNING:
            _write(WARNING, self.name, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Writes an event of a failure that an operator should look at."""
        if _sink.level <= ERROR:
            _write(ERROR, self.name, event, fields)

    def critical(self, event: str, /, **fields: object) -> None:
        """Writes an event that ends the work of a whole part, such as the disk's."""
        if _sink.level <= CRITICAL:
            _write(CRITICAL, self.name, event, fields)

    def emergency(self, event: str, /, **fields: object) -> None:
        """Writes an event after which the process ends."""
        if _sink.level <= EMERGENCY:
            _write(EMERGENCY, self.name, event, fields)


_unwritten = 0


def _write(level: int, name: str, event: str, fields: Mapping[str, object]) -> None:
    global _unwritten
    try:
        _sink.write(level, name, event, fields)
    except (OSError, ValueError):  # a field that cannot be shown
        _unwritten += 1


def lost_lines() -> int:
    """Returns how many lines could not be written since the targets were configured."""
    return _unwritten + sum(each.lost for each in _sink.targets)


def get(name: str) -> Logger:
    """Returns the logger of a part, such as `instance`, `link` or `client`."""
    return Logger(name)


def configure(
    process_name: str, options: LogOptions | None = None, *, is_child: bool = False
) -> None:
    """Sets the name and the targets of this process's logs; without options those of
    `from_environment`.

    Args:
        is_child: whether this is a process beside an instance: its files have its name in theirs.

    Raises:
        ConfigurationError: an option is wrong or the directory cannot be written.
    """
    global _sink
    made = _Sink(process_name, options or from_environment(), is_child)
    previous, _sink = _sink, made
    previous.close()


def rotate() -> list[Path]:
    """Ends the present files of this process's targets, and returns them. The next line begins
    another file. A file without a line is not ended."""
    ended = (each.rotate() for each in _sink.targets)
    return [each for each in ended if each is not None]


def status() -> list[dict[str, Any]]:
    """Returns for each target `target`, `level`, `lost` (lines that it did not take) and `failure`
    (empty: it took the last line)."""
    return [
        {
            "target": each.options.target,
            "level": each.options.level,
            "lost": each.lost,
            "failure": each.failure,
        }
        for each in _sink.targets
    ]


def close() -> None:
    """Ends the files of this process's logs: a compressed file is whole then. A later line begins
    another file. For the end of a process that `os._exit` ends."""
    _sink.close()


atexit.register(close)
