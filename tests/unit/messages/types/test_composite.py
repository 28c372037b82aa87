"""services/messages/types/composite.py against hand-written bodies."""

from __future__ import annotations

from typing import Any

import pytest
from support.message_type_cases import check_fuzz, check_whatever_comes

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.binary import Binary
from raylay.services.messages.types.composite import CompositeGlobal, CompositeLocal, join
from raylay.services.messages.types.fix import Nvfix
from raylay.services.messages.types.json import Json

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

LOCAL = CompositeLocal("pair", [Json(), Nvfix(), Binary()])
GLOBAL = CompositeGlobal("flat", [Json(), Nvfix()])
BODY = b'\0\0\0\x0e{"id":1,"q":2}\0\0\0\x05id=x\x01\0\0\0\x02\xff\xfepayload'


@pytest.mark.parametrize(
    ("kind", "body", "tree"),
    [
        (LOCAL, BODY, {"0": {"id": 1, "q": 2}, "1": {"id": "x"}}),
        (LOCAL, bytes(12), {}),
        (LOCAL, b"\0\0\0\x02{}" + bytes(8), {"0": {}}),
        (GLOBAL, BODY, {"id": [1, "x"], "q": 2}),
        (GLOBAL, bytes(8), {}),
        (GLOBAL, join([b'{"a":[1,2],"o":{"x":1}}', b"a=3\x01o=4\x01"]),
         {"a": [1, 2, "3"], "o": [{"x": 1}, "4"]}),
        (CompositeGlobal("two", [Json(), Json()]), join([b'{"o":{"x":1}}', b'{"o":{"y":2,"x":3}}']),
         {"o": {"x": [1, 3], "y": 2}}),
    ],
)  # fmt: skip
def test_parse(kind: CompositeLocal, body: bytes, tree: dict[str, Any]) -> None:
    assert kind.parse(body) == tree and kind.parse(memoryview(b"x" + body)[1:]) == tree


@pytest.mark.parametrize(
    ("body", "offset", "why"),
    [
        (b"", 0, "ends within part 0 of 3, which needs 4 bytes"),
        (b"\0\0\0", 0, "within part 0"),
        (b"\0\0\0\x05{}", 0, "part 0 of 3, which needs 9 bytes"),
        (b"\xff\xff\xff\xff{}", 0, "which needs 4,294,967,299 bytes"),
        (b"\0\0\0\x02{}", 6, "within part 1"),
        (join([b'{"a":}', b"", b""]), 9, "part 0: this is no message of type json"),
        (join([b"{}", b"a", b""]), 10, "part 1: this is no message of type nvfix"),
    ],
)
def test_what_is_not_made_of_parts_is_refused(body: bytes, offset: int, why: str) -> None:
    with pytest.raises(MessageTypeError) as caught:
        LOCAL.parse(body)
    assert why in str(caught.value) and caught.value.message_type == "pair"
    assert caught.value.offset == offset


def test_serialize() -> None:
    two = CompositeLocal("two", [Json(), Nvfix()])
    assert two.serialize({"0": {"a": 1}}) == b'\0\0\0\x07{"a":1}\0\0\0\0'
    for tree, why in (({"2": {}}, "0 to 1"), ({"0": 5}, "part 0 has no fields but a value")):
        with pytest.raises(MessageTypeError, match=why):
            two.serialize(tree)


def test_a_part_without_bytes_is_unchanged() -> None:
    delta = join([b'{"q":3}', b"", b""])
    merged = LOCAL.merge(BODY, delta)
    assert merged == join([b'{"id":1,"q":3}', b"id=x\x01", b"\xff\xfe"], b"payload")
    assert LOCAL.difference(BODY, merged) == delta
    keyed = LOCAL.difference(BODY, merged, [("0", "id"), ("1", "id")])
    assert keyed == join([b'{"id":1,"q":3}', b"id=x\x01", b""])
    assert LOCAL.difference(BODY, BODY) == bytes(12)
    assert LOCAL.merge(BODY, bytes(12)) == BODY


def test_parts_without_deltas_and_the_payload_are_replaced() -> None:
    after = join([b'{"id":1,"q":2}', b"id=x\x01", b"new"], b"other")
    delta = LOCAL.difference(BODY, after)
    assert delta == join([b"", b"", b"new"], b"other")
    assert LOCAL.merge(BODY, delta) == after
    empty = join([b"", b"", b""])
    assert LOCAL.merge(empty, BODY) == BODY
    assert LOCAL.difference(empty, BODY) == BODY


@pytest.mark.covers("Message types", "which types know no deltas")
def test_what_global_ones_cannot_do() -> None:
    assert set(GLOBAL.lacks) == {
        Ability.DELTA, Ability.VIEW, Ability.ENRICHMENT, Ability.EVENTS,
    }  # fmt: skip
    for act in (GLOBAL.merge, GLOBAL.difference):
        with pytest.raises(MessageTypeError, match="use composite-local"):
            act(BODY, BODY)
    with pytest.raises(MessageTypeError, match="of which part"):
        GLOBAL.serialize({"a": 1})


@pytest.mark.parametrize("count", [0, 65])
def test_a_number_of_parts_that_cannot_be(count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"pair: expected 1 to 64 parts, got {count}"):
        CompositeLocal("pair", [Json()] * count)


@pytest.mark.covers("Message types", "no body harms a parser")
def test_no_body_harms_it() -> None:
    read, refused = check_fuzz(LOCAL, [BODY, bytes(12)])
    assert read > 50 and refused > 500
    assert check_fuzz(GLOBAL, [BODY])[0] > 50


def test_no_bytes_are_answered_with_another_error() -> None:
    assert check_whatever_comes(LOCAL, [BODY, bytes(12)]) > 100
