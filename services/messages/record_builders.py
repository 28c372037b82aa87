"""The record builders that a reader of many publishers and topics keeps."""

from __future__ import annotations

from raylay.services.messages.records import RecordBuilder

BUILDERS_MAX = 1_024
"""Number of builders above which all are dropped, and made again when they are needed."""


class RecordBuilders:
    """The builders of one reader's records, each made when it is needed first.

    Owner: the reader. Lifecycle: as long as the reader.
    """

    __slots__ = ("_builders",)

    def __init__(self) -> None:
        self._builders: dict[tuple[int, bytes, str], RecordBuilder] = {}

    def __len__(self) -> int:
        return len(self._builders)

    def of(self, publisher: int, topic: bytes, message_type: str) -> RecordBuilder:
        """Returns the builder of a publisher's records on a topic."""
        key = (publisher, topic, message_type)
        found = self._builders.get(key)
        if found is None:
            if len(self._builders) >= BUILDERS_MAX:
                self._builders.clear()
            found = self._builders[key] = RecordBuilder(publisher, topic.decode(), message_type)
        return found
