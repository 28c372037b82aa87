"""The dead letters of reads as a stream of messages, which the sink publishes once.

A read cannot publish them itself: Spark may run its tasks twice, also at once, and tells a source
of no end of a batch. So its tasks write files, and a query of its own publishes what they have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from raylay.services.errors import StorageError
from raylay.services.pipeline.dead_letters import SCHEMA, letters_of
from raylay.services.pipeline.session import quiet_pandas
from raylay.storage.files import make_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AGE_MAX = "36500d"
"""Age of the files that a stream of letters remembers. Spark's default is a week, after which it
would take a file that is replaced for a new one."""


def letters_stream(spark: SparkSession, directory: str | Path) -> DataFrame:
    """Returns the letters of a table as a stream of messages for `writeStream.format("raylay")`:
    the column `body` has them as JSON, in the form that `dead_letters` = `topic:NAME` of a write
    publishes.

    A letter is in the stream once: Spark's checkpoint has the names of the files that were read,
    and a file that a repeated task replaced has the letters that it had before.

    Args:
        directory: the table's; created when it is missing.

    Raises:
        StorageError: the directory cannot be made.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        make_directory(Path(directory))
    except OSError as error:
        raise StorageError(f"{directory} cannot be made: {error}", str(directory)) from error
    letters = spark.readStream.schema(from_arrow_schema(SCHEMA)).option("maxFileAge", AGE_MAX)
    with quiet_pandas():
        return letters.parquet(str(directory)).mapInArrow(_bodies, "body BINARY")


def _bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields letters as bodies of messages. Runs in a task."""
    for batch in batches:
        bodies = [letter.to_json() for letter in letters_of(batch)]
        yield pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])
