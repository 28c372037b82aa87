"""The window of a paginated subscription as a table (services/commands/shared/live_page.py)."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from raylay.services.commands.shared import live_page
from raylay.services.commands.shared.live_page import PageTable, show_page

pytestmark = pytest.mark.covers("Views", "`raylay subscribe --page` on a terminal")


@dataclass
class Message:
    kind: str
    key: bytes
    body: bytes


ROWS = [
    Message("sow", b"a", b'{"carrier": "AA", "average": 33.0}'),
    Message("sow", b"b", b'{"carrier": "UA", "average": 25.0, "note": "x"}'),
    Message("publish", b"b", b'{"carrier": "UA", "average": 1240.5, "note": "\\u001b[2J"}'),
    Message("publish", b"c", b"no object \xff"),
    Message("oof", b"a", b""),
    Message("oof", b"z", b""),
]


def lines(rows: PageTable) -> list[str]:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(rows.table("[red]delays"))
    return console.export_text().splitlines()


def test_rows_come_change_and_leave_in_the_order_of_the_page() -> None:
    rows = PageTable("/average DESC")
    for message in ROWS[:2]:
        rows.take(message)
    assert [row["carrier"] for row in rows.ordered()] == ["AA", "UA"]
    rows.take(ROWS[2])
    assert [row["carrier"] for row in rows.ordered()] == ["UA", "AA"]
    for message in ROWS[3:]:
        rows.take(message)
    assert [row.get("body", "") for row in rows.ordered()] == ["", "no object \\xff"]


def test_without_an_order_the_keys_are_the_order() -> None:
    rows = PageTable("")
    for message in reversed(ROWS[:2]):
        rows.take(message)
    assert [row["carrier"] for row in rows.ordered()] == ["AA", "UA"]


def test_the_table_obeys_no_body() -> None:
    rows = PageTable("/average DESC")
    rows.take(ROWS[2])
    text = "\n".join(lines(rows))
    assert "[red]delays" in text and "1,240.50" in text and "\\x1b[2J" in text
    assert "\x1b" not in text


def test_the_page_is_shown_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(live_page, "Console", lambda: Console(file=out, width=100))

    class Subscription:
        async def batches(self) -> AsyncIterator[Any]:
            yield ROWS[:2]
            yield ROWS[2:]

    subscription: Any = Subscription()
    asyncio.run(show_page(subscription, "delays", "/average DESC"))
    assert "UA" in out.getvalue() and "AA" not in out.getvalue()


def test_a_terminal_that_is_halted_does_not_halt_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> bool:
        loop, drawing = asyncio.get_running_loop(), asyncio.Event()
        goes_on = threading.Event()
        was_waited_out = False

        class Halted(io.StringIO):
            def write(self, text: str) -> int:
                nonlocal was_waited_out
                if threading.current_thread() is not threading.main_thread():
                    loop.call_soon_threadsafe(drawing.set)
                    was_waited_out |= not goes_on.wait(10)
                return super().write(text)

        class Subscription:
            async def batches(self) -> AsyncIterator[Any]:
                yield ROWS[:2]
                await drawing.wait()
                yield ROWS[2:]
                goes_on.set()

        console = Console(file=Halted(), width=100, force_terminal=True)
        monkeypatch.setattr(live_page, "Console", lambda: console)
        subscription: Any = Subscription()
        await show_page(subscription, "delays", "")
        return was_waited_out

    assert not asyncio.run(main())
