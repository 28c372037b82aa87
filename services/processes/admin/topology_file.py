"""The configured topology beside the data of an instance, read again when it changes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from raylay.services.admin.fabric_topology import (
    FILE_BYTES_MAX,
    TOPOLOGY_FILE,
    FabricTopology,
    alone,
)
from raylay.services.config import json_text
from raylay.services.errors import ConfigurationError
from raylay.services.telemetry import logs

LOOK_S = 1.0
"""Time between two looks at the file."""


class TopologyFile:
    """Keeps the topology that `admin-fabric.json` holds.

    Owner: the process's event loop; the file is read in a thread, one look at a time. A file that
    cannot be read leaves what was known, and is logged once.

    Args:
        directory: the instance's data directory.
        instance, group: the instance's name and group. Without a file it is the only instance.
    """

    def __init__(
        self,
        directory: Path,
        instance: str,
        group: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = directory / TOPOLOGY_FILE
        self._clock = clock
        self._looked_s: float | None = None
        self._seen: tuple[int, int, int] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._told = ""
        self._log = logs.get("admin_topology")
        self.topology: FabricTopology = alone(instance, group)
        """The topology as of the last look."""
        self.problem = ""
        """Reason why the file cannot be used; empty: it can, or there is none."""

    async def look(self) -> FabricTopology:
        """Returns the topology, after a look at the file if the last one is older than
        `LOOK_S`."""
        is_old = self._looked_s is None or self._clock() - self._looked_s >= LOOK_S
        if is_old and self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        if self._looking is not None:
            await asyncio.shield(self._looking)
        return self.topology

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(self._read)
            if found is not None:
                self.topology = found
            self.problem = ""
        except (OSError, ConfigurationError) as error:
            self.problem = str(error)
            if self.problem != self._told:
                self._log.warning("admin_topology_failed", text=self.problem)
        finally:
            self._told = self.problem
            self._looked_s = self._clock()
            self._looking = None

    def _read(self) -> FabricTopology | None:
        """Returns the topology; None: the file is as it was, or there is none."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen == self._seen:
            return None
        if status.st_size > FILE_BYTES_MAX:
            raise ConfigurationError(f"{self._path} has {status.st_size:,} bytes: too large")
        text = self._path.read_text(encoding="utf-8", errors="replace")
        advice = "`raylay apply FILE` writes it again"
        found = json_text.read(FabricTopology, text, str(self._path), advice)
        self._seen = seen
        return found
