"""Records of a queue's machine that are on their way to the disk: what they say takes effect, here
too, when they are read back from the journal (rule 5)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

from xxhash import xxh3_64_intdigest as checksum64

from raylay.services.messages.records import Command
from raylay.services.queues.decisions import Consumer, Key, LeasedDelivery, QueueRecordDraft
from raylay.services.queues.message import FROZEN, QueuedMessage
from raylay.services.queues.records import (
    NAMES_MAX,
    UNDONE,
    Keys,
    OwnershipChange,
    Removal,
    Transfer,
    keys_of,
    pack_removal,
    pack_transfer,
)

DRAFT_MESSAGES_MAX = 4_096
LETTERS_MAX = 16
"""Messages of a removal before which their dead letters are journaled: the largest are 256 MB."""
NAMES = "names"
"""Reason of a draft that is about no message."""
AGAIN = "again"
"""Reason of a draft that says what was said before."""
TOLD = "told"
"""Reason of a draft that tells another instance, which asks for a message once more, what it does
not know."""
_TAGS_SHIFT = 32


class PendingDraft:
    """A draft. Its messages are frozen and hold its tag.

    Attributes:
        receivers: of each message, where it is sent when its removal is in the journal: the
            consumers, and the number of the lease that it would have.
        gone, moves: of one that says again: what.
        absent: messages that are to be frozen as well, and have not come.
    """

    __slots__ = ("absent", "gone", "messages", "moves", "receivers", "tag", "why")

    def __init__(self, tag: int, why: str) -> None:
        self.tag = tag
        self.why = why
        self.messages: list[QueuedMessage] = []
        self.receivers: list[tuple[LeasedDelivery, list[Consumer]]] = []
        self.gone: Keys = {}
        self.moves: Sequence[OwnershipChange] = ()
        self.absent: Sequence[Key] = ()

    def frozen(self, message: QueuedMessage) -> bool:
        return message.state == FROZEN and message.held == self.tag


class Drafts:
    """Drafts that are out, by tag, and those that are still being filled.

    Args:
        name: of the instance.
        incarnation, life, fence_txid: what tells these tags from those of all former machines,
            whose records the journal may bring again.
        least: the highest number of a lease that was told.
        has_letters: whether messages that leave the queue undone have dead letters.
    """

    __slots__ = ("_absent", "_has_letters", "_name", "_next", "_open", "_out", "made")

    def __init__(
        self,
        name: str,
        incarnation: int,
        life: int,
        fence_txid: int,
        least: int = 0,
        *,
        has_letters: bool = False,
    ) -> None:
        self._name = name
        self._has_letters = has_letters
        seed = checksum64(struct.pack("<QQQ", incarnation, life, fence_txid))
        self._next = max(seed >> _TAGS_SHIFT << _TAGS_SHIFT, least)
        self._out: dict[int, PendingDraft] = {}
        self._open: dict[str, PendingDraft] = {}
        self._absent: dict[Key, PendingDraft] = {}
        self.made: list[QueueRecordDraft] = []
        """Drafts that are to be said."""

    def __len__(self) -> int:
        return len(self._out)

    def number(self) -> int:
        """One that no former machine had, for a tag or a lease."""
        return self.numbers(1)

    def numbers(self, count: int) -> int:
        """The first of so many that follow one another, each as `number`."""
        first = self._next + 1
        self._next += count
        return first

    def transfer(self, messages: list[tuple[QueuedMessage, str]]) -> None:
        """Freezes these and says who is to own them, a generation higher."""
        for begin in range(0, len(messages), DRAFT_MESSAGES_MAX):
            drafted = PendingDraft(self.number(), "")
            part = messages[begin : begin + DRAFT_MESSAGES_MAX]
            for message, _ in part:
                self._freeze(drafted, message)
            body = pack_transfer(Transfer(self._name, drafted.tag, _moves(part)))
            self._out[drafted.tag] = drafted
            self.made.append(QueueRecordDraft(drafted.tag, Command.TRANSFER, body))

    def let_go(
        self, moves: list[OwnershipChange], messages: list[QueuedMessage], absent: list[Key]
    ) -> None:
        """Says who is to own messages that this instance does not own, or does not have.

        Args:
            messages: those that are here: they are frozen.
            absent: those that are not: they are frozen if they come before the record is read.
        """
        drafted = self._said(Transfer(self._name, self.number(), moves), "")
        for message in messages:
            self._freeze(drafted, message)
        drafted.absent = absent
        self._absent.update(dict.fromkeys(absent, drafted))

    def freezes(self, message: QueuedMessage) -> bool:
        """Returns whether a draft is about this message, which comes only now: then it is
        frozen."""
        drafted = self._absent.get(message.key)
        if drafted is not None:
            self._freeze(drafted, message)
        return drafted is not None

    @property
    def waits_for_absent(self) -> bool:
        """Returns whether a draft is about a message that is not here."""
        return bool(self._absent)

    def say_moves(self, moves: Sequence[OwnershipChange], why: str) -> None:
        """Says whose messages are, as this instance knows: it freezes nothing."""
        self._said(Transfer(self._name, self.number(), moves), why).moves = moves

    def say_gone(self, keys: Keys, why: str) -> None:
        """Says that these have left the queue, as this instance knows."""
        drafted = PendingDraft(self.number(), why)
        drafted.gone = keys
        self._out[drafted.tag] = drafted
        body = pack_removal(Removal(self._name, drafted.tag, keys, "left"))
        self.made.append(QueueRecordDraft(drafted.tag, Command.QUEUE_REMOVAL, body))

    def _said(self, said: Transfer, why: str) -> PendingDraft:
        drafted = self._out[said.tag] = PendingDraft(said.tag, why)
        self.made.append(QueueRecordDraft(said.tag, Command.TRANSFER, pack_transfer(said)))
        return drafted

    def tell_names(self, names: Mapping[int, str]) -> None:
        """Says who bears, and bore, which incarnations: the last ones, where they are too many."""
        told = dict(list(names.items())[-NAMES_MAX:])
        self._said(Transfer(self._name, self.number(), (), told), NAMES)

    def remove(
        self,
        message: QueuedMessage,
        why: str,
        receivers: tuple[LeasedDelivery, list[Consumer]] | None = None,
    ) -> None:
        """Freezes it and says, with others of the same reason at the next `flush`, that it leaves
        the queue."""
        drafted = self._open.get(why)
        if drafted is None:
            drafted = self._open[why] = PendingDraft(self.number(), why)
        self._freeze(drafted, message)
        if receivers is not None:
            drafted.receivers.append(receivers)
        most = LETTERS_MAX if self._has_letters and why in UNDONE else DRAFT_MESSAGES_MAX
        if len(drafted.messages) >= most:
            self._say(self._open.pop(why))

    def letters(self, tag: int) -> tuple[str, list[int]]:
        """The dead letters that are to be in the journal before a draft.

        Returns:
            Why its messages leave the queue, and the transaction ids of those that still wait for
            it; no reason: it needs no letters.
        """
        drafted = self._out.get(tag)
        if drafted is None or not self._has_letters or drafted.why not in UNDONE:
            return "", []
        return drafted.why, [each.txid for each in drafted.messages if drafted.frozen(each)]

    def is_out(self, tag: int) -> bool:
        """Returns whether a draft was neither read back nor has failed."""
        return tag in self._out

    def flush(self) -> list[QueueRecordDraft]:
        for drafted in self._open.values():
            self._say(drafted)
        self._open.clear()
        made, self.made = self.made, []
        return made

    def take(self, tag: int) -> PendingDraft | None:
        """Forgets a draft: it was read, or its append has failed."""
        drafted = self._out.pop(tag, None)
        if drafted is not None:
            for key in drafted.absent:
                if self._absent.get(key) is drafted:
                    del self._absent[key]
        return drafted

    def failed(self, tags: Collection[int]) -> list[PendingDraft]:
        return [found for tag in tags if (found := self.take(tag)) is not None]

    def left(self, consumer: Consumer) -> None:
        """The consumer is no more: what was to be sent to it is not, and takes no place of it."""
        for drafted in (*self._out.values(), *self._open.values()):
            for number, (leased, consumers) in enumerate(drafted.receivers):
                if consumer in consumers:
                    left = [each for each in consumers if each != consumer]
                    drafted.receivers[number] = leased, left

    def _freeze(self, drafted: PendingDraft, message: QueuedMessage) -> None:
        message.state = FROZEN
        message.held = drafted.tag
        drafted.messages.append(message)

    def _say(self, drafted: PendingDraft) -> None:
        # What was acknowledged meanwhile is removed once more, which changes nothing.
        keys = keys_of(message.key for message in drafted.messages)
        body = pack_removal(Removal(self._name, drafted.tag, keys, drafted.why))
        self._out[drafted.tag] = drafted
        self.made.append(QueueRecordDraft(drafted.tag, Command.QUEUE_REMOVAL, body))


def _moves(messages: list[tuple[QueuedMessage, str]]) -> list[OwnershipChange]:
    """Returns the contents of a transfer, in as few moves as possible."""
    moves: list[OwnershipChange] = []
    for message, owner in sorted(messages, key=lambda each: each[0].key):
        publisher, sequence = message.key
        generation = message.register.generation + 1
        last = moves[-1] if moves else None
        if (
            last is not None
            and last.publisher == publisher
            and last.last + 1 == sequence
            and last.generation == generation
            and last.owner == owner
        ):
            moves[-1] = last._replace(last=sequence)
        else:
            moves.append(OwnershipChange(publisher, sequence, sequence, generation, owner))
    return moves
