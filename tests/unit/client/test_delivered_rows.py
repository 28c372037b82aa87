"""What a `sow_and_subscribe` hands out across failovers: nothing twice, nothing missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_server import records

from raylay.services.client.subscriptions.delivered_rows import DeliveredRows
from raylay.services.messages.records import RecordBuilder, iterate_records

Identity = tuple[int, int]


def record(identity: Identity, key: bytes, topic: str = "t") -> bytes:
    publisher, sequence = identity
    return records(publisher, [sequence], topic=topic, key=key)


def told(handed: tuple[bytes, int]) -> list[tuple[bytes, Identity]]:
    """(key, identity) of what was handed out."""
    payload, count = handed
    found = [(each.key, (each.publisher, each.sequence)) for each in iterate_records(payload)]
    assert len(found) == count
    return found


def query(focus: DeliveredRows, *rows: bytes) -> list[tuple[bytes, Identity]]:
    """A whole group; what was handed out of its rows."""
    focus.begin()
    found = told(focus.rows(b"".join(rows), len(rows)))
    focus.end()
    return found


def test_a_first_query_is_handed_out_whole() -> None:
    focus = DeliveredRows()
    payload = record((1, 1), b"a") + record((1, 2), b"b")
    focus.begin()
    assert focus.rows(payload, 2) == (payload, 2), "not even copied"
    assert focus.end() == (b"", 0)
    assert len(focus) == 2


def test_of_a_second_query_what_differs_is_handed_out_and_what_is_gone() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"), record((1, 2), b"b"), record((1, 3), b"c"))
    focus.begin()
    rows = record((1, 1), b"a") + record((1, 9), b"b") + record((1, 4), b"d")
    assert told(focus.rows(rows, 3)) == [(b"b", (1, 9)), (b"d", (1, 4))]
    payload, count = focus.end()
    assert told((payload, count)) == [(b"c", (1, 3))]
    gone = next(iterate_records(payload, verify=True))
    assert (gone.topic, gone.message_type, gone.body) == ("t", "json", b"")
    assert focus.suppressed == 1


def test_what_was_delivered_live_is_held_as_a_row_is() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"))
    assert told(focus.delivered(record((1, 2), b"a") + record((1, 3), b"b"), 2))
    assert query(focus, record((1, 2), b"a"), record((1, 3), b"b")) == []
    assert told(focus.delivered(record((1, 3), b"b"), 1)) == [], "it came behind the query again"


def test_what_left_the_focus_is_not_held_and_comes_again_when_it_is_there_again() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"))
    assert told(focus.left(record((1, 1), b"a"), 1)) == [(b"a", (1, 1))]
    assert query(focus, record((1, 1), b"a")) == [(b"a", (1, 1))]


def test_a_connection_lost_in_the_middle_of_a_query_revokes_nothing() -> None:
    focus = DeliveredRows()
    focus.begin()
    assert told(focus.rows(record((1, 1), b"a"), 1))
    focus.begin()
    assert told(focus.rows(record((1, 1), b"a") + record((1, 2), b"b"), 2)) == [(b"b", (1, 2))]
    assert focus.end() == (b"", 0)


def test_a_key_is_one_of_its_topic() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"), record((1, 2), b"a", "u"))
    focus.begin()
    focus.rows(record((1, 1), b"a"), 1)
    gone = [(each.topic, each.key) for each in iterate_records(focus.end()[0])]
    assert gone == [("u", b"a")]


def test_what_came_without_a_key_is_known_by_its_identity() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"))
    assert told(focus.delivered(record((1, 2), b"") + record((1, 3), b"c"), 2))
    assert query(focus, record((1, 2), b"a"), record((1, 3), b"c")) == []
    assert query(focus, record((1, 2), b"a"), record((1, 3), b"c")) == [], "now they are held"


def test_bytes_that_are_no_records_raise_and_do_not_run_on() -> None:
    for step in (DeliveredRows().rows, DeliveredRows().delivered, DeliveredRows().left):
        with pytest.raises(Exception, match=r"unpack|buffer"):
            step(b"\0" * 30, 1 << 40)


def test_names_of_any_characters_are_kept_apart() -> None:
    focus = DeliveredRows()
    focus.begin()
    odd = RecordBuilder(1, "t\0", "x").build(1, b"", 0, key=b"y")
    other = RecordBuilder(1, "t", "\0x").build(1, b"", 0, key=b"y")
    assert focus.rows(odd + other, 2)[1] == 2
    assert len(focus) == 2
    focus.begin()
    assert [each.topic for each in iterate_records(focus.end()[0])] == ["t\0", "t"]


@dataclass
class Instance:
    """One that folds what is published in an order of its own."""

    state: dict[bytes, Identity] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """Of each publisher, how many of its messages are folded."""


Change = tuple[Identity, bytes, bool]
"""Identity, key, and whether it deletes."""


KEYS = [b"k%d" % n for n in range(4)]


class Fabric:
    """Publishers whose messages reach each instance sooner or later, each in its order."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.published: dict[int, list[Change]] = {
            publisher: [
                ((publisher, n), draw.choice(KEYS), draw.random() < 0.25)
                for n in range(1, draw.randrange(2, 12))
            ]
            for publisher in (1, 2)
        }
        self.instances = [Instance() for _ in range(3)]

    def step(self, instance: Instance) -> Change | None:
        """The next change that one folds; None: it has everything."""
        open_ = [
            publisher
            for publisher, changes in self.published.items()
            if instance.taken.get(publisher, 0) < len(changes)
        ]
        if not open_:
            return None
        publisher = self.draw.choice(open_)
        place = instance.taken.get(publisher, 0)
        instance.taken[publisher] = place + 1
        return self.published[publisher][place]


class Consumer:
    """Folds what it is handed out, and finds what it was handed out for nothing."""

    def __init__(self, focus: DeliveredRows) -> None:
        self.focus = focus
        self.view: dict[bytes, Identity] = {}
        self.wanted = frozenset(KEYS)
        """What its filter is true of."""

    def take(self, handed: tuple[bytes, int]) -> None:
        for key, identity in told(handed):
            assert self.view.get(key) != identity, "it holds this"
            self.view[key] = identity

    def drop(self, handed: tuple[bytes, int]) -> None:
        for key, _ in told(handed):
            assert key in self.view, "it does not hold this"
            del self.view[key]

    def ask(self, instance: Instance, rows: int) -> bool:
        """A query, of which as many rows come. Returns whether that was all of them."""
        focus = self.focus
        focus.begin()
        found = list(self.expected(instance).items())
        for key, identity in found[:rows]:
            self.take(focus.rows(record(identity, key), 1))
        if rows < len(found):
            return False
        self.drop(focus.end())
        assert self.view == self.expected(instance)
        return True

    def expected(self, instance: Instance) -> dict[bytes, Identity]:
        return {key: held for key, held in instance.state.items() if key in self.wanted}

    def replace(self, instance: Instance, wanted: frozenset[bytes], frames: int) -> bool:
        """Another filter, at an instance that has this subscription, and as many frames of its
        group. Returns whether that was all of them."""
        focus, had = self.focus, self.expected(instance)
        self.wanted = wanted
        focus.begin(is_part=True)
        found = [each for each in instance.state.items() if (each[0] in had) != (each[0] in wanted)]
        for key, identity in found[:frames]:
            if key in wanted:
                self.take(focus.rows(record(identity, key), 1))
            else:
                self.drop(focus.left(record(identity, key), 1))
        if frames < len(found):
            return False
        self.drop(focus.end())
        assert self.view == self.expected(instance)
        return True

    def follow(self, instance: Instance, change: Change) -> None:
        """A change that an instance folds while it has this subscription."""
        identity, key, deletes = change
        before = instance.state.get(key)
        if not deletes:
            instance.state[key] = identity
            if key in self.wanted:
                self.take(self.focus.delivered(record(identity, key), 1))
        elif before is not None:
            del instance.state[key]
            if key in self.wanted:
                self.drop(self.focus.left(record(before, key), 1))
        assert self.view == self.expected(instance)


def fold(instance: Instance, change: Change) -> None:
    identity, key, deletes = change
    if deletes:
        instance.state.pop(key, None)
    else:
        instance.state[key] = identity


def test_a_group_of_what_is_newly_in_focus_takes_nothing_away() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"), record((1, 2), b"b"))
    told(focus.delivered(record((1, 3), b""), 1))
    focus.begin(is_part=True)
    assert told(focus.rows(record((1, 4), b"c"), 1)) == [(b"c", (1, 4))]
    assert told(focus.left(record((1, 1), b"a"), 1)) == [(b"a", (1, 1))]
    assert focus.end() == (b"", 0)
    # The next one is of everything again: a failover.
    rows = record((1, 2), b"b") + record((1, 3), b"d")
    focus.begin()
    assert told(focus.rows(rows, 2)) == []
    assert told(focus.end()) == [(b"c", (1, 4))]


def test_who_is_not_told_what_leaves_is_given_it_when_it_is_newly_in_focus() -> None:
    focus = DeliveredRows()
    query(focus, record((1, 1), b"a"))
    focus.begin(is_part=True)  # "a" leaves, and without oof nobody says so.
    focus.end()
    focus.begin(is_part=True)
    assert told(focus.rows(record((1, 1), b"a"), 1)) == [(b"a", (1, 1))]
    assert focus.end() == (b"", 0)


@pytest.mark.covers("SOW", "sow_and_subscribe across failovers")
@given(st.integers(0, 1 << 40))
def test_the_consumers_view_is_the_instances_whatever_fails_over_when(seed: int) -> None:
    draw = Random(seed)
    fabric, consumer = Fabric(draw), Consumer(DeliveredRows())
    for _ in range(draw.randrange(1, 8)):
        instance = draw.choice(fabric.instances)
        if not consumer.ask(instance, draw.randrange(6)):
            continue  # The connection was lost in the middle of it.
        for _ in range(draw.randrange(12)):
            one = draw.choice(fabric.instances)
            change = fabric.step(one)
            if change is None:
                continue
            if draw.random() < 0.2:
                wanted = frozenset(draw.sample(KEYS, draw.randrange(5)))
                if not consumer.replace(instance, wanted, draw.choice((0, 1, 9, 9))):
                    fold(one, change)
                    break  # The connection was lost in the middle of it.
            if one is instance:
                consumer.follow(one, change)
            else:
                fold(one, change)
    last = draw.choice(fabric.instances)
    assert consumer.ask(last, 1 << 10)
    while (change := fabric.step(last)) is not None:
        consumer.follow(last, change)
    assert consumer.view == consumer.expected(last)
