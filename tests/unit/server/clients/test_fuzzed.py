"""Any sequence of commands, right and wrong, of clients and of links: it harms nobody else.

A fault in a step of the instance ends it, one elsewhere the connection (`Surroundings.contain`):
whatever makes one raise is a way to take something down. Here random sessions run against a whole
instance, with queues, SOW topics, modules at one of its transports: it must go on, answer somebody
who behaves, and keep nothing of who is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.link_peers import DESCRIPTION
from support.one_instance import server_on

from raylay.services.client import Client
from raylay.services.config.instance import InstanceConfig, TransportConfig, split_address
from raylay.services.messages.records import Command, RecordBuilder, publisher_id
from raylay.services.messages.topics import TopicRule
from raylay.services.protocol.frames import FrameReader, encode_frame
from raylay.services.protocol.link.replication import UpstreamLogon, link_logon
from raylay.services.queues.definition import QueueDefinition
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.logs import LogOptions

STEP_S = 0.02
"""What is given to a session's answers; nothing is asserted of them."""
LOGON_S = 1.0
TOPICS = ("orders", "rows", "quick", "nowhere", ".*", "(", "o[r", "raylay/x", "", "ü" * 300)
TEXTS = st.one_of(
    st.sampled_from(["", "x", "/a = 1", "/a = = 1", "json", "0", "0|1|", "1|1|,2|9|", "NEW", "\0"]),
    st.text(max_size=20),
)
VALUES = st.recursive(
    st.one_of(
        TEXTS, st.integers(-(2**63), 2**64 - 1), st.none(), st.booleans(), st.floats(),
        st.binary(max_size=8),
    ),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3), st.dictionaries(st.text(max_size=5), inside, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
IDS = st.sampled_from(["a", "b", "c"])
KEYS = (
    "t", "mt", "sub", "cid", "a", "s", "n", "o", "r", "cmd", "e", "k", "x", "filter", "order_by",
    "top_n", "skip_n", "select", "keys", "as_of", "bm", "have", "how", "v", "low", "client_name",
    "user_id", "pw", "batch", "id", "name", "release", "expires_s",
)  # fmt: skip
COMMANDS = (
    "p", "pb", "subscribe", "sow", "sow_and_subscribe", "unsubscribe", "flush", "heartbeat", "ping",
    "queue_cancel", "queue_ack", "queue_status", "reader", "logon", "nonsense",
)  # fmt: skip
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "bookmark": TEXTS, "filter": TEXTS, "max_backlog": st.integers(-1, 3), "oof": st.booleans(),
        "delta": st.booleans(), "replace": st.booleans(), "select": TEXTS, "live": st.booleans(),
        "pause": st.booleans(), "resume": st.booleans(), "rate": TEXTS, "order_by": TEXTS,
        "top_n": st.integers(-1, 5), "skip_n": st.integers(-1, 5), "as_of": TEXTS,
        "start_s": st.sampled_from([0.01, 5, -1, "x"]), "keys": st.lists(st.binary(max_size=4)),
        "non_regex_topic": st.booleans(), "fully_durable": st.booleans(),
        "conflation": st.sampled_from(["10ms", "auto", "none", "1ns", "x", 7]),
        "conflation_key": st.one_of(VALUES, st.just(["/id"]), st.just(["/a", "/b"])),
        "projection": st.one_of(
            VALUES, st.lists(st.sampled_from(["/a", "COUNT(/id) AS /n", "MAX(/a) AS /b", "SUM("]))
        ),
        "grouping": st.one_of(VALUES, st.just(["/a"]), st.just(["/a", "/b"])),
    },
)  # fmt: skip
HEADERS = st.fixed_dictionaries(
    {"c": st.sampled_from(COMMANDS)},
    optional={
        "t": st.sampled_from(TOPICS), "mt": st.sampled_from(["json", "binary", "none-such", ""]),
        "sub": IDS, "cid": IDS, "a": st.sampled_from(["processed", "persisted,completed", "stats"]),
        "s": st.integers(0, 5), "n": st.integers(0, 3), "o": st.one_of(OPTIONS, VALUES),
        "cmd": st.integers(0, 7), "r": st.sampled_from(["", "solo", "other"]),
        "filter": TEXTS, "how": st.sampled_from(["ack", "expire", "cancel", "x"]),
    },
)  # fmt: skip
WILD = st.tuples(HEADERS, st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)).map(
    lambda both: {**both[0], **both[1]}
)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([
        b"", b'{"id": 1, "a": 1}', b"{}", b"[", msgpack.packb({1: [1, 2]}),
        msgpack.packb({"acks": {1: [1, 1]}, "how": "ack"}), msgpack.packb({"acks": {-1: "x"}}),
    ]),
)  # fmt: skip
ME = publisher_id("fuzz")


@st.composite
def batches(draw: Any) -> bytes:
    """Records, right but for what is turned in them."""
    build = RecordBuilder(
        draw(st.sampled_from([ME, ME, 7])), draw(st.sampled_from(TOPICS[:4])), "json"
    ).build
    numbers = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    data = bytearray(
        b"".join(
            build(number, draw(BODIES), 0, command=draw(st.sampled_from(list(Command))))
            for number in numbers
        )
    )
    for _ in range(draw(st.integers(0, 1))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return encode_frame({"c": "pb", "n": len(numbers)}, bytes(data))


FRAMES = st.one_of(
    st.builds(encode_frame, HEADERS, BODIES),
    st.builds(encode_frame, WILD, BODIES),
    batches(),
    st.binary(min_size=1, max_size=60),
)
LINK_COMMANDS = (
    "batch", "lacks", "placed", "beat", "queue_request", "logon", "bootstrap", "start", "held",
    "carried", "nonsense",
)  # fmt: skip
LINK_KEYS = (
    "number", "n", "tx", "first", "last", "placements", "generation", "z", "roots", "incarnation",
    "life", "name", "queue", "type", "domain", "places", "stream", "persisted", "digest",
)  # fmt: skip
LINK_FRAMES = st.one_of(
    st.builds(
        encode_frame,
        st.tuples(
            st.fixed_dictionaries({"c": st.sampled_from(LINK_COMMANDS)}),
            st.dictionaries(st.sampled_from(LINK_KEYS), VALUES, max_size=6),
        ).map(lambda both: {**both[0], **both[1]}),
        BODIES,
    ),
    st.binary(min_size=1, max_size=60),
)
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


class Bench:
    """An instance with everything, on a loop of its own, and somebody who behaves."""

    patience_s = 30.0

    def __init__(self, directory: Path) -> None:
        who, what = directory / "who", directory / "what"
        who.write_text("# nobody\n")
        what.write_text(json.dumps({
            "fuzz": {"logon": True, "topic": [
                {"topic": "orders", "read": "/a = 1", "write": "/a = 1"},
                {"topic": "rows", "read": True, "select": "-/b"},
            ]},
        }))  # fmt: skip
        config = InstanceConfig(
            "solo", "g", first=True, topics=(TopicRule("^(orders|rows|work)$"),),
            unjournaled=(TopicRule("^quick$"),), log=LogOptions(target="none"),
            sow=(SowTopicDefinition("rows", "json", keys=("/id",)),),
            queue_definitions=(QueueDefinition("work", "json"),),
        )  # fmt: skip
        spoofed = ModuleConfig("amps-default-authentication-module", {"AllowSpoofing": "true"})
        self.config = replace(
            config,
            client_transports=(
                TransportConfig("client"),
                TransportConfig(
                    "guarded",
                    authentication=spoofed,
                    entitlement=ModuleConfig("permissions", {"File": str(what)}),
                ),
                TransportConfig(
                    "shut", authentication=ModuleConfig("passwords", {"File": str(who)})
                ),
            ),
        )
        self.loop = asyncio.new_event_loop()
        self.server = server_on(self.loop, self.config, directory / "data")
        self.numbers = itertools.count(1)
        self.loop.run_until_complete(self._start())

    async def _start(self) -> None:
        await self.server.start()
        self.good = Client("good", [self.server.runtime.client_address])
        await self.good.connect()

    def addresses(self) -> list[str]:
        guarded = self.server.status()["client_transports"]
        return [self.server.runtime.client_address, *guarded.values()]

    def run(self, address: str, first: bytes, frames: list[bytes]) -> None:
        async def session() -> None:
            reader, writer = await asyncio.open_connection(*split_address(address))
            told = FrameReader()
            try:
                for data in (first, *frames):
                    if data:
                        writer.write(data)
                        await writer.drain()
                    # What comes before its logon is answered would end it.
                    wait_s = LOGON_S if data and data is first else STEP_S
                    try:
                        answer = await asyncio.wait_for(reader.read(65_536), wait_s)
                    except TimeoutError:
                        continue
                    if not answer:
                        break
                    told.feed(answer)  # what it says is frames, whatever it was told
            except ConnectionError:
                pass
            writer.close()

        async def both() -> None:
            await session()
            await self.good.publish("orders", b'{"a": 1}')
            await asyncio.wait_for(self.good.flush(), self.patience_s)
            async with asyncio.timeout(self.patience_s):
                # The connection's end is told to the server in a turn of its own.
                while (
                    len(self.server.parts.clients.connected) > 1
                    or self.server.parts.upstreams.connected
                ):
                    await asyncio.sleep(0)

        self.loop.run_until_complete(both())
        clients = self.server.parts.clients
        assert self.server.runtime.fault is None
        assert not self.server.parts.instance.is_half_done
        faults = ("fatal", "query_failed", "connection_fault")
        assert not [e for e in self.server.events(0) if e["event"] in faults]
        assert not len(clients.incomplete) and not self.server.parts.upstreams.incomplete.bytes
        assert len(clients.sessions) == 1 and len(clients.live) == 0 and not len(clients.queries)

    def close(self) -> None:
        async def stop() -> None:
            # Behind a fault nothing is acknowledged any more.
            await self.good.close(flush=self.server.runtime.fault is None)
            await self.server.stop()

        self.loop.run_until_complete(stop())
        self.loop.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("fuzzed"))
    yield made
    made.close()


LOGON = {"c": "logon", "v": 1, "client_name": "fuzz", "user_id": "fuzz", "low": 0, "cid": "l"}


@FEW
@given(
    at=st.integers(0, 2),
    logon=st.one_of(st.just(LOGON), st.just(LOGON), WILD.map(lambda given: {**LOGON, **given})),
    frames=st.lists(FRAMES, max_size=8),
)
def test_any_session_of_a_client(
    bench: Bench, at: int, logon: dict[str, Any], frames: list[bytes]
) -> None:
    bench.run(bench.addresses()[at], encode_frame(logon), frames)


@FEW
@given(
    epoch=st.integers(-1, 2**63 - 1),
    generation=st.integers(0, 2),
    is_right=st.booleans(),
    frames=st.lists(LINK_FRAMES, max_size=8),
)
def test_any_session_of_a_link(
    bench: Bench, epoch: int, generation: int, is_right: bool, frames: list[bytes]
) -> None:
    number = next(bench.numbers)
    logon = UpstreamLogon(
        "up",
        "g",
        77,
        "g",
        f"to-solo-{number}",
        max(1, epoch),
        b"",
        description=DESCRIPTION,
        generation=generation,
    )
    first = link_logon(logon) if is_right else b""
    bench.run(bench.server.runtime.replication_address, first, frames)


def test_a_step_that_raises_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    bench.patience_s = 1.0

    def raises(*_: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(ClientConnection, "_heartbeat", raises)
    beat = encode_frame({"c": "heartbeat", "cid": "h"})
    with pytest.raises(AssertionError):
        bench.run(bench.addresses()[0], encode_frame(LOGON), [beat])
    assert bench.server.runtime.fault is None, "only the connection ends"
    bench.close()
