"""Text from outside becomes neither a command for a terminal nor a line of its own."""

from __future__ import annotations

import json

import pytest

from raylay.services.messages.plain_text import json_line, plain, plain_lines, plain_value

pytestmark = pytest.mark.covers(
    "Configuration", "names, topics and bodies cannot write into a terminal"
)

HOSTILE = "\x1b[2J\x9b31m\r\nforged\x00\x7f\x85\u2028\u202ecba\u200b\ufeff\ud800\U000e0041"
"""Screen cleared, colour by a C1 control, a new line in four ways, a name turned round, marks that
show nothing, half a character, a tag."""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("Zürich-1 orders 日本 🙂", "Zürich-1 orders 日本 🙂"),
        ("^fx\\d+$", "^fx\\d+$"),
        ("two\nlines\tand\r", "two\\nlines\\tand\\r"),
        ("\x1b]8;;http://x\x07y", "\\x1b]8;;http://x\\x07y"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("a\u202eb\u2066c\u200d", "a\\u202eb\\u2066c\\u200d"),
        ("\udc80\U000e0041", "\\udc80\\U000e0041"),
        ("12\u202f000\u3000\ue000", "12\u202f000\u3000\ue000"),
    ],
)
def test_what_shows_nothing_of_its_own_is_escaped(given: str, shown: str) -> None:
    assert plain(given) == shown


def test_lines_of_our_own_stay_lines() -> None:
    assert plain_lines("one\n  two\x1b\u2028") == "one\n  two\\x1b\\u2028"


@pytest.mark.parametrize("text", [HOSTILE, *HOSTILE, *map(chr, range(0xA0))])
def test_nothing_hostile_is_left(text: str) -> None:
    for shown in (
        plain(text),
        plain_value(text),
        json_line({text: text}),
        json_line(text, ascii_only=False),
    ):
        assert shown.isprintable()
        shown.encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("desk", "desk"),
        (5, "5"),
        ("", '""'),
        ("desk user=admin", '"desk user=admin"'),
        ("a\nb\x9b", '"a\\nb\\u009b"'),
        ('say "x"', '"say \\"x\\""'),
    ],
)
def test_a_value_is_one_value(value: object, shown: str) -> None:
    assert plain_value(value) == shown


def test_json_is_the_same_value() -> None:
    for ascii_only in (True, False):
        line = json_line({"body": HOSTILE + "ü🙂"}, ascii_only=ascii_only)
        assert json.loads(line) == {"body": HOSTILE + "ü🙂"}
    assert "ü🙂" in line
