"""Conflated subscriptions: of all changes of a record within an interval a subscriber is given the
last one (behaviour.md 4.5).

Subscriptions with the same topics, filter, interval and key share what is pending, whatever fields
they select. On a SOW topic the changes of records are conflated, by SOW key: a delta is made from
the content that the subscriber was given last, and a record that comes and leaves within an
interval is not told of. Topics without SOW, and subscriptions with another key than the topic's,
have messages, conflated by the fields of `conflation_key`.

With `auto` nothing waits as long as the client takes all that it is sent. While it does not, its
subscription keeps one change for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from raylay.services.errors import MessageTypeError
from raylay.services.expressions.expression import Expression, filter_of
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext, Functions
from raylay.services.expressions.work import FilterPayer
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Flag, Kind, Record, Run
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.messages.types.trees import FieldPath, Tree
from raylay.services.sow.query.planning import FOLLOWING, around_record
from raylay.services.sow.query.projection import check_select
from raylay.services.sow.state import RecordChange, SowRecord
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.audiences import (
    AudienceTable,
    GroupKey,
    TopicAudience,
    group_key_of,
)
from raylay.services.subscriptions.changed_records import ChangedRecords, ChangeForms
from raylay.services.subscriptions.conflation import FLUSHED_AT_ONCE, ConflatedChange, Conflator
from raylay.services.subscriptions.conflation_keys import conflation_key, key_in, key_paths
from raylay.services.subscriptions.costly import Efforts
from raylay.services.subscriptions.delivery import DeliveryContent, Given
from raylay.services.subscriptions.filtered import around, surroundings_of
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    TopicFilter,
    nobody,
)

AUTO_LOOK_US = 50_000
"""Time between two looks whether the client of an `auto` subscription takes again what it is
sent."""
AUTO_NEXT_US = 1_000
"""Time until such a client gets more, after it has taken something."""
STAMPS_APART_US_MAX = 10_000
"""Largest difference of the receive times in one delivery, whose time is that of its first
message."""
CHARGED_BYTES = 64 * 1024
"""Growth of a subscription's share of the pending bytes, after which its client is charged anew."""
ENTRY_BYTES = 400
"""Approximate memory of a pending content, besides its bytes."""


class ConflatedSources(NamedTuple):
    """The SOW topics of an instance, as conflated subscriptions see them.

    Attributes:
        find: returns the SOW topic or view that keeps a topic, by name and message type; None: none
            does.
        wanted: returns the SOW topics and views that a subscription wants.
    """

    find: Callable[[bytes, bytes], SowTopic | None]
    wanted: Callable[[TopicFilter], Sequence[SowTopic]]


class _Content(NamedTuple):
    """A record of a SOW topic that is pending.

    Attributes:
        record: the record.
        name: its logical topic.
        brought: the journal record that brought it; None: unknown.
    """

    record: SowRecord
    topic: SowTopic
    name: bytes
    brought: Record | None


class _Message(NamedTuple):
    """A message of a topic without SOW that is pending."""

    record: Record
    kind: MessageType | None


_Pending = _Content | _Message


def _size_of(content: _Pending) -> int:
    if isinstance(content, _Message):
        return len(content.record.raw) + ENTRY_BYTES
    brought = content.brought
    more = 0 if brought is None else len(brought.raw)
    return len(content.record.body or b"") + more + ENTRY_BYTES


class _Definition(NamedTuple):
    """The part of subscriptions that must be equal for them to share what is pending.

    Attributes:
        looks_back: whether subscribers need the content that they were given last.
        own: the subscription, where nothing can be shared, because its client says when it takes
            what is pending; None: it can.
    """

    topics: GroupKey
    filter: str
    interval_us: int
    key: tuple[str, ...]
    sow_keys: frozenset[bytes] | None
    looks_back: bool
    own: LiveSubscription | None


class _SharedConflator:
    """Subscriptions with one definition, and what is pending for all of them.

    Attributes:
        leads: stand for all subscriptions of a payer in the table of audiences, each with their
            number.
        members: the subscriptions, each with the number with which it joined.
        classes: the subscriptions by their options: those with the same ones share deliveries.
        newest: number of the newest subscription.
        paths: fields of the key; none: the SOW key.
        has_pattern: whether keys of several topics are told apart by their names.
        charged_bytes: bytes that each client is charged now.
        is_awaited: whether the time at which the next key is due is in the queue.
    """

    __slots__ = (
        "charged_bytes",
        "classes",
        "conflator",
        "definition",
        "has_pattern",
        "is_awaited",
        "leads",
        "members",
        "newest",
        "paths",
    )

    def __init__(self, definition: _Definition, paths: tuple[FieldPath, ...]) -> None:
        self.definition = definition
        self.conflator: Conflator[_Pending] = Conflator(definition.interval_us, _size_of)
        self.leads: dict[FilterPayer | None, tuple[LiveSubscription, int]] = {}
        self.members: dict[LiveSubscription, int] = {}
        self.classes: dict[FollowTerms, dict[LiveSubscription, None]] = {}
        self.newest = 0
        self.paths = paths
        self.has_pattern = definition.topics[2]
        self.charged_bytes = 0
        self.is_awaited = False

    def key_in(self, name: bytes, message_type: bytes, key: bytes) -> bytes:
        """Returns a key that no record of another topic has."""
        return key_in(name, message_type, key) if self.has_pattern else key

    def is_by_record(self, topic: SowTopic) -> bool:
        """Returns whether the records of a SOW topic are conflated by SOW key."""
        return not self.paths or self.definition.key == topic.definition.keys


def _terms(subscription: LiveSubscription) -> FollowTerms:
    terms = subscription.following
    assert terms is not None
    return terms


class _OpenDelivery(NamedTuple):
    """A delivery, with all who get it. `reason`: that of an out-of-focus notice; empty: it has
    messages."""

    members: tuple[LiveSubscription, ...]
    reason: str
    content: DeliveryContent


class ConflatedSubscriptions:
    """All conflated subscriptions of an instance.

    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
        sources: the SOW topics.
        instance, group: name of the instance and of its group.
        now_us: returns the time by a clock that is never set back.
        wake: called with the time at which `due` is to be called next; replaces the time of the
            call before.
        takes: returns whether the client of a session takes all that it is sent.
        charge: changes the bytes of shared memory that the client of a session is charged.
        asker: returns the client of a session, with the budget of its filters.
    """

    __slots__ = (
        "_asker",
        "_audiences",
        "_awaited_us",
        "_charge",
        "_due",
        "_functions",
        "_group",
        "_instance",
        "_led",
        "_made",
        "_members",
        "_now_us",
        "_open",
        "_ready",
        "_records",
        "_replaced",
        "_shared",
        "_sources",
        "_takes",
        "_touched",
        "_wake",
        "_with_key",
        "given",
    )

    def __init__(
        self,
        types: MessageTypeTable,
        functions: Functions,
        sources: ConflatedSources,
        instance: str,
        group: str,
        now_us: Callable[[], int],
        wake: Callable[[int], None],
        takes: Callable[[int], bool] = lambda session: True,
        charge: Callable[[int, int], None] = lambda session, difference_bytes: None,
        asker: Callable[[int], FilterOwner] = nobody,
    ) -> None:
        self._records = ChangedRecords(types)
        self._functions = functions
        self._sources = sources
        self._instance = instance
        self._group = group
        self._now_us = now_us
        self._wake = wake
        self._takes = takes
        self._charge = charge
        self._asker = asker
        self._audiences = AudienceTable(FOLLOWING)
        self._shared: dict[_Definition, _SharedConflator] = {}
        self._members: dict[LiveSubscription, tuple[_SharedConflator, FilterPayer | None]] = {}
        self._led: dict[LiveSubscription, _SharedConflator] = {}
        self._due: list[tuple[int, int, _SharedConflator]] = []
        """Times at which keys are due, as a heap, one for each conflator with pending keys."""
        self._made = 0
        self._awaited_us: int | None = None
        self._open: dict[object, _OpenDelivery] = {}
        """Deliveries that more may be added to, by their subscriber, or by the class of those that
        share it."""
        self._ready: list[_OpenDelivery] = []
        self._touched: dict[_SharedConflator, None] = {}
        self.given = 0
        """Number of changes that were given, each counted once for all subscribers."""
        self._replaced = 0
        """Number of changes that were never given, of definitions that have no subscriber now."""
        self._with_key = 0
        """Number of leads whose subscriptions have a key of their own."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._members

    # -- subscriptions -------------------------------------------------------------------------
    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription with its options. It is given no change that was made before.

        Raises:
            RemoteProtocolError: with reason `bad_filter`, `bad_select`, or `bad_command` of a key
                that does not go with the topic.
        """
        terms = _terms(subscription)
        conflation = terms.conflation
        assert conflation is not None
        asker = self._asker(subscription.session)
        found = self._filter_of(subscription, asker)
        if terms.select:
            check_select(terms.select)
        paths = key_paths(self._sources.wanted, subscription.filter, terms)
        definition = _Definition(
            group_key_of(subscription),
            "" if found is None else found.text,
            conflation.interval_us,
            conflation.key,
            terms.keys,
            terms.oof or terms.delta,
            None if conflation.interval_us else subscription,
        )
        shared = self._shared.get(definition)
        if shared is None:
            shared = self._shared[definition] = _SharedConflator(definition, paths)
        payer = None if found is None else asker.budget
        lead, count = shared.leads.get(payer, (None, 0))
        if lead is None:
            lead = LiveSubscription(
                subscription.session, subscription.id, subscription.filter, subscription.content
            )
            # Filters read the previous value, too: a pending record may have left the filter.
            self._audiences.add(lead, found, True, payer)
            self._led[lead] = shared
            self._with_key += bool(paths)
        shared.leads[payer] = lead, count + 1
        shared.newest = shared.members[subscription] = shared.conflator.join()
        shared.classes.setdefault(terms, {})[subscription] = None
        self._members[subscription] = shared, payer
        if shared.charged_bytes:
            self._charge(subscription.session, shared.charged_bytes)

    def _filter_of(self, subscription: LiveSubscription, asker: FilterOwner) -> Expression | None:
        text = subscription.content
        if not text:
            return None
        return filter_of(text, FOLLOWING, self._functions, surroundings_of(asker), asker.budget)

    def remove(self, subscription: LiveSubscription) -> None:
        """Takes out a subscription. What is pending for it alone is forgotten."""
        shared, payer = self._members.pop(subscription)
        del shared.members[subscription]
        alike = shared.classes[_terms(subscription)]
        del alike[subscription]
        if not alike:
            del shared.classes[_terms(subscription)]
        if shared.charged_bytes:
            self._charge(subscription.session, -shared.charged_bytes)
        lead, count = shared.leads[payer]
        shared.leads[payer] = lead, count - 1
        if count == 1:
            del shared.leads[payer]
            self._audiences.remove(lead, True)
            del self._led[lead]
            self._with_key -= bool(shared.paths)
        if not shared.members:
            self._replaced += shared.conflator.replaced
            del self._shared[shared.definition]

    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts."""
        found: set[LiveSubscription] = set()
        for lead in self._audiences.with_efforts(efforts):
            for member in self._led[lead].members:
                shared, payer = self._members[member]
                if shared.leads[payer][0] is lead:
                    found.add(member)
        return found

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns an estimate of the time to find the subscriptions for this topic and type, in
        microseconds."""
        return self._audiences.unknown_us(topic, message_type)

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """Returns the cost of a topic's messages, as a multiple of the usual cost of a message; 0:
        no subscription follows the topic."""
        return self._audiences.weight(topic, message_type, 1)

    # -- what is published ---------------------------------------------------------------------
    def deliveries(
        self, runs: Iterable[Run], changed: Sequence[SowChange] = (), *, journaled: bool = True
    ) -> Iterator[Given]:
        """Takes a commit. Yields what `auto` subscriptions get at once, and messages whose key
        cannot be read.

        Args:
            changed: the changes that the commit made to records of SOW topics, and expired records.
            journaled: whether the topics are journaled; no other topic has a SOW.
        """
        now_us = self._now_us()
        for run in runs:
            if run.kind != Kind.RECORDS or run.flags & Flag.COMMANDS:
                continue
            if not (journaled and self._sources.find(run.topic, run.message_type) is not None):
                self._take_messages(run, now_us)
        for change in changed:
            self._take_change(change, now_us)
        yield from self._close()

    def _take_messages(self, run: Run, now_us: int) -> None:
        audience = self._audiences.audience(run.topic, run.message_type)
        if not audience:
            return
        kind = self._records.type_of(run.message_type.decode("utf-8", "replace"))
        for _, record in readable_records(run):
            message = _Message(record, kind)
            found, tree = self._passing(
                audience, kind, record.body, around(record, run, self._instance, self._group)
            )
            for shared in found:
                if not shared.paths or tree is None:
                    # Nothing tells it apart from other messages.
                    change = ConflatedChange[_Pending](
                        b"", now_us, None, message, "", run.receive_time_us
                    )
                    self._give(shared, change, at_once=True)
                    continue
                key = shared.key_in(run.topic, run.message_type, conflation_key(tree, shared.paths))
                self._change(shared, key, None, message, now_us, "", run.receive_time_us)

    def _take_change(self, change: SowChange, now_us: int) -> None:
        topic, name = change.topic, change.name
        audience = self._audiences.audience(name, topic.type_name)
        if not audience:
            return
        changed = change.change
        previous, current = changed.previous, changed.current
        left: dict[_SharedConflator, None] = {}
        if previous is not None:
            left = dict.fromkeys(self._passing_record(audience, change, previous)[0])
        after: list[_SharedConflator] = []
        tree: Tree | None = None
        if current is not None:
            after, tree = self._passing_record(audience, change, current)
        received_us = 0 if current is None else current.updated_us
        was = None if previous is None else _Content(previous, topic, name, None)
        now = None if current is None else _Content(current, topic, name, change.record)
        own_key = changed.key
        for shared in after:
            was_there = left.pop(shared, ...) is None
            key = own_key
            looks_back = shared.definition.looks_back
            if not shared.is_by_record(topic):
                if tree is None:
                    single = ConflatedChange[_Pending](b"", now_us, None, now, "", received_us)
                    self._give(shared, single, at_once=True)
                    continue
                key, looks_back = conflation_key(tree, shared.paths), False
            key = shared.key_in(name, topic.type_name, key)
            told = was if was_there and looks_back else None
            self._change(shared, key, told, now, now_us, changed.reason, received_us)
        reason = "match" if current is not None else changed.reason
        for shared in left:
            if not shared.is_by_record(topic):
                continue
            key = shared.key_in(name, topic.type_name, own_key)
            if shared.definition.looks_back:
                self._change(shared, key, was, None, now_us, reason, received_us)
            elif key in shared.conflator:
                self._change(shared, key, None, None, now_us, reason, received_us)

    def _passing_record(
        self, audience: TopicAudience, change: SowChange, record: SowRecord
    ) -> tuple[list[_SharedConflator], Tree | None]:
        context = NO_CONTEXT
        if audience.has_filters:
            context = around_record(record, change.name, self._instance, self._group)
        found, tree = self._passing(audience, change.topic.type, record.body or b"", context)
        wanted = [
            each
            for each in found
            if each.definition.sow_keys is None or record.key in each.definition.sow_keys
        ]
        return wanted, tree

    def _passing(
        self, audience: TopicAudience, kind: MessageType | None, body: bytes, context: EvalContext
    ) -> tuple[list[_SharedConflator], Tree | None]:
        """Returns the conflators whose filters a body passes, and the parsed body, where one of
        them needs it and it can be read."""
        leads = audience.every()
        tree: Tree | None = None
        has_filters = audience.has_filters
        if kind is not None and (has_filters or self._with_key):
            try:
                tree = kind.parse(body)
            except MessageTypeError:
                has_filters = False
            if has_filters and tree is not None:
                leads += self._audiences.filters_of(audience).matching(tree, context)
        return list(dict.fromkeys([self._led[each] for each in leads])), tree

    def _change(
        self,
        shared: _SharedConflator,
        key: bytes,
        before: _Pending | None,
        now: _Pending | None,
        now_us: int,
        reason: str,
        received_us: int,
    ) -> None:
        """Takes a change of a key: it waits for the end of the key's interval, or is given at once
        to a client that takes all."""
        conflator = shared.conflator
        own = shared.definition.own
        if own is not None and not conflator and self._takes(own.session):
            self._give(
                shared,
                ConflatedChange(key, now_us, before, now, reason, received_us),
                at_once=True,
            )
            return
        conflator.change(key, before, now, now_us, reason, received_us)
        self._touched[shared] = None
        if not shared.is_awaited:
            self._await(shared, now_us + (shared.definition.interval_us or AUTO_LOOK_US))

    # -- what is due ---------------------------------------------------------------------------
    def _await(self, shared: _SharedConflator, due_us: int) -> None:
        """Puts the time at which the conflator is looked at next into the queue."""
        shared.is_awaited = True
        self._made += 1
        heappush(self._due, (due_us, self._made, shared))

    def due(self, is_over: Callable[[], bool] = lambda: False) -> Iterator[Given]:
        """Yields what is due. Calls `wake` for what is due after that.

        Args:
            is_over: returns whether to stop for this turn: the rest follows in the next one.
        """
        self._awaited_us = None
        now_us = self._now_us()
        while self._due and self._due[0][0] <= now_us:
            _, _, shared = heappop(self._due)
            shared.is_awaited = False
            if not shared.members:
                continue
            self._touched[shared] = None
            own, conflator = shared.definition.own, shared.conflator
            takes = own is None or self._takes(own.session)
            if takes:
                for change in conflator.due(now_us, FLUSHED_AT_ONCE):
                    self._give(shared, change)
            next_us = conflator.next_due_us
            if next_us is not None:
                if own is not None:
                    next_us = now_us + (AUTO_NEXT_US if takes else AUTO_LOOK_US)
                self._await(shared, next_us)
            if is_over():
                break
        yield from self._close()

    def flush(self, subscription: LiveSubscription) -> Iterator[Given]:
        """Yields all that is pending for a subscription that is about to be replaced. It stays
        pending for others."""
        shared, _ = self._members[subscription]
        for change in shared.conflator.changes():
            self._give(shared, change, subscription)
        yield from self._close()

    def _close(self) -> Iterator[Given]:
        """Yields the open deliveries, charges the clients for what is pending, and asks to be
        called when the next key is due."""
        ready, self._ready = [*self._ready, *self._open.values()], []
        self._open.clear()
        for members, reason, content in ready:
            for member in members:
                yield member, reason, content
        for shared in self._touched:
            self._charge_for(shared)
        self._touched.clear()
        if self._due:
            due_us = self._due[0][0]
            if self._awaited_us is None or due_us < self._awaited_us:
                self._awaited_us = due_us
                self._wake(due_us)

    def _charge_for(self, shared: _SharedConflator) -> None:
        count = len(shared.members)
        share = shared.conflator.pending_bytes // count if count else 0
        difference = share - shared.charged_bytes
        if difference and (abs(difference) >= CHARGED_BYTES or not share):
            shared.charged_bytes = share
            for member in shared.members:
                self._charge(member.session, difference)

    def _give(
        self,
        shared: _SharedConflator,
        change: ConflatedChange[_Pending],
        only: LiveSubscription | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Adds a change to the deliveries of its subscribers.

        Args:
            only: the one subscriber that is told; None: all are.
            at_once: whether the change was never pending, so that all know the content before it.
        """
        self.given += 1
        if only is None and (at_once or shared.newest <= change.first_join):
            forms = _ConflatedForms(change, change.before, self._records)
            for terms, alike in shared.classes.items():
                self._add((shared, terms), alike, terms, change, forms)
            return
        made: list[tuple[_Pending | None, _ConflatedForms]] = []
        for member in shared.members if only is None else (only,):
            number = shared.members[member]
            if number > change.last_join:
                continue
            known = change.known_to(number)
            found = next((each for content, each in made if content is known), None)
            if found is None:
                found = _ConflatedForms(change, known, self._records)
                made.append((known, found))
            self._add(member, (member,), _terms(member), change, found)

    def _add(
        self,
        name: object,
        members: Iterable[LiveSubscription],
        terms: FollowTerms,
        change: ConflatedChange[_Pending],
        forms: _ConflatedForms,
    ) -> None:
        """Adds a change to a delivery that these subscribers share.

        Args:
            name: name of the open delivery.
        """
        record = forms.of(terms)
        if not record:
            return
        reason = "" if change.now is not None else change.reason
        open_ = self._open.get(name)
        if open_ is not None:
            content = open_.content
            apart_us = abs(content.receive_time_us - change.received_us)
            if (
                open_.reason == reason
                and apart_us <= STAMPS_APART_US_MAX
                and content.takes_one(0, len(record))
            ):
                content.add_one(record, forms.is_traced)
                return
            self._ready.append(open_)
        content = DeliveryContent(0, change.received_us)
        content.add_one(record, forms.is_traced)
        self._open[name] = _OpenDelivery(tuple(members), reason, content)

    # -- status --------------------------------------------------------------------------------
    def status(self) -> dict[str, int]:
        """Returns the state of the table for the instance's status."""
        conflators = [each.conflator for each in self._shared.values()]
        return {
            "subscriptions": len(self._members),
            "definitions": len(conflators),
            "pending": sum(map(len, conflators)),
            "pending_bytes": sum(each.pending_bytes for each in conflators),
            "given": self.given,
            "conflated": self._replaced + sum(each.replaced for each in conflators),
        }


class _ConflatedForms:
    """The forms of one change for subscribers that know the same content of its key.

    Args:
        known: the content that they know; None: they know of none.
    """

    __slots__ = ("_change", "_forms", "_known", "_records", "is_traced")

    def __init__(
        self,
        change: ConflatedChange[_Pending],
        known: _Pending | None,
        records: ChangedRecords,
    ) -> None:
        self._change = change
        self._known = known
        self._records = records
        self._forms: ChangeForms | None = None
        now = change.now
        brought = now.record if isinstance(now, _Message) else now and now.brought
        self.is_traced = brought is not None and bool(brought.trace)

    def of(self, terms: FollowTerms) -> bytes:
        """Returns the record that these subscribers get; empty: they get none."""
        now, known = self._change.now, self._known
        if isinstance(now, _Message):
            return self._records.of_message(now.record, terms.select, now.kind)
        assert not isinstance(known, _Message)
        if now is None:
            return self._of_record(known, now).gone(terms, True) if known and terms.oof else b""
        forms = self._of_record(known, now)
        return forms.delta(terms) if terms.delta and known is not None else forms.message(terms)

    def _of_record(self, known: _Content | None, now: _Content | None) -> ChangeForms:
        if self._forms is None:
            shown = now or known
            assert shown is not None
            changed = RecordChange(
                shown.record.key,
                None if known is None else known.record,
                None if now is None else now.record,
                self._change.reason,
            )
            brought = None if now is None else now.brought
            change = SowChange(shown.topic, shown.name, changed, brought)
            self._forms = ChangeForms(change, self._records)
        return self._forms
