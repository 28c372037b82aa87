"""Queries of the state of the world, and how each goes on after a reconnect.

A query (`sow`) gives the rows of one moment. Rows of two instances, or of two moments, are no such
thing, so it is asked again after a failover only where nothing of it was handed out yet: what came
is void. Otherwise it ends with `ConnectionLost`.

A `sow_and_subscribe` is asked again whatever was handed out, and leaves out what the consumer holds
(delivered_rows.py). Where its filter is replaced, the group that follows has only what is newly in
focus.

One with a bookmark has rows of the past, and a replay behind them. The end of its group says what
lies before the replay. With that it has what any bookmark subscription has, exact ranges, and goes
on as one: no group comes any more, after a reconnect or, with a bookmark store, a restart. Before
that it has nothing but some rows: it asks anew, and leaves out those that are the same.
"""

from __future__ import annotations

from typing import Any

from raylay.services.client.messages import MessageBatch
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
"""The kind of a batch that says that all rows have come."""


class PendingQuery(SubscriptionState):
    """One `sow`. It ends with its group."""

    __slots__ = ("handed_out", "matches")
    command = "sow"
    irreplaceable = "a query gives the rows of one moment: ask a new one"

    def __init__(
        self, query_id: str, topic: str, message_type: str, options: dict[str, Any]
    ) -> None:
        super().__init__(query_id, topic, message_type, "", options)
        self.bounded = True
        self.handed_out = False
        """Whether the consumer was given some of it. The shell sets it."""
        self.matches: int | None = None
        """Number of rows that pass the filter, those that are not sent among them; None: not
        known."""

    @property
    def _acks(self) -> str:
        return _ACKS

    def lost(self) -> RaylayError | None:
        """See `SubscriptionState.lost`."""
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
            return [MessageBatch(self.id, header.get("n") or 0, payload, kind="sow")]
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
        """Whether the next group has only what is newly in focus."""

    @property
    def _acks(self) -> str:
        return _ACKS

    @property
    def takes_replace(self) -> bool:
        """See `SubscriptionState.takes_replace`: behind its group."""
        return self.active and self.completed

    def replaced(self, options: dict[str, Any]) -> None:
        """See `SubscriptionState.replaced`."""
        super().replaced(options)
        self.completed = False
        self._next_is_part = True

    def lost(self) -> RaylayError | None:
        """See `SubscriptionState.lost`: the next group has all rows."""
        self.completed = self._next_is_part = False
        return super().lost()

    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """See `SubscriptionState.arrived`."""
        payload, count = self.focus.delivered(payload, header.get("n") or 0)
        self.suppressed = self.focus.suppressed
        return self._batch(header, count, payload, None) if count else None

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `SubscriptionState.grouped`."""
        command, count = header["c"], header.get("n") or 0
        focus = self.focus
        if command == "group_begin":
            focus.begin(self._next_is_part)
            self._next_is_part = False
        elif command == "sow":
            payload, count = focus.rows(payload, count)
            self.suppressed = focus.suppressed
            return [MessageBatch(self.id, count, payload, kind="sow")] if count else []
        elif command == "oof":
            focus.left(payload, count)
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
        """Whether a group has ended, in this life or, as the bookmark store says, one before."""
        self.focus = DeliveredRows()
        """Rows that the consumer holds, of groups that were interrupted and of this one."""
        self.before = PublisherRanges()
        """Messages before the replay, as the end of the group says."""

    @property
    def command(self) -> str:  # type: ignore[override]
        """See `SubscriptionState.command`."""
        return "subscribe" if self.has_rows else "sow_and_subscribe"

    def subscribe_frame(self, command_id: str) -> tuple[Header, bytes]:
        """See `SubscriptionState.subscribe_frame`. The rows are not paused: what is behind them is,
        once
        it is accepted."""
        header, body = super().subscribe_frame(command_id)
        options = dict(header.get("o") or {})
        if self.has_rows:
            for name in ("batch", "order_by"):
                options.pop(name, None)
            if not body:
                # Nothing is something to have: else it would begin at the bookmark once more.
                options.setdefault("have", {})
        else:
            self.held = False
            options.pop("pause", None)
        return {**header, "o": options}, body

    def lost(self) -> RaylayError | None:
        """See `SubscriptionState.lost`."""
        if not self.has_rows:
            self.completed = False
        return super().lost()

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `SubscriptionState.grouped`. The end of the group is a batch of its own, of no
        messages."""
        command, focus = header["c"], self.focus
        if command == "group_begin":
            focus.begin()
        elif command == "sow":
            payload, count = focus.rows(payload, header.get("n") or 0)
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
