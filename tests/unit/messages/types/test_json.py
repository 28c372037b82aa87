"""services/messages/types/json.py against hand-written bodies."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from support.message_type_cases import check_deltas, check_fuzz, check_whatever_comes

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.base import DEPTH_MAX, ParsedBody
from raylay.services.messages.types.json import Json, is_surely_shallow
from raylay.services.messages.types.trees import merged

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

JSON = Json()
BODIES = [
    b"{}",
    b'{"id":1,"px":1.5,"sym":"IBM","open":true,"note":null}',
    b'{"id":2,"legs":[{"qty":1},{"qty":2}],"desk":{"name":"fx","floor":3}}',
    '{"id":2,"desk":{"name":"größer"},"legs":[]}'.encode(),
    b'{"id":18446744073709551615,"a":-9223372036854775808,"e":1e-7,"s":"\\u00e9\\n\\\\"}',
]


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (b"{}", {}),
        (b' { "a" : 1 } \n', {"a": 1}),
        (b'{"a":1,"b":-1.5,"c":"x","d":true,"e":null}',
         {"a": 1, "b": -1.5, "c": "x", "d": True, "e": None}),
        (b'{"a":{"b":[1,{"c":2}]}}', {"a": {"b": [1, {"c": 2}]}}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":18446744073709551615}', {"a": 2**64 - 1}),
        (b'{"a":18446744073709551616}', {"a": 2.0**64}),
        (b'{"":1,"\\u0000":2}', {"": 1, "\0": 2}),
    ],
)  # fmt: skip
def test_parse(body: bytes, tree: dict[str, Any]) -> None:
    found = JSON.parse(body)
    assert found == tree and repr(found) == repr(tree)
    assert JSON.parse(memoryview(b"xx" + body)[2:]) == tree


@pytest.mark.covers("Message types", "depth, claimed lengths")
@pytest.mark.parametrize(
    ("body", "offset", "why"),
    [
        (b"", 0, "empty document"),
        (b"[1]", 0, "expected an object, {…}, got an array"),
        (b'"x"', 0, "got 'x'"),
        (b'{"a":1} x', 8, "unexpected content"),
        (b'{"a":}', 5, "unexpected character"),
        ('{"ä":NaN}'.encode(), 6, "unexpected character"),
        (b'{"a":"\xff"}', 6, "not UTF-8"),
        (b'{"a":"\\ud800"}', 6, "surrogate"),
        (b'{"a":1e999}', 5, "infinity"),
        (b'{"a":' + b"9" * 5000 + b"}", 5, "infinity"),
        (b"[" * 60_000, 1025, "depth limit"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, None, "nested more than 100 deep"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, offset: int | None, why: str) -> None:
    with pytest.raises(MessageTypeError) as caught:
        JSON.parse(body)
    assert why in str(caught.value)
    assert caught.value.offset is None or abs(caught.value.offset - (offset or 0)) <= 1
    assert (caught.value.offset is None) == (offset is None)


@pytest.mark.parametrize(
    ("tree", "body"),
    [
        ({}, b"{}"),
        ({"b": 1, "a": [1.0, "é", None, False]}, '{"b":1,"a":[1.0,"é",null,false]}'.encode()),
    ],
)
def test_serialize(tree: dict[str, Any], body: bytes) -> None:
    assert JSON.serialize(tree) == body


@pytest.mark.parametrize("value", [b"bytes", 2**64, "\udcff", {1: 2}, object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(MessageTypeError, match="JSON cannot say this"):
        JSON.serialize({"a": value})


def test_brackets_in_texts_are_no_depth() -> None:
    body = b'{"a":"' + b"[{" * 200 + b'"}'
    assert JSON.parse(body) == {"a": "[{" * 200}
    wide = b'{"a":[' + b",".join([b"{}"] * 500) + b"]}"
    assert JSON.parse(wide) == {"a": [{}] * 500}


def test_a_delta_is_merged_field_by_field() -> None:
    stored = b'{"id":1,"qty":100,"desk":{"name":"fx","floor":3},"tags":["a","b"]}'
    delta = b'{"id":1,"qty":50,"desk":{"floor":4},"tags":["c"]}'
    assert (
        JSON.merge(stored, delta)
        == b'{"id":1,"qty":50,"desk":{"name":"fx","floor":4},"tags":["c"]}'
    )
    assert JSON.difference(stored, JSON.merge(stored, delta), [("id",)]) == delta


def test_what_is_gone_is_null_in_a_delta() -> None:
    assert JSON.difference(b'{"a":1,"b":2}', b'{"a":1}') == b'{"b":null}'
    assert JSON.difference(b'{"a":1,"b":2}', b'{"a":1}', empties=False) == b"{}"


@pytest.mark.covers("Message types", "deltas: what is lacking stays")
def test_deltas_lead_where_they_should() -> None:
    check_deltas(JSON, BODIES, None)


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(JSON, BODIES)
    assert read > 50 and refused > 500


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(JSON, BODIES) > 100


def drawn(rng: random.Random, depth: int) -> Any:
    """A value with so many levels of objects and arrays, and others that have fewer."""
    texts = ("", "x", "{", "}]", '"', "\\", '\\"{', "a\nb", "[[")
    if depth == 0:
        return rng.choice([1, None, True, 1.5, *texts])
    values = [drawn(rng, depth - 1), *(drawn(rng, rng.randrange(min(depth, 3))) for _ in range(2))]
    rng.shuffle(values)
    return (
        {rng.choice(texts) + str(n): each for n, each in enumerate(values)}
        if (rng.random() < 0.5)
        else values
    )


@pytest.mark.parametrize("depth", [1, 2, 7, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 3 * DEPTH_MAX])
def test_what_is_said_to_be_shallow_is(depth: int) -> None:
    for seed in range(20):
        value = drawn(random.Random(seed), depth - 1)
        body = json.dumps({"k": value}, separators=(",", ":") if seed % 2 else None).encode()
        said = is_surely_shallow(body)
        assert not said or depth <= DEPTH_MAX, body
        if depth <= DEPTH_MAX:
            assert JSON.parse(body) == {"k": value}
        else:
            with pytest.raises(MessageTypeError, match="nested more than 100 deep"):
                JSON.parse(body)


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (b'{"a":[1,{"b":"x"}]}', True),
        (b'{"a":"\\"x","b":"\\\\"}', True),
        (b'{"a":"{"}', False),
        (b'{"a":"b","c":"}"}', False),
        (b'{"a":"{","b":"}"}', False),
        (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", True),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", False),
        (b'{"a":' + b'[{"a":' * 49 + b"[]" + b"}]" * 49 + b"}", True),
        (b'{"a":' + b'[{"a":' * 50 + b"1" + b"}]" * 50 + b"}", False),
    ],
)
def test_the_depth_is_seen_without_a_walk(body: bytes, is_said: bool) -> None:
    assert is_surely_shallow(body) == is_said


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        BODIES,
        BODIES[:2],
        [b'{"a":1}', b"[1]"],
        [b'{"a":"{"}', b"7"],
        [b'{"a":1}', b'{"a":'],
        [b'{"a":1}', b"\xff"],
        [b'{"a":1}', b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1)],
        [b'{"a":"' + b"x" * 3_000_000 + b'"}', b"{}"],
    ],
)
def test_many_bodies_are_parsed_as_each_is(bodies: list[bytes]) -> None:
    try:
        wanted = [JSON.parse(body) for body in bodies]
    except MessageTypeError as error:
        with pytest.raises(MessageTypeError) as found:
            JSON.parse_all(bodies)
        assert str(found.value) == str(error)
    else:
        assert JSON.parse_all(bodies) == wanted


class Counted(Json):
    """A type of somebody else that reads bodies in its own way."""

    def parse(self, body: bytes | memoryview) -> dict[str, Any]:
        return {"n": len(body)}


def test_a_derived_type_that_parses_in_its_own_way_does_so_everywhere() -> None:
    kind, bodies = Counted("counted"), [b'{"a":1}', b"{}"]
    wanted = [{"n": 7}, {"n": 2}]
    assert kind.parse_all(bodies) == wanted
    assert list(map(kind.parser_of(frozenset(("n",))), bodies)) == wanted
    assert kind.reader_of(frozenset(("n",)))(bodies) == wanted


JOINED = (
    (b'{"a": 1.50, "b":"x"}', b'{"b": "y", "c":[1, 2]}', b'{"a":1.50,"b":"y","c":[1, 2]}'),
    (b'{"a":{"b":1},"c":2}', b'{"a":3}', b'{"a":3,"c":2}'),
    (b'{"a":{"b":1, "c":2}}', b'{"a":{"b":7}}', b'{"a":{"b":7,"c":2}}'),
    (b'{"a":18446744073709551616}', b"{}", b'{"a":18446744073709551616}'),
)


@pytest.mark.parametrize(("stored", "delta", "expected"), JOINED)
def test_a_delta_is_joined_as_if_each_value_were_looked_at(
    stored: bytes, delta: bytes, expected: bytes
) -> None:
    kind = Json("json")
    known = kind.known(stored), kind.known(delta)
    tree = merged(known[0].tree, known[1].tree)
    assert kind.joined(*known, tree) == kind.rewritten(tree, *known) == expected
    assert kind.merge(stored, delta) == expected


def test_a_text_that_cannot_be_joined_is_written_by_value() -> None:
    kind = Json("json")
    one, other = ParsedBody(b"no object", {"a": 1}), ParsedBody(b'{"b":2}', {"b": 2})
    with pytest.raises(MessageTypeError):
        kind.joined(one, other, {"a": 1, "b": 2})
