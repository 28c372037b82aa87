"""The effects of the step at hand: each part of the machine adds its own effects, and the machine
hands all of them to the shell."""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.replication.effects import Effect, EventReport


class EffectList:
    """Effects in the order in which they are to be performed.

    Owner: the machine; its parts only add. Lifecycle: as long as the machine; empty between steps.

    Attributes:
        emit: adds one effect. It is the list's own `append`, since each step has several calls.
        is_changing: whether a step has begun to change the machine, and has not ended. Set where
            the change begins, after the last check of the input.
        taken: number of times that effects were handed to the shell; see `Steps.performed`.
    """

    __slots__ = ("_effects", "emit", "is_changing", "taken")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self.emit: Callable[[Effect], None] = self._effects.append
        self.is_changing = False
        self.taken = 0

    def report(self, event: str, **details: object) -> None:
        """Adds an event for people."""
        self._effects.append(EventReport(event, details))

    def insert(self, at: int, effect: Effect) -> None:
        """Inserts an effect before the one at index `at`."""
        self._effects.insert(at, effect)

    def take(self) -> list[Effect]:
        self.is_changing = False
        effects = self._effects.copy()
        if effects:
            self.taken += 1
            self._effects.clear()
        return effects

    def forget(self) -> None:
        self._effects.clear()

    def __len__(self) -> int:
        return len(self._effects)
