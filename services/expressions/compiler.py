"""Compiler from a syntax tree to one Python function of a parsed message.

The function is written as Python and compiled: for a comparison of a field that takes a third of
the time of closures which call one another. Nothing of an expression's text gets into it: names of
fields, values, patterns and functions are objects that the code knows by names made here.

Frequent comparisons, of a field with a literal, are written out for the types that need no help:
what they cannot judge, they hand to `values.py`. A part that would nest more deeply than Python
reads goes into a variable before; parts have no effects, so that the result is the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from raylay.services.errors import ExpressionError
from raylay.services.expressions import tree, values
from raylay.services.expressions.functions.registry import EvalContext
from raylay.services.expressions.values import Value
from raylay.services.expressions.work import EvaluationAccount, Meter, TooMuchWork, give_up

Predicate = Callable[[dict[str, Any], EvalContext], bool]
Evaluation = Callable[[dict[str, Any], EvalContext], Value]

LARGE_NODES = 64
"""Number of nodes of an expression above which its meter is made at the start."""
_METER = "[EFFORT.begun, EFFORT, None]"
NESTING_MAX = 40
"""Nesting of parentheses in one Python expression; Python's limit is 200."""
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PYTHON = {"=": "=="}


class Code(NamedTuple):
    """A Python expression, and what its value may be: with `is_condition` True or False, and None
    unless `is_never_null`."""

    text: str
    nesting: int = 0
    is_condition: bool = False
    is_never_null: bool = False


def compiled_filter(
    node: tree.ExpressionNode, effort: EvaluationAccount | None = None
) -> Predicate:
    """Returns a function that says whether an expression is true of a message; False where
    evaluating it takes more work than allowed (work.py).

    Args:
        effort: takes the work of the evaluations.
    """
    found: Predicate = _Writer(effort or EvaluationAccount()).function(node, is_filter=True)
    return found


def compiled_value(
    node: tree.ExpressionNode, effort: EvaluationAccount | None = None
) -> Evaluation:
    """Returns a function that gives the value of an expression for a message; NULL where evaluating
    it takes more work than allowed (work.py)."""
    found: Evaluation = _Writer(effort or EvaluationAccount()).function(node, is_filter=False)
    return found


def with_account(
    code: types.CodeType, known: dict[str, Any], effort: EvaluationAccount
) -> Callable[..., Any]:
    """Returns the function of an expression with another work account; everything else is shared
    with the original function."""
    # An argument with a default is as fast as a global name; a closure is not.
    return types.FunctionType(code, known, argdefs=(effort,))


def _is_large(node: tree.ExpressionNode) -> bool:
    waiting, count = [node], 0
    while waiting and count <= LARGE_NODES:
        waiting += waiting.pop().children()
        count += 1
    return count > LARGE_NODES


def _inner(code: types.CodeType) -> types.CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, types.CodeType))


class _Writer:
    """Writes one function.

    Attributes:
        known: the objects that the code uses, by their names in it.

    Args:
        effort: takes the work of the evaluations.
    """

    def __init__(self, effort: EvaluationAccount) -> None:
        self._is_metered = False
        self._is_large = False
        """Whether the meter is made at the start: in a large expression, writing it in each of many
        places would take a third of the compile time."""
        self._effort = effort
        self.known: dict[str, Any] = {
            "TooMuchWork": TooMuchWork,
            "give_up": give_up,
            "follow": values.follow,
            "truth": values.truth,
            "NUMBERS": values.NUMBERS,
            "COMPLEX": values.COMPLEX,
            "NOT_NUMBERS": values.NOT_NUMBERS,
            "dict": dict,
            "str": str,
            "len": len,
            "__builtins__": {},
        }
        self._names: dict[Any, str] = {}
        self._lines: list[str] = []
        self._variables = 0

    def function(self, node: tree.ExpressionNode, *, is_filter: bool) -> Callable[..., Any]:
        self._is_large = _is_large(node)
        try:
            code = self.condition(node) if is_filter else self.value(node)
            result = code.text if not is_filter or code.is_never_null else f"{code.text} is True"
            given_up = "False" if is_filter else "None"
            body = [*self._lines, f"return {result}"]
            if self._is_metered:
                body = [
                    f"b = {_METER if self._is_large else None}",
                    "try:",
                    *(f"    {line}" for line in body),
                    "except TooMuchWork:",
                    "    give_up(EFFORT)",
                    f"    return {given_up}",
                ]
            lines = "".join(f"    {line}\n" for line in body)
            source = f"def expression(m, around, EFFORT=None):\n{lines}"
            module = compile(source, "<filter>", "exec", dont_inherit=True, optimize=2)
        except (RecursionError, MemoryError, SyntaxError):
            raise ExpressionError("it has too many parts: make several of it", 1) from None
        return with_account(_inner(module), self.known, self._effort)

    def condition(self, node: tree.ExpressionNode) -> Code:
        code = self.value(node)
        if code.is_condition:
            return code
        return self._made(f"truth({code.text}, {self.meter()})", code.nesting, is_condition=True)

    def value(self, node: tree.ExpressionNode) -> Code:
        code = _WRITERS[type(node)](self, node)
        return self._hoisted(code) if code.nesting > NESTING_MAX else code

    def _hoisted(self, code: Code) -> Code:
        name = self.variable()
        self._lines.append(f"{name} = {code.text}")
        return code._replace(text=name, nesting=0)

    def meter(self) -> str:
        """Returns the code of the evaluation's meter, which is made when it is first needed: most
        comparisons never need it."""
        self._is_metered = True
        if self._is_large:
            return "b"
        return f"(b or (b := {_METER}))"

    def variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def name(self, value: Any, prefix: str = "k") -> str:
        key = (type(value), value) if isinstance(value, str | int | float) else id(value)
        if value != value:
            key = id(value)
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = f"{prefix}{len(self._names)}"
            self.known[found] = value
        return found

    def _made(
        self, text: str, nesting: int, *, is_condition: bool = False, is_never_null: bool = False
    ) -> Code:
        return Code(text, nesting + 1, is_condition, is_never_null)

    def literal(self, node: tree.Literal) -> Code:
        return Code(self.name(node.value) if node.value not in (None, "") else "None")

    def identifier(self, node: tree.Identifier) -> Code:
        """Returns the code of a field: one `get` for each step, as long as the values are
        objects."""
        first, *rest = node.steps
        text = f"m.get({self.name(first)})"
        if not rest:
            return Code(text, 1)
        if len(rest) == 1 and rest[0].__class__ is str:
            held, step = self.variable(), self.name(rest[0])
            way = self.name(tuple(rest))
            found = f"({held}.get({step}) if ({held} := {text}).__class__ is dict "
            return Code(f"{found}else follow({held}, {way}, {self.meter()}))", 3)
        return Code(f"follow({text}, {self.name(tuple(rest))}, {self.meter()})", 2)

    def negation(self, node: tree.Not) -> Code:
        """Returns the code of NOT: for NULL it is NULL."""
        code = self.condition(node.operand)
        if code.is_never_null:
            text = f"(not {code.text})"
            return self._made(text, code.nesting, is_condition=True, is_never_null=True)
        held = self.variable()
        text = f"(None if ({held} := {code.text}) is None else not {held})"
        return self._made(text, code.nesting + 1, is_condition=True)

    def logical(self, node: tree.Logical) -> Code:
        """Returns the code of AND and OR, from left to right, as the documents tabulate them: FALSE
        AND and TRUE OR decide at once, and so does NULL, which stays NULL whatever follows."""
        found = [self.condition(operand) for operand in node.operands]
        never_null = all(each.is_never_null for each in found)
        nesting = max(each.nesting for each in found)
        if node.operator == "AND":
            text = " and ".join(each.text for each in found)
        elif all(each.is_never_null for each in found[:-1]):
            text = " or ".join(each.text for each in found)
        else:
            parts = []
            for each in found[:-1]:
                held = self.variable()
                parts.append(f"{held} if ({held} := {each.text}) is not False else ")
            text, nesting = "".join(parts) + found[-1].text, nesting + 1
        return self._made(f"({text})", nesting, is_condition=True, is_never_null=never_null)

    def comparison(self, node: tree.Comparison) -> Code:
        """Returns the code of a comparison: written out with a literal on one side, otherwise a
        call."""
        operator, left, right = node.operator, node.left, node.right
        if isinstance(left, tree.Literal) and not isinstance(right, tree.Literal):
            operator, left, right = _MIRRORED[operator], right, left
        code = self.value(left)
        if isinstance(right, tree.Literal) and right.value not in (None, ""):
            return self._compared(operator, code, right.value)
        other = self.value(right)
        call = self.name(values.COMPARISONS[operator], "f")
        text = f"{call}({code.text}, {other.text}, {self.meter()})"
        nesting = max(code.nesting, other.nesting)
        return self._made(text, nesting, is_condition=True, is_never_null=True)

    def _compared(self, operator: str, code: Code, value: Value) -> Code:
        """Returns the code of a comparison with a literal that is no NULL."""
        held, literal = self.variable(), self.name(value)
        call = self.name(values.COMPARISONS[operator], "f")
        python = _PYTHON.get(operator, operator)
        other = f"{call}({held}, {literal}, {self.meter()})"
        if operator != "=":
            simple = "is str" if isinstance(value, str) else "in NUMBERS"
            # A text is compared with a text; an empty one is NULL.
            asked = f"{held} {python} {literal}" + (f" and {held} != ''" * isinstance(value, str))
            text = f"({asked} if ({held} := {code.text}).__class__ {simple} else {other})"
        elif not isinstance(value, str):
            text = (
                f"(({held} := {code.text}) == {literal} "
                f"or {held}.__class__ in NOT_NUMBERS and {other})"
            )
        elif (said := values.parsed(value)) == said:
            text = (
                f"(({held} := {code.text}) == {literal} or {held} == {self.name(said)} "
                f"or {held}.__class__ in COMPLEX and {other})"
            )
        else:
            text = (
                f"(({held} := {code.text}) == {literal} or {held}.__class__ in COMPLEX and {other})"
            )
        return self._made(text, code.nesting + 1, is_condition=True, is_never_null=True)

    def between(self, node: tree.Between) -> Code:
        return self._called(values.between, (node.operand, node.low, node.high), is_condition=True)

    def membership(self, node: tree.In) -> Code:
        """Returns the code of IN: literal texts and numbers are found by one look-up, others are
        compared one by one."""
        code = self.value(node.operand)
        literals = [option.value for option in node.options if isinstance(option, tree.Literal)]
        others = [option for option in node.options if not isinstance(option, tree.Literal)]
        held = self.variable()
        asked = f"({held} := {code.text})"
        nesting = code.nesting + 1
        tests = []
        if literals:
            tests.append(f"{self.name(_Members(literals).has, 'f')}({asked}, {self.meter()})")
            asked = held
        for each in others:
            other = self.value(each)
            tests.append(f"{self.name(values.equal, 'f')}({asked}, {other.text}, {self.meter()})")
            nesting, asked = max(nesting, other.nesting), held
        text = f"({' or '.join(tests)})"
        return self._made(text, nesting + 1, is_condition=True, is_never_null=True)

    def like(self, node: tree.Like) -> Code:
        code, held = self.value(node.operand), self.variable()
        matches, meter = self.name(node.pattern.matches, "f"), self.meter()
        other = f"{self.name(values.like, 'f')}({held}, {self.name(node.pattern)}, {meter})"
        text = (
            f"(({matches}({held}) if len({held}) <= {self.name(node.pattern.uncounted)} "
            f"else {matches}({held}, {meter})) and {held} != '' "
            f"if ({held} := {code.text}).__class__ is str"
        )
        nesting = code.nesting + 1
        text = f"{text} else {other})"
        return self._made(text, nesting, is_condition=True, is_never_null=True)

    def affix(self, node: tree.Affix) -> Code:
        operand = self.value(node.operand)
        options = [self.value(option) for option in node.options]
        call = self.name(values.begins if node.begins else values.ends, "f")
        nesting = max(each.nesting for each in (operand, *options))
        listed = ", ".join(option.text for option in options)
        text = f"{call}({operand.text}, [{listed}], {self.meter()})"
        return self._made(text, nesting + 1, is_condition=True, is_never_null=True)

    def is_null(self, node: tree.IsNull) -> Code:
        return self._called(values.is_null, (node.operand,), is_condition=True)

    def is_nan(self, node: tree.IsNan) -> Code:
        return self._called(values.is_nan, (node.operand,), is_condition=True)

    def arithmetic(self, node: tree.Arithmetic) -> Code:
        return self._called(values.ARITHMETIC[node.operator], (node.left, node.right))

    def negative(self, node: tree.Negative) -> Code:
        return self._called(values.negative, (node.operand,))

    def if_(self, node: tree.Conditional) -> Code:
        """Returns the code of IF: a NULL condition takes the second branch."""
        condition = self.condition(node.condition)
        then, otherwise = self.value(node.then), self.value(node.otherwise)
        asked = condition.text if condition.is_never_null else f"{condition.text} is True"
        nesting = max(condition.nesting, then.nesting, otherwise.nesting)
        return self._made(f"({then.text} if {asked} else {otherwise.text})", nesting)

    def call(self, node: tree.Call) -> Code:
        bound = node.function.bound(len(node.arguments))
        patterns = node.patterns or (None,) * len(node.arguments)
        taken = [
            self.value(each) if pattern is None else Code(self.name(pattern))
            for each, pattern in zip(node.arguments, patterns, strict=True)
        ]
        arguments = [self.meter(), *["around"] * bool(node.function.needs)]
        arguments += [each.text for each in taken]
        nesting = max((each.nesting for each in taken), default=0)
        return self._made(f"{self.name(bound, 'f')}({', '.join(arguments)})", nesting)

    def _called(
        self,
        call: Callable[..., Value],
        nodes: tuple[tree.ExpressionNode, ...],
        *,
        is_condition: bool = False,
    ) -> Code:
        found = [self.value(node) for node in nodes]
        listed = ", ".join(each.text for each in found)
        text = f"{self.name(call, 'f')}({listed}, {self.meter()})"
        nesting = max(each.nesting for each in found)
        return self._made(text, nesting, is_condition=is_condition, is_never_null=is_condition)


class _Members:
    """The literals of an IN, as sets."""

    def __init__(self, literals: list[Value]) -> None:
        self._literals = [literal for literal in literals if literal not in (None, "")]
        texts = [literal for literal in self._literals if isinstance(literal, str)]
        self._texts = frozenset(texts)
        # Values that a number in a message equals: numbers, and texts that are numbers.
        self._numbers = frozenset(
            [literal for literal in self._literals if not isinstance(literal, str)]
            + [said for text in texts if (said := values.parsed(text)) == said]
        )
        self._has_numbers = len(texts) < len(self._literals)
        self._written = frozenset(
            literal for literal in self._literals if not isinstance(literal, str)
        )

    def has(self, value: Value, meter: Meter | None = None) -> bool:
        """Returns whether any element of the value is among the literals."""
        if value.__class__ is str:
            if value in self._texts:
                return True
            return self._has_numbers and values.parsed(value) in self._written
        if value.__class__ in values.COMPLEX:
            values.charge_all(meter, value)
            return any(map(self.has, values.plains(value)))
        return value in self._numbers


_WRITERS: dict[type[tree.ExpressionNode], Callable[[_Writer, Any], Code]] = {
    tree.Literal: _Writer.literal,
    tree.Identifier: _Writer.identifier,
    tree.Not: _Writer.negation,
    tree.Logical: _Writer.logical,
    tree.Comparison: _Writer.comparison,
    tree.Between: _Writer.between,
    tree.In: _Writer.membership,
    tree.Like: _Writer.like,
    tree.Affix: _Writer.affix,
    tree.IsNull: _Writer.is_null,
    tree.IsNan: _Writer.is_nan,
    tree.Arithmetic: _Writer.arithmetic,
    tree.Negative: _Writer.negative,
    tree.Conditional: _Writer.if_,
    tree.Call: _Writer.call,
}
