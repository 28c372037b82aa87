"""The faults that a drill injects into an instance from within: a link's line, the clock, the disk,
the limits of slow clients.

Each fault ends by itself after the time that the drill asked for, so that a killed drill leaves
nothing broken. Only instances of a fabric that is marked for drills accept faults.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from raylay.services.errors import ConfigurationError
from raylay.services.net.impaired import MODES, OPEN, Impairment
from raylay.services.server.runtime import InstanceRuntime
from raylay.storage.files import write_durably

SECONDS_MAX = 600.0
HOLD_FILE = "drill.json"
HOLD_POLL_S = 0.1
REFUSED = (
    "this fabric is not marked for drills: start it with `drills: allowed` in its settings, or "
    "`raylay up --drills`"
)


class Impairable(Protocol):
    """A link whose line can be broken (`LinkControl`)."""

    def impair(self, state: dict[str, Any], seconds: float) -> None:
        """Sets the state of the line to the destination for a time."""


class FaultInjection:
    """The faults that are injected into one instance now. Owner: the instance's event loop.

    Args:
        links: the links by destination.
        narrow: called with the limits of slow clients' memory and disk in bytes; 0: the configured
            limit.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        links: Mapping[str, Impairable],
        narrow: Callable[[int, int], None],
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._narrow = narrow
        self._narrowed = (0, 0)
        self._lines: dict[str, tuple[Impairment, float]] = {}
        """State of each impaired line and the time of its end by the loop's clock, by
        destination."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._file_bytes_max: tuple[int, int] | None = None

    def inject(self, kind: str, seconds: float, options: dict[str, Any]) -> None:
        """Injects a fault, or prolongs one; 0 seconds end it.

        Args:
            kind: `line` (options: `destination` and the values of an Impairment), `clock`
                (`offset_us`), `disk` or `capacity` (`memory_bytes`, `disk_bytes` of each pool; 0:
                its own).

        Raises:
            ConfigurationError: the fabric is not marked for drills, or there is no such fault.
        """
        if not self._runtime.config.drills:
            raise ConfigurationError(f"{self._runtime.config.name}: {REFUSED}")
        if not 0 <= seconds <= SECONDS_MAX:
            raise ConfigurationError(
                f"a fault lasts 0 to {SECONDS_MAX:.0f} seconds, not {seconds:g}"
            )
        if kind == "line":
            self._line(seconds, dict(options))
        elif kind == "clock":
            self._clock(int(options["offset_us"]) if seconds else 0, seconds)
        elif kind == "disk":
            self._disk(seconds)
        elif kind == "capacity":
            self._capacity(seconds, options)
        else:
            raise ConfigurationError(
                f"no fault is called {kind!r}: there are line, clock, disk and capacity"
            )

    def _end_after(self, name: str, seconds: float, end: Any) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if seconds:
            self._timers[name] = self._runtime.loop.call_later(seconds, end)

    # -- lines -----------------------------------------------------------------------------------
    def _line(self, seconds: float, options: dict[str, Any]) -> None:
        destination = str(options.pop("destination", ""))
        if destination not in self._links:
            raise ConfigurationError(
                f"instance {self._runtime.config.name} has no destination {destination!r}"
            )
        try:
            state = Impairment(**options) if seconds else OPEN
        except TypeError as error:
            raise ConfigurationError(f"a line: {error}") from None
        if state.mode not in MODES:
            raise ConfigurationError(f"a line is one of {', '.join(MODES)}, not {state.mode!r}")
        before, _ = self._lines.get(destination, (OPEN, 0.0))
        if state == OPEN:
            self._lines.pop(destination, None)
        else:
            self._lines[destination] = state, self._runtime.loop.time() + seconds
        if state != before:
            self._runtime.report("drill_line", destination=destination, **asdict(state))
        self._end_after(
            f"line {destination}", seconds, lambda: self._line(0.0, {"destination": destination})
        )
        self.tell_link(destination)

    def tell_link(self, destination: str) -> None:
        state, until_s = self._lines.get(destination, (OPEN, 0.0))
        left_s = max(0.0, until_s - self._runtime.loop.time())
        if self._runtime.config.drills:
            self._links[destination].impair(asdict(state), left_s)

    # -- the clock -------------------------------------------------------------------------------
    def _clock(self, offset_us: int, seconds: float) -> None:
        if offset_us != self._runtime.clock_offset_us:
            self._runtime.clock_offset_us = offset_us
            self._runtime.report("drill_clock", offset_us=offset_us)
        self._end_after("clock", seconds, lambda: self._clock(0, 0.0))

    # -- the disk --------------------------------------------------------------------------------
    def _disk(self, seconds: float) -> None:
        """Keeps the process from making any file longer, as on a full disk."""
        if seconds and self._file_bytes_max is None:
            self._runtime.report("drill_disk", full=True)
            self._file_bytes_max = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._file_bytes_max[1]))
        elif not seconds and self._file_bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._file_bytes_max)
            self._file_bytes_max = None
            self._runtime.report("drill_disk", full=False)
        self._end_after("disk", seconds, lambda: self._disk(0.0))

    # -- slow clients ----------------------------------------------------------------------------
    def _capacity(self, seconds: float, options: Mapping[str, Any]) -> None:
        limits = (0, 0)
        if seconds:
            limits = int(options.get("memory_bytes", 0)), int(options.get("disk_bytes", 0))
            if min(limits) < 0:
                raise ConfigurationError(f"limits are 0 or more bytes, not {min(limits)}")
        if limits != self._narrowed:
            self._narrowed = limits
            self._runtime.report("drill_capacity", memory_bytes=limits[0], disk_bytes=limits[1])
            self._narrow(*limits)
        self._end_after("capacity", seconds, lambda: self._capacity(0.0, {}))


# -- held data directories -----------------------------------------------------------------------
def hold(directory: Path, seconds: float) -> None:
    """Keeps an instance that starts in this data directory from touching it for a time."""
    until_us = time.time_ns() // 1000 + int(seconds * 1e6)
    write_durably(directory / HOLD_FILE, json.dumps({"away_until_us": until_us}).encode())


def release(directory: Path) -> None:
    (directory / HOLD_FILE).unlink(missing_ok=True)


def is_held(directory: Path) -> bool:
    """Returns whether a drill keeps instances from starting in the directory."""
    return (directory / HOLD_FILE).exists()


async def await_release(directory: Path, is_given_up: Callable[[], bool]) -> None:
    """Waits until no drill holds this data directory, its time is over, or the start is given
    up."""
    path = directory / HOLD_FILE
    while path.exists() and not is_given_up():
        try:
            until_us = int(json.loads(path.read_text(encoding="utf-8"))["away_until_us"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            until_us = 0
        if until_us <= time.time_ns() // 1000:
            path.unlink(missing_ok=True)
            return
        await asyncio.sleep(HOLD_POLL_S)
