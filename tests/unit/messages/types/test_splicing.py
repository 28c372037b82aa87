"""What nobody names keeps its bytes: in select lists, enrichments and deltas, in each type."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.base import MessageType, ParsedBody
from raylay.services.messages.types.composite import CompositeLocal, join
from raylay.services.messages.types.registry import message_type
from raylay.services.messages.types.trees import changes, merged
from raylay.services.sow.enrichment import Enrichment, written
from raylay.services.sow.query.projection import Projection

pytestmark = pytest.mark.covers("Filters by content", "what an enrichment")

bson = pytest.importorskip("bson")
JSON, MSGPACK, BSON, XML, FIX, NVFIX = map(
    message_type, ("json", "msgpack", "bson", "xml", "fix", "nvfix")
)
TWO = CompositeLocal("two", [JSON, FIX])
GROUPS = b"8=FIX.4.4|268=2|269=0|270=1.5|271=100|269=1|270=1.6|10=1|".replace(b"|", b"\x01")
DOCUMENT = {
    "_id": bson.ObjectId("0123456789abcdef01234567"),
    "at": bson.DatetimeMS(5),
    "price": bson.Decimal128("1.50"),
    "long": bson.Int64(5),
    "in": {"who": bson.ObjectId("0123456789abcdef01234567"), "n": 1},
    "n": 1,
}
LARGE = b"100000000000000000000"
ODD_JSON = (
    b'{ "id": 1.00, "a": 1e2, "b": {"x": %b, "n": 1}, "c": [1.50, {"d": 0}],\n "n": 1 }' % LARGE
)
HEAD, TAIL = b'{"id":1.00,"a":1e2,"b":', b',"c":[1.50, {"d": 0}],"n":'
ODD_MSGPACK = b"\xa1a\xd4\x05x\xa1n\xd2\0\0\0\x01\xa1t\xd7\xff\0\0\0\4\0\0\0\5"
"""Three fields: an ext, a 1 in four bytes and a timestamp with nanoseconds."""
ODD_XML = (
    b'<o id = \'1\'><leg n="1"/><q>1</q><leg n="2"></leg> <q><![CDATA[<2>]]></q>'
    b"<in a='x'><b>1</b><c/></in><n>1</n></o>"
)  # fmt: skip


def without(document: Any, name: str) -> dict[str, Any]:
    return {each: value for each, value in document.items() if each != name}


def enriched(kind: MessageType, body: bytes, text: str) -> bytes:
    known = kind.known(body)
    made = Enrichment((text,), kind, BUILT_IN)(known.tree)
    return written(kind, known, made)


@pytest.mark.parametrize(
    ("kind", "body", "text", "wanted"),
    [
        (JSON, ODD_JSON, "/n + 1 AS /n",
         HEAD + b'{"x": %b, "n": 1}' % LARGE + TAIL + b"2}"),
        (JSON, ODD_JSON, "/n + 1 AS /b/n",
         HEAD + b'{"x":%b,"n":2}' % LARGE + TAIL + b"1}"),
        (MSGPACK, b"\x83" + ODD_MSGPACK, "/n + 1 AS /m", b"\x84" + ODD_MSGPACK + b"\xa1m\x02"),
        (BSON, bson.encode(DOCUMENT), "/n + 1 AS /n", bson.encode({**DOCUMENT, "n": 2})),
        (BSON, bson.encode(DOCUMENT), "/n + 1 AS /in/n",
         bson.encode({**DOCUMENT, "in": {**DOCUMENT["in"], "n": 2}})),
        (FIX, GROUPS, "'x' AS /10", GROUPS[:-2] + b"x\x01"),
        (FIX, GROUPS, "'x' AS /11", GROUPS + b"11=x\x01"),
        (XML, ODD_XML, "/o/n + 1 AS /o/n",
         b'<o id="1"><leg n="1"/><q>1</q><leg n="2"></leg> <q><![CDATA[<2>]]></q>'
         b"<in a='x'><b>1</b><c/></in><n>2</n></o>"),
        (XML, ODD_XML, "2 AS /o/in/c",
         b'<o id="1"><leg n="1"/><q>1</q><leg n="2"></leg> <q><![CDATA[<2>]]></q>'
         b'<in a="x"><b>1</b><c>2</c></in><n>1</n></o>'),
        (TWO, join([ODD_JSON, GROUPS], b"payload"), "'x' AS /1/10",
         join([HEAD + b'{"x": %b, "n": 1}' % LARGE + TAIL + b"1}",
               GROUPS[:-2] + b"x\x01"], b"payload")),
    ],
)  # fmt: skip
def test_an_enrichment_sets_what_it_names(
    kind: MessageType, body: bytes, text: str, wanted: bytes
) -> None:
    assert enriched(kind, body, text) == wanted


@pytest.mark.parametrize(
    ("kind", "body", "select", "wanted"),
    [
        (JSON, ODD_JSON, "-/,+/a,+/c", b'{"a":1e2,"c":[1.50, {"d": 0}]}'),
        (JSON, ODD_JSON, "-/b/n", HEAD + b'{"x":%b}' % LARGE + TAIL + b"1}"),
        (MSGPACK, b"\x82\xa1a\xd4\x05x\xa1n\xd2\0\0\0\x01", "-/n", b"\x81\xa1a\xd4\x05x"),
        (BSON, bson.encode(DOCUMENT), "-/in/n,-/n",
         bson.encode({**without(DOCUMENT, "n"), "in": without(DOCUMENT["in"], "n")})),
        (FIX, GROUPS, "-/8,-/10", GROUPS[10:-5]),
        (XML, ODD_XML, "-/o/in,-/o/@id",
         b'<o><leg n="1"/><q>1</q><leg n="2"></leg> <q><![CDATA[<2>]]></q><n>1</n></o>'),
        (XML, b"<o>secret<!-- too --><a>1</a> <b>2</b></o>", "-/o/#text",
         b"<o><a>1</a> <b>2</b></o>"),
    ],
)  # fmt: skip
def test_a_select_list_leaves_out_and_changes_nothing(
    kind: MessageType, body: bytes, select: str, wanted: bytes
) -> None:
    assert Projection(select, kind).of_body(body) == wanted


@pytest.mark.parametrize(
    ("kind", "stored", "delta", "wanted"),
    [
        (JSON, ODD_JSON, b'{"n": 1.0, "b": {"y": 0.10}}',
         HEAD + b'{"x":%b,"n":1,"y":0.10}' % LARGE + TAIL + b"1.0}"),
        (JSON, b'{"n":1}', b'{ "m": 1.50 }', b'{"n":1,"m":1.50}'),
        (FIX, GROUPS, b"8=FIX.5\x01", GROUPS.replace(b"FIX.4.4", b"FIX.5")),
        (FIX, GROUPS, b"270=1.7\x01270=1.8\x01",
         GROUPS.replace(b"1.5", b"1.7").replace(b"1.6", b"1.8")),
        (FIX, GROUPS, b"270=1.7\x01", GROUPS.replace(b"1.5", b"1.7").replace(b"270=1.6\x01", b"")),
        (FIX, GROUPS, b"270=a\x01270=b\x01270=c\x01",
         GROUPS.replace(b"1.5", b"a").replace(b"1.6", b"b\x01270=c")),
        (NVFIX, b"b=1\x01a=2\x01b=3\x01", b"c=4\x01a=5", b"b=1\x01a=5\x01b=3\x01c=4\x01"),
        (XML, ODD_XML, b"<o><n> 2</n><in><d x='&#65;'/></in></o>",
         b'<o id="1"><leg n="1"/><q>1</q><leg n="2"></leg> <q><![CDATA[<2>]]></q>'
         b'<in a="x"><b>1</b><c/><d x=\'&#65;\'/></in><n> 2</n></o>'),
        (XML, ODD_XML, b"<o/>", ODD_XML),
    ],
)  # fmt: skip
def test_a_delta_changes_what_it_has(
    kind: MessageType, stored: bytes, delta: bytes, wanted: bytes
) -> None:
    assert kind.merge(stored, delta) == wanted


@pytest.mark.parametrize(
    ("kind", "before", "after", "wanted"),
    [
        (JSON, b'{"a": 1.50, "b": 2}', b'{"a": 1.5, "b": 3.10}', b'{"b":3.10}'),
        (FIX, GROUPS, GROUPS.replace(b"1.5", b"1.7"), b"270=1.7\x01270=1.6\x01"),
        (XML, ODD_XML, ODD_XML.replace(b"<n>1", b"<n >2"), b"<o><n >2</n></o>"),
    ],
)  # fmt: skip
def test_a_delta_says_what_is_new_in_its_own_bytes(
    kind: MessageType, before: bytes, after: bytes, wanted: bytes
) -> None:
    assert kind.difference(before, after) == wanted


BODIES: dict[MessageType, list[bytes]] = {
    JSON: [ODD_JSON, b'{"id":1,"s":"x","n":null}', b'{"id" : 2, "b": {"n": {"x": 1.0}}, "c": [ ]}'],
    MSGPACK: [
        b"\x83\xa2id\x01\xa1b\x82\xa1x\xd1\0\1\xa1y\xc0\xa1n\xcc\1",
        b"\x83" + ODD_MSGPACK,
        b"\x81\xa1b\x81\xa1x\x02",
    ],
    BSON: [bson.encode(DOCUMENT), bson.encode({"n": 2, "in": {"x": [1, {"y": None}]}})],
    FIX: [GROUPS, b"1=a\x012=b\x011=c\x013=\x01", b"270=9\x01269=0\x01"],
    NVFIX: [b"b=1\x01a=2\x01b=3\x01", b"a=\x01c=x"],
    XML: [ODD_XML, b"<o><n>2</n>text<q>7</q></o>", b"<o b='1' id='2'> <in>x</in> </o>"],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.name)
def test_whatever_is_set_or_left_out_is_what_was_asked_for(kind: MessageType, seed: int) -> None:
    """The fields are those that were asked for, as if they had been written anew."""
    rng = random.Random(seed)
    one, other = (kind.known(rng.choice(BODIES[kind])) for _ in range(2))
    trees: list[Any] = [
        merged(one.tree, other.tree),
        changes(one.tree, other.tree, (), kind.empty) or one.tree,
        cut(one.tree, rng),
        merged(cut(one.tree, rng), cut(other.tree, rng)),
    ]
    for tree in trees:
        if kind is XML and (len(tree) != 1 or not isinstance(next(iter(tree.values())), dict)):
            continue
        for known in ((one,), (one, other), (other, one)):
            made = kind.rewritten(tree, *known)
            anew = kind.parse(kind.serialize(tree))
            assert kind.parse(made) == anew, (tree, made)


def cut(tree: Any, rng: random.Random) -> Any:
    """A tree without some of its fields."""
    if not isinstance(tree, dict):
        return tree
    if "o" in tree:
        return {"o": cut(tree["o"], rng)}
    return {name: cut(each, rng) for name, each in tree.items() if rng.random() < 0.7}


def test_a_field_that_is_set_to_what_it_was_keeps_its_bytes() -> None:
    known = JSON.known(b'{"a": 1.50}')
    assert JSON.rewritten({"a": 1.5}, known) == b'{"a":1.50}'
    assert (
        JSON.rewritten({"a": 1.5}, known, ParsedBody(b'{"a": 1.500}', {"a": 1.5})) == b'{"a":1.500}'
    )
