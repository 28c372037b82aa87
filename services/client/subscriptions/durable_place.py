"""The place of a durable subscription: the messages with which its application is done, which the
instances keep under a name (docs/clients.md).

At least once: the place says only what the application is done with, so a message may come again
after a crash, and none is left out. The place means the same at every instance, and only grows:
what several instances say of one name is added up, and an instance that was told less, or nothing,
only makes messages come again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raylay.services.client.named_readers import ReaderPlace
from raylay.services.client.subscriptions.subscription_state import position_of
from raylay.services.errors import ConnectionLost, LocalProtocolError
from raylay.services.messages.bookmarks import EPOCH
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.client.reader_command import EXPIRES_S_MAX


class DurableTerms(NamedTuple):
    """The terms of a durable subscription.

    Attributes:
        name: name of the place.
        topic: topic, or regular expression.
        message_type: message type; empty: any.
        filter: filter; empty: none.
        expires_s: seconds after which an instance forgets a place of which it hears nothing.
    """

    name: str
    topic: str
    message_type: str
    filter: str
    expires_s: int

    def check(self, bookmark: str) -> None:
        """Checks the terms before any instance is asked.

        Raises:
            LocalProtocolError: the name is none, the time out of range, or the bookmark a range
                with an end.
        """
        if not isinstance(self.name, str) or not self.name.isprintable() or not self.name:
            raise LocalProtocolError(
                f"durable={self.name!r}: give the place a name of printable characters"
            )
        if not 1 <= self.expires_s <= EXPIRES_S_MAX:
            raise LocalProtocolError(
                f"durable subscription {self.name!r}: durable_expires_s is {self.expires_s}: give "
                f"whole seconds, from 1 to {EXPIRES_S_MAX}"
            )
        if bookmark and position_of(bookmark).bounded:
            raise LocalProtocolError(
                f"durable subscription {self.name!r}: {bookmark} has an end, and a durable "
                "subscription has none: give the position where a new name begins"
            )


class DurablePlace:
    """The place of one durable subscription, with the methods of a bookmark store.

    Attributes:
        terms: the subscription.
        have: messages with which the application is done.
        version: number of changes of `have`.

    Owner: the client's event loop.
    """

    __slots__ = ("have", "terms", "version")

    def __init__(self, terms: DurableTerms, have: PublisherRanges) -> None:
        self.terms = terms
        self.have = have
        self.version = 1

    def seen(self, subscription: str, publisher: int, first: int, last: int) -> None:
        """Adds messages with which the consumer is done."""
        if not self.have.covers(publisher, [(first, last)]):
            self.have.add(publisher, first, last)
            self.version += 1

    def persisted(self, subscription: str, ranges: PublisherRanges) -> None:
        """Adds durable messages that need no delivery any more."""
        self.have.update(ranges)
        self.version += 1

    def load(self, subscription: str) -> PublisherRanges:
        """Returns everything that was added."""
        return self.have.copy()

    def discard(self, subscription: str) -> None:
        """Begins anew."""
        self.have = PublisherRanges()
        self.version += 1

    def flush(self) -> None:
        """Nothing to do: the instances are told a little later."""


def start_of(
    terms: DurableTerms,
    bookmark: str,
    found: Iterable[ReaderPlace | None],
    silent: Iterable[str],
) -> tuple[str, PublisherRanges]:
    """Returns the position at which a durable subscription begins, and the messages that it leaves
    out. A name that some instance knows goes on from its place, however little that is; another one
    begins at the bookmark that was given, or with the first message.

    Args:
        bookmark: position at which an unknown name begins; empty: the first message.
        found: the place at each instance that answered; None: it knows no such name.
        silent: the instances that did not answer.

    Raises:
        LocalProtocolError: the name stands for another topic, message type or filter.
        ConnectionLost: the name may be known at an instance that did not answer, and beginning at
            the bookmark would leave out messages.
    """
    have = PublisherRanges()
    known = False
    for place in found:
        if place is None:
            continue
        wanted = terms.topic, terms.message_type, terms.filter
        if place.terms != wanted:
            raise LocalProtocolError(
                f"durable subscription {terms.name!r} is of {_described(*place.terms)}, and not of "
                f"{_described(*wanted)}: give this one another name, or drop the old one at each "
                f"instance (`raylay reader drop {terms.name}`)"
            )
        known = True
        have.update(place.have)
    if known:
        return EPOCH, have
    missing = ", ".join(silent)
    if missing and bookmark and bookmark != EPOCH:
        raise ConnectionLost(
            f"durable subscription {terms.name!r}: no instance that answers knows it, and "
            f"{missing} cannot be asked: beginning at the bookmark could leave out messages. Try "
            "again when it answers, or begin with the first message (no bookmark)"
        )
    return bookmark or EPOCH, have


def _described(topic: str, message_type: str, filter: str) -> str:
    of_type = f" of type {message_type}" if message_type else ""
    return f"{topic}{of_type}" + (f" with the filter {filter}" if filter else "")
