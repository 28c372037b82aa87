"""When a silent connection is lost, and when the other side is only busy."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import wait_until

from raylay.services.net.impaired import ImpairedTransport
from raylay.services.net.liveness import BUSY_TIMES, SilenceDetector, host_answers, why_lost

pytestmark = pytest.mark.covers("Configuration", "an instance whose loop is held for longer")

Answers = Callable[[], bool]


def yes() -> bool:
    return True


def no() -> bool:
    return False


@pytest.mark.parametrize(
    "silent_s, answers, lost",
    [
        (5.0, no, False),
        (5.1, no, True),
        (5.1, yes, False),
        (5.0 * BUSY_TIMES, yes, False),
        (5.0 * BUSY_TIMES + 0.1, yes, True),
    ],
)
def test_a_host_that_answers_buys_time_and_not_for_ever(
    silent_s: float, answers: Answers, lost: bool
) -> None:
    silence = SilenceDetector()
    assert not silence.is_lost(silent_s, 1.0, 5.0, answers), "what came may lie unread"
    assert silence.is_lost(silent_s, 1.0, 5.0, answers) is lost


def test_what_lay_unread_while_this_loop_was_held_ends_the_suspicion() -> None:
    silence = SilenceDetector()
    assert not silence.is_lost(9.0, 1.0, 5.0, no)
    assert not silence.is_lost(0.1, 10.0, 5.0, no)
    # It is silent again later: suspected anew, and then lost.
    assert not silence.is_lost(6.0, 10.0, 5.0, no)
    assert silence.is_lost(6.5, 10.0, 5.0, no)


def test_what_is_said_of_it() -> None:
    assert why_lost(5.5, 5.0) == "nothing came for 5 s"
    assert why_lost(20.5, 5.0) == "nothing came for 20 s, although its host answers"


def transport_of(found: Any) -> Any:
    return SimpleNamespace(get_extra_info=lambda name, _=None: found if name == "socket" else None)


def test_a_host_answers_while_its_process_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with mine, theirs:
            mine.send(b"beat")
            assert host_answers(transport_of(mine), 5.0)
            time.sleep(0.3)
            assert not host_answers(transport_of(mine), 0.2), "nothing was sent in this time"
            # Not if this process stands still between the two: then once more.
            wait_until(lambda: mine.send(b"beat") and host_answers(transport_of(mine), 0.2))


@pytest.mark.slow
def test_a_host_answers_whose_process_has_no_room_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with mine, theirs:
            mine.setblocking(False)
            for _ in range(20):
                try:
                    while mine.send(bytes(65536)):
                        pass
                except BlockingIOError:
                    time.sleep(0.1)
            # TCP asks for room at 0.2, 0.4, 0.8 s and so on, and is answered each time.
            wait_until(lambda: host_answers(transport_of(mine), 2.0))


def test_nobody_can_tell_of_what_is_no_tcp_or_impaired_or_gone() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"beat")
        assert not host_answers(transport_of(one), 5.0)
    assert not host_answers(transport_of(None), 5.0)
    assert not host_answers(None, 5.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with theirs:
            mine.send(b"beat")
            connection: Any = SimpleNamespace(transport=transport_of(mine))
            impaired: asyncio.BaseTransport = ImpairedTransport(connection)
            assert host_answers(transport_of(mine), 5.0) and not host_answers(impaired, 5.0)
            mine.close()
            assert not host_answers(transport_of(mine), 5.0)
