"""The one place that puts an instance together, for the server and for the simulator alike.

A restart builds the machine from what the journal recovered and from the recovery point, then gives
it the headers of what is behind that point (design.md 4, "Recovery"). Which of these steps comes
first, and what of the point still counts, decides whether an acked message is found to wait again:
that is why nobody does it a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from raylay.services.core.effect_loop import EffectLoop
from raylay.services.core.feature import FeatureRegistry
from raylay.services.core.fold_backlog import FoldBacklog
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.messages.suspects import Suspects
from raylay.services.messages.topic_book import TopicBook
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.instance import InstanceMachine, MachineParts
from raylay.services.replication.link.content import FilterLanguage
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.placement import Placements
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.replication.recovery import RecoveryLog
from raylay.services.replication.run_lookup import RunLookup, RunSource
from raylay.services.replication.values import Identity

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.core.sow import SowFeature

FOLD_ORDER = ("sow", "views", "live", "conflation", "queues", "replays")
"""Order in which features fold what was committed. What a subscriber is told of is in the state of
the world already, and nobody is replayed what the live ones have not got."""
RECOVERY_HEADERS = 4096
"""Runs whose headers a restart reads at once."""


class JournalFindings(Protocol):
    """The findings of a journal when it was opened."""

    next_txid: int
    held: PublisherRanges


class JournalStart(RunSource, Protocol):
    """The part of a journal that a restart reads."""

    @property
    def recovered(self) -> JournalFindings:
        """The findings when it was opened."""

    def removed(self) -> PublisherRanges:
        """Every sequence ever journaled that is in no segment any more."""

    def read_headers(self, after_txid: int, runs_max: int = ...) -> list[Run]:
        """Committed runs behind a transaction id, in order, without the bytes of their records."""


@dataclass(slots=True)
class Composition:
    """The parts of one life of an instance, beside its journal.

    Attributes:
        identity: who it is in this life.
        destinations: whom it replicates to.
        topics: what holds for each of them.
        peers: last known incarnation of each destination's server.
        servers: names of the instances that each destination ever was connected to.
        placements: what is known of instances that were moved.
        former: incarnations that its data directory, or what that is a copy of, had before.
        ready: False: it must catch up with a peer before it admits clients.
        policy: of downgrades.
        recent_bytes_max: of what was committed last, kept to answer in the journal's stead.
        filters: what content filters are written in; None: they do not run.
        suspects: messages that earlier processes ended with.
        names: whom publisher ids belong to, as far as earlier processes wrote it down.
        sow: the state of the world; None: no topic has one. Its topics' `Stateful` are in `topics`.
        sow_folded: called behind each part of the journal that is folded into it: who writes it
            down does so there.
    """

    identity: Identity
    destinations: Iterable[DestinationRoute]
    topics: TopicBook
    peers: dict[str, int] = field(default_factory=dict)
    servers: Mapping[str, Iterable[str]] = field(default_factory=dict)
    placements: Placements | None = None
    former: Iterable[int] = ()
    ready: bool = True
    policy: DowngradePolicy | None = None
    recent_bytes_max: int = 0
    filters: FilterLanguage | None = None
    suspects: Suspects | None = None
    names: PublisherNames | None = None
    sow: SowFeature | None = None
    sow_folded: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class FeatureClasses:
    """The classes that an instance is made of. A planted mistake is another one in its place."""

    machine: type[InstanceMachine] = InstanceMachine
    parts: MachineParts = field(default_factory=MachineParts)
    recovery: type[RecoveryLog] = RecoveryLog
    folds: type[FeatureRegistry] = FeatureRegistry
    steps: type[EffectLoop] = EffectLoop


class InstanceCore(NamedTuple):
    """One life of an instance, recovered."""

    machine: InstanceMachine
    recovery: RecoveryLog
    """Writes the points from which later lives begin."""


def folding(
    kinds: FeatureClasses = FeatureClasses(), unfolded: FoldBacklog | None = None
) -> FeatureRegistry:
    """Makes the registry in which the features of an instance enlist.

    Args:
        unfolded: takes what is folded in turns; None: nothing takes long.
    """
    return kinds.folds(FOLD_ORDER, unfolded)


def compose(
    composition: Composition,
    journal: JournalStart,
    lookup: RunLookup,
    hints: Mapping[str, bytes],
    now_us: int,
    *,
    kinds: FeatureClasses = FeatureClasses(),
    headers_max: int = RECOVERY_HEADERS,
) -> InstanceCore:
    """Builds an instance from its journal, behind the recovery point that was last written down.

    Emits nothing. Reads the journal; runs before the journal is started and anybody is let in.

    Args:
        lookup: into the journal.
        hints: what the state store has under `recovery.PREFIX`.
        now_us: the steady time, in microseconds: what waits is as old as this.
        headers_max: runs whose headers are read at once.

    Raises:
        RemoteProtocolError: what the state store has is no recovery point.
        StorageError: the journal cannot be read.
    """
    recovered = journal.recovered
    recovery = kinds.recovery(hints)
    point = recovery.point.read_by(composition.identity.incarnation)
    point = point.within(recovered.held, journal.removed())
    machine = kinds.machine(
        composition.identity,
        composition.destinations,
        composition.topics,
        next_txid=recovered.next_txid,
        held=recovered.held,
        awaited=point.awaited,
        refused=point.refused,
        unavailable=point.unavailable,
        incarnations=composition.peers,
        servers=composition.servers,
        placements=composition.placements,
        lookup=lookup,
        former=composition.former,
        ready=composition.ready,
        policy=composition.policy,
        recent_bytes_max=composition.recent_bytes_max,
        filters=composition.filters,
        suspects=composition.suspects,
        names=composition.names,
        parts=kinds.parts,
    )
    point = point.judged_by(machine.contents.rules)
    machine.restore(point.waiting, point.durable_txid, now_us)
    last_txid = recovered.next_txid - 1
    after_txid = min(point.committed_txid, last_txid)
    while after_txid < last_txid:
        headers = journal.read_headers(after_txid, headers_max)
        if not headers:
            break
        machine.recover(headers, now_us)
        after_txid = headers[-1].last_txid
    if composition.sow is not None:
        composition.sow.recover_from(journal, last_txid, composition.sow_folded)
    return InstanceCore(machine, recovery)
