"""The paginated subscriptions of an instance's clients: the orders of their records are built in
turns of the loop, before the queries of the subscriptions begin."""

from __future__ import annotations

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylay.services.errors import CorruptRecord, RemoteProtocolError, StorageError
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.turns import SpacedTurns
from raylay.services.subscriptions.follow_terms import FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, TopicFilter

if TYPE_CHECKING:
    # Most instances have no paginated subscriptions, and need not load the filter language.
    from raylay.services.sow.query.query_parser import PageRows
    from raylay.services.sow.topic import SowTopic
    from raylay.services.subscriptions.pages import PagedSubscriptions, PageOrder, PageUse

TURN_S = 0.001
"""Time, in seconds, that all builds together have in a turn of the loop."""
READ_AT_ONCE = 128
"""Number of records between two reads of the clock, at most."""
_READ_BYTES = 128 * 1024


class PagePreparation:
    """The wait of a query until the order of its page is built (`Preparation`).

    Owner: the query. Lifecycle: until the query ends.
    """

    __slots__ = ("_dropped", "_use")

    def __init__(self, use: PageUse, dropped: Callable[[], None]) -> None:
        self._use = use
        self._dropped = dropped

    @property
    def is_ready(self) -> bool:
        """Returns whether the order is built, or can never be used: the query is then refused when
        it begins."""
        order = self._use.order
        return order.is_built or order.refusal is not None

    def when_ready(self, ready: Callable[[str], None]) -> None:
        """Sets the function that is called when the query can begin."""
        self._use.order.waiting.append(lambda: ready(""))

    def release(self) -> None:
        """Ends the query's use of the order."""
        self._use.release()
        self._dropped()


class ClientPages:
    """See the file's docstring.

    Owner: the clients' sessions. Lifecycle: one life of the instance.

    Args:
        make: makes the table of paginated subscriptions, when the first one comes.
        look_on: called when an order is begun or dropped: the table gets each commit's changes as
            long as it has one.
        charge: changes the bytes that a session's client is charged.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        make: Callable[[], PagedSubscriptions],
        look_on: Callable[[], None],
        charge: Callable[[int, int], None],
    ) -> None:
        self._runtime = runtime
        self._make = make
        self._look_on = look_on
        self._charge = charge
        self._charged: Counter[int] = Counter()
        """Bytes that each session is charged."""
        self._table: PagedSubscriptions | None = None
        self._building: deque[PageOrder] = deque()
        self._turns = SpacedTurns(runtime, self._turn)

    @property
    def table(self) -> PagedSubscriptions:
        """Returns the table of paginated subscriptions."""
        if self._table is None:
            self._table = self._make()
        return self._table

    def prepare(
        self,
        session: int,
        wanted: TopicFilter,
        content: str,
        terms: FollowTerms,
        topic: SowTopic | None = None,
    ) -> PagePreparation:
        """Begins to build the order of a page, unless there is an equal one.

        Args:
            topic: the topic of the records; None: the SOW topic that the subscription names.

        Raises:
            RemoteProtocolError: the subscription cannot have a page, see `PagedSubscriptions.hold`.
        """
        use = self.table.hold(session, wanted, content, terms, topic)
        order = use.order
        found = PagePreparation(use, self._look_on)
        if not found.is_ready and order not in self._building:
            self._building.append(order)
            self._turns.schedule()
        self._look_on()
        return found

    def rows(self, subscription: LiveSubscription, before: LiveSubscription | None) -> PageRows:
        """Returns the rows with which a subscription begins.

        Args:
            before: the paginated subscription that it replaces; None: it replaces none.
        """
        from raylay.services.sow.query.query_parser import PageRows

        table = self.table
        return PageRows(
            table.topic(subscription),
            table.keys(subscription),
            table.count(subscription),
            () if before is None else table.keys(before),
        )

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of all orders."""
        return 0 if self._table is None else self._table.memory_bytes

    def status(self) -> list[dict[str, object]]:
        """Returns the state of each order; empty: there never was a page."""
        return [] if self._table is None else self._table.status()

    def number(self, subscription: LiveSubscription) -> int | None:
        """Returns the number of the order that a subscription shows a page of; None: it is no
        paginated subscription, or its query has not begun."""
        return None if self._table is None else self._table.number(subscription)

    def check(self) -> None:
        """Called now and then. Charges the clients for what their orders take, and lets builds go
        on that waited because their users' filters worked too much."""
        if self._building:
            self._turns.schedule()
        if self._table is not None:
            self._charge_all(self._table)

    def _charge_all(self, table: PagedSubscriptions) -> None:
        before, self._charged = self._charged, table.kept_bytes()
        for session in before.keys() | self._charged.keys():
            difference_bytes = self._charged[session] - before[session]
            if difference_bytes:
                self._charge(session, difference_bytes)

    def _turn(self) -> bool:
        """Reads records of each order that is being built, until the time is over. Returns whether
        any can go on at once."""
        clock = time.perf_counter
        until_s = clock() + TURN_S
        waiting: list[PageOrder] = []
        most = READ_AT_ONCE
        while self._building and clock() < until_s:
            order = self._building[0]
            if not order.users:
                self._building.popleft()
            elif order.must_wait:
                waiting.append(self._building.popleft())
            else:
                read_bytes = self._build(order, most)
                most = max(1, min(READ_AT_ONCE, most * _READ_BYTES // (read_bytes + 1)))
                if order.is_built or order.refusal is not None:
                    self._building.popleft()
                    order.answer()
        self._charge_all(self.table)
        can_go_on = bool(self._building)
        self._building.extend(waiting)
        return can_go_on

    def _build(self, order: PageOrder, most: int) -> int:
        """Reads records of an order. Returns the number of their bytes."""
        try:
            found = order.build(most)
            self.table.check(order)
        except (StorageError, CorruptRecord) as error:
            order.failure = RemoteProtocolError(str(error), "storage_error")
        except Exception as error:
            # A build changes no state: an unforeseen error ends its queries alone.
            name = self._runtime.config.name
            order.failure = RemoteProtocolError(
                f"{name} failed to order the records ({type(error).__name__}): its events have why",
                "internal_error",
            )
            why = "".join(traceback.format_exception(error))
            topic = order.topic.definition.name
            self._runtime.report("query_failed", topic=topic, text=why)
        else:
            return found
        return 0
