"""The clients of an instance: their connections, their names, and the deliveries to them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from raylay.services.capacity.pool import ClientHolding
from raylay.services.core.feature import FeatureRegistry
from raylay.services.core.fold_backlog import PublishInParts, Weigh
from raylay.services.core.live import LiveSubscriptions
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import Run
from raylay.services.net.tls_files import PeerCertificate
from raylay.services.plugins.filters import (
    filtered_subscriptions,
    following_subscriptions,
    paged_subscriptions,
    queue_language,
    replay_filters,
)
from raylay.services.protocol.client.commands import Logon
from raylay.services.protocol.client.told_types import pack_types
from raylay.services.protocol.frames import FRAME_BYTES_MAX
from raylay.services.replication.effects import AckClient, RefuseClient
from raylay.services.replication.instance.publishers import Judge
from raylay.services.replication.membership.peers import PeerBook
from raylay.services.security.connection_shares import ConnectionShares, ShareHolder
from raylay.services.security.incomplete_frames import (
    IN_HAND,
    TOO_MANY,
    IncompleteFrame,
    IncompleteFrames,
    in_hand_bytes_max,
    incomplete_bytes_max,
)
from raylay.services.security.permissions import Permissions
from raylay.services.security.retained_bytes import (
    RetainedBytes,
    RetainedClaim,
    retained_bytes_max,
)
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.clients.client_occurrences import UNSUBSCRIBE, ClientOccurrences
from raylay.services.server.clients.conflated_deliveries import ConflatedDeliveries
from raylay.services.server.clients.connection_limit import ConnectionLimit, SessionShares
from raylay.services.server.clients.historical_queries import HistoricalQueries
from raylay.services.server.clients.named_readers import ReaderHolds
from raylay.services.server.clients.pages import ClientPages
from raylay.services.server.clients.publisher_acks import PublisherAcks
from raylay.services.server.clients.queries import QueryingClient, QueryRunner
from raylay.services.server.clients.queue_clients import QueueClients
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.replay_members import ReplayClient
from raylay.services.server.clients.slow_clients import ClientPools, memory_of_process
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.commits import Commits, SlowedPublishers
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.event_topics import EventPublisher
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayContent
from raylay.services.subscriptions.costly import filter_budgets
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.follow_terms import FollowKind
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, TopicFilter

if TYPE_CHECKING:
    from raylay.services.security.publishing import PublishJudge
    from raylay.services.security.row_filters import RowFilters
    from raylay.services.sow.topic import SowTopic
    from raylay.services.subscriptions.filtered import FilteredSubscriptions
    from raylay.services.subscriptions.pages import PagedSubscriptions, PageOrder
    from raylay.services.subscriptions.replay_filters import ReplayFilter, ReplayFilters
    from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions


AnySubscription = LiveSubscription | BookmarkSubscription
AUTHENTICATION_RESET = "authentication_reset"
ENTITLEMENT_RESET = "entitlement_reset"
DISCONNECTED = "disconnect"
"""Reason of the end of a subscription whose client's connection has ended."""
LEAVING_AT_ONCE = 256
"""Subscriptions of ended sessions that are taken out in one pass of the loop."""


class ClientSession(QueryingClient, Protocol):
    """A client's connection (`ClientConnection`)."""

    transport: asyncio.Transport | None
    user_id: str
    permissions: Permissions | None
    publisher: int
    incomplete: IncompleteFrame
    in_hand: IncompleteFrame
    peer: str
    """Address of the other side."""
    bytes_in: int
    accepted_by: ClientTransport
    connected_us: int
    denied_reads: int
    """Number of subscriptions and queries that the permissions did not allow."""
    messages_in: int
    messages_out: int
    published_from: int
    published_upto: int
    reading: bool

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The verified certificate of the client; None: it showed none."""

    @property
    def publisher_acks(self) -> PublisherAcks:
        """Returns the replies to the client's publishes."""

    @property
    def is_offline(self) -> bool:
        """Returns whether what the client does not take goes to the disk."""

    @property
    def takes_all(self) -> bool:
        """Returns whether the client takes all that it is sent, and no query of it runs."""

    def holding(self) -> ClientHolding:
        """Returns how many bytes the client holds now, and where."""

    def persisted(self, ack: AckClient) -> None:
        """Takes the machine's acks of this client's publishes."""

    def refused(self, refusal: RefuseClient) -> None:
        """Takes the machine's refusal of some of this client's publishes, for good."""

    def close(self, why: str) -> None:
        """Ends the connection."""


class ClientSessions:
    """The interface between the instance and its clients' connections.

    Owner: the instance's event loop.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        *,
        admission: ClientAdmission,
        counted: SessionShares,
        commits: Commits,
        connection_limit: ConnectionLimit,
        deliveries: QueueDeliveries,
        folds: FeatureRegistry,
        peer_book: PeerBook,
        pools: ClientPools,
        queues: QueueManager,
        reader_holds: ReaderHolds,
        reading: JournalReads,
        replays: ReplayPump,
        sessions: dict[int, ClientSession],
        shares: ConnectionShares,
        slowed: SlowedPublishers,
        sow: SowManager,
    ) -> None:
        self.runtime = runtime
        self.instance = instance
        self.admission = admission
        self.commits = commits
        self.connection_limit = connection_limit
        self.folds = folds
        self.pools = pools
        self.reader_holds = reader_holds
        self.told_types = pack_types(runtime.config.type_definitions)
        """The message types that the fabric defines, as each client is told them."""
        self.reading = reading
        self.turns = reading.turns
        self.replays = replays
        self._sow = sow
        self.slowed = slowed
        self.sessions = sessions
        """Sessions that have logged on, by number of the connection."""
        self.counted = counted
        self.events = EventPublisher(runtime, instance.identity, sow, self._deliver_events)
        """The event topics."""
        self.live = LiveSubscriptions(
            self._deliver,
            folds.enlist,
            self._filtered,
            {
                FollowKind.RECORDS: self._following,
                FollowKind.CONFLATED: lambda: self.conflated.table(),
                FollowKind.PAGES: lambda: self.pages.table,
            },
            self._tell_left,
            self._weigh_by,
            counted.subscriptions,
            counted.user_of,
            self.events.changed,
        )
        """The subscriptions without a bookmark."""
        self.pages = ClientPages(
            runtime,
            self._paged,
            lambda: self.live.look_on(FollowKind.PAGES),
            self.charge,
        )
        """The paginated ones of them."""
        self.conflated = ConflatedDeliveries(
            runtime, sow, self.live.give, self._takes_all, self.charge, self._asker
        )
        self.queries = QueryRunner(
            runtime,
            sow,
            self.live,
            self.unsubscribe,
            self.replaced,
            self._asker,
            HistoricalQueries(runtime, instance, reading, folds, replays),
            self.pages,
        )
        self.queued = QueueClients(runtime, queues, deliveries, counted)
        self.occurrences = ClientOccurrences(runtime, replays.options_of)
        self.deliver_occurrences = deliveries.occurrences
        self.connected: set[ClientSession] = set()
        """Sessions from the moment when their connection opens."""
        self.incomplete = IncompleteFrames(
            "clients", incomplete_bytes_max(memory_of_process(), FRAME_BYTES_MAX)
        )
        """Bytes of incomplete frames that the clients' connections hold."""
        self.in_hand = IncompleteFrames("clients", in_hand_bytes_max(memory_of_process()), IN_HAND)
        """Bytes of the clients' long batches that are taken in turns."""
        self.budgets = filter_budgets(lambda ends: runtime.loop.call_soon(ends))
        """Budgets for the work of each user's filters."""
        self.retained = RetainedBytes(retained_bytes_max(memory_of_process()))
        """Bytes that the clients' commands keep."""
        self.delivered = 0
        """Number of messages delivered to subscriptions without a bookmark, in this life of the
        instance."""
        self._by_name: dict[str, ClientSession] = {}
        self._shares = shares
        self._holders = counted.holders
        self._leaving: deque[tuple[ClientSession, AnySubscription]] = deque()
        """Subscriptions of sessions that have ended, until they are taken out. Nothing is delivered
        to them."""
        self._replay_filters: ReplayFilters | None = None
        self._peer_book = peer_book

    # -- connected clients -------------------------------------------------------------------
    def take_name(
        self, logon: Logon, client: ClientSession, holder: ShareHolder
    ) -> tuple[str, str] | None:
        """Applies the rule of duplicate client names: of two connections of one user, the newer one
        stays. Returns why this connection may not have the name; None: it may.

        A connection whose user a module knows gives way to that user only. Without a module a
        client may claim any user id, or none: connections are then compared by what they claim.

        Args:
            holder: the user or address that the connection will be counted for.
        """
        older = self._by_name.get(logon.client_name)
        if older is not None and older is not client:
            known, _ = self._holders.get(older.number, (None, ()))
            if known is not None and known.user:
                is_another = known.user != holder.user
            else:
                says = {older.user_id, logon.user_id} - {""}
                is_another = not holder.user and len(says) > 1
            if is_another:
                return (
                    "name_in_use",
                    f"{logon.client_name} is logged on by another user: choose another client name",
                )
            older.end("name_in_use", f"{logon.client_name} logged on again from {client.peer}")
        return None

    def share_refusal(
        self, logon: Logon, client: ClientSession, holder: ShareHolder, transport: ClientTransport
    ) -> tuple[str, str] | None:
        """Returns why the client's user, or its address, may not have one more connection; None: it
        may.

        To be called before `take_name`, which ends the older connection of the name: that one is
        not counted here.
        """
        older = self._by_name.get(logon.client_name)
        leaving: ShareHolder | None = None
        counted: tuple[ConnectionShares, ...] = ()
        if older is not None:
            leaving, counted = self._holders.get(older.number, (None, ()))
        for shares in (self._shares, transport.shares):
            refused = shares.refusal(holder, leaving if shares in counted else None)
            if refused is not None:
                self.runtime.over_share(
                    "client",
                    refused.limit,
                    client=logon.client_name[:200],
                    user=holder.user[:200],
                    peer=client.peer,
                    transport=transport.name,
                    text=refused.text,
                )
                return TOO_MANY, refused.text
        return None

    def count_in(
        self, client: ClientSession, holder: ShareHolder, transport: ClientTransport
    ) -> None:
        """Counts a connection for its user and its address until it is gone."""
        counted = self._shares, transport.shares
        for shares in counted:
            shares.admitted(holder)
        self._holders[client.number] = holder, counted
        self.incomplete.belongs(client.incomplete, holder)
        self.in_hand.belongs(client.in_hand, holder)

    def admitted(self, client: ClientSession) -> None:
        self.sessions[client.number] = client
        self._by_name[client.client_name] = client
        self.runtime.report("client_connected", client=client.client_name, peer=client.peer)

    def gone(self, client: ClientSession) -> None:
        self.connected.discard(client)
        self.incomplete.left(client.incomplete)
        self.in_hand.left(client.in_hand)
        self.retained.left(client.number)
        self.queries.gone(client)
        if self.occurrences.wanted(UNSUBSCRIBE):
            for name in self.queued.names(client):
                self.unsubscribed_queue(client, name, DISCONNECTED)
        self.queued.gone(client)
        holder, counted = self._holders.pop(client.number, (None, ()))
        if holder is not None:
            for shares in counted:
                shares.left(holder)
        is_first = not self._leaving
        for subscription in client.subscriptions.values():
            # Counted at once: the same user may come back before the last subscription is taken
            # out.
            self.counted.subscriptions.remove(subscription)
        self._leaving.extend((client, each) for each in client.subscriptions.values())
        client.subscriptions.clear()
        if self.sessions.pop(client.number, None) is not None:
            if self._by_name.get(client.client_name) is client:
                del self._by_name[client.client_name]
            self.instance.machine.client_left(client.number)
        if is_first:
            self._take_out()

    def _take_out(self) -> None:
        """Ends subscriptions of sessions that have ended, some in each turn of the loop."""
        occurrences = self.occurrences
        for _ in range(min(len(self._leaving), LEAVING_AT_ONCE)):
            client, subscription = self._leaving.popleft()
            occurrences.unsubscribed(client, subscription, DISCONNECTED)
            self.unsubscribe(subscription)
        if self._leaving:
            self.runtime.loop.call_soon(self._take_out)

    def unsubscribe(self, subscription: LiveSubscription | BookmarkSubscription) -> None:
        if isinstance(subscription, LiveSubscription):
            self.live.remove(subscription)
        else:
            self.replays.remove(subscription)

    def replaced(self, subscription: LiveSubscription | BookmarkSubscription) -> None:
        """Ends a subscription in whose place another one of its client begins: it is given what is
        pending for it."""
        if isinstance(subscription, LiveSubscription):
            self.conflated.flush(subscription)
        self.unsubscribe(subscription)

    def charge(self, session: int, difference_bytes: int) -> None:
        """Changes the bytes of shared memory, such as pending changes, that a session's client is
        charged. May end the client, later."""
        client = self.sessions.get(session)
        if client is not None:
            client.charge(difference_bytes)

    def _takes_all(self, session: int) -> bool:
        client = self.sessions.get(session)
        return client is None or client.takes_all

    def unsubscribed_queue(self, client: ClientSession, name: str, reason: str) -> None:
        """Tells the listeners that a queue subscription is about to end, if there is one with
        this id."""
        if not self.occurrences.wanted(UNSUBSCRIBE):
            return
        found = self.queued.terms(client, name)
        if found is not None:
            definition, text, backlog = found
            self.occurrences.unsubscribed_queue(
                client, name, definition.name, definition.message_type, (text, backlog), reason
            )

    def claim(self, client: ClientSession, size_bytes: int) -> RetainedClaim:
        """Counts the bytes that a command of a client keeps.

        Raises:
            RemoteProtocolError: the client would keep too much, with reason `too_many`.
        """
        holder, _ = self._holders[client.number]
        return self.retained.claim(client.number, holder, size_bytes)

    def names_sow(self, topic: str) -> bool:
        """Returns whether the topic is a SOW topic or a view."""
        name = topic.encode()
        return any(each.name == name for each in self._sow.book.every)

    def computes_any(self, wanted: TopicFilter) -> bool:
        """Returns whether a subscription asks for a view.

        Raises:
            RemoteProtocolError: the view is out of service: `view_full`.
        """
        book = self._sow.book
        if not book.computed:
            return False
        refusal = book.refusal_of(wanted)
        if refusal:
            raise RemoteProtocolError(refusal, "view_full")
        return book.computes_any(wanted)

    def end_subscription(self, subscription: LiveSubscription, reason: str, text: str) -> None:
        """Ends a subscription of a client and tells the client why."""
        client = self.sessions.get(subscription.session)
        if client is None:
            # The subscription's session has ended, and the subscription is about to be taken out.
            return
        client.stopped(subscription, reason)
        del client.subscriptions[subscription.id]
        self.unsubscribe(subscription)
        client.send(client.codec.acknowledgment("processed", "", reason, text, sub=subscription.id))

    def end_followers(self, topic: SowTopic) -> int:
        """Ends the subscriptions that follow a topic which is out of service. Returns their
        number."""
        from raylay.services.sow.book import is_wanted

        found = [
            subscription
            for client in self.sessions.values()
            for subscription in client.subscriptions.values()
            if isinstance(subscription, LiveSubscription)
            and subscription.following is not None
            and is_wanted(topic, subscription.filter)
        ]
        for each in found:
            self.end_subscription(each, "view_full", topic.refusal)
        return len(found)

    def replay_filter(self, client: ReplayClient, text: str) -> ReplayFilter:
        """The content filter of a client's bookmark subscription.

        Raises:
            RemoteProtocolError: the text is no filter, with reason `bad_filter`.
        """
        return self._filters_of_replays().made(text, self._asker(client.number))

    def replay_content(
        self, client: ReplayClient, wanted: TopicFilter, text: str
    ) -> ReplayContent | None:
        """Returns what a client's bookmark subscription lets pass, by its own filter and by the row
        filters of the client's permissions; None: everything.

        Raises:
            RemoteProtocolError: the text is no filter, with reason `bad_filter`.
        """
        own = self.replay_filter(client, text) if text else None
        return self._filters_of_replays().limited(wanted, own) if wanted.is_limited else own

    def _filters_of_replays(self) -> ReplayFilters:
        if self._replay_filters is None:
            config = self.runtime.config
            self._replay_filters = replay_filters(
                config.type_definitions, config.name, config.group
            )
        return self._replay_filters

    def row_filters(self, client: ClientSession, permissions: Permissions) -> RowFilters:
        """Returns the row filters of a client's reads by regular expressions."""
        from raylay.services.security.row_filters import RowFilters
        from raylay.services.subscriptions.filtered import surroundings_of

        config = self.runtime.config
        return RowFilters(
            permissions,
            lambda: queue_language(config.type_definitions, config.name)[1],
            surroundings_of(self._asker(client.number)),
        )

    def judge(
        self, permissions: Permissions, user: str, client_name: str, address: str
    ) -> PublishJudge:
        from raylay.services.security.publishing import PublishJudge
        from raylay.services.subscriptions.filtered import surroundings_of

        config = self.runtime.config
        return PublishJudge(
            permissions,
            user,
            lambda: queue_language(config.type_definitions, config.name),
            surroundings_of(FilterOwner(client_name, user, address)),
            self.queued.held_only,
        )

    def reset_authentication(self, user: str = "", transport: str = "") -> int:
        """Ends the sessions of a user, or all whose user an authentication module has identified:
        they log on anew. Returns their number.

        Args:
            transport: only those of this transport; empty: of all.
        """
        found = []
        for client in self.sessions.values():
            holder, _ = self._holders.get(client.number, (None, ()))
            if holder is None or not holder.user or transport not in ("", client.accepted_by.name):
                continue
            if user in ("", holder.user, client.user_id):
                found.append(client)
        for client in found:
            client.end(AUTHENTICATION_RESET, "who it is is asked anew: log on again")
        return len(found)

    def reset_entitlement(self, user: str = "", transport: str = "") -> int:
        """Ends the sessions of a user, or all whose permissions an entitlement module gave: the
        module is asked anew at the next logon. Returns their number.

        Args:
            transport: only those of this transport; empty: of all.
        """
        found = [
            client
            for client in self.sessions.values()
            if client.permissions is not None
            and user in ("", client.user_id)
            and transport in ("", client.accepted_by.name)
        ]
        for client in found:
            client.end(ENTITLEMENT_RESET, "what it may do is asked anew: log on again")
        return len(found)

    def reset_since(self, since_us: int) -> int:
        """Ends the sessions of connections that modules are asked about and that were made since a
        time, in microseconds since 1970: they log on anew. Returns their number."""
        found = [
            client
            for client in self.sessions.values()
            if client.connected_us >= since_us and client.accepted_by.access_check is not None
        ]
        for client in found:
            client.end(AUTHENTICATION_RESET, "who it is is asked again: log on again")
        return len(found)

    def filter_wait_s(self, session: int) -> float:
        """Time until another long filter of the session's user may be compiled, in seconds; 0:
        now."""
        budget = self._asker(session).budget if session in self.sessions else None
        return 0.0 if budget is None else budget.compile_wait_s

    def _asker(self, session: int) -> FilterOwner:
        client, (holder, _) = self.sessions[session], self._holders[session]
        # A client that no module knows may claim any name: its work is counted for its network.
        user = holder._replace(network="") if holder.user else holder
        return FilterOwner(client.client_name, client.user_id, client.peer, self.budgets.of(user))

    def _weigh_by(self, weigh: Weigh, weigh_published: Weigh) -> None:
        """Adds weighers of deliveries to the folds: one for commits, one for publishes that are not
        journaled."""
        topics = self.instance.machine.topics

        def weigh_unjournaled(run: Run) -> int:
            is_journaled = topics[run.topic, run.message_type].journaled
            return 0 if is_journaled else weigh_published(run)

        self.folds.weigh_by(weigh, weigh_unjournaled)

    def in_parts(self, runs: list[Run], judge: Judge | None) -> PublishInParts | None:
        """Returns the parts in which one frame of publishes is taken, if taking it at once would
        take long; else None.

        Args:
            judge: the check of what the client may publish; None: it may publish all.
        """
        unfolded = self.folds.unfolded
        if unfolded is None or (len(runs) == 1 and runs[0].count == 1):
            return None
        if judge is None:
            return unfolded.in_parts(runs)
        writes_all = judge.writes_all
        return unfolded.in_parts(runs, lambda run: not writes_all(run.topic))

    def _filtered(self) -> FilteredSubscriptions:
        config = self.runtime.config
        return filtered_subscriptions(
            config.type_definitions, config.name, config.group, self._asker
        )

    def _following(self) -> SowSubscriptions:
        config, book = self.runtime.config, self._sow.book
        return following_subscriptions(
            config.type_definitions,
            lambda topic, message_type: book.find(topic, message_type) is not None,
            config.name,
            config.group,
            self._asker,
        )

    def _paged(self) -> PagedSubscriptions:
        config = self.runtime.config
        return paged_subscriptions(
            config.type_definitions,
            self._sow.book.matching,
            config.name,
            config.group,
            self._asker,
            self._end_pages_soon,
            config.client_buffer_bytes_max,
        )

    def _end_pages_soon(self, order: PageOrder) -> None:
        # The commit that filled the order is still being delivered to its subscriptions.
        self.runtime.loop.call_soon(self._end_pages, order)

    def _end_pages(self, order: PageOrder) -> None:
        """Ends the subscriptions whose order takes more memory than it may."""
        assert order.failure is not None
        for subscription in self.pages.table.members(order):
            self.end_subscription(subscription, order.failure.reason, str(order.failure))

    # -- notices to clients ------------------------------------------------------------------
    def peers(self) -> list[dict[str, Any]]:
        """The other instances, with their safety, as clients are told of them for their
        failover."""
        return self._peer_book.told(self.instance.machine.destinations)

    def safety_changed(self) -> None:
        """Tells all clients to which instances they may fail over now."""
        peers = self.peers()
        notices: dict[Any, bytes] = {}
        """Notices by the protocol that encodes them: each notice is encoded once for all clients of
        a protocol."""
        for client in self.sessions.values():
            write = client.codec.safety_notice
            notice = notices.get(write)
            if notice is None:
                notice = notices[write] = write(peers)
            client.send(notice)

    def _deliver(
        self, subscribers: tuple[LiveSubscription, ...], delivery: DeliveryContent
    ) -> None:
        for subscription in subscribers:
            client = self.sessions.get(subscription.session)
            if client is None:
                continue
            client.sink.deliver(subscription.id, delivery)
            subscription.delivered += delivery.count
            self.delivered += delivery.count

    def _deliver_events(self, runs: Sequence[Run], kept: bool) -> None:
        self.live.transient(runs, kept=kept)

    def _tell_left(
        self, subscription: LiveSubscription, reason: str, left: DeliveryContent
    ) -> None:
        client = self.sessions.get(subscription.session)
        if client is not None:
            client.sink.out_of_focus(subscription.id, reason, left)

    # -- the end -----------------------------------------------------------------------------
    def end(self, reason: str, text: str) -> None:
        for client in list(self.connected):
            client.end(reason, text)

    def descriptors(self) -> list[int]:
        """Returns the sockets of all connections, for a thread that must end them while the loop is
        blocked."""
        found = []
        for client in list(self.connected):
            transport = client.transport
            of_it = None if transport is None else transport.get_extra_info("socket")
            if of_it is not None and of_it.fileno() >= 0:
                found.append(of_it.fileno())
        return found

    def close(self, why: str) -> None:
        for client in list(self.connected):
            client.close(why)
