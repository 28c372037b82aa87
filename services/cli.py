"""The `raylay` command: start a fabric, look at it, publish, subscribe, stop it.

`raylay up` starts a Ray of its own on this machine and holds it (in the background with
`--detach`); `raylay down` ends that process. `status`, `events`, `publish` and `subscribe` find the
fabric through its entry in the user's runtime directory (services/fabric/registry.py); the last two
talk to instances only and never to Ray.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from raylay.services.commands.config import (
    DefineOption,
    FilesArgument,
    IgnoreOption,
    NameOption,
    config_app,
)
from raylay.services.commands.drill import drill_command
from raylay.services.commands.host import check_app
from raylay.services.configuration.amps.tree import parse_defines
from raylay.services.configuration.files import load_fabric
from raylay.services.errors import ConfigurationError, FabricError, RaylayError
from raylay.services.fabric import registry
from raylay.services.fabric.check import fabric_app
from raylay.services.fabric.left_over import left_over_lines
from raylay.services.fabric.relocation import Relocation, parse_target, relocation_lines
from raylay.services.pipeline.commands import pipeline_app
from raylay.services.telemetry.trace_report import trace_command

STOP_TIMEOUT_S = 60.0
RESTART_TIMEOUT_S = 300.0
DETACH_TIMEOUT_S = 300.0
"""Longer than a start takes to give up, which says why."""
CONNECT_TIMEOUT_S = 30.0
READY_LINE = "raylay is up"
WATCH_S = 5.0
"""Between two looks at who is away."""
_PLACE = re.compile(r"[^\s:]+:\d+: ")
FILE_COLUMNS = 160
"""A table that is written to a file or a pipe has room for what it says."""

app = typer.Typer(
    help="Raylay, a leaderless replicated message broker on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("trace")(trace_command)
app.command("drill")(drill_command)
app.add_typer(fabric_app, name="fabric")
app.add_typer(check_app, name="check")
app.add_typer(config_app, name="config")
app.add_typer(pipeline_app, name="pipeline")
if importlib.util.find_spec("raylay.services.commands.journal") is not None:
    app.add_typer(
        importlib.import_module("raylay.services.commands.journal").journal_app, name="journal"
    )

FabricOption = Annotated[
    str, typer.Option("--fabric", "-f", help="Which fabric; needed where several run.")
]
GroupOption = Annotated[str, typer.Option("--group", "-g", help="Region whose instances to use.")]
ServerOption = Annotated[
    list[str] | None, typer.Option("--server", help="host:port instead of a fabric; repeatable.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


def main() -> None:
    """The entry point: errors of ours are one line and exit code 1."""
    try:
        app()
    except RaylayError as error:
        # What stands in a file begins with its place, where editors look for it.
        prefix = "" if _PLACE.match(str(error)) else "raylay: "
        print(f"{prefix}{error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raylay {importlib.metadata.version('raylay')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    pass


# -- up and down ---------------------------------------------------------------------------------
@app.command()
def up(
    files: FilesArgument,
    directory: Annotated[
        Path | None, typer.Option(help="For data and logs; default: data/NAME here.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is up.")] = False,
    address: Annotated[
        str, typer.Option(help="A running Ray (or `auto`); its actors outlive this command.")
    ] = os.environ.get("RAY_ADDRESS", ""),
    node_label: Annotated[
        str,
        typer.Option(help="Put instances on nodes whose label of this name is their group."),
    ] = "",
    drills: Annotated[
        bool, typer.Option("--drills", help="Let drills break it: `drills: allowed` of a file.")
    ] = False,
    define: DefineOption = None,
    name: NameOption = "",
    ignore_unsupported: IgnoreOption = False,
) -> None:
    """Start the fabric of a file, or of its instances' files; again on the data that is there."""
    settings = load_fabric(
        files, defines=parse_defines(define), name=name, ignore_unsupported=ignore_unsupported
    )
    if drills:
        settings = settings.model_copy(update={"drills": "allowed"})
    place = directory or Path("data") / settings.name
    if detach and not address:
        options = [f"--define={each}" for each in define or ()]
        options += ["--name", settings.name, *["--ignore-unsupported"] * ignore_unsupported]
        options += ["--node-label", node_label] * bool(node_label)
        options += ["--drills"] * drills
        _up_in_background(settings.name, [*map(str, files), *options], place)
        return
    from raylay.services.fabric import Fabric

    stopping = threading.Event()
    fabric = Fabric.of(settings)
    with _stop_signals(stopping):
        fabric.start(place, address=address or None, node_label=node_label)
        unconnected = ""
        try:
            fabric.wait_connected(CONNECT_TIMEOUT_S)
        except FabricError as error:  # a link to a fabric that is down, for one
            unconnected = f"; not connected {error}"
        _print_status(fabric.status(), as_json=False)
        typer.echo(f"{READY_LINE}: {settings.name} in {place}{unconnected}")
        sys.stdout.flush()
        if address:
            fabric.leave()
            return
        stopping.wait()
        typer.echo(f"stopping {settings.name}")
        fabric.stop()


@app.command()
def apply(
    files: FilesArgument,
    define: DefineOption = None,
    name: NameOption = "",
    ignore_unsupported: IgnoreOption = False,
) -> None:
    """Make a running fabric what its changed file says, while clients go on: start what is new,
    restart what differs, one after the other."""
    from raylay.services.fabric import Fabric

    settings = load_fabric(
        files, defines=parse_defines(define), name=name, ignore_unsupported=ignore_unsupported
    )
    with Fabric.attach(_running(settings.name).name) as attached:
        done = attached.apply(settings)
    for verb, names in (("started", done.started), ("restarted", done.restarted)):
        typer.echo(f"{verb}: {', '.join(names) or 'none'}")


@contextmanager
def _stop_signals(stopping: threading.Event) -> Iterator[None]:
    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _up_in_background(name: str, arguments: list[str], place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    log = place / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "raylay.services.cli", "up", *arguments, "--directory", place],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + DETACH_TIMEOUT_S
    # Not when it is registered: before its links have connected, a publish waits for a downgrade.
    while not (line := _ready_line(log)):
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline_s:
                continue
            process.terminate()
            raise FabricError(
                f"{name} was not up after {DETACH_TIMEOUT_S:.0f} s: see {log}"
            ) from None
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise FabricError((lines[-1] if lines else f"see {log}").removeprefix("raylay: "))
    typer.echo(line)


def _ready_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    found = [line for line in lines if line.startswith(READY_LINE) and line.endswith("\n")]
    return found[-1].rstrip("\n") if found else ""


@app.command()
def down(fabric: FabricOption = "") -> None:
    """Stop a fabric: its data stays."""
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.ray_access import await_process_end

    entry = _running(fabric)
    if entry.host_pid:
        os.kill(entry.host_pid, signal.SIGTERM)
        await_process_end(entry.host_pid, STOP_TIMEOUT_S)
        if registry.find(entry.name) is not None:
            raise FabricError(
                f"{entry.name}: process {entry.host_pid} did not end within {STOP_TIMEOUT_S:.0f} s"
            )
    else:
        attached = Fabric.attach(entry.name)
        entry.directory = str(attached.directory)
        attached.stop()
    typer.echo(f"{entry.name} is down; its data is in {entry.directory}")


def _running(name: str) -> registry.Entry:
    # Late: the command line is there at once.
    from raylay.services.fabric import find_running

    return find_running(name)


# -- looking -------------------------------------------------------------------------------------
@app.command()
def status(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Show every instance and its destinations. Exit code 1 where one is not ready."""
    from raylay.services.fabric import Fabric

    with Fabric.attach(_running(fabric).name) as attached:
        found = attached.status()
    _print_status(found, as_json)
    if not all(instance["ready"] for instance in found["instances"]):
        raise typer.Exit(1)


def _print_status(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, default=str))
        return
    table = Table(title=f"fabric {found['fabric']}", title_justify="left", box=SIMPLE_HEAD)
    for column, right in (
        ("instance", False),
        ("group", False),
        ("state", False),
        ("clients", True),
        ("log", True),
        ("to", False),
        ("by", False),
        ("mode", False),
        ("owed", True),
        ("age", True),
    ):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for instance in found["instances"]:
        state = (
            "ready"
            if instance["ready"]
            else f"{instance['phase']}: {instance['reason']}".rstrip(": ")
        )
        front = (
            instance["name"],
            instance["group"],
            state,
            str(instance.get("sessions", "")),
            f"{instance.get('committed_txid', 0):,}",
        )
        destinations = instance.get("destinations", {})
        rows = [destination_row(*each) for each in destinations.items()] or [("",) * 5]
        for number, row in enumerate(rows):
            table.add_row(*(front if not number else ("",) * 5), *row)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_COLUMNS)
    console.print(table)
    for line in (
        *disconnected_lines(found["instances"]),
        *unavailable_lines(found["instances"]),
        *left_over_lines(found.get("left_over", [])),
    ):
        typer.echo(line)


def disconnected_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Why destinations are not connected, a line each."""
    return [
        f"{instance['name']} to {name}: {destination['why']}"
        for instance in instances
        for name, destination in instance.get("destinations", {}).items()
        if not destination.get("connected") and destination.get("why")
    ]


def unavailable_lines(instances: list[dict[str, Any]]) -> list[str]:
    """What instances lack and no upstream has any more, a line each."""
    return [
        f"{instance['name']}: {instance['unavailable']:,} messages are unavailable, "
        "no upstream has them any more"
        for instance in instances
        if instance.get("unavailable")
    ]


def destination_row(name: str, destination: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Name, way, mode, owed messages and age of one destination, for a table."""
    mode = "sync" if destination.get("sync") else "async"
    if destination.get("downgraded"):
        mode = "async (downgraded)"
    if not destination.get("connected"):
        mode += ", disconnected"
    owed = int(destination.get("owed", 0))
    return (
        name,
        str(destination.get("address", "")),
        mode,
        f"{owed:,}",
        f"{destination.get('age_ms', 0)} ms" if owed else "",
    )


@app.command()
def downgrade(
    instance: Annotated[str, typer.Argument(help="The instance whose acks are meant.")],
    destination: Annotated[str, typer.Argument(help="The destination it waits for.")],
    fabric: FabricOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also below MinSyncDestinations.")] = False,
) -> None:
    """Let persisted acks no longer wait for a destination, until an upgrade or a restart."""
    from raylay.services.fabric import Fabric

    with Fabric.attach(_running(fabric).name) as attached:
        attached.downgrade(instance, destination, force=force)
    typer.echo(f"{instance}: acks do not wait for {destination} any more")


@app.command()
def upgrade(
    instance: Annotated[str, typer.Argument(help="The instance whose acks are meant.")],
    destination: Annotated[str, typer.Argument(help="A destination that was downgraded.")],
    fabric: FabricOption = "",
) -> None:
    """Let persisted acks wait again for a destination that is configured sync."""
    from raylay.services.fabric import Fabric

    with Fabric.attach(_running(fabric).name) as attached:
        attached.upgrade(instance, destination)
    typer.echo(f"{instance}: acks wait for {destination} again, if it is configured sync")


@app.command()
def admit(
    instance: Annotated[str, typer.Argument(help="An instance with a new disk that waits.")],
    fabric: FabricOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also where its group may hold what it lacks.")
    ] = False,
) -> None:
    """Let an instance admit clients although no peer of its group has brought what it has."""
    from raylay.services.fabric import Fabric

    with Fabric.attach(_running(fabric).name) as attached:
        attached.admit(instance, force=force)
    typer.echo(f"{instance}: clients are admitted")


@app.command()
def restart(
    instances: Annotated[
        list[str] | None, typer.Argument(help="In this order; default: all of the fabric.")
    ] = None,
    fabric: FabricOption = "",
    timeout: Annotated[float, typer.Option(help="Seconds for each.")] = RESTART_TIMEOUT_S,
) -> None:
    """Restart instances one after the other while clients go on, each when every link has caught up
    behind the one before: to bring a release into use that was installed. One that is named and
    down is started, with a configuration written anew where its disk was lost."""
    from raylay.services.fabric import Fabric

    with Fabric.attach(_running(fabric).name) as attached:
        attached.rolling_restart(
            instances or (), timeout, done=lambda name: typer.echo(f"{name}: restarted, caught up")
        )


@app.command()
def relocate(
    instance: Annotated[str, typer.Argument(help="An instance whose host is lost.")],
    to: Annotated[
        str, typer.Option("--to", help="A host's name, or labels: key=value,…; default: any.")
    ] = "",
    fabric: FabricOption = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also where it lives, or nobody can fill it.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds until it is ready; a large journal takes longer.")
    ] = RESTART_TIMEOUT_S,
) -> None:
    """Move an instance to another node of its region: a new data directory, filled from its group.
    What it was before is retired for good. What was done is shown before it is ready."""
    from raylay.services.fabric import Fabric

    labels = parse_target(to)
    with Fabric.attach(_running(fabric).name) as attached:
        attached.relocate(instance, labels, force=force, timeout_s=timeout, moved=_show_relocation)


def _show_relocation(done: Relocation) -> None:
    for line in relocation_lines(done):
        typer.echo(line)
    sys.stdout.flush()


@app.command()
def watch(fabric: FabricOption = "") -> None:
    """Move instances whose host is away for longer than `relocate_after` of the settings, until it
    is stopped. Start it where Ray's head can be reached, once; without the setting it refuses."""
    from raylay.services.fabric import Fabric

    stopping = threading.Event()
    told: list[str] = []
    with _stop_signals(stopping), Fabric.attach(_running(fabric).name) as attached:
        after_ms = attached.declared.relocate_after_ms
        if after_ms is None:
            raise ConfigurationError(
                f"fabric {attached.name} has no `relocate_after`: nothing is to be moved by itself"
            )
        typer.echo(f"watching {attached.name}: moved is who is away for {after_ms / 1000:g} s")
        while not stopping.wait(WATCH_S):
            try:
                attached.relocate_due(_show_relocation)
            except FabricError as error:
                lines = str(error).splitlines()
                for line in lines:
                    if line not in told:
                        typer.echo(line)
                told = lines
                sys.stdout.flush()


@app.command()
def events(
    fabric: FabricOption = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what happened: connects, downgrades, resyncs, late or conflicting records, …"""
    from raylay.services.fabric import Fabric

    stopping = threading.Event()
    with _stop_signals(stopping), Fabric.attach(_running(fabric).name) as attached:
        for event in attached.events(follow=follow, stop=stopping.is_set):
            typer.echo(json.dumps(event, default=str) if as_json else event_line(event))
            sys.stdout.flush()


def event_line(event: dict[str, Any]) -> str:
    """One event as a line for people."""
    moment = datetime.fromtimestamp(event["time_us"] / 1e6, UTC)
    details = " ".join(
        f"{key}={value}"
        for key, value in event.items()
        if key not in ("number", "time_us", "event", "instance")
    )
    return f"{moment:%H:%M:%S.%f} {event['instance']:<14} {event['event']} {details}".rstrip()


# -- publishing and subscribing ------------------------------------------------------------------
def _waiting_lines() -> Callable[[object], None]:
    """For a client's `on_event`: says on stderr why it waits, each reason once."""
    from raylay.services.client.events import (
        Connected,
        Disconnected,
        ServerRefused,
        WaitingForSafeInstance,
        WaitingForServer,
    )

    said: set[str] = set()

    def tell(event: object) -> None:
        if isinstance(event, Connected):
            said.clear()
            return
        if isinstance(event, ServerRefused):
            line = f"{event.address}: {event.reason}"
        elif isinstance(event, Disconnected):
            line = f"lost {event.instance} at {event.address}: {event.reason}"
        elif isinstance(event, WaitingForServer):
            line = "no server answers, trying again"
        elif isinstance(event, WaitingForSafeInstance):
            refused = "; ".join(f"{name}: {reason}" for name, reason in event.refused)
            line = f"waiting for an instance that is safe to use ({refused})"
        else:
            return
        if line not in said:
            said.add(line)
            typer.echo(f"raylay: {line}", err=True)

    return tell


@contextmanager
def _client_options(
    fabric: str, group: str, servers: list[str] | None, name: str, *, trace_all: bool = False
) -> Iterator[dict[str, Any]]:
    """Arguments of a client, from the fabric's own record: no Ray is asked. On leaving, what the
    client traced is written."""
    if servers:
        if trace_all:
            raise ConfigurationError("--trace needs a fabric: where traces go is in its settings")
        yield {"name": name, "servers": servers, "group": group}
        return
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord, client_options, tracing_options
    from raylay.services.telemetry.tracing import ClientTracer, start_tracing

    entry = _running(fabric)
    record = FabricRecord.load(entry.directory)
    if record is None:
        raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
    settings = FabricSettings.from_json(record.settings)
    options = {"name": name, **client_options(settings, record, group, name)}
    tracing = tracing_options(settings, record)
    if not tracing.enabled:
        if trace_all:
            raise ConfigurationError(
                f"fabric {entry.name} traces nothing: add `tracing: {{directory: traces}}`"
            )
        yield options
        return
    traces = start_tracing(name, tracing)
    options["tracer"] = ClientTracer(traces, name)
    options["sampling_ratio"] = 1.0 if trace_all else tracing.sampling_ratio
    try:
        yield options
    finally:
        traces.close()


@app.command()
def publish(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    body: Annotated[
        str | None, typer.Argument(help="The message; without it each line of the input is one.")
    ] = None,
    message_type: Annotated[str, typer.Option("--type", help="The message type.")] = "json",
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Trace every message; then see `raylay trace`.")
    ] = False,
) -> None:
    """Publish; returns when everything is persisted. Tells the last message's bookmark."""
    name = client or f"raylay-publish-{os.getpid()}"
    with _client_options(fabric, group, server, name, trace_all=trace) as options:
        count, seconds, bookmark = asyncio.run(_publish(options, topic, body, message_type))
    last = f", the last one {bookmark}" if count > 1 else f": {bookmark}" if count else ""
    typer.echo(f"{count:,} persisted in {seconds:.3f} s{last}", err=True)


async def _publish(
    options: dict[str, Any], topic: str, body: str | None, message_type: str
) -> tuple[int, float, str]:
    from raylay.services.client import Client

    count = sequence = 0
    started_s = time.monotonic()
    async with Client(**options, on_event=_waiting_lines()) as client:
        lines = sys.stdin.buffer if body is None else [body.encode()]
        for line in lines:
            sequence = await client.publish(topic, line.rstrip(b"\r\n"), message_type)
            count += 1
        await client.flush()
        bookmark = f"{client.publisher}|{sequence}|"
    return count, time.monotonic() - started_s, bookmark


@app.command()
def subscribe(
    topic: Annotated[str, typer.Argument(help="A topic or a regular expression over topics.")],
    bookmark: Annotated[
        str, typer.Option(help="Where to begin: 0 for the first message, a bookmark, a time, …")
    ] = "",
    not_found: Annotated[
        str, typer.Option(help="Where the bookmark is not in the log: `now`, `epoch` or `fail`.")
    ] = "fail",
    count: Annotated[int, typer.Option(min=0, help="End after as many; 0: never.")] = 0,
    client: Annotated[str, typer.Option(help="The client name.")] = "",
    fabric: FabricOption = "",
    group: GroupOption = "",
    server: ServerOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a line, with topic and bookmark.")
    ] = False,
) -> None:
    """Print messages, one a line, as they come."""
    name = client or f"raylay-subscribe-{os.getpid()}"
    try:
        with _client_options(fabric, group, server, name) as options:
            asyncio.run(_subscribe(options, topic, bookmark, not_found, count, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _subscribe(
    options: dict[str, Any], topic: str, bookmark: str, not_found: str, count: int, as_json: bool
) -> None:
    from raylay.services.client import Client

    left = count
    async with Client(**options, on_event=_waiting_lines()) as client:
        subscription = await client.subscribe(
            topic, bookmark=bookmark, bookmark_not_found=not_found if bookmark else ""
        )
        async for batch in subscription.batches():
            for message in batch:
                if as_json:
                    line = json.dumps(
                        {
                            "topic": message.topic,
                            "bookmark": message.bookmark,
                            "timestamp_us": message.timestamp_us,
                            "body": message.body.decode("utf-8", "replace"),
                        }
                    )
                    sys.stdout.write(f"{line}\n")
                else:
                    sys.stdout.buffer.write(message.body + b"\n")
                left -= 1
                if not left:
                    sys.stdout.flush()
                    return
            sys.stdout.flush()


if __name__ == "__main__":
    main()
