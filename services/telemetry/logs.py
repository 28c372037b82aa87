"""Structured logs: one line for each event, with fields instead of prose.

logger = logs.get("instance") logger.event("link_connected", destination="London-1")

2026-01-02T03:04:05.123456Z info Chicago-1 instance 21-0002 link_connected destination=London-1

The code is that of the event in the catalogue (`raylay error 21-0002`).

A process sets the target of its events once (`configure`); until then warnings and errors go to
stderr. Each line is one write, so lines of threads and processes do not mix. Logging never raises:
a line that cannot be written is counted in `lost_lines`. Nothing is logged for each message.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raylay.services.errors import ConfigurationError
from raylay.services.messages.plain_text import json_line, plain, plain_value
from raylay.services.telemetry.bounded_files import BoundedFile
from raylay.services.telemetry.catalogue import code_of

DEBUG = 10
INFO = 20
WARNING = 30
ERROR = 40
OFF = 100

LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "off": OFF}
_WORDS = {value: word for word, value in LEVELS.items()}
TARGETS = ("stderr", "file", "none")
FORMATS = ("text", "json")
LINE_FIELDS = ("time", "level", "process", "logger", "code", "event")
FILE_BYTES_MAX_DEFAULT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The level and target of logs."""

    level: str = "info"
    """`debug`, `info`, `warning`, `error` or `off`."""
    target: str = "stderr"
    """`stderr`, `file` or `none`."""
    directory: str = ""
    """Directory for the target `file`, with one file for each process, `PROCESS-PID.log`."""
    format: str = "text"
    """`text`: time, level, process, logger, code, event, key=value …; `json`: one object a line."""
    file_bytes_max: int = FILE_BYTES_MAX_DEFAULT
    """Most bytes of one file; all files of a process name have at most four times as much."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("level", self.level, tuple(LEVELS)),
            ("target", self.target, TARGETS),
            ("format", self.format, FORMATS),
        ):
            if value not in known:
                raise ConfigurationError(
                    f"log {name} {value!r} is unknown: choose from {', '.join(known)}"
                )
        if self.target == "file" and not self.directory:
            raise ConfigurationError("the log target is `file`, which needs a directory: give it")


class _Sink:
    """The target of all loggers of the process. `configure` replaces it."""

    __slots__ = ("_file", "_json", "_process", "level")

    def __init__(self, process_name: str, options: LogOptions) -> None:
        self._process = process_name
        self._json = options.format == "json"
        self._file: BoundedFile | None = None
        self.level = OFF if options.target == "none" else LEVELS[options.level]
        if options.target == "file":
            self._file = BoundedFile(
                Path(options.directory),
                process_name,
                "log",
                options.file_bytes_max,
                4 * options.file_bytes_max,
            )

    def write(self, level: int, name: str, event: str, fields: Mapping[str, object]) -> None:
        """Formats and writes one line."""
        now_ns = time.time_ns()
        seconds, rest_ns = divmod(now_ns, 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        stamp = f"{stamp}.{rest_ns // 1000:06d}Z"
        if self._json:
            line = json_line(
                {
                    "time": stamp,
                    "level": _WORDS[level],
                    "process": self._process,
                    "logger": name,
                    "code": code_of(event),
                    "event": event,
                    **{_free(key): value for key, value in fields.items()},
                },
                default=str,
                separators=(",", ":"),
            )
        else:
            parts = [stamp, _WORDS[level], self._process, name, code_of(event), plain(event)]
            parts += [f"{plain(key)}={_text(value)}" for key, value in fields.items()]
            line = " ".join(filter(None, parts))
        encoded = (line + "\n").encode("utf-8", "replace")
        if self._file is not None:
            self._file.write(encoded)
        else:
            _write_stderr(encoded)

    def close(self) -> None:
        """Closes the file, if there is one."""
        if self._file is not None:
            self._file.close()


def _free(key: str) -> str:
    """Renames a field of an event that has the name of a field of the line."""
    return f"{key}_" if key in LINE_FIELDS else key


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain_value(value.hex() if isinstance(value, bytes) else value)


def _write_stderr(line: bytes) -> None:
    # Ray and pytest replace sys.stderr by objects of their own: ask it each time. Text goes
    # through the object where it has no descriptor, such as one that captures.
    stream = sys.stderr
    if stream is None:
        return
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        stream.write(line.decode())
        return
    stream.flush()
    os.write(descriptor, line)


_sink = _Sink("", LogOptions(level="warning"))
lost_lines = 0
"""Lines that could not be written since the process began."""


class Logger:
    """Writes the events of one part of the process. Made by `get`; costs a comparison when off."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def debugging(self) -> bool:
        """Returns whether debug events are written. Ask this before fields are computed for one."""
        return _sink.level <= DEBUG

    def event(self, event: str, /, **fields: object) -> None:
        """Writes an event that an operator may want to know."""
        if _sink.level <= INFO:
            _write(INFO, self.name, event, fields)

    def debug(self, event: str, /, **fields: object) -> None:
        """Writes an event that only helps to find a fault."""
        if _sink.level <= DEBUG:
            _write(DEBUG, self.name, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Writes an event after which the work goes on, but not as it should."""
        if _sink.level <= WARNING:
            _write(WARNING, self.name, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Writes an event of a failure that an operator should look at."""
        if _sink.level <= ERROR:
            _write(ERROR, self.name, event, fields)


def _write(level: int, name: str, event: str, fields: Mapping[str, object]) -> None:
    global lost_lines
    try:
        _sink.write(level, name, event, fields)
    except (OSError, ValueError):
        lost_lines += 1


def get(name: str) -> Logger:
    """Returns the logger of a part, such as `instance`, `link` or `client`."""
    return Logger(name)


def configure(process_name: str, options: LogOptions | None = None) -> None:
    """Sets the name and the target of this process's logs; without options those of
    `from_environment`.

    Raises:
        ConfigurationError: an option is wrong or the directory cannot be written.
    """
    global _sink
    made = _Sink(process_name, options or from_environment())
    previous, _sink = _sink, made
    previous.close()


def from_environment(environment: Mapping[str, str] | None = None) -> LogOptions:
    """Returns the options that `RAYLAY_LOG_LEVEL`, `_TARGET`, `_DIRECTORY` and `_FORMAT` give.

    Raises:
        ConfigurationError: a variable has an unknown value.
    """
    values = os.environ if environment is None else environment
    return LogOptions(
        level=values.get("RAYLAY_LOG_LEVEL", "info"),
        target=values.get("RAYLAY_LOG_TARGET", "stderr"),
        directory=values.get("RAYLAY_LOG_DIRECTORY", ""),
        format=values.get("RAYLAY_LOG_FORMAT", "text"),
    )


def to_environment(options: LogOptions) -> dict[str, str]:
    """Returns the variables that give these options, for processes that this one starts."""
    return {
        "RAYLAY_LOG_LEVEL": options.level,
        "RAYLAY_LOG_TARGET": options.target,
        "RAYLAY_LOG_DIRECTORY": options.directory,
        "RAYLAY_LOG_FORMAT": options.format,
    }
