"""The layout of a message, from the publisher's hand to the last journal.

A *record* is the immutable part: built once by the publisher's client, then copied as bytes
through every instance, link, journal and delivery. A *run* is a stretch of records that one
arrival brought: one publisher, ascending sequences, one path. What an instance adds to a message
(local transaction id, receive time, path, flags) is the same for the whole run, so the hop header
stands once before a run and not in each record: rewriting it at a hop costs per batch, not per
message. Record number i of a run has the local transaction id `first_txid + i`.

All numbers are little-endian. Checksums and digests are XXH3 (64 bits), publisher ids BLAKE2b
(64 bits) of the client name.

    record
      u32  length            of the whole record, this field included
      u64  checksum          of everything behind this field
      u8   version           1
      u8   command           see Command
      u8   type length       bytes of the message type
      u8   trace length      0 or 25: trace id (16), span id (8), trace flags (1)
      u16  topic length      1 to 1,024
      u16  SOW key length
      u16  correlation id length
      u16  reserved          0
      u32  expiration        seconds, 0 = none
      u64  publisher         publisher id
      u64  sequence          from 1; its publisher's own
      u64  origin time       microseconds since 1970, when the client published it
      u64  digest            of `content` as the client sent it; what else two records of one
                             identity have in common, says `content_keys`
      content: topic, type, SOW key, correlation id, body  — then the trace context, last

    run
      u32  length            of header and records, this field included
      u64  header checksum   of the header behind this field
      u8   version           1
      u8   kind              see Kind
      u16  flags             see Flag
      u64  first txid        local transaction id of the first record
      u64  receive time      microseconds since 1970, here
      u64  publisher
      u64  first sequence
      u64  last sequence
      u32  count             of records; for a note: 1
      u64  payload checksum  of the records' bytes, so that a run forwarded whole is checked at once
      u16  topic length      0 when the records' topics or types differ
      u8   type length
      u8   path length       number of incarnations
      u8   group length
      topic, type, path (u64 each, oldest first, direct sender last), sender's group
      records (or the note's payload)

A *block* is runs back to back. It is what one journal key holds.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import CorruptRecord, LocalProtocolError
from raylay.services.messages.digests import PUBLISHER, digest

RECORD_VERSION = 1
RUN_VERSION = 1
TOPIC_BYTES_MAX = 1024
TYPE_BYTES_MAX = 255
KEY_BYTES_MAX = 65_535
"""Longest SOW key, and longest correlation id, in bytes."""
EXPIRATION_S_MAX = (1 << 32) - 1
RECORD_BYTES_MAX = 16 * 1024 * 1024 - 64 * 1024
"""Longest record that a publisher may send, with its header. In a frame of 16 MiB, the most that a
client reads, this leaves 64 KiB for the header of a delivery. Records of up to 16 MiB are still
read and replicated."""
RUN_BYTES_MAX = 16 * 1024 * 1024
"""Length of a run's records: what a client sends in one frame. No run is made longer here, as a
longer one would fit into no frame to a destination, or to a client, and hold them up for good; so a
link may bring none either."""
GROUP_BYTES_MAX = 255
"""Length of a group's name: a run's header has a byte for it."""
TRACE_BYTES = 25
PATH_INCARNATIONS_MAX = 255
SEQUENCE_MAX = (1 << 63) - 1
"""Highest sequence that a publisher may give. Higher ones that are stored already, up to 64 bits,
are still read, replicated and acknowledged."""
SEQUENCE_HELD_MAX = (1 << 64) - 1


class Command(IntEnum):
    """The effect of a record on the state of its topic."""

    PUBLISH = 1
    DELETE = 2
    QUEUE_ACKNOWLEDGMENT = 3
    TRANSFER = 4
    CHECKPOINT = 5
    DELTA_PUBLISH = 6
    """A delta: the client's body has the fields that change. On a topic with a SOW, the journaled
    body is the whole merged message."""
    QUEUE_REMOVAL = 7
    """A record by which an instance announces that messages left a queue without an acknowledgment
    (services/queues/records.py)."""


PUBLISHED = frozenset(
    (Command.PUBLISH, Command.DELETE, Command.DELTA_PUBLISH, Command.QUEUE_ACKNOWLEDGMENT)
)
"""Commands that a publisher's record may have. Only instances make records with the others."""
MESSAGES = frozenset((Command.PUBLISH, Command.DELTA_PUBLISH))
"""Commands of the records that are delivered to subscribers. The others only change a state."""
COMMAND_AT = 13
"""The command's byte in a record."""
_MESSAGE_BYTES = bytes(MESSAGES)


class Kind(IntEnum):
    """The kind of a run's contents."""

    RECORDS = 1
    WAITER = 2
    """A note on who waits for which messages (services/replication/acknowledgment.py). Takes one
    transaction id."""
    CONFLICT = 3
    """A note on a record that was refused because its identity is held with other content."""
    UNAVAILABLE = 4
    """A note on the sequences of its publisher that no upstream has any more, as a SequenceSet.
    Does not apply to those that arrive later after all."""


class Flag:
    """Properties that all records of a run share. Plain integers, because the operators of an
    IntFlag cost a microsecond each, for every batch."""

    AWAITED: Final = 1
    """Flag of a run that a client published here, or that arrived marked as awaited."""
    LATE: Final = 2
    """Flag of a run that arrived behind a higher sequence of its publisher on its topic."""
    TRACED: Final = 4
    """Flag of a run in which at least one record carries a trace context."""
    CONTIGUOUS: Final = 8
    """Flag of a run without a gap: last sequence - first sequence + 1 == count."""
    CROSSED: Final = 16
    """Flag of a run that has passed from one group into another on its way here, at any hop."""
    COMMANDS: Final = 32
    """Flag of records that are no messages (`MESSAGES`) and are delivered to no client. Each
    instance sets it itself (`commands_flag`)."""


FLAG_NAMES = {
    Flag.AWAITED: "awaited",
    Flag.LATE: "late",
    Flag.TRACED: "traced",
    Flag.CONTIGUOUS: "contiguous",
    Flag.CROSSED: "crossed",
    Flag.COMMANDS: "commands",
}

_RECORD = struct.Struct("<IQBBBBHHHHIQQQQ")
_RECORD_TAIL = struct.Struct("<BBBBHHHHIQQQQ")
_RECORD_SCANNED = struct.Struct("<IQ6sHH6xQQ")
"""Fields that `scan` reads. Version, command and three lengths are compared together, as
`_SHAPE`."""
_SHAPE = struct.Struct("<BBBBH")
_RECORD_FRONT = struct.Struct("<IQ")
_RUN = struct.Struct("<IQBBHQQQQQIQHBBB")
_RUN_TAIL = struct.Struct("<BBHQQQQQIQHBBB")
_RUN_FRONT = struct.Struct("<IQ")
_LENGTH = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_RECORDS = int(Kind.RECORDS)
_CONTIGUOUS = int(Flag.CONTIGUOUS)
RECORD_HEADER_BYTES = _RECORD.size
RUN_HEADER_BYTES = _RUN.size
assert RECORD_HEADER_BYTES == 60  # The loops over messages below have this number written out.
_CHECKED_FROM = _RECORD_FRONT.size
_RUN_CHECKED_FROM = _RUN_FRONT.size


def path_through(path: tuple[int, ...], incarnation: int) -> tuple[int, ...]:
    """Returns the path of messages that came by `path` and then from `incarnation`. When the path
    is full, its second incarnation is dropped: the first one decides whose acknowledgment waits,
    and a dropped one at worst gets the messages back, which it holds."""
    if len(path) >= PATH_INCARNATIONS_MAX:
        path = (path[0], *path[2:])
    return (*path, incarnation)


def publisher_id(client_name: str) -> int:
    """Returns the publisher id of a client name, the same on every instance (behaviour.md 2.4).

    Permissions belong to names, and stored data has ids: nobody may find a name whose id equals
    that of another name. With a checksum that would take seconds.
    """
    name = client_name.encode("utf-8", "surrogatepass")
    return int.from_bytes(digest(name, PUBLISHER, 8), "little") or 1


def unnumbered_publisher_id(client_name: str, incarnation: int, life: int) -> int:
    """Returns the publisher id under which one life of an instance numbers the publishes of clients
    that do not number."""
    return _own_publisher_id("client", client_name, incarnation, life)


def author_publisher_id(author: str, incarnation: int, life: int) -> int:
    """Returns the publisher id under which a part of an instance, in one life, writes records
    itself."""
    return _own_publisher_id("author", author, incarnation, life)


def _own_publisher_id(numbers: str, name: str, incarnation: int, life: int) -> int:
    # Half a surrogate pair is no UTF-8, so no frame brings it (frames.py) and no client has such a
    # name. Otherwise a client with such a name would be taken for the client `name`.
    return publisher_id(f"\udfff{numbers}|{name}|{incarnation}|{life}")


class RecordBuilder:
    """Builds the records of one publisher on one topic: the fields that are equal in all records
    are packed once."""

    __slots__ = ("_front", "_publisher", "_topic_bytes", "_topic_length", "_type_length")

    def __init__(self, publisher: int, topic: str, message_type: str) -> None:
        topic_bytes = topic.encode()
        type_bytes = message_type.encode()
        if not 1 <= len(topic_bytes) <= TOPIC_BYTES_MAX:
            raise LocalProtocolError(
                f"topic is {len(topic_bytes)} bytes long: give one of 1 to {TOPIC_BYTES_MAX}"
            )
        if not 1 <= len(type_bytes) <= TYPE_BYTES_MAX:
            raise LocalProtocolError(
                f"message type is {len(type_bytes)} bytes long: give one of 1 to {TYPE_BYTES_MAX}"
            )
        self._publisher = publisher
        self._topic_length = len(topic_bytes)
        self._type_length = len(type_bytes)
        self._front = topic_bytes + type_bytes

    @property
    def overhead_bytes(self) -> int:
        """Returns the length of a record without body, SOW key, correlation id and trace."""
        return RECORD_HEADER_BYTES + len(self._front)

    def build(
        self,
        sequence: int,
        body: bytes,
        origin_time_us: int,
        trace: bytes = b"",
        *,
        command: int = Command.PUBLISH,
        expiration_s: int = 0,
        key: bytes = b"",
        correlation: bytes = b"",
        # Bound as defaults, because a local look-up is faster than a global one, on the publish
        # path.
        _tail: struct.Struct = _RECORD_TAIL,
        _front: struct.Struct = _RECORD_FRONT,
    ) -> bytes:
        """Returns the bytes of one record. `trace` is empty or 25 bytes."""
        if key or correlation:
            content = b"".join((self._front, key, correlation, body))
        else:
            content = self._front + body
        checked = (
            _tail.pack(
                RECORD_VERSION,
                command,
                self._type_length,
                len(trace),
                self._topic_length,
                len(key),
                len(correlation),
                0,
                expiration_s,
                self._publisher,
                sequence,
                origin_time_us,
                checksum64(content),
            )
            + content
            + trace
        )
        return _front.pack(len(checked) + 12, checksum64(checked)) + checked


class Record(NamedTuple):
    """One record in decoded form, for tools, tests and slow paths; the hot path reads the bytes."""

    command: int
    publisher: int
    sequence: int
    topic: str
    message_type: str
    origin_time_us: int
    expiration_s: int
    key: bytes
    correlation: bytes
    digest: int
    trace: bytes
    body: bytes
    raw: bytes

    @property
    def bookmark(self) -> str:
        """Returns `publisher|sequence|`, the same on every instance."""
        return f"{self.publisher}|{self.sequence}|"


def decode_record(buffer: bytes | memoryview, offset: int = 0, *, verify: bool = True) -> Record:
    """Returns the record at `offset`.

    Raises:
        CorruptRecord: the bytes are no whole, sound record.
    """
    end = len(buffer)
    if offset + RECORD_HEADER_BYTES > end:
        raise CorruptRecord(f"record at byte {offset} is cut short", offset=offset)
    (
        length,
        check,
        version,
        command,
        type_length,
        trace_length,
        topic_length,
        key_length,
        correlation_length,
        _,
        expiration_s,
        publisher,
        sequence,
        origin_time_us,
        digest,
    ) = _RECORD.unpack_from(buffer, offset)
    body_at = offset + RECORD_HEADER_BYTES
    body_at += topic_length + type_length + key_length + correlation_length
    body_end = offset + length - trace_length
    if offset + length > end or body_at > body_end:
        raise CorruptRecord(f"record at byte {offset} has lengths that do not fit", offset=offset)
    raw = bytes(buffer[offset : offset + length])
    if verify and checksum64(raw[_CHECKED_FROM:]) != check:
        raise CorruptRecord(f"record at byte {offset} fails its checksum", offset=offset)
    if version != RECORD_VERSION:
        raise CorruptRecord(
            f"record at byte {offset} has version {version}, this software reads {RECORD_VERSION}",
            offset=offset,
        )
    at = RECORD_HEADER_BYTES
    topic = raw[at : at + topic_length]
    at += topic_length
    message_type = raw[at : at + type_length]
    at += type_length
    key = raw[at : at + key_length]
    at += key_length
    correlation = raw[at : at + correlation_length]
    at += correlation_length
    return Record(
        command,
        publisher,
        sequence,
        topic.decode("utf-8", "replace"),
        message_type.decode("utf-8", "replace"),
        origin_time_us,
        expiration_s,
        key,
        correlation,
        digest,
        raw[length - trace_length :] if trace_length else b"",
        raw[at : length - trace_length],
        raw,
    )


def iterate_records(payload: bytes | memoryview, *, verify: bool = False) -> Iterator[Record]:
    """Iterates over the records of a payload, decoded one by one."""
    offset = 0
    end = len(payload)
    while offset < end:
        record = decode_record(payload, offset, verify=verify)
        yield record
        offset += len(record.raw)


class Chunk(NamedTuple):
    """A stretch of one publisher's records on one topic, found by `scan`: all of them are messages,
    or all have the same other command (`commands`)."""

    publisher: int
    topic: bytes
    message_type: bytes
    first_sequence: int
    last_sequence: int
    records: int
    start: int
    end: int
    traced: bool
    commands: bool = False


def scan(
    payload: bytes,
    *,
    verify: bool = True,
    record_bytes_max: int = 0,
    sequence_max: int = SEQUENCE_MAX,
    commands: Container[int] = frozenset(Command),
    begin: int = 0,
    until: int = 0,
) -> list[Chunk]:
    """Cuts a payload into stretches of one publisher, one topic and ascending sequences, of
    messages or of one other command.

    This is the only loop over messages on their way into an instance; `verify` checks every
    record's checksum. A long payload is scanned a slice at a time: the records that begin at
    `begin` or behind it and before `until` (0: all).

    Raises:
        CorruptRecord: a record is cut short, fails its checksum, has lengths that do not fit or a
            sequence that no publisher may give.
    """
    chunks: list[Chunk] = []
    end = len(payload)
    if not end:
        return chunks
    unpack = _RECORD_SCANNED.unpack_from
    view = memoryview(payload)
    offset = start = begin
    until = until or end
    publisher = first = last = -1
    count = least = names_end = topic_length = type_length = first_command = 0
    # Fields of the previous record: a record with the same ones needs no second check.
    shape = topic_bytes = b""
    traced = is_command = False
    limit = record_bytes_max or 0xFFFFFFFF
    while offset < until:
        if offset + 60 > end:
            raise _bad(offset, "is cut short")
        length, check, form, key, corr, pub, sequence = unpack(payload, offset)
        following = offset + length
        if (
            form == shape
            and sequence > last
            and pub == publisher
            and least + key + corr <= length <= limit
            and following <= end
            and payload[offset + 60 : offset + names_end] == topic_bytes
        ):
            if verify and checksum64(view[offset + 12 : following]) != check:
                raise _bad(offset, "fails its checksum")
            last = sequence
            count += 1
            offset = following
            continue
        version, command, typ, trace, topic = _SHAPE.unpack(form)
        least = 60 + topic + typ + trace
        if length < least + key + corr or following > end or not topic:
            raise _bad(offset, "has lengths that do not fit")
        if verify and checksum64(view[offset + 12 : following]) != check:
            raise _bad(offset, "fails its checksum")
        if version != RECORD_VERSION or command not in commands:
            raise _bad_form(version, command, commands, offset)
        if length > limit:
            raise _bad_length(length, limit, offset)
        if trace not in (0, TRACE_BYTES) or topic > TOPIC_BYTES_MAX or not typ:
            raise _bad(offset, "has a bad header")
        shape, names_end = form, 60 + topic + typ
        if (
            pub == publisher
            and sequence > last
            and topic == topic_length
            and typ == type_length
            and payload[offset + 60 : offset + names_end] == topic_bytes
            and (command == first_command if is_command else command in MESSAGES)
        ):
            # A trace or a delta does not end the chunk.
            last = sequence
            count += 1
            traced = traced or trace > 0
            offset = following
            continue
        if count:
            names = topic_bytes[:topic_length], topic_bytes[topic_length:]
            chunks.append(
                Chunk(publisher, *names, first, last, count, start, offset, traced, is_command)
            )
        publisher, first, last, count, start = pub, sequence, sequence, 1, offset
        first_command, is_command = command, command not in MESSAGES
        topic_length, type_length = topic, typ
        topic_bytes = payload[offset + 60 : offset + names_end]
        traced = trace > 0
        offset = following
    names = topic_bytes[:topic_length], topic_bytes[topic_length:]
    chunks.append(Chunk(publisher, *names, first, last, count, start, offset, traced, is_command))
    # Sequences ascend in a chunk, so one check covers all of it.
    for chunk in chunks:
        if not chunk.first_sequence or chunk.last_sequence > sequence_max:
            raise _bad_sequence(chunk)
    return chunks


def _bad(offset: int, why: str) -> CorruptRecord:
    return CorruptRecord(f"record at byte {offset} {why}", offset=offset)


def _bad_form(version: int, command: int, commands: Container[int], offset: int) -> CorruptRecord:
    known = " or ".join(str(int(each)) for each in Command if each in commands)
    return CorruptRecord(
        f"record at byte {offset} has version {version} and command {command}: here is read "
        f"version {RECORD_VERSION}, command {known}",
        offset=offset,
    )


def _bad_length(length: int, limit: int, offset: int) -> CorruptRecord:
    return CorruptRecord(
        f"record at byte {offset} is {length} bytes long, the limit is {limit}", offset=offset
    )


def _bad_sequence(chunk: Chunk) -> CorruptRecord:
    return CorruptRecord(
        f"a record at or behind byte {chunk.start} has sequence "
        f"{chunk.last_sequence if chunk.first_sequence else 0}: a publisher numbers from 1 to "
        f"{SEQUENCE_MAX}",
        offset=chunk.start,
    )


def commands_flag(payload: bytes) -> int:
    """Returns `Flag.COMMANDS` where a run's records are no messages. The first record decides,
    because `scan` has cut the run so that all records are of one class."""
    return 0 if payload[COMMAND_AT : COMMAND_AT + 1] in _MESSAGE_BYTES else Flag.COMMANDS


def sequences_of(payload: bytes | memoryview) -> list[int]:
    """Returns the sequences of a payload's records, in order."""
    found: list[int] = []
    offset = 0
    end = len(payload)
    unpack = _RECORD.unpack_from
    while offset < end:
        fields = unpack(payload, offset)
        found.append(fields[12])
        offset += fields[0]
    return found


@dataclass(slots=True)
class Run:
    """One run: hop header and records. See the layout at the top of this file."""

    publisher: int
    first_sequence: int
    last_sequence: int
    count: int
    payload: bytes
    topic: bytes = b""
    message_type: bytes = b""
    path: tuple[int, ...] = ()
    group: str = ""
    flags: int = Flag.CONTIGUOUS
    kind: int = Kind.RECORDS
    first_txid: int = 0
    receive_time_us: int = 0
    payload_checksum: int = 0
    raw: bytes | None = field(default=None, repr=False, compare=False)
    """The bytes of the run with its header, if it was read from bytes."""
    with_next: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the journal commits the run together with the next one, or neither."""
    head: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The bytes of the run without its payload, as journaled; from then on they do not change."""

    @property
    def last_txid(self) -> int:
        """Returns the local transaction id of the last record."""
        return self.first_txid + self.count - 1

    @property
    def contiguous(self) -> bool:
        """Returns whether no sequence between first and last is missing."""
        return bool(self.flags & Flag.CONTIGUOUS)

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the sequences of the run, as inclusive ranges in order."""
        if self.kind != _RECORDS:
            return []
        if self.flags & Flag.CONTIGUOUS:
            return [(self.first_sequence, self.last_sequence)]
        found: list[tuple[int, int]] = []
        first = last = -1
        for sequence in sequences_of(self.payload):
            if sequence == last + 1:
                last = sequence
                continue
            if first >= 0:
                found.append((first, last))
            first = last = sequence
        found.append((first, last))
        return found

    def encode(self) -> bytes:
        """Returns header and records as bytes."""
        return self.encode_head() + self.payload

    def pieces(self) -> tuple[bytes, ...]:
        """Returns header and records in pieces, without a copy."""
        return (self.raw,) if self.raw else (self.head or self.encode_head(), self.payload)

    def encode_head(self) -> bytes:
        """Returns everything but the records as bytes."""
        if not self.payload_checksum:
            self.payload_checksum = checksum64(self.payload)
        group, path = self.group.encode(), self.path
        names = self.topic + self.message_type
        if path or group:
            names = b"".join((names, *map(_U64.pack, path), group))
        tail = _RUN_TAIL.pack(
            RUN_VERSION,
            self.kind,
            self.flags,
            self.first_txid,
            self.receive_time_us,
            self.publisher,
            self.first_sequence,
            self.last_sequence,
            self.count,
            self.payload_checksum,
            len(self.topic),
            len(self.message_type),
            len(path),
            len(group),
        )
        checked = tail + names
        return _RUN_FRONT.pack(12 + len(checked) + len(self.payload), checksum64(checked)) + checked

    def select(self, keep: list[tuple[int, int]]) -> Run | None:
        """Returns the part of this run whose sequences lie in the inclusive, ascending ranges
        `keep`.

        The part's transaction ids are no longer `first_txid + i` unless it is a suffix or prefix:
        the caller gives it new ones, or only sends it.
        """
        kept: list[bytes] = []
        payload = self.payload
        offset, end = 0, len(payload)
        unpack = _RECORD.unpack_from
        at = 0
        first = last = 0
        skipped = 0
        traced = False
        while offset < end:
            fields = unpack(payload, offset)
            length, sequence = fields[0], fields[12]
            while at < len(keep) and keep[at][1] < sequence:
                at += 1
            if at < len(keep) and keep[at][0] <= sequence:
                if not kept:
                    first = sequence
                last = sequence
                kept.append(payload[offset : offset + length])
                traced = traced or fields[5] > 0
            elif not kept:
                skipped += 1
            offset += length
        if not kept:
            return None
        count = len(kept)
        if count == self.count:
            return self
        flags = self.flags & ~(Flag.CONTIGUOUS | Flag.TRACED)
        if last - first + 1 == count:
            flags |= Flag.CONTIGUOUS
        if traced:
            flags |= Flag.TRACED
        return replace(
            self,
            payload=b"".join(kept),
            first_sequence=first,
            last_sequence=last,
            count=count,
            flags=flags,
            first_txid=self.first_txid + skipped,
            payload_checksum=0,
            raw=None,
        )

    def after(self, txid: int) -> Run | None:
        """Returns the part of this run whose local transaction ids are above `txid`."""
        if txid < self.first_txid:
            return self
        if txid >= self.last_txid:
            return None
        skip = txid - self.first_txid + 1
        offset = 0
        for _ in range(skip):
            offset += _LENGTH.unpack_from(self.payload, offset)[0]
        payload = self.payload[offset:]
        sequences = sequences_of(payload)
        count = self.count - skip
        flags = self.flags & ~Flag.CONTIGUOUS
        if sequences[-1] - sequences[0] + 1 == count:
            flags |= Flag.CONTIGUOUS
        return replace(
            self,
            payload=payload,
            first_sequence=sequences[0],
            count=count,
            flags=flags,
            first_txid=txid + 1,
            payload_checksum=0,
            raw=None,
        )


def is_plausible_header(
    kind: int,
    flags: int,
    first_sequence: int,
    last_sequence: int,
    count: int,
    names_bytes: int,
    payload_bytes: int,
) -> bool:
    """Returns whether the fields of a run's header agree with one another and with the payload's
    length. The records themselves are not read: see `check_records`.

    Args:
        names_bytes: length of topic and message type, which each record repeats.
    """
    if kind != _RECORDS:
        return count == 1
    span = last_sequence - first_sequence + 1
    return (
        0 < count <= span
        and first_sequence > 0
        and (count == span or not flags & _CONTIGUOUS)
        and count * (RECORD_HEADER_BYTES + names_bytes) <= payload_bytes
    )


def bad_run_header(
    offset: int, first_sequence: int, last_sequence: int, count: int, payload_bytes: int
) -> CorruptRecord:
    """Returns the error of a run whose header is not plausible."""
    return CorruptRecord(
        f"run at byte {offset} has a header that cannot be: {count} records, sequences "
        f"{first_sequence} to {last_sequence}, {payload_bytes} bytes",
        offset=offset,
    )


def check_records(run: Run) -> None:
    """Compares each record of a run with the run's header. For runs of unknown senders: the
    checksums of a run show that it arrived as it was sent, not that it was honest.

    Raises:
        CorruptRecord: a record is damaged, or is not what the header says.
    """
    try:
        run.topic.decode()
        run.message_type.decode()
    except UnicodeDecodeError:
        raise CorruptRecord("a run has a topic or message type that is not UTF-8") from None
    if run.kind != _RECORDS:
        raise CorruptRecord(f"a run of kind {run.kind} was sent, which holds no records")
    chunks = scan(run.payload, sequence_max=SEQUENCE_HELD_MAX)
    if len(chunks) != 1:
        raise CorruptRecord(
            f"a run on topic {run.topic.decode()!r} holds {len(chunks)} stretches of records: a "
            "run has one publisher, one topic, ascending sequences, and messages or one command"
        )
    found = chunks[0][:6]
    names = run.publisher, run.topic, run.message_type
    said = (*names, run.first_sequence, run.last_sequence, run.count)
    if found != said:
        raise CorruptRecord(
            f"the header of a run says (publisher, topic, type, first, last, count) {said}, its "
            f"records are {found}"
        )


def decode_run(block: bytes | memoryview, offset: int = 0, *, verify: bool = True) -> Run:
    """Returns the run at `offset` of a block. `verify` checks header and payload, not each record.
    The header's fields are always checked against one another.

    Raises:
        CorruptRecord: the bytes are no whole, sound run.
    """
    end = len(block)
    if offset + RUN_HEADER_BYTES > end:
        raise CorruptRecord(f"run at byte {offset} is cut short", offset=offset)
    (
        length,
        check,
        version,
        kind,
        flags,
        first_txid,
        receive_time_us,
        publisher,
        first_sequence,
        last_sequence,
        count,
        payload_check,
        topic_length,
        type_length,
        path_length,
        group_length,
    ) = _RUN.unpack_from(block, offset)
    names_at = RUN_HEADER_BYTES
    header_length = names_at + topic_length + type_length + 8 * path_length + group_length
    if length < header_length or offset + length > end:
        raise CorruptRecord(f"run at byte {offset} has lengths that do not fit", offset=offset)
    raw = bytes(block[offset : offset + length])
    if verify and checksum64(raw[_RUN_CHECKED_FROM:header_length]) != check:
        raise CorruptRecord(f"run at byte {offset} fails its header checksum", offset=offset)
    if version != RUN_VERSION:
        raise CorruptRecord(
            f"run at byte {offset} has version {version}, this software reads {RUN_VERSION}",
            offset=offset,
        )
    if not is_plausible_header(
        kind,
        flags,
        first_sequence,
        last_sequence,
        count,
        topic_length + type_length,
        length - header_length,
    ):
        raise bad_run_header(offset, first_sequence, last_sequence, count, length - header_length)
    payload = raw[header_length:]
    if verify and checksum64(payload) != payload_check:
        raise CorruptRecord(f"run at byte {offset} fails its checksum", offset=offset)
    at = names_at
    topic = raw[at : at + topic_length]
    at += topic_length
    message_type = raw[at : at + type_length]
    at += type_length
    path = struct.unpack_from(f"<{path_length}Q", raw, at) if path_length else ()
    at += 8 * path_length
    return Run(
        publisher,
        first_sequence,
        last_sequence,
        count,
        payload,
        topic,
        message_type,
        path,
        raw[at : at + group_length].decode("utf-8", "replace"),
        flags,
        kind,
        first_txid,
        receive_time_us,
        payload_check,
        raw,
    )


def decode_runs(block: bytes | memoryview, *, verify: bool = True) -> list[Run]:
    """Returns all runs of a block."""
    runs: list[Run] = []
    offset = 0
    end = len(block)
    while offset < end:
        run = decode_run(block, offset, verify=verify)
        runs.append(run)
        assert run.raw is not None
        offset += len(run.raw)
    return runs


def run_of(chunk: Chunk, payload: bytes) -> Run:
    """Returns a run of one scanned chunk, without the fields that a hop sets."""
    whole = chunk.start == 0 and chunk.end == len(payload)
    flags = 0
    if chunk.last_sequence - chunk.first_sequence + 1 == chunk.records:
        flags |= Flag.CONTIGUOUS
    if chunk.traced:
        flags |= Flag.TRACED
    if chunk.commands:
        flags |= Flag.COMMANDS
    return Run(
        chunk.publisher,
        chunk.first_sequence,
        chunk.last_sequence,
        chunk.records,
        payload if whole else payload[chunk.start : chunk.end],
        chunk.topic,
        chunk.message_type,
        flags=flags,
    )
