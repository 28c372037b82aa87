"""The places that a named reader has at several instances."""

from __future__ import annotations

from typing import Any

from raylay.services.commands.readers import merged_readers, reader_lines


def told(name: str, behind: int, told_s: int, **values: Any) -> dict[str, Any]:
    return {
        "name": name, "user": "", "topic": "orders", "behind": behind, "needs_from_txid": 1,
        "told_s": told_s, "expires_s": 604_800, **values,
    }  # fmt: skip


def test_places_of_one_reader_are_one_entry() -> None:
    readers = merged_readers(
        {"a-1": [told("lake", 7, 3), told("billing", 1, 0)], "a-2": [told("lake", 1_200, 9)]}
    )
    assert [each["name"] for each in readers] == ["billing", "lake"]
    assert readers[1]["instances"] == [
        {"instance": "a-1", "behind": 7, "needs_from_txid": 1, "told_s": 3, "expires_s": 604_800},
        {
            "instance": "a-2", "behind": 1_200, "needs_from_txid": 1, "told_s": 9,
            "expires_s": 604_800,
        },
    ]  # fmt: skip


def test_readers_of_one_name_and_different_topics_stay_apart() -> None:
    readers = merged_readers(
        {"a-1": [told("lake", 0, 0)], "a-2": [told("lake", 0, 0, topic="bids")]}
    )
    assert [(each["topic"], len(each["instances"])) for each in readers] == [
        ("bids", 1),
        ("orders", 1),
    ]


def test_equal_places_are_one_line_and_others_a_line_each() -> None:
    (lake,) = merged_readers(
        {
            "a-1": [told("lake", 7, 3)],
            "a-2": [told("lake", 1_200, 9)],
            "a-3": [told("lake", 7, 1_005)],
        }
    )
    assert reader_lines(lake) == [
        "lake  orders  a-1, a-3: 7 messages behind, heard of 3 to 1,005 s ago, expires after "
        "604,800 s",
        "lake  orders  a-2: 1,200 messages behind, heard of 9 s ago, expires after 604,800 s",
    ]
