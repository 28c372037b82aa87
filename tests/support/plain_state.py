"""A state of a topic that changes nothing."""

from __future__ import annotations

from raylay.services.messages.records import Run
from raylay.services.messages.stateful import PreparedRun, WritePermission


class PlainState:
    """A state that prepares nothing: each run stays as it is."""

    def looks_for(self, run: Run, permission: object = None) -> tuple[()]:
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        return PreparedRun((run,))

    def staged(self, run: Run) -> None:
        pass

    def failed(self, committed_txid: int) -> None:
        pass

    def committed(self, last_txid: int) -> None:
        pass
