"""The clients by which the administrator's process reads and publishes messages: of the product's
own library, at its instance's own transport, with the viewer's credentials. So the viewer sees what
any client of that user sees, and nothing is taken from a queue: a replay reads the queue's topic,
and a query of a queue only looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConfigurationError,
    ConnectionLost,
    ControlRefused,
    FabricError,
    LogonRefused,
    NoUsableServer,
    RaylayError,
    RemoteProtocolError,
)
from raylay.services.messages.plain_text import plain
from raylay.services.processes.admin.viewers import Viewer
from raylay.services.telemetry import logs
from raylay.services.telemetry.tracing import TracingOptions

if TYPE_CHECKING:
    from raylay.services.client.arguments import Tls
    from raylay.services.client.client import Client
    from raylay.services.telemetry.client_traces import ClientTracer
    from raylay.services.telemetry.tracing import Tracing

CONNECT_S = 5.0
"""Time for which a connection to the instance is tried."""
CLIENTS_MAX = 6
"""Most clients at once, for all viewers. Each client has a name of its own, which the instance
remembers."""
USER_CLIENTS_MAX = 4
log = logs.get("admin_interface")
NOT_ALLOWED = frozenset(("not_entitled",))


class TooManyReaders(RaylayError):
    """Too many readers of messages are connected: another one has to wait."""


@dataclass(slots=True)
class Reader:
    """A client that is connected to this instance and to no other.

    Attributes:
        lost: the reason why the connection has ended; empty: it lasts.
    """

    client: Client
    lost: str = ""

    def check(self) -> None:
        """Raises FabricError when the connection has ended: another one would go on elsewhere."""
        if self.lost:
            raise FabricError(self.lost)


@dataclass(slots=True)
class MessageClients:
    """Makes clients. Owner: the process's event loop.

    Attributes:
        instance: the instance's name.
        address: returns the address of its client transport at present, `host:port`; empty: it has
            none that a client of this process can use.
        tls: TLS options of that transport.
        tracing: options for the spans of messages that are published here: each is traced.
            Deliveries to readers are not traced, because each look at a message would add a step to
            its way.
    """

    instance: str
    address: Callable[[], str]
    tls: Tls = None
    tracing: TracingOptions = field(default_factory=TracingOptions)
    _tracing: Tracing | None = None
    """The exporter of traces, started by the first message that is published; None: not yet."""
    _used: dict[int, str] = field(default_factory=dict)
    """Users by the number of their client."""

    @asynccontextmanager
    async def connected(self, viewer: Viewer, *, publishes: bool = False) -> AsyncIterator[Reader]:
        """Connects for one request.

        Args:
            publishes: whether messages are published, which are then traced.

        Raises:
            TooManyReaders: too many readers are connected.
            ControlRefused: the instance does not let the user in, or does not allow the request.
            FabricError: the instance is away.
            ConfigurationError: the request is wrong, or names something that does not exist.
        """
        number = self._take(viewer.user)
        try:
            name = f"console-{self.instance}-{number}"
            async with self._client(viewer, name, publishes) as reader:
                yield reader
        finally:
            del self._used[number]

    def _take(self, user: str) -> int:
        mine = sum(each == user for each in self._used.values())
        number = next((each for each in range(CLIENTS_MAX) if each not in self._used), None)
        if number is None or (user and mine >= USER_CLIENTS_MAX):
            raise TooManyReaders(
                f"{len(self._used)} readers of messages are connected to {self.instance}: stop "
                "one, or try again a little later"
            )
        self._used[number] = user
        return number

    @asynccontextmanager
    async def _client(self, viewer: Viewer, name: str, publishes: bool) -> AsyncIterator[Reader]:
        from raylay.services.client.client import Client
        from raylay.services.client.events import Disconnected

        address = self.address()
        if not address:
            raise FabricError(
                f"{self.instance} has no client transport that its administrator's interface can "
                "use: add one, or read its messages with `raylay subscribe`"
            )
        found: Reader

        def on_event(event: object) -> None:
            if isinstance(event, Disconnected):
                found.lost = f"the connection to {self.instance} has ended" + (
                    f": {plain(event.text)}" if event.text else ": it may be stopping or restarting"
                )

        options: dict[str, Any] = {}
        tracer = self._tracer(name) if publishes else None
        if tracer is not None:
            options = {"tracer": tracer, "sampling_ratio": 1.0}
        client = Client(
            name,
            [address],
            allow_other_groups=True,
            user_id=viewer.caller.user_id,
            password=viewer.caller.password,
            tls=self.tls,
            connect_wait_s=CONNECT_S,
            close_timeout_s=CONNECT_S,
            on_event=on_event,
            **options,
        )
        found = Reader(client)
        try:
            with said_plainly(self.instance):
                await client.connect()
                yield found
        finally:
            # Whatever it was: what this client published was waited for, or told to be unknown.
            await client.close(flush=False)
            if tracer is not None:
                tracer.close()

    def _tracer(self, name: str) -> ClientTracer | None:
        """Returns the tracer of a client; None: no traces are written, or none can be."""
        if not self.tracing.enabled:
            return None
        from raylay.services.telemetry.client_traces import ClientTracer
        from raylay.services.telemetry.tracing import start_tracing

        try:
            self._tracing = self._tracing or start_tracing(
                f"{self.instance}.admin", self.tracing, of_client=True
            )
        except ConfigurationError as error:
            log.warning("admin_tracing_failed", text=str(error))
            return None
        return ClientTracer(self._tracing, name)


class said_plainly:
    """Turns the errors of a client into those that the interface answers with."""

    def __init__(self, instance: str) -> None:
        self._instance = instance

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LogonRefused):
            raise ControlRefused(f"{self._instance} does not let this user in: {error}") from None
        if isinstance(error, BookmarkNotFound):
            return
        if isinstance(error, CommandFailed) and error.reason in NOT_ALLOWED:
            raise ControlRefused(f"{self._instance}: {error}") from None
        if isinstance(error, CommandFailed | RemoteProtocolError):
            raise ConfigurationError(f"{self._instance}: {error}") from None
        if isinstance(error, ConnectionLost | NoUsableServer):
            raise FabricError(f"{self._instance} cannot be reached by clients: {error}") from None
