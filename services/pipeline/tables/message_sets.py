"""Sets of messages beside arrays of records' headers: the records to give, and what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.pipeline.journals import JournalStretch


class MessageSelection:
    """The messages that one stretch has to give.

    Args:
        packed: the sequences, packed, of each publisher that has any.
    """

    def __init__(self, packed: Sequence[tuple[int, bytes]]) -> None:
        self._sets = {publisher: SequenceSet.from_bytes(each) for publisher, each in packed}
        self._edges: dict[int, tuple[Any, Any]] = {}

    @classmethod
    def of(cls, stretch: JournalStretch) -> MessageSelection | None:
        """Returns the selection of a stretch; None: it gives all its messages."""
        return None if stretch.messages is None else cls(stretch.messages)

    def meets(self, publisher: int, first: int, last: int) -> bool:
        """Returns whether any of these sequences is selected."""
        found = self._sets.get(publisher)
        return found is not None and found.touches(first, last)

    def marked(self, headers: Any) -> Any:
        """Marks the selected records.

        Args:
            headers: an array of the records' headers, with the fields `publisher` and `sequence`.
        """
        keep = np.zeros(len(headers), bool)
        publishers, sequences = headers["publisher"], headers["sequence"]
        for publisher in np.unique(publishers).tolist():
            if publisher not in self._sets:
                continue
            of_publisher = np.flatnonzero(publishers == publisher)
            firsts, lasts = self._edges_of(publisher)
            wanted = sequences[of_publisher]
            at = np.searchsorted(firsts, wanted, "right") - 1
            keep[of_publisher] = (at >= 0) & (lasts[at] >= wanted)
        return keep

    def _edges_of(self, publisher: int) -> tuple[Any, Any]:
        if publisher not in self._edges:
            edges = np.array(self._sets[publisher].ranges(), np.uint64).reshape(-1, 2)
            self._edges[publisher] = (edges[:, 0].copy(), edges[:, 1].copy())
        return self._edges[publisher]


def add_messages(held: PublisherRanges, headers: Any) -> None:
    """Adds the messages of records to a set.

    Args:
        headers: an array of at least one record's header, as for `MessageSelection.marked`.
    """
    publishers, sequences = headers["publisher"], headers["sequence"]
    for publisher in np.unique(publishers).tolist():
        own = np.unique(sequences[publishers == publisher])
        cuts = np.flatnonzero(np.diff(own) != 1)
        firsts = own[np.concatenate([[0], cuts + 1])].tolist()
        lasts = own[np.concatenate([cuts, [len(own) - 1]])].tolist()
        held.add_ranges(publisher, zip(firsts, lasts, strict=True))
