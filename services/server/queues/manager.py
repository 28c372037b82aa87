"""The queues of a serving instance: the processes of their owners, their decisions, and the part of
the journal that must stay for them.

The queue's frontend (services/queues/frontend.py) judges which part of a decision is still valid
when it arrives; the manager passes it there, and performs the valid part. Without queues, nothing
is loaded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from raylay.services.config.instance import InstanceConfig
from raylay.services.core.commit_cycle import PROBE_S
from raylay.services.core.feature import CommitBatch, FeatureRegistry
from raylay.services.errors import ConfigurationError, RaylayError, RemoteProtocolError
from raylay.services.messages.records import iterate_records
from raylay.services.messages.topics import TopicMatcher, TopicRule
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.frames import Header
from raylay.services.queues.clock_steps import ClockSteps
from raylay.services.queues.lease_age import with_lease_age
from raylay.services.replication.instance import Identity
from raylay.services.server.children.supervisor import ChildHandle, Supervisor, run_in_order
from raylay.services.server.commits import Commits
from raylay.services.server.message_occurrences import (
    DELETED,
    EXPIRED,
    tell_queue_message_unread,
    tell_queue_messages,
)
from raylay.services.server.queues.deliveries import QueueDeliveries
from raylay.services.server.queues.request_router import QueueRequestRouter
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.core.queue_source import QueueSource
    from raylay.services.core.queues import Queues
    from raylay.services.protocol.child.queue_control import (
        QueueAnswer,
        QueueDelivery,
        QueueQuestion,
    )
    from raylay.services.protocol.child.queue_requests import QueueRequest
    from raylay.services.queues.decisions import Consumer, ConsumerSubscription, Key
    from raylay.services.queues.definition import QueueDefinition
    from raylay.services.queues.frontend import QueueFrontend, RoutedRequest
    from raylay.services.queues.records import Acknowledgment, Keys
    from raylay.services.sow.topic import SowChange, SowTopic

ANNOUNCED_KEY = "herald/"
"""Prefix of the entries of the state store that hold the incarnation whose instance name the
records of a queue announce in the journal."""
CLOCK_KEY = "clock steps"
"""Entry of the state store with the changes of the wall clock, as of `ClockSteps.all`."""
PROXIED_KEY = "proxied/"
"""Prefix of the entries of the state store that exist while a queue's proxied transfer is on."""
STOP_S_MAX = 2.0
"""Time, in seconds, that an owner has to stop before it is killed."""
TOLD_S = 0.005
"""Time, in seconds, after which an owner is told of commits that have nothing it waits for. Each
frame wakes its process, and the process then reads the journal."""
QUESTIONS_MAX = 1_000
"""Limit on unanswered questions to one owner."""
OWNER_WAIT_S = 5.0
"""Time, in seconds, for which a question waits for an owner that has not started."""


class ReachableLink(Protocol):
    """One of the instance's links (`LinkControl`).

    Attributes:
        peer_name: the name of the instance that the link is, or was last, connected to.
    """

    is_connected: bool
    peer_name: str


class QueueControl:
    """The control of one queue's owner: its process, its connection, and the frames to and from it.

    Invariant: the instance talks to at most one process, that of the last start.
    Owner: the instance's event loop. Lifecycle: as long as the instance.
    """

    def __init__(self, manager: QueueManager, frontend: QueueFrontend) -> None:
        from raylay.services.protocol.child import queue_control

        self._control = queue_control
        self.frontend = frontend
        self.name = frontend.definition.stored_as
        self.why = "starting"
        self.counts: dict[str, Any] = {}
        self.floor_txid = 0
        """Transaction id up to which the queue needs nothing of the journal."""
        self._manager = manager
        self._runtime = manager.runtime
        self._instance = manager.instance
        self._to_judge: deque[tuple[QueueDelivery, int]] = deque()
        """Decisions of the owner, each with the transaction id that must be folded before it is
        judged. They are bounded by the backlogs of the consumers."""
        self._asked: dict[int, Callable[[QueueAnswer], None]] = {}
        self._asked_last = 0
        self._untold_txid = 0
        """Transaction id of the last commit, while the owner has not been told of it; 0: it has."""
        self._is_told_soon = False
        self._letters: list[tuple[str, bytes, list[int]]] = []
        """Messages whose dead letters are drafted with the next removal: the reason why they leave
        the queue, their records, and how often each was delivered in vain.
        Drafted earlier, they could be journaled without the removal."""
        self._waiting: list[tuple[QueueQuestion, Callable[[QueueAnswer], None]]] = []
        self.process = Supervisor(
            manager.runtime,
            self._start,
            self._process_ended,
            kill_failed="queue_owner_kill_failed",
            of={"queue": self.name},
        )

    # -- the process ---------------------------------------------------------------------------
    def _start(self, number: int) -> ChildHandle:
        """Starts the owner's process. Called in a thread."""
        return self._manager.start(self.frontend.definition, number)

    def _process_ended(self, why: str) -> None:
        self.why = why or self.why
        self._runtime.report("queue_owner_ended", queue=self.name, why=self.why)

    async def stop(self) -> None:
        # The owner saves its state, and reports its traces.
        await self.process.end(self._control.STOP, STOP_S_MAX)

    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the connection of an owner. Returns whether the owner is that of the last start; an
        earlier one's socket is to be closed."""
        if not self.process.greeted(connection, header):
            return False
        runtime = self._runtime
        self.why = ""
        # Drafts of the previous owner are journaled first, so that the fence lies behind them.
        self._manager.author_now()
        self._manager.owner_came(self.name)
        machine = self._instance.machine
        begin = self.frontend.owner_came(machine.next_txid - 1, self._manager.steady_us())
        said = self._control.OwnerBegin(
            begin.fence_txid,
            machine.committed_txid,
            machine.ready,
            begin.leases,
            begin.consumers,
            self._manager.names,
            runtime.steady_base_us - self._manager.behind_us,
            self._manager.clock_steps.all(),
            runtime.occurrences.wanted(EXPIRED),
            runtime.occurrences.wanted(DELETED),
            self._manager.follows(self.name),
        )
        connection.send(self._control.begin(said))
        waiting, self._waiting = self._waiting, []
        for question, told in waiting:
            self.ask(question, told)
        return True

    def lost(self, connection: FramedConnection, why: str) -> None:
        if self.process.lost(connection):
            self.why = f"its process ended: {why}"
            self.frontend.owner_left()
            self._to_judge.clear()
            # The removal did not come: the next owner sends these letters and the removal again.
            self._letters.clear()
            asked, self._asked = self._asked, {}
            for told in asked.values():
                why = f"the owner of queue {self.name} has ended: try again"
                told(self._control.QueueAnswer(b"", False, why, "not_ready"))

    def follow(self, number: int, committed_txid: int = 0) -> None:
        """Asks the owner to tell of all messages, with the number of the request; 0: of none. With
        an owner that begins later, `QueueManager.follows` decides."""
        self.say(self._control.follow(number, committed_txid))

    def consumes(self, each: ConsumerSubscription) -> None:
        """Tells the owner, and any owner that is started later, the terms of a consumer."""
        self.frontend.subscribed(each)
        self.say(self._control.sub(each))

    def acknowledging(self, keys: Keys) -> None:
        """Tells the owner of acknowledgments that are on their way to the disk."""
        self.process.say(self._control.done(keys))

    def committed(self, txid: int, *, is_awaited: bool) -> None:
        """Tells the owner that the journal has everything up to a transaction.

        Args:
            is_awaited: whether the owner is told now: it may have been given something to deliver.
        """
        self._untold_txid = txid
        if is_awaited:
            self.tell()
        elif not self._is_told_soon:
            self._is_told_soon = True
            self._runtime.loop.call_later(TOLD_S, self._tell_due)

    def _tell_due(self) -> None:
        self._is_told_soon = False
        self.tell()

    def tell(self) -> None:
        """Tells the owner of the commits that it has not been told of."""
        if self._untold_txid:
            self.process.say(self._control.told(self._untold_txid))
            self._untold_txid = 0

    def say(self, frame: bytes) -> None:
        """Sends the owner a frame, behind all commits: what a consumer that leaves has acknowledged
        is done, and an answer is of all messages."""
        self.tell()
        self.process.say(frame)

    # -- frames from the owner -----------------------------------------------------------------
    def frame_received(self, header: Header, body: bytes) -> None:
        """Takes a frame of the owner.

        Raises:
            RemoteProtocolError: the frame is none that an owner sends.
        """
        control, manager = self._control, self._manager
        command = header["c"]
        if command == "deliver":
            self._deliver(header, body)
        elif command == "draft":
            letters, self._letters = self._letters, []
            manager.draft(self.frontend, control.read_draft(header, body), letters)
        elif command == "letters":
            said = control.text(header, "why"), body, control.deliveries_of(header)
            self._letters.append(said)
        elif command == "request":
            manager.request(self.name, control.read_request(header, body))
        elif command == "floor":
            self.floor_txid = control.whole(header, "tx")
            manager.release()
        elif command == "expired":
            for each in control.read_expired(body):
                publisher, sequence = each.key
                self._runtime.report(
                    "queue_message_expired",
                    queue=self.name,
                    bookmark=f"{publisher}|{sequence}|",
                    reason=each.reason,
                )
        elif command == "ended":
            self._ended(header, body)
        elif command == "came":
            manager.came(self.name, body)
        elif command == "gone":
            manager.gone(self.name, control.read_gone(body))
        elif command == "all_came":
            manager.all_came(self.name)
        elif command == "following":
            manager.following(self.name, control.whole(header, "n"))
        elif command == "counts":
            self.counts = dict(header.get("counts") or {})
            self.frontend.early_size = int(self.counts.get("deferred_ack_ranges") or 0)
            self.frontend.folded(control.whole(header, "tx"))
        elif command == "answer":
            self._answered(header, body)
        elif command == "event":
            details = header.get("details")
            self._runtime.report(control.text(header, "event"), queue=self.name, **(details or {}))

    def _ended(self, header: Header, body: bytes) -> None:
        """Tells the listeners about messages that have left the queue."""
        definition, control = self.frontend.definition, self._control
        occurrences, reason = self._runtime.occurrences, control.text(header, "why")
        if body:
            tell_queue_messages(occurrences, definition.name, definition.message_type, reason, body)
        else:
            bookmark = f"{control.whole(header, 'publisher')}|{control.whole(header, 'sequence')}|"
            tell_queue_message_unread(
                occurrences, definition.name, definition.message_type, reason, bookmark
            )

    def _deliver(self, header: Header, body: bytes) -> None:
        control = self._control
        self._to_judge.append((control.read_deliver(header, body), self._manager.committed()))
        self.judge()

    def judge(self) -> None:
        """Performs the still valid parts of the owner's decisions, as soon as everything is folded
        that was committed when they came. A long fold is not hurried for them."""
        while self._to_judge and self._to_judge[0][1] <= self._manager.folded_txid():
            self._judge(self._to_judge.popleft()[0])

    def _judge(self, delivery: QueueDelivery) -> None:
        control, manager = self._control, self._manager
        decision = delivery.decision
        decided = self.frontend.decide(decision, manager.steady_us())
        if decided.send:
            records: Sequence[bytes] = (delivery.records,)
            if decided.bounced or delivery.decided_us:
                records = control.records_of(delivery, decided.send)
            decided_us = delivery.decided_us
            full = manager.deliveries.deliver(
                decision.consumer,
                decided.send,
                records,
                decided_us,
                manager.steady_us(),
                is_last_try=decision.is_last_try,
            )
            if full is not None:
                self.consumes(full)
        if decided.bounced:
            self.say(control.bounce(decision.consumer, decided.bounced))

    # -- questions -----------------------------------------------------------------------------
    def ask(self, question: QueueQuestion, told: Callable[[QueueAnswer], None]) -> None:
        """Asks the owner about its messages.

        Args:
            told: called with each part of the answer.

        Raises:
            RemoteProtocolError: the owner cannot be asked now, with reason `not_ready`.
        """
        if self.process.connection is None or len(self._asked) >= QUESTIONS_MAX:
            why = self.why or "it is asked too much at one time"
            raise RemoteProtocolError(
                f"the owner of queue {self.name} does not answer now ({why}): try again",
                "not_ready",
            )
        # The answer is of everything that is committed.
        self.tell()
        self._asked_last += 1
        self._asked[self._asked_last] = told
        self.process.connection.send(self._control.ask(self._asked_last, question))

    def ask_when_started(
        self, question: QueueQuestion, told: Callable[[QueueAnswer], None]
    ) -> None:
        """Asks the owner; the question waits for a while if the owner has not started.

        Raises:
            RemoteProtocolError: there are too many questions, with reason `not_ready`.
        """
        if self.process.connection is not None or len(self._waiting) >= QUESTIONS_MAX:
            self.ask(question, told)
            return
        waiting = (question, told)
        self._waiting.append(waiting)

        def give_up() -> None:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                told(self._control.QueueAnswer(b"", False, self.why, "not_ready"))

        self._runtime.loop.call_later(OWNER_WAIT_S, give_up)

    def _answered(self, header: Header, body: bytes) -> None:
        number, answer = self._control.read_answer(header, body)
        told = self._asked.get(number)
        if told is None:
            return
        if not answer.more:
            del self._asked[number]
        told(answer)

    @property
    def resource_id(self) -> str:
        """Returns the queue's id in the resource tree."""
        return f"{self.frontend.definition.name}!{self.frontend.definition.message_type}"

    def status(self) -> dict[str, Any]:
        definition, frontend = self.frontend.definition, self.frontend
        return {
            "topic": definition.name,
            "message_type": definition.message_type,
            "kind": definition.kind,
            "pid": self.process.pid,
            "why": self.why,
            "subscriptions": len(frontend.consumers),
            "leases": frontend.lease_count,
            "delivered": frontend.delivered,
            "bounced": frontend.bounced,
            "starts": self.process.starts,
            **with_lease_age(self.counts, self._manager.steady_us()),
            "floor_txid": self.floor_txid,
        }


def journaled_topics(config: InstanceConfig) -> tuple[TopicRule, ...]:
    """The topics that are journaled: those of the queues are, whatever else is configured."""
    matcher = TopicMatcher(config.topics, f"{config.name} Topic")
    return config.topics + tuple(
        TopicRule(each.name, each.message_type)
        for each in config.queue_definitions
        if not matcher.matches(each.name.encode(), each.message_type.encode())
    )


def opened_queues(
    config: InstanceConfig, identity: Identity, controls: dict[str, QueueControl]
) -> Queues | None:
    """Returns the queues before the journal is folded; None: the instance has none."""
    if not config.queue_definitions:
        return None
    from raylay.services.core.queues import Queues

    return Queues(
        config.queue_definitions,
        identity,
        lambda name, keys: controls[name].acknowledging(keys),
    )


class QueueManager:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: `run` once, `stop` once. Without queues, neither
    does anything.

    Args:
        queues: the queues, recovered; None: the instance has none.
        controls: the table that the queues acknowledge messages through, by queue; filled here.
        folds: the instance's features that fold commits.
        start: starts the process of a queue's owner, with a number that tells it from earlier ones.
            Called in a thread; may block; may raise: the start is then tried again.
        links: the instance's links, by destination.
        requests: carries requests for messages to other instances.
        deliveries: sends messages to clients.
        sources: the queues that views are over, by `QueueDefinition.stored_as`. Those of
            aggregations come and go.
        changed: takes the changes of their messages.
    """

    name = "queues"
    may_be_ahead = False

    def __init__(
        self,
        runtime: InstanceRuntime,
        instance: RecoveredInstance,
        queues: Queues | None,
        controls: dict[str, QueueControl],
        folds: FeatureRegistry,
        commits: Commits,
        start: Callable[[QueueDefinition, int], ChildHandle],
        *,
        links: Mapping[str, ReachableLink],
        requests: QueueRequestRouter,
        deliveries: QueueDeliveries,
        sources: dict[str, QueueSource],
        changed: Callable[[list[SowChange]], None],
    ) -> None:
        self.runtime = runtime
        self.instance = instance
        self.start = start
        self.deliveries = deliveries
        self._links = links
        self._requests = requests
        self._sources = sources
        self._follows = 0
        """Number of the last request to an owner to tell of its messages."""
        self._changed = changed
        self.queues = queues
        """The queues; None: the instance has none."""
        self.controls = controls
        self.names: dict[int, str] = {}
        """Instance names by incarnation, as links have told them."""
        kept = None if queues is None else instance.state.get(CLOCK_KEY)
        self.clock_steps = ClockSteps([] if kept is None else msgpack.unpackb(kept))
        self.clock_steps.failed(instance.machine.next_txid - 1)
        self.behind_us = self.clock_steps.behind_us
        """Lag of the queues' steady clock behind the instance's, which starts at the wall clock's
        time at each start."""
        self._proxied: dict[str, frozenset[str] | None] = {}
        """Queues with proxied transfer on, and the reachable instances that their owner was last
        told; None: it was not told yet."""
        self._folds = folds
        self._commits = commits
        self._before_txid: int | None = None
        """Transaction id below which links and SOW topics need nothing of the journal; None: it is
        not known yet."""
        self._is_authoring = False
        self._starting: asyncio.Task[None] | None = None
        self._unannounced: set[str] = set()
        """Queues whose announcement by this incarnation is not in the journal yet."""
        if queues is not None:
            self._begin(queues)

    # -- beginning -----------------------------------------------------------------------------
    def _begin(self, queues: Queues) -> None:
        """Makes the controls of the owners, and begins to fold."""
        state = self.instance.state
        self.clock_is(0)
        incarnation = self.instance.identity.incarnation.to_bytes(8, "big")
        for name, frontend in queues.frontends.items():
            frontend.behind_us = self.behind_us
            self.controls[name] = QueueControl(self, frontend)
            if state.get(PROXIED_KEY + name) is not None and frontend.definition.is_distributed:
                self._proxied[name] = None
            if state.get(ANNOUNCED_KEY + name) == incarnation:
                frontend.is_announced = True
            elif not frontend.is_announced:
                self._unannounced.add(name)
        self._folds.enlist(self, True)

    def run(self) -> None:
        if self.queues is None:
            return
        if self.queues.announcement(self.runtime.now_us()):
            self._author()
        processes = [each.process for each in self.controls.values()]
        self._starting = self.runtime.loop.create_task(run_in_order(processes, ()))

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await asyncio.gather(
            *(each.stop() for each in self.controls.values()), return_exceptions=True
        )

    def greeted(self, connection: FramedConnection, header: Header) -> QueueControl | None:
        """Takes the connection of an owner. Returns its queue's control; None: it is not the owner
        that was started last."""
        found = self.controls.get(str(header.get("queue")))
        return found if found is not None and found.greeted(connection, header) else None

    # -- the messages that views are over --------------------------------------------------------
    def follows(self, queue: str) -> bool:
        """Returns whether views are over a queue, whose owner begins now."""
        source = self._sources.get(queue)
        if source is not None:
            source.begin()
        return source is not None

    def types_of(self, name: str) -> set[str]:
        """Returns the message types of the queues of a name."""
        frontends = {} if self.queues is None else self.queues.frontends
        found = (each.definition for each in frontends.values())
        return {each.message_type for each in found if each.name == name}

    def follow(self, name: str, message_type: str) -> SowTopic | None:
        """Returns the messages of a queue as the records of a topic, of which the owner tells from
        now on; None: there is no such queue."""
        frontends = {} if self.queues is None else self.queues.frontends
        for frontend in frontends.values():
            definition = frontend.definition
            if (definition.name, definition.message_type) == (name, message_type):
                return self._followed(definition).topic
        return None

    def _followed(self, definition: QueueDefinition) -> QueueSource:
        from raylay.services.core.queue_source import QueueSource
        from raylay.services.plugins.message_types import installed_types

        queue = definition.stored_as
        found = self._sources.get(queue)
        if found is None:
            self._follows += 1
            kind = installed_types(self.runtime.config.type_definitions)[definition.message_type]
            found = self._sources[queue] = QueueSource(definition, kind, self._follows)
            control = self.controls[queue]
            control.follow(self._follows, self.instance.machine.committed_txid)
        return found

    def is_told(self, topic: SowTopic) -> bool:
        """Returns whether a topic is no queue's, or all messages of the queue have been told."""
        return all(each.is_complete for each in self._sources.values() if each.topic is topic)

    def unfollow(self, topic: SowTopic) -> None:
        """Ends what `follow` began, because nothing is computed of the messages any more."""
        for queue, source in list(self._sources.items()):
            if source.topic is topic and source.number:
                del self._sources[queue]
                control = self.controls[queue]
                control.follow(0)

    def following(self, queue: str, number: int) -> None:
        """Notes that what an owner tells from now on answers a request."""
        source = self._sources.get(queue)
        if source is not None:
            source.is_heard = source.number == number

    def _heard(self, queue: str) -> QueueSource | None:
        source = self._sources.get(queue)
        return source if source is not None and source.is_heard else None

    def came(self, queue: str, records: bytes) -> None:
        """Takes messages that have come to a queue, as the journal has them."""
        source = self._heard(queue)
        if source is not None:
            found = iterate_records(records)
            self._changed(source.came(found, self.folded_txid(), self.runtime.now_us()))

    def gone(self, queue: str, keys: Keys) -> None:
        """Takes messages that have left a queue for good."""
        source = self._heard(queue)
        if source is not None:
            self._changed(source.gone(keys, self.folded_txid(), self.runtime.now_us()))

    def all_came(self, queue: str) -> None:
        """Notes that a queue's owner has told of all messages since it began."""
        source = self._heard(queue)
        if source is not None:
            self._changed(source.complete(self.folded_txid(), self.runtime.now_us()))

    # -- a feature, for the folds --------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Folds commits, and tells the owners of them."""
        assert self.queues is not None
        self.queues.fold(batch)
        for control in self.controls.values():
            control.committed(batch.last_txid, is_awaited=self.queues.is_awaited)
            control.judge()
        if self._unannounced:
            self._note_announced()

    def _note_announced(self) -> None:
        assert self.queues is not None
        done = {name for name in self._unannounced if self.queues.frontends[name].is_announced}
        if done:
            self._unannounced -= done
            incarnation = self.instance.identity.incarnation.to_bytes(8, "big")
            self.runtime.spawn(self._remember({ANNOUNCED_KEY + name: incarnation for name in done}))

    async def _remember(self, values: dict[str, bytes | None]) -> None:
        # After a failed write, announcements are made again at the next start, and the next clock
        # step writes all earlier ones.
        with suppress(RaylayError):
            await self.instance.state.put(values)

    def failed(self, committed_txid: int) -> None:
        """Takes back staged records behind this transaction id, which never reach the disk."""
        assert self.queues is not None
        from raylay.services.protocol.child import queue_control

        tags = self.queues.failed(committed_txid)
        self.clock_steps.failed(committed_txid)
        for name, control in self.controls.items():
            control.say(queue_control.failed(tags.get(name, ()), committed_txid))
        if self._unannounced and self.queues.announcement(self.runtime.now_us()):
            self.author_soon()

    def committed(self) -> int:
        """The last committed transaction id, which a publisher may have been acknowledged."""
        self._commits.cycle.catch_up()
        return self.instance.machine.committed_txid

    def folded_txid(self) -> int:
        """The transaction id up to which everything is folded."""
        return self._folds.folded_txid(self.instance.machine.committed_txid)

    # -- records and requests of owners --------------------------------------------------------
    def draft(
        self,
        frontend: QueueFrontend,
        said: Any,
        letters: Sequence[tuple[str, bytes, Sequence[int]]] = (),
    ) -> None:
        """Has a record journaled, with the others of this turn.

        Args:
            letters: reasons, each with the messages whose dead letters are journaled before the
                record, and how often each was delivered in vain.

        Raises:
            RemoteProtocolError: the record is none that an owner may draft.
        """
        assert self.queues is not None
        try:
            for reason, messages, deliveries in letters:
                now_us = self.runtime.now_us()
                self.queues.letters(frontend, reason, messages, deliveries, now_us)
            self.queues.draft(frontend, said, self.runtime.now_us())
        except RaylayError as error:
            raise RemoteProtocolError(str(error), "bad_record") from None
        self.author_soon()

    def acknowledge(self, frontend: QueueFrontend, said: Acknowledgment) -> int:
        """Journals an acknowledgment on behalf of a client; returns the number of messages that it
        covers."""
        assert self.queues is not None
        count = self.queues.acknowledge(frontend, said, self.runtime.now_us())
        self.author_soon()
        return count

    def author_soon(self) -> None:
        """Journals the drafted records at the end of this turn."""
        if not self._is_authoring:
            self._is_authoring = True
            self.runtime.loop.call_soon(self._author)

    def _author(self) -> None:
        runtime = self.runtime
        if self._commits.cycle.failure is not None:
            # Drafts wait until they can be written, as publishers do.
            self._is_authoring = True
            runtime.loop.call_later(PROBE_S, self._author)
            return
        self._is_authoring = False
        assert self.queues is not None
        runs = self.queues.runs()
        if runs and runtime.is_serving:
            self.instance.perform(self.instance.machine.authored(runs, runtime.steady_us()))

    def author_now(self) -> None:
        if self._is_authoring:
            self._author()

    def request(self, queue: str, said: Any) -> None:
        assert self.queues is not None
        definition = self.controls[queue].frontend.definition
        self._requests.send(self.queues.flood.made(queue, said), definition)

    def requested(self, request: QueueRequest) -> None:
        """Takes another instance's request for messages: tells it to the owner of the same queue
        here, and passes it on over every link unless it came before."""
        if self.queues is None:
            return
        control = self.controls.get(f"{request.message_type}/{request.queue}")
        definition = None if control is None else control.frontend.definition
        if self.asked(self._requests.routed(request, definition)):
            self._requests.forward(request)

    def asked(self, asked: RoutedRequest) -> bool:
        """Tells the owner here of another instance's request. Returns whether the request is new
        and must be passed on."""
        if self.queues is None or not self.queues.flood.is_new(asked):
            return False
        control = self.controls.get(asked.queue)
        if control is not None:
            from raylay.services.protocol.child import queue_control
            from raylay.services.queues.decisions import TransferRequest

            request = TransferRequest(asked.count, asked.wanted)
            control.say(queue_control.request(request, asked.name))
        return True

    # -- frames to owners ----------------------------------------------------------------------
    def named(self, names: Mapping[int, str]) -> None:
        if self.queues is None or all(self.names.get(each) == names[each] for each in names):
            return
        from raylay.services.protocol.child import queue_control
        from raylay.services.queues.transfer.ownership import NAMES_KEPT_MAX, keep_last

        self.names.update(names)
        keep_last(self.names, NAMES_KEPT_MAX)
        for control in self.controls.values():
            control.say(queue_control.names(names))

    def steady_us(self) -> int:
        """The time by which leases end and messages expire, in microseconds. It does not jump at a
        restart."""
        return self.runtime.steady_us() - self.behind_us

    def clock_is(self, offset_us: int) -> None:
        """Takes the wall clock's present lead over the instance's steady clock, which later receive
        times follow. The owners are told of a change before they are told of messages received
        after it."""
        after_txid = self.instance.machine.next_txid - 1
        offset_us += self.behind_us
        if self.queues is not None and self.clock_steps.note(after_txid, offset_us):
            from raylay.services.protocol.child import queue_control

            # The changes are kept: messages from before the next start age by them, too.
            self.runtime.spawn(self._remember({CLOCK_KEY: msgpack.packb(self.clock_steps.all())}))
            for control in self.controls.values():
                control.say(queue_control.clock(after_txid, offset_us))

    def became_ready(self) -> None:
        for control in self.controls.values():
            from raylay.services.protocol.child import queue_control

            control.say(queue_control.SERVES)

    def cancelled(
        self, frontend: QueueFrontend, session: int | None, keys: Any, *, unseen: bool = False
    ) -> int:
        """Gives back the messages that a session holds, or, with None, whichever session holds
        them; returns how many of them were held.

        Args:
            unseen: whether no handler was given the messages, so that the delivery does not count
                as an attempt.
        """
        from raylay.services.protocol.child import queue_control

        control = self.controls[frontend.definition.stored_as]
        if frontend.definition.at_most_once:
            # The messages left the queue before they were sent. Only the place in the consumer's
            # backlog is given back.
            control.process.say(queue_control.done(keys))
            return 0
        count = 0
        found: dict[Consumer, list[tuple[Key, int]]] = frontend.cancelled(session, keys)
        for consumer, leases in found.items():
            count += len(leases)
            control.say(queue_control.cancel(consumer, leases, unseen=unseen))
        return count

    # -- periodic work -------------------------------------------------------------------------
    def check(self) -> None:
        if self.queues is not None:
            now_us = self.steady_us()
            for frontend in self.queues.frontends.values():
                frontend.tick(now_us)
        if self._proxied:
            self._tell_reachable()

    def _tell_reachable(self) -> None:
        from raylay.services.protocol.child import queue_control

        links = self._links.values()
        reachable = frozenset(link.peer_name for link in links if link.is_connected)
        for name, told in self._proxied.items():
            if told != reachable and self.controls[name].process.connection is not None:
                self._proxied[name] = reachable
                self.controls[name].say(queue_control.proxied(True, reachable))

    async def proxied(self, queue: str, *, on: bool) -> str:
        """Lets a queue take over, for consumers here, messages of instances that this one is not,
        or no longer, connected to. The setting lasts over restarts until it is turned off.

        Args:
            queue: the queue's name, `type/name`, or `name!type` as in the resource tree.

        Returns:
            A sentence about the result and its risk.

        Raises:
            ConfigurationError: there is no such queue, or it is local.
            StorageError: the setting could not be written: nothing was changed.
        """
        from raylay.services.protocol.child import queue_control

        found = [
            name
            for name, each in self.controls.items()
            if queue in (name, each.frontend.definition.name, each.resource_id)
            and each.frontend.definition.is_distributed
        ]
        if not found:
            raise ConfigurationError(
                f"{self.runtime.config.name} has no distributed queue {queue!r}: it has "
                + (", ".join(self.controls) or "none")
            )
        await self.instance.state.put({PROXIED_KEY + name: b"on" if on else None for name in found})
        for name in found:
            if on:
                self._proxied[name] = None
            elif self._proxied.pop(name, None) is not None:
                self.controls[name].say(queue_control.proxied(False, ()))
        self.runtime.report("queue_proxied", queue=queue, on=on)
        self.check()
        if not on:
            return f"queue {queue}: messages of other instances are theirs again"
        return (
            f"queue {queue}: {self.runtime.config.name} takes over messages of instances that it "
            "is not connected to. An instance that is only cut off may deliver them too: turn this "
            "on at one instance, and let no consumers use the others until it is off again"
        )

    def owner_came(self, queue: str) -> None:
        """Forgets what an earlier owner was told of reachable instances, as a new owner begins."""
        if queue in self._proxied:
            self._proxied[queue] = None

    # -- the journal ---------------------------------------------------------------------------
    def removable(self, before_txid: int) -> None:
        """Notes that links and SOW topics need nothing of the journal below this transaction id.
        The journal below it is released as far as no queue needs it."""
        self._before_txid = before_txid
        self.release()

    def release(self) -> None:
        if self._before_txid is not None:
            # The bound may move back, even to 0: a link's server may have come back with fewer
            # messages.
            floors = [each.floor_txid + 1 for each in self.controls.values()]
            self.instance.journal.removable(min([self._before_txid, *floors]))

    # -- status --------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        if self.queues is None:
            return {}
        return {
            "queues": {
                name: {**each.status(), "proxied": name in self._proxied}
                for name, each in self.controls.items()
            }
        }
