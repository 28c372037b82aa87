"""The values that the parts of a queue share: messages, and the interfaces by which the dispatcher
reads them."""

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
    """Returns the order of a message with a priority. The lowest order is delivered first."""
    return (PRIORITY_MAX - priority) << 64 | txid


class QueueEntry:
    """A message of a queue, with the fields that the dispatcher needs. `QueuedMessage` adds those
    of the machine.

    Its place is kept here, so that a message costs one object and no table of its own.

    Attributes:
        txid: the transaction id of the message.
        publisher, sequence: the key of the message.
        order: the position among the queue's messages, lowest first: the transaction id, preceded
            by the inverted priority in the higher bits if the queue has priorities.
        is_barrier: whether the message is a barrier.
        standing: the place of the message in the dispatcher, which alone changes it: `ABSENT`,
            `FREE`, `INACTIVE` (beyond the target depth) or `HELD` (a barrier).
    """

    __slots__ = ("is_barrier", "order", "publisher", "sequence", "standing", "txid")

    def __init__(
        self, txid: int, key: Key, priority: int | None = None, is_barrier: bool = False
    ) -> None:
        self.txid = txid
        self.publisher, self.sequence = key
        # Without priorities the order is the same object as the transaction id, and takes no
        # memory.
        self.order = txid if priority is None else order_of(txid, priority)
        self.is_barrier = is_barrier
        self.standing = ABSENT

    @property
    def key(self) -> Key:
        return self.publisher, self.sequence

    @property
    def priority(self) -> int:
        """The priority, from 0 to 2**64 - 1; the highest is delivered first. Meaningless in a queue
        without priorities."""
        return PRIORITY_MAX - (self.order >> 64)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.txid}>"


class BodyReader(Protocol):
    """The reader of message bodies, which are not kept in memory when messages are folded."""

    def tree(self, txid: int) -> dict[str, Any] | None:
        """Returns the parsed message; None: it cannot be parsed."""

    def around(self, txid: int) -> EvalContext:
        """Returns the context that filters can read besides a message's body. Called only if a
        filter reads it."""


class DispatchSettings(Protocol):
    """The settings of a queue definition (definition.py) that the dispatcher reads. 0 means no
    limit."""

    @property
    def fairness_model(self) -> str:
        """The fairness model: `fast`, `round-robin` or `proportional`."""

    @property
    def backlog_max(self) -> int:
        """The number of messages that all consumers here together may hold at once."""

    @property
    def subscription_backlog_max(self) -> int:
        """The number of messages that one subscription may hold at once."""

    @property
    def target_depth(self) -> int:
        """The number of messages that are considered for delivery at once."""
