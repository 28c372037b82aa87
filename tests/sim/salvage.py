"""A simulated `raylay journal salvage`: a retired disk, whose links run once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.effects import LinkAnswered, LinkLacks, LinkReport
from raylay.services.replication.instance import Identity
from raylay.services.replication.membership.placement import InstancePlacement, Placements
from raylay.services.replication.membership.salvage import Salvage
from raylay.services.verification.history import DiskSalvaged
from sim.link import LinkProcess, Welcome
from sim.network import Connection

if TYPE_CHECKING:
    from sim.instance import Disk


class SalvagedDisk:
    """To its links it is the instance that the disk was of."""

    salvages = True

    def __init__(self, disk: Disk) -> None:
        self.world = disk.world
        self.disk = disk
        self.name = disk.label
        self.host = disk.host
        self.alive = True
        self.journal = disk.journal
        member = disk.member
        self.machine = Salvage(
            Identity(member.name, member.group, disk.incarnation, disk.generation),
            member.destinations,
            disk.journal.recovered.next_txid - 1,
        )
        self.placements = Placements(disk.placements)
        self.placements.learn(disk.world.placements())
        self.links = {
            name: LinkProcess(self, destination)
            for name, destination in self.machine.destinations.items()
        }

    @property
    def now_us(self) -> int:
        """The steady clock of the command."""
        return self.world.now_us

    def removed(self) -> PublisherRanges:
        """Takes no note: what the directory had and has no more is nobody's loss here."""
        return PublisherRanges()

    def host_of(self, address: str) -> str:
        """Returns the host of an instance, as far as it is known."""
        found = self.placements.get(address)
        return found.address if found is not None else address

    def told_at_logon(self) -> dict[str, InstancePlacement]:
        """Returns what its links tell at a logon."""
        return self.placements.items()

    def learn(self, told: dict[str, InstancePlacement]) -> None:
        """Somebody told where instances were moved to."""
        self.placements.learn(told)

    def incoming_for(self, link: LinkProcess) -> Connection | None:
        """Nobody connects here."""
        return None

    def give_epoch(self, link: LinkProcess) -> None:
        """A link asks for the epoch of its next connection."""
        if self.alive:
            used = self.disk.epochs_used
            name = link.destination.name
            used[name] = used.get(name, 0) + 1
            link.inbox.send(link.epoch_given, used[name])

    def epoch_refused(self, link: LinkProcess) -> None:
        """It goes on from those of its instance, and tries the next one."""

    def link_connected(self, link: LinkProcess, connection: Connection, welcome: Welcome) -> None:
        """A link has connected."""
        if self.alive:
            self.learn(welcome.placements)
            start = self.machine.start(link.destination.name, welcome.name)
            link.inbox.send(link.started, connection, welcome, start)

    def link_disconnected(self, link: LinkProcess, why: str) -> None:
        """A link has lost its connection: it tries again."""

    def process_ended(self, link: LinkProcess) -> None:
        """A link says that the other side's process has ended: a retired disk waits for nobody."""

    def link_reports(self, link: LinkProcess, report: LinkReport) -> None:
        """A destination has answered, or its link tells how far it is."""
        if isinstance(report, LinkLacks):
            raise AssertionError(f"a retired disk says that {link.destination.name} lacks {report}")
        self.machine.step(link.destination.name, [report])
        if isinstance(report, LinkAnswered):
            return
        if self.machine.progress[link.destination.name].done:
            link.die()
        if self.alive and self.machine.is_done:
            self.alive = False
            for each in self.links.values():
                each.die()
            world, disk = self.world, self.disk
            disk.salvaged = True
            world.probes["retired disk salvaged"] += 1
            if any(progress.sent for progress in self.machine.progress.values()):
                world.probes["salvaged what was missing"] += 1
            world.log(DiskSalvaged(world.now_us, disk.label, disk.incarnation))
