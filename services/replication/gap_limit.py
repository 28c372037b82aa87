"""What the gaps in one publisher's sequences may cost at an instance.

What an instance has of a publisher is kept in pieces: stretches of whole chunks of 4,096 sequences,
and chunks that are not whole. Sequences that follow one another are a few pieces; so is what a
filter leaves of them. Each sequence that is far from all others is a piece of its own, for good:
with 250,000 of them a publisher takes some 90 MB in what an instance has, as much again in what it
is awaited for, and 3.5 MB of every logon of a link (measured). A client without a publish store
makes such a piece with each life behind one that did not end in good order (unused_sequences.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import Range, SequenceSet

PIECES_MAX = 250_000


def check_gaps(client: str, known: SequenceSet | None, ranges: Iterable[Range]) -> None:
    """Raises RemoteProtocolError where a client's publishes would leave too many gaps. What came
    from elsewhere, by a link, is never refused: it is acknowledged there."""
    held = known if known is not None else SequenceSet()
    pieces = held.pieces_with(ranges)
    if pieces > PIECES_MAX and pieces > held.pieces:
        raise RemoteProtocolError(
            f"the sequences of client {client} have too many gaps here: they would lie in {pieces} "
            f"places that are 4,096 or more from one another, and {PIECES_MAX} are allowed: number "
            "messages one after the other, give a client that is often killed a publish store, "
            "and go on under another client name",
            "too_many_gaps",
        )
