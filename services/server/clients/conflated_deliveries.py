"""The timer of conflated subscriptions: gives what is due at the end of each key's interval
(subscriptions/conflated_subscriptions.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from raylay.services.plugins.filters import conflated_subscriptions
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.subscriptions.delivery import Given
from raylay.services.subscriptions.follow_terms import FollowKind
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription

if TYPE_CHECKING:
    # Most instances have no conflated subscriptions.
    from raylay.services.subscriptions.conflated_subscriptions import ConflatedSubscriptions

TURN_S = 0.002
"""Time after which a turn of the loop gives no more; the next turn gives the rest."""


class ConflatedDeliveries:
    """The conflated subscriptions of an instance, with their timer. Owner: the instance's event
    loop.

    Args:
        give: gives deliveries and notices to their subscriptions.
        takes: returns whether the client of a session takes all that it is sent.
        charge: changes the bytes of shared memory that the client of a session is charged.
        asker: returns the client of a session, with the budget of its filters.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        sow: SowManager,
        give: Callable[[Iterable[Given]], None],
        takes: Callable[[int], bool],
        charge: Callable[[int, int], None],
        asker: Callable[[int], FilterOwner],
    ) -> None:
        self._runtime = runtime
        self._sow = sow
        self._give = give
        self._takes = takes
        self._charge = charge
        self._asker = asker
        self._table: ConflatedSubscriptions | None = None
        self._timer: asyncio.TimerHandle | None = None

    def table(self) -> ConflatedSubscriptions:
        """Returns the table of the subscriptions, made when it is first asked for.

        Raises:
            RemoteProtocolError: what is installed for filters cannot be used.
        """
        if self._table is None:
            runtime, book = self._runtime, self._sow.book
            config = runtime.config
            self._table = conflated_subscriptions(
                config.type_definitions,
                book,
                config.name,
                config.group,
                now_us=runtime.steady_us,
                wake=self._wake,
                takes=self._takes,
                charge=self._charge,
                asker=self._asker,
            )
        return self._table

    def flush(self, subscription: LiveSubscription) -> None:
        """Gives a subscription that is about to be replaced what is pending for it."""
        following = subscription.following
        if following is not None and following.kind is FollowKind.CONFLATED:
            self._give(self.table().flush(subscription))

    def status(self) -> dict[str, int]:
        """Returns the state of the table for the instance's status; empty: there never was a
        conflated subscription."""
        return {} if self._table is None else self._table.status()

    def _wake(self, at_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        later_s = max(0, at_us - self._runtime.steady_us()) / 1e6
        self._timer = self._runtime.loop.call_later(later_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._table is None or not self._runtime.is_serving:
            return
        clock = time.perf_counter
        until_s = clock() + TURN_S
        self._give(self._table.due(lambda: clock() >= until_s))
        self._runtime.outbox.flush()
