"""The place where messages were published: the instance that an incarnation belonged to. Values in,
values out.

A copy names the incarnation where it was published, and an instance that lost its data, or was
moved, has another one since. What it was before is told by

    the fabric's record   of an instance that was moved
    a peer                that has not been connected to it since
    the journals          by elimination: an incarnation that sent a copy was of the group that the
                          copy names, none of the instances that it sent to, and none whose own
                          messages stand, wherever there are both, before the last that was
                          published there; where several are left, it was one of them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.pipeline.audit.parts import LogContents


class Origin(NamedTuple):
    """The instance where messages were published.

    Attributes:
        names: the instance; several where it was one of them; empty: unknown.
        former: whether they were published before that instance lost its data or was moved.
    """

    names: tuple[str, ...]
    former: bool = False

    def __str__(self) -> str:
        return " or ".join(self.names) + (", before it began anew" if self.former else "")


UNKNOWN = Origin(())


@dataclass(frozen=True, slots=True)
class FabricKnowledge:
    """Knowledge of a fabric from other sources than its journals.

    Attributes:
        groups: the group of each instance.
        former: the instance of each incarnation, 16 hex digits, that has ended.
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    former: Mapping[str, str] = field(default_factory=dict)


def origins_of(
    current: Mapping[str, str],
    peers: Iterable[Mapping[str, str]],
    known: FabricKnowledge,
    logs: Mapping[str, LogContents],
) -> dict[str, Origin]:
    """Returns, by incarnation, 16 hex digits, the instance that it is or was.

    Args:
        current: the instance of each incarnation whose journal is read. A former incarnation is
            none of them.
        peers: the same, as each instance last knew the instances to which it sends.
    """
    found = _by_elimination(current, known.groups, logs)
    for told in (*peers, known.former):
        found |= {incarnation: (name,) for incarnation, name in told.items()}
    anew = set(current.values())
    return {
        incarnation: Origin(names, not anew.isdisjoint(names))
        for incarnation, names in found.items()
    } | {incarnation: Origin((name,)) for incarnation, name in current.items()}


def _by_elimination(
    current: Mapping[str, str], groups: Mapping[str, str], logs: Mapping[str, LogContents]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for incarnation, group in sorted({sender for log in logs.values() for sender in log.senders}):
        names = [
            name
            for name, its_group in groups.items()
            if its_group == group
            and (name not in logs or (incarnation, group) not in logs[name].senders)
            and _was_before(incarnation, name, current, logs)
        ]
        if names:
            found[incarnation] = tuple(names)
    return found


def _was_before(
    incarnation: str, name: str, current: Mapping[str, str], logs: Mapping[str, LogContents]
) -> bool:
    """Returns whether an incarnation may have been an instance before it began anew: some instance
    got the last message of the former one before the first of the new one, or none has both. The
    comparison uses transaction ids, as clocks may differ and a copied journal keeps the times of
    its source. It leaves out the instance itself, which may get its own past back at any time.
    Where a relay was slow to bring the last message to one instance, another one had it."""
    spans = [
        (log.spans[incarnation], log.spans[now])
        for holder, log in logs.items()
        for now, its in current.items()
        if holder != name and its == name and incarnation in log.spans and now in log.spans
    ]
    return not spans or any(before[1] < after[0] for before, after in spans)
