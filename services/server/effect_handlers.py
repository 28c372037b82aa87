"""Handlers of the machine's effects: one table, one method for each effect.

The handlers decide nothing. The order in which a commit is performed is a rule: links are told
first, then acks go out, then the features fold (services/core/effect_loop.py,
services/core/commit_cycle.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.core.commit_cycle import notify_links
from raylay.services.replication.effects import (
    AckClient,
    AckUpstream,
    Append,
    BecameReady,
    CloseSession,
    CloseUpstream,
    EventReport,
    NotifyLink,
    PlacementsChanged,
    RefuseClient,
    RemovalBound,
    RunsCommitted,
    SafetyChanged,
    SetLinkMode,
)
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.commit_traces import CommitTraces
from raylay.services.server.commits import Commits
from raylay.services.server.data.recovery import RecoveryPoints
from raylay.services.server.links.control import Links
from raylay.services.server.links.link_occurrences import tell_event
from raylay.services.server.links.upstream_connection import ConnectedUpstreams
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager


class EffectHandlers:
    """The methods that perform the machine's effects, bound to the runtime's `EffectTable`.

    Owner: the instance's event loop.

    Args:
        endings: performs the effects that end the instance.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        *,
        clients: ClientSessions,
        commits: Commits,
        links: Links,
        queues: QueueManager,
        recovery: RecoveryPoints,
        replays: ReplayPump,
        sow: SowManager,
        upstreams: ConnectedUpstreams,
        endings: Mapping[type, Callable[[Any], None]],
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._clients = clients
        self._commits = commits
        self._cycle = commits.cycle
        self._links = links
        self._queues = queues
        self._recovery = recovery
        self._replays = replays
        self._sow = sow
        self._upstreams = upstreams
        self._traces = CommitTraces(instance, upstreams)
        performers: dict[type, Callable[[Any], None]] = {
            Append: self._append,
            RunsCommitted: self._committed,
            AckClient: self._ack_client,
            RefuseClient: self._refuse_client,
            AckUpstream: self._ack_upstream,
            CloseUpstream: self._close_upstream,
            CloseSession: self._close_session,
            NotifyLink: self._notify_link,
            SetLinkMode: self._set_link_mode,
            SafetyChanged: self._safety_changed,
            RemovalBound: self._removable,
            PlacementsChanged: self._placements_changed,
            BecameReady: self._became_ready,
            EventReport: self._report,
            **endings,
        }
        self._instance.effects.bind(performers, self._folded)

    def _folded(self) -> None:
        self._commits.folded()
        self._runtime.outbox.flush()

    def _append(self, effect: Append) -> None:
        self._cycle.stage(effect.run)
        if self._runtime.is_resting:
            self._runtime.hurry()
        if self._replays.live:
            self._replays.staged(effect.run)

    def _committed(self, effect: RunsCommitted) -> None:
        runs = effect.runs
        if self._links.controls:
            notify_links(self._links.controls, self._instance.machine.destinations, effect)
        self._commits.taken(runs)
        if self._instance.tracing.enabled:
            self._traces.committed(runs)

    def _ack_client(self, effect: AckClient) -> None:
        client = self._clients.sessions.get(effect.session)
        if client is not None:
            client.persisted(effect)
            if self._traces.outstanding:
                self._traces.acked(client.publisher, effect.sequence)

    def _refuse_client(self, effect: RefuseClient) -> None:
        client = self._clients.sessions.get(effect.session)
        if client is not None:
            client.refused(effect)

    def _ack_upstream(self, effect: AckUpstream) -> None:
        upstream = self._upstreams.connected.get(effect.connection)
        if upstream is not None:
            upstream.acknowledge(effect)

    def _close_upstream(self, effect: CloseUpstream) -> None:
        upstream = self._upstreams.connected.get(effect.connection)
        if upstream is not None:
            upstream.refuse(effect.reason, effect.text)

    def _close_session(self, effect: CloseSession) -> None:
        client = self._clients.sessions.get(effect.session)
        if client is not None:
            client.end(effect.reason, effect.text)

    def _notify_link(self, effect: NotifyLink) -> None:
        self._links.controls[effect.destination].notice(effect.awaited, effect.last_txid)

    def _set_link_mode(self, effect: SetLinkMode) -> None:
        self._links.controls[effect.destination].mode(effect.sync)

    def _safety_changed(self, _: SafetyChanged) -> None:
        self._clients.safety_changed()

    def _removable(self, effect: RemovalBound) -> None:
        if self._runtime.is_serving:
            # A link that ends because this instance stops takes back none of the acks that it
            # released.
            self._sow.removable(effect.before_txid)

    def _placements_changed(self, effect: PlacementsChanged) -> None:
        self._links.aim(effect.news)
        for upstream in list(self._upstreams.connected.values()):
            upstream.placed(effect.news)
        # Clients are told the present addresses of the peers.
        self._clients.safety_changed()

    def _became_ready(self, _: BecameReady) -> None:
        self._runtime.phase = "serving"
        self._queues.became_ready()
        self._runtime.spawn(self._recovery.note_ready())

    def _report(self, effect: EventReport) -> None:
        self._runtime.events_log.add(effect.event, effect.details)
        tell_event(self._runtime.occurrences, effect.event, effect.details, self._links.controls)
