"""`raylay config`: checks a fabric's files, and shows their values with the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from raylay.services.commands.shared.options import DefineOption, FilesArgument, JsonOption
from raylay.services.commands.shared.printing import echo, echo_json, echo_text
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import Document
from raylay.services.configuration.amps.show import (
    document_values,
    downgrades_of,
    fabric_values,
    shown,
    shown_fabric,
    store_lines,
)
from raylay.services.configuration.amps.support import ElementFinding, findings
from raylay.services.configuration.amps.tree import parse_defines
from raylay.services.configuration.files import load_files
from raylay.services.configuration.model import FabricSettings

config_app = typer.Typer(
    help="Check and show configuration files.", no_args_is_help=True, add_completion=False
)


@config_app.command()
def check(files: FilesArgument, define: DefineOption = None, as_json: JsonOption = False) -> None:
    """Check configuration files: list errors, a line each (exit code 1), and what does not run yet
    (exit code 0)."""
    loaded = load_files(files, defines=parse_defines(define))
    found: list[ElementFinding] = []
    if isinstance(loaded, FabricSettings):
        settings = loaded
    else:
        found = [finding for document in loaded for finding in findings(document)]
        # What does not run yet is listed below, so it is no error here.
        settings = fabric_of(loaded, ignore_unsupported=True)
        found += _outside(loaded, settings)
    refused = sum(finding.refuses for finding in found)
    instances, links = len(settings.instances), sum(1 for _ in settings.links())
    if as_json:
        echo_json(
            {
                "instances": instances,
                "destinations": links,
                "would_not_run": refused,
                "findings": [
                    {"where": each.origin, "what": each.text, "refuses": each.refuses}
                    for each in found
                ],
            }
        )
        return
    for finding in found:
        echo(f"{finding.origin}: {finding.text}")
    echo(
        f"{_counted(instances, 'instance')}, {_counted(links, 'destination')}: "
        + (
            f"{_counted(refused, 'thing')} of it would not run: `raylay up` refuses that without "
            "--ignore-unsupported"
            if refused
            else "all of it runs"
        )
    )


@config_app.command()
def show(
    files: FilesArgument,
    define: DefineOption = None,
    rate: Annotated[
        int,
        typer.Option(min=0, help="Messages/s of a publisher: how large must its store be?"),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Show the files with defaults filled in, as YAML; the output for an AMPSConfig can be loaded
    again. With --json it is an object a line: of the fabric, or of each AMPSConfig, where the
    elements of an action are a list."""
    loaded = load_files(files, defines=parse_defines(define))
    if as_json:
        if isinstance(loaded, FabricSettings):
            echo_json(fabric_values(loaded))
            return
        for document in loaded:
            echo_json(document_values(document))
        return
    if isinstance(loaded, FabricSettings):
        echo_text(shown_fabric(loaded).removesuffix("\n"))
        downgrades = [
            (instance.name, loaded.downgrade_of(instance)) for instance in loaded.instances
        ]
    else:
        echo_text("---\n".join(shown(document) for document in loaded).removesuffix("\n"))
        downgrades = downgrades_of(loaded)
    for line in store_lines(rate, downgrades) if rate else ():
        echo(f"# {line}")


@config_app.command()
def schema() -> None:
    """Print the JSON schema of a fabric's YAML file, for editors."""
    from raylay.services.configuration.schema import file_schema

    echo_text(json.dumps(file_schema(), indent=2))


def _outside(documents: list[Document], settings: FabricSettings) -> Iterator[ElementFinding]:
    """Yields a note for each address that belongs to none of the files' instances."""
    for document in documents:
        links = {link.name: link for link in settings.instance(document.config.name).destinations}
        for number, destination in enumerate(document.config.destinations()):
            link = links.get(destination.name)
            for target in link.to if link is not None else ():
                if ":" in target:
                    yield ElementFinding(
                        document.origin(("Replication", "Destination", number, "Transport", 0)),
                        f"{target} belongs to no instance of these files: links dial it as it is "
                        "written",
                        False,
                    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
