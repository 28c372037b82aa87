"""Answers of an instance to a client of the native protocol, as frames (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgpack

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.protocol.frames import (
    FRAME_FRONT,
    PROTOCOL_VERSION,
    Header,
    encode_frame,
    encode_front,
    pack_header,
)

HAVE_IN_HEADER_BYTES_MAX = 32 * 1024
"""Bytes up to which range sets are in the header; larger ones are in the body, because a header
ends at 64 KiB."""
MISSING_PUBLISHERS_MAX = 100
"""Number of publishers for which a subscriber is told the missing messages one by one."""
OVERTAKEN = "overtaken"
"""Reason for which a bookmark subscription ends: retention removed the messages to be delivered
next. A client that subscribes again with its received messages is told which are missing."""
LOGON_ANSWER_BYTES_MAX = 60 * 1024

HEARTBEAT = encode_frame({"c": "heartbeat"})


def acknowledgment(
    kind: str,
    command_id: str = "",
    reason: str = "",
    text: str = "",
    body: bytes = b"",
    **extras: Any,
) -> bytes:
    """Encodes an ack of a command; with a `reason` the command failed."""
    header: Header = {"c": "ack", "a": kind}
    if command_id:
        header["cid"] = command_id
    header["status"] = "failure" if reason else "success"
    if reason:
        header["reason"] = reason
        header["text"] = text[:1024]
    header.update(extras)
    return encode_frame(header, body)


def logon_answer(
    command_id: str,
    *,
    instance: str,
    group: str,
    incarnation: int,
    publisher: int,
    durable: list[Range],
    highest: int,
    peers: list[dict[str, Any]],
    now_us: int,
    unused: Range | None = None,
    types: bytes = b"",
) -> bytes:
    """Encodes the answer to an accepted logon.

    Args:
        durable: the client's durable sequences. They are shortened where the header would be too
            long: the client then sends some messages again, which are acknowledged like all
            durable ones.
        unused: the sequences with which the client continues.
        types: the message types that the fabric defines (told_types.py).
    """
    extras: Header = {} if unused is None else {"unused": list(unused)}
    # A range takes at most 19 bytes.
    room = max(LOGON_ANSWER_BYTES_MAX - len(msgpack.packb([peers, command_id])) - 2_048, 0) // 19
    return acknowledgment(
        "processed",
        command_id,
        body=types,
        v=PROTOCOL_VERSION,
        instance=instance,
        group=group,
        incarnation=incarnation,
        publisher=publisher,
        durable=durable[: min(room, 2_000)],
        highest=highest,
        peers=peers,
        now=now_us,
        **extras,
    )


def persisted_ack(sequence: int, reason: str = "", text: str = "", unjournaled: int = 0) -> bytes:
    """Encodes that everything of the connection up to `sequence` is durable; with a reason: that
    `sequence` is refused. `unjournaled`: number of the newly covered messages that went to live
    subscribers only."""
    if reason:
        return acknowledgment("persisted", "", reason, text, s=sequence)
    header: Header = {"c": "ack", "a": "persisted", "s": sequence, "status": "success"}
    if unjournaled:
        header["unjournaled"] = unjournaled
    return encode_frame(header)


def safety_notice(peers: list[dict[str, Any]]) -> bytes:
    return encode_frame({"c": "safety", "peers": peers})


def ranges_ack(
    kind: str,
    subscription: str,
    have: PublisherRanges | None,
    command_id: str = "",
    missing: PublisherRanges | None = None,
) -> bytes:
    """Encodes an ack about a bookmark subscription, with ranges in the header, or, large ones, in
    the body.

    `missing`: messages that retention removed. They are told as a count, and, for the publishers
    that lack most, as a count, the first and the last sequence.
    """
    extras: dict[str, Any] = {"sub": subscription}
    if missing:
        counts = {publisher: sequences.count for publisher, sequences in missing.sets.items()}
        told = sorted(counts, key=lambda publisher: -counts[publisher])[:MISSING_PUBLISHERS_MAX]
        extras["missing"] = sum(counts.values())
        extras["missing_of"] = {
            publisher: [
                counts[publisher],
                missing.sets[publisher].first(),
                missing.sets[publisher].last(),
            ]
            for publisher in told
        }
    body = _with_have(extras, have)
    return acknowledgment(kind, command_id, body=body, **extras)


def _with_have(header: Header, have: PublisherRanges | None) -> bytes:
    """Puts ranges into a header. Returns the body, which has them where they are too large for the
    header."""
    if have is None:
        return b""
    wire = have.to_wire()
    if sum(map(len, wire.values())) + 16 * len(wire) > HAVE_IN_HEADER_BYTES_MAX:
        return bytes(msgpack.packb(wire))
    header["have"] = wire
    return b""


class DeliveryProtocol(Protocol):
    """The fields of a delivery that are written (services/subscriptions/delivery.py)."""

    first_txid: int
    receive_time_us: int
    count: int
    size_bytes: int
    traced: bool
    bodies: list[bytes]


def delivery_parts(subscription: str, delivery: DeliveryProtocol) -> tuple[Sequence[bytes], int]:
    """Encodes a delivery. Returns the pieces, and their length in bytes. The records are shared
    with other subscribers; only the front is made here."""
    header: Header = {
        "c": "p",
        "sub": subscription,
        "n": delivery.count,
        "ts": delivery.receive_time_us,
    }
    if delivery.first_txid:
        header["tx"] = delivery.first_txid
    if delivery.traced:
        header["tr"] = 1
    # Like `encode_front`, without the call: this runs for each subscriber.
    packed: bytes = pack_header(header)
    size_bytes = delivery.size_bytes
    front = FRAME_FRONT.pack(2 + len(packed) + size_bytes, len(packed)) + packed
    return (front, *delivery.bodies), len(front) + size_bytes


def queue_delivery_parts(
    subscription: str,
    count: int,
    now_us: int,
    lease_ms: int | None,
    records: Sequence[bytes],
    traced: bool = False,
    is_last_try: bool = False,
) -> tuple[Sequence[bytes], int]:
    """Encodes a delivery of a queue. Returns the pieces, and their length in bytes.

    Args:
        now_us: time of sending.
        lease_ms: length of the lease in milliseconds; None: until the client has left.
        records: the records of all messages, in one piece or several.
        traced: whether one of them carries a trace context.
        is_last_try: whether one of them leaves the queue if this delivery is in vain, too.
    """
    header: Header = {"c": "p", "sub": subscription, "n": count, "ts": now_us, "q": 1}
    if lease_ms is not None:
        header["lp"] = lease_ms
    if traced:
        header["tr"] = 1
    if is_last_try:
        header["last"] = True
    return _with_records(header, records, sum(map(len, records)))


def group_begin(subscription: str) -> bytes:
    return encode_frame({"c": "group_begin", "sub": subscription})


def sow_parts(subscription: str, rows: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Encodes some rows of a query, all as records. Returns the pieces, and their length in
    bytes."""
    header: Header = {"c": "sow", "sub": subscription, "n": len(rows)}
    return _with_records(header, rows, sum(map(len, rows)))


def group_end(
    subscription: str, sent: int, matches: int, have: PublisherRanges | None = None
) -> bytes:
    """Encodes that all rows of a query were sent.

    Args:
        sent: number of rows that were sent.
        matches: number of rows that match the query, including those above `top_n`.
        have: where a replay follows: the messages before it, whose state the rows are.
    """
    header: Header = {"c": "group_end", "sub": subscription, "n": sent, "matches": matches}
    body = _with_have(header, have)
    return encode_frame(header, body)


def oof_parts(
    subscription: str, reason: str, left: DeliveryProtocol
) -> tuple[Sequence[bytes], int]:
    """Encodes a notice of records that left the focus of a subscription. Returns the pieces, and
    their length in bytes.

    Args:
        reason: `deleted`, `expired`, `match` or `entitlement`.
    """
    header: Header = {"c": "oof", "sub": subscription, "n": left.count, "r": reason}
    return _with_records(header, left.bodies, left.size_bytes)


def _with_records(
    header: Header, records: Sequence[bytes], size_bytes: int
) -> tuple[Sequence[bytes], int]:
    front = encode_front(header, size_bytes)
    return (front, *records), len(front) + size_bytes
