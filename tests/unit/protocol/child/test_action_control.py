"""services/protocol/child/action_control.py: what the actions' process and its instance tell one
another."""

from __future__ import annotations

import msgpack
import pytest

from raylay.services.actions.model import Occurrence
from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.child import action_control as protocol
from raylay.services.protocol.child.admin_control import read_map
from raylay.services.protocol.frames import Frame, FrameReader


def frame(data: bytes) -> Frame:
    """Returns the only frame of the bytes."""
    (found,) = FrameReader().feed(data)
    return found


def test_occurrences_come_as_they_were_told_whatever_bytes_they_hold() -> None:
    told = [
        Occurrence("connect-client", {"AMPS_CLIENT_NAME": "desk"}),
        Occurrence("sow-expire-message", {"AMPS_DATA": "\udcff\u20ac"}, "orders", "json"),
    ]
    found = frame(protocol.occurred(told))
    assert found.header == {"c": "occurred"}
    assert protocol.read_occurred(found.body) == told


def test_a_call_comes_with_its_action() -> None:
    asked = protocol.ActionCall("compact", {"topic": "orders"}, "tidy")
    found = frame(protocol.call(7, asked))
    assert found.header == {"c": "call", "n": 7}
    assert protocol.read_call(found.body) == asked


def test_events_and_the_status_are_mappings() -> None:
    found = frame(protocol.report("action_failed", {"action": "tidy", "count": 3}))
    assert found.header == {"c": "report", "event": "action_failed"}
    assert read_map(found.body) == {"action": "tidy", "count": 3}
    found = frame(protocol.status({"tidy": {"runs": 1}}))
    assert (found.header, read_map(found.body)) == ({"c": "status"}, {"tidy": {"runs": 1}})


def test_the_frames_without_a_body() -> None:
    hello = frame(protocol.hello("north", 5, 77)).header
    assert hello == {"c": "hello", "actions": "north", "start": 5, "pid": 77}
    assert frame(protocol.taken(3)).header == {"c": "taken", "n": 3}
    frames = (protocol.STOP, protocol.SETTLE, protocol.SETTLED, protocol.READY)
    kinds = [frame(each).header["c"] for each in frames]
    assert kinds == ["stop", "settle", "settled", "ready"]


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb([1]), b"\x81"])
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    for read in (read_map, protocol.read_call, protocol.read_occurred):
        with pytest.raises(RemoteProtocolError, match="a frame cannot be read"):
            read(body)


@pytest.mark.parametrize("body", [{}, {"call": "x", "arguments": 7, "action": ""}])
def test_a_call_without_its_members_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="a frame cannot be read"):
        protocol.read_call(msgpack.packb(body))
