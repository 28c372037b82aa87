"""services/messages/topic_pattern.py: the same answers as `re`, in bounded time."""

from __future__ import annotations

import re
import time
from re import _parser  # type: ignore[attr-defined]

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.messages.records import TOPIC_BYTES_MAX
from raylay.services.messages.topic_pattern import STATES_MAX, TopicPattern, _Machine

LONG_S_MAX = 5.0
"""`re` would take hours where this is asked; two busy cores may take a while for 0.1 s."""

PARTS = st.sampled_from(
    [
        *("a", "b", "B", "/", ".", "[ab]", "[^a/]", r"\d", r"\w", r"\s", r"\b", r"\B", "^", "$"),
        *(r"\A", r"\Z", "(?=a)", "(?!b)", "(?<=a)", "(?<!/)", "(?i:Ab)", "(?s:.)", "(?m:^)"),
        *("(?a:\\w)", "(?i:a(?-i:b))", "\\n", "é", ""),
    ]
)
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{2,}", "{0,3}?"])
PATTERNS = st.recursive(
    PARTS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda each: f"({each})"),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["", "(?i)", "(?m)", "(?s)"]), PATTERNS, st.text("aAbB/1 é\n", max_size=6))
def test_following_all_ways_finds_what_re_finds(flags: str, pattern: str, topic: str) -> None:
    machine = _Machine(_parser.parse(flags + pattern))
    assert machine.matches(topic) == (re.search(flags + pattern, topic) is not None)


@pytest.mark.parametrize(
    ("pattern", "piece", "end", "found"),
    [
        (r"(a+)+$", "a", "b", False),
        (r"(a|a)+$", "a", "b", False),
        (r"(a|aa)+b$", "a", "b", True),
        (r".*a.*a.*[bc]", "a", "", False),
        (r"^([a-z]+/?)*x$", "ab/", "", False),
        (r"(a?){40}a{40}$", "a", "b", False),
        (r"(?i)(A+)+\b[^x](?-i:Q)$", "a", "-q", False),
        (r"(.*?,){11}P", "1,2,", ",P", True),
    ],
)
def test_a_catastrophic_pattern_takes_no_time(
    pattern: str, piece: str, end: str, found: bool
) -> None:
    compiled = TopicPattern(pattern)
    topic = (piece * TOPIC_BYTES_MAX)[: TOPIC_BYTES_MAX - len(end)] + end
    before_s = time.monotonic()
    assert compiled.search(topic) == found
    assert time.monotonic() - before_s < LONG_S_MAX


@pytest.mark.parametrize(
    "pattern",
    [
        "flights/.*",
        "flights/(JFK|EWR|LGA)",
        r"^orders\.\d+$",
        r"(?>a+)b",
        r"(a|b)\1",
        "[a-z]{1,9}x",
    ],
)
def test_a_harmless_pattern_is_left_to_re(pattern: str) -> None:
    assert TopicPattern(pattern)._machine is None


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(", "missing \\)"),
        ("(" * 5000, "too deep|missing"),
        (r"(a+)+\1", "groupref"),
        (r"(a+)+(?>b+)", "atomic_group"),
        (r"(a+)+b++", "possessive_repeat"),
        (r"(a)?(b+)+(?(1)c|d)", "groupref_exists"),
        (r"(a+)+(?=(b+)+)", "assert"),
        (r"(((a{1,90}){1,90}){1,90})b", f"more than {STATES_MAX} parts"),
        (r"a{1,99999999999999999999}", "too large"),
    ],
)
def test_what_cannot_be_matched_in_bounded_time_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(re.error, match=why):
        TopicPattern(pattern)
