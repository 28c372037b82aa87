"""The beginning and the end of a client: it connects, and closes when what it published is
durable."""

from __future__ import annotations

import asyncio
from typing import ClassVar
from weakref import WeakValueDictionary

from raylay.services.client.events import StartRequested
from raylay.services.client.machine import ClientState
from raylay.services.client.publishing.publisher import Publisher
from raylay.services.client.queues.queue import QueueOperations
from raylay.services.client.runtime import ClientRuntime
from raylay.services.client.subscriptions.durable import DurableSubscriptions
from raylay.services.errors import ConnectionLost, LocalProtocolError


class ClientLifecycle:
    """Connects a client and closes it, once each.

    Args:
        runtime: runtime of the client.
        publisher: publishing side of the client.
        queues: queue side of the client.
        durable: durable subscriptions of the client.
        connect_wait_s: seconds for which `connect` tries before it gives up.

    Owner: the client's event loop.
    """

    _users: ClassVar[WeakValueDictionary[int, ClientRuntime]] = WeakValueDictionary()
    """The last client of each publish store, by the `id` of the store. The client keeps the store
    alive, so that no other store has the same `id`."""

    def __init__(
        self,
        runtime: ClientRuntime,
        publisher: Publisher,
        queues: QueueOperations,
        durable: DurableSubscriptions,
        connect_wait_s: float,
    ) -> None:
        self._runtime = runtime
        self._publisher = publisher
        self._queues = queues
        self._durable = durable
        self._connect_wait_s = connect_wait_s

    async def connect(self) -> None:
        """Connects and logs on, with the errors of `Client.connect`."""
        runtime = self._runtime
        if runtime.loop is not None or runtime.machine.state is ClientState.ENDED:
            raise LocalProtocolError(
                f"client {runtime.name} was started or closed before: make a new one"
            )
        self._claim_store()
        runtime.loop = asyncio.get_running_loop()
        runtime.connected = runtime.loop.create_future()
        runtime.step(StartRequested())
        try:
            async with asyncio.timeout(self._connect_wait_s):
                await asyncio.shield(runtime.connected)
        except TimeoutError:
            await self._shut_down()
            tried = "; ".join(f"{where}: {why}" for where, why in runtime.refusals.items())
            raise ConnectionLost(
                f"client {runtime.name} found no server in {self._connect_wait_s} s ({tried})"
            ) from None
        except BaseException:
            await self._shut_down()
            raise

    def _claim_store(self) -> None:
        """Refuses the publish store of another client that is not closed: two clients would give
        the same sequences to different messages."""
        runtime = self._runtime
        other = self._users.get(id(runtime.store))
        if other is not None and other.machine.state is not ClientState.ENDED:
            raise LocalProtocolError(
                f"client {runtime.name}: client {other.name} uses its publish store: give each "
                "client a store of its own, or close that one first"
            )
        self._users[id(runtime.store)] = runtime

    async def close(self, flush: bool, timeout_s: float) -> None:
        """Ends the client, with the arguments and errors of `Client.close`."""
        runtime = self._runtime
        machine = runtime.machine
        unsettled = 0
        try:
            if flush and runtime.error is None and machine.state is not ClientState.ENDED:
                try:
                    await self._publisher.until_settled(timeout_s)
                except TimeoutError:
                    unsettled = runtime.store.messages
            elif machine.outbox.gathering:
                # Like all publishes before it, it is written without waiting for an answer.
                runtime.hurry()
                await asyncio.sleep(0)
        finally:
            # A message whose handler failed comes again: without `flush` nothing counts as done.
            await self._durable.close(settle=flush)
            await self._shut_down()
        # A store that the caller gave lives longer than this client, with everything in it.
        if unsettled and machine.options.owns_store:
            raise ConnectionLost(
                f"client {runtime.name} closed with {unsettled} publishes that were not "
                f"acknowledged within {timeout_s} s"
            )

    async def _shut_down(self) -> None:
        self._queues.shut_down()
        await self._runtime.shut_down()
