"""Messages between a queue's owner and its instance: values (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Key = tuple[int, int]
"""The key of a message: its publisher and sequence."""
Consumer = tuple[int, str]
"""The identity of a consumer: the number of its session, which is never used twice in a life of the
instance, and the id of its subscription."""


class ConsumerSubscription(NamedTuple):
    """A consumer of a queue.

    Attributes:
        client: the name of the consumer's client.
        filter: the text of the content filter; empty: every message passes.
        backlog_max: the number of unacknowledged messages that the consumer takes. With 0 it takes
            none for now, and keeps those that it holds.
    """

    consumer: Consumer
    client: str
    filter: str
    backlog_max: int


class MessageLease(NamedTuple):
    """The lease of a message to a consumer.

    Attributes:
        number: the number of the lease, which one owner of the queue never uses twice.
        until_us: the end of the lease by the instance's steady clock, in microseconds; 0: the lease
            has no end.
    """

    key: Key
    consumer: Consumer
    number: int
    until_us: int


class TransferCandidate(NamedTuple):
    """A message that an instance requests, with its ownership as far as the requester knows."""

    key: Key
    generation: int
    owner: str


class LeasedDelivery(NamedTuple):
    """A message on its way to a consumer.

    Attributes:
        txid: the transaction id of the message in this instance's journal.
        number: the number of the lease.
        until_us: the end of the lease, as in `MessageLease`.
    """

    txid: int
    key: Key
    number: int
    until_us: int


class DeliverLeased(NamedTuple):
    """The decision to lease messages to a consumer and to send them.

    Attributes:
        folded_txid: the transaction id up to which the owner had folded the journal when it
            decided.
        is_last_try: whether one of the messages is removed if this delivery is in vain, too. The
            consumer then sends each acknowledgment before it handles the next message.
    """

    consumer: Consumer
    messages: Sequence[LeasedDelivery]
    folded_txid: int
    is_last_try: bool = False


class DeliverOnce(NamedTuple):
    """The decision to send messages that have left the queue: their removal is in the journal. This
    is how an at-most-once queue delivers, and how every queue sends barriers."""

    consumer: Consumer
    messages: Sequence[LeasedDelivery]
    folded_txid: int

    @property
    def is_last_try(self) -> bool:
        """Returns False: the messages have left the queue already."""
        return False


class QueueRecordDraft(NamedTuple):
    """A record to be journaled on the queue's topic.

    Attributes:
        tag: the number by which the owner recognizes its draft. The body contains it as well.
        command: the command of the record (services/messages/records.py).
    """

    tag: int
    command: int
    body: bytes


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """A request for messages that another instance owns.

    Attributes:
        count: the number of messages requested.
        wanted: the messages to choose from, in order of preference.
    """

    count: int
    wanted: Sequence[TransferCandidate]


class Expiration(NamedTuple):
    """The report that a message left the queue without being done, or that it was acknowledged.

    Attributes:
        reason: one of `REASONS` (services/queues/records.py), or `ACKNOWLEDGED`.
    """

    txid: int
    key: Key
    reason: str


Decision = DeliverLeased | DeliverOnce | QueueRecordDraft | TransferRequest | Expiration
