"""What was asked of the state of the world, and how it goes on after a reconnect.

A query (`sow`) gives the rows of one moment. Rows of two instances, or of two moments, are no such
thing, so it is asked again after a failover only where nothing of it was handed out yet: what came
is void. Otherwise it ends with `ConnectionLost`.

A `sow_and_subscribe` is asked again whatever was handed out, and leaves out what the consumer holds
(focus.py). Where its filter is replaced, the group that follows has only what is newly in focus.
"""

from __future__ import annotations

from typing import Any

from raylay.services.client.focus import Focus
from raylay.services.client.messages import MessageBatch
from raylay.services.client.resumption import Resumption
from raylay.services.errors import ConnectionLost, RaylayError
from raylay.services.protocol.frames import Header

_ACKS = "processed,completed"


class Query(Resumption):
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
        """How many rows pass the filter, those that are not sent among them; None: not known."""

    @property
    def _acks(self) -> str:
        return _ACKS

    def lost(self) -> RaylayError | None:
        """See `Resumption.lost`."""
        self.active = False
        if not self.handed_out:
            return None
        return ConnectionLost(
            f"the connection was lost in the middle of the query of {self.topic!r}, and another "
            "instance may have other rows: ask again, as all() does by itself"
        )

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `Resumption.grouped`."""
        command = header["c"]
        if command == "sow":
            return [MessageBatch(self.id, header.get("n") or 0, payload, kind="sow")]
        if command == "group_end":
            self.matches = int(header.get("matches") or 0)
        return []


class FocusedSubscription(Resumption):
    """One `sow_and_subscribe`."""

    __slots__ = ("_next_is_part", "focus")
    command = "sow_and_subscribe"

    def __init__(
        self, subscription_id: str, topic: str, message_type: str, options: dict[str, Any]
    ) -> None:
        super().__init__(subscription_id, topic, message_type, "", options)
        self.focus = Focus()
        self._next_is_part = False
        """Whether the next group has only what is newly in focus."""

    @property
    def _acks(self) -> str:
        return _ACKS

    @property
    def takes_replace(self) -> bool:
        """See `Resumption.takes_replace`: behind its group."""
        return self.active and self.completed

    def replaced(self, options: dict[str, Any]) -> None:
        """See `Resumption.replaced`."""
        super().replaced(options)
        self.completed = False
        self._next_is_part = True

    def lost(self) -> RaylayError | None:
        """See `Resumption.lost`: the next group has all rows."""
        self.completed = self._next_is_part = False
        return super().lost()

    def arrived(self, header: Header, payload: bytes) -> MessageBatch | None:
        """See `Resumption.arrived`."""
        payload, count = self.focus.delivered(payload, header.get("n") or 0)
        self.suppressed = self.focus.suppressed
        return self._batch(header, count, payload, None) if count else None

    def grouped(self, header: Header, payload: bytes) -> list[MessageBatch]:
        """See `Resumption.grouped`."""
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
