"""Queries of the state of the world, and how each continues after a reconnect.

A query (`sow`) returns the rows of one moment. Rows from two instances, or from two moments, must
not be mixed, so the query is repeated after a failover only if no row was handed out yet: rows that
arrived are dropped. Otherwise it ends with `ConnectionLost`.

A `sow_and_subscribe` is always repeated, and leaves out rows that the consumer holds
(delivered_rows.py). Where its filter is replaced, the next group has only rows that are new in the
focus.

A `sow_and_subscribe` with a bookmark has rows of the past, followed by a replay. The end of its
group names the messages before the replay. From then on it has exact ranges like any bookmark
subscription, and continues as one: no further group comes, after a reconnect or, with a bookmark
store, a restart. Before the end of the group it only has some rows: it is repeated, and leaves out
rows that are the same.
"""

from __future__ import annotations

from typing import Any

from raylay.services.client.messages import MessageBatch, record_count
from raylay.services.client.subscriptions.delivered_rows import DeliveredRows
from raylay.services.client.subscriptions.subscription_state import (
    BookmarkStoreProtocol,
    SubscriptionState,
    read_have,
)
from raylay.services.errors import ConnectionLost, RaylayError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header

_ACKS = "processed,completed"
GROUP_END = "group_end"
"""Kind of a batch that marks that all rows have come."""


class PendingQuery(SubscriptionState):
    """One `sow` query, which ends with its group."""

    __slots__ = ("handed_out", "matches")
    command = "sow"
    irreplaceable = "a query gives the rows of one moment: ask a new one"

    def __init__(
        self, query_id: str, topic: str, message_type: str, options: dict[str, Any]
    ) -> None:
        super().__init__(query_id, topic, message_type, "", options)
        self.bounded = True
        self.handed_out = False
        """Whether the consumer was given a row. Set by the shell."""
        self.matches: int | None = None
        """Number of rows that pass the filter, including those that are not sent; None: not
        known."""

    @property
    def _acks(self) -> str:
        return _ACKS

    def lost(self) -> RaylayError | None:
        """Handles the end of the connection, see `SubscriptionState.lost`."""
        self.active = False
        if not self.handed_out:
            return None
        return ConnectionLost(
            f"the connection was lost in the middle of the query of {self.topic!r}, and another "
            "instance may have other rows: ask again, as all() does by itself"
        )

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `SubscriptionState.grouped`."""
        command = header["c"]
        if command == "sow":
            return [MessageBatch(self.id, record_count(header, payload), payload, kind="sow")]
        if command == "group_end":
            self.matches = int(header.get("matches") or 0)
        return []


class QuerySubscription(SubscriptionState):
    """One `sow_and_subscribe`."""

    __slots__ = ("_next_is_part", "focus")
    command = "sow_and_subscribe"

    def __init__(
        self, subscription_id: str, topic: str, message_type: str, options: dict[str, Any]
    ) -> None:
        super().__init__(subscription_id, topic, message_type, "", options)
        self.focus = DeliveredRows()
        self._next_is_part = False
        """Whether the next group has only rows that are new in the focus."""

    @property
    def _acks(self) -> str:
        return _ACKS

    @property
    def takes_replace(self) -> bool:
        """Returns whether a new filter can be sent now, which is after the group; see
        `SubscriptionState.takes_replace`."""
        return self.active and self.completed

    def replaced(self, options: dict[str, Any]) -> None:
        """Notes that the server took new options, see `SubscriptionState.replaced`."""
        super().replaced(options)
        self.completed = False
        self._next_is_part = True

    def lost(self) -> RaylayError | None:
        """Handles the end of the connection: the next group has all rows again; see
        `SubscriptionState.lost`."""
        self.completed = self._next_is_part = False
        return super().lost()

    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """See `SubscriptionState.arrived`."""
        payload, count = self.focus.delivered(payload, record_count(header, payload))
        self.suppressed = self.focus.suppressed
        return self._batch(header, count, payload, None) if count else None

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `SubscriptionState.grouped`."""
        command = header["c"]
        focus = self.focus
        if command == "group_begin":
            focus.begin(self._next_is_part)
            self._next_is_part = False
        elif command == "sow":
            payload, count = focus.rows(payload, record_count(header, payload))
            self.suppressed = focus.suppressed
            return [MessageBatch(self.id, count, payload, kind="sow")] if count else []
        elif command == "oof":
            focus.left(payload, record_count(header, payload))
            return super().grouped(header, payload)
        else:
            payload, count = focus.end()
            if count and self.options.get("oof"):
                return [MessageBatch(self.id, count, payload, kind="oof", reason="deleted")]
        return []


class QueryReplay(SubscriptionState):
    """One `sow_and_subscribe` with a bookmark.

    Invariant: `received` is empty until `has_rows`.
    """

    __slots__ = ("before", "focus", "has_rows")

    def __init__(
        self,
        subscription_id: str,
        topic: str,
        message_type: str,
        bookmark: str,
        options: dict[str, Any],
        store: BookmarkStoreProtocol | None = None,
    ) -> None:
        super().__init__(subscription_id, topic, message_type, bookmark, options, store)
        self.has_rows = bool(self.received)
        """Whether a group has ended, in this life or, according to the bookmark store, in an
        earlier one."""
        self.focus = DeliveredRows()
        """Rows that the consumer holds, of interrupted groups and of the present one."""
        self.before = PublisherRanges()
        """Messages before the replay, as the end of the group names them."""

    @property
    def command(self) -> str:  # type: ignore[override]
        """See `SubscriptionState.command`."""
        return "subscribe" if self.has_rows else "sow_and_subscribe"

    def subscribe_frame(self, command_id: str) -> tuple[Header, bytes]:
        """Returns the command that starts it, see `SubscriptionState.subscribe_frame`. The rows are
        not paused: the replay after them is, once the query is accepted."""
        header, body = super().subscribe_frame(command_id)
        options = dict(header.get("o") or {})
        if self.has_rows:
            for name in ("batch", "order_by"):
                options.pop(name, None)
            if not body:
                # An empty `have` counts, too: without it, the replay would begin at the bookmark
                # once more.
                options.setdefault("have", {})
        else:
            self.held = False
            options.pop("pause", None)
        return {**header, "o": options}, body

    def lost(self) -> RaylayError | None:
        """Handles the end of the connection, see `SubscriptionState.lost`."""
        if not self.has_rows:
            self.completed = False
        return super().lost()

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """Returns the batches to hand out, see `SubscriptionState.grouped`. The end of the group is
        a batch without messages."""
        command, focus = header["c"], self.focus
        if command == "group_begin":
            focus.begin()
        elif command == "sow":
            payload, count = focus.rows(payload, record_count(header, payload))
            self.suppressed = focus.suppressed
            return [MessageBatch(self.id, count, payload, kind="sow")] if count else []
        elif command == "group_end":
            self.focus = DeliveredRows()
            self.has_rows = True
            self.before = read_have(header, payload) or PublisherRanges()
            if self.received is not None:
                self.received.update(self.before)
            return [MessageBatch(self.id, 0, b"", kind=GROUP_END)]
        return []
