"""`raylay logs`: the log that an instance and the processes beside it keep on disk."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from raylay.services.commands.events import since_of
from raylay.services.commands.shared.kept_logs import KeptDirectoryOption, kept_place
from raylay.services.commands.shared.options import FabricOption, stop_signals
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.telemetry.kept_log import KeptLog, LogLine, is_at_least, line_text
from raylay.services.telemetry.log_options import LEVELS

FOLLOW_S = 0.25
"""Time, in seconds, between two looks for new lines."""
CHOSEN_LEVELS = [name for name in LEVELS if name != "none"]


def logs(
    instance: Annotated[str, typer.Argument(help="The instance. It may be down.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new lines until Ctrl-C.")
    ] = False,
    since: Annotated[
        str, typer.Option(help="Only lines of the last 10m, say, or from a time (UTC) on.")
    ] = "",
    level: Annotated[
        str, typer.Option(help="Only lines of this level and above: info, warning, error, …")
    ] = "",
    count: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last lines.")
    ] = None,
    fabric: FabricOption = "",
    directory: KeptDirectoryOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> None:
    """Show the log of an instance and of the processes beside it, also after it was killed and
    while the fabric is down. `raylay error LINE` explains a line.

    Every instance keeps its latest 8 MiB of events of level info and above in the fabric's
    directory on its host, whatever `logs` of the fabric says.
    """
    if level and level not in CHOSEN_LEVELS:
        raise ConfigurationError(f"--level {level[:40]}: give one of {', '.join(CHOSEN_LEVELS)}")
    since_us = since_of(since, time.time_ns() // 1_000) if since else 0
    place = kept_place(fabric, directory)
    found = place.log_directory(instance)
    if found is None:
        raise FabricError(place.elsewhere(instance))
    log = KeptLog(found)

    def chosen(lines: Iterable[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            if line["time_us"] >= since_us and (not level or is_at_least(line, level)):
                yield line

    first: Iterable[LogLine] = chosen(log.look())
    _print(first if count is None else deque(first, maxlen=count), as_json)
    if follow:
        _follow(log, chosen, as_json)
    if log.damaged:
        echo(
            f"raylay: {log.damaged:,} line{'' if log.damaged == 1 else 's'} cannot be read: cut "
            "off where a process was killed, or damaged",
            err=True,
        )


def _follow(log: KeptLog, chosen: Any, as_json: bool) -> None:
    stopping = threading.Event()
    with stop_signals(stopping):
        while not stopping.wait(FOLLOW_S):
            _print(chosen(log.look()), as_json)


def _print(lines: Iterable[LogLine], as_json: bool) -> None:
    for line in lines:
        if as_json:
            echo_json(line)
        else:
            echo(line_text(line))
    sys.stdout.flush()
