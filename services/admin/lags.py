"""Lags of the readers of an instance (subscriptions, clients, queues and destinations), and the
trends of these lags, added to each snapshot."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from raylay.services.admin.log_times import LogTimes, SegmentSpan
from raylay.services.admin.trends import WINDOW_US, Trend, TrendBook

MESSAGES_FLOOR = 10.0
MS_FLOOR = 100.0
BYTES_FLOOR = 4096.0
"""Largest change of a lag in bytes that still counts as steady; those above are of lags in messages
and in milliseconds."""
_SPAN = ("first_txid", "first_time_us", "last_txid", "last_time_us")


class Lags:
    """Adds lags and their trends to the snapshots of one instance.

    Owner: the part that takes the samples. Lifecycle: one instance. Samples are kept only of
    readers that are behind: thousands that are not cost nothing.
    """

    def __init__(self) -> None:
        self._times = LogTimes()
        self._trends = TrendBook()
        self._behind: dict[Hashable, int] = {}
        """Time at which each value was last above 0."""

    def add(self, snapshot: dict[str, Any], time_us: int, steady_us: int) -> None:
        """Adds `seconds_behind`, `behind` (in transactions) and `trend`.

        Args:
            snapshot: snapshot of an instance in any state, with the rows of all pages.
            time_us: time of the sample, in microseconds since 1970.
            steady_us: the same by a clock that never goes back.
        """
        committed_txid = snapshot.get("committed_txid")
        if committed_txid is None:
            return
        self._trends.forget_old(steady_us)
        for key in [each for each, at_us in self._behind.items() if steady_us - at_us > WINDOW_US]:
            del self._behind[key]
        self._times.sampled(committed_txid, time_us)
        self._times.listed(
            [SegmentSpan(*(each[name] for name in _SPAN)) for each in snapshot.get("segments", ())]
        )
        clients = {each["number"]: each for each in snapshot["client_connections"]}
        for number, client in clients.items():
            key = "client", number
            client["trend"] = self._trend(key, steady_us, client["unsent_bytes"], BYTES_FLOOR)
        for row in snapshot["subscribers"]:
            if row["kind"] == "bookmark":
                cursor_txid = row["cursor_txid"]
                at_txid = committed_txid if cursor_txid is None else cursor_txid
                row["behind"] = behind = max(0, committed_txid - at_txid)
                row["seconds_behind"] = self._times.seconds_behind(at_txid, committed_txid)
                key = row["number"], row["subscription"]
                row["trend"] = self._trend(key, steady_us, behind, MESSAGES_FLOOR)
            else:
                client = clients[row["number"]]
                row["seconds_behind"] = client["age_ms"] // 1000
                row["trend"] = client["trend"]
        for name, queue in snapshot.get("queues", {}).items():
            folded_txid = queue.get("folded_txid")
            if folded_txid is not None:
                queue["seconds_behind"] = self._times.seconds_behind(folded_txid, committed_txid)
            depth = queue.get("queue_depth") or 0
            queue["trend"] = self._trend(("queue", name), steady_us, depth, MESSAGES_FLOOR)
        for name, each in snapshot.get("destinations", {}).items():
            key = "destination", name
            each["trend"] = self._trend(key, steady_us, each["age_ms"], MS_FLOOR)

    def _trend(self, key: Hashable, steady_us: int, value: float, floor: float) -> Trend | None:
        """Returns the trend of a value; None: it has been 0 for long, or is too new."""
        if not value and key not in self._behind:
            return None
        self._trends.note(key, steady_us, value)
        if value:
            self._behind[key] = steady_us
        return self._trends.of(key, floor).trend
