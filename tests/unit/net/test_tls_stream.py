"""TLS over real sockets: both sides, and everything that is none."""

from __future__ import annotations

import _ssl
import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.tls_files import Files, tls_files

from raylay.services.errors import ConfigurationError
from raylay.services.net import tls_files as tls_reading
from raylay.services.net import tls_stream
from raylay.services.net.dialling import connect
from raylay.services.net.tls_config import TlsConfig
from raylay.services.net.tls_files import (
    PeerCertificate,
    RenewedContext,
    check_certificate,
    client_context,
    server_context,
)
from raylay.services.net.tls_records import RECORDS_AT_ONCE
from raylay.services.net.tls_stream import TlsError, TlsStream

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def made() -> Files:
    return tls_files()


class Ear(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.heard = bytearray()
        self.calls = 0
        self.changed = asyncio.Event()
        self.lost: list[Exception | None] = []
        self.pauses: list[bool] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.calls += 1
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.changed.set()

    def pause_writing(self) -> None:
        self.pauses.append(True)

    def resume_writing(self) -> None:
        self.pauses.append(False)
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.changed.clear()
            await self.changed.wait()


class Side(TlsStream):
    """The serving side: what became of each handshake."""

    def __init__(self, house: House) -> None:
        super().__init__(house.loop, house.context, house.enter, server_side=True)
        self.house = house

    def failed(self, error: TlsError) -> None:
        self.house.failures.append(str(error))
        self.house.changed.set()

    def plain(self) -> bytes:
        return b"speak TLS"


class House:
    """Listens with TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = context
        self.ears: list[Ear] = []
        self.failures: list[str] = []
        self.changed = asyncio.Event()
        self.port = 0

    def enter(self) -> Ear:
        self.ears.append(Ear())
        self.changed.set()
        return self.ears[-1]

    async def ear(self) -> Ear:
        while not self.ears:
            self.changed.clear()
            await self.changed.wait()
        return self.ears[0]

    async def failure(self) -> str:
        while not self.failures:
            self.changed.clear()
            await self.changed.wait()
        return self.failures[0].partition(": ")[2]


def visit(config: TlsConfig, work: Callable[[House], Awaitable[None]]) -> None:
    async def run() -> None:
        house = House(server_context(config, "transport t"))
        server = await house.loop.create_server(lambda: Side(house), "127.0.0.1", 0)
        house.port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await work(house)
        finally:
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


# -- what goes through -----------------------------------------------------------------------
@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_bytes_go_through_both_ways_and_it_ends_in_order(made: Files, protocol: str) -> None:
    async def work(house: House) -> None:
        dialling = made.dialling(protocols=(protocol,))
        transport, ear = await connect(Ear, "localhost", house.port, dialling)
        theirs = await house.ear()
        assert transport.get_extra_info("ssl_object").version() == protocol
        big = os.urandom(3_000_000)
        transport.writelines([b"a", big, b"b"])
        transport.write(b"")
        await theirs.until(lambda: len(theirs.heard) == len(big) + 2)
        assert theirs.heard == b"a" + big + b"b"
        theirs.transport.write(b"answer")
        theirs.transport.close()
        await ear.until(lambda: bool(ear.lost))
        assert ear.heard == b"answer" and ear.lost == [None] and transport.is_closing()
        transport.write(b"behind the end")
        await theirs.until(lambda: bool(theirs.lost))
        assert len(theirs.lost) == 1 and not house.failures

    visit(made.serving(), work)


def test_who_writes_more_than_is_read_is_told(made: Files) -> None:
    async def work(house: House) -> None:
        transport, ear = await connect(Ear, "localhost", house.port, made.dialling())
        transport.set_write_buffer_limits(100_000, 50_000)
        theirs = await house.ear()
        theirs.transport.pause_reading()
        chunk = bytes(100_000)
        count = 0
        while not ear.pauses:
            transport.write(chunk)
            count += 1
            await asyncio.sleep(0)
        assert ear.pauses == [True] and transport.get_write_buffer_size() > 100_000
        theirs.transport.resume_reading()
        await ear.until(lambda: ear.pauses == [True, False])
        await theirs.until(lambda: len(theirs.heard) == count * len(chunk))

    visit(made.serving(), work)


def test_what_comes_in_one_read_is_handed_over_in_one_call(made: Files) -> None:
    """Who stops reading gets no more calls, however many TLS records had come."""

    async def work(house: House) -> None:
        transport, _ = await connect(Ear, "localhost", house.port, made.dialling())
        theirs = await house.ear()
        for _ in range(100):
            transport.write(b"x" * 100)
        await theirs.until(lambda: len(theirs.heard) == 10_000)
        assert theirs.calls < 50

    visit(made.serving(), work)


# -- who is let in ---------------------------------------------------------------------------
def test_a_client_certificate_is_asked_for_and_told(made: Files) -> None:
    async def work(house: House) -> None:
        await connect(Ear, "127.0.0.1", house.port, made.dialling(made.client))
        peer = (await house.ear()).transport.get_extra_info("peer_certificate")
        assert (peer.common_name, peer.names) == ("desk", ("DNS:desk.example",))
        assert peer.subject == "commonName=desk" and "GMT" in peer.expires

    visit(made.serving(verify_client=True, ca_file=made.ours.file), work)


def test_cas_of_a_directory_verify_clients_as_a_file_does(made: Files, tmp_path: Path) -> None:
    """As `openssl rehash` makes it."""
    for ca in (made.ours, made.other):
        directory = tmp_path / Path(ca.file).stem
        directory.mkdir()
        done = subprocess.run(
            ["openssl", "x509", "-noout", "-subject_hash", "-in", ca.file],
            capture_output=True,
            text=True,
            check=True,
        )
        shutil.copy(ca.file, directory / f"{done.stdout.strip()}.0")

    async def let_in(house: House) -> None:
        await connect(Ear, "127.0.0.1", house.port, made.dialling(made.client))
        peer = (await house.ear()).transport.get_extra_info("peer_certificate")
        assert peer.common_name == "desk"

    visit(made.serving(verify_client=True, ca_path=str(tmp_path / "our-ca")), let_in)

    async def kept_out(house: House) -> None:
        _, ear = await connect(Ear, "127.0.0.1", house.port, made.dialling(made.client))
        await ear.until(lambda: bool(ear.lost))

    visit(made.serving(verify_client=True, ca_path=str(tmp_path / "other-ca")), kept_out)


def test_a_ca_that_is_renewed_is_taken_up(
    made: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_reading, "LOOK_S", 0.0)
    ca = tmp_path / "ca.pem"
    shutil.copy(made.ours.file, ca)
    config = made.serving(verify_client=True, ca_file=str(ca))
    context = RenewedContext(config, "transport t", lambda _: None)
    first = context.current()
    assert context.current() is first
    shutil.copy(made.other.file, ca)
    second = context.current()
    assert second is not first
    names = [each["subject"] for each in second.get_ca_certs()]
    assert "other-ca" in str(names) and "our-ca" not in str(names)


@pytest.mark.covers("Configuration", "TLS between clients and instances")
@pytest.mark.parametrize(
    ("which", "here", "there"),
    [
        ("", "no client certificate", "wants a client certificate"),
        ("expired_client", "has expired", "our certificate has expired"),
        ("stranger", "CA that is not known here", "does not know the CA of our certificate"),
    ],
)
@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_who_has_none_that_is_good_is_told_why(
    made: Files, which: str, here: str, there: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Our own side would not use an expired one.
    monkeypatch.setattr(tls_reading, "check_certificate", lambda config, where: None)
    pair = getattr(made, which) if which else None

    async def work(house: House) -> None:
        told = ""
        try:
            config = made.dialling(pair, protocols=(protocol,))
            _, ear = await connect(Ear, "127.0.0.1", house.port, config)
            await ear.until(lambda: bool(ear.lost))
            told = str(ear.lost[0])
        except TlsError as error:
            told = str(error)
        # TLS 1.2 has one alert for several things.
        assert there in told or (protocol == "TLSv1.2" and "client certificate" in told)
        assert here in await house.failure() and not house.ears

    visit(made.serving(verify_client=True, ca_file=made.ours.file), work)


@pytest.mark.covers("Configuration", "TLS between clients and instances")
@pytest.mark.parametrize(
    ("serving", "dialling", "host", "words"),
    [
        ("server", {"ca": "other"}, "localhost", "of a CA that is not known here: give that CA"),
        ("elsewhere", {}, "localhost", "its certificate is not for 'localhost'"),
        ("elsewhere", {}, "127.0.0.1", "its certificate is not for '127.0.0.1'"),
        ("expired", {}, "localhost", "has expired: renew it there"),
        ("future", {}, "localhost", "not valid yet: is a clock wrong?"),
    ],
)
def test_a_server_that_is_not_the_one_is_left(
    made: Files, serving: str, dialling: dict[str, str], host: str, words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tls_reading, "check_certificate", lambda config, where: None)
    pair = getattr(made, serving)

    async def work(house: House) -> None:
        config = TlsConfig(ca_file=getattr(made, dialling.get("ca", "ours")).file)
        with pytest.raises(TlsError, match=words) as caught:
            await connect(Ear, host, house.port, config)
        assert str(caught.value).startswith(f"{host}:{house.port}: ")
        await house.failure()
        assert not house.ears

    visit(made.serving(certificate=pair.certificate, private_key=pair.key), work)


def test_a_name_that_is_said_takes_the_place_of_the_host(made: Files) -> None:
    pair = made.elsewhere

    async def work(house: House) -> None:
        for more in ({"server_name": "elsewhere.example"}, {"verify_name": False}):
            transport, _ = await connect(Ear, "127.0.0.1", house.port, made.dialling(**more))
            transport.abort()
        transport, _ = await connect(
            Ear, "127.0.0.1", house.port, made.dialling(), name="elsewhere.example"
        )
        transport.close()

    visit(made.serving(certificate=pair.certificate, private_key=pair.key), work)


# -- what is no TLS --------------------------------------------------------------------------
@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x20plain", b"\xff" * 9])
def test_who_speaks_no_tls_is_told_so(made: Files, said: bytes) -> None:
    async def work(house: House) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        writer.write(said)
        assert await reader.read() == b"speak TLS"
        assert await house.failure() == "it speaks no TLS, and this transport speaks nothing else"
        writer.close()

    visit(made.serving(), work)


@pytest.mark.covers("Configuration", "TLS between clients and instances")
def test_old_tls_is_refused(made: Files) -> None:
    async def work(house: House) -> None:
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(made.ours.file)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(TlsError, match="no TLS version in common"):
            await connect(Ear, "127.0.0.1", house.port, old)
        assert "older TLS" in await house.failure()

    with pytest.warns(DeprecationWarning):
        visit(made.serving(), work)


def test_a_server_without_tls_is_named_as_such(made: Files) -> None:
    async def work(house: House) -> None:
        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"\x00\x00\x00\x10 nonsense")
            writer.close()

        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(TlsError, match="it speaks no TLS: connect without, or to its"):
                await connect(Ear, "127.0.0.1", port, made.dialling())

    visit(made.serving(), work)


@pytest.mark.parametrize("side", ["server", "client"])
def test_one_that_says_nothing_is_given_up(
    made: Files, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKE_TIMEOUT_S", 0.05)

    async def work(house: House) -> None:
        if side == "server":
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(b"\x16\x03\x01")
            assert await reader.read() == b""
            assert "not done within 0.05 s" in await house.failure()
            writer.close()
            return
        silent = await house.loop.create_server(Ear, "127.0.0.1", 0)
        with pytest.raises(TlsError, match="not done within"):
            await connect(Ear, "127.0.0.1", silent.sockets[0].getsockname()[1], made.dialling())
        silent.close()

    visit(made.serving(), work)


@pytest.mark.covers("Configuration", "TLS between clients and instances")
def test_a_handshake_that_never_ends_is_given_up(made: Files) -> None:
    async def work(house: House) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", house.port)
        # A record that promises a long hello, in many parts.
        writer.write(b"\x16\x03\x01\x40\x00\x01\x01\x00\x00" + bytes(0x3FFC))
        for _ in range(40):
            writer.write(b"\x16\x03\x01\x40\x00" + bytes(0x4000))
        assert await house.failure()
        writer.close()

    visit(made.serving(), work)


def test_garbage_is_a_failed_handshake_and_nothing_else(made: Files) -> None:
    chance = random.Random(7)

    async def work(house: House) -> None:
        house.loop.set_exception_handler(lambda _, context: house.failures.append("fault"))
        count = 60
        for number in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", house.port)
            front = (b"", b"\x16", b"\x16\x03\x01\x00\x20", b"\x15\x03\x03\x00\x02")[number % 4]
            writer.write(front + chance.randbytes(chance.randrange(1, 400)))
            writer.close()
        while len(house.failures) < count:
            house.changed.clear()
            await house.changed.wait()
        assert "fault" not in house.failures and not house.ears
        transport, _ = await connect(Ear, "localhost", house.port, made.dialling())
        transport.close()

    visit(made.serving(), work)


@pytest.mark.parametrize("name", [".", "a\0b", "." * 3])
def test_a_name_that_no_certificate_has_is_said(made: Files, name: str) -> None:
    async def work(house: House) -> None:
        with pytest.raises(TlsError, match="no certificate can be for the name"):
            await connect(Ear, "127.0.0.1", house.port, made.dialling(server_name=name))

    visit(made.serving(), work)


def test_damaged_bytes_end_the_connection_once(made: Files) -> None:
    async def work(house: House) -> None:
        transport, ear = await connect(Ear, "127.0.0.1", house.port, made.dialling())
        theirs = await house.ear()
        raw: Any = transport
        raw._raw.write(b"\x17\x03\x03\x00\x20" + bytes(32))
        await theirs.until(lambda: bool(theirs.lost))
        assert isinstance(theirs.lost[0], TlsError) and not theirs.heard
        await ear.until(lambda: bool(ear.lost))
        await asyncio.sleep(0)
        assert len(theirs.lost) == len(ear.lost) == 1

    visit(made.serving(), work)


# -- records without data --------------------------------------------------------------------
class KeyUpdates:
    """A TLS 1.3 client in memory. Python's `ssl` makes no key updates, so OpenSSL is called."""

    def __init__(self, config: TlsConfig) -> None:
        try:
            self._library = ctypes.CDLL(_ssl.__file__)
            self._library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
            self._library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
        except AttributeError:
            pytest.skip("this Python hides its OpenSSL")
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(config, "attacker")
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        raw: Any = self.tls
        # The `SSL *` of a PySSLSocket stands behind its head and its socket.
        at = id(raw._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p)
        self._ssl = ctypes.c_void_p.from_address(at).value

    async def shake_hands(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects. The last bytes of the handshake are not sent: they begin `sent`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            try:
                self.tls.do_handshake()
                return reader, writer
            except ssl.SSLWantReadError:
                writer.write(self._out.read())
                self._in.write(await reader.read(65_536))

    def update(self, count: int) -> None:
        """Asks for new keys of both sides."""
        for _ in range(count):
            assert self._library.SSL_key_update(self._ssl, 1) == 1
            assert self._library.SSL_do_handshake(self._ssl) == 1

    def sent(self) -> bytes:
        """Returns what has to be sent."""
        return self._out.read()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_flood_of_key_updates_ends_its_connection(made: Files, at_once: bool) -> None:
    async def work(house: House) -> None:
        flood = KeyUpdates(made.dialling(protocols=("TLSv1.3",)))
        reader, writer = await flood.shake_hands(house.port)
        if not at_once:
            writer.write(flood.sent())
            await house.ear()
        flood.tls.write(b"a")
        flood.update(3_000)
        flood.tls.write(b"never")
        writer.write(flood.sent())
        ear = await house.ear()
        await ear.until(lambda: bool(ear.lost))
        assert ear.heard == b"a"
        assert "more than 32 TLS records without data within 10 s" in str(ear.lost[0])
        # Far from all of them are answered.
        answered = 0
        with contextlib.suppress(ConnectionError):
            while some := await reader.read(65_536):
                answered += len(some)
        assert answered <= 27 * (tls_stream.SILENT_RECORDS_MAX + RECORDS_AT_ONCE) + 5_000
        writer.close()

    visit(made.serving(), work)


def test_some_key_updates_are_in_order(made: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also many, over time."""
    monkeypatch.setattr(tls_stream, "SILENT_WINDOW_S", 0.0)

    async def work(house: House) -> None:
        client = KeyUpdates(made.dialling(protocols=("TLSv1.3",)))
        _, writer = await client.shake_hands(house.port)
        wanted = bytearray()
        for number in range(5):
            client.update(tls_stream.SILENT_RECORDS_MAX - 2)
            client.tls.write(b"%d" % number)
            wanted += b"%d" % number
            writer.write(client.sent())
            while not house.ears or (house.ears[0].heard != wanted and not house.ears[0].lost):
                await asyncio.sleep(0)
            assert not house.ears[0].lost
        writer.close()

    visit(made.serving(), work)


# -- the files -------------------------------------------------------------------------------
def wrong_files(made: Files, directory: Path) -> list[tuple[TlsConfig, str]]:
    garbage, encrypted = directory / "garbage.pem", directory / "encrypted.key"
    garbage.write_text("nothing\n")
    encrypted.write_text(
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIBAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    missing = str(directory / "missing.pem")
    return [
        (made.serving(certificate=missing), "missing.pem cannot be read: No such file"),
        (made.serving(private_key=missing), "private key .*missing.pem cannot be read"),
        (made.serving(private_key=made.elsewhere.key), "is not the key of the certificate"),
        (made.serving(certificate=str(garbage)), "garbage.pem .* is no PEM file"),
        (made.serving(private_key=str(garbage)), "is no PEM file of one"),
        (made.serving(certificate=made.expired.certificate, private_key=made.expired.key),
         "expired.crt has expired: renew it"),
        (made.serving(certificate=made.future.certificate, private_key=made.future.key),
         "is not valid yet: is the clock right"),
        (made.serving(verify_client=True, ca_file=missing), "the CA file .* cannot be read"),
        (made.serving(verify_client=True, ca_file=str(garbage)), "holds no certificates"),
        (made.serving(verify_client=True, ca_path=missing), "is no directory"),
        (made.serving(verify_client=True), "no CA to do it by"),
        (made.serving(ciphers="NONE-SUCH"), "no cipher of 'NONE-SUCH'"),
        (made.serving(protocols=("TLSv1.1",)), "speaks no TLSv1.1: give one or both of TLSv1.2"),
        (TlsConfig(certificate="x"), "has no private key"),
        (TlsConfig(private_key="x"), "has no certificate"),
        (TlsConfig(ca_file="x"), "needs a certificate and a private key"),
    ]  # fmt: skip


@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens;"
)
@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens or"
)
def test_what_is_wrong_with_files_is_said(made: Files, tmp_path: Path) -> None:
    for config, words in wrong_files(made, tmp_path):
        with pytest.raises(ConfigurationError, match=f"transport t: .*{words}"):
            server_context(config, "transport t")
    with pytest.raises(ConfigurationError, match="has no private key"):
        client_context(TlsConfig(certificate="x"), "here")
    assert client_context(TlsConfig(), "here").verify_mode is ssl.CERT_REQUIRED
    # One that is for clients only may be used by one.
    assert client_context(made.dialling(made.client), "here") is not None
    assert check_certificate(made.dialling(made.client), "here") is None
    assert PeerCertificate.of({}) is None


def test_a_certificate_is_told_to_another_process_by_its_names() -> None:
    names = ("DNS:a", "DNS:" + "x" * 2_000, *(f"DNS:{at}" for at in range(2_000)))
    told = PeerCertificate("a", names, "commonName=a").to_wire()
    assert told[:3] == ["a", "DNS:a", "DNS:0"] and len(told) == 1_001
    assert PeerCertificate.from_wire(["a", "DNS:a"]) == PeerCertificate("a", ("DNS:a",), "")
    for wrong in (None, "a", [], [1], ["a", None]):
        assert PeerCertificate.from_wire(wrong) is None


@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens;"
)
@pytest.mark.covers(
    "Configuration", "files of certificates: what is wrong is said before anything opens or"
)
def test_renewed_files_are_taken_up_and_wrong_ones_are_not(
    made: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_reading, "LOOK_S", 0.0)
    pair = made.ours.issue("renewed", "localhost", "127.0.0.1")
    told: list[str] = []
    config = made.serving(certificate=pair.certificate, private_key=pair.key)
    context = RenewedContext(config, "transport t", told.append)
    first = context.current()
    assert context.current() is first and not told
    key = Path(pair.key).read_bytes()
    Path(pair.key).write_bytes(b"half")
    assert context.current() is first and context.current() is first
    assert len(told) == 1 and "is no PEM file" in told[0]
    Path(pair.key).write_bytes(key)
    second = context.current()
    assert second is not first and told[1:] == [""]
    # Not more often than each second.
    monkeypatch.setattr(tls_reading, "LOOK_S", 60.0)
    made.ours.issue("renewed", "localhost", "127.0.0.1")
    assert context.current() is second
    assert context.current(at_once=True) is not second
