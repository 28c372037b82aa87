"""Publishing by a client: with or without waiting, and waiting for what was published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from raylay.services.client.base import (
    PUBLISH_FRAME_BYTES,
    ClientBase,
)
from raylay.services.client.deletes import delete_body
from raylay.services.errors import (
    FlushTimeout,
    PublishStoreFull,
    RaylayError,
)
from raylay.services.messages.records import Command

DELTA_PUBLISH = 6


class PublishOperations(ClientBase):
    """The publisher's side of a client."""

    def publish_nowait(
        self,
        topic: str,
        body: bytes,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> int:
        """Publishes without waiting. Returns the sequence. It is sent in this turn of the loop, or
        with the answer to what was published just before (outbox.py).

        Args:
            topic: literal.
            body: the message.
            message_type: of the body.
            expiration_s: seconds after which its record of a SOW topic is gone; 0: as the topic is
                configured.
            key: the SOW key, on a topic whose publishers give it.
            correlation: handed to who gets the message.
            command: of the record, for `delta_publish` and `sow_delete`; 0: a publish.

        Raises:
            PublishStoreFull: there is no room in the store; nothing was published.
            LocalProtocolError: topic, message type or size break a limit; nothing was published.
        """
        return self._publish_now(topic, body, message_type, expiration_s, key, correlation, command)

    def _publish_now(
        self,
        topic: str,
        body: bytes,
        message_type: str,
        expiration_s: int,
        key: bytes,
        correlation: bytes,
        command: int,
    ) -> int:
        # By place: seven names cost each message of `publish` as much as its number does.
        trace = b""
        if self._until_sample:
            self._until_sample -= 1
            if not self._until_sample:
                trace = self._sample(topic)
        try:
            sequence = self._machine.publish(
                topic,
                body,
                message_type,
                time.time_ns() // 1000,
                trace,
                expiration_s,
                key,
                correlation,
                command,
            )
        except RaylayError as error:
            if trace and self._tracer is not None:
                self._tracer.publish_failed(self._machine.next_sequence, str(error))
            raise self._error or error from None
        if not self._pump_scheduled and not self._machine.gathers_on(PUBLISH_FRAME_BYTES):
            self._pump_scheduled = True
            assert self._loop is not None
            self._loop.call_soon(self._pump)
        return sequence

    def _sample(self, topic: str) -> bytes:
        self._until_sample = self._sample_every
        machine = self._machine
        if self._tracer is None or self._store.full or not machine.next_sequence:
            return b""
        return self._tracer.publish_started(machine.next_sequence, topic)

    async def publish(
        self,
        topic: str,
        body: bytes,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        command: int = 0,
    ) -> int:
        """Publishes. Returns the sequence at once; waits only for room in the store. The arguments
        are those of `publish_nowait`.

        Raises:
            PublishStoreFull: no room within `publish_timeout_s`; nothing was published.
            LocalProtocolError: topic, message type or size break a limit; nothing was published.
        """
        try:
            sequence = self._publish_now(
                topic, body, message_type, expiration_s, key, correlation, command
            )
        except PublishStoreFull:
            deadline_s = time.monotonic() + self._publish_timeout_s
            while True:
                await self.room(deadline_s - time.monotonic())
                try:
                    return self._publish_now(
                        topic, body, message_type, expiration_s, key, correlation, command
                    )
                except PublishStoreFull:
                    continue
        self._until_yield -= 1
        if not self._until_yield:
            self._until_yield = self._publishes_a_turn
            await asyncio.sleep(0)
        return sequence

    async def delta_publish(
        self,
        topic: str,
        body: bytes,
        message_type: str = "json",
        *,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
    ) -> int:
        """Publishes fields that change: the instance merges them into the record of their key, and
        journals, replicates and delivers the whole message. Where there is no record yet, or the
        topic has no SOW, the body is the message. Returns and raises as `publish`.

        `flush` raises CommandFailed where the instance could not merge it: `bad_message`,
        `bad_key`, `too_large`, or `not_supported` by the message type or the topic.
        """
        return await self.publish(
            topic,
            body,
            message_type,
            expiration_s=expiration_s,
            key=key,
            correlation=correlation,
            command=DELTA_PUBLISH,
        )

    async def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[bytes] | None = None,
        data: bytes | None = None,
        message_type: str = "json",
    ) -> int:
        """Deletes records of a SOW topic: here, and wherever the topic is replicated to. Give one
        of `filter`, `keys` and `data`, or a filter with keys: of those what passes. Returns and
        raises as `publish`; it is kept, sent again and acknowledged as a publish is.

        Args:
            filter: those that pass it; `1=1`: all. 50,000 at most: see `sow_delete_in_parts`.
            keys: those with these SOW keys (`Message.key`).
            data: the one that a message with this body has the key of.
            message_type: of the topic, and of `data`.

        Raises:
            LocalProtocolError: none or several of the three are given; nothing was deleted. `flush`
                raises CommandFailed for what the instance refused: `no_sow`, `bad_filter`,
                `bad_message`, `bad_key`, `too_many`.
        """
        body = delete_body(filter, keys, data)
        return await self.publish(topic, body, message_type, command=Command.DELETE)

    async def room(self, timeout_s: float | None = None) -> None:
        """Waits until the publish store has room; `publish_timeout_s` when no time is given.

        Raises:
            PublishStoreFull: it stayed full.
            RaylayError: what ended the client.
        """
        if timeout_s is None:
            timeout_s = self._publish_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while self._store.full:
            self._raise_if_ended()
            assert self._loop is not None
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            try:
                await self._while_reading(waiter, max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                raise PublishStoreFull(
                    f"publish store of {self.name} stayed full with {self._store.messages} "
                    f"messages: no acknowledgment made room within {timeout_s:.3g} s; {self.status}"
                ) from None

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until everything published so far is durable. What was published to a topic that
        is declared as not journaled counts when it was delivered (`unjournaled_messages`).

        Raises:
            CommandFailed: a publish was refused, and there is no `on_publish_failed` to tell: its
                topic is `not_journaled`, say. Each refusal is raised once; `SequenceConflict` is
                one kind.
            FlushTimeout: not within `timeout_s`; says what is not acknowledged, and why.
            RaylayError: what ended the client.
        """
        await self._until_settled(timeout_s)
        failures = self._machine.failures
        if failures and self.on_publish_failed is None:
            raise failures.popleft().error

    async def _until_settled(self, timeout_s: float | None) -> None:
        if self._error is not None:
            raise self._error
        target = self._machine.next_sequence - 1
        if target <= self._machine.settled_upto:
            return
        self._raise_if_ended()
        assert self._loop is not None
        waiter = self._loop.create_future()
        self._settled_waiters.append((target, waiter))
        self._hurry()
        if self._machine.options.ack_conflation_ms and self._connection is not None:
            # Somebody waits: the server need not keep the ack back any longer.
            self._pump()
            self._connection.send({"c": "flush", "cid": "flush", "a": "persisted"})
        try:
            await self._while_reading(waiter, timeout_s)
        except TimeoutError:
            first = self._machine.settled_upto + 1
            # What the store does not take is not sent.
            failure = self._store_failure
            why = f"{self.status}; they stay in the publish store"
            if failure is not None:
                why = f"the publish store cannot be written: {failure}; {self.status}"
            raise FlushTimeout(
                f"{max(0, target + 1 - first)} messages of {self.name}, {first} to {target}, are "
                f"not acknowledged after {timeout_s:.3g} s: {why}"
            ) from None
