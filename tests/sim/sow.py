"""SOW topics of simulated instances, and what they have to hold: said here once more, by what a
person would write down, without anything that production asks.

The key of a message follows from its sequence. A body is words; a delta has one, which the record
has besides then. A filter asks whether any word of a body is of one of three sorts.

In a world with key fields the topic of the last arrival has JSON bodies, whose names are the words
and their sorts, and production makes the keys of their field `key`. The store has blocks then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from raylay.services.core.sow import SowFeature
from raylay.services.messages.records import Command, Kind, Record, Run, iterate_records
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowState
from raylay.services.sow.topic import SowTopic
from raylay.storage.sow import MemorySowStore

if TYPE_CHECKING:
    from sim.instance import Instance

ARRIVAL, LAST_WRITER = "orders", "trades"
KEYS = 6
KEY_FIELDS = ("/key",)
FIELD_KEYS = 3
"""Keys where they are made of fields: fewer, so that runs have one more than once."""
DELETES = 5
"""Every so manieth message of a publisher is a deletion, every second one of these by a filter."""
DELTAS = 3
"""Every so manieth one is a delta, if it is no deletion; where the last writer counts, which
refuses them, only every seventh of these."""
SORTS = 3


def key_of(sequence: int) -> bytes:
    """The key of a message."""
    return b"k%d" % (sequence % KEYS)


_RULE = KeyRule(ARRIVAL, KEY_FIELDS)
_MADE = [_RULE.key_of({"key": key}) for key in range(FIELD_KEYS)]


def made_key_of(sequence: int) -> bytes:
    """The key of a message, where it is made of a field."""
    return _MADE[sequence % FIELD_KEYS]


def fielded(number: int) -> bytes:
    """The body of a message with a key field, whole or a delta."""
    word = b"%d" % number
    sort = f"sort{sort_of(word)}"
    return json.dumps({"key": number % FIELD_KEYS, word.decode(): None, sort: 1}).encode()


def sort_of(word: bytes) -> int:
    """Which of the sorts a word is of."""
    return sum(word) % SORTS


def filtered_sort(number: int) -> int | None:
    """What a publisher's deletion asks for, if it is one by a filter."""
    return None if number % (2 * DELETES) else number // DELETES % SORTS


def change(topic: str, number: int, *, keyed: bool = False) -> tuple[int, bytes] | None:
    """Returns the command of a publisher's message that is no plain publish, and its body.

    Args:
        keyed: whether the keys of the last arrival are made of fields.
    """
    if topic not in (ARRIVAL, LAST_WRITER):
        return None
    has_fields = keyed and topic == ARRIVAL
    said = deletion(number, made_key_of if has_fields else key_of)
    if said is not None:
        return Command.DELETE, said
    if number % (DELTAS if topic == ARRIVAL else 7 * DELTAS) == 1:
        return Command.DELTA_PUBLISH, fielded(number) if has_fields else b"%d" % number
    return None


def deletion(number: int, key_of: Callable[[int], bytes] = key_of) -> bytes | None:
    """What a publisher's message says that is a deletion: None, where it is none."""
    if number % DELETES:
        return None
    sort = filtered_sort(number)
    if sort is not None:
        asked: bytes = msgpack.packb({"filter": f"/sort{sort} = 1"})
        return asked
    keys = {key_of(number // DELETES), key_of(number // DELETES + 2)}
    body: bytes = msgpack.packb({"keys": sorted(keys)})
    return body


def fields_of(body: bytes) -> Tree:
    """The fields that views read of a body: they follow from the sum of its numbers."""
    number = sum(int(word) for word in body.split() if word.isdigit())
    return {
        "group": number % 3 if number % 2 else str(number % 3),
        "side": number % 4,
        "amount": (None, number + 0.5, float(number), number, number)[number % 5],
        "match": None if number % 7 == 0 else number % 7,
    }


VIEW_FIELDS = frozenset(fields_of(b""))


# -- for the machines --------------------------------------------------------------------------
class Words(MessageType):
    """Bodies of words: each is a field, and so is each sort that one of them is of."""

    def parse(self, body: bytes | memoryview) -> Tree:
        """Its words and their sorts."""
        words = bytes(body).split()
        tree: Tree = {f"sort{sort_of(word)}": 1 for word in words}
        return tree | {word.decode(): None for word in words}

    def parser_of(self, names: frozenset[str]) -> Callable[[bytes], Tree]:
        """The message type of views."""
        return fields_of if names <= VIEW_FIELDS else self.parse

    def serialize(self, tree: Tree) -> bytes:
        """The words."""
        return b" ".join(name.encode() for name, value in tree.items() if value is None)


def _generate(record: Record, tree: Tree | None) -> bytes:
    return key_of(record.sequence)


def book(
    store: MemorySowStore,
    state: type[SowState],
    staging: type[SowStaging] = SowStaging,
    *,
    prepares: bool,
    keyed: bool = False,
) -> SowBook:
    """The SOW topics of one life of an instance.

    Args:
        prepares: whether they are what a client's publish goes through.
        keyed: whether the keys of the last arrival are made of fields.
    """
    topics = []
    for name in (ARRIVAL, LAST_WRITER):
        has_fields = keyed and name == ARRIVAL
        definition = SowTopicDefinition(
            name,
            "json",
            keys=KEY_FIELDS if has_fields else (),
            key_generator="" if has_fields else "sim",
            last_writer=name == LAST_WRITER,
        )
        kind = Json("json") if has_fields else Words("json")
        held = store.topic(definition.stored_as)
        made = state(definition.rules, held, held.txid, last_writer=definition.last_writer)
        topic = SowTopic(definition, kind, made, None if has_fields else _generate)
        if prepares:
            topic.staging = staging(topic, {})
        topics.append(topic)
    return SowBook(topics)


# -- for the checkers --------------------------------------------------------------------------
class Message(NamedTuple):
    """Who wrote it, in the order in which the last writer is found."""

    stamp_us: int
    publisher: int
    sequence: int


@dataclass(slots=True)
class Ledger:
    """What the SOW topics of a journal hold, written down as it grows.

    Attributes:
        txid: the last transaction that is in it.
        txids: of each message and deletion.
        changed: the last transaction that may have changed what a key holds.
        values: by topic and key.
        gone: the last deletion of a key, and what was taken away.
        written: all that ever was, where the last writer counts: the last one and whether it is a
            deletion.
        forced_txid: up to here it was removed by force.
        is_excused: what it should hold was removed so.
        late: messages that changed nothing.
        words: of the body of each value.
        wrong: what the instance has made of a delta or a deletion that came from a client, and is
            not what follows from the journal before it.
        merged, filtered: how many deltas into something, and deletions by a filter, there were.
        keyed: whether the keys of the last arrival are made of fields.
    """

    txid: int = 0
    txids: dict[tuple[int, int], int] = field(default_factory=dict)
    changed: dict[tuple[str, bytes], int] = field(default_factory=dict)
    values: dict[tuple[str, bytes], Message] = field(default_factory=dict)
    gone: dict[tuple[str, bytes], tuple[Message, Message | None]] = field(default_factory=dict)
    written: dict[bytes, tuple[Message, bool]] = field(default_factory=dict)
    forced_txid: int = 0
    is_excused: bool = False
    late: int = 0
    words: dict[tuple[str, bytes], list[bytes]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    merged: int = 0
    filtered: int = 0
    keyed: bool = False

    def copy(self) -> Ledger:
        """Another one that says the same."""
        return Ledger(
            self.txid,
            dict(self.txids),
            dict(self.changed),
            dict(self.values),
            dict(self.gone),
            dict(self.written),
            self.forced_txid,
            self.is_excused,
            self.late,
            dict(self.words),
            keyed=self.keyed,
        )

    def journaled(self, run: Run) -> None:
        """A run is on the disk, told once or again."""
        if run.last_txid <= self.txid:
            return
        self.txid = run.last_txid
        topic = run.topic.decode()
        if run.kind != Kind.RECORDS or topic not in (ARRIVAL, LAST_WRITER):
            return
        for txid, record in enumerate(iterate_records(run.payload), run.first_txid):
            self.txids[record.publisher, record.sequence] = txid
            message = Message(record.origin_time_us, record.publisher, record.sequence)
            is_deletion = record.command == Command.DELETE
            keys, words = [key_of(record.sequence)], record.body.split()
            if is_deletion:
                keys = msgpack.unpackb(record.body)["keys"]
            elif self.keyed and topic == ARRIVAL:
                keys, words = _of_fields(record.body)
            if not run.path and not self.is_excused:
                self._judge(topic, record, keys, words)
            for key in keys:
                self.changed[topic, key] = txid
                if topic == ARRIVAL:
                    counts = self._arrived(topic, key, message, is_deletion)
                else:
                    last = self.written.get(key)
                    counts = last is None or message > last[0]
                    if counts:
                        self.written[key] = message, is_deletion
                if counts:
                    self.words[topic, key] = [] if is_deletion else words

    def _judge(self, topic: str, record: Record, keys: list[bytes], words: list[bytes]) -> None:
        """What an instance made of what a client published to it."""
        there = self.holds()
        if record.command == Command.DELTA_PUBLISH:
            place = topic, keys[0]
            before = self.words[place] if place in there else []
            expected = {*before, b"%d" % record.sequence}
            self.merged += bool(before)
            if set(words) != expected:
                self.wrong.append(
                    f"{topic} {keys[0].decode()}: delta {record.bookmark} became "
                    f"{record.body!r} over {before!r}"
                )
        sort = filtered_sort(record.sequence)
        if record.command == Command.DELETE and sort is not None:
            self.filtered += 1
            passing = sorted(
                key
                for name, key in there
                if name == topic and sort in map(sort_of, self.words[name, key])
            )
            if keys != passing:
                self.wrong.append(
                    f"{topic}: deletion {record.bookmark} of sort {sort} took {keys!r} where "
                    f"{passing!r} pass"
                )

    def take_wrong(self) -> list[str]:
        """What is wrong and was not told."""
        found, self.wrong = self.wrong, []
        return found

    def _arrived(self, topic: str, key: bytes, message: Message, is_deletion: bool) -> bool:
        """The later one on the way counts, unless its publisher has sent a later one. Whether this
        one does."""
        place = topic, key
        held = self.values.get(place)
        before = (held,) if held is not None else self.gone.get(place, ())
        for each in before:
            if each and each.publisher == message.publisher and each.sequence > message.sequence:
                self.late += 1
                return False
        if not is_deletion:
            self.values[place] = message
            self.gone.pop(place, None)
            return True
        taken = self.values.pop(place, None)
        if taken is None and place in self.gone:
            taken = self.gone[place][1]
        self.gone[place] = message, taken
        return True

    def holds(self) -> dict[tuple[str, bytes], tuple[int, int]]:
        """The publisher and sequence of each value."""
        found = {place: each[1:] for place, each in self.values.items()}
        for key, (message, is_deletion) in self.written.items():
            if not is_deletion:
                found[LAST_WRITER, key] = message[1:]
        return found


def _of_fields(body: bytes) -> tuple[list[bytes], list[bytes]]:
    """The key and the words of a body with fields; none of both, where it has none."""
    try:
        found = json.loads(body)
    except ValueError:
        return [], []
    if type(found) is not dict:
        return [], []
    return [_MADE[found["key"]]], [name.encode() for name in found if name.isdigit()]


def held(feature: SowFeature) -> dict[tuple[str, bytes], tuple[int, int]]:
    """What an instance says that its topics hold."""
    return {
        (topic.definition.name, record.key): (record.publisher, record.sequence)
        for topic in feature.book.topics
        for record in topic.state.records()
    }


def differences(instance: Instance) -> Iterator[str]:
    """Where an instance's topics hold something else than its journal says."""
    expected, found = instance.disk.sow_ledger.holds(), held(instance.sow)
    for topic in instance.sow.book.topics:
        count = sum(1 for place in found if place[0] == topic.definition.name)
        if topic.state.count != count:
            yield f"{topic.stored_as} counts {topic.state.count} records of {count}"
    for place in sorted(expected.keys() | found.keys()):
        if expected.get(place) != found.get(place):
            name, key = place
            yield (
                f"{name} {key.decode()}: {_said(found.get(place))} is held, "
                f"{_said(expected.get(place))} is the journal's"
            )


def _said(of: tuple[int, int] | None) -> str:
    return "nothing" if of is None else f"{of[0]}|{of[1]}|"
