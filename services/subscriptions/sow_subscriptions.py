"""Subscriptions that follow records rather than messages: which records came into their focus, what
changed in them, and which left it (behaviour.md 4.4, 4.7, 4.8).

On a SOW topic they get the changes that a commit made to records (`Batch.changes`). A client that
applies these to the rows of its query then has exactly the records that its filter passes. On other
topics they get messages, cut to their select lists.

They are kept apart from ordinary subscriptions, which need not pay for them. A record is parsed
once for all filters, before and after a change, and each form of it is built once for all
subscriptions that get it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import Expression, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import (
    Flag,
    Kind,
    Run,
)
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.sow.query.planning import FOLLOWING, around_record
from raylay.services.sow.query.projection import check_select
from raylay.services.sow.state import SowRecord
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.audiences import AudienceTable, TopicAudience
from raylay.services.subscriptions.changed_records import ChangedRecords, ChangeForms
from raylay.services.subscriptions.costly import Efforts
from raylay.services.subscriptions.delivery import Given, OpenDeliveries
from raylay.services.subscriptions.filtered import around, surroundings_of
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    nobody,
)


def _looks_back(subscription: LiveSubscription) -> bool:
    wishes = subscription.following
    return wishes is not None and (wishes.oof or wishes.delta)


class SowSubscriptions:
    """All subscriptions of an instance that follow records.

    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
        keeps: returns whether a SOW topic keeps a topic, by its name and message type.
        instance, group: name of the instance and of its group.
        asker: returns the client of a session, with the budget of its filters.
    """

    __slots__ = (
        "_asker",
        "_audiences",
        "_functions",
        "_group",
        "_instance",
        "_keeps",
        "_open",
        "_records",
    )

    def __init__(
        self,
        types: MessageTypeTable,
        functions: Functions,
        keeps: Callable[[bytes, bytes], bool],
        instance: str,
        group: str,
        asker: Callable[[int], FilterOwner] = nobody,
    ) -> None:
        self._asker = asker
        self._records = ChangedRecords(types)
        self._functions = functions
        self._keeps = keeps
        self._instance = instance
        self._group = group
        self._audiences = AudienceTable(FOLLOWING)
        self._open = OpenDeliveries()

    def __len__(self) -> int:
        return len(self._audiences)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._audiences

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time to find the subscriptions for this topic and type, in
        microseconds."""
        return self._audiences.unknown_us(topic, message_type)

    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription with its options.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, or `bad_select`.
        """
        wishes = subscription.following
        assert wishes is not None
        asker = self._asker(subscription.session)
        found = self._filter_of(subscription, asker)
        if wishes.select:
            check_select(wishes.select)
        self._audiences.add(subscription, found, _looks_back(subscription), asker.budget)

    def _filter_of(self, subscription: LiveSubscription, asker: FilterOwner) -> Expression | None:
        text = subscription.content
        if not text:
            return None
        return filter_of(text, FOLLOWING, self._functions, surroundings_of(asker), asker.budget)

    def remove(self, subscription: LiveSubscription) -> None:
        self._audiences.remove(subscription, _looks_back(subscription))

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts
        (services/expressions/work.py)."""
        return self._audiences.with_efforts(efforts)

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """Returns the cost of a topic's messages, as a multiple of the usual cost of a message; 0:
        no subscription follows the topic."""
        return self._audiences.weight(topic, message_type, 1)

    def deliveries(
        self, runs: Iterable[Run], changed: Sequence[SowChange] = (), *, journaled: bool = True
    ) -> Iterator[Given]:
        """Yields what each subscription gets of a commit, in the order of the log.

        Args:
            changed: the changes that the commit made to records of SOW topics, and expired records.
            journaled: whether the topics are journaled; no other topic has a SOW.
        """
        at = 0
        for run in runs:
            if run.kind != Kind.RECORDS:
                continue
            if journaled and self._keeps(run.topic, run.message_type):
                while at < len(changed) and _is_of(changed[at], run):
                    yield from self._changed(changed[at], run.receive_time_us)
                    at += 1
            elif not run.flags & Flag.COMMANDS:
                yield from self._messages(run, journaled)
        for change in changed[at:]:
            yield from self._changed(change, 0)
        yield from self._open.close()

    def _messages(self, run: Run, journaled: bool) -> Iterator[Given]:
        topic = self._audiences.audience(run.topic, run.message_type)
        if not topic:
            return
        name = run.message_type.decode("utf-8", "replace")
        kind = self._records.type_of(name)
        txid = run.first_txid if journaled else 0
        for _, record in readable_records(run):
            if kind is None:
                found = topic.every()
            else:
                found = self._passing_body(
                    topic, kind, record.body, around(record, run, self._instance, self._group)
                )
            for subscription in found:
                assert subscription.following is not None
                made = self._records.of_message(record, subscription.following.select, kind)
                traced = bool(record.trace)
                yield from self._open.add(subscription, "", txid, run.receive_time_us, made, traced)
            txid += journaled

    def _changed(self, change: SowChange, received_us: int) -> Iterator[Given]:
        topic = self._audiences.audience(change.name, change.topic.type_name)
        if not topic:
            return
        previous, current = change.change.previous, change.change.current
        before: dict[LiveSubscription, None] = {}
        if previous is not None and topic.looks_back:
            before = dict.fromkeys(self._passing(topic, change, previous))
        after = [] if current is None else self._passing(topic, change, current)
        forms = ChangeForms(change, self._records)
        traced = change.record is not None and bool(change.record.trace)
        txid = 0 if current is None else current.txid
        for subscription in after:
            wishes = subscription.following
            assert wishes is not None
            was_there = before.pop(subscription, ...) is None
            if wishes.delta and was_there:
                made = forms.delta(wishes)
            else:
                made = forms.message(wishes)
            if made:
                yield from self._open.add(subscription, "", txid, received_us, made, traced)
        reason = "match" if current is not None else change.change.reason
        for subscription in before:
            wishes = subscription.following
            if wishes is not None and wishes.oof:
                yield from self._open.add(
                    subscription, reason, 0, received_us, forms.gone(wishes), False
                )

    def _passing(
        self, topic: TopicAudience, change: SowChange, record: SowRecord
    ) -> list[LiveSubscription]:
        around = NO_CONTEXT
        if topic.has_filters:
            around = around_record(record, change.name, self._instance, self._group)
        found = self._passing_body(topic, change.topic.type, record.body or b"", around)
        return [
            each
            for each in found
            if each.following is not None
            and (each.following.keys is None or record.key in each.following.keys)
        ]

    def _passing_body(
        self, audience: TopicAudience, kind: MessageType, body: bytes, around: EvalContext
    ) -> list[LiveSubscription]:
        found = audience.every()
        if audience.has_filters:
            try:
                tree = kind.parse(body)
            except MessageTypeError:
                return found
            found += self._audiences.filters_of(audience).matching(tree, around)
        return found


def _is_of(change: SowChange, run: Run) -> bool:
    """Returns whether a record of the run caused the change."""
    record = change.record
    return (
        record is not None
        and record.publisher == run.publisher
        and run.first_sequence <= record.sequence <= run.last_sequence
    )
