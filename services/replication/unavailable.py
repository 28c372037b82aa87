"""Messages that an instance lacks and that no upstream has any more (design.md 4, Resync).

At the end of a resync, an upstream names the messages that it once had, has removed, and believes
to be missing at the other end. Another upstream may still bring them. So the instance decides when
all connected upstreams have caught up: messages that are still missing are noted in the journal,
which keeps the note until a recovery point holds it. A note does not apply to messages that arrive
later after all, and the decision does not wait for an upstream that is away.

Only an upstream whose link carries everything can tell that a removed message is missing here. One
that carries a part has forgotten which of the removed messages were on its topics.
"""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import Kind, Run
from raylay.services.replication.effects import EventReport

RANGES_SHOWN_MAX = 8
PIECES_MAX = 250_000
"""Number of pieces that are remembered of what upstreams lack, until the decision: some 90 MB (see
gap_limit.py)."""


class UnavailableMessages:
    """Decides which messages are unavailable, from what the upstreams lack.

    Invariant: `ranges` holds nothing that is known here.
    Owner: the instance's machine. Lifecycle: as long as the machine.

    Args:
        ranges: messages known to be unavailable, except those whose notes are read again.
        known: everything that is held here; the machine's own set, which grows.
    """

    __slots__ = ("_known", "_lacking", "_pieces", "_told", "_unwritten", "ranges")

    def __init__(self, ranges: PublisherRanges, known: PublisherRanges) -> None:
        self.ranges = ranges
        self.ranges.difference_update(known)
        self._known = known
        self._lacking = PublisherRanges()
        self._pieces = 0
        """Upper bound of the number of pieces of `_lacking`."""
        self._told: dict[int, int] = {}
        """Largest number of messages that an upstream named as missing, by its incarnation."""
        self._unwritten: tuple[int, int] | None = None
        """First and last transaction id of the notes that no recovery point on disk covers; None:
        there are none."""

    @property
    def removable_before(self) -> int | None:
        """Returns the transaction id from which the journal must be kept, because only its notes
        tell what is unavailable; None: a recovery point tells it."""
        return self._unwritten[0] if self._unwritten is not None else None

    def written(self, committed_txid: int) -> bool:
        """Notes that a recovery point, complete up to this transaction id, is on disk. Returns
        whether journal may be removed that was kept until now."""
        if self._unwritten is None or self._unwritten[1] > committed_txid:
            return False
        self._unwritten = None
        return True

    @property
    def is_judging(self) -> bool:
        return bool(self._lacking.sets)

    def reduce(self, lacks: PublisherRanges) -> None:
        """Removes from the messages that an upstream names those that are known here, or are
        already known to be unavailable. Changes only the argument."""
        lacks.difference_update(self._known)
        lacks.difference_update(self.ranges)

    def upstream_lacks(
        self, name: str, incarnation: int, lacks: PublisherRanges, whole: bool
    ) -> EventReport | None:
        """Takes messages that an upstream lacks, after `reduce`. `whole`: everything that the
        upstream had was routed here."""
        pieces = sum(each.pieces for each in lacks.sets.values())
        if whole and self._pieces + pieces <= PIECES_MAX:
            self._pieces += pieces
            self._lacking.update(lacks)
        elif lacks.count > self._told.get(incarnation, 0):
            self._told[incarnation] = lacks.count
            return EventReport("messages_maybe_unavailable", {"peer": name, "at_most": lacks.count})
        return None

    def judged(self) -> list[Run]:
        """Returns the notes to journal, without transaction ids, because all connected upstreams
        have caught up."""
        lacking, self._lacking = self._lacking, PublisherRanges()
        self._pieces = 0
        lacking.difference_update(self._known)
        lacking.difference_update(self.ranges)
        return [encode_unavailable(*item) for item in lacking.sets.items() if item[1]]

    def not_noted(self, run: Run) -> None:
        """Returns the messages of a note to those to be decided on, because the note could not be
        written."""
        self._lacking.update(decode_unavailable(run))

    def noted(self, run: Run) -> list[EventReport]:
        """Notes that a note is on disk; returns the events to report."""
        first_txid = self._unwritten[0] if self._unwritten is not None else run.first_txid
        self._unwritten = first_txid, run.last_txid
        missing = decode_unavailable(run)
        missing.difference_update(self._known)
        self.ranges.update(missing)
        return [
            _report("messages_unavailable", publisher, list(found))
            for publisher, found in missing.sets.items()
            if found
        ]

    def came(self, publisher: int, ranges: list[Range]) -> EventReport | None:
        missing = self.ranges.get(publisher)
        if missing is None:
            return None
        found = [piece for a, b in ranges for piece in missing.within(a, b)]
        if not found:
            return None
        self.ranges.remove_ranges(publisher, found)
        return _report("messages_available_again", publisher, found)


def _report(event: str, publisher: int, ranges: list[Range]) -> EventReport:
    messages = sum(b - a + 1 for a, b in ranges)
    shown = ranges[:RANGES_SHOWN_MAX]
    return EventReport(event, {"publisher": publisher, "messages": messages, "ranges": shown})


def encode_unavailable(publisher: int, missing: SequenceSet) -> Run:
    first, last = missing.first(), missing.last()
    assert first is not None and last is not None
    payload = missing.to_bytes()
    return Run(publisher, first, last, 1, payload, flags=0, kind=int(Kind.UNAVAILABLE))


def decode_unavailable(run: Run) -> PublisherRanges:
    return PublisherRanges({run.publisher: SequenceSet.from_bytes(run.payload)})
