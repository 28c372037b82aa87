"""The messages about changed records for subscriptions that follow them: whole, cut to a select
list, as a delta, or as a record was before it left.

Each form of a change is built once for all subscriptions that get it.
"""

from __future__ import annotations

from typing import Any

from raylay.services.errors import MessageTypeError, RemoteProtocolError
from raylay.services.messages.record_builders import RecordBuilders
from raylay.services.messages.records import Command, Record
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.base import MessageType, MessageTypeTable
from raylay.services.messages.types.trees import changes, field_path
from raylay.services.sow.query.projection import Projection
from raylay.services.sow.state import SowRecord
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.follow_terms import FollowTerms

_SELECTIONS_MAX = 1_024


class ChangeForms:
    """The forms in which one change is delivered, each built once."""

    __slots__ = ("_made", "_maker", "change")

    def __init__(self, change: SowChange, maker: ChangedRecords) -> None:
        self.change = change
        self._maker = maker
        self._made: dict[tuple[Any, ...], bytes] = {}

    def message(self, wishes: FollowTerms) -> bytes:
        """Returns the message of a record as it is now."""
        key = "message", wishes.select
        made = self._made.get(key)
        if made is None:
            current, record = self.change.change.current, self.change.record
            assert current is not None
            made = self._made[key] = self._maker.whole(self.change, current, wishes.select, record)
        return made

    def gone(self, wishes: FollowTerms, as_given: bool = False) -> bytes:
        """Returns the message of a record that left the focus: as it was, or, where it still exists
        and the client may see it, as it is.

        Args:
            as_given: whether the record is shown as it was in any case.
        """
        is_as_it_was = as_given or wishes.keeps_back
        key = "gone", wishes.select, is_as_it_was
        made = self._made.get(key)
        if made is None:
            shown = self.change.change.current or self.change.change.previous
            if is_as_it_was:
                shown = self.change.change.previous
            assert shown is not None
            made = self._made[key] = self._maker.whole(self.change, shown, wishes.select, None)
        return made

    def delta(self, wishes: FollowTerms) -> bytes:
        """Returns the delta of a record; empty: nothing has changed."""
        key = "delta", wishes.select, wishes.no_empties, wishes.no_sowkey
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._maker.delta(self.change, wishes)
        return made


class ChangedRecords:
    """Builds the messages about records for the subscriptions that follow them.

    Args:
        types: the message types, which parse bodies.
    """

    def __init__(self, types: MessageTypeTable) -> None:
        self._types = types
        self._builders = RecordBuilders()
        self._selections: dict[tuple[str, str], Projection | None] = {}

    def type_of(self, name: str) -> MessageType | None:
        """Returns the message type of a name; None: there is none."""
        try:
            return self._types[name]
        except MessageTypeError:
            return None

    def cut(self, body: bytes, select: str, kind: MessageType) -> bytes:
        """Returns a body with the fields of a select list. Where the type cannot be cut, the
        message stays whole: if the type is known when a client subscribes, the select list is
        refused then."""
        if not select:
            return body
        key = select, kind.name
        if key not in self._selections:
            if len(self._selections) >= _SELECTIONS_MAX:
                self._selections.clear()
            try:
                self._selections[key] = Projection(select, kind)
            except RemoteProtocolError:
                self._selections[key] = None
        selection = self._selections[key]
        return body if selection is None else selection.of_body(body)

    def whole(
        self, change: SowChange, shown: SowRecord, select: str, brought: Record | None
    ) -> bytes:
        """Returns a whole record of the topic. `brought`: the journal record whose message it is
        now, if it is known."""
        body = shown.body or b""
        if brought is None:
            return self._built(change, shown, self.cut(body, select, change.topic.type))
        if not select and brought.command == Command.PUBLISH and brought.key == shown.key:
            return brought.raw
        return self._built(
            change,
            shown,
            self.cut(body, select, change.topic.type),
            trace=brought.trace,
            expiration_s=brought.expiration_s,
            correlation=brought.correlation,
        )

    def delta(self, change: SowChange, wishes: FollowTerms) -> bytes:
        """Returns the fields of a record whose values a change has changed, and its key fields;
        empty: none changed."""
        kind = change.topic.type
        previous, current, brought = change.change.previous, change.change.current, change.record
        assert previous is not None and current is not None
        if Ability.DELTA in kind.lacks or Ability.FIELDS in kind.lacks:
            return self.whole(change, current, wishes.select, brought)
        before = self.cut(previous.body or b"", wishes.select, kind)
        after = self.cut(current.body or b"", wishes.select, kind)
        try:
            if before == after or not _differ(kind, before, after, not wishes.no_empties):
                return b""
            keys = [field_path(key) for key in change.topic.definition.keys]
            body = kind.difference(before, after, keys, empties=not wishes.no_empties)
        except MessageTypeError:
            return self.whole(change, current, wishes.select, brought)
        return self._built(
            change,
            current,
            body,
            command=Command.DELTA_PUBLISH,
            key=b"" if wishes.no_sowkey else current.key,
            trace=b"" if brought is None else brought.trace,
            correlation=b"" if brought is None else brought.correlation,
        )

    def of_message(self, record: Record, select: str, kind: MessageType | None) -> bytes:
        """Returns a message of a topic without SOW."""
        if not select or kind is None:
            return record.raw
        builder = self._builders.of(record.publisher, record.topic.encode(), kind.name)
        return builder.build(
            record.sequence,
            self.cut(record.body, select, kind),
            record.origin_time_us,
            record.trace,
            expiration_s=record.expiration_s,
            key=record.key,
            correlation=record.correlation,
        )

    def _built(
        self,
        change: SowChange,
        shown: SowRecord,
        body: bytes,
        *,
        command: int = Command.PUBLISH,
        key: bytes | None = None,
        trace: bytes = b"",
        expiration_s: int = 0,
        correlation: bytes = b"",
    ) -> bytes:
        topic = change.topic.shown_as or change.name
        builder = self._builders.of(shown.publisher, topic, change.topic.type.name)
        return builder.build(
            shown.sequence,
            body,
            shown.stamp_us,
            trace,
            command=command,
            expiration_s=expiration_s,
            key=shown.key if key is None else key,
            correlation=correlation,
        )


def _differ(kind: MessageType, before: bytes, after: bytes, empties: bool) -> bool:
    """Returns whether a delta between two bodies would contain anything."""
    one, other = kind.parse(before), kind.parse(after)
    return bool(changes(one, other, (), None if empties else ...))
