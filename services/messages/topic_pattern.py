"""Regular expressions over topics whose matching ends soon, whatever the topic.

Python's `re` tries one way through a pattern after another. `(a+)+$` has 2^n of them on a topic of
n characters, and `.*a.*[bc]` has n^3: a subscriber's pattern and a publisher's topic of 1 KiB would
keep an instance from everything else for seconds, or for ever. So a pattern's ways are counted when
it is compiled. One of few ways is left to `re`; for the others all ways are followed at once, one
character after the other (Thompson's method): the time is at most the length of the topic times the
size of the pattern. What a pattern of many ways cannot have then is a back reference, a
conditional, an atomic group or a possessive repeat: it is refused.

Only whether a topic matches is asked, never where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from raylay.services.messages.records import TOPIC_BYTES_MAX

STEPS_MAX = 4 * TOPIC_BYTES_MAX
"""Ways through a pattern from one place of the topic that are left to `re`: with as many places
as a topic has characters, 0.1 s in the worst case."""
STATES_MAX = 500
"""Of a pattern whose ways are followed at once: 0.1 s for the longest topic in the worst case."""

_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_WALKED = frozenset(
    (
        _constants.LITERAL,
        _constants.NOT_LITERAL,
        _constants.ANY,
        _constants.IN,
        _constants.AT,
        _constants.BRANCH,
        _constants.SUBPATTERN,
        *_REPEATS,
    )
)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)
_FLAGS_OF_A_PART = re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.UNICODE


class TopicPattern:
    """A compiled, unanchored pattern.

    Raises:
        re.error: it is no regular expression, or none that can be matched in bounded time; the
            text says which part.
    """

    __slots__ = ("_machine", "_regex", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._machine: _Machine | None = None
        try:
            self._regex = re.compile(pattern)
            tree = _parser.parse(pattern)
            if _ways(tree) > STEPS_MAX:
                self._machine = _Machine(tree)
        except (RecursionError, OverflowError) as error:
            raise re.error(f"too deep or too large: {error}") from None

    def search(self, topic: str) -> bool:
        """Whether the pattern matches somewhere in the topic."""
        if self._machine is not None:
            return self._machine.matches(topic)
        return self._regex.search(topic) is not None


def _ways(items: Iterable[tuple[Any, Any]]) -> float:
    """How many ways `re` may try through a sequence, from one place of a topic."""
    ways = 1.0
    for kind, value in items:
        if kind is _constants.BRANCH:
            ways *= sum(map(_ways, value[1]))
        elif kind is _constants.SUBPATTERN:
            ways *= _ways(value[3])
        elif kind in _LOOKS:
            ways *= _ways(value[1])
        elif kind in _REPEATS or kind is _constants.POSSESSIVE_REPEAT:
            low, high, body = value
            low, high = min(int(low), TOPIC_BYTES_MAX), min(int(high), TOPIC_BYTES_MAX)
            inside = _ways(body)
            ways *= high - low + 1
            if inside > 1:
                ways *= min(inside, 1e6) ** min(high, 32)
        elif kind is _constants.ATOMIC_GROUP:
            ways *= _ways(value)
        elif kind is _constants.GROUPREF_EXISTS:
            ways *= _ways(value[1]) + (_ways(value[2]) if value[2] else 1)
    return ways


class _Machine:
    """A pattern as states: each takes a character, or asks for a place, or only leads on.

    Invariant: state 0 is the end. `_leads[state]` are the states behind it; `_tests[state]`, where
    there is one, is `re`'s own compilation of the one character or place; `_takes[state]` says
    whether it takes the character.
    """

    __slots__ = ("_first", "_flags", "_leads", "_state", "_takes", "_tests")

    def __init__(self, tree: Any) -> None:
        self._leads: list[tuple[int, ...]] = [()]
        self._tests: list[re.Pattern[str] | None] = [None]
        self._takes = [False]
        self._state = tree.state
        self._flags = int(tree.state.flags)
        self._first = self._sequence(tree, 0, self._flags)

    def _new(
        self, leads: tuple[int, ...], test: re.Pattern[str] | None = None, *, takes: bool = False
    ) -> int:
        if len(self._leads) > STATES_MAX:
            raise re.error(
                f"matching it may take for ever, and with its counted repeats written out it has "
                f"more than {STATES_MAX} parts: use fewer repeats, or smaller counts"
            )
        self._leads.append(leads)
        self._tests.append(test)
        self._takes.append(takes)
        return len(self._leads) - 1

    # -- building, from the end to the beginning ---------------------------------------------
    def _sequence(self, items: Any, behind: int, flags: int) -> int:
        for kind, value in reversed(list(items)):
            behind = self._item(kind, value, behind, flags)
        return behind

    def _item(self, kind: Any, value: Any, behind: int, flags: int) -> int:
        if kind is _constants.BRANCH:
            return self._new(tuple(self._sequence(each, behind, flags) for each in value[1]))
        if kind is _constants.SUBPATTERN:
            _, more, less, body = value
            return self._sequence(body, behind, (flags | more) & ~less)
        if kind in _REPEATS:
            low, high, body = value
            return self._repeat(low, high, body, behind, flags)
        if kind in _LOOKS and _ways(value[1]) <= STEPS_MAX:
            return self._new((behind,), self._compiled(kind, value, flags))
        if kind not in _WALKED:
            raise re.error(
                f"matching it may take for ever, and {str(kind).lower()} leaves no other way: "
                "do without it, or use fewer repeats"
            )
        takes = kind is not _constants.AT
        return self._new((behind,), self._compiled(kind, value, flags), takes=takes)

    def _repeat(self, low: Any, high: Any, body: Any, behind: int, flags: int) -> int:
        if high is _constants.MAXREPEAT:
            again = self._new((behind,))
            self._leads[again] = (self._sequence(body, again, flags), behind)
            behind = again
        else:
            end = behind
            for _ in range(int(high) - int(low)):
                behind = self._new((self._sequence(body, behind, flags), end))
        for _ in range(int(low)):
            behind = self._sequence(body, behind, flags)
        return behind

    def _compiled(self, kind: Any, value: Any, flags: int) -> re.Pattern[str]:
        """`re`'s compilation of one part, so that it means what it means to `re`."""
        part = [(kind, value)]
        if flags != self._flags:
            more = flags & ~self._flags & _FLAGS_OF_A_PART
            less = self._flags & ~flags & _FLAGS_OF_A_PART
            inner = _parser.SubPattern(self._state, part)
            part = [(_constants.SUBPATTERN, (None, more, less, inner))]
        compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(self._state, part))
        return compiled

    # -- matching ----------------------------------------------------------------------------
    def matches(self, topic: str) -> bool:
        """Whether it matches somewhere."""
        taking: list[int] = []
        for at in range(len(topic) + 1):
            starts = [self._first]
            for state in taking:
                test = self._tests[state]
                assert test is not None
                if test.match(topic, at - 1):
                    starts += self._leads[state]
            reached = self._reached(starts, topic, at)
            if reached is None:
                return True
            taking = reached
        return False

    def _reached(self, states: list[int], topic: str, at: int) -> list[int] | None:
        """The states that take the character at a place, from these; None: the end is reached."""
        seen = set(states)
        taking = []
        while states:
            state = states.pop()
            if not state:
                return None
            if self._takes[state]:
                taking.append(state)
                continue
            test = self._tests[state]
            if test is None or test.match(topic, at):
                for lead in self._leads[state]:
                    if lead not in seen:
                        seen.add(lead)
                        states.append(lead)
        return taking
