"""The comparison of all instances' SOW topics, as `raylay sow diff` compares two.

One task for each instance reads its topics from its store and folds the rest of its journal into
them. A task returns digests of the records for each part of the keys. Where the digests of two
instances differ, a second pass looks at the keys of these parts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.core.sow import SowFeature
from raylay.services.errors import RaylayError
from raylay.services.fabric.plan import FabricRecord, instance_config
from raylay.services.messages.digests import SOW_RECORD, summand, summed
from raylay.services.messages.event_topics import is_event_topic
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.journals import JournalPlace
from raylay.services.plugins.sow import sow_book
from raylay.services.server.sow.stored_topics import FINGERPRINT, SOW_FILE, fingerprints
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.query.comparison import HeldRecord, digest_of
from raylay.services.sow.records import NEVER, SowRecord, decoded, encoded
from raylay.services.sow.state import TOMBSTONE, VALUE, SowRules
from raylay.services.sow.topic import SowTopic
from raylay.storage.sow import MemorySowStore
from raylay.storage.sow_reading import reading

PARTS = 4096
"""Number of parts into which all keys of a topic are divided."""
KEYS_TOLD_MAX = 100
_HELD = struct.Struct("<QQ16sB")

Run = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""Calls a function for each of several values, on Spark. Returns the results in any order."""
Entries = dict[bytes, tuple[HeldRecord, int]]
"""Records by key, each with the time of its receipt, or of its publish where that is unknown."""


@dataclass(frozen=True, slots=True)
class SowSource:
    """The SOW topics of one instance.

    Attributes:
        fingerprints: the configured fingerprint of each topic, by the topic's name in the store.
    """

    place: JournalPlace
    definitions: tuple[SowTopicDefinition, ...]
    types: tuple[TypeDefinition, ...]
    fingerprints: dict[str, bytes]


@dataclass(slots=True)
class SowSums:
    """The contents of one topic at an instance, as sums.

    Attributes:
        records: the number of records.
        sums: digests of the records in each part of the keys.
        gap: the reason why the topic cannot be compared; empty: it can.
    """

    records: int = 0
    sums: list[bytes] = field(default_factory=list)
    gap: str = ""


def sow_sources(record: FabricRecord, places: Iterable[JournalPlace]) -> list[SowSource]:
    """Returns the SOW topics of the instances of a fabric that have any. Event topics are left out:
    they are in no journal, and each instance keeps its own."""
    from raylay.services.configuration.model import FabricSettings

    settings = FabricSettings.from_json(record.settings)
    by_name = {each.name: each for each in settings.instances}
    found = []
    for place in places:
        instance = by_name.get(place.instance)
        if instance is not None and settings.sow_of(instance):
            config = instance_config(settings, record, instance)
            topics = tuple(each for each in config.sow if not is_event_topic(each.name))
            found.append(SowSource(place, topics, config.type_definitions, fingerprints(config)))
    return found


def compare_sow(
    sources: Sequence[Any],
    run: Run,
    now_us: int,
    settle_s: float,
    sums: Callable[[Any], tuple[str, dict[str, SowSums]]],
    entries: Callable[[Any], tuple[str, dict[str, Entries]]],
) -> list[dict[str, Any]]:
    """Compares the SOW topics of instances. Returns a dict for each topic that two of them have.

    Args:
        sources: `SowSource`, or the source that `sums` and `entries` read.
        run: calls a function for each source.
        sums: returns an instance's sums, as `sums_of`.
        entries: returns an instance's records in some parts of the keys, as `entries_of`.
        settle_s: most time that a message may be on its way; newer ones do not count.

    Raises:
        StorageError: a store or a journal cannot be read any more.
    """
    summed: dict[str, dict[str, SowSums]] = {}
    for instance, topics in run(sums, [(source, now_us) for source in sources]):
        for name, each in topics.items():
            summed.setdefault(name, {})[instance] = each
    wanted: dict[str, set[int]] = {}
    for name, by_instance in summed.items():
        whole = [each.sums for each in by_instance.values() if not each.gap]
        parts = {n for n, found in enumerate(zip(*whole, strict=True)) if len(set(found)) > 1}
        if parts:
            wanted[name] = parts
    listed: dict[str, dict[str, Entries]] = {}
    asked = [(source, wanted, now_us) for source in sources]
    for instance, topics in run(entries, asked) if wanted else ():
        for name, found in topics.items():
            listed.setdefault(name, {})[instance] = found
    return [
        _judged(name, by_instance, listed.get(name, {}), now_us - int(settle_s * 1e6))
        for name, by_instance in sorted(summed.items())
        if len(by_instance) > 1
    ]


def _judged(
    name: str,
    summed: dict[str, SowSums],
    listed: dict[str, Entries],
    settled_us: int,
) -> dict[str, Any]:
    kind, _, topic = name.partition("/")
    compared = [instance for instance, sums in summed.items() if not sums.gap]
    keys = sorted({key for instance in compared for key in listed.get(instance, ())})
    told: list[dict[str, Any]] = []
    differing = in_flight = 0
    for key in keys:
        found = {instance: listed[instance].get(key) for instance in compared}
        if len({None if each is None else each[0] for each in found.values()}) < 2:
            continue
        if max(each[1] for each in found.values() if each is not None) > settled_us:
            in_flight += 1
            continue
        differing += 1
        if len(told) < KEYS_TOLD_MAX:
            held = {
                instance: None if each is None else str(each[0]) for instance, each in found.items()
            }
            told.append({"key": key.decode("utf-8", "replace"), "held": held})
    return {
        "topic": topic,
        "message_type": kind,
        "records": {instance: summed[instance].records for instance in sorted(compared)},
        "differing": differing,
        "in_flight": in_flight,
        "keys": told,
        "not_compared": {instance: each.gap for instance, each in summed.items() if each.gap},
    }


# -- in a task -----------------------------------------------------------------------------------
def sums_of(asked: tuple[SowSource, int]) -> tuple[str, dict[str, SowSums]]:
    """Returns an instance's name and the sums of its topics, by topic name."""
    source, now_us = asked
    try:
        found = {
            topic.stored_as: _summed(topic, stored_txid, gap, now_us)
            for topic, stored_txid, gap in _topics(source)
        }
    except RaylayError as error:
        # The audit has more to say, and a host may lack what makes the keys.
        found = {definition.stored_as: SowSums(gap=str(error)) for definition in source.definitions}
    return source.place.instance, found


def _summed(topic: SowTopic, stored_txid: int, gap: str, now_us: int) -> SowSums:
    records = ((record.key, _held(topic, record, stored_txid)) for record in _living(topic, now_us))
    return sums_of_records(records, gap)


def sums_of_records(records: Iterable[tuple[bytes, HeldRecord]], gap: str = "") -> SowSums:
    """Returns the sums of records with their keys.

    Args:
        gap: the reason why the topic cannot be compared; empty: it can.
    """
    found = SowSums(gap=gap)
    sums = [0] * PARTS
    for key, held in records:
        found.records += 1
        what = _HELD.pack(held.publisher, held.sequence, bytes.fromhex(held.digest), len(key))
        sums[part_of(key)] += summand(key + what + held.topic.encode(), SOW_RECORD)
    found.sums = [summed(each) for each in sums]
    return found


def entries_of(
    asked: tuple[SowSource, dict[str, set[int]], int],
) -> tuple[str, dict[str, Entries]]:
    """Returns an instance's name and, by topic and key, the records in some parts of the keys with
    the time of their receipt."""
    source, wanted, now_us = asked
    found: dict[str, Entries] = {}
    for topic, stored_txid, _ in _topics(source):
        parts = wanted.get(topic.stored_as)
        if parts:
            found[topic.stored_as] = {
                record.key: (_held(topic, record, stored_txid), record.updated_us)
                for record in _living(topic, now_us)
                if part_of(record.key) in parts
            }
    return source.place.instance, found


def part_of(key: bytes) -> int:
    """Returns the part of the keys that a key is in."""
    return checksum64(key) % PARTS  # Whatever shares a part with others is looked at apart.


def _living(topic: SowTopic, now_us: int) -> Iterator[SowRecord]:
    expires = topic.state.rules.expires
    for record in topic.state.records():
        if not expires or record.expires_us == NEVER or record.expires_us > now_us:
            yield record


def _held(topic: SowTopic, record: SowRecord, stored_txid: int) -> HeldRecord:
    body = record.body or b""
    # What was in the store has the digest in place of its body.
    digest = body if record.txid <= stored_txid else digest_of(body)
    name = (record.topic or topic.name).decode("utf-8", "replace")
    return HeldRecord(name, record.publisher, record.sequence, digest.hex())


def _topics(source: SowSource) -> Iterator[tuple[SowTopic, int, str]]:
    """Yields each topic with its current contents, the transaction id up to which they are from the
    store, and the reason why they are incomplete; empty: they are complete."""
    store = MemorySowStore()
    stored = _loaded(source, store)
    # Versions of a history are no records, and nothing expires here.
    definitions = [
        replace(definition, rules=SowRules(definition.rules.expires, definition.rules.lifetime_us))
        for definition in source.definitions
    ]
    feature = SowFeature(sow_book(definitions, source.types, store, transient=store))
    with source.place.reader() as reader:
        last_txid = reader.last_txid
        first_txid = reader.first_txid
        gaps = {each.topic: each.text for each in feature.begin(first_txid, last_txid)}
        for topic in feature.book.topics:
            if not topic.state.txid and first_txid > 1:
                gaps[topic.stored_as] = (
                    f"it has no SOW store, and its journal begins with transaction id {first_txid}"
                )
        feature.recover_from(reader, last_txid)
    for topic in feature.book.topics:
        yield topic, stored.get(topic.stored_as, 0), gaps.get(topic.stored_as, "")


def _loaded(source: SowSource, store: MemorySowStore) -> dict[str, int]:
    """Loads what is on disk into a store in memory, with digests in place of bodies. Returns, by
    topic, the transaction id that it has reached."""
    path = Path(source.place.journal).parent / SOW_FILE
    if not path.is_file():
        return {}
    found: dict[str, int] = {}
    with reading(path) as there:
        for name, wanted in source.fingerprints.items():
            txid = there.txid(name)
            if not txid or there.get(name, FINGERPRINT) != wanted:
                continue
            entries: dict[bytes, bytes | None] = {}
            for key, value in there.entries(name, VALUE, _behind(VALUE)):
                record = decoded(key[1:], value)
                entries[key] = encoded(record._replace(body=digest_of(record.body or b"")))
            entries.update(there.entries(name, TOMBSTONE, _behind(TOMBSTONE)))
            store.topic(name).take(entries, txid)
            found[name] = txid
    return found


def _behind(front: bytes) -> bytes:
    return front[:-1] + bytes((front[-1] + 1,))
