"""Planted mistakes: each breaks one rule that design.md names, and the checkers must see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raylay.services.client.failover import PeerStatus, ServerChooser
from raylay.services.client.machine import ClientMachine, ClientOptions
from raylay.services.client.publishing.outbox import PublishFrame, PublishOutbox
from raylay.services.core.effect_loop import EffectLoop
from raylay.services.core.feature import Feature, FeatureRegistry
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Flag, Kind, Run, iterate_records
from raylay.services.messages.stateful import (
    PreparedRun,
    RefusedRecords,
    Stateful,
    WritePermission,
    with_bodies,
)
from raylay.services.protocol.frames import Header
from raylay.services.queues.records import NOT_LEASED
from raylay.services.replication.acknowledgment import (
    CLIENT,
    DestinationLedger,
    RootedRanges,
    WaiterTable,
    route_of,
)
from raylay.services.replication.commit_notifications import CommitNotifications
from raylay.services.replication.commit_thread import CommitThread, CommitThreadPolicy
from raylay.services.replication.downgrade import Ages
from raylay.services.replication.effects import (
    Effect,
    LinkEffect,
    Ranges,
    RefuseClient,
    Rooted,
    RunsCommitted,
    SendBatch,
)
from raylay.services.replication.inbound_queue import InboundQueue
from raylay.services.replication.instance import (
    InstanceMachine,
    LinkStart,
    MachineParts,
    UpstreamAnswer,
    decode_note,
)
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.destinations import Destinations
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.publishers import Publishers
from raylay.services.replication.instance.self_publisher import PendingRecord, SelfPublisher
from raylay.services.replication.instance.upstreams import Upstream, UpstreamTable
from raylay.services.replication.journal_lookup import LookupRequest, LookupResult, LookupTask
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.link.direct_link import DirectLink, DirectLinkPolicy
from raylay.services.replication.link.filtered_out import FilteredOut
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.resync_plan import ResyncPlan
from raylay.services.replication.link.routing import Routable, Router
from raylay.services.replication.membership.peers import PeerBook
from raylay.services.replication.membership.placement import GENERATION_MAX
from raylay.services.replication.publisher_names import NamesTold
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.run_lookup import RunLookup, _Piece
from raylay.services.replication.staged import BatchStaged, Entry, RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.unused_sequences import UnusedSequences
from raylay.services.replication.values import LogonAnswer
from raylay.services.subscriptions.bookmark import BookmarkSubscription, ReplayContent
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.durability import PendingMessages
from raylay.storage import front_entries
from raylay.storage.journal import DiskWaitTask
from raylay.storage.memory_front import MemoryFront
from raylay.storage.memory_journal import MemoryJournal
from sim import commit_mistakes, plans, queue_mistakes, sow_mistakes, view_mistakes
from sim.client import SimStore
from sim.stateful import BEHIND, NOTHING, LastOfTopic
from sim.world import Machines


class ForgetsWhatCame(DirectLinkPolicy):
    """Goes on with a direct connection as if nothing had been committed since the link was
    asked."""

    __slots__ = ()

    def taken(self, cursor: int, now_us: int) -> list[Run] | None:
        return super().taken(cursor, now_us) and []


class SkipsWhatItLacks(DirectLink):
    """Takes what it was not given for sent."""

    __slots__ = ()

    def go_on(self, now_us: int) -> list[LinkEffect]:
        if self._unsent:
            cursor = self.machine.cursor
            self.machine.cursor = max(cursor, self._unsent[0].first_txid - 1)
        return super().go_on(now_us)


class DeafWhileAsked(DirectLinkPolicy):
    """Goes on with a direct connection, although the link has handed it over before it heard a
    notice."""

    __slots__ = ()

    def said(self) -> None:
        pass


class NamesNotTold(NamesTold):
    """Tells a destination no names of publishers."""

    __slots__ = ()

    def connected(self, digest: bytes) -> None:
        pass


class NamesToldOnce(NamesTold):
    """Goes on telling names where it was before the connection was lost."""

    __slots__ = ()

    def connected(self, digest: bytes) -> None:
        if self._position is None:
            super().connected(digest)

    def disconnected(self) -> None:
        pass


class PrefixAcks(InstanceMachine):
    """Answers an upstream only up to the first transaction that is not durable yet."""

    def _flush(self) -> None:
        floor_txid = self.durable_floor()
        kept_back: dict[int, RootedRanges] = {}
        self._upstreams.take()
        for upstream in self._upstreams.values():
            back = kept_back[upstream.connection] = RootedRanges()
            for root, answers in upstream.answered().items():
                for publisher, ranges in answers.items():
                    answered = SequenceSet(ranges)
                    for a, b in ranges:
                        for run in self._looked_up(publisher, a, b):
                            if run.last_txid > floor_txid:
                                of_run = SequenceSet(run.ranges())
                                back.of(root).add_ranges(publisher, of_run.within(a, b))
                    kept = back.get(root, publisher)
                    if kept is not None:
                        answered.difference_update(kept)
                    if answered:
                        upstream.answer(root, publisher, answered.ranges())
            self._upstreams.dirty.add(upstream.connection)
        super()._flush()
        for upstream in self._upstreams.values():
            for root, answers in kept_back[upstream.connection].roots.items():
                for publisher, kept in answers.sets.items():
                    upstream.answer(root, publisher, kept.ranges())

    def _looked_up(self, publisher: int, first: int, last: int) -> list[Run]:
        found, wanted = [], SequenceSet([(first, last)])
        while wanted:
            found += self._lookup.part(publisher, wanted)
        return found


class WaitsToldToNobody(InstanceMachine):
    """The machine of `DuplicatesAnsweredAtOnce`."""

    def upstream_logged_on(
        self, *arguments: Any, **named: Any
    ) -> tuple[list[Effect], UpstreamAnswer]:
        effects, answer = super().upstream_logged_on(*arguments, **named)
        return effects, UpstreamAnswer(answer.held, RootedRanges())


class DuplicatesAnsweredAtOnce(UpstreamTable):
    """Answers what it holds already as soon as it comes again, whoever waits for it."""

    __slots__ = ("came_again",)

    def _take_replicated(
        self,
        upstream: Upstream,
        run: Run,
        marked: bool,
        touched: Rooted,
        notes: Rooted,
        now_us: int,
        state: Stateful | None,
    ) -> None:
        held = self._intake.known.of(run.publisher)
        again = [piece for a, b in run.ranges() for piece in held.within(a, b)]
        self._again().add_ranges(run.publisher, again)
        super()._take_replicated(upstream, run, marked, touched, notes, now_us, state)

    def _again(self) -> PublisherRanges:
        if not hasattr(self, "came_again"):
            self.came_again = PublisherRanges()
        return self.came_again

    def _answer_stored(
        self, upstream: Upstream, root: int, publisher: int, ranges: list[Range]
    ) -> None:
        super()._answer_stored(upstream, root, publisher, ranges)
        again = self._again().get(publisher)
        if again is not None:
            answered = [piece for a, b in ranges for piece in again.within(a, b)]
            if answered:
                upstream.answer(root, publisher, answered)


class OldAnswersKept(Destinations):
    """When it becomes awaited after it forwarded a message, what was answered stays answered."""

    def _add_and_ask(
        self, ledger: DestinationLedger, asked: RootedRanges, now_us: int, first_txid: int
    ) -> RootedRanges:
        left = RootedRanges()
        for root, sets in asked.roots.items():
            for publisher, ranges in sets.sets.items():
                for unacked_of in ledger.unacked.roots.values():
                    unacked = unacked_of.get(publisher)
                    if unacked is not None:
                        left.of(root).of(publisher).update(ranges.intersection(unacked))
        return super()._add_and_ask(ledger, left, now_us, first_txid)


class UnsureForEver(DestinationLedger):
    """What a copy of this instance holds and nobody ever sends there stays owed by its list."""

    __slots__ = ()

    def resync_ended(self) -> bool:
        return False


class NextServerNotAsked(Destinations):
    """Takes what a server answered for the answer of the next one, or of what it is now that it has
    lost its disk."""

    def connected(
        self, destination: str, incarnation: int, *arguments: Any, **named: Any
    ) -> LinkStart:
        self.ledgers[destination].incarnation = incarnation
        return super().connected(destination, incarnation, *arguments, **named)


class OneWaiterForAllRoots(InstanceMachine):
    """Keeps one waiter a message, whichever instance it was published at: a client's resend to
    another one is answered before the first one's waits are over."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        self.durability.own_root = 1

    def _root_of(self, run: Run) -> int:
        return min(1, super()._root_of(run))


class OneRootBrought(UpstreamTable):
    """What upstreams bring to `OneWaiterForAllRoots`."""

    def _root_of_arrival(self, run: Run, upstream: Upstream) -> int:
        return min(1, super()._root_of_arrival(run, upstream))


class OneRoot(OutboundLink):
    """The link of `OneWaiterForAllRoots`."""

    def _root_of(self, run: Run) -> int:
        return min(1, super()._root_of(run))


class HighWaterMark(Intake):
    """Takes everything below the highest sequence that it has for a duplicate."""

    def append(self, run: Run, root: int, sender: int, now_us: int, state: Stateful | None) -> None:
        super().append(run, root, sender, now_us, state)
        self.known.add(run.publisher, 1, run.last_sequence)


class WindowFreedByPersisted(OutboundLink):
    """Counts against its window what is not persisted yet, not what is not stored yet."""

    def _unanswered(self) -> dict[int, tuple[int, PublisherRanges]]:
        found: dict[int, tuple[int, PublisherRanges]] = self.__dict__.setdefault("unanswered", {})
        return found

    def connected(self, *arguments, **named) -> list[LinkEffect]:  # type: ignore[no-untyped-def]
        self._unanswered().clear()
        return super().connected(*arguments, **named)

    @property
    def wants(self) -> bool:
        waiting_bytes = sum(size for size, _ in self._unanswered().values())
        return super().wants and waiting_bytes < self.window_bytes

    def _batch(
        self,
        runs: list[Run],
        awaited: RootedRanges,
        size: int,
        before: int | None = None,
        ends: bool = False,
        marked: bool | None = None,
    ) -> SendBatch:
        if runs:
            sent = PublisherRanges()
            for run in runs:
                sent.add_ranges(run.publisher, run.ranges())
            self._unanswered()[self._number + 1] = (size, sent)
        return super()._batch(runs, awaited, size, before, ends, marked)

    def acked(
        self, number: int, held: Ranges, persisted: Rooted, conflicts: Ranges
    ) -> list[LinkEffect]:
        for batch, (_, waiting) in list(self._unanswered().items()):
            for answers in (*persisted.values(), conflicts):
                for publisher, ranges in answers.items():
                    waiting.remove_ranges(publisher, ranges)
            if not waiting:
                del self._unanswered()[batch]
        return super().acked(number, held, persisted, conflicts)


class PathByName(OutboundLink):
    """Takes an instance that lost its disk for the one that it was."""

    name_of: dict[int, str]

    def _routed(self, run: Run) -> bool:
        names = {self.name_of[incarnation] for incarnation in run.path}
        return super()._routed(run) and self.name_of[self._downstream] not in names


# -- what the simulator found in the machines, put back ----------------------------------------
class SkipsWhatItSees(OutboundLink):
    """A resync skips whole segments by what the destination was seen to hold since the connect,
    and never asks for their answers."""

    def skip_segments(self, summaries: list[tuple[int, int, PublisherRanges]]) -> None:
        at_connect, self._at_connect = self._at_connect, self._held
        super().skip_segments(summaries)
        self._at_connect = at_connect

    def _name_what_is_gone(self) -> None:
        pass


class ForgetsTopics(Intake):
    """Knows only since its start what came on a topic, and so does not see what is late."""

    def _highest_in_journal(self, run: Run) -> int:
        return 0


class SafeByLink(InstanceMachine):
    """Calls a peer safe by its link, whatever topics that link carries."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        for ledger in self.destinations.values():
            ledger.carries_all = True


class CommittedIsDurable(PendingMessages):
    """Fully durable subscribers get what is on disk here, whoever else has it."""

    def first_pending(self, publisher: int, first: int, last: int) -> int | None:
        return None


class AsksOnlyTheSender(OutboundLink):
    """Between regions it lets on what another region published, when its own region sent it."""

    def _routed(self, run: Run) -> bool:
        return super()._routed(replace(run, flags=run.flags & ~Flag.CROSSED))


class AcceptsRetired(InstanceAdmission):
    """Lets an incarnation in that it knows to be retired."""

    def refuse_upstream(self, *arguments: Any, **named: Any) -> tuple[str, str] | None:
        if not named.get("salvages"):
            named["generation"] = GENERATION_MAX
        return super().refuse_upstream(*arguments, **named)


class ServesOn(InstanceMachine):
    """Goes on with its clients when it hears that it was moved."""

    def _retire(self, text: str) -> None:
        self._out.report("retired", text=text)


class ServesAnOldCopy(InstanceMachine):
    """Goes on with an old copy of its data, whatever its peers have seen."""

    def upstream_shows(self, connection: int, yours: Ranges) -> list[Effect]:
        return []

    def epoch_refused(self, destination: str) -> list[Effect]:
        return []


class TrustIsProof(OutboundLink):
    """What was seen to come to the destination by another way is taken to be there."""

    def _defers(self, run: Run, part: Run | None, now_us: int) -> bool:
        if super()._defers(run, part, now_us):
            self._deferred = None
            self._held.add_ranges(run.publisher, run.ranges())
            self.cursor = run.last_txid
            return True
        return False


class RemovedUntold(BookmarkSubscription):
    """Nobody is told of what retention removed."""

    __slots__ = ()

    @property
    def missing(self) -> PublisherRanges:
        return PublisherRanges()


class OvertakenUntold(BookmarkSubscription):
    """A connected subscriber that retention overtakes goes on behind the gap, and is not told."""

    __slots__ = ()

    def is_overtaken(self, first_txid: int) -> bool:
        return False


class LastRemovedUntold(BookmarkSubscription):
    """The last message that retention removed of a publisher is not told."""

    __slots__ = ()

    @property
    def missing(self) -> PublisherRanges:
        found = super().missing.copy()
        for publisher, sequences in list(found.sets.items()):
            last = sequences.last()
            if last is not None:
                found.remove_ranges(publisher, [(last, last)])
        return found


class PassedOverEndsTheLink(UpstreamTable):
    """A topic that is not in the transaction log ends the connection that brings it."""

    def batch(self, connection: int, number: int, runs: list[Run], *rest: Any) -> bool:
        upstream = self.get(connection)
        if upstream is not None and any(
            not self._topics[run.topic, run.message_type].journaled for run in runs
        ):
            return self._refuse(upstream, "unknown_topic", "it is not in the transaction log")
        return super().batch(connection, number, runs, *rest)


class PassedOverWithAllOthers(UpstreamTable):
    """What comes in one batch with a topic that is passed over is passed over, too."""

    def batch(self, connection: int, number: int, runs: list[Run], *rest: Any) -> bool:
        journaled = [run for run in runs if self._topics[run.topic, run.message_type].journaled]
        if len(journaled) < len(runs):
            runs = [run for run in runs if run not in journaled]
        return super().batch(connection, number, runs, *rest)


class PassedOverUnanswered(UpstreamTable):
    """What is passed over is not answered."""

    def _pass_over(self, upstream: Upstream, run: Run, marked: bool, touched: Rooted) -> None:
        super()._pass_over(upstream, run, marked, {})


class PassedOverForgotten(UpstreamTable):
    """What is passed over is answered when it comes, and to nobody who asks for it later."""

    def _pass_over(self, upstream: Upstream, run: Run, marked: bool, touched: Rooted) -> None:
        super()._pass_over(upstream, run, marked, touched)
        upstream.passed_over = PublisherRanges()


class NewsForgives(OutboundLink):
    """What is shown of a way clears what was missed of it, whoever published that."""

    def _shown_elsewhere(self, held: Ranges) -> None:
        super()._shown_elsewhere(held)
        for publisher in held:
            way = self._ways.get(publisher)
            if way is not None and way in self._elsewhere:
                self._elsewhere[way].misses = 0


class StoredIsEnough(DestinationLedger):
    """Frees journal by what the connected server stored, though the next one may be another."""

    @property
    def has_several_servers(self) -> bool:
        return False


# -- removal -----------------------------------------------------------------------------------
class FreesWithoutAsking(Destinations):
    """Lets the journal remove what is committed, whoever lacks it."""

    def removable_before(self) -> int:
        return self._durability.committed_txid + 1


class EvidenceUntold(Destinations):
    """Waits no more for a process that has ended, and leaves it to the next tick to tell clients
    that they must not fail over to it."""

    def process_ended(self, destination: str, now_us: int, why: str) -> None:
        ledger = self.ledgers[destination]
        if not ledger.connected and ledger.sync and self._schedule.acts_by_evidence(now_us):
            ledger.stop_waiting()
            self._durability.release()


class FloorAtTheTick(Destinations):
    """Looks at what may be removed from time to time only, whatever becomes of its links."""

    def tick(self, now_us: int, ages_ms: Ages | None = None) -> bool:
        super().release()
        return super().tick(now_us, ages_ms)

    def release(self) -> None:
        pass


class FrontForgotten(MemoryFront):
    """What is in front of the store when a restart opens it stays there."""

    def recover(self, stored_txid: int) -> list[Run]:
        super().recover(stored_txid)
        return []


class _NothingWaits(front_entries.FrontSpace):
    """Every file may be used again."""

    def place(self, block_bytes: int) -> front_entries.FrontPlace | None:
        self.moved(1 << 60)
        return super().place(block_bytes)


class FrontUsedAgainEarly(MemoryFront):
    """A file is begun anew before what it holds is in the store."""

    space_of = _NothingWaits


class FrontGenerationKept(MemoryFront):
    """A restart goes on in the generation that it found."""

    def _begin(self, generation: int) -> None:
        super()._begin(1)


class FloorOfAnEarlierLife(MemoryJournal):
    """Goes on with what an earlier life released."""

    def crash(self) -> MemoryJournal:
        other = super().crash()
        other._removable_before = self._removable_before
        return other


class HolesTakenAsHeld(RunLookup):
    """A run passes for holding all between its first and its last sequence."""

    def _stretch_at(self, publisher: int, sequence: int) -> dict[int, list[_Piece]]:
        stretch = super()._stretch_at(publisher, sequence)
        for pieces in stretch.values():
            runs = {piece.run.first_txid: piece.run for piece in pieces}.values()
            whole = [_Piece(run.first_sequence, run.last_sequence, run) for run in runs]
            pieces[:] = sorted(whole, key=lambda piece: piece.first)
        return stretch


class FindsWhatWasRemoved(RunLookup):
    """What it has read it takes for what is in the journal still."""

    def look_anew(self) -> None:
        pass


class ReadyByAnyGroup(UpstreamTable):
    """Having lost its disk it admits clients as soon as any upstream has caught up, though those of
    its own group may hold more."""

    def stored(self, entry: BatchStaged) -> None:
        super().stored(entry)
        if entry.caught_up:
            self._admission.become_ready()


# -- who may be failed over to ---------------------------------------------------------------------
class WholeListIsSafe(PeerBook):
    """Says of every server of a list what was proved of the connected one."""

    def told(self, ledgers: Mapping[str, DestinationLedger]) -> list[dict[str, Any]]:
        found = super().told(ledgers)
        safe = {name for ledger in ledgers.values() if ledger.safe for name in ledger.servers}
        return [{**peer, "safe": peer["safe"] or peer["name"] in safe} for peer in found]


class NamesTheConnected(PeerBook):
    """Names the server that is connected, as an earlier release did, and no other one of a list."""

    def told(self, ledgers: Mapping[str, DestinationLedger]) -> list[dict[str, Any]]:
        reached = {each.reached.name for each in self._servers.values() if each.reached}
        return [peer for peer in super().told(ledgers) if peer["name"] in reached]


class _News(ServerChooser):
    __slots__ = ()

    def heard(self, speaker: str, peers: Sequence[PeerStatus]) -> tuple[list[str], list[str]]:
        before = self._words.get(speaker, {})
        found = super().heard(speaker, peers)
        self._words[speaker] = before | self._words[speaker]
        return found


class NoticesAreNews(ClientMachine):
    """Takes a notice for news of those that it names: the others stay as safe as they were."""

    def __init__(self, options: ClientOptions, outbox: PublishOutbox) -> None:
        super().__init__(options, outbox)
        self.chooser.__class__ = _News


class _LastWord(ServerChooser):
    __slots__ = ()

    def use(self, address: str, instance: str) -> None:
        super().use(address, instance)
        self._words.clear()


class OnlyTheLastCounts(ClientMachine):
    """Forgets what the others had said as soon as it has gone on to one."""

    def __init__(self, options: ClientOptions, outbox: PublishOutbox) -> None:
        super().__init__(options, outbox)
        self.chooser.__class__ = _LastWord


class WordsNotKept(SimStore):
    """A publish store that keeps the publishes and not the words."""

    def flush(self) -> None:
        super().flush()
        records, highest, _ = self._on_disk
        self._on_disk = (records, highest, b"")


# -- what a client sends again ---------------------------------------------------------------------
class SentBeforeItIsKept(SimStore):
    """What was put since the last flush but one is not on disk yet."""

    def flush(self) -> None:
        before = self.__dict__.get("now", self._on_disk)
        super().flush()
        self.__dict__["now"], self._on_disk = self._on_disk, before


class NothingSentAgain(PublishOutbox):
    """Goes on behind what it sent on an earlier connection."""

    def take_durable(self, header: Header) -> None:
        sent_upto = max(self._sent_upto, self.__dict__.get("ever_sent", 0))
        self.__dict__["ever_sent"] = sent_upto
        super().take_durable(header)
        self._resend = self.store.replay(sent_upto + 1)
        self._resend_next = next(self._resend, None)


class NewOnesFirst(PublishOutbox):
    """Sends what is published meanwhile ahead of what it has to send again."""

    def next_batch(self, bytes_max: int) -> PublishFrame | None:
        waiting = self._resend_next
        if self._tail:
            self._resend_next = None
        batch = super().next_batch(bytes_max)
        if self._resend_next is None and batch is not None and waiting is not None:
            self._resend_next = waiting if batch.first > waiting[0] else None
        return batch


class SentTwice(PublishOutbox):
    """Sends again to the end of the store, with what is published meanwhile and follows anyway."""

    def take_durable(self, header: Header) -> None:
        super().take_durable(header)
        self._resend_upto = 1 << 63


class DurableSentAgainOnly(PublishOutbox):
    """Sends again only what lies behind the highest that the server called durable."""

    def take_durable(self, header: Header) -> None:
        durable = header.get("durable")
        if durable:
            header = {**header, "durable": [[1, durable[-1][1]]]}
        super().take_durable(header)


class OneBehindAfterRemoval(BookmarkSubscription):
    """Begins behind the oldest record that is here, once the first ones are removed."""

    def __init__(self, *arguments: Any, first_txid: int, **named: Any) -> None:
        super().__init__(*arguments, first_txid=first_txid, **named)
        if 1 < first_txid == self.cursor + 1:
            self.cursor = self._before = first_txid


class LinkOneBehindAfterRemoval(OutboundLink):
    """The same, of a link."""

    def connected(
        self, downstream: int, held: PublisherRanges, start: LinkStart, first_txid: int
    ) -> list[LinkEffect]:
        behind = first_txid + 1 if first_txid > 1 else first_txid
        return super().connected(downstream, held, start, behind)


class GoneAndNotAskedFor(OutboundLink):
    """Waits for the answer to what it would send once more, and what is in the journal no more."""

    def _name_what_is_gone(self) -> None:
        pass


class WhatCameRoundNotShown(OutboundLink):
    """Shows a destination only at the connect what went through it."""

    def _show_what_came_round(self, run: Run) -> None:
        pass


# -- the writer thread ---------------------------------------------------------------------------
class UnmarkedNotAsked(Destinations):
    """Waits for the answer to what a link sent unmarked, woken ahead of the news of an upgrade."""

    def _ask_for_what_went_unmarked(self, ledger: DestinationLedger, stored: Ranges) -> None:
        pass


class LinkBeforeCommits(CommitNotifications):
    """Takes what a link says before the commits that it is about."""

    def is_ahead(self, taken_txid: int) -> bool:
        return False


class FailureForgetsCommits(InstanceMachine):
    """A failed commit takes with it what was committed ahead of it and not taken yet."""

    def append_failed(self, first_txid: int, reason: str, text: str, now_us: int) -> list[Effect]:
        return super().append_failed(self.committed_txid + 1, reason, text, now_us)


class ToldBeforeItsCommit(MemoryJournal):
    """Tells of what the loop commits before it is synced: the writer thread's next commit does
    that."""

    _synced_txid = -1
    """Of this life; -1: nothing was committed on the loop since all was synced."""

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        if self._synced_txid < 0:
            self._synced_txid = self._last_txid
        super().commit_here(ahead)

    def commit(self, runs_max: int | None = None) -> int:
        self._synced_txid = -1
        return super().commit(runs_max)

    def crash(self) -> MemoryJournal:
        segment, synced_txid = self._segments[-1], self._synced_txid
        if synced_txid >= 0:
            while segment.runs and segment.runs[-1].last_txid > synced_txid:
                segment.runs.pop()
                segment.firsts.pop()
            self._last_txid = segment.last_txid or segment.first_txid - 1
        return super().crash()


class CommitErrorSwallowed(MemoryJournal):
    """Tells nobody of a commit on the loop that fails."""

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        failed, self._failed = self._failed, None
        super().commit_here(ahead)
        self._failed = failed


class IgnoresTheThread(CommitThreadPolicy):
    """Commits on the loop what was staged while the writer thread still has something."""

    def choose(self, *, thread_idle: bool, pending: bool) -> CommitThread:
        return super().choose(thread_idle=True, pending=pending)


class Overtaken(MemoryJournal):
    """Does not look, either: what comes out of its order it takes for staged behind a commit that
    failed, and drops it, and all behind it."""

    def commit_here(self, ahead: DiskWaitTask | None = None) -> None:
        if self._staged and self._kept:
            self._next_txid = self._refused_from = self._kept[0].first_txid
            self._kept = []
        elif not self._staged:
            super().commit_here(ahead)


class PointWithoutWhatWaits(InstanceMachine):
    """Takes what is committed when it writes its recovery point for durable."""

    def recovery_point(self) -> RecoveryPoint:
        return replace(super().recovery_point(), waiting=WaiterTable())


class NotesNotRecovered(InstanceMachine):
    """Forgets in a restart who waits by a note behind the recovery point."""

    def recover(self, runs: Iterable[Run], now_us: int) -> None:
        kept = list(runs)
        super().recover([run for run in kept if run.kind != Kind.WAITER], now_us)
        for run in kept:
            if run.kind == Kind.WAITER:
                root, _, ranges = decode_note(run)
                self.awaited.of(root).add_ranges(run.publisher, ranges)


class ConflictToldAhead(UpstreamTable):
    """Tells an upstream of a conflict with what is only staged."""

    def _take_replicated(self, upstream: Upstream, *arguments: Any) -> None:
        super()._take_replicated(upstream, *arguments)
        upstream.conflicts.update(upstream.contested)
        self.dirty.add(upstream.connection)


class WhatComesBackIsItsOwn(InstanceMachine):
    """Takes what peers brought back under a former incarnation for what was published here."""

    def _root_recovered(self, root: int, sender: int) -> int:
        return self.own_root if root in self._former else root


class RecoversFromTheOldest(InstanceMachine):
    """Lets all wait again that came behind the oldest message that waits."""

    def recovery_point(self) -> RecoveryPoint:
        point = super().recovery_point()
        return replace(point, committed_txid=point.durable_txid, waiting=WaiterTable())


class ChangesMissed(ResyncPlan):
    """Compares what there was when a link reached its destination: what changes while the
    comparison is worked off is missed."""

    def look(self, unacked: RootedRanges, published: PublisherRanges) -> int:
        looked = self.__dict__.setdefault("looked", [])
        if not looked:
            looked.append(super().look(unacked, published))
        return self.left


class UnwrittenPassesForWritten(RecoveryLog):
    """Writes the next recovery point as if the one before, whose write failed, were on disk."""

    def changes(self, point: RecoveryPoint) -> dict[str, bytes | None]:
        values = super().changes(point)
        self.written(point)
        return values


class NotesFreed(UnavailableMessages):
    """Lets the journal go that alone tells what is unavailable."""

    @property
    def removable_before(self) -> int | None:
        return None


class FreesNotesUntold(InstanceMachine):
    """Its notes of what is unavailable may be removed before a recovery point tells of them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.missing = NotesFreed(self.missing.ranges, self.known)


# -- what only a test below the simulator saw, or nothing ---------------------------------------
class RefusedIsDurable(Durability):
    """What a destination refused for good counts as durable when its client logs on again."""

    def refuse(self, publisher: int, ranges: list[Range]) -> SequenceSet:
        awaited = self.awaited.copy()
        refused = super().refuse(publisher, ranges)
        self.awaited = awaited
        return refused


class ShowsWhatClientsPublished(InstanceMachine):
    """Tells upstreams to send nothing of what clients published here, whatever its content."""

    def _drain(self, now_us: int) -> None:
        for entry in self.intake.staged:
            if entry.txid > self.committed_txid:
                break
            if isinstance(entry, RunStaged) and entry.sender == CLIENT:
                run = entry.run
                self._upstreams.came_elsewhere(CLIENT, run.publisher, run.ranges())
        super()._drain(now_us)


class ContentsNotCompared(Intake):
    """Takes every message of a known identity for the same message."""

    def conflicts(self, run: Run, old: list[Range]) -> list[Range]:
        return []


class BlamesTheLease(Publishers):
    """A message for a queue that comes again, and is new here, is refused for want of a lease."""

    def _take(self, session, run, now_us, state, claim):  # type: ignore[no-untyped-def]
        if claim is None:
            super()._take(session, run, now_us, state, claim)
        else:
            self._refuse(session, [RefusedRecords(run.ranges(), NOT_LEASED, "it comes again")])


class JudgesWhatIsHere(Publishers):
    """An acknowledgment of a queue that is in the log is judged again when it comes again."""

    def _published_again(self, session, run, *rest):  # type: ignore[no-untyped-def]
        if run.flags & Flag.COMMANDS and self._fresh(run) is None:
            self._refuse(session, [RefusedRecords(run.ranges(), NOT_LEASED, "its lease is over")])
        else:
            super()._published_again(session, run, *rest)


class GivesUnusedTwice(Publishers):
    """What a life left is given to each later one, until another is left."""

    def logged_on(self, *arguments: Any, **named: Any) -> LogonAnswer:
        """As ever, and it stays."""
        kept = dict(self._unused._of)
        answer = super().logged_on(*arguments, **named)
        self._unused._of = kept
        return answer


class TakesAnySequence(Publishers):
    """A client may use the numbers of its name up."""

    def _check_step(self, *_: Any) -> None:
        pass


class LeavesForWhoIsGone(Publishers):
    """Who is gone has ended, and has used what came here."""

    def left(self, session: int) -> None:
        """As ever, and the rest is left to the next life."""
        found = self._sessions.get(session)
        if found is not None and found.received and self._session_of.get(found.publisher) is found:
            self._unused._of.setdefault(found.publisher, (found.received + 1, 1 << 60))
        super().left(session)


class BelowWhatIsKnown(UnusedSequences):
    """What a life left is good for whoever comes, wherever it was meanwhile."""

    def take(self, publisher: int, highest: int) -> Range | None:
        """As if nothing was above it."""
        return super().take(publisher, 0)


class TakesBelowWhatIsKnown(Publishers):
    """Numbers of a later life may lie below those of an earlier one that is known here."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._unused = BelowWhatIsKnown()

    def logged_on(self, *arguments: Any, **named: Any) -> LogonAnswer:
        """The client is told of nothing above it, either: it would not go on there."""
        answer = super().logged_on(*arguments, **named)
        if answer.unused is None:
            return answer
        return answer._replace(highest=answer.unused[0] - 1)


class GivesWhileParted(InstanceMachine):
    """What a life left is kept and given while links are down."""

    _hears_all = property(lambda self: True)  # type: ignore[assignment]

    def link_disconnected(self, destination: str, why: str) -> list[Effect]:
        """As ever; nothing is forgotten."""
        kept = dict(self._publishers._unused._of)
        effects = super().link_disconnected(destination, why)
        self._publishers._unused._of = kept
        return effects

    def upstream_left(self, connection: int) -> None:
        """The same."""
        kept = dict(self._publishers._unused._of)
        super().upstream_left(connection)
        self._publishers._unused._of = kept


class AdmitsUnasked(InstanceAdmission):
    """Admitted by hand, asks only its destinations whether anything is missing."""

    def risk(self, senders: Iterable[str], held: PublisherRanges) -> str:
        return super().risk((), held)


class AllSaid(LookupResult):
    """Answers of somebody who did not look."""

    def not_compared(self, run: Run, wanted: SequenceSet) -> SequenceSet:
        return SequenceSet()

    def not_routed(self, publisher: int, wanted: SequenceSet) -> SequenceSet:
        return SequenceSet()

    def highest_on(self, publisher: int, topic: bytes) -> int | None:
        return 0


class UnreadIsTheSame(InstanceMachine):
    """What would have to be read of the journal first is taken for what came."""

    def asks(
        self, runs: Iterable[Run], answers: LookupResult, noted: Rooted | None = None
    ) -> LookupRequest:
        return LookupRequest()

    def client_published(self, *published):  # type: ignore[no-untyped-def]
        session, runs, now_us, _, *resent = published
        return super().client_published(session, runs, now_us, AllSaid(), *resent)

    def upstream_batch(self, *arguments) -> list[Effect]:  # type: ignore[no-untyped-def]
        batch, _, is_part = arguments[:-2], *arguments[-2:]
        return super().upstream_batch(*batch, AllSaid(), is_part)


class RefusesWithoutAWord(InstanceMachine):
    """What nobody would keep is left out, and the next ack covers it."""

    def client_published(self, *published):  # type: ignore[no-untyped-def]
        effects, transient = super().client_published(*published)
        return [each for each in effects if not isinstance(each, RefuseClient)], transient


class FramesOvertake(InboundQueue):
    """What asks nothing does not wait for what came before it on its connection."""

    def came(self, what: Any, size_bytes: int = 0) -> LookupTask | None:
        if self._waiting and not self._take(what, LookupResult()):
            return None
        return super().came(what, size_bytes)


class StoredWhenSent(OutboundLink):
    """Counts as stored what is in flight."""

    @property
    def stored_txid(self) -> int:
        return self.cursor


class HeldIsTheSame(OutboundLink):
    """Does not send what is held there under the same identity, though a client published it here:
    nobody sees that the other content is another one."""

    def _to_compare(self, run: Run, surplus: list[Range]) -> list[Range]:
        return []


class LastHopRouter(Router):
    """Of the ways of a message only the last hop keeps it from coming round."""

    def routed(self, run: Routable, downstream: int) -> bool:
        last_hop = run.path[-1:]
        seen = Run(0, 0, 0, 0, b"", run.topic, run.message_type, last_hop, run.group, run.flags)
        return super().routed(seen, downstream)

    def part(self, run: Run, downstream: int, ranges: list[Range]) -> list[Range]:
        return self.passing(run, ranges) if self.routed(run, downstream) else []


class OwesByLastHop(InstanceMachine):
    """The instance of `SendsByLastHop`."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        for ledger in self.destinations.values():
            ledger.router = LastHopRouter(ledger.destination, self.contents)


class SendsByLastHop(OutboundLink):
    """Sends a message to an instance that it came through, unless that sent it here itself."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        self.router = LastHopRouter(self.destination, self.router.contents)


# -- content filters ---------------------------------------------------------------------------
class WholeWhereAnyPasses(Router):
    """Takes a run whole when a record of it passes the filter."""

    def passing(self, run: Run, ranges: list[Range]) -> list[Range]:
        return ranges if super().passing(run, ranges) else []


class SendsWhatIsBeside(OutboundLink):
    """Sends what is in one run with what passes the filter."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        self.router = WholeWhereAnyPasses(self.destination, self.router.contents)


class LeftOutIsThere(FilteredOut):
    """Takes what is in one run with what its filters left out for left out."""

    def add(self, run: Run, ranges: list[Range], passed: list[Range]) -> None:
        super().add(run, ranges, [])


class SkipsWhatIsBeside(OutboundLink):
    """Looks, when it begins, past what lies in one run with what its filters left out."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        self.beside = LeftOutIsThere()


class OwedWhatIsBeside(InstanceMachine):
    """Waits for what is in one run with what passes the filter."""

    def __init__(self, *arguments, **named) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **named)
        for ledger in self.destinations.values():
            ledger.router = WholeWhereAnyPasses(ledger.destination, self.contents)


class DurableWithItsRun(Destinations):
    """Takes what of a run does not pass for all of it: nobody waits for the rest."""

    def _wait(self, run: Run, root: int, sender: int, ranges: list[Range], time_us: int) -> None:
        if ranges == run.ranges():
            super()._wait(run, root, sender, ranges, time_us)
        else:
            self._durability.durable(root, run.publisher, ranges)


class VerdictsNotKept(Destinations):
    """Forgets which filters let something through when its records are gone: who is asked later
    is asked for none of it."""

    def _wait(self, run: Run, root: int, sender: int, ranges: list[Range], time_us: int) -> None:
        route = route_of(run, sender)
        self._durability.wait(root, route, run.publisher, ranges, time_us, run.first_txid)


class FiltersUntold(RecoveryLog):
    """What waits at the recovery point passes for judged by whatever filters there are now."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        super().__init__(stored)
        every = tuple(
            (topic, "*", text) for topic in (".*", *plans.TOPICS) for text in plans.FILTERS
        )
        self.point = replace(self.point, filters=every)


class HeadersAreEnough(InstanceMachine):
    """A restart reads no records: what a filter looks at passes none."""

    def recover(self, runs: Iterable[Run], now_us: int) -> None:
        contents, self.contents = self.contents, DestinationFilters()
        super().recover(runs, now_us)
        self.contents = contents


class JudgedByItsFirst(BookmarkSubscription):
    """A filtered subscriber gets a run whole, or not, as its first record passes or does not."""

    def _deliver_passing(
        self,
        content: ReplayContent,
        run: Run,
        held: SequenceSet | None,
        found: list[DeliveryContent],
    ) -> None:
        if any(before == 0 for before, *_ in content.passing(run)):
            self.content = None
            self._deliver(run, found)
            self.content = content


class UnfilteredWhenResumed(BookmarkSubscription):
    """Who resumes is not asked for his filter."""

    def __init__(self, *arguments: Any, content: ReplayContent | None, **named: Any) -> None:
        resumes = named.get("have") is not None
        super().__init__(*arguments, content=None if resumes else content, **named)


# -- what an instance writes itself ------------------------------------------------------------
class ForgetsWhatFailed(SelfPublisher):
    """Nobody hears that what the instance wrote itself could not be journaled."""

    __slots__ = ()

    def failed(self, committed_txid: int) -> list[PendingRecord]:
        super().failed(committed_txid)
        return []


class ActsAtOnce(SelfPublisher):
    """Acts on what it wrote itself when that is handed over."""

    __slots__ = ("_at_once",)

    def runs(self) -> list[Run]:
        self._at_once = list(self._drafts)
        return super().runs()

    def committed(self, runs: Iterable[Run]) -> list[PendingRecord]:
        found = super().committed(runs)
        behind = [each for each in getattr(self, "_at_once", ()) if each not in found]
        self._at_once = []
        return [*found, *behind]


# -- topics with state -------------------------------------------------------------------------
class DropsNothingAtFailure(Intake):
    """Tells no state that what is staged never comes to the disk."""

    def undo(self) -> list[Entry]:
        states, self._states = self._states, ()
        found = super().undo()
        self._states = states
        return found


class PreparesWhatWasPrepared(Intake):
    """Adds to what another instance has made of a message where it was published."""

    def append(self, run: Run, root: int, sender: int, now_us: int, state: Stateful | None) -> None:
        if state is not None and sender != CLIENT:
            run = next(iter(self.prepared(state, run, now_us, None).runs), run)
        super().append(run, root, sender, now_us, state)


class OnlyItsOwnStaged(Intake):
    """Makes no value of what other instances bring."""

    def append(self, run: Run, root: int, sender: int, now_us: int, state: Stateful | None) -> None:
        super().append(run, root, sender, now_us, state if sender == CLIENT else None)


class FromWhatIsCommitted(LastOfTopic):
    """Makes a message of the value that is committed, whatever is staged."""

    def value(self, topic: bytes) -> str:
        return self._committed.get(topic, NOTHING)


class RefusedIsAValue(LastOfTopic):
    """Makes the next message of one that it refused."""

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        runs, refused, _ = super().prepare(run, now_us, steady_us)
        if not runs or not refused:
            return PreparedRun(runs, refused)
        (left,) = runs
        made, before = [], self.value(run.topic)
        kept = {record.sequence: record for record in iterate_records(left.payload)}
        for record in iterate_records(run.payload):
            if record.sequence in kept:
                body = record.body + BEHIND + before.encode()
                made.append((kept[record.sequence], body))
            before = record.bookmark
        return PreparedRun((with_bodies(left, made),), refused)


class TakesWhatIsRefused(Publishers):
    """Tells who published it that a message is refused, and journals it."""

    def _take(self, session, run, now_us, state, claim):  # type: ignore[no-untyped-def]
        refused = () if state is None else self._intake.prepared(state, run, now_us, None).refused
        if not refused:
            super()._take(session, run, now_us, state, claim)
            return
        self._refuse(session, refused)
        run.flags |= Flag.AWAITED
        self._intake.append(run, self._durability.own_root, CLIENT, now_us, state)


# -- folds -------------------------------------------------------------------------------------
class FoldsBeforeAcks(EffectLoop):
    """Lets publishers wait for what subscribers are told."""

    __slots__ = ()

    def _committed(self, effect: RunsCommitted) -> None:
        super()._committed(effect)
        self._fold()


class FoldsBackwards(FeatureRegistry):
    """Folds in the opposite order."""

    __slots__ = ()

    def enlist(self, feature: Feature, served: bool) -> None:
        super().enlist(feature, served)
        self.served = tuple(sorted(self.served, key=lambda each: -self._places[each.name]))


class FoldedNoMore(FeatureRegistry):
    """Takes a feature out with another one that nobody needs."""

    __slots__ = ()

    def enlist(self, feature: Feature, served: bool) -> None:
        super().enlist(feature, served)
        if not served:
            self.served = ()


MISTAKES: dict[str, Machines] = {
    **{name: Machines(queues=of) for name, (of, _) in queue_mistakes.MISTAKES.items()},
    "names: not told": Machines(names_told=NamesNotTold),
    "names: told once": Machines(names_told=NamesToldOnce),
    "queue: blames the lease": Machines(parts=MachineParts(publishers=BlamesTheLease)),
    "queue: judges what is here": Machines(parts=MachineParts(publishers=JudgesWhatIsHere)),
    "passed over: forgotten": Machines(parts=MachineParts(upstreams=PassedOverForgotten)),
    "passed over: ends the link": Machines(parts=MachineParts(upstreams=PassedOverEndsTheLink)),
    "passed over: others with it": Machines(parts=MachineParts(upstreams=PassedOverWithAllOthers)),
    "passed over: unanswered": Machines(parts=MachineParts(upstreams=PassedOverUnanswered)),
    "folds before the acks": Machines(steps=FoldsBeforeAcks),
    "folds in another order": Machines(folds=FoldsBackwards),
    "folded no more": Machines(folds=FoldedNoMore),
    "staged kept at failure": Machines(parts=MachineParts(intake=DropsNothingAtFailure)),
    "prepared at the replica": Machines(parts=MachineParts(intake=PreparesWhatWasPrepared)),
    "only its own staged": Machines(parts=MachineParts(intake=OnlyItsOwnStaged)),
    "from what is committed": Machines(state=FromWhatIsCommitted),
    "refused is a value": Machines(state=RefusedIsAValue),
    "takes what is refused": Machines(parts=MachineParts(publishers=TakesWhatIsRefused)),
    "SOW lacks what is removed": Machines(sow=sow_mistakes.FreesWhatItLacks),
    "SOW unwritten is written": Machines(sow=sow_mistakes.UnwrittenIsWritten),
    "SOW ahead of itself": Machines(sow=sow_mistakes.ClaimsWhatIsToCome),
    "SOW forgets deletions": Machines(sow_state=sow_mistakes.ForgetsDeletions),
    "SOW late overwrites": Machines(sow_state=sow_mistakes.LateOverwrites),
    "SOW last writer by arrival": Machines(sow_state=sow_mistakes.LastWriterByArrival),
    "SOW deletes what is later": Machines(sow_state=sow_mistakes.DeletesWhatIsLater),
    "SOW asked too soon": Machines(folds=sow_mistakes.AsksTooSoon),
    "SOW merges into what is folded": Machines(sow_staging=sow_mistakes.MergesIntoWhatIsFolded),
    "SOW deletes what is folded": Machines(sow_staging=sow_mistakes.DeletesWhatIsFolded),
    "SOW deletes what passed": Machines(sow_staging=sow_mistakes.DeletesWhatPassed),
    "SOW keeps what failed": Machines(sow_staging=sow_mistakes.KeepsWhatFailed),
    "SOW keeps the first of a run": Machines(sow_state=sow_mistakes.KeepsTheFirstOfARun),
    "SOW forgets kills": Machines(sow_blocks=sow_mistakes.ForgetsKills),
    **{name: Machines(views=each) for name, each in view_mistakes.VIEWS.items()},
    **{name: Machines(build=each) for name, each in view_mistakes.BUILD.items()},
    **{name: Machines(view=each) for name, each in view_mistakes.VIEW.items()},
    **{name: Machines(conflated=each) for name, each in view_mistakes.CONFLATED.items()},
    **{
        name: Machines(conflated_subscriptions=each)
        for name, each in view_mistakes.CONFLATED_SUBSCRIPTIONS.items()
    },
    **{name: Machines(pages=each) for name, each in view_mistakes.PAGES.items()},
    **{name: Machines(aggregated=each) for name, each in view_mistakes.AGGREGATED.items()},
    "forgets what failed": Machines(author=ForgetsWhatFailed),
    "acts before the commit": Machines(author=ActsAtOnce),
    "sends what is beside": Machines(link=SendsWhatIsBeside),
    "skips what is beside": Machines(link=SkipsWhatIsBeside),
    "owed what is beside": Machines(instance=OwedWhatIsBeside),
    "durable with its run": Machines(parts=MachineParts(links=DurableWithItsRun)),
    "verdicts of other filters": Machines(verdicts_outlive_filters=True),
    "waits by other filters": Machines(recovery=FiltersUntold),
    "verdicts not kept": Machines(parts=MachineParts(links=VerdictsNotKept)),
    "judged by its first": Machines(subscription=JudgedByItsFirst),
    "unfiltered when resumed": Machines(subscription=UnfilteredWhenResumed),
    "removed: untold": Machines(subscription=RemovedUntold),
    "removed: last untold": Machines(subscription=LastRemovedUntold),
    "headers are enough": Machines(instance=HeadersAreEnough),
    "link one behind after removal": Machines(link=LinkOneBehindAfterRemoval),
    "front forgotten": Machines(front=FrontForgotten),
    "front used again early": Machines(front=FrontUsedAgainEarly),
    "front's generation kept": Machines(front=FrontGenerationKept),
    "link before commits": Machines(news=LinkBeforeCommits),
    "acks before the commit": Machines(commits=commit_mistakes.AcksBeforeTheCommit),
    "acks while the disk writes": Machines(commits=commit_mistakes.AcksWhileTheDiskWrites),
    "folds before the commit": Machines(commits=commit_mistakes.FoldsBeforeTheCommit),
    "folds before it is said": Machines(commits=commit_mistakes.FoldsBeforeItIsSaid),
    "folds in a later step": Machines(commits=commit_mistakes.FoldsInALaterStep),
    "reports before the commit": Machines(commits=commit_mistakes.ReportsBeforeTheCommit),
    "goes on ahead of the disk": Machines(commits=commit_mistakes.GoesOnAheadOfTheDisk),
    "told before its commit": Machines(journal=ToldBeforeItsCommit),
    "commit error swallowed": Machines(journal=CommitErrorSwallowed),
    "thread overtaken": Machines(place=IgnoresTheThread, journal=Overtaken),
    "changes missed at a connect": Machines(plan=ChangesMissed),
    "unwritten passes for written": Machines(recovery=UnwrittenPassesForWritten),
    "notes freed untold": Machines(instance=FreesNotesUntold),
    "journal freed without asking": Machines(parts=MachineParts(links=FreesWithoutAsking)),
    "prefix acks": Machines(instance=PrefixAcks),
    "duplicates answered at once": Machines(
        instance=WaitsToldToNobody, parts=MachineParts(upstreams=DuplicatesAnsweredAtOnce)
    ),
    "old answers kept": Machines(parts=MachineParts(links=OldAnswersKept)),
    "one waiter for all roots": Machines(
        instance=OneWaiterForAllRoots, parts=MachineParts(upstreams=OneRootBrought), link=OneRoot
    ),
    "windows freed by persisted": Machines(link=WindowFreedByPersisted),
    "high-water-mark duplicates": Machines(parts=MachineParts(intake=HighWaterMark)),
    "path by name": Machines(link=PathByName),
    "one logon number": Machines(durable_is_highest=True),
    "safe by link": Machines(instance=SafeByLink),
    "evidence untold": Machines(parts=MachineParts(links=EvidenceUntold)),
    "committed is durable": Machines(durability=CommittedIsDurable),
    "point without what waits": Machines(instance=PointWithoutWhatWaits),
    "recovers from the oldest": Machines(instance=RecoversFromTheOldest),
    "retirement not spread": Machines(spreads=False),
    "retirement forgotten": Machines(placements_forgotten=True),
    "retired accepted": Machines(parts=MachineParts(admission=AcceptsRetired)),
    "retired serves on": Machines(instance=ServesOn),
    "old copy served": Machines(instance=ServesAnOldCopy, copies_are_the_same=True),
    "trust is proof": Machines(link=TrustIsProof),
    "stored is enough": Machines(parts=MachineParts(ledger=StoredIsEnough)),
    "ready by another group": Machines(parts=MachineParts(upstreams=ReadyByAnyGroup)),
    "a whole list is safe": Machines(peers=WholeListIsSafe),
    "notices are news": Machines(peers=NamesTheConnected, client=NoticesAreNews),
    "only the last word counts": Machines(client=OnlyTheLastCounts),
    "words not kept": Machines(store=WordsNotKept),
    "sent before it is kept": Machines(store=SentBeforeItIsKept),
    "nothing sent again": Machines(outbox=NothingSentAgain),
    "new ones first": Machines(outbox=NewOnesFirst),
    "sent twice": Machines(outbox=SentTwice),
    "durable is a number": Machines(outbox=DurableSentAgainOnly),
    "unused: of who is gone": Machines(parts=MachineParts(publishers=LeavesForWhoIsGone)),
    "contents not compared": Machines(parts=MachineParts(intake=ContentsNotCompared)),
    "unread is the same": Machines(instance=UnreadIsTheSame),
    "frames overtake": Machines(arrivals=FramesOvertake),
    "refuses without a word": Machines(instance=RefusesWithoutAWord),
    "direct link without what came": Machines(
        direct_policy=ForgetsWhatCame, direct_link=SkipsWhatItLacks
    ),
    "direct link and deaf": Machines(direct_policy=DeafWhileAsked),
    "last hop only": Machines(instance=OwesByLastHop, link=SendsByLastHop),
    "found: held is the same": Machines(link=HeldIsTheSame),
    "found: skips what it sees": Machines(link=SkipsWhatItSees),
    "found: forgets topics": Machines(parts=MachineParts(intake=ForgetsTopics)),
    "found: asks only the sender": Machines(link=AsksOnlyTheSender),
}

SHOWN_BY_A_SCENARIO: dict[str, Machines] = {
    "overtaken untold": Machines(subscription=OvertakenUntold),
    "unmarked not asked": Machines(parts=MachineParts(links=UnmarkedNotAsked)),
    "one behind after removal": Machines(subscription=OneBehindAfterRemoval),
    "failure forgets commits": Machines(instance=FailureForgetsCommits),
    "gone and not asked for": Machines(link=GoneAndNotAskedFor),
    "what came round not shown": Machines(link=WhatCameRoundNotShown),
    "news forgives": Machines(link=NewsForgives),
    "floor at the tick": Machines(parts=MachineParts(links=FloorAtTheTick)),
    "floor of an earlier life": Machines(journal=FloorOfAnEarlierLife),
    "any sequence taken": Machines(parts=MachineParts(publishers=TakesAnySequence)),
    "unused: given twice": Machines(parts=MachineParts(publishers=GivesUnusedTwice)),
    "unused: below what is known": Machines(parts=MachineParts(publishers=TakesBelowWhatIsKnown)),
    "unused: given while parted": Machines(instance=GivesWhileParted),
    "admits unasked": Machines(parts=MachineParts(admission=AdmitsUnasked)),
    "holes taken as held": Machines(lookup=HolesTakenAsHeld),
    "finds what was removed": Machines(lookup=FindsWhatWasRemoved),
    "notes not recovered": Machines(instance=NotesNotRecovered),
    "what comes back is its own": Machines(instance=WhatComesBackIsItsOwn),
    "numbers forgotten": Machines(numbers_forgotten=True),
    "conflict told ahead": Machines(parts=MachineParts(upstreams=ConflictToldAhead)),
    "next server not asked": Machines(parts=MachineParts(links=NextServerNotAsked)),
    "unsure for ever": Machines(parts=MachineParts(ledger=UnsureForEver)),
    "shows what clients published": Machines(instance=ShowsWhatClientsPublished),
}
"""Mistakes that test_scenarios.py shows, each by a scenario of its own."""

SOW_OF_FIELDS = (
    "SOW keeps the first of a run",
    "SOW forgets kills",
)
"""Mistakes that show only where the keys of a SOW topic are made of fields."""

CAUGHT_BY: dict[str, frozenset[str]] = {
    **{name: laws for name, (_, laws) in queue_mistakes.MISTAKES.items()},
    "names: not told": frozenset(("names",)),
    "names: told once": frozenset(("names",)),
    "queue: blames the lease": frozenset(("order",)),
    "queue: judges what is here": frozenset(("store",)),
    "passed over: forgotten": frozenset(("liveness",)),
    "passed over: ends the link": frozenset(("liveness",)),
    "passed over: others with it": frozenset(("liveness", "removal")),
    "passed over: unanswered": frozenset(("liveness",)),
    "folds before the acks": frozenset(("folds",)),
    "folds in another order": frozenset(("folds",)),
    "folded no more": frozenset(("folds",)),
    "staged kept at failure": frozenset(("state",)),
    "prepared at the replica": frozenset(("state",)),
    "only its own staged": frozenset(("state",)),
    "from what is committed": frozenset(("state",)),
    "refused is a value": frozenset(("state",)),
    "takes what is refused": frozenset(("state",)),
    **dict.fromkeys(
        (
            "SOW lacks what is removed",
            "SOW unwritten is written",
            "SOW ahead of itself",
            "SOW forgets deletions",
            "SOW late overwrites",
            "SOW last writer by arrival",
            "SOW deletes what is later",
            "SOW asked too soon",
            "SOW merges into what is folded",
            "SOW deletes what is folded",
            "SOW deletes what passed",
            "SOW keeps what failed",
            *SOW_OF_FIELDS,
            *view_mistakes.MISTAKES,
        ),
        frozenset(("sow",)),
    ),
    "direct link without what came": frozenset(("liveness",)),
    "direct link and deaf": frozenset(("liveness",)),
    "forgets what failed": frozenset(("authored",)),
    "acts before the commit": frozenset(("authored",)),
    "sends what is beside": frozenset(("routing",)),
    "skips what is beside": frozenset(("liveness", "acknowledged", "removal")),
    "owed what is beside": frozenset(("liveness",)),
    "durable with its run": frozenset(("acknowledged",)),
    "removed: untold": frozenset(("told missing",)),
    "removed: last untold": frozenset(("told missing",)),
    "verdicts of other filters": frozenset(("liveness",)),
    "waits by other filters": frozenset(("acknowledged", "fully durable")),
    "verdicts not kept": frozenset(("acknowledged",)),
    "judged by its first": frozenset(("subscribers",)),
    "unfiltered when resumed": frozenset(("subscribers",)),
    "headers are enough": frozenset(("acknowledged",)),
    "link one behind after removal": frozenset(("liveness", "unavailable", "readiness")),
    "front forgotten": frozenset(("once", "order", "acknowledged")),
    "front used again early": frozenset(("once", "order", "acknowledged")),
    "front's generation kept": frozenset(("once", "order", "acknowledged")),
    "link before commits": frozenset(("liveness",)),
    "acks before the commit": frozenset(("acknowledged",)),
    "acks while the disk writes": frozenset(("acknowledged",)),
    "folds before the commit": frozenset(("folds",)),
    "folds before it is said": frozenset(("folds",)),
    "folds in a later step": frozenset(("sow",)),
    "reports before the commit": frozenset(("liveness",)),
    "goes on ahead of the disk": frozenset(("acknowledged", "sow", "liveness")),
    "told before its commit": frozenset(("once", "acknowledged")),
    "commit error swallowed": frozenset(("liveness",)),
    "thread overtaken": frozenset(("liveness",)),
    "notes freed untold": frozenset(("unavailable",)),
    "journal freed without asking": frozenset(("removal",)),
    "prefix acks": frozenset(("liveness",)),
    "duplicates answered at once": frozenset(("acknowledged",)),
    "old answers kept": frozenset(("acknowledged",)),
    "one waiter for all roots": frozenset(("acknowledged",)),
    "windows freed by persisted": frozenset(("liveness",)),
    "high-water-mark duplicates": frozenset(("liveness", "acknowledged", "removal")),
    "path by name": frozenset(("liveness",)),
    "one logon number": frozenset(("acknowledged",)),
    "safe by link": frozenset(("safety",)),
    "evidence untold": frozenset(("safety",)),
    "committed is durable": frozenset(("fully durable",)),
    "point without what waits": frozenset(("acknowledged",)),
    "recovers from the oldest": frozenset(("settled",)),
    "changes missed at a connect": frozenset(("liveness",)),
    "unwritten passes for written": frozenset(("settled",)),
    "retirement not spread": frozenset(("retired", "liveness")),
    "retirement forgotten": frozenset(("retired", "liveness")),
    "retired accepted": frozenset(("retired",)),
    "retired serves on": frozenset(("retired",)),
    "old copy served": frozenset(("liveness", "unavailable", "removal")),
    "trust is proof": frozenset(("removal", "liveness", "order")),
    "stored is enough": frozenset(("removal",)),
    "ready by another group": frozenset(("readiness",)),
    "a whole list is safe": frozenset(("safety",)),
    "notices are news": frozenset(("failover",)),
    "only the last word counts": frozenset(("failover",)),
    "words not kept": frozenset(("failover",)),
    "sent before it is kept": frozenset(("sending",)),
    "nothing sent again": frozenset(("sending",)),
    "new ones first": frozenset(("sending",)),
    "sent twice": frozenset(("sending",)),
    "durable is a number": frozenset(("store",)),
    "unused: of who is gone": frozenset(("store",)),
    "contents not compared": frozenset(("acknowledged",)),
    "unread is the same": frozenset(("acknowledged",)),
    "frames overtake": frozenset(("order", "store")),
    "refuses without a word": frozenset(("acknowledged",)),
    "last hop only": frozenset(("loops",)),
    "found: held is the same": frozenset(("acknowledged",)),
    "found: skips what it sees": frozenset(("liveness",)),
    "found: forgets topics": frozenset(("order",)),
    "found: asks only the sender": frozenset(("order",)),
}
"""The laws that must see each of them."""

SHOWN_ON: dict[str, str] = {
    "found: asks only the sender": "three regions",
    "a whole list is safe": "a list in a group",
    "notices are news": "a list in a group",
}
"""The topology on which a mistake shows: seeds of others would be a waste."""

PUT_BACK = frozenset(("old copy served", "queue: numbers go on"))
"""Mistakes that show only where an old copy of a data directory is put back."""

MOVED = frozenset(
    (
        "retirement not spread",
        "retirement forgotten",
        "retired accepted",
        "retired serves on",
    )
)
"""Mistakes that show only where an instance is moved."""

WRITES = frozenset(("forgets what failed", "acts before the commit"))
"""Mistakes that show only where an instance makes records itself."""

DELETES = frozenset(
    (
        "SOW forgets deletions",
        "SOW deletes what is later",
        "SOW merges into what is folded",
        "SOW deletes what is folded",
        "SOW deletes what passed",
        "SOW keeps what failed",
        "SOW forgets kills",
    )
)
"""Mistakes that show only where records of SOW topics are merged and deleted."""

VIEWS = frozenset(view_mistakes.MISTAKES)
"""Mistakes that show only where there are views."""

STATEFUL = frozenset(
    (
        "folds before the acks",
        "folds before the commit",
        "folds before it is said",
        "folds in another order",
        "folded no more",
        "staged kept at failure",
        "prepared at the replica",
        "only its own staged",
        "from what is committed",
        "refused is a value",
        "takes what is refused",
    )
)
"""Mistakes that show only where a topic has a state."""

FILTERED = frozenset(
    (
        "sends what is beside",
        "skips what is beside",
        "owed what is beside",
        "durable with its run",
        "verdicts not kept",
        "headers are enough",
    )
)
"""Mistakes that show only where a destination has a content filter."""

REFILTERED = frozenset(("verdicts of other filters", "waits by other filters"))
"""Mistakes that show only where an instance is restarted with other filters."""

FILTERED_SUBSCRIBERS = frozenset(("judged by its first", "unfiltered when resumed"))
"""Mistakes that show only where a subscriber has a content filter."""

PASSED_OVER = frozenset(
    (
        "passed over: forgotten",
        "passed over: ends the link",
        "passed over: others with it",
        "passed over: unanswered",
    )
)
"""Mistakes that show only where an instance does not have a topic in its transaction log."""

QUEUES = frozenset(
    (*queue_mistakes.MISTAKES, "queue: blames the lease", "queue: judges what is here")
)
"""Mistakes that show only where there is a queue."""

STRICT = frozenset(
    (
        "queue: lenient door",
        "queue: takes foreign acknowledgments",
        "queue: cuts by its leases",
    )
)
"""Mistakes that show only where a queue's leasing is strict."""

CLOCKS = frozenset(("queue: ages by the wall clock", "queue: clock begins anew"))
"""Mistakes that show only where a clock is set, and of them those of a queue that expires."""

DIRECT_LINKS = frozenset(("direct link without what came", "direct link and deaf"))
"""Mistakes that show only where links hand over their connections."""

LIVES = frozenset(("unused: of who is gone",))
"""Mistakes that show only where a client has many lives without a publish store."""

TWINS = frozenset(("contents not compared", "found: held is the same"))
"""Mistakes that show only where two clients have one name."""

FIRST_SEEDS: dict[str, int] = {
    "found: forgets topics": 1900,
    "unused: of who is gone": 5_000_584,
    "notes freed untold": 830_011_433,
    "retirement forgotten": 1170,
    "front's generation kept": 20_780,
    "front used again early": 20_085,
    "old answers kept": 1685,
    "a whole list is safe": 8100,
    "SOW keeps what failed": 1390,
    "queue: undoes no draft": 4616,
    "queue: begins without early": 104_195,
    "queue: numbers go on": 3_300,
    "queue: letters fail apart": 3_198,
    "queue: clock begins anew": 2_150,
    "queue: goes by the wall clock": 1033,
    "queue: ages by the wall clock": 1500,
    "queue: last transfer wins": 5026,
    "found: asks only the sender": 3159,
    "queue: sends first": 1005,
    "queue: keeps what it lacks": 1636,
    "queue: acknowledges barriers": 1382,
    "queue: barriers are overtaken": 1382,
    "queue: forgets priorities": 1224,
    "queue: expires nothing": 1181,
    "queue: expires early": 1005,
    "queue: counts no tries": 1011,
    "queue: cuts by its leases": 1816,
    "queue: claims nothing": 1188,
    "queue: trusting door": 1077,
    "queue: needs nothing": 1034,
    "queue: answers the first only": 1033,
    "queue: asks once": 1033,
    "queue: names incarnations": 1005,
    "queue: asks neighbours": 1842,
    "queue: blames the lease": 1238,
    "passed over: ends the link": 1027,
    "folded no more": 1020,
    "SOW lacks what is removed": 1005,
    "SOW late overwrites": 1007,
    "SOW asked too soon": 1005,
    "SOW keeps the first of a run": 1044,
    "SOW forgets kills": 1404,
    "views: deaf to deletes": 1155,
    "view: keeps what was joined": 1155,
    "forgets what failed": 1129,
    "waits by other filters": 1328,
    "verdicts not kept": 1130,
    "removed: untold": 1014,
    "removed: last untold": 1014,
    "link before commits": 1006,
    "acks while the disk writes": 1007,
    "reports before the commit": 1006,
    "goes on ahead of the disk": 1003,
    "commit error swallowed": 1003,
    "changes missed at a connect": 1006,
    "one waiter for all roots": 1014,
    "windows freed by persisted": 1006,
    "path by name": 1006,
    "safe by link": 1008,
    "point without what waits": 1013,
    "trust is proof": 1021,
    "words not kept": 1009,
    "new ones first": 1004,
    "sent twice": 1004,
    "durable is a number": 1008,
    "direct link without what came": 1008,
    "direct link and deaf": 1044,
    "found: held is the same": 1214,
    "found: skips what it sees": 1006,
}
"""Seeds at which the search for a mistake begins, for those that most seeds do not show: the search
is the longest part of these tests. Some show very rarely: for that of topics it takes a restart
between two parts of a stream that come by different paths; for that of notes one behind a removal,
right after a note; for the front's two with few commits in between; for that of a list an ack
before its link has gone on to the next server and back; for that of a SOW topic a delta right
behind a commit that failed. Of queues it takes a commit that failed with a draft in it, or with a
letter; a restart soon after a clock was set, in front of a message that expires; an owner that
crashed before what came early was said again behind its message; and an old copy, put in place,
that drafts before a peer has found it out."""
