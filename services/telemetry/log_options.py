"""Options of logs: levels, targets and what goes to which. Pure.

One format passes through YAML, Python, AMPSConfig and the processes that a process starts: the
options of a target, and under `also` those of further ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from raylay.services.errors import ConfigurationError
from raylay.services.telemetry.catalogue import code_of
from raylay.services.telemetry.file_names import checked_mask

DEVELOPER = 10
TRACE = 14
STATS = 17
INFO = 20
WARNING = 30
ERROR = 40
CRITICAL = 50
EMERGENCY = 60
NONE = 100

LEVELS: Mapping[str, int] = {
    "developer": DEVELOPER,
    "trace": TRACE,
    "stats": STATS,
    "info": INFO,
    "warning": WARNING,
    "error": ERROR,
    "critical": CRITICAL,
    "emergency": EMERGENCY,
    "none": NONE,
}
LEVEL_NAMES: Mapping[int, str] = {value: name for name, value in LEVELS.items()}
TARGETS = ("stdout", "stderr", "file", "gzip", "syslog", "none")
FILE_TARGETS = ("file", "gzip")
FORMATS = ("text", "json")
FACILITIES: Mapping[str, int] = {
    "LOG_USER": 1,
    **{f"LOG_LOCAL{number}": 16 + number for number in range(8)},
}
SYSLOG_OPTIONS = (
    "LOG_CONS",
    "LOG_NDELAY",
    "LOG_NOWAIT",
    "LOG_ODELAY",
    "LOG_PERROR",
    "LOG_PID",
)
SYSLOG_SOCKET = "/dev/log"
ROTATION_BYTES_DEFAULT = 64 * 1024 * 1024
VARIABLE = "RAYLAY_LOGS"
"""The environment variable with the options of a process that nothing else configures, as JSON."""
_CATEGORY = re.compile(r"[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class LogTarget:
    """One place to which a process logs, and the events that go there.

    Attributes:
        level: events of this level and above go there: `developer`, `trace`, `stats`, `info`,
            `warning`, `error`, `critical`, `emergency`; `none`: none by their level.
        target: `stdout`, `stderr`, `file`, `gzip` (a compressed file), `syslog`, `none`.
        directory: directory of a file; in a fabric's settings below the fabric's directory.
        format: `text`: time, level, process, logger, code, event, key=value …; `json`: one object a
            line.
        rotation_bytes: most bytes of one file, before compression; then the next one begins. 0:
            files grow for ever.
        kept_bytes: most bytes of all files of a process name; the oldest are removed. 0: none is
            removed. None: four times `rotation_bytes`.
        file_name: mask of the file's name (`services/telemetry/file_names.py`); empty:
            `PROCESS-PID.log`.
        levels: further levels whose events go there.
        include: events that go there whatever their level: codes (`21-0002`), categories (`21`),
            regular expressions over codes (`21-.*`) or names of events.
        exclude: events that do not go there, whatever else says so; written as for `include`.
        ident: the name in lines of the syslog; empty: the process's.
        options: options of the syslog: `LOG_CONS`, `LOG_NDELAY`, `LOG_NOWAIT`, `LOG_ODELAY`,
            `LOG_PERROR`, `LOG_PID`.
        facility: facility of the syslog: `LOG_USER`, `LOG_LOCAL0` to `LOG_LOCAL7`.
        socket: datagram socket of the syslog.
        in_background: whether a thread of its own writes the files, so that a disk that hangs, or a
            directory that cannot be written, holds up nothing.
    """

    level: str = "info"
    target: str = "stderr"
    directory: str = ""
    format: str = "text"
    rotation_bytes: int = ROTATION_BYTES_DEFAULT
    kept_bytes: int | None = None
    file_name: str = ""
    levels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ident: str = ""
    options: tuple[str, ...] = ()
    facility: str = "LOG_USER"
    socket: str = SYSLOG_SOCKET
    in_background: bool = False

    def __post_init__(self) -> None:
        for name, values, known in (
            ("level", (self.level, *self.levels), tuple(LEVELS)),
            ("target", (self.target,), TARGETS),
            ("format", (self.format,), FORMATS),
            ("syslog option", self.options, SYSLOG_OPTIONS),
            ("syslog facility", (self.facility,), tuple(FACILITIES)),
        ):
            for value in values:
                if value not in known:
                    raise ConfigurationError(
                        f"log {name} {value!r} is unknown: choose from {', '.join(known)}"
                    )
        if self.target in FILE_TARGETS and not self.directory:
            raise ConfigurationError(
                f"the log target is `{self.target}`, which needs a directory: give it"
            )
        if self.rotation_bytes < 0 or (self.kept_bytes or 0) < 0:
            raise ConfigurationError("a log's rotation and kept bytes are at least 0")
        if self.file_name:
            checked_mask(self.file_name)
        for pattern in (*self.include, *self.exclude):
            _compiled(pattern)

    @property
    def files_bytes_max(self) -> int:
        """Returns the most bytes of all files of a process name; 0: nothing is removed."""
        return 4 * self.rotation_bytes if self.kept_bytes is None else self.kept_bytes


@dataclass(frozen=True, slots=True)
class LogOptions(LogTarget):
    """The targets of a process's logs: the first one, and `also` the others."""

    also: tuple[LogTarget, ...] = ()

    @property
    def targets(self) -> tuple[LogTarget, ...]:
        return (self, *self.also)


def options_of(targets: Sequence[LogTarget]) -> LogOptions:
    """Returns the options of these targets; without any nothing is logged."""
    if not targets:
        return LogOptions(target="none")
    first = {name: getattr(targets[0], name) for name in LogTarget.__dataclass_fields__}
    return LogOptions(**first, also=tuple(targets[1:]))


class EventFilter:
    """Says which events go to a target, by their level and code."""

    __slots__ = ("_exclude", "_include", "_levels", "_lowest", "lowest")

    def __init__(self, target: LogTarget) -> None:
        self._lowest = LEVELS[target.level]
        self._levels = frozenset(LEVELS[name] for name in target.levels) - {NONE}
        self._include = [_compiled(each) for each in target.include]
        self._exclude = [_compiled(each) for each in target.exclude]
        self.lowest = (
            NONE
            if target.target == "none"
            else DEVELOPER
            if self._include
            else min((self._lowest, *self._levels))
        )
        """Level below which no event goes to the target."""

    def takes(self, level: int, event: str) -> bool:
        """Returns whether an event goes there. An exclusion wins."""
        if self._matches(self._exclude, event):
            return False
        if level >= self._lowest or level in self._levels:
            return True
        return self._matches(self._include, event)

    def excludes(self, event: str) -> bool:
        return self._matches(self._exclude, event)

    @staticmethod
    def _matches(patterns: list[re.Pattern[str]], event: str) -> bool:
        code = code_of(event)
        return any(each.fullmatch(code) or each.fullmatch(event) for each in patterns)


def _compiled(text: str) -> re.Pattern[str]:
    if not text:
        raise ConfigurationError("an empty code of a log target means nothing: leave it out")
    if _CATEGORY.fullmatch(text):
        text = f"{text}-.*"
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ConfigurationError(
            f"{text!r} is neither a code such as 21-0002, a category such as 21 nor a regular "
            f"expression over codes: {error}"
        ) from None


def from_environment(environment: Mapping[str, str] | None = None) -> LogOptions:
    """Returns the options that the variable `RAYLAY_LOGS` gives: JSON of one target, with further
    ones under `also`, or of a list of targets. Without it: level `info`, to stderr.

    Raises:
        ConfigurationError: the variable's value is wrong.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    if not text:
        return LogOptions()
    try:
        value = msgspec.json.decode(text)
        for key in _keys(value):
            if key not in LogOptions.__dataclass_fields__:
                raise ConfigurationError(f"{key} is no option of a target")
        if isinstance(value, list):
            return options_of(msgspec.convert(value, list[LogTarget]))
        return msgspec.convert(value, LogOptions)
    except (msgspec.DecodeError, ConfigurationError) as error:
        raise ConfigurationError(
            f"{VARIABLE}: {error}: give the options of a log target as JSON, or a list of them"
        ) from None


def _keys(value: object) -> Iterator[str]:
    """Yields the keys of a target, of those in a list, and of those under `also`."""
    if isinstance(value, list):
        for each in value:
            yield from _keys(each)
    elif isinstance(value, dict):
        yield from value
        yield from _keys(value.get("also"))


def to_environment(options: LogOptions) -> dict[str, str]:
    """Returns the variable that gives these options, for processes that this one starts."""
    return {VARIABLE: msgspec.json.encode(options).decode()}
