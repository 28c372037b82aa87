"""The messages behind a queue's transaction ids: most are delivered soon after they were read from
the journal, and are still in memory; the others are read again, with those that follow them."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from raylay.services.errors import MessageTypeError, StorageError
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.messages.records import Kind, Run, decode_record
from raylay.services.messages.types.base import MessageType

KEPT_BYTES_MAX = 16 * 1024 * 1024
READ_BYTES = 512 * 1024
DELIVERY_BYTES = 512 * 1024
"""The limit of the records in one frame to the instance. A record alone may be larger."""
RUN_OVERHEAD_BYTES = 1_024
"""The memory that a cached run takes at most beside its payload, its topic and `_CachedRun`."""
INDEX_BYTES_PER_RECORD = 4
_LENGTH = struct.Struct("<I")


class RecordReader(Protocol):
    """The reads of the journal that this file needs (`JournalReader`)."""

    def read(self, after_txid: int, bytes_max: int = ...) -> list[Run]:
        """Returns committed runs behind a transaction id."""


class _CachedRun:
    """A run in memory, with the positions of its records once one has been requested."""

    __slots__ = ("ends", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ends: array[int] | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory that the run takes here. The index of its records is counted from the start,
        because the first request for a message makes it."""
        run = self.run
        return len(run.payload) + RUN_OVERHEAD_BYTES + INDEX_BYTES_PER_RECORD * (run.count + 1)

    def records(self, first_txid: int, last_txid: int) -> bytes:
        ends, before_txid = self._counted(), self.run.first_txid
        return self.run.payload[ends[first_txid - before_txid] : ends[last_txid - before_txid + 1]]

    def size(self, first_txid: int, last_txid: int) -> int:
        ends, before_txid = self._counted(), self.run.first_txid
        return ends[last_txid - before_txid + 1] - ends[first_txid - before_txid]

    def _counted(self) -> array[int]:
        payload = self.run.payload
        ends = self.ends
        if ends is None:
            ends = self.ends = array("I", (0,))
            end = 0
            for _ in range(self.run.count):
                end += _LENGTH.unpack_from(payload, end)[0]
                ends.append(end)
        return ends


class Bodies:
    """See the file's docstring.

    Owner: the queue's owner. Lifecycle: as long as that.

    Args:
        reader: the reader of the journal.
        kind: the message type by which messages are parsed; None: they are not parsed.
        kept_bytes_max: the memory for cached runs, in bytes.

    Raises, each method: StorageError: the journal cannot be read, or lacks the message.
    """

    def __init__(
        self, reader: RecordReader, kind: MessageType | None, kept_bytes_max: int = KEPT_BYTES_MAX
    ) -> None:
        self._reader = reader
        self._kind = kind
        self._bytes_max = kept_bytes_max
        self._kept: OrderedDict[int, _CachedRun] = OrderedDict()
        """The cached runs by first transaction id, the most recently used last."""
        self._firsts: list[int] = []
        self.kept_bytes = 0
        self.reads = 0
        """The number of reads of the journal for messages that were not cached."""

    def keep(self, runs: Sequence[Run]) -> None:
        """Caches runs that have been read."""
        kept, firsts = self._kept, self._firsts
        for run in runs:
            if run.kind != Kind.RECORDS or not run.count:
                continue
            before = kept.get(run.first_txid)
            if before is not None:
                if before.run.count >= run.count:
                    continue
                self._drop(run.first_txid)
            found = kept[run.first_txid] = _CachedRun(run)
            self.kept_bytes += found.memory_bytes
            if firsts and run.first_txid < firsts[-1]:
                insort(firsts, run.first_txid)
            else:
                firsts.append(run.first_txid)
        while self.kept_bytes > self._bytes_max and len(kept) > 1:
            self._drop(next(iter(kept)))

    def _drop(self, first_txid: int) -> None:
        self.kept_bytes -= self._kept.pop(first_txid).memory_bytes
        del self._firsts[bisect_right(self._firsts, first_txid) - 1]

    def record(self, txid: int) -> bytes:
        """Returns the record with this transaction id, as it lies in the journal."""
        return self._kept_with(txid).records(txid, txid)

    def records(self, txids: Sequence[int], bytes_max: int) -> tuple[list[bytes], int]:
        """Returns the first of the records with these transaction ids, in order, and how many they
        are. These are as many as fit into `bytes_max`, and at least one. Neighbouring records are
        one piece."""
        found: list[bytes] = []
        at, end, left = 0, len(txids), bytes_max
        while at < end:
            first_txid = last_txid = txids[at]
            kept = self._kept_with(first_txid)
            size = kept.size
            if at and size(first_txid, first_txid) > left:
                break
            kept_txid = kept.run.last_txid
            at += 1
            while at < end and txids[at] == last_txid + 1 <= kept_txid:
                last_txid += 1
                at += 1
            while last_txid > first_txid and size(first_txid, last_txid) > left:
                # In most calls all requested records fit, so this runs once for each frame.
                last_txid -= 1
                at -= 1
            left -= size(first_txid, last_txid)
            found.append(kept.records(first_txid, last_txid))
            if left <= 0:
                break
        return found, at

    def _kept_with(self, txid: int) -> _CachedRun:
        found = self._find(txid)
        if found is None:
            self.reads += 1
            runs = self._reader.read(txid - 1, min(READ_BYTES, self._bytes_max // 2 + 1))
            # The run was requested last, so it stays, however little memory there is.
            self.keep([*runs[1:], *runs[:1]])
            found = self._find(txid)
            if found is None:
                raise StorageError(f"the journal has no message with transaction {txid} any more")
        return found

    def _find(self, txid: int) -> _CachedRun | None:
        at = bisect_right(self._firsts, txid) - 1
        if at < 0:
            return None
        first_txid = self._firsts[at]
        found = self._kept[first_txid]
        if txid > found.run.last_txid:
            return None
        self._kept.move_to_end(first_txid)
        return found

    # -- what filters ask ----------------------------------------------------------------------
    def body(self, txid: int) -> bytes:
        return decode_record(self.record(txid), verify=False).body

    def tree(self, txid: int) -> dict[str, Any] | None:
        """Returns the parsed body of a message; None: it cannot be parsed."""
        if self._kind is None:
            return None
        try:
            return self._kind.parse(self.body(txid))
        except MessageTypeError:
            return None

    def around(self, txid: int) -> EvalContext:
        record = decode_record(self.record(txid), verify=False)
        return EvalContext(
            topic=record.topic,
            size_bytes=len(record.body),
            correlation_id=record.correlation.decode("utf-8", "surrogateescape"),
            bookmark=record.bookmark,
            sow_key=record.key.decode("utf-8", "surrogateescape"),
        )
