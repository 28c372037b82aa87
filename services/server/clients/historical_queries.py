"""A `sow_and_subscribe` with a bookmark: from the bookmark to a replay that waits for its rows.

The bookmark is looked up in the log. Where histories hold the state at that position, the rows are
that state, and the replay begins with the next transaction. Otherwise, and at the end of the log,
the rows are the state at the moment when they are read, and the replay begins behind that. Nothing
of the replay is delivered until the last row is sent; messages that lie before the replay's start
are reported with the end of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylay.services.core.feature import FeatureRegistry
from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.bookmarks import Position
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.client.commands import Subscribe
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.replay_members import ReplayClient
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.sow.query.as_of import AsOf, past_of
from raylay.services.subscriptions.bookmark import (
    BookmarkSubscription,
    RememberedLookup,
    ReplayContent,
    ReplayStart,
    resolve,
)
from raylay.services.subscriptions.matching import TopicFilter


class HistoricalQuery:
    """One query with a bookmark, until its rows are sent.

    Owner: the session's queries. Lifecycle: until its rows are sent.

    Args:
        command: the client's command, as it came.
        wanted: the topics of the query.
        position: the position of the bookmark.
        content: the filter and options of the replay's deliveries; None: all is delivered.
        granularities_us: granularities of the histories that the rows come from; None: there are
            none.
        ready: called when the rows may be read, when the replay is prepared later, and when the
            query fails or is refused.

    Attributes:
        start: position in the log at which the replay begins.
        past: the past state that the rows show; None: the state at the moment when they are read.
        replay: the replay; None: it begins with the rows.
        is_wanted: whether the client still waits for the query.
    """

    __slots__ = (
        "command",
        "connection",
        "content",
        "granularities_us",
        "is_wanted",
        "past",
        "position",
        "ready",
        "replay",
        "start",
        "wanted",
    )

    def __init__(
        self,
        connection: ReplayClient,
        command: Subscribe,
        wanted: TopicFilter,
        position: Position,
        content: ReplayContent | None,
        granularities_us: Sequence[int] | None,
        ready: Callable[[HistoricalQuery], None],
    ) -> None:
        self.connection = connection
        self.command = command
        self.wanted = wanted
        self.position = position
        self.content = content
        self.granularities_us = granularities_us
        self.ready = ready
        self.start = ReplayStart(0)
        self.past: AsOf | None = None
        self.replay: BookmarkSubscription | None = None
        self.is_wanted = True

    @property
    def missing(self) -> PublisherRanges | None:
        """The messages behind the bookmark that retention removed. Rows of the present state lack
        none of them."""
        return None if self.past is None else self.start.missing

    @property
    def is_prepared(self) -> bool:
        """Returns whether the messages that lie before the replay are known."""
        return self.replay is not None and self.replay.prepared

    @property
    def has_failed(self) -> bool:
        """Returns whether the log could not be read. The client has been told."""
        found = self.connection.subscriptions.get(self.command.subscription)
        return self.replay is not None and found is not self.replay


class HistoricalQueries:
    """See the file's docstring. Owner: the event loop. Lifecycle: one life of the instance."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        reading: JournalReads,
        folds: FeatureRegistry,
        replays: ReplayPump,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._reading = reading
        self._folds = folds
        self._replays = replays

    def begin(self, rewind: HistoricalQuery) -> None:
        """Looks up the bookmark of a query. Tells the client here if the bookmark is refused."""
        rewind.connection.resolving[rewind.command.subscription] = rewind.command
        self._runtime.spawn(self._look_up(rewind))

    def _folded_txid(self) -> int:
        # Rows show the folded state, and nothing later.
        return self._folds.folded_txid(self._instance.machine.committed_txid)

    async def _look_up(self, rewind: HistoricalQuery) -> None:
        connection, command = rewind.connection, rewind.command
        granularities_us = rewind.granularities_us
        folded_txid, now_us = self._folded_txid(), self._runtime.now_us()
        reader = self._reading.reader
        log = RememberedLookup(reader)

        def find() -> tuple[ReplayStart, AsOf | None]:
            start = resolve(
                rewind.position,
                command.bookmark_not_found,
                log,
                folded_txid,
                removed=reader.removed(),
            )
            if granularities_us is None or start.after_txid >= folded_txid:
                return start, None
            past = past_of(start.after_txid, granularities_us, reader, now_us)
            assert past.txid is not None
            start.after_txid = past.txid
            return start, past

        try:
            await self._replays.look_up(connection, rewind.position, log)
            start, past = await self._reading.run(find, of=connection.number)
        except (RemoteProtocolError, StorageError) as error:
            if rewind.is_wanted:
                name = command.subscription
                connection.resolving.pop(name, None)
                reason = error.reason if isinstance(error, RemoteProtocolError) else "storage_error"
                connection.send(
                    connection.codec.acknowledgment(
                        "processed", command.command_id, reason, str(error), sub=name
                    )
                )
                rewind.is_wanted = False
                rewind.ready(rewind)
            return
        if not rewind.is_wanted or not connection.is_open:
            return
        rewind.start, rewind.past = start, past
        if past is not None:
            self._open(rewind)
        if past is None or rewind.is_prepared:
            rewind.ready(rewind)

    def _open(self, rewind: HistoricalQuery) -> None:
        rewind.connection.resolving.pop(rewind.command.subscription, None)
        rewind.replay = self._replays.begin_behind(
            rewind.connection,
            rewind.command,
            rewind.wanted,
            rewind.start,
            rewind.content,
            lambda: rewind.ready(rewind),
        )

    def begin_rows(self, rewind: HistoricalQuery) -> None:
        """Begins to read the rows, which show the folded state of this moment."""
        if rewind.past is None:
            rewind.start.after_txid = self._folded_txid()
            self._open(rewind)

    def end_rows(self, rewind: HistoricalQuery) -> None:
        """Releases the replay after the last row was sent."""
        if rewind.replay is not None:
            self._replays.release(rewind.replay)
