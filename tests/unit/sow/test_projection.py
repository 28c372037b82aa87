"""Select lists: which fields are left, of each type that can be cut."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.sow.query.projection import Projection, check_select

pytestmark = pytest.mark.covers("SOW", "queries: filter")

TYPES = MessageTypes()
TREE: dict[str, Any] = {
    "a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [{"g": 4, "h": 5}, {"h": 6}, 7], "i": None,
}  # fmt: skip


@pytest.mark.covers("SOW", "`select`: the most specific counts")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[-/]", {}),
        ("[-/,+/a]", {"a": 1}),
        ("-/, +/a , +/i", {"a": 1, "i": None}),
        ("[-/a]", {"b": {"c": 2, "d": {"e": 3}}, "f": TREE["f"], "i": None}),
        ("[-/,+/b]", {"b": {"c": 2, "d": {"e": 3}}}),
        ("[-/,+/b,-/b/d]", {"b": {"c": 2}}),
        ("[-/,+/b/d/e]", {"b": {"d": {"e": 3}}}),
        ("[-/,+/b/x]", {}),
        ("[+/b/d/e,-/b,-/]", {"b": {"d": {"e": 3}}}),
        ("[-/,+/a,-/a]", {}),
        ("[-/b/c,-/f,-/a]", {"b": {"d": {"e": 3}}, "i": None}),
        ("[-/,+/f/g]", {"f": [{"g": 4}]}),
        ("[-/f/h]", TREE | {"f": [{"g": 4}, {}, 7]}),
        ("[+/]", TREE),
        ("[-/,+/a/z]", {}),
    ],
)
def test_of_two_directives_the_deeper_one_counts(text: str, left: dict[str, Any]) -> None:
    before = repr(TREE)
    cut = Projection(text, TYPES["json"]).of_tree(TREE)
    assert cut == left and list(cut) == [each for each in TREE if each in left]
    assert repr(TREE) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "a", "/a", "[-/,/a]", "[+a]", "[-/,+/a/]", "[+//]", "[+/a[0]]"]
)
def test_what_is_no_select_list_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="is no select list") as caught:
        check_select(text)
    assert caught.value.reason == "bad_select"


def test_bodies_of_each_type_are_cut_and_those_that_cannot_be_are_refused() -> None:
    for kind, body, text, left in (
        ("json", b'{"a":1,"b":2}', "[-/,+/b]", b'{"b":2}'),
        ("nvfix", b"a=1\x01b=2\x01", "[-/a]", b"b=2\x01"),
        ("fix", b"35=D\x0155=IBM\x01", "[-/,+/55]", b"55=IBM\x01"),
        ("xml", b"<o><a>1</a><b>2</b></o>", "[-/,+/o/b]", b"<o><b>2</b></o>"),
        ("xml", b"<o><a>1</a></o>", "[-/]", b""),
    ):
        assert Projection(text, TYPES[kind]).of_body(body) == left, kind
    with pytest.raises(RemoteProtocolError, match="binary cannot be read") as caught:
        Projection("[-/]", TYPES["binary"])
    assert caught.value.reason == "not_supported"
