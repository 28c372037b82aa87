"""Faults that an instance injects into itself for as long as somebody keeps asking for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raylay.services.errors import FabricError

LEASE_S = 5.0
"""Time for which it lasts without being asked for again."""
RENEW_S = 1.0
RETRY_S = 0.2
"""Pause behind an answer that did not come."""
ASK_S = 1.0
"""Time for which an answer is waited for. A request to an instance that does not answer still
reaches it, in order, when it does again."""
PATIENT_ASK_S = 5.0
"""Time to wait for the first and the last answer."""
BEGIN_S_MAX = 15.0


class FaultLease:
    """One thing that is broken inside one instance, asked for again each second until it is over.
    Owner: the step's injector. Lifecycle: `start`, `await_begun`, `last`, `end`, `await_end`.

    Each has a thread of its own, so that an instance which does not answer lets no other one's
    lease lapse, and so that the end is asked for behind everything else.

    Args:
        text: what is broken, for people.
        ask: asks the instance to break it for so many seconds (0: to mend it) and waits that long
            for its answer; raises FabricError where none comes.
        lasts_s: how long it is to last once it is broken everywhere.
    """

    def __init__(self, text: str, ask: Callable[[float, float], None], lasts_s: float) -> None:
        self._text = text
        self._ask = ask
        self._first_s = min(LEASE_S, lasts_s)
        self._until_s: float | None = None
        """Time at which the step ends, by the monotonic clock; None: it has not begun
        everywhere."""
        self._silent_s = 0.0
        self._error: FabricError | None = None
        self._begun = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease: {text}", daemon=True)

    def start(self) -> None:
        """Asks for it at once, and again and again. Does not wait."""
        self._thread.start()

    def await_begun(self) -> None:
        """Returns when the instance has said that it did it.

        Raises:
            FabricError: it did not in time; says why.
        """
        self._begun.wait()
        if self._error is not None:
            raise self._error

    def last(self, left_s: float) -> None:
        """Ends the lease in so many seconds."""
        self._until_s = time.monotonic() + left_s

    def end(self) -> None:
        """Has the instance end the fault. Does not wait."""
        self._over.set()

    def await_end(self) -> list[str]:
        """Waits until the instance has ended the fault, or has not answered. Returns a remark where
        the fault may have ended too early."""
        self._thread.join()
        if self._silent_s <= LEASE_S:
            return []
        return [f"{self._text}: no answer for {self._silent_s:.1f} s, so it may have been mended"]

    def _run(self) -> None:
        try:
            self._error = self._begin()
            self._begun.set()
            if self._error is None:
                self._renew()
        finally:
            # One that cannot be asked mends itself when its lease is over.
            self._asked(0.0, PATIENT_ASK_S)

    def _begin(self) -> FabricError | None:
        """Asks for the fault until somebody breaks it; returns the error where it could not be
        broken."""
        deadline_s = time.monotonic() + BEGIN_S_MAX
        while error := self._asked(self._first_s, PATIENT_ASK_S):
            if time.monotonic() > deadline_s or self._over.wait(RETRY_S):
                return error
        return None

    def _renew(self) -> None:
        wait_s, answered_s = RENEW_S, time.monotonic()
        while not self._over.wait(wait_s):
            left_s = self._first_s
            if self._until_s is not None:
                left_s = min(LEASE_S, self._until_s - time.monotonic())
            if left_s <= 0:
                return
            error = self._asked(left_s, ASK_S)
            wait_s = RETRY_S if error else RENEW_S
            now_s = time.monotonic()
            self._silent_s = max(self._silent_s, now_s - answered_s)
            if not error:
                answered_s = now_s

    def _asked(self, seconds: float, timeout_s: float) -> FabricError | None:
        """Asks once; returns the error where there was no answer."""
        try:
            self._ask(seconds, timeout_s)
        except FabricError as error:
            return error
        return None
