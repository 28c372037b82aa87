"""The kept log of an instance of another host, as its administrator's interface serves it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from raylay.services.errors import FabricError
from raylay.services.telemetry.kept_log import LogLine

OVERLAP_US = 2_000_000
"""Time before the last line from which the next look asks again: processes write side by side, so
an earlier line may come later."""


class RemoteLog:
    """The kept log of one instance, read again and again, like `KeptLog`.

    Args:
        ask: returns the answer to a query of `/raylay/log.json`.
        since_us: time from which lines are read, in microseconds since 1970.
        level: lowest level that is read; empty: any.
        count: number of the last lines with which the first look begins; None: all.

    Attributes:
        damaged: number of lines that cannot be read, in the last answer.
    """

    def __init__(
        self,
        ask: Callable[[str], Any],
        since_us: int = 0,
        level: str = "",
        count: int | None = None,
    ) -> None:
        self._ask = ask
        self._since_us = since_us
        self._first_us = 0
        self._level = level
        self._count = count
        self._seen: dict[str, int] = {}
        """Lines of the time that is asked for again, each with its time."""
        self.damaged = 0

    def look(self) -> Iterator[LogLine]:
        """Yields the lines that came since the last look.

        Raises:
            FabricError: the interface does not answer, or refuses.
        """
        newest_us = from_us = self._since_us
        more = ""
        if self._count is not None:
            more, self._count = f"&latest=1&limit={self._count}", None
        while True:
            found = self._page(f"since_us={from_us}{more}")
            lines = found["lines"]
            if more and lines:
                # Earlier lines are not wanted, and are not asked for again.
                self._first_us = lines[0]["time_us"]
            more = ""
            for line in lines:
                text = json.dumps(line)
                if text not in self._seen:
                    self._seen[text] = line["time_us"]
                    yield line
            last_us = max((line["time_us"] for line in lines), default=from_us)
            newest_us = max(newest_us, last_us)
            if not found["more"] or last_us == from_us:
                break
            from_us = last_us
        self._since_us = max(self._first_us, self._since_us, newest_us - OVERLAP_US)
        self._seen = {
            text: time_us for text, time_us in self._seen.items() if time_us >= self._since_us
        }

    def _page(self, query: str) -> dict[str, Any]:
        level = f"&level={self._level}" if self._level else ""
        found = self._ask(query + level)
        if not isinstance(found, dict) or not isinstance(found.get("lines"), list):
            raise FabricError("the interface tells no log: its release may be an earlier one")
        self.damaged = int(found.get("damaged") or 0)
        return found
