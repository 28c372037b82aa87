"""`raylay logs`: the log that an instance and the processes beside it keep on disk."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.events import since_of
from raylay.services.commands.shared.kept_logs import KeptDirectoryOption, kept_place
from raylay.services.commands.shared.options import FabricOption, HttpOption, stop_signals
from raylay.services.commands.shared.printing import echo, echo_json
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.telemetry.kept_log import KeptLog, LogLine, is_at_least, line_text
from raylay.services.telemetry.log_options import LEVELS

if TYPE_CHECKING:
    from raylay.services.fabric.remote_log import RemoteLog

FOLLOW_S = 0.25
"""Time, in seconds, between two looks for new lines."""
REMOTE_FOLLOW_S = 1.0
"""The same time where an administrator's interface is asked."""
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
    http: HttpOption = None,
) -> None:
    """Show the log of an instance and of the processes beside it, also after it was killed and
    while the fabric is down. `raylay error LINE` explains a line.

    Every instance keeps its latest 8 MiB of events of level info and above in the fabric's
    directory on its host, whatever `logs` of the fabric says. Of an instance of another host they
    are read over its administrator's interface.
    """
    if level and level not in CHOSEN_LEVELS:
        raise ConfigurationError(f"--level {level[:40]}: give one of {', '.join(CHOSEN_LEVELS)}")
    since_us = since_of(since, time.time_ns() // 1_000) if since else 0
    log, pause_s = _log_of(instance, fabric, directory, http, since_us, level, count)

    def chosen(lines: Iterable[LogLine]) -> Iterator[LogLine]:
        for line in lines:
            if line["time_us"] >= since_us and (not level or is_at_least(line, level)):
                yield line

    first: Iterable[LogLine] = chosen(log.look())
    _print(first if count is None else deque(first, maxlen=count), as_json)
    if follow:
        _follow(log, chosen, as_json, pause_s)
    if log.damaged:
        echo(
            f"raylay: {log.damaged:,} line{'' if log.damaged == 1 else 's'} cannot be read: cut "
            "off where a process was killed, or damaged",
            err=True,
        )


def _log_of(
    instance: str,
    fabric: str,
    directory: Path | None,
    http: list[str] | None,
    since_us: int,
    level: str,
    count: int | None,
) -> tuple[KeptLog | RemoteLog, float]:
    """Returns the log of an instance by its files here, or by its interface, and the time in
    seconds between two looks of --follow."""
    # Late: most logs are of this host.
    from raylay.services.fabric.by_interface import (
        InterfaceFabric,
        known_interfaces,
        named_interfaces,
    )
    from raylay.services.fabric.remote_log import RemoteLog

    def remote(found: InterfaceFabric) -> tuple[RemoteLog, float]:
        ask = partial(found.log_page, instance)
        return RemoteLog(ask, since_us, level, count), REMOTE_FOLLOW_S

    if http:
        return remote(named_interfaces(http))
    place = kept_place(fabric, directory)
    found = place.log_directory(instance)
    # An instance that was moved leaves its log where it was.
    if place.entry is not None and (found is None or not place.is_here(instance)):
        settings, interfaces = known_interfaces(place.entry)
        if instance in interfaces and interfaces[instance].listens():
            return remote(InterfaceFabric(place.name, interfaces, settings))
    if found is None:
        raise FabricError(place.elsewhere(instance))
    return KeptLog(found, since_us=since_us), FOLLOW_S


def _follow(log: KeptLog | RemoteLog, chosen: Any, as_json: bool, pause_s: float) -> None:
    from raylay.services.fabric.interface_client import InterfaceSilent

    stopping = threading.Event()
    silence = ""
    with stop_signals(stopping):
        while not stopping.wait(pause_s):
            try:
                _print(chosen(log.look()), as_json)
                silence = ""
            except InterfaceSilent as error:
                # The instance may be starting again.
                if not silence:
                    silence = str(error)
                    echo(f"raylay: {silence}: asking again", err=True)


def _print(lines: Iterable[LogLine], as_json: bool) -> None:
    for line in lines:
        if as_json:
            echo_json(line)
        else:
            echo(line_text(line))
    sys.stdout.flush()
