"""Who a link says it is: golden bytes, and what bad ones become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from golden.test_protocol_replication import LOGON, LOGON_BYTES

from raylay.services.errors import RemoteProtocolError
from raylay.services.protocol.frames import FrameReader
from raylay.services.protocol.link import bootstrap
from raylay.services.protocol.link.link_credentials import (
    PASSWORD_BYTES_MAX,
    USER_BYTES_MAX,
    read_said,
    retry,
)
from raylay.services.protocol.link.replication import link_logon, read_link_logon
from raylay.services.replication.instance import Identity


def test_golden_logon() -> None:
    logon = replace(LOGON, user_id="link", password="pass")
    data = link_logon(logon)
    assert "pass" not in repr(logon)
    (frame,) = FrameReader().feed(data)
    assert read_link_logon(frame.header) == logon
    assert data[6:] == b"\x8b" + LOGON_BYTES[7:] + b"\xa7user_id\xa4link" + b"\xa2pw\xa4pass"
    assert link_logon(LOGON) == LOGON_BYTES, "absent where there is none"


def test_golden_retry() -> None:
    data = b"\x1e\x00\x00\x00\x1c\x00\x83\xa1c\xa5retry\xa7user_id\xa1u\xa2pw\xa5what?"
    assert retry("u", "what?") == data
    (frame,) = FrameReader().feed(data)
    assert read_said(frame.header) == ("u", "what?")


def test_a_bootstrap_says_it_too() -> None:
    asks = Identity("B", "g", 11)
    (frame,) = FrameReader().feed(bootstrap.request(asks, (), (), who=("u", "p")))
    assert read_said(frame.header) == ("u", "p")
    (frame,) = FrameReader().feed(bootstrap.request(asks, (), ()))
    assert frame.header.keys().isdisjoint(("user_id", "pw")) and read_said(frame.header) == ("", "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("user_id", "u" * (USER_BYTES_MAX + 1)),
        ("pw", "ä" * (PASSWORD_BYTES_MAX // 2 + 1)),
        ("pw", b"secret"),
        ("pw", None),
        ("user_id", 5),
        ("pw", ["secret"]),
    ],
)
def test_what_is_none(key: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=f"`{key}` of logon") as told:
        read_said({"c": "logon", key: value})
    assert told.value.reason == "bad_command" and "secret" not in str(told.value)
