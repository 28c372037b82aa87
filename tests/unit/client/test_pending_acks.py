"""What a consumer of queues is done with and has not said yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.client.queues import pending_acks
from raylay.services.client.queues.pending_acks import PendingAcks, SampledAck, SampledAcks
from raylay.services.queues.records import RANGES_MAX, Acknowledgment, read_acknowledgment


def test_what_follows_one_another_is_one_range() -> None:
    book = PendingAcks()
    for sequence in (1, 2, 3, 7, 8):
        book.add("work", "json", 5, sequence)
    assert book.messages == 5
    (record,) = book.take()
    assert (record.queue, record.message_type, record.messages) == ("work", "json", 5)
    assert read_acknowledgment(record.body) == Acknowledgment({5: [(1, 3), (7, 8)]})
    assert not book.messages and not book.take()


def test_queues_and_what_became_of_them_are_records_of_their_own() -> None:
    book = PendingAcks()
    book.add("work", "json", 5, 1)
    book.add("work", "json", 5, 2, "expire")
    book.add("other", "json", 5, 3)
    found = {(r.queue, read_acknowledgment(r.body).how): r.messages for r in book.take()}
    assert found == {("work", "ack"): 1, ("work", "expire"): 1, ("other", "ack"): 1}


def test_what_could_not_be_published_is_said_with_what_comes_next() -> None:
    book = PendingAcks()
    for sequence in (1, 2):
        book.add("work", "json", 5, sequence)
    (record,) = book.take()
    book.add("work", "json", 5, 3)
    book.put_back(record, read_acknowledgment(record.body))
    assert book.messages == 3
    (record,) = book.take()
    assert read_acknowledgment(record.body).keys == {5: [(1, 3)]} and record.messages == 3


def test_what_is_done_after_something_was_put_back_is_said_too() -> None:
    """A second round: the ranges that were written last are no longer those of the book."""
    book = PendingAcks()
    book.add("work", "json", 5, 1)
    (first,) = book.take()
    book.add("work", "json", 5, 2)
    book.put_back(first, read_acknowledgment(first.body))
    book.add("work", "json", 5, 3)
    (second,) = book.take()
    assert read_acknowledgment(second.body).keys == {5: [(1, 3)]} and second.messages == 3
    book.add("work", "json", 5, 4)
    book.put_back(second, read_acknowledgment(second.body))
    book.add("work", "json", 5, 9)
    (third,) = book.take()
    assert read_acknowledgment(third.body).keys == {5: [(1, 4), (9, 9)]} and third.messages == 5


def test_what_was_put_back_stays_apart_from_other_queues_and_publishers() -> None:
    book = PendingAcks()
    book.add("work", "json", 5, 1)
    book.add("work", "json", 6, 1)
    book.add("other", "json", 5, 1)
    book.add("work", "json", 5, 7, "expire")
    given = book.take()
    for record in given:
        book.put_back(record, read_acknowledgment(record.body))
    book.add("work", "json", 6, 2)
    found = {(r.queue, (a := read_acknowledgment(r.body)).how): a.keys for r in book.take()}
    assert found == {
        ("work", "ack"): {5: [(1, 1)], 6: [(1, 2)]},
        ("other", "ack"): {5: [(1, 1)]},
        ("work", "expire"): {5: [(7, 7)]},
    }


def test_what_is_done_far_apart_is_as_many_records_as_it_takes() -> None:
    book = PendingAcks()
    count = RANGES_MAX + 10
    for sequence in range(count):
        book.add("work", "json", 5 + sequence % 2, 1 + 2 * sequence)
    made = book.take()
    assert [read_acknowledgment(each.body).how for each in made] == ["ack", "ack"]
    assert sum(each.messages for each in made) == count


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20)), max_size=40))
def test_every_message_is_said_once_whatever_their_order(done: list[tuple[int, int]]) -> None:
    book = PendingAcks()
    for publisher, sequence in done:
        book.add("work", "json", publisher, sequence)
    found = []
    for record in book.take():
        for publisher, ranges in read_acknowledgment(record.body).keys.items():
            found += [(publisher, n) for first, last in ranges for n in range(first, last + 1)]
    assert sorted(found) == sorted(set(done))


# -- sampled messages ----------------------------------------------------------------------------


def sampled(sequence: int, queue: str = "work", how: str = "ack", publisher: int = 5) -> SampledAck:
    return SampledAck(queue, "json", how, publisher, sequence, "orders", b"t" * 25, 9)


def test_sampled_messages_are_found_in_the_record_that_says_them() -> None:
    waiting = SampledAcks()
    assert not waiting
    given = [
        sampled(3),
        sampled(9),
        sampled(3, queue="other"),
        sampled(3, how="expire"),
        sampled(3, publisher=6),
    ]
    for each in given:
        waiting.add(each)
    assert waiting.take("work", "json", Acknowledgment({5: [(4, 8), (10, 12)]})) == []
    assert waiting.take("work", "json", Acknowledgment({5: [(1, 2), (3, 3), (8, 9)]})) == given[:2]
    assert waiting.take("work", "json", Acknowledgment({5: [(1, 9)], 6: [(1, 9)]})) == given[4:]
    assert waiting.take("work", "json", Acknowledgment({5: [(1, 9)]}, "expire")) == given[3:4]
    assert waiting.take("other", "json", Acknowledgment({5: [(3, 3)]})) == given[2:3]
    assert not waiting


def test_sampled_messages_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_acks, "SAMPLED_MAX", 2)
    waiting = SampledAcks()
    for sequence in range(5):
        waiting.add(sampled(sequence))
    said = Acknowledgment({5: [(0, 9)]})
    assert [each.sequence for each in waiting.take("work", "json", said)] == [0, 1]
