"""HTTP server of an instance's metrics: few requests at a time, each within seconds.

Anybody who reaches the port can ask, so no request may cost the instance its threads, its files or
its processor: the oldest connection gives way to a new one, and one scrape is made at a time.
Import it late, because the standard library's server takes some 20 ms.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

CONNECTIONS_MAX = 8
"""Most connections at once; a further one ends the oldest."""
SILENCE_S_MAX = 5.0
"""Most seconds between two pieces of a request or of its answer."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S_MAX

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because requests could fill the log."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """HTTP server of the metrics; see the file's docstring.

    Owner: `Metrics`. Lifecycle: `serve_forever` in a thread, then `shutdown` and `server_close`.

    Raises:
        OSError: the address cannot be listened on.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, application: Application) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        scraping = threading.Lock()

        def one_at_a_time(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            with scraping:
                return application(environ, start)

        name, number = found[0][4][:2]
        super().__init__((str(name), int(number)), _Handler)
        self.set_app(one_at_a_time)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection in a thread of its own. Ends the oldest connection where there are
        many."""
        with self._lock:
            self._open[request] = None
            oldest = None
            if len(self._open) > CONNECTIONS_MAX:
                oldest, _ = self._open.popitem(last=False)
        if oldest is not None:
            # Its thread finds that it is over, and closes it.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing about a connection that broke off."""
