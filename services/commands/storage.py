"""`raylay check storage`: measures how fast a disk makes commits durable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raylay.services.commands.shared.host_facts import gather_file_system, lines_of, place_of
from raylay.services.commands.shared.printing import echo, echo_json, print_table
from raylay.services.errors import ConfigurationError
from raylay.services.hosts.check import HostFacts, HostFinding, worst
from raylay.services.hosts.storage import (
    SyncMeasurement,
    acks_lines,
    as_json,
    judge,
    size_text,
)
from raylay.services.messages.units import parse_bytes

SIZES = ("4KiB", "64KiB", "1MiB")
SIZE_STEP = 4096
SIZE_MAX = 8 * 1024 * 1024
WRITES_MAX = 100_000
COLUMNS = ("a commit of", "commits/s", "MB/s", "p50 ms", "p99 ms", "longest ms")


def check_storage(
    directory: Annotated[
        Path, typer.Option("--directory", help="The directory for the journals.")
    ] = Path("data"),
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            help="Bytes of a commit, such as 16KiB; repeatable. Without it: 4KiB, 64KiB and 1MiB.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=600, help="Seconds of writing for each size.")
    ] = 3.0,
    as_json_: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """Measure how many synced commits a second the disk of a directory takes, and how long each
    one takes: an ack waits for that.

    It writes as a journal does, into a file of 8 MiB at most that is gone afterwards. A running
    instance on the same disk shares it for that time: both are slower.
    Exit code 1 where the disk is wrong for a journal.
    """
    from raylay.storage.sync_speed import measure_syncs

    sizes = [size_of(text) for text in size or SIZES]
    place = place_of(directory)
    facts = HostFacts(directory=str(directory))
    measured: list[SyncMeasurement] = []
    try:
        gather_file_system(facts, place)
        for each in sizes:
            took_ms = measure_syncs(place, each, WRITES_MAX, seconds)
            measured.append(SyncMeasurement(each, took_ms))
    except OSError as error:
        facts.disk_error = f"{place}: {error.strerror or error}"
    findings = judge(facts, measured)
    if as_json_:
        echo_json(document(place, facts, measured, findings))
    else:
        _print(place, facts, measured, findings)
    if worst(findings) == "wrong":
        raise typer.Exit(1)


def size_of(text: str) -> int:
    """Returns the bytes of a commit that is to be measured.

    Raises:
        ConfigurationError: it is no size, not whole pages, or too large.
    """
    found = parse_bytes(text, "--size")
    if not 0 < found <= SIZE_MAX or found % SIZE_STEP:
        raise ConfigurationError(
            f"--size {text[:40]}: a commit is written in whole pages: give a multiple of 4KiB, "
            "8MiB at most"
        )
    return found


def document(
    place: Path,
    facts: HostFacts,
    measured: list[SyncMeasurement],
    findings: list[HostFinding],
) -> dict[str, Any]:
    """Returns the result for programs."""
    return {
        "directory": str(place),
        "file_system": facts.file_system,
        "free_bytes": facts.disk_free_bytes,
        "commits": [as_json(each) for each in measured],
        "acks": acks_lines(measured) if measured else [],
        "findings": [finding._asdict() for finding in findings],
    }


def _print(
    place: Path,
    facts: HostFacts,
    measured: list[SyncMeasurement],
    findings: list[HostFinding],
) -> None:
    if measured:
        print_table(
            f"storage at {place}" + (f" ({facts.file_system})" if facts.file_system else ""),
            COLUMNS,
            [
                (
                    size_text(each.write_bytes),
                    f"{each.commits_per_s:,.0f}",
                    f"{each.bytes_per_s / 1e6:,.1f}",
                    f"{each.quantile_ms(0.5):.2f}",
                    f"{each.quantile_ms(0.99):.2f}",
                    f"{max(each.took_ms):.2f}",
                )
                for each in measured
            ],
            frozenset(COLUMNS[1:]),
        )
        for line in acks_lines(measured):
            echo(line)
    for finding in findings:
        if finding.level != "ok":
            for line in lines_of(finding):
                echo(line)
