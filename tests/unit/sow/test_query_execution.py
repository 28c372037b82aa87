"""A query in turns: what it gives is what a plain loop over the records would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.expressions.expression import expression
from raylay.services.messages.records import Record, decode_record
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.query.as_of import AsOf
from raylay.services.sow.query.ordering import place_of, read_order
from raylay.services.sow.query.planning import QUERY
from raylay.services.sow.query.query_execution import (
    FRAME_BYTES_MAX,
    QueryExecution,
    QueryPart,
    QueryTerms,
    VersionSource,
)
from raylay.services.sow.state import SowRecord, SowRules, SowState

pytestmark = pytest.mark.covers("SOW", "queries: filter")

TYPES = MessageTypes()


def filled(trees: list[dict[str, Any]]) -> SowState:
    state = SowState(SowRules())
    for number, tree in enumerate(trees):
        key = b"k%04d" % number
        state.put(
            SowRecord(key, number + 1, 7, number + 1, 5, 0, orjson.dumps(tree), 1_000 + number)
        )
    return state


def part(state: SowState, name: bytes = b"orders", **words: Any) -> QueryPart:
    return QueryPart(name, TYPES["json"], state.query(), **words)


def ticks(turns: int) -> Any:
    """A turn is over behind so many looks at the clock."""
    left = iter(range(1, 1 << 40))
    return lambda: not next(left) % turns


def rows_of(query: QueryExecution, turns: int = 3) -> list[Record]:
    found: list[Record] = []
    for _ in range(100_000):
        if query.done:
            return found
        for frame in query.turn(ticks(turns)):
            assert 0 < len(frame) <= query._terms.batch
            assert len(frame) == 1 or sum(map(len, frame)) <= FRAME_BYTES_MAX
            found += map(decode_record, frame)
    raise AssertionError("it does not end")


TREES = st.lists(
    st.fixed_dictionaries(
        {}, optional={"a": st.integers(-3, 3), "b": st.sampled_from(["x", "y", "", None])}
    ),
    max_size=300,
)


@pytest.mark.covers("SOW", "`OrderBy`, `top_n`")
@given(
    TREES,
    st.sampled_from(["", "/a > 0", "/b = 'x'", "/a = 1 AND /b = 'y'", "SOW_KEY() < 'k0100'"]),
    st.sampled_from(["", "/a", "/a DESC, /b"]),
    st.none() | st.integers(1, 50),
    st.integers(0, 5),
    st.integers(1, 30),
)
def test_it_gives_what_a_loop_gives(
    trees: list[dict[str, Any]], text: str, order: str, top: int | None, skip: int, batch: int
) -> None:
    state = filled(trees)
    asked = expression(text, QUERY) if text else None
    skip = skip if top else 0
    terms = QueryTerms(asked, "", read_order(order) if order else (), top, skip, batch)
    query = QueryExecution([part(state)], terms)
    found = rows_of(query)
    expected = []
    for number, tree in enumerate(trees):
        key = f"k{number:04}"
        a, b = tree.get("a"), tree.get("b")
        if {
            "": True, "/a > 0": a is not None and a > 0, "/b = 'x'": b == "x",
            "/a = 1 AND /b = 'y'": a == 1 and b == "y", "SOW_KEY() < 'k0100'": key < "k0100",
        }[text]:  # fmt: skip
            expected.append((key.encode(), tree))
    assert query.matches == len(expected)
    if order == "/a":
        expected.sort(key=lambda each: place_of(each[1].get("a")))
    elif order:
        expected.sort(
            key=lambda each: (place_of(each[1].get("a"), True), place_of(each[1].get("b")))
        )
    expected = expected[skip : None if top is None else skip + top]
    assert [(each.key, orjson.loads(each.body)) for each in found] == expected
    assert query.sent == len(expected)


def test_a_row_says_who_brought_it_and_when() -> None:
    state = filled([{"a": 1}])
    (row,) = rows_of(QueryExecution([part(state)], QueryTerms()))
    assert (row.command, row.publisher, row.sequence, row.origin_time_us) == (1, 7, 1, 1_000)
    assert (row.key, row.topic, row.message_type, row.body) == (
        b"k0000",
        "orders",
        "json",
        b'{"a":1}',
    )


def test_what_is_changed_between_turns_is_given_as_it_was() -> None:
    state = filled([{"a": number} for number in range(1_000)])
    query = QueryExecution([part(state)], QueryTerms(expression("/a >= 0", QUERY)))
    frames = query.turn(ticks(1))
    assert 0 < sum(map(len, frames)) < 1_000 and not query.done
    for number in range(0, 1_000, 3):
        state.delete(b"k%04d" % number, 2_000, 9)
    for number in range(1, 1_000, 3):
        state.put(SowRecord(b"k%04d" % number, 2_001, 7, 5_000, 9, 0, b'{"a":-1}'))
    found = [decode_record(row) for frame in frames for row in frame] + rows_of(query)
    assert [orjson.loads(each.body)["a"] for each in found] == list(range(1_000))
    assert not state._queries


@pytest.mark.covers("SOW", "`select`: the most specific counts")
def test_rows_are_cut_to_the_select_list_behind_the_filter() -> None:
    state = filled([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    query = QueryExecution([part(state)], QueryTerms(expression("/a = 2", QUERY), "[-/,+/b]"))
    assert [each.body for each in rows_of(query)] == [b'{"b":"y"}']
    with pytest.raises(RemoteProtocolError, match="binary") as caught:
        QueryExecution([QueryPart(b"o", TYPES["binary"], state.query())], QueryTerms(select="[-/]"))
    assert caught.value.reason == "not_supported"


def test_several_topics_come_one_behind_the_other_and_in_one_order() -> None:
    one, other = filled([{"a": 3}, {"a": 1}]), filled([{"a": 2}])
    query = QueryExecution([part(one, b"one"), part(other, b"other")], QueryTerms())
    assert [each.topic for each in rows_of(query)] == ["one", "one", "other"]
    query = QueryExecution(
        [part(one, b"one"), part(other, b"other")], QueryTerms(order=read_order("/a"))
    )
    assert [each.topic for each in rows_of(query)] == ["one", "other", "one"]


def test_of_a_topic_with_a_pattern_only_what_is_asked_for() -> None:
    state = SowState(SowRules())
    for number, topic in enumerate((b"fx/eur", b"fx/usd", b"fx/eur")):
        state.put(SowRecord(b"k%d" % number, 1, 7, 1, 5, 0, b"{}", 5, topic))
    query = QueryExecution(
        [part(state, b"fx", wants=lambda topic: topic == b"fx/eur")], QueryTerms()
    )
    assert [(each.key, each.topic) for each in rows_of(query)] == [
        (b"k0", "fx/eur"),
        (b"k2", "fx/eur"),
    ]


def test_what_has_expired_is_gone_though_nobody_took_it_away() -> None:
    state = SowState(SowRules(expires=True))
    for number in range(4):
        state.put(SowRecord(b"k%d" % number, 1, 7, 1, 5, 100 * number, b"{}"))
    query = QueryExecution([part(state, now_us=200)], QueryTerms())
    assert [each.key for each in rows_of(query)] == [b"k0", b"k3"]


@pytest.mark.covers("SOW", "`OrderBy`, `top_n`")
def test_enough_rows_end_a_query_whose_matches_are_known() -> None:
    state = filled([{"a": 1}] * 1_000)
    query = QueryExecution([part(state, count=state.count)], QueryTerms(top=5))
    assert len(rows_of(query, 1)) == 5 and query.matches == 1_000
    assert not state._queries, "it holds nothing of the topic back any more"
    query = QueryExecution([part(state)], QueryTerms(expression("/a = 1", QUERY), top=5))
    assert len(rows_of(query)) == 5 and query.matches == 1_000


@pytest.mark.covers("SOW", "a query takes turns")
def test_rows_that_wait_for_their_order_are_bounded() -> None:
    state = filled([{"a": "x" * 10_000}] * 1_000)
    bounded = {"order": read_order("/a"), "held_bytes_max": 2_000_000}
    query = QueryExecution([part(state)], QueryTerms(**bounded))
    with pytest.raises(RemoteProtocolError, match="top_n or a filter") as caught:
        rows_of(query)
    assert caught.value.reason == "too_large"
    query.close()
    assert query.done and not state._queries
    assert len(rows_of(QueryExecution([part(state)], QueryTerms(top=10, **bounded)))) == 10


def test_large_bodies_make_turns_and_frames_small() -> None:
    state = filled([{"a": "x" * 300_000}] * 40)
    query = QueryExecution([part(state)], QueryTerms(expression("/a != 1", QUERY), batch=1_000))
    query.turn(ticks(1))
    assert query._most == 1
    assert len(rows_of(query)) + query.sent > 0 and query.sent == 40


@pytest.mark.covers("SOW", "historical queries")
def test_versions_are_a_source() -> None:
    state = SowState(SowRules(window_us=1_000_000))
    for time_us, body in ((10, b'{"a":1}'), (20, b'{"a":2}')):
        for key in (b"k1", b"k2", b"k3"):
            state.put(SowRecord(key, time_us, 7, time_us, time_us, 0, body))
    past = AsOf(None, 15)
    then = VersionSource(state.versions(past, 30), past)
    some = VersionSource(state.versions(past, 30), past, frozenset((b"k2", b"k9")))
    state.put(SowRecord(b"k2", 30, 7, 30, 30, 0, b'{"a":3}'))
    query = QueryExecution([QueryPart(b"orders", TYPES["json"], then)], QueryTerms())
    assert [(each.key, each.body) for each in rows_of(query)] == [
        (key, b'{"a":1}') for key in (b"k1", b"k2", b"k3")
    ]
    query = QueryExecution([QueryPart(b"orders", TYPES["json"], some)], QueryTerms())
    assert [(each.key, each.body) for each in rows_of(query)] == [(b"k2", b'{"a":1}')]
    nothing: Iterator[SowRecord] = iter(())
    query = QueryExecution(
        [QueryPart(b"orders", TYPES["json"], VersionSource(nothing, past))], QueryTerms()
    )
    assert rows_of(query) == []


@pytest.mark.covers("SOW", "historical queries")
@pytest.mark.parametrize("keys", [None, frozenset((b"b",)), frozenset()])
def test_many_versions_of_one_key_are_looked_at_in_turns(keys: frozenset[bytes] | None) -> None:
    state = SowState(SowRules(window_us=1_000_000))
    for at in range(1, 2_001):
        state.put(SowRecord(b"a", at, 7, at, at, 0, b'{"a":%d}' % at))
    state.put(SowRecord(b"b", 2_001, 7, 2_001, 2_001, 0, b'{"b":1}'))
    given = 0

    def counted(versions: Iterator[SowRecord]) -> Iterator[SowRecord]:
        nonlocal given
        for each in versions:
            given += 1
            yield each

    past = AsOf(2_001, 5_000)
    source = VersionSource(counted(state.versions(past, 5_000)), past, keys)
    found: list[bytes] = []
    while not source.done:
        before = given
        found += [key for key, _ in source.take(100)]
        assert given - before <= 100
    assert found == ([b"va", b"vb"] if keys is None else [b"v" + key for key in keys])
    left = VersionSource(state.versions(past, 5_000), past)
    assert left.take(10) == [] and not left.done
    left.close()
    assert left.done and not state._as_of_us


@pytest.mark.covers("SOW", "`SowKeys`")
def test_the_records_of_some_keys() -> None:
    state = filled([{"a": number} for number in range(100)])
    keys = [b"k0007", b"k0003", b"none", b"k0099"]
    query = QueryExecution(
        [QueryPart(b"orders", TYPES["json"], state.query_keys(keys))], QueryTerms()
    )
    state.delete(b"k0007", 500, 9)
    state.put(SowRecord(b"none", 501, 7, 501, 9, 0, b"{}"))
    assert [each.key for each in rows_of(query)] == [b"k0003", b"k0007", b"k0099"]
    assert not state._queries
    closed = state.query_keys(keys)
    closed.close()
    assert closed.take(5) == [] and closed.done and not state._queries


JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.text(max_size=4),
    st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b", "@c", "é"]), JSON_VALUES), st.integers(0, 3))
def test_a_parser_of_few_fields_says_the_same_of_them(tree: dict[str, Any], names: int) -> None:
    body = json.dumps(tree).encode()
    kind = TYPES["json"]
    wanted = frozenset(["a", "@c", "é"][:names])
    whole, few = kind.parse(body), kind.parser_of(wanted)(body)
    for name in wanted:
        assert repr(whole.get(name)) == repr(few.get(name))


BODIES = st.lists(
    st.sampled_from([
        b'{"a":1,"b":"x"}', b'{"b":[1]}', b'{"a":[1,2]}', b'{"\\u0061":"\\n"}', b'{"a":"\\u0078"}',
        b'{"a":', b"", b"[1]", b'{"a":123456789012345678901234567890}', b"\xff", b'{"a":"\xff"}',
        b'{"b":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ])
)  # fmt: skip


@given(BODIES, st.sampled_from(["json", "msgpack"]), st.sampled_from([(), ("a",), ("a", "b")]))
def test_many_bodies_are_read_as_each_of_them(
    bodies: list[bytes], kind: str, names: tuple[str, ...]
) -> None:
    wanted = frozenset(names)
    one = TYPES[kind].parser_of(wanted)

    def alone(body: bytes) -> Any:
        with suppress(MessageTypeError):
            return one(body)
        return None

    assert TYPES[kind].reader_of(wanted)(bodies) == [alone(body) for body in bodies]


def test_what_cannot_be_read_passes_no_filter_and_hides_no_other() -> None:
    state = filled([{"a": "x"}])
    for number, body in enumerate((b"{", b'{"a":"\\u0078"}', b'{"a":["y","x"]}', b'{"a":"y"}')):
        state.put(SowRecord(b"m%d" % number, 2, 7, 2 + number, 5, 0, body))
    query = QueryExecution([part(state)], QueryTerms(expression("/a = 'x'", QUERY)))
    assert [each.key for each in rows_of(query)] == [b"k0000", b"m1", b"m2"]
    assert query.looked_at == 5
