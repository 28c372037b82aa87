"""services/messages/topic_pattern.py: what RE2 knows matches as ever, in linear time; what it does
not know is refused with what to do."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raylay.services.messages.records import TOPIC_BYTES_MAX
from raylay.services.messages.topic_pattern import PatternError, TopicPattern, parts

pytestmark = pytest.mark.covers(
    "Clients and protocol", "any regular expression is matched in linear time"
)

LONG_S_MAX = 5.0
"""`re` would take hours where this is asked; two busy cores may take a while for 0.1 s."""

PARTS = st.sampled_from(
    [
        *(
            "a",
            "b",
            "B",
            "ab",
            "A.*",
            r"\.",
            ".*",
            "/",
            ".",
            "[ab]",
            "[^a/]",
            r"\d",
            r"\w",
            r"\s",
            r"\b",
            r"\B",
            "^",
            "$",
        ),
        *(r"\A", "(?i:Ab)", "(?s:.)", "(?m:^)", "(?i:a(?-i:b))", "\\n", "é", "[]a]", r"\x41", ""),
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
@example("", "ab?/", "a/")
@example("", "^ab*/", "a/")
@example("", "ab{0,2}", "a")
@given(
    st.sampled_from(["", "(?i)", "(?m)", "(?s)"]),
    PATTERNS,
    st.text("aAbB/1 é.\n", min_size=1, max_size=6),
)
def test_it_finds_what_re_finds(flags: str, pattern: str, topic: str) -> None:
    # Letters and digits are those of ASCII, and `$` is the end, not a place before a last break.
    if r"\B" in pattern:
        topic = topic.replace("é", "e")  # To RE2 there is one between the bytes of a character.
    meant = pattern if flags == "(?m)" else pattern.replace("$", r"\Z")
    expected = re.search(flags + "(?a:" + meant + ")", topic) is not None
    assert TopicPattern(flags + pattern).search(topic) == expected


@pytest.mark.covers("Clients and protocol", "look-aheads that say *all but*")
@settings(max_examples=300, deadline=None)
@example("^((?!{}).)*$", "$", "", "ab")
@given(
    st.sampled_from(
        ["^(?!{})", "^(?={})", "^(?!{0})(?=.{0})a", "^((?!{}).)*$", "^(?=a)(?:(?!{}).)+$"]
    ),
    PATTERNS,
    PATTERNS,
    st.text("aAbB/1 é.", min_size=1, max_size=6),
)
def test_a_look_ahead_that_says_all_but_finds_what_re_finds(
    look: str, inner: str, rest: str, topic: str
) -> None:
    if r"\B" in inner + rest:
        topic = topic.replace("é", "e")
    pattern = look.format(inner) + ("" if look.endswith("$") else f"(?:{rest})")
    expected = re.search(f"(?a:{pattern})", topic) is not None
    assert TopicPattern(pattern).search(topic) == expected


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
        ("(?:(?:a?){900}){1}" * 6 + "z", "a", "", False),
        ("(?:[^x]{1,500}a.{0,500})" * 2 + "z", "ab", "", False),
    ],
)
def test_a_catastrophic_pattern_takes_no_time(
    pattern: str, piece: str, end: str, found: bool
) -> None:
    before_s = time.thread_time()
    compiled = TopicPattern(pattern)
    topic = (piece * TOPIC_BYTES_MAX)[: TOPIC_BYTES_MAX - len(end)] + end
    assert compiled.search(topic) == found
    assert time.thread_time() - before_s < LONG_S_MAX


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a(", r"missing \)"),
        ("(" * 5000, "too large|missing"),
        ("[b-a]", "invalid character class range 'b-a'"),
        ("a**", r"bad repetition operator '\*\*'"),
        (r"(a+)+\1", r"back-reference \('\\\\1' at character 6\).*write out"),
        (r"(?P<n>a)(?P=n)", r"back-reference \('\(\?P=' at character 9"),
        (r"(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10", "back-reference"),
        (r"^x(?=yz)", r"look-around \('\(\?=' at character 3\).*write several"),
        (r"(?<!/)x", "look-around"),
        (r"^(?!a)|b", "look-around"),
        (r"^(?!a)*b", "look-around"),
        (r"(?m)^(?!a)b", "look-around"),
        (r"^((?!a).)*b$", "look-around"),
        (r"^((?!a).b)*$", "look-around"),
        (r"^(?!a(?=b))b", "look-around .* at character 6"),
        (r"^(?!a", r"missing \) .* at character 2"),
        (r"^((?!a\1).)*$", r"back-reference \('.*1' at character 7"),
        (r"[(?=](?>b+)", r"atomic group \('\(\?>' at character 6"),
        (r"\(?=b++", r"possessive repeat \('\+\+' at character 6"),
        (r"(a)?(b+)+(?(1)c|d)", "conditional"),
        (r"(?#x)a", "comment"),
        (r"(?x)a", r"unknown flag '\(\?x'"),
        (r"a\Z", r"\$ or \\z"),
        (r"\u0041", "the character itself"),
        # RE2 would read these as they stand, other engines as repeats.
        (r"a{,3}", r"write \{0,3\} for \{,3\}"),
        (r"a{1,99999999999999999999}", "too large one"),
        (r"(((a{1,90}){1,90}){1,90})b", "more than 1,000 times"),
        (r"(?:[^b]{0,1000}c)" * 20, "too large: compiled it may take 1 MiB"),
        ("a\ud800+", "surrogate"),
    ],
)
def test_what_is_not_known_is_refused_with_place_and_advice(pattern: str, why: str) -> None:
    with pytest.raises(PatternError, match=why):
        TopicPattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        (r"[(?=]", "="),
        (r"\(\?=", "(?="),
        (r"\Q(?=\1\E+", r"(?=\1"),
        (r"[]{,3}]", "{"),
        (r"\{,3}", "{,3}"),
        (r"\\$", "\\"),
        (r"\101[[:digit:]]\pL", "A1b"),
        (r"a.+?b", "a--b"),
    ],
)
def test_what_only_looks_like_it_is_not_refused(pattern: str, topic: str) -> None:
    assert TopicPattern(pattern).search(topic)


@given(PATTERNS | st.text(max_size=20))
def test_the_parts_are_the_pattern(pattern: str) -> None:
    assert "".join(part.text for part in parts(pattern)) == pattern
