"""The records of a view as a store (services/views/group_records.py)."""

from __future__ import annotations

import json

from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.types.registry import message_type
from raylay.services.sow.records import body_of
from raylay.services.sow.state import VALUE, VALUE_END
from raylay.services.views.group_fold import GroupFold, SourceChange
from raylay.services.views.group_records import GroupRecords
from raylay.services.views.projection import ViewProjection
from raylay.services.views.sources import one_source


def records(count: int) -> tuple[GroupFold, GroupRecords]:
    kind = message_type("json")
    projection = ViewProjection(
        ("/a AS /a", "COUNT(/a) AS /n"), kind, BUILT_IN, one_source("json", "orders")
    )
    fold = GroupFold(projection, (("a",),), "counts")
    for number in range(count):
        fold.change(SourceChange(b"%d" % number, {"a": number}, number))
    return fold, GroupRecords(fold.groups, kind)


def test_entries_are_read_by_key_in_order() -> None:
    fold, store = records(20)
    found = store.chunk(VALUE, VALUE_END, 100)
    assert [key[1:] for key, _ in found] == sorted(fold.groups.by_key)
    assert sorted(json.loads(body_of(value))["a"] for _, value in found) == list(range(20))
    assert store.chunk(found[3][0], found[7][0], 100) == found[3:7]
    assert store.chunk(found[3][0] + b"\0", VALUE_END, 2) == found[4:6]
    assert store.chunk(b"c", VALUE_END, 1) == found[:1]
    assert store.get(found[5][0]) == found[5][1]


def test_a_view_has_no_other_entries() -> None:
    _, store = records(2)
    assert store.chunk(b"d", b"e", 10) == store.chunk(VALUE_END, b"x", 10) == []
    assert store.get(b"c") is store.get(VALUE + b"nothing") is store.last(b"h", b"i") is None


def test_a_record_is_made_once_until_its_group_changes() -> None:
    fold, store = records(1)
    (group,) = fold.groups.by_key.values()
    made = store.of(group)
    assert store.of(group) is made and fold.groups.records_bytes > len(made.body or b"")
    before = fold.memory_bytes
    fold.change(SourceChange(b"more", {"a": 0}, 7))
    assert group.record is None and fold.groups.records_bytes == 0
    assert fold.memory_bytes < before
    again = store.of(group)
    assert json.loads(again.body or b"") == {"a": 0, "n": 2}
    assert again.sequence != made.sequence
