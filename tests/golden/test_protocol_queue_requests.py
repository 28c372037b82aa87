"""The frame with which instances ask one another for messages of a queue."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.child.queue_requests import (
    WANTED_MAX,
    Candidate,
    QueueRequest,
    queue_request,
    read_queue_request,
)
from raylay.services.protocol.frames import FrameReader

U64 = (1 << 64) - 1
ASKED = QueueRequest(
    U64, 7, 3, "eu-1", "work", "json", "", 2, [Candidate(9, 1, 0, "us-1"), Candidate(9, 2, 1, "a")]
)
HEADER = {
    "c": "queue",
    "from": U64,
    "life": 7,
    "n": 3,
    "name": "eu-1",
    "q": "work",
    "mt": "json",
    "domain": "",
    "want": 2,
}
BODY = msgpack.packb([[9, 1, 0, "us-1"], [9, 2, 1, "a"]])


def test_the_bytes() -> None:
    (frame,) = FrameReader().feed(queue_request(ASKED))
    assert (frame.header, frame.body) == (HEADER, BODY)
    assert frame.body.hex() == "92940901" + "00a4" + b"us-1".hex() + "94090201a161"
    assert read_queue_request(frame.header, frame.body) == ASKED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("from", -1),
        ("life", "7"),
        ("n", None),
        ("name", ""),
        ("name", "n" * 401),
        ("q", ""),
        ("q", "q" * 1025),
        ("q", None),
        ("mt", b"json"),
        ("domain", 5),
        ("want", 0),
        ("want", 1_000_001),
        ("want", True),
    ],
)
def test_a_bad_header_is_refused(key: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        read_queue_request(HEADER | {key: value}, BODY)
    assert refused.value.reason == "bad_command"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb({}),
        msgpack.packb([]),
        msgpack.packb([[9, 1, 0]]),
        msgpack.packb([[9, 1, -1, "a"]]),
        msgpack.packb([[9, 1.0, 0, "a"]]),
        msgpack.packb([[True, 1, 0, "a"]]),
        msgpack.packb([[9, 1, 0, ""]]),
        msgpack.packb([[9, 1, 0, b"a"]]),
        msgpack.packb([[9, n, 0, "a"] for n in range(WANTED_MAX + 1)]),
    ],
)
def test_a_bad_body_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a request for messages of a queue: ") as refused:
        read_queue_request(HEADER, body)
    assert refused.value.reason == "bad_command"


@given(st.binary(max_size=80))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        read_queue_request(HEADER, body)
    except RemoteProtocolError as error:
        assert error.reason == "bad_command"
