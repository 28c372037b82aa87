"""Ordinary subscriptions with a content filter: who gets which records of a run.

They are kept apart from those without (matching.py): what is published where nobody filters takes
the same way as if there were no filters. Where somebody does, each record is parsed once for all of
them, and an index finds those that ask for one value of a field (expressions/index.py), of those
that want its topic (audiences.py). A message that cannot be read passes none.

A delivery has consecutive transaction ids, so each stretch that passes is one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import SUBSCRIPTION, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
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
        types: what bodies are read by.
        functions: those that filters may use.
        instance, group: the instance's names.
        asker: what is known of the client of a session.
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
        self._audiences = AudienceTable()
        self._asking: set[LiveSubscription] = set()
        """Subscriptions whose filter asks for more than the body."""

    def __len__(self) -> int:
        return len(self._audiences)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._audiences

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Estimates what it takes to find those that want this topic and type, in microseconds."""
        return self._audiences.unknown_us(topic, message_type)

    def add(self, subscription: LiveSubscription) -> None:
        """Adds one with its filter, `content`.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, the column and what to do.
        """
        asker = self._asker(subscription.session)
        client = surroundings_of(asker)
        found = filter_of(subscription.content, SUBSCRIPTION, self._functions, client, asker.budget)
        self._audiences.add(subscription, found, payer=asker.budget)
        if found.asks_around:
            self._asking.add(subscription)

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes one out that was added."""
        self._audiences.remove(subscription)
        self._asking.discard(subscription)

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Subscriptions whose filter worked with one of these."""
        return self._audiences.with_efforts(efforts)

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """See `AudienceTable.weight`, of each message of a topic."""
        return self._audiences.weight(topic, message_type)

    def deliveries(
        self, runs: Iterable[Run], *, journaled: bool = True
    ) -> Iterator[tuple[LiveSubscription, DeliveryContent]]:
        """Returns what each of them gets of runs, in order, each in the order of the log.

        Args:
            journaled: whether their topics are.
        """
        open_: dict[LiveSubscription, DeliveryContent] = {}
        for run in runs:
            if run.kind != Kind.RECORDS or run.flags & Flag.COMMANDS:
                continue
            audience = self._audiences.audience(run.topic, run.message_type)
            if not audience:
                continue
            filters = self._audiences.filters_of(audience)
            parse = self._parser(run.message_type)
            txid = run.first_txid if journaled else 0
            for _, record in readable_records(run) if parse is not None else ():
                for subscription in self._passing(filters, parse, record, run):
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
    """Returns the context of a filter beside a message.

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
    """Returns what filters of this client are told of it."""
    return EvalContext(client_name=asker.client_name, user=asker.user, remote_address=asker.address)
