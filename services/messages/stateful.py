"""Topics with state: a message is completed before it is journaled, from values as *staged*.

A merge, an enrichment or a delete by filter needs the value of a key as it will be when everything
staged is on disk. Committed values would be too old by the entries under way, since the next
message may come before the commit. So each topic with state keeps staged values over the committed
ones; they are dropped when an append fails.
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
    RUN_BYTES_MAX,
    Record,
    Run,
    iterate_records,
)
from raylay.services.messages.types.trees import Tree

_FRONT = struct.Struct("<IQ")
_TOPIC_LENGTH = struct.Struct("<H")
_TOPIC_LENGTH_AT = 16
"""Offset of the topic's length in a record (records.py)."""


class RefusedRecords(NamedTuple):
    """Records of a run that are refused, and never journaled.

    Attributes:
        ranges: sequences of the refused records, ascending.
        reason: one of the reasons in docs/protocol.md.
        text: a sentence for people.
    """

    ranges: list[Range]
    reason: str
    text: str


class PreparedRun(NamedTuple):
    """The result of preparing a run.

    Attributes:
        runs: the records that are to be journaled, in order, in several runs where they have become
            long.
        refused: the records that are refused.
        authored: records that the instance itself writes in place of some of them
            (services/replication/instance/self_publisher.py).
        (services/replication/instance/self_publisher.py).
    """

    runs: Sequence[Run]
    refused: Sequence[RefusedRecords] = ()
    authored: Sequence[Run] = ()


class WritePermission(Protocol):
    """Permission of a client to write topics, possibly only records that pass a filter. It belongs
    to the client's session and is asked there only, so it is in no run, journal or frame."""

    def writes_all(self, topic: bytes) -> bool:
        """Returns whether the client may write every record of a topic."""

    def passes(self, topic: bytes, message: Tree) -> bool:
        """Returns whether the client may write a record of a topic with these fields."""

    def writes_some(self, topic: bytes) -> bool:
        """Returns whether the client may write records of a topic, all or those that pass its
        filter."""

    def refusal(self, topic: bytes, what: str) -> tuple[str, str]:
        """Returns the reason and the sentence for a record that the client may not write.

        Args:
            what: the forbidden action, before the topic's name.
        """


class PendingLookup(Protocol):
    """A long look-up that runs in slices before a run is prepared: only the publisher of that run
    waits."""

    @property
    def done(self) -> bool:
        """Returns whether the look-up is finished, or given up."""

    def take(self, most: int) -> None:
        """Continues the look-up, over at most `most` records. On the instance's loop."""

    def close(self) -> None:
        """Ends the look-up. A second call has no effect."""


class Stateful(Protocol):
    """The state of a topic, which prepares messages before the append. `TopicBook` knows which
    topics have one.

    Where a client publishes: `prepare`, then at once `staged` for the runs that it returned. A run
    of another instance was prepared where it was published, and a run that this instance wrote
    needs no preparation: both are only `staged`.

    Commits are not told here: like everything that takes effect, they are read back from the
    journal.
    """

    def looks_for(
        self, run: Run, permission: WritePermission | None = None
    ) -> Sequence[PendingLookup]:
        """Returns the look-ups that are needed before this run is prepared. The caller closes them
        when the run was prepared, or never will be.

        Args:
            permission: as of `prepare`; the look-ups find only what it allows.
        """

    def prepare(
        self,
        run: Run,
        now_us: int,
        steady_us: int,
        permission: WritePermission | None = None,
    ) -> PreparedRun:
        """Returns the run as it is to be journaled: merged, enriched, or unchanged. It keeps the
        messages, their order, and all their fields but the bodies (`left_of`), without refused
        messages: those change nothing, their publisher is told, and the session goes on.

        Args:
            run: a run that is new here: messages that are held already are not prepared again.
            now_us: time by the wall clock.
            steady_us: time by the steady clock, for durations.
            permission: the client's permission. Each message needs it for the record as it was and
                as it becomes, since a message alone does not show which record it changes. None:
                the client may write everything.
        """

    def staged(self, run: Run) -> None:
        """Notes that this run is on its way to the disk, with its transaction ids, behind all
        earlier runs."""

    def failed(self, committed_txid: int) -> None:
        """Forgets everything staged behind this transaction id: it never comes to the disk. Commits
        up to there may be told later."""


def with_bodies(run: Run, records: Iterable[tuple[Record, bytes]]) -> Run:
    """Returns the run with other bodies.

    The digests stay those of the clients' bodies: by them a message that is sent again is
    recognised (content_digest.py), whatever its journaled body is.

    Args:
        records: all records of the run in order, each with its new body.
    """
    made = []
    for record, body in records:
        raw = record.raw
        body_at = len(raw) - len(record.trace) - len(record.body)
        checked = b"".join((raw[_FRONT.size : body_at], body, record.trace))
        made.append(_FRONT.pack(_FRONT.size + len(checked), checksum64(checked)) + checked)
    return replace(run, payload=b"".join(made), payload_checksum=0, raw=None)


def on_topic(run: Run, topic: bytes) -> list[Run]:
    """Returns the run on another topic, with the digests unchanged: in several parts where the
    longer name makes it too long for one run."""
    longer = len(topic) - len(run.topic)
    if len(run.payload) + longer * run.count <= RUN_BYTES_MAX:
        return [_moved(run, topic)]
    records = [(record, record.body) for record in iterate_records(run.payload)]
    return [_moved(_part(run, part), topic) for part in _cut(records, longer)]


def _moved(run: Run, topic: bytes) -> Run:
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
    """Returns the run without the refused records, with other bodies.

    Args:
        records: all remaining records of the run in order, each with its new body.
    """
    return PreparedRun([with_bodies(_part(run, part), part) for part in _cut(records)], refused)


def _part(run: Run, records: Sequence[tuple[Record, bytes]]) -> Run:
    """Returns the run with only these of its records."""
    if len(records) == run.count:
        return run
    found = run.select([(record.sequence, record.sequence) for record, _ in records])
    assert found is not None
    return found


def _cut(
    records: Sequence[tuple[Record, bytes]], longer: int = 0
) -> list[Sequence[tuple[Record, bytes]]]:
    """Returns the records in parts, none longer than the records that a client sends in one frame.

    Args:
        longer: number of bytes by which each record grows, besides the change of its body.
    """
    found = []
    start = size_bytes = 0
    for at, (record, body) in enumerate(records):
        length = len(record.raw) - len(record.body) + len(body) + longer
        if at > start and size_bytes + length > RUN_BYTES_MAX:
            found.append(records[start:at])
            start, size_bytes = at, 0
        size_bytes += length
    if start < len(records):
        found.append(records[start:])
    return found
