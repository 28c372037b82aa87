"""The next segment's file, made ahead, so that a rotation only renames it."""

from __future__ import annotations

import threading
from pathlib import Path

from raylay.storage.files import fault_point, sync_file
from raylay.storage.maintenance import SPARE_STEM
from raylay.storage.segments import Environment, open_environment


class SpareSegment:
    """Makes it and gives it away.

    Owner: a journal; any of its threads. Lifecycle: until `close`, which removes what is left.

    Args:
        directory: the journal's.
        map_bytes: size of the environment's memory map, in bytes.
    """

    def __init__(self, directory: Path, map_bytes: int) -> None:
        self._directory = directory
        self._map_bytes = map_bytes
        self._made: Environment | None = None
        self._count = 0
        self._lock = threading.Lock()

    def make(self) -> None:
        """Makes one where there is none."""
        with self._lock:
            if self._made is None:
                self._made = self._new()

    def _new(self) -> Environment:
        # A name of its own: the one before may be taken but not renamed yet.
        self._count += 1
        path = self._directory / f"{SPARE_STEM}-{self._count}.live"
        for stale in (path, Path(f"{path}-lock")):
            stale.unlink(missing_ok=True)
        fault_point("spare.begin")
        shared = open_environment(path, writable=True, map_bytes=self._map_bytes, create=True)
        sync_file(path)
        return shared

    def take(self) -> Environment:
        """Returns the spare environment, or a new one where none was prepared."""
        with self._lock:
            shared, self._made = self._made, None
            if shared is None:
                shared = self._new()
            return shared

    def close(self) -> None:
        """Removes the spare environment, if it was not taken."""
        if self._made is not None:
            self._made.close()
            for path in (self._made.path, Path(f"{self._made.path}-lock")):
                path.unlink(missing_ok=True)
            self._made = None
