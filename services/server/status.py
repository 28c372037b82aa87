"""The status of an instance for people, its figures for metrics, and its rates."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.readable import UNREADABLE
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.server.certificate_watch import CertificateWatch
from raylay.services.server.clients.admission import ClientAdmission, unserved
from raylay.services.server.clients.client_status import connection_status, consumer_status
from raylay.services.server.clients.named_readers import ReaderHolds
from raylay.services.server.clients.replay import ReplayPump
from raylay.services.server.clients.sessions import ClientSessions
from raylay.services.server.commits import Commits
from raylay.services.server.control import ControlAccess
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.links.bootstrap import BootstrapRun
from raylay.services.server.links.control import Links
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.subscriptions.costly import given_up_count
from raylay.services.subscriptions.status import subscription_status
from raylay.services.telemetry import logs

SNAPSHOT_WAIT_S = 1.0
EXAMPLES_MAX = 3
"""Number of example ranges of unacked messages that the status names for a destination."""
TOPICS_SHOWN_MAX = 1_000
RANGES_SHOWN_MAX = 100
"""Limit on the ranges of unavailable messages in the status."""


class StartStatus:
    """The part of the status that an instance has from the beginning of its start. Read on any
    thread.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Attributes:
        listening: the listening sockets; None: they are not open yet.
        bootstrap: the bootstrap that fills or filled the instance in this life; None: there was
            none.
    """

    def __init__(self, runtime: InstanceRuntime, control: ControlAccess) -> None:
        self._runtime = runtime
        self._control = control
        self._started_s = time.time()
        self.listening: InstanceListeners | None = None
        self.bootstrap: BootstrapRun | None = None

    def status(self, state: str, reason: str) -> dict[str, Any]:
        """Returns the status.

        Args:
            state: the state of the instance, a word.
            reason: why no client is admitted; empty: clients are admitted.
        """
        runtime, listening = self._runtime, self.listening
        found: dict[str, Any] = {
            "name": runtime.config.name,
            "group": runtime.config.group,
            "state": state,
            "phase": runtime.phase,
            "reason": reason,
            "ready": False,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - self._started_s, 1),
            "started_us": int(self._started_s * 1e6),
            "client_address": runtime.client_address,
            "client_transports": {} if listening is None else listening.more_client_addresses,
            "transports": [] if listening is None else listening.status(),
            "control_problem": self._control.problem,
            "replication_address": runtime.replication_address,
            "last_event": runtime.events_log.last_number,
        }
        if self.bootstrap is not None:
            found["bootstrap"] = self.bootstrap.status()
        return found

    def unserved(self) -> dict[str, Any]:
        """Returns the status of an instance that does not serve."""
        runtime = self._runtime
        state = "stopping" if runtime.is_stopping else "recovering"
        return self.status("retired" if runtime.retirement else state, unserved(runtime)[1])


class InstanceStatus:
    """Collects the status of an instance; changes nothing. Owner: the instance's event loop, except
    for `snapshot_from_thread`."""

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        *,
        admission: ClientAdmission,
        certificates: CertificateWatch,
        clients: ClientSessions,
        commits: Commits,
        deliveries: QueueDeliveries,
        links: Links,
        queues: QueueManager,
        reader_holds: ReaderHolds,
        reading: JournalReads,
        replays: ReplayPump,
        sow: SowManager,
        start: StartStatus,
    ) -> None:
        self._runtime = runtime
        self._instance = instance
        self._admission = admission
        self._certificates = certificates
        self._clients = clients
        self._commits = commits
        self._deliveries = deliveries
        self._links = links
        self._reader_holds = reader_holds
        self._reading = reading
        self._replays = replays
        self._queues = queues
        self._sow = sow
        self._start = start
        self._rates: dict[str, float] = {}
        self._rates_before: tuple[float, int, int, int] = (0.0, 0, 0, 0)

    @property
    def delivered(self) -> int:
        clients = self._clients
        return clients.delivered + self._deliveries.delivered + self._replayed

    @property
    def _replayed(self) -> int:
        return self._replays.delivered + self._replays.conflated.delivered

    def measure(self) -> None:
        """Called each second. Updates the rates."""
        counters = self._instance.machine.counters
        now_s = self._runtime.loop.time()
        before_s, published, persisted, delivered = self._rates_before
        spent_s = now_s - before_s
        if before_s:
            self._rates = {
                "published_per_s": round((counters.published - published) / spent_s, 1),
                "persisted_per_s": round((counters.persisted - persisted) / spent_s, 1),
                "delivered_per_s": round((self.delivered - delivered) / spent_s, 1),
            }
        self._rates_before = (now_s, counters.published, counters.persisted, self.delivered)

    def status(self) -> dict[str, Any]:
        found = self.brief()
        if not self._runtime.is_serving:
            return found
        machine = self._instance.machine
        found.update(
            unavailable_ranges=[
                [publisher, first, last]
                for publisher, (first, last) in itertools.islice(
                    machine.missing.ranges.items(), RANGES_SHOWN_MAX
                )
            ],
            clients=[client.client_name for client in self._clients.sessions.values()],
            connections=connection_status(
                self._clients.sessions, self._clients.pools, self._deliveries.subscribed
            ),
            consumers=self._consumers(),
            topics=self._instance.journal.topics.most(TOPICS_SHOWN_MAX),
            subscribers=subscription_status(
                self._clients.sessions.values(), machine.committed_txid
            ),
        )
        return found

    def _consumers(self) -> list[dict[str, Any]]:
        frontends = (each.frontend for each in self._queues.controls.values())
        return consumer_status(frontends, self._clients.sessions, self._queues.steady_us())

    def brief(self) -> dict[str, Any]:
        """Returns the status without what grows with the number of clients or topics."""
        if not self._runtime.is_serving:
            return self._start.unserved()
        found = self._start.status(self._state(), self._admission.reason())
        machine = self._instance.machine
        counters = machine.counters
        topics = self._instance.journal.topics
        logged = machine.intake.messages_on_disk
        messages = topics.messages if topics.is_counted else logged
        entries = machine.committed_txid - self._reading.first_txid + 1
        found.update(
            ready=machine.ready,
            incarnation=f"{self._instance.identity.incarnation:016x}",
            generation=self._instance.identity.generation,
            moved=[
                {"name": name, **placement._asdict()}
                for name, placement in machine.placements.items().items()
            ],
            first_txid=self._reading.first_txid,
            committed_txid=machine.committed_txid,
            messages=messages,
            messages_logged=logged,
            notes=max(0, entries - messages),
            next_txid=machine.next_txid,
            durable_txid=machine.fully_durable_txid(),
            pending=machine.pending.count,
            published=counters.published,
            replicated_in=counters.replicated_in,
            duplicates=counters.duplicates,
            late=counters.late,
            conflicts=counters.conflicts,
            publisher_conflicts=counters.publisher_conflicts,
            publisher_names=len(machine.publisher_names),
            connection_faults=self._runtime.faults_contained,
            filters_given_up=given_up_count(),
            runs_unreadable=UNREADABLE.count,
            shares_reached=dict(self._runtime.shares_reached),
            unavailable=machine.missing.ranges.count,
            commits=counters.commits,
            persisted=counters.persisted,
            delivered=self.delivered,
            deliveries={
                "live": self._clients.delivered,
                "bookmark": self._replayed,
                "queue": self._deliveries.delivered,
                "rows": self._clients.queries.rows,
            },
            **self._commits.status(),
            retention_held=self._reader_holds.retention_held,
            readers=self._reader_holds.status(),
            certificates=self._certificates.status(),
            **self._sow.status(),
            **self._queues.status(),
            **self._clients.pools.status(),
            sessions=len(self._clients.sessions),
            subscriptions=len(self._clients.live),
            conflated_subscriptions=self._clients.conflated.status(),
            paginations=self._clients.pages.status(),
            event_topics=self._clients.events.status(),
            bookmark_subscriptions=len(self._replays),
            topics_of_others=topics.messages_of_others,
            topics_counted=topics.is_counted,
            upstreams=[
                {"name": name, "group": group, "incarnation": f"{incarnation:016x}"}
                for name, group, incarnation in machine.upstreams()
            ],
            rates=self._rates,
            destinations={name: self._destination_status(name) for name in self._links.controls},
        )
        return found

    def _state(self) -> str:
        if self._runtime.retirement:
            return "retired"
        if not self._instance.machine.ready:
            return "catching_up"
        return "ready" if self._commits.cycle.failure is None else "failed"

    def _destination_status(self, name: str) -> dict[str, Any]:
        ledger = self._instance.machine.destinations[name]
        link = self._links.controls[name]
        oldest = ledger.oldest_unacked()
        age_ms = 0 if oldest is None else max(0, self._runtime.steady_us() - oldest[0]) // 1000
        return {
            "peer": link.peer_name,
            "group": ledger.destination.group,
            "connected": ledger.connected,
            "caught_up": ledger.caught_up,
            "sync": ledger.sync,
            "downgraded_by_hand": ledger.downgraded_by_hand,
            "configured_sync": ledger.destination.sync,
            "downgraded": ledger.destination.sync and not ledger.sync,
            "safe": ledger.safe,
            "why_unsafe": ledger.why_unsafe,
            "unacked": ledger.unacked.count,
            "unacked_examples": _examples(ledger.unacked),
            "age_ms": age_ms,
            "stored_txid": ledger.stored_txid,
            "lag": max(0, self._instance.machine.committed_txid - ledger.stored_txid),
            "skipped": ledger.skipped,
            "persisted": ledger.persisted,
            "address": link.address,
            "client_name": link.client_name,
            "pass_through": link.config.pass_through or "",
            "connected_us": link.connected_us,
            "disconnected_us": link.disconnected_us,
            "disconnects": link.disconnects,
            "incarnation": f"{ledger.incarnation:016x}",
            "pid": link.process.pid,
            "starts": link.process.starts,
            "why": link.why,
            "direct": link.direct_link.is_direct,
            **link.direct_link.counts(link.counts),
        }

    def snapshot_from_thread(self) -> dict[str, Any]:
        """Returns `snapshot` to another thread than the loop's: the loop takes it between two
        turns.

        Raises:
            RuntimeError: the loop is closed, or so busy that it did not answer in time.
        """
        if not self._runtime.is_serving:
            return {}
        answer: Future[tuple[dict[str, Any], PublisherRanges]] = Future()

        def take() -> None:
            try:
                answer.set_result((self.snapshot(), self._instance.machine.known.copy()))
            except Exception as error:
                answer.set_exception(error)

        self._runtime.loop.call_soon_threadsafe(take)
        try:
            found, held = answer.result(SNAPSHOT_WAIT_S)
        except TimeoutError:
            raise RuntimeError(f"the loop gave no snapshot in {SNAPSHOT_WAIT_S} s") from None
        # Takes a while for very many publishers, and so runs on this thread.
        return found and {**found, "ranges_held": sum(1 for _ in held.items())}

    def snapshot(self, buffer_bytes: int | None = None) -> dict[str, Any]:
        """Returns the numbers for metrics (services/telemetry/metrics.py), except `ranges_held`.
        Changes nothing.

        Args:
            buffer_bytes: bytes that wait in memory for clients; None: they are added up, which
                takes a while for very many clients.
        """
        if not self._runtime.is_serving:
            return {}
        machine = self._instance.machine
        counters = machine.counters
        destinations = {}
        for name in self._links.controls:
            status = self._destination_status(name)
            destinations[name] = {
                "sent": status.get("sent_records", 0),
                "sent_bytes": status.get("sent_wire_bytes", 0),
                "persisted_sent": status["persisted"],
                "ack_age_ms": status["age_ms"],
                "lag_messages": status["lag"],
                "connected": status["connected"],
                "sync": status["sync"],
            }
        return {
            "published": counters.published,
            "persisted": counters.persisted,
            "delivered": self.delivered,
            "commits": counters.commits,
            "committed_bytes": self._commits.sizes.total,
            "late_records": counters.late,
            "unavailable_records": machine.missing.ranges.count,
            "conflicting_records": counters.conflicts,
            "publisher_conflicts": counters.publisher_conflicts,
            "duplicates_skipped": counters.duplicates,
            "passed_over_records": counters.passed_over,
            "connection_faults": self._runtime.faults_contained,
            "filters_given_up": given_up_count(),
            "runs_unreadable": UNREADABLE.count,
            "log_lines_lost": logs.lost_lines(),
            "buffer_bytes": sum(
                client.holding().memory_bytes for client in self._clients.sessions.values()
            )
            if buffer_bytes is None
            else buffer_bytes,
            "clients": len(self._clients.sessions),
            "subscriptions": len(self._clients.live) + len(self._replays),
            **self._shared_by_subscriptions(),
            "front_log_failed": int(bool(self._instance.journal.front_log_failure)),
            "disk_waits_ms": self._commits.disk_waits_ms,
            "commit_latency": self._commits.latency,
            "destinations": destinations,
            "incomplete_bytes": self._clients.incomplete.bytes
            + self._links.upstreams.incomplete.bytes,
            "shares": {
                limit: {"reached": times} for limit, times in self._runtime.shares_reached.items()
            },
            "queues": {
                name: _queue_figures(each)
                for name, each in self._queues.status().get("queues", {}).items()
            },
            "certificates": self._certificates.figures(),
            "places": {
                "pid": os.getpid(),
                "journal_directory": str(self._runtime.directory / JOURNAL_DIRECTORY),
            },
            **self._clients.pools.snapshot(),
            **self._sow.snapshot(),
        }

    def _shared_by_subscriptions(self) -> dict[str, Any]:
        """Returns the sizes of what conflated, paginated and aggregated subscriptions share."""
        conflated = self._clients.conflated.status()
        return {
            "subscriptions_conflated": conflated.get("subscriptions", 0),
            "conflation_pending_bytes": conflated.get("pending_bytes", 0),
            **self._sow.aggregated_sizes(),
            "pagination_bytes": self._clients.pages.memory_bytes,
        }


def _queue_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a queue, of which those are None that its owner has not told yet."""
    has_told = "age_of_oldest_lease_us" in status
    oldest_us = status.get("age_of_oldest_lease_us") or 0
    return {
        "depth": status.get("queue_depth"),
        "leases": status["leases"],
        "consumers": status["subscriptions"],
        "delivered": status["delivered"],
        "expired_leases": status.get("expired_leases"),
        # A metric without a lease is 0: a series that comes and goes is none to alert on.
        "oldest_lease_age_ms": oldest_us // 1000 if has_told else None,
    }


def _examples(rooted: RootedRanges) -> list[str]:
    """The bookmarks of the first and the last message of a few of the ranges, for people."""
    return [
        f"{publisher}|{first}| to {publisher}|{last}|"
        for ranges in rooted.roots.values()
        for publisher, (first, last) in itertools.islice(ranges.items(), EXAMPLES_MAX)
    ][:EXAMPLES_MAX]
