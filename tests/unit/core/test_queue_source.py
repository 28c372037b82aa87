"""services/core/queue_source.py: the messages of a queue as records that views are over."""

from __future__ import annotations

import pytest

from raylay.services.core.feature import CommitBatch
from raylay.services.core.queue_source import QueueSource
from raylay.services.errors import ConfigurationError
from raylay.services.messages.records import Record, RecordBuilder, decode_record
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.plugins.views import view_problems, with_views
from raylay.services.queues.definition import QueueDefinition
from raylay.services.sow.book import SowBook
from raylay.services.sow.topic import SowChange
from raylay.services.views.definition import ViewDefinition

pytestmark = pytest.mark.covers("Views", "views over queues")

WORK = QueueDefinition("work", "json", underlying="orders")
KINDS = ViewDefinition(
    "kinds", "json", topic="work", grouping=("/kind",),
    projection=("/kind AS /kind", "COUNT(/kind) AS /count"),
)  # fmt: skip


def message(sequence: int, kind: str = "mail", publisher: int = 7) -> Record:
    body = b'{"kind": "%s"}' % kind.encode()
    return decode_record(RecordBuilder(publisher, "orders", "json").build(sequence, body, 5))


def reasons(changes: list[SowChange]) -> list[tuple[bytes, str]]:
    return [(each.change.key, each.change.reason) for each in changes]


def test_messages_come_once_and_leave_once() -> None:
    source = QueueSource(WORK, MessageTypes()["json"])
    assert reasons(source.came([message(1), message(2), message(1)], 3, 9)) == [
        (b"7|1|", "inserted"), (b"7|2|", "inserted")
    ]  # fmt: skip
    (record, _) = source.topic.state.records()
    assert (record.publisher, record.sequence, record.updated_us, record.stamp_us) == (7, 1, 9, 5)
    assert reasons(source.gone({7: [(2, 5)], 8: [(1, 1)]}, 4, 9)) == [(b"7|2|", "deleted")]
    assert source.gone({7: [(2, 2)]}, 4, 9) == [] and not source.is_complete
    assert source.complete(4, 9) == [] and source.is_complete
    assert source.topic.name == b"work"


def test_of_an_earlier_request_nothing_is_heard() -> None:
    assert QueueSource(WORK, MessageTypes()["json"]).is_heard
    asked = QueueSource(WORK, MessageTypes()["json"], 3)
    assert asked.number == 3 and not asked.is_heard
    asked.begin()
    assert asked.is_heard, "an owner that begins tells of all messages"


def test_what_the_next_owner_does_not_tell_of_has_left() -> None:
    source = QueueSource(WORK, MessageTypes()["json"])
    source.begin()
    source.came([message(at) for at in (1, 2, 3)], 3, 9)
    source.complete(3, 9)
    source.begin()
    assert reasons(source.came([message(3), message(4)], 5, 9)) == [(b"7|4|", "inserted")]
    assert source.gone({7: [(1, 1)]}, 5, 9)
    assert reasons(source.complete(5, 9)) == [(b"7|2|", "deleted")]
    assert source.complete(5, 9) == []


def test_a_view_over_a_queue_counts_its_messages() -> None:
    joined = ViewDefinition(
        "both", "json", joins=("[work]./kind = [kinds]./kind",),
        projection=("[work]./kind AS /kind", "[kinds]./count AS /count"),
    )  # fmt: skip
    other = QueueDefinition("other", "json", underlying="orders")
    book, feature, sources = with_views(SowBook(), (KINDS, joined), (), (WORK, other))
    assert list(sources) == ["json/work"], "only queues that a view is over are followed"
    assert not book.topics and book.find(b"work", b"json") is None, "and they are no SOW topics"
    feature.build()
    source, (kinds, both) = sources["json/work"], feature.views

    def fold(changes: list[SowChange]) -> list[str]:
        feature.fold(CommitBatch([], 1, changes))
        return sorted((each.body or b"").decode() for each in kinds.topic.state.records())

    made = fold(source.came([message(1), message(2), message(3, "fax")], 1, 9))
    assert made == ['{"kind":"fax","count":1}', '{"kind":"mail","count":2}']
    assert both.topic.state.count == 3
    assert fold(source.gone({7: [(1, 1), (3, 3)]}, 2, 9)) == ['{"kind":"mail","count":1}']
    assert [each.body for each in both.topic.state.records()] == [b'{"kind":"mail","count":1}']


def test_a_view_over_a_queue_that_is_not_there_is_refused() -> None:
    assert view_problems(KINDS, (), (), (), (WORK,)) == []
    (problem,) = view_problems(KINDS, (), ())
    assert "no SOW topic, view or queue json/work" in problem.text
    with pytest.raises(ConfigurationError, match="json/work"):
        with_views(SowBook(), (KINDS,), ())
    raw = QueueDefinition("work", "binary", underlying="orders")
    (problem,) = view_problems(KINDS, (), (), (), (raw,))
    assert "binary" in problem.text
