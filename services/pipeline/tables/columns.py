"""Reader from blocks of a journal to Arrow batches, whole runs at a time.

A loop walks the runs, and reads the fields that a run's records share once. Of the records it reads
only the lengths, and not even these where all lengths of a run are equal. numpy gathers their
fields and Arrow their bodies, so no field of a message becomes a Python object.

The layouts are those of services/messages/records.py; `RECORD` repeats the record's layout for
numpy.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.errors import CorruptRecord
from raylay.services.messages import records
from raylay.services.messages.records import RECORD_VERSION, RUN_VERSION, Kind, Run
from raylay.services.pipeline.journals import LostRecords
from raylay.services.pipeline.tables.message_sets import MessageSelection
from raylay.services.pipeline.tables.predicates import COMMANDS, FLAGS, Predicate

if TYPE_CHECKING:
    from raylay.services.client.messages import MessageBatch

log = logging.getLogger("raylay.pipeline")

RECORD = np.dtype(
    [
        ("length", "<u4"),
        ("checksum", "<u8"),
        ("version", "u1"),
        ("command", "u1"),
        ("type_length", "u1"),
        ("trace_length", "u1"),
        ("topic_length", "<u2"),
        ("key_length", "<u2"),
        ("correlation_length", "<u2"),
        ("reserved", "<u2"),
        ("expiration_s", "<u4"),
        ("publisher", "<u8"),
        ("sequence", "<u8"),
        ("origin_time_us", "<u8"),
        ("digest", "<u8"),
    ]
)
assert RECORD.itemsize == records.RECORD_HEADER_BYTES
RECORD_BYTES = records.RECORD_HEADER_BYTES
WALKED_RECORDS_MAX = 8
"""Runs of at most this many records are walked in Python, because numpy's calls would cost more."""

TIME = pa.timestamp("us", tz="UTC")
PUBLISHER = pa.decimal128(20, 0)
PATH = pa.list_(pa.field("element", pa.string()))
COLUMNS: dict[str, pa.DataType] = {
    "instance": pa.string(),
    "segment": pa.int64(),
    "txid": pa.int64(),
    "publisher": PUBLISHER,
    "sequence": pa.int64(),
    "bookmark": pa.string(),
    "topic": pa.string(),
    "message_type": pa.string(),
    "command": pa.string(),
    "origin_time": TIME,
    "receive_time": TIME,
    "path": PATH,
    "group": pa.string(),
    "awaited": pa.bool_(),
    "late": pa.bool_(),
    "crossed": pa.bool_(),
    "traced": pa.bool_(),
    "digest": pa.int64(),
    "key": pa.binary(),
    "correlation_id": pa.binary(),
    "expiration_s": pa.int64(),
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "body": pa.binary(),
}
"""Columns of a row, in order. docs/pipeline.md describes each."""

_RUN = records._RUN
_RUN_BYTES = records.RUN_HEADER_BYTES
_CHECKED_FROM = records._RUN_CHECKED_FROM
_LENGTH = struct.Struct("<I")
_COMMAND_NAMES = pa.array([COMMANDS.get(number) for number in range(max(COMMANDS) + 1)])


@dataclass(slots=True)
class Names:
    """The fields that the runs of one header share: topic, message type, path, group."""

    topic: str
    message_type: str
    path: list[str]
    group: str
    wanted: bool


@dataclass(slots=True)
class _Runs:
    """The runs that are read together, one list for each property."""

    count: list[int] = field(default_factory=list)
    first_txid: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    receive_time_us: list[int] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    """Positions where the records begin, as lists and arrays."""


class Batches:
    """Makes Arrow batches of the blocks of one segment.

    Invariants: the rows of a batch are in the order of the log; every payload that is read passed
    its checksum, unless `verify` is off. Owner: one reader, on one thread.

    Args:
        instance: the instance's name.
        segment: the first transaction id of the segment.
        first_txid, last_txid: the wanted transaction ids, inclusive.
        columns: the wanted columns in their order; keys of `COLUMNS`.
        predicate: conditions by which records may be left out.
        damaged: turns a block's key and an error into an error that names the file.
        on_corrupt: the effect of a damaged run: `stop` raises; `skip` logs it and goes on behind
            it.
        lost: takes what `skip` leaves out.
        messages: the messages to read; None: all.
    """

    def __init__(
        self,
        instance: str,
        segment: int,
        first_txid: int,
        last_txid: int,
        columns: Sequence[str],
        predicate: Predicate,
        damaged: Callable[[int, CorruptRecord], CorruptRecord],
        *,
        verify: bool = True,
        on_corrupt: Literal["stop", "skip"] = "stop",
        lost: LostRecords | None = None,
        messages: MessageSelection | None = None,
    ) -> None:
        self._lost = lost
        self._messages = messages
        self._instance = instance
        self._segment = segment
        self._columns = tuple(columns)
        self._schema = pa.schema([pa.field(name, COLUMNS[name]) for name in columns])
        self._predicate = predicate
        self._damaged = damaged
        self._verify = verify
        self._skips = on_corrupt == "skip"
        self._times = predicate.numbers["receive_time"]
        self._publishers = predicate.numbers["publisher"]
        self._sequences = predicate.numbers["sequence"]
        txids = predicate.numbers["txid"]
        self._first = max(first_txid, txids.low or 0)
        self._last = last_txid if txids.high is None else min(last_txid, txids.high)
        self._numbers: dict[bytes, int] = {}
        self._names: list[Names] = []
        self.notes: list[Run] | None = None
        """Takes the notes that stand between the runs, where it is set to a list."""
        self.runs_read = 0
        self.runs_passed = 0
        """Number of runs of which only the header was read."""

    @property
    def names(self) -> Sequence[Names]:
        """Returns the names in the headers of the runs so far, each once."""
        return self._names

    # -- runs --------------------------------------------------------------------------------
    def batch(
        self,
        blocks: Sequence[tuple[int, bytes]],
        passing: Callable[[Rows], Any] | None = None,
    ) -> pa.RecordBatch | None:
        """Returns the rows of these blocks, (first transaction id, block) in order; None where
        there are none.

        Args:
            passing: marks the wanted rows, as booleans.

        Raises:
            CorruptRecord: a run is damaged, and `on_corrupt` is `stop`; the error names file and
                offset.
        """
        rows = self.rows(blocks)
        if rows is not None and passing is not None:
            chosen = passing(rows)
            rows = rows.only(chosen) if chosen.any() else None
        if rows is None:
            return None
        made = [rows.column(name) for name in self._columns]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def rows(self, blocks: Sequence[tuple[int, bytes]]) -> Rows | None:
        """Returns the rows as `batch` does, before columns are made of them."""
        data = blocks[0][1] if len(blocks) == 1 else b"".join([block for _, block in blocks])
        runs = _Runs()
        at = 0
        for key, block in blocks:
            end = at + len(block)
            while at < end:
                at = self._take(data, at, end, key, end - len(block), runs)
        return self._rows(blocks, data, runs) if runs.count else None

    def _take(self, data: bytes, at: int, end: int, key: int, block_at: int, runs: _Runs) -> int:
        """Takes the run at `at`, if it is wanted. Returns the position of the next run."""
        following = end
        try:
            following = self._run(data, at, end, runs)
        except CorruptRecord as error:
            text = f"run at byte {at - block_at} {error}"
            made = self._damaged(key, CorruptRecord(text, offset=at - block_at))
            if not self._skips:
                raise made from None
            # A sound header knows where its run ends; behind another the block is lost.
            following = min(end, error.offset or end)
            self._leave_out(made, key, data[at:following])
        return following

    def _run(self, data: bytes, at: int, end: int, runs: _Runs) -> int:
        """Takes the run at `at` as `_take` does. An error's offset is the position of the next run,
        if that is known."""
        if at + _RUN_BYTES > end:
            raise CorruptRecord("is cut short")
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
        ) = _RUN.unpack_from(data, at)
        names_at = at + _RUN_BYTES
        payload_at = names_at + topic_length + type_length + 8 * path_length + group_length
        following: int = at + length
        if payload_at > following or following > end or not count:
            raise CorruptRecord("has lengths that do not fit")
        if self._verify and checksum64(data[at + _CHECKED_FROM : payload_at]) != check:
            raise CorruptRecord("fails its header checksum")
        if version != RUN_VERSION:
            raise CorruptRecord(
                f"has version {version}, this software reads {RUN_VERSION}", offset=following
            )
        last_txid = first_txid + count - 1
        if last_txid < self._first or first_txid > self._last:
            return following
        if kind != Kind.RECORDS:
            if self.notes is not None:
                if checksum64(data[payload_at:following]) != payload_check:
                    raise CorruptRecord("fails its checksum", offset=following)
                self.notes.append(records.decode_run(data, at, verify=False))
            return following
        number = self._numbers.get(data[at + _RUN.size - 5 : payload_at])
        if number is None:
            number = self._new_names(data, at, topic_length, type_length, path_length, payload_at)
        if not (
            self._names[number].wanted
            and self._times.admits(receive_time_us)
            and self._publishers.admits(publisher)
            and self._sequences.meets(first_sequence, last_sequence)
            and self._predicate.wants_flags(flags)
            and (
                self._messages is None
                or self._messages.meets(publisher, first_sequence, last_sequence)
            )
        ):
            self.runs_passed += 1
            return following
        if self._verify and checksum64(memoryview(data)[payload_at:following]) != payload_check:
            raise CorruptRecord("fails its checksum", offset=following)
        self.runs_read += 1
        starts = _starts(data, payload_at, following, count)
        skipped = max(0, self._first - first_txid)
        kept = min(count, self._last - first_txid + 1)
        if skipped or kept < count:
            starts = starts[skipped:kept]
        runs.count.append(kept - skipped)
        runs.first_txid.append(first_txid + skipped)
        runs.names.append(number)
        runs.flags.append(flags)
        runs.receive_time_us.append(receive_time_us)
        runs.starts.append(starts)
        return following

    def _new_names(
        self, data: bytes, at: int, topic_length: int, type_length: int, path_length: int, end: int
    ) -> int:
        """Remembers the names in a run header. The lengths, the last five bytes of the fixed part,
        belong to the key, because the bytes of the names alone could be divided differently."""
        key = data[at + _RUN.size - 5 : end]
        topic_at = at + _RUN_BYTES
        type_at = topic_at + topic_length
        path_at = type_at + type_length
        group_at = path_at + 8 * path_length
        topic = data[topic_at:type_at].decode("utf-8", "replace")
        message_type = data[type_at:path_at].decode("utf-8", "replace")
        group = data[group_at:end].decode("utf-8", "replace")
        texts = self._predicate.texts
        wanted = texts["instance"].admits(self._instance) and texts["group"].admits(group)
        if topic:  # otherwise the records have topics of their own
            wanted = wanted and texts["topic"].admits(topic)
            wanted = wanted and texts["message_type"].admits(message_type)
        self._names.append(
            Names(
                topic,
                message_type,
                [f"{each:016x}" for each in struct.unpack_from(f"<{path_length}Q", data, path_at)],
                group,
                wanted,
            )
        )
        number = self._numbers[key] = len(self._names) - 1
        return number

    # -- rows --------------------------------------------------------------------------------
    def _rows(self, blocks: Sequence[tuple[int, bytes]], data: bytes, runs: _Runs) -> Rows | None:
        counts = np.array(runs.count, np.int64)
        starts = np.concatenate([np.asarray(start, np.int64) for start in runs.starts])
        run = np.repeat(np.arange(len(counts)), counts)
        behind = np.cumsum(counts)
        txids = np.arange(len(starts)) + np.repeat(
            np.array(runs.first_txid, np.int64) - (behind - counts), counts
        )
        windows: Any = np.ndarray(
            (max(0, len(data) - RECORD_BYTES + 1),), RECORD, data, strides=(1,)
        )
        headers = windows[starts]
        keep = self._kept(headers, txids)
        if keep is not None:
            starts, run, txids, headers = starts[keep], run[keep], txids[keep], headers[keep]
        if not len(starts):
            return None
        rows = Rows(
            self._instance, self._segment, self._names, data, runs, starts, run, txids, headers
        )
        sound = rows.sound()
        if sound is None:
            return rows
        at = int(np.argmin(sound))
        self._unsound(blocks, data, int(starts[at]), int(txids[at]), int((~sound).sum()))
        return rows.only(sound) if sound.any() else None

    def _leave_out(self, error: CorruptRecord, txid: int, content: bytes) -> None:
        log.warning("%s: left out", error)
        if self._lost is not None:
            self._lost(str(error), txid, content)

    def _unsound(
        self, blocks: Sequence[tuple[int, bytes]], data: bytes, at: int, txid: int, count: int
    ) -> None:
        """Reports records that cannot be read: their number, and the position of the first one in
        the blocks."""
        content = data[at : at + RECORD_BYTES]
        number = 0
        while at >= len(blocks[number][1]):
            at -= len(blocks[number][1])
            number += 1
        more = f" and {count - 1} more records have" if count > 1 else " has"
        text = (
            f"record at byte {at}, of transaction id {txid},{more} lengths that do not fit, or "
            f"another version than {RECORD_VERSION}"
        )
        made = self._damaged(blocks[number][0], CorruptRecord(text, offset=at))
        if not self._skips:
            raise made
        self._leave_out(made, txid, content)

    def _kept(self, headers: Any, txids: Any) -> Any:
        """Marks the rows that may be wanted; None: all of them."""
        keep = None if self._messages is None else self._messages.marked(headers)
        for name, values in (
            ("txid", txids),
            ("sequence", headers["sequence"]),
            ("origin_time", headers["origin_time_us"]),
        ):
            wanted = self._predicate.numbers[name]
            if not wanted.free:
                passed = _admitted(values.astype(np.int64), wanted)
                keep = passed if keep is None else keep & passed
        commands = self._predicate.texts["command"]
        if commands.tests:
            numbers = [number for number, name in COMMANDS.items() if commands.admits(name)]
            passed = np.isin(headers["command"], numbers)
            keep = passed if keep is None else keep & passed
        return keep


def rows_of_deliveries(instance: str, deliveries: Sequence[MessageBatch[Any]]) -> Rows:
    """Returns the rows of deliveries that a client received: they have no segment, transaction id,
    path, group or flags.

    Args:
        deliveries: at least one; none is empty.

    Raises:
        CorruptRecord: the lengths in a delivery do not fit.
    """
    data = b"".join([each.payload for each in deliveries])
    runs = _Runs()
    at = 0
    for each in deliveries:
        end = at + len(each.payload)
        runs.starts.append(_starts(data, at, end, each.count))
        runs.count.append(each.count)
        runs.receive_time_us.append(each.timestamp_us)
        at = end
    runs.first_txid = runs.flags = [0] * len(deliveries)
    runs.names = [0] * len(deliveries)
    counts = np.array(runs.count, np.int64)
    starts = np.concatenate([np.asarray(start, np.int64) for start in runs.starts])
    windows: Any = np.ndarray((len(data) - RECORD_BYTES + 1,), RECORD, data, strides=(1,))
    run = np.repeat(np.arange(len(counts)), counts)
    txids = np.zeros(len(starts), np.int64)
    own = [Names("", "", [], "", True)]
    rows = Rows(instance, 0, own, data, runs, starts, run, txids, windows[starts])
    if rows.sound() is not None:
        raise CorruptRecord("a delivery holds records whose lengths do not fit")
    return rows


def _admitted(values: Any, wanted: Any) -> Any:
    passed = np.ones(len(values), bool)
    if wanted.low is not None:
        passed &= values >= _bounded(wanted.low)
    if wanted.high is not None:
        passed &= values <= _bounded(wanted.high)
    if wanted.values is not None:
        inside = [value for value in wanted.values if value == _bounded(value)]
        passed &= np.isin(values, np.array(inside, np.int64))
    return passed


def _bounded(value: int) -> int:
    return max(-(1 << 63), min((1 << 63) - 1, value))


def _starts(data: bytes, at: int, end: int, count: int) -> Any:
    """Returns the positions of a run's records.

    Raises:
        CorruptRecord: the lengths do not fit; the offset is the position of the next run.
    """
    if count > WALKED_RECORDS_MAX and (end - at) % count == 0:
        length = (end - at) // count
        if length >= RECORD_BYTES:
            lengths: Any = np.ndarray((count,), "<u4", data, at, (length,))
            if (lengths == length).all():
                return np.arange(at, end, length)
    unpack = _LENGTH.unpack_from
    found = []
    following = at
    for _ in range(count):
        if following + RECORD_BYTES > end:
            break
        found.append(following)
        following += unpack(data, following)[0]
    if following != end or len(found) != count:
        raise CorruptRecord("holds records whose lengths do not fit", offset=end)
    return found


class Rows:
    """The columns of one batch, made when they are asked for."""

    def __init__(
        self,
        instance: str,
        segment: int,
        names: list[Names],
        data: bytes,
        runs: _Runs,
        starts: Any,
        run: Any,
        txids: Any,
        headers: Any,
    ) -> None:
        self._instance = instance
        self._segment = segment
        self._all_names = names
        self._data = data
        self._runs = runs
        self._starts = starts
        self._run = run
        self._txids = txids
        self._count = len(starts)
        self._headers = headers
        at = starts + RECORD_BYTES
        self._ends = []
        for name in ("topic_length", "type_length", "key_length", "correlation_length"):
            at = at + headers[name]
            self._ends.append(at)
        self._body_end = starts + headers["length"] - headers["trace_length"]

    def sound(self) -> Any:
        """Marks the rows that have lengths that fit and a readable version; None: all of them."""
        wrong = (self._ends[-1] > self._body_end) | (self._headers["version"] != RECORD_VERSION)
        return ~wrong if wrong.any() else None

    def only(self, chosen: Any) -> Rows:
        return Rows(
            self._instance,
            self._segment,
            self._all_names,
            self._data,
            self._runs,
            self._starts[chosen],
            self._run[chosen],
            self._txids[chosen],
            self._headers[chosen],
        )

    @property
    def txids(self) -> Any:
        return self._txids

    @property
    def headers(self) -> Any:
        """Returns the records' headers, as an array of `RECORD`."""
        return self._headers

    @property
    def run(self) -> Any:
        """Returns for each row the index of its run in `runs`."""
        return self._run

    def runs(self) -> list[tuple[Names, int, int]]:
        """Returns (names, flags, receive time in microseconds) of each run."""
        return [
            (self._all_names[number], flags, time_us)
            for number, flags, time_us in zip(
                self._runs.names, self._runs.flags, self._runs.receive_time_us, strict=True
            )
        ]

    def column(self, name: str) -> pa.Array:
        """Returns one column of `COLUMNS`."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "instance": lambda: pa.repeat(pa.scalar(self._instance), self._count),
            "segment": lambda: pa.repeat(pa.scalar(self._segment, pa.int64()), self._count),
            "txid": lambda: pa.array(self._txids),
            "publisher": self._publisher,
            "sequence": lambda: self._number("sequence"),
            "bookmark": self._bookmark,
            "topic": lambda: self._named("topic", 0),
            "message_type": lambda: self._named("message_type", 1),
            "command": lambda: _COMMAND_NAMES.take(pa.array(self._headers["command"])),
            "origin_time": lambda: self._number("origin_time_us").cast(TIME),
            "receive_time": lambda: pa.array(
                np.array(self._runs.receive_time_us, np.int64)[self._run]
            ).cast(TIME),
            "path": lambda: self._of_run("path", PATH),
            "group": lambda: self._of_run("group", pa.string()),
            "digest": lambda: self._number("digest"),
            "key": lambda: self._optional(self._ends[1], self._ends[2]),
            "correlation_id": lambda: self._optional(self._ends[2], self._ends[3]),
            "expiration_s": self._expiration,
            "trace_id": lambda: self._trace(0, 16),
            "span_id": lambda: self._trace(16, 24),
            "body": lambda: self._slices(self._ends[3], self._body_end),
        }
        if name == "traced":
            return pa.array(self._headers["trace_length"] > 0)
        if name in FLAGS:
            flags = np.array(self._runs.flags, np.int64) & FLAGS[name]
            return pa.array((flags != 0)[self._run])
        return makers[name]()

    def _number(self, name: str) -> pa.Array:
        return pa.array(np.ascontiguousarray(self._headers[name]).view(np.int64))

    def _publisher(self) -> pa.Array:
        # A decimal is 128 bits: the id, then zeros.
        wide = np.zeros((self._count, 2), "<u8")
        wide[:, 0] = self._headers["publisher"]
        return pa.Array.from_buffers(PUBLISHER, self._count, [None, pa.py_buffer(wide)])

    def _bookmark(self) -> pa.Array:
        publishers, which = np.unique(self._headers["publisher"], return_inverse=True)
        names = pa.array([str(each) for each in publishers.tolist()]).take(pa.array(which))
        sequences = self._number("sequence").cast(pa.string())
        return pc.binary_join_element_wise(names, sequences, "", "|")

    def _named(self, name: str, end: int) -> pa.Array:
        used = {self._all_names[number].topic for number in self._runs.names}
        if "" not in used:
            return self._of_run(name, pa.string())
        first = self._starts + RECORD_BYTES if end == 0 else self._ends[end - 1]
        return self._slices(first, self._ends[end], pa.string())

    def _of_run(self, name: str, kind: pa.DataType) -> pa.Array:
        numbers, which = np.unique(np.array(self._runs.names), return_inverse=True)
        values = [getattr(self._all_names[number], name) for number in numbers.tolist()]
        return pa.array(values, kind).take(pa.array(which[self._run]))

    def _slices(self, first: Any, end: Any, kind: pa.DataType | None = None) -> pa.Array:
        """Returns the bytes from `first` to `end` of each row. Every second slice of the data is a
        row's, the others lie between: Arrow takes them without a Python object for each."""
        offsets = np.empty(2 * self._count, np.int32)
        offsets[0::2] = first
        offsets[1::2] = end
        whole = pa.Array.from_buffers(
            kind or pa.binary(),
            2 * self._count - 1,
            [None, pa.py_buffer(offsets), pa.py_buffer(self._data)],
        )
        return whole.take(pa.array(np.arange(0, 2 * self._count, 2)))

    def _optional(self, first: Any, end: Any) -> pa.Array:
        """Returns the bytes as `_slices` does; null where there are none."""
        missing = first == end
        if missing.all():
            return pa.nulls(self._count, pa.binary())
        found = self._slices(first, end)
        return pc.if_else(pa.array(missing), pa.scalar(None, pa.binary()), found)

    def _expiration(self) -> pa.Array:
        seconds = self._headers["expiration_s"].astype(np.int64)
        return pa.array(seconds, mask=seconds == 0)

    def _trace(self, first: int, end: int) -> pa.Array:
        traced = np.flatnonzero(self._headers["trace_length"])
        if not len(traced):
            return pa.nulls(self._count, pa.string())
        values: list[str | None] = [None] * self._count
        for row in traced.tolist():
            at = int(self._body_end[row])
            values[row] = self._data[at + first : at + end].hex()
        return pa.array(values, pa.string())
