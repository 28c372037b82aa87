"""Records, runs, blocks and the compressed container, byte for byte, field by field.

A change here is a change of what lies on disks and goes over wires: it needs a new version number.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.messages.ranges import PublisherRanges, SequenceSet
from raylay.services.messages.records import (
    MESSAGES,
    PATH_INCARNATIONS_MAX,
    PUBLISHED,
    RECORD_BYTES_MAX,
    SEQUENCE_HELD_MAX,
    SEQUENCE_MAX,
    Command,
    Flag,
    Kind,
    RecordBuilder,
    Run,
    author_publisher_id,
    commands_flag,
    decode_record,
    decode_run,
    decode_runs,
    iterate_records,
    path_through,
    publisher_id,
    run_of,
    scan,
    unnumbered_publisher_id,
)
from raylay.services.protocol.client.compression import COMPRESSION_TYPES, Decompressor, compressor
from raylay.services.protocol.frames import FRAME_BYTES_MAX, encode_front
from raylay.services.protocol.link.replication import REPLICATION_FRAME_BYTES_MAX
from raylay.storage.compressed import Container, write_container
from raylay.storage.segment_index import (
    OpeningEntries,
    SegmentIndex,
    check_header,
    read_header,
    with_checksum,
)
from raylay.storage.stores import LmdbPublishStore

pytestmark = pytest.mark.covers("Journal", "layouts byte by byte")

PUBLISHER = 0x1122334455667788
TRACE = bytes(range(25))

# Checksums are written out: were they computed here, another hash function would go unseen.
CONTENT = b"".join(
    (
        b"orders",  # topic
        b"json",  # message type
        b"k1",  # SOW key
        b"c-9",  # correlation id
        b'{"a": 1}',  # body
    )
)
RECORD_CHECKED = b"".join(
    (
        b"\x01",  # version
        b"\x01",  # command: publish
        b"\x04",  # type length
        b"\x19",  # trace length
        b"\x06\x00",  # topic length
        b"\x02\x00",  # SOW key length
        b"\x03\x00",  # correlation id length
        b"\x00\x00",  # reserved
        b"\x3c\x00\x00\x00",  # expiration: 60 s
        b"\x88\x77\x66\x55\x44\x33\x22\x11",  # publisher
        b"\x2a\x00\x00\x00\x00\x00\x00\x00",  # sequence: 42
        b"\x00\x40\xb5\x48\xf4\x19\x06\x00",  # origin time in microseconds
        bytes.fromhex("939195b62fa4d8df"),  # digest of the content
        CONTENT,
        TRACE,
    )
)
RECORD = b"".join(
    (
        b"\x6c\x00\x00\x00",  # length: 108
        bytes.fromhex("e2fd11e77ed1b5cf"),  # checksum of all that follows
        RECORD_CHECKED,
    )
)
ORIGIN_TIME_US = 0x000619F448B54000

RUN_CHECKED = b"".join(
    (
        b"\x01",  # version
        b"\x01",  # kind: records
        b"\x0d\x00",  # flags: awaited, traced, contiguous
        b"\x07\x00\x00\x00\x00\x00\x00\x00",  # first txid: 7
        b"\x01\x40\xb5\x48\xf4\x19\x06\x00",  # receive time
        b"\x88\x77\x66\x55\x44\x33\x22\x11",  # publisher
        b"\x2a\x00\x00\x00\x00\x00\x00\x00",  # first sequence
        b"\x2a\x00\x00\x00\x00\x00\x00\x00",  # last sequence
        b"\x01\x00\x00\x00",  # count
        bytes.fromhex("67d77eb0c8a6823b"),  # payload checksum
        b"\x06\x00",  # topic length
        b"\x04",  # type length
        b"\x02",  # path length
        b"\x07",  # group length
        b"orders",
        b"json",
        b"\xa1\x00\x00\x00\x00\x00\x00\x00",  # path: where it entered
        b"\xb2\x00\x00\x00\x00\x00\x00\x00",  # path: the direct sender
        b"Chicago",  # the sender's group
    )
)
RUN = b"".join(
    (
        b"\xd6\x00\x00\x00",  # length: 214
        bytes.fromhex("36233c5fd8cd2980"),  # header checksum
        RUN_CHECKED,
        RECORD,
    )
)


def the_record() -> bytes:
    return RecordBuilder(PUBLISHER, "orders", "json").build(
        42,
        b'{"a": 1}',
        ORIGIN_TIME_US,
        TRACE,
        expiration_s=60,
        key=b"k1",
        correlation=b"c-9",
    )


def the_run() -> Run:
    return Run(
        PUBLISHER,
        42,
        42,
        1,
        the_record(),
        b"orders",
        b"json",
        path=(0xA1, 0xB2),
        group="Chicago",
        flags=int(Flag.AWAITED | Flag.TRACED | Flag.CONTIGUOUS),
        first_txid=7,
        receive_time_us=ORIGIN_TIME_US + 1,
    )


def test_record() -> None:
    assert the_record() == RECORD
    record = decode_record(b"before" + RECORD + b"behind", 6)
    assert record.raw == RECORD
    assert (record.command, record.publisher, record.sequence) == (Command.PUBLISH, PUBLISHER, 42)
    assert (record.topic, record.message_type) == ("orders", "json")
    assert (record.key, record.correlation, record.body) == (b"k1", b"c-9", b'{"a": 1}')
    assert (record.expiration_s, record.origin_time_us) == (60, ORIGIN_TIME_US)
    assert (record.trace, record.bookmark) == (TRACE, f"{PUBLISHER}|42|")
    assert record.digest == xxh3_64_intdigest(CONTENT)


def test_the_smallest_record() -> None:
    record = RecordBuilder(1, "t", "j").build(1, b"", 0)
    assert record == b"".join(
        (
            b"\x3e\x00\x00\x00",  # length: 62
            bytes.fromhex("97484aec1f192f53"),  # checksum
            b"\x01\x01\x01\x00",  # version, command, type length, trace length
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # topic, key, correlation lengths, reserved
            b"\x00\x00\x00\x00",  # expiration
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # publisher
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # sequence
            b"\x00\x00\x00\x00\x00\x00\x00\x00",  # origin time
            bytes.fromhex("e538b4f8625e1a64"),  # digest
            b"tj",
        )
    )


@pytest.mark.covers("Configuration", "digests that decide are BLAKE2b")
def test_publisher_id() -> None:
    assert publisher_id("flights-EWR") == 3786888591017877387
    assert unnumbered_publisher_id("flights-EWR", 0xA1, 7) == 4009312393719005869
    assert author_publisher_id("flights-EWR", 0xA1, 7) == 2847533993444108876


def test_run() -> None:
    assert the_run().encode() == RUN
    run = decode_run(b"before" + RUN + b"behind", 6)
    assert run == the_run_with_checksum()
    assert run.raw == RUN
    header = read_header(RUN, 0)
    assert header.length_bytes == len(RUN)
    assert header.ranges == [(42, 42)]
    assert (header.run.path, header.run.group) == ((0xA1, 0xB2), "Chicago")


def the_run_with_checksum() -> Run:
    run = the_run()
    run.encode()
    return run


def test_block() -> None:
    note = Run(0, 0, 0, 1, b"owed", kind=Kind.WAITER, flags=0, first_txid=8)
    block = RUN + note.encode()
    assert len(note.encode()) == 73 + 4
    assert [run.kind for run in decode_runs(block)] == [Kind.RECORDS, Kind.WAITER]
    assert [run.first_txid for run in decode_runs(block)] == [7, 8]


def test_a_run_in_pieces() -> None:
    """As it was read, with the head that the journal has made, and without one: the same bytes."""
    (read,) = decode_runs(RUN)
    assert read.pieces() == (RUN,)
    fresh = replace(read, raw=None)
    assert fresh.head is None and b"".join(fresh.pieces()) == fresh.encode() == RUN
    fresh.head = fresh.encode_head()
    assert fresh.pieces()[0] is fresh.head and b"".join(fresh.pieces()) == RUN
    # Another run, made of it, has another head.
    assert replace(fresh, first_txid=8).head is None


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def test_compressed_container(tmp_path: Path) -> None:
    path = tmp_path / "container"
    entries = {b"header": b"value", b"held": b""}
    write_container(path, 7, 8, [(7, RUN), (8, b"block")], entries)
    found = path.read_bytes()

    unpacked = b"".join(
        (
            u64(7),  # first txid of the block
            b"\xd6\x00\x00\x00",  # its length
            RUN,
            u64(8),
            b"\x05\x00\x00\x00",
            b"block",
        )
    )
    header = b"".join(
        (
            b"RAYLAYZ\0",  # magic
            b"\x01\x00",  # version
            b"\x00\x00",  # reserved
            b"\x00\x00\x00\x00",  # reserved
            u64(7),  # first txid
            u64(8),  # last txid
        )
    )
    assert found[:32] == header
    tail = found[-40:]
    footer_at, footer_length, footer_check, header_check = struct.unpack("<QQQQ", tail[:32])
    assert tail[32:] == b"RAYLAYZ\0"
    assert header_check == xxh3_64_intdigest(header)
    packed_footer = found[footer_at : footer_at + footer_length]
    assert footer_at + footer_length + 40 == len(found)
    assert footer_check == xxh3_64_intdigest(packed_footer)
    packed = found[32:footer_at]
    assert zstandard.decompress(packed) == unpacked
    assert zstandard.decompress(packed_footer) == b"".join(
        (
            b"\x01\x00\x00\x00",  # groups
            u64(7),  # first txid
            u64(32),  # file offset
            struct.pack("<II", len(packed), len(unpacked)),
            u64(xxh3_64_intdigest(packed)),
            b"\x02\x00\x00\x00",  # meta entries
            b"\x06\x00\x05\x00\x00\x00headervalue",
            b"\x04\x00\x00\x00\x00\x00held",
        )
    )
    container = Container(path)
    assert (container.first_txid, container.last_txid) == (7, 8)
    assert container.entries == entries
    assert container.read_group(0) == [(7, RUN), (8, b"block")]
    container.close()


def test_segment_entries() -> None:
    held = PublisherRanges({5: SequenceSet([(1, 3)])})
    entries = dict(OpeningEntries().of(9, held))
    content = b"\x01\x00\x00\x00\x00\x00\x00\x00" + u64(9)  # version, reserved, first txid
    sequences = b"".join(
        (
            b"\x00\x00\x00\x00\x01\x00\x00\x00",  # no full stretch, one partial chunk
            u64(0) + b"\x01\x00",  # chunk 0, one range
            b"\x01\x00\x03\x00",  # 1 to 3
        )
    )
    assert entries == {
        b"header": u64(xxh3_64_intdigest(content)) + content,
        b"held" + b"\0" * 7 + b"\x05": u64(xxh3_64_intdigest(sequences)) + sequences,
    }
    check_header(entries, 9, "here")
    with pytest.raises(StorageError, match="here holds the segment of transaction id 9"):
        check_header(entries, 10, "here")
    other = with_checksum(b"\x02\x00" + content[2:])
    with pytest.raises(StorageError, match="here has version 2, this software reads 1"):
        check_header({b"header": other}, 9, "here")

    index = SegmentIndex()
    index.add(the_run(), [(42, 42)], len(RUN), True)
    sealed = index.seal_entries()
    time_us = ORIGIN_TIME_US + 1
    publisher = PUBLISHER.to_bytes(8, "big")
    assert {key: value[8:] for key, value in sealed.items()} == {
        # last txid, records, runs, bytes, first time, latest time
        b"seal": struct.pack("<QQQQQQ", 7, 1, 1, len(RUN), time_us, time_us),
        b"extents": struct.pack("<QQ", 7, time_us),  # first txid, latest time
        b"earliest": struct.pack("<Q", time_us),
        b"sum" + publisher: SequenceSet([(42, 42)]).to_bytes(),
        b"idx" + publisher: struct.pack("<QQQ", 0, 42, 42),  # extent, lowest, highest
        # messages, bytes, oldest and newest time: of the rest, and of each topic behind its topic
        # length, type length, topic and type
        b"totals": struct.pack("<QQQQ", 0, 0, 0, 0)
        + struct.pack("<HB", len(the_run().topic), len(the_run().message_type))
        + the_run().topic
        + the_run().message_type
        + struct.pack("<QQQQ", 1, len(RUN), time_us, time_us),
    }
    read = SegmentIndex.from_entries(sealed, "here")
    assert read is not None and read.topics == {(the_run().topic, the_run().message_type)}
    assert read.earliest_time_us == time_us
    without = {key: value for key, value in sealed.items() if key != b"totals"}
    assert SegmentIndex.from_entries(without, "here") is None, "it is built from the run headers"
    index.add(replace(the_run(), receive_time_us=time_us - 5), [(43, 43)], len(RUN), True)
    assert index.seal_entries()[b"earliest"][8:] == struct.pack("<Q", time_us - 5)
    index.add(replace(the_run(), topic=b"", message_type=b""), [(44, 44)], len(RUN), True)
    read = SegmentIndex.from_entries(index.seal_entries(), "here")
    assert read is not None and read.topics is None and read.totals == index.totals


def test_publish_store_file(tmp_path: Path) -> None:
    store = LmdbPublishStore(tmp_path / "publishes")
    store.put(3, b"abc")
    store.put(5, b"de")
    store.flush()
    with store._file.begin() as transaction:
        stored = dict(transaction.cursor())
    store.close()
    assert stored == {
        b"\0meta": u64(5) + u64(0) + b"\0" * 8,  # highest, acknowledged, gone: none
        b"\0\0\0\0\0\0\0\x03": b"".join(
            (u64(3), b"\x03\x00\x00\x00", b"abc", u64(5), b"\x02\x00\x00\x00", b"de")
        ),
        b"version": b"1",
    }


# -- commands -----------------------------------------------------------------------------------
@pytest.mark.covers("Clients and protocol", "a sequence that comes again with another command")
@pytest.mark.parametrize("command", Command)
def test_a_publisher_publishes_deletes_and_acknowledges_and_nothing_else(command: Command) -> None:
    build = RecordBuilder(7, "a", "json").build
    for payload in (
        build(1, b"", 1, command=command),
        build(1, b"", 1) + build(2, b"", 1, command=command),
    ):
        assert scan(payload)[-1].last_sequence == payload.count(b"json")
        if command in (1, 2, 3, 6):
            assert scan(payload, commands=PUBLISHED)
            continue
        with pytest.raises(
            CorruptRecord, match=f"command {int(command)}: .* command 1 or 2 or 3 or 6"
        ):
            scan(payload, commands=PUBLISHED)


def test_a_delta_publish() -> None:
    delta = RecordBuilder(1, "t", "j").build(1, b"", 0, command=Command.DELTA_PUBLISH)
    assert delta == b"".join(
        (
            b"\x3e\x00\x00\x00",  # length: 62
            bytes.fromhex("dbd0e81f6c5ac2a4"),  # checksum
            b"\x01\x06\x01\x00",  # version, command, type length, trace length
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # topic, key, correlation lengths, reserved
            b"\x00\x00\x00\x00",  # expiration
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # publisher
            b"\x01\x00\x00\x00\x00\x00\x00\x00",  # sequence
            b"\x00\x00\x00\x00\x00\x00\x00\x00",  # origin time
            bytes.fromhex("e538b4f8625e1a64"),  # digest
            b"tj",
        )
    )


def test_messages_and_other_commands_are_never_in_one_run() -> None:
    said = [1, 1, 6, 1, 2, 2, 4, 1, 6, 6, 2]
    build = RecordBuilder(7, "a", "json").build
    payload = b"".join(
        # A gap in the middle of each stretch of one class.
        build(number + (number > 1) + (number > 4), b"", 1, command=command)
        for number, command in enumerate(said, 1)
    )
    found = [run_of(chunk, payload) for chunk in scan(payload)]
    held = [[record.command for record in iterate_records(run.payload)] for run in found]
    assert held == [[1, 1, 6, 1], [2, 2], [4], [1, 6, 6], [2]]
    flags = [run.flags & Flag.COMMANDS for run in found]
    assert flags == [0, Flag.COMMANDS, Flag.COMMANDS, 0, Flag.COMMANDS]
    assert flags == [commands_flag(run.payload) for run in found]
    assert commands_flag(b"") == 0, "headers alone, or what a peer sends"
    for run in found:
        assert decode_run(run.encode()).flags == run.flags
    kept = found[1].select([(found[1].last_sequence, found[1].last_sequence)])
    assert kept is not None and kept.flags & Flag.COMMANDS


# -- the largest -----------------------------------------------------------------------------
ONE = st.tuples(
    st.sampled_from([(1, "a", "json"), (1, "a", "x"), (1, "ab", "json"), (2, "a", "json")]),
    st.sampled_from([1, 1, 1, 2, 0]),
    st.sampled_from(
        [Command.PUBLISH] * 3 + [Command.DELTA_PUBLISH, Command.DELETE, Command.CHECKPOINT]
    ),
    st.binary(max_size=3),
    st.sampled_from([b"", b"", TRACE]),
    st.binary(max_size=5),
)


@given(st.lists(ONE, min_size=1, max_size=12))
def test_a_payload_is_cut_where_a_plain_reading_cuts_it(
    given: list[tuple[tuple[int, str, str], int, Command, bytes, bytes, bytes]],
) -> None:
    payload, sequence, last = b"", 3, Command.PUBLISH
    expected: list[list[object]] = []
    for (publisher, topic, kind), step, command, key, trace, body in given:
        sequence += step
        made = RecordBuilder(publisher, topic, kind).build(
            sequence, body, 5, trace, command=command, key=key
        )
        names = [publisher, topic.encode(), kind.encode()]
        is_command = command not in MESSAGES
        start, payload = len(payload), payload + made
        found = expected[-1] if expected else [0] * 10
        if found[:3] == names and step and last in ({command} if is_command else MESSAGES):
            found[4] = sequence
            found[5] += 1  # type: ignore[operator]
            found[7] = len(payload)
            found[8] = found[8] or bool(trace)
        else:
            expected.append(
                [*names, sequence, sequence, 1, start, len(payload), bool(trace), is_command]
            )
        last = command
    assert [list(each) for each in scan(payload)] == expected


def test_the_largest_record_fits_every_frame() -> None:
    """A client's with the longest header of a delivery, and a link's, with all that a run has."""
    names = 1024 * "n"
    header = {"c": "p", "sub": names, "n": 1, "ts": 1 << 63, "tx": 1 << 63, "tr": 1}
    front = encode_front(header, RECORD_BYTES_MAX)
    assert len(front) - 4 + RECORD_BYTES_MAX <= FRAME_BYTES_MAX
    record = random.Random(1).randbytes(RECORD_BYTES_MAX)
    path = tuple(range(1 << 63, (1 << 63) + PATH_INCARNATIONS_MAX))
    block = Run(1, 1, 1, 1, record, b"t" * 1024, b"j" * 255, path, "g" * 255).encode()
    assert len(block) < RECORD_BYTES_MAX + 4096
    for kind in COMPRESSION_TYPES:
        packed = compressor(kind)(block)
        assert len(packed) + 4096 < REPLICATION_FRAME_BYTES_MAX
        assert Decompressor(REPLICATION_FRAME_BYTES_MAX).decompress(kind, packed) == block


def test_a_path_that_is_full_keeps_where_it_began_and_came_from_last() -> None:
    path: tuple[int, ...] = ()
    for incarnation in range(1, 1_000):
        path = path_through(path, incarnation)
        assert path[0] == 1 and path[-1] == incarnation
        assert len(path) == min(incarnation, PATH_INCARNATIONS_MAX)
        assert decode_run(Run(1, 1, 1, 1, RECORD, path=path).encode()).path == path


# -- bytes that are no records -------------------------------------------------------------------
@pytest.mark.parametrize("at", range(len(RECORD)))
def test_every_changed_byte_of_a_record_is_noticed(at: int) -> None:
    hurt = bytearray(RECORD)
    hurt[at] ^= 0x41
    for read in (lambda: decode_record(bytes(hurt)), lambda: scan(bytes(hurt))):
        with pytest.raises(CorruptRecord):
            read()


@pytest.mark.parametrize("at", range(len(RUN)))
def test_every_changed_byte_of_a_run_is_noticed(at: int) -> None:
    hurt = bytearray(RUN)
    hurt[at] ^= 0x41
    with pytest.raises(CorruptRecord):
        decode_run(bytes(hurt))


@pytest.mark.parametrize("length", range(len(RUN)))
def test_a_run_cut_short_is_noticed(length: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_run(RUN[:length])
    if length < len(RECORD):
        with pytest.raises(CorruptRecord):
            decode_record(RECORD[:length])


@pytest.mark.parametrize("last", [SEQUENCE_MAX + 1, SEQUENCE_HELD_MAX])
@pytest.mark.parametrize("step", [1, 2])
def test_a_sequence_above_the_highest_is_refused_wherever_it_stands(last: int, step: int) -> None:
    builders = [RecordBuilder(7, topic, "json") for topic in ("a", "b")]
    first = builders[0].build(last - step, b"{}", 1)
    whole = first + builders[0].build(last, b"{}", 1)
    other = builders[1].build(1, b"{}", 1)
    for payload in (whole, whole + other, whole[len(first) :]):
        with pytest.raises(CorruptRecord, match=f"to {SEQUENCE_MAX}"):
            scan(payload)
    (chunk,) = scan(whole, sequence_max=SEQUENCE_HELD_MAX)
    assert (chunk.first_sequence, chunk.last_sequence) == (last - step, last)
    top = builders[0].build(SEQUENCE_MAX - 1, b"", 1) + builders[0].build(SEQUENCE_MAX, b"", 1)
    assert scan(top)[0].last_sequence == SEQUENCE_MAX


def read_anything(data: bytes) -> None:
    """Every reader of records: gives something back or raises CorruptRecord, nothing else."""
    for verify in (True, False):
        for read in (
            lambda v=verify: decode_record(data, verify=v),
            lambda v=verify: list(iterate_records(data, verify=v)),
            lambda v=verify: decode_runs(data, verify=v),
        ):
            try:
                read()
            except CorruptRecord:
                pass
        try:
            scan(data, verify=verify)
        except CorruptRecord:
            pass
    try:
        read_header(data, 0)
    except CorruptRecord:
        pass


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    read_anything(data)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([RECORD, RUN, RECORD + RECORD, RUN + RUN]),
    st.lists(st.tuples(st.integers(0, 443), st.integers(0, 255)), max_size=6),
    st.integers(0, 444),
)
def test_hurt_bytes(sound: bytes, changes: list[tuple[int, int]], length: int) -> None:
    hurt = bytearray(sound)
    for at, value in changes:
        if at < len(hurt):
            hurt[at] = value
    read_anything(bytes(hurt[:length]))


def test_every_changed_byte_of_a_container_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "container"
    write_container(path, 7, 8, [(7, RUN), (8, b"block")], {b"header": b"value"})
    sound = path.read_bytes()
    for at in range(len(sound)):
        hurt = bytearray(sound)
        hurt[at] ^= 0x41
        path.write_bytes(hurt)
        with pytest.raises(StorageError, match="container"):
            container = Container(path)
            try:
                container.verify()
            finally:
                container.close()
    for length in range(0, len(sound), 7):
        path.write_bytes(sound[:length])
        with pytest.raises(CorruptRecord):
            Container(path)
