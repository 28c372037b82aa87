"""The variables of a run, and their expansion in the options of its steps (behaviour.md 8).

`{{NAME}}` stands for a variable; one that is not set expands to nothing. What a variable holds is
never expanded again: it comes from clients and messages. In an expression it is always a value,
never a part of the expression: a client's name with a quote in it cannot change what a condition
asks. In a command of the shell it is a parameter, and in a pattern of files a part of one name.

A text may hold any bytes: those that are no UTF-8 stand in it as Python's `surrogateescape` has
them, so that a body goes through an action unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from raylay.services.errors import ConfigurationError
from raylay.services.expressions.values import parsed
from raylay.services.messages.lossless_text import text_of

EXPANDED_CHARACTERS_MAX = 64 * 1024 * 1024
"""Largest text that an option may expand to: some references to a variable that refers to others
multiply a message."""
_NAME = r"[\w.:-]+"
_REFERENCE = re.compile(r"\{\{(" + _NAME + r")\}\}")
_BYTE = re.compile(r"AMPS_BYTE_([0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"(-?)\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STEP = re.compile(r"@?[\w.-]+")
_PIECES = re.compile(
    rf"""(?sx)
      (?P<raw> (?<!\w) [rR] (?: ' [^']* ' | " [^"]* " ) )
    | (?P<string> ' (?: [^'\\] | \\. )* ' | " (?: [^"\\] | \\. )* " )
    | (?P<reference> \{{\{{ {_NAME} \}}\}} )
    | (?P<other> . )
    """
)
_COMMAND_PIECES = re.compile(
    rf"""(?sx)
      (?P<comment> (?<!\S) \# [^\n]* )
    | (?P<escape> \\ . )
    | (?P<single> ' [^']* ' )
    | (?P<double> " (?: [^"\\] | \\. )* " )
    | (?P<reference> \{{\{{ {_NAME} \}}\}} )
    | (?P<other> . )
    """
)
_PARAMETER = {"single": "'\"${{{0}}}\"'", "double": "${{{0}}}", "reference": '"${{{0}}}"'}
"""Form of a parameter within each kind of quotes, by which a shell puts it in as it is."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def built_in(name: str, instance_name: str, wall_us: int) -> str | None:
    """Returns the text of a variable that every run has; None: no such variable has the name.

    Args:
        wall_us: time by the wall clock, microseconds since 1970.
    """
    if name == "AMPS_INSTANCE_NAME":
        return instance_name
    if name == "AMPS_UNIX_TIMESTAMP":
        return str(wall_us // 1_000_000)
    if name == "AMPS_DATETIME":
        return date_text(wall_us)
    found = _BYTE.fullmatch(name)
    return None if found is None else text_of(bytes.fromhex(found[1]))


def date_text(wall_us: int) -> str:
    """Returns a time as ISO 8601 has it, in UTC."""
    at = _EPOCH + timedelta(microseconds=wall_us)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


Lookup = Callable[[str], str]
"""Function that returns the text of a variable; empty: it is not set."""


def lookup(variables: Mapping[str, str], instance_name: str, wall_us: int) -> Lookup:
    """Returns a function that finds variables: those of the run, then the ones that every run
    has."""

    def find(name: str) -> str:
        found = variables.get(name)
        if found is None:
            found = built_in(name, instance_name, wall_us)
        return found or ""

    return find


def expand(template: str, find: Lookup) -> str:
    """Returns an option with the texts of its variables.

    Raises:
        ConfigurationError: the text would have more than `EXPANDED_CHARACTERS_MAX` characters.
    """
    if "{{" not in template:
        return template
    return _joined([_reference(each, find) for each in _parts(template)])


def expand_expression(template: str, find: Lookup) -> str:
    """Returns an expression with the values of its variables.

    Within a quoted text, a variable is a part of that text. Elsewhere it is a number, if it looks
    like one, or a text of its own; directly behind a `/`, it is the name of a field.

    Raises:
        ConfigurationError: the text would have more than `EXPANDED_CHARACTERS_MAX` characters.
    """
    if "{{" not in template:
        return template
    made: list[str] = []
    for piece in _PIECES.finditer(template):
        kind, text = piece.lastgroup, piece[0]
        if kind == "reference":
            made.append(_value(find(text[2:-2]), is_step=template[: piece.start()].endswith("/")))
        elif kind == "string":
            made += [_reference(each, find, _escaped) for each in _parts(text)]
        elif kind == "raw" and "{{" in text:
            # A raw text cannot hold its own quote, which the variable may have.
            inside = _joined([_reference(each, find) for each in _parts(text[2:-1])])
            made.append(f"'{_escaped(inside)}'")
        else:
            made.append(text)
    return _joined(made)


def expand_filter(template: str, find: Lookup) -> str:
    """Returns a filter as `expand_expression` does. A template that is one variable and nothing
    else is the filter that the variable holds, such as that of a subscription.

    Raises:
        ConfigurationError: the text would have more than `EXPANDED_CHARACTERS_MAX` characters.
    """
    if _REFERENCE.fullmatch(template.strip()):
        return expand(template, find)
    return expand_expression(template, find)


def expand_pattern(template: str, find: Lookup) -> str:
    """Returns a pattern of files in which what a variable holds is a part of one file's name.

    Raises:
        ConfigurationError: a variable holds a `/` or is `..`, and would lead to another directory.
    """

    def literal(name: str) -> str:
        text = find(name)
        if "/" in text or text == "..":
            raise ConfigurationError(
                f"{name} is {text[:100]!r}, and in a pattern of files a variable is a part of one "
                "name: write the directory into the pattern itself"
            )
        return re.sub(r"([*?[])", r"[\1]", text)

    return expand(template, literal)


def expand_command(template: str, find: Lookup) -> tuple[str, dict[str, str]]:
    """Returns a command in which variables are parameters of the shell, and those parameters.

    A shell never reads the text of a parameter as a command, whatever quotes are around it. So what
    a publisher writes into a message is one word of the command, and nothing else.
    """
    if "{{" not in template:
        return template, {}
    parameters: dict[str, str] = {}
    made: list[str] = []
    for piece in _COMMAND_PIECES.finditer(template):
        written = _PARAMETER.get(str(piece.lastgroup))
        if written is None:
            made.append(piece[0])
            continue
        for text, is_name in _parts(piece[0]):
            if is_name:
                parameter = "ACTION_" + re.sub(r"\W", "_", text, flags=re.ASCII)
                while parameters.setdefault(parameter, find(text)) != find(text):
                    parameter += "_"
                text = written.format(parameter)
            made.append(text)
    return "".join(made), parameters


def with_fields(template: str) -> tuple[str, tuple[tuple[str, bool], ...]] | None:
    """Returns an expression in which variables are fields, so that it is compiled once; and
    (name, whether it may be a number) of each variable in the order of the fields `/V0`, `/V1`, ….
    None: a variable is a part of a text, or the name of a field.
    """
    made: list[str] = []
    fields: list[tuple[str, bool]] = []
    for piece in _PIECES.finditer(template):
        kind, text = piece.lastgroup, piece[0]
        inside = text if kind == "reference" else text[1 + (kind == "raw") : -1]
        if kind == "other" or "{{" not in text:
            made.append(text)
            continue
        if not _REFERENCE.fullmatch(inside) or template[: piece.start()].endswith("/"):
            return None
        made.append(f"/V{len(fields)}")
        fields.append((inside[2:-2], kind == "reference"))
    return "".join(made), tuple(fields)


def field_value(text: str, *, may_be_number: bool) -> str | int | float:
    """Returns the value of a variable in the fields of `with_fields`."""
    return parsed(text) if may_be_number and _NUMBER.fullmatch(text) else text


def names_in(template: str) -> frozenset[str]:
    """Returns the names of the variables that an option refers to."""
    return frozenset(_REFERENCE.findall(template))


def _parts(template: str) -> list[tuple[str, bool]]:
    """Returns the pieces of a text: (text, False), or (name, True) for a variable."""
    # The pattern has one group: every second piece is a name.
    return [(piece, bool(number % 2)) for number, piece in enumerate(_REFERENCE.split(template))]


def _reference(part: tuple[str, bool], find: Lookup, written: Callable[[str], str] = str) -> str:
    text, is_name = part
    return written(find(text)) if is_name else text


def _joined(parts: list[str]) -> str:
    characters = sum(map(len, parts))
    if characters > EXPANDED_CHARACTERS_MAX:
        raise ConfigurationError(
            f"an option expands to {characters:,} characters, and may have "
            f"{EXPANDED_CHARACTERS_MAX:,}: refer to fewer or shorter variables"
        )
    return "".join(parts)


def _value(text: str, *, is_step: bool) -> str:
    if is_step and _STEP.fullmatch(text):
        return text
    number = _NUMBER.fullmatch(text)
    if number is not None:
        return f"({text})" if number[1] else text
    return f"'{_escaped(text)}'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace('"', '\\"')
