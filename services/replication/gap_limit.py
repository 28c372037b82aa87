"""Limits on the gaps in the sequences of one publisher and of one user, and on the size of one gap.

An instance keeps the sequences of a publisher in pieces: stretches of whole chunks of 4,096
sequences, and partial chunks. Consecutive sequences need few pieces, and so do those that a filter
leaves over. A sequence far from all others takes a piece of its own, for good: with 250,000 of them
a publisher takes some 90 MB in the set of held messages, as much again in the set of awaited ones,
and 3.5 MB of every logon of a link (measured). A client without a publish store begins such a piece
in each life, unless the life before ended in good order (unused_sequences.py).

A client chooses its name, so one user could leave that many pieces under each of many names.
Therefore all publishers of a user together have a limit as well. The pieces outlive the connections
and the instance's process, so the user of a publisher is written down once the publisher has gaps.

A publisher continues above its highest sequence, so one sequence near the largest number would use
up all numbers, for good and for any client that takes that name later. No client numbers like that:
sequences begin at 1 or at the clock in microseconds. The check does not ask a clock, because a
wrong clock would refuse everybody. A publisher that already numbers above the plausible range may
go on in large steps, as many as it may have gaps: it reaches the limit of pieces before it runs out
of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet

PIECES_MAX = 250_000
USER_PIECES_MAX = 2 * PIECES_MAX
"""Limit on the pieces of all publishers of one user that have gaps."""
PIECES_FREE = 8
"""Number of pieces that every publisher may have freely: sequences without gaps lie in two or
three."""
PIECES_UNCOUNTED = 1_024
"""Number of pieces by which a session may grow before they are counted for its user. One batch of
that many messages may add them. At the end of a session all are counted."""
TOO_MANY_GAPS = "too_many_gaps"
SEQUENCES_PLAUSIBLE = 1 << 52
"""Sequence up to which any number is plausible: the clock in microseconds reaches it in the year
2112."""
STEP_MAX = 1 << 40
"""Distance by which a sequence may lie above its publisher's highest one: 12 days of 1,000,000
messages a second."""
IMPLAUSIBLE_SEQUENCE = "implausible_sequence"


def check_step(source: str, sequence: int, highest: int, known: SequenceSet | None) -> None:
    """Raises RemoteProtocolError where a sequence lies so high that the numbers of its publisher
    would be used up.

    Args:
        source: the client or link that brings the sequence.
        sequence: the highest sequence of a batch.
        highest: the publisher's highest sequence held here; 0: none.
        known: the publisher's sequences held here.
    """
    if sequence <= SEQUENCES_PLAUSIBLE or sequence <= highest:
        return
    # Publishers that come over a link are not refused for their gaps, so a limit on them ends large
    # steps as well.
    has_steps_left = known is None or known.pieces < PIECES_MAX
    allowed = max(SEQUENCES_PLAUSIBLE, highest + STEP_MAX if has_steps_left else highest)
    if sequence > allowed:
        raise RemoteProtocolError(
            f"{source} brings sequence {sequence} of a publisher of which {highest} is the highest "
            f"here, and {allowed} is allowed: later messages would have no numbers left. Number "
            "messages one after the other, from 1 or from the clock in microseconds",
            IMPLAUSIBLE_SEQUENCE,
        )


def check_gaps(client: str, known: SequenceSet | None, ranges: Iterable[Range]) -> None:
    """Raises RemoteProtocolError where a client's publishes would leave too many gaps. Messages
    that arrive over a link are never refused: the instance that sent them has acknowledged them."""
    held = known if known is not None else SequenceSet()
    pieces = held.pieces_with(ranges)
    if pieces > PIECES_MAX and pieces > held.pieces:
        raise RemoteProtocolError(
            f"the sequences of client {client} have too many gaps here: they would lie in {pieces} "
            f"places that are 4,096 or more from one another, and {PIECES_MAX} are allowed: number "
            "messages one after the other, give a client that is often killed a publish store, "
            "and go on under another client name",
            TOO_MANY_GAPS,
        )


class UserGaps:
    """The gaps of each user's publishers. Where no authentication module names the user, the
    client's address stands for the user.

    Invariants: the totals are the sums over the publishers; a publisher with `PIECES_FREE` pieces
    or fewer is not remembered.
    Owner: the instance's machine. Lifecycle: as long as the machine.

    Attributes:
        unwritten: user of each publisher that is still to be written down; empty: the publisher has
            no user any more. The code that writes them down clears it.
    """

    __slots__ = ("_pieces", "_totals", "_users", "unwritten")

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._pieces: dict[int, int] = {}
        """Number of pieces by publisher, for publishers with gaps."""
        self._totals: dict[str, int] = {}
        self.unwritten: dict[int, str] = {}

    def recall(self, users: Mapping[int, str], known: PublisherRanges) -> None:
        """Takes the users of publishers with gaps, as an earlier process wrote them down."""
        for publisher, user in users.items():
            held = known.get(publisher)
            self._count(user, publisher, 0 if held is None else held.pieces)
            if publisher in self._users:
                self.unwritten.pop(publisher, None)
            else:
                self.unwritten[publisher] = ""

    def begins(self, user: str, publisher: int, known: SequenceSet | None) -> int:
        """Returns the number of pieces that a new session of this user may have before the limit is
        checked again. An empty user is unknown, and is not limited."""
        if not user:
            return PIECES_MAX
        return self._granted(user, publisher, 0 if known is None else known.pieces)

    def grows(
        self,
        user: str,
        client: str,
        publisher: int,
        known: SequenceSet | None,
        ranges: Iterable[Range],
    ) -> int:
        """Counts the pieces that a session's publishes add. Returns the number of pieces that the
        session may have before the limit is checked again.

        Raises:
            RemoteProtocolError: its user has too many; with reason `too_many_gaps`.
        """
        if not user:
            return PIECES_MAX
        held = known if known is not None else SequenceSet()
        pieces = held.pieces_with(ranges)
        others = self._totals.get(user, 0) - self._of(user, publisher)
        if pieces > max(PIECES_FREE, held.pieces) and others + pieces > USER_PIECES_MAX:
            raise RemoteProtocolError(
                f"the sequences of client {client} and of other clients of its user or address "
                f"have too many gaps here: they would lie in {others + pieces} places that are "
                f"4,096 or more from one another, and {USER_PIECES_MAX} of one are allowed: number "
                "messages one after the other, and give clients that are often killed a publish "
                "store",
                TOO_MANY_GAPS,
            )
        return self._granted(user, publisher, pieces)

    def ends(self, user: str, publisher: int, known: SequenceSet | None) -> None:
        """Notes the end of a publisher's session: a publisher without gaps is not counted any
        more."""
        if user:
            self._count(user, publisher, 0 if known is None else known.pieces)

    def __len__(self) -> int:
        return len(self._users) + len(self._pieces) + len(self._totals)

    def _granted(self, user: str, publisher: int, pieces: int) -> int:
        self._count(user, publisher, pieces)
        is_room = self._totals.get(user, 0) < USER_PIECES_MAX
        return min(PIECES_MAX, pieces + PIECES_UNCOUNTED) if is_room else max(pieces, PIECES_FREE)

    def _of(self, user: str, publisher: int) -> int:
        return self._pieces[publisher] if self._users.get(publisher) == user else 0

    def _count(self, user: str, publisher: int, pieces: int) -> None:
        if pieces <= PIECES_FREE:
            pieces = 0
        before = self._users.get(publisher, "")
        if not pieces and not before:
            return
        if before:
            total = self._totals[before] - self._pieces[publisher]
            if total:
                self._totals[before] = total
            else:
                del self._totals[before]
        if pieces:
            self._users[publisher], self._pieces[publisher] = user, pieces
            self._totals[user] = self._totals.get(user, 0) + pieces
        else:
            del self._users[publisher], self._pieces[publisher]
        if self._users.get(publisher, "") != before:
            self.unwritten[publisher] = self._users.get(publisher, "")
