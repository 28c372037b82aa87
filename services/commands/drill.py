"""`raylay drill`: breaks a running fabric on purpose and reports what happened (docs/drills.md)."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.commands.shared.contexts import FABRIC_VARIABLE
from raylay.services.commands.shared.printing import echo, echo_json, print_table
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.fabric.records import registry

if TYPE_CHECKING:
    from raylay.services.drills.scenario import DrillScenario
    from raylay.services.fabric import Fabric

EXIT_BAD = 1
EXIT_COULD_NOT_RUN = 2
START_TIMEOUT_S = 120.0
FILE_COLUMNS = 110


def drill_command(
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario by name, or a YAML file of steps.")
    ] = None,
    fabric: Annotated[
        str,
        typer.Option(
            "--fabric",
            "-f",
            envvar=FABRIC_VARIABLE,
            help=(
                "A running fabric by name, or a fabric's file. A fabric that does not run is "
                "started for the drill and stopped after it."
            ),
        ),
    ] = "",
    target: Annotated[
        str, typer.Option(help="The target of the first step, in place of its own.")
    ] = "",
    topic: Annotated[
        str, typer.Option(help="A topic of your own for the load; default: raylay/drill.")
    ] = "",
    rate: Annotated[float | None, typer.Option(help="Messages a second of each publisher.")] = None,
    own_load: Annotated[
        bool,
        typer.Option("--own-load", help="Add no load to the fabric's own; judge by its journals."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the report; default: drills/… here.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the scenarios.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --list: JSON instead of a table.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Repair at once what a killed drill left broken.")
    ] = False,
) -> None:
    """Break a running fabric on purpose, check every message, and write a report.

    Exit code 0: clean. 1: something is wrong, or nothing could be judged. 2: it could not run.
    """
    if show_list:
        print_list(as_json)
        return
    try:
        if clean:
            code = _mend(scenario, fabric)
        else:
            code = _drill(_changed(scenario, target, rate, own_load), fabric, topic, output)
    except RaylayError as error:
        echo(f"raylay drill: {error}", err=True)
        code = EXIT_COULD_NOT_RUN
    except KeyboardInterrupt:
        echo("raylay drill: interrupted; every fault is healed", err=True)
        code = EXIT_COULD_NOT_RUN
    raise typer.Exit(code)


def print_list(as_json: bool) -> None:
    """Prints the scenarios that come with Raylay, one on each line."""
    from raylay.services.drills.scenario import built_in

    if as_json:
        echo_json(
            [
                {"scenario": name, "seconds": each.seconds, "about": each.about}
                for name, each in built_in().items()
            ]
        )
        return
    print_table(
        "",
        ("scenario", "takes", "what it does"),
        [(name, f"{each.seconds:.0f} s", each.about) for name, each in built_in().items()],
    )


def _changed(name: str | None, target: str, rate: float | None, own_load: bool) -> DrillScenario:
    from raylay.services.drills.scenario import find

    if name is None:
        raise ConfigurationError("give a scenario; `raylay drill --list` shows them")
    scenario = find(name)
    if target:
        scenario = scenario.with_target(target)
    if rate is not None:
        scenario = scenario.with_rate(rate)
    return scenario.with_own_load() if own_load else scenario


def _drill(scenario: DrillScenario, fabric: str, topic: str, output: Path | None) -> int:
    began_s = time.monotonic()

    def tell(text: str) -> None:
        echo(f"{time.monotonic() - began_s:6.1f} s  {text}")
        sys.stdout.flush()

    # Late: the command line is there at once.
    from raylay.services.drills.drill import Drill
    from raylay.services.drills.reports import report
    from raylay.services.drills.reports.report_words import verdict_sentence
    from raylay.services.reports.page import check_reports

    check_reports()
    with _found(fabric, tell) as found:
        drill = Drill(found.fabric, scenario, topic=topic, tell=tell)
        stamp = datetime.now(UTC)
        place = output or Path("drills") / f"{scenario.name}-{stamp:%Y%m%d-%H%M%S}"
        made = not place.exists()
        # Before anything is broken: a drill without a report was for nothing.
        report.make_place(place)
        try:
            result = drill.run()
        except BaseException:
            if made:
                with suppress(OSError):
                    place.rmdir()
            raise
        if found.directory is not None and not result.valid:
            found.is_kept = True
            result.kept.append(str(found.directory))
        page = report.write(result, place)
    echo(("clean: " if result.valid else "BAD: ") + verdict_sentence(result))
    echo(f"report: {page}")
    if found.is_kept:
        echo(f"kept: {found.directory}, the data of the fabric that was started for this drill")
    return 0 if result.valid else EXIT_BAD


@dataclass
class _Found:
    """The fabric of a drill.

    Attributes:
        directory: the temporary directory of a fabric that was started for the drill; None: the
            fabric was running.
        is_kept: whether that directory is kept, because its journals show what went wrong.
    """

    fabric: Fabric
    directory: Path | None = None
    is_kept: bool = False


@contextmanager
def _found(fabric: str, tell: object = None) -> Iterator[_Found]:
    """Yields the fabric: the running one, or one that is started for this drill from a file."""
    from raylay.services.configuration.files import load_fabric
    from raylay.services.drills.drill import check_allowed
    from raylay.services.fabric import Fabric, find_running

    settings = load_fabric([Path(fabric)]) if Path(fabric).is_file() else None
    name = settings.name if settings is not None else fabric
    if settings is None or registry.find(name) is not None:
        with Fabric.attach(find_running(name).name) as attached:
            check_allowed(attached)
            yield _Found(attached)
        return
    started = Fabric.of(settings)
    check_allowed(started)
    place = Path(tempfile.mkdtemp(prefix=f"raylay-drill-{name}-"))
    found = _Found(started, place)
    try:
        if callable(tell):
            tell(f"starting fabric {name} in {place}")
        with started.start(place, timeout_s=START_TIMEOUT_S):
            started.wait_connected(START_TIMEOUT_S)
            yield found
    finally:
        if not found.is_kept:
            shutil.rmtree(place, ignore_errors=True)


def _mend(scenario: str | None, fabric: str) -> int:
    from raylay.services.configuration.files import load_fabric
    from raylay.services.drills.drill import clean, refuse_running
    from raylay.services.drills.head import bring_head_back
    from raylay.services.fabric import Fabric, find_running
    from raylay.services.fabric.plan import FabricRecord

    if scenario is not None:
        raise ConfigurationError(
            f"--clean takes no scenario: if {scenario} is a fabric, use `raylay drill --clean "
            f"--fabric {scenario}`"
        )
    name = load_fabric([Path(fabric)]).name if Path(fabric).is_file() else fabric
    found = find_running(name)
    record = FabricRecord.load(found.directory)
    if record is not None:
        # Without its head no Ray can be joined.
        refuse_running(Path(record.directory), found.name)
        for line in bring_head_back(Path(record.directory)):
            echo(line)
    with Fabric.attach(found.name) as attached:
        for line in clean(attached):
            echo(line)
    return 0
