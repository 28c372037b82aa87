"""The subscribing side of a client: begins, pauses and ends subscriptions and queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raylay.services.client.arguments import queue_limit, remembered_as
from raylay.services.client.body_decoder import body_decoder
from raylay.services.client.events import (
    PauseWanted,
    ReplaceWanted,
    ResumeWanted,
    SubscriptionUnwanted,
    SubscriptionWanted,
)
from raylay.services.client.keywords import shown_value
from raylay.services.client.runtime import ClientRuntime
from raylay.services.client.subscriptions.queries import (
    PendingQuery,
    QueryReplay,
    QuerySubscription,
)
from raylay.services.client.subscriptions.sow_query import SowQuery
from raylay.services.client.subscriptions.sow_replay import SowReplay
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.client.subscriptions.subscription_state import (
    BookmarkStoreProtocol,
    SubscriptionState,
)
from raylay.services.errors import ConnectionLost, LocalProtocolError, NoSafeInstance


class Subscriber:
    """Subscribes and queries for a client. Owner: the client's event loop."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime

    def given(self, **options: Any) -> dict[str, Any]:
        """Returns the options that have a value. 0 is a value: a limit of no rows differs from no
        limit.

        Raises:
            RaylayError: the client has ended, or has not connected yet.
        """
        self._runtime.raise_if_unusable()
        return {
            name: value
            for name, value in options.items()
            if value is not None and value is not False and value != ""
        }

    def subscription(
        self,
        topic: str,
        message_type: str,
        filter: str,
        bookmark: str,
        subscription_id: str,
        options: dict[str, Any],
        explicit_discard: bool,
        paused: bool,
        place: BookmarkStoreProtocol | None = None,
    ) -> SubscriptionState:
        """Returns the state of a new subscription, with the arguments of `Client.subscribe`.

        Args:
            place: keeps the messages that were received, of a durable subscription.
        """
        store = self._runtime.bookmark_store if place is None else place
        if not subscription_id and bookmark and store is not None:
            subscription_id = remembered_as(topic, message_type, filter)
        return SubscriptionState(
            *(subscription_id or self._new_id("sub"), topic, message_type, bookmark),
            *(options, store),
            explicit_discard=explicit_discard,
            paused=paused,
        )

    def query_subscription(
        self,
        topic: str,
        message_type: str,
        filter: str,
        bookmark: str,
        subscription_id: str,
        options: dict[str, Any],
    ) -> QueryReplay | QuerySubscription:
        """Returns the state of a new subscription that begins with a query, with the arguments of
        `Client.sow_and_subscribe`."""
        store = self._runtime.bookmark_store if bookmark else None
        if not subscription_id and store is not None:
            subscription_id = f"sow|{remembered_as(topic, message_type, filter)}"
        subscription_id = subscription_id or self._new_id("sub")
        if bookmark:
            return QueryReplay(subscription_id, topic, message_type, bookmark, options, store)
        return QuerySubscription(subscription_id, topic, message_type, options)

    def _new_id(self, kind: str) -> str:
        return f"{kind}-{self._runtime.next_subscription_number()}"

    async def subscribe(
        self,
        state: SubscriptionState,
        queue_bytes_max: int,
        timeout_s: float,
        body_type: Any = None,
        ended: Callable[[], None] | None = None,
    ) -> Subscription:
        """Begins a subscription. Returns it once the server has accepted it; raises as
        `Client.subscribe`.

        Args:
            body_type: the type that `Message.json` returns; None: plain values.
            ended: called when the application ends a durable subscription.
        """
        runtime = self._runtime
        remembers = bool(state.bookmark) and runtime.bookmark_store is not None and ended is None
        subscription = Subscription(
            state,
            queue_limit(queue_bytes_max),
            runtime.congestion_changed,
            partial(self._unsubscribe_durable, ended) if ended else self.unsubscribe,
            runtime.bookmarks_changed if remembers else None,
            runtime.tell_tracer if runtime.tracer is not None else None,
            self._replace,
        )
        subscription.decoder = body_decoder(body_type, f"subscription of {state.topic!r}")
        await self._begin(subscription, state, timeout_s)
        return subscription

    def query(
        self,
        topic: str,
        message_type: str,
        options: dict[str, Any],
        queue_bytes_max: int,
        timeout_s: float,
        body_type: Any = None,
    ) -> SowQuery:
        """Returns a query, which is sent when its first row is asked for."""
        query = PendingQuery(self._new_id("query"), topic, message_type, options)
        made: SowQuery = SowQuery(
            query,
            queue_limit(queue_bytes_max),
            self._runtime.congestion_changed,
            self.unsubscribe,
            partial(self._begin, timeout_s=timeout_s),
        )
        made.decoder = body_decoder(body_type, f"query of {query.topic!r}")
        return made

    async def query_and_subscribe(
        self,
        asked: QueryReplay | QuerySubscription,
        queue_bytes_max: int,
        timeout_s: float,
        body_type: Any = None,
    ) -> Subscription:
        """Begins a subscription that begins with a query; raises as `Client.sow_and_subscribe`."""
        runtime = self._runtime
        taken = runtime.tell_tracer if runtime.tracer is not None else None
        shell = queue_limit(queue_bytes_max), runtime.congestion_changed, self.unsubscribe
        subscription: Subscription
        if isinstance(asked, QueryReplay):
            changed = None if runtime.bookmark_store is None else runtime.bookmarks_changed
            subscription = SowReplay(asked, *shell, changed, taken, self._replace)
        else:
            subscription = Subscription(asked, *shell, None, taken, self._replace)
        subscription.decoder = body_decoder(body_type, f"subscription of {asked.topic!r}")
        await self._begin(subscription, asked, timeout_s)
        return subscription

    async def _begin(
        self, subscription: Subscription, state: SubscriptionState, timeout_s: float
    ) -> None:
        """Sends a subscription and waits for the answer."""
        runtime = self._runtime
        loop = runtime.own_loop()
        subscription_id = subscription.id
        if subscription_id in runtime.subscriptions:
            raise LocalProtocolError(
                f"subscription id {subscription_id!r} is in use: give each its own",
                "sub_id_in_use",
            )
        answered = loop.create_future()
        runtime.subscribing[subscription_id] = answered
        runtime.subscriptions[subscription_id] = subscription
        runtime.step(SubscriptionWanted(state))
        try:
            await runtime.while_reading(answered, timeout_s)
        except BaseException as error:
            subscription.unsubscribe()
            if isinstance(error, TimeoutError):
                waits = runtime.machine.waits_for_safe_instance
                kind = NoSafeInstance if waits else ConnectionLost
                raise kind(
                    f"no answer to the {state.command} of {subscription.topic!r} within "
                    f"{timeout_s} s: {runtime.status}"
                ) from None
            raise
        finally:
            runtime.subscribing.pop(subscription_id, None)

    async def pause(self, subscriptions: Sequence[Subscription]) -> None:
        """Pauses subscriptions; raises as `Client.pause`."""
        if subscriptions:
            names = _names(subscriptions)
            await self._runtime.answer_to(lambda number: PauseWanted(number, names))

    async def resume(self, subscriptions: Sequence[Subscription]) -> None:
        """Resumes subscriptions together; raises as `Client.resume`."""
        if subscriptions:
            names = _names(subscriptions)
            await self._runtime.answer_to(lambda number: ResumeWanted(number, names))

    async def _replace(self, subscription: Subscription, focus: dict[str, Any]) -> None:
        await self._runtime.answer_to(lambda number: ReplaceWanted(number, subscription.id, focus))

    def _unsubscribe_durable(self, ended: Callable[[], None], subscription: Subscription) -> None:
        self.unsubscribe(subscription)
        ended()

    def unsubscribe(self, subscription: Subscription) -> None:
        """Ends a subscription; does nothing where it has ended."""
        if self._runtime.subscriptions.pop(subscription.id, None) is not None:
            header, body = subscription.parting
            self._runtime.step(SubscriptionUnwanted(subscription.id, header, body))


def _names(subscriptions: Sequence[Subscription]) -> tuple[str, ...]:
    """Returns the ids of the subscriptions, each once.

    Raises:
        TypeError: one is no subscription.
    """
    for each in subscriptions:
        if not isinstance(each, Subscription):
            raise TypeError(
                f"{shown_value(each)} is of type {type(each).__name__}: give what `subscribe` "
                "returned"
            )
    return tuple(dict.fromkeys(subscription.id for subscription in subscriptions))
