"""Spans of what a link sends: from read to stored, and from there to the persisted answer."""

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

    Owner: who sends for one destination. Lifecycle: one connection.

    Args:
        instance, peer: who sends to whom.
        epoch: of the connection.
    """

    def __init__(self, tracing: Tracing, instance: str, peer: str, epoch: int) -> None:
        self._tracing = tracing
        self._instance = instance
        self._peer = peer
        self._epoch = epoch
        self._sends: deque[tuple[int, int, list[TracedMessage]]] = deque()
        self._outstanding = OutstandingSamples()

    def sent(self, number: int, runs: Sequence[Run]) -> None:
        """A batch goes out."""
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
        """Batches up to `number` are stored, these are persisted; said at `at_ns`, or it is not
        known when."""
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
