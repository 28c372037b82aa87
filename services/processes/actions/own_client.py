"""The client with which the actions publish, query and subscribe: at their own instance, over its
Unix socket, without entitlement.

It never goes on at another instance. When its connection ends, a new client is made, and the
subscriptions begin again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from raylay.services.client.client import Client
from raylay.services.client.events import Disconnected, PublishFailed
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.errors import FabricError, RaylayError

CONNECT_S = 10.0
"""Time, in seconds, for which a step waits for the connection."""
RETRY_S = 0.5
PUBLISH_S = 2.0
"""Time, in seconds, for which a step waits until its message is persisted. Where a sync destination
is away it may take much longer: the message is in the journal by then, and the step counts as
done."""


class OwnClient:
    """See the file's docstring. Owner: the process's event loop. Lifecycle: `run` as a task.

    Args:
        connected: called with each new client once it is connected; what it begins ends with the
            client.
        refused: function that is called with the text of a refusal that came after its step ended.
    """

    def __init__(
        self,
        config: ActionRunnerConfig,
        connected: Callable[[Client], Awaitable[None]],
        refused: Callable[[str], None],
    ) -> None:
        self._config = config
        self._connected = connected
        self._refused = refused
        self._client: Client | None = None
        self._is_there = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._is_slow = False
        """Whether messages are not waited for, because an earlier one was not persisted in time."""
        self._published = 0
        self._why = "it has not connected yet"

    async def run(self) -> None:
        """Keeps a client connected; never returns."""
        while True:
            lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            client = self._made(lost)
            try:
                await client.connect()
                await self._connected(client)
                self._client = client
                self._is_there.set()
                self._why = await lost
            except RaylayError as error:
                self._why = str(error)
            finally:
                self._gone()
                with suppress(RaylayError):
                    await client.close(flush=False)
            await asyncio.sleep(RETRY_S)

    def _made(self, lost: asyncio.Future[str]) -> Client:
        config = self._config

        def on_event(event: object) -> None:
            if isinstance(event, Disconnected) and not lost.done():
                lost.set_result(event.text or event.reason or "the connection ended")

        return Client(
            config.client_name,
            [f"unix:{config.unix_path}"],
            allow_other_groups=True,
            password=config.secret,
            connect_wait_s=CONNECT_S,
            close_timeout_s=RETRY_S,
            on_event=on_event,
            on_persisted=self._persisted,
            on_publish_failed=self._failed,
        )

    def _gone(self) -> None:
        self._client = None
        self._is_there.clear()
        self._is_slow = False
        self._published = 0
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(
                    FabricError(f"the connection ended before it was persisted: {self._why}")
                )

    async def client(self) -> Client:
        """Returns the connected client.

        Raises:
            FabricError: the instance does not admit the client; the text has the reason.
        """
        if self._client is None:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._is_there.wait()
            except TimeoutError:
                raise FabricError(
                    f"the actions of {self._config.instance} cannot connect to it: {self._why}"
                ) from None
        assert self._client is not None, "it is there"
        return self._client

    async def publish(
        self,
        topic: str,
        body: bytes,
        message_type: str,
        *,
        delta: bool = False,
        correlation: bytes = b"",
    ) -> None:
        """Publishes a message, and waits until it is persisted, or for `PUBLISH_S`.

        Raises:
            FabricError: the instance cannot be reached.
            RaylayError: the message is refused.
        """
        client = await self.client()
        publish = client.delta_publish if delta else client.publish
        await self.settled(await publish(topic, body, message_type, correlation=correlation))

    async def settled(self, sequence: int) -> None:
        """Waits for what was published under a sequence, as `publish` does."""
        self._published = max(self._published, sequence)
        if self._is_slow:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[sequence] = waiter
        try:
            async with asyncio.timeout(PUBLISH_S):
                await waiter
        except TimeoutError:
            self._is_slow = True
        finally:
            self._waiting.pop(sequence, None)

    def _persisted(self, upto: int) -> None:
        if upto >= self._published:
            self._is_slow = False
        for sequence in [each for each in self._waiting if each <= upto]:
            waiter = self._waiting.pop(sequence)
            if not waiter.done():
                waiter.set_result(None)

    def _failed(self, failed: PublishFailed) -> None:
        waiter = self._waiting.pop(failed.sequence, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(failed.error)
        else:
            self._refused(str(failed.error))
