"""The incarnation of a data directory (design.md 2, Incarnations; 4, Resync).

An incarnation is made with its directory. A copy of the directory is another one: it may be older
than what its instance told others, or run beside it. The copy must neither refuse messages that the
original published as its own, nor publish other content under the same identities. So a copy begins
anew, like an instance whose disk was lost, but with the messages that it holds; its peers send the
rest.

    copied       the state's file is another one than at the last start
    cut short    the journal ends before the last transaction that the state names
    put back     in place, by a snapshot of the disk for example: only peers can tell
        (replication/instance/: `upstream_shows`, `epoch_refused`)
"""

from __future__ import annotations

import os
from pathlib import Path

import msgpack

from raylay.services.replication import recovery
from raylay.services.server.data.state_thread import StateThread

INCARNATION_KEY = "incarnation"
GENERATION_KEY = "generation"
RESTORED_KEY = "restored"
FORMER_KEY = "former"
FILE_KEY = "file"
READY_KEY = "ready"
FORMER_MAX = 64
"""Number of former incarnations that a directory remembers: each is another copy that was put in
its place."""


class DataDirectory:
    """The entries of a data directory's state store about the directory itself.

    Owner: the instance, which holds the directory's lock. Every method reads or writes the disk.

    Args:
        file: the path of the state store, whose copy is another file.
    """

    def __init__(self, state: StateThread, file: Path) -> None:
        self._state = state
        self._file = file

    @property
    def incarnation(self) -> int:
        """The directory's incarnation; 0: none was made yet."""
        return self._state.get_number(INCARNATION_KEY)

    @property
    def former(self) -> list[int]:
        """The earlier incarnations of the directory, and of the directory that it is a copy of."""
        found = self._state.get(FORMER_KEY)
        return list(msgpack.unpackb(found)) if found is not None else []

    @property
    def is_restored(self) -> bool:
        """Returns whether the directory is a copy that has not caught up yet."""
        return self._state.get(RESTORED_KEY) is not None

    def why_another(self, last_txid: int) -> str:
        """Returns why the directory is not the one that its incarnation was made with; empty: it
        is.

        Args:
            last_txid: the last transaction id of its journal.
        """
        if self._state.get(FILE_KEY) != self._identity():
            return "is a copy of a data directory"
        committed_txid = recovery.committed_txid_of(self.hints())
        if committed_txid > last_txid:
            return (
                f"has a journal that ends at transaction {last_txid}, before {committed_txid}, "
                "which was on disk"
            )
        return ""

    def hints(self) -> dict[str, bytes]:
        """Returns the entries of the recovery point, from which a restart may begin."""
        return dict(self._state.items(recovery.PREFIX))

    def begin(self, more: dict[str, bytes | None]) -> int:
        """Makes the directory's first incarnation, and writes `more` with it."""
        made = _random()
        self._state.put_now(
            {INCARNATION_KEY: made.to_bytes(8, "big"), FILE_KEY: self._identity(), **more}
        )
        return made

    def begin_anew(self, last_txid: int | None = None) -> None:
        """Makes another incarnation, which admits no client before it has caught up.

        Args:
            last_txid: the last transaction id of the journal, where that may be lower than the
                state says.
        """
        former = [*self.former, self.incarnation][-FORMER_MAX:]
        values: dict[str, bytes | None] = {
            INCARNATION_KEY: _random().to_bytes(8, "big"),
            FILE_KEY: self._identity(),
            FORMER_KEY: msgpack.packb(former),
            RESTORED_KEY: b"1",
            READY_KEY: None,
        }
        if last_txid is not None:
            values |= recovery.cut_to(last_txid, self.hints())
        self._state.put_now(values)

    def _identity(self) -> bytes:
        # The device's number is left out, because it may change when the host restarts.
        return os.stat(self._file).st_ino.to_bytes(8, "big")


def _random() -> int:
    return int.from_bytes(os.urandom(8), "big") or 1
