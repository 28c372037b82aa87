"""The groups of a view: their members are counted in and out by the folds, and their fields are
computed when somebody asks (behaviour.md 4.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from raylay.services.expressions import values
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.values import Steps, Value
from raylay.services.messages.digests import DIGEST_BYTES, SOW_KEY
from raylay.services.messages.sorted_entries import SortedEntries
from raylay.services.messages.types.trees import Tree
from raylay.services.sow.records import SowRecord
from raylay.services.views.projection import TallyRule, ViewProjection

GROUP_BYTES = 350
"""Approximate memory of a group, besides its tallies and texts."""
TALLY_BYTES = 120
RECORD_BYTES = 300
"""Approximate memory of a record of a view, besides its body."""
_member_of = tuple.__new__
"""Makes a named tuple of a tuple, in half the time: one is made for each change."""
_NULL = b"\xff\xff\xff\xff"
"""Mark of a field without a value in a group's key, in the place of a text's length."""

GroupTexts = tuple["str | None", ...]
"""The texts of a group's grouping fields; None: a field without a value."""


class Member(NamedTuple):
    """The part of a member that its group counts.

    Attributes:
        texts: texts of the grouping fields.
        kinds: a bit for each grouping field in which the member has a number.
        arguments: values of the arguments of the aggregates.
    """

    texts: GroupTexts
    kinds: int
    arguments: Sequence[Value]


class ViewGroup:
    """One group: the members of a view that have the same values in the grouping fields.

    Attributes:
        key: SOW key of the group in the view.
        texts: the texts of the grouping fields.
        members: number of members.
        tallies: the tallies of the aggregates.
        plain: values of the fields outside of aggregates, of the member that came last.
        plain_txid: transaction that brought it.
        txid, at_us: transaction and receive time of the last change of the group.
        record: the group's record as it is now; None: nobody has needed it since the last change.
    """

    __slots__ = (
        "at_us",
        "key",
        "members",
        "numeric",
        "plain",
        "plain_txid",
        "record",
        "shown",
        "tallies",
        "texts",
        "txid",
    )

    def __init__(self, key: bytes, texts: GroupTexts, rules: Sequence[TallyRule]) -> None:
        self.key = key
        self.texts = texts
        self.members = 0
        self.tallies = tuple(rule.make() for rule in rules)
        self.plain: list[Value] = []
        self.plain_txid = -1
        self.numeric = [0] * len(texts)
        """Number of members that have a number in each grouping field."""
        self.txid = 0
        self.at_us = 0
        self.record: SowRecord | None = None
        self.shown: list[Value] | None = None
        """Values of the grouping fields as they are shown, with `None` for all others; None: they
        are to be found again."""

    def value(self, at: int) -> Value:
        """Returns the value of a grouping field: a number if any member has a number there."""
        text = self.texts[at]
        if text is None or not self.numeric[at]:
            return text
        return values.parsed(text)


class GroupWatcher:
    """Is told of the groups of a table. This one does nothing."""

    def came(self, group: ViewGroup) -> None:
        """Takes a new group, which has no member yet."""

    def touching(self, group: ViewGroup) -> None:
        """Takes a group before a member comes, goes or changes."""


UNWATCHED = GroupWatcher()


class GroupTable:
    """The groups of one view.

    Owner: the view's fold. Lifecycle: from the view's beginning to the instance's end; nothing of
    it is stored.

    Args:
        projection: the view's fields.
        grouping: steps of the grouping fields, as they are in a member's message; none: each member
            is a group.
        domain: key domain of the view's SOW keys.
        watcher: is told of new groups and, while `is_watched`, of groups before they change.

    Attributes:
        by_key: the groups, by SOW key.
        by_texts: the same, by the texts of their grouping fields.
        is_watched: whether somebody needs to know what groups were before they change.
        records_bytes: approximate memory of the records that are kept of groups.
        inserted, deleted: number of groups that came and that went.
    """

    def __init__(
        self,
        projection: ViewProjection,
        grouping: Sequence[Steps],
        domain: str,
        watcher: GroupWatcher = UNWATCHED,
    ) -> None:
        self._watcher = watcher
        self.is_watched = False
        self._projection = projection
        self._rules = projection.tallies
        self._steps = tuple(grouping)
        self._named_steps = tuple(
            (str(each[0]) if len(each) == 1 and each[0].__class__ is str else None, each)
            for each in self._steps
        )
        """The same, each with its name where it is a field of the message itself."""
        self._places = tuple(
            self._steps.index(steps) if steps in self._steps else -1 for steps in projection.fields
        )
        self._has_others = min(self._places, default=-1) < 0
        """Whether fields outside of aggregates are no grouping fields."""
        self._nothing: list[Value] = [None] * len(self._places)
        """The values outside of aggregates of each group where all are grouping fields."""
        self._begun = blake2b(digest_size=DIGEST_BYTES, person=SOW_KEY)
        name = domain.encode("utf-8", "surrogateescape")
        self._begun.update(len(name).to_bytes(4, "little") + name)
        self.by_texts: dict[GroupTexts, ViewGroup] = {}
        self.by_key: SortedEntries[ViewGroup] = SortedEntries()
        self._arguments = tuple(rule.argument for rule in self._rules)
        self._texts_bytes = 0
        self.records_bytes = 0
        self.inserted = self.deleted = 0

    def member(self, message: Tree, keys: Sequence[bytes | None]) -> Member:
        """Returns the parts of a message that its group counts.

        Args:
            keys: keys of the member's records.
        """
        texts: list[str | None] = []
        if not self._steps:
            texts += texts_of(keys)
        kinds = 0
        for at, (name, steps) in enumerate(self._named_steps):
            value = values.follow(message, steps) if name is None else message.get(name)
            # Most values are plain, and need no help.
            if value.__class__ is str:
                texts.append(value or None)
                continue
            if value.__class__ is not int:
                value = values.scalar(value)
            if value is not None and value.__class__ is not str:
                kinds |= 1 << at
                value = str(int(value)) if value.__class__ is bool else str(value)
            texts.append(value)
        arguments = []
        for evaluate in self._projection.arguments:
            value = evaluate(message, NO_CONTEXT)
            if value.__class__ is not float:
                value = values.scalar(value)
                if value.__class__ is int:
                    value = values.clipped(value)
            arguments.append(value)
        return _member_of(Member, (tuple(texts), kinds, arguments))

    def add(self, member: Member) -> ViewGroup:
        """Counts a member in, and returns its group."""
        group = self.by_texts.get(member.texts)
        if group is None:
            group = ViewGroup(self._key_of(member.texts), member.texts, self._rules)
            self.by_texts[member.texts] = self.by_key[group.key] = group
            self._texts_bytes += _size_of(group)
            self.inserted += 1
            self._watcher.came(group)
        if self.is_watched:
            self._watcher.touching(group)
        self._count(group, member.kinds, 1)
        arguments = member.arguments
        for number, tally in zip(self._arguments, group.tallies, strict=True):
            value = arguments[number]
            if value is not None:
                tally.add(value)
        return group

    def retract(self, member: Member) -> ViewGroup:
        """Counts a member out, and returns its group. A group without members stays until
        `settle`."""
        group = self.by_texts[member.texts]
        if self.is_watched:
            self._watcher.touching(group)
        self._count(group, member.kinds, -1)
        arguments = member.arguments
        for number, tally in zip(self._arguments, group.tallies, strict=True):
            value = arguments[number]
            if value is not None:
                tally.retract(value)
        return group

    def replace(self, before: Member, now: Member) -> ViewGroup:
        """Changes a member that stays in its group, and returns the group."""
        group = self.by_texts[now.texts]
        if self.is_watched:
            self._watcher.touching(group)
        if before.kinds != now.kinds:
            self._count(group, before.kinds, -1)
            self._count(group, now.kinds, 1)
        was, comes = before.arguments, now.arguments
        for number, tally in zip(self._arguments, group.tallies):  # noqa: B905
            old, new = was[number], comes[number]
            # 5 and 5.0 are equal, and differ in what is shown.
            if old.__class__ is not new.__class__ or old != new:
                tally.replace(old, new)
        return group

    @property
    def counts_keys_alone(self) -> bool:
        """Returns whether a member is told by the keys of its records, and has no arguments: then
        a change of its fields counts nothing."""
        return not self._steps and not self._arguments

    def plain_steps(self, first: str) -> tuple[tuple[int, Steps], ...]:
        """Returns the fields outside of aggregates whose steps begin with a name: the place of each
        among them, and its further steps."""
        return tuple(
            (at, steps[1:]) for at, steps in enumerate(self._projection.fields) if steps[0] == first
        )

    def patch(self, texts: GroupTexts, came: Sequence[tuple[int, Value]], txid: int) -> ViewGroup:
        """Changes fields of the only member of a group, which is told by its keys alone. Returns
        the group.

        Args:
            came: place of each field and its value.
        """
        group = self.by_texts[texts]
        if self.is_watched:
            self._watcher.touching(group)
        plain = group.plain
        for at, value in came:
            plain[at] = value
        if txid > group.plain_txid:
            group.plain_txid = txid
        return group

    def latest(self, group: ViewGroup, message: Tree, txid: int) -> None:
        """Takes the values of the fields outside of aggregates from a member, unless the group has
        them from a later transaction."""
        if txid >= group.plain_txid and self._places:
            group.plain_txid = txid
            if not self._has_others:
                group.plain = self._nothing
                return
            group.plain = [
                None if place >= 0 else values.scalar(values.follow(message, steps))
                for steps, place in zip(self._projection.fields, self._places, strict=True)
            ]

    def settle(self, groups: Iterable[ViewGroup]) -> None:
        """Drops the records of groups that have changed, and the groups without members."""
        for group in groups:
            if group.record is not None:
                self.records_bytes -= RECORD_BYTES + len(group.record.body or b"")
                group.record = None
            if not group.members and self.by_key.get(group.key) is group:
                del self.by_texts[group.texts]
                self.by_key.pop(group.key)
                self._texts_bytes -= _size_of(group)
                self.deleted += 1

    def fields_of(self, group: ViewGroup) -> Tree:
        """Returns the fields of a group as the view shows them."""
        plain = group.shown
        if plain is None:
            plain = [
                group.value(place) if place >= 0 else value
                for place, value in zip(self._places, group.plain, strict=True)
            ]
            if not self._has_others:
                group.shown = plain
        return self._projection.made(group.tallies, plain)

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of the groups."""
        sizes = GROUP_BYTES + TALLY_BYTES * len(self._rules)
        return len(self.by_key) * sizes + self._texts_bytes + self.records_bytes

    def _count(self, group: ViewGroup, kinds: int, sign: int) -> None:
        group.members += sign
        if kinds:
            # A field is a number while a member has one there.
            group.shown = None
            for at in range(len(group.numeric)):
                if kinds >> at & 1:
                    group.numeric[at] += sign

    def _key_of(self, texts: GroupTexts) -> bytes:
        digest = self._begun.copy()
        for text in texts:
            if text is None:
                digest.update(_NULL)
                continue
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(4, "little") + encoded)
        return digest.hexdigest().encode()


def texts_of(keys: Iterable[bytes | None]) -> GroupTexts:
    """Returns the texts of a group that is told by the keys of its only member's records."""
    return tuple([None if key is None else key.decode("utf-8", "surrogateescape") for key in keys])


def _size_of(group: ViewGroup) -> int:
    """Returns the memory of the texts that tell a group from others."""
    return sum(len(text) for text in group.texts if text is not None)
