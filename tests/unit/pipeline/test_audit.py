"""The audit's judgement, without Spark: stretches give what one pass over the whole log gives, and
each fault and each excuse is told apart."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.files import load_fabric
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import Command, RecordBuilder
from raylay.services.pipeline.audit.ages import (
    Age,
    AgeQuestion,
    ages_of,
    clocks,
    merged,
    unanswered,
)
from raylay.services.pipeline.audit.judgement import Audit, conflicting, judge, settle
from raylay.services.pipeline.audit.origins import FabricKnowledge, Origin, origins_of
from raylay.services.pipeline.audit.page import audit_page, rates_of
from raylay.services.pipeline.audit.parts import (
    BLOCK,
    TIMES_MAX,
    LogContents,
    RunProperties,
    StretchParts,
    Timeline,
    conflicts_of,
    content_numbers,
    joined,
    logs_of,
    open_blocks,
    parts_of,
    sums_of,
)
from raylay.services.pipeline.audit.routes import expected_by, expected_everywhere
from raylay.services.pipeline.tables.columns import RECORD

NOW_US = 1_000_000_000_000
SETTLE_US = 10_000_000
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
    kinds: dict[RunProperties, int] = {}
    codes = []
    made = StretchParts(instance, first_txid)
    for txid, each in enumerate(messages, first_txid):
        kind = RunProperties(each.publisher, each.topic, each.message_type, each.origin, each.late)
        code = kinds.setdefault(kind, len(kinds))
        codes.append(code)
        made.received_us[each.origin] = max(each.time_us, made.received_us.get(each.origin, 0))
        made.spans[each.origin] = joined(made.spans.get(each.origin), txid, txid)
        made.last_us = each.time_us
    made.parts = parts_of(
        list(kinds),
        np.array(codes, np.int64),
        np.array([each.sequence for each in messages], np.int64),
        np.array([each.digest for each in messages], np.uint64),
    )
    made.times.add(Counter(each.time_us // 1_000_000 for each in messages))
    return made


@dataclass(slots=True)
class ReadLog(LogContents):
    """A log that can be looked at again."""

    messages: list[Message] = field(default_factory=list)


def log_of(instance: str, messages: list[Message], cuts: list[int] | None = None) -> ReadLog:
    """A log of stretches that begin at these places, read in any order."""
    edges = [0, *(cuts or []), len(messages)]
    stretches = [
        stretch(instance, first + 1, messages[first:last])
        for first, last in pairwise(edges)
        if first < last
    ]
    random.Random(len(stretches)).shuffle(stretches)
    made = logs_of([instance], stretches)[instance]
    return ReadLog(
        **{each.name: getattr(made, each.name) for each in fields(made)}, messages=messages
    )


def judged(
    *logs: ReadLog,
    why: Any = None,
    former: Mapping[str, Origin] = MappingProxyType({}),
    **origins: str,
) -> Audit:
    by_name = {log.instance: log for log in logs}
    known = {incarnation: Origin((name,)) for incarnation, name in origins.items()}
    found, left = judge(by_name, why or expected_everywhere(), {**former, **known})
    now_us = clocks(by_name, origins, NOW_US)
    answers = [
        ages_of(
            {number: each.question for number, each in enumerate(left)},
            now_us[log.instance],
            SETTLE_US,
            np.array([each.publisher for each in log.messages], np.uint64),
            np.array([each.sequence for each in log.messages], np.int64),
            np.array([each.time_us for each in log.messages], np.int64),
        )
        for log in logs
    ]
    settle(found, left, merged(answers))
    return found


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
        here["origins"][each.message_type, each.origin].add(each.sequence)
    return found


def plain(log: LogContents) -> dict[tuple[int, str], dict[str, Any]]:
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


@pytest.mark.covers("Data pipeline", "parts read in any order give what one pass over a log")
@pytest.mark.parametrize("seed", range(5))
def test_stretches_give_what_one_pass_gives(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        messages = some_messages(chance)
        cuts = sorted(chance.choices(range(len(messages) + 1), k=chance.randint(0, 6)))
        assert plain(log_of("a", messages, cuts)) == naive(messages)


@pytest.mark.covers("Data pipeline", "parts read in any order give what one pass over a log")
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
        assert opened.count == BLOCK, "one block, and no other"


def test_swapped_contents_do_not_add_up_to_the_same() -> None:
    sequences = np.array([7, 8], np.int64)
    digests = np.array([1 << 63, 12345], np.uint64)
    assert sums_of(sequences, digests) != sums_of(sequences, digests[::-1].copy())


def test_where_contents_must_be_compared() -> None:
    alone = [Message(1, "x", 5, 100), Message(1, "x", 5, 200)]
    assert open_blocks([log_of("a", alone)]).count == BLOCK, "twice at one instance"
    topics = [log_of("a", [Message(1, "x", 5, 100)]), log_of("b", [Message(1, "y", 5, 200)])]
    assert open_blocks(topics).count == BLOCK, "one identity, two topics"
    apart = [log_of("a", [Message(1, "x", 5, 100)]), log_of("b", [Message(1, "y", 6, 200)])]
    assert not open_blocks(apart)
    assert conflicts_of(
        np.array([5, 6, 5, 7, 6, 5], np.int64), np.array([1, 2, 1, 3, 9, 4], np.uint64)
    ) == [5, 6]  # fmt: skip


def test_the_same_bytes_under_another_command_are_another_content() -> None:
    build = RecordBuilder(7, "orders", "json").build
    made = [
        build(5, b"{}", 1),
        build(5, b"{}", 2),
        build(5, b"{}", 1, command=Command.DELETE),
        build(5, b"{}", 1, expiration_s=1),
        build(5, b"", 1, key=b"{}"),
    ]
    headers = np.array([np.frombuffer(each, RECORD, 1)[0] for each in made])
    first, again, *others = content_numbers(headers).tolist()
    assert first == again and len({first, *others}) == 4


# -- the judgement -------------------------------------------------------------------------------
def messages(first: int, last: int, **more: Any) -> list[Message]:
    return [Message(1, "x", sequence, sequence, **more) for sequence in range(first, last + 1)]


def reasons(found: Audit) -> list[tuple[str, str, list[list[int]]]]:
    return [(each["instance"], each["reason"], each["ranges"]) for each in found.missing]


@pytest.mark.covers("Data pipeline", "each planted fault is found with its reason")
def test_each_reason() -> None:
    here = log_of("a", messages(1, 100))
    there = log_of("b", [*messages(11, 20, origin="aa"), *messages(41, 90, origin="aa")])
    there.removed.add(1, 1, 10)
    there.unavailable.add(1, 21, 25)
    there.conflicting.add(1, 25, 28)
    found = judged(here, there, aa="a")
    assert reasons(found) == [
        ("b", "lost", [[29, 40]]),
        ("b", "owed", [[91, 100]]),
        ("b", "conflicting", [[26, 28]]),
        ("b", "unavailable", [[21, 25]]),
        ("b", "removed", [[1, 10]]),
    ]
    assert found.lost == 12 and not found.valid
    assert found.faults() == ["12 lost", "10 owed for up to 999,995 s at b"]
    share = found.matrix["x", "json"]["b"]
    assert (share.expected, share.held) == (100, 60)
    assert share.lacking == {
        "removed": 10, "unavailable": 5, "conflicting": 3, "lost": 12, "owed": 10,
    }  # fmt: skip


SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US


def ago(seconds: float) -> int:
    return NOW_US - round(seconds * SECOND_US)


def published(first: int, last: int, first_us: int) -> list[Message]:
    """One a second, from that time on."""
    return [
        each._replace(time_us=first_us + number * SECOND_US)
        for number, each in enumerate(messages(first, last))
    ]


def received(sent: list[Message], lag_us: int = 1_000) -> list[Message]:
    return [each._replace(origin="aa", time_us=each.time_us + lag_us) for each in sent]


def told(found: Audit) -> dict[str, list[list[int]]]:
    """What is missing, by reason."""
    assert len({each["reason"] for each in found.missing}) == len(found.missing)
    return {each["reason"]: each["ranges"] for each in found.missing}


def test_what_is_missing_is_judged_by_how_long_it_is() -> None:
    here = published(1, 100, ago(99.5))
    there = [each for each in received(here) if each.sequence <= 60 and each.sequence != 41]
    found = judged(log_of("a", here), log_of("b", there), aa="a")
    assert told(found) == {"lost": [[41, 41]], "owed": [[61, 90]], "in_flight": [[91, 100]]}
    assert found.owed() == {"b": (30, 39.5)} and found.faults() == ["1 lost"]
    assert found.owed_notes(overdue=False) == ["30 owed for up to 40 s at b"]
    assert found.to_json()["owed"] == {"b": {"messages": 30, "for_s": 39.5}}
    # A gap is on its way as long as anything else: another way may bring it.
    there = [each for each in received(here) if each.sequence != 95]
    found = judged(log_of("a", here), log_of("b", there), aa="a")
    assert told(found) == {"in_flight": [[95, 95]]} and found.valid


def test_a_link_that_is_dead_for_a_week_is_found_under_an_active_publisher() -> None:
    here = [*messages(1, 50, time_us=ago(7 * 86_400)), *published(51, 100, ago(49.5))]
    found = judged(log_of("a", here), log_of("b", received(here[:40])), aa="a")
    assert told(found) == {"owed": [[41, 90]], "in_flight": [[91, 100]]}
    assert not found.valid and found.faults() == ["50 owed for up to 604,800 s at b"]


def test_what_is_owed_behind_a_publisher_that_paused_is_not_lost() -> None:
    here = published(1, 20, ago(30))
    found = judged(log_of("a", here), log_of("b", received(here[:15])), aa="a")
    assert told(found) == {"owed": [[16, 20]]}
    assert found.owed() == {"b": (5, 15.0)} and found.valid and not found.faults()
    found.max_owed_s = 14.0
    assert not found.valid and found.faults() == ["5 owed for up to 15 s at b"]


def test_behind_is_what_comes_from_the_same_instance() -> None:
    """A publisher that went on elsewhere leaves no gap, but what its first server owes."""
    first, second = published(1, 40, ago(70)), published(41, 70, ago(30))
    c = [each._replace(origin="bb") for each in second]
    found = judged(
        log_of("a", [*first, *c]),
        log_of("b", [*received(first), *second]),
        log_of("c", [*received(first[:30]), *c]),
        aa="a",
        bb="b",
    )
    assert told(found) == {"owed": [[31, 40]]}
    # What an instance published itself, and does not hold, enters it no second time.
    found = judged(log_of("a", first[:30]), log_of("b", received(first)), aa="a")
    assert told(found) == {"lost": [[31, 40]]}


def test_behind_is_what_is_of_the_same_type() -> None:
    """Two types of one topic may come over different links, of which one is down."""
    here = [
        each._replace(message_type="nvfix" if each.sequence % 2 else "json")
        for each in published(1, 40, ago(70))
    ]
    there = [each for each in received(here) if each.sequence <= 30 or each.sequence % 2]
    found = judged(log_of("a", here), log_of("b", there), aa="a")
    assert reasons(found) == [("b", "owed", [[at, at] for at in (32, 34, 36, 38, 40)])]
    found = judged(log_of("a", here), log_of("b", [*there[:10], *there[11:]]), aa="a")
    assert told(found)["lost"] == [[11, 11]]


@pytest.mark.parametrize("off_us", [-DAY_US, DAY_US], ids=["behind", "ahead"])
@pytest.mark.parametrize("which", "ab", ids=["where it was published", "where it lacks"])
def test_a_clock_that_is_wrong(which: str, off_us: int) -> None:
    """It makes nothing old that is new, and hides nothing that is old: under a publisher that goes
    on, and with a third instance whose clock is right."""

    def by(instance: str, log: list[Message]) -> list[Message]:
        return [each._replace(time_us=each.time_us + off_us * (instance == which)) for each in log]

    here = published(1, 100, ago(99.5))
    there = [
        each for each in received(here) if each.sequence not in (50, 95) and each.sequence < 99
    ]
    found = judged(
        log_of("a", by("a", here)),
        log_of("b", by("b", there)),
        log_of("c", received(here)),
        aa="a",
    )
    assert told(found) == {"lost": [[50, 50]], "in_flight": [[95, 95], [99, 100]]}


def test_a_clock_that_was_set_back() -> None:
    here = [*messages(1, 50, time_us=ago(-3600)), *published(51, 60, ago(9))]
    found = judged(log_of("a", here), log_of("b", received(here[:55])), aa="a")
    assert told(found) == {"in_flight": [[56, 60]]}


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


def test_an_instance_that_began_anew() -> None:
    """What it published before is judged; where it is to be by the links of now."""
    builder = FabricBuilder("two")
    builder.region("Chicago", ["a", "b"])
    builder.region("London", ["c"])
    builder.connect_regions("async")
    why = expected_by(builder.settings())
    before = messages(1, 50, origin="old")
    logs = (log_of("a", before[:45]), log_of("b", before), log_of("c", before[:40]))
    was = {"old": Origin(("a",), True)}
    assert reasons(judged(*logs, why=why, former=was)) == [
        ("a", "owed", [[46, 50]]), ("c", "owed", [[41, 50]]),
    ]  # fmt: skip
    # Either of two: what both of them would have brought there.
    was = {"old": Origin(("a", "b"), True)}
    assert {each["instance"] for each in judged(*logs, why=why, former=was).missing} == {"a", "c"}
    found = judged(*logs, why=why)
    assert not found.missing and found.unknown_origin == 50


@pytest.mark.parametrize(("passes", "reasons"), [(".*", {}), ("hub", {"in": "pass_through"})])
def test_what_it_published_before_comes_back_if_others_bring_it(
    tmp_path: Any, passes: str, reasons: dict[str, str]
) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(TWO.format(passes=passes))
    why = expected_by(load_fabric([str(path)]))
    assert why("in", "orders", "json", True) == reasons
    assert why("in", "orders", "json") == {}, "and what it holds needs nobody"


def test_which_instance_an_incarnation_was() -> None:
    groups = {"a": "Chicago", "b": "Chicago", "c": "Chicago", "d": "London"}
    logs = {name: log_of(name, []) for name in groups}
    logs["b"].senders = {("old", "Chicago"), ("aa", "Chicago"), ("lon", "London")}
    logs["c"].senders = {("old", "Chicago"), ("lon", "London"), ("far", "Tokyo")}
    logs["d"].senders = {("old", "Chicago"), ("cc", "Chicago"), ("some", "Chicago")}
    current = {"aa": "a", "bb": "b", "cc": "c", "dd": "d"}
    found = origins_of(current, [{"some": "b"}], FabricKnowledge(groups, {"moved": "d"}), logs)
    assert found == {
        **{incarnation: Origin((name,)) for incarnation, name in current.items()},
        "old": Origin(("a",), True),
        "lon": Origin(("d",), True),
        "some": Origin(("b",), True),
        "moved": Origin(("d",), True),
    }, "nobody is of Tokyo"
    assert str(found["old"]) == "a, before it began anew"
    # Without what a peer remembers it was one of three.
    found = origins_of(current, [], FabricKnowledge(groups), logs)
    assert found["some"] == Origin(("a", "b", "c"), True) and "moved" not in found
    # Of a journal that is not read nobody knows what it was sent; it may be what it was.
    del logs["c"], logs["a"]
    found = origins_of({"bb": "b", "dd": "d"}, [], FabricKnowledge(groups), logs)
    assert found["old"] == Origin(("a", "c"))


def test_who_is_published_behind_an_instance_was_not_that_instance() -> None:
    """A fabric of others may have a group of the same name."""
    groups = {"a": "Chicago", "b": "Chicago", "c": "London"}
    current = {"aa": "a", "bb": "b", "cc": "c"}

    def found(a: list[Message], c: list[Message]) -> Origin | None:
        logs = {"a": log_of("a", a), "b": log_of("b", messages(1, 9)), "c": log_of("c", c)}
        logs["a"].senders = {("other", "Chicago")}
        return origins_of(current, [], FabricKnowledge(groups), logs).get("other")

    other, own = messages(1, 5, origin="other"), messages(6, 9, origin="bb")
    assert found([*other, *own], []) == found([], []) == Origin(("b",), True)
    assert found([*own, *other], []) is None
    # A relay may be slow to bring the last of it somewhere.
    assert found([*own, *other], [*other, *own]) == Origin(("b",), True)
    assert found([*own, *other], [*own, *other]) is None


@pytest.mark.parametrize(
    "again_us",
    [lambda n: 1_100, lambda n: 1_000 + n, lambda n: 1_040 + n // 10, lambda n: 5 if n == 1 else n],
    ids=["published again", "a copied log", "a clock behind", "a clock set forward"],
)
def test_what_an_instance_published_before_it_began_anew_is_judged(again_us: Any) -> None:
    """Whatever times its log has of what came back to it."""
    builder = FabricBuilder("two")
    builder.region("Chicago", ["a", "b"])
    builder.region("London", ["c"])
    builder.connect_regions("async")
    settings = builder.settings()
    groups = {each.name: each.group for each in settings.instances}
    here = messages(51, 60, time_us=1_101 * SECOND_US)
    there = [each._replace(origin="aa") for each in here]
    before = [
        Message(1, "x", n, n, origin="old", time_us=(1_000 + n) * SECOND_US) for n in range(1, 51)
    ]
    back = [each._replace(time_us=again_us(each.sequence) * SECOND_US) for each in before]
    logs = {
        "a": log_of("a", [*back, *here]),
        "b": log_of("b", [*before, *there]),
        "c": log_of("c", [*before[:9], *before[20:], *there]),
    }
    logs["b"].senders = {("old", "Chicago"), ("aa", "Chicago")}
    logs["a"].senders = logs["c"].senders = {("bb", "Chicago")}
    current = {"aa": "a", "bb": "b", "cc": "c"}
    origins = origins_of(current, [], FabricKnowledge(groups), logs)
    assert origins["old"] == Origin(("a",), True)
    found = judged(*logs.values(), why=expected_by(settings), former=origins)
    assert reasons(found) == [("c", "lost", [[10, 20]])] and not found.unknown_origin


def test_what_nobody_has_any_more_is_not_on_its_way() -> None:
    questions = {
        0: AgeQuestion(1, SequenceSet([(1, 10)])),
        1: AgeQuestion(2, SequenceSet([(5, 5)])),
    }
    answered = {0: Age(SequenceSet([(1, 8)]))}
    assert unanswered(questions, answered) == 3
    answered[0].update(Age(SequenceSet([(8, 10)])))
    answered[1] = Age(SequenceSet([(5, 5)]))
    assert unanswered(questions, answered) == 0


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
    here = log_of("a", messages(1, 101))
    there = log_of("b", [each for each in messages(1, 101, origin="aa") if each.sequence % 2])
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


TWO = """
fabric: two
topics: [{{name: .*, message_type: json}}]
instances: {{in: {{group: inside}}, hub: {{group: hub}}}}
links:
  - {{from: in, to: [hub]}}
  - {{from: hub, to: [in], pass_through: {passes}}}
"""


@pytest.mark.covers("Data pipeline", "what the configuration does not bring is told")
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
    found = judged(
        first,
        second,
        third,
        why=lambda origin, topic, kind, former: why(origin, "orders", kind, former),
        aa="in",
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
def drawn(points: list[int], rates: list[float], at_s: int) -> float:
    """As steps are drawn: what holds at a point holds until the next."""
    return rates[max(index for index, point in enumerate(points) if point <= at_s)]


def test_every_table_of_the_page_has_the_instances_in_one_order() -> None:
    counts = {"messages": 1, "duplicates": 0, "out_of_order": 0, "late": 0}
    found = Audit(instances={"West-1": counts, "East-1": counts})
    sow = {"topic": "orders", "message_type": "json", "records": {"East-1": 5, "West-1": 6}}
    found.sow = [sow | {"differing": 0, "in_flight": 0, "not_compared": {}, "keys": []}]
    page = audit_page(found, "x", dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    _, _, table = page.partition("SOW topic orders")
    assert table.index("West-1") < table.index("East-1")
    assert table.index(">6<") < table.index(">5<")


def test_an_idle_time_is_drawn_as_idle() -> None:
    """However long it is, and where another instance was not idle."""
    for began_again_s in (104, 100_000):
        times = {"A": Timeline(), "B": Timeline()}
        times["A"].add({100: 8, 101: 8, began_again_s: 4})
        times["B"].add({100: 8, began_again_s - 1: 2, began_again_s: 4})
        seconds, rates = rates_of(times)
        assert [drawn(seconds, rates["A"], at_s) for at_s in (100, 101, 102, 103)] == [8, 8, 0, 0]
        assert [drawn(seconds, rates["A"], began_again_s + each) for each in (-1, 0, 1)] == [
            0,
            4,
            0,
        ]
        assert [drawn(seconds, rates["B"], at_s) for at_s in (100, 101, 102)] == [8, 0, 0]
        assert [drawn(seconds, rates["B"], began_again_s + each) for each in (-1, 0, 1)] == [
            2,
            4,
            0,
        ]
    assert rates_of({"A": Timeline()}) == ([], {"A": []})


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
