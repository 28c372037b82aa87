"""Handshakes of TLS take turns: however many are due at once, others are served in between."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
from support.tls_files import tls_files

from raylay.services.net.tls_files import server_context
from raylay.services.server.clients.tls_handshake import PendingTlsHandshake

pytestmark = pytest.mark.covers("Configuration", "TLS between clients and instances")


class Turns:
    """Turns that are over until the test says otherwise."""

    def __init__(self) -> None:
        self.are_over = True
        self.waiting: list[Any] = []

    def is_over(self) -> bool:
        return self.are_over

    def add(self, connection: Any) -> None:
        self.waiting.append(connection)


class Socket:
    """Keeps what the serving side writes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Opened(asyncio.Protocol):
    """The protocol behind a handshake."""

    def __init__(self) -> None:
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


class Dialler:
    """The side that connects, in memory."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    def goes_on(self, data: bytes = b"") -> bytes:
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            self._tls.write(b"first words")
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()


def test_a_step_of_a_handshake_waits_for_its_turn() -> None:
    """800 that were due at once held the loop for 130 ms."""

    async def run() -> None:
        opened, turns, socket, dialler = Opened(), Turns(), Socket(), Dialler()
        counted: Any = SimpleNamespace(came=lambda _: None, left=lambda _: None)
        failed: list[str] = []
        serving: Any = turns
        side = PendingTlsHandshake(
            asyncio.get_running_loop(),
            server_context(tls_files().serving(), "here"),
            lambda: opened,
            accepted_by=counted,
            connection_limit=counted,
            turns=serving,
            plain_answer=b"",
            refused=lambda _, text: failed.append(text),
        )
        transport: Any = socket
        side.connection_made(transport)
        hello = dialler.goes_on()
        side.data_received(hello[:100])
        side.data_received(hello[100:])
        assert not socket.written and turns.waiting == [side], "it waits once"
        turns.waiting.clear()
        assert not side.take_one() and socket.written
        answer, socket.written = bytes(socket.written), bytearray()
        side.data_received(dialler.goes_on(answer))
        assert side.protocol is None and turns.waiting == [side]
        assert not side.take_one() and opened.heard == b"first words"
        assert not side.take_one() and opened.heard == b"first words", "it is over"
        # Where there is time each step is taken at once.
        other = Dialler()
        turns.are_over = False
        turns.waiting.clear()
        side = PendingTlsHandshake(
            asyncio.get_running_loop(),
            server_context(tls_files().serving(), "here"),
            Opened,
            accepted_by=counted,
            connection_limit=counted,
            turns=serving,
            plain_answer=b"",
            refused=lambda _, text: failed.append(text),
        )
        side.connection_made(transport)
        socket.written = bytearray()
        side.data_received(other.goes_on())
        assert socket.written and not turns.waiting
        # One that ends while it waits is nothing any more.
        turns.are_over = True
        side.data_received(other.goes_on(bytes(socket.written)))
        side.connection_lost(None)
        assert not side.take_one() and side.protocol is None and len(failed) == 1

    asyncio.run(run())


@pytest.mark.parametrize(("heard", "refusals"), [(b"", 0), (b"\x16", 1)])
def test_a_peer_that_leaves_without_a_word_is_no_refusal(heard: bytes, refusals: int) -> None:
    """A link looks so whether the process at the other end has ended. Each lost connection over TLS
    was followed by an event of a failed handshake at a destination that was well."""

    async def run() -> None:
        left: list[Any] = []
        counted: Any = SimpleNamespace(came=lambda _: None, left=left.append)
        failed: list[str] = []
        turns: Any = Turns()
        side = PendingTlsHandshake(
            asyncio.get_running_loop(),
            server_context(tls_files().serving(), "here"),
            Opened,
            accepted_by=counted,
            connection_limit=counted,
            turns=turns,
            plain_answer=b"",
            refused=lambda _, text: failed.append(text),
        )
        transport: Any = Socket()
        side.connection_made(transport)
        side.data_received(heard)
        side.connection_lost(None)
        assert len(failed) == refusals and left == [side, side], "it is counted no more"

    asyncio.run(run())
