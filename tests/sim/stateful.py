"""A state as simple as one can be, which shows every mistake: the last message of each topic.

What a client publishes says in its body which message comes before it on its topic, as staged. So
the journals are chains, and a link that is wrong names the message that it was made of. Some it
refuses, whoever publishes them where: they are no value, and in no journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from raylay.services.core.feature import CommitBatch
from raylay.services.messages.records import Kind, Run, iterate_records
from raylay.services.messages.stateful import PreparedRun, RefusedRecords, WritePermission, left_of

BEHIND = b" behind "
NOTHING = "nothing"
REASON = "bad_message"
Key = TypeVar("Key")
Value = TypeVar("Value")


def refuses(body: bytes) -> bool:
    """Whether a message that a client published so is refused: by its number."""
    return body.partition(b" ")[0].endswith((b"7", b"u2"))


class Overlay(Generic[Key, Value]):
    """Values as staged, over those that are committed.

    Invariant: what is in it was put in ascending order of transaction ids; per key the last counts.
    Owner: a topic's state, on the instance's loop. Lifecycle: one life of the instance.
    """

    __slots__ = ("_order", "_values")

    def __init__(self) -> None:
        self._order: deque[tuple[int, Key]] = deque()
        self._values: dict[Key, deque[Value]] = {}

    def __len__(self) -> int:
        """How many values are not committed yet."""
        return len(self._order)

    def put(self, txid: int, key: Key, value: Value) -> None:
        """A value that is staged with this transaction id."""
        self._order.append((txid, key))
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = deque()
        values.append(value)

    def get(self, key: Key, committed: Value) -> Value:
        """The value as staged; the committed one where none is under way."""
        values = self._values.get(key)
        return values[-1] if values is not None else committed

    def committed(self, last_txid: int) -> list[tuple[Key, Value]]:
        """Takes out what is committed up to there: each key with its value, in order."""
        found: list[tuple[Key, Value]] = []
        order = self._order
        while order and order[0][0] <= last_txid:
            _, key = order.popleft()
            found.append((key, self._values[key].popleft()))
            self._tidy(key)
        return found

    def failed(self, committed_txid: int) -> None:
        """Drops all that was staged behind there."""
        order = self._order
        while order and order[-1][0] > committed_txid:
            _, key = order.pop()
            self._values[key].pop()
            self._tidy(key)

    def _tidy(self, key: Key) -> None:
        if not self._values[key]:
            del self._values[key]


class LastOfTopic:
    """The state of all topics that have one, in one life of an instance.

    Args:
        committed: the last message of each topic, as the journal has it when this life begins.
    """

    def __init__(self, committed: Mapping[bytes, str]) -> None:
        self._committed = dict(committed)
        self._staged: Overlay[bytes, str] = Overlay()

    def value(self, topic: bytes) -> str:
        """As it is staged."""
        return self._staged.get(topic, self._committed.get(topic, NOTHING))

    def looks_for(self, run: Run, permission: object = None) -> tuple[()]:
        """Nothing."""
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        """Says in each message what comes before it."""
        made, refused = [], []
        before = self.value(run.topic)
        for record in iterate_records(run.payload):
            if refuses(record.body):
                text = f"message {record.sequence} is none that a state takes"
                refused.append(RefusedRecords([(record.sequence, record.sequence)], REASON, text))
                continue
            made.append((record, record.body + BEHIND + before.encode()))
            before = record.bookmark
        return left_of(run, made, refused)

    def staged(self, run: Run) -> None:
        """It is the last one now."""
        self._staged.put(run.last_txid, run.topic, last_of(run))

    def failed(self, committed_txid: int) -> None:
        """It never came to be."""
        self._staged.failed(committed_txid)

    def fold(self, batch: CommitBatch) -> None:
        """These are committed."""
        fold(self._committed, batch.runs)
        self._staged.committed(batch.last_txid)


def fold(last: dict[bytes, str], runs: Iterable[Run]) -> None:
    """Brings what is last of each topic up to date."""
    for run in runs:
        if run.kind == Kind.RECORDS:
            last[run.topic] = last_of(run)


def last_of(run: Run) -> str:
    """The bookmark of a run's last record."""
    return f"{run.publisher}|{run.last_sequence}|"


def behind(run: Run) -> tuple[str, ...]:
    """Before which message each of a run's says that it comes; empty where it says nothing."""
    bodies = (record.body for record in iterate_records(run.payload))
    return tuple(body.partition(BEHIND)[2].decode() for body in bodies)
