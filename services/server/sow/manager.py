"""The SOW topics of a serving instance: their store on disk, the schedule of its writes, and the
part of the journal that has to stay until they are done.

Folded changes are in memory until the store has them. The store commits in a thread, about once a
second; changes lost in a crash are folded from the journal again.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylay.services.core.feature import CommitBatch, Feature, FeatureRegistry
from raylay.services.errors import ConfigurationError, RaylayError, SowDamaged, StorageError
from raylay.services.messages.records import Run
from raylay.services.security.control import NAME_SHOWN_MAX
from raylay.services.server.message_occurrences import DELETED, EXPIRED, tell_sow_changes
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.stored_topics import (
    DAMAGED_MARK,
    PENDING_BYTES,
    SOW_FILE,
    UNSAVED_BYTES_MAX,
    StoredSowTopics,
)
from raylay.services.server.turns import SpacedTurns
from raylay.storage.files import make_file
from raylay.storage.sow import LmdbSowStore

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.core.conflation import ConflationFeature
    from raylay.services.core.sow import SowFeature
    from raylay.services.core.views import ViewFeature
    from raylay.services.sow.book import QueryWish, SowBook
    from raylay.services.sow.topic import SowChange, SowTopic
    from raylay.services.subscriptions.follow_terms import AggregationTerms
    from raylay.services.subscriptions.matching import FilterOwner
    from raylay.services.views.aggregated import AggregatedUse, AggregatedViews, Charge
    from raylay.services.views.building import TopicBuild

WRITE_INTERVAL_S = 1.0
IDLE_INTERVAL_S = 10.0
"""Time, in seconds, between two writes that only advance the transaction id, so that the journal
can be released."""
TURN_S = 0.001
"""Time, in seconds, that the building of aggregations has in a turn of the loop."""
RETRY_S = 5.0
"""Pause, in seconds, after a failed commit of the store."""


class SowManager:
    """See the file's docstring.

    Invariants: `_commit` is the future of a commit under way, during which nothing else is written;
    the journal is released no further than the store has its changes.
    Owner: the instance's event loop. Lifecycle: `serve` once, `close` once. Without SOW topics,
    neither does anything.

    Args:
        stored: the SOW topics, recovered up to the end of the journal.
        folds: the instance's features that fold commits.
        hold: keeps the instance from taking messages, with a reason and a sentence; None: it takes
            them again.
        removable: called with the transaction id below which no SOW topic needs the journal.
        queues: the queues, whose messages are aggregated as records.
    """

    name = "sow"
    may_be_ahead = False

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        stored: StoredSowTopics,
        folds: FeatureRegistry,
        hold: Callable[[tuple[str, str] | None], None],
        removable: Callable[[int], None],
        queues: QueueManager,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._removable = removable
        self._queues = queues
        self._folds = folds
        self._hold = hold
        self._is_holding = False
        self._stored = stored
        self._commit: asyncio.Future[None] | None = None
        self._compaction: asyncio.Task[tuple[int, int]] | None = None
        """The compaction under way, during which nothing is written; None: there is none."""
        self._write_at_s = 0.0
        self._before_txid = 0
        self._turn: asyncio.Handle | None = None
        """The next turn in which expired records are removed; None: none is due."""
        self._is_folding = False
        """Whether a fold is going on. After a fold that failed, a part of a transaction may be
        folded: the state is then not written."""
        self._has_told = False
        """Whether unreadable records have been reported."""
        self.feature = stored.feature
        """The SOW topics as a feature of the folds; None: there are no SOW topics."""
        self.views = stored.views
        """The views over the SOW topics, as a feature of the folds; None: there are no views."""
        self._conflation: ConflationFeature | None = None
        self._conflated_timer: asyncio.TimerHandle | None = None
        self._aggregated: AggregatedViews | None = None
        """The views of aggregated queries and subscriptions; None: there never was one."""
        self._building = SpacedTurns(runtime, self._build)
        self._topics_build: TopicBuild | None = None
        """The building of views and conflated topics; None: all are built."""
        self._when_built: Callable[[], None] = lambda: None
        self._refused: set[SowTopic] = set()
        """The topics that were reported as out of service."""
        if stored.conflated:
            from raylay.services.core.conflation import ConflationFeature

            self._conflation = ConflationFeature(stored.conflated, runtime.steady_us, self._wake)
        self._computing: list[Feature] = [
            each for each in (self.views, self._conflation) if each is not None
        ]

    @property
    def book(self) -> SowBook:
        from raylay.services.sow.book import SowBook

        return SowBook() if self.feature is None else self.feature.book

    def _follow_by(self, views: ViewFeature, follows: Callable[[bytes, bytes], bool]) -> None:
        """Makes the records of views only where somebody needs them."""
        conflated = frozenset(each.under for each in self._stored.conflated)

        def is_followed(topic: SowTopic) -> bool:
            aggregated = self._aggregated
            return (
                topic in conflated
                or follows(topic.name, topic.type_name)
                or (aggregated is not None and aggregated.is_over(topic))
            )

        views.follow_by(is_followed)
        views.wait_by(self._building.schedule)

    def _want_by(self, feature: SowFeature, needs_changes: Callable[[bytes, bytes], bool]) -> None:
        """Makes the changes of records only where somebody needs them."""
        views = () if self.views is None else self.views.views
        under = {each for view in views for each in view.under}
        under |= {each.under for each in self._stored.conflated}

        def is_wanted(topic: SowTopic) -> bool:
            aggregated = self._aggregated
            return (
                topic in under
                or needs_changes(topic.name, topic.type_name)
                or (aggregated is not None and aggregated.is_over(topic))
            )

        feature.wanted_by(is_wanted)

    # -- beginning -----------------------------------------------------------------------------
    def serve(
        self,
        follows: Callable[[bytes, bytes], bool],
        needs_changes: Callable[[bytes, bytes], bool],
    ) -> None:
        """Begins to fold.

        Args:
            follows: returns whether a subscription follows a topic, by its name and message type.
            needs_changes: returns whether the changes of a topic's records are needed, by a
                subscription or what is prepared for one.
        """
        if self.views is not None:
            self._follow_by(self.views, follows)
        if self.feature is not None:
            from raylay.services.core.fold_backlog import PART_RECORDS, weight
            from raylay.services.sow.delete_scan import FINDINGS_AT_ONCE, may_ask

            self._want_by(self.feature, needs_changes)
            find = self.feature.book.find
            views = 0 if self.views is None else len(self.views.views)

            def weigh(run: Run) -> int:
                return views + weight(run) if find(run.topic, run.message_type) is not None else 0

            def weigh_published(run: Run) -> int:
                found = weigh(run)
                return (
                    max(found, PART_RECORDS // FINDINGS_AT_ONCE)
                    if found and may_ask(run)
                    else found
                )

            self._folds.weigh_by(weigh, weigh_published)
            self._folds.enlist(self, True)
            for each in self._computing:
                self._folds.enlist(each, True)
            self._begin_building()
            self.feature.begin_counting()
            if self.feature.floor_txid is not None:
                self._begin_write()

    # -- building --------------------------------------------------------------------------------
    def _begin_building(self) -> None:
        """Begins to make the records of views and conflated topics from those under them."""
        views = () if self.views is None else self.views.views
        if views or self._stored.conflated:
            from raylay.services.views.building import TopicBuild

            self._topics_build = TopicBuild((*views, *self._stored.conflated))
            self._building.schedule()

    @property
    def is_building(self) -> bool:
        """Returns whether a view or conflated topic is not built yet, or behind."""
        return self._topics_build is not None or bool(self.views and self.views.behind)

    def is_unbuilt(self, wanted: QueryWish) -> bool:
        """Returns whether a query asks for a topic that is still built."""
        return any(not each.is_built for each in self.book.matching(wanted))

    def when_built(self, call: Callable[[], None]) -> None:
        """Sets a function that is called each time that a topic is built; set once."""
        self._when_built = call

    def _build_topics(self, build: TopicBuild, until_s: float) -> None:
        for each in build.take(lambda: time.perf_counter() >= until_s):
            if self.views is not None and each in self.views.views:
                changes = self.views.began(each)
                if changes:
                    self._fold_changes(changes)
            self._when_built()
        if build.is_done:
            self._topics_build = None
            # The new objects are many, and stay: a garbage collection need not look at them.
            gc.freeze()

    # -- aggregations ----------------------------------------------------------------------------
    def aggregate(
        self, terms: AggregationTerms, asker: FilterOwner, session: int, *, follows: bool
    ) -> AggregatedUse:
        """Returns the use of the view that a client asks for, which may have to be built first.

        Args:
            session: the client's session.
            follows: whether it asks for a subscription.

        Raises:
            RemoteProtocolError: it cannot be had.
        """
        if self._aggregated is None:
            from raylay.services.plugins.views import aggregated_views

            made = self._aggregated = aggregated_views(
                self.book,
                self._runtime.config.type_definitions,
                self._enlist,
                self._wake_building,
                self._queues,
            )
            self._folds.weigh_by(made.weigh)
        return self._aggregated.use(terms, asker, session, follows=follows)

    def queue_types(self, name: str) -> set[str]:
        """Returns the message types of the queues of a name."""
        return self._queues.types_of(name)

    def aggregation_charges(self) -> list[Charge]:
        """Returns the differences, since the last call, of the memory of aggregations that sessions
        are charged."""
        return [] if self._aggregated is None else self._aggregated.charges()

    def _enlist(self, is_used: bool) -> None:
        assert self._aggregated is not None
        self._folds.enlist(self._aggregated, is_used)

    def _wake_building(self) -> None:
        self._building.schedule()

    def _build(self) -> bool:
        """Builds views in a turn of the loop. Returns whether any are left."""
        if not self._runtime.is_serving or self._is_folding:
            return False
        until_s = time.perf_counter() + TURN_S
        if self._topics_build is not None:
            self._build_topics(self._topics_build, until_s)
        for view in () if self.views is None else self.views.behind:
            changes = view.go_on(lambda: time.perf_counter() >= until_s)
            if changes:
                self._fold_changes(changes)
            if not view.is_behind:
                self._when_built()
        is_left = self.is_building
        if self._aggregated is not None:
            is_left |= self._aggregated.build(lambda: time.perf_counter() >= until_s)
        return is_left

    # -- a feature, for the folds ----------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Folds commits.

        Raises:
            SowDamaged: the store is damaged: the instance ends, and makes the store anew (`close`).
            StorageError: the store cannot be read: the instance ends.
        """
        assert self.feature is not None
        self._is_folding = True
        self.feature.fold(batch)
        self._is_folding = False
        listened = self._runtime.occurrences.listened
        if batch.changes and (DELETED in listened or EXPIRED in listened):
            tell_sow_changes(self._runtime.occurrences, batch.changes)
        if self._stored.failure:
            self._look_at_memory()

    def failed(self, committed_txid: int) -> None:
        """Does nothing: staged records are never folded."""

    def keep(self, runs: list[Run]) -> int:
        """Keeps events of this instance in their SOW topics, and tells subscribers. Returns the
        number of events that are not kept, because too many bytes wait for the store: nothing
        else would bound them, since no publisher waits.

        Raises:
            SowDamaged: as `fold`.
            StorageError: as `fold`.
        """
        if self.feature is None or self._is_folding:
            return 0
        if self._stored.failure:
            self._look_at_memory()
        if self._is_holding:
            return sum(run.count for run in runs)
        changes = self.feature.keep(runs)
        if changes:
            folded_txid = self._folds.folded_txid(self._instance.machine.committed_txid)
            self._folds.fold(CommitBatch([], folded_txid, changes))
        return 0

    # -- periodic work -------------------------------------------------------------------------
    def check(self) -> None:
        """Called now and then. Removes expired records, and begins a write that is due."""
        feature, runtime = self.feature, self._runtime
        if feature is None:
            return
        if feature.first_unreadable and not self._has_told:
            self._has_told = True
            runtime.report(
                "sow_unreadable",
                text=f"{feature.first_unreadable}; this is said once, sow_unreadable of the status "
                "counts all of them",
            )
        if self._is_folding:
            return
        if self._topics_build is not None:
            self._building.schedule()
        self._look_at_memory()
        if self._turn is None:
            self._tidy()
        floor_txid = feature.floor_txid
        if self._commit is not None or self._compaction is not None or floor_txid is None:
            return
        now_s = runtime.loop.time()
        if self._stored.failure:
            is_due = now_s >= self._write_at_s + RETRY_S
        elif feature.pending_bytes:
            since_s = now_s - self._write_at_s
            is_due = since_s >= WRITE_INTERVAL_S or feature.pending_bytes > PENDING_BYTES
        else:
            has_moved = floor_txid < self._instance.machine.committed_txid
            is_due = has_moved and now_s >= self._write_at_s + IDLE_INTERVAL_S
        if is_due:
            self._begin_write()

    def _look_at_memory(self) -> None:
        """Keeps the instance from taking messages while too many bytes wait for the store."""
        feature = self.feature
        assert feature is not None
        most = UNSAVED_BYTES_MAX // 2 if self._is_holding else UNSAVED_BYTES_MAX
        is_much = feature.unsaved_bytes > most
        if is_much == self._is_holding:
            return
        self._is_holding = is_much
        if not is_much:
            self._hold(None)
            self._runtime.report("sow_store_caught_up")
            return
        why = self._stored.failure or "it is slower than what is published"
        text = (
            f"{UNSAVED_BYTES_MAX:,} bytes of SOW records wait in memory to be written to "
            f"{self._runtime.directory / SOW_FILE}: {why}. Nothing is lost; "
            f"{self._runtime.config.name} takes no messages until they are written: "
            "make space on that disk, or let it be faster"
        )
        self._hold(("storage_full" if self._stored.is_full else "storage_error", text))
        self._runtime.report("sow_store_behind", text=text)

    def _tidy(self, only_due: bool = False) -> None:
        """Removes expired records, in turns: more of them in the next turn of the loop."""
        feature, runtime = self.feature, self._runtime
        self._turn = None
        if feature is None or not runtime.is_serving or self._is_folding:
            return
        now_us = runtime.aging_us()
        changes = feature.tick(now_us, only_due=only_due)
        if changes:
            self._fold_changes(changes)
        if feature.is_due(now_us):
            self._turn = runtime.loop.call_soon(self._tidy, True)

    def _wake(self, at_us: int) -> None:
        """Sets the timer that folds the due changes of conflated topics, by the steady clock."""
        if self._conflated_timer is not None:
            self._conflated_timer.cancel()
        later_s = max(0, at_us - self._runtime.steady_us()) / 1e6
        self._conflated_timer = self._runtime.loop.call_later(later_s, self._conflate)

    def _conflate(self) -> None:
        self._conflated_timer = None
        if self._conflation is None or not self._runtime.is_serving or self._is_folding:
            return
        changes = self._conflation.due()
        if changes:
            self._fold_changes(changes)

    def take_changes(self, changes: list[SowChange]) -> None:
        """Takes changes of the messages of queues that views are over."""
        if self._runtime.is_serving and not self._is_folding:
            if changes:
                self._fold_changes(changes)
            if self._aggregated is not None:
                self._aggregated.look_again()

    def _fold_changes(self, changes: list[SowChange]) -> None:
        """Gives changes of records that no commit made to subscribers, and to the views and
        conflated topics over their topics."""
        folded_txid = self._folds.folded_txid(self._instance.machine.committed_txid)
        self._folds.fold(CommitBatch([], folded_txid, changes))
        self._runtime.outbox.flush()

    def _begin_write(self) -> None:
        feature, store, runtime = self.feature, self._stored.store, self._runtime
        assert feature is not None and store is not None and self._commit is None
        self._write_at_s = runtime.loop.time()
        self._commit = runtime.loop.run_in_executor(None, store.commit, feature.pending())
        runtime.spawn(self._finish(self._commit))

    async def _finish(self, commit: asyncio.Future[None]) -> None:
        await asyncio.wait((commit,))
        if self._commit is commit:
            self._settle()

    def _settle(self) -> None:
        feature, runtime, commit = self.feature, self._runtime, self._commit
        assert feature is not None and commit is not None
        self._commit = None
        error = commit.exception()
        if error is None:
            feature.saved()
            if self._stored.failure:
                self._stored.failure = ""
                runtime.report("sow_store_recovered")
            self._look_at_memory()
            if runtime.is_serving:
                self._release()
        elif isinstance(error, RaylayError):
            feature.not_saved()
            self._stored.failed(error)
        else:
            raise error

    async def compact(self, topic: str) -> str:
        """Rewrites the file of the SOW topics without the space that deleted and replaced records
        left. Returns a sentence.

        Args:
            topic: the topic's name, or `type/name`. The topics share a file, which is compacted for
                all of them.

        Raises:
            ConfigurationError: there is no such topic on disk.
            StorageError: the file cannot be rewritten, or is being compacted: nothing was changed.
        """
        runtime, store = self._runtime, self._stored.store
        names = {each.stored_as: each.transient for each in runtime.config.sow}
        found = [
            transient
            for stored_as, transient in names.items()
            if topic in (stored_as, stored_as.partition("/")[2])
        ]
        if not found:
            raise ConfigurationError(
                f"{runtime.config.name} has no SOW topic {topic[:NAME_SHOWN_MAX]!r}: it has "
                f"{', '.join(names) or 'none'}"
            )
        if store is None or all(found):
            raise ConfigurationError(
                f"SOW topic {topic} of {runtime.config.name} is kept in memory: there is nothing "
                "to compact"
            )
        if self._compaction is not None:
            raise StorageError(f"the SOW topics of {runtime.config.name} are being compacted")
        # From here on no write begins. Who gives up waiting does not end it: the thread goes on.
        self._compaction = runtime.loop.create_task(self._rewrite(store))
        before, after = await asyncio.shield(self._compaction)
        runtime.report("sow_compacted", topic=topic, bytes_before=before, bytes_after=after)
        return (
            f"the file of SOW topic {topic} at {runtime.config.name} takes {after:,} bytes; it "
            f"took {before:,}"
        )

    async def _rewrite(self, store: LmdbSowStore) -> tuple[int, int]:
        try:
            if self._commit is not None:
                await self._finish(self._commit)
            return await self._runtime.in_thread(store.compact)
        finally:
            self._compaction = None

    def newly_refused(self) -> list[SowTopic]:
        """Returns the views and conflated topics that went out of service since the last call."""
        computed = self.book.computed
        found = [each for each in computed if each.refusal and each not in self._refused]
        self._refused |= set(found)
        if self._aggregated is not None:
            found += self._aggregated.newly_refused()
        return found

    # -- the journal -----------------------------------------------------------------------------
    def removable(self, before_txid: int) -> None:
        """Notes that links need nothing of the journal below this transaction id. The journal below
        it is released as far as the store has its changes."""
        self._before_txid = before_txid
        self._release()

    def _release(self) -> None:
        before_txid = self._before_txid
        if self.feature is not None:
            before_txid = self.feature.removable(before_txid)
        self._removable(before_txid)

    # -- status ----------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        aggregations = [] if self._aggregated is None else self._aggregated.status()
        if self.feature is None:
            # Queues alone are aggregated, too.
            return {"aggregations": aggregations} if aggregations else {}
        return {
            "sow_topics": self.feature.status(),
            **self._computed_status(),
            "aggregations": aggregations,
            "sow_store_failure": self._stored.failure,
            "sow_unreadable": self.feature.unreadable,
        }

    def _computed_status(self) -> dict[str, Any]:
        """Returns the status of the views and the conflated topics."""
        committed_txid = self._instance.machine.committed_txid
        unfolded = committed_txid - self._folds.folded_txid(committed_txid)
        percent = 0 if self._topics_build is None else self._topics_build.percent
        built = {
            each.stored_as: {} if each.is_built else {"built_percent": percent}
            for each in self.book.computed
        }
        refusals = {each.stored_as: each.refusal for each in self.book.computed}
        features = {"views": self.views, "conflated_topics": self._conflation}
        views = () if self.views is None else self.views.views
        under = {each.topic.stored_as: each.under for each in views}
        under |= {each.topic.stored_as: (each.under,) for each in self._stored.conflated}
        return {
            kind: {
                name: {
                    **values,
                    # The transactions that are committed and not folded may change it.
                    "queue_depth": unfolded + values.get("backlog", 0),
                    "under": [each.stored_as for each in under[name]],
                    "in_service": not refusals[name],
                    "refusal": refusals[name],
                    **built[name],
                }
                for name, values in ({} if feature is None else feature.status()).items()
            }
            for kind, feature in features.items()
        }

    def aggregated_sizes(self) -> dict[str, int]:
        """Returns the number of the views of aggregations, and their memory in bytes."""
        views = self._aggregated
        return {
            "aggregations": 0 if views is None else len(views),
            "aggregation_bytes": 0 if views is None else views.memory_bytes,
        }

    def snapshot(self) -> dict[str, Any]:
        if self.feature is None:
            return {}
        return {"sow_topics": self.feature.status(), **self._computed_status()}

    # -- the end ---------------------------------------------------------------------------------
    async def close(self) -> None:
        """Writes the last state, after the last commit, and closes the store. If damage of the
        store ended the instance, a mark is left for the next life."""
        if isinstance(self._runtime.fault, SowDamaged):
            make_file(self._runtime.directory / DAMAGED_MARK)
        if self._compaction is not None:
            await asyncio.wait((self._compaction,))
        if self._commit is not None:
            await self._finish(self._commit)
        # Commits that wait to be folded are folded from the journal in the next life.
        self._folds.enlist(self, False)
        for each in (*self._computing, self._aggregated):
            if each is not None:
                self._folds.enlist(each, False)
        if self.feature is not None and not self._is_folding:
            await self._runtime.in_thread(self._stored.write, self.feature)
        self._stored.close()
