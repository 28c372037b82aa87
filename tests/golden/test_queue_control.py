"""Frames between an instance and the owners of its queues: their bytes, and hostile ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import RecordBuilder
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.queues.decisions import (
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Expiration,
    LeasedDelivery,
    MessageLease,
    QueueRecordDraft,
    TransferCandidate,
    TransferRequest,
)

ANN = (3, "s")
U64_MAX = (1 << 64) - 1
RECORDS = [RecordBuilder(7, "orders", "json").build(at, b"{}" * at, 0) for at in (1, 2, 3)]
LEASED = [
    LeasedDelivery(11, (7, 1), 91, 0),
    LeasedDelivery(12, (7, 2), 92, 1_700_000_000_000_000),
    LeasedDelivery(13, (U64_MAX, 3), U64_MAX, U64_MAX),
]


def read(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def joined(parts: tuple[Sequence[bytes], int]) -> bytes:
    data = b"".join(parts[0])
    assert len(data) == parts[1]
    return data


@pytest.mark.parametrize("kind", [DeliverLeased, DeliverOnce])
def test_a_delivery_comes_as_it_went_with_its_records_untouched(
    kind: type[DeliverLeased] | type[DeliverOnce],
) -> None:
    decision = kind(ANN, LEASED, 44)
    header, body = read(joined(control.deliver(decision, RECORDS)))
    found = control.read_deliver(header, body)
    assert found == (decision, b"".join(RECORDS), 0) and type(found.decision) is kind
    assert control.records_of(found, LEASED) == RECORDS
    assert control.records_of(found, [LEASED[0], LEASED[2]]) == [RECORDS[0], RECORDS[2]]
    header, body = read(joined(control.deliver(decision, RECORDS, decided_us=9)))
    assert control.read_deliver(header, body).decided_us == 9
    if kind is DeliverLeased:
        last = DeliverLeased(*decision[:3], is_last_try=True)
        header, body = read(joined(control.deliver(last, RECORDS)))
        assert control.read_deliver(header, body).decision == last


def test_the_bytes_of_a_delivery() -> None:
    data = joined(control.deliver(DeliverLeased(ANN, LEASED[:1], 44), [b"record"]))
    header = msgpack.packb(
        {"c": "deliver", "session": 3, "sub": "s", "tx": 44, "sent": False, "n": 1}
    )
    numbers = b"".join(each.to_bytes(8, "little") for each in (11, 7, 1, 91, 0))
    front = (2 + len(header) + 46).to_bytes(4, "little") + len(header).to_bytes(2, "little")
    assert data == front + header + numbers + b"record"


def test_what_an_owner_says_is_read_as_it_was_said() -> None:
    assert read(control.hello("json/work", 5, 6)).header == {
        "c": "hello", "queue": "json/work", "start": 5, "pid": 6
    }  # fmt: skip
    draft = QueueRecordDraft(U64_MAX, 4, b"body")
    assert control.read_draft(*read(control.draft(draft))) == draft
    request = TransferRequest(
        2, [TransferCandidate((7, 1), 0, ""), TransferCandidate((8, U64_MAX), 3, "b")]
    )
    header, body = read(control.request(request))
    assert control.read_request(header, body) == request and "from" not in header
    header, body = read(control.request(request, "c"))
    assert control.read_request(header, body) == request and header["from"] == "c"
    gone = [Expiration(4, (7, 1), "time_limit")]
    assert control.read_expired(read(control.expired(gone)).body) == gone
    assert control.whole(read(control.floor(9)).header, "tx") == 9
    assert read(control.counts(9, {"depth": 1})).header["counts"] == {"depth": 1}
    assert read(control.answer(1, b"x", count=1, more=True)) == (
        {"c": "answer", "id": 1, "n": 1, "more": True}, b"x"
    )  # fmt: skip
    assert read(control.answer(1, b"", count=0, error="no")).header["error"] == "no"


def test_what_an_instance_says_is_read_as_it_was_said() -> None:
    ann = ConsumerSubscription(ANN, "ann", "/x > 1", 5)
    leases, names = [MessageLease((7, 1), ANN, 91, 0)], {0xA: "a", U64_MAX: "b"}
    begin = control.OwnerBegin(9, 8, True, leases, [ann], names, -7, [(5, -1), (U64_MAX, 2)])
    assert control.read_begin(*read(control.begin(begin))) == begin
    assert control.read_sub(read(control.sub(ann)).header) == ann
    assert control.read_left(*read(control.left(ANN))) == (ANN, None, False)
    begun = {7: [(1, 2), (U64_MAX, U64_MAX)]}
    for is_cancel in (True, False):
        left = read(control.left(ANN, begun=begun, is_cancel=is_cancel))
        assert control.read_left(*left) == (ANN, begun, is_cancel)
    assert control.read_left(*read(control.left(ANN, begun={}))) == (ANN, {}, False)
    leases = [((7, 1), 91), ((U64_MAX, 2), U64_MAX)]
    for frame in (control.cancel(ANN, leases), control.bounce(ANN, leases)):
        header, body = read(frame)
        assert control.consumer_of(header) == ANN and control.read_leases(body) == leases
    header, body = read(control.failed([1, U64_MAX], 4))
    assert (header["tx"], control.read_tags(body)) == (4, [1, U64_MAX])
    assert control.read_names(read(control.names({0xA: "a"})).body) == {0xA: "a"}
    frame = read(control.proxied(True, {"b", "a"}))
    assert control.read_proxied(frame.header) == (True, frozenset(("a", "b")))
    assert control.read_clock(read(control.clock(8, -5)).header) == (8, -5)
    for asked in (
        control.QueueQuestion("keys", "/x"),
        control.QueueQuestion("sow", "", "/id", "/id DESC", top=0, skip=7),
    ):
        assert control.read_ask(read(control.ask(3, asked)).header) == (3, asked)
    assert [read(each).header["c"] for each in (control.told(1), control.SERVES, control.STOP)] == [
        "told", "serves", "stop"
    ]  # fmt: skip


def delivery(**changes: Any) -> dict[str, Any]:
    return {"c": "deliver", "session": 1, "sub": "s", "tx": 1, "n": 1} | changes


PACK = msgpack.packb


@pytest.mark.parametrize(
    "reading",
    [
        lambda: control.read_deliver(delivery(), b""),
        lambda: control.read_deliver(delivery(n=0), bytes(200)),
        lambda: control.read_deliver(delivery(n=3), bytes(200)),
        lambda: control.read_deliver(delivery(n=1 << 60), bytes(200)),
        lambda: control.read_deliver(delivery(n="1"), bytes(200)),
        lambda: control.read_deliver(delivery(session=-1), bytes(200)),
        lambda: control.read_deliver(delivery(sub=None), bytes(200)),
        lambda: control.read_deliver(delivery(tx=1.5), bytes(200)),
        lambda: control.records_of(control.read_deliver(delivery(), bytes(200)), []),
        lambda: control.records_of(control.read_deliver(delivery(), bytes(40) + b"\xff" * 160), []),
        lambda: control.read_clock({"c": "clock", "tx": 1, "offset": "1h"}),
        lambda: control.read_draft({"c": "draft", "tag": U64_MAX + 1, "cmd": 4}, b""),
        lambda: control.read_draft({"c": "draft", "tag": True, "cmd": 4}, b""),
        lambda: control.read_request({"c": "request", "n": 1}, b"\xc1"),
        lambda: control.read_request({"c": "request", "n": 1}, PACK({})),
        lambda: control.read_request({"c": "request", "n": 1}, PACK([[1, 2, 3]])),
        lambda: control.read_request({"c": "request", "n": 1}, PACK([[1, -2, 3, "b"]])),
        lambda: control.read_request({"c": "request", "n": 1}, PACK([[1, 2, 3, 4]])),
        lambda: control.read_expired(PACK(7)),
        lambda: control.read_expired(PACK([[1, 2, 3, None]])),
        lambda: control.read_begin({"c": "begin", "fence": 1, "tx": 1}, PACK([])),
        lambda: control.read_begin({"c": "begin", "fence": 1, "tx": 1}, PACK([[1], [], {}])),
        lambda: control.read_begin({"c": "begin", "fence": 1, "tx": 1}, PACK([[], [[1]], {}])),
        lambda: control.read_begin({"c": "begin", "fence": 1, "tx": 1}, PACK([[], [], {"a": 1}])),
        lambda: control.read_sub({"c": "sub", "session": 1, "sub": "s"}),
        lambda: control.read_leases(bytes(25)),
        lambda: control.read_tags(bytes(7)),
        lambda: control.read_names(PACK({"a": "b"})),
        lambda: control.read_proxied({"c": "proxied", "on": True}),
    ],
)
def test_what_is_no_such_frame_is_refused(reading: Callable[[], object]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        reading()
    assert caught.value.reason == "bad_frame"
