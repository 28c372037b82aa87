"""Rows that an instance, or the sink, refuses: told, or kept as dead letters, and never a wedge."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from support.pipeline_cases import RunningInstance, journaled

from raylay.services.client import SyncClient
from raylay.services.errors import CommandFailed, ConfigurationError, RaylayError, StorageError
from raylay.services.pipeline.dead_letters import (
    DeadLetter,
    DeadLetterTarget,
    append_letters,
)
from raylay.services.pipeline.publishing.dead_letter_stream import letters_stream
from raylay.services.pipeline.publishing.sink import (
    BatchWriter,
    WriteOptions,
    normal,
    publish_pending,
)
from raylay.services.pipeline.publishing.staged_rows import StagedRows
from raylay.services.pipeline.publishing.staging import StagedFile, StagingDirectory, stage
from raylay.storage.files import FAULT_VARIABLE

CHILD = Path(__file__).with_name("staging_child.py")
CHILD_TIMEOUT_S = 120
QUERY_S_MAX = 120
BODY = StructField("body", StringType())
GOOD = b'{"id": %d}'
BAD = b"no JSON"


def bodies(*numbers: int, bad: int = -1) -> list[bytes | None]:
    return [BAD if number == bad else GOOD % number for number in numbers]


def save(options: WriteOptions, rows: list[bytes | None], **columns: Any) -> None:
    """One `save()` of a batch, in one partition."""
    batch = pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary()), **columns})
    kinds = {"expiration_s": LongType()}
    named = (StructField(name, kinds.get(name, StringType())) for name in columns)
    schema = StructType([BODY, *named])
    writer = BatchWriter(options, schema, False)
    staged = writer.write(iter([batch]))
    try:
        writer.commit([staged])
    except RaylayError:
        writer.abort([staged])
        raise


def sink(instance: Any, staging: Path, topic: str, job: str, **more: str) -> WriteOptions:
    return WriteOptions.of(
        {"servers": instance.address, "topic": topic, "staging": str(staging), "job": job, **more}
    )


def published(instance: Any, topic: str) -> list[Any]:
    return [body for _, _, body in journaled(instance, topic)]


@pytest.mark.covers("Data pipeline", "rows that are refused")
def test_one_refused_row_names_itself_and_the_way_out(stateful: Any, tmp_path: Path) -> None:
    staging, dead = tmp_path / "staging", tmp_path / "dead"
    options = sink(stateful, staging, "board/told", "one")
    for _ in range(2):  # a restart fails alike, and publishes nothing twice
        with pytest.raises(
            RaylayError,
            match=r"row 2 of 3 of one on board/told was refused: bad_message: topic board/told: .*"
            r"; its body: b'no JSON'; the other rows are published, and nothing is published twice",
        ):
            save(options, bodies(1, 2, 3, bad=2))
    with pytest.raises(RaylayError, match="row 2 of 3 of one"):
        save(replace(options, job="two"), bodies(4))
    # The next job of this directory settles it.
    save(replace(options, job="two", dead_letters=str(dead)), bodies(4))
    save(replace(options, job="one"), bodies(1, 2, 3, bad=2))
    assert published(stateful, "board/told") == bodies(1, 3, 4)
    assert {path.name for path in staging.iterdir()} == {"lock", "state.json"}
    (letter,) = pq.read_table(dead).to_pylist()
    assert (letter["body"], letter["topic"], letter["write"]) == (BAD, "board/told", "one")
    assert letter["reason"].startswith("bad_message: topic board/told: this is no message of")
    assert letter["source"] == str(staging) and letter["position"] == 2


def test_a_write_without_a_job_is_settled_and_not_run_again(
    stateful: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = WriteOptions.of({"servers": stateful.address, "topic": "board/alone"})
    with pytest.raises(CommandFailed, match="run again it would publish them again") as refused:
        save(options, bodies(1, 2, 3, bad=2))
    (staging,) = tmp_path.glob("raylay-staging-*")
    said = re.search(
        r"`raylay pipeline publish (\S+) --server HOST:PORT --dead", str(refused.value)
    )
    assert said is not None and said[1] == str(staging)
    letters = WriteOptions.of({"servers": stateful.address, "dead_letters": str(tmp_path / "dead")})
    assert publish_pending(staging, letters) == 2
    assert published(stateful, "board/alone") == bodies(1, 3) and not staging.exists()
    with pytest.raises(ConfigurationError, match="no column topic"):
        save(replace(options, topic=""), bodies(1))
    assert not [*tmp_path.glob("raylay-staging-*")]


def test_what_an_operator_settles(stateful: Any, tmp_path: Path) -> None:
    staging, dead = tmp_path / "staging", tmp_path / "dead"
    with pytest.raises(CommandFailed, match="so were 1 more"):
        save(sink(stateful, staging, "board/left", "one"), [BAD, *bodies(1), BAD])
    options = WriteOptions.of({"servers": stateful.address, "dead_letters": str(dead)})
    assert publish_pending(staging, options) == 1
    assert publish_pending(staging, options) == 0
    save(sink(stateful, staging, "board/left", "two"), bodies(2))
    assert published(stateful, "board/left") == bodies(1, 2)
    assert pq.read_table(dead)["position"].to_pylist() == [1, 3]


def test_a_topic_of_dead_letters(stateful: Any, tmp_path: Path) -> None:
    options = sink(
        stateful, tmp_path / "staging", "board/topic", "one", dead_letters="topic:dead/topic"
    )
    for job in ("one", "two", "one"):
        rows = [BAD, *bodies(1, 2, 3, bad=3), None]
        save(replace(options, job=job), rows)
    assert published(stateful, "board/topic") == 2 * bodies(1, 2)
    found = [json.loads(body) for body in published(stateful, "dead/topic")]
    assert [(each["write"], each["partition"], each["position"]) for each in found] == [
        ("one", 0, 4), ("one", -1, 1), ("one", -1, 4),
        ("two", 0, 4), ("two", -1, 5), ("two", -1, 8),
    ]  # fmt: skip
    assert [each["reason"].partition(":")[0] for each in found[:3]] == [
        "a row has no body", "bad_message", "bad_message",
    ]  # fmt: skip
    assert found[1]["body"] == BAD.decode()


def test_rows_that_a_task_refuses(stateful: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options = sink(stateful, tmp_path / "staging", "", "one", dead_letters=str(dead))
    save(
        options,
        [b"1", None, b"3", b"4", b"5"],
        topic=["plain/tasks", "plain/tasks", "", "plain/tasks", "plain/tasks"],
        expiration_s=pa.array([None, None, None, -1, 7], pa.int64()),
        correlation_id=["c", None, None, None, None],
    )
    assert published(stateful, "plain/tasks") == [b"1", b"5"]
    letters = pq.read_table(dead).to_pylist()
    assert [(each["partition"], each["position"], each["reason"]) for each in letters] == [
        (0, 1, "a row has no body"),
        (0, 2, "its topic has 0 bytes, but 1 to 1024 are allowed"),
        (0, 3, "its expiration_s is -1: give 0 to 4294967295"),
    ]
    assert {each["write"] for each in letters} == {"one"} and letters[2]["body"] == b"4"
    # Nothing but refused rows is a write, too.
    save(replace(options, job="two"), [None], topic=["plain/tasks"])
    assert pq.read_table(dead).num_rows == 4
    assert published(stateful, "plain/tasks") == [b"1", b"5"]
    # What is refused without the option names it.
    with pytest.raises(ConfigurationError, match="row 1 cannot be published: a row has no body"):
        save(replace(options, dead_letters=""), [b"6", None], topic=["t", "t"])


def test_dead_letters_can_be_mended_and_published(stateful: Any, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options = sink(stateful, tmp_path / "staging", "board/mended", "one", dead_letters=str(dead))
    save(options, [BAD, *bodies(2)], correlation_id=["why", None])
    rows = pq.read_table(dead).select(["topic", "body", "correlation_id", "expiration_s"])
    mended = rows.set_column(1, "body", pa.array(bodies(1), pa.binary()))
    columns = {name: mended[name].combine_chunks() for name in mended.column_names}
    save(replace(options, job="two", topic=""), columns.pop("body").to_pylist(), **columns)
    assert published(stateful, "board/mended") == bodies(2, 1)


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "dead letters of a read")
def test_dead_letters_of_a_read_reach_a_topic_once(
    spark: Any, stateful: RunningInstance, tmp_path: Path
) -> None:
    """A stretch that is read again replaces its letters, and they are not published again."""
    dead = tmp_path / "dead"
    letters = [
        DeadLetter("London-1", "no number", at, "t", body, key=b"k")
        for at, body in enumerate((b"a", b"\xff", b"b"))
    ]

    def run() -> list[dict[str, Any]]:
        query = (
            letters_stream(spark, dead)
            .writeStream.format("raylay")
            .options(servers=stateful.address, topic="dead/read")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_S_MAX)
        return [json.loads(body) for body in published(stateful, "dead/read")]

    assert run() == []  # the directory is made
    append_letters(dead, "first", letters[:2])
    first = run()
    assert [(each["position"], each["reason"], each["key"]) for each in first] == [
        (0, "no number", "k"),
        (1, "no number", "k"),
    ]
    assert first[0] == json.loads(letters[0].to_json()) and first[1]["body_base64"] == "/w=="
    append_letters(dead, "first", [replace(each, time_us=each.time_us + 1) for each in letters[:2]])
    append_letters(dead, "second", letters[2:])
    found = run()
    assert found[:2] == first
    assert [each["position"] for each in found] == [0, 1, 2]


# -- commands ------------------------------------------------------------------------------------
def records_of(instance: Any, topic: str) -> dict[bytes, Any]:
    with SyncClient("reader", [instance.address]) as client:
        return {row.key: json.loads(row.body) for row in client.sow(topic)}


def test_rows_that_change_and_delete_records(stateful: Any, tmp_path: Path) -> None:
    options = sink(stateful, tmp_path / "staging", "board/commands", "one")
    commands = [None, "publish", "publish", "delta_publish", "sow_delete"]
    rows = [*bodies(1, 2), b'{"id": 3, "a": 1}', b'{"id": 3, "b": 2}', *bodies(2)]
    save(options, rows, command=commands)
    found = records_of(stateful, "board/commands")
    assert list(found.values()) == [{"id": 1}, {"id": 3, "a": 1, "b": 2}]
    # By key, without a body; a record that is not there, and a delete of another topic.
    keys = [*found, b"unknown"]
    save(
        replace(options, job="two"),
        [None] * 3,
        command=["sow_delete"] * 3,
        key=pa.array(keys, pa.binary()),
    )
    assert not records_of(stateful, "board/commands")
    dead = tmp_path / "dead"
    options = replace(options, topic="plain/commands", dead_letters=str(dead), job="three")
    save(
        options,
        [b"x", None, b'{"id": 1}'],
        command=["sow_delete", "sow_delete", "upsert"],
        key=pa.array([None, b"k", None], pa.binary()),
    )
    letters = pq.read_table(dead).to_pylist()
    assert [(each["command"], each["body"], each["key"]) for each in letters] == [
        ("upsert", b'{"id": 1}', None),
        ("sow_delete", b"x", None),
        ("sow_delete", None, b"k"),
    ]
    assert letters[0]["reason"] == (
        "its command is 'upsert': give publish, delta_publish, sow_delete"
    )
    assert [each["reason"][:7] for each in letters[1:]] == ["no_sow:", "no_sow:"]


def test_keys_that_publishers_give(stateful: Any, tmp_path: Path) -> None:
    options = sink(stateful, tmp_path / "staging", "given", "one")
    save(options, [b'{"a": 1}', b'{"a": 2}'], key=["x", "y"])
    save(replace(options, job="two"), [None], key=["x"], command=["sow_delete"])
    assert records_of(stateful, "given") == {b"y": {"a": 2}}


# -- without a server ----------------------------------------------------------------------------
def refusing(*refusals: tuple[int, str]) -> Callable[[StagedRows], None]:
    """Takes the place of a client: an instance refuses these sequences, each for a reason."""

    def publish(rows: StagedRows) -> None:
        for sequence, _ in list(rows.replay(rows.lowest)):
            rows.drop([(sequence, sequence)])
        for sequence, reason in refusals:
            rows.refuse(sequence, reason, f"in words: {reason}")

    return publish


def staged(directory: Path, *rows: bytes) -> StagedFile:
    return stage(directory / "run-1", 0, [normal(batch_of(*rows), "t", "")])


def test_what_is_no_fault_of_a_row(tmp_path: Path) -> None:
    home, dead = tmp_path / "staging", DeadLetterTarget(tmp_path / "dead")
    publish = refusing((1, "bad_message"), (2, "not_entitled"))
    with (
        StagingDirectory(home, dead_letters=dead) as staging,
        pytest.raises(CommandFailed, match="row 2 of 2 of one on t was refused: not_entitled: in"),
    ):
        staging.commit("one", [staged(home, b"a", b"b")], publish)
    assert not (tmp_path / "dead").exists()
    # Permission is given: what lies in a row is a dead letter.
    with StagingDirectory(home, dead_letters=dead) as staging:
        assert staging.finish(refusing((1, "bad_message"))) == 1
        with pytest.raises(CommandFailed, match="not_entitled"):
            staging.commit("two", [staged(home, b"c")], refusing((3, "not_entitled")))
    # Or an operator decides that these rows are.
    with StagingDirectory(home, dead_letters=dead, any_reason=True) as staging:
        assert staging.finish(refusing((3, "not_entitled"))) == 0
    rows = pq.read_table(tmp_path / "dead").to_pylist()
    assert sorted((row["position"], row["reason"].partition(":")[0]) for row in rows) == [
        (1, "bad_message"),
        (3, "not_entitled"),
    ]


def test_dead_letters_that_cannot_be_kept(tmp_path: Path) -> None:
    home = tmp_path / "staging"

    def opened(target: DeadLetterTarget | None, letters: Any = None) -> StagingDirectory:
        return StagingDirectory(home, dead_letters=target, publish_letters=letters)

    letter = DeadLetter(str(home), "a row has no body", 0, "t")
    with opened(None) as staging, pytest.raises(ConfigurationError, match="dead_letters is gone"):
        file = stage(home / "run-1", 0, [normal(batch_of(b"a"), "t", "")], letters=[letter])
        staging.commit("one", [file], refusing())
    topic = DeadLetterTarget(topic="dead")
    with opened(topic, refusing((1, "bad_message"))) as staging:
        with pytest.raises(CommandFailed, match="1 dead letters of one were refused: in words: b"):
            staging.finish(refusing())
        assert staging.pending is not None
        # Staged for the topic, they wait for it.
        (waiting,) = [path for path in (home).glob("run-*/part-letters.arrow")]
        assert staging.holds(str(waiting))
    waiting.rename(tmp_path / "gone")
    with opened(topic, refusing()) as staging, pytest.raises(StorageError, match="are gone"):
        staging.finish(refusing())
    # A directory takes them in its place.
    with opened(DeadLetterTarget(tmp_path / "dead")) as staging:
        assert staging.finish(refusing()) == 1
        assert staging.pending is None
    (row,) = pq.read_table(tmp_path / "dead").to_pylist()
    assert (row["write"], row["reason"]) == ("one", "a row has no body")


def batch_of(*rows: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())})


# -- killed at every step ------------------------------------------------------------------------
KILLED = (
    ("staging.refused", "directory"),
    ("staging.refused", "topic"),
    ("staging.letters", "topic"),
    ("staging.record:950", "topic"),
    ("staging.published", "directory"),
)


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "rows that are refused")
@pytest.mark.parametrize(("point", "target"), KILLED)
def test_dead_letters_of_a_killed_driver(
    stateful: Any, tmp_path: Path, point: str, target: str
) -> None:
    topic, staging, dead = f"board/{point}/{target}", tmp_path / "staging", tmp_path / "dead"
    letters_topic = f"dead/{point}"
    option = f"dead={dead}" if target == "directory" else f"dead=topic:{letters_topic}"

    def run(*arguments: str, **environment: str) -> int:
        command = [sys.executable, str(CHILD), str(staging), stateful.address, topic, "1", "1000"]
        done = subprocess.run(
            [*command, option, *arguments],
            env=os.environ | environment,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
        return done.returncode

    assert run(**{FAULT_VARIABLE: point}) == -signal.SIGKILL
    # The second time the rows come in another order: what was pending counts.
    assert run("reverse") == 0
    numbers = [int(json.loads(body)["id"]) for body in published(stateful, topic)]
    assert numbers == [number for number in range(1, 1001) if number % 10 > 1]
    if target == "directory":
        rows = pq.read_table(dead).to_pylist()
    else:
        rows = [json.loads(body) for body in published(stateful, letters_topic)]
    refused = [row.get("body") for row in rows]
    assert refused.count(None) == 100 and len(refused) == 200
    texts = [body if isinstance(body, str) else body.decode() for body in refused if body]
    assert texts == [f"no JSON {number}" for number in range(1, 1001) if number % 10 == 1]
    assert {path.name for path in staging.iterdir()} == {"lock", "state.json"}
