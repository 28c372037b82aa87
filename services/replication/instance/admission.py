"""Admission of clients, of upstreams' links, and of the servers that this instance's own links
reach (design.md 2, "Incarnations"; 4, "Connecting").

Clients are let in when the instance has what a peer of its group has, or when a person takes the
risk. Nobody is let in any more where it was moved away, or is an old copy of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylay.services.errors import AdmissionRefused
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.acknowledgment import DestinationLedger
from raylay.services.replication.effects import (
    BecameReady,
    InstanceRetirement,
    PlacementsChanged,
    StaleCopyDetected,
)
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.membership.peer_identities import PeerIdentities
from raylay.services.replication.membership.placement import (
    InstancePlacement,
    Placements,
    retired_text,
)
from raylay.services.replication.values import Identity


class InstanceAdmission:
    """Decides whom the instance admits: clients, upstream links, and the servers its own links
    reach.

    Invariant: once `retired` or `went_back` holds a reason, it keeps it.
    Owner: the instance's machine. Lifecycle: as long as the machine.

    Args:
        placements: the known placements of moved instances.
        destinations: the ledgers of the destinations; only read.
        ready: whether clients are admitted from the start.
    """

    __slots__ = (
        "_destinations",
        "_identity",
        "_out",
        "meetings",
        "placements",
        "ready",
        "retired",
        "went_back",
    )

    def __init__(
        self,
        identity: Identity,
        placements: Placements,
        destinations: Mapping[str, DestinationLedger],
        out: EffectList,
        *,
        ready: bool,
    ) -> None:
        self._identity = identity
        self._destinations = destinations
        self._out = out
        self.placements = placements
        self.meetings = PeerIdentities(
            identity.name,
            identity.incarnation,
            identity.generation,
            in_fabric=identity.in_fabric,
        )
        self.ready = ready
        self.retired = ""
        """Reason why this incarnation has ended, because the instance was moved; empty while it has
        not."""
        self.went_back = ""
        """Reason why the instance must begin anew as another incarnation, because its data is an
        old copy; empty while it need not."""

    # -- clients -----------------------------------------------------------------------------
    def become_ready(self) -> None:
        if not self.ready:
            self.ready = True
            self._out.emit(BecameReady())

    def admit(self, senders: Iterable[str], held: PublisherRanges, *, force: bool) -> None:
        """Admits clients by hand although no peer of the group has brought the messages that it
        holds.

        Raises:
            AdmissionRefused: some peer may hold messages that this instance lacks, and `force` is
                false.
        """
        risk = self.risk(senders, held)
        if risk and not force:
            raise AdmissionRefused(
                f"{self._identity.name} may lack acknowledged messages: {risk}; wait until it has "
                "them, or force the admission if they are lost for good"
            )
        self._out.report("admitted", forced=bool(risk), why=risk or "nothing is missing here")
        self.become_ready()

    def risk(self, senders: Iterable[str], held: PublisherRanges) -> str:
        """Returns which messages clients that are admitted now may miss, as text. Empty: none,
        because every peer of the group, when a link of this instance last connected to it, held no
        more than is on disk here."""
        compared: set[str] = set()
        for name, ledger in self._destinations.items():
            destination = ledger.destination
            if destination.group != self._identity.group:
                continue
            if not ledger.connected or ledger.at_connect is None:
                return f"{name} of group {destination.group} is not connected"
            if ledger.has_several_servers:
                return f"only one of the servers of {name} is connected"
            beyond = ledger.at_connect.copy()
            beyond.difference_update(held)
            if beyond:
                return f"{name} holds {beyond.count} messages that are not here"
            compared |= ledger.servers
        unknown = sorted(set(senders) - compared)
        if unknown:
            return (
                f"{unknown[0]} of group {self._identity.group} replicates to it, has not finished "
                "its resync, and is no destination, so its messages are not known"
            )
        return ""

    # -- links -------------------------------------------------------------------------------
    def refuse_upstream(
        self,
        name: str,
        group_expected: str,
        incarnation: int,
        destination: str,
        epoch: int,
        epoch_seen: int,
        *,
        connected_as: str | None = None,
        generation: int = 0,
        salvages: bool = False,
        address: str = "",
        proven: bool = False,
    ) -> tuple[str, str] | None:
        """Returns (reason, sentence) when this upstream may not connect; None when it may.

        Args:
            connected_as: name of the Destination, at the upstream, over whose link the upstream is
                already connected; None: it is not connected.
            generation: generation of the upstream's incarnation.
            address: address at which the upstream says that others reach it; empty: it does not
                know.
            salvages: whether the link brings the content of a retired data directory; refused when
                the incarnation is not retired.
            proven: whether the upstream has proved that it belongs to this instance's fabric.
        """
        mine = self._identity
        if self.retired:
            return "moved", self.retired
        if self.went_back:
            return "not_ready", self.went_back
        if salvages != self.placements.is_retired(name, generation):
            return self.refusal_by_placement(name, salvages=salvages)
        if group_expected != mine.group:
            return "group", (
                f"{name} expects group {group_expected!r} here, but {mine.name} is of group "
                f"{mine.group!r}: correct the Group of Destination {destination!r} at {name}"
            )
        if incarnation == mine.incarnation:
            return "self", f"{name} replicates to itself: correct the address of {destination!r}"
        if epoch <= epoch_seen:
            return "stale_epoch", f"epoch {epoch} of {name} is not above {epoch_seen}"
        if connected_as is not None and connected_as != destination:
            return "already_connected", (
                f"{name} is connected here already, over its Destination {connected_as!r}: remove "
                f"one of the two, since an instance has one link to another one"
            )
        clash = (
            ""
            if salvages
            else self.meetings.clash(0, name, incarnation, generation, address, proven=proven)
        )
        if clash:
            return "name_taken", clash
        impostor = "" if proven or salvages else self.meetings.impostor(name, incarnation)
        return ("unproven", impostor) if impostor else None

    def refusal_by_placement(self, name: str, *, salvages: bool) -> tuple[str, str]:
        """Returns (reason, sentence) for an upstream that is retired and does not salvage, or
        salvages and is not retired."""
        placement = self.placements.get(name)
        if placement is None or salvages:
            return "not_retired", (
                f"the data directory of {name} is not retired, so nothing needs to be salvaged: "
                "start the instance with it"
            )
        return "retired", retired_text(name, placement)

    def refuse_downstream(
        self, destination: str, name: str, incarnation: int, generation: int, address: str
    ) -> str:
        """Returns why a link must not use the server that it has reached; empty when it may. A
        server that was moved and does not know it must not get messages meant for its successor."""
        placement = self.placements.get(name)
        if placement is not None and self.placements.is_retired(name, generation):
            return f"retired: {retired_text(name, placement)}"
        # The link's address comes from this instance's configuration: claims that a foreign link
        # makes about itself must not keep this one from its server.
        clash = self.meetings.clash(
            destination, name, incarnation, generation, address, proven=True
        )
        return f"name_taken: {clash}" if clash else ""

    # -- the end of an incarnation -------------------------------------------------------------
    def learn(self, told: Mapping[str, InstancePlacement]) -> dict[str, InstancePlacement]:
        """Learns placements that a peer told, and reports each news as an event. Returns the news;
        for an incarnation that has ended, always none."""
        placements = self.placements
        generations = {name: placements.generation(name) for name in told}
        news = placements.learn(told)
        if not news or self.retired:
            return {}
        for name, placement in news.items():
            self._out.report(
                "instance_moved"
                if placement.generation > generations[name]
                else "instance_readdressed",
                peer=name,
                generation=placement.generation,
                address=placement.address,
            )
        self._out.emit(PlacementsChanged(news))
        return news

    def moved_by(self, news: Mapping[str, InstancePlacement]) -> str:
        """Returns why these placements end this incarnation; empty when they do not."""
        mine = self._identity
        own = news.get(mine.name)
        if own is None or not self.placements.is_retired(mine.name, mine.generation):
            return ""
        return retired_text(mine.name, own)

    def retire(self, text: str) -> None:
        self.retired = text
        self._out.report("retired", text=text)
        self._out.emit(InstanceRetirement(text))

    def go_back(self, text: str) -> None:
        """Ends this incarnation of an instance that is an old copy of itself."""
        self.went_back = text
        self._out.report("went_back", text=text)
        self._out.emit(StaleCopyDetected(text))
