"""`raylay journal dump|grep|verify|repair|compress|archive|remove|salvage`: works on a journal
while its instance runs.

Reading needs no lock and disturbs nobody. Compressing, archiving and removing touch only sealed
segments that no reader uses. The instance has written down which segments may be removed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from raylay.services.commands.shared.options import FabricOption
from raylay.services.commands.shared.printing import echo, echo_json, echo_result
from raylay.services.commands.shared.row_printing import (
    Row,
    print_row,
    record_line,
    segment_line,
)
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, FabricError, StorageError
from raylay.services.fabric.plan import FabricRecord, replication_address
from raylay.services.fabric.records import registry
from raylay.services.inspection.journal_rows import (
    JournalSelection,
    journal_place,
    note_row,
    record_row,
    records_of,
    segment_row,
)
from raylay.services.inspection.separate_reading import read_separately
from raylay.services.messages.records import Record
from raylay.services.server.data.salvage import TIMEOUT_S_DEFAULT, SalvageReport
from raylay.services.server.data.salvage import salvage as salvage_directory
from raylay.storage.journal import Outcome
from raylay.storage.lmdb_journal import LmdbJournalReader
from raylay.storage.maintenance import IN_USE, SegmentMaintenance
from raylay.storage.repair import repair_front
from raylay.storage.verify import VerifyResult, verify_journal

READERS_AWAITED_S = 5.0
"""Most time to wait for readers: an instance and its processes release a segment two seconds after
they last read it."""
READERS_ASKED_S = 0.25
_BOOKMARK = re.compile(r"^(\d{1,20})\|(\d{1,19})\|?$")

journal_app = typer.Typer(
    add_completion=False, help="Show, verify and maintain a journal.", no_args_is_help=True
)

JournalArgument = Annotated[
    Path,
    typer.Argument(
        metavar="JOURNAL",
        help="A journal's directory, a data directory that has one, or one segment's file.",
    ),
]
ArchiveOption = Annotated[
    Path | None, typer.Option("--archive", help="The directory of archived segments.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on each line.")]
BeforeOption = Annotated[
    int | None,
    typer.Option("--before", help="Only segments wholly below this transaction id."),
]


def _fail(text: str) -> NoReturn:
    echo(text, err=True)
    raise typer.Exit(1)


def _place(journal: Path, archive: Path | None) -> JournalSelection:
    try:
        return journal_place(journal, archive)
    except (ConfigurationError, StorageError) as error:
        _fail(str(error))


@journal_app.command()
def dump(
    journal: JournalArgument,
    archive: ArchiveOption = None,
    first: Annotated[int, typer.Option("--from", help="First transaction id.")] = 1,
    last: Annotated[int | None, typer.Option("--to", help="Last transaction id.")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", help="The maximum number of lines.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    body: Annotated[bool, typer.Option(help="Show the messages' bodies.")] = True,
    segments: Annotated[bool, typer.Option("--segments", help="List segments only.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print records and notes in the order of the log."""
    target = _place(journal, archive)
    if segments:
        _print(target, lambda: _segment_rows(target), segment_line, as_json)
        return
    end = target.end_txid
    if last is not None:
        end = last + 1 if end is None else min(end, last + 1)

    def rows() -> Iterator[Row]:
        with LmdbJournalReader(target.directory, archive) as reader:
            for txid, run, record in records_of(reader, max(first, target.first_txid), end):
                if topic is None or (record is not None and record.topic == topic):
                    yield note_row(run) if record is None else record_row(txid, run, record, body)

    _print(target, rows, record_line, as_json, count)


def _segment_rows(target: JournalSelection) -> Iterator[Row]:
    with LmdbJournalReader(target.directory, target.archive) as reader:
        for segment in reader.segments():
            if target.only is None or segment.path in target.only:
                yield segment_row(segment)


def _print(
    target: JournalSelection,
    rows: Callable[[], Iterator[Row]],
    line: Callable[[Row], str],
    as_json: bool,
    count: int | None = None,
) -> int:
    """Prints the rows that are read in another process, which a damaged page may end. Returns how
    many there were."""
    shown = 0
    try:
        for row in read_separately(rows, str(target.directory)):
            if count is not None and shown >= count:
                break
            print_row(row, as_json, line(row))
            shown += 1
    except StorageError as error:
        _fail(str(error))
    return shown


@journal_app.command()
def grep(
    pattern: Annotated[
        str, typer.Argument(help="A bookmark, or a regular expression searched in the bodies.")
    ],
    journal: JournalArgument,
    archive: ArchiveOption = None,
    topic: Annotated[str | None, typer.Option(help="Only topics that match this.")] = None,
    publisher: Annotated[int | None, typer.Option(help="Only this publisher id.")] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", help="The maximum number of lines.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find messages by bookmark, body, topic or publisher. Exit code 1 if there are none."""
    target = _place(journal, archive)
    bookmark = _BOOKMARK.match(pattern)
    try:
        wanted = re.compile(pattern.encode())
        wanted_topic = re.compile(topic) if topic is not None else None
    except re.error as error:
        wrong = error.pattern
        told = wrong.decode(errors="replace") if isinstance(wrong, bytes) else wrong
        _fail(f"{told!r} is not a valid regular expression: {error}")

    def wants(record: Record) -> bool:
        return (
            (publisher is None or record.publisher == publisher)
            and (wanted_topic is None or wanted_topic.search(record.topic) is not None)
            and wanted.search(record.body) is not None
        )

    def rows() -> Iterator[Row]:
        with LmdbJournalReader(target.directory, archive) as reader:
            first, end = target.first_txid, target.end_txid
            if bookmark:
                at = reader.find_sequence(int(bookmark[1]), int(bookmark[2]))
                if at is None:
                    return
                first, end = at, at + 1
            for txid, run, record in records_of(reader, first, end):
                if record is not None and (bookmark or wants(record)):
                    yield record_row(txid, run, record, True)

    found = _print(target, rows, record_line, as_json, None if bookmark else count)
    if not found:
        raise typer.Exit(1)


@journal_app.command()
def verify(
    journal: JournalArgument, archive: ArchiveOption = None, as_json: JsonOption = False
) -> None:
    """Verify every checksum and the order. Exit code 1 if anything is damaged."""
    target = _place(journal, archive)
    verified = VerifyResult()
    damages = 0
    for damage in verify_journal(target.directory, archive, verified, target.only):
        damages += 1
        if as_json:
            echo(
                json.dumps(
                    {"path": str(damage.path), "offset": damage.offset, "damage": damage.text}
                )
            )
        else:
            echo(f"{damage.path}, byte {damage.offset}: {damage.text}")
    if as_json:
        echo_json({**asdict(verified), "damages": damages})
    else:
        echo(
            f"{verified.segments} segments, {verified.runs} runs, {verified.records} records: "
            + (f"{damages} damages" if damages else "sound")
        )
    if damages:
        raise typer.Exit(1)


@journal_app.command()
def repair(
    journal: JournalArgument, archive: ArchiveOption = None, as_json: JsonOption = False
) -> None:
    """Keep the sound part of a damaged front log, and put its files aside. The instance must be
    stopped."""
    target = _place(journal, archive)
    try:
        line = repair_front(target.directory, archive)
        echo_result(as_json, line, journal=str(target.directory), message=line)
    except StorageError as error:
        _fail(str(error))


def behind_readers(change: Callable[[], list[Outcome]]) -> list[Outcome]:
    """Changes segments, and tries again for some seconds while some are in use, because an instance
    keeps a segment open for a moment after it has read it."""
    deadline_s = time.monotonic() + READERS_AWAITED_S
    done: list[Outcome] = []
    while True:
        outcomes = change()
        done += [outcome for outcome in outcomes if outcome.done]
        left = [outcome for outcome in outcomes if not outcome.done]
        # Behind a colon stands a read that has planned it, which takes minutes.
        is_read = any(
            outcome.note == IN_USE or outcome.note.startswith(f"{IN_USE} (") for outcome in left
        )
        if not is_read or time.monotonic() >= deadline_s:
            return sorted(done + left, key=lambda outcome: outcome.first_txid)
        time.sleep(READERS_ASKED_S)


def _report(outcomes: list[Outcome], as_json: bool) -> None:
    """Prints what was done. Exits with code 2 when something was asked for and nothing was done."""
    for outcome in outcomes:
        if as_json:
            echo(
                json.dumps(
                    {
                        "segment": outcome.path.name,
                        "first_txid": outcome.first_txid,
                        "last_txid": outcome.last_txid,
                        "done": outcome.done,
                        "note": outcome.note,
                    }
                )
            )
        else:
            echo(
                f"{outcome.path.name}  {outcome.first_txid} to {outcome.last_txid}: {outcome.note}"
            )
    if not outcomes and not as_json:
        echo("nothing to do")
    if outcomes and not any(outcome.done for outcome in outcomes):
        raise typer.Exit(2)


@journal_app.command()
def compress(
    journal: JournalArgument,
    archive: ArchiveOption = None,
    before: BeforeOption = None,
    level: Annotated[int, typer.Option(min=1, max=19, help="zstd level.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Compress sealed segments in place; segments in use are skipped."""
    target = _place(journal, archive)
    try:
        maintenance = SegmentMaintenance(target.directory, archive, level=level)
        _report(behind_readers(lambda: maintenance.compress(_before(target, before))), as_json)
    except StorageError as error:
        _fail(str(error))


@journal_app.command("archive")
def archive_segments(
    journal: JournalArgument,
    archive: Annotated[Path, typer.Option("--archive", help="The directory to move segments to.")],
    before: BeforeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move sealed segments to the archive directory, where they stay part of the log."""
    target = _place(journal, archive)
    try:
        maintenance = SegmentMaintenance(target.directory, archive)
        _report(behind_readers(lambda: maintenance.archive(_before(target, before))), as_json)
    except StorageError as error:
        _fail(str(error))


@journal_app.command()
def remove(
    journal: JournalArgument,
    before: Annotated[
        int, typer.Option("--before", help="Segments wholly below this transaction id.")
    ],
    archive: ArchiveOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help=("Remove also segments that the instance has not released.")),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove segments for good, oldest first, without leaving a gap."""
    target = _place(journal, archive)
    try:
        maintenance = SegmentMaintenance(target.directory, archive)
        _report(behind_readers(lambda: maintenance.remove(before, force=force)), as_json)
    except StorageError as error:
        _fail(str(error))


@journal_app.command()
def salvage(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="A retired data directory.")
    ],
    fabric: FabricOption = "",
    check: Annotated[
        bool, typer.Option("--check", help="Send nothing: show what the fabric lacks.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for every destination.")
    ] = TIMEOUT_S_DEFAULT,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="The directory is gone: remove it from `raylay status`."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send the messages in a moved instance's former data directory to the instances that lack
    them, under their old identities. It is safe to repeat. Exit code 1 while an instance still
    lacks something."""
    if forget:
        echo(forget_directory(directory.absolute(), fabric))
        return
    record = known_record(fabric, directory)
    report = salvage_directory(
        directory.absolute(), replication_addresses(record), check=check, timeout_s=timeout_s
    )
    noted = note_salvage(record, report)
    if as_json:
        echo_json({**asdict(report), "done": report.is_done, "noted": noted})
    else:
        for line in salvage_lines(report):
            echo(line)
    if not report.is_done:
        raise typer.Exit(1)


def salvage_lines(report: SalvageReport) -> list[str]:
    """Returns the lines on a salvage, one for each destination."""
    lines = [
        f"{report.instance}, generation {report.generation}, incarnation {report.incarnation}: "
        f"{report.messages:,} messages in {report.directory}"
    ]
    verb = "lacks" if report.checked_only else "was sent"
    for name, sent in report.sent.items():
        if name in report.waiting:
            lines.append(f"  {name}: not reached: {report.waiting[name]}")
        else:
            lines.append(f"  {name}: {report.servers[name]} {verb} {sent:,} messages")
    if report.conflicts:
        lines.append(
            f"  {report.conflicts:,} messages are held there with another content: they were not "
            "sent; compare them with `raylay journal dump`"
        )
    if report.waiting:
        lines.append("run it again when those instances are back; no message is sent twice")
    elif report.is_done:
        lines.append("the fabric has all its messages: the directory may be archived or removed")
    return lines


def known_record(fabric: str, directory: Path) -> FabricRecord | None:
    """Returns the record of the fabric of this name, of the fabric that the directory belongs to,
    or of the only one that runs here. None where there is none.

    Raises:
        FabricError: no fabric of that name runs here.
    """
    entry = registry.find(fabric) if fabric else None
    if fabric and entry is None:
        raise FabricError(
            f"no fabric {fabric} runs here: leave --fabric out to use the last known addresses"
        )
    places = [entry.directory] if entry is not None else [str(directory.absolute().parent)]
    running = registry.running()
    if entry is None and len(running) == 1:
        places.append(running[0].directory)
    for place in places:
        record = FabricRecord.load(place)
        if record is not None:
            return record
    return None


def replication_addresses(record: FabricRecord | None) -> dict[str, str]:
    """Returns the addresses of a fabric's instances, by name."""
    if record is None:
        return {}
    settings = FabricSettings.from_json(record.settings)
    return {instance.name: replication_address(record, instance) for instance in settings.instances}


def note_salvage(record: FabricRecord | None, report: SalvageReport) -> bool:
    """Reports the result of a salvage to the fabric, where it runs. Prints the reason where that
    fails."""
    if record is None or registry.find(record.name) is None:
        return False
    from raylay.services.fabric import Fabric

    lacking = sum(report.sent.values()) if report.checked_only else 0
    try:
        with Fabric.attach(record.name) as attached:
            return attached.note_salvage(
                report.instance,
                report.generation,
                salvaged=report.is_done,
                lacking=None if report.waiting else lacking,
            )
    except FabricError as error:
        echo(
            "raylay: `raylay status` on other hosts does not show this salvage yet, run it "
            f"again later: {error}",
            err=True,
        )
        return False


def forget_directory(directory: Path, fabric: str) -> str:
    """Makes the fabric forget a left-over directory. Returns a sentence about it.

    Raises:
        FabricError: the directory still exists, or the fabric knows of none.
    """
    from raylay.services.fabric import Fabric, find_running

    with Fabric.attach(find_running(fabric).name) as attached:
        left_over = attached.forget_left_over(str(directory))
    if left_over.salvaged:
        lacked = "the fabric has all its messages"
    elif left_over.lacking:
        lacked = f"the fabric lacked {left_over.lacking:,} of its messages"
    else:
        lacked = "whether the fabric has all its messages is unknown"
    return (
        f"{directory} on {left_over.host} of {left_over.name} is removed from `raylay status`: "
        f"{lacked}"
    )


def _before(target: JournalSelection, before: int | None) -> int | None:
    """Returns the transaction id below which the command works on whole segments. A segment's file
    as the target stands for that segment and all older ones."""
    if target.end_txid is None:
        return before
    return target.end_txid if before is None else min(before, target.end_txid)
