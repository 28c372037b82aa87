"""The protocol between an instance and the owners of its queues, over the instance's Unix socket:
frames.

    owner to instance
      hello    queue, start (number of this start), pid: the first frame
      deliver  session, sub, tx: folded_txid, sent: whether it has left the queue already, n, tr:
               when, in microseconds since 1970, where one of the messages is sampled, last: whether
               one of them is removed if this delivery is in vain, too; body: n
               leases (txid, publisher, sequence, number, until: u64 each), then the n records, as
               they are in the journal
      draft    tag, cmd; body: of the record
      letters  why: one of `UNDONE`, n: how often each message was delivered in vain; body: records
               of messages, as they are in the journal, whose dead letters are to be journaled
               before the next draft
      request  n; body: what is wanted, msgpack: [publisher, sequence, generation, owner] each
      floor    tx: what is below is not needed any more
      expired  body: msgpack: [txid, publisher, sequence, reason] each
      ended    why: the reason, `acknowledged` or one of `UNDONE`; body: records of messages that
               have left the queue, as they are in the journal; or publisher and sequence of one
               that the journal has no more. Sent only where `begin` asks for it
      counts   tx: folded_txid, counts: for status
      answer   id, more: whether another one comes, n, error, reason; with the last one matches:
               messages that there are; body: whatever was asked for
      event    event, details

    instance to owner
      begin    fence, tx: committed up to here, serves, steady: what the queues' steady clock is
               ahead of the monotonic one of the host, in microseconds, expired, acked: whether
               `ended` is to be sent of messages that leave the queue undone or acknowledged; body:
               msgpack: leases, consumers, names of incarnations, and tx and offset of each `clock`
               so far
      told     tx: committed up to here
      sub      session, sub, client, filter, max
      left     session, sub, said: whether the consumer unsubscribed and said which messages its
               handler was given, cancel: whether it gives those back; body, with said: msgpack:
               publisher to first, last, first, last, …: those messages
      done     body: msgpack: publisher to first, last, first, last, …: an acknowledgment of these
               is on its way to the disk
      cancel, bounce  session, sub; body: leases (publisher, sequence, number: u64 each)
      failed   tx: what is behind it did not come to the disk; body: tags, u64 each
      request  from, n; body as above
      names    body: msgpack: incarnation to the name of the instance that bears it
      serves   from now on it may deliver
      proxied  on, reachable: names of instances
      ask      id, what (`sow`, `keys` or `status`), filter; of `sow` as well select, order_by, top,
               skip
      clock    tx, offset: the wall clock of the instance was set: receive times behind this
               transaction are so many microseconds ahead of its steady clock
      stop     go away

Both ends are of one version: they are started from one installation, so nothing is negotiated.
What either reads is checked all the same: a process may be hit by anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import Header, encode_frame, encode_front
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Expiration,
    Key,
    LeasedDelivery,
    MessageLease,
    QueueRecordDraft,
    TransferCandidate,
    TransferRequest,
)
from raylay.services.queues.records import Keys, read_keys

_LEASED = struct.Struct("<QQQQQ")
_GIVEN_BACK = struct.Struct("<QQQ")
_TAG = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
RECORD_BYTES_MIN = 60
U64_MAX = (1 << 64) - 1
MESSAGES_MAX = 65_536
"""Number of messages in one delivery, at most."""
LEASED_BYTES = _LEASED.size


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def _unpack(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds of errors on bad bytes
        raise _wrong(f"a body that is no msgpack ({type(error).__name__})") from None


def _wrong(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a queue's owner and its instance: {what}", "bad_frame")


def whole(header: Header, name: str) -> int:
    """Returns a whole number of a header, from 0 to 2**64 - 1.

    Raises:
        RemoteProtocolError: it is none.
    """
    value = header.get(name)
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise _wrong(f"`{name}` of {header['c']} is no whole number")
    return value


def text(header: Header, name: str) -> str:
    """Returns a text of a header.

    Raises:
        RemoteProtocolError: it is none.
    """
    value = header.get(name)
    if type(value) is not str:
        raise _wrong(f"`{name}` of {header['c']} is no text")
    return value


def deliveries_of(header: Header) -> list[int]:
    """Returns how often each message of a `letters` frame was delivered in vain.

    Raises:
        RemoteProtocolError: it says that of none.
    """
    value = header.get("n")
    if type(value) is not list or not all(type(each) is int and each >= 0 for each in value):
        raise _wrong(f"`n` of {header['c']} is no array of whole numbers")
    return value


def consumer_of(header: Header) -> Consumer:
    """Returns the consumer to which a frame refers.

    Raises:
        RemoteProtocolError: it is about none.
    """
    return whole(header, "session"), text(header, "sub")


def _about(command: str, consumer: Consumer) -> Header:
    return {"c": command, "session": consumer[0], "sub": consumer[1]}


# -- from the owner to the instance
# ------------------------------------------------------------------


def hello(queue: str, start_number: int, pid: int) -> bytes:
    """Encodes an owner's first frame, which names its queue, as `QueueDefinition.stored_as`."""
    return encode_frame({"c": "hello", "queue": queue, "start": start_number, "pid": pid})


class QueueDelivery(NamedTuple):
    """A delivery, decoded.

    Attributes:
        records: the records of all messages, back to back.
        decided_us: time of the decision in microseconds since 1970, where one of the messages is
            sampled; otherwise 0.
    """

    decision: DeliverLeased | DeliverOnce
    records: bytes
    decided_us: int = 0


def deliver(
    decision: DeliverLeased | DeliverOnce, records: Sequence[bytes], decided_us: int = 0
) -> tuple[Sequence[bytes], int]:
    """Encodes a delivery with the records of its messages. Returns the pieces, and their length in
    bytes."""
    consumer, messages, folded_txid = decision[:3]
    pack = _LEASED.pack
    leases = b"".join(
        [pack(txid, *key, number, until_us) for txid, key, number, until_us in messages]
    )
    header: Header = {
        "c": "deliver",
        "session": consumer[0],
        "sub": consumer[1],
        "tx": folded_txid,
        "sent": type(decision) is DeliverOnce,
        "n": len(messages),
    }
    if decision.is_last_try:
        header["last"] = True
    if decided_us:
        header["tr"] = decided_us
    size_bytes = len(leases) + sum(map(len, records))
    front = encode_front(header, size_bytes)
    return (front, leases, *records), len(front) + size_bytes


def read_deliver(header: Header, body: bytes) -> QueueDelivery:
    """Decodes a `deliver` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    count = whole(header, "n")
    records_at = count * LEASED_BYTES
    if not 1 <= count <= MESSAGES_MAX or records_at + count * RECORD_BYTES_MIN > len(body):
        raise _wrong(f"a delivery of {count} messages in {len(body)} bytes")
    messages = [
        LeasedDelivery(txid, (publisher, sequence), number, until_us)
        for txid, publisher, sequence, number, until_us in _LEASED.iter_unpack(body[:records_at])
    ]
    decision: DeliverLeased | DeliverOnce
    consumer, folded_txid = consumer_of(header), whole(header, "tx")
    if header.get("sent"):
        decision = DeliverOnce(consumer, messages, folded_txid)
    else:
        decision = DeliverLeased(consumer, messages, folded_txid, bool(header.get("last")))
    decided_us = whole(header, "tr") if "tr" in header else 0
    return QueueDelivery(decision, body[records_at:], decided_us)


def records_of(delivery: QueueDelivery, kept: Iterable[LeasedDelivery]) -> list[bytes]:
    """Returns the records of some of a delivery's messages, in order.

    Raises:
        RemoteProtocolError: the records do not fit together.
    """
    records, at = delivery.records, 0
    numbers = {(each.key, each.number) for each in kept}
    found: list[bytes] = []
    for message in delivery.decision.messages:
        if at + RECORD_BYTES_MIN > len(records):
            raise _wrong("a delivery whose records are cut short")
        end = at + _LENGTH.unpack_from(records, at)[0]
        if end > len(records) or end < at + RECORD_BYTES_MIN:
            raise _wrong("a delivery whose records do not fit together")
        if (message.key, message.number) in numbers:
            found.append(records[at:end])
        at = end
    return found


def draft(said: QueueRecordDraft) -> bytes:
    return encode_frame({"c": "draft", "tag": said.tag, "cmd": said.command}, said.body)


def read_draft(header: Header, body: bytes) -> QueueRecordDraft:
    """Decodes a `draft` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    return QueueRecordDraft(whole(header, "tag"), whole(header, "cmd"), body)


def letters(
    reason: str, records: Sequence[bytes], deliveries: Sequence[int]
) -> tuple[Sequence[bytes], int]:
    """Encodes messages that leave a queue undone, for this reason, and whose dead letters are to be
    journaled, with how often each was delivered in vain. Returns the pieces, and their length in
    bytes."""
    size_bytes = sum(map(len, records))
    front = encode_front({"c": "letters", "why": reason, "n": list(deliveries)}, size_bytes)
    return (front, *records), len(front) + size_bytes


def ended(reason: str, records: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Encodes messages that have left the queue for this reason. Returns the pieces, and their
    length in bytes."""
    size_bytes = sum(map(len, records))
    front = encode_front({"c": "ended", "why": reason}, size_bytes)
    return (front, *records), len(front) + size_bytes


def ended_unread(reason: str, publisher: int, sequence: int) -> bytes:
    """Encodes a message that has left the queue, and whose record the journal has no more."""
    return encode_frame({"c": "ended", "why": reason, "publisher": publisher, "sequence": sequence})


def came(records: Sequence[bytes]) -> tuple[Sequence[bytes], int]:
    """Encodes messages that have come to the queue. Returns the pieces, and their length in
    bytes."""
    size_bytes = sum(map(len, records))
    front = encode_front({"c": "came"}, size_bytes)
    return (front, *records), len(front) + size_bytes


def gone(keys: Keys) -> bytes:
    """Encodes messages that have left the queue for good."""
    flat = {publisher: [*chain.from_iterable(ranges)] for publisher, ranges in keys.items()}
    return encode_frame({"c": "gone"}, _pack(flat))


def read_gone(body: bytes) -> Keys:
    """Decodes a `gone` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    return read_keys(body)


def follow(number: int, committed_txid: int = 0) -> bytes:
    """Encodes that the owner is to tell of all messages from now on.

    Args:
        number: number of the request, at least 1; 0: the owner is to tell of none any more.
        committed_txid: transaction id up to which all messages are to be told before `all_came`.
    """
    return encode_frame({"c": "follow", "n": number, "tx": committed_txid})


def following(number: int) -> bytes:
    """Encodes that what comes next is the answer to a `follow` of this number."""
    return encode_frame({"c": "following", "n": number})


def all_came() -> bytes:
    """Encodes that the instance has been told of all messages that the queue had when its owner
    began."""
    return encode_frame({"c": "all_came"})


def request(said: TransferRequest, asker: str = "") -> bytes:
    """Encodes a request for messages that other instances own.

    Args:
        asker: name of the requesting instance; empty: this one.
    """
    wanted = [[*each.key, each.generation, each.owner] for each in said.wanted]
    header: Header = {"c": "request", "n": said.count}
    if asker:
        header["from"] = asker
    return encode_frame(header, _pack(wanted))


def read_request(header: Header, body: bytes) -> TransferRequest:
    """Decodes a `request` frame; the requesting instance is in the header.

    Raises:
        RemoteProtocolError: it is none.
    """
    said = _unpack(body)
    if type(said) is not list:
        raise _wrong("a request of no messages")
    return TransferRequest(whole(header, "n"), [_wanted(each) for each in said])


def _wanted(said: Any) -> TransferCandidate:
    if type(said) is not list or len(said) != 4 or type(said[3]) is not str:
        raise _wrong("a request with something else than messages")
    publisher, sequence, generation, owner = said
    return TransferCandidate((_u64(publisher), _u64(sequence)), _u64(generation), owner)


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise _wrong("a number that is none of 64 bits")
    return value


def floor(txid: int) -> bytes:
    """Encodes the transaction id below which the owner does not need the journal any more."""
    return encode_frame({"c": "floor", "tx": txid})


def expired(said: Sequence[Expiration]) -> bytes:
    """Encodes messages that left the queue without being done."""
    return encode_frame({"c": "expired"}, _pack([[e.txid, *e.key, e.reason] for e in said]))


def read_expired(body: bytes) -> list[Expiration]:
    """Decodes an `expired` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    said = _unpack(body)
    if type(said) is not list:
        raise _wrong("expired messages that are no list")
    found = []
    for each in said:
        if type(each) is not list or len(each) != 4 or type(each[3]) is not str:
            raise _wrong("expired messages that are none")
        found.append(Expiration(_u64(each[0]), (_u64(each[1]), _u64(each[2])), each[3]))
    return found


def counts(folded_txid: int, found: Mapping[str, Any]) -> bytes:
    """Encodes the counts of the owner, for the queue's status."""
    return encode_frame({"c": "counts", "tx": folded_txid, "counts": dict(found)})


def answer(
    number: int,
    body: bytes,
    *,
    count: int,
    more: bool = False,
    matches: int = 0,
    error: str = "",
    reason: str = "",
) -> bytes:
    """Encodes a part of the answer to `ask`.

    Args:
        count: number of messages in this part.
        matches: with the last part: number of messages that match.
        error: why there is no answer; empty: there is one.
        reason: reason of the error.
    """
    header: Header = {"c": "answer", "id": number, "n": count, "more": more}
    if matches:
        header["matches"] = matches
    if error:
        header |= {"error": error, "reason": reason}
    return encode_frame(header, body)


class QueueAnswer(NamedTuple):
    """A part of an owner's answer.

    Attributes:
        more: whether another part follows.
        error: why there is no answer; empty: there is one.
        reason: reason of the error.
        matches: with the last part: number of messages that match.
    """

    body: bytes
    more: bool
    error: str
    reason: str = ""
    matches: int = 0


def read_answer(header: Header, body: bytes) -> tuple[int, QueueAnswer]:
    """Decodes an `answer` frame."""
    matches = whole(header, "matches") if "matches" in header else 0
    reason = str(header.get("reason") or "internal_error")
    more, error = bool(header.get("more")), str(header.get("error") or "")
    return whole(header, "id"), QueueAnswer(body, more, error, reason, matches)


# -- from the instance to the owner
# ------------------------------------------------------------------


class OwnerBegin(NamedTuple):
    """The start state of an owner: see `OwnerHandshake` (services/queues/frontend.py).

    Attributes:
        committed_txid: transaction id up to which the owner may read the journal.
        serves: whether the owner may deliver.
        names: names of the instances, by incarnation.
        steady_base_us: microseconds by which the queues' steady clock is ahead of the host's
            monotonic one.
        clock_steps: transaction id and offset of each step of the wall clock, as of
            `ClockSteps.all`.
        tells_expired, tells_acknowledged: whether the instance wants the records of messages that
            leave the queue undone, and of those that leave it acknowledged.
        tells_messages: whether the instance wants to know of each message that comes to the queue
            and of each that leaves it, because views are over the queue.
    """

    fence_txid: int
    committed_txid: int
    serves: bool
    leases: list[MessageLease]
    consumers: list[ConsumerSubscription]
    names: dict[int, str]
    steady_base_us: int = 0
    clock_steps: Sequence[tuple[int, int]] = ()
    tells_expired: bool = False
    tells_acknowledged: bool = False
    tells_messages: bool = False


def begin(said: OwnerBegin) -> bytes:
    leases = [[*lease.key, *lease.consumer, lease.number, lease.until_us] for lease in said.leases]
    consumers = [
        [*consumer.consumer, consumer.client, consumer.filter, consumer.backlog_max]
        for consumer in said.consumers
    ]
    header: Header = {"c": "begin", "fence": said.fence_txid, "tx": said.committed_txid}
    header |= {"serves": said.serves, "steady": said.steady_base_us}
    header |= {"expired": said.tells_expired, "acked": said.tells_acknowledged}
    header["messages"] = said.tells_messages
    return encode_frame(
        header, _pack([leases, consumers, dict(said.names), list(said.clock_steps)])
    )


def read_begin(header: Header, body: bytes) -> OwnerBegin:
    """Decodes a `begin` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    said = _unpack(body)
    try:
        leases, consumers, names, steps = said
        return OwnerBegin(
            whole(header, "fence"),
            whole(header, "tx"),
            bool(header.get("serves")),
            [
                MessageLease((publisher, sequence), (session, name), number, until_us)
                for publisher, sequence, session, name, number, until_us in leases
            ],
            [
                ConsumerSubscription((session, name), client, filter_, backlog_max)
                for session, name, client, filter_, backlog_max in consumers
            ],
            _names(names),
            _signed(header, "steady"),
            [(_u64(after_txid), int(offset_us)) for after_txid, offset_us in steps],
            bool(header.get("expired")),
            bool(header.get("acked")),
            bool(header.get("messages")),
        )
    except (TypeError, ValueError):
        raise _wrong("a beginning that is none") from None


def told(last_txid: int) -> bytes:
    """Encodes that everything up to this transaction id is committed."""
    return encode_frame({"c": "told", "tx": last_txid})


def sub(each: ConsumerSubscription) -> bytes:
    header = _about("sub", each.consumer)
    header |= {"client": each.client, "filter": each.filter, "max": each.backlog_max}
    return encode_frame(header)


def read_sub(header: Header) -> ConsumerSubscription:
    """Decodes a `sub` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    return ConsumerSubscription(
        consumer_of(header), text(header, "client"), text(header, "filter"), whole(header, "max")
    )


def left(consumer: Consumer, *, begun: Keys | None = None, is_cancel: bool = False) -> bytes:
    """Encodes that a consumer has left.

    Args:
        begun: the messages that its handler was given and did not settle; None: the consumer did
            not say so.
        is_cancel: whether the consumer gives those back because its handler failed.
    """
    header = _about("left", consumer)
    if begun is None:
        return encode_frame(header)
    header["said"] = True
    if is_cancel:
        header["cancel"] = True
    flat = {publisher: [*chain.from_iterable(ranges)] for publisher, ranges in begun.items()}
    return encode_frame(header, _pack(flat))


def read_left(header: Header, body: bytes) -> tuple[Consumer, Keys | None, bool]:
    """Decodes a `left` frame. Returns the consumer, the messages that its handler was given, and
    whether it gives these back.

    Raises:
        RemoteProtocolError: it is none.
    """
    begun = read_keys(body) if header.get("said") else None
    return consumer_of(header), begun, bool(header.get("cancel"))


def cancel(consumer: Consumer, leases: Iterable[tuple[Key, int]], *, unseen: bool = False) -> bytes:
    """Encodes that a consumer gives messages back.

    Args:
        unseen: whether no handler was given the messages.
    """
    header = _about("cancel", consumer)
    if unseen:
        header["unseen"] = True
    return encode_frame(header, _given_back(leases))


def bounce(consumer: Consumer, leases: Iterable[tuple[Key, int]]) -> bytes:
    """Encodes leases whose delivery came too late, because the consumer had left."""
    return encode_frame(_about("bounce", consumer), _given_back(leases))


def _given_back(leases: Iterable[tuple[Key, int]]) -> bytes:
    return b"".join([_GIVEN_BACK.pack(*key, number) for key, number in leases])


def done(keys: Keys) -> bytes:
    """Encodes that an acknowledgment of these messages is on its way to the disk."""
    flat = {publisher: [*chain.from_iterable(ranges)] for publisher, ranges in keys.items()}
    return encode_frame({"c": "done"}, _pack(flat))


def read_done(body: bytes) -> Keys:
    """Decodes a `done` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    return read_keys(body)


def read_leases(body: bytes) -> list[tuple[Key, int]]:
    """Decodes the keys and numbers of a `cancel` or `bounce` frame.

    Raises:
        RemoteProtocolError: they are none.
    """
    if len(body) % _GIVEN_BACK.size:
        raise _wrong("leases that are cut short")
    return [
        ((publisher, sequence), number)
        for publisher, sequence, number in _GIVEN_BACK.iter_unpack(body)
    ]


def failed(tags: Iterable[int], committed_txid: int) -> bytes:
    """Encodes an append failure: nothing behind this transaction id came to the disk, including
    these drafts."""
    header: Header = {"c": "failed", "tx": committed_txid}
    return encode_frame(header, b"".join(map(_TAG.pack, tags)))


def read_tags(body: bytes) -> list[int]:
    """Decodes the tags of a `failed` frame.

    Raises:
        RemoteProtocolError: they are none.
    """
    if len(body) % _TAG.size:
        raise _wrong("tags that are cut short")
    return [tag for (tag,) in _TAG.iter_unpack(body)]


def names(found: Mapping[int, str]) -> bytes:
    return encode_frame({"c": "names"}, _pack(dict(found)))


def read_names(body: bytes) -> dict[int, str]:
    """Decodes a `names` frame.

    Raises:
        RemoteProtocolError: they are none.
    """
    return _names(_unpack(body))


def _names(said: Any) -> dict[int, str]:
    if type(said) is not dict or not all(type(name) is str for name in said.values()):
        raise _wrong("names that are none")
    return {_u64(incarnation): name for incarnation, name in said.items()}


SERVES = encode_frame({"c": "serves"})
STOP = encode_frame({"c": "stop"})


def clock(after_txid: int, offset_us: int) -> bytes:
    """Encodes a step of the instance's wall clock: see `ClockSteps`
    (services/queues/clock_steps.py)."""
    return encode_frame({"c": "clock", "tx": after_txid, "offset": offset_us})


def read_clock(header: Header) -> tuple[int, int]:
    """Decodes a `clock` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    return whole(header, "tx"), _signed(header, "offset")


def _signed(header: Header, name: str) -> int:
    value = header.get(name)
    if type(value) is not int:
        raise _wrong(f"a clock whose {name} is no number")
    return value


def proxied(on: bool, reachable: Iterable[str]) -> bytes:
    """Encodes whether the queue may take over messages of instances that cannot be reached.

    Args:
        reachable: names of the instances that can be reached.
    """
    return encode_frame({"c": "proxied", "on": on, "reachable": sorted(reachable)})


def read_proxied(header: Header) -> tuple[bool, frozenset[str]]:
    """Decodes a `proxied` frame.

    Raises:
        RemoteProtocolError: it is none.
    """
    reachable = header.get("reachable")
    if type(reachable) is not list or not all(type(name) is str for name in reachable):
        raise _wrong("`reachable` of proxied is no list of names")
    return bool(header.get("on")), frozenset(reachable)


class QueueQuestion(NamedTuple):
    """A query of a queue.

    Attributes:
        what: `sow`: the records of the available messages; `keys`: the keys of all messages;
            `status`: the status of the queue, as JSON.
        filter: content filter; empty: all messages.
        select, order_by, top, skip: options of `sow`, as of a query
            (services/sow/query/queue_rows.py).
    """

    what: str
    filter: str = ""
    select: str = ""
    order_by: str = ""
    top: int | None = None
    skip: int = 0


_TEXTS = ("filter", "select", "order_by")


def ask(number: int, question: QueueQuestion) -> bytes:
    given = {name: value for name, value in question._asdict().items() if value not in ("", None)}
    return encode_frame({"c": "ask", "id": number, **given})


def read_ask(header: Header) -> tuple[int, QueueQuestion]:
    """Decodes an `ask` frame."""
    top = whole(header, "top") if "top" in header else None
    wanted, select, order = (str(header.get(name) or "") for name in _TEXTS)
    skip = whole(header, "skip") if "skip" in header else 0
    question = QueueQuestion(text(header, "what"), wanted, select, order, top, skip)
    return whole(header, "id"), question
