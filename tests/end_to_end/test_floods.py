"""Many at once, many one after the other, and those who do not mean well: an instance's process
keeps its descriptors, its memory and its other clients.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from support.instance_processes import Client, Server, Servers, single

from raylay.services.config.instance import TransportConfig, split_address
from raylay.services.protocol.frames import FRAME_BYTES_MAX, LOGON_TIMEOUT_S, encode_frame
from raylay.services.security.modules import ModuleConfig

MIB = 1024 * 1024
MANY = 1_000
FLOOD_S = float(os.environ.get("RAYLAY_FLOOD_S", "8"))
"""`RAYLAY_FLOOD_S=60` for the minute: benchmarks/HISTORY.md has what was found."""
A_SECOND = 200
SETTLED_S = 30.0


@pytest.fixture(autouse=True, scope="module")
def files() -> Iterator[None]:
    """Descriptors for as many connections in this process, and in those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def sockets(server: Server) -> int:
    """Open in its process. Its files are opened as they are needed."""
    found, folder = 0, f"/proc/{server.process.pid}/fd"
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            found += os.readlink(f"{folder}/{name}").startswith("socket")
    return found


def resident_bytes(server: Server) -> int:
    text = Path(f"/proc/{server.process.pid}/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize()


def until(found: Callable[[], bool], what: str) -> None:
    """Waits for what a process comes to by itself; of it nobody is told."""
    deadline_s = time.monotonic() + SETTLED_S
    while not found():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def goes_on(client: Client, number: int) -> None:
    """Somebody who behaves is answered."""
    client.publish(range(number, number + 1))
    client.persisted(number)


@pytest.mark.slow
def test_a_thousand_clients_at_once(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, first=True)
    good = Client(server.address, "good")
    goes_on(good, 1)
    before = sockets(server)
    many = [Client(server.address, f"c{number}") for number in range(MANY)]
    for each in many:
        each.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s"})
    for each in many:
        assert each.ack(cid="s").header["status"] == "success"
    goes_on(good, 2)
    for each in many:
        assert each.receive(1) == ["m2"]
    for each in many:
        each.close()
    goes_on(good, 3)
    until(lambda: sockets(server) <= before, "descriptors of connections that are gone")


@pytest.mark.slow
def test_connects_and_disconnects_leave_nothing(servers: Servers, tmp_path: Path) -> None:
    """Half of them log on and subscribe, a quarter log on, the rest say nothing."""
    server = single(servers, tmp_path, first=True)
    good = Client(server.address, "good")

    def flood(seconds: float, first: int) -> int:
        number, began_s = first, time.monotonic()
        while (past_s := time.monotonic() - began_s) < seconds:
            if number - first > past_s * A_SECOND:
                time.sleep(0.001)
                continue
            number += 1
            each = Client(server.address, f"c{number % 50}" if number % 4 else "")
            if number % 2:
                each.send({"c": "subscribe", "sub": "s", "t": "orders", "cid": "s"})
            each.close()
        return number

    number = flood(FLOOD_S / 4, 0)
    goes_on(good, 1)
    until(lambda: sockets(server) < 50, "descriptors of connections that are gone")
    sockets_before, bytes_before = sockets(server), resident_bytes(server)
    more = flood(FLOOD_S, number) - number
    assert more > FLOOD_S * A_SECOND / 4, "this machine is too slow for any flood"
    goes_on(good, 2)
    until(lambda: sockets(server) <= sockets_before, "descriptors are left")
    assert resident_bytes(server) - bytes_before < 16 * MIB
    assert server.process.poll() is None


@pytest.mark.slow
def test_who_logs_on_for_ever_is_sent_away_and_hinders_nobody(
    servers: Servers, tmp_path: Path
) -> None:
    """A byte now and then of a logon that never ends."""
    server = single(servers, tmp_path, first=True)
    logon = encode_frame({"c": "logon", "v": 1, "client_name": "x" * 900, "low": 0})
    slow = [socket.create_connection(split_address(server.address)) for _ in range(100)]
    began_s = time.monotonic()
    good = Client(server.address, "good")
    goes_on(good, 1)
    at, chosen = 0, selectors.DefaultSelector()
    for each in slow:
        each.setblocking(False)
        chosen.register(each, selectors.EVENT_READ)
    ended: set[socket.socket] = set()
    while len(ended) < len(slow):
        assert time.monotonic() - began_s < LOGON_TIMEOUT_S + SETTLED_S
        for each in slow:
            if each not in ended and at < len(logon) - 1:
                try:
                    each.send(logon[at : at + 1])
                except OSError:
                    continue  # it is read below that it was closed
        at += 1
        for key, _ in chosen.select(0.05):
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(65_536)
            except ConnectionError:
                data = b""
            if not data:
                chosen.unregister(key.fileobj)
                ended.add(key.fileobj)
    assert time.monotonic() - began_s >= LOGON_TIMEOUT_S - 0.5, "it had its time"
    goes_on(good, 2)


@pytest.mark.slow
def test_frames_that_never_end_take_no_more_than_what_came(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path, first=True)
    good = Client(server.address, "good")
    goes_on(good, 1)
    before_bytes = resident_bytes(server)
    endless = [Client(server.address, f"e{number}") for number in range(50)]
    for each in endless:
        each.socket.sendall(FRAME_BYTES_MAX.to_bytes(4, "little") + b"\x10\x00" + b"\0" * 1000)
    goes_on(good, 2)
    # 800 MiB were announced.
    assert resident_bytes(server) - before_bytes < 16 * MIB
    # Before a logon not even as much is announced: it is refused at once.
    stranger = Client(server.address)
    stranger.socket.sendall(FRAME_BYTES_MAX.to_bytes(4, "little"))
    assert stranger.closed()


@pytest.mark.slow
def test_a_flood_of_bad_logons_hinders_nobody(servers: Servers, tmp_path: Path) -> None:
    """At a transport with Argon2 passwords: those who are in go on, and memory stays bounded."""
    passwords = tmp_path / "passwords"
    passwords.write_text(f"amy:{PasswordHasher().hash('right')}\n")
    guarded = TransportConfig(
        "guarded", authentication=ModuleConfig("passwords", {"File": str(passwords)})
    )
    server = single(
        servers,
        tmp_path,
        first=True,
        client_transports=(
            TransportConfig("client"),
            guarded,
        ),
    )
    address = server.status["client_transports"]["guarded"]
    good = Client(address, "good", user_id="amy", pw="right")
    goes_on(good, 1)
    before_bytes = resident_bytes(server)
    over = threading.Event()
    turned_down: list[Any] = []

    def guess() -> None:
        while not over.is_set():
            try:
                turned_down.append(Client(address, "guess", user_id="amy", pw="wrong").answer)
            except (EOFError, OSError):
                pass

    guessing = [threading.Thread(target=guess) for _ in range(20)]
    for each in guessing:
        each.start()
    most_bytes, number, ends_s = 0, 1, time.monotonic() + FLOOD_S / 2
    while time.monotonic() < ends_s:
        number += 1
        goes_on(good, number)
        most_bytes = max(most_bytes, resident_bytes(server))
    over.set()
    for each in guessing:
        each.join()
    assert number > 20 and turned_down
    assert {each["reason"] for each in turned_down} == {"auth"}
    assert most_bytes - before_bytes < 256 * MIB
    assert Client(address, "late", user_id="amy", pw="right").answer["status"] == "success"
