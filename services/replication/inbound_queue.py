"""The frames of one connection in order, each taken when the journal look-up that it needs is done.

Values in, values out: the shell reads what `came` and `fetched` return, in a thread, and calls
`fetched` when that is done. Other connections go on meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, LookupTask


class InboundQueue:
    """One connection's. Invariant: nothing is taken before what came earlier is.

    Args:
        take: takes something, or says what must be read first; then it is asked again, with the
            answers. Where the connection is over it drops it.
    """

    __slots__ = ("_answers", "_take", "_waiting", "waiting_bytes")

    def __init__(self, take: Callable[[Any, LookupResult], LookupRequest | None]) -> None:
        self._take = take
        self._answers = LookupResult()
        self._waiting: deque[tuple[Any, int]] = deque()
        """The first is what a fetch is under way for."""
        self.waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def came(self, what: Any, size_bytes: int = 0) -> LookupTask | None:
        """Takes it, or lets it wait. Returns what is to be read now."""
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
        """Takes what waited for a read that is done, and what came behind. Returns what is to be
        read now."""
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
        """The connection is over."""
        self._answers.close()
        self._waiting.clear()
        self.waiting_bytes = 0
