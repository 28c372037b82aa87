"""The tasks of one micro-batch of changes over the network, in a process that a test has killed.

    python network_changes_child.py OPTIONS [START END]

The arguments are JSON. Without START and END, it asks for the begin of the stream.
"""

from __future__ import annotations

import json
import sys

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from raylay.services.pipeline.changes.network_source import (
    NetworkChangeOptions,
    NetworkChangeStreamReader,
)


def main() -> None:
    """The command."""
    options, *offsets = map(json.loads, sys.argv[1:])
    schema = from_arrow_schema(pa.schema([("row_kind", pa.string())]))
    reader = NetworkChangeStreamReader(NetworkChangeOptions.of(options), schema)
    if not offsets:
        reader.initialOffset()
        return
    for partition in reader.partitions(*offsets):
        for _ in reader.read(partition):
            pass


if __name__ == "__main__":
    main()
