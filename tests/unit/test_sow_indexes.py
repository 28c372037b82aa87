"""Indexes never find less than what a filter could be true of, and planning asks them rightly."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.errors import SowKeyError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import Surroundings
from raylay.services.messages.types.json import Json
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.planning import QUERY, keys_to_look_at
from raylay.services.sow.state import SowRecord, SowRules, SowState

JSON = Json()
RULE = KeyRule("orders", ("/id", "/k/x"))


def record(key: bytes, body: bytes) -> SowRecord:
    return SowRecord(key, 1, 7, 1, 1, 0, body)


class Topic:
    """A topic with its indexes, changed as the fold does."""

    def __init__(self, *hash_indexes: tuple[str, ...]) -> None:
        self.state = SowState(SowRules())
        self.indexes = SowIndexes(hash_indexes, JSON.parse, RULE)
        self.indexes.load(self.state.records())

    def put(self, tree: dict[str, Any], key: bytes = b"") -> bytes:
        key = key or RULE.key_of(tree)
        change = self.state.put(record(key, orjson.dumps(tree)))
        if change is not None:
            self.indexes.changed(change)
        return key

    def delete(self, key: bytes) -> None:
        change = self.state.delete(key, 1, 1)
        if change is not None:
            self.indexes.changed(change)

    def found(self, text: str) -> frozenset[bytes] | None:
        return keys_to_look_at(expression(text, QUERY), None, self.indexes)

    def scanned(self, text: str) -> set[bytes]:
        matches = expression(text, QUERY).matches
        return {
            each.key
            for each in self.state.records()
            if matches(JSON.parse(each.body or b""), Surroundings(sow_key=each.key.decode()))
        }


VALUES = st.sampled_from(
    [None, "", "IBM", "5", "05", "5.0", 5, 5.0, True, 1, "1", 0, "x", ["IBM", 5], [],
     {"#text": "x"}, [["x"]], 1 << 62, float(1 << 62)]
)  # fmt: skip
LITERALS = [
    "'IBM'",
    "'5'",
    "5",
    "5.0",
    "'05'",
    "'1'",
    "1",
    "0",
    "'x'",
    "''",
    "4611686018427387904",
]
FIELDS = ["/s", "/t", "/id", "/k/x"]


@st.composite
def filters(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        field, literal = draw(st.sampled_from(FIELDS)), draw(st.sampled_from(LITERALS))
        other = draw(st.sampled_from(LITERALS))
        parts.append(
            draw(
                st.sampled_from(
                    [
                        f"{field} = {literal}", f"{literal} = {field}", f"{field} != {literal}",
                        f"{field} IN ({literal}, {other})",
                        f"({field} = {literal} OR /s = {other})",
                        f"NOT {field} = {literal}",
                    ]
                )
            )
        )  # fmt: skip
    return " AND ".join(parts)


ROW = st.fixed_dictionaries(
    {"id": VALUES, "k": st.fixed_dictionaries({"x": VALUES})}, optional={"s": VALUES, "t": VALUES}
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), ROW), max_size=25), st.lists(filters(), max_size=5))
def test_an_index_finds_what_a_scan_finds(
    steps: list[tuple[bool, dict[str, Any]]], asked: list[str]
) -> None:
    topic = Topic(("/s",), ("/s", "/t"))
    for is_deletion, tree in steps:
        try:
            if is_deletion:
                topic.delete(RULE.key_of(tree))
            else:
                topic.put(tree)
        except SowKeyError:
            continue
    anew = SowIndexes((("/s",), ("/s", "/t")), JSON.parse, RULE)
    anew.load(topic.state.records())
    for text in asked:
        scanned = topic.scanned(text)
        for indexes in (topic.indexes, anew):
            looked = keys_to_look_at(expression(text, QUERY), None, indexes)
            assert looked is None or scanned <= looked, text
    for kept, made in zip(topic.indexes._indexes, anew._indexes, strict=True):
        assert (kept.keys, kept.always) == (made.keys, made.always)


def test_only_what_must_be_equal_is_looked_up() -> None:
    topic = Topic(("/s",))
    keys = [
        topic.put({"id": number, "k": {"x": "y"}, "s": f"s{number % 3}"}) for number in range(9)
    ]
    assert topic.found("/s = 's1'") == set(keys[1::3])
    assert topic.found("/s IN ('s1', 's2') AND /id > 3") == {*keys[1::3], *keys[2::3]}
    assert topic.found("/id = 4 AND /k/x = 'y'") == {keys[4]}, "by the key itself"
    assert topic.found("/id = 4") is None, "not all key fields"
    assert topic.found("/s = 's1' OR /s = 's2'") is None
    assert topic.found(f"SOW_KEY() = '{keys[2].decode()}'") == {keys[2]}
    assert topic.found("/s > 's1'") is None and topic.found("/t = 'x'") is None
    assert keys_to_look_at(None, frozenset((b"k",)), None) == {b"k"}
    found = keys_to_look_at(expression("/s = 's1'", QUERY), frozenset(keys[:2]), topic.indexes)
    assert found == {keys[1]}


def test_a_number_is_looked_up_by_key_until_a_text_says_one_in_another_way() -> None:
    topic = Topic()
    topic.put({"id": 5, "k": {"x": "y"}})
    assert topic.found("/id = 5 AND /k/x = 'y'") == {RULE.key_of({"id": 5, "k": {"x": "y"}})}
    odd = topic.put({"id": "05", "k": {"x": "y"}})
    assert topic.found("/id = 5 AND /k/x = 'y'") is None
    assert topic.found("/id = '05' AND /k/x = 'y'") >= {odd}  # type: ignore[operator]
    unloaded = SowIndexes((), JSON.parse, RULE)
    assert keys_to_look_at(expression("/id = 5 AND /k/x = 'y'", QUERY), None, unloaded) is None


def test_long_arrays_are_candidates_everywhere() -> None:
    topic = Topic(("/s",))
    key = topic.put({"id": 1, "k": {"x": "y"}, "s": list(range(100))})
    assert topic.found("/s = 99") == {key} == topic.found("/s = 'none'")
    topic.put({"id": 1, "k": {"x": "y"}, "s": 3})
    assert topic.found("/s = 'none'") == set() and topic.found("/s = 3") == {key}
