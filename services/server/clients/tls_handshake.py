"""A connection in its TLS handshake, before it is a client's or a link's. It is counted from the
first moment, and gives way like any connection that has not logged on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from raylay.services.net.tls_stream import TlsError, TlsStream, TlsTransport
from raylay.services.server.clients.connection_limit import ConnectionLimit
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.turns import CommandTurns

TLS_REQUIRED = "tls_required"
TLS_REQUIRED_TEXT = (
    "this transport speaks TLS, and nothing else: connect with TLS, or to a transport without"
)


class PendingTlsHandshake(TlsStream):
    """An accepted connection during its TLS handshake; the client's connection is made when the
    handshake is done. Owner: the instance's event loop. Lifecycle: until the connection is closed.

    Args:
        turns: lets the handshakes of all connections take turns: a step takes some 0.3 ms, and
            thousands may be due at once.
        plain_answer: answer to a peer that does not use TLS.
        refused: called with the reason why a handshake failed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        *,
        accepted_by: ClientTransport,
        connection_limit: ConnectionLimit,
        turns: CommandTurns,
        plain_answer: bytes,
        refused: Callable[[ClientTransport, str], None],
    ) -> None:
        super().__init__(loop, context, make, server_side=True)
        self._accepted_by = accepted_by
        self._connection_limit = connection_limit
        self._turns = turns
        self._waits = False
        """Whether the next step waits for a turn."""
        self._plain_answer = plain_answer
        self._refused = refused
        self._is_counted = False
        self._has_only_looked = False
        """Whether the peer closed the connection before its first byte."""

    def begun(self) -> bool:
        """Counts the connection. Returns whether the handshake may begin; else the connection was
        turned away."""
        self._is_counted = True
        self._connection_limit.came(self)
        if not self.is_over:
            self._accepted_by.came(self)
        return not self.is_over

    def turn_away(self, text: str) -> None:
        self.give_up(text)

    def end(self, reason: str, text: str) -> None:
        self.give_up(text)

    def may_shake_hands(self) -> bool:
        """Returns whether there is time for a step of the handshake now; else the step is given a
        turn."""
        if not self._turns.is_over():
            return True
        if not self._waits:
            self._waits = True
            self._turns.add(self)
        return False

    def take_one(self) -> bool:
        """Performs the step that waited for its turn. Returns False, as no further one waits."""
        self._waits = False
        self.shake_hands_later()
        return False

    def plain(self) -> bytes:
        """The answer to a peer that does not use TLS."""
        return self._plain_answer

    def opened(self, transport: TlsTransport) -> None:
        self._leave()
        super().opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the socket is closed."""
        # Health checks send no bytes, and neither does a link that looks for an ended process.
        self._has_only_looked = not self._came_bytes
        super().connection_lost(exc)

    def failed(self, error: TlsError) -> None:
        self._leave()
        if not self._has_only_looked:
            self._refused(self._accepted_by, str(error))

    def _leave(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._connection_limit.left(self)
            self._accepted_by.left(self)
