"""The queues of an instance, on the instance's side: their frontends, the records that they write
into the journal, and the check of clients' acknowledgments before they are journaled.

Decisions of the owners are drafted here, and take effect when they are read back from the commit,
for the owners as for everything else. Where an append fails, the owners are told which of their
drafts have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from raylay.services.core.batch import CommitBatch
from raylay.services.errors import LocalProtocolError, RemoteProtocolError
from raylay.services.messages.ranges import Range
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Command, Flag, Kind, Record, Run, iterate_records
from raylay.services.messages.stateful import (
    PendingLookup,
    PreparedRun,
    RefusedRecords,
    WritePermission,
    left_of,
)
from raylay.services.messages.topic_book import QueueTopics
from raylay.services.messages.topics import TopicKey, TopicMatcher, TopicRule
from raylay.services.queues.decisions import QueueRecordDraft
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.frontend import EARLY_MAX, Flood, QueueFrontend
from raylay.services.queues.letters import LETTER_BYTES_MAX, correlation_of
from raylay.services.queues.records import (
    NOT_LEASED,
    RANGES_MAX,
    UNDONE,
    Acknowledgment,
    Keys,
    Transfer,
    pack_acknowledgment,
    pack_transfer,
    parts_of,
    read_acknowledgment,
)
from raylay.services.replication.instance.self_publisher import SelfPublisher
from raylay.services.replication.values import Identity


class Queues:
    """The queues of an instance.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        definitions: the queues, each with a name and type of its own.
        identity: identity of the instance in this life.
        acknowledging: called with a queue's `QueueDefinition.stored_as`, and its acknowledgments on
            their way to the disk, while the queue has an owner.

    Attributes:
        doors: the frontend of each queue, by `QueueDefinition.stored_as`.
    """

    name = "queues"
    may_be_ahead = False

    def __init__(
        self,
        definitions: Iterable[QueueDefinition],
        identity: Identity,
        acknowledging: Callable[[str, Keys], None] = lambda name, keys: None,
    ) -> None:
        self.frontends: dict[str, QueueFrontend] = {}
        self._by_topic: dict[TopicKey, QueueFrontend] = {}
        for definition in definitions:
            frontend = QueueFrontend(
                definition, identity.name, identity.incarnation, identity.life, acknowledging
            )
            self.frontends[definition.stored_as] = self._by_topic[
                frontend.topic, frontend.message_type
            ] = frontend
        self._matcher = TopicMatcher(
            tuple(
                TopicRule(each.definition.topic, each.definition.message_type)
                for each in self.frontends.values()
            )
        )
        self.is_awaited = False
        """Whether an owner must read the commit folded last at once: it has messages of a queue, or
        records that decide about some."""
        self.flood = Flood(identity.name, identity.incarnation, identity.life)
        self._author = SelfPublisher("queues", identity)
        self._tags: dict[int, tuple[QueueFrontend, int]] = {}
        """Tags of uncommitted drafts, with their queues, by the author's sequence."""
        self.brought: set[QueueFrontend] = set()
        """Queues for which acknowledgments arrived lately of messages that are not leased here, or,
        over links, removals or transfers."""

    def slowed_s(self, *, is_link: bool) -> float:
        """Returns the seconds for which the connection that has just brought acknowledgments must
        not be read: longer, the more of them wait for messages that have not arrived."""
        if not self.brought:
            return 0.0
        found = max(frontend.slowed_us(is_link=is_link) for frontend in self.brought)
        self.brought.clear()
        return found / 1_000_000

    def find(self, topic: bytes, message_type: bytes) -> QueueFrontend | None:
        """Returns the queue of this name and type; None: there is none."""
        return self._by_topic.get((topic, message_type))

    def topics(self) -> list[QueueTopics]:
        """Returns the queues in the form that the instance's topics need."""
        return [_topics_of(self, frontend) for frontend in self.frontends.values()]

    # -- drafts --------------------------------------------------------------------------------
    def draft(self, frontend: QueueFrontend, draft: QueueRecordDraft, now_us: int) -> None:
        """Takes a record that a queue's owner wants in the journal. `runs` returns it.

        Args:
            now_us: time by the wall clock.

        Raises:
            LocalProtocolError: it is too long for a record; nothing was taken.
        """
        if draft.command not in (Command.TRANSFER, Command.QUEUE_REMOVAL):
            raise LocalProtocolError(f"an owner drafts no record of command {draft.command}")
        sequence = self._drafted(frontend, draft.command, draft.body, now_us)
        if draft.tag:
            self._tags[sequence] = frontend, draft.tag

    def letters(
        self,
        frontend: QueueFrontend,
        reason: str,
        records: bytes,
        deliveries: Sequence[int],
        now_us: int,
    ) -> None:
        """Drafts the dead letters of messages that are about to leave a queue undone. The caller
        then drafts their removal.

        Args:
            reason: reason why they leave the queue.
            records: records of the messages, back to back, as in the journal.
            deliveries: how often each message was delivered in vain.
            now_us: time by the wall clock.

        Raises:
            LocalProtocolError: the queue has no dead letters, it is no reason, or the numbers are
                not those of the messages; nothing was taken.
        """
        of = frontend.definition
        if not of.dead_letters or reason not in UNDONE:
            raise LocalProtocolError(f"queue {of.name} has no dead letters of reason {reason!r}")
        messages = list(iterate_records(records))
        if len(messages) != len(deliveries):
            raise LocalProtocolError(
                f"queue {of.name}: {len(messages)} dead letters have {len(deliveries)} numbers of "
                "deliveries"
            )
        for record, times in zip(messages, deliveries, strict=True):
            self._author.draft(
                of.dead_letters,
                of.message_type,
                record.body,
                now_us,
                correlation=correlation_of(record, of.name, reason, times),
                bytes_max=LETTER_BYTES_MAX,
            )

    def acknowledge(self, frontend: QueueFrontend, said: Acknowledgment, now_us: int) -> int:
        """Drafts an acknowledgment for a client that selected the messages by a filter. Returns the
        number of messages.

        Raises:
            LocalProtocolError: it is too long for a record; nothing was taken.
        """
        count = _count(said)
        if count:
            self._drafted(frontend, Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(said), now_us)
        return count

    def announcement(self, now_us: int) -> int:
        """Drafts, for each queue that needs it, the name of the instance with this incarnation.
        Returns the number of drafts. To be called before the instance serves."""
        count = 0
        for frontend in self.frontends.values():
            body = frontend.announcement()
            if body:
                self._drafted(frontend, Command.TRANSFER, body, now_us)
                count += 1
        return count

    def claims(
        self,
        frontend: QueueFrontend,
        publisher: int,
        ranges: Sequence[Range],
        given: str,
        now_us: int,
    ) -> list[Run]:
        """Returns the claims that are journaled before messages that a client sends again and that
        are new here."""
        moves = frontend.claims(publisher, ranges, given)
        for at in range(0, len(moves), RANGES_MAX):
            said = Transfer(frontend.instance, 0, moves[at : at + RANGES_MAX])
            self._drafted(frontend, Command.TRANSFER, pack_transfer(said), now_us)
        return self.runs() if moves else []

    def _drafted(self, frontend: QueueFrontend, command: int, body: bytes, now_us: int) -> int:
        definition = frontend.definition
        return self._author.draft(
            definition.name, definition.message_type, body, now_us, command=command
        )

    def runs(self) -> list[Run]:
        """Returns the drafts since the last call, to be journaled at once. Dead letters are
        committed together with the removal behind them."""
        runs = self._author.runs()
        for run in runs:
            if not run.flags & Flag.COMMANDS:
                run.with_next = True
        return runs

    # -- a feature, for the folds --------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        find, publisher, is_of_queue = self._by_topic.get, self._author.publisher, self._matcher
        is_awaited = False
        for run in batch.runs:
            if run.flags & Flag.COMMANDS:
                frontend = find((run.topic, run.message_type))
                if frontend is not None and frontend.fold(run):
                    is_awaited = True
            elif run.kind == Kind.RECORDS and is_of_queue[run.topic, run.message_type]:
                is_awaited = True
            if run.publisher == publisher:
                for draft in self._author.committed((run,)):
                    self._tags.pop(draft.sequence, None)
        self.is_awaited = is_awaited

    def failed(self, committed_txid: int) -> dict[str, list[int]]:
        """Takes an append failure: nothing staged behind this transaction id comes to the disk.
        Returns the tags of the failed drafts, by queue."""
        found: dict[str, list[int]] = {}
        for draft in self._author.failed(committed_txid):
            frontend, tag = self._tags.pop(draft.sequence, (None, 0))
            if frontend is not None:
                found.setdefault(frontend.definition.stored_as, []).append(tag)
        return found


def held_only(queues: Queues, frontend: QueueFrontend, run: Run, now_us: int) -> PreparedRun:
    """Returns the part of a client's acknowledgments that names messages which the client holds,
    for a client that may not read the whole queue and so may not decide about other messages.

    Args:
        now_us: time by the wall clock.
    """
    judged = _JudgedRun(queues, frontend, now_us)
    for record in iterate_records(run.payload):
        try:
            said = read_acknowledgment(record.body)
        except RemoteProtocolError:
            judged.kept.append((record, record.body))  # The queue's state refuses it later.
            continue
        judged.judge(record, said, frontend.held_by(said, run.publisher))
    return judged.prepared(run)


class _JudgedRun:
    """The acknowledgments of one run: each is journaled as its client wrote it, or not at all.

    A client sends unanswered acknowledgments again, to another instance, which judges them by
    leases of its own. A record that was cut to its valid part would have different contents at
    different instances under one sequence, and the instances would never agree on what has left the
    queue. So where only a part of a record is valid, the instance writes that part as a record of
    its own.
    """

    def __init__(self, queues: Queues, frontend: QueueFrontend, now_us: int) -> None:
        self._queues = queues
        self._frontend = frontend
        self._now_us = now_us
        self._is_authoring = False
        self.kept: list[tuple[Record, bytes]] = []
        self.refused: list[RefusedRecords] = []

    def judge(self, record: Record, said: Acknowledgment, counts: Acknowledgment) -> None:
        if counts is said:
            self.kept.append((record, record.body))
            return
        for part in parts_of(counts):
            self._is_authoring = True
            self._queues.acknowledge(self._frontend, part, self._now_us)
        whole, left = _count(said), _count(counts)
        text = (
            f"{whole - left} of {whole} messages are not leased to this client here, by queue "
            f"{self._frontend.definition.name}: they stay in the queue, and are delivered again"
        )
        self.refuse(record, NOT_LEASED, text)

    def refuse(self, record: Record, reason: str, text: str) -> None:
        """Refuses a record: it is not journaled."""
        self.refused.append(RefusedRecords([(record.sequence, record.sequence)], reason, text))

    def prepared(self, run: Run) -> PreparedRun:
        if not self.refused:
            return PreparedRun((run,))
        authored = self._queues.runs() if self._is_authoring else ()
        return left_of(run, self.kept, self.refused)._replace(authored=authored)


def _count(said: Acknowledgment) -> int:
    return sum(last - first + 1 for ranges in said.keys.values() for first, last in ranges)


class QueueState:
    """Checks acknowledgments of a queue before they are journaled: that they are acknowledgments,
    and, with strict leasing, which of their messages are leased to the client.

    A client's acknowledgments are checked once, where they arrive. Those from other instances were
    checked there.
    """

    def __init__(self, queues: Queues, frontend: QueueFrontend) -> None:
        self._queues = queues
        self._frontend = frontend
        self._brought = queues.brought

    def looks_for(
        self, run: Run, permission: WritePermission | None = None
    ) -> Sequence[PendingLookup]:
        """Returns nothing: no look-up is needed."""
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        judged = _JudgedRun(self._queues, self._frontend, now_us)
        for record in iterate_records(run.payload):
            try:
                said = read_acknowledgment(record.body)
            except RemoteProtocolError as error:
                judged.refuse(record, error.reason, str(error))
                continue
            if not self._frontend.lets_in(said):
                text = (
                    f"more than {EARLY_MAX} ranges of acknowledgments wait here for messages of "
                    f"queue {self._frontend.definition.name} that have not come: acknowledge only "
                    "messages that were delivered here"
                )
                judged.refuse(record, "bad_message", text)
                continue
            judged.judge(record, said, self._judged(said, run.publisher, steady_us))
        return judged.prepared(run)

    def _judged(self, said: Acknowledgment, by: int, steady_us: int) -> Acknowledgment:
        return self._frontend.judged(said, by, steady_us - self._frontend.behind_us)

    def staged(self, run: Run) -> None:
        """Takes the acknowledgments in a staged run: they take effect when it is committed, but
        their consumers get room for more messages now."""
        for _, record in readable_records(run):
            if run.path and record.command in (Command.TRANSFER, Command.QUEUE_REMOVAL):
                # What an instance says of messages that have not come is kept, too.
                self._brought.add(self._frontend)
                continue
            with suppress(RemoteProtocolError):
                if self._frontend.staged(read_acknowledgment(record.body), run.last_txid):
                    self._brought.add(self._frontend)

    def failed(self, committed_txid: int) -> None:
        """Forgets acknowledgments staged behind this transaction id: they failed."""
        self._frontend.failed(committed_txid)


class _Claims:
    """The claims of a distributed queue, for messages that clients send again."""

    def __init__(self, queues: Queues, frontend: QueueFrontend) -> None:
        self._queues = queues
        self._frontend = frontend

    def claims(self, publisher: int, ranges: list[Range], given: str, now_us: int) -> list[Run]:
        return self._queues.claims(self._frontend, publisher, ranges, given, now_us)


def _topics_of(queues: Queues, frontend: QueueFrontend) -> QueueTopics:
    definition = frontend.definition
    return QueueTopics(
        definition.name,
        definition.message_type,
        QueueState(queues, frontend),
        TopicRule(definition.topic, definition.message_type),
        definition.target,
        _Claims(queues, frontend) if definition.kind == "queue" else None,
    )
