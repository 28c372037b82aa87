"""What a delete's record says, and what is no delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from raylay.services.client.publishing import deletes
from raylay.services.client.publishing.deletes import delete_body, delete_in_parts
from raylay.services.errors import CommandFailed, LocalProtocolError

pytestmark = pytest.mark.covers("SOW", "deltas and deletes of a client are kept and sent again")


@pytest.mark.parametrize(
    "given",
    [
        {"filter": "/a = 1"},
        {"keys": [b"k1", b"k2"]},
        {"data": b'{"id": 1}'},
        {"filter": "/a = 1", "keys": [b"k1"]},
    ],
)
def test_it_is_a_map_of_the_one_that_is_given(given: dict[str, Any]) -> None:
    assert msgpack.unpackb(delete_body(**given)) == given


@pytest.mark.covers("SOW", "`sow_delete` by filter")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "got none"),
        ({"filter": "/a = 1", "data": b"{}"}, "got filter and data"),
        ({"filter": "/a = 1", "keys": [b"k"], "data": b"{}"}, "got filter and keys and data"),
        ({"filter": ""}, "filter of a delete is empty"),
        ({"filter": "/a = 1", "keys": []}, "keys of a delete is empty"),
        ({"keys": [b"k"], "data": b"{}"}, "got keys and data"),
        ({"keys": []}, "keys of a delete is empty"),
        ({"data": b""}, "data of a delete is empty"),
        ({"keys": b"k"}, "give a list"),
        ({"keys": ["k"]}, "each as bytes"),
    ],
)
def test_none_or_several_or_nothing_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(LocalProtocolError, match=told):
        delete_body(**given)


class Topic:
    """A client, as far as that is concerned, and what it is asked to delete."""

    def __init__(self, records: int, refusals: Sequence[CommandFailed] = ()) -> None:
        self.records = records
        self.refusals = list(refusals)
        self.asked: dict[str, Any] = {}
        self.deleted: list[tuple[str, Sequence[bytes] | None]] = []

    async def sow(self, topic: str, **options: Any) -> AsyncIterator[Any]:
        assert topic == "t"
        self.asked = options
        if self.refusals:
            raise self.refusals.pop(0)
        for number in range(self.records):
            yield SimpleNamespace(key=b"%d" % number)

    async def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[bytes] | None = None,
        message_type: str = "json",
    ) -> int:
        assert (topic, message_type) == ("t", "fix") and filter is not None
        self.deleted.append((filter, keys))
        return len(self.deleted)


@pytest.mark.covers("SOW", "of any number at once")
@pytest.mark.parametrize(
    ("records", "sizes"),
    [(0, None), (1, None), (10, None), (11, [4, 4, 3]), (12, [4, 4, 3, 1]), (19, [4, 4, 3, 4, 4])],
)
def test_what_is_too_much_for_one_delete_is_deleted_in_parts(
    records: int, sizes: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletes, "DELETED_AT_ONCE_MAX", 10)
    monkeypatch.setattr(deletes, "PART_KEYS", 4)
    topic = Topic(records)
    count = asyncio.run(delete_in_parts(topic, "t", "/a = 1", "fix"))
    assert count == len(topic.deleted)
    assert {filter for filter, _ in topic.deleted} == {"/a = 1"}, "what passes then"
    assert topic.asked["filter"] == "/a = 1" and topic.asked["non_regex_topic"]
    if sizes is None:
        assert topic.deleted == [("/a = 1", None)], "one delete, of one moment"
        return
    parts = [keys for _, keys in topic.deleted if keys is not None]
    assert [len(part) for part in parts] == sizes
    assert [key for part in parts for key in part] == [b"%d" % n for n in range(records)]


def test_of_messages_that_cannot_be_cut_whole_ones_are_asked_for() -> None:
    """Those of version 2 of protobuf."""
    refusal = CommandFailed("sow", "not_supported", "select: version 2 may require fields")
    topic = Topic(3, [refusal])
    assert asyncio.run(delete_in_parts(topic, "t", "/a = 1", "fix")) == 1
    assert topic.asked["filter"] == "/a = 1" and "select" not in topic.asked
    for refusals in ([CommandFailed("sow", "no_sow")], [refusal, refusal]):
        topic = Topic(3, refusals)
        with pytest.raises(CommandFailed) as raised:
            asyncio.run(delete_in_parts(topic, "t", "/a = 1", "fix"))
        assert raised.value is refusals[-1] and not topic.deleted
