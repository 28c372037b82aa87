"""Messages between a queue's owner and its instance: values (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[int, int]
"""A message: its publisher and sequence."""
Consumer = tuple[int, str]
"""Number of a session, never used twice in a life of the instance, and id of its subscription."""


class ConsumerSubscription(NamedTuple):
    """A consumer of a queue.

    Attributes:
        client: its client's name.
        filter: which messages it wants, as written; empty: all.
        backlog_max: messages that it takes before it acknowledges one; 0: none now, but it keeps
            those that it has.
    """

    consumer: Consumer
    client: str
    filter: str
    backlog_max: int


class MessageLease(NamedTuple):
    """A message that is a consumer's for a while.

    Attributes:
        number: of the lease; never used twice by one owner of the queue.
        until_us: its end, by the instance's steady clock, in microseconds; 0: it has none.
    """

    key: Key
    consumer: Consumer
    number: int
    until_us: int


class TransferCandidate(NamedTuple):
    """A message that is asked for, and whose it is believed to be."""

    key: Key
    generation: int
    owner: str


class LeasedDelivery(NamedTuple):
    """A message on its way to a consumer.

    Attributes:
        txid: where it stands in this instance's journal.
        number: of the lease.
        until_us: its end, as of a `MessageLease`.
    """

    txid: int
    key: Key
    number: int
    until_us: int


class DeliverLeased(NamedTuple):
    """Decision that these are leased to a consumer, and to be sent.

    Attributes:
        folded_txid: what was committed up to here was heeded.
    """

    consumer: Consumer
    messages: Sequence[LeasedDelivery]
    folded_txid: int


class DeliverOnce(NamedTuple):
    """Decision that these are to be sent, and have left the queue: their removal is in the journal.
    At most once, and barriers."""

    consumer: Consumer
    messages: Sequence[LeasedDelivery]
    folded_txid: int


class QueueRecordDraft(NamedTuple):
    """A record to be journaled on the queue's topic.

    Attributes:
        tag: by which its owner knows it again; it stands in the body as well.
        command: of the record (services/messages/records.py).
    """

    tag: int
    command: int
    body: bytes


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """Messages of others are asked for.

    Attributes:
        count: how many of them.
        wanted: candidates, in order.
    """

    count: int
    wanted: Sequence[TransferCandidate]


class Expiration(NamedTuple):
    """A message left the queue without being done.

    Attributes:
        reason: one of `REASONS` (services/queues/records.py).
    """

    txid: int
    key: Key
    reason: str


Decision = DeliverLeased | DeliverOnce | QueueRecordDraft | TransferRequest | Expiration
