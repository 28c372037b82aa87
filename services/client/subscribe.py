"""Subscribing by a client: begun, paused, resumed and ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raylay.services.client.arguments import remembered_as
from raylay.services.client.base import (
    QUEUE_BYTES_MAX_DEFAULT,
    ClientBase,
)
from raylay.services.client.events import (
    Event,
    PauseWanted,
    ReplaceWanted,
    ResumeWanted,
    SubscriptionUnwanted,
    SubscriptionWanted,
)
from raylay.services.client.keywords import checks_keywords
from raylay.services.client.subscription import Subscription
from raylay.services.client.subscription_state import SubscriptionState
from raylay.services.errors import (
    ConnectionLost,
    LocalProtocolError,
    NoSafeInstance,
)


class SubscribeOperations(ClientBase):
    """The subscriber's side of a client."""

    @checks_keywords
    async def subscribe(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        select: str = "",
        bookmark: str = "",
        bookmark_not_found: str = "",
        subscription_id: str = "",
        oof: bool = False,
        delta: bool = False,
        no_empties: bool = False,
        no_sowkey: bool = False,
        explicit_discard: bool = False,
        fully_durable: bool = False,
        live: bool = False,
        rate: str = "",
        rate_max_gap: str = "",
        pause: bool = False,
        persisted_ms: int | None = None,
        non_regex_topic: bool = False,
        max_backlog: int | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX_DEFAULT,
        timeout_s: float = 30.0,
    ) -> Subscription:
        """Subscribes to a topic, or to the topics that a regular expression matches.

        Args:
            topic: literal, or a regular expression.
            message_type: only messages of this type; empty: any.
            filter: only messages that pass it (docs/filters.md): `/price > 100`.
            select: The fields that are sent: `[-/,+/price]`.
            oof, delta, no_empties, no_sowkey: As of `sow_and_subscribe`, on SOW topics.
            bookmark: where to start in the log: `EPOCH`, `NOW`, a bookmark, a list, a time or a
                range (services/messages/bookmarks.py). Empty: an ordinary subscription, whose
                messages are not replayed. What the bookmark store knows of this subscription id
                goes before: then it resumes there.
            bookmark_not_found: `now`, `epoch` or `fail`.
            subscription_id: the name under which the bookmark store remembers; made from topic,
                type and filter when it is not given. Another filter needs another name.
            explicit_discard: messages count as seen by `Subscription.discard` only.
            fully_durable: messages come once every sync destination has them, too: none, while one
                is down that is not downgraded.
            live: at the log's end messages come before they are on disk. None of the others then.
            rate: at most so much: `500` messages a second, `500KB` of records a second, `2X` or
                `.5X` the speed at which the instance received them.
            rate_max_gap: with a multiple of the original speed, the longest idle: `10s`.
            pause: nothing comes until `resume`.
            persisted_ms: the longest pause between two persisted acks.
            non_regex_topic: `topic` is a literal name, whatever characters it has.
            max_backlog: On a queue, the messages that may be leased at one time (`queue`).
            queue_bytes_max: bytes that wait for the consumer before reading stops.
            timeout_s: for the server's answer.

        Raises:
            CommandFailed: the server refused, with its reason (`bad_filter`, …).
            BookmarkNotFound: with `bookmark_not_found="fail"`.
            ConnectionLost: no server answered in time; NoSafeInstance: those left are not safe.
            TypeError: a keyword argument is misspelt.
        """
        options = self._given(
            select=select,
            oof=oof,
            delta=delta,
            no_empties=no_empties,
            no_sowkey=no_sowkey,
            non_regex_topic=non_regex_topic,
            bookmark_not_found=bookmark_not_found,
            rate=rate,
            rate_max_gap=rate_max_gap,
            fully_durable=fully_durable,
            live=live,
            filter=filter,
            persisted_ms=persisted_ms,
            max_backlog=max_backlog,
        )
        if not subscription_id:
            self._subscription_number += 1
            subscription_id = (
                remembered_as(topic, message_type, filter)
                if bookmark and self._bookmark_store is not None
                else f"sub-{self._subscription_number}"
            )
        store = self._bookmark_store
        resumption = SubscriptionState(
            *(subscription_id, topic, message_type, bookmark, options, store),
            explicit_discard=explicit_discard,
            paused=pause,
        )
        return await self._subscribed(resumption, queue_bytes_max, timeout_s)

    async def _subscribed(
        self, resumption: SubscriptionState, queue_bytes_max: int, timeout_s: float
    ) -> Subscription:
        remembers = bool(resumption.bookmark) and self._bookmark_store is not None
        subscription = Subscription(
            resumption,
            queue_bytes_max,
            self._congestion_changed,
            self._unsubscribe,
            self._bookmarks_changed if remembers else None,
            self._tell_tracer if self._tracer is not None else None,
            self._replace,
        )
        await self._begin(subscription, resumption, timeout_s)
        return subscription

    def _given(self, **options: Any) -> dict[str, Any]:
        """Returns the options that were given; 0 is one, since no rows are not all of them.

        Raises:
            RaylayError: What ended the client.
        """
        self._raise_if_ended()
        assert self._loop is not None, "connect first"
        return {
            name: value
            for name, value in options.items()
            if value is not None and value is not False and value != ""
        }

    async def _begin(
        self, subscription: Subscription, resumption: SubscriptionState, timeout_s: float
    ) -> None:
        """Asks for a subscription and waits for the answer."""
        assert self._loop is not None, "connect first"
        subscription_id = subscription.id
        if subscription_id in self._subscriptions:
            raise LocalProtocolError(
                f"subscription id {subscription_id!r} is in use: give each its own",
                "sub_id_in_use",
            )
        answered = self._loop.create_future()
        self._subscribing[subscription_id] = answered
        self._subscriptions[subscription_id] = subscription
        self._step(SubscriptionWanted(resumption))
        try:
            await self._while_reading(answered, timeout_s)
        except BaseException as error:
            subscription.unsubscribe()
            if isinstance(error, TimeoutError):
                kind = NoSafeInstance if self._machine.waits_for_safe_instance else ConnectionLost
                raise kind(
                    f"no answer to the {resumption.command} of {subscription.topic!r} within "
                    f"{timeout_s} s: {self.status}"
                ) from None
            raise
        finally:
            self._subscribing.pop(subscription_id, None)

    async def pause(self, *subscriptions: Subscription) -> None:
        """Has the server deliver no more of these until `resume`. What is on its way, and what is
        queued here, still comes. It holds across reconnects.

        Raises:
            LocalProtocolError: one has ended, has no bookmark, or is live; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._ask(PauseWanted, subscriptions)

    async def resume(self, *subscriptions: Subscription) -> None:
        """Goes on with paused subscriptions. Those of one call that have the same bookmark and
        rate are one replay: what they get stands in the order of the log across them too, also
        after a reconnect (`Merged` reads them in that order).

        Raises:
            LocalProtocolError: one has ended or is not paused; nothing was changed.
            CommandFailed: the server refused it.
        """
        await self._ask(ResumeWanted, subscriptions)

    async def _ask(
        self,
        kind: type[PauseWanted] | type[ResumeWanted],
        subscriptions: Sequence[Subscription],
    ) -> None:
        if subscriptions:
            names = tuple(dict.fromkeys(one.id for one in subscriptions))
            await self._answer_to(lambda number: kind(number, names))

    async def _replace(self, subscription: Subscription, focus: dict[str, Any]) -> None:
        await self._answer_to(lambda number: ReplaceWanted(number, subscription.id, focus))

    async def _answer_to(self, question: Callable[[int], Event]) -> None:
        self._raise_if_ended()
        assert self._loop is not None, "connect first"
        self._asked_number = number = self._asked_number + 1
        answered = self._asking[number] = self._loop.create_future()
        try:
            self._step(question(number))
            await self._while_reading(answered, None)
        finally:
            self._asking.pop(number, None)

    def _unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.id, None) is not None:
            self._step(SubscriptionUnwanted(subscription.id))
