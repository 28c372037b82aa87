"""Spans of the sampled messages of a queue: from when its owner here has folded them until they
have left (docs/tracing.md). The machine's decisions do not depend on traces.

Only runs with a sampled message are walked. The queue's own records and the machine's decisions are
examined only while a sampled message is in the queue. The machine folds the journal in the same
order as without traces. The runs are folded in parts, each of which ends with a run that has a
sampled message, so that the machine can then be asked whether the message is in the queue.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from raylay.services.messages.records import Command, Flag, Record, Run
from raylay.services.processes.queue_owner.sampled import SampledMessage, SampledMessages
from raylay.services.queues.decisions import (
    Consumer,
    ConsumerSubscription,
    DeliverLeased,
    DeliverOnce,
    Key,
    MessageLease,
    QueueRecordDraft,
    TransferRequest,
)
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.machine import QueueMachine
from raylay.services.queues.records import (
    Acknowledgment,
    Keys,
    Removal,
    Transfer,
    read_transfer,
)
from raylay.services.queues.transfer.ownership import Ownership, is_better
from raylay.services.telemetry.span_export import Attributes
from raylay.services.telemetry.tracing import (
    ACKNOWLEDGMENT,
    COMMIT,
    ENQUEUE,
    LEASE,
    REMOVAL,
    TRANSFER,
    Tracing,
    derived,
    traced,
)

_TRACED = int(Flag.TRACED)
SENT_MAX = 1_000
"""The number of messages that have left the queue and are still to be sent. With more, the oldest
get no span of the delivery."""


class QueueTraces:
    """See the file's docstring.

    Owner: the queue's owner. Lifecycle: as long as its machine.

    Args:
        instance: the name of the instance.
        told_txid: the transaction id up to which a former owner has written the spans.
    """

    def __init__(
        self, tracing: Tracing, definition: QueueDefinition, instance: str, told_txid: int
    ) -> None:
        self._tracing = tracing
        self._definition = definition
        self._instance = instance
        self._told_txid = told_txid
        self._marks = SampledMessages()
        self._clients: dict[Consumer, str] = {}
        self._sent: OrderedDict[int, tuple[SampledMessage, int]] = OrderedDict()
        """The messages that have left the queue in order to be sent, each with the time of that, by
        transaction id."""

    # -- what was committed --------------------------------------------------------------------
    def fold(
        self,
        machine: QueueMachine,
        runs: Sequence[Run],
        mine: Sequence[Run],
        now_us: int,
        through_txid: int,
    ) -> None:
        """Has the machine fold runs.

        Args:
            mine: the runs that may hold messages of the queue.
            now_us, through_txid: the arguments of `QueueMachine.fold`.
        """
        sampled = {id(run) for run in mine if run.flags & _TRACED}
        if not (sampled and self._tracing.enabled):
            machine.fold(runs, now_us, through_txid)
            return
        part: list[Run] = []
        for run in runs:
            part.append(run)
            if id(run) in sampled:
                machine.fold(part, now_us)
                self._came(machine, run, now_us)
                part = []
        machine.fold(part, now_us, through_txid)

    def _came(self, machine: QueueMachine, run: Run, now_us: int) -> None:
        now_ns = time.time_ns()
        is_new = run.last_txid > self._told_txid
        for message in traced(run.payload):
            key = message.publisher, message.sequence
            there = machine.state.message(key)
            if there is None or self._marks.get(key) is not None:
                # A filter keeps the message out, or a record removed it before it came.
                continue
            generation, owner = there.register
            mark = SampledMessage(message, there.txid, (generation, owner))
            self._marks.add(mark)
            if isinstance(there.held, MessageLease):
                # The lease was given by a former owner of the queue.
                until_us = there.held.until_us
                left_us = until_us - now_us if until_us else self._definition.lease_us
                began_ns = now_ns - (self._definition.lease_us - left_us) * 1000
                self._marks.leased(mark, there.held, began_ns)
            if is_new:
                context = message.context
                own = derived(context, ENQUEUE, self._instance, self._definition.name)
                self._tracing.span(
                    ENQUEUE,
                    derived(context, COMMIT, self._instance),
                    run.receive_time_us * 1000,
                    now_ns,
                    self._of(mark, {"owner": owner, "txid": there.txid}),
                    own=own,
                )

    def obeyed(self, record: Record, said: Acknowledgment | Transfer | Removal, run: Run) -> None:
        if not self._marks:
            return
        if isinstance(said, Acknowledgment):
            self._acknowledged(said, record, run)
        elif isinstance(said, Removal):
            is_own = said.by == self._instance
            # Each instance sends a barrier to its own consumers.
            if is_own or said.why != "barrier":
                is_sent = is_own and said.why in ("sent", "barrier")
                for mark in self._among(said.keys):
                    self._removed(mark, said.why, run, is_sent=is_sent)
        elif self._definition.kind != "local":
            for publisher, first, last, generation, owner in said.moves:
                for mark in self._marks.among(publisher, ((first, last),)):
                    self._moved(mark, said.by, generation, owner, run)

    def _among(self, keys: Keys) -> list[SampledMessage]:
        return [mark for each, ranges in keys.items() for mark in self._marks.among(each, ranges)]

    def _acknowledged(self, said: Acknowledgment, record: Record, run: Run) -> None:
        is_ack = said.how == "ack"
        more = {"by": record.bookmark} | ({} if is_ack else {"how": said.how})
        for mark in self._among(said.keys):
            self._removed(mark, "ack" if is_ack else "forced_expire", run, more)

    def _removed(
        self,
        mark: SampledMessage,
        reason: str,
        run: Run,
        acknowledged: Attributes | None = None,
        *,
        is_sent: bool = False,
    ) -> None:
        self._marks.remove(mark)
        if run.last_txid <= self._told_txid:
            return
        # Spans that end together are shown in the order of their beginnings.
        began_ns, now_ns = run.receive_time_us * 1000, time.time_ns()
        if mark.lease is not None:
            self._end_lease(mark, "acked" if reason == "ack" else reason, now_ns)
        if acknowledged is not None:
            self._say(ACKNOWLEDGMENT, mark, began_ns, now_ns, acknowledged)
        self._say(REMOVAL, mark, began_ns, now_ns, {"outcome": reason})
        if is_sent:
            self._sent[mark.txid] = mark, now_ns
            if len(self._sent) > SENT_MAX:
                self._sent.popitem(last=False)

    def _moved(self, mark: SampledMessage, by: str, generation: int, owner: str, run: Run) -> None:
        """Notes a transfer as the machine does: the better ownership counts, unless both are of
        generation 0."""
        before, after = Ownership(*mark.register), Ownership(generation, owner)
        if not is_better(after, before) and (generation or before.generation):
            return
        mark.register = generation, owner
        began_ns = run.receive_time_us * 1000
        if by == self._instance and mark.granted_ns:
            began_ns = mark.granted_ns
        elif owner == self._instance and mark.asked_ns:
            began_ns = mark.asked_ns
        mark.asked_ns = mark.granted_ns = 0
        if run.last_txid > self._told_txid:
            more: Attributes = {"from": before.owner or "?", "to": owner, "generation": generation}
            self._say(TRANSFER, mark, began_ns, time.time_ns(), more)

    # -- what is decided -----------------------------------------------------------------------
    def decided(self, decision: DeliverLeased | DeliverOnce) -> int:
        """Notes a delivery that is on its way to the instance. Returns the present time, in
        microseconds since 1970, if one of its messages is sampled; otherwise 0."""
        if type(decision) is DeliverLeased:
            if not self._marks:
                return 0
            now_ns = time.time_ns()
            consumer, messages = decision[:2]
            found = self._marks.of(messages)
            for mark, (_, key, number, until_us) in found:
                self._marks.leased(mark, MessageLease(key, consumer, number, until_us), now_ns)
            return now_ns // 1000 if found else 0
        return self._sends(decision) if self._sent else 0

    def _sends(self, decision: DeliverLeased | DeliverOnce) -> int:
        now_ns = 0
        for txid, key, number, until_us in decision.messages:
            mark, since_ns = self._sent.get(txid, (None, 0))
            if mark is not None:
                now_ns = time.time_ns()
                mark.lease = MessageLease(key, decision.consumer, number, until_us)
                mark.leased_ns = since_ns
                self._end_lease(mark, "sent")
        return now_ns // 1000

    def said(self, decisions: Iterable[object]) -> None:
        if self._sent:
            # A barrier goes to each consumer, so it is forgotten after all of its deliveries.
            for each in decisions:
                if type(each) is DeliverOnce:
                    for message in each.messages:
                        self._sent.pop(message.txid, None)
        if not self._marks or self._definition.kind == "local":
            return
        for each in decisions:
            if isinstance(each, QueueRecordDraft) and each.command == Command.TRANSFER:
                now_ns = time.time_ns()
                for publisher, first, last, *_ in read_transfer(each.body).moves:
                    for mark in self._marks.among(publisher, ((first, last),)):
                        mark.granted_ns = now_ns
            elif isinstance(each, TransferRequest):
                now_ns = time.time_ns()
                for wanted in each.wanted:
                    asked = self._marks.get(wanted.key)
                    if asked is not None:
                        asked.asked_ns = asked.asked_ns or now_ns

    # -- consumers -----------------------------------------------------------------------------
    def subscribed(self, each: ConsumerSubscription) -> None:
        self._clients[each.consumer] = each.client

    def left(
        self, consumer: Consumer, begun: Keys | None = None, *, is_cancel: bool = False
    ) -> None:
        """Notes that a consumer is gone, with the arguments of `QueueMachine.left`."""
        for mark in self._marks.held(consumer) if self._marks else ():
            how = "consumer left"
            if begun is not None:
                ranges = begun.get(mark.message.publisher, ())
                sequence = mark.message.sequence
                if not any(first <= sequence <= last for first, last in ranges):
                    how = "returned unseen"
                elif is_cancel:
                    how = "cancelled"
            self._end_lease(mark, how)
        self._clients.pop(consumer, None)

    def given_back(self, consumer: Consumer, leases: Iterable[tuple[Key, int]], how: str) -> None:
        """Notes that leases have ended, because the consumer gave the messages back or the instance
        did not deliver them."""
        if not self._marks:
            return
        for key, number in leases:
            mark = self._marks.get(key)
            lease = mark.lease if mark is not None else None
            is_it = lease is not None and (lease.consumer, lease.number) == (consumer, number)
            if mark is not None and is_it:
                self._end_lease(mark, how)

    def tick(self, now_us: int) -> None:
        """Ends leases whose time is over, as the machine does with the same time."""
        if self._marks:
            for mark in self._marks.ended(now_us):
                self._end_lease(mark, "expired")

    def close(self) -> None:
        """Ends the spans of the present leases. The next owner begins new ones."""
        for mark in self._marks.held():
            self._end_lease(mark, "unknown")

    # -- spans ---------------------------------------------------------------------------------
    def _end_lease(self, mark: SampledMessage, how: str, at_ns: int = 0) -> None:
        lease = mark.lease
        assert lease is not None
        self._marks.freed(mark)
        context, queue = mark.message.context, self._definition.name
        more = {"client": self._clients.get(lease.consumer, ""), "outcome": how}
        own = derived(context, LEASE, self._instance, queue, lease.number)
        self._say(LEASE, mark, mark.leased_ns, at_ns or time.time_ns(), more, own)

    def _say(
        self,
        name: str,
        mark: SampledMessage,
        start_ns: int,
        end_ns: int,
        more: Attributes,
        own: bytes = b"",
    ) -> None:
        """Reports a span below that of the message's arrival in the queue here."""
        parent = derived(mark.message.context, ENQUEUE, self._instance, self._definition.name)
        self._tracing.span(name, parent, start_ns, end_ns, self._of(mark, more), own=own)

    def _of(self, mark: SampledMessage, more: Attributes) -> Attributes:
        message = mark.message
        return {
            "bookmark": message.bookmark,
            "topic": message.topic,
            "body_bytes": message.body_bytes,
            "instance": self._instance,
            "queue": self._definition.name,
            **more,
        }
