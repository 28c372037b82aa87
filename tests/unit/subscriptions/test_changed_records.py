"""The messages about changed records (services/subscriptions/changed_records.py)."""

from __future__ import annotations

import pytest
from support.sow_given import P, book
from support.sow_given import record as a_record

from raylay.services.messages.records import iterate_records
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.state import RecordChange, SowRecord
from raylay.services.sow.topic import SowChange
from raylay.services.subscriptions.changed_records import ChangedRecords, ChangeForms
from raylay.services.subscriptions.follow_terms import FollowTerms

pytestmark = pytest.mark.covers("SOW", "oof, deltas and select lists")

TYPES = MessageTypes()
JSON = TYPES["json"]


def test_a_select_list_is_of_each_type_what_it_says_there() -> None:
    made = ChangedRecords(TYPES)
    for _ in range(2):
        assert made.cut(b'{"1":1,"2":2}', "[-/,+/1]", JSON) == b'{"1":1}'
        assert made.cut(b"1=x\x012=y\x01", "[-/,+/1]", TYPES["fix"]) == b"1=x\x01"


def test_a_message_that_is_cut_keeps_all_but_its_fields() -> None:
    trace = bytes(range(1, 26))
    sent = a_record(
        3, b'{"a":1,"b":2}', trace=trace, key=b"k", correlation=b"c", expiration_s=9, at_us=7
    )
    (got,) = iterate_records(ChangedRecords(TYPES).of_message(sent, "[-/,+/a]", JSON))
    assert got.body == b'{"a":1}'
    for name in ("publisher", "sequence", "topic", "key", "correlation", "expiration_s", "trace"):
        assert getattr(got, name) == getattr(sent, name), name


@pytest.mark.parametrize(
    ("keeps_back", "as_given", "body"),
    [
        (False, False, b'{"id":1,"p":2}'),
        (True, False, b'{"id":1,"p":1}'),
        (False, True, b'{"id":1,"p":1}'),
    ],
)
def test_a_record_that_left_is_shown_as_it_is_unless_only_what_was_given_may_be_shown(
    keeps_back: bool, as_given: bool, body: bytes
) -> None:
    (topic,) = book().topics
    before, now = (SowRecord(b"k", n, P, n, 0, 0, b'{"id":1,"p":%d}' % n) for n in (1, 2))
    change = SowChange(topic, b"orders", RecordChange(b"k", before, now, "updated"), None)
    forms = ChangeForms(change, ChangedRecords(TYPES))
    (got,) = iterate_records(forms.gone(FollowTerms(keeps_back=keeps_back), as_given))
    assert got.body == body
