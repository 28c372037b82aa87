"""The changes of a SOW topic between two moments, from the records at each.

A client gets no deletes, but it can ask for all records of one moment. What has become of each key
since the moment before is a change; how often it changed between them is not to be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from raylay.services.pipeline.changes.fold import SNAPSHOT, TopicChange
from raylay.services.sow.records import SowRecord, decoded
from raylay.services.sow.state import VALUE, VALUE_END
from raylay.storage.sow import TopicStore


def changes_between(
    before: TopicStore, after: Iterable[Sequence[SowRecord]], number: int, *, is_first: bool
) -> Iterator[TopicChange]:
    """Yields one change for each key that differs: inserts and updates in the order of `after`,
    then deletes by key.

    Args:
        before: entries of the records at the first moment.
        after: the records at the second moment, in whatever order.
        number: the transaction id of the changes.
        is_first: whether a stream begins: the records are its snapshot.
    """
    keys: set[bytes] = set()
    for records in after:
        keys.update(record.key for record in records)
        values = before.get_many([VALUE + record.key for record in records])
        for record, value in zip(records, values, strict=True):
            known = None if value is None else decoded(record.key, value)
            if known is None:
                yield _change(number, SNAPSHOT if is_first else "inserted", None, record)
            elif _content(known) != _content(record):
                yield _change(number, "updated", known, record)
    for entry, value in before.scan(VALUE, VALUE_END):
        key = entry[len(VALUE) :]
        if key not in keys:
            known = decoded(key, value)
            # Nobody knows who deleted it, or whether it has expired.
            yield TopicChange(number, "deleted", key, known.topic, known, None, 0, 0, 0, 0)


def _content(record: SowRecord) -> tuple[int, int, bytes | None, bytes]:
    return record.publisher, record.sequence, record.body, record.topic


def _change(number: int, reason: str, before: SowRecord | None, record: SowRecord) -> TopicChange:
    return TopicChange(
        number,
        reason,
        record.key,
        record.topic,
        before,
        record,
        record.publisher,
        record.sequence,
        record.stamp_us,
        record.updated_us,
    )
