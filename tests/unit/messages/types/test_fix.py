"""services/messages/types/fix.py against hand-written bodies."""

from __future__ import annotations

from typing import Any

import pytest
from support.message_type_cases import check_deltas, check_fuzz, check_whatever_comes

from raylay.services.errors import ConfigurationError, MessageTypeError
from raylay.services.messages.types.fix import Fix, Nvfix

pytestmark = pytest.mark.covers("Message types", "every type against hand-written bodies")

FIX, NVFIX = Fix(), Nvfix()
BODIES = [
    b"8=FIX.4.2\x0135=D\x0155=IBM\x0144=12.50\x01",
    b"55=IBM\x0138=100\x01",
    b"55=IBM\x01268=2\x01269=0\x01270=1.5\x01269=1\x01270=1.6\x01",
    b"55=\x0158=text = more\x01",
    b"",
]
NAMED = [
    b"symbol=IBM\x01px=12.50\x01",
    b"symbol=IBM\x01name of it=\xff\xfe\x01px=\x01",
    "symbol=größer\x01px=1\x01px=2\x01".encode(),
]


@pytest.mark.parametrize(
    ("kind", "body", "tree"),
    [
        (FIX, b"", {}),
        (FIX, b"8=FIX.4.2\x0155=IBM\x01", {"8": "FIX.4.2", "55": "IBM"}),
        (FIX, b"55=IBM", {"55": "IBM"}),
        (FIX, b"58=a=b\x01", {"58": "a=b"}),
        (FIX, b"58=\x01", {"58": ""}),
        (FIX, b"269=0\x01269=0\x01269=1\x0155=x\x01", {"269": ["0", "0", "1"], "55": "x"}),
        (NVFIX, b"a b/c=1\x01@=2\x01", {"a b/c": "1", "@": "2"}),
        (NVFIX, b"a=\xff\x01", {"a": "\udcff"}),
        (NVFIX, "ä=ö\x01".encode(), {"ä": "ö"}),
        (Fix(field_separator=ord(";")), b"1=2;3=\x01;", {"1": "2", "3": "\x01"}),
    ],
)
def test_parse_and_serialize(kind: Nvfix, body: bytes, tree: dict[str, Any]) -> None:
    assert kind.parse(body) == tree
    assert kind.parse(memoryview(b"xx" + body)[2:]) == tree
    written = kind.serialize(tree)
    end = bytes([kind.field_separator])
    assert written == (body if not body or body.endswith(end) else body + end)


@pytest.mark.parametrize(
    ("kind", "body", "offset", "why"),
    [
        (FIX, b"8=FIX.4.2\x0155\x01", 10, "expected a field tag=value, whose tag is a number, got"),
        (FIX, b"8=FIX.4.2\x01\x0155=1\x01", 10, "got ''"),
        (FIX, b"8=1\x01=1\x01", 4, "got '=1'"),
        (FIX, b"8=1\x01Symbol=1\x01", 4, "got 'Symbol=1'"),
        (FIX, b"-8=1\x01", 0, "got '-8=1'"),
        (FIX, "8=ä\x01²=1\x01".encode(), 5, "got '²=1'"),
        (NVFIX, b"a=1\x01b\x01", 4, "expected a field tag=value, got 'b'"),
        (NVFIX, "ä=ä\x01\xff".encode("latin-1"), 4, "got"),
        (NVFIX, b"=1\x01", 0, "got '=1'"),
        (NVFIX, b"x" * 100_000, 0, "…"),
    ],
)  # fmt: skip
def test_what_is_no_field_is_refused(kind: Nvfix, body: bytes, offset: int, why: str) -> None:
    with pytest.raises(MessageTypeError) as caught:
        kind.parse(body)
    assert why in str(caught.value)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, b"1"),
        (-1.5, b"-1.5"),
        (True, b"1"),
        (False, b"0"),
        (None, b""),
        (b"\xff", b"\xff"),
        ("", b""),
    ],
)
def test_values_of_other_types_are_written_as_texts(value: object, text: bytes) -> None:
    assert FIX.serialize({"1": value}) == b"1=" + text + b"\x01"


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        (FIX, {"a": "1"}),
        (FIX, {"": "1"}),
        (NVFIX, {"": "1"}),
        (NVFIX, {"a=b": "1"}),
        (NVFIX, {"a\x01": "1"}),
        (NVFIX, {"a": "1\x01"}),
        (NVFIX, {"a": {"b": 1}}),
        (NVFIX, {"a": [["b"]]}),
        (NVFIX, {"a": "\ud800"}),
        (NVFIX, {"a": 10**5000}),
    ],
)
def test_what_fields_cannot_say_is_refused(kind: Nvfix, tree: dict[str, Any]) -> None:
    with pytest.raises(MessageTypeError):
        kind.serialize(tree)


@pytest.mark.parametrize("code", [0, 61, 128, -1])
def test_a_separator_that_cannot_be_one_is_refused(code: int) -> None:
    with pytest.raises(ConfigurationError, match="message type mine: expected an ASCII code"):
        Fix("mine", field_separator=code)


def test_a_delta_replaces_tags() -> None:
    stored, delta = b"55=IBM\x0144=10\x0138=100\x01", b"55=IBM\x0138=50\x01"
    assert FIX.merge(stored, delta) == b"55=IBM\x0144=10\x0138=50\x01"
    assert FIX.difference(stored, FIX.merge(stored, delta), [("55",)]) == delta
    assert FIX.difference(b"1=a\x012=b\x01", b"1=a\x01") == b"2=\x01"


@pytest.mark.covers("Message types", "deltas: what is lacking stays")
def test_deltas_lead_where_they_should() -> None:
    check_deltas(FIX, BODIES, "")
    check_deltas(NVFIX, NAMED, "")


@pytest.mark.covers("Message types", "no body harms a parser")
@pytest.mark.parametrize(("kind", "bodies"), [(FIX, BODIES), (NVFIX, NAMED)])
def test_no_body_harms_it(kind: Nvfix, bodies: list[bytes]) -> None:
    read, refused = check_fuzz(kind, bodies)
    check_whatever_comes(kind, bodies)
    assert read > 50 and refused > 50
