"""The message types that a fabric defines, on the wire: what is told, what is left out."""

from __future__ import annotations

import msgpack
import pytest

from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.protocol.client.told_types import (
    TOLD_BYTES_MAX,
    ToldType,
    pack_types,
    read_types,
)

pytestmark = pytest.mark.covers("Clients and protocol", "types that the fabric defines")
QUOTE = TypeDefinition("quote", "struct", {"fields": ["/px = <d", "/sym = 4S"]})


def test_definitions_are_told_whole() -> None:
    (told,) = read_types(pack_types([QUOTE]))
    assert told.definition == QUOTE
    assert pack_types([]) == b"" and read_types(b"") == ()


def test_what_a_client_cannot_make_is_told_by_name_alone() -> None:
    large = TypeDefinition("order", "protobuf", {"descriptors": "x" * TOLD_BYTES_MAX})
    own = TypeDefinition("own", "an entry point", {"secret": "x"})
    told = read_types(pack_types([own, QUOTE, large, QUOTE]))
    assert [each.options is None for each in told] == [True, False, True, True]
    assert told[0] == ToldType("own", "an entry point", None) and told[0].definition is None
    assert len(pack_types([large] * 50)) < TOLD_BYTES_MAX


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        msgpack.packb({}),
        msgpack.packb([["a", "fix"]]),
        msgpack.packb([["a", 1, {}]]),
        msgpack.packb([["a", "fix", []]]),
        msgpack.packb(["a"]),
        msgpack.packb([]) + b"x",
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="message types are"):
        read_types(body)
