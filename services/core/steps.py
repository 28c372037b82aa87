"""The order of a step: what the machine asked for is performed, and behind the acks come the folds.

The server and the simulator perform with it, each with a table of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.core.feature import Batch, Folds
from raylay.services.replication.effects import Committed, Effect


class Steps:
    """See the file's docstring.

    Invariant: what is folded was committed, each commit once, in the journal's order, behind the
    acks that it released.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        performers: what is done for each kind of effect; for `Committed`: who has to hear of it
            before the acks, as the links.
        flush: writes what was said to anybody.
    """

    __slots__ = ("_batches", "_flush", "_folds", "_performers", "_tell")

    def __init__(
        self,
        performers: Mapping[type, Callable[[Any], None]],
        folds: Folds,
        flush: Callable[[], None],
    ) -> None:
        self._tell = performers[Committed]
        self._performers: dict[type, Callable[[Any], None]] = {
            **performers,
            Committed: self._committed,
        }
        self._folds = folds
        self._flush = flush
        self._batches: list[Batch] = []

    def perform(self, effects: list[Effect]) -> None:
        """Performs a step's effects, in order, and folds what it committed."""
        performers = self._performers
        for effect in effects:
            performers[type(effect)](effect)
        if self._batches:
            self._fold()
        for feature in self._folds.following:
            feature.stepped()

    def _committed(self, effect: Committed) -> None:
        self._tell(effect)
        if self._folds.served:
            self._batches.append(Batch(effect.runs, effect.last_txid))

    def _fold(self) -> None:
        # Who waits for an ack does not wait for deliveries to others.
        self._flush()
        batches, self._batches = self._batches, []
        for batch in batches:
            self._folds.fold(batch)
