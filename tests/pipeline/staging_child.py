"""Commits rows in a process of its own, which a test has killed half way.

    python staging_child.py STAGING ADDRESS TOPIC first last [reverse]

Stages one row a number in two files and commits them as job `numbers`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from raylay.services.pipeline.publishing.sink import (
    WriteOptions,
    known_sequence,
    normal,
    publish_rows,
)
from raylay.services.pipeline.publishing.staging import StagingDirectory, stage


def main() -> None:
    """The command."""
    directory, address, topic = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    numbers = list(range(int(sys.argv[4]), int(sys.argv[5]) + 1))
    if "reverse" in sys.argv:
        numbers.reverse()
    half = len(numbers) // 2
    files = []
    for partition, part in enumerate((numbers[:half], numbers[half:])):
        bodies = pa.array([str(number).encode() for number in part], pa.binary())
        rows = normal(pa.RecordBatch.from_arrays([bodies], names=["body"]), topic, "")
        files.append(stage(directory / f"run-{'-'.join(sys.argv[4:])}", partition, [rows]))
    options = WriteOptions.of({"servers": address})
    with StagingDirectory(directory, seen=lambda name: known_sequence(options, name)) as staging:
        print(staging.commit("numbers", files, lambda rows: publish_rows(options, rows)))


if __name__ == "__main__":
    main()
