"""SOW topics of a drill: the instances' answers, compared with their own journals and with what was
published. One publisher writes each key, so what counts is its last message of it, wherever it came
from and in whatever order. Nothing here is shared with the fold that instances have.

    journal      what an instance answers is what follows from its own journal
    publisher    it is what the publisher of the key wrote there last, in each region it reaches
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from raylay.services.verification.violation import VIOLATIONS_MAX, Violation


class SowRow(NamedTuple):
    """The record of an instance under a key, and the publish that wrote it."""

    publisher: int
    sequence: int
    body: bytes


class SowWrite(NamedTuple):
    """A publish that writes a key or deletes keys. `body`: the whole message; None: it deletes."""

    publisher: int
    sequence: int
    keys: tuple[bytes, ...]
    body: bytes | None


@dataclass(slots=True)
class SowVerdict:
    """The findings on the drills' SOW topic.

    Attributes:
        changes, deletions: the number of acknowledged publishes, and of the deletions among them.
        records: the number of records of each instance that answered.
        why: the reason why nothing was judged; empty: the topic was judged.
        broken: the violations of the law `sow`.
        separate: known differences that are no failure.
    """

    changes: int = 0
    deletions: int = 0
    records: dict[str, int] = field(default_factory=dict)
    why: str = ""
    broken: list[Violation] = field(default_factory=list)
    separate: list[Violation] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        if self.why:
            return f"SOW topics were not judged: {self.why}."
        wrong = len(self.broken)
        found = (
            f"{wrong:,} of their records are wrong (law sow)"
            if wrong
            else (
                "each has the records that its own journal gives, and those that were published "
                "last"
            )
        )
        known = f" {len(self.separate):,} bodies have a delta that was merged into what was"
        known += (
            " there before: this is known and no failure, because acks relied on fewer disks "
            "meanwhile."
        )
        return (
            f"The SOW topic took {self.changes:,} publishes, deltas and deletions by key "
            f"({self.deletions:,}). {len(self.records)} instances were asked: {found}."
            + (known if self.separate else "")
        )


def folded(written: Iterable[SowWrite]) -> dict[bytes, SowWrite]:
    """Returns the last change of each key, by the sequence of its publisher."""
    last: dict[bytes, SowWrite] = {}
    for write in written:
        for key in write.keys:
            if key not in last or last[key].sequence < write.sequence:
                last[key] = write
    return last


def against_journal(
    instance: str,
    rows: Mapping[bytes, SowRow],
    journal: Iterable[SowWrite],
    *,
    is_whole: bool,
) -> list[Violation]:
    """Returns a violation for each key for which an instance's answer differs from its journal.

    Args:
        is_whole: whether the journal has everything since the drill began. The journal of an
            instance that was copied after it lost its disk may begin later, and lacks what a key
            had before.
    """
    expected = folded(journal)
    found = []
    for key in sorted(expected.keys() | (rows.keys() if is_whole else set())):
        row, last = rows.get(key), expected.get(key)
        wanted = (
            None
            if last is None or last.body is None
            else SowRow(last.publisher, last.sequence, last.body)
        )
        if row != wanted:
            found.append(_violation(instance, key, row, f"its journal says {_said(wanted)}"))
    return found[:VIOLATIONS_MAX]


def against_publishers(
    rows: Mapping[str, Mapping[bytes, SowRow]],
    reached: Mapping[str, Collection[int]],
    written: Iterable[SowWrite],
    *,
    is_excused: bool,
) -> tuple[list[Violation], list[Violation]]:
    """Returns the keys for which instances answer something else than the publishers wrote last:
    the violations, and the known differences that are no failure.

    Args:
        rows: the answer of each instance.
        reached: the publishers whose messages belong at an instance, by instance; all their
            messages were acknowledged.
        is_excused: whether acks relied on fewer disks than configured meanwhile, or a disk was
            lost; a delta may then have been merged into an earlier value.
    """
    expected = folded(written)
    broken: list[Violation] = []
    separate: list[Violation] = []
    for instance, held in rows.items():
        for key, last in sorted(expected.items()):
            if last.publisher not in reached[instance]:
                continue
            row = held.get(key)
            if last.body is None:
                if row is not None:
                    broken.append(_violation(instance, key, row, f"deleted with {_named(last)}"))
                continue
            wanted = SowRow(last.publisher, last.sequence, last.body)
            if row is None or row[:2] != wanted[:2]:
                broken.append(_violation(instance, key, row, f"published last: {_said(wanted)}"))
            elif not _same(row.body, wanted.body):
                text = f"published last: {_said(wanted)}"
                (separate if is_excused else broken).append(
                    _violation(instance, key, row, text, is_excused)
                )
    return broken[:VIOLATIONS_MAX], separate[:VIOLATIONS_MAX]


def _same(one: bytes, other: bytes) -> bool:
    """Returns whether two bodies have the same fields, in whatever order."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def _violation(
    instance: str, key: bytes, row: SowRow | None, wanted: str, separate: bool = False
) -> Violation:
    text = f"{instance}, key {key.decode()}: {_said(row)} is held; {wanted}"
    return Violation("sow", text, separate)


def _named(of: SowWrite) -> str:
    return f"{of.publisher}|{of.sequence}|"


def _said(row: SowRow | None) -> str:
    if row is None:
        return "nothing"
    return f"{row.publisher}|{row.sequence}| {row.body.decode('utf-8', 'replace')}"
