"""`raylay pipeline …`: the jobs as commands.

Each job prints its progress to the standard error and one JSON object to the standard output, and
ends with exit code 1 where its verdict is bad. Only the commands that need Spark start it.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.client.credentials import tls_settings
from raylay.services.commands.shared.interrupts import INTERRUPTED, SIGNALS, interruptible
from raylay.services.commands.shared.printing import echo, echo_json, echo_text
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.messages.units import parse_bytes, parse_milliseconds
from raylay.services.pipeline.session import check_spark, one_line, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raylay.services.pipeline.journals import JournalPlace

pipeline_app = typer.Typer(
    add_completion=False,
    help="Spark over journals: archive, compact, expire, audit, aggregate, latency, replay.",
    no_args_is_help=True,
)

FromArgument = Annotated[
    str,
    typer.Argument(
        metavar="FABRIC",
        help="A fabric's directory, file or name, or data directories or journals with commas.",
    ),
]
InstanceOption = Annotated[
    list[str] | None, typer.Option("--instance", help="Only this instance; repeatable.")
]
MasterOption = Annotated[str, typer.Option("--master", help="Spark's master URL.")]
MASTER_DEFAULT = "local[*]"
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write the report to this file: FILE.html.")
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", help="Show Spark's whole report of an error, with Java stacks."),
]


class OnCorrupt(StrEnum):
    """The effect of a damaged record on a job."""

    STOP = "stop"
    SKIP = "skip"


ServerOption = Annotated[
    list[str] | None, typer.Option("--server", help="host:port to publish to; repeatable.")
]
ToFabricOption = Annotated[
    str,
    typer.Option("--fabric", "-f", help=("The fabric to publish to: its name, file or directory.")),
]
GroupOption = Annotated[
    str, typer.Option("--group", "-g", help="The region of the instances to use.")
]
OnCorruptOption = Annotated[
    OnCorrupt, typer.Option("--on-corrupt", help="What to do at a damaged record.")
]


DeadLettersOption = Annotated[
    str,
    typer.Option(
        "--dead-letters",
        help="Keep messages that are refused in this directory of Parquet files, or topic:NAME.",
    ),
]


class ReadMode(StrEnum):
    """The effect of a body that does not fit the schema of a read."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"
    DEAD_LETTER = "dead_letter"


class BodyMode(StrEnum):
    """The effect of a body that does not fit the schema."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"


class ReplayClock(StrEnum):
    """The timestamp whose intervals a replay reproduces."""

    RECEIVE = "receive_time"
    ORIGIN = "origin_time"


def _places(source: str, instances: list[str] | None) -> list[JournalPlace]:
    from raylay.services.pipeline.journals import places_of

    return places_of(source, instances or ())


def _where_to(server: list[str] | None, fabric: str, group: str) -> dict[str, str]:
    """Returns the options of a write to this target, with TLS where the command line asks for
    it."""
    return {
        "servers": ",".join(server or ()),
        "fabric": fabric,
        "group": group,
        **(tls_settings() or {}),
    }


@contextmanager
def _spark(
    master: str, app: str, debug: bool, stop: threading.Event | None = None
) -> Iterator[SparkSession]:
    """Opens a Spark session for one job. An error of Raylay inside Spark is reported in one line,
    unless the whole report is asked for, as is the end of Spark's Java process. Ctrl-C and SIGTERM
    end the job, and are one line.

    Args:
        stop: is set by these signals instead, for a job that stops in order.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    said = f"raylay: interrupted: ending {app}"
    made = None
    with _quiet_py4j(debug), interruptible(said) if stop is None else _stopped_by_signals(stop):
        try:
            made = _started(master, app, debug)
            if not debug and (updates := getattr(made.sparkContext, "_accumulatorServer", None)):
                # It prints a stack where Java ends.
                vars(updates).update(handle_error=lambda *_: None)
            yield made
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (PySparkException, Py4JError, ConnectionError) as error:
            if debug:
                _progress(str(error))
            if _follows_interrupt(error):
                raise typer.Exit(INTERRUPTED) from None
            if isinstance(error, PySparkException):
                raise ConfigurationError(one_line(error)) from None
            # A signal to the whole process group has ended Java before the job stopped.
            ending = "ended before the job could stop" if stop and stop.is_set() else "ended"
            raise ConfigurationError(
                f"Spark's Java process {ending}: run the same command again to continue; "
                "--debug shows Spark's own report"
            ) from None
        finally:
            if made is not None:
                with suppress(Py4JError, ConnectionError):  # its Java may be gone
                    made.stop()


def _started(master: str, app: str, debug: bool) -> SparkSession:
    """Starts Spark. A signal that comes meanwhile has its effect when Spark is there: a Java
    process that is left in the middle of its start goes on alone."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda got, _: came.append(got))
    try:
        return session(master, f"raylay {app}", log_level="ERROR" if debug else "")
    finally:
        # PySpark puts a handler of its own there, too.
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in came:
            handler = before[signal.Signals(got)]
            assert callable(handler)
            handler(got, None)


def _follows_interrupt(error: BaseException | None) -> bool:
    """Returns whether an error came while an interrupt was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _quiet_py4j(debug: bool) -> Iterator[None]:
    """Leaves out what Py4J logs, with the root logger and its own: the stacks of an interrupt and
    of a lost connection in a call to Java, which are raised as well."""
    root, own = logging.getLogger(), logging.getLogger("py4j")
    propagates = own.propagate

    def passes(record: logging.LogRecord) -> bool:
        return debug or Path(record.pathname).parent.name != "py4j"

    root.addFilter(passes)
    own.propagate = propagates and debug
    try:
        yield
    finally:
        own.propagate = propagates
        root.removeFilter(passes)


def _progress(line: str) -> None:
    echo(line, err=True)


def _check_report(path: Path) -> None:
    """Refuses, before the work, a report that cannot be made or written."""
    from raylay.services.reports.page import check_reports

    check_reports()
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise ConfigurationError(
            f"--report {path}: {path.parent} is not a directory that can be written to"
        )


def _report(name: str, started_s: float, values: dict[str, Any]) -> None:
    values["seconds"] = round(time.monotonic() - started_s, 1)
    echo_json({name: values})


@pipeline_app.command("archive")
def archive_command(
    source: FromArgument,
    lake: Annotated[Path, typer.Option("--lake", help="The directory of the Parquet files.")],
    instance: InstanceOption = None,
    chunk: Annotated[
        int, typer.Option("--chunk", min=1, help="Records written and verified in one step.")
    ] = 5_000_000,
    on_corrupt: OnCorruptOption = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Bring a lake of Parquet files up to date with the journals."""
    check_spark()
    from raylay.services.pipeline.archive import archive

    started_s = time.monotonic()
    found = _places(source, instance)
    with _spark(master, "archive", debug) as spark:
        summaries = archive(
            spark,
            lake,
            found,
            chunk_records=chunk,
            on_corrupt=on_corrupt.value,
            progress=_progress,
        )
    _report(
        "archive",
        started_s,
        {
            "records": sum(summary.archived_records for summary in summaries),
            "instances": [asdict(summary) for summary in summaries],
        },
    )


LakeArgument = Annotated[
    Path, typer.Argument(metavar="LAKE", help="The directory of the Parquet files.")
]
KeepOption = Annotated[
    str,
    typer.Option("--keep", help="How long files that are left out stay, for readers that began."),
]


@pipeline_app.command("compact")
def compact_command(
    lake: LakeArgument,
    small: Annotated[
        str, typer.Option("--small", help="Files of fewer bytes are written into one.")
    ] = "64MiB",
    keep: KeepOption = "1d",
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Write the small files of each instance, topic and day of a lake into one."""
    check_spark()
    from raylay.services.pipeline.archive import compact

    started_s = time.monotonic()
    small_bytes = parse_bytes(small, "--small")
    keep_s = parse_milliseconds(_zero(keep), "--keep") / 1000
    with _spark(master, "compact", debug) as spark:
        summary = compact(spark, lake, small_bytes=small_bytes, keep_s=keep_s, progress=_progress)
    _report("compact", started_s, asdict(summary))


@pipeline_app.command("expire")
def expire_command(
    lake: LakeArgument,
    before: Annotated[
        str,
        typer.Option("--before", help="Leave out what was received before this day, in UTC."),
    ],
    keep: KeepOption = "1d",
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Leave out the old days of a lake."""
    check_spark()
    from raylay.services.pipeline.archive import expire

    started_s = time.monotonic()
    try:
        day = dt.date.fromisoformat(before)
    except ValueError:
        raise ConfigurationError(
            f"--before is {before!r}: give a day such as 2026-01-02; a lake is divided by days"
        ) from None
    keep_s = parse_milliseconds(_zero(keep), "--keep") / 1000
    with _spark(master, "expire", debug) as spark:
        summary = expire(spark, lake, day, keep_s=keep_s, progress=_progress)
    _report("expire", started_s, asdict(summary))


def _zero(text: str) -> str | int:
    return 0 if text == "0" else text


@pipeline_app.command("audit")
def audit_command(
    source: FromArgument,
    instance: InstanceOption = None,
    settle: Annotated[
        float,
        typer.Option("--settle", min=0.0, help=("Most seconds that a message may be on its way.")),
    ] = 10.0,
    max_owed: Annotated[
        float,
        typer.Option(
            "--max-owed",
            min=0.0,
            help=("Most seconds that a link may owe a message; more ends with exit code 1."),
        ),
    ] = 60.0,
    network: Annotated[
        bool,
        typer.Option(
            "--network", help="Ask the running instances of a fabric; needs no data directory."
        ),
    ] = False,
    report: ReportOption = None,
    on_corrupt: OnCorruptOption = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Check that every message is where it should be, once and in order. Exit code 1 if not."""
    check_spark()
    from raylay.services.pipeline.audit.job import audit_source, write_page
    from raylay.services.pipeline.audit.network import audit_network_source

    if report is not None:
        _check_report(report)
    started_s = time.monotonic()
    bounds: dict[str, Any] = {
        "settle_s": settle,
        "max_owed_s": max_owed,
        "progress": _progress,
    }
    if network and on_corrupt is not OnCorrupt.STOP:
        raise ConfigurationError(
            "--on-corrupt is about the files of journals: leave it or --network out"
        )
    found = [] if network else _places(source, instance)
    with _spark(master, "audit", debug) as spark:
        if network:
            result = audit_network_source(spark, source, instance or (), **bounds)
        else:
            result = audit_source(spark, source, found, on_corrupt=on_corrupt.value, **bounds)
    if report is not None:
        again = f"raylay pipeline audit {source}{' --network' if network else ''}"
        write_page(result, report, source, f"{again} --report {report}")
        _progress(f"report: {report}")
    for text in result.not_checked:
        _progress(f"not checked: {text}")
    for note in result.owed_notes(overdue=False):
        _progress(note)
    _report("audit", started_s, result.to_json())
    if not result.valid:
        raise typer.Exit(1)


@pipeline_app.command("aggregate")
def aggregate_command(
    source: FromArgument,
    topic: Annotated[str, typer.Option("--topic", help="The topic: a name or an expression.")],
    schema: Annotated[str, typer.Option("--schema", help="The schema of the bodies, as DDL.")],
    by: Annotated[
        list[str], typer.Option("--by", help="A group: a field, a column or name=SQL; repeatable.")
    ],
    into: Annotated[str, typer.Option("--into", help="The topic of the results.")],
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", help="The directory for the job's progress.")
    ],
    value: Annotated[
        list[str] | None,
        typer.Option("--value", help="A number to sum up, given in the same way; repeatable."),
    ] = None,
    time_of: Annotated[
        str, typer.Option("--time", help="SQL expression of a message's time.")
    ] = "origin_time",
    window: Annotated[str, typer.Option("--window", help="The windows' length.")] = "10s",
    watermark: Annotated[
        str, typer.Option("--watermark", help="How late a message may arrive.")
    ] = "10s",
    max_ahead: Annotated[
        str,
        typer.Option(
            "--max-ahead",
            help="A time further ahead of the message's receipt is replaced by it; 1m for "
            "origin_time, else no limit.",
        ),
    ] = "",
    mode: Annotated[
        ReadMode, typer.Option("--mode", help="What to do with bodies that do not fit the schema.")
    ] = ReadMode.FAILFAST,
    updates: Annotated[
        bool, typer.Option("--updates", help="Publish each change, not each window once.")
    ] = False,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help=("End when everything that is committed now is read.")
        ),
    ] = False,
    for_time: Annotated[str, typer.Option("--for", help="End after this time.")] = "",
    every: Annotated[
        str, typer.Option("--every", help=("How often to look for new messages."))
    ] = "1s",
    starting: Annotated[
        str,
        typer.Option("--starting", help="Where a new checkpoint begins: 0, 0|1| (now), a time, …"),
    ] = "0",
    server: ServerOption = None,
    group: Annotated[
        str,
        typer.Option(
            "--group", "-g", help="The region to publish to; default: the instance's own."
        ),
    ] = "",
    instance: Annotated[
        str,
        typer.Option("--instance", help="The instance to read; default: the fabric's first."),
    ] = "",
    dead_letters: DeadLettersOption = "",
    on_corrupt: OnCorruptOption = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Sum a topic up in windows of time and publish the results, until Ctrl-C."""
    check_spark()
    from raylay.services.pipeline.aggregate import Windows, aggregate
    from raylay.services.pipeline.journals import record_of

    started_s = time.monotonic()
    windows = Windows(
        topic,
        schema,
        tuple(by),
        tuple(value or ()),
        time_of,
        parse_milliseconds(window, "--window"),
        parse_milliseconds(watermark, "--watermark"),
        updates,
        parse_milliseconds(max_ahead, "--max-ahead") if max_ahead else None,
    )
    for_s = parse_milliseconds(for_time, "--for") / 1000 if for_time else None
    every_ms = parse_milliseconds(every, "--every")
    # All instances that hold a topic hold the same messages: one is read.
    place = _places(source, [instance] if instance else None)[0]
    record = record_of(source)
    publish = (
        _where_to(server, "", "")
        if server
        else _where_to(None, record.directory if record else source, group or place.group)
    )
    if dead_letters:
        publish["dead_letters"] = dead_letters
    stop = threading.Event()
    with _spark(master, "aggregate", debug, stop) as spark:
        summary = aggregate(
            spark,
            place,
            windows,
            into,
            publish,
            checkpoint,
            until_caught_up=until_caught_up,
            for_s=for_s,
            every_ms=every_ms,
            starting=starting,
            on_corrupt=on_corrupt.value,
            mode=mode.value,
            stop=stop,
            progress=_progress,
        )
    _report("aggregate", started_s, asdict(summary))


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM set an event."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pipeline_app.command("latency")
def latency_command(
    source: FromArgument,
    instance: InstanceOption = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only these topics: names or expressions.")
    ] = None,
    from_time: Annotated[
        str, typer.Option("--from", help="UTC time of the publish; inclusive.")
    ] = "",
    to_time: Annotated[str, typer.Option("--to", help="UTC time; exclusive.")] = "",
    window: Annotated[
        str, typer.Option("--window", help="The length of the intervals for percentiles.")
    ] = "1s",
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Trace files; default: the fabric's own.")
    ] = None,
    max_p99: Annotated[
        str,
        typer.Option(
            "--max-p99", help="The largest p99 that a link may have; more ends with exit code 1."
        ),
    ] = "",
    max_ack_p99: Annotated[
        str,
        typer.Option(
            "--max-ack-p99",
            help=("The largest p99 of a region's acknowledgments; more ends with exit code 1."),
        ),
    ] = "",
    report: ReportOption = None,
    on_corrupt: OnCorruptOption = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Show how long messages took: by link, region and publisher, from journals and traces."""
    check_spark()
    from raylay.services.pipeline.journals import settings_of
    from raylay.services.pipeline.latency.job import (
        LatencySelection,
        latency,
        link_types_of,
        traces_of,
    )
    from raylay.services.pipeline.latency.page import page_of
    from raylay.services.pipeline.selection import parse_range

    if report is not None:
        _check_report(report)
    started_s = time.monotonic()
    choice = LatencySelection(
        *parse_range(from_time, to_time),
        tuple(topic or ()),
        parse_milliseconds(window, "--window"),
    )
    bounds_ms = [
        float(parse_milliseconds(text, name)) if text else 0.0
        for text, name in ((max_p99, "--max-p99"), (max_ack_p99, "--max-ack-p99"))
    ]
    found = _places(source, instance)
    settings = settings_of(source)
    with _spark(master, "latency", debug) as spark:
        result = latency(
            spark,
            found,
            choice,
            traces=traces or traces_of(source),
            link_types=link_types_of(settings) if settings is not None else {},
            max_p99_ms=bounds_ms[0],
            max_ack_p99_ms=bounds_ms[1],
            on_corrupt=on_corrupt.value,
            progress=_progress,
        )
    if report is not None:
        page = page_of(result, source, f"raylay pipeline latency {source} --report {report}")
        report.write_text(page.html(), encoding="utf-8")
        _progress(f"report: {report}")
    _report("latency", started_s, result.to_json())
    if not result.valid:
        raise typer.Exit(1)


@pipeline_app.command("replay")
def replay_command(
    source: Annotated[
        str, typer.Argument(help="A lake, a fabric's directory, file or name, or data directories.")
    ],
    server: ServerOption = None,
    fabric: ToFabricOption = "",
    group: GroupOption = "",
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="Only these topics: names or expressions.")
    ] = None,
    to_topic: Annotated[
        str,
        typer.Option("--to-topic", help="The topic to publish to; {topic} is the original one."),
    ] = "",
    from_time: Annotated[str, typer.Option("--from", help="UTC time; inclusive.")] = "",
    to_time: Annotated[str, typer.Option("--to", help="UTC time; exclusive.")] = "",
    spark_where: Annotated[
        str, typer.Option("--spark-where", help="Spark SQL over the columns, and `value`.")
    ] = "",
    schema: Annotated[
        str, typer.Option("--schema", help="DDL of the bodies, for `value` in the filter.")
    ] = "",
    mode: Annotated[
        BodyMode, typer.Option("--mode", help="What to do with bodies that do not fit the schema.")
    ] = BodyMode.FAILFAST,
    speed: Annotated[
        str, typer.Option("--speed", help="1: the original; 10: ten times; full: no pauses.")
    ] = "1",
    gap_max: Annotated[
        str, typer.Option("--gap-max", help=("The longest pause; longer ones are shortened to it."))
    ] = "0ms",
    clock: Annotated[
        ReplayClock, typer.Option("--clock", help="The clock whose intervals are kept.")
    ] = ReplayClock.RECEIVE,
    instance: Annotated[
        str,
        typer.Option(
            "--instance",
            help=("The instance to read; default: the one with most of the selected messages."),
        ),
    ] = "",
    job: Annotated[
        str, typer.Option("--job", help="The name of the job, by which it resumes.")
    ] = "",
    staging: Annotated[
        Path | None, typer.Option("--staging", help="The directory for the state of jobs.")
    ] = None,
    chunk: Annotated[
        int, typer.Option("--chunk", min=1, help="Messages staged at once.")
    ] = 100_000,
    dead_letters: DeadLettersOption = "",
    on_corrupt: OnCorruptOption = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
    debug: DebugOption = False,
) -> None:
    """Publish the messages of a lake or a journal again, in order, at any speed, each message
    once."""
    check_spark()
    from raylay.services.pipeline.publishing.sink import WriteOptions, check_target
    from raylay.services.pipeline.replay.job import replay
    from raylay.services.pipeline.replay.source import ReplaySelection, SparkSource
    from raylay.services.pipeline.selection import parse_range, parse_speed

    started_s = time.monotonic()
    first, last = parse_range(from_time, to_time)
    selection = ReplaySelection(
        first, last, tuple(topic or ()), spark_where, schema, to_topic, clock.value, mode.value
    )
    factor, gap_max_us = parse_speed(speed), parse_milliseconds(gap_max, "--gap-max") * 1000
    if job and staging is None:
        raise ConfigurationError("a job is stored in its staging directory: give --staging")
    target = WriteOptions.of(_where_to(server, fabric, group) | {"dead_letters": dead_letters})
    check_target(target)
    job = job or f"replay-{os.urandom(4).hex()}"
    where = staging or Path(tempfile.mkdtemp(prefix="raylay-replay-"))
    try:
        with _spark(master, "replay", debug) as spark:
            found = SparkSource(
                *(spark, source, selection, instance, _progress, on_corrupt.value),
                target_fabric=fabric,
            )
            summary = replay(
                found,
                target,
                where,
                job,
                speed=factor,
                gap_max_us=gap_max_us,
                chunk_rows=chunk,
                progress=_progress,
            )
    except BaseException:
        if (where / job / "replay.json").exists():
            _progress(f"run it again with --job {job} --staging {where} to continue")
        elif staging is None:
            shutil.rmtree(where, ignore_errors=True)
        raise
    if staging is None:
        shutil.rmtree(where, ignore_errors=True)
    _report("replay", started_s, {**summary.to_json(), "publishing_seconds": summary.seconds})


@pipeline_app.command("publish")
def publish_command(
    staging: Annotated[Path, typer.Argument(help="The staging directory of a write.")],
    server: Annotated[
        list[str] | None, typer.Option("--server", help="host:port; repeatable.")
    ] = None,
    fabric: ToFabricOption = "",
    group: GroupOption = "",
    dead_letters: DeadLettersOption = "",
) -> None:
    """Publish what a write from Spark left staged, each row once."""
    check_spark()
    from raylay.services.pipeline.publishing.sink import WriteOptions, publish_pending

    started_s = time.monotonic()
    options = WriteOptions.of(_where_to(server, fabric, group) | {"dead_letters": dead_letters})
    published = publish_pending(staging, options, any_reason=True)
    _report("publish", started_s, {"published": published})


def main() -> int:
    """Runs the pipeline commands without the rest of `raylay`."""
    try:
        pipeline_app()
    except RaylayError as error:
        echo_text(f"raylay: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
