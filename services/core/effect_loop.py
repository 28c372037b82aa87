"""The order of a step: the machine's effects are performed, and the folds follow after the acks.

The server and the simulator both use it, each with functions of its own for the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.core.feature import CommitBatch, FeatureRegistry
from raylay.services.replication.effects import Effect, RunsCommitted

TURN_S = 0.003
"""Seconds of one turn of the loop for long folds; a slice that has begun is completed."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the records that may wait to be folded. Above that they are folded at once, to limit
memory."""


class EffectTable:
    """The handlers of the machine's effects, by kind.

    The parts of an instance perform effects, and performing an effect calls parts: a ring. This
    table breaks it. It is made before all parts, empty, and each kind is bound once, by the part
    that handles it, before the first effect is performed.

    Attributes:
        handlers: the handler of each kind of effect but `RunsCommitted`.
        committed: the handler of `RunsCommitted`. It reports a commit to the parts that must know
            of it before the acks are sent, such as the links.
        folded: called after each turn in which waiting commits were folded.
    """

    __slots__ = ("committed", "folded", "handlers")

    def __init__(self) -> None:
        self.handlers: dict[type, Callable[[Any], None]] = {}
        self.committed: Callable[[RunsCommitted], None] = _unbound
        self.folded: Callable[[], None] = _nothing

    def bind(
        self,
        handlers: Mapping[type, Callable[[Any], None]],
        folded: Callable[[], None] | None = None,
    ) -> None:
        """Binds the handlers of some kinds of effects, and the listener for turns that fold.

        Raises:
            ValueError: a kind has a handler already.
        """
        for kind, handler in handlers.items():
            if kind is RunsCommitted:
                is_bound, self.committed = self.committed is not _unbound, handler
            else:
                is_bound, self.handlers[kind] = kind in self.handlers, handler
            if is_bound:
                raise ValueError(f"effect {kind.__name__} has two handlers: bind it once")
        if folded is not None:
            if self.folded is not _nothing:
                raise ValueError("turns that fold are told to two parts: bind it once")
            self.folded = folded


def _unbound(effect: RunsCommitted) -> None:
    raise LookupError(
        f"transaction {effect.last_txid} was committed and nobody handles RunsCommitted: bind a "
        "handler of it to the instance's EffectTable"
    )


def _nothing() -> None:
    pass


class EffectLoop:
    """Performs the effects of each step, and folds what it committed.

    Invariant: what is folded was committed, each commit once, in the journal's order, behind the
    acks that it released.
    Owner: the instance's loop. Lifecycle: one life of the instance.

    Attributes:
        performed: number of times that effects were performed completely. If the machine has handed
            out more, an exception interrupted one.
        is_folding: whether a fold is running, or an exception ended one.

    Args:
        table: handlers for each kind of effect.
        flush: writes all collected data.
        later: calls a function in another turn of the loop, after others; None: each commit is
            folded in its step.
        clock: clock in seconds.
    """

    __slots__ = (
        "_batches",
        "_clock",
        "_flush",
        "_folds",
        "_handlers",
        "_is_due",
        "_is_over",
        "_later",
        "_table",
        "is_folding",
        "performed",
    )

    def __init__(
        self,
        table: EffectTable,
        folds: FeatureRegistry,
        flush: Callable[[], None],
        later: Callable[[Callable[[], None]], None] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._table = table
        self._handlers = table.handlers
        self._handlers[RunsCommitted] = self._committed
        self._folds = folds
        self._flush = flush
        self._later = later
        self._clock = clock
        self._batches: list[CommitBatch] = []
        self._is_due = False
        """Whether a further turn is scheduled that folds."""
        self._is_over = False
        self.performed = 0
        self.is_folding = False

    def perform(self, effects: list[Effect]) -> None:
        """Performs a step's effects in order, and folds the runs that it committed."""
        if self._is_over:
            return
        handlers = self._handlers
        for effect in effects:
            handlers[type(effect)](effect)
        if self._batches or self._folds.following:
            self.catch_up()
        if effects:
            self.performed += 1

    def end(self) -> None:
        """Ends the loop: nothing is performed or folded any more."""
        self._is_over = True

    def perform_ahead(self, effects: list[Effect]) -> None:
        """Performs the effects of a commit that the disk is still writing. Data that leaves the
        process is held; parts that may only be folded after the disk has it are folded by
        `catch_up`, which follows."""
        handlers = self._handlers
        for effect in effects:
            handlers[type(effect)](effect)
        if self._batches and self._folds.may_be_ahead:
            self._fold()
        if effects:
            self.performed += 1

    def catch_up(self) -> None:
        """Folds everything that is not folded yet. To be called when the commit is on disk and the
        held data is written."""
        if self._is_over:
            return
        within, self.is_folding = self.is_folding, True
        if self._batches:
            self._fold()
        for feature in self._folds.following:
            feature.stepped()
        self.is_folding = within

    def _committed(self, effect: RunsCommitted) -> None:
        self._table.committed(effect)
        if self._folds.served:
            self._batches.append(CommitBatch(effect.runs, effect.last_txid))

    def _fold(self) -> None:
        # Callers that wait for an ack do not wait for deliveries to others.
        self._flush()
        batches, self._batches = self._batches, []
        unfolded = self._folds.unfolded
        if unfolded is None or self._later is None:
            for batch in batches:
                self._folds.fold(batch)
            return
        for batch in batches:
            if unfolded or unfolded.is_long(batch):
                unfolded.add(batch)
            else:
                self._folds.fold(batch)
        if unfolded and not self._is_due:
            self._fold_on()

    def _fold_on(self) -> None:
        """Folds for the length of a turn, and the rest in further turns."""
        unfolded, later = self._folds.unfolded, self._later
        assert unfolded is not None and later is not None
        until_s = self._clock() + TURN_S
        while unfolded:
            self._folds.fold(unfolded.take())
            if self._clock() >= until_s and unfolded.waiting_bytes <= WAITING_BYTES_MAX:
                break
        self._is_due = bool(unfolded)
        if unfolded:
            later(self._turn)

    def _turn(self) -> None:
        if self._is_over:
            return
        self._is_due = False
        self._fold_on()
        self._table.folded()
