"""Data directories that no instance of a fabric uses: left over, never reused and never deleted.

What is known of them without opening them: the fabric's record says where an instance was before it
was moved, and what `raylay journal salvage` told of that, which leaves a mark in the directory too.
And beside the record lies what is on this machine: of instances that were moved, or that the fabric
no longer has. Only the former are retired, and `raylay journal salvage` takes nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raylay.services.config.instance import INSTANCE_FILE, MOVED_ASIDE
from raylay.services.configuration.model import FabricSettings
from raylay.services.fabric.plan import FabricRecord, data_directory
from raylay.services.fabric.records.record import OrphanedDirectory

STATE_FILE = "state.lmdb"


def orphaned_directories(record: FabricRecord, settings: FabricSettings) -> list[dict[str, Any]]:
    """Returns the data directories that instances left behind, as far as this host knows them, the
    oldest first.

    Each has `name`, `host`, `labels`, `directory`, `generation`, `incarnation`, `at_us`, `retired`
    (its instance was moved away from it), `known` (the fabric's record has it), and from the last
    salvage, if there was one that is known here: `salvaged`, `lacking` (messages that the fabric
    lacks; None: not known) and `unreached`.
    """
    found = [_known(each, True, True) for each in record.left_over if not each.forgotten]
    used = {str(data_directory(record, instance)) for instance in settings.instances}
    named = {each["directory"] for each in found}
    for path in sorted(Path(record.directory).glob(f"*/{INSTANCE_FILE}")):
        directory = str(path.parent)
        if directory not in used | named and has_data(directory):
            name, generation = _named(path)
            move = record.moves.get(name)
            retired = move is not None and generation < move.generation
            other = OrphanedDirectory(name, generation, "this machine", {}, directory, "", 0)
            found.append(_known(other, retired, False))
    return found


def has_data(directory: str) -> bool:
    """Returns whether an instance has ever opened a data directory. Before, the directory has no
    more than the files that the fabric writes for the instance."""
    return (Path(directory) / STATE_FILE).exists()


def _named(path: Path) -> tuple[str, int]:
    """Returns the name and the generation of the instance in an `instance.json`; if the file does
    not say them, the directory's name and 0."""
    try:
        values = json.loads(path.read_bytes())
        name, generation = values["name"], values["generation"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return path.parent.name, 0
    if type(name) is not str or type(generation) is not int:
        return path.parent.name, 0
    return name, generation


def _known(left_over: OrphanedDirectory, retired: bool, known: bool) -> dict[str, Any]:
    from raylay.services.server.data.salvage import (
        read_mark,  # late: it has half of the server with it
    )

    directory = Path(left_over.directory)
    mark = read_mark(directory)
    salvaged, lacking = left_over.salvaged, left_over.lacking
    if mark:
        salvaged = bool(mark.get("done"))
        lacking = mark.get("lacking") if not mark.get("unreached") else None
    return {
        "name": left_over.name,
        "host": left_over.host,
        "labels": left_over.labels,
        "directory": left_over.directory,
        "generation": left_over.generation,
        "incarnation": left_over.incarnation,
        "at_us": left_over.at_us,
        "retired": retired,
        "known": known,
        "salvaged": salvaged,
        "lacking": lacking,
        "unreached": mark.get("unreached", []),
    }


def left_over_lines(found: list[dict[str, Any]]) -> list[str]:
    """Describes the orphaned directories for people, a line each."""
    lines = []
    for each in found:
        where = f"{each['directory']} on {each['host']}"
        what = f"generation {each['generation']}"
        if each["incarnation"]:
            what += f", incarnation {each['incarnation']}"
        there = f"raylay journal salvage {each['directory']}"
        if not each["retired"] and MOVED_ASIDE in Path(each["directory"]).name:
            state = (
                "`raylay restore` moved it aside; what is in it: "
                f"raylay journal dump {each['directory']}; not needed: archive or remove it"
            )
        elif not each["retired"]:
            # Its links would be refused: not_retired.
            state = (
                f"the fabric has no instance {each['name']} of this directory, which is not "
                f"retired: to let it send what the fabric lacks, declare it again in the fabric's "
                f"file and `raylay apply` that; what is in it: raylay journal dump "
                f"{each['directory']}; not needed: archive or remove it"
            )
        elif each["salvaged"]:
            state = "salvaged: the fabric lacks nothing of it; " + (
                f"once it is removed: {there} --forget" if each["known"] else "remove it"
            )
        elif each["lacking"]:
            state = f"the fabric lacks {each['lacking']:,} messages of it; there: {there}"
        else:
            state = f"not known whether the fabric lacks something of it; there: {there}"
        lines.append(f"left over of {each['name']}: {where} ({what}): {state}")
    return lines
