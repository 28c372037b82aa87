"""The window of a paginated subscription as a table in the terminal, redrawn as rows come into it,
change in it and leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table

from raylay.services.commands.shared.printing import table_of
from raylay.services.sow.query.ordering import placing, read_order

if TYPE_CHECKING:
    from raylay.services.client import Message, MessageBatch, Subscription

COLUMNS_MAX = 20
"""Fields of the rows that are shown; further ones are left out."""
REDRAWS_A_SECOND = 4


class PageTable:
    """The rows of the window, by what the server says.

    Args:
        order_by: order of the rows; empty: that of their SOW keys.
    """

    def __init__(self, order_by: str) -> None:
        self._bodies: dict[bytes, bytes] = {}
        self._place: Callable[[Any, bytes], Any] = placing(read_order(order_by) if order_by else ())

    def take(self, message: Message) -> None:
        """Takes a row of the query, a change, or a notice that a row has left the window."""
        if message.kind == "oof":
            self._bodies.pop(message.key, None)
        else:
            self._bodies[message.key] = message.body

    def ordered(self) -> list[dict[str, Any]]:
        """Returns the fields of the rows from above to below. A body that is no JSON object is one
        field."""
        rows = [(key, _fields_of(body)) for key, body in self._bodies.items()]
        rows.sort(key=lambda row: self._place(row[1], row[0]))
        return [fields for _, fields in rows]

    def table(self, title: str) -> Table:
        """Returns the window as it stands."""
        rows = self.ordered()
        names = list(dict.fromkeys(name for row in rows for name in row))[:COLUMNS_MAX]
        numbers = {
            name
            for name in names
            if all(isinstance(row.get(name), int | float | None) for row in rows)
        }
        cells = ([_shown(row.get(name)) for name in names] for row in rows)
        return table_of(title, names, cells, numbers)


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"body": body.decode("utf-8", "backslashreplace")}


def _shown(value: Any) -> str:
    """Returns a value as a cell: doubles with two decimals."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return value if isinstance(value, str) else orjson.dumps(value).decode()


async def show_page(subscription: Subscription, title: str, order_by: str) -> None:
    """Shows the window until the subscription ends or the person does. A thread draws it, so that a
    terminal that is halted does not halt the client."""
    rows = PageTable(order_by)
    table = rows.table(title)
    console = Console()
    with Live(get_renderable=lambda: table, console=console, refresh_per_second=REDRAWS_A_SECOND):
        batch: MessageBatch
        async for batch in subscription.batches():
            for message in batch:
                rows.take(message)
            table = rows.table(title)
