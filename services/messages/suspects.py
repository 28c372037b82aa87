"""Messages that an instance was processing when its process ended: they may be the cause.

A Python exception refuses a message. A crash of the process (a fault in a library, exhausted
memory) leaves nobody to refuse it, and the client sends it again to the next process. So a note
outside of the process names the messages in progress. Those that were in progress when a process
ended are suspects. Suspects are then processed one at a time, and a message that was alone in
progress when a second process ended is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Run
from raylay.services.messages.stateful import RefusedRecords

DEATHS_MAX = 2
"""Number of processes that ended while a message was in progress, from which on the message is
refused."""
SINGLES_MAX = 4_096
"""Number of messages of a run that are processed one at a time; those behind them in a longer run
are told apart in the next life."""


class Suspect(NamedTuple):
    """Messages of one publisher that were in progress when a process ended.

    Attributes:
        deaths: number of consecutive processes that ended with them in progress.
    """

    publisher: int
    first: int
    last: int
    deaths: int


class SuspectNote(Protocol):
    """A note that outlives the process, and costs only a write of a few bytes to memory."""

    def set(self, publisher: int, first: int, last: int, deaths: int) -> None:
        """Notes these sequences of a publisher as in progress, in place of the former ones;
        `deaths` is the number of consecutive processes that ended with them."""

    def clear(self) -> None:
        """Notes that nothing is in progress."""


class NoSuspectNote:
    """A note that keeps nothing, for an owner that has no place for a note."""

    def set(self, publisher: int, first: int, last: int, deaths: int) -> None:
        """Does nothing, because this note keeps no messages."""

    def clear(self) -> None:
        """Does nothing, because this note keeps no messages."""


class Suspects:
    """The messages that may have ended earlier processes, and the note of those in progress.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        note: takes the messages in progress.
        left: the suspects that earlier processes left.
    """

    __slots__ = ("_left", "_note")

    def __init__(self, note: SuspectNote | None = None, left: Iterable[Suspect] = ()) -> None:
        self._note = NoSuspectNote() if note is None else note
        self._left = tuple(left)

    def __bool__(self) -> bool:
        return bool(self._left)

    def begin(self, run: Run) -> None:
        """Notes that this run is in progress until `end`."""
        first, last = run.first_sequence, run.last_sequence
        deaths = 0
        if self._left and first == last:
            deaths = self._deaths(run.publisher, first)
        self._note.set(run.publisher, first, last, deaths + 1)

    def end(self) -> None:
        self._note.clear()

    def isolated(self, run: Run, known: Sequence[Range]) -> tuple[list[Run], list[RefusedRecords]]:
        """Returns the run in parts, so that each suspect is alone, without those that are refused,
        and the refusals.

        Args:
            known: sequences of the run that are in the log, and therefore no suspects.
        """
        suspected = self._suspected(run, known)
        if not suspected:
            return [run], []
        condemned: list[Range] = []
        wanted: list[Range] = []
        at = run.first_sequence
        for each in suspected:
            if at < each:
                wanted.append((at, each - 1))
            if self._deaths(run.publisher, each) >= DEATHS_MAX:
                condemned.append((each, each))
            else:
                wanted.append((each, each))
            at = each + 1
        if at <= run.last_sequence:
            wanted.append((at, run.last_sequence))
        parts = _parts(run, wanted)
        if not condemned:
            return parts, []
        topic = run.topic.decode("utf-8", "replace")[:200]
        text = (
            f"topic {topic}: the process of the instance ended {DEATHS_MAX} times while it worked "
            "on this message, so it is not taken any more: look into the message, and report it "
            "with the log of the instance"
        )
        return parts, [RefusedRecords(condemned, "bad_message", text)]

    def _suspected(self, run: Run, known: Sequence[Range]) -> list[int]:
        near = [
            each
            for each in self._left
            if each.publisher == run.publisher
            and each.first <= run.last_sequence
            and run.first_sequence <= each.last
        ]
        if not near:
            return []
        left = SequenceSet()
        for first, last in run.ranges():
            for each in near:
                if max(first, each.first) <= min(last, each.last):
                    left.add(max(first, each.first), min(last, each.last))
        held = SequenceSet(known)
        found: list[int] = []
        for first, last in left:
            for low, high in held.missing(first, last):
                found += range(low, min(high, low + SINGLES_MAX - len(found) - 1) + 1)
        return found

    def _deaths(self, publisher: int, sequence: int) -> int:
        found = 0
        for each in self._left:
            if each.publisher == publisher and each.first <= sequence <= each.last:
                found = max(found, each.deaths if each.first == each.last else 1)
        return found


def _parts(run: Run, wanted: list[Range]) -> list[Run]:
    """Returns the part of the run in each of these ranges. The run is halved repeatedly: a search
    of the whole run for each part would take its length each time."""
    if not wanted:
        return []
    part = run.select(wanted)
    if part is None:
        return []
    if len(wanted) == 1:
        return [part]
    middle = len(wanted) // 2
    return _parts(part, wanted[:middle]) + _parts(part, wanted[middle:])
