"""A gateway in front of an instance: what a link sees of it is what the gateway does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from support.instance_processes import DEADLINE_S, free_ports
from support.waiting import wait_until


class Gateway:
    """Relays what connects to its port to another one, or does something else with it."""

    def __init__(self, target: int) -> None:
        (self.port,) = free_ports(1)
        self.accepted = 0
        """Number of connections that were accepted."""
        self._target = target
        self._answers: Callable[[socket.socket], None] = self._relay
        self._listening: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.relays()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- what becomes of connections -------------------------------------------------------------
    def relays(self, target: int = 0) -> None:
        """Passes further connections on to the target."""
        self._target = target or self._target
        self._set(self._relay)

    def hangs_up(self) -> None:
        """Accepts further connections and closes them."""
        self._set(lambda connection: None)

    def answers(self, data: bytes) -> None:
        """Sends this on further connections, and closes each once the other side has said
        something."""

        def answer(connection: socket.socket) -> None:
            connection.sendall(data)
            connection.recv(1 << 16)

        self._set(answer)

    def refuses(self) -> None:
        """Stops listening: further connections are refused."""
        self.close()

    def cut(self) -> None:
        """Ends the connections that there are."""
        with self._lock:
            ended, self._open = self._open, []
        for each in ended:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It has ended by itself.

    def dialled(self, times: int, before: int | None = None) -> None:
        """Waits until it was dialled so often since it had accepted so many; None: from now on."""
        wanted = (self.accepted if before is None else before) + times
        wait_until(lambda: self.accepted >= wanted)

    def close(self) -> None:
        """Ends it, and all of its connections."""
        if self._listening is not None:
            # Closed alone, it would go on listening for the thread that accepts.
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        self.cut()

    # -- threads ---------------------------------------------------------------------------------
    def _set(self, answers: Callable[[socket.socket], None]) -> None:
        self._answers = answers
        if self._listening is None:
            self._listening = socket.create_server(("127.0.0.1", self.port))
            accepting = threading.Thread(target=self._accept, args=(self._listening,), daemon=True)
            accepting.start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.accepted += 1
            connection.settimeout(DEADLINE_S)
            with self._lock:
                self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answers(connection)
            except OSError:
                pass  # The other side has ended it.

    def _relay(self, connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target), DEADLINE_S) as there:
            with self._lock:
                self._open.append(there)
            back = threading.Thread(target=_pass_on, args=(there, connection), daemon=True)
            back.start()
            _pass_on(connection, there)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Passes on what comes until either side ends, and ends both."""
    source.settimeout(None)
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass  # Either side has ended it.
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
