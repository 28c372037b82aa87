"""The SOW topics of a data directory, opened: their state in memory, and the store that keeps it.

The topics are opened before an instance recovers, as the recovery folds the journal into them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import RaylayError, SowDamaged, StorageError, StorageFull
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.sow.definition import SowTopicDefinition
from raylay.storage.files import sync_directory
from raylay.storage.lmdb_journal import LmdbJournal
from raylay.storage.sow import LmdbSowStore, MemorySowStore, SowStore

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.core.queue_source import QueueSource
    from raylay.services.core.sow import SowFeature
    from raylay.services.core.views import ViewFeature
    from raylay.services.views.conflated_topic import ConflatedTopic

SOW_FILE = "sow.lmdb"
DAMAGED_SUFFIX = ".damaged"
"""Suffix of the name of a damaged store that was moved aside. One is kept, for people to
examine."""
DAMAGED_MARK = "sow.damaged"
"""Name of the file that says that the store was found to be damaged in the life before."""
FINGERPRINT, RULES = b"f", b"r"
"""Entries of a topic: the fingerprint of the configuration of its records, and the rules of its
history."""
PENDING_BYTES = 8 * 1024 * 1024
"""Bytes of pending changes from which they are written at once, while the instance serves and in a
recovery."""
UNSAVED_BYTES_MAX = 256 * 1024 * 1024
"""Limit on the bytes of entries that are in memory and not in the store. Beyond it the instance
takes no messages, so that its memory stays bounded while the store fails, or is slower than the
publishers."""


class StoredSowTopics:
    """See the file's docstring. Opening, and every method, blocks.

    Owner: the thread of a recovery, then the instance's event loop. Lifecycle: until `close`.

    Attributes:
        feature: the SOW topics as a feature of the folds; None: there are no SOW topics.
        views: the views over them, as a feature of the folds; None: there are none.
        conflated: the conflated topics over them.
        sources: the messages of the queues that views are over, by `QueueDefinition.stored_as`.
        store: the store on disk; None: no topic is on disk, or the store is closed.
        failure: reason why the store cannot be written; empty: the store can be written.
        is_full: whether the store cannot be written because the disk is full.

    Raises:
        ConfigurationError: a definition cannot be used.
        StorageFull: there is no space for the store.
        StorageError: the store cannot be opened or read, and is not known to be damaged; or the
            journal cannot be read.
    """

    def __init__(self, runtime: InstanceRuntime, journal: LmdbJournal) -> None:
        self._runtime = runtime
        self._journal = journal
        self.store: LmdbSowStore | None = None
        self.failure = ""
        self.is_full = False
        self.feature: SowFeature | None = None
        self.views: ViewFeature | None = None
        self.conflated: tuple[ConflatedTopic, ...] = ()
        self.sources: dict[str, QueueSource] = {}
        if runtime.config.sow or runtime.config.views:
            try:
                self.feature = self._open()
            except BaseException:
                self.close()
                raise

    def _open(self) -> SowFeature:
        path = self._runtime.directory / SOW_FILE
        mark = self._runtime.directory / DAMAGED_MARK
        if mark.exists():
            self._move_aside(path, "it was found to be damaged in the life before")
            mark.unlink()
        try:
            return self._opened(path)
        except SowDamaged as error:
            self._move_aside(path, str(error))
            return self._opened(path)

    def _opened(self, path: Path) -> SowFeature:
        from raylay.services.core.sow import SowFeature
        from raylay.services.plugins.sow import sow_book

        self.close()
        config, journal = self._runtime.config, self._journal
        store: SowStore = MemorySowStore()
        if not all(each.transient for each in config.sow):
            store = self.store = LmdbSowStore(path, loaded=self._loaded)
        whole_from_us = self._match(store)
        book = sow_book(
            config.sow,
            config.type_definitions,
            store,
            instance=config.name,
            group=config.group,
        )
        for topic in book.topics:
            topic.state.whole_from_us = whole_from_us.get(topic.stored_as, 0)
        if config.views:
            from raylay.services.plugins.views import with_views

            queues = config.queue_definitions
            book, self.views, self.sources = with_views(
                book, config.views, config.type_definitions, queues
            )
        if config.conflated_topics:
            from raylay.services.plugins.views import with_conflated_topics

            book, self.conflated = with_conflated_topics(
                book, config.conflated_topics, config.type_definitions
            )
        feature = SowFeature(book)
        problems = feature.begin(journal.first_txid, journal.recovered.next_txid - 1)
        if feature.is_urgent:
            store.commit(feature.pending())
            feature.saved()
        for each in problems:
            self._runtime.report(each.event, topic=each.topic, text=each.text)
        return feature

    def _loaded(self, name: str, records: int) -> None:
        self._runtime.phase = f"recovering: the index of SOW topic {name} has {records:,} records"

    def _match(self, store: SowStore) -> dict[str, int]:
        """Drops the stored records of topics whose configuration has changed. Returns, by topic,
        the time since when its history is complete."""
        from raylay.services.sow.history_rules import went_on

        runtime = self._runtime
        prints: dict[str, tuple[dict[bytes, bytes | None], int]] = {}
        rules = {each.stored_as: each.rules for each in runtime.config.sow}
        whole_from_us: dict[str, int] = {}
        for name, wanted in fingerprints(runtime.config).items():
            topic = store.topic(name)
            found = topic.get(FINGERPRINT)
            if found is None and topic.chunk(b"", b"\xff", 1):
                # An earlier life of the instance ended while it dropped this topic.
                store.drop(name)
            elif found is not None and found != wanted:
                store.drop(name)
                first_txid = self._journal.first_txid
                runtime.report(
                    "sow_rebuilt",
                    topic=name,
                    text=f"the configuration of SOW topic {name} has changed: it is made"
                    " anew from the journal"
                    + (
                        f", which begins with transaction {first_txid}: what was published before "
                        "is not in it"
                        if first_txid > 1
                        else ""
                    ),
                )
            made: dict[bytes, bytes | None] = {} if found == wanted else {FINGERPRINT: wanted}
            if rules[name].window_us:
                ruled = topic.get(RULES) if found == wanted else None
                entry, whole_from_us[name] = went_on(ruled, rules[name], runtime.now_us())
                if ruled != entry:
                    made[RULES] = entry
            if made:
                prints[name] = made, topic.txid
        if prints:
            store.commit(prints)
        return whole_from_us

    def _move_aside(self, path: Path, why: str) -> None:
        """Moves a store that cannot be used aside, and reports that."""
        runtime = self._runtime
        self.close()
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        if path.exists():
            path.replace(aside)
        path.with_name(f"{path.name}-lock").unlink(missing_ok=True)
        sync_directory(path.parent)
        first_txid = self._journal.first_txid
        lost = (
            f"; the journal begins with transaction {first_txid}: what was published before is not "
            "in them"
            if first_txid > 1
            else ""
        )
        runtime.report(
            "sow_store_damaged",
            text=f"{path} cannot be used: {why}; it was moved to {aside.name}, and the SOW topics "
            f"are made anew from the journal{lost}",
        )

    def set_aside(self, why: str) -> None:
        """Closes the store and moves it aside, as it was found to be damaged: everything is to be
        opened and recovered again."""
        self._move_aside(self._runtime.directory / SOW_FILE, why)

    def folded(self, feature: SowFeature) -> None:
        """Called when a recovery has folded a part of the journal: writes the changes if they are
        many. Blocks.

        Raises:
            StorageError: the store cannot be written, and more changes would not fit into memory.
        """
        runtime = self._runtime
        last_txid = self._journal.recovered.next_txid - 1
        runtime.phase = (
            f"recovering: SOW topics are at transaction {feature.recovered_txid or 0:,} of "
            f"{last_txid:,}"
        )
        if feature.pending_bytes > PENDING_BYTES:
            self.write(feature)
            if self.failure and feature.unsaved_bytes > UNSAVED_BYTES_MAX:
                kind = StorageFull if self.is_full else StorageError
                raise kind(self.failure, str(runtime.directory / SOW_FILE))

    def write(self, feature: SowFeature) -> None:
        """Writes pending changes before the instance serves and at its end."""
        if self.store is None:
            return
        try:
            self.store.commit(feature.pending())
        except RaylayError as error:
            feature.not_saved()
            self.failed(error)
        else:
            feature.saved()
            self.failure = ""

    def failed(self, error: RaylayError) -> None:
        """Notes and reports that the store could not be written."""
        if not self.failure:
            self._runtime.report(
                "sow_store_failed",
                text=f"{error}; nothing is lost: the records stay in memory, and the journal that "
                "they are in is kept, until the store can be written again",
            )
        self.failure = str(error)
        self.is_full = isinstance(error, StorageFull)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
            self.store = None


def fingerprints(config: InstanceConfig) -> dict[str, bytes]:
    """Returns the fingerprints of the topics that are on disk, by their names in the store."""
    types = {each.name: asdict(each) for each in config.type_definitions}
    return {
        each.stored_as: fingerprint(each, types.get(each.message_type))
        for each in config.sow
        if not each.transient
    }


def fingerprint(definition: SowTopicDefinition, kind: dict[str, Any] | None) -> bytes:
    """Returns a digest of all settings that decide which records there are, and under which keys.

    Args:
        kind: the definition of the message type; None: the type is built in.
    """
    decides = {
        "type": [definition.message_type, kind],
        "pattern": definition.pattern,
        "keys": definition.keys,
        "key_domain": definition.key_domain,
        "key_generator": [definition.key_generator, dict(definition.key_generator_options)],
        "last_writer": definition.last_writer,
        "history": bool(definition.rules.window_us),
    }
    return json.dumps(decides, sort_keys=True).encode()
