"""The largest record that is taken in goes everywhere: to a sync peer, over compressed links, into
deliveries of every kind, through restart, compression, dump, verify, the copy of a new instance."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from end_to_end.test_bootstrap import Empty
from support import forked
from support.instance_processes import DEADLINE_S, Client, Server, Servers, pair, single

from raylay.services.client import Client as RealClient
from raylay.services.client import SyncClient
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import LocalProtocolError
from raylay.services.messages.records import (
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    TOPIC_BYTES_MAX,
    TRACE_BYTES,
    TYPE_BYTES_MAX,
    RecordBuilder,
    decode_record,
    publisher_id,
    run_of,
    scan,
)
from raylay.services.protocol.client.subscribe import SUBSCRIPTION_ID_BYTES_MAX
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.lmdb_journal import LmdbJournal

pytestmark = [
    pytest.mark.covers("Clients and protocol", "the largest record goes everywhere"),
    pytest.mark.covers("SOW", "a record above the limit is refused"),
]

TOPIC = "t" * TOPIC_BYTES_MAX
TYPE = "j" * TYPE_BYTES_MAX
SUBSCRIPTION = "s" * SUBSCRIPTION_ID_BYTES_MAX
SEGMENT_BYTES = 1024 * 1024


def large(name: str, size_bytes: int = RECORD_BYTES_MAX, sequence: int = 1) -> bytes:
    """A record of that many bytes, with everything that a record can have beside its body."""
    beside = TOPIC_BYTES_MAX + TYPE_BYTES_MAX + 2 * KEY_BYTES_MAX + TRACE_BYTES
    record = RecordBuilder(publisher_id(name), TOPIC, TYPE).build(
        sequence,
        os.urandom(size_bytes - RECORD_HEADER_BYTES - beside),
        1,
        bytes(range(TRACE_BYTES)),
        expiration_s=(1 << 32) - 1,
        key=b"k" * KEY_BYTES_MAX,
        correlation=b"c" * KEY_BYTES_MAX,
    )
    assert len(record) == size_bytes
    return record


def replayed(server: Server, record: bytes) -> None:
    """A subscriber that begins at the log's start is given the record as it is, and nothing ends
    its connection."""
    client = Client(server.address, "reader")
    client.send({"c": "subscribe", "sub": SUBSCRIPTION, "t": TOPIC, "bm": "0"})
    delivery = client.next(lambda frame: frame.header["c"] == "p")
    assert delivery.header["sub"] == SUBSCRIPTION and delivery.body == record
    client.send({"c": "ping", "cid": "after"})
    client.ack(cid="after")
    client.close()


def journal_command(server: Server, command: str) -> str:
    directory = str(server.directory / JOURNAL_DIRECTORY)
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        done = forked.run(
            [sys.executable, "-m", "raylay.services.cli", "journal", command, directory],
            capture_output=True,
            text=True,
            timeout=60,
        )
        # The processes of a killed instance's links end by themselves, and read until then.
        if "in use by a reader" not in done.stdout or time.monotonic() > deadline_s:
            break
    assert done.returncode == 0, done
    return done.stdout


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "compression", ["", pytest.param("zstd", marks=SLOW), pytest.param("zlib", marks=SLOW)]
)
def test_the_largest_record_goes_everywhere(
    servers: Servers, tmp_path: Path, compression: str
) -> None:
    first, second = pair(
        servers, tmp_path, compression=bool(compression), compression_type=compression or "zstd"
    )
    record = large("large")
    live = [Client(server.address, "live") for server in (first, second)]
    for client in live:
        client.send({"c": "subscribe", "sub": SUBSCRIPTION, "t": TOPIC, "cid": "s"})
        client.ack(cid="s")
    publisher = Client(first.address, "large")
    publisher.send({"c": "pb", "n": 1}, record)
    publisher.persisted(1)
    for client in live:
        assert client.next(lambda frame: frame.header["c"] == "p").body == record
        client.close()
    # A publisher each: the second server may have been sent what was put into the first one's log.
    for small_publisher, server in ((7, first), (8, second)):
        replayed(server, record)
        server.kill()
        # So that the segment that holds it is sealed, and can be compressed.
        journal = LmdbJournal(server.directory / JOURNAL_DIRECTORY, segment_bytes=SEGMENT_BYTES)
        journal.start(lambda *_: None, lambda *_: None)
        (chunk,) = scan(small := RecordBuilder(small_publisher, "small", "json").build(1, b"{}", 1))
        run = run_of(chunk, small)
        run.first_txid, run.receive_time_us = journal.recovered.next_txid, 1
        journal.stage(run)
        journal.close()
        journal_command(server, "compress")
        journal_command(server, "verify")
        assert str(publisher_id("large")) in journal_command(server, "dump")
        server.start()
        replayed(server, record)
    copy = Empty(
        tmp_path / "copy",
        InstanceConfig(
            "C", "group", bootstrap=BootstrapConfig((second.status["replication_address"],))
        ),
    )
    servers.append(copy)
    assert copy.serves()["bootstrap"]["done"]
    replayed(copy, record)
    for server in (first, second):
        assert server.events("link_disconnected") <= 2, server.log


def test_one_byte_more_is_refused_whichever_way_it_comes(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "large")
    client.send({"c": "pb", "n": 1}, large("large", RECORD_BYTES_MAX + 1))
    answer = client.ack().header
    assert answer["reason"] == "bad_record" and str(RECORD_BYTES_MAX) in answer["text"]
    assert client.closed()
    client = Client(server.address, "large")
    values = {"k": b"k" * 20_000, "x": b"x" * 20_000, "t": TOPIC, "mt": TYPE}
    beside = 2 * 20_000 + TOPIC_BYTES_MAX + TYPE_BYTES_MAX + RECORD_HEADER_BYTES
    for sequence, add in ((1, 1), (2, 0)):
        header = {"c": "p", "s": sequence, "a": "persisted"} | values
        client.send(header, bytes(RECORD_BYTES_MAX - beside + add))
        answer = client.ack(a="persisted").header
        assert answer["s"] == sequence
        assert answer["status"] == ("failure" if add else "success"), answer
        assert not add or answer["reason"] == "bad_record"
    client.send({"c": "p", "cid": "u", "a": "persisted"} | values, bytes(RECORD_BYTES_MAX))
    assert client.ack(cid="u").header["reason"] == "bad_record"
    assert [number for _, number in server.journal()] == [2]


def test_what_an_earlier_release_let_in_is_read_and_replicated(
    servers: Servers, tmp_path: Path
) -> None:
    """As large as a frame by itself: with a header it exceeded what any client read, and ended the
    connection of everybody who came to it, again and again."""
    first, second = pair(servers, tmp_path)
    for server in (first, second):
        server.kill()
    record = large("large", 16 * 1024 * 1024 - 11)
    first.stage(record)
    for server in (first, second):
        server.log = ""
        server.start()
    for server in (first, second):
        server.wait_for("link_caught_up")

    async def read(server: Server) -> bytes:
        async with RealClient("reader", [server.address]) as client:
            async for message in await client.subscribe(TOPIC, bookmark="0"):
                return message.body
        raise AssertionError("the subscription ended")

    for server in (first, second):
        body = asyncio.run(asyncio.wait_for(read(server), 20))
        assert body == decode_record(record).body
    assert first.events("link_disconnected") == 0


def test_a_client_is_told_before_it_sends(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path)
    with SyncClient("desk", [server.address]) as client:
        wrong: list[Callable[[], None]] = [
            lambda: client.publish("orders", b"", key=b"k" * (KEY_BYTES_MAX + 1)),
            lambda: client.publish("orders", b"", correlation=b"k" * (KEY_BYTES_MAX + 1)),
            lambda: client.publish("orders", b"", expiration_s=1 << 32),
            lambda: client.publish("orders", b"", expiration_s=-1),
            lambda: client.publish("orders", bytes(RECORD_BYTES_MAX)),
        ]
        for publish in wrong:
            with pytest.raises(LocalProtocolError):
                publish()
        client.publish("orders", b"{}")
        client.flush(10)
