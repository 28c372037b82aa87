"""One filter language for all message types: what a field is called and what it compares with."""

from __future__ import annotations

import struct

import pytest

from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.types.base import MessageType
from raylay.services.messages.types.composite import CompositeGlobal, CompositeLocal, join
from raylay.services.messages.types.json import Json
from raylay.services.messages.types.registry import message_type
from raylay.services.messages.types.struct import StructType

pytestmark = pytest.mark.covers("Message types", "filters on every type")

JSON, FIX, NVFIX, XML, BSON, MSGPACK = (
    message_type(name) for name in ("json", "fix", "nvfix", "xml", "bson", "msgpack")
)
LOCAL = CompositeLocal("pair", [Json(), Json()])
GLOBAL = CompositeGlobal("both", [Json(), Json()])
STRUCT = StructType("quote", ["/px = <d", "/sym = 4S", "/sizes = <2i"])
PARTS = join([b'{"id":7}', b'{"id":8,"px":2.5}'])
QUOTE = struct.pack("<d4s2i", 1.5, b"IBM", 3, 4)
DOCUMENT = b"\x1e\0\0\0\x10id\0\x07\0\0\0\x12at\0\x08" + bytes(7) + b"\x08ok\0\x01\0"


@pytest.mark.parametrize(
    ("kind", "body", "filter_text", "matches"),
    [
        (JSON, b'{"o":{"legs":[{"q":1},{"q":2}]}}', "/o/legs/q = 2", True),
        (JSON, b'{"o":{"legs":[{"q":1},{"q":2}]}}', "/o/legs/q > 2", False),
        (JSON, b'{"a":null,"b":""}', "/a IS NULL AND /b IS NULL AND /c IS NULL", True),
        (FIX, b"55=IBM\x0144=12.50\x01", "/55 = 'IBM' AND /44 > 12", True),
        (FIX, b"270=1.5\x01270=1.6\x01", "/270 = 1.6", True),
        (FIX, b"55=\x01", "/55 IS NULL", True),
        (NVFIX, b"sym=IBM\x01qty=100\x01", "/sym LIKE '^I' AND /qty BETWEEN 99 AND 101", True),
        (NVFIX, b"note=\xff\xfe\x01", "LENGTH(/note) = 2", True),
        (XML, b'<order id="7"><px>1.5</px></order>', "/order/@id = 7 AND /order/px < 2", True),
        (XML, b"<o><leg>1</leg><leg>2</leg></o>", "/o/leg = 2", True),
        (XML, b"<o/>", "/o IS NULL", True),
        (BSON, DOCUMENT, "/id = 7 AND /at = 8 AND /ok = 1", True),
        (MSGPACK, b"\x82\xa1b\xc4\x01x\xa1n\xcb\x3f\xf8" + bytes(6), "/b = 'x' AND /n = 1.5", True),
        (LOCAL, PARTS, "/0/id = 7 AND /1/id = 8 AND /1/px = 2.5", True),
        (LOCAL, PARTS, "/id = 7", False),
        (GLOBAL, PARTS, "/id = 7 AND /id = 8 AND /px = 2.5", True),
        (STRUCT, QUOTE, "/px = 1.5 AND /sym = 'IBM' AND /sizes = 4", True),
    ],
)  # fmt: skip
def test_a_filter_on_each_type(
    kind: MessageType, body: bytes, filter_text: str, matches: bool
) -> None:
    assert bool(expression(filter_text).matches(kind.parse(body), EvalContext())) is matches
