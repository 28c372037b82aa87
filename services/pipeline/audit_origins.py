"""Where messages were published: which instance an incarnation was. Values in, values out.

A copy names the incarnation where it was published, and an instance that lost its data, or was
moved, has another one since. What it was before is told by

    the fabric's record   of an instance that was moved
    a peer                that has not been connected to it since
    the journals          by elimination: an incarnation that sent a copy was of the group that the
                          copy names, none of the instances that it sent to, and none that had
                          begun anew already when somebody got the last that was published there;
                          where several are left, it was one of them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.pipeline.audit_parts import Log


class Origin(NamedTuple):
    """Where messages were published.

    Attributes:
        names: of the instance; of several where it was one of these, of none where nobody knows.
        former: whether it was before that instance lost its data or was moved.
    """

    names: tuple[str, ...]
    former: bool = False

    def __str__(self) -> str:
        """For people."""
        return " or ".join(self.names) + (", before it began anew" if self.former else "")


UNKNOWN = Origin(())


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a fabric besides its journals.

    Attributes:
        groups: by instance.
        former: incarnations that are no more, 16 hex digits, to instance.
    """

    groups: Mapping[str, str] = field(default_factory=dict)
    former: Mapping[str, str] = field(default_factory=dict)


def origins_of(
    current: Mapping[str, str],
    peers: Iterable[Mapping[str, str]],
    known: Known,
    logs: Mapping[str, Log],
) -> dict[str, Origin]:
    """By incarnation, 16 hex digits, the instance that it is or was.

    Args:
        current: incarnations to instances, of the journals that are read. What an instance was
            that is not among them may be what it is.
        peers: the same, as each instance last knew those that it sends to.
    """
    found = _by_elimination(known.groups, logs)
    for told in (*peers, known.former):
        found |= {incarnation: (name,) for incarnation, name in told.items()}
    anew = set(current.values())
    return {
        incarnation: Origin(names, not anew.isdisjoint(names))
        for incarnation, names in found.items()
    } | {incarnation: Origin((name,)) for incarnation, name in current.items()}


def _by_elimination(
    groups: Mapping[str, str], logs: Mapping[str, Log]
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for incarnation, group in sorted({each for log in logs.values() for each in log.senders}):
        names = [
            name
            for name, its_group in groups.items()
            if its_group == group
            and (name not in logs or (incarnation, group) not in logs[name].senders)
            and _was_before(incarnation, name, logs)
        ]
        if names:
            found[incarnation] = tuple(names)
    return found


def _was_before(incarnation: str, name: str, logs: Mapping[str, Log]) -> bool:
    """Whether an incarnation can be what an instance was before its journal began: others got the
    last of it before. Where a relay was slow to bring it to one of them, another one had it."""
    steps = logs[name].times if name in logs else None
    if steps is None or not steps.counts:
        return True
    begun_us = (min(steps.counts) + 1) * steps.width_s * 1_000_000
    last_us = [
        log.received_us[incarnation] for log in logs.values() if incarnation in log.received_us
    ]
    return not last_us or min(last_us) <= begun_us
