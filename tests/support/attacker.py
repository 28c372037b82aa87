"""A client that means harm and may log on, read and write one topic, and read a queue.

What it says, for the fuzz (tests/unit/test_neighbour.py) and for `make bench ONLY=neighbour_…`
(benchmarks/neighbour.py), which runs the scripts at the end of this file.

All of it is within the grammar of the protocol, or breaks it in a way that costs the connection.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack
from argon2 import PasswordHasher

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.records import RecordBuilder, publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import FRAME_BYTES_MAX, Header, encode_frame
from raylay.services.security.modules import ModuleConfig
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions

ATTACKER, VICTIM = "mallory", "victim"
TOPIC, QUEUE = "hostile", "hostile-queue"
VICTIMS_TOPIC = "calm"
PASSWORD = "right"
PERMISSIONS = {
    ATTACKER: {
        "logon": True,
        "topic": [{"topic": TOPIC, "read": True, "write": True}, {"topic": QUEUE, "read": True}],
    },
    VICTIM: {"logon": True, "topic": [{"topic": VICTIMS_TOPIC, "read": True, "write": True}]},
}
DEPTH = 20
"""Of the calls in a costly filter: each doubles what it is given."""
VALUES = 30_000
"""In a large message: half of what is parsed."""


def guarded(directory: Path, hasher: PasswordHasher) -> InstanceConfig:
    """An instance with both for users; what it reads of them is written to `directory`."""
    passwords, permissions = directory / "passwords", directory / "permissions.json"
    passwords.write_text(
        "".join(f"{user}:{hasher.hash(PASSWORD)}\n" for user in PERMISSIONS), encoding="ascii"
    )
    permissions.write_text(json.dumps(PERMISSIONS), encoding="ascii")
    return InstanceConfig(
        "solo",
        "g",
        first=True,
        topics=(TopicRule(f"^({TOPIC}|{VICTIMS_TOPIC})$"),),
        sow=(SowTopicDefinition(TOPIC, "json", keys=("/id",)),),
        authentication=ModuleConfig("passwords", {"File": str(passwords)}),
        entitlement=ModuleConfig("permissions", {"File": str(permissions)}),
        log=LogOptions(target="none"),
    )


def logon(name: str, password: str = PASSWORD, user: str = ATTACKER) -> bytes:
    return encode_frame(
        {"c": "logon", "v": 1, "client_name": name, "user_id": user, "pw": password, "cid": "l"}
    )


def ping(command_id: str) -> bytes:
    return encode_frame({"c": "ping", "cid": command_id})


def subscribe(name: str, topic: str = TOPIC, bookmark: str = "", **options: object) -> bytes:
    header: Header = {"c": "subscribe", "sub": name, "t": topic, "cid": name, "o": options}
    return encode_frame(header | ({"bm": bookmark} if bookmark else {}))


def unsubscribe(name: str = "all") -> bytes:
    return encode_frame({"c": "unsubscribe", "sub": name})


def query(name: str, command: str = "sow", topic: str = TOPIC, **options: object) -> bytes:
    return encode_frame({"c": command, "sub": name, "t": topic, "cid": name, "o": options})


def published(client: str, first: int, *bodies: bytes, resent: str | None = None) -> bytes:
    """Messages on its topic, numbered from `first` on; `resent`: where it says that they were sent
    before."""
    build = RecordBuilder(publisher_id(client), TOPIC, "json").build
    records = b"".join(build(number, body, 1) for number, body in enumerate(bodies, first))
    header: Header = {"c": "pb", "n": len(bodies)}
    return encode_frame(header | ({} if resent is None else {"r": resent}), records)


def growing(own: str, depth: int = DEPTH) -> str:
    """A filter that is given up where `/id` is 7, as its texts grow. What is in `own` makes it one
    that nobody has compiled before."""
    found = "/id"
    for _ in range(depth):
        found = f"REGEXP_REPLACE({found}, '7', '77')"
    return f"{found} = 'x' OR /id = '{own}'"


def wide(own: str, parts: int = 240) -> str:
    """A filter of as many parts as one may have, about."""
    return " OR ".join(f"/f{number} LIKE '{own}.*{number}'" for number in range(parts))


def regex(own: int) -> str:
    """A topic that is an expression of many instructions, another one each time."""
    return f"^{TOPIC}({own}|[a-z]{{1,200}}[0-9]{{1,200}})*$"


def nested(values: int = VALUES, key: int = 7, depth: int = 60) -> bytes:
    """A message of so many values, objects in one another again and again."""
    one = b'{"a":' * depth + b"1" + b"}" * depth
    return b'{"id": %d, "v": [' % key + b",".join([one] * (values // depth)) + b"]}"


def half(size_bytes: int, announced: int = FRAME_BYTES_MAX) -> bytes:
    """The begin of a frame that is announced to be longer."""
    return announced.to_bytes(4, "little") + b"\x10\x00" + b"\0" * size_bytes


def deep_header(depth: int) -> bytes:
    """A frame whose header has arrays in one another."""
    packed = b"\x82\xa1c\xa4ping\xa1o" + b"\x91" * depth + b"\xc0"
    return (2 + len(packed)).to_bytes(4, "little") + len(packed).to_bytes(2, "little") + packed


def long_header(values: int) -> bytes:
    """A frame whose header lists so many names."""
    names = [f"{number:x}" for number in range(values)]
    return encode_frame({"c": "unsubscribe", "sub": names, "cid": "u"})


def queue_verb(command: str, filter_: str = "", how: str = "ack") -> bytes:
    header = {"c": command, "t": QUEUE, "cid": "q", "filter": filter_, "how": how}
    return encode_frame(header, msgpack.packb({publisher_id(VICTIM): [1, 1 << 40]}))


class Script(NamedTuple):
    """One way to take an instance's time.

    Attributes:
        first: what it says once, behind its logon, before anything is measured.
        again: what it says then, again and again, each time another one.
        is_stranger: whether each of these is said on a connection of its own, instead of a logon.
        reads: whether it reads what it is told; else another connection says what `again` gives.
        stays: connections that it keeps open, where each saying is on one of its own.
        answer: the command of the frame that answers; empty: what a ping behind it has.
    """

    first: Callable[[str], bytes]
    again: Callable[[str], Iterator[bytes]]
    is_stranger: bool = False
    reads: bool = True
    stays: int = 0
    answer: str = ""


def _nothing(_: str) -> bytes:
    return b""


def _rows(client: str) -> bytes:
    """20,000 records, to be asked for."""
    text = b"x" * 100
    return b"".join(
        published(client, first, *(b'{"id": %d, "n": %d, "s": "%b"}' % (n, n * 7919 % 10_007, text)
                                   for n in range(first, first + 500)))
        for first in range(1, 20_001, 500)
    )  # fmt: skip


def _costly_filters(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        name = f"{client}-{turn}"
        yield b"".join((
            subscribe(name, filter=growing(name)),
            published(client, turn * 5, *(b'{"id": 7, "n": %d}' % n for n in range(5))),
            unsubscribe(name),
        ))  # fmt: skip


def _many_filters(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield b"".join(subscribe(f"{turn}-{n}", filter=wide(f"{client}{turn}n{n}"))
                       for n in range(20)) + unsubscribe()  # fmt: skip


def _large_messages(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield published(client, turn, nested(key=turn % 50))


def _wrong_logons(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield logon(f"{client}-{turn}", "wrong")


def _queries(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield query(f"q{turn}", order_by="/n DESC, /s", filter=f"/s LIKE 'x+' OR /n = {turn}")


def _half_frames(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield logon(f"{client}-{turn % 16}") + half(1024 * 1024)


def _regexes(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield b"".join(subscribe(f"{turn}-{n}", regex(turn * 100 + n)) for n in range(20)) + (
            published(client, turn, b'{"id": 1}') + (unsubscribe() if turn % 20 == 0 else b"")
        )


def _bursts(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield b"".join(subscribe(f"{turn}-{n}") for n in range(2_000)) + unsubscribe()


def _unread(client: str) -> Iterator[bytes]:
    for turn in itertools.count(1):
        yield published(client, turn, b'{"id": %d, "s": "%b"}' % (turn % 9, b"x" * 200_000))


def _long_headers(_: str) -> Iterator[bytes]:
    found = long_header(200_000)
    while True:
        yield found


SCRIPTS: dict[str, Script] = {
    "costly_filters": Script(_nothing, _costly_filters),
    "many_filters": Script(_nothing, _many_filters),
    "large_messages": Script(
        lambda _: subscribe("large", filter="/v[0]/a/a = 1 OR /x LIKE 'a'"), _large_messages
    ),
    "wrong_logons": Script(_nothing, _wrong_logons, is_stranger=True),
    "queries": Script(_rows, _queries, answer="group_end"),
    "half_frames": Script(_nothing, _half_frames, is_stranger=True, stays=8),
    "regexes": Script(_nothing, _regexes),
    "bursts": Script(_nothing, _bursts),
    "long_headers": Script(_nothing, _long_headers),
    "slow_reader": Script(lambda _: subscribe("unread"), _unread, reads=False),
}
"""What the benchmark runs, one after the other."""
