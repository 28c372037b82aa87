"""The audit's view of one instance's messages as a client receives them. Values in, values out.

An instance delivers messages in the order of its log, without the place where they were published.
So that place is any instance of the fabric: a message is missing where each of them would surely
bring it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raylay.services.pipeline.audit.judgement import Audit
from raylay.services.pipeline.audit.parts import (
    RunProperties,
    StretchParts,
    content_numbers,
    parts_of,
)
from raylay.services.pipeline.tables.columns import Rows

SOMEWHERE = "*"
"""The incarnation of a message whose place of publish is not told."""
STRETCH_MESSAGES = 1 << 20
"""Messages of one stretch, which are in memory together."""
NOT_CHECKED = (
    "messages that an instance holds more than once: it delivers each once",
    "the order of a publisher's messages: those behind a later one are listed as late, because an "
    "instance does not tell which it flagged so",
    "deletes and other records that are no messages: no client gets them",
    "why an instance lacks a message, apart from retention: notes that it is unavailable or was "
    "refused are not told, and it counts as lost or owed",
    "where a message was published: it is missing only where every instance would surely bring it",
)


class DeliveryStretches:
    """Summaries of consecutive deliveries of one instance, a stretch at a time."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._first = 1
        self._begin()

    def _begin(self) -> None:
        self._made = StretchParts(self._instance, self._first)
        self._kinds: dict[RunProperties, int] = {}
        self._gathered: list[tuple[Any, Any, Any]] = []
        self._count = 0

    def add(self, rows: Rows) -> StretchParts | None:
        """Adds rows that were delivered next. Returns the stretch that they fill; None: there is
        room for more."""
        headers = rows.headers
        sequences = np.ascontiguousarray(headers["sequence"]).view(np.int64)
        self._gathered.append((self._codes(rows), sequences, content_numbers(headers)))
        self._count += len(sequences)
        runs, counts = np.unique(rows.run, return_counts=True)
        times_us = [time_us for _, _, time_us in rows.runs()]
        seconds: dict[int, int] = {}
        for run, count in zip(runs.tolist(), counts.tolist(), strict=True):
            second = times_us[run] // 1_000_000
            seconds[second] = seconds.get(second, 0) + count
            self._made.last_us = times_us[run]
        self._made.times.add(seconds)
        return self.finished() if self._count >= STRETCH_MESSAGES else None

    def finished(self) -> StretchParts:
        """Returns what was added since the last stretch."""
        made = self._made
        if self._gathered:
            columns = (np.concatenate(each) for each in zip(*self._gathered, strict=True))
            made.parts = parts_of(list(self._kinds), *columns)
        self._first += self._count
        self._begin()
        return made

    def _codes(self, rows: Rows) -> Any:
        """Returns, for each row, the number of its kind."""
        topics = rows.column("topic").dictionary_encode()
        types = rows.column("message_type").dictionary_encode()
        publishers, which = np.unique(rows.headers["publisher"], return_inverse=True)
        among, kinds = len(topics.dictionary), len(types.dictionary)
        topic_of, type_of = topics.indices.to_numpy(), types.indices.to_numpy()
        combined = (which.astype(np.int64) * among + topic_of) * kinds + type_of
        used, codes = np.unique(combined, return_inverse=True)
        numbers = [
            self._kinds.setdefault(
                RunProperties(
                    int(publishers[each // kinds // among]),
                    topics.dictionary[each // kinds % among].as_py(),
                    types.dictionary[each % kinds].as_py(),
                    SOMEWHERE,
                    late=False,
                ),
                len(self._kinds),
            )
            for each in used.tolist()
        ]
        return np.array(numbers, np.int64)[codes]


def without_order(found: Audit) -> None:
    """Lists messages behind a later one as late, which is no fault: whether the instance flagged
    them so is unknown."""
    found.late += found.out_of_order
    found.out_of_order = []
    for counts in found.instances.values():
        counts["late"] += counts["out_of_order"]
        counts["out_of_order"] = 0
    found.not_checked += NOT_CHECKED
