"""The queues of an instance, on its side: their doors, what is written of them into the journal,
and what clients say of them before it is journaled.

What the owners decide is drafted here and takes effect when it is read back from the commit, by the
owners as by everybody. Where an append fails, they are told which of their drafts are nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from raylay.services.core.batch import CommitBatch
from raylay.services.errors import LocalProtocolError, RemoteProtocolError
from raylay.services.messages.ranges import Range
from raylay.services.messages.readable import readable_records
from raylay.services.messages.records import Command, Flag, Record, Run, iterate_records
from raylay.services.messages.stateful import (
    PendingLookup,
    PreparedRun,
    RefusedRecords,
    WritePermission,
    left_of,
)
from raylay.services.messages.topic_book import QueueTopics
from raylay.services.messages.topics import TopicKey, TopicRule
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
    """See the file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        definitions: of the queues, each of a name and type of its own.
        identity: of the instance, in this life.
        acknowledging: called with a queue's `QueueDefinition.stored_as`, and the acknowledgments of
            it that are on their way to the disk, while it has an owner.

    Attributes:
        doors: by `QueueDefinition.stored_as`.
    """

    name = "queues"
    may_be_ahead = False

    def __init__(
        self,
        definitions: Iterable[QueueDefinition],
        identity: Identity,
        acknowledging: Callable[[str, Keys], None] = lambda name, keys: None,
    ) -> None:
        self.doors: dict[str, QueueFrontend] = {}
        self._by_topic: dict[TopicKey, QueueFrontend] = {}
        for each in definitions:
            door = QueueFrontend(
                each, identity.name, identity.incarnation, identity.life, acknowledging
            )
            self.doors[each.stored_as] = self._by_topic[door.topic, door.message_type] = door
        self.flood = Flood(identity.name, identity.incarnation, identity.life)
        self._author = SelfPublisher("queues", identity)
        self._tags: dict[int, tuple[QueueFrontend, int]] = {}
        """Tags of drafts that are not committed, with their queues, by the author's sequence."""
        self.brought: set[QueueFrontend] = set()
        """Queues for which acknowledgments came lately of messages that are not leased here."""

    def slowed_s(self, *, is_link: bool) -> float:
        """Returns the time, in seconds, for which whoever has just brought acknowledgments is not
        to be read: the longer, the more of those wait for messages that have not come."""
        if not self.brought:
            return 0.0
        found = max(door.slowed_us(is_link=is_link) for door in self.brought)
        self.brought.clear()
        return found / 1_000_000

    def find(self, topic: bytes, message_type: bytes) -> QueueFrontend | None:
        """The queue of this name and type."""
        return self._by_topic.get((topic, message_type))

    def topics(self) -> list[QueueTopics]:
        """The queues as the instance's topics see them."""
        return [_topics_of(self, door) for door in self.doors.values()]

    # -- drafts --------------------------------------------------------------------------------
    def draft(self, door: QueueFrontend, draft: QueueRecordDraft, now_us: int) -> None:
        """Takes a record that a queue's owner wants in the journal. `runs` gives it out.

        Args:
            now_us: by the clock on the wall.

        Raises:
            LocalProtocolError: it is too long for a record; nothing was taken.
        """
        if draft.command not in (Command.TRANSFER, Command.QUEUE_REMOVAL):
            raise LocalProtocolError(f"an owner drafts no record of command {draft.command}")
        sequence = self._drafted(door, draft.command, draft.body, now_us)
        if draft.tag:
            self._tags[sequence] = door, draft.tag

    def letters(self, door: QueueFrontend, reason: str, records: bytes, now_us: int) -> None:
        """Drafts the dead letters of messages that are about to leave a queue undone. Whoever calls
        this drafts their removal behind it.

        Args:
            reason: why they leave it.
            records: of the messages, back to back, as they are in the journal.
            now_us: by the clock on the wall.

        Raises:
            LocalProtocolError: the queue has no dead letters, or it is no reason; nothing was
                taken.
        """
        of = door.definition
        if not of.dead_letters or reason not in UNDONE:
            raise LocalProtocolError(f"queue {of.name} has no dead letters of reason {reason!r}")
        for record in iterate_records(records):
            self._author.draft(
                of.dead_letters,
                of.message_type,
                record.body,
                now_us,
                correlation=correlation_of(record, of.name, reason),
                bytes_max=LETTER_BYTES_MAX,
            )

    def acknowledge(self, door: QueueFrontend, said: Acknowledgment, now_us: int) -> int:
        """Drafts an acknowledgment in the name of a client that said by a filter which messages.
        Returns how many messages it is of.

        Raises:
            LocalProtocolError: it is too long for a record; nothing was taken.
        """
        count = _count(said)
        if count:
            self._drafted(door, Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(said), now_us)
        return count

    def herald(self, now_us: int) -> int:
        """Drafts, for each queue that needs it, who bears this incarnation. Returns for how many.
        Before the instance serves."""
        count = 0
        for door in self.doors.values():
            body = door.herald()
            if body:
                self._drafted(door, Command.TRANSFER, body, now_us)
                count += 1
        return count

    def claims(
        self, door: QueueFrontend, publisher: int, ranges: Sequence[Range], given: str, now_us: int
    ) -> list[Run]:
        """Returns what is journaled before messages that a client sends again and that are new
        here."""
        moves = door.claims(publisher, ranges, given)
        for at in range(0, len(moves), RANGES_MAX):
            said = Transfer(door.instance, 0, moves[at : at + RANGES_MAX])
            self._drafted(door, Command.TRANSFER, pack_transfer(said), now_us)
        return self.runs() if moves else []

    def _drafted(self, door: QueueFrontend, command: int, body: bytes, now_us: int) -> int:
        definition = door.definition
        return self._author.draft(
            definition.name, definition.message_type, body, now_us, command=command
        )

    def runs(self) -> list[Run]:
        """Returns the drafts since the last call, to be journaled at once."""
        return self._author.runs()

    # -- a feature, for the folds --------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Folds what was committed."""
        find, publisher = self._by_topic.get, self._author.publisher
        for run in batch.runs:
            door = find((run.topic, run.message_type))
            if door is not None and run.flags & Flag.COMMANDS:
                door.fold(run)
            if run.publisher == publisher:
                for draft in self._author.committed((run,)):
                    self._tags.pop(draft.sequence, None)

    def failed(self, committed_txid: int) -> dict[str, list[int]]:
        """Nothing staged behind this transaction id comes to the disk. The tags of drafts that are
        nothing now, by queue."""
        found: dict[str, list[int]] = {}
        for draft in self._author.failed(committed_txid):
            door, tag = self._tags.pop(draft.sequence, (None, 0))
            if door is not None:
                found.setdefault(door.definition.stored_as, []).append(tag)
        return found


def held_only(queues: Queues, door: QueueFrontend, run: Run, now_us: int) -> PreparedRun:
    """Returns the part of a client's acknowledgments that names messages which it holds: for one
    that may not read all of the queue. It may not decide about others.

    Args:
        now_us: by the clock on the wall.
    """
    judged = _JudgedRun(queues, door, now_us)
    for record in iterate_records(run.payload):
        try:
            said = read_acknowledgment(record.body)
        except RemoteProtocolError:
            judged.kept.append((record, record.body))  # It is refused by what takes it.
            continue
        judged.judge(record, said, door.held_by(said, run.publisher))
    return judged.prepared(run)


class _JudgedRun:
    """The acknowledgments of one run: each is journaled as its client wrote it, or not at all.

    A client sends what it was not answered again, to another instance, which judges by leases of
    its own. A record that was cut to what counts would say one thing here and another thing there,
    under one number: the instances would never agree about what has left the queue. So what counts
    of a record that does not count as a whole the instance says in a record of its own.
    """

    def __init__(self, queues: Queues, door: QueueFrontend, now_us: int) -> None:
        self._queues = queues
        self._door = door
        self._now_us = now_us
        self._is_authoring = False
        self.kept: list[tuple[Record, bytes]] = []
        self.refused: list[RefusedRecords] = []

    def judge(self, record: Record, said: Acknowledgment, counts: Acknowledgment) -> None:
        """Takes a record, of which so much counts."""
        if counts is said:
            self.kept.append((record, record.body))
            return
        for part in parts_of(counts):
            self._is_authoring = True
            self._queues.acknowledge(self._door, part, self._now_us)
        whole, left = _count(said), _count(counts)
        text = (
            f"{whole - left} of {whole} messages are not leased to this client here, by queue "
            f"{self._door.definition.name}: they stay in the queue, and are delivered again"
        )
        self.refuse(record, NOT_LEASED, text)

    def refuse(self, record: Record, reason: str, text: str) -> None:
        """Nothing of a record is journaled as its client's."""
        self.refused.append(RefusedRecords([(record.sequence, record.sequence)], reason, text))

    def prepared(self, run: Run) -> PreparedRun:
        """The result of preparing the run."""
        if not self.refused:
            return PreparedRun((run,))
        authored = self._queues.runs() if self._is_authoring else ()
        return left_of(run, self.kept, self.refused)._replace(authored=authored)


def _count(said: Acknowledgment) -> int:
    return sum(last - first + 1 for ranges in said.keys.values() for first, last in ranges)


class QueueState:
    """Checks acknowledgments of a queue before they are journaled: that they are acknowledgments,
    and, where leasing is strict, which of their messages count.

    A client's are judged, once, where they come in. What other instances bring was.
    """

    def __init__(self, queues: Queues, door: QueueFrontend) -> None:
        self._queues = queues
        self._door = door
        self._brought = queues.brought

    def looks_for(self, run: Run) -> Sequence[PendingLookup]:
        """Nothing."""
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        """The run as it is to be journaled."""
        judged = _JudgedRun(self._queues, self._door, now_us)
        for record in iterate_records(run.payload):
            try:
                said = read_acknowledgment(record.body)
            except RemoteProtocolError as error:
                judged.refuse(record, error.reason, str(error))
                continue
            if not self._door.lets_in(said):
                text = (
                    f"more than {EARLY_MAX} ranges of acknowledgments wait here for messages of "
                    f"queue {self._door.definition.name} that have not come: acknowledge only what "
                    "was delivered here"
                )
                judged.refuse(record, "bad_message", text)
                continue
            judged.judge(record, said, self._judged(said, run.publisher, steady_us))
        return judged.prepared(run)

    def _judged(self, said: Acknowledgment, by: int, steady_us: int) -> Acknowledgment:
        return self._door.judged(said, by, steady_us - self._door.behind_us)

    def staged(self, run: Run) -> None:
        """Notes acknowledgments in a staged run: they take effect when it is committed; who is done
        with them has room before."""
        for _, record in readable_records(run):
            with suppress(RemoteProtocolError):
                if self._door.staged(read_acknowledgment(record.body), run.last_txid):
                    self._brought.add(self._door)

    def failed(self, committed_txid: int) -> None:
        """Forgets what was staged behind it: that is not to come."""
        self._door.failed(committed_txid)


class _Claims:
    """A distributed queue, for who takes what clients send again."""

    def __init__(self, queues: Queues, door: QueueFrontend) -> None:
        self._queues = queues
        self._door = door

    def claims(self, publisher: int, ranges: list[Range], given: str, now_us: int) -> list[Run]:
        """See `Queues.claims`."""
        return self._queues.claims(self._door, publisher, ranges, given, now_us)


def _topics_of(queues: Queues, door: QueueFrontend) -> QueueTopics:
    definition = door.definition
    return QueueTopics(
        definition.name,
        definition.message_type,
        QueueState(queues, door),
        TopicRule(definition.topic, definition.message_type),
        definition.target,
        _Claims(queues, door) if definition.kind == "queue" else None,
    )
