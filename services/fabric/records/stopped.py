"""Fabrics that could run here and do not, found by the directories that hold their records.

A fabric whose process ended leaves a note of where its directory is, beside the entries of those
that run (registry.py). After a restart of the machine these may be gone: then the place where
`raylay up` keeps fabrics is looked at, `data` in the working directory.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raylay.services.errors import FabricError
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.registry import FABRIC_FILE

if TYPE_CHECKING:
    from raylay.services.configuration.model import FabricSettings

DATA_DIRECTORY = Path("data")


@dataclass(frozen=True, slots=True)
class StoppedFabric:
    """A fabric that does not run, and the directory of its data."""

    name: str
    directory: Path

    @property
    def command(self) -> str:
        """Returns the command that starts the fabric again, with the settings that it had."""
        return f"raylay up {shlex.quote(str(self.directory))}"


def stopped() -> list[StoppedFabric]:
    """Returns the fabrics that do not run and whose directories are found, by name."""
    found: dict[Path, str] = {}
    for note in registry.notes():
        place = Path(note.directory)
        if _name(place / FABRIC_FILE) == note.name:
            found[place.resolve()] = note.name
    for record in DATA_DIRECTORY.glob(f"*/{FABRIC_FILE}"):
        name = _name(record)
        if name:
            found[record.parent.resolve()] = name
    running = {entry.name for entry in registry.running()}
    here = Path.cwd()
    return sorted(
        (
            # The path is written as a user in the present directory would write it.
            StoppedFabric(name, place.relative_to(here) if place.is_relative_to(here) else place)
            for place, name in found.items()
            if name not in running
        ),
        key=lambda each: (each.name, str(each.directory)),
    )


def refuse_empty(name: str, place: Path) -> None:
    """Refuses to begin a fabric with nothing where one of its name is stopped in another directory:
    a user who starts it from elsewhere means that one.

    Args:
        place: directory in which it would begin, since none was given.

    Raises:
        FabricError: There is one; says how each of the two is started.
    """
    if (place / FABRIC_FILE).exists():
        return
    others = [str(each.directory) for each in stopped() if each.name == name]
    if others:
        raise FabricError(
            f"fabric {name} is stopped, its data is in {', '.join(others)}, and {place} is empty: "
            f"give --directory {shlex.quote(others[0])} to go on with it, or --directory {place} "
            "for a new one"
        )


def kept_settings(files: Sequence[Path]) -> FabricSettings | None:
    """Returns the settings with which a fabric that is named by its directory last ran; None:
    configuration files are named instead.

    Raises:
        FabricError: the directory holds no fabric.
    """
    if len(files) != 1 or not files[0].is_dir():
        return None
    # Late: who only looks for fabrics needs no model of them.
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord

    record = FabricRecord.load(files[0])
    if record is None:
        raise FabricError(f"{files[0]} holds no fabric: it has no {FABRIC_FILE}")
    return FabricSettings.from_json(record.settings)


def _name(record: Path) -> str:
    """Returns the name of the fabric in a record; empty: the record cannot be read."""
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    name = told.get("name") if isinstance(told, dict) else None
    return name if isinstance(name, str) else ""
