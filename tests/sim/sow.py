"""SOW topics of simulated instances, and what they have to hold: said here once more, by what a
person would write down, without anything that production asks.

Nobody sees into a body here: the key of a message follows from its sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgpack

from raylay.services.core.sow import SowFeature
from raylay.services.messages.records import Command, Kind, Record, Run, iterate_records
from raylay.services.messages.types.binary import Binary
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.book import SowBook
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.staging import SowStaging
from raylay.services.sow.state import SowState
from raylay.services.sow.topic import SowTopic
from raylay.storage.sow import MemorySowStore

if TYPE_CHECKING:
    from sim.instance import Instance

ARRIVAL, LAST_WRITER = "orders", "trades"
KEYS = 6
DELETES = 5
"""Every so manieth message of a publisher is a deletion."""


def key_of(sequence: int) -> bytes:
    """The key of a message."""
    return b"k%d" % (sequence % KEYS)


def deletion(number: int) -> bytes | None:
    """What a publisher's message says that is a deletion: None, where it is none."""
    if number % DELETES:
        return None
    keys = {key_of(number // DELETES), key_of(number // DELETES + 2)}
    body: bytes = msgpack.packb({"keys": sorted(keys)})
    return body


# -- for the machines --------------------------------------------------------------------------
def _generate(record: Record, tree: Tree | None) -> bytes:
    return key_of(record.sequence)


def book(store: MemorySowStore, state: type[SowState], *, prepares: bool) -> SowBook:
    """The SOW topics of one life of an instance.

    Args:
        prepares: whether they are what a client's publish goes through.
    """
    topics = []
    for name in (ARRIVAL, LAST_WRITER):
        definition = SowTopicDefinition(
            name, "json", key_generator="sim", last_writer=name == LAST_WRITER
        )
        held = store.topic(definition.stored_as)
        made = state(definition.rules, held, held.txid, last_writer=definition.last_writer)
        topic = SowTopic(definition, Binary("json"), made, _generate)
        if prepares:
            topic.staging = SowStaging(topic, {})
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
        values: by topic and key.
        gone: the last deletion of a key, and what was taken away.
        written: all that ever was, where the last writer counts: the last one and whether it is a
            deletion.
        forced_txid: up to here it was removed by force.
        is_excused: what it should hold was removed so.
        late: messages that changed nothing.
    """

    txid: int = 0
    values: dict[tuple[str, bytes], Message] = field(default_factory=dict)
    gone: dict[tuple[str, bytes], tuple[Message, Message | None]] = field(default_factory=dict)
    written: dict[bytes, tuple[Message, bool]] = field(default_factory=dict)
    forced_txid: int = 0
    is_excused: bool = False
    late: int = 0

    def copy(self) -> Ledger:
        """Another one that says the same."""
        return Ledger(
            self.txid,
            dict(self.values),
            dict(self.gone),
            dict(self.written),
            self.forced_txid,
            self.is_excused,
            self.late,
        )

    def journaled(self, run: Run) -> None:
        """A run is on the disk, told once or again."""
        if run.last_txid <= self.txid:
            return
        self.txid = run.last_txid
        topic = run.topic.decode()
        if run.kind != Kind.RECORDS or topic not in (ARRIVAL, LAST_WRITER):
            return
        for record in iterate_records(run.payload):
            message = Message(record.origin_time_us, record.publisher, record.sequence)
            is_deletion = record.command == Command.DELETE
            keys = [key_of(record.sequence)]
            if is_deletion:
                keys = msgpack.unpackb(record.body)["keys"]
            for key in keys:
                if topic == ARRIVAL:
                    self._arrived(topic, key, message, is_deletion)
                else:
                    last = self.written.get(key)
                    if last is None or message > last[0]:
                        self.written[key] = message, is_deletion

    def _arrived(self, topic: str, key: bytes, message: Message, is_deletion: bool) -> None:
        """The later one on the way counts, unless its publisher has sent a later one."""
        place = topic, key
        held = self.values.get(place)
        before = (held,) if held is not None else self.gone.get(place, ())
        for each in before:
            if each and each.publisher == message.publisher and each.sequence > message.sequence:
                self.late += 1
                return
        if not is_deletion:
            self.values[place] = message
            self.gone.pop(place, None)
            return
        taken = self.values.pop(place, None)
        if taken is None and place in self.gone:
            taken = self.gone[place][1]
        self.gone[place] = message, taken

    def holds(self) -> dict[tuple[str, bytes], tuple[int, int]]:
        """The publisher and sequence of each value."""
        found = {place: each[1:] for place, each in self.values.items()}
        for key, (message, is_deletion) in self.written.items():
            if not is_deletion:
                found[LAST_WRITER, key] = message[1:]
        return found


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
