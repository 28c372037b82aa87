"""services/messages/record_builders.py: builders are kept, and their number is bounded."""

from __future__ import annotations

import pytest

from raylay.services.messages import record_builders
from raylay.services.messages.record_builders import RecordBuilders
from raylay.services.messages.records import decode_record


def test_a_builder_is_made_once_for_each_publisher_topic_and_type() -> None:
    builders = RecordBuilders()
    first = builders.of(7, b"orders", "json")
    assert builders.of(7, b"orders", "json") is first
    others = (builders.of(8, b"orders", "json"), builders.of(7, b"trades", "json"))
    assert first not in others and len(builders) == 3
    record = decode_record(others[1].build(1, b"{}", 5))
    assert (record.publisher, record.topic, record.message_type) == (7, "trades", "json")


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_builders, "BUILDERS_MAX", 3)
    builders = RecordBuilders()
    for number in range(10):
        builders.of(1, b"topic/%d" % number, "json")
        assert len(builders) <= 3
