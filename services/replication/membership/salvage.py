"""Sending what a retired data directory holds to those who lack it (design.md 2, Placement).

The directory's journal is read once more by one link for each destination of its instance, and by
one to the instance's successor. The conditions of each destination decide what goes there, exactly
as when the instance lived. A link finds out at its logon what the other side holds and sends the
rest, under the original identities; a message below a higher sequence of its publisher is flagged
late there. Only *stored* is waited for: no client waits for these messages any more.

A salvage can be repeated at any time: messages that a destination holds are not sent again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import LinkAnswered, LinkEffect, LinkProgress, Ranges
from raylay.services.replication.link.content import FilterLanguage
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.values import Identity, LinkStart

SUCCESSOR = "successor"


@dataclass(slots=True)
class SalvageProgress:
    """The progress of a salvage at one destination.

    Attributes:
        server: name of the connected instance; empty before the connect.
        sent: number of messages that the instance lacked and was sent, in the last connection.
        done: whether the instance has everything that is routed to it.
        conflicts: number of messages that the instance holds with other content.
    """

    server: str = ""
    sent: int = 0
    done: bool = False
    conflicts: PublisherRanges = field(default_factory=PublisherRanges)


class Salvage:
    """The messages of a retired data directory that are left to send.

    Owner: the command, which holds the lock of the directory. Lifecycle: until `is_done`.

    Args:
        identity: identity of the instance to which the directory belonged.
        destinations: the destinations of that instance.
        last_txid: last transaction id of the directory's journal.
        filters: the language of the content filters; None: content filters do not run.
    """

    def __init__(
        self,
        identity: Identity,
        destinations: Iterable[DestinationRoute],
        last_txid: int,
        filters: FilterLanguage | None = None,
    ) -> None:
        self.identity = identity
        self._filters = filters
        self._last_txid = last_txid
        # No server connects to a directory, so destinations that waited for one to connect are
        # dialled.
        self.destinations = {
            destination.name: replace(destination, dials=True, share_connection=False)
            for destination in destinations
        }
        successor = successor_of(identity)
        self.destinations[successor.name] = successor
        self.progress = {name: SalvageProgress() for name in self.destinations}

    @property
    def is_done(self) -> bool:
        """Returns whether every destination has everything that is routed to it."""
        return all(progress.done for progress in self.progress.values())

    @property
    def conflicts(self) -> int:
        """Returns the number of messages that some destination holds with other content: those stay
        in the directory."""
        found = PublisherRanges()
        for progress in self.progress.values():
            found.update(progress.conflicts)
        return found.count

    def link(self, destination: str, window_bytes: int) -> OutboundLink:
        return OutboundLink(
            self.destinations[destination], window_bytes, PublisherRanges, self._filters
        )

    def start(self, destination: str, server: str) -> LinkStart:
        """Notes that the link to a destination has connected; returns the state with which it
        starts."""
        progress = self.progress[destination]
        progress.server, progress.done, progress.sent = server, False, 0
        nothing = RootedRanges()
        return LinkStart(False, nothing, nothing, self.identity.incarnation, self._last_txid)

    def step(self, destination: str, effects: Iterable[LinkEffect]) -> None:
        """Takes the reports among a link machine's effects; the caller sends the batches."""
        progress = self.progress[destination]
        for effect in effects:
            if isinstance(effect, LinkProgress):
                progress.sent += _count(effect.resending)
                progress.done = progress.done or effect.caught_up
            elif isinstance(effect, LinkAnswered):
                for publisher, ranges in effect.conflicts.items():
                    progress.conflicts.add_ranges(publisher, ranges)


def successor_of(identity: Identity) -> DestinationRoute:
    """Returns a destination for the instance of the same name that lives now: everything is sent
    there."""
    return DestinationRoute(
        SUCCESSOR, identity.group, False, pass_through=".*", addresses=(identity.name,)
    )


def _count(ranges: Ranges) -> int:
    return sum(last - first + 1 for pairs in ranges.values() for first, last in pairs)
