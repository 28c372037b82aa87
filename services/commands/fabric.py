"""`raylay fabric`: checks a fabric before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raylay.services.commands.shared.options import (
    DefineOption,
    FilesArgument,
    IgnoreOption,
    NameOption,
)
from raylay.services.commands.shared.printing import echo, echo_json, print_table
from raylay.services.configuration.amps.tree import parse_defines
from raylay.services.configuration.builder import Origins
from raylay.services.configuration.files import load_all
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks import exposure
from raylay.services.fabric.checks.check import check_settings, impossible
from raylay.services.topology import draw
from raylay.services.topology.check import CheckResult, TopologyFinding
from raylay.services.topology.report import as_data, route_rows, summary

START_WITHOUT = "leave it out, or start the fabric with --ignore-unsupported"

fabric_app = typer.Typer(
    add_completion=False, help="Check a fabric before it runs.", no_args_is_help=True
)


@fabric_app.callback()
def _group() -> None:
    # Without it a single command would lose its name.
    pass


@fabric_app.command("check")
def check_command(
    files: FilesArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    routes: Annotated[
        bool,
        typer.Option("--routes", help="Show the route from every publisher to every instance."),
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the fabric: FILE.svg or FILE.html.")
    ] = None,
    publishes: Annotated[
        list[str] | None,
        typer.Option(help="Instance or group where clients publish; repeatable. Default: all."),
    ] = None,
    define: DefineOption = None,
    fabric_name: NameOption = "",
    ignore_unsupported: IgnoreOption = False,
) -> None:
    """Show where messages arrive, and what is wrong with the topology. Exit code 1 if there is an
    error."""
    if picture is not None and picture.suffix not in (".svg", ".html"):
        raise ConfigurationError(f"--picture {picture}: give a name that ends in .svg or .html")
    origins: Origins = {}
    try:
        settings, left_out = load_all(
            files, defines=parse_defines(define), name=fabric_name, origins=origins
        )
    except ConfigurationError as error:
        if not as_json:
            raise
        checked, name = impossible(error), fabric_name
    else:
        checked, name = check_settings(settings, tuple(publishes or ())), settings.name
        checked.findings = [finding.at(origins) for finding in checked.findings]
        checked.findings += [
            TopologyFinding("warning", "exposed", (), "", each.text, each.change)
            for each in exposure.of_fabric(settings)
        ]
        checked.findings += [
            TopologyFinding("note", "not_running", (), "", f"{where}: {text}", START_WITHOUT)
            for where, text in (() if ignore_unsupported else left_out)
        ]
    if as_json:
        echo_json(as_data(checked, name, routes=routes))
    else:
        _print(checked, name, routes=routes)
    if picture is not None and checked.members:
        drawn = draw.svg if picture.suffix == ".svg" else draw.html
        try:
            picture.write_text(drawn(checked, name), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--picture {picture}: {error.strerror}") from None
    if checked.errors or (strict and checked.warnings):
        raise typer.Exit(1)


def _print(checked: CheckResult, name: str, *, routes: bool) -> None:
    for survey in checked.surveys:
        title = f"fabric {name}, topic {survey.routes.topic.shown}"
        if routes:
            print_table(
                title,
                ("published at", "arrives at", "by", "sent by"),
                [
                    (
                        row["publisher"],
                        row["instance"] + ("" if row["certain"] else " (not always)"),
                        " > ".join(row["route"]),
                        ", ".join(
                            each["instance"] + ("" if each["always"] else " (sometimes)")
                            for each in row["senders"]
                        ),
                    )
                    for publisher in survey.publishers
                    for row in route_rows(survey, publisher)
                ],
            )
        else:
            summaries = [summary(survey, publisher) for publisher in survey.publishers]
            print_table(
                title,
                ("published at", "arrives at", "of", "links", "copies", "not at"),
                [
                    (
                        row["publisher"],
                        str(row["certain"]),
                        str(row["wanted"]),
                        str(row["hops"]),
                        str(row["copies"]),
                        ", ".join(row["missing"]),
                    )
                    for row in summaries
                ],
                frozenset(("arrives at", "of", "links", "copies")),
            )
    for finding in checked.findings:
        topic = f" (topic {finding.topic})" if finding.topic else ""
        echo(f"{finding.severity} {finding.kind}: {finding.explanation}{topic}")
        echo(f"    repair: {finding.repair}")
    echo(f"{checked.errors} errors, {checked.warnings} warnings, {checked.notes} notes")
