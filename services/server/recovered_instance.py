"""An instance that has recovered: its opened data, and the machine built from them.

`OpenedData` is made by opening a data directory, `RecoveredInstance` by recovering from it. Each is
complete when it is made, and so is every part of the server that needs one: it is made afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from raylay.services.core.compose import folding
from raylay.services.core.effect_loop import EffectLoop, EffectTable
from raylay.services.core.fold_backlog import FoldBacklog
from raylay.services.replication.effects import Effect
from raylay.services.replication.instance import Identity, InstanceMachine
from raylay.services.replication.link.content import FilterLanguage
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.telemetry.tracing import Tracing
from raylay.storage.lmdb_journal import LmdbJournal

FOLD_PAUSE_S = 0.0005
"""Pause, in seconds, between two turns that fold while a commit is on its way to the disk."""


@dataclass(frozen=True, slots=True)
class OpenedData:
    """The opened stores of a data directory, and the identity that the instance has with them.

    Attributes:
        journal: the journal. A bootstrap has finished: the journal is the one that is recovered.
        state: the state store.
        identity: name, group and incarnation of the instance in this life.
        tracing: the exporter of traces.
    """

    journal: LmdbJournal
    state: StateThread
    identity: Identity
    tracing: Tracing


class RecoveredInstance:
    """See the file's docstring. Its values are plain attributes, so that reading them costs no call
    on the path of a message.

    Owner: the instance's event loop. Lifecycle: one life of the instance, from its recovery on.

    Args:
        data: the opened data.
        machine: the machine, recovered from the journal.
        filters: language of the content filters of destinations; None: no destination has a filter.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        data: OpenedData,
        machine: InstanceMachine,
        filters: FilterLanguage | None,
    ) -> None:
        self.journal = data.journal
        self.state = data.state
        self.identity = data.identity
        self.tracing = data.tracing
        self.machine = machine
        self.filters = filters
        self.folds = folding(unfolded=FoldBacklog())
        """The features, which fold what was committed."""
        self.effects = EffectTable()
        """Handlers of the machine's effects. Parts perform effects, and effects call parts: the
        table exists before them, and is filled when all parts exist."""
        self.steps = EffectLoop(
            self.effects, self.folds, runtime.outbox.flush, self._in_another_turn, time.perf_counter
        )
        """Loop that performs the machine's effects."""
        self.perform: Callable[[list[Effect]], None] = self.steps.perform
        """Performs the machine's effects, in order."""
        self._runtime = runtime
        runtime.at_fault(self.steps.end)

    def _in_another_turn(self, work: Callable[[], None]) -> None:
        loop = self._runtime.loop
        if self.machine.intake.staged:
            # The writer thread needs the interpreter, too.
            loop.call_later(FOLD_PAUSE_S, work)
        else:
            loop.call_soon(work)

    @property
    def is_half_done(self) -> bool:
        """Returns whether a fault came in the middle of a step: the machine had begun to change, or
        its effects were not all performed or folded."""
        machine, steps = self.machine, self.steps
        return machine.is_changing or machine.steps_taken != steps.performed or steps.is_folding

    def contain(self, error: Exception, peer: str, end: Callable[[str, str], None]) -> None:
        """Handles an unforeseen fault in the handler of a frame; see `InstanceRuntime.contain`."""
        self._runtime.contain(error, peer, end, is_half_done=self.is_half_done)


__all__ = ["OpenedData", "RecoveredInstance"]
