"""The frames of one connection in order, each taken once the journal look-up that it needs is done.

Pure: `came` and `fetched` return a look-up task. The shell runs the task in a thread and then calls
`fetched`. Other connections proceed meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, LookupTask


class InboundQueue:
    """Frames of one connection that wait for a journal look-up. Invariant: no frame is taken before
    an earlier one.

    Args:
        take: takes a frame, or returns what must be read first; it is then called again with the
            answers. Where the connection is over, it drops the frame.
    """

    __slots__ = ("_answers", "_take", "_waiting", "waiting_bytes")

    def __init__(self, take: Callable[[Any, LookupResult], LookupRequest | None]) -> None:
        self._take = take
        self._answers = LookupResult()
        self._waiting: deque[tuple[Any, int]] = deque()
        """Waiting frames and their sizes in bytes. A look-up is under way for the first one."""
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, what: Any, size_bytes: int = 0) -> LookupTask | None:
        """Takes a frame, or lets it wait. Returns the look-up that is to be run now, if any."""
        if not self._waiting:
            questions = self._take(what, self._answers)
            if not questions:
                if self._answers.decoded is not None:
                    # It was taken whole after all, as a long batch of one part is: what was decoded
                    # of it is no part of what comes next.
                    self._renew()
                return None
            self._wait(what, size_bytes)
            return LookupTask(questions, self._answers)
        self._wait(what, size_bytes)
        return None

    def _wait(self, what: Any, size_bytes: int) -> None:
        self._waiting.append((what, size_bytes))
        self.waiting_bytes += size_bytes

    def fetched(self) -> LookupTask | None:
        """Takes the frame whose look-up is done, and those behind it, until one needs a look-up.
        Returns that look-up, if any."""
        waiting = self._waiting
        while waiting:
            what, size_bytes = waiting.popleft()
            self.waiting_bytes -= size_bytes
            questions = self._take(what, self._answers)
            if questions:
                waiting.appendleft((what, size_bytes))
                self.waiting_bytes += size_bytes
                return LookupTask(questions, self._answers)
            self._renew()
        return None

    def _renew(self) -> None:
        self._answers.close()
        self._answers = LookupResult()

    def clear(self) -> None:
        self._answers.close()
        self._waiting.clear()
        self.waiting_bytes = 0
