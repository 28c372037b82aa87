"""Sending what a retired data directory holds to those who lack it (design.md 2, Placement).

The directory's journal is read once more by one link for each destination that its instance had,
and by one to its successor: the four conditions of a destination decide what goes where, exactly as
when the instance lived. A link finds out at its logon what the other side holds and sends the rest,
under the identities that it has; what comes behind a higher sequence of its publisher is flagged
late there. Nothing is asked to be acknowledged beyond *stored*: no client waits for it any more.

It begins again as often as one likes: what is held is not sent.
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
    """The progress at one destination.

    Attributes:
        server: the instance that it is, once connected.
        sent: messages that it lacked and was sent, in the last connection.
        done: it has all that is routed to it.
        conflicts: what it holds with another content.
    """

    server: str = ""
    sent: int = 0
    done: bool = False
    conflicts: PublisherRanges = field(default_factory=PublisherRanges)


class Salvage:
    """The messages of a retired data directory that are left to send.

    Owner: the command, which holds the lock of the directory. Lifecycle: until `is_done`.

    Args:
        identity: whose directory it is.
        destinations: those that its instance had.
        last_txid: of its journal.
        filters: what content filters are written in; None: they do not run.
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
        # Nobody connects to a directory: those that waited for the other side are dialled.
        self.destinations = {
            each.name: replace(each, dials=True, share_connection=False) for each in destinations
        }
        successor = successor_of(identity)
        self.destinations[successor.name] = successor
        self.progress = {name: SalvageProgress() for name in self.destinations}

    @property
    def is_done(self) -> bool:
        """Returns whether nobody lacks anything any more."""
        return all(progress.done for progress in self.progress.values())

    @property
    def conflicts(self) -> int:
        """Messages that some destination holds with another content: those stay here."""
        found = PublisherRanges()
        for progress in self.progress.values():
            found.update(progress.conflicts)
        return found.count

    def link(self, destination: str, window_bytes: int) -> OutboundLink:
        """The machine of one destination's link."""
        return OutboundLink(
            self.destinations[destination], window_bytes, PublisherRanges, self._filters
        )

    def start(self, destination: str, server: str) -> LinkStart:
        """A destination's link has connected: what it begins with."""
        progress = self.progress[destination]
        progress.server, progress.done, progress.sent = server, False, 0
        nothing = RootedRanges()
        return LinkStart(False, nothing, nothing, self.identity.incarnation, self._last_txid)

    def step(self, destination: str, effects: Iterable[LinkEffect]) -> None:
        """Takes what a link's machine tells, its batches left to the caller."""
        progress = self.progress[destination]
        for effect in effects:
            if isinstance(effect, LinkProgress):
                progress.sent += _count(effect.resending)
                progress.done = progress.done or effect.caught_up
            elif isinstance(effect, LinkAnswered):
                for publisher, ranges in effect.conflicts.items():
                    progress.conflicts.add_ranges(publisher, ranges)


def successor_of(identity: Identity) -> DestinationRoute:
    """The instance of the same name that lives now, as a destination: it is to have everything."""
    return DestinationRoute(
        SUCCESSOR, identity.group, False, pass_through=".*", addresses=(identity.name,)
    )


def _count(ranges: Ranges) -> int:
    return sum(last - first + 1 for pairs in ranges.values() for first, last in pairs)
