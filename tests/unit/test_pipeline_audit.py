"""The audit's judgement, without Spark: stretches give what one pass over the whole log gives, and
each fault and each excuse is told apart."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.files import load_fabric
from raylay.services.pipeline.audit_judgement import Audit, conflicting, judge
from raylay.services.pipeline.audit_parts import (
    BLOCK,
    TIMES_MAX,
    Kind,
    Log,
    StretchParts,
    Timeline,
    conflicts_of,
    logs_of,
    open_blocks,
    parts_of,
    sums_of,
)
from raylay.services.pipeline.audit_routes import expected_by, expected_everywhere
from raylay.services.replication.ranges import PublisherRanges, SequenceSet

NOW_US = 1_000_000_000_000
SETTLED_US = NOW_US - 10_000_000
LONG_AGO_US = 5_000_000


class Message(NamedTuple):
    """One record of a log."""

    publisher: int
    topic: str
    sequence: int
    digest: int = 0
    origin: str = ""
    late: bool = False
    message_type: str = "json"
    time_us: int = LONG_AGO_US


def stretch(instance: str, first_txid: int, messages: list[Message]) -> StretchParts:
    """What a worker makes of consecutive messages of a log."""
    kinds: dict[Kind, int] = {}
    newest_us: list[int] = []
    codes = []
    for each in messages:
        kind = Kind(each.publisher, each.topic, each.message_type, each.origin, each.late)
        code = kinds.setdefault(kind, len(kinds))
        newest_us += [0] * (len(kinds) - len(newest_us))
        newest_us[code] = max(newest_us[code], each.time_us)
        codes.append(code)
    made = StretchParts(instance, first_txid)
    made.parts = parts_of(
        list(kinds),
        newest_us,
        np.array(codes, np.int64),
        np.array([each.sequence for each in messages], np.int64),
        np.array([each.digest for each in messages], np.uint64),
    )
    made.times.add(Counter(each.time_us // 1_000_000 for each in messages))
    return made


def log_of(instance: str, messages: list[Message], cuts: list[int] | None = None) -> Log:
    """A log of stretches that begin at these places, read in any order."""
    edges = [0, *(cuts or []), len(messages)]
    stretches = [
        stretch(instance, first + 1, messages[first:last])
        for first, last in pairwise(edges)
        if first < last
    ]
    random.Random(len(stretches)).shuffle(stretches)
    return logs_of([instance], stretches)[instance]


def judged(*logs: Log, why: Any = None, **origins: str) -> Audit:
    return judge(
        {log.instance: log for log in logs},
        why or expected_everywhere(),
        origins,
        settled_us=SETTLED_US,
        now_us=NOW_US,
    )


# -- one naive pass ------------------------------------------------------------------------------
def naive(messages: list[Message]) -> dict[tuple[int, str], dict[str, Any]]:
    """By publisher and topic, message by message."""
    found: dict[tuple[int, str], dict[str, Any]] = defaultdict(
        lambda: {
            "messages": 0,
            "held": set(),
            "repeated": set(),
            "out_of_order": set(),
            "late": set(),
            "late_messages": 0,
            "highest": 0,
            "newest_us": 0,
            "origins": defaultdict(set),
        }
    )
    for each in messages:
        here = found[each.publisher, each.topic]
        here["messages"] += 1
        if each.late:
            here["late"].add(each.sequence)
            here["late_messages"] += 1
        if each.sequence in here["held"]:
            here["repeated"].add(each.sequence)
        elif each.sequence < here["highest"] and not each.late:
            here["out_of_order"].add(each.sequence)
        here["held"].add(each.sequence)
        here["highest"] = max(here["highest"], each.sequence)
        here["newest_us"] = max(here["newest_us"], each.time_us)
        here["origins"][each.message_type, each.origin].add(each.sequence)
    return found


def plain(log: Log) -> dict[tuple[int, str], dict[str, Any]]:
    """A log of stretches, in the form of `naive`."""

    def values(sequences: SequenceSet) -> set[int]:
        return {value for first, last in sequences for value in range(first, last + 1)}

    return {
        key: {
            "messages": held.messages,
            "held": values(held.held),
            "repeated": values(held.repeated),
            "out_of_order": values(held.out_of_order),
            "late": values(held.late),
            "late_messages": held.late_messages,
            "highest": held.highest,
            "newest_us": held.newest_us,
            "origins": {name: values(each) for name, each in held.origins.items()},
        }
        for key, held in log.topics.items()
    }


def some_messages(chance: random.Random) -> list[Message]:
    """Messages in order but for a few, some of them twice, in several blocks."""
    made = []
    for publisher in range(1, chance.randint(2, 4)):
        first = chance.choice([1, BLOCK - 20, 1_700_000_000_000_000])
        for sequence in range(first, first + chance.randint(1, 60)):
            made.append(
                Message(
                    publisher,
                    chance.choice("xy"),
                    sequence,
                    chance.getrandbits(64),
                    chance.choice(["", "a", "b"]),
                    chance.random() < 0.1,
                    chance.choice(["json", "nvfix"]),
                    chance.randint(0, NOW_US),
                )
            )
    if chance.random() < 0.7:
        for _ in range(chance.randint(0, 8)):
            made.insert(chance.randrange(len(made) + 1), chance.choice(made))
        for _ in range(chance.randint(0, 8)):
            made.insert(chance.randrange(len(made)), made.pop(chance.randrange(len(made))))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_stretches_give_what_one_pass_gives(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        messages = some_messages(chance)
        cuts = sorted(chance.choices(range(len(messages) + 1), k=chance.randint(0, 6)))
        assert plain(log_of("a", messages, cuts)) == naive(messages)


@pytest.mark.parametrize("seed", range(4))
def test_checksums_tell_contents_apart_wherever_the_log_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        messages = [each._replace(topic="x") for each in some_messages(chance)]
        messages = list({(each.publisher, each.sequence): each for each in messages}.values())
        other = chance.sample(messages, len(messages))
        cuts = sorted(chance.choices(range(len(messages) + 1), k=3))
        logs = [log_of("a", messages, cuts), log_of("b", other)]
        assert not open_blocks(logs), "the same records in another order"
        at = chance.randrange(len(other))
        other[at] = other[at]._replace(digest=other[at].digest ^ 1 << chance.randrange(64))
        opened = open_blocks([logs[0], log_of("b", other, cuts)])
        (publisher, first, last) = next((p, *each) for p, each in opened.items())
        assert publisher == other[at].publisher and first <= other[at].sequence <= last
        assert len(opened) == BLOCK, "one block, and no other"


def test_swapped_contents_do_not_add_up_to_the_same() -> None:
    sequences = np.array([7, 8], np.int64)
    digests = np.array([1 << 63, 12345], np.uint64)
    assert sums_of(sequences, digests) != sums_of(sequences, digests[::-1].copy())


def test_where_contents_must_be_compared() -> None:
    alone = [Message(1, "x", 5, 100), Message(1, "x", 5, 200)]
    assert len(open_blocks([log_of("a", alone)])) == BLOCK, "twice at one instance"
    topics = [log_of("a", [Message(1, "x", 5, 100)]), log_of("b", [Message(1, "y", 5, 200)])]
    assert len(open_blocks(topics)) == BLOCK, "one identity, two topics"
    apart = [log_of("a", [Message(1, "x", 5, 100)]), log_of("b", [Message(1, "y", 6, 200)])]
    assert not open_blocks(apart)
    assert conflicts_of(
        np.array([5, 6, 5, 7, 6, 5], np.int64), np.array([1, 2, 1, 3, 9, 4], np.uint64)
    ) == [5, 6]  # fmt: skip


# -- the judgement -------------------------------------------------------------------------------
def messages(first: int, last: int, **more: Any) -> list[Message]:
    return [Message(1, "x", sequence, sequence, **more) for sequence in range(first, last + 1)]


def reasons(found: Audit) -> list[tuple[str, str, list[list[int]]]]:
    return [(each["instance"], each["reason"], each["ranges"]) for each in found.missing]


def test_each_reason() -> None:
    here = log_of("a", messages(1, 100))
    there = log_of("b", [*messages(11, 20, origin="aa"), *messages(41, 90, origin="aa")])
    there.removed.add(1, 1, 10)
    there.unavailable.add(1, 21, 25)
    there.conflicting.add(1, 25, 28)
    found = judged(here, there, aa="a")
    assert reasons(found) == [
        ("b", "lost", [[29, 40], [91, 100]]),
        ("b", "conflicting", [[26, 28]]),
        ("b", "unavailable", [[21, 25]]),
        ("b", "removed", [[1, 10]]),
    ]
    assert found.lost == 22 and not found.valid and found.faults() == ["22 lost"]
    share = found.matrix["x", "json"]["b"]
    assert (share.expected, share.held) == (100, 60)
    assert share.lacking == {"removed": 10, "unavailable": 5, "conflicting": 3, "lost": 22}


@pytest.mark.parametrize(
    ("newest_us", "reason"),
    [(NOW_US - 1, "in_flight"), (SETTLED_US - 1, "lost"), (NOW_US + 1, "lost")],
    ids=["new", "old", "from a clock that is ahead"],
)
def test_what_may_be_on_its_way(newest_us: int, reason: str) -> None:
    here = log_of("a", [*messages(1, 99), *messages(100, 100, time_us=newest_us)])
    there = log_of("b", [*messages(1, 40, origin="aa"), *messages(43, 90, origin="aa")])
    found = judged(here, there)
    # What has a gap before what came later is lost, however new.
    assert dict((each, ranges) for _, each, ranges in reasons(found)) == (
        {"lost": [[41, 42]], "in_flight": [[91, 100]]}
        if reason == "in_flight"
        else {"lost": [[41, 42], [91, 100]]}
    )
    assert not found.valid


def test_a_copy_tells_where_it_was_published() -> None:
    """Also where the instance that it was published at has it no more."""
    builder = FabricBuilder("two")
    builder.region("Chicago", ["a", "b"])
    why = expected_by(builder.settings())
    gone, there = log_of("a", []), log_of("b", messages(1, 5, origin="aa"))
    gone.removed.add(1, 1, 3)
    found = judged(gone, there, why=why, aa="a")
    assert reasons(found) == [("a", "lost", [[4, 5]]), ("a", "removed", [[1, 3]])]
    # Of another fabric's instance nobody knows where its messages should be.
    found = judged(gone, there, why=why)
    assert found.valid and found.unknown_origin == 5 and not found.missing
    # Some of them were published here: the copies of these tell nothing else.
    found = judged(log_of("a", messages(1, 2)), there, why=why)
    assert found.unknown_origin == 3


def test_faults_of_one_log() -> None:
    log = log_of(
        "a",
        [
            *messages(1, 5),
            *messages(8, 8),
            *messages(6, 6),
            *messages(7, 7, late=True),
            *messages(2, 3),
            *messages(9, 9),
        ],
    )
    log.damaged.append("journal-1.live: block 7 is damaged")
    found = judged(log)
    assert found.instances["a"] == {"messages": 11, "duplicates": 2, "out_of_order": 1, "late": 1}
    where = {"instance": "a", "publisher": 1, "topic": "x"}
    assert found.duplicates == [where | {"messages": 2, "ranges": [[2, 3]], "ranges_in_all": 1}]
    assert found.out_of_order == [where | {"messages": 1, "ranges": [[6, 6]], "ranges_in_all": 1}]
    assert found.late == [where | {"messages": 1, "ranges": [[7, 7]], "ranges_in_all": 1}]
    assert found.faults() == [
        "2 held more than once", "1 out of order", "1 damaged places left out",
    ]  # fmt: skip
    assert not found.valid
    late = judged(log_of("a", [*messages(2, 2), *messages(1, 1, late=True)]))
    assert late.valid and late.count("late") == 1, "late is no fault"


def test_one_identity_on_two_topics_is_twice() -> None:
    found = judged(log_of("a", [Message(1, "x", 1), Message(1, "y", 1), Message(2, "y", 1)]))
    assert found.instances["a"]["duplicates"] == 1 and found.published == 2
    assert [each["topic"] for each in found.duplicates] == ["y"]


def test_conflicts() -> None:
    found = judged(log_of("a", messages(1, 5)))
    conflicting(found, PublisherRanges({1: SequenceSet([(2, 3)]), 9: SequenceSet()}))
    assert found.conflicts == 2 and not found.valid
    assert found.conflicts_found == [
        {"publisher": 1, "messages": 2, "ranges": [[2, 3]], "ranges_in_all": 1}
    ]
    assert found.to_json()["found"]["conflicts"] == found.conflicts_found


def test_many_ranges_are_counted_and_a_few_named() -> None:
    here = log_of("a", messages(1, 100))
    there = log_of("b", [each for each in messages(1, 100, origin="aa") if each.sequence % 2])
    (entry,) = judged(here, there).missing
    assert entry["messages"] == entry["ranges_in_all"] == 50
    assert entry["ranges"][0] == [2, 2] and len(entry["ranges"]) == 10


# -- the configuration ---------------------------------------------------------------------------
def test_what_the_configuration_brings_where() -> None:
    builder = FabricBuilder("two", topics=[{"name": "orders", "message_type": "json"}])
    builder.region("Chicago", ["C1", "C2"])
    builder.region("London", ["L1"])
    why = expected_by(builder.settings())
    assert why("C1", "orders", "json") == {"L1": "not_connected"}
    assert why("nobody", "orders", "json") is None
    builder.connect_regions("async")
    why = expected_by(builder.settings())
    assert why("C1", "orders", "json") == {}
    assert why("C1", "quotes", "json") == {"C2": "not_journaled", "L1": "not_journaled"}


CHAIN = """
fabric: chain
topics: [{name: .*, message_type: json}]
instances: {in: {group: inside}, hub: {group: hub}, out: {group: outside}, far: {group: far}}
links:
  - {from: in, to: [hub], topics: [{name: orders}, {name: quotes}, {name: trades}]}
  - {from: hub, to: [out], pass_through: hub, topics: [{name: orders}, {name: trades}]}
"""


def test_why_it_does_not(tmp_path: Any) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    why = expected_by(load_fabric([str(path)]))
    assert why("in", "orders", "json") == {"out": "pass_through", "far": "not_connected"}
    assert why("in", "quotes", "json") == {"out": "topic", "far": "not_connected"}
    assert why("hub", "orders", "json") == {"in": "not_connected", "far": "not_connected"}
    # What is kept back by the configuration is told with its reason, and is no fault.
    first = log_of("in", messages(1, 10))
    second = log_of("hub", messages(1, 10, origin="aa"))
    third = log_of("out", [])
    found = judge(
        {log.instance: log for log in (first, second, third)},
        lambda origin, topic, kind: why(origin, "orders", kind),
        {"aa": "in"},
        settled_us=SETTLED_US,
        now_us=NOW_US,
    )
    assert found.valid and not found.missing
    (entry,) = found.not_expected
    assert entry | {"ranges": [], "ranges_in_all": 1} == {
        "instance": "out", "publisher": 1, "topic": "x", "message_type": "json",
        "reason": "pass_through", "messages": 10, "published_at": ["in"],
        "ranges": [], "ranges_in_all": 1,
    }  # fmt: skip
    share = found.matrix["x", "json"]["out"]
    assert (share.expected, share.held, share.not_expected) == (0, 0, {"pass_through": 10})


# -- time ----------------------------------------------------------------------------------------
def test_a_timeline_stays_short_and_exact() -> None:
    line, other = Timeline(), Timeline()
    line.add({second: 2 for second in range(1000, 1000 + TIMES_MAX)})
    assert line.width_s == 1
    other.add({second: 1 for second in range(1000, 1000 + 5 * TIMES_MAX)})
    assert other.width_s == 8 and sum(other.counts.values()) == 5 * TIMES_MAX
    line.update(other)
    assert line.width_s == 8 and sum(line.counts.values()) == 7 * TIMES_MAX
    assert line.counts[1000 // 8] == 24
    other.update(Timeline(1, {1000: 3}))
    assert other.counts[1000 // 8] == 11
