"""The changes of a SOW topic from the journal of its instance, for one reading of them.

The directory of the reading (directory.py) has the topic's records, folded up to a transaction id,
and rows from one transaction id to another. Everything in it follows from the journal. So a
directory that was lost is made again, while the journal holds what it is made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.pipeline.changes.directory import ChangeDirectory
from raylay.services.pipeline.changes.fold import TopicChange, TopicFold
from raylay.services.pipeline.changes.table import row_batches
from raylay.services.pipeline.journals import JournalPlace
from raylay.services.server.sow.stored_topics import FINGERPRINT, SOW_FILE, fingerprints
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import TOMBSTONE, VALUE, counts_entry
from raylay.storage.sow import LmdbSowStore
from raylay.storage.sow_reading import reading

log = logging.getLogger("raylay.pipeline")

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

    Owner: any process that has the directory's lock. Lifecycle: as long as its query's checkpoint.

    Args:
        directory: is made where there is none.
    """

    def __init__(self, directory: str | Path, topic: ChangingTopic) -> None:
        self._directory = ChangeDirectory(directory)
        self._topic = topic

    # -- the beginning of a stream ---------------------------------------------------------------
    def begun(self, first: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the offset at which the stream began (`ChangeDirectory.begun`).

        Args:
            first: returns the offset, if the stream begins now.

        Raises:
            ConfigurationError: the directory is of another topic, or of another life of it.
            StorageError: the records there cannot be made any more.
        """

        def begin() -> dict[str, Any]:
            # Before `now` is asked for, so that the records are not ahead of it.
            self._directory.drop_store()
            self._seed()
            offset = first()
            txid = int(offset[self._topic.place.instance]["txid"])
            if self._txid() > txid:
                self._directory.drop_store()
            self._check_reaches(self._txid(), txid)
            return offset

        return self._directory.begun(self._topic.meta(), begin)

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
            with self._directory.opened() as store:
                store.commit({name: (entries, txid)})

    def _txid(self) -> int:
        with self._directory.opened() as store:
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
        name = f"{after_txid}-{last_txid}{'-snapshot' if snapshot else ''}"
        make = partial(self._make, after_txid=after_txid, last_txid=last_txid, snapshot=snapshot)
        return self._directory.rows(name, after_txid, make)

    def _make(self, path: Path, after_txid: int, last_txid: int, snapshot: bool) -> None:
        directory = self._directory
        txid = self._txid()
        if txid > after_txid:
            log.warning("%s is ahead of %s: its records are made again", directory.path, after_txid)
            directory.drop_store()
            txid = 0
        if not txid:
            self._seed()
            if self._txid() > after_txid:
                directory.drop_store()
        with directory.opened() as store:
            fold = self._fold(store)
            self._check_reaches(fold.txid, after_txid)
            for _ in self._folded(fold, after_txid, saves=True):
                pass
            batches = self._batches(fold, last_txid, snapshot)
            directory.write(path, ((batch, None) for batch in batches))
            fold.save()

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


def _behind(front: bytes) -> bytes:
    return front[:-1] + bytes((front[-1] + 1,))
