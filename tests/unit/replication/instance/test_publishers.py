"""What client sessions are told, decided apart from the rest of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from support.sow_given import book

from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.ranges import PublisherRanges, Range, SequenceSet
from raylay.services.messages.records import (
    COMMAND_AT,
    Command,
    RecordBuilder,
    Run,
    author_publisher_id,
    decode_record,
    iterate_records,
    publisher_id,
    run_of,
    scan,
    unnumbered_publisher_id,
)
from raylay.services.messages.stateful import (
    PendingLookup,
    PreparedRun,
    RefusedRecords,
    WritePermission,
)
from raylay.services.messages.topic_book import QueueTopics, TopicBook
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.messages.types.trees import Tree
from raylay.services.replication.acknowledgment import CLIENT
from raylay.services.replication.effects import (
    AckClient,
    Append,
    CloseSession,
    Effect,
    EventReport,
    RefuseClient,
)
from raylay.services.replication.instance import publishers as publishers_module
from raylay.services.replication.instance.durability import Durability
from raylay.services.replication.instance.effect_list import EffectList
from raylay.services.replication.instance.intake import Intake
from raylay.services.replication.instance.pending_replies import DestinationRefusal, PendingReplies
from raylay.services.replication.instance.publishers import Publishers
from raylay.services.replication.instance.self_publisher import SelfPublisher
from raylay.services.replication.journal_lookup import LookupResult, read_all
from raylay.services.replication.publisher_names import PublisherNames, name_digest
from raylay.services.replication.recovery import POINT_KEY, RecoveryLog, RecoveryPoint
from raylay.services.replication.staged import RunStaged
from raylay.services.replication.unavailable import UnavailableMessages
from raylay.services.replication.values import Counters, Identity
from raylay.services.security.permissions import read_permissions
from raylay.services.security.publishing import PublishJudge
from raylay.storage.segment_index import OpeningEntries

OWN, P = 0xA, publisher_id("p")


class Bench:
    """A client `p` on session 1."""

    def __init__(self) -> None:
        known = PublisherRanges()
        self.book, self.out, self.counters = PendingReplies(), EffectList(), Counters()
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
            PublisherNames(),
        )
        self.publishers.logged_on(1, "p", 0)

    def publish(self, *sequences: int, topic: str = "orders") -> int:
        builder = RecordBuilder(P, topic, "json")
        payload = b"".join(builder.build(sequence, b"x", 0) for sequence in sequences)
        runs = self.publishers.runs(1, payload)
        return len(self.publishers.published(1, runs, 0, LookupResult()))

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
    bench.book.refused.append(DestinationRefusal("b", P, [(2, 2)], undone))
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


def test_a_connection_that_ends_takes_nothing_from_others() -> None:
    bench = Bench()
    publisher, sequence = bench.publishers.number_for("p")
    _numbered(bench, publisher, sequence)
    bench.publishers.logged_on(2, "q", 0)
    bench.publishers.left(2)
    bench.durability.durable(OWN, publisher, [(sequence, sequence)])
    bench.publishers.flush()
    assert bench.out.take() == [AckClient(1, sequence, command_id="c1")]
    # The client is on a new connection before the end of the old one is known.
    bench.publishers.logged_on(3, "p", 0)
    bench.publishers.left(1)
    runs = bench.publishers.runs(3, RecordBuilder(P, "orders", "json").build(1, b"x", 0))
    bench.publishers.published(3, runs, 0, LookupResult())
    bench.out.take()
    assert bench.durable(1, 1) == [AckClient(3, 1)]


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


def test_a_session_whose_publishes_the_instance_numbers_leaves_nothing_behind() -> None:
    """However many a name has in one life of the instance: they are one publisher and one range. A
    life in which nothing is numbered has none, and logging on alone makes none."""
    bench = Bench()
    publishers = bench.publishers
    before = set(bench.intake.known.sets)
    for session in range(100, 1_100):
        publishers.logged_on(session, "ann", 0)
        publishers.left(session)
    assert set(bench.intake.known.sets) == before
    publisher, first = publishers.number_for("ann")
    for session in range(100, 1_100):
        publishers.logged_on(session, "ann", 0)
        assert publishers.number_for("ann") == (publisher, first)
        _numbered(bench, publisher, first, session)
        publishers.left(session)
        first += 1
    assert set(bench.intake.known.sets) - before == {publisher}
    assert list(bench.intake.known.of(publisher)) == [(1, 1_000)]
    assert not publishers._unnumbered and len(publishers) == 1


def test_what_a_start_costs_of_each_name_whose_publishes_the_instance_numbers() -> None:
    """A publisher id for each of them, in what every instance remembers. To go on with the ids of
    the start before is no choice: an old copy of the directory would give the numbers of its lost
    tail once more (sim: an_old_copy_numbers_no_message_as_its_lost_tail)."""
    held = PublisherRanges()
    for life in range(1_000):
        held.add(unnumbered_publisher_id("ann", OWN, life), 1, 5_000)
        held.add(author_publisher_id("queues", OWN, life), 1, 5_000)
    assert len(held.sets) == 2_000
    none = OpeningEntries().of(1, PublisherRanges())
    head = OpeningEntries().of(1, held)
    size_bytes = [sum(len(key) + len(value) for key, value in each) for each in (none, head)]
    assert size_bytes[1] - size_bytes[0] <= 2_000 * 64
    # Of what is durable everywhere a recovery point has nothing.
    point = RecoveryPoint(durable_txid=10_000_000, committed_txid=10_000_000)
    assert [key for key, value in RecoveryLog({}).changes(point).items() if value] == [POINT_KEY]


class Desk:
    """The state of a queue `work`, which claims what comes again."""

    def __init__(self, identity: Identity) -> None:
        self.author = SelfPublisher("work", identity)
        self.asked: list[tuple[int, list[Range], str]] = []
        self.prepared: list[Run] = []
        self.is_refusing = False

    def looks_for(self, run: Run, permission: object = None) -> Sequence[PendingLookup]:
        return ()

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        self.prepared.append(run)
        return self.instead(run) if self.is_refusing else PreparedRun((run,))

    def instead(self, run: Run, **_: Any) -> PreparedRun:
        """The run is refused, and this instance says something in its stead."""
        self.author.draft("work", "json", b"mine", 0, command=Command.QUEUE_ACKNOWLEDGMENT)
        refused = (RefusedRecords(run.ranges(), "not_leased", "in part"),)
        return PreparedRun((), refused, self.author.runs())

    def staged(self, run: Run) -> None:
        pass

    def failed(self, committed_txid: int) -> None:
        pass

    def claims(self, publisher: int, ranges: list[Range], given: str, now_us: int) -> list[Run]:
        self.asked.append((publisher, ranges, given))
        self.author.draft("work", "json", b"mine", now_us, command=Command.TRANSFER)
        return self.author.runs()


def queued(**topics: str) -> tuple[Bench, Desk]:
    """A client `p` where there is a queue over `orders`."""
    bench = Bench()
    desk = Desk(Identity("own", "g", OWN))
    rules = (TopicRule("^(orders|work)$"),)
    work = QueueTopics("work", "json", desk, TopicRule("^orders$"), claiming=desk, **topics)
    bench.publishers._topics = TopicBook(rules, queues=(work,))
    return bench, desk


def appended(bench: Bench) -> list[tuple[bytes, int]]:
    """Topic and command of what is on its way to the journal."""
    effects = bench.out.take()
    return [(e.run.topic, e.run.payload[COMMAND_AT]) for e in effects if isinstance(e, Append)]


def published(bench: Bench, resent: str | None, *sequences: int, **options: Any) -> None:
    builder = RecordBuilder(P, options.get("topic", "orders"), "json")
    command = options.get("command", Command.PUBLISH)
    payload = b"".join(builder.build(each, b"x", 0, command=command) for each in sequences)
    bench.publishers.published(1, bench.publishers.runs(1, payload), 0, LookupResult(), resent)


def test_what_is_sent_again_and_new_here_is_claimed_before_it() -> None:
    bench, desk = queued()
    published(bench, None, 1, 2)
    assert appended(bench) == [(b"orders", 1)] and not desk.asked
    published(bench, "a", 3, 4)
    assert desk.asked == [(P, [(3, 4)], "a")]
    assert appended(bench) == [(b"work", Command.TRANSFER), (b"orders", 1)]


def test_of_what_is_sent_again_only_what_is_new_is_claimed() -> None:
    bench, desk = queued()
    published(bench, None, 2)
    published(bench, None, 4)
    published(bench, "", 1, 2, 3, 4, 5)
    assert desk.asked == [(P, [(1, 1), (3, 3), (5, 5)], "")]
    desk.asked.clear()
    published(bench, "", 1, 2)
    assert not desk.asked, "all of it is held"


def test_nothing_is_claimed_that_is_in_no_queue() -> None:
    bench, desk = queued()
    bench.publishers._topics = TopicBook((TopicRule(".*"),), queues=())
    published(bench, "a", 1)
    assert not desk.asked and appended(bench) == [(b"orders", 1)]


def test_an_acknowledgment_is_looked_at_by_its_queue_and_is_no_message_to_claim() -> None:
    bench, desk = queued()
    published(bench, "a", 1, topic="work", command=Command.QUEUE_ACKNOWLEDGMENT)
    assert [run.payload[COMMAND_AT] for run in desk.prepared] == [3]
    assert appended(bench) == [(b"work", 3)] and not desk.asked


def written_instead(bench: Bench, desk: Desk) -> list[RefuseClient]:
    """What was refused, where the instance's own word is on its way to the journal, alone."""
    told = bench.out.take()
    (entry,) = [each.run for each in told if isinstance(each, Append)]
    assert (entry.publisher, entry.ranges()) == (desk.author.publisher, [(1, 1)])
    return [each for each in told if isinstance(each, RefuseClient)]


def test_what_an_instance_says_in_the_stead_of_what_it_refuses_is_journaled() -> None:
    bench, desk = queued()
    desk.is_refusing = True
    published(bench, None, 7, topic="work", command=Command.QUEUE_ACKNOWLEDGMENT)
    assert written_instead(bench, desk) == [RefuseClient(1, [(7, 7)], "not_leased", "in part")]
    assert P not in bench.intake.known.sets and bench.counters.published == 0


def test_so_it_is_of_what_the_instance_numbers() -> None:
    bench, desk = queued()
    desk.is_refusing = True
    publisher, sequence = bench.publishers.number_for("p")
    command = Command.QUEUE_ACKNOWLEDGMENT
    payload = RecordBuilder(publisher, "work", "json").build(sequence, b"x", 0, command=command)
    run = run_of(scan(payload)[0], payload)
    refused = bench.publishers.published_unnumbered(1, run, "c1", 0)
    assert refused is not None and refused.reason == "not_leased"
    assert not written_instead(bench, desk)


def test_so_it_is_of_what_a_session_may_not_say() -> None:
    bench, desk = queued()
    bench.publishers.logged_on(1, "p", 0, desk.instead)
    published(bench, None, 7, topic="work", command=Command.QUEUE_ACKNOWLEDGMENT)
    assert written_instead(bench, desk) == [RefuseClient(1, [(7, 7)], "not_leased", "in part")]
    assert not desk.prepared


def test_an_acknowledgment_on_a_topic_that_is_no_queue_is_refused() -> None:
    bench, _ = queued()
    published(bench, None, 1, topic="orders", command=Command.QUEUE_ACKNOWLEDGMENT)
    (refused,) = bench.out.take()
    assert isinstance(refused, RefuseClient) and refused.reason == "no_queue"
    assert "'orders' of type 'json' is no queue of this instance" in refused.text
    published(bench, None, 2, topic="wrk", command=Command.QUEUE_ACKNOWLEDGMENT)
    (refused,) = bench.out.take()
    assert isinstance(refused, RefuseClient) and "did you mean work?" in refused.text


def test_a_publish_to_a_queue_goes_to_its_target() -> None:
    bench, desk = queued(target="orders")
    published(bench, "a", 1, topic="work")
    runs = [e.run for e in bench.out.take() if isinstance(e, Append)]
    assert [run.topic for run in runs] == [b"work", b"orders"] and desk.asked
    (record,) = iterate_records(runs[1].payload, verify=True)
    assert (record.topic, record.body, record.sequence) == ("orders", b"x", 1)
    sent = decode_record(RecordBuilder(P, "work", "json").build(1, b"x", 0))
    assert record.digest == sent.digest, "what comes again is known to be the same"


# -- what a session may publish ------------------------------------------------------------------
class EvenOnly:
    """Of each run the even sequences, whatever the messages say."""

    def __call__(self, run: Run, *, by_record: bool = False) -> PreparedRun:
        ranges = [(n, n) for a, b in run.ranges() for n in range(a, b + 1)]
        kept = run.select([piece for piece in ranges if piece[0] % 2 == 0])
        refused = [piece for piece in ranges if piece[0] % 2]
        return PreparedRun(
            () if kept is None else (kept,),
            (RefusedRecords(refused, "not_entitled", "odd"),) if refused else (),
        )

    def writes_all(self, topic: bytes) -> bool:
        return False

    def passes(self, topic: bytes, message: Tree) -> bool:
        return True

    def refusal(self, topic: bytes, what: str) -> tuple[str, str]:
        return "not_entitled", what


def test_what_a_session_may_not_publish_is_refused_and_the_rest_is_taken() -> None:
    bench = Bench()
    bench.publishers.logged_on(1, "p", 0, EvenOnly())
    assert bench.publish(1, 2, 3, 4) == 0
    told = bench.out.take()
    assert [each for each in told if isinstance(each, RefuseClient)] == [
        RefuseClient(1, [(1, 1), (3, 3)], "not_entitled", "odd")
    ]
    (appended,) = [each for each in told if isinstance(each, Append)]
    assert appended.run.ranges() == [(2, 2), (4, 4)]
    assert bench.publishers.received_of(1) == 4
    (ack,) = [each for each in bench.durable(2, 4) if isinstance(each, AckClient)]
    assert ack.sequence == 4


def test_a_batch_of_which_nothing_is_allowed_is_answered() -> None:
    bench = Bench()
    bench.publishers.logged_on(1, "p", 0, EvenOnly())
    bench.publish(1)
    bench.publish(3)
    bench.publishers.flush()
    told = bench.out.take()
    assert [each.ranges for each in told if isinstance(each, RefuseClient)] == [[(1, 1)], [(3, 3)]]
    assert not [each for each in told if isinstance(each, Append)]
    assert bench.counters.published == 0


def test_what_is_here_already_is_not_judged_again() -> None:
    bench = Bench()
    bench.publish(1, 2, 3)
    bench.out.take()
    bench.publishers.left(1)
    bench.publishers.logged_on(1, "p", 1, EvenOnly())
    bench.publish(1, 2, 3, 4, 5)
    told = bench.out.take()
    assert [each.ranges for each in told if isinstance(each, RefuseClient)] == [[(5, 5)]]
    assert [each.run.ranges() for each in told if isinstance(each, Append)] == [[(4, 4)]]


class OnDisk:
    """A journal of one run."""

    reads = 0

    def __init__(self, run: Run) -> None:
        self.run = run

    def look_anew(self) -> None:
        pass

    def part(self, publisher: int, wanted: SequenceSet) -> list[Run]:
        wanted.difference_update(wanted.copy())
        return [self.run]

    def highest_on_topic(self, publisher: int, topic: bytes, wanted: SequenceSet) -> int:
        return self.run.last_sequence


@pytest.mark.covers("Configuration", "of a batch that is half known here a session may")
def test_of_a_batch_that_is_half_on_disk_the_known_half_is_compared_as_it_was_asked() -> None:
    """A client sends again what an instance has that lost power before it acknowledged it: the
    batch begins with what is on disk, and ends with what is new."""
    bench = Bench()
    bench.publish(1, 2, 3)
    (appended,) = [each for each in bench.out.take() if isinstance(each, Append)]
    bench.intake.staged.committed(appended.run.last_txid)
    bench.publishers.left(1)
    bench.publishers.logged_on(1, "p", 1, EvenOnly())
    builder = RecordBuilder(P, "orders", "json")
    payload = b"".join(
        builder.build(sequence, b"other" if sequence == 2 else b"x", 0)
        for sequence in (1, 2, 3, 4, 5)
    )
    runs = bench.publishers.runs(1, payload)
    answers = LookupResult()
    questions = bench.publishers.asks(runs, answers)
    assert questions, "what is on disk has to be read"
    answers = read_all(questions, OnDisk(appended.run))
    assert not bench.publishers.asks(runs, answers)
    bench.publishers.published(1, runs, 0, answers)
    told = bench.out.take()
    assert [each.run.ranges() for each in told if isinstance(each, Append)] == [[(4, 4)]]
    assert bench.counters.conflicts == 1, "the second says something else than what is on disk"
    refused = [each for each in told if isinstance(each, RefuseClient)]
    assert ([(5, 5)], "not_entitled") in [(each.ranges, each.reason) for each in refused]


# -- what a session may write of records ---------------------------------------------------------
SOME_DESKS = [{"topic": "orders", "write": "/desk = 'fx'"}]


def desks(bench: Bench, *others: bytes, topics: list[dict[str, Any]] = SOME_DESKS) -> Desk:
    """`orders` has a SOW with these, a queue `work` over it takes publishes, and `p` may write some
    of them."""
    desk = Desk(Identity("own", "g", OWN))
    work = QueueTopics("work", "json", desk, TopicRule("^orders$"), "orders", desk)
    bench.publishers._topics = TopicBook(
        (TopicRule("^(orders|work)$"),), stateful=book().stateful(), queues=(work,)
    )
    bench.publishers.logged_on(2, "q", 0)
    build = RecordBuilder(publisher_id("q"), "orders", "json").build
    payload = b"".join(build(number, body, 0) for number, body in enumerate(others, 1))
    bench.publishers.published(2, bench.publishers.runs(2, payload), 0, LookupResult())
    given = read_permissions({"topic": topics}, "here")
    judge = PublishJudge(given, "p", lambda: (MessageTypes(), BUILT_IN))
    bench.publishers.logged_on(1, "p", 0, judge)
    bench.out.take()
    return desk


def written(
    bench: Bench,
    *bodies: bytes,
    topic: str = "orders",
    command: int = 1,
    resent: str | None = None,
) -> Any:
    """What of a batch of `p` is journaled, and what is refused and why."""
    build = RecordBuilder(P, topic, "json").build
    first = bench.publishers.received_of(1) + 1
    payload = b"".join(build(at, each, 0, command=command) for at, each in enumerate(bodies, first))
    bench.publishers.published(1, bench.publishers.runs(1, payload), 0, LookupResult(), resent)
    told = bench.out.take()
    journaled = [each.run for each in told if isinstance(each, Append)]
    refused = [(e.ranges, e.reason) for e in told if isinstance(e, RefuseClient)]
    return [each.body for run in journaled for each in iterate_records(run.payload)], refused


@pytest.mark.covers("Configuration", "who may write some records of a SOW topic takes over")
@pytest.mark.parametrize("topic", ["orders", "work"])
@pytest.mark.parametrize("command", [Command.PUBLISH, Command.DELTA_PUBLISH])
def test_the_record_of_others_is_not_taken_over(topic: str, command: int) -> None:
    """Also not by a queue's name, under which the message goes to the topic."""
    bench = Bench()
    desks(bench, b'{"id": 1, "desk": "rates"}')
    mine, theirs, given = (
        b'{"id": 2, "desk": "fx"}', b'{"id": 1, "desk": "fx"}', b'{"id": 2, "desk": "rates"}'
    )  # fmt: skip
    kept, refused = written(bench, mine, theirs, given, topic=topic, command=command)
    assert kept == [mine] and refused == [([(2, 2)], "not_entitled"), ([(3, 3)], "not_entitled")]
    assert bench.publishers.received_of(1) == 3 and bench.counters.published == 2


def test_what_is_refused_is_not_claimed() -> None:
    """A word whose it is would wait for it for good."""
    bench = Bench()
    desk = desks(bench, b'{"id": 1, "desk": "rates"}')
    kept, _ = written(bench, b'{"id": 1, "desk": "fx"}', b'{"id": 2, "desk": "fx"}', resent="a")
    assert kept[1:] == [b'{"id": 2, "desk": "fx"}'] and desk.asked == [(P, [(2, 2)], "a")]
    written(bench, b'{"id": 1, "desk": "fx"}', resent="a")
    assert len(desk.asked) == 1


def test_a_delta_needs_no_field_that_the_record_has() -> None:
    bench = Bench()
    desks(bench, b'{"id": 1, "desk": "fx"}')
    kept, refused = written(bench, b'{"id": 1, "px": 2}', command=Command.DELTA_PUBLISH)
    assert kept == [b'{"id":1,"desk":"fx","px":2}'] and not refused


def test_without_a_sow_a_message_alone_is_judged() -> None:
    bench = Bench()
    desks(bench, topics=[{"topic": "work|orders|loose", "write": "/desk = 'fx'"}])
    rules = (TopicRule("^orders$"),)
    bench.publishers._topics = TopicBook(rules, unjournaled=(TopicRule("^loose$"),))
    for topic in ("orders", "loose"):
        _, refused = written(
            bench, b'{"id": 1, "desk": "fx"}', b'{"id": 1}', topic=topic,
            command=Command.DELTA_PUBLISH,
        )  # fmt: skip
        ((ranges, reason),) = refused
        assert ranges == [(bench.publishers.received_of(1),) * 2] and reason == "not_entitled"


def test_who_may_write_some_records_deletes_by_a_filter_only() -> None:
    bench = Bench()
    desks(bench, b'{"id": 1, "desk": "fx"}')
    delete = msgpack.packb({"keys": [b"1"]})
    assert written(bench, delete, command=Command.DELETE) == ([], [([(1, 1)], "not_entitled")])


@pytest.mark.covers("Configuration", "who may write some records of a SOW topic takes over")
@pytest.mark.parametrize(("write", "count"), [(True, 1), ("/desk = 'fx'", 1), (False, 0)])
def test_a_delete_that_is_not_allowed_looks_at_nothing(write: Any, count: int) -> None:
    bench = Bench()
    desks(bench, b'{"id": 1, "desk": "fx"}', topics=[{"topic": "orders", "write": write}])
    body = msgpack.packb({"filter": "/desk = 'fx'"})
    payload = RecordBuilder(P, "orders", "json").build(1, body, 0, command=Command.DELETE)
    questions = bench.publishers.asks(bench.publishers.runs(1, payload), LookupResult())
    assert len(questions.looking) == count


@pytest.mark.covers("Configuration", "who may write some records of a SOW topic takes over")
def test_a_publish_that_is_numbered_here_needs_the_permission_too() -> None:
    bench = Bench()
    desks(bench, b'{"id": 1, "desk": "rates"}')
    publisher, sequence = bench.publishers.number_for("p")
    for body, reason in (
        (b'{"id": 1, "desk": "fx"}', "not_entitled"),
        (b'{"id": 2, "desk": "rates"}', "not_entitled"),
        (b'{"id": 2, "desk": "fx"}', ""),
    ):
        payload = RecordBuilder(publisher, "orders", "json").build(sequence, body, 0)
        (chunk,) = scan(payload)
        made = run_of(chunk, payload)
        refused = bench.publishers.published_unnumbered(1, made, "", 0)
        assert (refused.reason if refused is not None else "") == reason


@pytest.fixture
def forged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has found `forger`, which has the publisher id of `p`."""
    found = {"forger": P}
    monkeypatch.setattr(
        publishers_module, "publisher_id", lambda name: found.get(name) or publisher_id(name)
    )


def told(name: str, publisher: int = P) -> bytes:
    names = PublisherNames([(publisher, name_digest(name))])
    return names.part(0)


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_the_id_of_a_name_that_has_published_is_refused_to_others(forged: None) -> None:
    bench = Bench()
    assert bench.publishers.names.get(P) is None, "who only logs on takes no memory"
    bench.publish(1)
    assert bench.publishers.names.get(P) == name_digest("p")
    bench.publishers.left(1)
    refused = bench.publishers.name_refusal("forger")
    assert refused is not None and refused[0] == "publisher_conflict"
    assert "client name 'forger'" in refused[1] and "Choose another client name" in refused[1]
    assert bench.counters.publisher_conflicts == 1
    assert bench.publishers.name_refusal("p") is None
    assert bench.publishers.name_refusal("q") is None


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_the_id_of_a_client_that_is_logged_on_is_refused_to_others(forged: None) -> None:
    bench = Bench()
    assert bench.publishers.name_refusal("p") is None
    assert bench.publishers.name_refusal("forger") is not None
    bench.publishers.left(1)
    assert bench.publishers.name_refusal("forger") is None, "nothing was published under the id"


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_what_links_brought_belongs_to_the_first_name_that_logs_on(forged: None) -> None:
    bench = Bench()
    bench.publishers.left(1)
    bench.intake.known.of(P).add(1, 3)
    bench.publishers.logged_on(2, "p", 0)
    bench.publishers.left(2)
    assert bench.publishers.name_refusal("forger") is not None


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_a_name_that_another_instance_tells_is_refused_to_others(forged: None) -> None:
    bench = Bench()
    bench.publishers.left(1)
    bench.publishers.names_told(told("p"), "B")
    assert bench.publishers.name_refusal("forger") is not None
    assert bench.publishers.name_refusal("p") is None and not bench.out.take()


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_who_is_logged_on_by_the_id_of_a_name_that_is_told_is_ended(forged: None) -> None:
    bench = Bench()
    bench.publishers.left(1)
    bench.publishers.logged_on(2, "forger", 0)
    bench.publishers.names_told(told("p"), "B")
    (closed,) = bench.out.take()
    assert isinstance(closed, CloseSession)
    assert (closed.session, closed.reason) == (2, "publisher_conflict")
    assert bench.publishers.name_refusal("p") is None


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_two_names_of_one_id_at_two_instances_are_reported(forged: None) -> None:
    bench = Bench()
    bench.publish(1)
    bench.publishers.names_told(told("forger"), "B")
    reports = [each for each in bench.out.take() if isinstance(each, EventReport)]
    assert [each.event for each in reports] == ["publisher_conflict"]
    assert reports[0].details["peer"] == "B" and f"{P:016x}" in str(reports[0].details["text"])
    assert bench.publishers.names.get(P) == name_digest("p"), "the first one stays"


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_ids_under_which_an_instance_numbers_are_of_no_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    publisher, sequence = bench.publishers.number_for("p")
    author = author_publisher_id("sow", OWN, 0)
    for number, each in ((sequence, publisher), (1, author)):
        payload = RecordBuilder(each, "orders", "json").build(number, b"x", 0)
        (chunk,) = scan(payload)
        if each == author:
            bench.publishers.authored([run_of(chunk, payload)], 0)
        else:
            bench.publishers.published_unnumbered(1, run_of(chunk, payload), "", 0)
        monkeypatch.setattr(publishers_module, "publisher_id", lambda name, of=each: of)
        assert bench.publishers.name_refusal("forger") is not None


@pytest.mark.covers("Configuration", "a publisher id belongs to one client name")
def test_a_publish_that_is_refused_takes_no_id() -> None:
    bench = Bench()
    bench.publishers.left(1)
    given = read_permissions({"topic": []}, "here")
    judge = PublishJudge(given, "p", lambda: (MessageTypes(), BUILT_IN))
    bench.publishers.logged_on(1, "p", 0, judge)
    bench.publish(1)
    assert bench.publishers.names.get(P) is None and not bench.publishers.names.unwritten
