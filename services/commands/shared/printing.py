"""Output of the commands. No other module writes to a terminal.

Names, topics, errors and events come from others, so their text is escaped here: it cannot be a
command to the terminal, a line of its own, or markup in a table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer

from raylay.services.commands.shared.options import FILE_COLUMNS
from raylay.services.messages.plain_text import json_line, plain, plain_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from raylay.services.client import Message


def echo(line: str = "", err: bool = False) -> None:
    """Prints one line; a newline in it is escaped.

    Args:
        err: whether to print to the standard error.
    """
    typer.echo(plain(line), err=err)


def echo_text(text: str, err: bool = False) -> None:
    """Prints a text of several lines."""
    typer.echo(plain_lines(text), err=err)


def echo_json(
    value: Any, default: Callable[[Any], Any] | None = None, ascii_only: bool = True
) -> None:
    """Prints a value as JSON in one line; the arguments are those of `json_line`."""
    typer.echo(json_line(value, default=default, ascii_only=ascii_only))


def echo_result(as_json: bool, line: str, **values: Any) -> None:
    """Prints what a command did: its values as one JSON object, or a line for people."""
    if as_json:
        echo_json(values)
    else:
        echo(line)


def table_of(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Container[str] = (),
    *,
    narrow: bool = False,
) -> Table:
    """Returns a table whose texts no terminal takes for commands.

    Args:
        right: the columns of numbers, aligned to the right.
        narrow: whether two spaces between the columns do, so that more of them fit a terminal.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(plain(title)) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0) if narrow else (0, 1),
        show_edge=not narrow,
        pad_edge=not narrow,
    )
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(Text(plain(column)), justify=justify, overflow="fold")
    for row in rows:
        # As `Text`: of a mere `str` rich takes `[bold]` and `[link=…]` for markup.
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Container[str] = (),
    *,
    narrow: bool = False,
    optional: Sequence[str] = (),
) -> None:
    """Prints a table, as wide as the terminal; the arguments are those of `table_of`, and
    `optional` is that of `FittingTable`."""
    if optional:
        print_rich(FittingTable(title, columns, rows, right, optional))
    else:
        print_rich(table_of(title, columns, rows, right, narrow=narrow))


class FittingTable:
    """A table that leaves out columns where the terminal is too narrow, and names them below.

    Args:
        right: the columns of numbers, aligned to the right.
        optional: columns that may be left out, the first one first.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        right: Container[str],
        optional: Sequence[str],
    ) -> None:
        self.title = title
        self.columns = columns
        self.rows = [*rows]
        self.right = right
        self.optional = optional

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table as it fits, and the line below it."""
        from rich.text import Text

        width = options.max_width
        left_out = columns_left_out(self.columns, self.rows, self.optional, width)
        shown = [at for at, column in enumerate(self.columns) if column not in left_out]
        yield table_of(
            self.title,
            [self.columns[at] for at in shown],
            [[row[at] for at in shown] for row in self.rows],
            self.right,
            narrow=not fits(self.columns, self.rows, width),
        )
        if left_out:
            yield Text(
                f"{width} columns leave out {', '.join(left_out)}: a wider terminal or --json "
                "shows more"
            )


def fits(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Returns whether a table with all its columns, three characters between two, fits."""
    widths = _widths(columns, rows)
    return sum(widths.values()) + 3 * len(widths) + 1 <= width


def columns_left_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int
) -> list[str]:
    """Returns the columns without which a narrow table fits into so many characters, as few as
    possible. Where it does not fit without any of the optional ones, texts are folded."""
    widths = _widths(columns, rows)
    left_out: list[str] = []
    for column in optional:
        if sum(widths.values()) + 2 * len(widths) <= width:
            break
        del widths[column]
        left_out.append(column)
    return left_out


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    from rich.cells import cell_len

    return {
        column: max(cell_len(plain(text)) for text in (column, *(row[at] for row in rows)))
        for at, column in enumerate(columns)
    }


def print_rich(table: Table | FittingTable) -> None:
    """Prints a table, as wide as the terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_COLUMNS)
    console.print(table)


def print_words(console: Console, text: str) -> None:
    """Prints a line of plain text on a console of rich's."""
    console.print(plain(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def message_line(
    message: Message, as_json: bool, focused: bool = False, *, is_terminal: bool
) -> bytes:
    """Returns the line of a message for the standard output: its bytes as they are, or escaped for
    a terminal.

    Args:
        as_json: whether it is an object, whose fields are the message's attributes in Python.
        focused: whether the topic is a SOW topic; the object then has the kind of the row.
    """
    if as_json:
        return _encoded(f"{json_line(_object(message, focused))}\n")
    if message.kind != "oof":
        return _body_line(message.body, is_terminal)
    # Its body is no record that is there: it must not look like one.
    key = plain(message.key.decode("utf-8", "replace"))
    front = f"out of focus, {plain(message.reason)}: {key} "
    return _body_line(message.body, is_terminal, front)


def write_body(body: bytes) -> None:
    """Writes a body as one line. A pipe or a file gets its exact bytes; on a terminal it is
    escaped, because a terminal would execute control sequences."""
    sys.stdout.buffer.write(_body_line(body, sys.stdout.isatty()))


def _body_line(body: bytes, is_terminal: bool, front: str = "") -> bytes:
    if is_terminal:
        return _encoded(f"{front}{plain(body.decode('utf-8', 'backslashreplace'))}\n")
    return front.encode() + body + b"\n"


def _encoded(text: str) -> bytes:
    """Returns a text as the standard output writes it."""
    return text.encode(sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict")


def _object(message: Message, focused: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "topic": message.topic,
        "message_type": message.message_type,
        "bookmark": message.bookmark,
        "publisher": message.publisher,
        "sequence": message.sequence,
    }
    if focused:
        found["kind"] = message.kind
        if message.reason:
            found["reason"] = message.reason
    found["key"] = message.key.decode("utf-8", "replace")
    found["correlation"] = message.correlation.decode("utf-8", "replace")
    found["origin_time_us"] = message.origin_time_us
    if message.kind == "publish":
        found["timestamp_us"] = message.timestamp_us
    if message.is_sampled:
        found["traceparent"] = message.traceparent
    found["body"] = message.body.decode("utf-8", "replace")
    return found
