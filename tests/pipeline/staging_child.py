"""Commits rows in a process of its own, which a test has killed half way.

    python staging_child.py STAGING ADDRESS TOPIC first last [reverse] [dead=DEAD_LETTERS]

Stages one row a number in two files and commits them as job `numbers`. With dead letters the rows
are `{"id": number}`, a task refuses every tenth one, and each following one is no JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from raylay.services.pipeline.publishing.sink import (
    WriteOptions,
    checked,
    known_sequence,
    publish_rows,
    refused_letters,
)
from raylay.services.pipeline.publishing.staged_rows import StagedRows
from raylay.services.pipeline.publishing.staging import StagingDirectory, stage


def main() -> None:
    """The command."""
    directory, address, topic = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    numbers = list(range(int(sys.argv[4]), int(sys.argv[5]) + 1))
    if "reverse" in sys.argv:
        numbers.reverse()
    dead = next((each[5:] for each in sys.argv if each.startswith("dead=")), "")
    half = len(numbers) // 2
    options = WriteOptions.of({"servers": address, "topic": topic, "dead_letters": dead})
    files = []
    for partition, part in enumerate((numbers[:half], numbers[half:])):
        bodies = [body_of(number) if dead else b"%d" % number for number in part]
        batch = pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])
        rows, refused = checked(batch, topic, "")
        letters = refused_letters(batch, refused, options, str(directory), partition, 0)
        run = directory / f"run-{'-'.join(sys.argv[4:6])}-{'reverse' in sys.argv}"
        files.append(stage(run, partition, [rows], letters=letters))

    def publish(rows: StagedRows) -> None:
        publish_rows(options, rows)

    with StagingDirectory(
        directory,
        seen=lambda name: known_sequence(options, name),
        dead_letters=options.letters_target(),
        publish_letters=publish,
    ) as staging:
        print(staging.commit("numbers", files, publish))


def body_of(number: int) -> bytes | None:
    """The row of a number, where some are refused."""
    if number % 10 == 0:
        return None
    return b"no JSON %d" % number if number % 10 == 1 else b'{"id": %d}' % number


if __name__ == "__main__":
    main()
