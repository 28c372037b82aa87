"""One copy of each message where several journals are read: which journal gives which messages.

The journals are taken in their order. The first one gives all that it holds in the read, each other
one what those before it lack. The sets are exact: sealed segments have theirs in their index, and
of the rest the headers of the runs have them. So nothing is compared between tasks, and a segment
that has nothing of its own is not opened. The conditions of a query do not change the sets: a
condition on, say, the time of receipt chooses among the copies that are read without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FABRIC_FILE
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.pipeline.journals import (
    JournalPlace,
    JournalStretch,
    OnCorrupt,
    plan,
    segment_index,
)
from raylay.services.pipeline.network.offsets import from_json, to_json
from raylay.services.pipeline.tables.message_sets import add_messages
from raylay.services.pipeline.tables.predicates import Predicate
from raylay.services.pipeline.tables.stretch_rows import StretchRows

GIVEN = ""
"""Key of a stream's offset that has the messages of all micro-batches up to it. No instance has
this name."""

SegmentMessages = Mapping[int, PublisherRanges]
"""Messages by the first transaction id of their segment."""
ChosenMessages = Mapping[int, PublisherRanges | None]
"""The same; None: all messages of the segment."""


@dataclass(frozen=True, slots=True)
class JournalBounds:
    """The part of a journal that is read: the transaction ids behind `after_txid`, up to and
    including `last_txid`."""

    place: JournalPlace
    after_txid: int
    last_txid: int


class JournalCopies:
    """The contents of journals, and the choice of the journal that gives each message.

    Keeps the sets of the last call, because Spark asks for the end of a micro-batch and for its
    parts one after the other.

    Args:
        on_corrupt: the effect of a damaged record. With `skip` all records are read and verified
            once more, at the planning, so that another journal gives what is damaged in one.
    """

    def __init__(self, on_corrupt: OnCorrupt = "stop") -> None:
        self._skips = on_corrupt == "skip"
        self._known: dict[JournalBounds, SegmentMessages] = {}

    def held(self, bounds: Sequence[JournalBounds]) -> list[SegmentMessages]:
        """Returns the messages of each of these parts of journals, as far as they are there.

        Raises:
            StorageError: a journal cannot be read.
        """
        read = _sound_messages if self._skips else _held_messages
        self._known = {each: self._known.get(each) or read(each) for each in bounds}
        return [self._known[each] for each in bounds]

    def chosen(
        self, bounds: Sequence[JournalBounds], given: PublisherRanges
    ) -> list[ChosenMessages]:
        """Returns the messages that each of these journals gives, by segment.

        Args:
            given: messages that no journal gives; afterwards with all messages of these journals.

        Raises:
            StorageError: a journal cannot be read.
        """
        made: list[ChosenMessages] = []
        for held in self.held(bounds):
            few: dict[int, PublisherRanges | None] = {}
            for segment, messages in held.items():
                new = messages.copy()
                new.difference_update(given)
                # A damaged record is not among its segment's messages, and a task that does not
                # verify checksums might give it: so the messages are named.
                few[segment] = None if new.count == messages.count and not self._skips else new
            for messages in held.values():
                given.update(messages)
            made.append(few)
        return made


def stretches_of(
    bounds: Sequence[JournalBounds],
    predicate: Predicate,
    partition_bytes: int,
    chosen: Sequence[ChosenMessages] | None = None,
) -> list[JournalStretch]:
    """Returns the stretches of journals that may hold wanted records.

    Args:
        chosen: the messages that each journal gives; None: all of each.

    Raises:
        StorageError: a part of a journal was removed.
    """
    return [
        stretch
        for number, each in enumerate(bounds)
        for stretch in plan(
            each.place,
            each.after_txid,
            each.last_txid,
            predicate,
            partition_bytes,
            chosen[number] if chosen is not None else None,
        )
    ]


def _held_messages(bounds: JournalBounds) -> SegmentMessages:
    found: dict[int, PublisherRanges] = {}
    files = bounds.place.files()
    with bounds.place.reader() as reader:
        for number, file in enumerate(files):
            is_newest = number + 1 == len(files)
            end = bounds.last_txid if is_newest else files[number + 1].first_txid - 1
            first = max(file.first_txid, bounds.after_txid + 1)
            last = min(end, bounds.last_txid)
            if first > last:
                continue
            is_whole = not is_newest and first == file.first_txid and last == end
            index = segment_index(file) if is_whole else None
            found[file.first_txid] = (
                index.summary.copy() if index is not None else reader.held_within(first - 1, last)
            )
    return found


def _sound_messages(bounds: JournalBounds) -> SegmentMessages:
    """Returns the messages of the records that can be read."""
    found: dict[int, PublisherRanges] = {
        file.first_txid: PublisherRanges() for file in bounds.place.files()
    }
    for stretch in plan(bounds.place, bounds.after_txid, bounds.last_txid, Predicate()):
        held = found.setdefault(stretch.segment, PublisherRanges())
        for rows in StretchRows(stretch, "skip"):
            add_messages(held, rows.headers)
    return found


def check_one_fabric(found: Sequence[JournalPlace]) -> None:
    """Raises:
    ConfigurationError: these are journals of several fabrics, in which a publisher's name and a
        sequence need not mean the same message.
    """
    fabrics = sorted({place.fabric for place in found if place.fabric})
    if len(fabrics) > 1:
        raise ConfigurationError(
            f"the journals are of the fabrics {' and '.join(fabrics)}, whose different messages "
            "may have the same publisher and sequence: read each fabric by itself and unite the "
            "tables, or give the option `copies` the value all"
        )


# -- streams -------------------------------------------------------------------------------------
def check_different_names(found: Sequence[JournalPlace]) -> None:
    """Raises:
    ConfigurationError: two journals have the same name of an instance, by which the offsets of a
        stream tell them apart.
    """
    journals: dict[str, str] = {}
    for place in found:
        other = journals.setdefault(place.instance, place.journal)
        if other != place.journal:
            raise ConfigurationError(
                f"a stream tells journals apart by the names of their instances, and "
                f"{other} and {place.journal} are both of {place.instance}: read each with a "
                "query of its own"
            )


def is_one_journal(path: str, instances: str) -> bool:
    """Returns whether options of a read name one journal, whatever instances a fabric gets later.

    Args:
        path: the option `path`; empty: a fabric is named.
        instances: the option `instance`.
    """
    if len([name for name in instances.split(",") if name.strip()]) == 1:
        return True
    return (
        bool(path)
        and "," not in path
        and not os.path.isfile(path)
        and not (Path(path) / FABRIC_FILE).is_file()
    )


class StreamCopies:
    """The messages that a stream has given, in its offsets: one copy of each is read, whatever
    comes to another journal later.

    Args:
        copies: holds what the journals hold; None: the stream reads every copy.
    """

    def __init__(self, copies: JournalCopies | None) -> None:
        self._copies = copies

    def begin(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Returns the offset with which a new query begins."""
        return offset if self._copies is None else {GIVEN: to_json(PublisherRanges()), **offset}

    def check(self, offset: dict[str, Any]) -> None:
        """Raises:
        ConfigurationError: the query of this offset read other copies.
        """
        if self._copies is not None and GIVEN not in offset:
            raise ConfigurationError(
                "the checkpoint does not tell which messages were read: its query read every copy "
                "(copies all) or one journal only, and this one reads one copy of each message; "
                "begin a new checkpoint, or read what the query read"
            )
        if self._copies is None and GIVEN in offset:
            raise ConfigurationError(
                "the checkpoint's query read one copy of each message of several journals, and "
                "this one reads every copy (copies all) or one journal only; begin a new "
                "checkpoint, or read what the query read"
            )

    def ended(
        self,
        start: dict[str, Any],
        end: dict[str, Any],
        bounds_between: Callable[[dict[str, Any], dict[str, Any]], list[JournalBounds]],
    ) -> dict[str, Any]:
        """Returns the end of a micro-batch with the messages that are given up to it.

        Args:
            bounds_between: returns the parts of the journals between two offsets.

        Raises:
            StorageError: a journal cannot be read.
        """
        if self._copies is None or end == start:
            return end
        given = from_json(start[GIVEN])
        for held in self._copies.held(bounds_between(start, end)):
            for messages in held.values():
                given.update(messages)
        return {**end, GIVEN: to_json(given)}

    def chosen(
        self, start: dict[str, Any], bounds: Sequence[JournalBounds]
    ) -> list[ChosenMessages] | None:
        """Returns the messages that each journal gives behind an offset, by segment; None: all.

        Raises:
            StorageError: a journal cannot be read.
        """
        if self._copies is None:
            return None
        return self._copies.chosen(bounds, from_json(start[GIVEN]))
