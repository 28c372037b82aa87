"""Runs as deliveries: the content of one frame, shared by all its subscribers.

A delivery is a stretch of records with consecutive transaction ids. Consecutive runs with the same
subscribers share a delivery, up to a limit of bytes; a run above the limit is cut between records,
so that a delivery's frame stays far below the limit of a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from raylay.services.messages.readable import UNREADABLE, told
from raylay.services.messages.records import RECORD_HEADER_BYTES, Flag, Kind, Run
from raylay.services.subscriptions.matching import LiveSubscription, SubscriptionTable

DELIVERY_BYTES_MAX = 1024 * 1024

_LENGTH = struct.Struct("<I")
_TRACED = int(Flag.TRACED)
_COMMANDS = int(Flag.COMMANDS)


@dataclass(slots=True)
class DeliveryContent:
    """The content of one delivery frame.

    Attributes:
        first_txid: local transaction id of the first record; 0 for a topic that is not journaled.
        receive_time_us: receive time of the first run in the delivery.
        bodies: the bytes of the records, in order.
        traced: whether a record in it carries a trace context.
    """

    first_txid: int
    receive_time_us: int
    count: int = 0
    size_bytes: int = 0
    traced: bool = False
    bodies: list[bytes] = field(default_factory=list)

    def add(self, run: Run) -> None:
        self.count += run.count
        self.size_bytes += len(run.payload)
        self.bodies.append(run.payload)
        if run.flags & _TRACED:
            self.traced = True

    def takes(self, run: Run) -> bool:
        """Returns whether the run may be added to this delivery."""
        return (
            run.first_txid == self.first_txid + self.count
            and self.size_bytes + len(run.payload) <= DELIVERY_BYTES_MAX
        )

    def joins(self, other: DeliveryContent) -> bool:
        """Returns whether `other` may be joined to this delivery."""
        return (
            other.first_txid == self.first_txid + self.count
            and self.size_bytes + other.size_bytes <= DELIVERY_BYTES_MAX
        )

    def join(self, other: DeliveryContent) -> None:
        """Adds everything of `other`, which follows this delivery."""
        self.count += other.count
        self.size_bytes += other.size_bytes
        self.traced = self.traced or other.traced
        self.bodies += other.bodies

    def takes_one(self, txid: int, size_bytes: int) -> bool:
        """Returns whether a record may be added to this delivery. `txid` is 0 for a topic that is
        not journaled."""
        follows = txid == self.first_txid + self.count if txid else not self.first_txid
        return follows and self.size_bytes + size_bytes <= DELIVERY_BYTES_MAX

    def add_one(self, record: bytes, traced: bool) -> None:
        self.count += 1
        self.size_bytes += len(record)
        self.bodies.append(record)
        self.traced = self.traced or traced


class DeliverySink(Protocol):
    """The receiver of a session's deliveries: the session's socket, or a buffer while the client is
    slow or the rows of a query go first. A session has one sink at a time."""

    def deliver(self, subscription: str, delivery: DeliveryContent) -> None:
        """Takes one delivery, in the order of the calls. Its bytes are shared and must not be
        changed."""

    def out_of_focus(self, subscription: str, reason: str, left: DeliveryContent) -> None:
        """Takes a notice of records that left the focus of a subscription (sow_subscriptions.py),
        in order with the deliveries."""


def deliveries_of(run: Run, journaled: bool = True) -> list[DeliveryContent]:
    """Returns the deliveries of a run: one, or several for a large run; none where no record of a
    large run can be read."""
    first_txid = run.first_txid if journaled else 0
    if len(run.payload) <= DELIVERY_BYTES_MAX or run.count == 1:
        made = DeliveryContent(first_txid, run.receive_time_us)
        made.add(run)
        return [made]
    found: list[DeliveryContent] = []
    payload = run.payload
    traced = bool(run.flags & Flag.TRACED)
    start = offset = count = 0
    txid = first_txid
    end = len(payload)
    told_of = 0
    while offset < end and told_of < run.count:
        length = _LENGTH.unpack_from(payload, offset)[0] if offset + 4 <= end else 0
        if length < RECORD_HEADER_BYTES or offset + length > end:
            break
        if count and offset + length - start > DELIVERY_BYTES_MAX:
            found.append(
                DeliveryContent(
                    txid,
                    run.receive_time_us,
                    count,
                    offset - start,
                    traced,
                    [payload[start:offset]],
                )
            )
            txid += count if journaled else 0
            start, count = offset, 0
        offset += length
        count += 1
        told_of += 1
    if offset < end or told_of < run.count:
        UNREADABLE.note(run, told(run, told_of, "the others have lengths that do not fit"))
    if count:
        last = payload[start:offset]
        found.append(DeliveryContent(txid, run.receive_time_us, count, len(last), traced, [last]))
    return found


Given = tuple[LiveSubscription, str, DeliveryContent]
"""Subscription, reason and content of a delivery; the reason of an out-of-focus notice, or empty
for messages."""


class OpenDeliveries:
    """The deliveries of subscriptions that records are still added to, one for each subscription.

    Owner: a table of subscriptions. Lifecycle: as long as the table; nothing is open between two
    commits.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[LiveSubscription, tuple[str, DeliveryContent]] = {}

    def add(
        self,
        subscription: LiveSubscription,
        reason: str,
        txid: int,
        received_us: int,
        record: bytes,
        traced: bool,
    ) -> Iterator[Given]:
        """Adds a record to the subscription's open delivery. Where it does not fit, yields that
        delivery and opens another.

        Args:
            reason: the reason of an out-of-focus notice; empty: it is a message.
        """
        open_ = self._open.get(subscription)
        if open_ is not None:
            if open_[0] == reason and open_[1].takes_one(txid, len(record)):
                open_[1].add_one(record, traced)
                return
            yield subscription, *open_
        delivery = DeliveryContent(txid, received_us)
        delivery.add_one(record, traced)
        self._open[subscription] = reason, delivery

    def close(self) -> Iterator[Given]:
        """Yields the open deliveries."""
        for subscription, (reason, delivery) in self._open.items():
            yield subscription, reason, delivery
        self._open.clear()


def live_deliveries(
    runs: Iterable[Run], table: SubscriptionTable
) -> Iterator[tuple[tuple[LiveSubscription, ...], DeliveryContent]]:
    """Yields the deliveries of committed runs, in order, each with the ordinary subscriptions that
    get it."""
    subscribers: tuple[LiveSubscription, ...] = ()
    open_delivery: DeliveryContent | None = None
    for run in runs:
        if run.kind != Kind.RECORDS or run.flags & _COMMANDS:
            continue
        found = table.matching(run.topic, run.message_type)
        if open_delivery is not None and (found is not subscribers or not open_delivery.takes(run)):
            yield subscribers, open_delivery
            open_delivery = None
        if not found:
            continue
        subscribers = found
        if open_delivery is not None:
            open_delivery.add(run)
            continue
        made = deliveries_of(run)
        open_delivery = made.pop() if made else None
        for delivery in made:
            yield subscribers, delivery
    if open_delivery is not None:
        yield subscribers, open_delivery


def prefix_of(run: Run, count: int) -> Run:
    """Returns the first `count` records of a run, 0 < count <= run.count."""
    if count >= run.count:
        return run
    offset = 0
    for _ in range(count):
        last_at = offset
        offset += _LENGTH.unpack_from(run.payload, offset)[0]
    # The sequence is at byte 36 of a record (services/messages/records.py).
    last_sequence = struct.unpack_from("<Q", run.payload, last_at + 36)[0]
    flags = run.flags & ~Flag.CONTIGUOUS
    if last_sequence - run.first_sequence + 1 == count:
        flags |= Flag.CONTIGUOUS
    return Run(
        run.publisher,
        run.first_sequence,
        last_sequence,
        count,
        run.payload[:offset],
        run.topic,
        run.message_type,
        run.path,
        run.group,
        flags,
        run.kind,
        run.first_txid,
        run.receive_time_us,
    )
