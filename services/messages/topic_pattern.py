"""Regular expressions over topics, matched by RE2 in a time linear in the topic.

A subscriber's pattern meets topics that publishers choose. A backtracking engine, such as Python's
`re`, could be kept busy for ever. RE2 has no such patterns, since it lacks look-arounds and
back-references; these are refused, with the place and a replacement. So are the few texts that RE2
reads in another way than other engines, where the difference would only show in which topics match.
Look-aheads that mean *all but* are passed to RE2 as patterns of their own, because published
configurations have them.

Only whether a topic matches is asked, never where. The parts of a pattern are read here for those
refusals and for the examples of `topology/members.py`; their meaning always comes from RE2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import re2

MEMORY_BYTES_MAX = 1 << 20
"""Memory in bytes that RE2 may use for one compiled pattern. The largest that fits takes less than
0.1 s for the longest topic, and less to compile. RE2's module keeps the last 128."""
SHOWN_CHARACTERS_MAX = 40
SMALL_PROGRAM = 12
"""Number of RE2 instructions up to which a pattern counts as small."""

_OPTIONS = re2.Options()
_OPTIONS.max_mem = MEMORY_BYTES_MAX
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True

_PARTS = re.compile(
    r"""(?s)
      (?P<quoted> \\Q .*? (?: \\E | \Z ) )
    | (?P<backref> \(\? (?: P[=>] | R | & | [+-]?\d )
        | \\ (?: [kg] | [1-7][0-7](?![0-7]) | [1-9](?![0-7]) ) )
    | (?P<end> \\Z )
    | (?P<unicode> \\ [uUN] )
    | (?P<place> [\^$] | \\ [AzbB] )
    | (?P<character> \\ (?: x\{ [^}]* \} | x .. | [pP]\{ [^}]* \} | [pP]. | [0-7]{1,3} | . ) )
    | (?P<set> \[ \^? \]? (?: \[:\^?\w+:\] | \\ . | [^]\\] )* \] )
    | (?P<look> \(\? <? [=!] )
    | (?P<atomic> \(\?> )
    | (?P<condition> \(\?\( )
    | (?P<comment> \(\?\# )
    | (?P<flags> \(\? [imsU-]+ \) )
    | (?P<open> \( (?: \? (?: [imsU-]*: | P?<\w+> ) )? )
    | (?P<close> \) )
    | (?P<choice> \| )
    | (?P<possessive> (?: [*+?] | \{\d+(?:,\d*)?\} ) \+ )
    | (?P<repeat> (?: [*+?] | \{\d{1,8}(?:,\d{0,8})?\} ) \?? )
    | (?P<braces> \{ (?: ,\d* | \d+(?:,\d*)? ) \} )
    | (?P<any> \. )
    | (?P<literal> . )
    """,
    re.VERBOSE,
)
_UNKNOWN = {
    "look": (
        "a look-around",
        "only a look-ahead right behind a leading ^, and ^((?!…).)*$, are; write several "
        "expressions, or a longer one without it",
    ),
    "backref": ("a back-reference", "write out the texts that may repeat"),
    "atomic": ("an atomic group", "write (?:, which may match more"),
    "condition": ("a conditional", "write both cases with | between them"),
    "comment": ("a comment", "leave it out"),
    "possessive": ("a possessive repeat", "leave out its last +, which may match more"),
    "braces": ("a repeat without a lower count, or a too large one", "write {0,3} for {,3}"),
    "end": ("\\Z", "write $ or \\z for the end"),
    "unicode": ("a \\u, \\U or \\N escape", "write the character itself, or \\x{20AC}"),
}
_TEXT = re.compile(r"[^\\^$*+?()\[\]{}|.]|\\[^\w\s]", re.ASCII)
"""A part that stands for one character, whatever is around it."""
_OPENING = ("open", "look", "atomic", "condition", "comment")
_EACH = ([".", ")", "*", "$"], [".", ")", "+", "$"])


class PatternError(ValueError):
    """A text is no regular expression that RE2 knows; the error names the part, the place and what
    to do."""


class PatternPart(NamedTuple):
    """A piece of a pattern: its kind is the name of a group of `_PARTS`."""

    kind: str
    text: str
    at: int


def parts(pattern: str) -> Iterator[PatternPart]:
    """Yields the pieces of a pattern, from left to right."""
    for found in _PARTS.finditer(pattern):
        yield PatternPart(found.lastgroup or "literal", found[0], found.start())


class TopicPattern:
    """A compiled, unanchored pattern.

    Raises:
        PatternError: it is no regular expression that is known here.
    """

    __slots__ = ("_anchored", "_is_text", "_looks", "_search", "_text", "pattern", "weight")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        found = list(parts(pattern))
        without, looks = _split(found)
        inside = {look.read for look in looks}
        for number, part in enumerate(found):
            if part.kind in _UNKNOWN and number not in inside:
                what, instead = _UNKNOWN[part.kind]
                raise PatternError(
                    f"{what} ({part.text!r} at character {part.at + 1}) is not known here, where "
                    f"to match takes linear time: {instead}"
                )
        self._anchored, self._text, self._is_text = _leading_text(without)
        compiled = _compiled(without)
        self._search = compiled.search
        asked = [(_compiled(look.pattern), look) for look in looks]
        self._looks = tuple((each.search, look) for each, look in asked)
        self._is_text = self._is_text and not looks
        sizes = [each.programsize for each in (compiled, *(each for each, _ in asked))]
        self.weight = 1 if self._is_text else sum(map(_weight, sizes))
        """Longest time that one character of a topic takes, in nanoseconds on a fast processor."""

    def search(self, topic: str) -> bool:
        # Most patterns begin with plain text: a call of RE2 takes ten times as long as a search for
        # the text.
        if not (topic.startswith(self._text) if self._anchored else self._text in topic):
            return False
        if self._is_text:
            return True
        # The search takes bytes: for a str, the wrapper would count the characters up to the match.
        # The text may have bytes that are no UTF-8.
        data = topic.encode("utf-8", "surrogateescape")
        if self._search(data) is None:
            return False
        for search, look in self._looks:
            found = search(data)
            # A match at the end has no character behind it that the look-ahead could forbid.
            seen = found is not None and (not look.anywhere or found.start() < len(data))
            if seen != look.wanted:
                return False
        return True


def _leading_text(pattern: str) -> tuple[bool, str, bool]:
    """Returns whether a pattern begins with `^`, the text with which every match begins, and
    whether that text is the whole condition."""
    found = list(parts(pattern))
    if _has_choice(found):
        return False, "", False
    anchored = found[:1] != [] and found[0].text == "^"
    begin = number = int(anchored)
    while number < len(found) and _TEXT.fullmatch(found[number].text):
        number += 1
    rest = "".join(part.text for part in found[number:])
    if number > begin and number < len(found) and found[number].kind == "repeat":
        number -= 1
        rest = "?"
    text = "".join(part.text[-1] for part in found[begin:number])
    return anchored, text, rest in ("", ".*")


class _Look(NamedTuple):
    """A look-ahead that is passed to RE2 as a pattern of its own.

    Attributes:
        anywhere: whether the look-ahead stands before any character of the topic, instead of at its
            beginning.
        read: index of the pattern part that was handled as this look-ahead, and needs no refusal.
    """

    pattern: str
    wanted: bool
    anywhere: bool
    read: int


def _split(found: list[PatternPart]) -> tuple[str, list[_Look]]:
    """Returns a pattern without its look-aheads, and those look-aheads that can be checked
    separately: directly behind a leading `^` (`^(?!fx/)`), or before each character, as in the
    documents of PassThrough (`^((?!HKG).)*$`)."""
    texts = [part.text for part in found]
    looks: list[_Look] = []
    begin = 1
    if texts[:1] != ["^"] or _has_choice(found):
        return "".join(texts), []
    while texts[begin : begin + 1] in (["(?!"], ["(?="]):
        end = _closing(found, begin)
        if end + 1 < len(found) and found[end + 1].kind in ("repeat", "possessive", "braces"):
            return "".join(texts), []
        inner = "".join(texts[begin + 1 : end])
        looks.append(_Look(f"^(?:{inner})", texts[begin] == "(?=", False, begin))
        begin = end + 1
    rest = texts[begin:]
    if rest[:2] in (["(", "(?!"], ["(?:", "(?!"]) and rest[-4:] in _EACH:
        end = _closing(found, begin + 1)
        if end == len(found) - 5:
            inner = "".join(texts[begin + 2 : end])
            looks.append(_Look(inner, False, True, begin + 1))
            rest = rest[:1] + rest[-4:]
    return "".join(["^", *rest]), looks


def _has_choice(found: list[PatternPart]) -> bool:
    depth = 0
    for part in found:
        if part.kind == "choice" and not depth:
            return True
        depth += part.kind in _OPENING
        depth -= part.kind == "close"
    return False


def _closing(found: list[PatternPart], begin: int) -> int:
    """Returns the index of the part that closes the group."""
    depth = 0
    for number in range(begin, len(found)):
        depth += found[number].kind in _OPENING
        depth -= found[number].kind == "close"
        if not depth:
            return number
    raise PatternError(f"missing ) for {found[begin].text!r} at character {found[begin].at + 1}")


def _weight(size: int) -> int:
    """Returns an upper bound of the cost of matching one character, for a pattern that RE2 compiles
    to `size` instructions. A small pattern has few states, which RE2 soon has cached; in a large
    one it may have to follow each instruction at each character."""
    return 2 if size <= SMALL_PROGRAM else 6 * size


def _compiled(pattern: str) -> Any:
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except UnicodeEncodeError:
        raise PatternError("it has a surrogate, which no topic can have: leave it out") from None
    except re2.error as error:
        raise PatternError(_reason(error, pattern)) from None
    return compiled


def _reason(error: Exception, pattern: str) -> str:
    text = error.args[0] if error.args else b""
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    if "too large" in said or "nests too deeply" in said:
        return (
            f"it is too large: compiled it may take {MEMORY_BYTES_MAX >> 20} MiB. "
            "Use fewer repeats, or smaller counts"
        )
    what, _, where = said.partition(": ")
    if what == "invalid perl operator":
        what = "unknown kind of group, or unknown flag"
    if what == "invalid repetition size":
        return f"{where!r} repeats more than 1,000 times, by itself or inside another: use less"
    if not where or where == pattern:
        return what
    return f"{what} {where[:SHOWN_CHARACTERS_MAX]!r}"
