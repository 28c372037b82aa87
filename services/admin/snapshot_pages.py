"""The rows of an instance's clients and subscriptions, put together from the pages of its snapshots
(services/server/admin_snapshot.py): the row of a client is as old as the last page that had it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raylay.services.messages.topic_totals import TopicTotal

US_PER_S = 1_000_000
SUBSCRIPTIONS_MAX = 20_000
"""Limit on the subscriptions that are kept."""
TOPICS_MAX = 10_000
COUNTERS = ("bytes_in", "bytes_out", "messages_in", "messages_out")
"""Counters of a client that have a rate."""

Row = Mapping[str, Any]


class SnapshotPages:
    """Keeps the rows of an instance's clients and subscriptions from page to page.

    Owner: the part that takes the snapshots. Lifecycle: one instance. When the instance has started
    again, its new rows replace all.
    """

    def __init__(self) -> None:
        self._pid: object = None
        self._clients: dict[int, dict[str, Any]] = {}
        self._subscriptions: dict[int, list[Row]] = {}
        self._kept = 0
        self._topics: dict[tuple[str, str], TopicTotal] = {}

    def merge(self, snapshot: Mapping[str, Any], now_us: int) -> dict[str, Any]:
        """Returns a snapshot with all rows: `client_connections`, `subscribers` and `topics` in
        place of its pages.

        Args:
            now_us: time by a clock that never goes back.
        """
        if snapshot.get("pid") != self._pid:
            self._pid = snapshot.get("pid")
            self._clients.clear()
            self._subscriptions.clear()
            self._topics.clear()
            self._kept = 0
        fields = snapshot.get("client_fields", ())
        for values in snapshot.get("client_rows", ()):
            self._client(dict(zip(fields, values, strict=True)), now_us)
        self._drop(array("Q", snapshot.get("connected", b"")))
        fields = snapshot.get("subscription_fields", ())
        for page in snapshot.get("subscription_pages", ()):
            self._page(fields, page)
        for values in snapshot.get("topic_page", ()):
            total = TopicTotal(*values)
            key = total.topic, total.message_type
            if key in self._topics or len(self._topics) < TOPICS_MAX:
                self._topics[key] = total
        return {
            **snapshot,
            "client_connections": list(self._clients.values()),
            "subscribers": self._subscribers(),
            "topics": list(self._topics.values()),
        }

    def _client(self, row: dict[str, Any], now_us: int) -> None:
        before = self._clients.get(row["number"])
        passed_us = 0 if before is None else now_us - before["measured_us"]
        rates: dict[str, float | None] = dict.fromkeys(COUNTERS)
        if before is not None and passed_us > 0:
            for name in COUNTERS:
                rates[name] = round((row[name] - before[name]) * US_PER_S / passed_us, 3)
        row["measured_us"], row["rates"] = now_us, rates
        self._clients[row["number"]] = row

    def _drop(self, connected: Iterable[int]) -> None:
        here = set(connected)
        for number in [each for each in self._clients if each not in here]:
            del self._clients[number]
            self._kept -= len(self._subscriptions.pop(number, ()))

    def _page(self, fields: Sequence[str], page: Mapping[str, Any]) -> None:
        number = page["client"]
        if number not in self._clients:
            return
        if page["is_first"]:
            self._kept -= len(self._subscriptions.get(number, ()))
            self._subscriptions[number] = []
        rows = [dict(zip(fields, values, strict=True)) for values in page["rows"]]
        rows = rows[: max(0, SUBSCRIPTIONS_MAX - self._kept)]
        self._kept += len(rows)
        self._subscriptions.setdefault(number, []).extend(rows)

    def _subscribers(self) -> list[Row]:
        clients = self._clients
        return [
            {**row, "number": number, "client": clients[number]["client"]}
            for number, rows in self._subscriptions.items()
            for row in rows
        ]
