"""The configuration of a capacity pool and its defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

from raylay.services.capacity.pool import Limits
from raylay.services.errors import ConfigurationError

MEMORY_SHARE = 0.1
"""Share of the available memory for what waits for clients."""
DISK_BYTES_DEFAULT = 1_000_000_000
CLIENT_SHARE_DEFAULT = 0.5


@dataclass(slots=True)
class CapacityConfig:
    """The limits of a pool (docs/capacity.md). None: of a transport, what its instance says; of an
    instance, the default.

    Attributes:
        memory_bytes_max: what waits in memory for all clients, then the largest goes offline;
            10 % of the memory.
        disk_bytes_max: what waits on disk for all of them, then the largest is disconnected; 0:
            nobody goes offline; 1 GB, or memory_bytes_max where that is more.
        disk_path: where that is kept: a directory; in the data directory.
        message_age_ms_max: how long a message may wait for a client, then it is disconnected; 0: as
            long as it likes; that.
        client_share: what one client may hold of the memory, and of the disk once it is offline,
            then it is disconnected, above 0 to 1; 0.5.
    """

    memory_bytes_max: int | None = None
    disk_bytes_max: int | None = None
    disk_path: str | None = None
    message_age_ms_max: int | None = None
    client_share: float | None = None

    @property
    def has_pool(self) -> bool:
        """Returns whether it says anything of memory or disk: then there is a pool for it."""
        of_pool = (self.memory_bytes_max, self.disk_bytes_max, self.disk_path)
        return any(each is not None for each in of_pool)

    def check(self, where: str) -> None:
        """Raises ConfigurationError where a value is none that it can have.

        Args:
            where: whose it is, for the error's text.
        """
        memory, disk, age_ms = self.memory_bytes_max, self.disk_bytes_max, self.message_age_ms_max
        if memory is not None and memory < 1:
            raise ConfigurationError(
                f"{where}: memory_bytes_max (MessageMemoryLimit) is {memory}: give at least 1 byte"
            )
        if disk is not None and disk < 0:
            raise ConfigurationError(
                f"{where}: disk_bytes_max (MessageDiskLimit) is {disk}: give 0, for no disk at "
                "all, or more"
            )
        if age_ms is not None and age_ms < 0:
            raise ConfigurationError(
                f"{where}: message_age_ms_max (ClientMessageAgeLimit) is {age_ms}: give 0, for no "
                "limit, or more"
            )
        share = self.client_share
        if share is not None and not 0 < share <= 1:
            raise ConfigurationError(
                f"{where}: client_share (ClientMaxCapacity) is {share}: give more than 0 and at "
                "most 1, which is 100%"
            )

    def within(self, outer: CapacityConfig) -> CapacityConfig:
        """Returns the configuration of a transport that says this, at an instance that says
        that."""
        return CapacityConfig(
            **{
                each.name: (
                    getattr(outer, each.name)
                    if getattr(self, each.name) is None
                    else getattr(self, each.name)
                )
                for each in fields(self)
            }
        )

    def limits(self, memory_bytes: int) -> Limits:
        """The limits that it gives, with the defaults.

        Args:
            memory_bytes: that the process may have.
        """
        memory, disk = self.memory_bytes_max, self.disk_bytes_max
        if memory is None:
            memory = max(1, int(memory_bytes * MEMORY_SHARE))
        if disk is None:
            disk = max(DISK_BYTES_DEFAULT, memory)
        share = CLIENT_SHARE_DEFAULT if self.client_share is None else self.client_share
        return Limits(memory, disk, share, self.message_age_ms_max or None)
