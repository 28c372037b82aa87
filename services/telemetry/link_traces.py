"""Spans of the batches that a link sends: from the read to the stored answer, and from there to the
persisted one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from raylay.services.messages.ranges import Range
from raylay.services.messages.records import Flag, Run
from raylay.services.telemetry.tracing import OutstandingSamples, TracedMessage, Tracing, traced

_TRACED = int(Flag.TRACED)


class LinkTraces:
    """The spans of one destination's messages.

    Owner: the sender to one destination. Lifecycle: one connection.

    Args:
        instance, peer: the sending and the receiving instance.
        epoch: the epoch of the connection.
    """

    def __init__(self, tracing: Tracing, instance: str, peer: str, epoch: int) -> None:
        self._tracing = tracing
        self._instance = instance
        self._peer = peer
        self._epoch = epoch
        self._sends: deque[tuple[int, int, list[TracedMessage]]] = deque()
        self._outstanding = OutstandingSamples()

    def sent(self, number: int, runs: Sequence[Run]) -> None:
        if self._tracing.enabled:
            found = [m for run in runs if run.flags & _TRACED for m in traced(run.payload)]
            if found:
                self._sends.append((number, time.time_ns(), found))

    def acked(
        self,
        number: int,
        persisted: Mapping[int, Mapping[int, Sequence[Range]]],
        at_ns: int,
    ) -> None:
        """Ends the spans of stored batches up to `number`, and of persisted messages. `at_ns`: the
        time of the answer; 0: unknown."""
        if not self._sends and not self._outstanding:
            return
        now_ns = time.time_ns()
        while self._sends and self._sends[0][0] <= number:
            _, sent_ns, messages = self._sends.popleft()
            self._tracing.link_send(
                messages,
                sent_ns,
                now_ns,
                instance=self._instance,
                destination=self._peer,
                epoch=self._epoch,
            )
            self._outstanding.add(messages, sent_ns)
        if not self._outstanding:
            return
        for answered in persisted.values():
            for publisher, ranges in answered.items():
                taken = self._outstanding.take(publisher, ranges)
                if taken:
                    self._tracing.persisted_ack(
                        [message for message, _ in taken],
                        at_ns or now_ns,
                        now_ns,
                        instance=self._peer,
                        upstream=self._instance,
                        epoch=self._epoch,
                    )
