"""The choice of the next consumer among those with room (behaviour.md 3.2, FairnessModel).

- `proportional`: who holds the least of its backlog; of equal ones who was served longest ago.
- `round-robin`: who was served longest ago.
- `fast`: who has had room the longest; so one is filled after the other.

Consumers of one filter stand in one heap. An entry of it that no longer holds is passed over when
it comes to the top, so nobody looks for it; they are swept out when they are most of the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from raylay.services.queues.decisions import Consumer

FAIRNESS_MODELS = ("fast", "round-robin", "proportional")
SWEPT_FROM = 64
"""Entries of a heap that are kept in any case."""


class ConsumerTurn:
    """A consumer.

    Attributes:
        consumer: its identity.
        backlog: messages that it may hold at once.
        active: messages that it holds.
        turns: the heap of those with its filter.
        turn: when it was served last (`fast`: got room): lower is longer ago; no two are the same.
        place: its entry in the heap that holds; None: it has no room.
    """

    __slots__ = ("active", "backlog", "consumer", "place", "turn", "turns")

    def __init__(self, consumer: Consumer, backlog: int, turns: Turns) -> None:
        self.consumer = consumer
        self.backlog = backlog
        self.active = 0
        self.turns = turns
        self.turn = 0
        self.place: Place | None = None

    def __lt__(self, other: ConsumerTurn) -> bool:
        # Two entries of one consumer may be equal: heapq has to be told something.
        return False


Place = tuple[float, int, ConsumerTurn]


class Turns:
    """The consumers of one filter that have room.

    Attributes:
        open: how many they are.
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
        """Gives a consumer with room its place, instead of the one that it had."""
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
    """Keeps the places of all consumers of a queue by one model.

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
        """Notes a new consumer: it is served after the others."""
        self._turn += 1
        taker.turn = self._turn
        self.changed(taker)

    def changed(self, taker: ConsumerTurn) -> None:
        """Takes a change of what it may hold, or of where it stands: it keeps its turn."""
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

    def _enter(self, taker: ConsumerTurn) -> None:
        share = taker.active / taker.backlog if self._is_proportional else 0.0
        taker.turns.enter(taker, share)
