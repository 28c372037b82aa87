"""The values that a queue's pieces hand to one another: messages, consumers and what they hold."""

from __future__ import annotations

from typing import Any, Final, Protocol

from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.queues.decisions import Key

PRIORITY_MAX: Final = (1 << 64) - 1

ABSENT: Final = 0
FREE: Final = 1
INACTIVE: Final = 2
HELD: Final = 3


def order_of(txid: int, priority: int) -> int:
    """Returns the place of a message with a priority: lowest first."""
    return (PRIORITY_MAX - priority) << 64 | txid


class QueueEntry:
    """A message of a queue, as far as picking needs to know it. The machine's entry is one.

    Its place is kept here, so that a message costs one object and no table of its own.

    Attributes:
        txid: its transaction id.
        publisher, sequence: its key.
        order: lowest first. The transaction id; with a priority, that above it: so the transaction
            id is the order of those that have the same.
        is_barrier: it goes to all, when all before it are gone.
        standing: where picking has it: `ABSENT`, `FREE`, `INACTIVE` (behind the target depth) or
            `HELD` (a barrier). Only picking writes it.
    """

    __slots__ = ("is_barrier", "order", "publisher", "sequence", "standing", "txid")

    def __init__(
        self, txid: int, key: Key, priority: int | None = None, is_barrier: bool = False
    ) -> None:
        self.txid = txid
        self.publisher, self.sequence = key
        # Where there are no priorities the order is the same object: it costs nothing.
        self.order = txid if priority is None else order_of(txid, priority)
        self.is_barrier = is_barrier
        self.standing = ABSENT

    @property
    def key(self) -> Key:
        return self.publisher, self.sequence

    @property
    def priority(self) -> int:
        """Priority from 0 to 2**64 - 1, which is delivered first. A queue without priorities has
        none."""
        return PRIORITY_MAX - (self.order >> 64)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.txid}>"


class BodyReader(Protocol):
    """Reads bodies of messages, which are not kept in memory when the messages are folded."""

    def tree(self, txid: int) -> dict[str, Any] | None:
        """Returns the parsed message; None: it cannot be parsed."""

    def around(self, txid: int) -> EvalContext:
        """Returns what filters can read besides a message's body. Called only if one does."""


class DispatchSettings(Protocol):
    """The part of a definition (definition.py) that dispatch reads. 0 is without a limit."""

    @property
    def fairness_model(self) -> str:
        """`fast`, `round-robin` or `proportional`."""

    @property
    def backlog_max(self) -> int:
        """Messages that all consumers here may hold at once."""

    @property
    def subscription_backlog_max(self) -> int:
        """Messages that one subscription may hold at once."""

    @property
    def target_depth(self) -> int:
        """Messages that are active at once."""
