"""The choice of the next consumer among those with room (behaviour.md 3.2, FairnessModel).

- `proportional`: the consumer that has used the least part of its backlog; of several, the one
  that was served longest ago.
- `round-robin`: the consumer that was served longest ago.
- `fast`: the consumer that has had room the longest, so that one is filled after another.

By each model a late consumer, one that lets leases end, comes after all others: what it holds in
its hands is not in use any more for the queue, and it would be served first for that, with the very
messages that it did not handle. Of several late ones, the one that was served, or was late, longest
ago comes first.

The consumers of one filter are in one heap. An entry that is no longer valid is skipped when it
comes to the top, so no change has to find it. Invalid entries are swept out when they make up most
of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from raylay.services.queues.decisions import Consumer

FAIRNESS_MODELS = ("fast", "round-robin", "proportional")
LATE_SHARE = 1.0
"""The place of late consumers in a heap. The others have less than that of their backlog in use."""
SWEPT_FROM = 64
"""The number of entries below which a heap is never swept."""


class ConsumerTurn:
    """A consumer and its place in the order of turns.

    Attributes:
        consumer: the identity of the consumer.
        backlog: the number of messages that the consumer may hold at once.
        active: the number of messages that the consumer holds.
        is_late: whether the consumer comes after all that are not late.
        turns: the heap of the consumers with the same filter.
        turn: the number of the consumer's last turn: when it was last served, or, with `fast`, when
            it got room. Lower is longer ago; no two consumers have the same.
        place: the consumer's valid entry in the heap; None: the consumer has no room.
    """

    __slots__ = ("active", "backlog", "consumer", "is_late", "place", "turn", "turns")

    def __init__(self, consumer: Consumer, backlog: int, turns: Turns) -> None:
        self.consumer = consumer
        self.backlog = backlog
        self.active = 0
        self.is_late = False
        self.turns = turns
        self.turn = 0
        self.place: Place | None = None

    def __lt__(self, other: ConsumerTurn) -> bool:
        # Two entries of one consumer may be equal, and heapq must be able to compare them.
        return False


Place = tuple[float, int, ConsumerTurn]


class Turns:
    """The consumers of one filter that have room.

    Attributes:
        open: the number of these consumers.
    """

    __slots__ = ("_heap", "open")

    def __init__(self) -> None:
        self._heap: list[Place] = []
        self.open = 0

    def first(self) -> Place | None:
        heap = self._heap
        while heap:
            place = heap[0]
            if place[2].place is place:
                return place
            heappop(heap)
        return None

    def enter(self, taker: ConsumerTurn, share: float) -> None:
        """Enters a consumer that has room. A former entry of the consumer becomes invalid."""
        if taker.place is None:
            self.open += 1
        taker.place = place = (share, taker.turn, taker)
        heap = self._heap
        heappush(heap, place)
        if len(heap) > SWEPT_FROM and len(heap) > 4 * self.open:
            self._heap = [each for each in heap if each[2].place is each]
            heapify(self._heap)

    def leave(self, taker: ConsumerTurn) -> None:
        if taker.place is not None:
            taker.place = None
            self.open -= 1


class Fairness:
    """Orders all consumers of a queue by one fairness model.

    Args:
        model: one of `FAIRNESS_MODELS`.
    """

    __slots__ = ("_is_fast", "_is_proportional", "_turn")

    def __init__(self, model: str) -> None:
        assert model in FAIRNESS_MODELS, model
        self._is_fast = model == "fast"
        self._is_proportional = model == "proportional"
        self._turn = 0

    def entered(self, taker: ConsumerTurn) -> None:
        """Enters a new consumer, which is served after all others."""
        self._turn += 1
        taker.turn = self._turn
        self.changed(taker)

    def changed(self, taker: ConsumerTurn) -> None:
        """Takes note that the backlog, or the heap, of a consumer has changed. The consumer keeps
        its turn."""
        if taker.active < taker.backlog:
            self._enter(taker)
        else:
            taker.turns.leave(taker)

    def served(self, taker: ConsumerTurn, messages: int = 1) -> None:
        if not self._is_fast:
            self._turn += messages
            taker.turn = self._turn
        if taker.active >= taker.backlog:
            taker.turns.leave(taker)
        elif not self._is_fast:
            self._enter(taker)

    def freed(self, taker: ConsumerTurn) -> None:
        if taker.active >= taker.backlog:
            return
        if taker.place is None:
            if self._is_fast:
                self._turn += 1
                taker.turn = self._turn
            self._enter(taker)
        elif self._is_proportional:
            self._enter(taker)

    def lapsed(self, taker: ConsumerTurn) -> None:
        """Puts a consumer that let leases end behind all others."""
        self._turn += 1
        taker.turn = self._turn
        taker.is_late = True
        self.changed(taker)

    def recovered(self, taker: ConsumerTurn) -> None:
        """Puts a late consumer among the others again, with its turn."""
        taker.is_late = False
        self.changed(taker)

    def _enter(self, taker: ConsumerTurn) -> None:
        share = taker.active / taker.backlog if self._is_proportional else 0.0
        if taker.is_late:
            share = LATE_SHARE
        taker.turns.enter(taker, share)
