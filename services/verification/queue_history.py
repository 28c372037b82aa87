"""The history of a fabric's queues, as a part of its history (history.py): plain values."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class QueueRecorded(NamedTuple):
    """A record of a queue is on an instance's disk.

    Attributes:
        why: `ack`, `expire`, `transfer`, or why the messages were removed.
        keys: that leave the queue; of a transfer, none.
        moves: (publisher, sequence, generation, owner) of each message that is moved.
        is_claim: nobody waits for the transfer: it goes before what a client sends again.
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
    """An instance sends messages of a queue to a consumer.

    Attributes:
        until_us: end of the leases; 0: they have none.
        is_sent: at most once, so they have left the queue.
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
    """A session gives messages of a queue back; none are named: it is over, so all."""

    time_us: int
    instance: str
    queue: str
    session: int
    keys: tuple[tuple[int, int], ...] = ()


class QueueHolds(NamedTuple):
    """The contents of a queue by its owner's account, when all is at rest.

    Attributes:
        registers: (publisher, sequence, generation, owner) of each message.
        stuck: messages that nobody can be given.
        is_last: everything is to be consumed by now; else nobody consumes yet.
    """

    time_us: int
    instance: str
    queue: str
    registers: tuple[tuple[int, int, int, str], ...]
    stuck: tuple[tuple[int, int], ...]
    is_last: bool


QueueOperation = QueueRecorded | QueueDelivered | QueueReturned | QueueHolds


class SharedQueue(NamedTuple):
    """A queue, as far as laws are about it.

    Attributes:
        topic: whose messages it holds.
        instances: that have it.
        first_owner: of all its messages; empty: the instance that took the publish.
        is_at_most_once: a message is sent once at most, and has left the queue before.
        barriers: messages that each instance sends to all its consumers.
    """

    name: str
    topic: str
    instances: tuple[str, ...]
    first_owner: str = ""
    is_at_most_once: bool = False
    barriers: Collection[tuple[int, int]] = frozenset()
