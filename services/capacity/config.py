"""The configuration of a capacity pool and its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from raylay.services.capacity.pool import Limits
from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import Bytes, Milliseconds, Share

MEMORY_SHARE = 0.1
"""Share of the available memory that messages waiting for clients may take by default."""
DISK_BYTES_DEFAULT = 1_000_000_000
CLIENT_SHARE_DEFAULT = 0.5


@dataclass(frozen=True, slots=True)
class CapacityConfig:
    """The limits of a pool (docs/capacity.md). None means: in the configuration of a transport, the
    instance's limit; in that of an instance, the default.

    Attributes:
        memory_bytes_max: memory for all messages that wait for clients; above it the client with
            the most goes offline. Default: 10 % of the memory.
        disk_bytes_max: disk space for all messages that wait for offline clients; above it the
            client with the most is disconnected. 0: no client goes offline. Default: 1 GB, or
            memory_bytes_max where that is more.
        disk_path: directory for these messages. Default: in the data directory.
        message_age_ms_max: time that a message may wait for a client before the client is
            disconnected; 0: no limit. Default: no limit.
        client_share: share, above 0 to 1, of the memory that one client may hold, and of the disk
            once it is offline, before it is disconnected. Default: 0.5.
    """

    memory_bytes_max: Bytes | None = None
    disk_bytes_max: Bytes | None = None
    disk_path: str | None = None
    message_age_ms_max: Milliseconds | None = None
    client_share: Share | None = None

    @property
    def has_pool(self) -> bool:
        """Returns whether the configuration limits memory or disk, and therefore has a pool of its
        own."""
        of_pool = (self.memory_bytes_max, self.disk_bytes_max, self.disk_path)
        return any(each is not None for each in of_pool)

    def check(self, where: str) -> None:
        """Raises ConfigurationError where a value is out of range.

        Args:
            where: the owner of the configuration, for the error's text.
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

    def placed(self, place: Callable[[str], str]) -> CapacityConfig:
        """Returns the same with the directory where `place` says that it is."""
        return replace(self, disk_path=place(self.disk_path)) if self.disk_path else self

    def within(self, outer: CapacityConfig) -> CapacityConfig:
        """Returns this configuration of a transport, completed by the instance's configuration
        `outer`."""
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
        """Returns the limits, with the defaults.

        Args:
            memory_bytes: memory that the process may use.
        """
        memory, disk = self.memory_bytes_max, self.disk_bytes_max
        if memory is None:
            memory = max(1, int(memory_bytes * MEMORY_SHARE))
        if disk is None:
            disk = max(DISK_BYTES_DEFAULT, memory)
        share = CLIENT_SHARE_DEFAULT if self.client_share is None else self.client_share
        return Limits(memory, disk, share, self.message_age_ms_max or None)
