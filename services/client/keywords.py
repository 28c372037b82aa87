"""A check of keyword arguments in calls of the public API, so that a misspelt one is never
ignored."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def checks_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a call raise a TypeError that names the nearest parameter where a keyword argument is
    unknown.

    Python's own TypeError names the wrong argument only. The check costs a dictionary look-up an
    argument, so it belongs on calls that are made per subscription, never per message.
    """
    known = inspect.signature(function).parameters
    name = function.__qualname__.rpartition(".")[2]
    shown = function.__qualname__.partition(".")[0] if name == "__init__" else name

    @wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        for keyword in keywords:
            if keyword not in known:
                near = difflib.get_close_matches(keyword, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
                raise TypeError(f"{shown}() has no argument {keyword!r}: {hint}")
        return function(*args, **keywords)

    return checked
