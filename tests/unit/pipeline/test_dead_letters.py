"""Dead letters as a table and as messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raylay.services.errors import ConfigurationError, StorageError
from raylay.services.pipeline.dead_letters import (
    SCHEMA,
    DeadLetter,
    DeadLetterTarget,
    append_letters,
    letters_batch,
    letters_of,
)

MESSAGE = DeadLetter("Chicago-1", "no JSON", 7, "flights/UA", b"\xff", time_us=1_000_000)
ROW = DeadLetter(
    "/staging",
    "no body",
    0,
    message_type="json",
    command="publish",
    key=b"k",
    expiration_s=5,
    write="batch-3",
    partition=1,
    time_us=2_000_000,
)


def test_a_table_of_letters(tmp_path: Path) -> None:
    file = append_letters(tmp_path / "dead", "batch-3", [MESSAGE, ROW])
    assert file == tmp_path / "dead" / "batch-3.parquet"
    found = pq.read_table(tmp_path / "dead")
    assert found.schema == SCHEMA
    assert found == pa.Table.from_batches([letters_batch([MESSAGE, ROW])])
    assert list(letters_of(letters_batch([MESSAGE, ROW]))) == [MESSAGE, ROW]
    first, second = found.to_pylist()
    assert (first["source"], first["topic"], first["position"]) == ("Chicago-1", "flights/UA", 7)
    assert first["body"] == b"\xff" and first["key"] is None and first["reason"] == "no JSON"
    assert first["time"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert second["body"] is None and second["key"] == b"k" and second["expiration_s"] == 5
    assert (second["write"], second["partition"], second["command"]) == ("batch-3", 1, "publish")


def test_a_repeated_write_replaces_its_letters(tmp_path: Path) -> None:
    for letters in ([MESSAGE, ROW], [ROW]):
        append_letters(tmp_path, "batch-3", letters)
    append_letters(tmp_path, "job a/b", [MESSAGE])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "batch-3.parquet",
        "job a%2Fb.parquet",
    ]
    assert pq.read_table(tmp_path).num_rows == 2
    assert append_letters(tmp_path, "batch-3", []) is None
    assert append_letters(tmp_path / "none", "batch-3", []) is None
    assert [path.name for path in tmp_path.iterdir()] == ["job a%2Fb.parquet"]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"the dead letters cannot be written to .*file"):
        append_letters(tmp_path / "file", "batch-3", [MESSAGE])


def test_letters_as_messages() -> None:
    first, second = (json.loads(each.to_json()) for each in (MESSAGE, ROW))
    assert first == {
        "source": "Chicago-1",
        "reason": "no JSON",
        "position": 7,
        "topic": "flights/UA",
        "body_base64": "/w==",
        "write": "",
        "partition": -1,
        "time_us": 1_000_000,
    }
    assert second["key"] == "k" and "body" not in second and second["write"] == "batch-3"


def test_the_option_names_a_topic_or_a_directory(tmp_path: Path) -> None:
    assert DeadLetterTarget.of("topic:dead/rows") == DeadLetterTarget(topic="dead/rows")
    assert DeadLetterTarget.of(str(tmp_path)) == DeadLetterTarget(directory=tmp_path)
    assert DeadLetterTarget.of("file:///a%20b") == DeadLetterTarget(directory=Path("/a b"))
    assert DeadLetterTarget.of("dead").directory == Path("dead").absolute()
    for text in ("", "topic:", "s3://bucket/dead"):
        with pytest.raises(ConfigurationError, match="dead_letters"):
            DeadLetterTarget.of(text)
