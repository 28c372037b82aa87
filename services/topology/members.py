"""The input of a topology check: instances with their destinations, and topics that are routed
differently.

Regular expressions have no list of the topics that they match. One topic is tried for each name
and each alternative of an expression, and for each two expressions that have one in common which is
found by joining theirs; topics that the same rules match behave alike and are looked at together.

RE2 answers whether a topic matches, and of a set of topics at most between which two texts it lies,
which is nothing for an expression without `^`, and says nothing of alternatives. So candidates are
put together here from the pieces of an expression's text, and RE2 is asked about each: a candidate
that is none is left out, never taken for one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, product

from raylay.services.messages.topic_pattern import PatternPart, parts
from raylay.services.messages.topics import (
    TopicMatcher,
    TopicRule,
    compile_regex,
    is_regex,
)
from raylay.services.replication.link.routing import DestinationRoute

ANY_TYPE = "json"
"""Message type with which rules are tried where none is named."""
REPEATS_MAX = 3
EXAMPLES_MAX = 16
PAIRS_MAX = 2_000
ALL = (TopicRule(".*"),)
_TRIED = "a0-_/. " + string.printable
_LEAST = re.compile(r"\{(\d+)")
_RANGE = re.compile(r"(\\?.)-\\?[^\]]")


@dataclass(frozen=True, slots=True)
class TopologyMember:
    """An instance as the check sees it.

    Attributes:
        destinations: its destinations, whose addresses are names of members; others belong to
            another fabric.
        journaled: the topics in its transaction log.
        publishes: whether clients publish there.
        one_way: the names of destinations from which nothing is meant to come back, because they
            exclude the `replicate` check.
        local: the names of the queues of this instance alone; no destination may take them.
    """

    name: str
    group: str
    destinations: tuple[DestinationRoute, ...] = ()
    journaled: tuple[TopicRule, ...] = ALL
    publishes: bool = True
    one_way: frozenset[str] = frozenset()
    local: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicClass:
    """Topics that every rule of the fabric treats alike.

    Attributes:
        topic, message_type: an example.
        names: the names and expressions in the files.
    """

    topic: str
    message_type: str
    names: tuple[str, ...]

    @property
    def shown(self) -> str:
        return ", ".join(self.names)


def topic_classes(members: Iterable[TopologyMember]) -> list[TopicClass]:
    """Returns one topic of each class that some member journals."""
    journaled: dict[TopicRule, None] = {}
    sets: dict[tuple[TopicRule, ...], None] = {}
    for member in members:
        journaled.update(dict.fromkeys(member.journaled))
        sets[member.journaled] = None
        sets.update({destination.topics: None for destination in member.destinations})
    rules = list(dict.fromkeys([*(rule for topics in sets for rule in topics), *journaled]))
    matchers = [TopicMatcher(topics) for topics in sets]
    logged = TopicMatcher(tuple(journaled))
    found: dict[tuple[bool, ...], list[tuple[str, str, str]]] = {}
    pairs: set[str] = set()
    for shown, topic, message_type in _tried(rules, pairs):
        if not logged.matches(topic.encode(), message_type.encode()):
            continue
        key = tuple(matcher.matches(topic.encode(), message_type.encode()) for matcher in matchers)
        found.setdefault(key, []).append((shown, topic, message_type))
    classes = []
    for entries in found.values():
        # What two expressions have in common is named only where nothing else is of the class.
        single = [entry for entry in entries if entry[0] not in pairs] or entries[:1]
        classes.append(
            TopicClass(single[0][1], single[0][2], tuple(dict.fromkeys(e[0] for e in single)))
        )
    return classes


def _tried(rules: list[TopicRule], pairs: set[str]) -> Iterator[tuple[str, str, str]]:
    # Literal names first: they say most. A type that is named is tried with every topic.
    types = list(dict.fromkeys(r.message_type for r in rules if r.message_type != "*"))
    types = types or [ANY_TYPE]
    wildcard = [*types, "other"] if any(r.message_type == "*" for r in rules) else types
    if types == [ANY_TYPE]:
        wildcard = types

    def shown(text: str, kind: str) -> str:
        return text if len(wildcard) == 1 else f"{text} ({kind})"

    patterns = [rule for rule in rules if is_regex(rule.name)]
    for rule in sorted(rules, key=lambda rule: is_regex(rule.name)):
        topics = examples(rule.name) if is_regex(rule.name) else [rule.name]
        for topic in topics:
            name = rule.name if len(topics) == 1 else f"{rule.name} as {topic}"
            for kind in wildcard if rule.message_type == "*" else [rule.message_type]:
                yield shown(name, kind), topic, kind
    for number, (one, other) in enumerate(combinations(patterns, 2)):
        if number == PAIRS_MAX:
            return
        both = _in_both(one.name, other.name)
        if both is not None:
            for kind in wildcard:
                name = shown(f"{one.name} and {other.name}", kind)
                pairs.add(name)
                yield name, both, kind


def examples(pattern: str) -> list[str]:
    """Returns topics that a regular expression matches, one for each of its alternatives, none of
    them empty; no topic where none was found."""
    compiled = compile_regex(pattern, "topic")
    found: dict[str, None] = {}
    for text in _texts(parts(pattern)):
        for tried in (text, text + "other", "other" + text, f"other{text}other"):
            if tried and compiled.search(tried):
                found[tried] = None
                break
    return list(found)


def _in_both(one: str, other: str) -> str | None:
    patterns = compile_regex(one, "topic"), compile_regex(other, "topic")
    for first, second in product(examples(one), examples(other)):
        for tried in (first, second, first + second, second + first):
            if all(pattern.search(tried) for pattern in patterns):
                return tried
    return None


def _texts(rest: Iterator[PatternPart]) -> list[str]:
    """Returns short texts that match an expression, up to the end of the open group, without
    anchors and look-aheads."""
    found: list[str] = []
    before, last = [""], [""]
    for part in rest:
        if part.kind == "close":
            break
        if part.kind == "repeat":
            last = [text * _least(part.text) for text in last]
            continue
        before, last = _joined(before, last), [""]
        if part.kind == "look":
            _texts(rest)
        elif part.kind == "choice":
            found += before
            before = [""]
        else:
            last = _texts(rest) if part.kind == "open" else _texts_of(part)
    return list(dict.fromkeys([*found, *_joined(before, last)]))


def _joined(before: list[str], last: list[str]) -> list[str]:
    return [text + more for text in before for more in last][:EXAMPLES_MAX]


def _least(repeat: str) -> int:
    counted = _LEAST.match(repeat)
    return min(int(counted[1]), REPEATS_MAX) if counted else int(repeat[0] == "+")


def _texts_of(part: PatternPart) -> list[str]:
    kind, text = part.kind, part.text
    if kind == "literal":
        return [text]
    if kind == "quoted":
        return [text[2:].removesuffix("\\E")]
    if kind == "set" and text[1] != "^":
        # Each that it names, and one of each range.
        named = _RANGE.sub(r"\1", text[1:-1])
        return [c for c in dict.fromkeys(named) if _is_one_of(c, text)][:EXAMPLES_MAX] or _some(
            text
        )
    return _some(text) if kind in ("any", "character", "set") else [""]


def _some(characters: str) -> list[str]:
    """Returns a character that RE2 accepts for a set; none for letters of other scripts, for
    instance."""
    return [next((c for c in _TRIED if _is_one_of(c, characters)), "a")]


def _is_one_of(character: str, characters: str) -> bool:
    return compile_regex(f"^{characters}$", "topic").search(character)
