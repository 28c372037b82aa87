"""Leases of faults that an instance injects into itself: a fault lasts as long as the drill renews
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raylay.services.errors import FabricError

LEASE_S = 5.0
"""Time for which a fault lasts without a renewal."""
RENEW_S = 1.0
RETRY_S = 0.2
"""Pause after a request without an answer."""
ASK_S = 1.0
"""Time to wait for an answer. A request to a stopped instance still reaches it, in order, when it
runs again."""
PATIENT_ASK_S = 5.0
"""Time to wait for the first and the last answer."""
BEGIN_S_MAX = 15.0


class FaultLease:
    """The lease of one fault inside one instance, renewed each second until its end. Owner: the
    step's injector. Lifecycle: `start`, `await_begun`, `last`, `end`, `await_end`.

    Each lease has a thread of its own, so that an instance that does not answer does not let other
    leases expire, and so that the end is requested after everything else.

    Args:
        text: a description of the fault.
        ask: asks the instance to keep the fault for some seconds (0: to heal it) and waits for its
            answer for at most the second argument; raises FabricError where none comes.
        lasts_s: the time that the fault lasts once all instances have it.
    """

    def __init__(self, text: str, ask: Callable[[float, float], None], lasts_s: float) -> None:
        self._text = text
        self._ask = ask
        self._first_s = min(LEASE_S, lasts_s)
        self._until_s: float | None = None
        """Time at which the step ends, on the monotonic clock; None: some instance does not have
        the fault yet."""
        self._silent_s = 0.0
        self._error: FabricError | None = None
        self._begun = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease: {text}", daemon=True)

    def start(self) -> None:
        """Starts to ask for the fault again and again. Does not wait."""
        self._thread.start()

    def await_begun(self) -> None:
        """Waits until the instance has confirmed the fault.

        Raises:
            FabricError: the instance did not confirm it in time; the error says why.
        """
        self._begun.wait()
        if self._error is not None:
            raise self._error

    def last(self, left_s: float) -> None:
        """Ends the lease in `left_s` seconds."""
        self._until_s = time.monotonic() + left_s

    def end(self) -> None:
        """Asks the instance to end the fault. Does not wait."""
        self._over.set()

    def await_end(self) -> list[str]:
        """Waits until the instance has confirmed the end of the fault, or did not answer. Returns a
        remark where the fault may have ended too early."""
        self._thread.join()
        if self._silent_s <= LEASE_S:
            return []
        return [
            (
                f"{self._text}: no answer for {self._silent_s:.1f} s, so the fault may have ended "
                "too early"
            )
        ]

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
        """Asks for the fault until the instance confirms it. Returns the error where it could not
        be injected."""
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
        """Sends one request. Returns the error where no answer came."""
        try:
            self._ask(seconds, timeout_s)
        except FabricError as error:
            return error
        except Exception as error:  # whoever waits for this thread would wait for ever
            return FabricError(f"{self._text}: {error!r}")
        return None
