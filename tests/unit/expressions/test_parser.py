"""How expressions are read, and how what is none is refused."""

from __future__ import annotations

import random
import time

import pytest

from raylay.services.errors import ExpressionError
from raylay.services.expressions.explain import shown
from raylay.services.expressions.expression import expression
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import NO_CONTEXT
from raylay.services.expressions.parser import CHARACTERS_MAX, DEPTH_MAX, PARTS_MAX, parse


@pytest.mark.covers("Filters by content", "the grammar and precedence")
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("/a = 1 OR /b = 2 AND /c = 3", "((/a = 1) OR ((/b = 2) AND (/c = 3)))"),
        ("NOT /a = 1 AND /b = 2", "(NOT (/a = 1) AND (/b = 2))"),
        ("NOT /f IS NULL", "NOT (/f IS NULL)"),
        ("(/a OR /b) and not /c", "((/a OR /b) AND NOT /c)"),
        ("1 + 2 * 3 - -4 % 5", "((1 + (2 * 3)) - (-4 % 5))"),
        ("8 MOD 3 / 2", "((8 % 3) / 2)"),
        ("- /a * 2", "(-(/a) * 2)"),
        ("(1 + 2) * 3 = 9", "(((1 + 2) * 3) = 9)"),
        ("/a == 1 <> /b", "((/a = 1) != /b)"),
        ("/a between 1 and 2 or /b", "((/a BETWEEN 1 AND 2) OR /b)"),
        ("/a NOT BETWEEN 1 AND 2", "NOT (/a BETWEEN 1 AND 2)"),
        ("/a IN (1, 'x', /b + 1)", "(/a IN (1, 'x', (/b + 1)))"),
        ("/a NOT IN (1)", "NOT (/a IN (1))"),
        ("/a LIKE '^x' AND /a NOT LIKE r'\\d'", "((/a LIKE '^x') AND NOT (/a LIKE '\\\\d'))"),
        ("/a BEGINS WITH ('a', 'b')", "(/a BEGINS WITH ('a', 'b'))"),
        ("/a NOT ENDS WITH ('a')", "NOT (/a ENDS WITH ('a'))"),
        ("/a IS NOT NULL", "NOT (/a IS NULL)"),
        ("/a is nan", "(/a IS NAN)"),
        ("if(/a > 1, length(/b), 2)", "IF((/a > 1), LENGTH(/b), 2)"),
        ("[/Not Xpath/Name][0] = 1", "([/Not Xpath/Name][0] = 1)"),
        ("UNIX_TIMESTAMP() > 1", "(UNIX_TIMESTAMP() > 1)"),
        ("REGEXP_MATCH(/a, 'x+') = 'x'", "(REGEXP_MATCH(/a, 'x+') = 'x')"),
    ],
)
def test_what_is_written_is_read_so(text: str, read: str) -> None:
    tree = parse(text, BUILT_IN)
    assert shown(tree) == read
    # What is shown is read as the same.
    assert shown(parse(read, BUILT_IN)) == read


@pytest.mark.covers("Filters by content", "the grammar and precedence")
@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "write a condition"),
        ("/a =", 5, "expected a field .* found its end"),
        ("/a == b", 7, "a field is written /b, a text 'b'"),
        ("/a = TRUE", 6, r"write TRUE_VALUE\(\)"),
        ("/a = NULL", 6, "write IS NULL behind a field"),
        ("QWZZX(1)", 1, "there is no function 'QWZZX': docs/filters.md"),
        ("LENGHT(/a)", 1, "did you mean LENGTH"),
        ("LEFT('a')", 1, "LEFT needs 2 arguments, not 1: it takes text, integer"),
        ("SUBSTR('a')", 1, "needs 2 to 3 arguments, not 1"),
        ("CONCAT()", 1, "at least 1"),
        ("LENGTH()", 1, "LENGTH needs 1 argument, not 0: it takes text"),
        ("TRUE_VALUE(1)", 1, "needs 0 arguments, not 1: it takes none"),
        ("DATE(1)", 1, "loadable library"),
        ("/a = 6 /2", 8, "To divide, write / with spaces"),
        ("/a /b", 4, "expected the end, or AND or OR"),
        ("6 / /*", 5, "without wildcard"),
        ("/a LIKE /b", 9, "a regular expression in quotes for LIKE"),
        ("/a LIKE '(x'", 9, "missing \\)"),
        ("/a LIKE '(?<=x)y'", 9, "a look-around"),
        ("/a LIKE r'(x)\\1'", 9, "a back-reference"),
        ("/a LIKE 'x{2000}'", 9, "repeats more than 1,000 times"),
        ("REGEXP_MATCH(/a, /b)", 18, "in quotes for REGEXP_MATCH"),
        ("REGEXP_MATCH(/a, '^(?!b)')", 18, "a look-ahead cannot be used where the place"),
        ("[top]./f = 1", 1, "which only views have"),
        ("[//] = 1", 1, "a name is missing"),
        ("/a BETWEEN 1 OR 2", 14, "AND and the upper end"),
        ("/a NOT = 1", 8, "behind NOT"),
        ("/a IS 1", 7, "NULL, NOT NULL or NAN"),
        ("/a BEGINS ('x')", 11, "expected WITH"),
        ("/a IN 1", 7, r"\( and the values of IN"),
        ("/a IN (1", 9, "at the end of IN"),
        ("IF(1, 2)", 8, r"IF\(condition, value if true"),
        ("(1 = 1", 7, "at the end of the parentheses"),
        ("LENGTH(/a", 10, "at the end of LENGTH"),
        ("AND /a", 1, "expected a field"),
    ],
)
def test_what_is_no_expression_is_refused_with_its_place(
    text: str, column: int, problem: str
) -> None:
    with pytest.raises(ExpressionError, match=problem) as told:
        expression(text)
    assert (told.value.column, told.value.expression) == (column, text)


@pytest.mark.covers("Filters by content", "whatever is written is read or refused")
@pytest.mark.parametrize(
    "text",
    [
        "(" * (DEPTH_MAX + 1) + "1" + ")" * (DEPTH_MAX + 1),
        "NOT " * 1000 + "/a",
        "- " * 1000 + "1",
        "/a" + " + 1" * 1000,
        "/a" + " = 1" * 1000,
        "ABS(" * 1000 + "1" + ")" * 1000,
        "NOT NOT NOT (" * 40 + " NOT " * 30 + "/a" + ")" * 40,
        " OR ".join(["/a"] * (PARTS_MAX + 1)),
        "/a = '" + "x" * CHARACTERS_MAX + "'",
        "/a LIKE '" + "x" * 5000 + "'",
        "(" * 10_000,
    ],
)
def test_what_is_too_much_is_refused_at_once(text: str) -> None:
    begin = time.thread_time()
    with pytest.raises(ExpressionError):
        expression(text)
    assert time.thread_time() - begin < 5


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEPTH_MAX + "/a = 1" + ")" * DEPTH_MAX,
        "ABS(" * DEPTH_MAX + "/a" + ")" * DEPTH_MAX + " = 1",
        "NOT (" * 40 + "/a = 1" + ")" * 40,
        "IF(/a = 1, " * 40 + "/a" + ", 0)" * 40 + " = 1",
        "(/a = 1 AND (/b IS NULL OR " * 23 + "/c = 1" + "))" * 23,
        " OR ".join(["/c"] * (PARTS_MAX // 2 - 1)) + " OR /a = 1",
        " OR ".join(f"/a = {number}" for number in range(PARTS_MAX // 2 - 1)),
        "/a IN (" + ", ".join(map(str, range(3000))) + ")",
    ],
)
def test_what_is_just_not_too_much_runs(text: str) -> None:
    found = expression(text)
    assert found.matches({"a": 1}, NO_CONTEXT) in (True, False)


WORDS = (
    "/a /b/c[1] 'x' r'\\d' 1 2.5 1e3 = == != <> < <= > >= + - * / % MOD ( ) , IN LIKE NOT AND OR "
    "BETWEEN IS NULL NAN BEGINS ENDS WITH IF CONCAT LENGTH SUBSTR REGEXP_MATCH [/a-b] [t] ! ^ . ' "
)
PIECES = WORDS.split()


@pytest.mark.covers("Filters by content", "whatever is written is read or refused")
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_written_is_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        if chance.random() < 0.5:
            text = " ".join(chance.choices(PIECES, k=chance.randint(1, 12)))
        else:
            text = "".join(map(chr, chance.choices(range(32, 0x250), k=chance.randint(1, 30))))
        try:
            found = expression(text)
        except ExpressionError as error:
            assert 1 <= error.column <= len(text) + 1, text
            assert error.problem
        else:
            assert shown(parse(shown(found.tree), BUILT_IN)) == shown(found.tree)
