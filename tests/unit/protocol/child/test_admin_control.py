"""services/protocol/child/admin_control.py: what an administrator's interface and its instance tell
one another."""

from __future__ import annotations

import msgpack
import pytest

from raylay.services.errors import (
    ConfigurationError,
    ControlRefused,
    DowngradeRefused,
    FabricError,
    RaylayError,
    RemoteProtocolError,
    StorageFull,
)
from raylay.services.protocol.child import admin_control as protocol
from raylay.services.protocol.frames import Frame, FrameReader


def frame(data: bytes) -> Frame:
    """Returns the only frame of the bytes."""
    (found,) = FrameReader().feed(data)
    return found


def test_a_question_and_its_answer() -> None:
    asked = frame(protocol.ask(7, "perform", {"call": "admit", "details": {"force": True}}))
    assert (asked.header["c"], asked.header["n"], asked.header["what"]) == ("ask", 7, "perform")
    assert protocol.read_map(asked.body) == {"call": "admit", "details": {"force": True}}
    answered = frame(protocol.answer(7, {"bytes": 1 << 62, 3: [None, ("a",)]}))
    assert answered.header == {"c": "answer", "n": 7}
    assert protocol.read_answer(answered.body) == {"bytes": 1 << 62, 3: [None, ["a"]]}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ControlRefused("no"), ControlRefused),
        (ConfigurationError("no"), ConfigurationError),
        (FabricError("no"), FabricError),
        (DowngradeRefused("no"), RaylayError),
        (StorageFull("no"), RaylayError),
    ],
)
def test_an_error_comes_back_as_its_kind(error: RaylayError, kind: type[RaylayError]) -> None:
    with pytest.raises(kind, match=r"^no$"):
        protocol.read_answer(frame(protocol.refusal(1, error)).body)


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb([1]), b"\x81"])
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a frame cannot be read"):
        protocol.read_map(body)


def test_the_first_frame_and_the_address() -> None:
    hello = frame(protocol.hello("north", 5, 77)).header
    assert hello == {"c": "hello", "admin": "north", "start": 5, "pid": 77}
    assert frame(protocol.listens("", "in use")).header["why"] == "in use"
    assert frame(protocol.listens("a:1")).header["address"] == "a:1"


def test_a_truncation_and_its_result() -> None:
    asked = frame(protocol.truncate(3, 1_000)).header
    assert asked == {"c": "truncate", "n": 3, "before_us": 1_000}
    done = frame(protocol.truncated(3, "2 samples were removed"))
    assert (done.header["n"], protocol.read_answer(done.body)) == (3, "2 samples were removed")
    with pytest.raises(RaylayError, match=r"^no$"):
        protocol.read_answer(frame(protocol.truncated(3, StorageFull("no"))).body)
