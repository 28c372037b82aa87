"""Moved instances in a fabric's record, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RecordedMove:
    """The home of a moved instance; its node is in the record's `nodes`.

    Attributes:
        generation: number of times that the instance was moved.
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
        generation: the retired generation of the instance.
        host: address of its node.
        labels: labels of that node.
        directory: its path on that host.
        address: former address of the instance's replication transport; an instance that still runs
            there is told that it is retired.
        at_us: time of the move, in microseconds since 1970.
        incarnation: incarnation of its data, as hexadecimal digits; empty: not known.
        salvaged: whether the fabric had all of its messages after the last salvage that was
            recorded.
        lacking: number of its messages that the fabric lacked then; None: not known.
        forgotten: whether the directory was removed, so that no command shows it any more.
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
