"""The part of a history (history.py) that is about queues, as plain values."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class QueueRecorded(NamedTuple):
    """A record of a queue was written to an instance's disk.

    Attributes:
        why: `ack`, `expire`, `transfer`, or the reason of the removal.
        keys: the messages that leave the queue; none for a transfer.
        moves: (publisher, sequence, generation, owner) of each message that is moved.
        is_claim: whether no consumer waits for the transfer, because it precedes an acknowledgment
            that a client sends again.
    """

    time_us: int
    instance: str
    incarnation: int
    queue: str
    why: str
    keys: tuple[tuple[int, int], ...] = ()
    moves: tuple[tuple[int, int, int, str], ...] = ()
    is_claim: bool = False


class QueueDelivered(NamedTuple):
    """An instance sent messages of a queue to a consumer.

    Attributes:
        until_us: the end of the leases; 0: there are none.
        is_sent: whether the queue is at most once, so that the messages have left it.
    """

    time_us: int
    instance: str
    queue: str
    client: str
    session: int
    keys: tuple[tuple[int, int], ...]
    until_us: int
    is_sent: bool


class QueueReturned(NamedTuple):
    """A session gave messages of a queue back; none are named: the session ended, and gave back
    all."""

    time_us: int
    instance: str
    queue: str
    session: int
    keys: tuple[tuple[int, int], ...] = ()


class QueueHolds(NamedTuple):
    """The contents of a queue by its owner's report, when all is at rest.

    Attributes:
        registers: (publisher, sequence, generation, owner) of each message.
        stuck: messages that no consumer can be given.
        is_last: whether all messages should be consumed by now; otherwise there are no consumers
            yet.
    """

    time_us: int
    instance: str
    queue: str
    registers: tuple[tuple[int, int, int, str], ...]
    stuck: tuple[tuple[int, int], ...]
    is_last: bool


QueueOperation = QueueRecorded | QueueDelivered | QueueReturned | QueueHolds


class SharedQueue(NamedTuple):
    """A queue, as the laws see it.

    Attributes:
        topic: the topic whose messages it holds.
        instances: the instances that have it.
        first_owner: the first owner of all its messages; empty: the instance that took the publish.
        is_at_most_once: whether a message is sent once at most, and leaves the queue before it is
            sent.
        barriers: messages that each instance sends to all its consumers.
    """

    name: str
    topic: str
    instances: tuple[str, ...]
    first_owner: str = ""
    is_at_most_once: bool = False
    barriers: Collection[tuple[int, int]] = frozenset()
