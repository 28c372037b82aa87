"""The directory of a reading of changes: the records where the next rows begin, and the rows of the
last micro-batches.

    meta.json       what the directory was made for, and the offset at which the stream began
    lock            held while the directory is changed
    topic.lmdb      the records
    A-B….arrow      the rows from place A to place B, which are numbers

The rows are written to their file before the records advance, and rows that are read again are read
from their file: a repeated task, a restarted query and a speculative twin get the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.changes.table import STORED_SCHEMA
from raylay.storage.files import (
    FileLock,
    fault_point,
    make_directory,
    move_durably,
    write_text_durably,
)
from raylay.storage.sow import LmdbSowStore

META, LOCK, STORE, ROWS = "meta.json", "lock", "topic.lmdb", ".arrow"
_BEGAN = "began"

RowBatch = tuple[pa.RecordBatch, Mapping[str, str] | None]
"""A batch of rows, and what is written beside it."""


class ChangeDirectory:
    """See the file's docstring.

    Owner: any process that has the lock. Lifecycle: as long as its query's checkpoint.

    Args:
        path: is made where there is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def begun(self, meta: Mapping[str, Any], first: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the offset at which the stream began. Spark asks again after a restart in the
        first micro-batch, when `now` is another time.

        Args:
            meta: what the directory is made for.
            first: makes the records, if the stream begins now, and returns the offset.

        Raises:
            ConfigurationError: the directory is of another topic, or of another life of it.
        """
        make_directory(self.path)
        with FileLock(self.path / LOCK, wait=True):
            known = self.known()
            if known:
                began: dict[str, Any] = known[_BEGAN]
                for name, value in meta.items():
                    if known.get(name) != value:
                        raise ConfigurationError(
                            f"{self.path} is the state of another stream ({name} "
                            f"{known.get(name)}, now {value}): give this one a checkpoint and an "
                            "option state of its own"
                        )
                return began
            offset = first()
            fault_point("changes.begun")
            text = json.dumps({**meta, _BEGAN: offset})
            write_text_durably(self.path / META, text)
            return offset

    def known(self) -> dict[str, Any]:
        """Returns what the directory was made for, and the first offset as `began`; empty: the
        directory is new."""
        path = self.path / META
        return dict(json.loads(path.read_bytes())) if path.is_file() else {}

    def rows(self, name: str, after: int, make: Callable[[Path], None]) -> Path:
        """Returns the file of rows of this name. Makes it where it is not there.

        Args:
            name: begins with the numbers of its two places and a hyphen between them.
            after: the number of the place where the rows begin.
            make: writes the file at a path, with `write`.
        """
        path = self.path / f"{name}{ROWS}"
        if path.is_file():
            return path
        make_directory(self.path)
        with FileLock(self.path / LOCK, wait=True):
            if not path.is_file():
                make(path)
                for other in self.path.glob(f"*{ROWS}"):
                    # The micro-batch before this one may be asked for again, no earlier one.
                    if int(other.name.partition(ROWS)[0].split("-")[1]) < after:
                        other.unlink(missing_ok=True)
        return path

    @staticmethod
    def write(path: Path, batches: Iterable[RowBatch]) -> None:
        """Writes a file of rows, which is whole or not there."""
        aside = path.with_suffix(".aside")
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(str(aside), STORED_SCHEMA, options=options) as written:
            for batch, beside in batches:
                written.write_batch(batch, custom_metadata=beside)
        fault_point("changes.written")
        move_durably(aside, path)
        fault_point("changes.moved")

    @contextmanager
    def opened(self) -> Iterator[LmdbSowStore]:
        """Opens the store of the records."""
        store = LmdbSowStore(self.path / STORE)
        try:
            yield store
        finally:
            store.close()

    def drop_store(self) -> None:
        """Removes the store of the records."""
        for path in self.path.glob(f"{STORE}*"):
            path.unlink()
