"""services/admin/message_rows.py: what is asked of the message browser, and bodies for a page."""

from __future__ import annotations

import pytest

from raylay.services.admin.message_rows import (
    ROWS_MAX,
    body_text,
    header_text,
    read_bookmark,
    read_messages_request,
    read_start,
    values_text,
)
from raylay.services.errors import ConfigurationError


def test_a_request_is_read_with_its_defaults() -> None:
    found = read_messages_request({"topic": " orders "})
    assert (found.source, found.topic, found.filter, found.start) == ("replay", "orders", "", "0")
    assert (found.limit, found.follow) == (200, False)
    found = read_messages_request({"topic": "o", "source": "live", "start": "epoch"})
    assert (found.start, found.follow) == ("0|1|", True), "live begins now"
    assert read_messages_request({"topic": "o", "source": "sow", "follow": "1"}).follow
    assert not read_messages_request({"topic": "o", "source": "sow"}).follow
    assert read_messages_request({"topic": "o", "follow": "1", "limit": "7"}).limit == 7
    ordered = {"topic": "o", "source": "sow", "order": " /price DESC "}
    assert read_messages_request(ordered).order_by == "/price DESC"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, "no topic"),
        ({"topic": "o" * 1025}, "topic has 1025"),
        ({"topic": "o", "filter": "x" * 8193}, "filter has 8193"),
        ({"topic": "o", "order": "/price"}, "goes with source=sow"),
        ({"topic": "o", "source": "queue"}, "sow, live, replay"),
        ({"topic": "o", "limit": "0"}, f"from 1 to {ROWS_MAX}"),
        ({"topic": "o", "limit": "9" * 5000}, f"from 1 to {ROWS_MAX}"),
        ({"topic": "o", "limit": "٣"}, f"from 1 to {ROWS_MAX}"),
        ({"topic": "o", "start": "yesterday"}, "is no start"),
    ],
)
def test_a_wrong_request_is_refused_in_words(query: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_messages_request(query)


def test_starts_are_words_bookmarks_and_times() -> None:
    assert read_start("") == read_start("epoch") == "0"
    assert read_start("now") == "0|1|"
    assert read_start("7|1|") == "7|1|"
    assert read_start("2026-11-27T04:12:07.5+01:00") == "20261127T031207.500000Z"
    assert read_start("1900-01-01") == "0"


def test_a_bookmark_is_of_one_message() -> None:
    assert read_bookmark("7|1") == "7|1|"
    for wrong in ("0", "0|1|", "7|0|", "20260101T000000Z", "x"):
        with pytest.raises(ConfigurationError, match="no bookmark of a message"):
            read_bookmark(wrong)


def test_bodies_are_texts_or_digits_and_cut_between_characters() -> None:
    assert body_text(b"", 10) == ("", True, False)
    assert body_text("äö".encode(), 3) == ("ä", True, True)
    assert body_text(b"a\xff", 2) == ("a\xff".encode("latin-1").hex(), False, False)
    assert body_text(b"\xffaaaaaaaa", 5) == ("ff61616161", False, True)
    assert body_text(b"35=D\x0149=A\x01", 99)[1], "FIX is a text"
    assert body_text(b"\x00\x01", 99) == ("0001", False, False)
    assert header_text(b"key") == "key"
    assert header_text(b"\xff") == "0xff"


def test_numbers_of_fields_keep_all_digits() -> None:
    assert values_text({"id": 2**63, "raw": b"\x01", "at": {1}}) == (
        '{"id": 9223372036854775808, "raw": "01", "at": "{1}"}'
    )
