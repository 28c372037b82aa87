"""Filters that work too much: their users are told, and do not hold up others.

An evaluation that needs more than its limit is given up, and so are those of a user whose budget is
spent. Here the instance reports the former, and ends the subscriptions of the latter: which
messages would have passed a stopped filter is not known.
"""

from __future__ import annotations

from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.subscriptions.costly import (
    FILTER_TOO_COSTLY,
    SHOWN_CHARACTERS_MAX,
    TOO_COSTLY,
    given_up,
)
from raylay.services.subscriptions.matching import LiveSubscription

TELL_S = 10.0
"""Time between two events about filters whose evaluations were given up."""


class CostlyFilters:
    """The reports and the ends of subscriptions with costly filters. Owner: the instance.
    Lifecycle: as long as the instance."""

    def __init__(self, runtime: InstanceRuntime, clients: ClientSessions) -> None:
        self._runtime = runtime
        self._clients = clients
        self._tell_s = 0.0

    def check(self) -> None:
        """Ends the subscriptions of users whose budget is spent, and reports evaluations that were
        given up. Called with each periodic check of the instance."""
        budgets = self._clients.budgets
        budgets.recover(self._runtime.steady_us())
        efforts = budgets.newly_stopped()
        if efforts:
            # A replay ends by itself before it skips a message (replay.py).
            for subscription in self._clients.live.with_efforts(efforts):
                self._end(subscription)
        now_s = self._runtime.loop.time()
        if now_s >= self._tell_s:
            found = given_up()
            for text, count in found.items():
                self._runtime.report(
                    "filter_given_up", filter=text[:SHOWN_CHARACTERS_MAX], messages=count
                )
            if found:
                self._tell_s = now_s + TELL_S

    def _end(self, subscription: LiveSubscription) -> None:
        client = self._clients.sessions.get(subscription.session)
        if client is None:
            # The subscription's session has ended, and the subscription is about to be taken out.
            return
        self._runtime.report(
            FILTER_TOO_COSTLY,
            client=client.client_name,
            subscription=subscription.id,
            filter=subscription.content[:SHOWN_CHARACTERS_MAX],
        )
        self._clients.end_subscription(subscription, FILTER_TOO_COSTLY, TOO_COSTLY)
