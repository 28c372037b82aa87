"""Parser from the text of an expression to its syntax tree, by precedence climbing.

    expression  = conjunction {OR conjunction}
    conjunction = negation {AND negation}
    negation    = NOT negation | comparison
    comparison  = sum {comparator sum | predicate}
    predicate   = IS [NOT] (NULL | NAN) | [NOT] (BETWEEN sum AND sum | IN list | LIKE string
                | (BEGINS | ENDS) WITH list)
    sum         = product {(+ | -) product}
    product     = factor {(* | / | % | MOD) factor}
    factor      = - factor | number | string | field | name ( [expression {, expression}] )
                | ( expression )
    assignment  = expression AS field [HINT hint {, hint}]

In an assignment, which sets a field of a message, a field may be followed by OF and the name of the
message that it is of. In a view of several topics a field is written with its topic, and with its
message type where several topics have one name: [topic]./field, [type].[topic]./field.

Comparators are = == != <> < <= > >=. Keywords and function names may be written in any case. How
deep and how long an expression may be is bounded, so that reading one takes neither the stack nor
the loop.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

from raylay.services.errors import ExpressionError
from raylay.services.expressions import tree
from raylay.services.expressions.functions import LOADABLE
from raylay.services.expressions.functions.registry import Function, Functions
from raylay.services.expressions.lexer import Token, steps_of, words
from raylay.services.expressions.patterns import Pattern
from raylay.services.expressions.values import clipped

CHARACTERS_MAX = 1 << 15
"""Longest filter that is parsed, in characters: parsing a longer one would hold the loop for 0.1
s."""
PARTS_MAX = 1000
"""Number of parts of an expression that are no literals, for the same reason."""
DEPTH_MAX = 48
"""Nesting of parentheses, and number of operands in a row."""
TREE_DEPTH_MAX = 100
"""Nesting of parts, whatever causes it."""

TopicStep = Callable[[Sequence[str], int], str]
"""Function that returns the first step of the path of a field: of the names before the field (the
topic, or the message type and the topic; none: the field stands alone), and of its column, for an
ExpressionError."""

_COMPARATORS = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_PREDICATES = frozenset(("IS", "NOT", "BETWEEN", "IN", "LIKE", "BEGINS", "ENDS"))
_KEYWORDS = _PREDICATES | {"AND", "OR", "MOD", "WITH", "NULL", "NAN"}
_HINTS = ("OPTIONAL", "SET_CURRENT")
_INSTEAD = {
    "TRUE": "write TRUE_VALUE()",
    "FALSE": "write FALSE_VALUE()",
    "NULL": "write IS NULL behind a field",
    "NAN": "write NAN_VALUE(), or IS NAN behind a field",
}


def parse(text: str, functions: Functions) -> tree.ExpressionNode:
    """Returns the syntax tree of an expression.

    Args:
        functions: functions that it may use.

    Raises:
        ExpressionError: with the column where it is wrong.
    """
    if len(text) > CHARACTERS_MAX:
        raise ExpressionError(
            f"it has {len(text):,} characters, and may have {CHARACTERS_MAX:,}: "
            "make several of it, or a regular expression",
            CHARACTERS_MAX + 1,
        )
    return _alone(_Parser(list(words(text)), functions))


def _alone(parser: _Parser) -> tree.ExpressionNode:
    """Parses an expression that is the whole text."""
    if parser.word.kind == "end":
        raise ExpressionError("it is empty: write a condition such as /status = 'open'", 1)
    found = parser.expression(0)
    if parser.word.kind != "end":
        raise parser.unexpected("the end, or AND or OR and another condition")
    _check_size(found)
    return found


def parse_assignment(
    text: str,
    functions: Functions,
    messages: Mapping[str, str] | None = None,
    topics: TopicStep | None = None,
) -> tree.Assignment:
    """Parses an assignment such as `/price * /count AS /total HINT OPTIONAL`. A field of a topic
    may stand alone: it keeps its name.

    Args:
        functions: functions that it may use.
        messages: name of the message to which a field belongs, by the word after OF (`""`: without
            OF); it becomes the first step of the field's path. None: fields belong to topics.
        topics: gives the first step of the path of a field that belongs to a topic.

    Raises:
        ExpressionError: with the column where it is wrong.
    """
    if len(text) > CHARACTERS_MAX:
        raise ExpressionError(f"it has more than {CHARACTERS_MAX:,} characters", CHARACTERS_MAX + 1)
    return _Parser(list(words(text)), functions, messages, topics).assignment()


def parse_equality(
    text: str, functions: Functions, topics: TopicStep
) -> tuple[tree.Identifier, tree.Identifier]:
    """Parses the equality of two fields of topics: `[orders]./customer = [customers]./id`. The
    first step of each field's path is that of its topic.

    Raises:
        ExpressionError: the text is not such an equality; with the column.
    """
    if len(text) > CHARACTERS_MAX:
        raise ExpressionError(f"it has more than {CHARACTERS_MAX:,} characters", CHARACTERS_MAX + 1)
    found = _alone(_Parser(list(words(text)), functions, None, topics))
    if (
        not isinstance(found, tree.Comparison)
        or found.operator != "="
        or not isinstance(found.left, tree.Identifier)
        or not isinstance(found.right, tree.Identifier)
    ):
        raise ExpressionError(
            "expected a field of one topic, =, and a field of another, such as "
            "[orders]./customer = [customers]./id",
            found.column,
        )
    return found.left, found.right


def _check_size(node: tree.ExpressionNode) -> None:
    level, depth, parts = [node], 0, 0
    while level:
        depth += 1
        parts += sum(not isinstance(each, tree.Literal) for each in level)
        if depth > TREE_DEPTH_MAX:
            raise _too_deep(level[0].column)
        if parts > PARTS_MAX:
            what = f"it has more than {PARTS_MAX:,} parts: use IN (…) for many values"
            raise ExpressionError(what, level[0].column)
        level = [below for each in level for below in each.children()]


def _settable(steps: Iterable[str | int], column: int) -> tuple[str, ...]:
    """Returns the names of a field that gets a value, none of which is an element of an array."""
    names = []
    for step in steps:
        if not isinstance(step, str):
            raise ExpressionError(
                "an element of an array cannot be set: name a field without [ ], or AS and another",
                column,
            )
        names.append(step)
    return tuple(names)


def _too_deep(column: int) -> ExpressionError:
    return ExpressionError("it is nested too deeply: make several conditions of it", column)


class _Parser:
    """Reads words from the first to the last, and never goes back."""

    def __init__(
        self,
        found: list[Token],
        functions: Functions,
        messages: Mapping[str, str] | None = None,
        topics: TopicStep | None = None,
    ) -> None:
        self._words = found
        self._functions = functions
        self._messages = messages
        self._topics = topics
        self._at = 0
        self.word = found[0]

    def expression(self, depth: int) -> tree.ExpressionNode:
        """Parses an expression, up to a word that cannot continue it."""
        if depth > DEPTH_MAX:
            raise _too_deep(self.word.column)
        return self._logical("OR", depth)

    def assignment(self) -> tree.Assignment:
        """Parses a whole assignment, up to the end."""
        if self.word.kind == "end":
            raise ExpressionError("it is empty: write a field such as /price * 2 AS /double", 1)
        value = self.expression(0)
        _check_size(value)
        if self._topics and isinstance(value, tree.Identifier) and not self._is("AS"):
            # A field of a topic keeps its name: the first step is the topic.
            column = value.column
            destination = _settable(value.steps[1:], column)
        else:
            self._expect("AS", "AS and the field that gets the value")
            column = self.word.column
            destination = self._destination()
        hints: list[str] = []
        if self._is("HINT"):
            self._next()
            hints.append(self._hint())
            while self._is(","):
                self._next()
                hints.append(self._hint())
        if self.word.kind != "end":
            raise self.unexpected("the end, or HINT OPTIONAL" if not hints else "the end")
        return tree.Assignment(column, value, destination, frozenset(hints))

    def _destination(self) -> tuple[str, ...]:
        word = self.word
        if word.kind == "path":
            self._next()
            steps = steps_of(word)
        elif word.kind == "bracket":
            steps = tuple(self._bracketed().steps)
        else:
            raise self.unexpected("the field that gets the value, such as /total")
        return _settable(steps, word.column)

    def _hint(self) -> str:
        if not self._is(*_HINTS):
            raise self.unexpected(f"{' or '.join(_HINTS)} behind HINT")
        return self._next().text.upper()

    def unexpected(self, wanted: str) -> ExpressionError:
        word = self.word
        found = f"{word.text[:40]!r}" if word.kind != "end" else "its end"
        more = ""
        if word.kind == "path" and wanted.startswith("the end"):
            more = ". To divide, write / with spaces around it"
        elif word.kind == "number" and word.text[0] == "." and self._topics is None:
            more = ". Fields of topics are for views only"
        return ExpressionError(f"expected {wanted}, found {found}{more}", word.column)

    def _next(self) -> Token:
        word = self.word
        self._at += 1
        self.word = self._words[min(self._at, len(self._words) - 1)]
        return word

    def _is(self, *texts: str) -> bool:
        word = self.word
        return word.kind in ("name", "operator") and word.text.upper() in texts

    def _expect(self, text: str, wanted: str = "") -> Token:
        if not self._is(text):
            raise self.unexpected(wanted or text)
        return self._next()

    def _logical(self, operator: str, depth: int) -> tree.ExpressionNode:
        column = self.word.column
        operands = []
        while True:
            if operator == "OR":
                operands.append(self._logical("AND", depth))
            else:
                operands.append(self._negation(depth))
            if not self._is(operator):
                break
            self._next()
        if len(operands) == 1:
            return operands[0]
        return tree.Logical(column, operator, tuple(operands))

    def _negation(self, depth: int) -> tree.ExpressionNode:
        columns = []
        while self._is("NOT"):
            columns.append(self._next().column)
            if len(columns) > DEPTH_MAX:
                raise ExpressionError("it has too many NOTs: two of them are none", columns[-1])
        found = self._comparison(depth)
        for column in reversed(columns):
            found = tree.Not(column, found)
        return found

    def _comparison(self, depth: int) -> tree.ExpressionNode:
        column = self.word.column
        left = self._sum(depth)
        for _ in range(DEPTH_MAX):
            if self.word.kind == "operator" and self.word.text in _COMPARATORS:
                operator = _COMPARATORS[self._next().text]
                left = tree.Comparison(column, operator, left, self._sum(depth))
            elif self._is(*_PREDICATES):
                left = self._predicate(left, depth)
            else:
                return left
        raise ExpressionError("too many comparisons without AND or OR between them", column)

    def _predicate(self, left: tree.ExpressionNode, depth: int) -> tree.ExpressionNode:
        column = left.column
        if self._is("IS"):
            return self._is_something(left)
        negated = self._is("NOT")
        if negated:
            self._next()
        found: tree.ExpressionNode
        if self._is("BETWEEN"):
            self._next()
            low = self._sum(depth)
            self._expect("AND", "AND and the upper end of BETWEEN")
            found = tree.Between(column, left, low, self._sum(depth))
        elif self._is("IN"):
            self._next()
            found = tree.In(column, left, self._list("IN", depth))
        elif self._is("LIKE"):
            self._next()
            found = tree.Like(column, left, self._pattern("LIKE"))
        elif self._is("BEGINS", "ENDS"):
            begins = self._next().text.upper() == "BEGINS"
            self._expect("WITH")
            name = "BEGINS WITH" if begins else "ENDS WITH"
            found = tree.Affix(column, begins, left, self._list(name, depth))
        else:
            raise self.unexpected("BETWEEN, IN, LIKE, BEGINS WITH or ENDS WITH behind NOT")
        return tree.Not(column, found) if negated else found

    def _is_something(self, left: tree.ExpressionNode) -> tree.ExpressionNode:
        self._next()
        negated = self._is("NOT")
        if negated:
            self._next()
        if not self._is("NULL", "NAN"):
            raise self.unexpected("NULL, NOT NULL or NAN behind IS")
        kind = tree.IsNull if self._next().text.upper() == "NULL" else tree.IsNan
        found: tree.ExpressionNode = kind(left.column, left)
        return tree.Not(left.column, found) if negated else found

    def _list(self, of: str, depth: int) -> tuple[tree.ExpressionNode, ...]:
        self._expect("(", f"( and the values of {of}")
        found = [self.expression(depth + 1)]
        while self._is(","):
            self._next()
            found.append(self.expression(depth + 1))
        self._expect(")", f", or ) at the end of {of}")
        return tuple(found)

    def _pattern(self, of: str) -> Pattern:
        word = self.word
        if word.kind not in ("string", "raw"):
            raise self.unexpected(f"a regular expression in quotes for {of}")
        self._next()
        return Pattern(word.value, word.column)

    def _sum(self, depth: int) -> tree.ExpressionNode:
        return self._arithmetic(("+", "-"), depth)

    def _arithmetic(self, operators: tuple[str, ...], depth: int) -> tree.ExpressionNode:
        column = self.word.column
        products = operators == ("+", "-")
        left = self._arithmetic(("*", "/", "%", "MOD"), depth) if products else self._factor(depth)
        for _ in range(DEPTH_MAX):
            if not self._is(*operators):
                return left
            operator = self._next().text.upper().replace("MOD", "%")
            right = (
                self._arithmetic(("*", "/", "%", "MOD"), depth) if products else self._factor(depth)
            )
            left = tree.Arithmetic(column, operator, left, right)
        raise ExpressionError(f"more than {DEPTH_MAX} operands in a row: use parentheses", column)

    def _factor(self, depth: int) -> tree.ExpressionNode:
        signs = []
        while self._is("-"):
            signs.append(self._next().column)
            if len(signs) > DEPTH_MAX:
                raise ExpressionError("it has too many signs: two of them are none", signs[-1])
        found = self._value(depth)
        for column in reversed(signs):
            if isinstance(found, tree.Literal) and isinstance(found.value, int | float):
                value = -found.value
                found = tree.Literal(column, clipped(value) if isinstance(value, int) else value)
            else:
                found = tree.Negative(column, found)
        return found

    def _value(self, depth: int) -> tree.ExpressionNode:
        word = self.word
        if word.kind in ("number", "string", "raw"):
            self._next()
            return tree.Literal(word.column, word.value)
        if word.kind == "path":
            self._next()
            return self._of(tree.Identifier(word.column, steps_of(word)))
        if word.kind == "bracket":
            if self._topics is not None and not word.text.startswith("[/"):
                return self._qualified()
            return self._of(self._bracketed())
        if self._is("("):
            self._next()
            found = self.expression(depth + 1)
            self._expect(")", "AND, OR, or ) at the end of the parentheses")
            return found
        if word.kind == "name" and word.text.upper() not in _KEYWORDS:
            return self._call(depth)
        if word.text.upper() in _INSTEAD:
            raise self.unexpected(f"a value ({_INSTEAD[word.text.upper()]})")
        if word.text == "/":
            raise self.unexpected(
                "a value, or the name of a field right behind /, without wildcard"
            )
        raise self.unexpected("a field such as /status, a value in quotes, a number or a function")

    def _of(self, field: tree.Identifier) -> tree.Identifier:
        """Parses a field, and the message that is named after it where there are several."""
        if self._topics is not None:
            return self._of_topic(field, ())
        if self._messages is None:
            return field
        name = ""
        if self._is("OF"):
            self._next()
            known = [message for message in self._messages if message]
            if not self._is(*known):
                raise self.unexpected(f"{' or '.join(known)} behind OF")
            name = self._next().text.upper()
        return tree.Identifier(field.column, (self._messages[name], *field.steps))

    def _qualified(self) -> tree.Identifier:
        """Parses `[topic]./field` and `[type].[topic].[/field]`."""
        names: list[str] = []
        while self.word.kind == "bracket" and not self.word.text.startswith("[/"):
            names.append(self._next().text[1:-1])
            if self.word.kind != "dot" or len(names) > 2:
                raise self.unexpected("a dot and a field, such as [orders]./price")
            self._next()
        word = self.word
        if word.kind == "path":
            self._next()
            return self._of_topic(tree.Identifier(word.column, steps_of(word)), names)
        if word.kind == "bracket":
            return self._of_topic(self._bracketed(), names)
        raise self.unexpected("a field of the topic, such as /price")

    def _of_topic(self, field: tree.Identifier, names: Sequence[str]) -> tree.Identifier:
        assert self._topics is not None, "fields belong to topics"
        step = self._topics(names, field.column)
        return tree.Identifier(field.column, (step, *field.steps))

    def _bracketed(self) -> tree.Identifier:
        """Parses `[/A Name]`, with subscripts of its own."""
        word = self._next()
        inside = word.text[1:-1]
        if not inside.startswith("/"):
            raise ExpressionError(
                f"{word.text[:40]!r} names a topic or a type, which only views have: write the "
                "field alone, such as /price, or [/a b] for a name with blanks",
                word.column,
            )
        steps: list[str | int] = list(inside[1:].split("/"))
        if not all(steps):
            raise ExpressionError(f"a name is missing in {word.text[:40]!r}", word.column)
        while self.word.kind == "bracket" and self.word.text[1:-1].isdecimal():
            steps += steps_of(Token("path", self.word.text, self.word.column))
            self._next()
        return tree.Identifier(word.column, tuple(steps))

    def _call(self, depth: int) -> tree.ExpressionNode:
        word = self._next()
        name = word.text.upper()
        if not self._is("("):
            raise _bare_name(word)
        self._next()
        if name == "IF":
            return self._if(word, depth)
        function = self._functions.get(name)
        if function is None:
            raise _unknown(word, self._functions)
        found: list[tree.ExpressionNode] = []
        patterns: list[Pattern | None] = []
        while not (self._is(")") and not found):
            pattern = self._is_pattern(function, len(found))
            patterns.append(
                self._pattern(name).for_places(self._words[self._at - 1].column)
                if pattern
                else None
            )
            found.append(
                tree.Literal(self.word.column, None) if pattern else self.expression(depth + 1)
            )
            if not self._is(","):
                break
            self._next()
        self._expect(")", f", or ) at the end of {name}")
        _check_count(word, function, len(found))
        return tree.Call(word.column, function, tuple(found), tuple(patterns))

    def _is_pattern(self, function: Function, number: int) -> bool:
        return bool(function.kinds) and function.kind_of(number) == "pattern"

    def _if(self, word: Token, depth: int) -> tree.ExpressionNode:
        found = [self.expression(depth + 1)]
        while self._is(",") and len(found) < 3:
            self._next()
            found.append(self.expression(depth + 1))
        if len(found) != 3 or not self._is(")"):
            raise self.unexpected("IF(condition, value if true, value if not)")
        self._next()
        return tree.Conditional(word.column, *found)


def _check_count(word: Token, function: Function, count: int) -> None:
    least, most = function.least, function.most
    if least <= count <= most:
        return
    wanted = (
        f"{least}"
        if least == most
        else f"at least {least}"
        if function.repeats
        else f"{least} to {most}"
    )
    noun = "argument" if wanted.split()[-1] == "1" else "arguments"
    takes = f"it takes {', '.join(function.kinds)}" if function.kinds else "it takes none"
    raise ExpressionError(
        f"{function.name} needs {wanted} {noun}, not {count}: {takes}", word.column
    )


def _bare_name(word: Token) -> ExpressionError:
    instead = _INSTEAD.get(word.text.upper())
    if instead is None:
        instead = f"a field is written /{word.text[:40]}, a text '{word.text[:40]}'"
    return ExpressionError(f"{word.text[:40]!r} alone means nothing: {instead}", word.column)


def _unknown(word: Token, functions: Functions) -> ExpressionError:
    name = word.text.upper()
    if name in LOADABLE:
        what = "is of a loadable library that Raylay does not have: install one of your own"
        return ExpressionError(f"{name} {what} (docs/filters.md)", word.column)
    near = difflib.get_close_matches(name[:40], functions, n=1)
    meant = f": did you mean {near[0]}?" if near else ": docs/filters.md lists them"
    return ExpressionError(f"there is no function {word.text[:40]!r}{meant}", word.column)
