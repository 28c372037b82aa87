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
from raylay.services.messages.types.trees import Tree
from raylay.services.views.projection import TallyRule, ViewProjection

GROUP_BYTES = 350
"""Approximate memory of a group, besides its tallies and texts."""
TALLY_BYTES = 120
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
        version: number of the last change of the group, which tells a body that was made before it.
    """

    __slots__ = (
        "key",
        "members",
        "numeric",
        "plain",
        "plain_txid",
        "tallies",
        "texts",
        "version",
    )

    def __init__(self, key: bytes, texts: GroupTexts, rules: Sequence[TallyRule]) -> None:
        self.key = key
        self.texts = texts
        self.members = 0
        self.tallies = tuple(rule.make() for rule in rules)
        self.plain: tuple[Value, ...] = ()
        self.plain_txid = -1
        self.numeric = [0] * len(texts)
        """Number of members that have a number in each grouping field."""
        self.version = 0

    def value(self, at: int) -> Value:
        """Returns the value of a grouping field: a number if any member has a number there."""
        text = self.texts[at]
        if text is None or not self.numeric[at]:
            return text
        return values.parsed(text)


class GroupTable:
    """The groups of one view.

    Owner: the view's fold. Lifecycle: from the view's beginning to the instance's end; nothing of
    it is stored.

    Args:
        projection: the view's fields.
        grouping: steps of the grouping fields, as they are in a member's message; none: each member
            is a group.
        domain: key domain of the view's SOW keys.

    Attributes:
        by_key: the groups, by SOW key.
    """

    def __init__(self, projection: ViewProjection, grouping: Sequence[Steps], domain: str) -> None:
        self._projection = projection
        self._rules = projection.tallies
        self._steps = tuple(grouping)
        self._places = tuple(
            self._steps.index(steps) if steps in self._steps else -1 for steps in projection.fields
        )
        self._begun = blake2b(digest_size=DIGEST_BYTES, person=SOW_KEY)
        name = domain.encode("utf-8", "surrogateescape")
        self._begun.update(len(name).to_bytes(4, "little") + name)
        self._by_texts: dict[GroupTexts, ViewGroup] = {}
        self.by_key: dict[bytes, ViewGroup] = {}

    def member(self, message: Tree, keys: Sequence[bytes | None]) -> Member:
        """Returns the parts of a message that its group counts.

        Args:
            keys: keys of the member's records.
        """
        texts: list[str | None] = []
        if not self._steps:
            texts += [
                None if key is None else key.decode("utf-8", "surrogateescape") for key in keys
            ]
        kinds = 0
        for at, steps in enumerate(self._steps):
            value = values.scalar(values.follow(message, steps))
            if value is not None and value.__class__ is not str:
                kinds |= 1 << at
                value = str(int(value)) if value.__class__ is bool else str(value)
            texts.append(value)
        arguments = []
        for evaluate in self._projection.arguments:
            value = values.scalar(evaluate(message, NO_CONTEXT))
            arguments.append(values.clipped(value) if value.__class__ is int else value)
        return Member(tuple(texts), kinds, arguments)

    def add(self, member: Member) -> ViewGroup:
        """Counts a member in, and returns its group."""
        group = self._by_texts.get(member.texts)
        if group is None:
            group = ViewGroup(self._key_of(member.texts), member.texts, self._rules)
            self._by_texts[member.texts] = self.by_key[group.key] = group
        self._count(group, member.kinds, 1)
        arguments = member.arguments
        for (number, _), tally in zip(self._rules, group.tallies, strict=True):
            value = arguments[number]
            if value is not None:
                tally.add(value)
        return group

    def retract(self, member: Member) -> ViewGroup:
        """Counts a member out, and returns its group. A group without members stays until
        `settle`."""
        group = self._by_texts[member.texts]
        self._count(group, member.kinds, -1)
        arguments = member.arguments
        for (number, _), tally in zip(self._rules, group.tallies, strict=True):
            value = arguments[number]
            if value is not None:
                tally.retract(value)
        return group

    def replace(self, before: Member, now: Member) -> ViewGroup:
        """Changes a member that stays in its group, and returns the group."""
        group = self._by_texts[now.texts]
        if before.kinds != now.kinds:
            self._count(group, before.kinds, -1)
            self._count(group, now.kinds, 1)
        for (number, _), tally in zip(self._rules, group.tallies, strict=True):
            old, new = before.arguments[number], now.arguments[number]
            # 5 and 5.0 are equal, and differ in what is shown.
            if old.__class__ is new.__class__ and old == new:
                continue
            if old is not None:
                tally.retract(old)
            if new is not None:
                tally.add(new)
        return group

    def latest(self, group: ViewGroup, message: Tree, txid: int) -> None:
        """Takes the values of the fields outside of aggregates from a member, unless the group has
        them from a later transaction."""
        if txid >= group.plain_txid and self._places:
            group.plain = tuple(
                None if place >= 0 else values.scalar(values.follow(message, steps))
                for steps, place in zip(self._projection.fields, self._places, strict=True)
            )
            group.plain_txid = txid

    def settle(self, groups: Iterable[ViewGroup]) -> None:
        """Notes that groups have changed, and drops those without members."""
        for group in groups:
            group.version += 1
            if not group.members and self.by_key.get(group.key) is group:
                del self._by_texts[group.texts]
                del self.by_key[group.key]

    def fields_of(self, group: ViewGroup) -> Tree:
        """Returns the fields of a group as the view shows them."""
        plain = [
            group.value(place) if place >= 0 else value
            for place, value in zip(self._places, group.plain, strict=True)
        ]
        return self._projection.made(group.tallies, plain)

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of the groups."""
        return len(self.by_key) * (GROUP_BYTES + TALLY_BYTES * len(self._rules))

    def _count(self, group: ViewGroup, kinds: int, sign: int) -> None:
        group.members += sign
        if kinds:
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
