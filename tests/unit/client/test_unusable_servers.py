"""Servers that a client cannot use as it is set: it says so at once, with what to set, and does not
try on. Real sockets and certificates; the servers are OpenSSL's, or say fixed bytes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from support.fake_server import FakeServer
from support.listening import drain, listening
from support.tls_files import Pair, tls_files
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.client import Client
from raylay.services.client.events import Connected, Disconnected, ServerRefused
from raylay.services.errors import CommandFailed, ConnectionLost, LogonRefused, NoUsableServer
from raylay.services.fabric.plan import free_port

pytestmark = pytest.mark.covers("Configuration", "a server that a client cannot use as it is set")

FAR_S = 600.0
"""How long the clients wait for a server, in seconds: longer than a test may take."""
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def tls_server(pair: Pair, clients_of: str = "") -> Callable[[socket.socket], None]:
    """Returns a server that shakes hands and reads. `clients_of`: the CA of the client certificates
    that it wants."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if clients_of:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)

    def serve(connection: socket.socket) -> None:
        # Stays open when TLS fails: a close with unread data, a logon, takes the alert with it.
        with connection.dup() as kept:
            try:
                with context.wrap_socket(connection, server_side=True) as stream:
                    stream.recv(1)
            except OSError:
                drain(kept)

    return serve


def saying(data: bytes) -> Callable[[socket.socket], None]:
    """Returns a server that answers its client's first bytes with these."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        drain(connection)

    return serve


async def error_of(*servers: str, tls: Any = None) -> NoUsableServer:
    """Returns the error with which a client that connects ends, at once."""
    events: list[object] = []
    client = Client(
        "c", servers=servers, tls=tls, connect_wait_s=FAR_S, on_event=events.append, pause_min_ms=50
    )
    with pytest.raises(NoUsableServer) as caught:
        await client.connect()
    assert not events, "the error alone says it"
    return caught.value


FILES = tls_files()
CASES: dict[str, tuple[Callable[[socket.socket], None], Any, str]] = {
    "wrong CA": (
        tls_server(FILES.server),
        FILES.dialling(ca_file=FILES.other.file),
        "its certificate is of a CA that is not known here: give that CA (ca_file)",
    ),
    "the system's CAs": (tls_server(FILES.server), True, "not known here: give that CA (ca_file)"),
    "another name": (
        tls_server(FILES.elsewhere),
        FILES.dialling(),
        "its certificate is not for '127.0.0.1': dial a name that is in it, or say the name "
        "(server_name)",
    ),
    "expired": (
        tls_server(FILES.expired),
        FILES.dialling(),
        "its certificate, or one above it, has expired: renew it there",
    ),
    "not valid yet": (
        tls_server(FILES.future),
        FILES.dialling(),
        "not valid yet: is a clock wrong?",
    ),
    "no client certificate": (
        tls_server(FILES.server, FILES.ours.file),
        FILES.dialling(),
        "it wants a client certificate: give certificate and private_key",
    ),
    "client certificate of another CA": (
        tls_server(FILES.server, FILES.ours.file),
        FILES.dialling(FILES.stranger),
        "it does not know the CA of our certificate: give one of its CA (certificate)",
    ),
    "TLS to a web server without": (
        saying(HTTP),
        FILES.dialling(),
        "it speaks no TLS: connect without",
    ),
    "no TLS to a server with": (saying(ALERT), None, "it speaks TLS: give the client tls"),
    "a web server": (saying(HTTP), None, "it speaks HTTP, as the interface of an administrator"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_server_that_cannot_be_used_is_said_at_once(name: str) -> None:
    serve, tls, words = CASES[name]
    with listening(serve) as address:
        error = asyncio.run(error_of(address, tls=tls))
        assert str(error).startswith(f"client c cannot use its server: {address}: ")
        assert words in str(error)
        assert str(error).count(address) == 1


def test_each_of_several_servers_is_named() -> None:
    serve, tls, words = CASES["wrong CA"]
    with listening(serve) as one, listening(CASES["TLS to a web server without"][0]) as other:
        error = asyncio.run(error_of(one, other, tls=tls))
    assert str(error).startswith(f"client c cannot use any of its servers: {one}: {words}; {other}")


def test_a_server_that_is_down_is_waited_for_and_the_others_reason_is_told() -> None:
    down = f"127.0.0.1:{free_port(set())}"
    serve, tls, words = CASES["wrong CA"]
    events: list[object] = []

    async def connect(address: str) -> None:
        client = Client(
            "c", servers=[address, down], tls=tls, connect_wait_s=0.5, on_event=events.append
        )
        with pytest.raises(ConnectionLost, match="ca_file"):
            await client.connect()

    with listening(serve) as address:
        asyncio.run(connect(address))
        assert ServerRefused("", address, words) in events


def test_a_client_that_was_logged_on_waits_until_the_server_is_mended() -> None:
    """The server comes back as one without the client's protocol, and is mended later."""

    async def run() -> None:
        server = await FakeServer().start()
        heard: asyncio.Queue[object] = asyncio.Queue()
        client = Client("c", servers=[server.address], on_event=heard.put_nowait, pause_max_ms=50)
        await client.connect()

        async def until(kind: type) -> Any:
            while not isinstance(event := await asyncio.wait_for(heard.get(), 30), kind):
                pass
            return event

        await until(Connected)
        await server.stop()
        await until(Disconnected)
        other = await asyncio.start_server(
            lambda _, writer: writer.write(HTTP), "127.0.0.1", server.port
        )
        refused = await until(ServerRefused)
        assert "it speaks HTTP" in refused.reason
        other.close()
        await other.wait_closed()
        mended = await FakeServer().start(server.port)
        await until(Connected)
        await client.close()
        await mended.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("auth", "set user_id and password, or the certificate of tls"),
        ("tls_required", "set tls (in the shell: --ca-file)"),
        ("bad_client_name", ""),
    ],
)
def test_a_refused_logon_names_the_server_the_reason_and_what_to_set(
    reason: str, advice: str
) -> None:
    async def run() -> str:
        server = await FakeServer().start()
        server.logon_refusal = reason
        events: list[object] = []
        client = Client("c", [server.address], connect_wait_s=FAR_S, on_event=events.append)
        with pytest.raises(LogonRefused) as caught:
            await client.connect()
        await server.stop()
        assert not events and isinstance(caught.value, CommandFailed)
        assert caught.value.reason == reason
        assert str(caught.value).startswith(f"{server.address} refused the logon of client c: ")
        return str(caught.value)

    said = asyncio.run(run())
    assert f"the logon is refused: {reason}" in said and advice in said
    assert (". Please " in said) is bool(advice)


def test_the_shell_says_each_in_one_message() -> None:
    async def run() -> None:
        with ExitStack() as stack:
            server = await FakeServer().start()
            server.logon_refusal = "auth"
            unknown = stack.enter_context(listening(CASES["wrong CA"][0]))
            ca = FILES.other.file
            for arguments, words in (
                (["--server", server.address], "refused: auth. Please set user_id and password"),
                (["--server", unknown, "--ca-file", ca], CASES["wrong CA"][2]),
            ):
                for command in (["publish", "orders", "{}"], ["subscribe", "orders"]):
                    done = await asyncio.to_thread(
                        CliRunner().invoke, app, [*command, *arguments], catch_exceptions=True
                    )
                    # The error, which the program prints as one line, and nothing besides.
                    assert done.output == "", done.output
                    assert words in str(done.exception)
            await server.stop()

    asyncio.run(run())
