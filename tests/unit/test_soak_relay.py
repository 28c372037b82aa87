"""The soak's relay breaks connections as it says (tests/soak/relay.py)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from soak import relay as relays
from soak.relay import Relay

TIMEOUT_S = 30.0
QUIET_S = 0.2


@dataclass
class Echo:
    """A server that says everything back, and keeps what it heard."""

    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    heard: bytes = b""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    with self.changed:
                        self.heard += data
                        self.changed.notify_all()
                    connection.sendall(data)
            except OSError:
                return

    def hears(self, word: bytes) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: word in self.heard, TIMEOUT_S)

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()
        return f"{host}:{port}"


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with Relay() as made:
        yield made


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.listener.close()


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), TIMEOUT_S)
    made.settimeout(TIMEOUT_S)
    return made


def says(connection: socket.socket, word: bytes) -> bytes:
    connection.sendall(word)
    heard = b""
    while len(heard) < len(word):
        data = connection.recv(len(word) - len(heard))
        if not data:
            return heard
        heard += data
    return heard


def silent(connection: socket.socket) -> bool:
    connection.settimeout(QUIET_S)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)


def is_reset(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_route_passes_everything_in_order(relay: Relay, echo: Echo) -> None:
    word = bytes(range(256)) * 4_000
    with dial(relay.route("plain", echo.address)) as connection:
        assert says(connection, word) == word
    assert relay.route("plain", "is known already:1") == relay.route("plain", echo.address)
    assert "plain" in relay.routes


def test_a_cut_resets_what_is_open_and_what_is_dialled(relay: Relay, echo: Echo) -> None:
    address = relay.route("cut", echo.address)
    with dial(address) as connection:
        assert says(connection, b"before") == b"before"
        assert relay.set(["cut"], relays.CUT) == 1
        assert is_reset(connection)
    with dial(address) as connection:
        assert is_reset(connection)
    relay.heal(["cut"])
    with dial(address) as connection:
        assert says(connection, b"after") == b"after"


def test_a_stall_keeps_what_comes_and_passes_it_on_later(relay: Relay, echo: Echo) -> None:
    with dial(relay.route("stall", echo.address)) as connection:
        assert says(connection, b"before") == b"before"
        relay.set(["stall"], relays.STALLED)
        connection.sendall(b"kept")
        assert silent(connection)
        relay.heal(["stall"])
        assert connection.recv(4) == b"kept"


@pytest.mark.parametrize("mode", [relays.SWALLOWED, relays.SWALLOWED_BACK])
def test_what_was_swallowed_never_comes_and_its_connection_is_reset(
    relay: Relay, echo: Echo, mode: str
) -> None:
    with (
        dial(relay.route(mode, echo.address)) as connection,
        dial(relay.route(mode, echo.address)) as quiet,
    ):
        assert says(connection, b"before") == b"before"
        assert says(quiet, b"said") == b"said"
        relay.set([mode], mode)
        connection.sendall(b"lost")
        assert silent(connection)
        assert echo.hears(b"lost") if mode == relays.SWALLOWED_BACK else b"lost" not in echo.heard
        relay.heal([mode])
        assert is_reset(connection)
        # Of the other nothing was lost.
        assert says(quiet, b"on") == b"on"


def test_a_slow_route_delays_and_loses_nothing(relay: Relay, echo: Echo) -> None:
    with dial(relay.route("slow", echo.address)) as connection:
        relay.set(["slow"], relays.SLOW, delay_ms=2 * 1000 * QUIET_S)
        connection.sendall(b"late")
        assert silent(connection)
        assert connection.recv(4) == b"late"
        relay.heal(["slow"])


def test_an_order_that_makes_no_sense_is_refused(relay: Relay) -> None:
    with pytest.raises(ValueError, match="a route is one of open, cut"):
        relay.set([], "gone")
    with pytest.raises(RuntimeError, match="nowhere"):
        relay.set(["nowhere"], relays.CUT)
