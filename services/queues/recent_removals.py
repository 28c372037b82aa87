"""Messages that have left a queue since its owner last reported how far it has folded. A decision
that the owner made before it knew of a removal is returned to it (rule 10 of queues)."""

from __future__ import annotations

from collections.abc import Sequence

from raylay.services.messages.ranges import CHUNK, PublisherRanges
from raylay.services.queues.decisions import Key, LeasedDelivery
from raylay.services.queues.records import Keys

REMOVED_MAX = 16_384
"""The number of ranges that are remembered while the owner is behind. A wide range counts once for
each 4,096 sequences."""


class RecentRemovals:
    """See the file's docstring.

    The removals are in two parts by age, so that memory is bounded by how far the owner is behind,
    and old ones are dropped without a search. A removal may stay after the owner knows of it, which
    harms nothing: the owner does not deliver the message. Of too many removals only the transaction
    id is kept, and everything decided before the owner has folded that is returned.
    """

    __slots__ = (
        "_all_txid",
        "_old",
        "_old_count",
        "_old_txid",
        "_young",
        "_young_count",
        "_young_txid",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._old = PublisherRanges()
        self._young = PublisherRanges()
        self._old_txid = self._young_txid = self._all_txid = 0
        self._old_count = self._young_count = 0

    def __bool__(self) -> bool:
        return bool(self._old_txid or self._young_txid or self._all_txid)

    def add(self, keys: Keys, txid: int) -> None:
        """Adds messages that have left the queue by this transaction."""
        self._young_count += sum(
            1 + (last - first) // CHUNK for ranges in keys.values() for first, last in ranges
        )
        if self._old_count + self._young_count > REMOVED_MAX:
            self.clear()
            self._all_txid = txid
            return
        for publisher, ranges in keys.items():
            self._young.add_ranges(publisher, ranges)
        self._young_txid = txid

    def is_behind(self, folded_txid: int) -> bool:
        """Returns whether an owner that has folded this far may have decided about any message that
        has left the queue."""
        return folded_txid < self._all_txid

    def forget(self, folded_txid: int) -> None:
        """Forgets removals that the owner knows, since it has folded up to this transaction id."""
        if folded_txid < self._all_txid:
            return
        self._all_txid = 0
        if folded_txid >= self._old_txid:
            self._old, self._old_txid = self._young, self._young_txid
            self._young, self._young_txid = PublisherRanges(), 0
            self._old_count, self._young_count = self._young_count, 0
            if folded_txid >= self._old_txid:
                self.clear()

    def touches(self, messages: Sequence[LeasedDelivery]) -> bool:
        """Returns whether a removal is remembered of one of these messages, or of one between
        them."""
        if not self or not messages:
            return False
        keys = [each.key for each in messages]
        (publisher, first), (other, last) = min(keys), max(keys)
        if publisher != other:
            return True
        return any(
            found is not None and found.touches(first, last)
            for found in (self._young.sets.get(publisher), self._old.sets.get(publisher))
        )

    def __contains__(self, key: Key) -> bool:
        publisher, sequence = key
        for part in (self._young, self._old):
            found = part.sets.get(publisher)
            if found is not None and sequence in found:
                return True
        return False


NOTHING = RecentRemovals()
