"""The one place that puts an instance together, for the server and for the simulator.

A restart builds the machine from what the journal recovered and from the recovery point, then gives
it the headers of the later entries (design.md 4, "Recovery"). The order of these steps, and which
parts of the point still count, decide whether an acknowledged message is found to wait again.
Therefore no other code does it.
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

FOLD_ORDER = ("sow", "views", "aggregated", "live", "conflation", "queues", "replays")
"""Order in which features fold a commit. SOW topics come before subscribers are told, and live
subscriptions before replays."""
RECOVERY_HEADERS = 4096
"""Number of runs whose headers a restart reads at once."""


class JournalFindings(Protocol):
    """The state in which a journal was found when it was opened."""

    next_txid: int
    held: PublisherRanges


class JournalStart(RunSource, Protocol):
    """The part of a journal that a restart reads."""

    @property
    def recovered(self) -> JournalFindings:
        """Returns what the journal found when it was opened."""

    def removed(self) -> PublisherRanges:
        """Returns every sequence ever journaled that is in no segment any more."""

    def read_headers(self, after_txid: int, runs_max: int = ...) -> list[Run]:
        """Returns the committed runs behind a transaction id, in order, without the bytes of their
        records."""


@dataclass(slots=True)
class Composition:
    """The parts of one life of an instance, besides its journal.

    Attributes:
        identity: identity of the instance in this life.
        destinations: destinations to which it replicates.
        topics: rules of all topics.
        peers: last known incarnation of each destination's server.
        servers: names of the instances to which each destination's link ever connected.
        placements: the known placements of moved instances.
        former: earlier incarnations of the data directory, or of the one that it is a copy of.
        ready: False: the instance must catch up with a peer before it admits clients.
        policy: policy of downgrades.
        recent_bytes_max: bytes of the last committed runs that are kept in memory, to answer
            instead of the journal.
        filters: language of the content filters; None: content filters do not run.
        suspects: messages during which earlier processes crashed.
        names: owners of publisher ids, as far as earlier processes wrote them down.
        sow: SOW topics; None: there are none. Their `Stateful` objects are in `topics`.
        sow_folded: called after each part of the journal that is folded into them, to write it
            down.
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
    """The classes of which an instance is made. A planted mistake replaces one."""

    machine: type[InstanceMachine] = InstanceMachine
    parts: MachineParts = field(default_factory=MachineParts)
    recovery: type[RecoveryLog] = RecoveryLog
    folds: type[FeatureRegistry] = FeatureRegistry
    steps: type[EffectLoop] = EffectLoop


class InstanceCore(NamedTuple):
    """One life of an instance, after its recovery."""

    machine: InstanceMachine
    recovery: RecoveryLog
    """Writes the recovery points from which later lives begin."""


def folding(
    kinds: FeatureClasses = FeatureClasses(), unfolded: FoldBacklog | None = None
) -> FeatureRegistry:
    """Returns the registry in which the features of an instance enlist.

    Args:
        unfolded: takes commits that are folded over several turns; None: each is folded in its
            step.
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
    """Builds an instance from its journal and the last recovery point.

    Emits nothing. Reads the journal. To be called before the journal is started and any client is
    admitted.

    Args:
        lookup: look-up into the journal.
        hints: values of the state store under `recovery.PREFIX`.
        now_us: steady time in microseconds, from which the ages of waiting messages count.
        headers_max: number of runs whose headers are read at once.

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
