"""The configuration of a capacity pool's buffer process: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from raylay.services.config.json_text import JsonText
from raylay.services.telemetry.logs import LogOptions


@dataclass(slots=True)
class SlowClientBufferConfig(JsonText):
    """The values that an instance gives to one start of a capacity pool's buffer.

    Attributes:
        pool: name of the pool.
        start_number: number of this start, never used twice; the instance talks to the buffer of
            the last start only.
        path: file in which the buffer keeps the messages that wait. A file that is there at the
            start is removed.
    """

    instance: str
    pool: str
    start_number: int
    unix_path: str
    path: str
    disk_bytes_max: int
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def process_name(self) -> str:
        return f"{self.instance}.{self.pool}"
