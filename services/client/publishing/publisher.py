"""The publishing side of a client: publishes with or without waiting for room, and waits until they
are durable."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence

from raylay.services.client.application_spans import span_reader
from raylay.services.client.arguments import sample_every
from raylay.services.client.keywords import shown_value
from raylay.services.client.publishing.body_writer import Body, bodies_bytes, body_bytes
from raylay.services.client.publishing.outbox import check_values
from raylay.services.client.runtime import (
    PUBLISH_FRAME_BYTES,
    PUBLISHES_A_TURN,
    ClientRuntime,
    foreign_loop,
)
from raylay.services.errors import FlushTimeout, LocalProtocolError, PublishStoreFull, RaylayError
from raylay.services.messages.records import TRACE_BYTES, Command


class Publisher:
    """Publishes for a client.

    Args:
        runtime: runtime of the client.
        sampling_ratio: share of publishes that are reported to the client's tracer, from 0 to 1.
        timeout_s: seconds for which a publish waits for room in the store.

    Attributes:
        until_yield: number of publishes until the event loop gets a turn.

    Raises:
        ConfigurationError: the ratio is out of range.

    Owner: the client's event loop.
    """

    def __init__(self, runtime: ClientRuntime, sampling_ratio: float, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        every = sample_every(sampling_ratio)
        self._sample_every = every if runtime.tracer is not None else 0
        # Begins at a random place of the first round, so that clients with few messages are
        # sampled, too.
        self._until_sample = self._sample_every and 1 + random.randrange(self._sample_every)
        self._read_span = span_reader()
        if self._read_span is not None:
            # Each publish looks for the application's span, and the countdown runs beside that.
            self._until_own, self._until_sample = self._until_sample, 1
        self.until_yield = PUBLISHES_A_TURN

    def publish_now(
        self,
        topic: str,
        body: Body,
        message_type: str,
        expiration_s: int,
        key: bytes,
        correlation: bytes,
        command: int,
        span: bytes | None = None,
    ) -> int:
        """Publishes without waiting, with the arguments and errors of `Client.publish_nowait`.
        Returns the sequence.

        Args:
            span: context of the application's span in which it publishes; empty: there is none;
                None: the current span.
        """
        # Positional arguments: seven keyword arguments would cost as much for each message as
        # giving it a sequence.
        runtime = self._runtime
        if type(body) is not bytes:
            body = body_bytes(body, topic, message_type, runtime.machine.types)
        trace = b""
        if self._until_sample:
            self._until_sample -= 1
            if not self._until_sample:
                trace = self._sample(topic, body, command, span)
        try:
            sequence = runtime.outbox.publish(
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
            if trace and runtime.tracer is not None:
                runtime.tracer.publish_failed(runtime.outbox.next_sequence, type(error).__name__)
            raise runtime.error or error from None
        if not runtime.pump_scheduled and not runtime.outbox.gathers_on(PUBLISH_FRAME_BYTES):
            self._schedule_pump()
        return sequence

    def _schedule_pump(self) -> None:
        """Sends what was published in this turn of the loop.

        Raises:
            LocalProtocolError: the client's loop is closed, or another one runs. The messages are
                in the publish store alone.
        """
        runtime = self._runtime
        loop = runtime.loop
        assert loop is not None
        running = asyncio._get_running_loop()
        if loop.is_closed() or (running is not None and running is not loop):
            raise foreign_loop(runtime.name)
        runtime.pump_scheduled = True
        loop.call_soon(runtime.pump)

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        message_type: str,
        expiration_s: int,
        keys: Sequence[bytes] | None,
        correlation: bytes,
    ) -> list[int]:
        """Publishes several messages, with the arguments and errors of `Client.publish_many`.
        Returns the sequence of each."""
        runtime = self._runtime
        written = bodies_bytes(bodies, topic, message_type, runtime.machine.types)
        self._check_all(topic, written, message_type, expiration_s, keys, correlation)
        sequences: list[int] = []
        while len(sequences) < len(written):
            at = len(sequences)
            turn = slice(at, at + runtime.publishes_a_turn)
            turn_keys = [b""] * len(written[turn]) if keys is None else keys[turn]
            values = message_type, expiration_s, turn_keys, correlation
            try:
                self._publish_turn(sequences, topic, written[turn], *values)
            except PublishStoreFull:
                try:
                    await self.room(None)
                except PublishStoreFull as error:
                    raise PublishStoreFull(
                        f"{error}; the first {len(sequences)} of {len(written)} messages were "
                        "published"
                    ) from None
            else:
                await self.yield_to_loop()
        return sequences

    def _check_all(
        self,
        topic: str,
        bodies: list[bytes],
        message_type: str,
        expiration_s: int,
        keys: Sequence[bytes] | None,
        correlation: bytes,
    ) -> None:
        """Checks all messages before the first one is published."""
        if keys is not None and not isinstance(keys, list | tuple):
            raise TypeError(
                f"publish_many to {topic}: keys is of type {type(keys).__name__}, and has to be a "
                "list of SOW keys, each as bytes"
            )
        if keys is not None and len(keys) != len(bodies):
            raise LocalProtocolError(
                f"publish_many to {topic}: there are {len(keys)} keys for {len(bodies)} bodies: "
                "give each body its key"
            )
        for key in keys or (b"",):
            check_values(expiration_s, key, correlation)
        longest = max(map(len, bodies), default=0)
        value_bytes = len(correlation) + max(map(len, keys or ()), default=0)
        self._runtime.outbox.check_sizes(topic, message_type, longest, value_bytes)

    def _publish_turn(
        self,
        sequences: list[int],
        topic: str,
        bodies: list[bytes],
        message_type: str,
        expiration_s: int,
        keys: Sequence[bytes],
        correlation: bytes,
    ) -> None:
        """Publishes the messages of one turn of the event loop, and appends the sequence of each
        to `sequences`."""
        runtime = self._runtime
        if self._until_sample:
            for body, key in zip(bodies, keys, strict=True):
                values = message_type, expiration_s, key, correlation, 0
                sequences.append(self.publish_now(topic, body, *values))
            return
        # Origin times ascend, and the clock is read once a turn.
        values_of_all = message_type, time.time_ns() // 1000, expiration_s, keys, correlation
        try:
            runtime.outbox.publish_many(sequences, topic, bodies, *values_of_all)
        except RaylayError as error:
            raise runtime.error or error from None
        finally:
            if not runtime.pump_scheduled and not runtime.outbox.gathers_on(PUBLISH_FRAME_BYTES):
                self._schedule_pump()

    def _sample(self, topic: str, body: bytes, command: int, span: bytes | None) -> bytes:
        """Returns the trace context of a publish whose turn it is; empty: it is not traced."""
        parent = b""
        if self._read_span is None:
            self._until_sample = self._sample_every
        else:
            self._until_sample = 1
            # An acknowledgment is sent by a timer, whose context is that of any earlier call.
            if command != Command.QUEUE_ACKNOWLEDGMENT:
                parent = self._read_span() if span is None else span
            if not parent:
                self._until_own -= 1
                if self._until_own:
                    return b""
                self._until_own = self._sample_every
        runtime = self._runtime
        sequence = runtime.machine.outbox.next_sequence
        if runtime.store.full or not sequence:
            return b""
        if runtime.tracer is None:
            return parent
        attributes = {"body_bytes": len(body), **runtime.server_attributes()}
        trace = runtime.tracer.publish_started(sequence, topic, attributes, parent)
        if type(trace) is not bytes or len(trace) not in (0, TRACE_BYTES):
            # An instance ends the connection for such a record.
            raise LocalProtocolError(
                f"publish to {topic}: publish_started of the tracer returned {shown_value(trace)}: "
                f"give the {TRACE_BYTES} bytes of a trace context, or none"
            )
        return trace

    async def publish_when_room(
        self,
        topic: str,
        body: Body,
        message_type: str,
        expiration_s: int,
        key: bytes,
        correlation: bytes,
        command: int,
    ) -> int:
        """Publishes once there is room in the store. Returns the sequence.

        Raises:
            PublishStoreFull: no room within the timeout; nothing was published.
        """
        # Once, and not again at each attempt.
        body = body_bytes(body, topic, message_type, self._runtime.machine.types)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            await self.room(deadline_s - time.monotonic())
            try:
                return self.publish_now(
                    topic, body, message_type, expiration_s, key, correlation, command
                )
            except PublishStoreFull:
                continue

    async def yield_to_loop(self) -> None:
        """Lets the event loop run, so that acknowledgments and sockets are attended to."""
        self.until_yield = self._runtime.publishes_a_turn
        await asyncio.sleep(0)

    async def room(self, timeout_s: float | None) -> None:
        """Waits until the store has room, with the arguments and errors of `Client.room`."""
        runtime = self._runtime
        if timeout_s is None:
            timeout_s = self._timeout_s
        deadline_s = time.monotonic() + timeout_s
        while runtime.store.full:
            waiter = runtime.own_loop().create_future()
            runtime.room_waiters.append(waiter)
            try:
                await runtime.while_reading(waiter, max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                raise PublishStoreFull(
                    f"publish store of {runtime.name} stayed full with {runtime.store.messages} "
                    f"messages: no acknowledgment made room within {timeout_s:.3g} s; "
                    f"{runtime.status}"
                ) from None

    async def flush(self, timeout_s: float | None) -> None:
        """Waits until what was published is durable, with the arguments and errors of
        `Client.flush`."""
        await self.until_settled(timeout_s)
        failures = self._runtime.outbox.failures
        if failures and self._runtime.callbacks.on_publish_failed is None:
            raise failures.popleft().error

    async def until_settled(self, timeout_s: float | None) -> None:
        """Waits until everything published so far is durable, or was refused.

        Raises:
            FlushTimeout: not within `timeout_s`.
            RaylayError: what ended the client.
        """
        runtime = self._runtime
        machine = runtime.machine
        if runtime.error is not None:
            raise runtime.error
        target = machine.outbox.next_sequence - 1
        if target <= machine.outbox.settled_upto:
            return
        waiter = runtime.own_loop().create_future()
        runtime.settled_waiters.append((target, waiter))
        runtime.hurry()
        if machine.options.ack_conflation_ms and runtime.connection is not None:
            # The caller waits, so the server need not delay the ack any longer.
            runtime.pump()
            runtime.connection.send({"c": "flush", "cid": "flush", "a": "persisted"})
        try:
            await runtime.while_reading(waiter, timeout_s)
        except TimeoutError:
            first = machine.outbox.settled_upto + 1
            # Records that the store refuses are not sent.
            failure = runtime.store_failure
            why = f"{runtime.status}; they stay in the publish store"
            if failure is not None:
                why = f"the publish store cannot be written: {failure}; {runtime.status}"
            raise FlushTimeout(
                f"{max(0, target + 1 - first)} messages of {runtime.name}, {first} to {target}, "
                f"are not acknowledged after {timeout_s:.3g} s: {why}"
            ) from None
