"""Queries of SOW topics, performed in turns on the event loop, so that other work comes in between.

The queries of one client run one after the other; those of several clients take turns. A query
returns the state of the moment when it began, and its subscription begins at the same moment: what
is folded later arrives as a change, so that nothing is delivered twice or missed. Deliveries to the
client wait meanwhile behind the rows (subscriptions/deferred_deliveries.py), and are sent in turns
likewise, before the next query begins. A client that does not read holds up only its own queries.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from raylay.services.core.live import LiveSubscriptions
from raylay.services.errors import CorruptRecord, RemoteProtocolError, StorageError
from raylay.services.messages.bookmarks import Position, parse_point
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.plugins.filters import sow_query_parser
from raylay.services.protocol.client.commands import SowCommand, Subscribe
from raylay.services.security.retained_bytes import RetainedClaim
from raylay.services.server.clients.historical_queries import HistoricalQueries, HistoricalQuery
from raylay.services.server.clients.pages import ClientPages, PagePreparation
from raylay.services.server.clients.replay_members import ReplayClient
from raylay.services.server.clients.unbuilt_queries import UnbuiltQueries, UnbuiltQuery
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.server.turns import SpacedTurns
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayContent
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries
from raylay.services.subscriptions.delivery import DeliveryContent, DeliverySink
from raylay.services.subscriptions.follow_terms import AggregationTerms, FollowTerms, PageTerms
from raylay.services.subscriptions.matching import (
    FilterOwner,
    LiveSubscription,
    TopicFilter,
    topic_filter,
)

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the filter language and the parsers.
    from raylay.services.security.row_filters import RowFilters
    from raylay.services.sow.query.query_execution import QueryExecution
    from raylay.services.sow.query.query_parser import ParsedQuery, QueryParser, ReplacedQuery
    from raylay.services.views.aggregated import AggregatedUse

TURN_S = 0.001
"""Time, in seconds, that all queries together have in a turn of the loop; a step that has begun
goes on for a fraction of that."""
WEIGHED_BYTES = 256 * 1024
"""Growth of a query's kept bytes since it was last weighed, after which it is weighed again."""
TOPICS_COUNTED_MAX = 10_000
QUERIES_MAX = 10_000
"""Limit on the queries of one connection that wait or run."""


class QueryingClient(ReplayClient, DeliverySink, Protocol):
    """The client of a query (`ClientConnection`)."""

    message_types: frozenset[bytes]
    may_write: bool

    @property
    def readable(self) -> Callable[[bytes], bool] | None:
        """Returns the test whether the client may read a topic that a regular expression matches;
        None: it may read all."""

    @property
    def rows(self) -> RowFilters | None:
        """Returns the row filters of topics that the client may read in part; None: there are
        none."""

    @property
    def takes_rows(self) -> bool:
        """Returns whether more rows may be sent now."""

    def weigh(self) -> None:
        """Counts the client's kept bytes anew, after they have grown."""

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """Sends a frame that lies in several pieces."""

    def hold(self, behind: DeferredDeliveries | None) -> None:
        """Sends the client's deliveries to this holder from now on; None: to the client again,
        behind those that were held."""


class Preparation(Protocol):
    """The part of a query that is made in turns before the query begins: the ordered rows of a
    paginated subscription, or the groups of an aggregated one."""

    @property
    def is_ready(self) -> bool:
        """Returns whether the query can begin."""

    def when_ready(self, ready: Callable[[str], None]) -> None:
        """Sets the function that is called, once, when the query can begin, with an empty text; or
        when it never can, with the reason as a sentence."""

    def release(self) -> None:
        """Notes that the query ended before it began, or was refused."""


class _Query(NamedTuple):
    """A query that was accepted."""

    sow: SowCommand
    subscribe: Subscribe | None
    wanted: TopicFilter
    asked: ParsedQuery
    historical: HistoricalQuery | None = None
    """The bookmark's part of the query, whose replay comes behind the rows."""
    claim: RetainedClaim | None = None
    """The claim on memory for the query's keys."""
    aggregated: AggregatedUse | None = None
    """The aggregation whose groups are the rows; None: the rows are the topic's records."""
    terms: FollowTerms | None = None
    """The options of the subscription that begins with the query; None: none does."""
    preparation: Preparation | None = None
    """The part that has to be made before the query begins; None: there is none."""
    page: PagePreparation | None = None
    """The order of the page, which is made behind that; None: there is no page."""

    def release(self) -> None:
        if self.claim is not None:
            self.claim.release()
        if self.preparation is not None:
            self.preparation.release()
        if self.page is not None:
            self.page.release()


class _ClientQueries:
    """The queries of one client.

    Invariant: while a query runs, deliveries to the client wait behind it, and then until all held
    ones are sent (`behind`): no other query begins before.
    """

    __slots__ = ("behind", "connection", "is_queued", "query", "running", "waiting")

    def __init__(self, connection: QueryingClient) -> None:
        self.connection = connection
        self.waiting: deque[_Query] = deque()
        self.query: _Query | None = None
        self.running: QueryExecution | None = None
        self.behind: DeferredDeliveries | None = None
        self.is_queued = False

    def __len__(self) -> int:
        return len(self.waiting) + (self.query is not None)

    def names(self, name: str) -> bool:
        return (self.query is not None and self.query.sow.query == name) or any(
            each.sow.query == name for each in self.waiting
        )


class QueryRunner:
    """Runs the queries of clients, one after the other for each session.

    Invariant: a session that has work to do, and whose client takes it, is in `_ready`, once.
    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        sow: the SOW topics of the instance.
        live: the subscriptions without a bookmark.
        unsubscribe: ends a subscription.
        replaced: ends a subscription in whose place another one begins.
        asker: returns the client and the filter budget of a session.
        rewinding: the queries with a bookmark, whose replay follows the rows.
        pages: the paginated subscriptions.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        sow: SowManager,
        live: LiveSubscriptions,
        unsubscribe: Callable[[LiveSubscription | BookmarkSubscription], None],
        replaced: Callable[[LiveSubscription | BookmarkSubscription], None],
        asker: Callable[[int], FilterOwner],
        rewinding: HistoricalQueries,
        pages: ClientPages,
    ) -> None:
        self._runtime = runtime
        self._sow = sow
        self._live = live
        self._unsubscribe = unsubscribe
        self._replaced = replaced
        self._asker = asker
        self._rewinding = rewinding
        self._pages = pages
        self._historical: dict[HistoricalQuery, tuple[QueryingClient, _Query]] = {}
        """Historical queries that cannot begin yet, because their bookmark is being looked up."""
        self._unbuilt = UnbuiltQueries(self.ask)
        sow.when_built(self._unbuilt.go_on)
        self._preparing: dict[Preparation, tuple[QueryingClient, _Query]] = {}
        """Queries that cannot begin yet, because something is made for them."""
        self._parser: QueryParser | None = None
        self._sessions: dict[int, _ClientQueries] = {}
        self._ready: deque[_ClientQueries] = deque()
        self._turns = SpacedTurns(runtime, self._turn)
        self.rows = 0
        """Number of rows sent in this life of the instance."""
        self.asked: Counter[str] = Counter()
        """Number of queries by topic, of `TOPICS_COUNTED_MAX` topics at most."""

    def __len__(self) -> int:
        """The number of queries that run or wait, with those that are being prepared."""
        waiting = len(self._historical) + len(self._preparing) + len(self._unbuilt)
        return sum(map(len, self._sessions.values())) + waiting

    def names(self, connection: QueryingClient, name: str) -> bool:
        """Returns whether a query of this id runs or waits."""
        session = self._sessions.get(connection.number)
        if session is not None and session.names(name):
            return True
        return any(
            asking is connection and query.sow.query == name
            for asking, query in self._preparing.values()
        ) or self._unbuilt.names(connection, name)

    def running(self, shown_max: int) -> list[dict[str, object]]:
        """Returns the queries that run or wait, those that run first in each session.

        Args:
            shown_max: most queries that are returned.
        """
        every = (
            (session.connection, query, query is session.query)
            for session in self._sessions.values()
            for query in (session.query, *session.waiting)
            if query is not None
        )
        return [
            {
                "client": connection.number,
                "client_name": connection.client_name,
                "query": query.sow.query,
                "topic": query.sow.topic,
                "message_type": query.sow.message_type,
                "filter": query.sow.filter,
                "is_running": is_running,
            }
            for connection, query, is_running in islice(every, shown_max)
        ]

    # -- accepting and ending queries ----------------------------------------------------------
    def ask(
        self,
        connection: QueryingClient,
        sow: SowCommand,
        subscribe: Subscribe | None = None,
        position: Position | None = None,
        content: ReplayContent | None = None,
        claim: RetainedClaim | None = None,
    ) -> None:
        """Accepts a query, and begins it if no other query of the client runs.

        Args:
            claim: the claim on memory for the query's keys; released when the query ends or is
                refused.
            position: the position of the subscription's bookmark, if it has one.
            content: the filter of the replay's deliveries, if there is a bookmark; None: all are
                delivered.

        Raises:
            RemoteProtocolError: the query is refused.
        """
        session = self._session(connection)
        try:
            if len(session) + self._unbuilt.number_of(connection) >= QUERIES_MAX:
                raise RemoteProtocolError(
                    f"{QUERIES_MAX} queries of this connection wait: read their rows first",
                    "too_many",
                )
            if self._sow.is_building and self._sow.is_unbuilt(_wanted(connection, sow)):
                self._unbuilt.add(
                    UnbuiltQuery(connection, sow, subscribe, position, content, claim)
                )
                return
            query = self._accepted(connection, sow, subscribe)._replace(claim=claim)
        except Exception:
            if claim is not None:
                claim.release()
            raise
        if sow.topic in self.asked or len(self.asked) < TOPICS_COUNTED_MAX:
            self.asked[sow.topic] += 1
        if "received" in sow.acks:
            self._accept("received", connection, sow)
        if subscribe is not None and position is not None:
            assert self._parser is not None
            histories = self._parser.granularities_us(query.wanted)
            historical = HistoricalQuery(
                connection, subscribe, query.wanted, position, content, histories, self._is_ready
            )
            self._historical[historical] = connection, query._replace(historical=historical)
            self._rewinding.begin(historical)
            return
        self._accept("processed", connection, sow)
        if subscribe is not None and sow.query not in connection.subscriptions:
            connection.resolving[sow.query] = subscribe
        self._prepare(session, query)

    def _prepare(self, session: _ClientQueries, query: _Query) -> None:
        """Begins a query, once everything is made that it needs."""
        connection, terms, found = session.connection, query.terms, query.preparation
        if found is None or found.is_ready:
            if terms is not None and terms.page is not None and query.page is None:
                try:
                    query = query._replace(page=self._paged(connection, query, terms))
                except RemoteProtocolError as error:
                    self._failed(session, query, error)
                    return
            found = query.page
        if found is None or found.is_ready:
            self._put(session, query)
            return
        self._preparing[found] = connection, query
        found.when_ready(partial(self._is_prepared, found))

    def _paged(
        self, connection: QueryingClient, query: _Query, terms: FollowTerms
    ) -> PagePreparation:
        use = query.aggregated
        if use is None:
            return self._pages.prepare(connection.number, query.wanted, query.sow.filter, terms)
        return self._pages.prepare(connection.number, use.wanted, "", terms, use.topic)

    def _is_prepared(self, preparation: Preparation, refusal: str) -> None:
        """Begins a query for which everything is made, or tells the client why it never is."""
        asked = self._preparing.pop(preparation, None)
        if asked is None:
            return
        connection, query = asked
        session = self._session(connection)
        if refusal:
            self._failed(session, query, RemoteProtocolError(refusal, "view_full"))
        else:
            self._prepare(session, query)

    def _forget_preparing(
        self, connection: QueryingClient, names: Collection[str] | None = None
    ) -> None:
        for preparation, (asking, query) in list(self._preparing.items()):
            if asking is connection and (names is None or query.sow.query in names):
                del self._preparing[preparation]
                query.release()

    def _session(self, connection: QueryingClient) -> _ClientQueries:
        session = self._sessions.get(connection.number)
        # A session without a query may still have held deliveries to send.
        return _ClientQueries(connection) if session is None else session

    def _accept(
        self,
        kind: str,
        connection: QueryingClient,
        sow: SowCommand,
        missing: PublisherRanges | None = None,
    ) -> None:
        if kind not in sow.acks and sow.acks:
            return
        codec, name, command_id = connection.codec, sow.query, sow.command_id
        if missing:
            connection.send(codec.ranges_ack(kind, name, None, command_id, missing))
        else:
            connection.send(codec.acknowledgment(kind, command_id, sub=name))

    def _put(self, session: _ClientQueries, query: _Query) -> None:
        self._sessions[session.connection.number] = session
        session.waiting.append(query)
        if session.query is None:
            self._begin_next(session)

    def _is_ready(self, historical: HistoricalQuery) -> None:
        """Goes on with a historical query once its replay's start is known, or it was ended or
        refused."""
        session = self._sessions.get(historical.connection.number)
        asked = self._historical.pop(historical, None)
        if not historical.is_wanted:
            return
        if asked is not None:
            connection, query = asked
            self._put(self._session(connection), query)
            return
        if (
            session is not None
            and session.query is not None
            and session.query.historical is historical
        ):
            self._kick(session)

    def _accepted(
        self, connection: QueryingClient, sow: SowCommand, subscribe: Subscribe | None
    ) -> _Query:
        from raylay.services.sow.query.query_parser import QueryRequest
        from raylay.services.subscriptions.filtered import surroundings_of

        wanted = _wanted(connection, sow)
        as_of_us = _as_of_us(sow.as_of) if sow.as_of else 0
        asker = self._asker(connection.number)
        if sow.projection:
            return self._accepted_aggregation(connection, sow, subscribe, wanted)
        question = QueryRequest(
            wanted,
            sow.filter,
            sow.select,
            sow.order_by,
            sow.top_n,
            sow.skip_n,
            sow.batch,
            sow.keys,
            as_of_us,
            subscribe is not None,
            surroundings_of(asker),
            asker.budget,
        )
        accepted = self._query_parser().accept(question)
        terms = None if subscribe is None else _follow_terms(connection, sow, subscribe, wanted)
        query = _Query(sow, subscribe, wanted, accepted, terms=terms)
        if terms is not None and terms.page is not None:
            query = query._replace(page=self._paged(connection, query, terms))
        return query

    def _accepted_aggregation(
        self,
        connection: QueryingClient,
        sow: SowCommand,
        subscribe: Subscribe | None,
        wanted: TopicFilter,
    ) -> _Query:
        from raylay.services.sow.query.query_parser import QueryRequest

        types = {each.type_name.decode() for each in self._sow.book.matching(wanted)}
        if not types:
            allowed = wanted.message_types
            found = self._sow.queue_types(sow.topic)
            types = {each for each in found if not allowed or each.encode() in allowed}
        terms = aggregation_terms(sow, wanted, types)
        number = connection.number
        use = self._sow.aggregate(terms, self._asker(number), number, follows=subscribe is not None)
        question = QueryRequest(
            wanted,
            order_by=sow.order_by,
            top=sow.top_n,
            skip=sow.skip_n,
            batch=sow.batch,
            follows=subscribe is not None,
            of=use.topic,
        )
        try:
            asked = self._query_parser().accept(question)
        except RemoteProtocolError:
            use.release()
            raise
        following = None
        if subscribe is not None:
            following = replace(
                _follow_terms(connection, sow, subscribe, wanted),
                # The groups are of records that the client may read.
                keeps_back=False,
                aggregation=use.terms,
            )
        return _Query(
            sow, subscribe, wanted, asked, aggregated=use, terms=following, preparation=use
        )

    def _query_parser(self) -> QueryParser:
        if self._parser is None:
            config = self._runtime.config
            self._parser = sow_query_parser(
                self._sow.book, config.name, config.group, config.client_buffer_bytes_max
            )
        return self._parser

    def _forget_historical(
        self, connection: QueryingClient, names: Collection[str] | None = None
    ) -> None:
        for historical, (asking, _) in list(self._historical.items()):
            if asking is connection and (names is None or historical.command.subscription in names):
                historical.is_wanted = False
                del self._historical[historical]

    def forget(self, connection: QueryingClient, names: Collection[str]) -> None:
        """Ends the queries of these ids: no more of their rows is sent."""
        names = frozenset(names)
        self._forget_historical(connection, names)
        self._forget_preparing(connection, names)
        self._unbuilt.forget(connection, names)
        session = self._sessions.get(connection.number)
        if session is None:
            return
        waiting, session.waiting = session.waiting, deque()
        for each in waiting:
            if each.sow.query in names:
                each.release()
            else:
                session.waiting.append(each)
        if session.behind is not None:
            session.behind.forget(names)
        if session.query is not None and session.query.sow.query in names:
            self._close(session)
            self._begin_next(session)

    def forget_all(self, connection: QueryingClient) -> None:
        self._forget_historical(connection)
        self._forget_preparing(connection)
        self._unbuilt.forget(connection)
        session = self._sessions.get(connection.number)
        if session is not None:
            for each in session.waiting:
                each.release()
            session.waiting.clear()
            if session.behind is not None:
                session.behind.forget_all()
            self._close(session)
            self._begin_next(session)

    def gone(self, connection: QueryingClient) -> None:
        self._forget_historical(connection)
        self._forget_preparing(connection)
        self._unbuilt.forget(connection)
        session = self._sessions.pop(connection.number, None)
        if session is not None:
            for each in session.waiting:
                each.release()
            session.waiting.clear()
            if session.running is not None:
                session.running.close()
            if session.query is not None:
                session.query.release()
            session.query = session.running = session.behind = None

    def connection_writable(self, connection: QueryingClient) -> None:
        session = self._sessions.get(connection.number)
        if session is not None:
            self._kick(session)

    def check(self) -> None:
        """Called now and then. Weighs the bytes that a slow client's query keeps, which may end the
        client, and lets queries go on that waited because their user's filters worked too much."""
        self._pages.check()
        for session in list(self._sessions.values()):
            self._kick(session)
            self._weigh(session)

    def _weigh(self, session: _ClientQueries) -> None:
        """Counts the bytes that the query keeps as bytes that the client holds. May end the
        connection."""
        running, behind = session.running, session.behind
        if running is not None and behind is not None:
            behind.query_bytes = running.memory_bytes
            session.connection.weigh()

    # -- one query -----------------------------------------------------------------------------
    def _begin_next(self, session: _ClientQueries) -> None:
        """Begins the next waiting query at this moment, unless held deliveries are still to be
        sent."""
        connection = session.connection
        if session.behind is not None:
            return
        while session.waiting:
            query = session.waiting.popleft()
            name = query.sow.query
            if query.subscribe is not None and not (
                name in connection.resolving or name in connection.subscriptions
            ):
                query.release()
                continue
            try:
                self._begin(session, query)
            except Exception as error:
                self._failed(session, query, error)
                continue
            self._kick(session)
            return
        self._sessions.pop(connection.number, None)

    def _begin(self, session: _ClientQueries, query: _Query) -> None:
        connection, subscribe = session.connection, query.subscribe
        name = query.sow.query
        historical = query.historical
        before = connection.subscriptions.get(name) if subscribe is not None else None
        past = None if historical is None else historical.past
        assert self._parser is not None
        if historical is not None or query.terms is None:
            running = self._parser.begin(query.asked, self._runtime.now_us(), None, past)
        if historical is not None:
            self._accept("processed", connection, query.sow, historical.missing)
            self._rewinding.begin_rows(historical)
        elif subscribe is not None:
            made, running = self._followed(connection, query, before)
            # The subscription keeps the keys, the order and the aggregation from now on, until it
            # ends.
            if query.page is not None:
                query.page.release()
            query = query._replace(claim=None, preparation=None, page=None)
            if before is not None:
                self._replaced(before)
            connection.subscriptions[name] = made
            connection.resolving.pop(name, None)
            connection.began(made, replaces=before is not None)
        session.query, session.running = query, running
        session.behind = DeferredDeliveries(connection.weigh)
        connection.hold(session.behind)
        connection.send(connection.codec.group_begin(name))

    def _followed(
        self,
        connection: QueryingClient,
        query: _Query,
        before: LiveSubscription | BookmarkSubscription | None,
    ) -> tuple[LiveSubscription, QueryExecution]:
        """Begins a query and its subscription at this moment.

        Args:
            before: the subscription that this one replaces; None: it replaces none.
        """
        subscribe, terms, parser = query.subscribe, query.terms, self._parser
        assert subscribe is not None and terms is not None and parser is not None
        use, wanted, content = query.aggregated, query.wanted, subscribe.filter
        release = None if query.claim is None else query.claim.release
        if use is not None:
            wanted, content, release = use.wanted, "", use.release
        made = LiveSubscription(
            connection.number, query.sow.query, wanted, content, 0, terms, release
        )
        now_us = self._runtime.now_us()
        replaced = before if isinstance(before, LiveSubscription) else None
        if terms.page is not None:
            self._live.add(made)
            try:
                rows = self._pages.rows(made, replaced)
                return made, parser.begin_page(query.asked, now_us, rows)
            except Exception:
                self._live.remove(made)
                raise
        instead_of = None if replaced is None else _instead_of(replaced)
        running = parser.begin(query.asked, now_us, instead_of)
        try:
            self._live.add(made)
        except RemoteProtocolError:
            running.close()
            raise
        return made, running

    def _failed(self, session: _ClientQueries, query: _Query, error: Exception) -> None:
        query.release()
        connection, name = session.connection, query.sow.query
        text = str(error)
        if isinstance(error, RemoteProtocolError):
            reason = error.reason
        elif isinstance(error, (StorageError, CorruptRecord)):
            reason = "storage_error"
        else:
            reason, instance = "internal_error", self._runtime.config.name
            text = f"{instance} failed to answer ({type(error).__name__}): its events have why"
            why = "".join(traceback.format_exception(error))
            self._runtime.report("query_failed", topic=query.sow.topic, text=why)
        connection.resolving.pop(name, None)
        if query.subscribe is not None:
            found = connection.subscriptions.pop(name, None)
            if found is not None:
                connection.stopped(found, reason)
                self._unsubscribe(found)
        connection.send(
            connection.codec.acknowledgment(
                "completed", query.sow.command_id, reason, text, sub=name
            )
        )

    def _close(self, session: _ClientQueries) -> None:
        """Ends a query after its last row. Held deliveries are sent, in this turn if they are few.
        To be followed by `_begin_next`."""
        if session.running is not None:
            session.running.close()
        if session.query is not None:
            session.query.release()
        session.query = session.running = None
        if session.behind is not None:
            session.behind.query_bytes = 0
            clock = time.perf_counter
            until_s = clock() + TURN_S
            self._release(session, lambda: clock() >= until_s)

    def _release(self, session: _ClientQueries, is_over: Callable[[], bool]) -> None:
        """Sends held deliveries until none are left or the time is over; the rest follows in a
        turn."""
        connection, behind = session.connection, session.behind
        assert behind is not None
        if behind.release(connection, is_over):
            session.behind = None
            connection.hold(None)
        else:
            self._kick(session)

    # -- turns ---------------------------------------------------------------------------------
    def _kick(self, session: _ClientQueries) -> None:
        is_going_on = session.running is not None or session.behind is not None
        if is_going_on and not session.is_queued:
            session.is_queued = True
            self._ready.append(session)
        if self._ready:
            self._turns.schedule()

    def _turn(self) -> bool:
        """Performs a part of each ready session's work, until the time is over. Returns whether any
        work is left."""
        clock = time.perf_counter
        until_s = clock() + TURN_S

        def is_over() -> bool:
            return clock() >= until_s

        ready = self._ready
        while ready:
            session = ready.popleft()
            session.is_queued = False
            if session.running is not None:
                if session.connection.takes_rows and not session.running.must_wait:
                    self._go_on(session, is_over)
            elif session.behind is not None:
                # Held deliveries lie in memory: sending them waits for no socket.
                self._release(session, is_over)
                self._begin_next(session)
            if is_over():
                break
        return bool(ready)

    def _tell_left(self, connection: QueryingClient, name: str, left: list[bytes]) -> None:
        """Sends notices of the records that a replaced filter matched, in frames of bounded
        size."""
        oof, now_us = connection.codec.oof, self._runtime.now_us()
        delivery = DeliveryContent(0, now_us)
        for row in left:
            if delivery.count and not delivery.takes_one(0, len(row)):
                connection.send_parts(*oof(name, "match", delivery))
                delivery = DeliveryContent(0, now_us)
            delivery.add_one(row, False)
        connection.send_parts(*oof(name, "match", delivery))

    def _go_on(self, session: _ClientQueries, is_over: Callable[[], bool]) -> None:
        connection, query, running = session.connection, session.query, session.running
        assert query is not None and running is not None
        name, codec = query.sow.query, connection.codec
        try:
            frames = running.turn(is_over)
        except Exception as error:
            # A query changes no state: an unforeseen error ends this query alone.
            self._failed(session, query, error)
            self._close(session)
            self._begin_next(session)
            return
        for rows in frames:
            connection.send_parts(*codec.sow(name, rows))
            self.rows += len(rows)
        if running.left:
            left, running.left = running.left, []
            if query.subscribe is not None and query.subscribe.oof:
                self._tell_left(connection, name, left)
        if not running.done:
            assert session.behind is not None
            if running.memory_bytes > session.behind.query_bytes + WEIGHED_BYTES:
                # Many queries could fill the memory between two checks.
                self._weigh(session)
            if session.running is running:
                self._kick(session)
            return
        if query.historical is not None:
            self._end_rows(session, running, query.historical)
            return
        connection.send(codec.group_end(name, running.sent, running.matches))
        acks, command_id = query.sow.acks, query.sow.command_id
        if "completed" in acks:
            connection.send(codec.acknowledgment("completed", command_id, sub=name))
        if "stats" in acks:
            matches = running.matches
            # The number of records examined would tell of records that may not be read.
            is_kept_back = connection.keeps_back(query.wanted)
            count = matches if is_kept_back else running.looked_at
            connection.send(
                codec.acknowledgment(
                    "stats", command_id, sub=name, matches=matches, topic_matches=count
                )
            )
        self._close(session)
        self._begin_next(session)

    def _end_rows(
        self, session: _ClientQueries, running: QueryExecution, historical: HistoricalQuery
    ) -> None:
        """Ends the rows of a query whose replay follows: the later acks are about the replay."""
        connection, replay = session.connection, historical.replay
        if not historical.has_failed:
            if replay is None or not historical.is_prepared:
                return
            end = connection.codec.group_end(replay.id, running.sent, running.matches, replay.base)
            connection.send(end)
        self._close(session)
        self._rewinding.end_rows(historical)
        self._begin_next(session)


def aggregation_terms(
    sow: SowCommand, wanted: TopicFilter, types: Collection[str]
) -> AggregationTerms:
    """Returns the aggregation that a query asks for.

    Args:
        types: message types of the SOW topics or queues that the query names.

    Raises:
        RemoteProtocolError: it is not of one topic.
    """
    shown = repr(sow.topic[:200])
    if wanted.pattern is not None:
        raise RemoteProtocolError(
            f"an aggregation is of one topic, and {shown} is a regular expression: name a topic",
            "not_supported",
        )
    if not types:
        raise RemoteProtocolError(
            f"no SOW topic, view or queue is {shown}: only what has a state of the world can be "
            "aggregated",
            "no_sow",
        )
    if len(types) > 1:
        raise RemoteProtocolError(
            f"topics of types {', '.join(sorted(types))} are called {shown}: give the message "
            "type of one",
            "bad_message_type",
        )
    (kind,) = types
    return AggregationTerms(sow.topic, kind, sow.filter, sow.projection, sow.grouping)


def _follow_terms(
    connection: QueryingClient, sow: SowCommand, subscribe: Subscribe, wanted: TopicFilter
) -> FollowTerms:
    """Returns the options of a subscription that begins with a query."""
    return FollowTerms(
        subscribe.select,
        subscribe.oof,
        subscribe.delta,
        subscribe.no_empties,
        subscribe.no_sowkey,
        sow.keys,
        True,
        connection.keeps_back(wanted),
        subscribe.conflation,
        None if sow.top_n is None else PageTerms(sow.skip_n, sow.top_n, sow.order_by),
    )


def _wanted(connection: QueryingClient, sow: SowCommand) -> TopicFilter:
    return topic_filter(
        sow.topic,
        sow.message_type,
        literal=sow.non_regex_topic,
        allowed=connection.message_types,
        readable=connection.readable,
        rows=connection.rows,
    )


def _instead_of(before: LiveSubscription) -> ReplacedQuery:
    from raylay.services.sow.query.query_parser import ReplacedQuery

    wishes = before.following
    keys = None if wishes is None else wishes.keys
    return ReplacedQuery(before.content, keys, wishes is not None and wishes.began_with_rows)


def _as_of_us(text: str) -> int:
    point = None
    with suppress(RemoteProtocolError):
        point = parse_point(text)
    if point is None or point.kind != "time":
        raise RemoteProtocolError(
            f"as_of {text[:80]!r} is no UTC time: give one like 20260102T030405Z", "bad_bookmark"
        )
    # 0 stands for "no instant asked for", and is no instant itself.
    return max(point.time_us, 1)
