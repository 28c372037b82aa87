"""Bad input and faults: a clear error that names the thing, nothing lost, nobody else harmed.

What is not here is in test_instance.py. In each test a well-behaved client publishes all the while
and is given all its acks.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.instance_processes import DEADLINE_S, Client, Server, Servers, pair, single
from support.small_disk import small_disk_at
from xxhash import xxh3_64_intdigest

from raylay.services.client import SyncClient
from raylay.services.client.events import StoreFailed
from raylay.services.config.journal import JournalConfig
from raylay.services.errors import FlushTimeout, StorageFull
from raylay.services.messages.records import (
    RECORD_BYTES_MAX,
    SEQUENCE_HELD_MAX,
    SEQUENCE_MAX,
    Command,
    Kind,
    RecordBuilder,
    iterate_records,
    publisher_id,
)
from raylay.services.protocol.frames import Header, encode_frame
from raylay.services.replication.gap_limit import SEQUENCES_PLAUSIBLE
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.segments import open_environment
from raylay.storage.state import LmdbStateStore
from raylay.storage.stores import LmdbPublishStore

PUBLISHER_FILE = Path(__file__).parents[1] / "soak" / "publisher.py"


class Good:
    """The well-behaved client: publishes and waits for its ack, again and again."""

    def __init__(self, server: Server, name: str = "good") -> None:
        self.server = server
        self.client = Client(server.address, name)
        self.last = 0
        self.publishes()

    def publishes(self, count: int = 3) -> None:
        """Publishes and has its ack."""
        self.client.publish(range(self.last + 1, self.last + count + 1))
        self.last += count
        self.client.persisted(self.last)

    def kept(self) -> None:
        """All of it is in the journal, once, in order."""
        found = [n for p, n in self.server.journal() if p == self.client.answer["publisher"]]
        assert found == list(range(1, self.last + 1))
        assert "fatal" not in self.server.log, self.server.log


def record_of(
    name: str,
    sequence: int,
    topic: bytes = b"orders",
    kind: bytes = b"json",
    command: int = 1,
    trace: bytes = b"",
) -> bytes:
    """A record whose checksums are right and whose values need not be."""
    content = topic + kind + b"{}"
    tail = struct.pack(
        "<BBBBHHHHIQQQQ",
        *(1, command, len(kind), len(trace), len(topic), 0, 0, 0, 0),
        *(publisher_id(name), sequence, 1, xxh3_64_intdigest(content)),
    )
    checked = tail + content + trace
    return struct.pack("<IQ", len(checked) + 12, xxh3_64_intdigest(checked)) + checked


BAD = "bad"
COMMANDS: list[tuple[Header, bytes, str]] = [
    ({"c": "subscribe", "sub": 5, "t": "orders"}, b"", "bad_command"),
    ({"c": "subscribe", "sub": "s", "t": b"\xff"}, b"", "bad_command"),
    ({"c": "subscribe", "sub": "s", "t": "x" * 2000}, b"", "bad_topic"),
    ({"c": "subscribe", "sub": "s", "t": "orders", "o": [1]}, b"", "bad_command"),
    ({"c": "subscribe", "sub": "s", "t": "a", "bm": "0", "o": {"have": {1: b"?"}}}, b"", "bad_com"),
    ({"c": "subscribe", "sub": "s", "t": "a", "bm": "0", "o": {"have": 5}}, b"", "bad_command"),
    ({"c": "subscribe", "sub": "s", "t": "a", "bm": "[0:"}, b"", "bad_bookmark"),
    ({"c": "subscribe", "sub": "s", "t": "a", "bm": "1|18446744073709551616|"}, b"", "bad_bookm"),
    ({"c": "subscribe", "sub": "s", "t": "a", "bm": "20269999T999999Z"}, b"", "bad_bookmark"),
    ({"c": "subscribe", "sub": "s", "t": "a(", "bm": "0"}, b"", "bad_regex"),
    ({"c": "unsubscribe", "sub": {"a": 1}}, b"", "bad_command"),
    ({"c": "heartbeat", "o": {"start_s": float("nan")}}, b"", "bad_command"),
    ({"c": "heartbeat", "o": {"start_s": 1e-9}}, b"", "bad_command"),
    ({"c": "flush", "a": 5}, b"", "bad_command"),
    ({"c": "p", "t": "", "s": 1}, b"", "bad_topic"),
    ({"c": "p", "t": b"\xff", "s": 1}, b"", "bad_command"),
    ({"c": "p", "t": "orders", "mt": b"\xff", "s": 1}, b"", "bad_command"),
    ({"c": "p", "t": "orders", "s": -1}, b"", "bad_command"),
    ({"c": "p", "t": "orders", "s": 1 << 63}, b"", "bad_command"),
    ({"c": "p", "t": "orders", "s": 1, "e": 1 << 32}, b"", "bad_command"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, kind=b"\xff"), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, topic=b"\xff\xfe"), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, kind=b""), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 0), "sequence_order"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1 << 63), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, command=0), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, command=3), "no_queue"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1, command=4), "bad_record"),
    ({"c": "pb", "n": 2}, record_of(BAD, 1) + record_of(BAD, 2, command=5), "bad_record"),
    ({"c": "p", "t": "orders", "s": 1, "a": "persistent"}, b"", "bad_command"),
    ({"c": "flush", "a": "persisted,durable"}, b"", "bad_command"),
    ({"c": "pb", "n": 2}, record_of(BAD, 1) + record_of(BAD, 2, command=7), "bad_record"),
    ({"c": "pb", "n": 2}, record_of(BAD, 1) + record_of(BAD, 2, trace=b"short"), "bad_record"),
    ({"c": "pb", "n": 1}, record_of(BAD, 1) + record_of(BAD, 2), "bad_record"),
    ({"c": "pb", "n": 3}, record_of(BAD, 1) + record_of(BAD, 2), "bad_record"),
    ({"c": "pb"}, record_of(BAD, 1), "bad_command"),
    ({"c": "pb", "n": 2}, record_of(BAD, 1) + record_of(BAD, 2, kind=b"\xff"), "bad_record"),
    ({"c": "logon", "v": 1, "client_name": BAD, "cid": "2"}, b"", "bad_command"),
    ({"c": "ack", "a": "persisted", "s": 5}, b"", "unknown_command"),
]


@pytest.mark.covers("Clients and protocol", "records of an unknown command")
def test_nasty_values_are_refused_and_nothing_of_them_is_taken(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    good = Good(server)
    for header, body, reason in COMMANDS:
        client = Client(server.address, BAD)
        client.send({"cid": "x"} | header, body)
        answer = client.next(lambda frame: frame.header.get("status") == "failure").header
        assert answer["reason"].startswith(reason), (header, answer)
        assert answer["text"], header
        client.close()
        good.publishes()
    good.kept()
    assert Client(server.address, BAD).answer["highest"] == 0


def test_a_message_that_is_too_large_is_refused_by_its_sequence(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, BAD)
    client.send({"c": "p", "t": "orders", "s": 1, "a": "persisted"}, bytes(RECORD_BYTES_MAX))
    refused = client.ack(a="persisted").header
    assert (refused["s"], refused["status"], refused["reason"]) == (1, "failure", "bad_record")
    client.send({"c": "p", "t": "orders", "s": 2, "a": "persisted"}, b"{}")
    assert client.ack(a="persisted").header["s"] == 2
    assert [number for _, number in server.journal()] == [2]


def test_a_refused_command_without_an_id_is_no_end_of_the_session(
    servers: Servers, tmp_path: Path
) -> None:
    client = Client(single(servers, tmp_path).address, BAD)
    for header in ({"sub": "none", "o": {"resume": True}}, {"sub": 5, "t": "orders"}):
        client.send({"c": "subscribe", "a": "processed"} | header)
        refused = client.next(lambda frame: frame.header.get("status") == "failure").header
        assert refused["cid"] == "-", refused
    client.send({"c": "ping", "cid": "p"})
    client.ack(cid="p")


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An instance for those who never get in."""
    made: Servers = []
    yield single(made, tmp_path_factory.mktemp("lasting"))
    made[0].kill()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"client_name": 5}, "bad_client_name"),
        ({"client_name": "x" * 2000}, "bad_client_name"),
        ({"low": -5}, "bad_command"),
        ({"o": 5}, "bad_command"),
        ({"o": {"ack_conflation_ms": float("inf")}}, "bad_command"),
        ({"v": None}, "bad_version"),
    ],
)
def test_a_logon_that_makes_no_sense_is_refused(
    lasting: Server, values: dict[str, Any], reason: str
) -> None:
    good = Good(lasting, f"beside {values}"[:100])
    client = Client(lasting.address)
    client.send({"c": "logon", "v": 1, "client_name": BAD, "cid": "1"} | values)
    answer = client.ack().header
    assert (answer["status"], answer["reason"]) == ("failure", reason)
    assert client.closed()
    good.publishes()
    good.kept()


@pytest.mark.slow
def test_a_frame_cut_short_is_not_taken(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also on a busy machine a whole logon takes less.
    monkeypatch.setenv("RAYLAY_TEST_LOGON_S", "5")
    server = single(servers, tmp_path)
    good = Good(server)
    records = b"".join(record_of(BAD, number) for number in range(1, 101))
    whole = encode_frame({"c": "pb", "n": 100}, records)
    for cut in (1, 5, 7, 20, len(whole) // 2, len(whole) - 1):
        client = Client(server.address, BAD)
        client.socket.sendall(whole[:cut])
        client.close()
        good.publishes()
    # Half a logon, and then nothing: the server does not wait for ever.
    silent = Client(server.address)
    silent.socket.sendall(encode_frame({"c": "logon", "v": 1, "client_name": BAD})[:-3])
    assert silent.ack().header["reason"] == "logon_timeout"
    assert silent.closed()
    good.publishes()
    good.kept()
    assert Client(server.address, BAD).answer["highest"] == 0


# -- one identity, two messages ------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "a sequence that comes again with another command")
def test_a_sequence_that_comes_again_as_another_command_is_a_conflict(
    servers: Servers, tmp_path: Path
) -> None:
    """Also after a restart, where it is read from the journal; and as it was it is acked again."""
    server = single(servers, tmp_path)
    good = Good(server)
    build = RecordBuilder(publisher_id("twice"), "orders", "json").build
    first = build(1, b"{}", 1, expiration_s=5)
    others = (
        build(1, b"{}", 1),
        build(1, b"{}", 1, expiration_s=6),
        build(1, b"{}", 1, expiration_s=5, command=Command.DELTA_PUBLISH),
        build(1, b"", 1, expiration_s=5, key=b"{}"),
    )
    client = Client(server.address, "twice")
    client.send({"c": "pb", "n": 1}, first)
    client.persisted(1)
    for restart in (False, True):
        if restart:
            server.kill()
            server.start()
        for other in others:
            client = Client(server.address, "twice")
            client.send({"c": "pb", "n": 1}, other)
            refused = client.ack(a="persisted").header
            assert (refused["s"], refused["reason"]) == (1, "sequence_conflict"), refused
        client = Client(server.address, "twice")
        client.send({"c": "pb", "n": 1}, first)
        client.persisted(1)
    good.client = Client(server.address, "good", low=1)
    good.publishes()
    good.kept()


# -- sequences ---------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "a sequence that nobody may give is refused")
def test_a_sequence_beyond_the_highest_is_refused_at_the_door(
    servers: Servers, tmp_path: Path
) -> None:
    """In one batch it stood behind a good one, was journaled, and no ack of a link could name it:
    the link was made again for ever."""
    first, second = pair(servers, tmp_path)
    good = Good(first)
    client = Client(first.address, BAD)
    payload = record_of(BAD, SEQUENCE_MAX) + record_of(BAD, SEQUENCE_MAX + 1)
    client.send({"c": "pb", "n": 2}, payload)
    answer = client.ack(a="processed").header
    assert answer["reason"] == "bad_record" and str(SEQUENCE_MAX) in answer["text"]
    assert client.closed()
    for sequence in (SEQUENCE_MAX, SEQUENCES_PLAUSIBLE + 1):
        # It would leave no numbers to whoever has the name later.
        client = Client(first.address, BAD)
        assert client.answer["highest"] == 0
        client.send({"c": "pb", "n": 1}, record_of(BAD, sequence))
        answer = client.ack(a="processed").header
        assert answer["reason"] == "implausible_sequence" and str(sequence) in answer["text"]
        assert client.closed()
    first.wait_for("reason=implausible_sequence", 2)
    client = Client(first.address, BAD)
    client.send({"c": "pb", "n": 1}, record_of(BAD, SEQUENCES_PLAUSIBLE))
    client.persisted(SEQUENCES_PLAUSIBLE)
    good.publishes()
    assert first.events("link_disconnected") == 0
    good.server = second
    good.kept()


@pytest.mark.covers("Clients and protocol", "a sequence that nobody may give is refused")
def test_a_journal_that_holds_such_a_sequence_stops_no_link(
    servers: Servers, tmp_path: Path
) -> None:
    """As an earlier release left it: everything is sent, acknowledged and settled."""
    first, second = pair(servers, tmp_path)
    for server in (first, second):
        server.kill()
    payload = b"".join(record_of("old", SEQUENCE_MAX + add) for add in range(3))
    run = first.stage(payload, SEQUENCE_HELD_MAX)
    for server in (first, second):
        server.log = ""
        server.start()
    for server in (first, second):
        server.wait_for("link_caught_up")
    good = Good(first)
    assert first.events("link_disconnected") == 0, first.log
    for server in (first, second):
        good.server = server
        good.kept()
        held = {number for publisher, number in server.journal() if publisher == run.publisher}
        assert held == {SEQUENCE_MAX, SEQUENCE_MAX + 1, SEQUENCE_MAX + 2}
    old = Client(first.address, "old", low=SEQUENCE_MAX)
    assert old.answer["durable"] == [[SEQUENCE_MAX, SEQUENCE_MAX + 2]]
    reader = Client(second.address, "reader")
    reader.send({"c": "subscribe", "sub": "s", "t": "orders", "bm": "0"})
    assert len(reader.receive(6)) == 6


def test_nobody_takes_the_numbers_that_a_server_gives(servers: Servers, tmp_path: Path) -> None:
    """What a server numbers has a publisher of its own, whose name nobody knows: the one of
    earlier releases could be taken, and its numbers used up."""
    server = single(servers, tmp_path)
    good = Good(server)
    asker = Client(server.address, "asker")
    taker = f"asker|{asker.answer['incarnation']}"
    client = Client(server.address, taker)
    client.send({"c": "pb", "n": 1}, record_of(taker, SEQUENCES_PLAUSIBLE))
    client.persisted(SEQUENCES_PLAUSIBLE)
    asker.send({"c": "p", "t": "orders", "cid": "u", "a": "persisted"}, b"{}")
    assert asker.ack(cid="u").header["status"] == "success"
    asker.publish(range(1, 4))
    asker.persisted(3)
    good.publishes()
    good.kept()


# -- disks -----------------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk_at(tmp_path / "disk", 6) as disk:
        yield disk


def test_a_client_outlives_a_full_disk_beneath_its_publish_store(
    servers: Servers, small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LMDB calls the short write an input/output error. The client says what is full, and goes on
    when there is room again; nothing is lost or published twice."""
    server = single(servers, tmp_path, first=True)
    events: list[Any] = []
    full = threading.Event()

    def told(event: Any) -> None:
        events.append(event)
        if isinstance(event, StoreFailed):
            full.set()

    store, ballast = LmdbPublishStore(small_disk / "publishes.lmdb"), small_disk / "ballast"
    client = SyncClient("desk", [server.address], publish_store=store, on_event=told)
    try:
        client.publish("orders", b"0")
        client.flush(DEADLINE_S)
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        for number in range(1, 101):
            client.publish("orders", b"%d" % number + bytes(20_000))
        assert full.wait(DEADLINE_S)
        (failed, *_) = [event for event in events if isinstance(event, StoreFailed)]
        assert failed.error.retriable and str(small_disk) in str(failed.error)
        with pytest.raises(FlushTimeout, match=f"publish store cannot be written: {small_disk}/p"):
            client.flush(0.1)
        ballast.unlink()
        client.flush(DEADLINE_S)
    finally:
        ballast.unlink(missing_ok=True)
        client.close(flush=False)
    store.close()
    assert len(server.journal()) == 101
    assert not [record for record in caplog.records if record.name == "asyncio"], "a traceback"


def test_a_full_disk_passes_when_there_is_space_again(servers: Servers, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 * 1024 * 1024))
    server = single(servers, small_disk, journal=JournalConfig(segment_bytes=1024 * 1024))
    good = Good(server)
    filler = Client(server.address, "filler")
    builder = RecordBuilder(filler.answer["publisher"], "orders", "json")
    acked = number = 0
    reason = ""
    while not reason:
        number += 1
        assert number < 200, "the disk does not get full"
        filler.send({"c": "pb", "n": 1}, builder.build(number, bytes(100_000), 1))
        frame = filler.ack().header
        reason = frame.get("reason", "")
        acked = acked if reason else frame["s"]
    assert reason == "storage_full" and filler.closed()
    server.wait_for("storage_failed")
    # A publish that the server was to number is not left without a word either.
    while server.events("storage_failed") < 2:
        asker = Client(server.address, "asker")
        asker.send({"c": "p", "t": "orders", "cid": "u", "a": "persisted"}, bytes(200_000))
        frame = asker.ack().header
        if frame["status"] == "success":
            # What is left may take one more.
            continue
        assert frame["reason"] == "storage_full" and asker.closed()
    time_s = time.monotonic()
    ballast.unlink()
    while True:
        # The well-behaved client meets the full disk like everybody, and comes again.
        again = Client(server.address, "good", low=1)
        again.publish(range(again.answer["highest"] + 1, good.last + 4))
        frame = again.ack().header
        if frame["status"] == "success":
            break
        assert frame["reason"] == "storage_full"
        assert time.monotonic() - time_s < DEADLINE_S
    good.last += 3
    if frame["s"] < good.last:
        again.persisted(good.last)
    good.client = again
    good.publishes()
    filler = Client(server.address, "filler", low=1)
    assert filler.answer["durable"] == [[1, acked]]
    filler.send({"c": "pb", "n": 1}, builder.build(acked + 1, b"{}", 1))
    filler.persisted(acked + 1)
    good.kept()
    server.kill()
    server.start()
    assert Client(server.address, "filler", low=1).answer["durable"] == [[1, acked + 1]]
    good.kept()


def test_what_is_opened_on_a_full_disk_says_so(small_disk: Path) -> None:
    """LMDB's lock table is mapped: on a full disk the first write to it killed the process."""
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(8 * 1024 * 1024))
    opened = (
        lambda: LmdbStateStore(small_disk / "state"),
        lambda: LmdbPublishStore(small_disk / "publishes"),
        lambda: open_environment(
            small_disk / "spare.live", writable=True, map_bytes=1 << 20, create=True
        ),
    )
    for attempt in opened:
        with pytest.raises(StorageFull, match=str(small_disk)):
            attempt()
    ballast.unlink()
    LmdbStateStore(small_disk / "state").close()


def test_a_corrupt_segment_is_named_and_the_start_refused(servers: Servers, tmp_path: Path) -> None:
    server = single(servers, tmp_path, journal=JournalConfig(segment_bytes=1024 * 1024))
    good = Good(server)
    for _ in range(40):
        good.client.publish(range(good.last + 1, good.last + 501), text="m" * 80)
        good.last += 500
        # One commit each: several in one would make fewer and larger segments.
        good.client.persisted(good.last)
    server.kill()
    journal = server.directory / JOURNAL_DIRECTORY
    segments = sorted((*journal.glob("journal-*.sealed"), *journal.glob("journal-*.live")))
    assert len(segments) >= 3
    for victim in (segments[0], segments[-1]):
        kept = victim.read_bytes()
        for damaged in (b"", kept[: len(kept) // 2 + 100], b"\x00" * 8192 + kept[8192:]):
            victim.write_bytes(damaged)
            refused = forked.run(
                [sys.executable, "-m", "raylay.services.server.run_instance", server.directory],
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
            assert refused.returncode == 1, (victim, len(damaged), refused)
            assert victim.name in refused.stderr
            assert victim.read_bytes() == damaged, "a refused start changed the file"
        victim.write_bytes(kept)
    server.start()
    again = Client(server.address, "good", low=1)
    assert again.answer["durable"] == [[1, good.last]]
    good.client = again
    good.publishes()
    good.kept()


# -- identities ------------------------------------------------------------------------------------
@pytest.mark.covers("Replication", "one identity, two contents")
def test_one_identity_with_two_contents_across_a_sync_pair(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = pair(servers, tmp_path)
    good = Good(first)
    second.kill()
    # Sent, and on the disk of one of two: no ack.
    here = Client(first.address, "twin")
    here.publish(range(1, 4), text="here")
    first.wait_until_journaled(publisher_id("twin"), 3)
    first.kill()
    second.start()
    there = Client(second.address, "twin")
    assert there.answer["highest"] == 0
    there.publish(range(1, 4), text="there")
    second.wait_until_journaled(publisher_id("twin"), 3)
    first.start()
    for sequence in (1, 2, 3):
        refused = there.ack(a="persisted").header
        assert (refused["s"], refused["reason"]) == (sequence, "sequence_conflict"), refused
        assert "another content" in refused["text"]
    for server in (first, second):
        server.wait_for(" conflict ")
    # Nobody who comes later is told that they are durable, and no restart changes that, where the
    # recovery point is before the refused (a kill) and where it is behind them (a stop).
    for number, stop in ((4, Server.kill), (5, Server.stop), (6, Server.kill)):
        for server in (first, second):
            late_comer_is_refused(server, number)
            good.client = Client(server.address, "good", low=1)
            good.publishes()
        for server in (first, second):
            stop(server)
        for server in (first, second):
            server.start()
    good.server = first
    good.kept()
    good.server = second
    good.kept()
    for server, text in ((first, "here"), (second, "there")):
        bodies = {
            record.sequence: record.body.decode()
            for record in records_in(server)
            if record.publisher == publisher_id("twin")
        }
        refused_bodies = {number: f"{text}{number}" for number in (1, 2, 3)}
        assert bodies == refused_bodies | {4: "m4", 5: "m5", 6: "m6"}


def late_comer_is_refused(server: Server, number: int) -> None:
    """Whoever publishes 1 to 3 of the twins again; `number` is taken."""
    late = Client(server.address, "twin", low=1)
    assert [span for span in late.answer["durable"] if span[0] <= 3] == []
    assert late.answer["highest"] >= 3
    late.publish(range(1, 4), text="here")
    for sequence in (1, 2, 3):
        answer = late.ack(a="persisted").header
        assert (answer["s"], answer["reason"]) == (sequence, "sequence_conflict"), answer
    late.publish(range(number, number + 1))
    while (answer := late.ack(a="persisted").header)["status"] == "failure" or answer["s"] < number:
        assert (answer["s"] <= 3 and answer["reason"] == "sequence_conflict") or answer["s"] > 3
    assert answer["s"] == number
    late.close()


def test_a_restart_while_something_is_asked_for_again(servers: Servers, tmp_path: Path) -> None:
    """A publisher failed over and sent again what its new instance had: that is a note in the log,
    and the instance is killed while the other one still owes its answer."""
    first, second = pair(servers, tmp_path)
    there = Client(second.address, "mover")
    there.publish(range(1, 101))
    there.persisted(100)
    second.kill()
    here = Client(first.address, "mover", low=1)
    assert (here.answer["durable"], here.answer["highest"]) == ([], 100)
    here.publish(range(1, 101))
    here.send({"c": "flush", "cid": "f", "a": "completed"})
    here.ack(cid="f")
    first.wait_for("link_disconnected")
    deadline_s = time.monotonic() + DEADLINE_S
    while not notes_in(first):
        assert time.monotonic() < deadline_s
    first.kill()
    first.start()
    here = Client(first.address, "mover", low=1)
    # They came from there, so they are there: nothing is owed for them.
    assert here.answer["durable"] == [[1, 100]]
    here.publish(range(101, 102))
    second.start()
    here.persisted(101)
    publisher = publisher_id("mover")
    for server in (first, second):
        assert server.journal() == [(publisher, number) for number in range(1, 102)]


def notes_in(server: Server) -> int:
    """How many waiters its journal notes."""
    with LmdbJournalReader(server.directory / JOURNAL_DIRECTORY) as reader:
        return sum(run.kind == Kind.WAITER for run in reader.read(0))


def records_in(server: Server) -> Iterator[Any]:
    """Every record of its journal."""
    with LmdbJournalReader(server.directory / JOURNAL_DIRECTORY) as reader:
        after_txid = 0
        while runs := reader.read(after_txid):
            after_txid = runs[-1].last_txid
            for run in runs:
                if run.kind == Kind.RECORDS:
                    yield from iterate_records(bytes(run.payload), verify=True)


# -- publishers that are killed --------------------------------------------------------------------
class Publisher:
    """A publisher's process (tests/soak/publisher.py)."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.told: list[dict[str, Any]] = []
        self.process = forked.Popen(
            [sys.executable, str(PUBLISHER_FILE), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.told.append(json.loads(line))
                self._heard.notify_all()

    def wait_for(self, lines: int) -> None:
        """Waits until it told as often."""
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.told) >= lines, DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def end(self) -> None:
        """In good order: it flushes."""
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0
        self._thread.join()
        assert self.told[-1]["settled"]


@pytest.mark.covers("The replication chapters", "reconnection and failover")
def test_a_killed_publisher_with_a_store_goes_on_where_it_was(
    servers: Servers, tmp_path: Path
) -> None:
    """SIGKILL between put and ack, again and again: nothing lost, nothing twice, no number given
    to two contents."""
    server = single(servers, tmp_path)
    good = Good(server)
    chance = random.Random(5)
    options = {
        "name": "phoenix",
        "servers": [[server.address, "solo", "group"]],
        "group": "group",
        "store": str(tmp_path / "store"),
        "topic": "orders",
        "rate_per_s": 5_000,
    }
    acked_by: list[tuple[int, int]] = []
    first = 0
    for life in range(1, 6):
        publisher = Publisher(options | {"life": life})
        publisher.wait_for(chance.randint(1, 3))
        if life == 3:
            # Dead while the instance is: what is in the store was never seen by anybody.
            server.kill()
            time.sleep(0.2)  # so that there is something that nobody saw
        if life < 5:
            publisher.kill()
        else:
            publisher.end()
        if life == 3:
            server.start()
            options["servers"] = [[server.address, "solo", "group"]]
            good.client = Client(server.address, "good", low=1)
        first = first or publisher.told[0]["first"]
        acked_by.append((publisher.told[-1]["persisted"], life))
        good.publishes()
    last = publisher.told[-1]["published"]
    assert publisher.told[-1]["persisted"] == last
    good.kept()
    found = [record for record in records_in(server) if record.publisher == publisher_id("phoenix")]
    assert [record.sequence for record in found] == list(range(first, last + 1))
    lives = [json.loads(record.body)["life"] for record in found]
    assert lives == sorted(lives) and set(lives) >= {1, 5}
    for persisted, life in acked_by:
        # What a life was acked is what it, or one before it, said: not what a later one did.
        assert persisted < first or lives[persisted - first] <= life
    assert server.events(" conflict ") == 0


def test_a_killed_publisher_without_a_store_numbers_by_the_clock(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    good = Good(server)
    options = {
        "name": "forgetful",
        "servers": [[server.address, "solo", "group"]],
        "group": "group",
        "topic": "orders",
        "rate_per_s": 5_000,
    }
    before: list[dict[str, Any]] = []
    for life in (1, 2):
        began_us = time.time_ns() // 1000
        publisher = Publisher(options | {"life": life})
        publisher.wait_for(3)
        if life == 1:
            publisher.kill()
        else:
            publisher.end()
        assert publisher.told[0]["first"] >= began_us
        before.append(publisher.told[-1])
    good.publishes()
    good.kept()
    numbers = [n for p, n in server.journal() if p == publisher_id("forgetful")]
    assert numbers == sorted(set(numbers))
    second = [number for number in numbers if number >= before[1]["first"]]
    assert second == list(range(before[1]["first"], before[1]["published"] + 1))
    earlier = numbers[: -len(second)]
    assert earlier == list(range(before[0]["first"], earlier[-1] + 1))
    assert earlier[-1] >= before[0]["persisted"]
    assert server.events(" conflict ") == 0
