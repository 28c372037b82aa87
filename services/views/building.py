"""The building of views and conflated topics from the present records of the topics under them,
when an instance begins: in turns, while later changes are folded at once.

A change that the scan meets again does no harm, and the scan never takes an older value than one
that was folded (`PresentScan`). The records of a topic are read once for all that is over it. A
topic that is computed is read when it is built itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from raylay.services.sow.query.record_scan import Entries, PresentScan
from raylay.services.sow.topic import SowTopic

TAKEN_AT_ONCE = 64
"""Number of records that are taken between two looks at the clock."""


class ComputedTopic(Protocol):
    """A view or a conflated topic."""

    topic: SowTopic

    @property
    def sources(self) -> Sequence[SowTopic]:
        """Returns the topics under it."""

    def load(self, number: int, entries: Entries) -> None:
        """Takes present records of a topic under it.

        Args:
            number: number of the topic.
            entries: (key, value) of the topic's store.
        """


class TopicBuild:
    """See the file's docstring.

    Invariant: a topic is built (`SowTopic.is_built`) when all topics under it were read.
    Owner: the instance's loop. Lifecycle: from the beginning of an instance until all is built.

    Args:
        computed: what is to be built, each behind what it is over.
    """

    def __init__(self, computed: Sequence[ComputedTopic]) -> None:
        self._over: dict[SowTopic, list[tuple[ComputedTopic, int]]] = {}
        self._left: dict[ComputedTopic, int] = {}
        """Number of topics under each that are not read yet."""
        for each in computed:
            each.topic.is_built = False
            self._left[each] = len(each.sources)
            for number, source in enumerate(each.sources):
                self._over.setdefault(source, []).append((each, number))
        own = {each.topic for each in computed}
        first = [source for source in self._over if source not in own]
        self._topics = deque(
            [*first, *(each.topic for each in computed if each.topic in self._over)]
        )
        self._scan: PresentScan | None = None
        self._taken = 0
        """Number of records of the present topic that were taken."""

    @property
    def is_done(self) -> bool:
        """Returns whether all is built."""
        return not self._left

    @property
    def percent(self) -> int:
        """Returns how much of the topic that is being read was read, for the status."""
        count = self._topics[0].state.count if self._topics else 0
        return min(99, self._taken * 100 // count) if count else 0

    def take(self, is_over: Callable[[], bool]) -> list[ComputedTopic]:
        """Takes records until the time is over. Returns what has been built: it is to be given to
        its followers before more is taken.

        Raises:
            SowDamaged: an entry on disk is no record.
            StorageError: the store cannot be read.
        """
        while self._topics:
            topic = self._topics[0]
            if self._scan is None:
                self._scan, self._taken = topic.state.present(), 0
            entries = self._scan.take(TAKEN_AT_ONCE)
            self._taken += len(entries)
            for each, number in self._over[topic]:
                each.load(number, entries)
            if self._scan.done:
                self._scan = None
                self._topics.popleft()
                if built := self._read(topic):
                    return built
            if is_over():
                break
        return []

    def _read(self, topic: SowTopic) -> list[ComputedTopic]:
        """Notes that all records of a topic were read. Returns what is built now."""
        built = []
        for each, _ in self._over[topic]:
            self._left[each] -= 1
            if not self._left[each]:
                del self._left[each]
                each.topic.is_built = True
                built.append(each)
        return built
