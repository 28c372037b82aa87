"""Progress and summary of `raylay up`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from raylay.services.commands.shared.printing import print_words
from raylay.services.messages.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from raylay.services.fabric import FabricSettings

READY_LINE = "raylay is up"
NEXT_LINE = "next: "
"""Prefix of the line that is printed last."""
_EXPRESSION = re.compile(r"[][().*+?^$|{}\\]")


@contextmanager
def shown_progress(
    console: Console, now_s: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """Yields a callable that shows progress: on a terminal one line that is overwritten, elsewhere
    plain lines with the seconds since the beginning. A repeated text is shown once."""
    began_s = now_s()
    over = False
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if over or text == last:
            return
        last = text
        if status is not None:
            from rich.text import Text

            # As `Text`: of a mere `str` rich takes `[…]` for markup.
            status.update(Text(plain(text)))
            return
        print_words(console, f"{now_s() - began_s:5.1f} s  {text}")
        console.file.flush()

    status = console.status("starting") if console.is_terminal else None
    try:
        with status or nullcontext():
            yield tell
    finally:
        # The fabric goes on, and what it does then is not asked for.
        over = True


def up_lines(
    settings: FabricSettings,
    directory: str,
    servers: Mapping[str, list[str]],
    note: str = "",
    console: str = "",
) -> list[str]:
    """Returns the lines on a fabric that is up: its directory, its servers for clients, its
    console, and the next command.

    Args:
        servers: host:port of the instances, by group.
        note: faults that were found.
        console: URL of its console; empty: it has none.
    """
    return [
        f"{READY_LINE}: {settings.name} in {directory}{note}",
        *(f"clients of {group}: {', '.join(found)}" for group, found in servers.items()),
        *((f"console: {console}",) if console else ()),
        f"{NEXT_LINE}{next_command(settings)}",
    ]


def next_command(settings: FabricSettings) -> str:
    """Returns a command that publishes a first message: to the first topic that has a plain name,
    else to a topic that matches the first simple expression."""
    options = f" --fabric {settings.name}"
    groups = list(dict.fromkeys(instance.group for instance in settings.instances))
    if len(groups) > 1:
        options += f" --group {groups[0]}"
    for topic in settings.topics:
        name = topic.name.removesuffix(".*") + ("1" if topic.name.endswith(".*") else "")
        if topic.journaled and not _EXPRESSION.search(name):
            kind = "" if topic.message_type in ("json", "*") else f" --type {topic.message_type}"
            return f"raylay publish {name} '{{\"hello\": 1}}'{kind}{options}"
    return f"raylay status --fabric {settings.name}"
