"""Paginated subscriptions: each shows a window into the ordered records of a topic, and is told of
the rows that come into it, change in it and leave it (behaviour.md 4.4).

Subscriptions to the same topic with the same filter, order and keys share the order of its records
(windows.py), and those with the same window share that and the bytes of its messages. An order has
the place of each record and no bodies: a row that comes into a window is read from the topic.

An order is built in turns, with the records as they are when they are read; each commit's changes
are folded into it from the first turn on. A record that is folded twice keeps its place.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from raylay.services.errors import (
    CorruptRecord,
    MessageTypeError,
    RemoteProtocolError,
    StorageError,
)
from raylay.services.expressions.budgets import FilterBudget
from raylay.services.expressions.expression import Expression, filter_of, nodes
from raylay.services.expressions.functions.registry import NO_CONTEXT, Functions
from raylay.services.expressions.tree import Identifier
from raylay.services.messages.records import Run
from raylay.services.messages.types.base import MessageTypeTable
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.book import QueryWish
from raylay.services.sow.query.ordering import DescendingText, SortTerm, placing, read_order
from raylay.services.sow.query.planning import FOLLOWING, around_record, keys_to_look_at
from raylay.services.sow.query.projection import check_select
from raylay.services.sow.query.record_scan import PresentScan
from raylay.services.sow.records import SowRecord, decoded
from raylay.services.sow.state import RecordChange
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.changed_records import ChangedRecords, ChangeForms
from raylay.services.subscriptions.costly import FILTER_TOO_COSTLY, TOO_COSTLY, Efforts
from raylay.services.subscriptions.delivery import Given, OpenDeliveries
from raylay.services.subscriptions.filtered import surroundings_of
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    TopicFilter,
    nobody,
)
from raylay.services.subscriptions.windows import OrderedRows, RowPlace, RowWindow, WindowChange

ROW_BYTES = 260
"""Approximate memory of a row in an order, in addition to its key and the texts of its place."""
ORDER_BYTES_MAX = 1024 * 1024 * 1024
"""Limit on the memory of one order, unless another one is given."""
WINDOWS_IN_WEIGHT = 2
"""Number of windows that take as long, together, as the rest of a message."""

ORDERS_MAX = 1_000
"""Number of different orders at an instance. One user has half of them at most."""
PAGES_OF_USER_MAX = 2_000
"""Number of pages of one user, with those that share an order."""

PAGE_ROWS_MAX = 10_000
"""Number of rows of a page: they are looked up at once, in some milliseconds."""

TopicFinder = Callable[[QueryWish], Sequence[SowTopic]]
OrderKey = tuple[bytes, bytes, bytes, str, "tuple[SortTerm, ...]", "frozenset[bytes] | None"]
"""Topic and message type of an order, the topic that was asked for, the filter with the client's
values in it, the order, and the SOW keys."""


class PageOrder:
    """The records of one topic that pass one filter, in one order, with the windows into them.

    Owner: the table of paginated subscriptions. Lifecycle: as long as a subscription, or a query
    before it, uses it.

    Args:
        key: names the order among those of an instance.
        topic: the topic.
        filter_: the filter, with a work account of its own; None: all records pass.
        instance, group: name of the instance and of its group.

    Attributes:
        is_built: whether every record has its place. Until then no window is open.
        failure: the reason why the order cannot be used; None: none is known.
        rows: the places of the records, and the windows.
        members: the subscriptions of each window.
        users: number of subscriptions, and of queries before them, by session.
        payers: the same by the budget of their user, which pays for a part of the filter's work.
        memory_bytes: approximate memory of the order.
        waiting: functions that are called when it is built or has failed.
        number: names the order for people, among those of one life of the instance.
        written: the filter and the order, as its first user wrote them.
    """

    def __init__(
        self, key: OrderKey, topic: SowTopic, filter_: Expression | None, instance: str, group: str
    ) -> None:
        self.number = 0
        self.written = ("", "")
        self.key = key
        self.topic = topic
        self.filter = filter_
        self.rows = OrderedRows()
        self.members: dict[RowWindow, dict[LiveSubscription, None]] = {}
        self.users: Counter[int] = Counter()
        self.payers: Counter[FilterBudget] = Counter()
        self.memory_bytes = 0
        self.waiting: list[Callable[[], None]] = []
        self.is_built = False
        self.failure: RemoteProtocolError | None = None
        self._instance, self._group = instance, group
        _, _, asked, _, terms, self._keys = key
        self._logical = asked if topic.definition.pattern and asked != topic.name else b""
        self._place = placing(terms)
        self._parse = None
        self._asks_around = filter_ is not None and filter_.asks_around
        if filter_ is not None or terms:
            found = () if filter_ is None else nodes(filter_.tree)
            names = {each.steps[0] for each in found if isinstance(each, Identifier)}
            names |= {term.steps[0] for term in terms}
            self._parse = topic.type.parser_of(frozenset(map(str, names)))
        self._windows: dict[tuple[int, int], RowWindow] = {}
        self._scan: PresentScan | None = None
        self._wanted: list[bytes] = []
        self._read: list[SowRecord] = []
        """Records that were read and not judged yet, because judging those before took long."""

    @property
    def weight(self) -> int:
        """Returns the approximate cost of a record's change, as a multiple of the usual cost of a
        message."""
        return 1 + len(self._windows) // WINDOWS_IN_WEIGHT

    # -- the build -----------------------------------------------------------------------------
    def begin(self) -> None:
        """Begins to read the records. From now on `changed` takes each change."""
        state = self.topic.state
        wanted = keys_to_look_at(self.filter, self._keys, self.topic.indexes)
        if wanted is None:
            self._scan = state.present()
        else:
            # In reverse, because removal from the end is cheap.
            self._wanted = sorted(wanted, reverse=True)

    def build(self, most: int) -> int:
        """Reads the next records, and sets `is_built` behind the last one, or `failure`. Ends early
        where judging a record takes the filter long.

        Args:
            most: number of records, 1 or more.

        Returns:
            the number of bytes of the records that were read.

        Raises:
            CorruptRecord: an entry on disk is no record.
        """
        found = self._read or self._next(most)
        effort = None if self.filter is None else self.filter.effort
        before = 0 if effort is None else effort.steps
        size_bytes = judged = 0
        for record in found:
            self._put(record.key, record)
            size_bytes += len(record.body or b"")
            judged += 1
            if effort is not None and effort.steps != before:
                break
        self._read = found[judged:]
        if effort is not None and effort.given_up:
            self.failure = RemoteProtocolError(TOO_COSTLY, FILTER_TOO_COSTLY)
        elif not self._read and self._is_read:
            self._scan, self.is_built = None, True
        return size_bytes

    def _next(self, most: int) -> list[SowRecord]:
        if self._scan is not None:
            return [decoded(each[1:], value) for each, value in self._scan.take(most)]
        keys = [self._wanted.pop() for _ in range(min(most, len(self._wanted)))]
        found = map(self.topic.state.get, keys)
        return [record for record in found if record is not None]

    @property
    def _is_read(self) -> bool:
        return not self._wanted if self._scan is None else self._scan.done

    @property
    def refusal(self) -> RemoteProtocolError | None:
        """Returns why no subscription can use the order; None: it can, once it is built."""
        if self.filter is not None and self.filter.effort.is_stopped:
            return RemoteProtocolError(TOO_COSTLY, FILTER_TOO_COSTLY)
        if self.topic.refusal:
            return RemoteProtocolError(self.topic.refusal, "view_full")
        return self.failure

    @property
    def must_wait(self) -> bool:
        """Returns whether the build waits, because the filters of all its users have used too much
        work."""
        payers = self.payers
        return self.filter is not None and bool(payers) and all(each.is_low for each in payers)

    def answer(self) -> None:
        """Calls the functions that wait."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()

    # -- windows -------------------------------------------------------------------------------
    def open(self, subscription: LiveSubscription) -> None:
        wishes = subscription.following
        assert wishes is not None and wishes.page is not None
        bounds = wishes.page.skip, wishes.page.most
        window = self._windows.get(bounds)
        if window is None:
            window = self._windows[bounds] = self.rows.open(*bounds)
            self.members[window] = {}
        self.members[window][subscription] = None

    def close(self, subscription: LiveSubscription) -> None:
        window = self._window_of(subscription)
        del self.members[window][subscription]
        if not self.members[window]:
            del self.members[window], self._windows[window.skip, window.most]
            self.rows.close(window)

    def keys(self, subscription: LiveSubscription) -> list[bytes]:
        """Returns the keys of the rows that a subscription shows, in order."""
        return self.rows.keys(self._window_of(subscription))

    def _window_of(self, subscription: LiveSubscription) -> RowWindow:
        wishes = subscription.following
        assert wishes is not None and wishes.page is not None
        return self._windows[wishes.page.skip, wishes.page.most]

    # -- users ---------------------------------------------------------------------------------
    def used_by(self, session: int, payer: FilterBudget | None) -> None:
        self.users[session] += 1
        if payer is not None:
            if not self.payers[payer] and self.filter is not None:
                self.filter.effort.payers.append(payer)
            self.payers[payer] += 1

    def left_by(self, session: int, payer: FilterBudget | None) -> None:
        self.users[session] -= 1
        if not self.users[session]:
            del self.users[session]
        if payer is not None:
            self.payers[payer] -= 1
            if not self.payers[payer]:
                del self.payers[payer]
                if self.filter is not None:
                    self.filter.effort.payers.remove(payer)

    # -- records -------------------------------------------------------------------------------
    def wants(self, name: bytes) -> bool:
        """Returns whether records of a logical topic belong to the order."""
        return not self._logical or name == self._logical

    def changed(self, change: RecordChange) -> list[WindowChange]:
        """Takes the change of a record, and returns the windows that show a difference."""
        key, current = change.key, change.current
        if current is None:
            return self._remove(key)
        return self._put(key, current)

    def _put(self, key: bytes, record: SowRecord) -> list[WindowChange]:
        place = self._place_of(key, record)
        if place is None:
            return self._remove(key)
        before = self.rows.places.get(key)
        if before != place:
            self.memory_bytes += _memory_of(place)
            if before is not None:
                self.memory_bytes -= _memory_of(before)
        return self.rows.put(key, place)

    def _remove(self, key: bytes) -> list[WindowChange]:
        before = self.rows.places.get(key)
        if before is None:
            return []
        self.memory_bytes -= _memory_of(before)
        return self.rows.remove(key)

    def _place_of(self, key: bytes, record: SowRecord) -> RowPlace | None:
        """Returns the place of a record; None: it does not belong to the order."""
        if self._keys is not None and key not in self._keys:
            return None
        name = record.topic or self.topic.name
        if not self.wants(name):
            return None
        tree: Tree = {}
        if self._parse is not None:
            try:
                tree = self._parse(record.body or b"")
            except MessageTypeError:
                # As in a query: an unreadable record passes no filter, and is ordered like one
                # without fields.
                if self.filter is not None:
                    return None
        if self.filter is not None:
            around = NO_CONTEXT
            if self._asks_around:
                around = around_record(record, name, self._instance, self._group)
            if not self.filter.matches(tree, around):
                return None
        return self._place(tree, key)


class PageUse:
    """The use of an order by one subscription, or by the query before it.

    Owner: the user. Lifecycle: until `release`.

    Args:
        filter_: the user's own copy of the filter: as long as it exists, its memory counts for the
            user.
        payer: pays for a part of the filter's work; None: the work is not limited.
        left: called when the last use of an order has ended.
    """

    __slots__ = ("_filter", "_left", "_payer", "_session", "order")

    def __init__(
        self,
        order: PageOrder,
        session: int,
        filter_: Expression | None,
        payer: FilterBudget | None,
        left: Callable[[PageOrder], None],
    ) -> None:
        self.order = order
        self._session = session
        self._filter = filter_
        self._payer = payer
        self._left: Callable[[PageOrder], None] | None = left
        order.used_by(session, payer)

    def release(self) -> None:
        """Ends the use. Further calls have no effect."""
        left, self._left, self._filter = self._left, None, None
        if left is not None:
            self.order.left_by(self._session, self._payer)
            if not self.order.users:
                left(self.order)


def _memory_of(place: RowPlace) -> int:
    """Returns an estimate of the memory of a row in an order, in bytes."""
    size = ROW_BYTES + len(place[-1])
    for each in place[:-1]:
        if each.__class__ is str:
            size += sys.getsizeof(each)
        elif each.__class__ is DescendingText:
            size += sys.getsizeof(each.text)
    return size


class PagedSubscriptions:
    """All paginated subscriptions of an instance.

    Invariants: `_orders` has each order that a subscription or a query uses; a subscription in the
        table has a window of its order, which is built.
    Owner: the instance. Lifecycle: as long as the instance.

    Args:
        types: the message types, which parse bodies.
        functions: the functions that filters may use.
        topics: returns the topics with records that a subscription asks for.
        instance, group: name of the instance and of its group.
        asker: returns the client of a session, with the budget of its filters.
        full: called once with an order that takes more memory than it may, or of which a record
            cannot be read: its subscriptions are to end.
        order_bytes_max: limit on the memory of an order.
    """

    __slots__ = (
        "_asker",
        "_full",
        "_functions",
        "_group",
        "_instance",
        "_made",
        "_of",
        "_open",
        "_orders",
        "_over",
        "_records",
        "_topics",
        "order_bytes_max",
    )

    def __init__(
        self,
        types: MessageTypeTable,
        functions: Functions,
        topics: TopicFinder,
        instance: str,
        group: str,
        asker: Callable[[int], FilterOwner] = nobody,
        full: Callable[[PageOrder], None] = lambda order: None,
        order_bytes_max: int = ORDER_BYTES_MAX,
    ) -> None:
        self._records = ChangedRecords(types)
        self._functions = functions
        self._topics = topics
        self._instance = instance
        self._group = group
        self._asker = asker
        self._full = full
        self.order_bytes_max = order_bytes_max
        self._orders: dict[OrderKey, PageOrder] = {}
        self._made = 0
        """Number of orders that were ever begun."""
        self._over: dict[SowTopic, dict[PageOrder, None]] = {}
        """The orders of each topic."""
        self._of: dict[LiveSubscription, PageUse] = {}
        self._open = OpenDeliveries()

    def __len__(self) -> int:
        """Returns the number of subscriptions, with those whose query has not begun: their order
        needs each change, too."""
        return sum(order.users.total() for order in self._orders.values())

    def __contains__(self, subscription: LiveSubscription) -> bool:
        return subscription in self._of

    # -- orders --------------------------------------------------------------------------------
    def hold(
        self,
        session: int,
        wanted: TopicFilter,
        content: str,
        wishes: FollowTerms,
        topic: SowTopic | None = None,
    ) -> PageUse:
        """Begins the use of an order by a subscription that is about to be added. A new order is to
        be built (`PageOrder.build`).

        Args:
            topic: the topic of the records; None: the SOW topic that the subscription names.

        Raises:
            RemoteProtocolError: the subscription cannot have a page: `no_sow`, `not_supported`,
                `bad_message_type`, `bad_filter`, `bad_order_by`, `bad_select`, `too_many`
                or `too_large`.
        """
        page = wishes.page
        assert page is not None
        if page.most > PAGE_ROWS_MAX:
            raise RemoteProtocolError(
                f"a page has at most {PAGE_ROWS_MAX:,} rows, and top_n is {page.most}: ask for "
                "fewer, or follow all records without top_n",
                "too_large",
            )
        asker = self._asker(session)
        topic = topic or self._topic_of(wanted)
        found = None
        if content:
            client = surroundings_of(asker)
            found = filter_of(content, FOLLOWING, self._functions, client, asker.budget)
        terms = read_order(page.order_by) if page.order_by else ()
        if wishes.select:
            check_select(wishes.select)
        text = "" if found is None else found.text
        key = topic.name, topic.type_name, wanted.topic, text, terms, wishes.keys
        order = self._orders.get(key)
        self._check_count(order, asker.budget)
        if order is None:
            own = None if found is None else found.own()
            order = PageOrder(key, topic, own, self._instance, self._group)
            self._made += 1
            order.number, order.written = self._made, (content, page.order_by)
            order.begin()
            self._orders[key] = order
            self._over.setdefault(topic, {})[order] = None
        return PageUse(order, session, found, asker.budget, self._forget)

    def _check_count(self, order: PageOrder | None, payer: FilterBudget | None) -> None:
        """Checks the number of pages, and of different orders: each change costs time for each.

        Args:
            order: the order that is about to be used; None: a new one.
        """
        problem = ""
        if payer is not None:
            counts = [each.payers[payer] for each in self._orders.values() if payer in each.payers]
            if sum(counts) >= PAGES_OF_USER_MAX:
                problem = f"this user has {PAGES_OF_USER_MAX:,} pages"
            elif order is None and len(counts) >= ORDERS_MAX // 2:
                problem = f"this user has pages in {ORDERS_MAX // 2:,} different orders"
        if order is None and len(self._orders) >= ORDERS_MAX:
            problem = f"there are pages in {ORDERS_MAX:,} different orders"
        if problem:
            raise RemoteProtocolError(
                f"{problem} at {self._instance}: unsubscribe some, or ask for the same topic, "
                "filter and order as other subscriptions",
                "too_many",
            )

    def _topic_of(self, wanted: TopicFilter) -> SowTopic:
        if wanted.shown_as:
            # An aggregation is found by no name: the query before the subscription holds its order.
            return next(each for each in self._over if each.name == wanted.topic)
        name = wanted.topic.decode("utf-8", "replace")[:200]
        if wanted.pattern is not None:
            raise RemoteProtocolError(
                f"{name!r} is a regular expression, and the rows of a page are those of one topic: "
                "name it, or leave out top_n",
                "not_supported",
            )
        found = self._topics(wanted)
        if not found:
            raise RemoteProtocolError(
                f"no SOW topic of {self._instance} is {name!r}: a page shows records; declare it "
                "in the configuration, under sow_topics, or leave out top_n",
                "no_sow",
            )
        if len(found) > 1:
            kinds = ", ".join(each.definition.message_type for each in found)
            raise RemoteProtocolError(
                f"{name!r} is a SOW topic of several message types ({kinds}), and a page shows "
                "records of one: name the message type",
                "bad_message_type",
            )
        (topic,) = found
        if topic.definition.pattern and topic.name == wanted.topic and wanted.readable is not None:
            raise RemoteProtocolError(
                f"{name!r} has records of many topics, of which permissions may close some: name "
                "one of its topics, or leave out top_n",
                "not_supported",
            )
        return topic

    def _forget(self, order: PageOrder) -> None:
        del self._orders[order.key]
        over = self._over[order.topic]
        del over[order]
        if not over:
            del self._over[order.topic]

    # -- subscriptions -------------------------------------------------------------------------
    def add(self, subscription: LiveSubscription) -> None:
        """Adds a subscription with its options. An order that is not built yet is built at once.

        Raises:
            RemoteProtocolError: it cannot have a page, see `hold`; or its order takes too much
                memory: `too_large`.
        """
        wishes = subscription.following
        assert wishes is not None
        use = self.hold(subscription.session, subscription.filter, subscription.content, wishes)
        order = use.order
        while not order.is_built and order.refusal is None:
            order.build(1_000)
            self.check(order)
        refusal = order.refusal
        if refusal is not None:
            use.release()
            raise refusal
        order.open(subscription)
        self._of[subscription] = use

    def remove(self, subscription: LiveSubscription) -> None:
        use = self._of.pop(subscription)
        use.order.close(subscription)
        use.release()

    def keys(self, subscription: LiveSubscription) -> list[bytes]:
        """Returns the keys of the rows that a subscription shows, in order."""
        return self._of[subscription].order.keys(subscription)

    def count(self, subscription: LiveSubscription) -> int:
        """Returns the number of records that pass a subscription's filter."""
        return len(self._of[subscription].order.rows.places)

    def topic(self, subscription: LiveSubscription) -> SowTopic:
        """Returns the topic whose records a subscription shows."""
        return self._of[subscription].order.topic

    def number(self, subscription: LiveSubscription) -> int | None:
        """Returns the number of a subscription's order; None: the table does not have the
        subscription."""
        use = self._of.get(subscription)
        return None if use is None else use.order.number

    def status(self) -> list[dict[str, object]]:
        """Returns the state of each order, for the instance's status."""
        return [
            {
                "number": order.number,
                "topic": (order.topic.shown_as or order.topic.name).decode("utf-8", "replace"),
                "message_type": order.topic.definition.message_type,
                "filter": order.written[0],
                "order_by": order.written[1],
                "records": len(order.rows.places),
                "windows": len(order.members),
                "subscriptions": sum(map(len, order.members.values())),
                "memory_bytes": order.memory_bytes,
                "is_built": order.is_built,
            }
            for order in self._orders.values()
        ]

    def members(self, order: PageOrder) -> list[LiveSubscription]:
        """Returns the subscriptions of an order."""
        return [each for members in order.members.values() for each in members]

    def kept_bytes(self) -> Counter[int]:
        """Returns each session's part of the memory of its orders, which it shares with the other
        users of each."""
        found: Counter[int] = Counter()
        for order in self._orders.values():
            each_bytes = order.memory_bytes // order.users.total()
            for session, count in order.users.items():
                found[session] += each_bytes * count
        return found

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of all orders."""
        return sum(order.memory_bytes for order in self._orders.values())

    def check(self, order: PageOrder) -> None:
        """Lets an order fail that takes more memory than it may."""
        if order.memory_bytes > self.order_bytes_max and order.failure is None:
            name = order.topic.definition.name
            order.failure = RemoteProtocolError(
                f"the order of the {len(order.rows.places):,} records of {name[:200]!r} takes more "
                f"than {self.order_bytes_max:,} bytes: give a filter that fewer records pass",
                "too_large",
            )
            self._full(order)

    # -- what a commit costs -------------------------------------------------------------------
    def with_efforts(self, efforts: Efforts) -> set[LiveSubscription]:
        """Returns the subscriptions whose filter has one of these work accounts
        (services/expressions/work.py)."""
        return {
            subscription
            for subscription, use in self._of.items()
            if use.order.filter is not None and use.order.filter.effort in efforts
        }

    def unknown_us(self, topic: bytes, message_type: bytes) -> int:
        """Returns 0: no pattern is compared with a topic."""
        return 0

    def weight(self, topic: bytes, message_type: bytes) -> int:
        """Returns the cost of a topic's messages, as a multiple of the usual cost of a message; 0:
        no subscription shows the topic."""
        return sum(
            order.weight
            for found, orders in self._over.items()
            if found.fits(topic, message_type)
            for order in orders
        )

    # -- deliveries ----------------------------------------------------------------------------
    def deliveries(
        self, runs: Iterable[Run], changed: Sequence[SowChange] = (), *, journaled: bool = True
    ) -> Iterator[Given]:
        """Yields what each subscription gets of a commit, in the order of the log.

        Args:
            changed: the changes that the commit made to records of SOW topics, and expired records.
            journaled: whether the topics are journaled; no other topic has a SOW.
        """
        over = self._over
        if not over or not changed:
            return
        received_us = next((run.receive_time_us for run in runs), 0)
        values = _RecordValues(changed)
        for number, change in enumerate(changed):
            for order in tuple(over.get(change.topic, ())):
                if order.failure is None and order.wants(change.name):
                    found = order.changed(change.change)
                    if found:
                        rows = _ChangedRows(number, change, values, self._records)
                        try:
                            for each in found:
                                yield from self._given(order, each, rows, received_us)
                        except (StorageError, CorruptRecord) as error:
                            # A row that came in cannot be read: the commit itself did not need it.
                            order.failure = RemoteProtocolError(str(error), "storage_error")
                            self._full(order)
                    if order.memory_bytes > self.order_bytes_max:
                        self.check(order)
        yield from self._open.close()

    def _given(
        self, order: PageOrder, window: WindowChange, rows: _ChangedRows, received_us: int
    ) -> Iterator[Given]:
        """Yields what the subscriptions of one window get."""
        _, came, left, updated = window
        for subscription in order.members[window.window]:
            wishes = subscription.following
            assert wishes is not None
            if left is not None and wishes.oof:
                reason, made = rows.left(left, wishes, order)
                yield from self._open.add(subscription, reason, 0, received_us, made, False)
            if came is not None:
                txid, made, traced = rows.came(came, wishes)
                yield from self._open.add(subscription, "", txid, received_us, made, traced)
            if updated is not None:
                txid, made, traced = rows.updated(wishes)
                if made:
                    yield from self._open.add(subscription, "", txid, received_us, made, traced)


class _RecordValues:
    """The records that a commit changes, as each was between its changes: the topics themselves
    have the values behind the last one."""

    __slots__ = ("_changed", "_numbers")

    def __init__(self, changed: Sequence[SowChange]) -> None:
        self._changed = changed
        self._numbers: dict[tuple[int, bytes], list[int]] | None = None

    def behind(self, number: int, topic: SowTopic, key: bytes) -> SowRecord | None:
        """Returns the record of a key behind the change of a number."""
        if number + 1 == len(self._changed):
            return topic.state.get(key)
        if self._numbers is None:
            self._numbers = {}
            for at, change in enumerate(self._changed):
                self._numbers.setdefault((id(change.topic), change.change.key), []).append(at)
        found = self._numbers.get((id(topic), key), ())
        later = bisect_right(found, number)
        if later == len(found):
            return topic.state.get(key)
        return self._changed[found[later]].change.previous


class _ChangedRows:
    """The messages about the rows that one change of a record moves, each built once."""

    __slots__ = ("_change", "_forms", "_number", "_records", "_values")

    def __init__(
        self, number: int, change: SowChange, values: _RecordValues, records: ChangedRecords
    ) -> None:
        self._number = number
        self._change = change
        self._values = values
        self._records = records
        self._forms: dict[bytes, ChangeForms] = {}

    def _own(self) -> ChangeForms:
        found = self._forms.get(b"")
        if found is None:
            found = self._forms[b""] = ChangeForms(self._change, self._records)
        return found

    def _neighbour(self, key: bytes) -> ChangeForms:
        """Returns the forms of a row that has not changed, but was pushed in or out."""
        found = self._forms.get(key)
        if found is None:
            topic = self._change.topic
            record = self._values.behind(self._number, topic, key)
            if record is None:
                raise CorruptRecord(
                    f"SOW topic {topic.definition.name} lacks a record that it never lost"
                )
            change = RecordChange(key, record, record, "updated")
            name = record.topic or topic.name
            found = self._forms[key] = ChangeForms(
                SowChange(topic, name, change, None), self._records
            )
        return found

    def left(self, key: bytes, wishes: FollowTerms, order: PageOrder) -> tuple[str, bytes]:
        """Returns the reason and the out-of-focus notice of a row that left a window."""
        change = self._change.change
        if key != change.key or key in order.rows.places:
            return "match", self._neighbour(key).gone(wishes)
        reason = "match" if change.current is not None else change.reason
        return reason, self._own().gone(wishes)

    def came(self, key: bytes, wishes: FollowTerms) -> tuple[int, bytes, bool]:
        """Returns the transaction, the message and whether it is traced, of a row that came into a
        window. A neighbour's transaction is long past, and counts as none."""
        if key != self._change.change.key:
            return 0, self._neighbour(key).message(wishes), False
        return self._with_transaction(self._own().message(wishes))

    def updated(self, wishes: FollowTerms) -> tuple[int, bytes, bool]:
        """Returns the same of a row that changed in a window. Without bytes, nothing is to be
        given."""
        forms = self._own()
        # A delta needs the record as it was.
        is_delta = wishes.delta and self._change.change.previous is not None
        return self._with_transaction(forms.delta(wishes) if is_delta else forms.message(wishes))

    def _with_transaction(self, made: bytes) -> tuple[int, bytes, bool]:
        current, record = self._change.change.current, self._change.record
        assert current is not None
        return current.txid, made, record is not None and bool(record.trace)
