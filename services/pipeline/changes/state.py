"""The directory of a reading of changes: the records of the topic where the next rows begin, and
the rows of the last micro-batches.

    meta.json       what the directory was made for, and the offset at which the stream began
    lock            held while the directory is changed
    topic.lmdb      the records, folded up to a transaction id
    A-B.arrow       the rows behind transaction id A, up to B

The rows of a stretch are written to their file before the records advance, and a stretch that is
read again is read from its file: a repeated task, a restarted query and a speculative twin get the
same rows. Everything else follows from the journal. So a directory that was lost is made again,
while the journal holds what it is made of.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.changes.fold import TopicChange, TopicFold
from raylay.services.pipeline.changes.table import STORED_SCHEMA, row_batches
from raylay.services.pipeline.journals import JournalPlace
from raylay.services.server.sow.stored_topics import FINGERPRINT, SOW_FILE, fingerprints
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import TOMBSTONE, VALUE, counts_entry
from raylay.storage.files import FileLock, make_directory, move_durably, write_text_durably
from raylay.storage.sow import LmdbSowStore
from raylay.storage.sow_reading import reading

log = logging.getLogger("raylay.pipeline")

META, LOCK, STORE, ROWS = "meta.json", "lock", "topic.lmdb", ".arrow"
READ_BYTES = 4 * 1024 * 1024
"""Bytes of the journal that are read at once."""
PENDING_BYTES = 32 * 1024 * 1024
"""Bytes of folded records from which they are written, before the place where rows begin."""


@dataclass(frozen=True, slots=True)
class ChangingTopic:
    """A SOW topic of one instance, whose changes are read.

    Attributes:
        definitions: all SOW topics of the instance: the first that fits a message keeps it.
        fingerprint: digest of the settings that decide which records there are; empty: the topic is
            in memory only at the instance.
    """

    place: JournalPlace
    definition: SowTopicDefinition
    definitions: tuple[SowTopicDefinition, ...]
    types: tuple[TypeDefinition, ...]
    fingerprint: bytes

    @classmethod
    def of(cls, places: list[JournalPlace], name: str) -> ChangingTopic:
        """Returns the topic of a name.

        Raises:
            ConfigurationError: several instances are named, or the instance has no such topic.
            RaylayError: the instance's configuration cannot be used.
        """
        if len(places) > 1:
            raise ConfigurationError(
                "changes are those at one instance, and "
                f"{', '.join(each.instance for each in places)} are named: give one, by its "
                "directory or with the option instance"
            )
        place = places[0]
        home = Path(place.journal).parent
        if not (home / INSTANCE_FILE).is_file():
            raise ConfigurationError(
                f"{home} has no {INSTANCE_FILE}: which SOW topics its journal is folded into is "
                "unknown; give the data directory of an instance"
            )
        config = InstanceConfig.load(home)
        found = [each for each in config.sow if each.name == name]
        if len(found) != 1:
            known = ", ".join(each.name for each in config.sow) or "none"
            what = "no SOW topic" if not found else f"SOW topics of {len(found)} message types"
            raise ConfigurationError(
                f"{place.instance} has {what} named {name or 'nothing (option topic)'}: "
                f"its SOW topics are {known}"
            )
        stored_as = found[0].stored_as
        marks = fingerprints(config)
        return cls(place, found[0], config.sow, config.type_definitions, marks.get(stored_as, b""))

    def meta(self) -> dict[str, Any]:
        """Returns what a directory is made for, as it is written down."""
        return {
            "topic": self.definition.stored_as,
            "instance": self.place.instance,
            "incarnation": self.place.incarnation(),
            "configuration": self.fingerprint.decode("ascii", "replace"),
        }


class ChangeState:
    """See the file's docstring.

    Owner: any process that has the lock. Lifecycle: as long as its query's checkpoint.

    Args:
        directory: is made where there is none.
    """

    def __init__(self, directory: str | Path, topic: ChangingTopic) -> None:
        self.directory = Path(directory)
        self._topic = topic

    # -- the beginning of a stream ---------------------------------------------------------------
    def begun(self, first: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the offset at which the stream began. Spark asks again after a restart in the
        first micro-batch, when `now` is another time.

        Args:
            first: returns the offset, if the stream begins now.

        Raises:
            ConfigurationError: the directory is of another topic, or of another life of it.
            StorageError: the records there cannot be made any more.
        """
        make_directory(self.directory)
        with FileLock(self.directory / LOCK, wait=True):
            path = self.directory / META
            wanted = self._topic.meta()
            if path.is_file():
                known: dict[str, Any] = json.loads(path.read_bytes())
                began: dict[str, Any] = known.pop("began")
                for name, value in wanted.items():
                    if known.get(name) != value:
                        raise ConfigurationError(
                            f"{self.directory} is the state of another stream ({name} "
                            f"{known.get(name)}, now {value}): give this one a checkpoint and an "
                            "option state of its own"
                        )
                return began
            # Before `now` is asked for, so that the records are not ahead of it.
            self._drop_store()
            self._seed()
            offset = first()
            txid = int(offset[self._topic.place.instance]["txid"])
            if self._txid() > txid:
                self._drop_store()
            self._check_reaches(self._txid(), txid)
            write_text_durably(path, json.dumps({**wanted, "began": offset}))
            return offset

    def _seed(self) -> None:
        """Takes the records from the instance's store, which has them without the journal's
        beginning."""
        place, name = self._topic.place, self._topic.definition.stored_as
        path = Path(place.journal).parent / SOW_FILE
        if not self._topic.fingerprint or not path.is_file():
            return
        with reading(path) as there:
            txid = there.txid(name)
            if not txid or there.get(name, FINGERPRINT) != self._topic.fingerprint:
                return
            entries: dict[bytes, bytes | None] = {}
            entries.update(there.entries(name, VALUE, _behind(VALUE)))
            records = len(entries)
            entries.update(there.entries(name, TOMBSTONE, _behind(TOMBSTONE)))
            entries.update(counts_entry(records, len(entries) - records))
            with self._opened() as store:
                store.commit({name: (entries, txid)})

    def _txid(self) -> int:
        with self._opened() as store:
            return store.topic(self._topic.definition.stored_as).txid

    def _check_reaches(self, txid: int, wanted_txid: int) -> None:
        """Refuses a journal that no longer leads from `txid` to where rows begin."""
        with self._topic.place.reader() as reader:
            first_txid = reader.first_txid
        if first_txid > txid + 1 and wanted_txid > txid:
            raise StorageError(
                f"{self._topic.place.journal} begins at transaction id {first_txid}: what was in "
                f"{self._topic.definition.name} at {wanted_txid} cannot be made of it; start at "
                "now (`starting` `0|1|`), with a checkpoint and an option state of their own",
                self._topic.place.journal,
            )

    # -- rows --------------------------------------------------------------------------------------
    def rows(self, after_txid: int, last_txid: int, snapshot: bool) -> Path:
        """Returns the file with the rows behind `after_txid`, up to `last_txid`. Makes it where it
        is not there.

        Args:
            snapshot: whether the records at `after_txid` come first.

        Raises:
            StorageError: the journal no longer holds what they are made of.
        """
        name = f"{after_txid}-{last_txid}{'-snapshot' if snapshot else ''}{ROWS}"
        path = self.directory / name
        if path.is_file():
            return path
        make_directory(self.directory)
        with FileLock(self.directory / LOCK, wait=True):
            if not path.is_file():
                self._make(path, after_txid, last_txid, snapshot)
        return path

    def _make(self, path: Path, after_txid: int, last_txid: int, snapshot: bool) -> None:
        txid = self._txid()
        if txid > after_txid:
            log.warning("%s is ahead of %s: its records are made again", self.directory, after_txid)
            self._drop_store()
            txid = 0
        if not txid:
            self._seed()
            if self._txid() > after_txid:
                self._drop_store()
        with self._opened() as store:
            fold = self._fold(store)
            self._check_reaches(fold.txid, after_txid)
            for _ in self._folded(fold, after_txid, saves=True):
                pass
            aside = path.with_suffix(".aside")
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_stream(str(aside), STORED_SCHEMA, options=options) as written:
                for batch in self._batches(fold, last_txid, snapshot):
                    written.write_batch(batch)
            move_durably(aside, path)
            fold.save()
        for other in self.directory.glob(f"*{ROWS}"):
            # The micro-batch before this one may be asked for again, no earlier one.
            if int(other.name.partition(ROWS)[0].split("-")[1]) < after_txid:
                other.unlink(missing_ok=True)

    def _batches(self, fold: TopicFold, last_txid: int, snapshot: bool) -> Iterator[pa.RecordBatch]:
        definition, instance = self._topic.definition, self._topic.place.instance
        if snapshot:
            yield from row_batches(instance, definition.message_type, fold.records())
        changes = self._folded(fold, last_txid)
        yield from row_batches(instance, definition.message_type, changes)

    def _folded(
        self, fold: TopicFold, last_txid: int, *, saves: bool = False
    ) -> Iterator[TopicChange]:
        """Yields the changes up to a transaction id.

        Args:
            saves: whether what was folded is written now and then.
        """
        with self._topic.place.reader() as reader:
            while (after := fold.txid) < last_txid:
                runs = reader.read(after, READ_BYTES)
                if not runs:
                    raise StorageError(
                        f"{self._topic.place.journal} ends at transaction id {after}, before "
                        f"{last_txid}, which was there when the read was planned",
                        self._topic.place.journal,
                    )
                for run in runs:
                    yield from fold.changes(run, last_txid)
                if saves and fold.pending_bytes > PENDING_BYTES:
                    fold.save()

    def _fold(self, store: LmdbSowStore) -> TopicFold:
        topic = self._topic
        return TopicFold(topic.definitions, topic.types, topic.definition.stored_as, store)

    @contextmanager
    def _opened(self) -> Iterator[LmdbSowStore]:
        store = LmdbSowStore(self.directory / STORE)
        try:
            yield store
        finally:
            store.close()

    def _drop_store(self) -> None:
        for path in self.directory.glob(f"{STORE}*"):
            path.unlink()

    def remove(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _behind(front: bytes) -> bytes:
    return front[:-1] + bytes((front[-1] + 1,))
