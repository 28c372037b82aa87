"""The texts of the options of actions, read: intervals, schedules, shares, assignments.

Engine and steps read them after `{{VARIABLE}}` is expanded; a configuration checks those that have
no variable.
"""

from __future__ import annotations

import re

from raylay.services.actions.modules import OptionDefinition
from raylay.services.errors import ConfigurationError
from raylay.services.messages.documented_units import parse_count, parse_interval_ns
from raylay.services.messages.topics import compile_regex, is_regex
from raylay.services.replication.timetable import Occasion, is_time_of_day

SIGNALS = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGALRM"),
    *("SIGCONT", "SIGWINCH", "SIGIO", "SIGPWR"),
)
"""Signals that an action may run on."""
RESERVED_SIGNALS = ("SIGQUIT",)
"""Signals whose meaning cannot be changed, as documented."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH_NAME = re.compile(r"[^/\s?#]+")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_TRUE = frozenset(("true", "yes", "on", "enabled", "1"))
_FALSE = frozenset(("false", "no", "off", "disabled", "0"))


def interval_us(text: str) -> int:
    """Returns the microseconds of an interval such as `15s` or `1d`.

    Raises:
        ValueError: saying what was expected and what came.
    """
    return parse_interval_ns(text) // 1000


def occasion(text: str) -> Occasion:
    """Returns the occasion of a schedule: an interval, or a time of the day or week.

    Raises:
        ValueError: it is neither.
    """
    text = text.strip()
    if is_time_of_day(text):
        return Occasion(at=text)
    try:
        every_us = interval_us(text)
    except ValueError:
        every_us = 0
    if not every_us:
        raise ValueError(
            "expected an interval such as 15s, a time such as 00:32, or a weekday such as "
            f"'Saturday at 11:00', got {text!r}"
        )
    return Occasion(max(1, every_us // 1000))


def percent(text: str) -> float:
    """Returns the share of 100 of a text such as `90%`.

    Raises:
        ValueError: the text is not a share from 0% to 100%.
    """
    number = text.strip().removesuffix("%").strip()
    try:
        found = float(number)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 100:
        raise ValueError(f"expected a share such as 90%, got {text!r}")
    return found


def flag(text: str) -> bool:
    """Returns what a text such as `true` says.

    Raises:
        ValueError: it says neither yes nor no.
    """
    word = text.strip().lower()
    if word not in _TRUE and word not in _FALSE:
        raise ValueError(f"expected true or false, got {text!r}")
    return word in _TRUE


def words(text: str) -> tuple[str, ...]:
    """Returns the words of a text with commas between them."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def assignment(text: str) -> tuple[str, str]:
    """Returns the variable and the expression of `VARIABLE=expression`.

    Raises:
        ValueError: it has no variable or no expression.
    """
    variable, equals, expression = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(variable.strip()) or not expression.strip():
        raise ValueError(f"expected VARIABLE=expression, got {text!r}")
    return variable.strip(), expression.strip()


def case(text: str) -> tuple[str, str]:
    """Returns the text that is translated, and its translation, of `found=given`.

    Raises:
        ValueError: it has no `=`.
    """
    found, equals, given = text.partition("=")
    if not equals:
        raise ValueError(f"expected found=given, got {text!r}")
    return found, given


def text_problem(option: OptionDefinition, text: str) -> str:
    """Returns what is wrong with the text of an option; empty: nothing, as far as one can say
    before its variables are expanded. Expressions are for the language of filters to check."""
    if "{{" in text:
        return ""
    if option.required and not text.strip() and option.text != "text":
        return "expected a text, got none"
    try:
        _read(option, text)
    except ValueError as error:
        return str(error)
    except ConfigurationError as error:
        return str(error).partition(": ")[2]
    return ""


def _read(option: OptionDefinition, text: str) -> None:
    kind = option.text
    if option.choices:
        for word in words(text) if kind == "words" else (text.strip(),):
            if word not in option.choices:
                raise ValueError(f"expected {_either(option.choices)}, got {word!r}")
    elif kind == "interval":
        interval_us(text)
    elif kind == "schedule":
        occasion(text)
    elif kind == "percent":
        percent(text)
    elif kind == "flag":
        flag(text)
    elif kind == "number":
        parse_count(text)
    elif kind == "assignment":
        assignment(text)
    elif kind == "case":
        case(text)
    elif kind == "topics":
        if is_regex(text):
            compile_regex(text, "Topic")
    elif kind == "topic":
        if is_regex(text):
            raise ValueError(f"expected the name of a topic, got the regular expression {text!r}")
    elif kind == "signal":
        _signal(text.strip())
    elif kind == "variable":
        _fits(_VARIABLE, text, "the name of a variable, of letters, digits and _")
    elif kind == "name":
        _fits(_PATH_NAME, text, "a name without spaces and /")
    elif kind == "function":
        _fits(_FUNCTION, text, "package.module:function")


def _signal(text: str) -> None:
    if text in RESERVED_SIGNALS:
        raise ValueError(f"{text} cannot be given another meaning: take SIGUSR1 or SIGUSR2")
    if text not in SIGNALS:
        raise ValueError(f"expected a signal such as SIGUSR1, got {text!r}")


def _fits(expression: re.Pattern[str], text: str, what: str) -> None:
    if not expression.fullmatch(text.strip()):
        raise ValueError(f"expected {what}, got {text!r}")


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
