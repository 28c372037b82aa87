"""The SOW records from before the start of a log that a bootstrap copies with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.event_topics import EVENTS
from raylay.services.server.sow.stored_topics import FINGERPRINT, SOW_FILE, fingerprints
from raylay.services.sow.copying import Entry, TopicCopy
from raylay.storage.sow import LmdbSowStore


class SowCopy:
    """A SOW store that is filled from a source. An earlier store is removed: it belongs to another
    log.

    Owner: an instance that does not serve yet. The copy's own thread writes. Lifecycle: one source;
    then `finish`, or `abandon`.

    Args:
        directory: the instance's data directory.

    Raises:
        StorageError: the store cannot be used.
    """

    def __init__(self, config: InstanceConfig, directory: Path) -> None:
        own = {each.stored_as for each in config.sow if each.name.startswith(EVENTS)}
        self.wanted = {
            name: found for name, found in fingerprints(config).items() if name not in own
        }
        """Fingerprints of the topics' configurations, which decide the records, by the topic's name
        in the store. Without event topics: those of the source are about the source."""
        self._copies: dict[str, TopicCopy] = {}
        remove_store(directory)
        self._store = LmdbSowStore(directory / SOW_FILE) if self.wanted else None
        self._thread = ThreadPoolExecutor(1, "raylay-sow-copy")

    @property
    def records(self) -> int:
        return sum(each.records for each in self._copies.values())

    def take(
        self, name: str, entries: Iterable[Entry], written: Callable[[Future[None]], None]
    ) -> None:
        """Has entries of a topic written.

        Args:
            written: called on the thread when the write is done, or has failed.

        Raises:
            RemoteProtocolError: the entries are invalid, or were not asked for.
        """
        if self._store is None or name not in self.wanted:
            raise RemoteProtocolError(
                f"SOW topic {name[:100]!r} came and was not asked for", "bad_record"
            )
        made = self._copies.setdefault(name, TopicCopy()).take(entries)
        work = self._thread.submit(self._store.commit, {name: (made, 0)})
        work.add_done_callback(written)

    def finish(self) -> None:
        """Completes the store, after all entries have come: from now on it is a store like any
        other. Blocks.

        Raises:
            StorageError: the store cannot be written.
        """
        self._thread.shutdown(wait=True)
        if self._store is not None:
            self._store.commit(
                {
                    name: ({**copy.end(), FINGERPRINT: self.wanted[name]}, 0)
                    for name, copy in self._copies.items()
                }
            )
            self._store.close()

    def abandon(self) -> None:
        """Removes the unfinished copy. Blocks."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._store is not None:
            self._store.close()


def remove_store(directory: Path) -> None:
    """Removes the SOW store of a directory whose journal begins anew. Blocks."""
    for name in (SOW_FILE, f"{SOW_FILE}-lock"):
        (directory / name).unlink(missing_ok=True)
