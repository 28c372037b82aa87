"""Publishing from Spark: once, whatever is retried, restarted, killed or reordered."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from argon2 import PasswordHasher
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from support.one_instance import in_instance
from support.pipeline_cases import message_run, write_log
from support.tls_files import tls_files
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.errors import (
    ConfigurationError,
    ConnectionLost,
    RaylayError,
    StorageError,
    StorageLocked,
)
from raylay.services.messages.records import decode_record, iterate_records, publisher_id
from raylay.services.pipeline.publishing import sink
from raylay.services.pipeline.publishing.sink import (
    BatchWriter,
    StagedReport,
    StreamWriter,
    WriteOptions,
    check_schema,
    normal,
    publish_pending,
    publish_rows,
)
from raylay.services.pipeline.publishing.staged_rows import STAGED, StagedRows
from raylay.services.pipeline.publishing.staging import (
    StagedFile,
    StagingDirectory,
    rows_checksum,
    stage,
)
from raylay.services.pipeline.session import quiet_pandas
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.instance_server import InstanceServer
from raylay.services.telemetry.logs import LogOptions
from raylay.storage.files import FAULT_VARIABLE
from raylay.storage.journal_reader import LmdbJournalReader

CHILD = Path(__file__).with_name("staging_child.py")
CHILD_TIMEOUT_S = 120
NOWHERE = "127.0.0.1:9"


def journaled(instance: Any, topic: str) -> list[tuple[int, int, bytes]]:
    """(publisher, sequence, body) of a topic's messages, in the order of the log."""
    found = []
    with LmdbJournalReader(instance.directory / "journal") as reader:
        after = 0
        while runs := reader.read(after):
            found += [
                (record.publisher, record.sequence, record.body)
                for run in runs
                if run.topic == topic.encode()
                for record in iterate_records(run.payload)
            ]
            after = runs[-1].last_txid
    return found


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def staged(directory: Path, partition: int, bodies: list[bytes]) -> StagedFile:
    rows = normal(batch(body=pa.array(bodies, pa.binary())), "t", "")
    return stage(directory / "run-1", partition, [rows])


class Published:
    """Takes the place of a client: keeps what it was given to publish."""

    def __init__(self, fail_after: int = -1) -> None:
        self.records: list[Any] = []
        self.fail_after = fail_after

    def __call__(self, rows: StagedRows) -> None:
        for sequence, record in rows.replay(rows.lowest):
            if len(self.records) == self.fail_after:
                raise ConnectionLost("gone")
            self.records.append((sequence, record))
            rows.acknowledge(sequence)
        assert not rows.messages and not rows.lowest

    @property
    def bodies(self) -> list[tuple[int, bytes]]:
        """(sequence, body) in the order published."""
        return [(sequence, decode_record(record).body) for sequence, record in self.records]


# -- staging, without Spark and without a server -------------------------------------------------
def test_rows_are_published_once_in_order(tmp_path: Path) -> None:
    first, second = Published(), Published()
    files = [staged(tmp_path, 1, [b"c", b"d"]), staged(tmp_path, 0, [b"a", b"b"])]
    staged(tmp_path, 0, [b"b", b"a"])  # of a twin that was not told to the driver
    with StagingDirectory(tmp_path) as staging:
        assert staging.commit("batch-0", files, first) == 4
        assert staging.commit("batch-0", [staged(tmp_path, 0, [b"b", b"a"])], second) == 0
        assert staging.commit("batch-1", [staged(tmp_path, 0, [b"e"])], second) == 1
        name = staging.publisher
    assert first.bodies == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    assert second.bodies == [(5, b"e")]
    assert {decode_record(record).publisher for _, record in first.records} == {publisher_id(name)}
    # The twin's file is known to nobody; it goes when it is a day old.
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "state.json", "run-1"}
    os.utime(tmp_path / "run-1", (0, 0))
    with StagingDirectory(tmp_path) as staging:
        staging.commit("batch-2", [], second)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "state.json"}


@pytest.mark.covers("Data pipeline", "once: killed drivers and workers")
def test_what_was_pending_is_published_as_it_was(tmp_path: Path) -> None:
    broken, whole = Published(fail_after=1), Published()
    with StagingDirectory(tmp_path) as staging:
        with pytest.raises(ConnectionLost):
            staging.commit("batch-7", [staged(tmp_path, 0, [b"a", b"b"])], broken)
        assert staging.pending is not None and staging.pending.rows == 2
    # The query restarts, and its rows come in another order and another number.
    with StagingDirectory(tmp_path) as staging:
        again = staged(tmp_path, 0, [b"b", b"a", b"z"])
        assert staging.commit("batch-7", [again], whole) == 2
        assert staging.pending is None
    assert whole.bodies == [(1, b"a"), (2, b"b")]
    assert whole.records[0] == broken.records[0], "a second attempt sends the same bytes"
    # A job that finds another's rows pending publishes both.
    with StagingDirectory(tmp_path) as staging:
        with pytest.raises(ConnectionLost):
            staging.commit("one", [staged(tmp_path, 0, [b"1"])], Published(fail_after=0))
        last = Published()
        assert staging.commit("two", [staged(tmp_path, 0, [b"2"])], last) == 1
        assert last.bodies == [(3, b"1"), (4, b"2")]
        assert staging.is_done("one") and staging.is_done("two") and not staging.is_done("three")


def test_micro_batches_that_only_look_published(tmp_path: Path) -> None:
    whole = Published()

    def commit(number: int, bodies: list[bytes], run: str = "", topic: str = "t") -> int:
        rows = normal(batch(body=pa.array(bodies, pa.binary())), topic, "")
        file = stage(tmp_path / f"run-{run}", 0, [rows])
        with StagingDirectory(tmp_path, owner="query", run=run) as staging:
            return staging.commit(f"batch-{number}", [file], whole)

    assert commit(0, [b"a"], "one") == commit(1, [b"b"], "one") == 1
    # The restarted query repeats its last one, and its rows may be others then.
    assert commit(1, [b"b", b"x"], "two") == 0
    assert commit(2, [b"c", b"d"], "two") == 2
    # The writer repeats what it wrote, in another order.
    assert commit(2, [b"d", b"c"], "two") == 0
    for bodies, topic in (([b"e"], "t"), ([b"c", b"d"], "u"), ([b"e", b"f"], "t")):
        with pytest.raises(ConfigurationError, match="published 2 rows as batch-2 of this ru"):
            commit(2, bodies, "two", topic)
    with pytest.raises(ConfigurationError, match="batches up to 2, and now gets batch-0"):
        commit(0, [b"g"], "three")
    assert whole.bodies == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_a_micro_batch_that_is_planned_anew(tmp_path: Path) -> None:
    """Its checkpoint was put back by one, or a power cut took the last file of it."""
    whole = Published()

    def commit(bodies: list[bytes], run: str, plan: str) -> int:
        with StagingDirectory(tmp_path, owner="query", run=run) as staging:
            return staging.commit("batch-0", [staged(tmp_path, 0, bodies)], whole, plan=plan)

    with (
        StagingDirectory(tmp_path, owner="query", run="one") as staging,
        pytest.raises(ConnectionLost),
    ):
        staging.commit("batch-0", [staged(tmp_path, 0, [b"a"])], Published(fail_after=0), plan="p")
    for _ in range(2):  # as long as it is pending, and then
        with pytest.raises(ConfigurationError, match="gets batch-0, planned anew: the query's"):
            commit([b"a", b"b"], "two", "q")
    # The same plan may give other rows, and who knows no plan compares none.
    assert commit([b"z"], "two", "p") == commit([b"z"], "two", "") == 0
    assert whole.bodies == [(1, b"a")]


def test_rows_that_are_left_out_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second table looks like this, too, where nothing says of which run it is."""
    with StagingDirectory(tmp_path, owner="query") as staging:
        assert staging.commit("batch-0", [staged(tmp_path, 0, [b"a"])], Published()) == 1
        assert staging.commit("batch-0", [staged(tmp_path, 0, [b"a"])], Published()) == 0
        assert not caplog.records
        assert staging.commit("batch-0", [staged(tmp_path, 0, [b"b", b"c"])], Published()) == 0
    (told,) = caplog.messages
    assert (
        "has published 1 rows as batch-0, and now gets 2 different rows, which are left out" in told
    )


def test_another_table_while_the_first_is_pending(tmp_path: Path) -> None:
    broken, whole = Published(fail_after=1), Published()
    with StagingDirectory(tmp_path, owner="query", run="one") as staging:
        with pytest.raises(ConnectionLost):
            staging.commit("batch-0", [staged(tmp_path, 0, [b"a", b"b"])], broken)
        other = staged(tmp_path, 0, [b"c", b"d"])
        with pytest.raises(ConfigurationError, match="now gets 2 different rows: give each table"):
            staging.commit("batch-0", [other], whole)
        assert Path(other.path).exists()
    assert whole.bodies == [(1, b"a"), (2, b"b")]


def test_the_same_table_while_it_is_pending(tmp_path: Path) -> None:
    whole = Published()
    with StagingDirectory(tmp_path, owner="query", run="one") as staging:
        with pytest.raises(ConnectionLost):
            files = [staged(tmp_path, 0, [b"a", b"b"])]
            staging.commit("batch-0", files, Published(fail_after=1))
        # In other partitions and another order.
        again = [staged(tmp_path, 0, [b"b"]), staged(tmp_path, 1, [b"a"])]
        assert staging.commit("batch-0", again, whole) == 2
    assert whole.bodies == [(1, b"a"), (2, b"b")]


def test_the_checksum_of_rows() -> None:
    rows = {
        "body": pa.array([b"a", b"b", b"b"], pa.binary()),
        "topic": ["t", "t", "u"],
        "key": pa.array([b"k", None, b""], pa.binary()),
        "correlation_id": pa.array([None, b"k", None], pa.binary()),
        "expiration_s": pa.array([None, 7, 0], pa.int64()),
    }
    whole = normal(batch(**rows), "", "")
    one = rows_checksum(whole)
    assert rows_checksum(whole.take(pa.array([2, 0, 1]))) == one
    parts = sum(rows_checksum(whole.slice(at, 1)) for at in range(3))
    assert parts % 2**64 == one and rows_checksum(whole.slice(0, 0)) == 0
    others = [
        {"body": pa.array([b"a", b"b", b"c"], pa.binary())},
        {"topic": ["t", "u", "t"]},
        {"message_type": ["json", "json", "text"]},
        {"topic": ["json", "json", "json"], "message_type": ["t", "t", "u"]},
        {"key": rows["correlation_id"], "correlation_id": rows["key"]},
        {"key": pa.array([None, b"k", b""], pa.binary())},
        {"expiration_s": pa.array([None, 8, 0], pa.int64())},
        {"command": [None, "delta_publish", None]},
    ]
    found = {rows_checksum(normal(batch(**rows | other), "", "")) for other in others}
    assert len(found) == len(others) and one not in found
    twice = pa.Table.from_batches([whole, whole]).combine_chunks().to_batches()[0]
    assert rows_checksum(twice) not in (0, one), "rows count as often as they come"


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, another query's")
def test_files_that_the_driver_does_not_see(tmp_path: Path) -> None:
    whole, home = Published(), tmp_path / "staging"
    here, there = (staged(home, number, [b"%d" % number]) for number in range(2))
    Path(there.path).rename(tmp_path / "elsewhere")
    with StagingDirectory(home) as staging:
        with pytest.raises(ConfigurationError, match="1 of 2 files that the workers staged are"):
            staging.commit("batch-0", [here, there], whole)
        assert staging.pending is None and not whole.records
        # It is not stuck.
        assert staging.commit("batch-0", [here], whole) == 1
        with pytest.raises(ConnectionLost):
            staging.commit("batch-1", [staged(home, 0, [b"2"])], Published(fail_after=0))
        assert staging.pending is not None
        Path(staging.pending.files[0]).rename(tmp_path / "gone")
        with pytest.raises(StorageError, match="1 of 1 files staged as batch-1 are gone, such as"):
            staging.finish(whole)
        (home / "run-1").mkdir(exist_ok=True)
        (tmp_path / "gone").rename(staging.pending.files[0])
        assert staging.finish(whole) == 1
    assert whole.bodies == [(1, b"0"), (2, b"2")]


def test_a_micro_batch_of_no_query(instance: Any, tmp_path: Path) -> None:
    options = WriteOptions.of(
        {"servers": instance.address, "staging": str(tmp_path), "topic": "write/none", "batch": "0"}
    )
    writer = BatchWriter(options, StructType([BODY]), False)
    staged_rows = writer.write(iter([batch(body=["x"])]))
    with pytest.raises(ConfigurationError, match="batch-0: the tasks do not know its query"):
        writer.commit([staged_rows])
    writer.abort([staged_rows])
    assert not journaled(instance, "write/none")
    writer.commit([StagedReport(writer.write(iter([batch(body=["x"])])).file, "a query", "a run")])
    assert len(journaled(instance, "write/none")) == 1


def test_a_staging_directory_has_one_driver_and_one_query(tmp_path: Path) -> None:
    with (
        StagingDirectory(tmp_path, owner="query-1"),
        pytest.raises(StorageLocked, match="in use by another process"),
        StagingDirectory(tmp_path),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match="is the staging directory of query query-1"),
        StagingDirectory(tmp_path, owner="query-2"),
    ):
        pass
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(StorageError, match=r"state.json is damaged"), StagingDirectory(tmp_path):
        pass


def test_staged_rows_as_a_publish_store(tmp_path: Path) -> None:
    taken: list[StagedRows] = []
    with StagingDirectory(tmp_path) as staging:
        files = [
            staged(tmp_path, part, [b"%d" % (4 * part + n) for n in range(4)]) for part in (0, 1)
        ]
        with pytest.raises(ConnectionLost):
            staging.commit("job", files, Published(fail_after=0))
        pending = staging.pending
        assert pending is not None
        taken.append(StagedRows(staging.publisher, pending))
    rows = taken[0]
    assert (rows.messages, rows.lowest, rows.highest) == (8, 1, 8)
    rows.drop([(1, 2), (5, 6)])
    assert (rows.messages, rows.lowest) == (4, 3)
    assert [sequence for sequence, _ in rows.replay(3)] == [3, 4, 7, 8]
    assert [sequence for sequence, _ in rows.replay(4)] == [4, 7, 8]
    rows.acknowledge(100)
    assert (rows.messages, rows.lowest) == (0, 0) and list(rows.replay()) == []


# -- what cannot be published --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [None]}, "a row has no body"),
        ({"body": ["x"], "topic": pa.array([None], pa.string())}, "a row has no topic"),
        ({"body": ["x"], "topic": [""]}, "row 0 cannot be published: its topic has 0 bytes"),
        ({"body": ["x"], "topic": ["t" * 2000]}, "topic has 2000 bytes, but 1 to 1024"),
        ({"body": ["x"], "key": ["k" * 65_536]}, "its key has 65536 bytes, but 0 to 65535"),
        ({"body": ["x"], "command": ["merge"]}, "its command is 'merge': give publish, delta_pub"),
        ({"body": [None], "command": ["sow_delete"]}, "a row has no body and no key"),
        ({"body": [""], "command": ["sow_delete"]}, "a sow_delete has neither a key nor a body"),
        ({"body": ["x"], "expiration_s": [-1]}, "expiration_s is -1: give 0 to"),
    ],
)
def test_rows_that_cannot_be_published(columns: Any, text: str) -> None:
    # A row without a topic gets that of the option, where the option is given.
    with pytest.raises(ConfigurationError, match=text):
        normal(batch(**columns), "" if "topic" in columns else "topic", "")


def test_a_failed_task_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield normal(batch(body=["x"]), "t", "")
        raise ConfigurationError("bad row")

    with pytest.raises(ConfigurationError):
        stage(tmp_path / "run-1", 0, rows())
    assert not list((tmp_path / "run-1").iterdir())


def test_columns_become_messages() -> None:
    made = normal(
        batch(body=["x", "y"], message_type=["xml", None], key=["k", None], expiration_s=[3, None]),
        "orders",
        "",
    )
    assert made.schema == STAGED
    assert made.to_pylist()[0] == {
        "topic": "orders", "message_type": "xml", "body": b"x", "key": b"k",
        "correlation_id": None, "expiration_s": 3, "command": None,
    }  # fmt: skip
    assert made["message_type"].to_pylist() == ["xml", "json"]


BODY = StructField("body", StringType())
TOPIC = StructField("topic", StringType())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([TOPIC], "the table has no column body, only topic: select to_json"),
        ([BODY], "the table has no column topic: add it, or give the option topic"),
        ([BODY, TOPIC, StructField("x", IntegerType())], "a message has no column x: there are"),
        (
            [StructField("body", IntegerType()), TOPIC],
            "column body is INT, it can be BINARY or STR",
        ),
        (
            [BODY, TOPIC, StructField("key", MapType(StringType(), BinaryType()))],
            "key is MAP, it can be BINARY or STRING",
        ),
    ],
)
def test_tables_that_cannot_be_published(fields: list[StructField], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        check_schema(StructType(fields), "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give either `servers` .host:port, separated by commas. or `fabric`"),
        ({"servers": NOWHERE, "fabric": "x"}, "give either `servers`"),
        ({"servers": NOWHERE, "bogus": "1"}, "there is no option bogus: .*, checkpointLocation,"),
        ({"servers": NOWHERE, "job": "x"}, "give the option `staging`"),
        ({"servers": NOWHERE, "connect_wait_s": "soon"}, "a number of seconds above 0"),
    ],
)
def test_wrong_options(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        WriteOptions.of(options)


def test_a_write_speaks_tls_and_says_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tls_files()
    hashes = tmp_path / "hashes"
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    hashes.write_text(f"loader:{cheap.hash('words')}\n")
    config = InstanceConfig(
        "solo", "g", first=True, log=LogOptions(target="none"),
        client_transports=(TransportConfig("client", tls=made.serving()),),
        authentication=ModuleConfig("passwords", {"File": str(hashes)}),
    )  # fmt: skip
    monkeypatch.setenv("RAYLAY_USER", "loader")
    monkeypatch.setenv("RAYLAY_PASSWORD", "words")

    async def visit(server: InstanceServer) -> None:
        options = WriteOptions.of(
            {"servers": server.runtime.client_address, "CA_File": made.ours.file}
        )

        def use() -> None:
            with sink._client(options, "job") as client:
                client.publish("orders", b"{}")
                client.flush()

        await asyncio.to_thread(use)
        assert server.parts.instance.machine.counters.published == 1

    in_instance(tmp_path / "solo", visit, config)


def test_a_write_to_a_fabric_speaks_as_its_clients_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tls_files()
    settings = FabricBuilder(
        "f", client={"tls": {"ca_file": made.ours.file}}, unauthenticated="allowed"
    )
    settings.region("here", 1)
    record = SimpleNamespace(settings=settings.settings().to_json(), directory=str(tmp_path))
    monkeypatch.setattr(sink, "record_of", lambda source: record)
    monkeypatch.setattr(sink, "servers_of", lambda *asked: {"servers": ["h:1"], "group": "here"})
    found = WriteOptions.of({"fabric": "f"}).client_options()
    assert found["tls"].ca_file == made.ours.file and "user_id" not in found
    own = WriteOptions.of({"fabric": "f", "ca_file": "/own"}).client_options()
    assert own["tls"] == {"ca_file": "/own"}
    assert WriteOptions.of({"servers": "h:1"}).client_options()["tls"] is None


def test_the_shells_options_of_tls_reach_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[WriteOptions] = []

    def pending(staging: Path, options: WriteOptions, any_reason: bool) -> int:
        told.append(options)
        return 0

    monkeypatch.setattr(sink, "publish_pending", pending)
    call = ["pipeline", "publish", str(tmp_path), "--server", "h:1", "--server", "h:2"]
    for more in (["--ca-file", "/ca", "--certificate", "/c", "--private-key", "/k"], []):
        done = CliRunner().invoke(app, [*call, *more])
        assert done.exit_code == 0, done.output
    assert told[0].servers == "h:1,h:2"
    assert (told[0].ca_file, told[0].certificate, told[0].private_key) == ("/ca", "/c", "/k")
    assert not told[1].ca_file, "what one command was given is not the next one's"


def test_wrong_writes(tmp_path: Path) -> None:
    schema = StructType([BODY, TOPIC])
    options = WriteOptions.of({"servers": NOWHERE, "connect_wait_s": "0.2"})
    with pytest.raises(ConfigurationError, match="a log cannot be overwritten"):
        BatchWriter(options, schema, True)
    with pytest.raises(ConnectionLost, match=r"found no server in 0\.2 s"):
        BatchWriter(replace(options, staging=str(tmp_path / "s")), schema, False)
    assert not (tmp_path / "s").exists()
    with pytest.raises(ConfigurationError, match="give `staging`, a directory that the driver"):
        StreamWriter(options, schema, False)
    with pytest.raises(ConfigurationError, match="is neither a fabric that runs here"):
        WriteOptions.of({"fabric": str(tmp_path)}).client_options()
    with pytest.raises(ConfigurationError, match="is not a staging directory"):
        publish_pending(tmp_path, options)


# -- with a server, killed at every step ---------------------------------------------------------
KILLED = (
    pytest.param("staging.pending", marks=pytest.mark.slow),
    pytest.param("staging.record:1", marks=pytest.mark.slow),
    "staging.record:700",
    pytest.param("staging.published", marks=pytest.mark.slow),
    pytest.param("staging.done", marks=pytest.mark.slow),
)


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "once: killed drivers and workers")
@pytest.mark.parametrize("point", KILLED)
def test_a_driver_killed_at_any_point(instance: Any, tmp_path: Path, point: str) -> None:
    topic = f"write/{point}"

    def run(*arguments: str, **environment: str) -> int:
        command = [sys.executable, str(CHILD), str(tmp_path), instance.address, topic]
        done = subprocess.run(
            [*command, "1", "1000", *arguments],
            env=os.environ | environment,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
        return done.returncode

    assert run(**{FAULT_VARIABLE: point}) == -signal.SIGKILL
    # The second time the rows come in another order: what was pending counts.
    assert run("reverse") == 0
    found = journaled(instance, topic)
    assert [(sequence, int(body)) for _, sequence, body in found] == [
        (number, number) for number in range(1, 1001)
    ]
    assert len({publisher for publisher, _, _ in found}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "state.json"}


def test_publishing_what_was_left(instance: Any, tmp_path: Path) -> None:
    down = WriteOptions.of({"servers": NOWHERE, "connect_wait_s": "0.2"})
    up = WriteOptions.of({"servers": instance.address})
    rows = normal(batch(body=["left", "behind"]), "write/left", "")
    with pytest.raises(ConnectionLost), StagingDirectory(tmp_path) as staging:
        staging.commit(
            "job", [stage(tmp_path / "run-1", 0, [rows])], lambda rows: publish_rows(down, rows)
        )
    assert publish_pending(tmp_path, up) == 2
    assert publish_pending(tmp_path, up) == 0
    assert [body for _, _, body in journaled(instance, "write/left")] == [b"left", b"behind"]


def test_a_staging_directory_that_was_put_back(instance: Any, tmp_path: Path) -> None:
    home, backup, topic = tmp_path / "staging", tmp_path / "backup", "write/put-back"
    options = WriteOptions.of(
        {"servers": instance.address, "topic": topic, "staging": str(home), "connect_wait_s": "5"}
    )
    down = replace(options, servers=NOWHERE, connect_wait_s=0.2)

    def commit(number: int, bodies: list[str], after: WriteOptions | None = None) -> None:
        writer = BatchWriter(replace(options, batch=str(number)), StructType([BODY]), False)
        rows = writer.write(iter([batch(body=bodies)]))
        writer.job.options = replace(after or options, batch=str(number))
        try:
            writer.commit([StagedReport(rows.file, "query", "a run")])
        except RaylayError:
            writer.abort([rows])
            raise

    def put_back() -> None:
        shutil.rmtree(home)
        shutil.copytree(backup, home)

    with StagingDirectory(home):
        shutil.copytree(home, backup)  # before the first row was published
    commit(0, ["old"])
    put_back()
    with pytest.raises(ConfigurationError, match=r"a server knows sequence 1 of .* has come to 0:"):
        commit(0, ["other"])
    assert {path.name for path in home.iterdir()} == {"lock", "state.json"}

    shutil.rmtree(backup)
    home = tmp_path / "again"
    options = replace(options, staging=str(home))
    commit(0, ["old"])
    shutil.copytree(home, backup)
    commit(1, ["mid", "mid", "mid"])
    put_back()
    with pytest.raises(ConfigurationError, match=r"knows sequence 4 of .* has come to 1: it was"):
        commit(1, ["new"] * 4)
    # While no server answers the rows are kept, and one is asked when it does.
    with pytest.raises(ConnectionLost):
        commit(1, ["new"] * 4, replace(down, staging=str(home)))
    with pytest.raises(ConfigurationError, match="knows sequence 4"):
        publish_pending(home, options)
    bodies = [body for _, _, body in journaled(instance, topic)]
    assert bodies == [b"old", b"old", b"mid", b"mid", b"mid"]


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, another query's")
@pytest.mark.parametrize(
    ("topic", "message_type", "text"),
    [
        (
            "lost/one",
            "",
            r"^Chicago-2 does not journal lost/one \(json\): messages published there",
        ),
        ("kept/one", "text", r"kept/one \(text\)"),
        ("kept/one", "", ""),
        ("kept/(one", "", ""),  # a name, whatever its characters
    ],
)
def test_a_topic_that_is_not_journaled(
    choosy: Any, tmp_path: Path, topic: str, message_type: str, text: str
) -> None:
    options = WriteOptions.of(
        {"servers": choosy.address, "topic": topic, "message_type": message_type}
    )
    stream = replace(options, staging=str(tmp_path / "stream"))
    batch_in = replace(options, staging=str(tmp_path / "batch"))
    for make in (
        lambda: BatchWriter(batch_in, StructType([BODY]), False),
        lambda: StreamWriter(stream, StructType([BODY]), False),
    ):
        if text:
            with pytest.raises(ConfigurationError, match=text):
                make()
        else:
            make()
    assert not list(tmp_path.iterdir())
    # What a column says is known later.
    BatchWriter(batch_in, StructType([BODY, TOPIC]), False)


def test_a_server_that_went_while_rows_were_computed(choosy: Any, tmp_path: Path) -> None:
    up = WriteOptions.of({"servers": choosy.address, "staging": str(tmp_path), "job": "long"})
    up = replace(up, topic="kept/long")
    writer = BatchWriter(up, StructType([BODY]), False)
    rows = writer.write(iter([batch(body=["x"])]))
    writer.job.options = replace(up, servers=NOWHERE, connect_wait_s=0.2)
    with pytest.raises(ConnectionLost):
        writer.commit([rows])
    writer.abort([rows])
    # What took long to compute is kept.
    assert publish_pending(tmp_path, up) == 1
    assert [body for _, _, body in journaled(choosy, "kept/long")] == [b"x"]


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, another query's")
def test_staged_rows_of_a_topic_that_is_not_journaled(choosy: Any, tmp_path: Path) -> None:
    options = WriteOptions.of({"servers": choosy.address, "staging": str(tmp_path)})
    writer = BatchWriter(options, StructType([BODY, TOPIC]), False)
    topics = ["kept/staged", *(f"lost/{number:02d}" for number in range(12))]
    bad = writer.write(iter([batch(body=["x"] * 13, topic=topics)]))
    with pytest.raises(
        ConfigurationError,
        match=r"lost/09 \(json\) and 2 more: messages published there would be lost",
    ):
        writer.commit([bad])
    writer.abort([bad])
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "state.json"}
    good = writer.write(iter([batch(body=["y"], topic=topics[:1])]))
    writer.commit([good])
    assert journaled(choosy, "kept/staged") == [
        (publisher, 1, b"y") for publisher, _, _ in journaled(choosy, "kept/staged")
    ]
    assert len(journaled(choosy, "kept/staged")) == 1


# -- with Spark ----------------------------------------------------------------------------------
def killed_once(marker: str) -> Any:
    """A step that ends its worker with SIGKILL in one partition, the first time."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            yield each
            if not os.path.exists(marker):
                with open(marker, "x", encoding="ascii"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)

    return step


@pytest.mark.covers("Data pipeline", "once: killed drivers and workers")
@pytest.mark.slow
def test_a_table_with_a_killed_worker(spark: Any, instance: Any, tmp_path: Path) -> None:
    table = spark.range(0, 2000, 1, 4).selectExpr("CAST(id AS STRING) AS body")
    with quiet_pandas():
        table = table.mapInArrow(killed_once(str(tmp_path / "killed")), table.schema)
    write = (
        table.write.format("raylay")
        .mode("append")
        .options(
            servers=instance.address,
            topic="write/table",
            staging=str(tmp_path / "staging"),
            job="numbers",
        )
    )
    write.save()
    assert (tmp_path / "killed").exists()
    write.save()
    found = journaled(instance, "write/table")
    assert [int(body) for _, _, body in found] == list(range(2000))
    assert [sequence for _, sequence, _ in found] == list(range(1, 2001))
    with pytest.raises(PySparkException, match="a message has no column id"):
        spark.range(1).selectExpr("id", "'x' AS body").write.format("raylay").mode(
            "append"
        ).options(servers=instance.address, topic="write/table").save()


@pytest.mark.slow
@pytest.mark.covers("Data pipeline", "once: killed drivers and workers")
def test_a_stream_that_is_restarted(spark: Any, instance: Any, tmp_path: Path) -> None:
    runs = [message_run(first, 7, first, 50) for first in range(1, 501, 50)]
    log = write_log(tmp_path / "from", runs)

    def run() -> Any:
        query = (
            spark.readStream.format("raylay")
            .options(columns="body", max_records_per_trigger="200")
            .load(str(log.directory))
            .writeStream.format("raylay")
            .options(servers=instance.address, topic="write/stream")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    query = run()
    # The tasks said whose rows they are: no checkpoint has to be read for it.
    state = json.loads((tmp_path / "checkpoint" / "raylay-staging" / "state.json").read_text())
    assert (state["owner"], state["last_run"]) == (str(query.id), str(query.runId))
    expected = [record.body for run in runs for record in iterate_records(run.payload)]
    assert [body for _, _, body in journaled(instance, "write/stream")] == expected
    # Published, and the driver died before Spark noted that: the micro-batch comes again.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink()
    run()
    found = journaled(instance, "write/stream")
    assert [body for _, _, body in found] == expected
    assert [sequence for _, sequence, _ in found] == list(range(1, 501))


@pytest.mark.slow
def test_a_checkpoint_that_was_put_back_by_one(spark: Any, instance: Any, tmp_path: Path) -> None:
    """Spark plans its last micro-batch anew, and it has more rows than were published of it. In a
    function that names its jobs itself: what tells a run is gone."""
    log = write_log(tmp_path / "from", [message_run(1, 7, 1, 50)])
    checkpoint = tmp_path / "checkpoint"

    def publish(rows: Any, number: int) -> None:
        spark.sparkContext.setJobGroup("flights", "what a user calls it")
        rows.write.format("raylay").mode("append").options(
            servers=instance.address,
            topic="write/back",
            staging=str(tmp_path / "staging"),
            checkpointLocation=str(checkpoint),
            batch=str(number),
        ).save()

    def run() -> None:
        query = (
            spark.readStream.format("raylay")
            .options(columns="body")
            .load(str(log.directory))
            .writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget(part: str) -> None:
        for path in (checkpoint / part).glob("*0*"):
            path.unlink()
        for path in (checkpoint / part).glob(".*0.crc"):
            path.unlink()

    run()
    assert json.loads((tmp_path / "staging" / "state.json").read_text())["last_run"] == ""
    forget("commits")
    run()
    assert len(journaled(instance, "write/back")) == 50
    write_log(tmp_path / "from", [message_run(51, 7, 51, 50)])
    forget("commits")
    forget("offsets")
    with pytest.raises(PySparkException, match="gets batch-0, planned anew: the query's checkp"):
        run()
    assert len(journaled(instance, "write/back")) == 50


@pytest.mark.covers("Data pipeline", "a topic that nobody journals, another query's")
@pytest.mark.slow
def test_a_renewed_checkpoint(spark: Any, instance: Any, tmp_path: Path) -> None:
    """Its micro-batches begin at 0 again, and are not those that were published."""
    log = write_log(tmp_path / "from", [message_run(1, 7, 1, 50)])

    def run(checkpoint: str, staging: str, *topics: str) -> None:
        def publish(rows: Any, number: int) -> None:
            for topic in topics:
                rows.write.format("raylay").mode("append").options(
                    servers=instance.address,
                    topic=topic,
                    staging=str(tmp_path / staging),
                    batch=str(number),
                ).save()

        query = (
            spark.readStream.format("raylay")
            .options(columns="body")
            .load(str(log.directory))
            .writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("first", "staging", "write/renewed")
    with pytest.raises(PySparkException, match=r"is the staging directory of query .* this query"):
        run("second", "staging", "write/renewed")
    assert len(journaled(instance, "write/renewed")) == 50
    # What was refused is not marked as done.
    run("second", "other", "write/renewed")
    assert len(journaled(instance, "write/renewed")) == 100
    with pytest.raises(PySparkException, match="give each table of a micro-batch a staging"):
        run("third", "third", "write/one", "write/two")
    assert len(journaled(instance, "write/one")) == 50 and not journaled(instance, "write/two")
