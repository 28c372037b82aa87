"""`raylay filter`: shows which messages of a file pass a filter, and why. It needs no fabric."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from raylay.services.commands.shared.printing import echo, echo_text, write_body
from raylay.services.errors import ExpressionError, MessageTypeError
from raylay.services.messages.plain_text import plain

if TYPE_CHECKING:
    from raylay.services.expressions.expression import Expression

NO_EXPRESSION = 2
SHOWN_CHARACTERS_MAX = 100


def filter_command(
    expression: Annotated[str, typer.Argument(help="The filter, such as \"/status = 'open'\".")],
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of messages, one on each line; default: the standard input."),
    ] = None,
    message_type: Annotated[str, typer.Option("--type", help="The message type.")] = "json",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print how the filter was parsed, and the value of each part for each message.",
        ),
    ] = False,
) -> None:
    """Print the messages that pass a filter. Exit code 2, with the column, if the filter is wrong;
    1 if a message cannot be read (the messages after it are still processed)."""
    from raylay.services.expressions.expression import ANYWHERE
    from raylay.services.expressions.expression import expression as read
    from raylay.services.plugins.functions import functions

    try:
        found = read(expression, ANYWHERE, functions())
    except ExpressionError as error:
        echo(f"raylay: {error}", err=True)
        echo_text(_pointed(error), err=True)
        raise typer.Exit(NO_EXPRESSION) from None
    with _opened(file) as lines:
        unreadable = _filter(found, lines, message_type, explain, str(file or "input"))
    if unreadable:
        raise typer.Exit(1)


def _filter(found: Expression, lines: BinaryIO, message_type: str, explain: bool, name: str) -> int:
    """Prints the messages that pass, or the value of each part of the filter.

    Returns: The number of messages that could not be read.
    """
    from raylay.services.expressions.functions.registry import EvalContext
    from raylay.services.messages.types.registry import message_type as type_of

    parse, unreadable = type_of(message_type).parse, 0
    output = sys.stdout.buffer
    sys.stdout.flush()
    for number, line in enumerate(lines, 1):
        body = line.rstrip(b"\r\n")
        if not body:
            continue
        try:
            message = parse(body)
        except MessageTypeError as error:
            output.flush()
            echo(f"{name}:{number}: {error}", err=True)
            unreadable += 1
            continue
        around = EvalContext(size_bytes=len(body), now_s=time.time(), random_bytes=_chance)
        if explain:
            for each in _explained(found, body, message, around):
                write_body(each.encode("utf-8", "replace"))
        elif found.matches(message, around):
            write_body(body)
    output.flush()
    return unreadable


def _explained(found: Expression, body: bytes, message: dict[str, Any], around: Any) -> list[str]:
    from raylay.services.expressions.explain import explained

    text = body.decode("utf-8", "replace")
    shown = text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"
    passes = "passes" if found.matches(message, around) else "does not pass"
    parts = [
        plain(f"{'  ' * (depth + 1)}{read}  is  {value}")
        for depth, read, value in explained(found.tree, message, around)
    ]
    return [f"{plain(shown)}  {passes}", *parts]


def _chance(count: int) -> bytes:
    import secrets

    return secrets.token_bytes(count)


def _pointed(error: ExpressionError) -> str:
    """Returns the filter with an arrow below it that points at the column; of a long filter only
    the text around that."""
    begin = max(0, error.column - 1 - SHOWN_CHARACTERS_MAX // 2)
    part = error.expression[begin : begin + SHOWN_CHARACTERS_MAX]
    shown = "".join(each if each.isprintable() else " " for each in part)
    return f"  {shown}\n  {' ' * (error.column - 1 - begin)}^"


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    with file.open("rb") as lines:
        yield lines
