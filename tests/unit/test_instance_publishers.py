"""What client sessions are told, decided apart from the rest of the machine."""

from __future__ import annotations

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import RecordBuilder, publisher_id, run_of, scan
from raylay.services.messages.topic_book import TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.acknowledgment import CLIENT
from raylay.services.replication.effects import AckClient, Append, CloseSession, Effect
from raylay.services.replication.instance.answers import AnswerBook, Refusal
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.outgoing import Outgoing
from raylay.services.replication.instance.publishers import Publishers
from raylay.services.replication.journal_answers import Answers
from raylay.services.replication.staged import RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters, Identity

OWN, P = 0xA, publisher_id("p")


class Bench:
    """A client `p` on session 1."""

    def __init__(self) -> None:
        known = PublisherRanges()
        self.book, self.out, self.counters = AnswerBook(), Outgoing(), Counters()
        self.durability = Durability(OWN, {}, self.book)
        missing = UnavailableMessages(PublisherRanges(), known)
        self.intake = Intake(self.durability, self.out, self.counters, known=known, missing=missing)
        self.publishers = Publishers(
            Identity("own", "g", OWN),
            TopicBook((TopicRule("^orders$"),)),
            self.intake,
            self.durability,
            self.book,
            self.out,
            self.counters,
        )
        self.publishers.logged_on(1, "p", 0)

    def publish(self, *sequences: int, topic: str = "orders") -> int:
        builder = RecordBuilder(P, topic, "json")
        payload = b"".join(builder.build(sequence, b"x", 0) for sequence in sequences)
        runs = self.publishers.runs(1, payload)
        return len(self.publishers.published(1, runs, 0, Answers()))

    def durable(self, first: int, last: int) -> list[Effect]:
        self.out.take()
        self.durability.durable(OWN, P, [(first, last)])
        self.publishers.flush()
        return self.out.take()


def test_an_ack_covers_what_is_durable_without_a_hole() -> None:
    bench = Bench()
    assert bench.publish(1, 2, 3) == 0 and len(bench.out) == 1
    assert bench.durable(2, 3) == []
    assert bench.durable(1, 1) == [AckClient(1, 3)] and bench.counters.persisted == 3
    assert bench.publishers.received_of(1) == 3
    assert bench.publishers.logged_on(2, "p", 1).durable == [(1, 3)]


def test_what_is_not_journaled_counts_as_durable() -> None:
    bench = Bench()
    assert bench.publish(1, topic="quotes") == 1
    bench.publishers.flush()
    assert bench.out.take() == [AckClient(1, 1, unjournaled=1)]


def test_what_is_refused_is_told_alone_and_in_its_place() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    bench.out.take()
    undone = bench.durability.refuse(P, [(2, 2)])
    bench.book.refused.append(Refusal("b", P, [(2, 2)], undone))
    told = bench.durable(1, 1)
    assert [(ack.sequence, ack.reason) for ack in told if isinstance(ack, AckClient)] == [
        (1, ""),
        (2, "sequence_conflict"),
    ]
    assert bench.durable(3, 3) == [AckClient(1, 3)]


def test_a_publish_that_was_numbered_here_is_answered_by_its_command() -> None:
    bench = Bench()
    publisher, sequence = bench.publishers.number_for("p")
    (entry,) = _numbered(bench, publisher, sequence)
    bench.durability.durable(OWN, publisher, [(sequence, sequence)])
    bench.publishers.flush()
    assert bench.out.take() == [AckClient(1, sequence, command_id="c1")]
    assert bench.publishers.number_for("p") == (publisher, sequence + 1)
    assert bench.publishers.senders_of(entry) == set(), "it is answered"


def test_sessions_whose_messages_failed_are_found_and_closed() -> None:
    bench = Bench()
    publisher, sequence = bench.publishers.number_for("q")
    bench.publishers.logged_on(2, "q", 0)
    (entry,) = _numbered(bench, publisher, sequence, session=2)
    assert bench.publishers.senders_of(entry) == {2}
    bench.publish(1)
    own = next(each for each in bench.intake.staged if each is not entry)
    assert isinstance(own, RunStaged) and own.sender == CLIENT
    assert bench.publishers.senders_of(own) == {1}
    bench.out.take()
    bench.publishers.close_all("retired", "moved")
    closed = [CloseSession(number, "retired", "moved") for number in (1, 2)]
    assert bench.out.take() == closed
    assert len(bench.publishers) == 0 and bench.durable(1, 1) == [], "nobody is told"


def _numbered(
    bench: Bench, publisher: int, sequence: int, session: int = 1
) -> tuple[RunStaged, ...]:
    payload = RecordBuilder(publisher, "orders", "json").build(sequence, b"x", 0)
    (chunk,) = scan(payload)
    run = run_of(chunk, payload)
    bench.publishers.published_unnumbered(session, run, "c1", 0)
    assert bench.out.take() == [Append(run)]
    return tuple(each for each in bench.intake.staged if isinstance(each, RunStaged))
