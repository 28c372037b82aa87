"""Ordinary subscriptions with a content filter, and those by a regular expression of clients that
may read only some messages of some topics: which of them get which records of a run.

They are kept apart from subscriptions without a filter (matching.py), so that messages of topics
without filters cost the same as if there were none. Where a topic has filters, each record is
parsed once for all of them, and an index finds those that ask for one value of a field
(expressions/index.py) among those that want the topic (audiences.py). A message that cannot be read
passes no filter.

A delivery has consecutive transaction ids, so each stretch of passing records is a delivery of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import SUBSCRIPTION, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.lossless_text import text_of
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Flag, Kind, Record, Run
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.subscriptions.audiences import AudienceTable, MessageFilters
from raylay.services.subscriptions.costly import Efforts
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, nobody


class FilteredSubscriptions:
    """All ordinary subscriptions of an instance that have a content filter.

    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
        instance, group: name of the instance and of its group.
        asker: returns the client of a session, with the budget of its filters.
    """

    __slots__ = (
        "_asker",
        "_asking",
        "_audiences",
        "_functions",
        "_group",
        "_instance",
        "_types",
    )

    def __init__(
        self,
        types: MessageTypeTable,
        functions: Functions,
        instance: str,
        group: str,
        asker: Callable[[int], FilterOwner] = nobody,
    ) -> None:
        self._asker = asker
        self._types = types
        self._functions = functions
        self._instance = instance
        self._group = group
        self._audiences = AudienceTable(SUBSCRIPTION)
        self._asking: set[LiveSubscription] = set()
        """Subscriptions whose filter, or row filter, reads more than the body."""

    def __len__(self) -> int:
        return len(self._audiences)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._audiences

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time to find the subscriptions for this topic and type, in
        microseconds."""
        return self._audiences.unknown_us(topic, message_type)

    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription with its filter, `content`, if it has one.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, the column and what to do.
        """
        asker = self._asker(subscription.session)
        client = surroundings_of(asker)
        text, found = subscription.content, None
        if text:
            found = filter_of(text, SUBSCRIPTION, self._functions, client, asker.budget)
        self._audiences.add(subscription, found, payer=asker.budget)
        if subscription.filter.is_limited or (found is not None and found.asks_around):
            self._asking.add(subscription)

    def remove(self, subscription: LiveSubscription) -> None:
        self._audiences.remove(subscription)
        self._asking.discard(subscription)

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts."""
        return self._audiences.with_efforts(efforts)

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """Returns the cost of each message of a topic, see `AudienceTable.weight`."""
        return self._audiences.weight(topic, message_type)

    def deliveries(
        self, runs: Iterable[Run], *, journaled: bool = True
    ) -> Iterator[tuple[LiveSubscription, DeliveryContent]]:
        """Yields the deliveries of runs for each subscription, each subscription's in the order of
        the log.

        Args:
            journaled: whether the runs' topics are journaled.
        """
        open_: dict[LiveSubscription, DeliveryContent] = {}
        for run in runs:
            if run.kind != Kind.RECORDS or run.flags & Flag.COMMANDS:
                continue
            audience = self._audiences.audience(run.topic, run.message_type)
            if not audience:
                continue
            every, filters = audience.every(), None
            parse = self._parser(run.message_type)
            if parse is not None and audience.has_filters:
                filters = self._audiences.filters_of(audience)
            txid = run.first_txid if journaled else 0
            for _, record in readable_records(run) if every or filters is not None else ():
                found = every
                if filters is not None:
                    found = every + self._passing(filters, parse, record, run)
                for subscription in found:
                    delivery = open_.get(subscription)
                    if delivery is not None and not delivery.takes_one(txid, len(record.raw)):
                        yield subscription, delivery
                        delivery = None
                    if delivery is None:
                        delivery = open_[subscription] = DeliveryContent(txid, run.receive_time_us)
                    delivery.add_one(record.raw, bool(record.trace))
                txid += journaled
        yield from open_.items()

    def _passing(
        self, filters: MessageFilters, parse: Any, record: Record, run: Run
    ) -> list[LiveSubscription]:
        try:
            message = parse(record.body)
        except MessageTypeError:
            return []
        return filters.matching(
            message,
            around(record, run, self._instance, self._group) if self._asking else NO_CONTEXT,
        )

    def _parser(self, message_type: bytes) -> Any:
        try:
            return self._types[message_type.decode("utf-8", "replace")].parse
        except MessageTypeError:
            return None


def around(record: Record, run: Run, instance: str, group: str) -> EvalContext:
    """Returns the context that a filter can read besides a message's body.

    Args:
        instance, group: name of the instance and of its group.
    """
    return EvalContext(
        topic=record.topic,
        size_bytes=len(record.body),
        correlation_id=text_of(record.correlation),
        bookmark=record.bookmark,
        instance=instance,
        group=group,
        # The receive time counts as the current time.
        now_s=run.receive_time_us / 1e6,
    )


def surroundings_of(asker: FilterOwner) -> EvalContext:
    """Returns the context that a filter can read about its client."""
    return EvalContext(client_name=asker.client_name, user=asker.user, remote_address=asker.address)
