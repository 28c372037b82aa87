"""Destinations and the links to them: what each has not acknowledged, what a link begins with, who
is safe, and downgrade and upgrade.

A message counts as unacknowledged by a destination from its commit here, if it is routed there,
until the destination's answer. A destination is safe to fail over to when it has proved, since its
link connected, that it has everything that is acknowledged here.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylay.services.errors import DowngradeRefused
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Run
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    Route,
    route_of,
)
from raylay.services.replication.downgrade import (
    Ages,
    DowngradePolicy,
    DowngradeSchedule,
    age_counts_from,
)
from raylay.services.replication.effects import (
    NotifyLink,
    Ranges,
    RemovalBound,
    Rooted,
    SafetyChanged,
    SetLinkMode,
    rooted_of,
)
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import DestinationRefusal, PendingReplies
from raylay.services.replication.link.content import DestinationFilters
from raylay.services.replication.link.resync_plan import SLICE_PUBLISHERS, ResyncPlan
from raylay.services.replication.staged import RoutedMessages, routes_of
from raylay.services.replication.values import Counters, LinkStart


class Destinations:
    """Keeps the ledgers of all destinations, and decides on their links' connects, answers,
    downgrades and upgrades.

    Invariant: what waits is owed by some sync destination.
    Owner: the instance's machine. Lifecycle: as long as that.

    Args:
        ledgers: the ledger of each destination, by name; other parts only read them.
        book: replies due: takes the messages that a destination refused.
        admission: the admission part, which gets the servers that are connected.
        contents: the content filters of all destinations.
    """

    __slots__ = (
        "_admission",
        "_began_us",
        "_book",
        "_contents",
        "_counters",
        "_durability",
        "_has_filters",
        "_intake",
        "_out",
        "_removable_before",
        "_schedule",
        "ledgers",
    )

    def __init__(
        self,
        ledgers: Mapping[str, DestinationLedger],
        intake: Intake,
        durability: Durability,
        book: PendingReplies,
        out: EffectList,
        counters: Counters,
        admission: InstanceAdmission,
        policy: DowngradePolicy,
        contents: DestinationFilters | None = None,
    ) -> None:
        self.ledgers = ledgers
        self._contents = contents if contents is not None else DestinationFilters()
        self._has_filters = bool(contents)
        self._intake = intake
        self._durability = durability
        self._book = book
        self._out = out
        self._counters = counters
        self._admission = admission
        self._schedule = DowngradeSchedule(policy)
        self._began_us: int | None = None
        """Time of the first tick in this life; None: there was none yet."""
        self._removable_before = 0
        """Transaction id below which the journal was last told that it may remove entries; 0 at the
        start, since no bound of an earlier life holds."""

    # -- what is on disk ---------------------------------------------------------------------
    def restore(
        self,
        root: int,
        route: Route,
        publisher: int,
        ranges: list[Range],
        now_us: int,
        durable_txid: int,
    ) -> None:
        """Restores messages that waited at the recovery point; all of them have transaction ids
        above `durable_txid`."""
        waits, first_txid = False, durable_txid + 1
        for ledger in self.ledgers.values():
            if ledger.router.takes(route, ledger.incarnation):
                ledger.add_again(root, publisher, ranges, now_us, first_txid)
                waits = waits or ledger.sync
        if waits:
            self._durability.wait_again(root, route, publisher, ranges, now_us, first_txid)
        else:
            self._durability.durable(root, publisher, ranges)

    def commit_run(
        self, run: Run, root: int, sender: int, ranges: list[Range], time_us: int
    ) -> None:
        """Notes that a run is on disk: records it as unacknowledged by each destination to which it
        is routed, and as durable where no sync destination is among them."""
        if self._intake.missing.ranges.sets:
            came = self._intake.missing.came(run.publisher, ranges)
            if came is not None:
                self._out.emit(came)
                for ledger in self.ledgers.values():
                    ledger.came_late.add_ranges(run.publisher, ranges)
        publisher = run.publisher
        waits: list[Range] = []
        for ledger in self.ledgers.values():
            part = ledger.router.part(run, ledger.incarnation, ranges)
            if part:
                ledger.add_unacked(root, publisher, part, time_us, run.first_txid)
                if ledger.sync and waits is not ranges:
                    waits = part if part is ranges else [*waits, *part]
        if waits is ranges:
            if self._has_filters:
                self._wait(run, root, sender, ranges, time_us)
                return
            route = route_of(run, sender)
            self._durability.wait(root, route, publisher, ranges, time_us, run.first_txid)
        elif waits:
            waiting, left = SequenceSet(waits), SequenceSet(ranges)
            left.difference_update(waiting)
            self._wait(run, root, sender, list(waiting), time_us)
            if left:
                self._durability.durable(root, publisher, list(left))
        else:
            self._durability.durable(root, publisher, ranges)

    def _wait(self, run: Run, root: int, sender: int, ranges: list[Range], time_us: int) -> None:
        """Makes messages of a run wait for durability, in one group for each set of content filters
        that they pass. The filters are kept because the records may not be at hand when the route
        is asked for again."""
        for route, theirs in routes_of(run, sender, ranges, self._contents):
            self._durability.wait(root, route, run.publisher, theirs, time_us, run.first_txid)

    def commit_note(
        self,
        root: int,
        sender: int,
        publisher: int,
        ranges: list[Range],
        routes: list[RoutedMessages],
        now_us: int,
    ) -> None:
        """Notes that this instance became awaited for messages that it already has: asks the sync
        destinations about them for this root, and makes the sender their waiter."""
        asked = self._ask(root, publisher, routes, now_us)
        if sender == CLIENT:
            self._strand(publisher, routes)
        left = SequenceSet(ranges)
        left.difference_update(asked)
        for route, first_txid, part in routes:
            if waiting := part.intersection(asked):
                self._durability.wait_again(root, route, publisher, waiting, now_us, first_txid)
        if asked:
            self.release()
        if left:
            self._durability.durable(root, publisher, list(left))

    def _strand(self, publisher: int, routes: list[RoutedMessages]) -> None:
        """Marks messages as stranded that a client published again after a failover. They are
        acknowledged here, but some sync destinations do not get them from here, because they first
        came from elsewhere: no client may fail over to those."""
        changed = False
        for ledger in self.ledgers.values():
            if not ledger.destination.sync:
                continue
            before = ledger.safe
            for route, _, part in routes:
                router, incarnation = ledger.router, ledger.incarnation
                if not router.takes(route, incarnation) and incarnation not in route.path:
                    ledger.stranded.add_ranges(publisher, part)
            changed = changed or before != ledger.safe
        if changed:
            self._out.emit(SafetyChanged())

    def _ask(
        self, root: int, publisher: int, routes: list[RoutedMessages], now_us: int
    ) -> SequenceSet:
        """Asks the sync destinations to which these messages are routed. Returns the messages that
        now wait."""
        asked = SequenceSet()
        for ledger in self.ledgers.values():
            if not ledger.sync or not routes:
                continue
            theirs = RootedRanges()
            for route, _, part in routes:
                if ledger.router.takes(route, ledger.incarnation):
                    theirs.of(root).of(publisher).update(part)
            first_txid = min(routed.first_txid for routed in routes)
            for sets in self._add_and_ask(ledger, theirs, now_us, first_txid).roots.values():
                asked.update(sets.of(publisher))
        return asked

    def _ask_again(self, ledger: DestinationLedger, now_us: int) -> None:
        """Asks a destination again for all messages that wait and are routed there."""
        waiting = self._durability.waiting_for(ledger)
        self._add_and_ask(ledger, waiting, now_us, self._durability.floor_txid() + 1)

    def _add_and_ask(
        self, ledger: DestinationLedger, asked: RootedRanges, now_us: int, first_txid: int
    ) -> RootedRanges:
        """Records messages as unacknowledged by a destination, and sends the destination a notice.
        Returns the messages."""
        self._add_again(ledger, asked, now_us, first_txid)
        if asked:
            self._notify(ledger, rooted_of(asked.roots))
        return asked

    def _notify(self, ledger: DestinationLedger, asked: Rooted) -> None:
        self._out.emit(NotifyLink(ledger.destination.name, asked, self._durability.committed_txid))

    def _add_again(
        self, ledger: DestinationLedger, asked: RootedRanges, now_us: int, first_txid: int
    ) -> None:
        for root, sets in asked.roots.items():
            for publisher, ranges in sets.sets.items():
                ledger.add_again(root, publisher, ranges, now_us, first_txid)

    # -- links -------------------------------------------------------------------------------
    def compare(
        self, destination: str, plan: ResyncPlan, slice_publishers: int = SLICE_PUBLISHERS
    ) -> tuple[bool, bool]:
        """Compares a slice of publishers after a link has reached its destination. Returns whether
        any message was answered by the comparison, and whether enough is left for another turn; if
        not, `connected` does the rest.

        Messages that the destination holds are answered, whether or not the link ever begins.
        """
        ledger = self.ledgers[destination]
        published = self._durability.awaited.of(self._durability.own_root)
        if not plan.left:
            plan.look(ledger.unacked, published)
        answered = plan.work(slice_publishers)
        if answered:
            self._answered(ledger, {UNAWAITED: answered})
        more = bool(plan.left) or plan.look(ledger.unacked, published) > slice_publishers
        return bool(answered), more

    def connected(
        self,
        destination: str,
        incarnation: int,
        plan: ResyncPlan,
        now_us: int,
        server: str = "",
        *,
        generation: int = 0,
        address: str = "",
    ) -> LinkStart:
        """A link has connected and exchanged ranges with its destination.

        Args:
            plan: the comparison of the messages here and there, as far as `compare` brought it.
            server, generation, address: name, generation and address of the instance at the other
                end; empty: not given.
        """
        ledger = self.ledgers[destination]
        self._admission.meetings.met(
            destination, server, incarnation, generation, address, dialled=True
        )
        if ledger.incarnation != incarnation:
            # The link reached another server, or one that lost its disk. Messages that came from
            # the server before are routed to this one, so messages that still wait also wait for
            # it. (Messages that came from this very server are unacknowledged as well, since their
            # origin was not known: the server holds them, and answers.)
            ledger.incarnation = incarnation
            if ledger.sync:
                floor = self._durability.floor_txid() + 1
                self._add_again(ledger, self._durability.waiting_for(ledger), now_us, floor)
        if server and server not in ledger.servers:
            self._meet(ledger, server)
        ledger.connected, ledger.caught_up, ledger.stored_txid = True, False, 0
        if ledger.first_connected_us is None:
            ledger.first_connected_us = now_us
        ledger.came_late = PublisherRanges()
        self.release()
        ledger.at_connect = None if self._admission.ready else plan.held.copy()
        if ledger.safe:
            self._out.emit(SafetyChanged())
        ledger.must_prove(self._durability.committed_txid)
        # All messages that clients ever published here and that the server lacks. Those routed to
        # it are sent and answered. The rest never reaches it from here.
        plan.look(ledger.unacked, self._durability.awaited.of(self._durability.own_root))
        answered = plan.work()
        ledger.stranded = plan.stranded
        if answered:
            self._answered(ledger, {UNAWAITED: answered})
        if ledger.has_several_servers:
            self._add_what_waits(ledger, plan.waited, now_us)
            ledger.server_holds(plan.held)
        self._out.report(
            "link_connected", destination=destination, incarnation=f"{incarnation:016x}"
        )
        return LinkStart(
            ledger.sync,
            plan.notice,
            plan.mark,
            self._durability.own_root,
            self._durability.committed_txid,
            self._intake.missing.ranges.copy(),
            ledger.whole,
        )

    def _meet(self, ledger: DestinationLedger, server: str) -> None:
        ledger.servers.add(server)
        if len(ledger.servers) > 1 and not ledger.destination.has_several_servers:
            destination = ledger.destination.name
            self._out.report(
                "several_servers",
                destination=destination,
                servers=sorted(ledger.servers),
                text=f"more than one instance answers at the address of {destination}: from now on "
                "the journal is kept until its answers are persisted; say so with wide_ip: true",
            )

    def _add_what_waits(self, ledger: DestinationLedger, waited: RootedRanges, now_us: int) -> None:
        """Records as unacknowledged what the server holds and has not answered yet. A restart may
        have made this instance forget that, and the next server may lack these messages."""
        on_disk = self._intake.held() if waited else PublisherRanges()
        for ranges in waited.roots.values():
            for publisher, waits in ranges.sets.items():
                known = on_disk.get(publisher)
                if known is None:
                    continue
                wanted = waits.intersection(known)
                for unacked_of in ledger.unacked.roots.values():
                    unacked = unacked_of.get(publisher)
                    if unacked is not None:
                        wanted.difference_update(unacked)
                if wanted:
                    ledger.add_unsure(publisher, wanted, now_us)

    @property
    def all_connected(self) -> bool:
        return all(ledger.connected for ledger in self.ledgers.values())

    def disconnected(self, destination: str, why: str) -> None:
        """Notes that a link lost its connection, or could not get one."""
        ledger = self.ledgers[destination]
        if ledger.connected:
            self._out.report("link_disconnected", destination=destination, why=why)
        ledger.connected = False
        ledger.caught_up = False
        self._admission.meetings.left(destination)
        self.release()

    def answered(self, destination: str, persisted: Rooted, conflicts: Ranges) -> None:
        """Takes the answer of a destination: messages persisted there, and conflicts that it
        refused."""
        ledger = self.ledgers[destination]
        if conflicts and (conflicts := self._intake.known_of(conflicts)):
            self._refused_downstream(ledger, conflicts)
            self._settle_ages(*self.ledgers.values())
        self._answered(ledger, persisted)
        if UNAWAITED in persisted:
            self._ask_for_what_went_unmarked(ledger, persisted[UNAWAITED])

    def _ask_for_what_went_unmarked(self, ledger: DestinationLedger, stored: Ranges) -> None:
        """Asks for messages that the destination stored without knowing that an answer is awaited:
        the link sent them before it heard of an upgrade, because the writer thread wakes links
        ahead of this machine. Without a notice their answer would never come."""
        for root, unacked_of in ledger.unacked.roots.items():
            if root == UNAWAITED:
                continue
            asked: Ranges = {}
            for publisher, ranges in stored.items():
                unacked = unacked_of.get(publisher)
                if unacked is not None:
                    found = [piece for a, b in ranges for piece in unacked.within(a, b)]
                    if found:
                        asked[publisher] = found
            if asked:
                self._notify(ledger, {root: asked})

    def _answered(self, ledger: DestinationLedger, answers: Rooted) -> None:
        settled = ledger.answered(answers)
        was_safe = ledger.safe
        if ledger.stranded.sets:
            ledger.brought(answers)
        if ledger.sync:
            for root, settled_of in settled.items():
                for publisher, ranges in settled_of.items():
                    self._durability.answered(root, publisher, ranges)
        self._settle_ages(ledger)
        self._update_proof(ledger, was_safe)

    def _refused_downstream(self, ledger: DestinationLedger, conflicts: Ranges) -> None:
        """Takes messages whose identities the destination holds with other contents: they are never
        acknowledged, and their publisher is told."""
        ledger.forget(conflicts)
        for other in self.ledgers.values():
            other.brought({UNAWAITED: conflicts})
        for publisher, ranges in conflicts.items():
            self._intake.report_conflict(ledger.destination.name, publisher, ranges)
            undone = self._durability.refuse(publisher, ranges)
            for connection, theirs in self._intake.staged.refuse(publisher, undone):
                self._book.contested.append((connection, publisher, theirs))
            self._book.refused.append(
                DestinationRefusal(ledger.destination.name, publisher, ranges, undone)
            )

    def progressed(
        self,
        destination: str,
        stored_txid: int,
        resending: Ranges,
        caught_up: bool,
        skipped: int,
        now_us: int,
    ) -> None:
        """Takes a link's progress. `LinkProgress` explains the values."""
        ledger = self.ledgers[destination]
        for publisher, ranges in resending.items():
            ledger.resent(publisher, ranges, now_us)
        ledger.stored_txid = max(ledger.stored_txid, stored_txid)
        ledger.skipped += skipped
        if caught_up and not ledger.caught_up:
            ledger.caught_up = True
            if ledger.resync_ended():
                self._settle_ages(ledger)
            self._out.report("link_caught_up", destination=destination, stored_txid=stored_txid)
        self._update_proof(ledger)

    def lacks(self, destination: str, ranges: Ranges) -> None:
        """Notes messages that a link will never send, because they are removed here. Those that are
        unacknowledged nevertheless were removed by force: the destination is not safe until it has
        them from elsewhere. Where a persisted ack waits for them, it waits until a downgrade;
        otherwise nothing waits."""
        ledger = self.ledgers[destination]
        was_safe = ledger.safe
        lost = 0
        for publisher, theirs in ranges.items():
            came = ledger.came_late.get(publisher)
            if came is not None:
                # The link passes on what it was told when it connected; messages that came since
                # are not lacked.
                theirs = [piece for a, b in theirs for piece in came.missing(a, b)]
            if not ledger.has_met_several:
                # Removed here when the destination had them, on a disk that is lost since: nobody
                # needs to get them any more. Where the destination has several servers, another one
                # may have been the one that had them.
                ledger.stranded.remove_ranges(publisher, theirs)
            unacked = ledger.unacked.get(UNAWAITED, publisher)
            if unacked is not None:
                found = [piece for a, b in theirs for piece in unacked.within(a, b)]
                ledger.unacked.remove_ranges(UNAWAITED, publisher, found)
                ledger.stranded.add_ranges(publisher, found)
                lost += sum(b - a + 1 for a, b in found)
        if lost:
            self._settle_ages(ledger)
            self._out.report("messages_lost_to_destination", destination=destination, messages=lost)
        self._update_proof(ledger, was_safe)

    def _update_proof(self, ledger: DestinationLedger, was_safe: bool | None = None) -> None:
        before = ledger.safe if was_safe is None else was_safe
        ledger.update_proof()
        if ledger.safe != before:
            self._out.emit(SafetyChanged())

    # -- downgrade and upgrade ---------------------------------------------------------------
    def downgrade(self, destination: str, now_us: int, why: str, *, force: bool) -> bool:
        """Downgrades a destination by hand: from now on persisted acks do not wait for it, until an
        operator upgrades it or the instance restarts; messages that waited only for it are
        released.

        Returns:
            Whether acks waited for it until now. One that an age downgraded before stays so, too.

        Raises:
            DowngradeRefused: there would be fewer sync destinations than the policy asks for, and
                it is not forced.
        """
        ledger = self.ledgers[destination]
        if not ledger.sync:
            ledger.downgraded_by_hand = ledger.destination.sync
            return False
        refusal = "" if force else self._schedule.refusal(destination, self._syncs())
        if refusal:
            raise DowngradeRefused(refusal)
        self._downgrade(ledger, now_us, why)
        ledger.downgraded_by_hand = True
        return True

    def _syncs(self) -> int:
        return sum(1 for ledger in self.ledgers.values() if ledger.sync)

    def _downgrade(self, ledger: DestinationLedger, now_us: int, why: str) -> None:
        destination = ledger.destination.name
        ledger.stop_waiting()
        ledger.downgraded_at_us = now_us
        ledger.downgrade_refused = False
        self._counters.downgrades += 1
        self._out.report("downgraded", destination=destination, why=why)
        self._out.emit(SafetyChanged())
        self._out.emit(SetLinkMode(destination, False))
        self._durability.release()
        self._settle_ages(ledger)

    def upgrade(self, destination: str, now_us: int, why: str) -> None:
        """Sets a destination back to the configured sync: new acks wait for it again, and it is
        asked for all pending messages."""
        self.ledgers[destination].downgraded_by_hand = False
        self._upgrade(self.ledgers[destination], now_us, why)

    def _upgrade(self, ledger: DestinationLedger, now_us: int, why: str) -> None:
        if ledger.destination.sync and not ledger.sync:
            destination = ledger.destination.name
            ledger.sync = True
            ledger.must_prove(self._durability.committed_txid)
            self._counters.upgrades += 1
            self._out.report("upgraded", destination=destination, why=why)
            self._out.emit(SetLinkMode(destination, True))
            self._ask_again(ledger, now_us)
            self._update_proof(ledger)

    def tick(self, now_us: int, ages_ms: Ages | None = None) -> bool:
        """Downgrades and upgrades destinations by age, when a check is due. Returns whether any was
        downgraded.

        The criterion is the age of the oldest message that the destination has not answered,
        counted from its link's first connection in this life (`age_counts_from`). Where the
        destination stored everything without persisting it, the fault lies behind it: the
        instance nearest to the fault acts first, so this one waits one more check.

        Args:
            ages_ms: the two ages of a check besides the schedule; None: those of the schedule.
        """
        self.release()
        if self._began_us is None:
            self._began_us = now_us
        before = self._counters.downgrades
        wall_us = now_us + self._intake.wall_offset_us
        downgrade_age_ms, upgrade_age_ms = ages_ms or self._schedule.due(now_us, wall_us)
        if downgrade_age_ms is None and upgrade_age_ms is None:
            return False
        for ledger in self.ledgers.values():
            if not ledger.destination.sync:
                continue
            oldest = ledger.oldest_unacked()
            age_ms = 0 if oldest is None else max(0, now_us - oldest[0]) // 1000
            why = f"oldest is {age_ms} ms old"
            if ledger.sync:
                if downgrade_age_ms is None:
                    continue
                if oldest is not None:
                    first_us = ledger.first_connected_us
                    since_us = age_counts_from(
                        oldest[0], self._began_us, first_us, downgrade_age_ms
                    )
                    counted_ms = max(0, now_us - since_us) // 1000
                if oldest is None or counted_ms <= downgrade_age_ms:
                    ledger.further_on = False
                    if ledger.connected:
                        # Evidence may come again and again while it is not.
                        ledger.downgrade_refused = False
                    continue
                stored = ledger.connected and ledger.stored_txid >= oldest[1]
                self._downgrade_by_age(ledger, stored, now_us, why)
            elif (
                upgrade_age_ms is not None
                and not ledger.downgraded_by_hand
                and ledger.connected
                and ledger.caught_up
                and age_ms < upgrade_age_ms
            ):
                self._upgrade(ledger, now_us, why)
        return self._counters.downgrades > before

    def _downgrade_by_age(
        self, ledger: DestinationLedger, stored: bool, now_us: int, why: str
    ) -> None:
        if self._is_refused(ledger, why):
            return
        if stored and not ledger.further_on:
            ledger.further_on = True
        else:
            self._downgrade(ledger, now_us, why)

    def _is_refused(self, ledger: DestinationLedger, why: str) -> bool:
        """Returns whether an automatic downgrade is refused, which is reported once."""
        name = ledger.destination.name
        refusal = self._schedule.refusal(name, self._syncs())
        if refusal and not ledger.downgrade_refused:
            ledger.downgrade_refused = True
            self._out.report("downgrade_refused", destination=name, why=f"{why}; {refusal}")
        return bool(refusal)

    def process_ended(self, destination: str, now_us: int, why: str) -> None:
        """Downgrades a destination at once whose process has certainly ended, where the policy
        says so: its connection is lost, and each of its addresses refuses connections.

        Evidence about a process that is connected again is out of date, and changes nothing.
        """
        ledger = self.ledgers[destination]
        if ledger.connected or not ledger.sync or not self._schedule.acts_by_evidence(now_us):
            return
        if not self._is_refused(ledger, why):
            self._downgrade(ledger, now_us, why)

    # -- removal -----------------------------------------------------------------------------
    def removable_before(self) -> int:
        """Returns the transaction id below which entries may be removed (law 4): every destination
        has what is routed to it from below.

        Where a destination has several servers, a message *stored* by a server that then dies would
        be lost to the destination, so only *persisted* counts there. Entries about unavailable
        messages stay until a recovery point holds them.
        """
        floor = self._durability.floor_txid() + 1
        noted_txid = self._intake.missing.removable_before
        if noted_txid is not None:
            floor = min(floor, noted_txid)
        for ledger in self.ledgers.values():
            if not ledger.caught_up:
                return 0
            floor = min(floor, ledger.stored_txid + 1)
            if ledger.has_several_servers:
                oldest = ledger.oldest_unacked()
                if oldest is not None:
                    floor = min(floor, oldest[1])
        return floor

    def release(self) -> None:
        """Tells the journal below which transaction id it may remove entries. To be called at once
        when a link connects or is lost and when a note is journaled: until the link has caught up,
        this instance does not know what the other server has."""
        if (before_txid := self.removable_before()) != self._removable_before:
            self._removable_before = before_txid
            self._out.emit(RemovalBound(before_txid))

    def _settle_ages(self, *ledgers: DestinationLedger) -> None:
        """Drops the ages of messages that were answered, released or refused. Functions that read
        ages change nothing."""
        for ledger in ledgers:
            ledger.settle_ages()
        self._durability.settle_ages()
