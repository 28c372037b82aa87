"""Records that a queue's machine has drafted and that are on their way to the disk. A record takes
effect, on this instance too, when it is read back from the journal (rule 5)."""

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
"""The number of messages in a removal that dead letters precede. With the largest messages, that is
256 MB of letters."""
NAMES = "names"
"""The reason of a draft that carries names of incarnations and concerns no message."""
AGAIN = "again"
"""The reason of a draft that appends an early record once more, behind its message."""
TOLD = "told"
"""The reason of a draft that answers a requester which keeps requesting messages: it carries the
removals and ownership changes that the requester lacks."""
_TAGS_SHIFT = 32


class PendingDraft:
    """A draft that is not in the journal yet. Its messages are frozen and hold its tag.

    Attributes:
        receivers: the deliveries that are to be sent once the removal of their messages is in the
            journal: for each message the delivery, with the number of its lease, and the consumers
            that get it.
        gone, moves: the contents of a draft that is a repetition or a reply: the messages removed,
            and the ownership changes.
        deliveries: how often each message, of those that have a dead letter, was delivered in vain.
        absent: the messages that have not come yet and are to be frozen when they do.
    """

    __slots__ = ("absent", "deliveries", "gone", "messages", "moves", "receivers", "tag", "why")

    def __init__(self, tag: int, why: str) -> None:
        self.tag = tag
        self.why = why
        self.messages: list[QueuedMessage] = []
        self.receivers: list[tuple[LeasedDelivery, list[Consumer]]] = []
        self.gone: Keys = {}
        self.moves: Sequence[OwnershipChange] = ()
        self.absent: Sequence[Key] = ()
        self.deliveries: list[int] = []

    def frozen(self, message: QueuedMessage) -> bool:
        return message.state == FROZEN and message.held == self.tag


class Drafts:
    """The pending drafts by tag, and the removals that are still being filled.

    Args:
        name: the name of the instance.
        incarnation, life, fence_txid: the values that make this machine's tags differ from those of
            all former machines, whose records the journal may still bring.
        least: the highest lease number among the leases at the start. All numbers given out are
            higher.
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
        """Drafts that are still to be handed to the instance."""

    def __len__(self) -> int:
        return len(self._out)

    def number(self) -> int:
        """Returns a number for a tag or a lease that no former machine has used."""
        return self.numbers(1)

    def numbers(self, count: int) -> int:
        """Returns the first of `count` consecutive numbers, each as `number` gives it."""
        first = self._next + 1
        self._next += count
        return first

    def transfer(self, messages: list[tuple[QueuedMessage, str]]) -> None:
        """Freezes the messages and drafts their transfer to the named owners, each a generation
        higher."""
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
        """Drafts a transfer of messages that this instance does not own, or does not have.

        Args:
            messages: the messages that are here, which are frozen.
            absent: the messages that are not here, which are frozen if they come before the record
                is read.
        """
        drafted = self._said(Transfer(self._name, self.number(), moves), "")
        for message in messages:
            self._freeze(drafted, message)
        drafted.absent = absent
        self._absent.update(dict.fromkeys(absent, drafted))

    def freezes(self, message: QueuedMessage) -> bool:
        """Returns whether a pending draft concerns this message, which has just come. If so, the
        message is frozen."""
        drafted = self._absent.get(message.key)
        if drafted is not None:
            self._freeze(drafted, message)
        return drafted is not None

    @property
    def waits_for_absent(self) -> bool:
        """Returns whether a pending draft concerns a message that is not here."""
        return bool(self._absent)

    def say_moves(self, moves: Sequence[OwnershipChange], why: str) -> None:
        """Drafts a transfer that states the ownership as this instance knows it. Freezes
        nothing."""
        self._said(Transfer(self._name, self.number(), moves), why).moves = moves

    def say_gone(self, keys: Keys, why: str) -> None:
        """Drafts a removal that states that these messages have left the queue, as this instance
        knows."""
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
        """Drafts a transfer that names the instances of all incarnations, former ones included; of
        too many, the latest `NAMES_MAX`."""
        told = dict(list(names.items())[-NAMES_MAX:])
        self._said(Transfer(self._name, self.number(), (), told), NAMES)

    def remove(
        self,
        message: QueuedMessage,
        why: str,
        receivers: tuple[LeasedDelivery, list[Consumer]] | None = None,
        *,
        deliveries: int = 0,
    ) -> None:
        """Freezes the message and drafts its removal, in one record with others of the same reason.
        A record is complete at the next `flush`, or when it is full.

        Args:
            deliveries: how often the message was delivered in vain, for its dead letter.
        """
        drafted = self._open.get(why)
        if drafted is None:
            drafted = self._open[why] = PendingDraft(self.number(), why)
        self._freeze(drafted, message)
        drafted.deliveries.append(deliveries)
        if receivers is not None:
            drafted.receivers.append(receivers)
        most = LETTERS_MAX if self._has_letters and why in UNDONE else DRAFT_MESSAGES_MAX
        if len(drafted.messages) >= most:
            self._say(self._open.pop(why))

    def letters(self, tag: int) -> tuple[str, list[tuple[int, int]]]:
        """Returns the dead letters that must be in the journal before a draft.

        Returns:
            The reason why the messages leave the queue; and the transaction id of each that is
            still frozen by the draft, with how often it was delivered in vain. An empty reason: the
            draft needs no letters.
        """
        drafted = self._out.get(tag)
        if drafted is None or not self._has_letters or drafted.why not in UNDONE:
            return "", []
        together = zip(drafted.messages, drafted.deliveries, strict=True)
        return drafted.why, [(each.txid, times) for each, times in together if drafted.frozen(each)]

    def is_out(self, tag: int) -> bool:
        """Returns whether a draft has neither been read back nor failed."""
        return tag in self._out

    def flush(self) -> list[QueueRecordDraft]:
        for drafted in self._open.values():
            self._say(drafted)
        self._open.clear()
        made, self.made = self.made, []
        return made

    def take(self, tag: int) -> PendingDraft | None:
        """Removes a draft that was read back, or whose append has failed."""
        drafted = self._out.pop(tag, None)
        if drafted is not None:
            for key in drafted.absent:
                if self._absent.get(key) is drafted:
                    del self._absent[key]
        return drafted

    def failed(self, tags: Collection[int]) -> list[PendingDraft]:
        return [found for tag in tags if (found := self.take(tag)) is not None]

    def left(self, consumer: Consumer) -> None:
        """Removes the consumer, which is gone, from the receivers of all drafts."""
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
        # A message that was acknowledged meanwhile is removed a second time, which changes nothing.
        keys = keys_of(message.key for message in drafted.messages)
        body = pack_removal(Removal(self._name, drafted.tag, keys, drafted.why))
        self._out[drafted.tag] = drafted
        self.made.append(QueueRecordDraft(drafted.tag, Command.QUEUE_REMOVAL, body))


def _moves(messages: list[tuple[QueuedMessage, str]]) -> list[OwnershipChange]:
    """Returns the moves of a transfer, as few as possible."""
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
