"""The shell around QueueMachine: one queue of an instance, in a process of its own.

It holds the Unix socket to its instance, a reader of the instance's journal and the queue's store.
It folds committed runs, passes the instance's frames to the machine, and sends the machine's
decisions to the instance; nothing is decided here. The program ends when the instance's socket
closes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

from raylay.services.config.instance import QueueOwnerConfig
from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.messages.records import Command, Flag, Kind, Run
from raylay.services.messages.topics import TopicMatcher, TopicRule
from raylay.services.net.framed import WriteQueue
from raylay.services.plugins.filters import queue_language
from raylay.services.processes.child_program import ChildProgram, InstanceSocket
from raylay.services.processes.queue_owner.bodies import DELIVERY_BYTES, Bodies
from raylay.services.processes.queue_owner.ended_messages import EndedMessages
from raylay.services.processes.queue_owner.followed_messages import FollowedMessages
from raylay.services.processes.queue_owner.letters import Letters
from raylay.services.processes.queue_owner.queries import QueueQueries
from raylay.services.processes.queue_owner.recovery import (
    durable_recovery_start,
    rules_of,
    start_of,
)
from raylay.services.processes.queue_owner.traces import QueueTraces
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.queues.decisions import (
    DeliverLeased,
    DeliverOnce,
    Expiration,
    QueueRecordDraft,
    TransferRequest,
)
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.records import ACKNOWLEDGED
from raylay.services.queues.replicated_state import ReplicatedQueueState
from raylay.services.telemetry.tracing import start_tracing
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.queue import LmdbQueueStore, StoredQueue

READ_BYTES = 512 * 1024
DECIDED_MAX = 1_000
"""The number of messages that one turn decides about."""
REREAD_S = 0.002
"""The pause, in seconds, before a reader that does not see an announced commit yet reads again."""
SAVE_S = 1.0
COUNTS_S = 0.5
EARLY_SAID = 10_000
"""The change of the number of early ranges, of records whose messages have not come, that is
reported to the instance at once."""


class OwnerServer:
    """One running queue owner. Owner: the QueueOwner actor. Lifecycle: `run` until the instance is
    gone or says stop."""

    def __init__(self, config: QueueOwnerConfig) -> None:
        self._config = config
        self._definition = config.definition
        self._matcher = TopicMatcher(
            (TopicRule(config.definition.topic, config.definition.message_type),)
        )
        self._machine: QueueMachine | None = None
        self._letters: Letters | None = None
        self._ended: EndedMessages | None = None
        """Messages that have left the queue, on their way to the instance's actions; None: no
        action wants them."""
        self._followed: FollowedMessages | None = None
        """Messages that come and leave, on their way to the instance's views; None: no view is over
        the queue."""
        self._tracing = start_tracing(config.process_name, config.tracing)
        self._traces: QueueTraces
        self._steady_base_us = 0
        self._told_txid = 0
        self._saved_txid = -1
        self._counts_said: dict[str, Any] = {}
        self._early_said = 0
        self._tells_expired = False
        self._saving: asyncio.Future[None] | None = None
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._save_failure = ""
        self._program = ChildProgram(self, self.turn)
        self._loop: asyncio.AbstractEventLoop
        self._outbox: WriteQueue
        self._instance: InstanceSocket

    async def run(self) -> str:
        """Runs until the instance is gone. Returns the reason.

        Raises:
            OSError: the instance's socket cannot be connected.
            RaylayError: the journal or the store cannot be used; names the file.
        """
        config = self._config
        program = self._program
        self._loop = program.begin()
        self._outbox = program.outbox
        self._types, self._functions = queue_language(config.type_definitions, config.instance)
        self._reader = LmdbJournalReader(config.journal_directory, config.archive_directory)
        self._store = LmdbQueueStore(config.store_path)
        kind = self._types[config.definition.message_type]
        self._bodies = Bodies(self._reader, kind)
        hello = control.hello(self._definition.stored_as, config.start_number, os.getpid())
        self._instance = await program.connect(config.unix_path, hello)
        try:
            return await program.run(self._save_forever(), self._count_forever())
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        if self._machine is not None:
            await self._save()
            self._traces.close()
        self._tracing.close()
        # The instance waits for the socket to close, and then kills what is left of the process.
        if self._instance.is_open:
            self._instance.abort("the queue's owner ends")
        self._store.close()
        self._reader.close()

    def failed(self, text: str) -> None:
        """Reports the fault to the instance. The owner that the instance starts next rebuilds the
        queue from the journal."""
        self._event("queue_owner_failed", text=text)
        self._outbox.flush()

    def _event(self, event: str, **details: Any) -> None:
        self._instance.send(encode_frame({"c": "event", "event": event, "details": details}))

    def _now_us(self) -> int:
        """Returns the time by the steady clock of the instance, so that both agree on when a lease
        ends."""
        return time.monotonic_ns() // 1000 + self._steady_base_us

    # -- what the instance says ----------------------------------------------------------------
    def instance_said(self, header: Header, body: bytes) -> None:
        """Takes a frame of the instance. `turn` is called after the last one of a read."""
        command = header["c"]
        machine = self._machine
        if machine is not None:
            # The last turn may be long ago, and what is said may count from its moment on.
            machine.at(self._now_us())
        if command == "begin":
            self._begin(header, body)
        elif command == "stop":
            self._program.end("the instance said stop")
        elif machine is None:
            raise RemoteProtocolError(f"{command} came before begin", "bad_command")
        elif command == "told":
            self._told_txid = max(self._told_txid, control.whole(header, "tx"))
        elif command == "sub":
            each = control.read_sub(header)
            machine.subscribed(each)
            self._traces.subscribed(each)
        elif command == "left":
            # What it has acknowledged is done, and not given back: the instance told of it first.
            self._read_told(machine)
            consumer, begun, is_cancel = control.read_left(header, body)
            machine.left(consumer, begun=begun, is_cancel=is_cancel)
            self._traces.left(consumer, begun, is_cancel=is_cancel)
        elif command == "done":
            machine.done(control.read_done(body))
        elif command in ("cancel", "bounce"):
            consumer, leases = control.consumer_of(header), control.read_leases(body)
            if command == "cancel":
                unseen = bool(header.get("unseen"))
                machine.cancelled(consumer, leases, unseen=unseen)
                why = "returned unseen" if unseen else "cancelled"
                self._traces.given_back(consumer, leases, why)
            else:
                machine.bounced(consumer, leases)
                self._traces.given_back(consumer, leases, "not delivered")
        elif command == "failed":
            machine.failed(control.read_tags(body), control.whole(header, "tx"))
        elif command == "request":
            said = control.read_request(header, body)
            machine.requested(control.text(header, "from"), said.count, said.wanted)
        elif command == "names":
            machine.state.named(control.read_names(body))
        elif command == "serves":
            machine.serves()
        elif command == "proxied":
            machine.proxied(*control.read_proxied(header))
        elif command == "clock":
            machine.state.clock_set(*control.read_clock(header))
        elif command == "follow":
            number, txid = control.whole(header, "n"), control.whole(header, "tx")
            self._follow(machine.state, number, txid)
        elif command == "ask":
            self._loop.create_task(self._answering.answer(header))

    def _read_told(self, machine: QueueMachine) -> None:
        """Reads one batch of what the instance has told of."""
        if self._folded_txid < self._told_txid:
            self._read(machine, self._now_us())

    def _begin(self, header: Header, body: bytes) -> None:
        config, definition = self._config, self._definition
        begin = control.read_begin(header, body)
        self._steady_base_us = begin.steady_base_us
        snapshot, why = durable_recovery_start(
            definition, config.incarnation, self._store, self._reader, begin.committed_txid
        )
        if self._store.damage:
            self._event("queue_store_damaged", text=f"{config.store_path}: {self._store.damage}")
        if why:
            self._event(
                "queue_rebuilt",
                text=f"queue {definition.name} is made anew from the journal: {why}",
            )
        self._told_txid = begin.committed_txid
        traces = self._traces = QueueTraces(
            self._tracing, definition, config.instance, snapshot.folded_txid
        )
        state = ReplicatedQueueState(
            definition,
            config.instance,
            config.incarnation,
            self._bodies,
            start_of(config, snapshot, begin),
            types=self._types,
            functions=self._functions,
            group=config.group,
            watch=traces.obeyed if self._tracing.enabled else None,
        )
        machine = self._machine = QueueMachine(state)
        for step in begin.clock_steps:
            state.clock_set(*step)
        if begin.names:
            state.named(begin.names)
        for each in begin.consumers:
            machine.subscribed(each)
            self._traces.subscribed(each)
        self._folded_txid = snapshot.after_txid
        state.tells_acknowledged = begin.tells_acknowledged
        self._tells_expired = begin.tells_expired
        if begin.tells_expired or begin.tells_acknowledged:
            self._ended = EndedMessages(self._bodies, self._instance)
        if begin.tells_messages:
            found = FollowedMessages(self._bodies, self._instance, begin.committed_txid)
            self._followed, state.followed = found, found.waiting
        if definition.dead_letters:
            self._letters = Letters(state.drafts, self._bodies, self._instance)
        self._answering = QueueQueries(
            machine,
            self._bodies,
            self._types[definition.message_type],
            self._functions,
            self._instance,
            self._outbox,
            self._now_us,
        )

    def _follow(self, state: ReplicatedQueueState, number: int, committed_txid: int) -> None:
        """Begins to tell the instance of all messages, or ends that (0)."""
        if not number:
            self._followed = state.followed = None
            return
        self._instance.send(control.following(number))
        found = self._followed = FollowedMessages(self._bodies, self._instance, committed_txid)
        found.waiting += state.present()
        state.followed = found.waiting

    # -- a turn --------------------------------------------------------------------------------
    def turn(self) -> None:
        """Reads one batch of what was committed, and reports the decisions."""
        machine = self._machine
        if machine is None or self._program.gone.done():
            return
        now_us = self._now_us()
        # Consumers with room get what is available before the next batch of commits is read.
        decided = self._decide(machine, now_us)
        if self._folded_txid < self._told_txid:
            if not self._read(machine, now_us):
                self._loop.call_later(REREAD_S, self._again)
            decided |= self._decide(machine, now_us)
        if decided or self._folded_txid < self._told_txid:
            # Frames of the instance are handled in between.
            self._soon()
        else:
            self._wait(machine, now_us)

    def _decide(self, machine: QueueMachine, now_us: int) -> bool:
        machine.tick(now_us)
        self._traces.tick(now_us)
        decided = False
        if self._instance.may_write:
            decisions = machine.take(now_us, DECIDED_MAX)
            decided = bool(decisions)
            self._say(decisions)
            if self._letters is not None:
                self._letters.send()
            if self._ended is not None:
                self._ended.send()
                decided |= bool(len(self._ended))
            if self._followed is not None:
                self._followed.send(self._folded_txid)
                decided |= bool(len(self._followed))
        self._outbox.flush()
        return decided

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._is_due = False
        self.turn()

    def _wait(self, machine: QueueMachine, now_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_us = machine.next_us(now_us)
        if next_us:
            delay_s = max(next_us - now_us, 1_000) / 1e6
            self._timer = self._loop.call_later(delay_s, self._again)

    def _read(self, machine: QueueMachine, now_us: int) -> bool:
        runs = self._reader.read(self._folded_txid, READ_BYTES)
        # The journal may be ahead of the commits that the instance announced.
        while runs and runs[-1].last_txid > self._told_txid:
            runs.pop()
        if not runs:
            return False
        matches = self._matcher
        mine: list[Run] = [
            run
            for run in runs
            if run.kind == Kind.RECORDS
            and not run.flags & Flag.COMMANDS
            and matches[run.topic, run.message_type]
        ]
        self._bodies.keep(mine)
        self._folded_txid = runs[-1].last_txid
        self._traces.fold(machine, runs, mine, now_us, self._folded_txid)
        if abs(machine.state.early_size - self._early_said) >= EARLY_SAID:
            self._say_counts(machine)
        return True

    def _say(self, decisions: Sequence[object]) -> None:
        send = self._instance.send
        expired: list[Expiration] = []
        acknowledged: list[Expiration] = []
        for decision in decisions:
            if isinstance(decision, DeliverLeased | DeliverOnce):
                self._deliver(decision)
            elif isinstance(decision, QueueRecordDraft):
                if self._letters is not None and decision.command == Command.QUEUE_REMOVAL:
                    self._letters.put(decision)
                else:
                    send(control.draft(decision))
            elif isinstance(decision, TransferRequest):
                send(control.request(decision))
            elif isinstance(decision, Expiration):
                found = acknowledged if decision.reason == ACKNOWLEDGED else expired
                found.append(decision)
        if expired:
            send(control.expired(expired))
        if self._ended is not None:
            self._ended.put(acknowledged)
            if self._tells_expired:
                self._ended.put(expired)
        self._traces.said(decisions)

    def _deliver(self, decision: DeliverLeased | DeliverOnce) -> None:
        """Sends a delivery with its records, in several frames if one would be too long."""
        decided_us = self._traces.decided(decision)
        txids = [each.txid for each in decision.messages]
        while True:
            records, count = self._bodies.records(txids, DELIVERY_BYTES)
            if count == len(txids):
                break
            part = decision._replace(messages=decision.messages[:count])
            self._instance.send_parts(*control.deliver(part, records, decided_us))
            decision = decision._replace(messages=decision.messages[count:])
            txids = txids[count:]
        self._instance.send_parts(*control.deliver(decision, records, decided_us))

    # -- the store -----------------------------------------------------------------------------
    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            machine = self._machine
            if machine is not None and machine.state.floor_txid != self._saved_txid:
                await self._save()

    async def _save(self) -> None:
        machine = self._machine
        assert machine is not None
        floor_txid = machine.state.floor_txid
        stored = StoredQueue(
            floor_txid,
            rules_of(self._definition, self._config.incarnation),
            machine.state.stored(),
        )
        self._saving = self._loop.run_in_executor(None, self._store.save, stored)
        try:
            await asyncio.shield(self._saving)
        except StorageError as error:
            # The journal, from which the queue can be rebuilt, is kept.
            if not self._save_failure:
                self._event("queue_store_failed", text=str(error))
            self._save_failure = str(error)
            return
        if self._save_failure:
            self._event("queue_store_recovered")
            self._save_failure = ""
        self._saved_txid = floor_txid
        self._instance.send(control.floor(floor_txid))

    async def _count_forever(self) -> None:
        while True:
            await asyncio.sleep(COUNTS_S)
            self._reader.tidy()
            if self._machine is not None:
                self._say_counts(self._machine)

    def _say_counts(self, machine: QueueMachine) -> None:
        counts = machine.status()
        if counts != self._counts_said:
            self._counts_said = counts
            self._early_said = machine.state.early_size
            self._instance.send(control.counts(self._folded_txid, counts))
