"""`raylay up`, `apply` and `down`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.commands.shared.interrupts import GRACE_S, INTERRUPTED, interruptible
from raylay.services.commands.shared.options import (
    CONNECT_TIMEOUT_S,
    DefineOption,
    FabricOption,
    FilesArgument,
    IgnoreOption,
    JsonOption,
    NameOption,
    running,
    stop_signals,
)
from raylay.services.commands.shared.printing import echo, echo_json, echo_result, echo_text
from raylay.services.commands.starting import NEXT_LINE, READY_LINE, shown_progress, up_lines
from raylay.services.commands.status import print_status
from raylay.services.errors import FabricError
from raylay.services.fabric.locks import (
    INHERITED_VARIABLE,
    LOCK_FILE,
    LockOwner,
    StartLocks,
    holder_of,
    starting,
)
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.discovery import runs_already
from raylay.storage.files import private_opener

if TYPE_CHECKING:
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.plan import FabricChanges

STOP_TIMEOUT_S = 60.0
DETACH_TIMEOUT_S = 300.0
"""Most time to wait for a detached start. A start gives up sooner than that, with a reason."""
PROGRESS = re.compile(r"^ *[0-9.]+ s  (.*)", re.MULTILINE)
"""A line of progress, as `shown_progress` writes it to a file."""
UP_PROGRAM = [sys.executable, "-m", "raylay.services.entry", "up"]


def up(
    files: FilesArgument,
    directory: Annotated[
        Path | None, typer.Option(help="The directory for data and logs; default: data/NAME here.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when the fabric is up.")
    ] = False,
    address: Annotated[
        str,
        typer.Option(
            help="The address of a running Ray, or `auto`; the actors outlive this command."
        ),
    ] = os.environ.get("RAY_ADDRESS", ""),
    node_label: Annotated[
        str,
        typer.Option(help="Put instances on nodes whose label of this name is their group."),
    ] = "",
    drills: Annotated[
        bool,
        typer.Option(
            "--drills", help=("Allow drills on the fabric, as `drills: allowed` in its file does.")
        ),
    ] = False,
    define: DefineOption = None,
    name: NameOption = "",
    ignore_unsupported: IgnoreOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start the fabric of a file, or of its instances' files, on the data that is there.

    A fabric that ran before is started as it was by its directory: `raylay up data/NAME`.
    """
    from raylay.services.configuration.amps.tree import parse_defines
    from raylay.services.configuration.files import load_fabric
    from raylay.services.fabric.records.stopped import kept_settings, refuse_empty

    kept = kept_settings(files)
    settings = kept or load_fabric(
        files, defines=parse_defines(define), name=name, ignore_unsupported=ignore_unsupported
    )
    if drills:
        settings = settings.model_copy(update={"drills": "allowed"})
    place = directory or (files[0] if kept else Path("data") / settings.name)
    if directory is None and not kept:
        refuse_empty(settings.name, place)
    if detach and not address:
        options = [f"--define={each}" for each in define or ()]
        options += ["--name", settings.name, *["--ignore-unsupported"] * ignore_unsupported]
        options += ["--node-label", node_label] * bool(node_label)
        options += ["--drills"] * drills
        options += ["--json"] * as_json
        _up_in_background(settings.name, [*map(str, files), *options], place, as_json)
        return
    from raylay.services.fabric import Fabric

    fabric = Fabric.of(settings)
    try:
        with interruptible(f"raylay: interrupted: ending the start of {settings.name}"):
            _start(fabric, place, address, node_label, as_json)
    except KeyboardInterrupt:
        echo(f"raylay: {settings.name} is not started; its data is in {place}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if address:
        fabric.leave()
        return
    stopping = threading.Event()
    with stop_signals(stopping):
        stopping.wait()
        echo(f"stopping {settings.name}")
        sys.stdout.flush()
        fabric.stop()


def _start(fabric: Fabric, place: Path, address: str, node_label: str, as_json: bool) -> None:
    from rich.console import Console

    unconnected = ""
    with shown_progress(Console(stderr=as_json)) as tell:
        fabric.start(place, address=address or None, node_label=node_label, progress=tell)
        try:
            fabric.wait_connected(CONNECT_TIMEOUT_S)
        except FabricError as error:  # a link to a fabric that is down, for one
            unconnected = f"; not connected: {error}"
        except BaseException:
            fabric.stop()
            raise
    if not as_json:
        print_status(fabric.status(), as_json=False)
    groups = dict.fromkeys(instance.group for instance in fabric.declared.instances)
    servers = {group: [str(server.address) for server in fabric.servers(group)] for group in groups}
    for warning in fabric.shared_hosts():
        echo(f"raylay: warning: {warning}", err=True)
    console = next(iter(fabric.consoles()), "")
    if as_json:
        values = {"state": "up", "directory": str(place), "clients": servers, "console": console}
        echo_json({"fabric": fabric.declared.name, **values, "problem": unconnected[2:]})
        sys.stdout.flush()
        return
    for line in up_lines(fabric.declared, str(place), servers, unconnected, console):
        echo(line)
    sys.stdout.flush()


def apply(
    files: FilesArgument,
    define: DefineOption = None,
    name: NameOption = "",
    ignore_unsupported: IgnoreOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Remove instances even if others may lack messages of them."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Make a running fabric match its changed file while clients go on: stop instances that are
    gone, start new ones and restart changed ones, one after the other. An instance that is gone is
    stopped when the others have all of its messages; its data directory stays."""
    from rich.console import Console

    from raylay.services.configuration.amps.tree import parse_defines
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.rollout import Progress

    settings = settings_to_apply(files, parse_defines(define), name, ignore_unsupported)
    progress, console = Progress(), Console(stderr=True)
    try:
        with (
            interruptible(f"raylay: interrupted: leaving {settings.name} as it is now"),
            Fabric.attach(running(settings.name).name) as attached,
            # Elsewhere than on a terminal the result is all that is wanted.
            shown_progress(console) if console.is_terminal else nullcontext(progress.tell) as tell,
        ):
            progress.tell = tell
            found = attached.apply(settings, force=force, dry_run=dry_run, progress=progress)
    except KeyboardInterrupt:
        echo(f"raylay: {progress.line()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except FabricError:
        if progress.left:
            echo(f"raylay: {progress.line()}", err=True)
        raise
    if as_json:
        done = {key: [*getattr(found, key)] for key in ("started", "restarted", "removed")}
        kept = dict(zip(found.removed, found.directories, strict=True))
        echo_json({**done, "directories": kept, "dry_run": dry_run})
        return
    for line in change_lines(found, dry_run=dry_run):
        echo(line)


def change_lines(found: FabricChanges, *, dry_run: bool) -> list[str]:
    """Returns the lines on what an `apply` did, or would do."""
    would = "would be " if dry_run else ""
    lines = [
        f"{would}{verb}: {', '.join(names) or 'none'}"
        for verb, names in (("started", found.started), ("restarted", found.restarted))
    ]
    lines += [
        f"{would}removed: {name}; its data {'would stay' if dry_run else 'is still'} in {directory}"
        for name, directory in zip(found.removed, found.directories, strict=True)
    ]
    return lines


def settings_to_apply(
    files: list[Path], defines: dict[str, str], name: str, ignore_unsupported: bool
) -> FabricSettings:
    """Returns the settings that the files describe. AMPSConfig files, which have no name of their
    fabric, are those of the only one that runs."""
    from raylay.services.configuration.files import load_fabric, name_is_declared

    def load(meant: str) -> FabricSettings:
        return load_fabric(
            files, defines=defines, name=meant, ignore_unsupported=ignore_unsupported
        )

    settings = load(name)
    runs = [entry.name for entry in registry.running()]
    if name or len(runs) != 1 or settings.name in runs or name_is_declared(files):
        return settings
    return load(runs[0])


def _up_in_background(name: str, arguments: list[str], place: Path, as_json: bool = False) -> None:
    running = registry.find(name)
    if running is not None and running.host_pid:
        raise runs_already(name, running.directory)
    # Before anything is written there: the log of a start is its own.
    holds = StartLocks(name, place.absolute())
    log = place / "up.log"
    try:
        with open(log, "wb", buffering=0, opener=private_opener) as output:
            # Whatever the process says later, a disk that does not take it is found out here.
            output.write(f"starting {name}\n".encode())
            process = subprocess.Popen(
                [*UP_PROGRAM, *arguments, "--directory", place],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=holds.descriptors,
                env={**os.environ, INHERITED_VARIABLE: ",".join(map(str, holds.descriptors))},
            )
        holds.hand_over(process.pid)
    except OSError as error:
        holds.release()
        raise FabricError(f"{log} cannot be written: {error.strerror}") from None
    try:
        echo_text(_await_ready(name, process, log, as_json))
    except KeyboardInterrupt:
        echo(f"raylay: interrupted: ending the start of {name}", err=True)
        _end_start(process)
        echo(f"raylay: {name} is not started; its data is in {place}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _end_start(process: subprocess.Popen[bytes]) -> None:
    """Ends a start that runs in a session of its own, which Ctrl-C does not reach."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _await_ready(
    name: str, process: subprocess.Popen[bytes], log: Path, as_json: bool = False
) -> str:
    """Shows the progress of a process until its fabric is up, and returns its last lines."""
    from rich.console import Console

    deadline_s = time.monotonic() + DETACH_TIMEOUT_S
    with shown_progress(Console(stderr=True)) as tell:
        # Not when it is registered: before its links have connected, a publish waits for them.
        while not (found := _ready_lines(text := _read(log), as_json)):
            for progress in PROGRESS.findall(text)[-1:]:
                tell(progress)
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline_s:
                    continue
                process.terminate()
                raise FabricError(
                    f"{name} was not up after {DETACH_TIMEOUT_S:.0f} s: see {log}"
                ) from None
            lines = _read(log).strip().splitlines()
            said = lines[-1].removeprefix("raylay: ") if len(lines) > 1 else "it said nothing"
            if PROGRESS.match(said):
                said = f"{name} ended with code {process.returncode} after: {said.strip()}"
            raise FabricError(said)
    return found


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _ready_lines(text: str, as_json: bool = False) -> str:
    """Returns the lines from the one that reports that the fabric is up to the one that names the
    next command; empty: they are not complete yet."""
    lines = (
        r'^\{"fabric": .*(?=\n)' if as_json else rf"^{READY_LINE}.*\n(?:.*\n)*?{NEXT_LINE}.*(?=\n)"
    )
    found = re.search(lines, text, re.MULTILINE)
    return found[0] if found else ""


def down(fabric: FabricOption = "", as_json: JsonOption = False) -> None:
    """Stop a fabric. Its data stays."""
    begun = [each for each in starting() if fabric in ("", each.fabric)]
    runs = registry.find(fabric) if fabric else None
    if runs is None and len(begun) == 1 and (fabric or not registry.running()):
        _end_owners(begun[0].fabric, begun)
        name, place = begun[0].fabric, begun[0].directory
        line = f"{name} is not started; its data is in {place}"
        echo_result(as_json, line, fabric=name, state="not started", directory=place)
        return
    entry = runs or running(fabric)
    if entry.host_pid:
        _ask_for_the_end(entry)
        # One is all there should be.
        held = holder_of(Path(entry.directory) / LOCK_FILE)
        own = LockOwner(entry.name, entry.directory, entry.host_pid, entry.host_start)
        _end_owners(entry.name, [own, *begun, *([held] if held is not None else [])])
    else:
        from raylay.services.fabric import Fabric

        attached = Fabric.attach(entry.name)
        entry.directory = str(attached.directory)
        attached.stop()
    line = f"{entry.name} is down; its data is in {entry.directory}"
    echo_result(as_json, line, fabric=entry.name, state="down", directory=entry.directory)


def _ask_for_the_end(entry: registry.RegistryEntry) -> None:
    """Asks the instances that have the module `admin` whether this user may stop them, because a
    signal to their process would ask nobody.

    Raises:
        FabricError: an instance refuses; nothing is stopped.
    """
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric import Fabric
    from raylay.services.fabric.plan import FabricRecord

    record = FabricRecord.load(entry.directory)
    settings = None if record is None else FabricSettings.from_json(record.settings)
    if settings is None or not settings.controlled():
        return
    try:
        attached = Fabric.attach(entry.name)
    except FabricError:
        return  # its Ray does not answer, so nobody can be asked, and it must be possible to end it
    with attached:
        attached.authorize(settings.controlled(), "stop")


def _end_owners(name: str, owners: list[LockOwner]) -> None:
    """Ends the processes that start or hold a fabric, and returns when all are gone."""
    from raylay.services.fabric.cluster.ray_access import await_process_end

    left = {owner.pid: owner for owner in owners if owner.alive}
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    for pid in left:
        await_process_end(pid, max(0.0, deadline_s - time.monotonic()))
    still = [str(pid) for pid, each in left.items() if each.alive]
    if still:
        raise FabricError(
            f"{name}: process {', '.join(still)} did not end within {STOP_TIMEOUT_S:.0f} s; `kill "
            f"-9 {' '.join(still)}` ends it at once, and acknowledged messages stay"
        )
