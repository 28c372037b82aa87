"""A check of the arguments in calls of the public API: a misspelt one is never ignored, and one of
a wrong type is named where it is given, not where it is used."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

KINDS: Mapping[str, tuple[type, str]] = {
    "str": (str, "a text"),
    "bool": (bool, "True or False"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "None": (type(None), "None"),
}
"""The types that are checked, by their annotation: what a value must be, and its name in errors."""


def checks_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a call raise a TypeError that names the nearest parameter where a keyword argument is
    unknown, and the argument where a text, a number or a flag is of another type. A coroutine
    function raises it when it is awaited.

    Python's own TypeError names only the wrong argument, not the parameter that is meant. The
    check makes some look-ups for each argument, so it is for calls that are made once per
    subscription, and never for those of each message. The options of a constructor have checks of
    their own (`checks_options`).
    """
    known = inspect.signature(function).parameters
    names = tuple(known)
    name = function.__qualname__.rpartition(".")[2]
    is_made = name == "__init__"
    shown = function.__qualname__.partition(".")[0] if is_made else name
    kinds = {} if is_made else {each: _kinds_of(known[each].annotation) for each in names}

    def check(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        refuse_unknown(shown, keywords, known)
        for argument, value in (*zip(names, args, strict=False), *keywords.items()):
            of = kinds.get(argument)
            if of and not any(_is(value, each) for each in of):
                wanted = " or ".join(KINDS[each][1] for each in of)
                raise TypeError(
                    f"{shown}(): {argument} is {shown_value(value)}, "
                    f"of type {type(value).__name__}: give {wanted}"
                )

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def checked_coroutine(*args: Any, **keywords: Any) -> Any:
            check(args, keywords)
            return await function(*args, **keywords)

        return cast("Callable[P, T]", checked_coroutine)

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        check(args, keywords)
        return function(*args, **keywords)

    return checked


def refuse_unknown(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError where an argument is not known, with the nearest one that is.

    Args:
        call: name of the function, for the error.
        given: names of the arguments.
        known: names of the arguments that it takes.
    """
    for keyword in given:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise TypeError(f"{call}() has no argument {keyword!r}: {hint}")


def _kinds_of(annotation: object) -> tuple[str, ...]:
    """Returns the checked types that an annotation names; empty: it also names other types."""
    if not isinstance(annotation, str):
        return ()
    parts = tuple(part.strip() for part in annotation.split("|"))
    return parts if all(part in KINDS for part in parts) else ()


def _is(value: object, kind: str) -> bool:
    # In Python a bool is a number, too.
    is_number = kind in ("int", "float")
    return isinstance(value, KINDS[kind][0]) and not (is_number and isinstance(value, bool))


def shown_value(value: object) -> str:
    """Returns a value as code shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
