"""Indexes never find less than what a filter could be true of, and planning asks them rightly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.errors import SowKeyError
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.msgpack import Msgpack
from raylay.services.sow.indexes import SowIndexes
from raylay.services.sow.keys import KeyRule
from raylay.services.sow.query.planning import QUERY, keys_to_look_at
from raylay.services.sow.state import SowRecord, SowRules, SowState

pytestmark = pytest.mark.covers("SOW", "an index, and the key as one")

JSON, MSGPACK = Json(), Msgpack()
RULE = KeyRule("orders", ("/id", "/k/x"))


def record(key: bytes, body: bytes) -> SowRecord:
    return SowRecord(key, 1, 7, 1, 1, 0, body)


class Topic:
    """A topic with its indexes, changed as the fold does."""

    def __init__(self, *hash_indexes: tuple[str, ...], kind: MessageType = JSON) -> None:
        self.kind = kind
        self.state = SowState(SowRules())
        self.indexes = SowIndexes(hash_indexes, kind.parse, RULE)
        self.indexes.load(self.state.records())

    def put(self, tree: dict[str, Any], key: bytes = b"") -> bytes:
        key = key or RULE.key_of(tree)
        change = self.state.put(record(key, self.kind.serialize(tree)))
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
            if matches(self.kind.parse(each.body or b""), EvalContext(sow_key=each.key.decode()))
        }


VALUES = st.sampled_from(
    [None, "", "IBM", "5", "05", "5.0", 5, 5.0, True, 1, "1", 0, "x", ["IBM", 5], [],
     {"#text": "x"}, [["x"]], 1 << 62, float(1 << 62), 0.0, -0.0, -5, False]
)  # fmt: skip
BYTES = st.sampled_from(
    [b"\xff", b"IBM", b"", b"\xc3\xa9", "\u00e9", b"5", float("nan"), [b"\xff", "x"]]
)
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
    "-5",
    "0.0",
    r"'\xff'",
    r"'\xc3\xa9'",
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


def rows(of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    few = st.sampled_from([1, "5", "x"])  # so that records meet in an index, and change there
    return st.fixed_dictionaries(
        {"id": few | of, "k": st.fixed_dictionaries({"x": st.just("x") | of})},
        optional={"s": few | of, "t": few | of},
    )


@pytest.mark.covers("SOW", "hash indexes: exact text")
@pytest.mark.parametrize(("kind", "of"), [(JSON, VALUES), (MSGPACK, VALUES | BYTES)])
@settings(max_examples=150)
@given(st.data())
def test_an_index_finds_what_a_scan_finds(
    kind: MessageType, of: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    topic = Topic(("/s",), ("/s", "/t"), kind=kind)
    steps = data.draw(st.lists(st.tuples(st.booleans(), rows(of)), min_size=5, max_size=25))
    asked = data.draw(st.lists(filters(), max_size=5))
    for is_deletion, tree in steps:
        try:
            if is_deletion:
                topic.delete(RULE.key_of(kind.parse(kind.serialize(tree))))
            else:
                topic.put(tree, RULE.key_of(kind.parse(kind.serialize(tree))))
        except SowKeyError:
            continue
    anew = SowIndexes((("/s",), ("/s", "/t")), kind.parse, RULE)
    anew.load(topic.state.records())
    for text in asked:
        scanned = topic.scanned(text)
        for indexes in (topic.indexes, anew):
            looked = keys_to_look_at(expression(text, QUERY), None, indexes)
            assert looked is None or scanned <= looked, text
    for kept, made in zip(topic.indexes._indexes, anew._indexes, strict=True):
        assert (kept.keys, kept.always) == (made.keys, made.always)


@pytest.mark.parametrize("value", [b"\xff", b"\xc3", b"a\x80b", b"\xc3\xa9"])
def test_a_key_of_any_bytes_is_found_by_its_key(value: bytes) -> None:
    topic = Topic(kind=MSGPACK)
    key = topic.put({"id": value, "k": {"x": "y"}})
    escaped = "".join(f"\\x{byte:02x}" for byte in value)
    text = f"/id = '{escaped}' AND /k/x = 'y'"
    assert topic.scanned(text) == {key} == topic.found(text)


def test_what_two_records_have_is_found_when_one_of_them_changes() -> None:
    """One value after the other, of three and of two, in an array and by itself."""
    topic = Topic(("/s",))
    trees = [{"id": n, "k": {"x": "y"}, "s": ["a", "b"] if n else "a"} for n in range(3)]
    keys = [topic.put(tree) for tree in trees]
    assert topic.found("/s = 'a'") == set(keys)
    topic.put({**trees[1], "s": ["a", "c"]})
    assert topic.found("/s = 'a'") == set(keys), "the value stays in the array"
    assert topic.found("/s = 'b'") == {keys[2]} and topic.found("/s = 'c'") == {keys[1]}
    topic.put({**trees[0], "s": "z"})
    assert topic.found("/s = 'a'") == set(keys[1:])
    topic.delete(keys[1])
    assert topic.found("/s = 'a'") == {keys[2]} and topic.found("/s = 'c'") == set()
    topic.delete(keys[2])
    assert topic.found("/s = 'a'") == set()


@pytest.mark.covers("SOW", "hash indexes: exact text")
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
