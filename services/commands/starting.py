"""Progress and summary of `raylay up`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

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
    else to a topic that matches the first simple expression. The message has the key fields of a
    SOW topic; where clients need credentials, the command says where they are given."""
    options = f" --fabric {settings.name}"
    groups = list(dict.fromkeys(instance.group for instance in settings.instances))
    if len(groups) > 1:
        options += f" --group {groups[0]}"
    instance = settings.instances[0]
    sow = settings.sow_of(instance)
    named = {(each.name, each.message_type): each for each in sow}
    asks = settings.authentication if instance.authentication is None else instance.authentication
    if asks is not None:
        options += " --user USER --password-file FILE"
    for topic in settings.topics:
        name = topic.name.removesuffix(".*") + ("1" if topic.name.endswith(".*") else "")
        if not topic.journaled or _EXPRESSION.search(name):
            continue
        kind = "json" if topic.message_type == "*" else topic.message_type
        kept = named.get((name, kind)) or next(
            (each for each in sow if each.message_type == kind and _takes(each.pattern, name)), None
        )
        body: dict[str, Any] = {"hello": 1}
        key = ""
        if kept is not None:
            if (kept.name == name and kept.pattern) or (kept.keys and kind != "json"):
                continue  # to the one no client publishes, of the other no body is known
            body |= _fields(kept.keys)
            key = "" if kept.keys or kept.key_generator else " --key 1"
        typed = "" if kind == "json" else f" --type {kind}"
        return f"raylay publish {name} '{json.dumps(body)}'{typed}{key}{options}"
    return f"raylay status --fabric {settings.name}"


def _takes(pattern: str, topic: str) -> bool:
    # Late: its engine takes 10 ms to import.
    from raylay.services.messages.topic_pattern import TopicPattern

    return bool(pattern) and TopicPattern(pattern).search(topic)


def _fields(identifiers: Iterable[str]) -> dict[str, Any]:
    """Returns a JSON object that has a value in each of these fields."""
    found: dict[str, Any] = {}
    for identifier in identifiers:
        *parents, last = identifier.strip("/").split("/")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = 1
    return found
