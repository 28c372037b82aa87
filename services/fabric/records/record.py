"""Moved instances in a fabric's record, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RecordedMove:
    """The home of a moved instance; its node is in the record's `nodes`.

    Attributes:
        generation: how often it was moved.
        directory: its data directory, from the fabric's directory on.
        filled_by: members of its group that it begins as a copy of.
    """

    generation: int
    directory: str
    filled_by: list[str] = field(default_factory=list)


@dataclass(slots=True)
class OrphanedDirectory:
    """A data directory that was an instance's before it was moved.

    Attributes:
        generation: the one that is retired.
        host: the node's address, and its labels.
        directory: as a path on that host.
        address: of its replication transport, where it is told that it is over.
        at_us: when it was moved: microseconds since 1970.
        incarnation: as hexadecimal digits; empty: not known.
        salvaged: the last salvage that the fabric was told of left nothing there that it lacks.
        lacking: messages that the fabric lacked then; None: not known.
        forgotten: it was removed, and is spoken of no more.
    """

    name: str
    generation: int
    host: str
    labels: dict[str, str]
    directory: str
    address: str
    at_us: int
    incarnation: str = ""
    salvaged: bool = False
    lacking: int | None = None
    forgotten: bool = False
