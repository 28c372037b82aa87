"""Records that came before their message and have taken effect, and that are to be appended once
more behind it (rule 7 of queues).

Journals are removed from the front. A removal or a transfer that came before its message may be
removed while the message stays; an instance that gets the message from such a journal then does not
get the record. So an instance to which the message comes after the record appends the same once
more, in a record of its own. That stands behind the message in its journal, and in the journals
filled from it. A claim stands directly before its message, and stays in the journal while the
message is in the queue, so it is not appended again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raylay.services.messages.ranges import PublisherRanges, Range
from raylay.services.queues.records import (
    RANGES_MAX,
    Acknowledgment,
    Keys,
    OwnershipChange,
    parts_of,
)
from raylay.services.queues.transfer.early_records import PublisherRangeMap
from raylay.services.queues.transfer.ownership import Ownership, is_better


class Reappends:
    """See the file's docstring.

    Invariant: holds nothing that a record behind the message has already stated.
    Owner: the queue's machine.
    """

    __slots__ = ("_gone", "_moves")

    def __init__(self) -> None:
        self._gone = PublisherRanges()
        self._moves: PublisherRangeMap[Ownership] = PublisherRangeMap(is_better)

    def __bool__(self) -> bool:
        return bool(self._gone.sets or self._moves)

    def removed(self, publisher: int, sequence: int) -> None:
        self._gone.add(publisher, sequence, sequence)

    def moved(self, publisher: int, first: int, last: int, register: Ownership) -> None:
        self._moves.add(publisher, first, last, register)

    def heard_removal(self, keys: Keys) -> None:
        """Takes a removal that was read: nothing has to be appended again for its messages."""
        for publisher, ranges in keys.items():
            self._gone.remove_ranges(publisher, ranges)
            self._moves.take(publisher, ranges)

    def heard_move(self, move: OwnershipChange) -> None:
        publisher, first, last, generation, owner = move
        heard = Ownership(generation, owner)
        for begin, end, register in self._moves.take(publisher, [(first, last)]):
            if is_better(register, heard):
                self._moves.add(publisher, begin, end, register)

    def take(self) -> tuple[list[Keys], list[list[OwnershipChange]]]:
        """Takes out everything to append: the keys of each removal, and the moves of each
        transfer."""
        gone: dict[int, list[Range]] = {}
        for publisher, part in self._gone.items():
            gone.setdefault(publisher, []).append(part)
        removals = [each.keys for each in parts_of(Acknowledgment(gone))] if gone else []
        moves = [
            OwnershipChange(publisher, first, last, *register)
            for publisher, first, last, register in self._moves.pieces()
        ]
        self.__init__()  # type: ignore[misc]
        return removals, list(_parts(moves))

    def again(self, keys: Keys, moves: Iterable[OwnershipChange]) -> None:
        """Notes again the contents of a draft whose append has failed."""
        for publisher, ranges in keys.items():
            self._gone.add_ranges(publisher, ranges)
        for publisher, first, last, generation, owner in moves:
            self._moves.add(publisher, first, last, Ownership(generation, owner))


def _parts(moves: list[OwnershipChange]) -> Iterator[list[OwnershipChange]]:
    for at in range(0, len(moves), RANGES_MAX):
        yield moves[at : at + RANGES_MAX]
