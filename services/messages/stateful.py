"""Topics with state: what is added to a message before it is journaled, by the values as *staged*.

A merge, an enrichment or a delete by filter asks for the value of a key as it will be when all that
was staged is on disk. The values as committed are older by what is under way, and the next message
may come before the commit. So each topic with state keeps values over what is committed, which are
dropped where an append fails.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.messages.ranges import Range
from raylay.services.messages.records import (
    RECORD_HEADER_BYTES,
    Record,
    Run,
    iterate_records,
)
from raylay.services.messages.types.trees import Tree

RUN_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a run's records, where it is made longer here: a batch of a link is one run at least."""
_FRONT = struct.Struct("<IQ")
_TOPIC_LENGTH = struct.Struct("<H")
_TOPIC_LENGTH_AT = 16
"""Offset of the topic's length in a record (records.py)."""


class RefusedRecords(NamedTuple):
    """Records of a run that are not journaled, and never will be.

    Attributes:
        ranges: their sequences, ascending.
        reason: one word of docs/protocol.md.
        text: a sentence for people.
    """

    ranges: list[Range]
    reason: str
    text: str


class PreparedRun(NamedTuple):
    """The result of preparing a run.

    Attributes:
        runs: what is left of it, in order, in several parts where it has become long.
        refused: what is not.
        authored: what the instance itself writes in the stead of some of it
        (services/replication/instance/self_publisher.py).
    """

    runs: Sequence[Run]
    refused: Sequence[RefusedRecords] = ()
    authored: Sequence[Run] = ()


class WritePermission(Protocol):
    """Permission of a client to write topics: of some perhaps only the records that pass a filter.
    The session has it, at the instance where the client is: it is asked there and nowhere else, so
    it is in no run, journal or frame."""

    def writes_all(self, topic: bytes) -> bool:
        """Returns whether it may write every record of a topic."""

    def passes(self, topic: bytes, message: Tree) -> bool:
        """Returns whether it may write a record of a topic with these fields."""

    def refusal(self, topic: bytes, what: str) -> tuple[str, str]:
        """The reason and the sentence for a record that it may not write.

        Args:
            what: it may not do, before the topic's name.
        """


class PendingLookup(Protocol):
    """Something that takes long to be found, and is looked for in turns before a run is prepared:
    whoever publishes it waits, nobody else does."""

    @property
    def done(self) -> bool:
        """Returns whether it is found, or given up."""

    def take(self, most: int) -> None:
        """Looks on, at so many at most. On the instance's loop."""

    def close(self) -> None:
        """Nothing more is looked for. Told twice is told once."""


class Stateful(Protocol):
    """The preparation of a stateful topic's messages before the append. `TopicBook` knows which
    topics have one.

    Where a client publishes: `prepare`, then at once `staged` for what that returned. What another
    instance brought was prepared where it was published, what this instance wrote itself is as it
    is to be: both are staged as they are.

    Nothing is told here when something is committed: that is read back from the commit, like all
    that takes effect.
    """

    def looks_for(self, run: Run) -> Sequence[PendingLookup]:
        """Returns what is to be looked for before this run is prepared. Whoever asked closes it
        when the run was prepared, or never will be."""

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        """The run as it is to be journaled: merged, enriched, or as it came. The same messages, in
        the same order, with all they had but their bodies (`left_of`), without those that are
        refused: their publisher is told, the session goes on, and nothing changes by them.

        Args:
            run: new here: what is held already is not prepared again.
            now_us: by the clock on the wall.
            steady_us: by the clock that nobody sets, for what measures a time.
            permission: of the client. Each of its messages needs it for the record as it was and as
                it becomes: a message alone does not show which record it changes. None: it may
                write everything.
        """

    def staged(self, run: Run) -> None:
        """Notes that this run is on its way to the disk, with its transaction ids, behind all
        before it."""

    def failed(self, committed_txid: int) -> None:
        """Nothing staged behind this transaction id comes to the disk: it is forgotten. What is
        committed up to there may be told later."""


def with_bodies(run: Run, records: Iterable[tuple[Record, bytes]]) -> Run:
    """The run with other bodies.

    The digests stay those of what the clients sent: by them what comes again is known to be the
    same (content_digest.py), whatever was made of it here.

    Args:
        records: all of the run's, in order, each with the body that it is to have.
    """
    made = []
    for record, body in records:
        raw = record.raw
        body_at = len(raw) - len(record.trace) - len(record.body)
        checked = b"".join((raw[_FRONT.size : body_at], body, record.trace))
        made.append(_FRONT.pack(_FRONT.size + len(checked), checksum64(checked)) + checked)
    return replace(run, payload=b"".join(made), payload_checksum=0, raw=None)


def on_topic(run: Run, topic: bytes) -> Run:
    """The run on another topic: its messages are of that, and of the digests that they had."""
    made = []
    for record in iterate_records(run.payload):
        raw = record.raw
        names_at = RECORD_HEADER_BYTES + len(run.topic)
        header = bytearray(raw[_FRONT.size : RECORD_HEADER_BYTES])
        _TOPIC_LENGTH.pack_into(header, _TOPIC_LENGTH_AT - _FRONT.size, len(topic))
        checked = b"".join((header, topic, raw[names_at:]))
        made.append(_FRONT.pack(_FRONT.size + len(checked), checksum64(checked)) + checked)
    return replace(run, topic=topic, payload=b"".join(made), payload_checksum=0, raw=None)


def left_of(
    run: Run, records: Sequence[tuple[Record, bytes]], refused: Sequence[RefusedRecords]
) -> PreparedRun:
    """The run without what is refused, with other bodies.

    Args:
        records: all that is left of the run's, in order, each with the body that it is to have.
    """
    runs = []
    for part in _cut(records):
        of = run
        if len(part) < run.count:
            found = run.select([(record.sequence, record.sequence) for record, _ in part])
            assert found is not None
            of = found
        runs.append(with_bodies(of, part))
    return PreparedRun(runs, refused)


def _cut(records: Sequence[tuple[Record, bytes]]) -> list[Sequence[tuple[Record, bytes]]]:
    """Parts that are no longer than what a client sends in one frame."""
    found = []
    start = size_bytes = 0
    for at, (record, body) in enumerate(records):
        length = len(record.raw) - len(record.body) + len(body)
        if at > start and size_bytes + length > RUN_BYTES_MAX:
            found.append(records[start:at])
            start, size_bytes = at, 0
        size_bytes += length
    if start < len(records):
        found.append(records[start:])
    return found
