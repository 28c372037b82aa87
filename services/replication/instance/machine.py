"""The instance's replication machine: what comes in, what is journaled, who is told what and when.

Pure: no socket, clock, disk or randomness. The shell stages the run of each `Append`, tells
`committed` what the journal synced, and performs the effects in order. The machine reads no
journal, either: before an arrival the shell asks `asks`, has the journal read in a thread, and
hands the answers in.

The machine has a method for each input; its parts own their state and only add effects:

  admission      who is admitted                 publishers    client sessions
  intake         which messages are known        upstreams     links that bring messages
  durability     which messages wait, for whom   destinations  links that messages are sent to

Invariants:
  known = held (committed) + staged; pending is part of known; durable = held - pending.
  Nothing is acknowledged, delivered or told to a link before its commit.
  pending and awaited are kept by root (services/replication/acknowledgment.py); each is part of
  known; awaited never shrinks while the instance lives, except for failed or refused messages. A
  run's root is 0 when it is not flagged AWAITED, else the first incarnation of its path, else this
  instance.
  A waiter counts only when the run or note that names it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.messages.stateful import RefusedRecords
from raylay.services.messages.suspects import Suspects
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topic_sets import carries_all
from raylay.services.replication.acknowledgment import (
    CLIENT,
    UNAWAITED,
    DestinationLedger,
    RootedRanges,
    WaitingMessages,
)
from raylay.services.replication.downgrade import Ages, DowngradePolicy
from raylay.services.replication.effects import Effect, Ranges, Rooted, RunsCommitted
from raylay.services.replication.instance.admission import InstanceAdmission
from raylay.services.replication.instance.batch_scan import BatchScan
from raylay.services.replication.instance.destinations import Destinations
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import PendingReplies
from raylay.services.replication.instance.publishers import Judge, Publishers, Resent
from raylay.services.replication.instance.upstreams import UpstreamTable
from raylay.services.replication.journal_lookup import (
    LookupRequest,
    LookupResult,
    RunLookupProtocol,
    read_all,
    with_records,
)
from raylay.services.replication.link.content import DestinationFilters, FilterLanguage
from raylay.services.replication.link.resync_plan import SLICE_PUBLISHERS, ResyncPlan
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.membership.validation import stored_topics
from raylay.services.replication.notes import decode_note
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.replication.recovery import RecoveryPoint
from raylay.services.replication.staged import BatchStaged, NoteStaged, RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import (
    Counters,
    Identity,
    LinkStart,
    LogonAnswer,
    UpstreamAnswer,
)


@dataclass(frozen=True, slots=True)
class MachineParts:
    """The classes from which a machine is put together; a planted mistake replaces one."""

    ledger: type[DestinationLedger] = DestinationLedger
    admission: type[InstanceAdmission] = InstanceAdmission
    durability: type[Durability] = Durability
    intake: type[Intake] = Intake
    publishers: type[Publishers] = Publishers
    upstreams: type[UpstreamTable] = UpstreamTable
    links: type[Destinations] = Destinations


class InstanceMachine:
    """Takes every input of an instance's shell, and returns the effects to perform. Owner: the
    Instance actor. Lifecycle: built at start from what the journal recovered, fed with `recover`,
    lives as long as the actor."""

    def __init__(
        self,
        identity: Identity,
        destinations: Iterable[DestinationRoute],
        topics: TopicBook,
        *,
        next_txid: int = 1,
        held: PublisherRanges | None = None,
        awaited: RootedRanges | None = None,
        refused: PublisherRanges | None = None,
        unavailable: PublisherRanges | None = None,
        incarnations: dict[str, int] | None = None,
        servers: Mapping[str, Iterable[str]] | None = None,
        placements: Placements | None = None,
        lookup: RunLookupProtocol,
        former: Iterable[int] = (),
        ready: bool = True,
        policy: DowngradePolicy | None = None,
        recent_bytes_max: int = 0,
        filters: FilterLanguage | None = None,
        suspects: Suspects | None = None,
        names: PublisherNames | None = None,
        parts: MachineParts = MachineParts(),
    ) -> None:
        """
        Args:
            topics: the rules of all topics: which are journaled, which have a state.
            next_txid, held: the next transaction id, and the held messages, as recovered from the
                journal.
            awaited: messages for which this instance is awaited, up to where `recover` begins.
            refused: messages that destinations refused for good in an earlier life.
            unavailable: messages that no upstream had any more, besides those of `recover`.
            incarnations: last known incarnation of each destination's server.
            servers: names of the instances to which each destination's link ever connected.
            placements: the known placements of moved instances.
            lookup: look-up into the journal, for `recover` alone.
            former: earlier incarnations of the data directory, or of the one that it is a copy of.
            ready: False for an instance that must catch up with a peer before it admits clients.
            recent_bytes_max: bytes of the last committed runs that are kept in memory.
            filters: the language of the content filters; None: content filters do not run.
            suspects: messages during which earlier processes crashed.
            names: the client names that publisher ids belong to, as earlier processes wrote them.
            parts: the classes of the machine's parts.
        """
        self._out = EffectList()
        self._emit = self._out.emit
        self.identity = identity
        self.topics = topics
        self.known = held if held is not None else PublisherRanges()
        self.missing = UnavailableMessages(unavailable or PublisherRanges(), self.known)
        self._former = frozenset(former)
        self.counters = Counters()
        destinations = tuple(destinations)
        rules = (rule for destination in destinations for rule in destination.topics)
        self.contents = DestinationFilters(rules, filters)
        kind = parts.ledger
        self.destinations = self._ledgers(kind, destinations, incarnations or {}, servers or {})
        for ledger in self.destinations.values():
            ledger.must_prove(next_txid - 1)
        self._book = PendingReplies()
        self.durability = parts.durability(
            identity.incarnation,
            self.destinations,
            self._book,
            committed_txid=next_txid - 1,
            awaited=awaited,
            refused=refused,
        )
        self.pending = self.durability.pending
        self.waiters = self.durability.waiters
        self.placements = known = placements if placements is not None else Placements()
        self.admission = parts.admission(identity, known, self.destinations, self._out, ready=ready)
        self._lookup = lookup
        self.intake = parts.intake(
            self.durability,
            self._out,
            self.counters,
            next_txid=next_txid,
            known=self.known,
            missing=self.missing,
            recent_bytes_max=recent_bytes_max,
            contents=self.contents,
            states=topics.states,
            suspects=suspects,
        )
        taken = topics, self.intake, self.durability, self._book, self._out, self.counters
        self.publisher_names = names if names is not None else PublisherNames()
        self._publishers = own = parts.publishers(identity, *taken, self.publisher_names)
        self.user_gaps = own.gaps
        self.name_refusal = own.name_refusal
        self.number_for = own.number_for
        self._upstreams = parts.upstreams(identity, *taken, self.admission)
        last = self.admission, policy or DowngradePolicy(), self.contents
        self._links = parts.links(self.destinations, *taken[1:], *last)

    def _ledgers(
        self,
        ledger: type[DestinationLedger],
        destinations: Iterable[DestinationRoute],
        incarnations: Mapping[str, int],
        servers: Mapping[str, Iterable[str]],
    ) -> dict[str, DestinationLedger]:
        return {
            destination.name: ledger(
                destination,
                incarnations.get(destination.name, 0),
                carries_all=carries_all(stored_topics(destination.topics), self.topics.rules),
                servers=servers.get(destination.name, ()),
                contents=self.contents,
            )
            for destination in destinations
        }

    # -- recovery ----------------------------------------------------------------------------
    def restore(self, waiting: Iterable[WaitingMessages], durable_txid: int, now_us: int) -> None:
        """Takes the messages that waited at the recovery point from which this instance begins,
        before `recover` takes what follows it. All of them have transaction ids above
        `durable_txid`. Emits nothing."""
        for each in waiting:
            publisher = each.publisher
            root = self._root_recovered(each.root, each.route.sender)
            ranges = self.durability.acceptable(publisher, list(each.ranges))
            if not ranges:
                continue
            self.durability.stage_ranges(root, publisher, ranges)
            self._links.restore(root, each.route, publisher, ranges, now_us, durable_txid)
        self._forget_effects()

    def _forget_effects(self) -> None:
        self._out.forget()
        self._book.forget()
        self._publishers.forget()
        self._upstreams.forget()

    def recover(self, runs: Iterable[Run], now_us: int) -> None:
        """Takes the committed runs behind the recovery point, in order; their headers are enough.

        Ages count from `now_us`: the time that this instance was down is not a destination's delay.

        Messages count as pending where a sync destination may not have answered for them, until the
        links have connected and heard the answers. Emits nothing. Reads the journal.
        """
        for run in runs:
            if run.kind == Kind.RECORDS:
                sender = run.path[-1] if run.path else CLIENT
                ranges = run.ranges() if run.contiguous or run.payload else self._held_of(run)
                ranges = self.durability.acceptable(run.publisher, ranges)
                root = self._root_of(run)
                self.durability.stage_ranges(root, run.publisher, ranges)
                for found, part in with_records(run, ranges, self.contents, self._lookup):
                    self._links.commit_run(found, root, sender, part, now_us)
            elif run.kind == Kind.WAITER:
                root, sender, noted = decode_note(run)
                root = self._root_recovered(root, sender)
                noted = self.durability.acceptable(run.publisher, noted)
                if not noted:
                    continue
                self.durability.stage_ranges(root, run.publisher, noted)
                questions = LookupRequest(self.contents)
                questions.routed.add_ranges(run.publisher, noted)
                self.intake.begin(read_all(questions, self._lookup))
                routes = self.intake.routes_of(sender, run.publisher, noted)
                self._links.commit_note(root, sender, run.publisher, noted, routes, now_us)
            elif run.kind == Kind.UNAVAILABLE:
                self.missing.noted(run)
        self._forget_effects()

    def _root_recovered(self, root: int, sender: int) -> int:
        """Returns the root of a recovered message: the own root where clients published it here,
        under any incarnation. Messages that peers brought back keep an earlier root: with the own
        one, the wait would close a circle over the peer that waits."""
        return self.own_root if sender == CLIENT and root in self._former else root

    def _root_of(self, run: Run) -> int:
        if not run.flags & Flag.AWAITED:
            return UNAWAITED
        return run.path[0] if run.path else self.own_root

    def _held_of(self, run: Run) -> list[Range]:
        held = self.known.get(run.publisher)
        return held.within(run.first_sequence, run.last_sequence) if held is not None else []

    @property
    def steps_taken(self) -> int:
        return self._out.taken

    @property
    def is_changing(self) -> bool:
        """Returns whether a step has begun to change the machine: between steps, a fault did."""
        return self._out.is_changing

    def durable_floor(self) -> int:
        """Every record up to this transaction id is durable."""
        return self.durability.floor_txid()

    def recovery_point(self) -> RecoveryPoint:
        """Returns the point from which a restart may begin. Nothing that is only staged is in
        it."""
        awaited = self.awaited.copy()
        for entry in self.intake.staged:
            if isinstance(entry, RunStaged):
                awaited.remove_ranges(entry.root, entry.run.publisher, entry.run.ranges())
            elif isinstance(entry, NoteStaged):
                awaited.remove_ranges(entry.root, entry.publisher, entry.ranges)
        return RecoveryPoint(
            self.durability.floor_txid(),
            awaited,
            self.durability.refused.copy(),
            self.missing.ranges.copy(),
            self.committed_txid,
            self.waiters.copy(),
            self.identity.incarnation,
            self.contents.rules,
        )

    def recovery_written(self, point: RecoveryPoint) -> list[Effect]:
        """Notes that this recovery point is on disk: journal entries that it covers may go."""
        self._out.is_changing = True
        if self.missing.written(point.committed_txid):
            self._links.release()
        return self._take()

    # -- what came, and the journal ----------------------------------------------------------
    def asks(
        self, runs: Sequence[Run], answers: LookupResult, noted: Rooted | None = None
    ) -> LookupRequest:
        """Returns what must be read from the journal before these runs are given to the machine,
        beyond what `answers` already holds.

        Args:
            noted: messages that an upstream asks for in a notice; None: runs of a client.
        """
        if noted is None:
            return self._publishers.asks(runs, answers)
        return self.intake.asks(runs, answers, noted)

    # -- clients -----------------------------------------------------------------------------
    def client_logged_on(
        self,
        session: int,
        client: str,
        low: int,
        judge: Judge | None = None,
        *,
        takes_unused: bool = False,
        user: str = "",
    ) -> LogonAnswer:
        """Logs a client on. `Publishers.logged_on` explains the values."""
        self._out.is_changing = True
        answer = self._publishers.logged_on(
            session,
            client,
            low,
            judge,
            takes_unused=takes_unused and self._hears_all,
            user=user,
        )
        self._out.is_changing = False
        return answer

    def names_told(self, body: bytes, source: str) -> list[Effect]:
        """A proven instance of the fabric tells whom publisher ids belong to.
        `Publishers.names_told` tells what the values mean."""
        self._out.is_changing = True
        self._publishers.names_told(body, source)
        return self._take()

    def client_logged_off(self, session: int, unused: Range, now_us: int) -> None:
        """Notes that a client is about to end. `Publishers.logged_off` explains the values."""
        if self._hears_all:
            self._out.is_changing = True
            self._publishers.logged_off(session, unused, now_us)
            self._out.is_changing = False

    @property
    def _hears_all(self) -> bool:
        """Returns whether every link is connected and every upstream caught up, so that this
        instance hears of the publishes of clients elsewhere."""
        upstreams = self._upstreams
        return self._links.all_connected and not upstreams.absent and upstreams.all_caught_up

    def client_left(self, session: int) -> None:
        self._out.is_changing = True
        self._publishers.left(session)
        self._out.is_changing = False

    def client_runs(
        self, session: int, payload: bytes, count: int = 0, types: frozenset[bytes] = frozenset()
    ) -> list[Run]:
        """Returns the runs of a client's records, for `client_published`. See `Publishers.runs`."""
        return self._publishers.runs(session, payload, count, types)

    def batch_scan(self, session: int, data: bytes, n: int, types: frozenset[bytes]) -> BatchScan:
        """Checks a batch as `client_runs` does, a slice at a time."""
        return self._publishers.batch_scan(session, data, n, types)

    def client_published(
        self,
        session: int,
        runs: list[Run],
        now_us: int,
        answers: LookupResult,
        resent: Resent = None,
    ) -> tuple[list[Effect], list[Run]]:
        """Takes a client's records; everything that `asks` asked for is in `answers`.

        Returns the effects, and the runs of topics that are not journaled: they are delivered at
        once and count as durable.
        """
        self._out.is_changing = True
        transient = self._publishers.published(session, runs, now_us, answers, resent)
        if not self.intake.staged:
            self._flush()
        return self._out.take(), transient

    def client_published_unnumbered(
        self, session: int, run: Run, command_id: str, now_us: int
    ) -> tuple[list[Effect], RefusedRecords | None]:
        """Takes one publish that the server numbered (`number_for`). Returns any refusal, too."""
        self._out.is_changing = True
        refused = self._publishers.published_unnumbered(session, run, command_id, now_us)
        return self._take(), refused

    def authored(self, runs: Iterable[Run], now_us: int) -> list[Effect]:
        """Takes runs that a part of this instance has written, to be journaled."""
        self._out.is_changing = True
        self._publishers.authored(list(runs), now_us)
        return self._take()

    # -- upstream instances ------------------------------------------------------------------
    def refuse_upstream(
        self,
        name: str,
        group_expected: str,
        incarnation: int,
        destination: str,
        epoch: int,
        epoch_seen: int,
        *,
        generation: int = 0,
        salvages: bool = False,
        address: str = "",
        proven: bool = False,
    ) -> tuple[str, str] | None:
        """Returns (reason, sentence) when this upstream may not connect; None when it may.
        `InstanceAdmission.refuse_upstream` explains the values."""
        return self.admission.refuse_upstream(
            name,
            group_expected,
            incarnation,
            destination,
            epoch,
            epoch_seen,
            connected_as=self._upstreams.connected_as(incarnation, proven=proven),
            generation=generation,
            salvages=salvages,
            address=address,
            proven=proven,
        )

    def upstream_logged_on(
        self,
        connection: int,
        name: str,
        group: str,
        incarnation: int,
        destination: str,
        epoch: int,
        *,
        generation: int = 0,
        salvages: bool = False,
        address: str = "",
        proven: bool = False,
    ) -> tuple[list[Effect], UpstreamAnswer]:
        """Logs an upstream link on; its epoch is on disk. Ends an older connection of it."""
        self._out.is_changing = True
        self._upstreams.logged_on(
            connection,
            name,
            group,
            incarnation,
            destination,
            epoch,
            generation=generation,
            salvages=salvages,
            address=address,
            proven=proven,
        )
        believed = proven or not self.identity.in_fabric
        ledger = self.destinations.get(name) if believed and not salvages else None
        if ledger is not None and not ledger.incarnation and ledger.destination.group == group:
            # It is a destination, too: its messages need not go back, and their sender need not
            # wait until our own link has connected once.
            ledger.incarnation = incarnation
        return self._take(), UpstreamAnswer(self.held(), self.waiters.waited_by(incarnation))

    def upstream_left(self, connection: int) -> None:
        self._out.is_changing = True
        self._upstreams.left(connection)
        self._publishers.parted()
        self._out.is_changing = False

    def upstream_batch(
        self,
        connection: int,
        number: int,
        runs: list[Run],
        marked: bool,
        awaited: Rooted,
        caught_up: bool,
        now_us: int,
        answers: LookupResult,
        is_part: bool = False,
    ) -> list[Effect]:
        """Takes a batch from an upstream connection; everything that `asks` asked for is in
        `answers`. `SendBatch` explains the values, `Upstreams.batch` the parts."""
        self.intake.begin(answers)
        upstreams = self._upstreams
        if upstreams.batch(connection, number, runs, marked, awaited, caught_up, now_us, is_part):
            self._drain(now_us)
            self._flush()
        return self._out.take()

    def upstream_lacks(self, connection: int, lacks: PublisherRanges, whole: bool) -> list[Effect]:
        """Takes messages that an upstream once had, has removed, and believes to be missing here.
        `whole`: everything that the upstream has is routed here."""
        self._upstreams.lacks(connection, lacks, whole)
        return self._take()

    # -- the journal -------------------------------------------------------------------------
    def committed(self, last_txid: int, now_us: int) -> list[Effect]:
        """Notes that everything up to this transaction id is on disk."""
        self._out.is_changing = True
        durability = self.durability
        durability.committed_txid = max(durability.committed_txid, last_txid)
        self.counters.commits += 1
        self._drain(now_us)
        self._flush()
        return self._out.take()

    def _drain(self, now_us: int) -> None:
        staged, committed_txid = self.intake.staged, self.durability.committed_txid
        entries, runs = staged.entries, list[Run]()
        # First, so that links and subscribers hear of a commit before the acks that it releases.
        at = -1
        while entries and (entry := staged.committed(committed_txid)) is not None:
            at = at if at >= 0 else len(self._out)
            if isinstance(entry, RunStaged):
                runs.append(entry.run)
                run = entry.run
                ranges = run.ranges()
                self._links.commit_run(run, entry.root, entry.sender, ranges, now_us)
                # Publishes of clients are not shown: an upstream may have other messages of a
                # client of that name, which shows only where the records meet.
                if entry.sender != CLIENT:
                    self._upstreams.came_elsewhere(entry.sender, run.publisher, ranges)
            elif isinstance(entry, NoteStaged):
                runs.append(entry.run)
                if entry.run.kind == Kind.UNAVAILABLE:
                    for told in self.missing.noted(entry.run):
                        self._emit(told)
                elif entry.ranges:
                    self._links.commit_note(
                        entry.root,
                        entry.sender,
                        entry.publisher,
                        entry.ranges,
                        entry.routes,
                        now_us,
                    )
            else:
                self._upstreams.stored(entry)
        if runs:
            self._out.insert(at, RunsCommitted(runs, committed_txid))

    def admit(self, senders: Iterable[str], *, force: bool = False) -> list[Effect]:
        """Admits clients by hand although no peer of the group has brought the messages that it
        holds.

        Args:
            senders: the other instances of the group that replicate to this one.

        Raises:
            AdmissionRefused: some peer may hold messages that this instance lacks, and `force` is
                false.
        """
        self._out.is_changing = True
        if not self.admission.ready:
            self.admission.admit(senders, self.held(), force=force)
        return self._take()

    def admission_risk(self, senders: Iterable[str]) -> str:
        """Returns which messages clients that are admitted now may miss; empty: none."""
        return self.admission.risk(senders, self.held())

    @property
    def ready(self) -> bool:
        return self.admission.ready

    @property
    def retired(self) -> str:
        """Returns the reason why this incarnation has ended; empty while it has not."""
        return self.admission.retired

    @property
    def went_back(self) -> str:
        """Returns why the instance must begin as another incarnation; empty while it need not."""
        return self.admission.went_back

    def append_failed(self, first_txid: int, reason: str, text: str, now_us: int) -> list[Effect]:
        """Takes an append failure: the journal could not write what is staged from `first_txid` on.
        All of that is forgotten, and its senders are told and send it again later. Everything below
        is on disk, whether or not that was told before."""
        self._out.is_changing = True
        durability = self.durability
        durability.committed_txid = max(durability.committed_txid, first_txid - 1)
        self._drain(now_us)
        senders: set[int] = set()
        sessions: set[int] = set()
        for entry in self.intake.undo():
            if isinstance(entry, BatchStaged):
                upstream = self._upstreams.get(entry.connection)
                senders.add(upstream.incarnation if upstream is not None else CLIENT)
                continue
            senders.add(entry.sender)
            sessions |= self._publishers.senders_of(entry)
        for session in sessions:
            self._publishers.close(session, reason, text)
        for sender in senders:
            self._upstreams.close_sender(sender, reason, text)
        self._out.report("storage_failed", reason=reason, text=text)
        self._flush()
        return self._take()

    # -- answers -----------------------------------------------------------------------------
    def _flush(self) -> None:
        """Emits what sessions and upstreams are to be told, once per call from outside."""
        book = self._book
        if self._publishers.dirty or book.durable or book.refused:
            self._publishers.flush()
        if self._upstreams.dirty or book.persisted or book.conflicts or book.contested:
            self._upstreams.flush()

    # -- moved instances ---------------------------------------------------------------------
    def placed(self, told: Mapping[str, InstancePlacement]) -> list[Effect]:
        """Takes placements that a peer told. Those that are news are on disk already."""
        self._out.is_changing = True
        news = self.admission.learn(told)
        if not news:
            return self._take()
        text = self.admission.moved_by(news)
        if text:
            self._retire(text)
            return self._take()
        self._upstreams.close_retired()
        return self._take()

    def _retire(self, text: str) -> None:
        self._close_all("retired", text, "moved")
        self.admission.retire(text)

    def _close_all(self, to_clients: str, text: str, to_links: str) -> None:
        self._publishers.close_all(to_clients, text)
        self._upstreams.close_all(to_links, text)

    # -- an old copy of the data directory ---------------------------------------------------
    def upstream_shows(self, connection: int, yours: Ranges) -> list[Effect]:
        """Takes messages of an upstream that passed through this incarnation and that this instance
        did not claim at the connect: they may prove that this data directory is an old copy."""
        self._out.is_changing = True
        found = self._upstreams.shows(connection, yours)
        if found:
            self._go_back(found)
        return self._take()

    def epoch_refused(self, destination: str) -> list[Effect]:
        """Handles a destination's report that it has seen a later epoch of the link than the one
        that the link sent. An epoch is on disk here before it is used, and the link sent the last
        one. So this data directory is an older copy, or another copy of it is in use: the
        instance begins anew as another incarnation."""
        self._out.is_changing = True
        self._go_back(f"{destination} has seen later connections of it than its last one")
        return self._take()

    def _go_back(self, found: str) -> None:
        if self.went_back or self.retired:
            return
        name = self.identity.name
        text = (
            f"the data directory of {name} is an old copy: {found}; {name} begins anew as another "
            "incarnation and takes from its peers what it lacks"
        )
        self._close_all("not_ready", text, "not_ready")
        self.admission.go_back(text)

    def refuse_downstream(
        self, destination: str, name: str, incarnation: int, generation: int, address: str = ""
    ) -> str:
        """Returns why a link may not go on to the server that it has reached; empty: it may."""
        return self.admission.refuse_downstream(destination, name, incarnation, generation, address)

    # -- links -------------------------------------------------------------------------------
    def compare(
        self, destination: str, plan: ResyncPlan, slice_publishers: int = SLICE_PUBLISHERS
    ) -> tuple[list[Effect], bool]:
        """Compares a slice of publishers when a link has reached its destination. Returns the
        effects, and whether enough is left for another turn; if not, `link_connected` does it.
        """
        self._out.is_changing = True
        answered, more = self._links.compare(destination, plan, slice_publishers)
        if answered:
            self._flush()
        return self._take(), more

    def link_connected(
        self,
        destination: str,
        incarnation: int,
        plan: ResyncPlan,
        now_us: int,
        server: str = "",
        *,
        generation: int = 0,
        address: str = "",
    ) -> tuple[list[Effect], LinkStart]:
        """Notes that a link has connected and exchanged ranges with its destination.
        `Destinations.connected` explains the values."""
        self._out.is_changing = True
        start = self._links.connected(
            destination,
            incarnation,
            plan,
            now_us,
            server,
            generation=generation,
            address=address,
        )
        self._flush()
        return self._take(), start

    def link_disconnected(self, destination: str, why: str) -> list[Effect]:
        """Notes that a link lost its connection, or could not get one."""
        self._out.is_changing = True
        self._links.disconnected(destination, why)
        self._publishers.parted()
        return self._take()

    def process_ended(self, destination: str, now_us: int, why: str) -> list[Effect]:
        """Takes a link's evidence that the process at the other end has ended."""
        self._out.is_changing = True
        self._links.process_ended(destination, now_us, why)
        self._flush()
        return self._take()

    def link_answered(self, destination: str, persisted: Rooted, conflicts: Ranges) -> list[Effect]:
        self._out.is_changing = True
        self._links.answered(destination, persisted, conflicts)
        self._flush()
        return self._out.take()

    def link_progressed(
        self,
        destination: str,
        stored_txid: int,
        resending: Ranges,
        caught_up: bool,
        skipped: int,
        now_us: int,
    ) -> list[Effect]:
        """Takes a link's progress. `LinkProgress` explains the values."""
        self._out.is_changing = True
        self._links.progressed(destination, stored_txid, resending, caught_up, skipped, now_us)
        return self._take()

    def link_lacks(self, destination: str, ranges: Ranges) -> list[Effect]:
        """Notes messages that a link will never send, because they are removed here."""
        self._out.is_changing = True
        self._links.lacks(destination, ranges)
        return self._take()

    # -- downgrade and upgrade ---------------------------------------------------------------
    def downgrade(
        self, destination: str, now_us: int, why: str = "by hand", *, force: bool = False
    ) -> list[Effect]:
        """Downgrades a destination: persisted acks do not wait for it from now on, and messages
        that waited only for it are released. Without effect where the destination is async already.

        Raises:
            DowngradeRefused: too few would remain sync for the policy, and it is not forced.
        """
        self._out.is_changing = True
        if self._links.downgrade(destination, now_us, why, force=force):
            self._flush()
        return self._take()

    def upgrade(self, destination: str, now_us: int, why: str = "by hand") -> list[Effect]:
        """Upgrades a destination: new acks wait for it again, and it is asked for pending ones."""
        self._out.is_changing = True
        self._links.upgrade(destination, now_us, why)
        return self._take()

    def tick(self, now_us: int, ages_ms: Ages | None = None) -> list[Effect]:
        """Downgrades and upgrades by age, when due, once per check interval; with ages, at once."""
        self._out.is_changing = True
        if self.missing.is_judging and self._upstreams.all_caught_up:
            # Upstreams that still catch up may bring them; one that is away is not waited for.
            self.intake.judge_missing()
        if self._links.tick(now_us, ages_ms):
            self._flush()
        return self._take()

    # -- questions ---------------------------------------------------------------------------
    @property
    def next_txid(self) -> int:
        return self.intake.next_txid

    @property
    def wall_offset_us(self) -> int:
        """The time by which the clock on the wall is ahead of the steady one."""
        return self.intake.wall_offset_us

    @wall_offset_us.setter
    def wall_offset_us(self, offset_us: int) -> None:
        self.intake.wall_offset_us = offset_us

    @property
    def own_root(self) -> int:
        return self.durability.own_root

    @property
    def awaited(self) -> RootedRanges:
        """The messages that this instance is awaited for, root by root."""
        return self.durability.awaited

    @property
    def committed_txid(self) -> int:
        """Returns the transaction id up to which this machine was told of commits."""
        return self.durability.committed_txid

    @property
    def settlements(self) -> int:
        """Returns a number that changes whenever the recovery point must be written again."""
        return self.durability.settlements

    def held(self) -> PublisherRanges:
        """Returns every sequence that is on disk here, as a copy."""
        return self.intake.held()

    def staged_runs(self) -> list[Run]:
        """Runs and notes on their way to the disk, in the journal's order."""
        return [entry.run for entry in self.intake.staged if not isinstance(entry, BatchStaged)]

    def removable_before(self) -> int:
        """Returns the transaction id below which entries may be removed (law 4)."""
        return self._links.removable_before()

    def fully_durable_txid(self) -> int:
        """Returns the transaction id up to which every record is durable, for subscribers' acks."""
        return self.durability.floor_txid()

    def received_of(self, session: int) -> int:
        """Returns the highest sequence that came over this session; 0: none, or it is gone."""
        return self._publishers.received_of(session)

    def sessions(self) -> int:
        return len(self._publishers)

    def upstreams(self) -> list[tuple[str, str, int]]:
        return [(u.name, u.group, u.incarnation) for u in self._upstreams.values()]

    def check_invariants(self) -> None:
        """Raises AssertionError where an invariant does not hold. For tests and the simulator."""
        kept: list[tuple[str, RootedRanges]] = [
            ("pending", self.pending),
            ("awaited", self.awaited),
            *((f"owed by {name}", ledger.unacked) for name, ledger in self.destinations.items()),
        ]
        for what, rooted in kept:
            for ranges in rooted.roots.values():
                for publisher, (a, b) in ranges.items():
                    known = self.known.get(publisher)
                    assert known is not None and known.covers(a, b), f"{what} holds the unknown"
        waiting = RootedRanges()
        for waiter in self.waiters:
            waiting.of(waiter.root).of(waiter.publisher).update(waiter.ranges)
        for entry in self.intake.staged:
            if isinstance(entry, RunStaged):
                waiting.of(entry.root).add_ranges(entry.run.publisher, entry.run.ranges())
            elif isinstance(entry, NoteStaged):
                waiting.of(entry.root).add_ranges(entry.publisher, entry.ranges)
        for root in waiting.roots.keys() | self.pending.roots.keys():
            assert waiting.of(root) == self.pending.of(root), "pending is not what waits"
        assert self.committed_txid < self.next_txid, "a commit beyond what was staged"
        if not self.intake.staged:
            assert self.committed_txid == self.next_txid - 1, "staged entries were lost"
        for ledger in self.destinations.values():
            if not ledger.sync:
                assert not any(
                    ranges for root, ranges in ledger.unacked.roots.items() if root != UNAWAITED
                ), "an async destination owes for a root"

    # -- helpers -----------------------------------------------------------------------------
    def _take(self) -> list[Effect]:
        return self._out.take()
