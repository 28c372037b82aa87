"""Bodies that are as large inside as a body can be: memory stays in proportion, time is short."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.registry import message_type

pytestmark = pytest.mark.covers("Message types", "memory in proportion to the body")

SIZE = 200_000
MEMORY_TIMES_MAX = 100
"""Bytes of memory for each byte of a body, at the worst moment; docs/message-types.md says so."""
S_MAX = 10.0


def bson_array(elements: bytes) -> bytes:
    array = struct.pack("<i", len(elements) + 5) + elements + b"\0"
    inner = b"\x04a\0" + array
    return struct.pack("<i", len(inner) + 5) + inner + b"\0"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("json", b'{"a":[' + b"{}," * (SIZE // 3) + b"{}]}"),
        ("json", b'{"a":[' + b"[]," * (SIZE // 3) + b"[]]}"),
        ("json", b'{"a":[' + b"0," * (SIZE // 2) + b"0]}"),
        ("json", b'{"a":' + b"[" * SIZE),
        ("json", b'{"a":' + b"9" * SIZE + b"}"),
        ("json", b"{" + b",".join(b'"%d":0' % each for each in range(SIZE // 9)) + b"}"),
        ("fix", b"1=\x01" * (SIZE // 3)),
        ("nvfix", b"\x01".join(b"%d=" % each for each in range(SIZE // 7))),
        ("nvfix", b"=" * SIZE),
        ("xml", b"<a>" + b"<b/>" * (SIZE // 4) + b"</a>"),
        ("xml", b"<a " + b" ".join(b"a%d=''" % each for each in range(SIZE // 10)) + b"/>"),
        ("xml", b"<a>" * (SIZE // 3)),
        ("xml", b"<a>" + b"&lt;" * (SIZE // 4) + b"</a>"),
        ("msgpack", b"\x81\xa1a\xdd" + struct.pack(">I", SIZE) + b"\x80" * SIZE),
        ("msgpack", b"\x81\xa1a" + b"\x91" * SIZE),
        ("msgpack", b"\x81\xa1a" + (b"\xdd" + struct.pack(">I", SIZE)) * (SIZE // 5)),
        ("bson", bson_array(b"\x0a0\0" * (SIZE // 3))),
        ("bson", bson_array(b"\x030\0\x05\0\0\0\0" * (SIZE // 8))),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:12]),
)  # fmt: skip
def test_a_body_costs_no_more_than_its_bytes_allow(kind: str, body: bytes) -> None:
    found = message_type(kind)
    began = time.thread_time()
    tracemalloc.start()
    try:
        try:
            found.parse(body)
        except MessageTypeError as error:
            assert len(str(error)) < 300
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_TIMES_MAX * len(body)
    assert time.thread_time() - began < S_MAX
