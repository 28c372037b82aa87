"""Ordinary subscriptions with a content filter: who gets which records of a run.

They are kept apart from those without (matching.py): what is published where nobody filters takes
the same way as if there were no filters. Where somebody does, each record is parsed once for all of
them, and an index finds those that ask for one value of a field (expressions/index.py). A message
that cannot be read passes none.

A delivery has consecutive transaction ids, so each stretch that passes is one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import SUBSCRIPTION, Expression, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.expressions.index import OTHERS_IN_WEIGHT, FilterIndex
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Flag, Kind, Record, Run
from raylay.services.messages.topics import TOPIC_CACHE_MAX, TopicKey
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.subscriptions.costly import Efforts
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, nobody


class FilteredSubscriptions:
    """All ordinary subscriptions of an instance that have a content filter.

    Invariant: `_indexes` has, of each topic that was asked for, all those that want it.
    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: what bodies are read by.
        functions: those that filters may use.
        instance, group: the instance's names.
        asker: what is known of the client of a session.
    """

    __slots__ = (
        "_asker",
        "_asking",
        "_functions",
        "_group",
        "_indexes",
        "_instance",
        "_kept",
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
        self._kept: dict[LiveSubscription, Expression] = {}
        self._indexes: dict[TopicKey, FilterIndex[LiveSubscription]] = {}
        self._asking = 0
        """Those whose filter asks for more than the body."""

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._kept

    def knows(self, topic: bytes, message_type: bytes) -> bool:
        """Returns whether it is known which of them want this topic and type."""
        return (topic, message_type) in self._indexes

    def add(self, subscription: LiveSubscription) -> None:
        """Adds one with its filter, `content`.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, the column and what to do.
        """
        client = surroundings_of(self._asker(subscription.session))
        found = filter_of(subscription.content, SUBSCRIPTION, self._functions, client)
        self._kept[subscription] = found
        self._asking += found.asks_around
        for (topic, message_type), index in self._indexes.items():
            if subscription.filter.matches(topic, message_type):
                index.add(subscription, found)

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes one out that was added."""
        self._asking -= self._kept.pop(subscription).asks_around
        for index in self._indexes.values():
            index.discard(subscription)

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Subscriptions whose filter worked with one of these."""
        return {each for index in self._indexes.values() for each in index.with_efforts(efforts)}

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """See `FilterIndex.weight`, of each message of a topic."""
        if not self.knows(topic, message_type):
            # To find out which of them want it is what takes long: until that is known, all.
            return 1 + len(self) // OTHERS_IN_WEIGHT
        return self._index(topic, message_type).weight

    def deliveries(
        self, runs: Iterable[Run], *, journaled: bool = True
    ) -> Iterator[tuple[LiveSubscription, DeliveryContent]]:
        """What each of them gets of runs, in order, each in the order of the log.

        Args:
            journaled: whether their topics are.
        """
        open_: dict[LiveSubscription, DeliveryContent] = {}
        for run in runs:
            if run.kind != Kind.RECORDS or run.flags & Flag.COMMANDS:
                continue
            index = self._index(run.topic, run.message_type)
            if not len(index):
                continue
            parse = self._parser(run.message_type)
            txid = run.first_txid if journaled else 0
            for _, record in readable_records(run) if parse is not None else ():
                for subscription in self._passing(index, parse, record, run):
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
        self, index: FilterIndex[LiveSubscription], parse: Any, record: Record, run: Run
    ) -> list[LiveSubscription]:
        try:
            message = parse(record.body)
        except MessageTypeError:
            return []
        return index.matching(
            message,
            around(record, run, self._instance, self._group) if self._asking else NO_CONTEXT,
        )

    def _index(self, topic: bytes, message_type: bytes) -> FilterIndex[LiveSubscription]:
        key = (topic, message_type)
        index = self._indexes.get(key)
        if index is None:
            if len(self._indexes) >= TOPIC_CACHE_MAX:
                self._indexes.clear()
            index = self._indexes[key] = FilterIndex(is_limited=True)
            for subscription, found in self._kept.items():
                if subscription.filter.matches(topic, message_type):
                    index.add(subscription, found)
        return index

    def _parser(self, message_type: bytes) -> Any:
        try:
            return self._types[message_type.decode("utf-8", "replace")].parse
        except MessageTypeError:
            return None


def around(record: Record, run: Run, instance: str, group: str) -> EvalContext:
    """What a filter may ask beside a message.

    Args:
        instance, group: names of the instance.
    """
    return EvalContext(
        topic=record.topic,
        size_bytes=len(record.body),
        correlation_id=record.correlation.decode("utf-8", "surrogateescape"),
        bookmark=record.bookmark,
        instance=instance,
        group=group,
        # The time now is the time when it came.
        now_s=run.receive_time_us / 1e6,
    )


def surroundings_of(asker: FilterOwner) -> EvalContext:
    """What filters of this client are told of it."""
    name, user, address = asker
    return EvalContext(client_name=name, user=user, remote_address=address)
