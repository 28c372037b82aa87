"""`raylay pipeline archive|audit|publish`: the pipeline's jobs as commands.

Each prints its progress to the standard error and one JSON object to the standard output, and ends
with exit code 1 where its verdict is bad. Spark is started only by the commands that need it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.pipeline.session import check_spark, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raylay.services.pipeline.journals import Place

pipeline_app = typer.Typer(
    help="Spark over journals: archive, audit, publish.", no_args_is_help=True
)

FromArgument = Annotated[
    str,
    typer.Argument(
        metavar="FABRIC",
        help="A fabric's directory or name, or data directories or journals with commas.",
    ),
]
InstanceOption = Annotated[
    list[str] | None, typer.Option("--instance", help="Only this instance; repeatable.")
]
MasterOption = Annotated[str, typer.Option("--master", help="Spark's master URL.")]
MASTER_DEFAULT = "local[*]"


class OnCorrupt(StrEnum):
    """What a damaged record does."""

    STOP = "stop"
    SKIP = "skip"


def _places(source: str, instances: list[str] | None) -> list[Place]:
    from raylay.services.pipeline.journals import places

    if all(Path(each.strip()).exists() for each in source.split(",")):
        return places(path=source, instances=instances or ())
    return places(fabric=source, instances=instances or ())


@contextmanager
def _spark(master: str, app: str) -> Iterator[SparkSession]:
    """A session for one job; what Spark says of an error of ours is one line."""
    from pyspark.errors import PySparkException

    made = session(master, f"raylay {app}")
    try:
        yield made
    except PySparkException as error:
        raise ConfigurationError(our_line(str(error))) from None
    finally:
        made.stop()


def our_line(text: str) -> str:
    """The line of Spark's report that says what is wrong: our error, or its first line."""
    for line in reversed(text.splitlines()):
        name, colon, message = line.strip().partition(": ")
        if colon and name.startswith("raylay.services.errors."):
            return message
    return text.strip().splitlines()[0] if text.strip() else "Spark failed and did not say why"


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(name: str, started_s: float, values: dict[str, Any]) -> None:
    values["seconds"] = round(time.monotonic() - started_s, 1)
    print(json.dumps({name: values}), flush=True)


@pipeline_app.command("archive")
def archive_command(
    source: FromArgument,
    lake: Annotated[Path, typer.Option("--lake", help="Where the Parquet files lie.")],
    instance: InstanceOption = None,
    chunk: Annotated[
        int, typer.Option("--chunk", min=1, help="Records written and verified in one step.")
    ] = 5_000_000,
    master: MasterOption = MASTER_DEFAULT,
) -> None:
    """Brings a lake of Parquet files up to what the journals hold."""
    check_spark()
    from raylay.services.pipeline.archive import archive

    started_s = time.monotonic()
    found = _places(source, instance)
    with _spark(master, "archive") as spark:
        summaries = archive(spark, lake, found, chunk_records=chunk, progress=_progress)
    _report(
        "archive",
        started_s,
        {
            "records": sum(each.archived_records for each in summaries),
            "instances": [asdict(each) for each in summaries],
        },
    )


@pipeline_app.command("audit")
def audit_command(
    source: FromArgument,
    instance: InstanceOption = None,
    settle: Annotated[
        float, typer.Option("--settle", min=0.0, help="Seconds that a message may be on its way.")
    ] = 10.0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the report to this file: FILE.html.")
    ] = None,
    on_corrupt: Annotated[
        OnCorrupt, typer.Option("--on-corrupt", help="At a damaged record: stop, or go on.")
    ] = OnCorrupt.STOP,
    master: MasterOption = MASTER_DEFAULT,
) -> None:
    """Judges whether every message is where it should be, once and in order. Exits 1 if not."""
    check_spark()
    from raylay.services.pipeline.audit import audit_source, write_page
    from raylay.services.reports.page import check_reports

    if report is not None:
        check_reports()
    started_s = time.monotonic()
    found = _places(source, instance)
    with _spark(master, "audit") as spark:
        result = audit_source(
            spark, source, found, settle_s=settle, on_corrupt=on_corrupt.value, progress=_progress
        )
    if report is not None:
        write_page(result, report, source, f"raylay pipeline audit {source} --report {report}")
        _progress(f"report: {report}")
    _report("audit", started_s, result.to_json())
    if not result.valid:
        raise typer.Exit(1)


@pipeline_app.command("publish")
def publish_command(
    staging: Annotated[Path, typer.Argument(help="The staging directory of a write.")],
    server: Annotated[
        list[str] | None, typer.Option("--server", help="host:port; repeatable.")
    ] = None,
    fabric: Annotated[str, typer.Option("--fabric", "-f", help="Or a fabric's name.")] = "",
    group: Annotated[
        str, typer.Option("--group", "-g", help="Region whose instances to use.")
    ] = "",
) -> None:
    """Publishes what a write from Spark left staged, each row once."""
    check_spark()
    from raylay.services.pipeline.sink import WriteOptions, publish_pending

    started_s = time.monotonic()
    options = WriteOptions.of({"servers": ",".join(server or ()), "fabric": fabric, "group": group})
    _report("publish", started_s, {"published": publish_pending(staging, options)})


def main() -> int:
    """The command without the rest of `raylay`."""
    try:
        pipeline_app()
    except RaylayError as error:
        print(f"raylay: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
