"""The changes of a SOW topic from running instances, for one reading of them.

The place of the reading is a number of steps: a micro-batch is one step. An instance that has all
messages of the step's end is asked for the topic's records, and the rows are what differs from the
records of the step before. The directory of the reading (directory.py) has those. It is the only
place that has them: one that was lost, or put back, ends the stream.

The records advance by the file of the last step's rows when the next step is made. So they are
never ahead of what Spark has committed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from raylay.services.errors import ConnectionLost, StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.changes.comparison import changes_between
from raylay.services.pipeline.changes.directory import ROWS, ChangeDirectory, RowBatch
from raylay.services.pipeline.changes.table import STORED_SCHEMA, row_batches
from raylay.services.pipeline.network.offsets import from_json, to_json, united
from raylay.services.pipeline.network.reading import NetworkPlace, NetworkReader
from raylay.services.sow.records import NEVER, SowRecord, encoded
from raylay.services.sow.state import VALUE
from raylay.storage.files import fault_point
from raylay.storage.sow import LmdbSowStore, TopicStore

log = logging.getLogger("raylay.pipeline")

STEP, STATE = "step", "state"
"""Fields of an offset: the number of steps since the begin, and the directory's own id."""
ATTEMPTS = 3
"""Attempts at the records of one step, if instances end meanwhile."""
_SEEN = "seen"

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NetworkTopic:
    """A SOW topic of running instances, whose changes are read.

    Attributes:
        place: the servers, and the topic by its name.
        message_type: that of its messages.
        keys: identifiers of its key fields; none: they are unknown, or it has none.
    """

    place: NetworkPlace
    message_type: str
    keys: tuple[str, ...]

    def meta(self) -> dict[str, Any]:
        """Returns what a directory is made for, as it is written down."""
        return {"topic": f"{self.message_type}/{self.place.topic}", "read": "over the network"}


class NetworkChangeState:
    """See the file's docstring.

    Owner: any process that has the directory's lock. Lifecycle: as long as its query's checkpoint.
    """

    def __init__(self, directory: str | Path, topic: NetworkTopic) -> None:
        self._directory = ChangeDirectory(directory)
        self._topic = topic
        self._name = topic.meta()["topic"]

    def begun(self, first: Offset) -> Offset:
        """Returns the offset at which the stream began (`ChangeDirectory.begun`): `first`, if it
        begins now.

        Raises:
            ConfigurationError: the directory is of another stream.
        """

        def begin() -> Offset:
            self._directory.drop_store()
            return first

        return self._directory.begun(self._topic.meta(), begin)

    def check(self, *offsets: Offset) -> None:
        """Checks that the directory is that of offsets.

        Raises:
            StorageError: it was removed, or is that of another checkpoint.
        """
        began = self._directory.known().get("began", {})
        if any(offset.get(STATE) != began.get(STATE) for offset in offsets) or not began:
            raise self._lost("it was removed, or is that of another checkpoint")

    def rows(self, start: Offset, end: Offset) -> Path:
        """Returns the file with the rows of a step. Makes it where it is not there.

        Raises:
            StorageError: the directory is not that of these offsets any more, or the instances
                lack messages of the step.
            RaylayError: no server answers, or it refuses the query.
        """
        self.check(start, end)
        make = partial(self._make, start=start, end=end)
        return self._directory.rows(_rows_name(end), start[STEP], make)

    def _make(self, path: Path, start: Offset, end: Offset) -> None:
        with self._directory.opened() as store:
            wanted = united(self._advanced(store, start), from_json(end))
            records = store.topic(self._name)
            for attempt in range(1, ATTEMPTS + 1):
                reader = NetworkReader(self._topic.place)
                try:
                    rows = self._rows(reader, wanted, records, end[STEP])
                    self._directory.write(path, rows)
                    return
                except ConnectionLost as error:
                    if attempt == ATTEMPTS:
                        raise
                    log.warning("the records of %s are asked for again: %s", self._name, error)
                finally:
                    reader.close()

    def _rows(
        self, reader: NetworkReader, wanted: PublisherRanges, before: TopicStore, step: int
    ) -> Iterator[RowBatch]:
        """Yields the rows, and behind them what the instance had then: another one that is asked
        for the next step must have that."""
        instance = reader.instance
        reader.wait_held(wanted)
        found = reader.records(self._topic.message_type)
        changes = changes_between(before, found, step, is_first=step == 1)
        for batch in row_batches(instance, self._topic.message_type, changes):
            yield batch, None
        seen = {_SEEN: json.dumps(to_json(united(wanted, reader.held())))}
        if reader.instance != instance:
            raise ConnectionLost(f"{instance} ended while its records were read")
        yield pa.RecordBatch.from_pylist([], STORED_SCHEMA), seen

    def _advanced(self, store: LmdbSowStore, start: Offset) -> PublisherRanges:
        """Brings the records to the begin of a step. Returns what the instance had that gave
        them."""
        step, at = start[STEP], store.topic(self._name).txid
        if at > step:
            raise self._lost(f"its records are those of step {at}, and the checkpoint's of {step}")
        if not step:
            return PublisherRanges()
        path = self._directory.path / f"{_rows_name(start)}{ROWS}"
        if at < step - 1 or not path.is_file():
            raise self._lost(f"it lacks the rows of step {step}")
        seen = ""
        with pa.ipc.open_stream(str(path)) as rows:
            for batch, beside in rows.iter_batches_with_custom_metadata():
                if beside is not None:
                    seen = beside[_SEEN.encode()].decode()
                elif at < step:
                    # Until all are there they count as those of the step before.
                    store.commit({self._name: (_entries(batch), at)})
                    fault_point("changes.entries")
        if at < step:
            store.commit({self._name: ({}, step)})
            fault_point("changes.advanced")
        return from_json(json.loads(seen))

    def _lost(self, text: str) -> StorageError:
        path = self._directory.path
        return StorageError(
            f"{path} is not the state that the checkpoint needs: {text}; what the records were "
            "before is known nowhere else: begin a new checkpoint with an option state of its own",
            str(path),
        )


def _rows_name(end: Offset) -> str:
    digest = sha256(json.dumps(end, sort_keys=True).encode()).hexdigest()[:16]
    return f"{end[STEP] - 1}-{end[STEP]}-{digest}"


def _entries(batch: pa.RecordBatch) -> Mapping[bytes, bytes | None]:
    """Returns the store's entries of the records that rows leave."""
    names = ("sow_key", "topic", "publisher", "sequence", "body", "txid")
    found: dict[bytes, bytes | None] = {}
    columns = [batch[name].to_pylist() for name in names]
    for key, topic, publisher, sequence, body, txid in zip(*columns, strict=True):
        name = key.encode()
        value = None
        if body is not None:
            value = encoded(
                SowRecord(
                    name, txid, int(publisher), sequence, 0, NEVER, body, topic=topic.encode()
                )
            )
        found[VALUE + name] = value
    return found
