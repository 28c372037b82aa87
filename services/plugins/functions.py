"""The functions that expressions may use here: the built-in ones and those that are installed.

A package brings its own by an entry point of the group `raylay.functions`:

    [project.entry-points."raylay.functions"]
    SPREAD = "my_package.filters:spread"

The Python function gets plain values (None for NULL is not handed to it) and gives one. What its
arguments are taken as, says its attribute `takes` (`"number number"`, see
`expressions/functions/registry.py`); without it each parameter is a `value`. `deterministic = True`
says that the same arguments always give the same: else replication filters refuse it.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

from raylay.services.errors import ConfigurationError
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.expressions.functions.registry import Function, Functions, of_python

GROUP = "raylay.functions"


class FunctionEntryPoint(Protocol):
    """The used attributes of an entry point."""

    @property
    def name(self) -> str:
        """Returns the name of the function."""

    @property
    def value(self) -> str:
        """Returns `module:attribute`."""

    def load(self) -> Any:
        """Returns the Python function."""


@cache
def functions() -> Functions:
    """Returns all functions of this installation.

    Raises:
        ConfigurationError: an installed one cannot be used.
    """
    return with_installed(importlib.metadata.entry_points(group=GROUP))


def with_installed(entries: Iterable[FunctionEntryPoint]) -> Functions:
    """Returns the built-in functions together with these.

    Raises:
        ConfigurationError: a function cannot be used; the error names it and says why.
    """
    found = {entry.name.upper(): _function(entry) for entry in entries}
    return {**BUILT_IN, **found} if found else BUILT_IN


def _function(entry: FunctionEntryPoint) -> Function:
    where = f"the function {entry.name} of the installed {entry.value}"
    name = entry.name.upper()
    if not name.isidentifier() or not name.isascii():
        raise ConfigurationError(f"{where} has no name: give it letters, digits and _")
    if name in BUILT_IN or name == "IF":
        raise ConfigurationError(f"{where} has the name of a built-in one: give it another")
    try:
        call = entry.load()
    except Exception as error:
        raise ConfigurationError(
            f"{where} cannot be loaded ({type(error).__name__}: {error}): mend or uninstall it"
        ) from error
    if not callable(call):
        raise ConfigurationError(f"{where} is no function: name one in its entry point")
    takes = getattr(call, "takes", None)
    try:
        return of_python(
            name,
            call,
            _parameters(call) if takes is None else takes,
            bool(getattr(call, "deterministic", False)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{where} has a wrong signature: {error}") from None


def _parameters(call: Callable[..., Any]) -> str:
    words: list[str] = []
    for parameter in inspect.signature(call).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return " ".join([*words, "value"]) + "..."
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            words.append("value" if parameter.default is parameter.empty else "[value")
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ValueError(f"{parameter.name} can be given by its name only")
    return " ".join(words)
