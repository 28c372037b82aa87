"""The sequences that a link's filters left out, on disk, so that a restart does not read those
messages again (services/replication/link/filtered_out.py).

Each destination has a file of its own in the journal's directory, which is moved and emptied with
the journal. Its contents are valid for the very same filters only, and nothing depends on the file:
a link that has lost it reads the messages once more.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgpack
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from raylay.services.errors import RaylayError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.replication.link.filtered_out import FilteredOut
from raylay.storage.state import LmdbStateStore

RULES_KEY = "rules"
STRETCH_PREFIX = "beside/"


class FilteredOutStore:
    """See the file's docstring. Owner: the link. Every method reads or writes the disk.

    Args:
        journal: the journal's directory.
        destination: the name of the destination.
        rules: the rules of the link's filters.

    Raises:
        StorageError: the file cannot be opened; names it.
    """

    def __init__(self, journal: Path, destination: str, rules: tuple[Any, ...]) -> None:
        name = xxh3_64_hexdigest(destination.encode())
        self._store = LmdbStateStore(journal / f"verdicts-{name}")
        told = repr((version("raylay"), rules)).encode()
        self._rules = xxh3_64_intdigest(told).to_bytes(8, "big")

    def load(self, beside: FilteredOut) -> None:
        """Adds the sequences that the same filters left out. Forgets those of other filters.

        Raises:
            StorageError: the file cannot be read or written.
        """
        known = list(self._store.items(STRETCH_PREFIX))
        if self._store.get(RULES_KEY) != self._rules:
            self._store.put({key: None for key, _ in known} | {RULES_KEY: self._rules})
            return
        for key, value in known:
            try:
                ranges = PublisherRanges.from_wire(msgpack.unpackb(value, strict_map_key=False))
            except (RaylayError, ValueError):
                continue  # It is judged anew.
            beside.update(int(key.removeprefix(STRETCH_PREFIX), 16), ranges)
        list(beside.changed())

    def save(self, beside: FilteredOut) -> None:
        """Writes what has changed since the last call.

        Raises:
            StorageError: the file cannot be written.
        """
        values = {
            f"{STRETCH_PREFIX}{number:016x}": msgpack.packb(ranges.to_wire()) if ranges else None
            for number, ranges in beside.changed()
        }
        if values:
            self._store.put(values)

    def close(self) -> None:
        self._store.close()
