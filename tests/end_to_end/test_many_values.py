"""Messages of as many values as their bytes can be: no turn of an instance's loop goes into them.

Each is published to a topic that somebody reads with filters, and to a SOW topic, beside a message
of the same size that is one long text. Before there was a limit of values, one of these took the
loop two to nine seconds.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from end_to_end.test_journal_off_the_loop import looked
from support.instance_processes import Client, Servers, single

from raylay.services.messages.records import RecordBuilder
from raylay.services.messages.types.base import VALUES_MAX
from raylay.services.sow.definition import SowTopicDefinition

pytestmark = pytest.mark.covers(
    "Filters by content", "a body has 65,536 values at most where it is read"
)

SIZE = 15 * 1024 * 1024
FILTERS = 40
TIMES_MAX, MORE_MS_MAX = 3, 300
"""The longest turn with such a message: as often that with a long text, and so much more."""

MESSAGES = {
    "arrays": ("msgpack", b"\x81\xa1a\xdd" + struct.pack(">I", SIZE) + b"\x90" * SIZE),
    "nested": ("json", b'{"a":[' + b"[]," * (SIZE // 3) + b"[]]}"),
    "numbers": ("json", b'{"a":[' + b"1," * 2_000_000 + b"1]}"),
    "fields": ("json", b"{" + b",".join(b'"%d":1' % n for n in range(SIZE // 11)) + b"}"),
    "allowed": ("json", b'{"a":[' + b"1," * (VALUES_MAX - 9) + b"1]}"),
    "allowed of objects": (
        "json",
        b'{"a":[' + b'{"b":1},' * (VALUES_MAX // 2 - 9) + b'{"b":1}]}',
    ),
}
TEXTS = {
    "msgpack": b"\x81\xa1a\xdb" + struct.pack(">I", SIZE) + b"x" * SIZE,
    "json": b'{"a":"' + b"x" * SIZE + b'"}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_many_values_takes_no_longer_than_a_long_text(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    kind, body = MESSAGES[name]
    server = single(servers, tmp_path, sow=(SowTopicDefinition("kept", kind, keys=("/id",)),))
    publisher = Client(server.address, "publisher")
    reader = Client(server.address, "reader")
    for number in range(FILTERS):
        field = "/a/b" if number % 2 and name == "allowed of objects" else "/a"
        reader.send(
            {
                "c": "subscribe",
                "sub": f"s{number}",
                "t": "read",
                "cid": f"c{number}",
                "a": "processed",
                "filter": f"{field} > {1_000 + number}",
            }
        )
        reader.ack(cid=f"c{number}", a="processed")
    sequence = 0
    longest: dict[bytes, float] = {}
    for each in (TEXTS[kind], body):
        looked(server)
        for topic in ("read", "kept"):
            sequence += 1
            record = RecordBuilder(publisher.answer["publisher"], topic, kind).build(
                sequence, each, 1
            )
            publisher.send({"c": "pb", "n": 1}, record)
            if topic == "read":
                publisher.persisted(sequence)
            else:
                # Without a key, or refused for its values: answered in either case.
                publisher.next(
                    lambda frame: (
                        frame.header.get("a") == "persisted" and frame.header["status"] == "failure"
                    )
                )
        longest[each] = looked(server)["longest_ms"]
    print(name, list(longest.values()))
    assert longest[body] < TIMES_MAX * longest[TEXTS[kind]] + MORE_MS_MAX, longest.values()
