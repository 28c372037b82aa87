"""The asyncio client: performs what the machine decides, and keeps no decisions of its own."""

from __future__ import annotations

import asyncio
from types import TracebackType

from raylay.services.client.deletes import delete_in_parts
from raylay.services.client.events import (
    StartRequested,
)
from raylay.services.client.machine import ClientState
from raylay.services.client.queue import QueueOperations
from raylay.services.errors import (
    ConnectionLost,
    LocalProtocolError,
)


class Client(QueueOperations):
    """A connection to a fabric that outlives connections: publishes, subscribes, fails over.

        async with Client("orders-desk", servers=["host-a:9007", "host-b:9007"]) as client:
            await client.publish("orders", b"{}")
            await client.flush()

    Args:
        name: the client name; it makes the publisher id. Two live clients of one name throw each
            other out.
        servers: addresses in order of preference, or a callable (plain or async) that looks them
            up before each round of attempts.
        group: only instances of this group are used; empty: any that `servers` lists, and their
            peers of the same group.
        allow_other_groups: use other groups' instances as well.
        failover: `safe` (default) goes only to instances that the last one called safe; `any`.
        publish_store: what is published and not durable yet; in memory when not given.
        bookmark_store: what bookmark subscriptions have seen; not given: for as long as this
            client lives.
        tls: how it speaks TLS: a TlsConfig, or a mapping of its values (`ca_file`, `certificate`,
            `private_key`, `server_name`, …); True: by the system's CAs; None: not at all.
        heartbeat_s: a server that is silent as long is left; 0: never.
        publish_timeout_s: how long `publish` waits for room in the store.
        connect_wait_s: how long `connect` tries before it gives up.
        bookmark_flush_ms: what was seen is on disk after as long at most; a crash brings back what
            was not. 0: before the consumer is given the next batch, or behind each `discard`, at
            the price of a synced write each.
        ack_conflation_ms: upper bound by which the server may delay acks to merge them.
        sampling_ratio: share of publishes that `tracer` is told of.
        on_event: called for each ClientEvent, on the event loop; must not block.
        on_persisted: called with the highest settled sequence, once an ack.
        on_publish_failed: called for each refused publish. Without it `flush` raises the error.

    Raises:
        ConfigurationError: there is no server, an address is none, a value is out of range, a file
            of `tls` cannot be used.

    Owner: one event loop; not thread-safe (SyncClient is).
    """

    async def sow_delete_in_parts(
        self, topic: str, *, filter: str, message_type: str = "json"
    ) -> int:
        """Deletes the records of a SOW topic that pass a filter, however many there are. Up to
        50,000 it is `sow_delete`. Of more it asks for the keys, and deletes 1,000 at a time: of
        those what still passes then. So it is not of one moment: what comes to pass meanwhile may
        stay, and where it fails some are deleted: call it again.

        It waits until what this client has published is durable, so that it counts. The deletes
        are publishes: `flush` waits for them, and says what was refused.

        Returns:
            how many deletes were published.

        Raises:
            CommandFailed: the server refused the query: `no_sow`, `bad_filter`, `not_supported`.
            ConnectionLost: the connection was lost in the middle of it.
            PublishStoreFull: no room within `publish_timeout_s`.
        """
        await self._until_settled(None)
        return await delete_in_parts(self, topic, filter, message_type)

    async def connect(self) -> None:
        """Connects and logs on. Returns once a server has accepted the client.

        Raises:
            LogonRefused: a server refused the client for good.
            ConnectionLost: no server accepted it within `connect_wait_s`.
        """
        if self._loop is not None:
            raise LocalProtocolError(f"client {self.name} was started before: make a new one")
        self._loop = asyncio.get_running_loop()
        self._connected = self._loop.create_future()
        self._step(StartRequested())
        try:
            await asyncio.wait_for(asyncio.shield(self._connected), self._connect_wait_s)
        except TimeoutError:
            await self._shut_down()
            tried = "; ".join(f"{where}: {why}" for where, why in self._refusals.items())
            raise ConnectionLost(
                f"client {self.name} found no server in {self._connect_wait_s} s ({tried})"
            ) from None
        except BaseException:
            await self._shut_down()
            raise

    async def close(self, *, flush: bool = True, timeout_s: float | None = None) -> None:
        """Ends the client. With `flush` it first waits until everything published is durable, up
        to `timeout_s` (`close_timeout_s` when not given).

        Raises:
            ConnectionLost: something published is not known durable, and the store in memory ends
                with this client. A store that was handed in keeps it for the next client.
        """
        unsettled = 0
        if timeout_s is None:
            timeout_s = self.close_timeout_s
        try:
            if flush and self._error is None and self._machine.state is not ClientState.ENDED:
                try:
                    await self._until_settled(timeout_s)
                except TimeoutError:
                    unsettled = self._store.messages
            elif self._machine.gathering:
                # As what was published before it: written, and not waited for.
                self._hurry()
                await asyncio.sleep(0)
        finally:
            await self._shut_down()
        if unsettled and self._owns_store:
            raise ConnectionLost(
                f"client {self.name} closed with {unsettled} publishes that were not acknowledged "
                f"within {timeout_s} s"
            )

    async def __aenter__(self) -> Client:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=error is None)

    @property
    def instance(self) -> str:
        """The instance that the client is logged on to; empty while there is none."""
        return self._machine.instance

    @property
    def publisher(self) -> int:
        """The publisher id."""
        return self._machine.publisher

    @property
    def last_sequence(self) -> int:
        """The newest publish's sequence."""
        return self._machine.next_sequence - 1

    @property
    def persisted_sequence(self) -> int:
        """Every publish up to this sequence is durable, or was refused."""
        return self._machine.settled_upto

    @property
    def unjournaled_messages(self) -> int:
        """The number of publishes so far that are in no transaction log: their topic is declared as
        not journaled, and they went to the subscribers of the moment."""
        return self._machine.unjournaled

    def trust(self, instance: str) -> None:
        """Allows to fail over to an instance that another called unsafe. For a person who knows
        that the other is gone for good."""
        self._machine.trust(instance)
