"""Spans of traced messages: of the commits that wrote them and of the acks that their publishers
got.

Only traced messages come here (services/telemetry/tracing.py); no other message costs a call.
"""

from __future__ import annotations

import time

from raylay.services.messages.records import Flag, Kind, Run
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.telemetry.tracing import OutstandingSamples, traced

_TRACED = int(Flag.TRACED)
_RECORDS = int(Kind.RECORDS)


class CommitTraces:
    """The spans of commits and of acknowledgments to publishers.

    Owner: the instance's event loop.
    """

    def __init__(self, instance: RecoveredInstance, upstreams: ConnectedUpstreams) -> None:
        self._instance = instance
        self._upstreams = upstreams
        self.outstanding = OutstandingSamples()
        """Clients' traced messages that are not acknowledged yet."""

    def committed(self, runs: list[Run]) -> None:
        for run in runs:
            if run.flags & _TRACED and run.kind == _RECORDS:
                self._committed(run)

    def _committed(self, run: Run) -> None:
        messages = traced(run.payload)
        now_ns = time.time_ns()
        upstream, epoch = "", 0
        if run.path:
            for connection in self._upstreams.connected.values():
                logon = connection.logon
                if logon is not None and logon.incarnation == run.path[-1]:
                    upstream, epoch = logon.name, logon.epoch
        else:
            self.outstanding.add(messages, now_ns)
        self._instance.tracing.commit(
            messages,
            run.receive_time_us * 1000,
            now_ns,
            instance=self._instance.identity.name,
            upstream=upstream,
            epoch=epoch,
            txid=run.first_txid,
        )

    def acked(self, publisher: int, sequence: int) -> None:
        """Reports the acknowledgment of a publisher's traced messages up to this sequence."""
        taken = self.outstanding.take(publisher, [(0, sequence)])
        if taken:
            now_ns = time.time_ns()
            self._instance.tracing.persisted_ack(
                [message for message, _ in taken],
                now_ns,
                now_ns,
                instance=self._instance.identity.name,
            )
