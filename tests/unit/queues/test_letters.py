"""Dead letters: what leaves a queue undone has its copy in the journal before it is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.core.test_queues import Nothing, journaled, queues
from unit.queues.test_machine import (
    ACKER,
    ONE,
    TWO,
    Instance,
    P,
    delivered,
    queue,
    the_draft,
    the_lease,
)

from raylay.services.core.batch import CommitBatch
from raylay.services.errors import ConfigurationError, LocalProtocolError
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Command,
    Record,
    RecordBuilder,
    decode_record,
    iterate_records,
)
from raylay.services.processes.queue_owner import letters as sending
from raylay.services.processes.queue_owner.letters import Letters
from raylay.services.protocol.frames import FrameReader
from raylay.services.queues.decisions import Expiration, QueueRecordDraft
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.drafts import DRAFT_MESSAGES_MAX, LETTERS_MAX
from raylay.services.queues.letters import (
    CORRELATION_BYTES_MAX,
    LETTER_BYTES_MAX,
    correlation_of,
)
from raylay.services.queues.records import (
    Acknowledgment,
    OwnershipChange,
    Removal,
    Transfer,
    keys_of,
    pack_acknowledgment,
    pack_removal,
    pack_transfer,
    read_removal,
)

pytestmark = pytest.mark.covers(
    "Queues", "a dead letter is in the journal before its message is gone"
)

QUEUE = QueueDefinition("work", "json", underlying="orders", dead_letters="failed")


def record(
    sequence: int, body: bytes = b"{}", correlation: bytes = b"", topic: str = "orders"
) -> bytes:
    return RecordBuilder(7, topic, "json").build(sequence, body, 0, correlation=correlation)


def read(data: bytes) -> Record:
    return decode_record(data)


def removal(tag: int) -> QueueRecordDraft:
    body = pack_removal(Removal("a", tag, {7: [(tag, tag)]}, "time_limit"))
    return QueueRecordDraft(tag, Command.QUEUE_REMOVAL, body)


# -- what a letter is --------------------------------------------------------------------------


def test_a_letter_says_of_which_message_it_is_and_why() -> None:
    said = json.loads(correlation_of(read(record(3, correlation=b"x1")), "work", "time_limit"))
    assert said == {
        "queue": "work",
        "reason": "time_limit",
        "topic": "orders",
        "bookmark": "7|3|",
        "correlation_id": "x1",
    }


def test_the_longest_correlation_id_is_in_the_letter() -> None:
    longest = b"y" * CORRELATION_BYTES_MAX
    said = json.loads(correlation_of(read(record(3, correlation=longest)), "work", "time_limit"))
    assert said["correlation_id"] == longest.decode()


@pytest.mark.parametrize("correlation", [b"", b"y" * (CORRELATION_BYTES_MAX + 1)])
def test_what_is_none_or_too_long_of_the_message_is_not_in_its_letter(correlation: bytes) -> None:
    said = json.loads(correlation_of(read(record(3, correlation=correlation)), "work", "sent"))
    assert "correlation_id" not in said


def test_letters_are_journaled_before_the_removal_and_byte_for_byte() -> None:
    here = queues(QUEUE)
    frontend = here.frontends["json/work"]
    here.letters(frontend, "max_cancels", record(1, b"{ }") + record(2, b"[1,  2]"), [3, 0], 5)
    here.draft(frontend, removal(1), 5)
    runs = journaled(here.runs())
    assert [(run.topic, run.count) for run in runs] == [(b"failed", 2), (b"work", 1)]
    assert [run.with_next for run in runs] == [True, False], "all of it is one commit"
    bodies = [each.body for each in iterate_records(runs[0].payload)]
    assert bodies == [b"{ }", b"[1,  2]"]
    told = [json.loads(each.correlation) for each in iterate_records(runs[0].payload)]
    assert [each.get("deliveries") for each in told] == [3, None]
    here.fold(CommitBatch(runs, Nothing))  # type: ignore[arg-type]
    assert not here._author and not here.failed(0), "all of it is taken up"


def test_letters_that_could_not_be_written_are_undone_with_their_removal() -> None:
    here = queues(QUEUE)
    frontend = here.frontends["json/work"]
    here.letters(frontend, "time_limit", record(1), [0], 5)
    here.draft(frontend, removal(1), 5)
    journaled(here.runs(), 10)
    assert here.failed(9) == {"json/work": [1]}
    assert not here._author


def test_the_largest_message_has_a_letter() -> None:
    here = queues(QUEUE)
    front = len(record(1))
    largest = record(
        1,
        b" " * (RECORD_BYTES_MAX - front + 2 - CORRELATION_BYTES_MAX),
        b"z" * CORRELATION_BYTES_MAX,
    )
    assert len(largest) == RECORD_BYTES_MAX
    here.letters(here.frontends["json/work"], "time_limit", largest, [0], 5)
    (run,) = here.runs()
    (letter,) = iterate_records(run.payload)
    assert letter.body == read(largest).body


@pytest.mark.parametrize(
    ("definition", "reason"), [(QUEUE, "sent"), (QueueDefinition("work", "json"), "time_limit")]
)
def test_without_a_topic_or_a_reason_there_are_no_letters(
    definition: QueueDefinition, reason: str
) -> None:
    here = queues(definition)
    with pytest.raises(LocalProtocolError, match="no dead letters"):
        here.letters(here.frontends["json/work"], reason, record(1), [0], 5)
    assert not here.runs()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"dead_letters": "^failed"}, "an expression"),
        ({"dead_letters": "work"}, "in the queue again"),
        ({"dead_letters": "orders"}, "in the queue again"),
    ],
)
def test_a_topic_that_cannot_take_letters_is_refused(values: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        QueueDefinition("work", "json", underlying="orders", **values)


# -- what the machine decides ------------------------------------------------------------------


def expire(here: Instance, *sequences: int) -> None:
    said = Acknowledgment(keys_of([(P, each) for each in sequences]), "expire")
    here.command(Command.QUEUE_ACKNOWLEDGMENT, pack_acknowledgment(said))


def lettered(**changes: Any) -> Instance:
    return Instance(queue(dead_letters="failed", **changes))


def test_who_gives_a_message_up_has_it_removed_by_its_owner_behind_its_letter() -> None:
    here = lettered()
    here.join(backlog=1)
    here.publish(1, 2)
    here.take()
    expire(here, 1)
    assert here.machine.state.depth == 2, "its letter is not in the journal"
    decisions = here.take()
    draft = the_draft([each for each in decisions if isinstance(each, QueueRecordDraft)])
    assert delivered(decisions) == {ONE: [2]}, "the consumer has room for the next one"
    assert read_removal(draft.body)[2:] == ({P: [(1, 1)]}, "forced_expire")
    assert here.machine.state.drafts.letters(draft.tag) == ("forced_expire", [(1, 0)])
    assert here.machine.state.drafts.is_out(draft.tag)
    here.write([draft])
    assert here.take() == [Expiration(1, (P, 1), "forced_expire")]
    assert here.machine.state.depth == 1 and not here.machine.state.drafts.is_out(draft.tag)
    assert here.machine.state.drafts.letters(draft.tag) == ("", [])


def test_whose_message_it_is_not_waits_for_its_owner() -> None:
    here = lettered()
    here.join(backlog=9)
    here.publish(1, path=(21,))
    expire(here, 1)
    assert not [each for each in here.take() if isinstance(each, QueueRecordDraft)]
    assert here.machine.state.depth == 1
    # It comes to be this instance's: then it is this one that writes the letter.
    body = pack_transfer(Transfer("B", 1, [OwnershipChange(P, 1, 1, 1, "A")]))
    here.command(Command.TRANSFER, body)
    draft = the_draft(here.take())
    assert read_removal(draft.body).why == "forced_expire"


def test_a_message_that_another_consumer_has_by_now_is_taken_back() -> None:
    here = lettered()
    here.join(ONE)
    here.publish(1)
    here.machine.cancelled(ONE, [the_lease(here.take())])
    here.machine.left(ONE)
    here.join(TWO)
    assert delivered(here.take()) == {TWO: [1]}
    expire(here, 1)
    assert read_removal(the_draft(here.take()).body).why == "forced_expire"


def test_a_removal_that_could_not_be_written_is_drafted_again_with_its_letters() -> None:
    here = lettered()
    here.publish(1)
    expire(here, 1)
    first = the_draft(here.take())
    here.machine.failed([first.tag], here.runs[-1].last_txid)
    again = the_draft(here.take())
    assert here.machine.state.drafts.letters(again.tag) == ("forced_expire", [(1, 0)])


def test_what_was_given_up_before_a_restart_is_removed_behind_it() -> None:
    here = lettered()
    here.publish(1, 2)
    expire(here, 2)
    here.restart()
    here.machine.serves()
    here.machine.fold(here.runs, here.now_us)
    draft = the_draft(here.take())
    assert read_removal(draft.body)[2:] == ({P: [(2, 2)]}, "forced_expire")


def test_what_was_given_up_is_removed_by_an_owner_that_read_it_before_it_served() -> None:
    here = lettered()
    here.join()
    here.publish(1, 2)
    expire(here, 2)
    here.restart(is_serving=False)
    here.machine.fold(here.runs, here.now_us)
    assert not [each for each in here.take() if isinstance(each, QueueRecordDraft)]
    here.machine.serves()
    draft = the_draft(here.take())
    assert read_removal(draft.body)[2:] == ({P: [(2, 2)]}, "forced_expire")


def test_what_was_given_up_and_has_left_is_forgotten() -> None:
    """Also where it was acknowledged by who had it, as most messages are."""
    here = lettered()
    here.join(backlog=9)
    here.publish(1, 3, path=(21,))
    expire(here, 1, 2)
    assert len(here.machine.state.condemned) == 2
    said = pack_acknowledgment(Acknowledgment(keys_of([(P, 1), (P, 2)])))
    here.command(Command.QUEUE_ACKNOWLEDGMENT, said)
    assert not here.machine.state.condemned


def test_who_acknowledges_it_in_time_needs_no_letter() -> None:
    here = lettered()
    here.publish(1, 2)
    expire(here, 1, 2)
    draft = the_draft(here.take())
    said = pack_acknowledgment(Acknowledgment(keys_of([(P, 1)])))
    here.command(Command.QUEUE_ACKNOWLEDGMENT, said)
    assert here.machine.state.drafts.letters(draft.tag) == ("forced_expire", [(2, 0)])


def test_what_is_given_up_before_it_came_is_delivered() -> None:
    """Nobody here has what its letter would say."""
    here = lettered()
    here.join()
    expire(here, 1)
    here.publish(1)
    assert delivered(here.take()) == {ONE: [1]}


def test_a_record_removes_as_many_as_their_letters_may_be() -> None:
    here = lettered()
    here.publish(1, LETTERS_MAX + 1)
    expire(here, *range(1, LETTERS_MAX + 2))
    drafts = [each for each in here.take() if isinstance(each, QueueRecordDraft)]
    assert [len(here.machine.state.drafts.letters(each.tag)[1]) for each in drafts] == [
        LETTERS_MAX,
        1,
    ]
    assert DRAFT_MESSAGES_MAX > LETTERS_MAX


def test_where_there_are_no_letters_nothing_is_as_before() -> None:
    here = Instance(queue())
    here.publish(1)
    expire(here, 1)
    assert here.take() == [Expiration(1, (P, 1), "forced_expire")]
    assert here.sequences[ACKER] == 1


# -- on the way to the instance ------------------------------------------------------------------


class Machine:
    """One that wants letters of 1 KB each."""

    def __init__(self) -> None:
        self.out: dict[int, list[tuple[int, int]]] = {}

    def letters(self, tag: int) -> tuple[str, list[tuple[int, int]]]:
        return "time_limit", self.out[tag]

    def is_out(self, tag: int) -> bool:
        return tag in self.out


class Bodies:
    def records(self, txids: list[int], bytes_max: int) -> tuple[list[bytes], int]:
        count = max(bytes_max // 1_000, 1)
        return [bytes(1_000)] * len(txids[:count]), len(txids[:count])


class Socket:
    def __init__(self) -> None:
        self.reader = FrameReader()
        self.said: list[tuple[str, int]] = []

    def send(self, data: bytes) -> None:
        for header, body in self.reader.feed(data):
            self.said.append((header["c"], header["tag"] if "tag" in header else len(body)))

    def send_parts(self, parts: Any, size_bytes: int) -> None:
        assert size_bytes == sum(map(len, parts))
        self.send(b"".join(parts))


def test_letters_go_before_their_removal_and_few_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "UNDER_WAY_BYTES", 3_500)
    monkeypatch.setattr(sending, "DELIVERY_BYTES", 2_000)
    machine, instance = Machine(), Socket()
    letters = Letters(machine, Bodies(), instance)  # type: ignore[arg-type]
    for tag, count in ((1, 3), (2, 1), (3, 1), (4, 0)):
        machine.out[tag] = [(txid, 0) for txid in range(count)]
        letters.put(QueueRecordDraft(tag, Command.QUEUE_REMOVAL, b""))
    letters.send()
    first = [("letters", 2_000), ("letters", 1_000), ("draft", 1), ("letters", 1_000), ("draft", 2)]
    assert instance.said == first
    letters.send()
    assert instance.said == first, "nothing of it is on the disk"
    del machine.out[1]
    letters.send()
    assert instance.said == [*first, ("letters", 1_000), ("draft", 3), ("draft", 4)]


@pytest.mark.parametrize("letter", ["t", "é", "\x01"])
def test_the_largest_message_has_a_letter_whatever_its_names(letter: str) -> None:
    """Of names as long as may be, in letters that JSON writes at length."""
    longest = letter * (TOPIC_BYTES_MAX // len(letter.encode()))
    topic = longest if letter.isprintable() else "t" * TOPIC_BYTES_MAX
    correlation = (letter * CORRELATION_BYTES_MAX).encode()[:CORRELATION_BYTES_MAX]
    empty = record(1, b"", correlation, topic)
    largest = record(1, b"x" * (RECORD_BYTES_MAX - len(empty)), correlation, topic)
    assert len(largest) == RECORD_BYTES_MAX
    message = read(largest)
    built = RecordBuilder(8, topic, "json").build(
        1, message.body, 0, correlation=correlation_of(message, longest, "max_deliveries")
    )
    assert len(built) <= LETTER_BYTES_MAX
    told = json.loads(read(built).correlation)
    assert told["topic"] == topic and told["correlation_id"] == correlation.decode()
