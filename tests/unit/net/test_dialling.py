"""services/net/dialling.py: the evidence that no process listens at an address."""

from __future__ import annotations

import asyncio
import socket

import pytest

from raylay.services.net.dialling import Answer, answer_of

pytestmark = pytest.mark.covers("Replication", "downgraded at once on evidence")


def asked(host: str, port: int, timeout_s: float = 5.0) -> Answer:
    async def ask() -> Answer:
        return await answer_of(asyncio.get_running_loop(), host, port, timeout_s)

    return asyncio.run(ask())


def test_a_port_that_nobody_listens_at_refuses() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert asked("127.0.0.1", bound.getsockname()[1]) is Answer.REFUSED


def test_a_process_that_listens_does_not_refuse_even_if_it_accepts_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert asked("127.0.0.1", listening.getsockname()[1]) is Answer.ACCEPTED


def test_silence_is_no_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            assert asked("127.0.0.1", port, 0.05) is Answer.NONE
        finally:
            for each in waiting:
                each.close()


def test_a_name_that_is_unknown_says_nothing() -> None:
    assert asked("no-such-host.invalid", 1) is Answer.NONE
