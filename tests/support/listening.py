"""Servers that a test writes by itself, on plain sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serves each connection in turn, in a thread of its own. Yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def drain(connection: socket.socket) -> None:
    """Reads until the client has left."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
