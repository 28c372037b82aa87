"""What an instance and a pool's buffer tell each other is read as it was written, or refused."""

from __future__ import annotations

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.child import buffer_control as control
from raylay.services.protocol.frames import FrameReader


def test_what_one_writes_the_other_reads() -> None:
    written = [
        control.hello("client", 5, 77),
        control.put(1, 2, 3) + b"abc",
        control.take(1, 9),
        control.drop(1),
        control.stored({1: 2, 1 << 40: 7}),
        control.taken(1, 2, 2, is_empty=True) + b"xy",
        control.lost(1, "no space left"),
        control.STOP,
    ]
    frames = FrameReader().feed(b"".join(written))
    assert [frame.header["c"] for frame in frames] == [
        *("hello", "put", "take", "drop", "stored", "taken", "lost", "stop")
    ]
    assert frames[1].body == b"abc" and control.whole(frames[1].header, "n") == 2
    assert control.read_stored(frames[4].body) == [(1, 2), (1 << 40, 7)]
    assert frames[5] == ({"c": "taken", "k": 1, "n": 2, "empty": True}, b"xy")


@pytest.mark.parametrize("value", [-1, 1 << 64, "1", None, True])
def test_a_number_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="`k` of take is no whole number"):
        control.whole({"c": "take", "k": value}, "k")


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\x01", b"\x91\x92\xa1x\x01"])
def test_what_is_stored_has_to_be_numbers(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        control.read_stored(body)
