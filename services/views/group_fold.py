"""The fold of a view over one topic: each change of a record changes the group that it leaves and
the group that it joins (behaviour.md 4.6).

A view keeps a row for each record: its group, and the arguments of the aggregates. It takes back
what it folded itself, not what a change says was there before: so the same change twice changes
nothing, and changes of one record may be merged. A rebuild after a restart and the changes that
come meanwhile need no order between them, but that the newest change of a record is folded last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from raylay.services.expressions.compiler import Predicate
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.values import Steps
from raylay.services.messages.types.trees import Tree
from raylay.services.views.groups import (
    UNWATCHED,
    GroupTable,
    GroupWatcher,
    Member,
    ViewGroup,
)
from raylay.services.views.projection import ViewProjection

PARTS = 64
"""Number of dicts that hold the rows: one that holds all would stop everything while it grows."""
ROW_BYTES = 210
"""Approximate memory of a row, besides the values in it."""

_unpack = msgpack.unpackb
_tuple_of = tuple.__new__
_pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogatepass").pack


class SourceChange(NamedTuple):
    """A change of a record under a view.

    Attributes:
        key: key of the record in its topic.
        tree: the record's fields as they are now; None: it is gone, or cannot be read.
        txid: transaction that brought the record.
    """

    key: bytes
    tree: Tree | None
    txid: int


class GroupFold:
    """The fold of one view over one topic.

    Owner: the view's feature, on the instance's loop. Lifecycle: from the view's beginning to the
    instance's end; nothing of it is stored.

    Args:
        projection: the view's fields.
        grouping: steps of the grouping fields.
        domain: key domain of the view's SOW keys.
        passes: filter that a record must pass; None: there is none.
        watcher: is told of the groups (`GroupTable`).

    Attributes:
        groups: the groups.
        rows_bytes: bytes of all rows.
    """

    def __init__(
        self,
        projection: ViewProjection,
        grouping: Sequence[Steps],
        domain: str,
        passes: Predicate | None = None,
        watcher: GroupWatcher = UNWATCHED,
    ) -> None:
        self.groups = GroupTable(projection, grouping, domain, watcher)
        self._passes = passes
        # Bytes, unlike tuples, cost no garbage collection.
        self._rows: tuple[dict[bytes, bytes], ...] = tuple({} for _ in range(PARTS))
        self.rows_bytes = 0

    def change(self, change: SourceChange) -> tuple[ViewGroup, ...]:
        """Folds a change, and returns the groups that it touched: the group that the record leaves
        first. A group without members is gone."""
        key, tree, txid = change
        table = self.groups
        rows = self._rows[hash(key) % PARTS]
        before = rows.get(key)
        if tree is None or (self._passes is not None and not self._passes(tree, NO_CONTEXT)):
            if before is None:
                return ()
            del rows[key]
            self.rows_bytes -= len(before)
            touched: tuple[ViewGroup, ...] = (table.retract(_member(before)),)
            table.settle(touched)
            return touched
        member = table.member(tree, (key,))
        texts, kinds, arguments = member
        row = _pack((texts, kinds, *arguments))
        if before is None or before == row:
            group = table.add(member) if before is None else table.replace(member, member)
            touched = (group,)
        else:
            old = _member(before)
            if old.texts == texts:
                group = table.replace(old, member)
                touched = (group,)
            else:
                left = table.retract(old)
                group = table.add(member)
                touched = (left, group)
        rows[key] = row
        self.rows_bytes += len(row) - (0 if before is None else len(before))
        table.latest(group, tree, txid)
        table.settle(touched)
        return touched

    @property
    def rows(self) -> int:
        """Returns the number of records that are in a group."""
        return sum(map(len, self._rows))

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate memory of rows and groups."""
        return self.rows * ROW_BYTES + self.rows_bytes + self.groups.memory_bytes


def _member(row: bytes) -> Member:
    texts, kinds, *arguments = _unpack(row, unicode_errors="surrogatepass")
    return _tuple_of(Member, (tuple(texts), kinds, arguments))
