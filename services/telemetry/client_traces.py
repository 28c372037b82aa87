"""Spans of a client's sampled messages: of its publishes, its deliveries and its acknowledgments
(docs/tracing.md)."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import NamedTuple

from raylay.services.messages.records import publisher_id
from raylay.services.telemetry.span_export import Attributes
from raylay.services.telemetry.tracing import (
    ACKNOWLEDGMENT,
    COMMIT,
    DELIVERY,
    OUTSTANDING_MAX_DEFAULT,
    PUBLISH,
    Tracing,
    derived,
    new_context,
)


class _PendingAcknowledgment(NamedTuple):
    """An acknowledgment that is not durable yet. `sequence`: the sequence of its record."""

    sequence: int
    parent: bytes
    start_ns: int
    attributes: Attributes


class _OutstandingPublish(NamedTuple):
    """A publish that is not durable yet. `parent_id`: that of the application's span, or empty."""

    context: bytes
    parent_id: bytes
    start_ns: int
    attributes: Attributes


class ClientTracer:
    """Records spans of a client's sampled messages. The number of messages that wait for their ack
    is limited.

    Owner: the client's event loop. Publishes come in ascending sequences.
    """

    def __init__(
        self,
        tracing: Tracing,
        client_name: str,
        outstanding_max: int = OUTSTANDING_MAX_DEFAULT,
    ) -> None:
        self._tracing = tracing
        self._publisher = publisher_id(client_name)
        self._client_name = client_name
        self._outstanding_max = outstanding_max
        self._outstanding: OrderedDict[int, _OutstandingPublish] = OrderedDict()
        self._taken: OrderedDict[str, bytes] = OrderedDict()
        """Spans of deliveries from queues that were not acknowledged yet, by the message's
        bookmark."""
        self._acknowledged: deque[_PendingAcknowledgment] = deque()
        self.sample_every = tracing.sample_every
        """The N where one in N publishes is to be reported to `publish_started`; 0: none is."""

    def publish_started(
        self, sequence: int, topic: str, attributes: Attributes, parent: bytes = b""
    ) -> bytes:
        """Begins the span of a publish. Returns the 25 bytes that its record carries.

        Args:
            attributes: the message's `body_bytes`, and `server_address` and `server_port`.
            parent: the context of the application's current span, whose trace this publish joins;
                empty: the trace begins here.
        """
        context = new_context()
        if parent:
            context = parent[:16] + context[16:]
        self._outstanding[sequence] = _OutstandingPublish(
            context, parent[16:24], time.time_ns(), {"topic": topic, **attributes}
        )
        if len(self._outstanding) > self._outstanding_max:
            self._finish(next(iter(self._outstanding)), {"outcome": "forgotten"})
        return context

    def publish_persisted(self, sequence: int) -> None:
        """Ends the spans of all publishes and acknowledgments up to `sequence`, which are durable
        now."""
        while self._acknowledged and self._acknowledged[0].sequence <= sequence:
            self._end(self._acknowledged.popleft(), "persisted")
        outstanding = self._outstanding
        while outstanding:
            lowest = next(iter(outstanding))
            if lowest > sequence:
                return
            self._finish(lowest, {"outcome": "persisted"})

    def publish_failed(self, sequence: int, reason: str) -> None:
        """Ends the spans of one sequence, if it has any, because the server refused it."""
        for each in [each for each in self._acknowledged if each.sequence == sequence]:
            self._acknowledged.remove(each)
            self._end(each, "failed", reason)
        if sequence in self._outstanding:
            self._finish(sequence, {"outcome": "failed", "reason": reason})

    def _finish(self, sequence: int, outcome: Attributes) -> None:
        context, parent_id, start_ns, given = self._outstanding.pop(sequence)
        attributes = {
            "bookmark": f"{self._publisher}|{sequence}|",
            **given,
            "client": self._client_name,
            **outcome,
        }
        self._tracing.root(PUBLISH, context, start_ns, time.time_ns(), attributes, parent_id)

    def delivered(
        self, trace: bytes, attributes: Attributes, start_ns: int = 0, end_ns: int = 0
    ) -> None:
        """Reports a delivery to this client.

        Args:
            trace: the 25 bytes of the record.
            attributes: `bookmark`, `topic`, `body_bytes`, `instance` (the one that delivered it),
                its `server_address` and `server_port`, and `subscription`; for a queue's message
                also `queue`.
            start_ns: the time at which the instance received the message, or sent it from a queue;
                0: now.
            end_ns: the time at which the consumer got it; 0: now.
        """
        now_ns = time.time_ns()
        instance = str(attributes.get("instance", ""))
        parent = derived(trace, COMMIT, instance) if instance else trace
        own = b""
        if "queue" in attributes:
            subscription = str(attributes.get("subscription", ""))
            places = instance, self._client_name, subscription, start_ns // 1000
            parent = derived(trace, DELIVERY, *places)
            own = derived(trace, DELIVERY, *places, "client")
            self._taken[str(attributes["bookmark"])] = own
            if len(self._taken) > self._outstanding_max:
                self._taken.popitem(last=False)
        self._tracing.span(
            DELIVERY,
            parent,
            start_ns or now_ns,
            end_ns or now_ns,
            {**attributes, "client": self._client_name},
            own=own,
        )

    def acknowledged(
        self, sequence: int, trace: bytes, attributes: Attributes, start_ns: int
    ) -> None:
        """Begins the span of an acknowledgment, which ends when the acknowledgment is persisted.
        Beyond the limit the oldest waiting ones are forgotten.

        Args:
            sequence: the sequence of the acknowledgment's record; ascending.
            trace: the 25 bytes of the message's record.
            attributes: `bookmark` and `topic` of the message, and `queue`.
            start_ns: the time at which the application acknowledged.
        """
        parent = self._taken.pop(str(attributes["bookmark"]), trace)
        said = {"client": self._client_name, "by": f"{self._publisher}|{sequence}|"}
        self._acknowledged.append(
            _PendingAcknowledgment(sequence, parent, start_ns, {**attributes, **said})
        )
        if len(self._acknowledged) > self._outstanding_max:
            self._end(self._acknowledged.popleft(), "forgotten")

    def _end(self, said: _PendingAcknowledgment, outcome: str, reason: str = "") -> None:
        _, parent, start_ns, attributes = said
        became = {"outcome": outcome} | ({"reason": reason} if reason else {})
        now_ns = time.time_ns()
        self._tracing.span(ACKNOWLEDGMENT, parent, start_ns, now_ns, {**attributes, **became})

    def close(self) -> None:
        """Ends the spans of publishes and acknowledgments without an ack, whose outcome is
        unknown."""
        while self._outstanding:
            self._finish(next(iter(self._outstanding)), {"outcome": "unknown"})
        while self._acknowledged:
            self._end(self._acknowledged.popleft(), "unknown")
        self._tracing.flush()
