"""The audit over the network: running instances are asked instead of their journals."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.instance_processes import Client, Servers, pair
from support.instance_processes import servers as servers
from support.pipeline_cases import RunningInstance, message_run, write_log

from raylay import Fabric
from raylay.services.client import SyncClient
from raylay.services.errors import ConfigurationError, RaylayError
from raylay.services.fabric.plan import FabricRecord, InstancePorts
from raylay.services.messages.records import Flag, RecordBuilder, Run
from raylay.services.pipeline.audit import Audit, audit_network_source
from raylay.services.pipeline.audit import write_page as write_audit_page
from raylay.services.pipeline.audit.deliveries import NOT_CHECKED
from raylay.services.pipeline.audit.network import audited_instances
from raylay.services.pipeline.journals import record_of
from raylay.storage.maintenance import SegmentMaintenance

pytestmark = pytest.mark.covers("Data pipeline", "the audit over the network")
ROOT = Path(__file__).parents[2]
NAMES = ("Chicago-1", "Chicago-2", "Chicago-3")
DESK = 7
SOW = {"name": "board", "message_type": "json", "keys": ["/id"]}


def runs_of(*wanted: tuple[int, int], topic: str = "orders", first_txid: int = 1) -> list[Run]:
    """Runs of the publisher with these (first sequence, count), in this order."""
    made, txid = [], first_txid
    for first, count in wanted:
        run = message_run(0, DESK, first, count, topic)
        run.first_txid = txid
        made.append(run)
        txid += count
    return made


class LocalRdd:
    """The part of an RDD that the audit uses, without Spark."""

    def __init__(self, values: Any) -> None:
        self.values = list(values)

    def map(self, do: Any) -> LocalRdd:
        # What a task gets and gives goes through pickle, as in Spark.
        return LocalRdd(pickle.loads(pickle.dumps(do(each))) for each in self._sent())

    def flatMap(self, do: Any) -> LocalRdd:
        return LocalRdd(one for each in self._sent() for one in do(each))

    def groupByKey(self, _: int) -> LocalRdd:
        groups: dict[Any, list[Any]] = {}
        for key, value in self.values:
            groups.setdefault(key, []).append(value)
        return LocalRdd(groups.items())

    def collect(self) -> list[Any]:
        return self.values

    def _sent(self) -> Any:
        return pickle.loads(pickle.dumps(self.values))


class LocalSpark:
    """The part of a session that the audit uses, without Spark."""

    defaultParallelism = 2

    @property
    def sparkContext(self) -> LocalSpark:
        return self

    def setJobGroup(self, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def parallelize(self, values: Any, _: int) -> LocalRdd:
        return LocalRdd(values)


@pytest.fixture
def local() -> Any:
    return LocalSpark()


class RunningFabric:
    """Instances of one region that are not connected, so that faults stay, and the fabric's
    record."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = Fabric("faulty", sow_topics=[SOW]).region("Chicago", list(NAMES)).settings()
        self.instances: dict[str, RunningInstance] = {}

    def start(self) -> None:
        sow = self.settings.sow_of(self.settings.instances[0])
        for name in NAMES:
            self.instances[name] = RunningInstance(self.directory / name, sow=sow)
        ports = {
            name: InstancePorts(int(each.address.rpartition(":")[2]), 1)
            for name, each in self.instances.items()
        }
        record = FabricRecord("faulty", str(self.directory), self.settings.to_json(), ports)
        record.save()

    def stop(self) -> None:
        for each in self.instances.values():
            each.stop()

    def audit(self, spark: Any, **options: Any) -> Audit:
        return audit_network_source(spark, str(self.directory), **{"settle_s": 0.5, **options})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFabric]:
    """A fabric with one of everything that can be seen over the network."""
    made = RunningFabric(tmp_path_factory.mktemp("faulty"))
    write_log(made.directory / "Chicago-1", runs_of((1, 400), (401, 600)))
    # Chicago-2: 101 to 200 behind 201 to 400, half of them flagged late; 900 with another content.
    second = runs_of((1, 100), (201, 200), (101, 50), (151, 50), (401, 499), (900, 1), (901, 100))
    second[2].flags |= Flag.LATE
    second[5].payload = RecordBuilder(DESK, "orders", "json").build(900, b"another", 1)
    write_log(made.directory / "Chicago-2", second)
    # Chicago-3: what it had first is removed, 601 to 620 are lost, the last 50 are owed.
    log = write_log(made.directory / "Chicago-3", runs_of((1, 500), (501, 100), (621, 330)))
    assert any(e.done for e in SegmentMaintenance(log.journal).remove(501, force=True))
    made.start()
    yield made
    made.stop()


def test_a_fabric_without_faults(local: Any, servers: Servers, tmp_path: Path) -> None:
    """Two connected instances, which messages, a delete and a delta reach from either side."""
    settings = Fabric("two", sow_topics=[SOW]).region("group", ["A", "B"]).settings()
    sow = settings.sow_of(settings.instances[0])
    two = pair(servers, tmp_path, sow=sow)
    for each in two:
        with SyncClient(f"desk-{each.address}", servers=[each.address]) as client:
            for number in range(500):
                client.publish("orders", b'{"n": %d}' % number)
                client.publish("board", b'{"id": %d}' % (number % 7))
            client.delta_publish("board", b'{"id": 3, "x": 1}')
            client.sow_delete("board", filter="/id = 4")
            client.flush()
    ports = [InstancePorts(int(each.address.rpartition(":")[2]), 1) for each in two]
    directory = tmp_path / "two"
    directory.mkdir()
    known = dict(zip("AB", ports, strict=True))
    FabricRecord("two", str(directory), settings.to_json(), known).save()
    found = audit_network_source(local, str(directory))
    assert found.valid and not found.missing and not found.not_expected, found.to_json()
    assert found.published == 2 * 1001 and found.messages == 2 * found.published
    (board,) = found.sow
    assert board["records"] == {"A": 6, "B": 6} and not board["differing"]


def test_every_fault_is_found(local: Any, running: RunningFabric, tmp_path: Path) -> None:
    told: list[str] = []
    found = running.audit(local, progress=told.append)
    assert not found.valid
    assert {name: each["messages"] for name, each in found.instances.items()} == {
        "Chicago-1": 1000,
        "Chicago-2": 1000,
        "Chicago-3": 430,
    }
    assert found.published == 1000 and not found.unknown_origin
    assert [(e["instance"], e["reason"], e["ranges"]) for e in found.missing] == [
        ("Chicago-3", "lost", [[601, 620]]),
        ("Chicago-3", "owed", [[951, 1000]]),
        ("Chicago-3", "removed", [[1, 500]]),
    ]
    assert found.conflicts == 1 and found.conflicts_found[0]["ranges"] == [[900, 900]]
    # Which of them were flagged is not told.
    assert [each["ranges"] for each in found.late] == [[[101, 200]]] and not found.out_of_order
    assert found.instances["Chicago-2"]["late"] == 100
    assert found.faults()[:2] == ["20 lost", "1 with different contents"]
    assert "50 owed for up to" in found.faults()[2]
    assert found.to_json()["not_checked"] == list(NOT_CHECKED)
    assert "waiting for 70 missing messages, at most 0.5 s" in told
    write_audit_page(found, tmp_path / "audit.html", str(running.directory))
    page = (tmp_path / "audit.html").read_text()
    for text in ("20 lost", f"{DESK}|900|", "Not checked", "it delivers each once"):
        assert text in page, text


def test_what_comes_while_the_audit_waits_is_in_flight(local: Any, running: RunningFabric) -> None:
    """A publisher's messages, which come to a second instance later."""
    names = ["Chicago-1", "Chicago-2"]

    def publish(name: str) -> None:
        client = Client(running.instances[name].address, "airport")
        client.publish(range(1, 21), "later")
        client.persisted(20)
        client.socket.close()

    def waits(line: str) -> None:
        if line.startswith("waiting"):
            publish(names[1])

    publish(names[0])
    found = running.audit(local, instances=names, progress=waits)
    later = [each for each in found.missing if each["topic"] == "later"]
    assert [(e["instance"], e["reason"], e["ranges"]) for e in later] == [
        ("Chicago-2", "in_flight", [[1, 20]])
    ]
    # The next time it is there, with the same content.
    again = running.audit(local, instances=names)
    assert not [each for each in again.missing if each["topic"] == "later"]
    assert again.conflicts == 1, "that of the other topic"


def test_sow_topics_are_compared(local: Any, running: RunningFabric) -> None:
    for name in NAMES[:2]:
        with SyncClient("board", servers=[running.instances[name].address]) as client:
            client.publish("board", b'{"id": 1, "at": "%s"}' % name.encode())
            client.flush()
    found = running.audit(local, instances=NAMES[:2])
    (board,) = found.sow
    assert (board["topic"], board["records"]) == ("board", {"Chicago-1": 1, "Chicago-2": 1})
    assert board["differing"] + board["in_flight"] == 1


@pytest.mark.slow
def test_the_command(
    spark: Any, running: RunningFabric, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylay.services.pipeline import commands

    monkeypatch.setattr(commands, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    arguments = ["audit", str(running.directory), "--network", "--settle", "0.5"]
    with pytest.raises(SystemExit) as ended:
        commands.pipeline_app(arguments, prog_name="pipeline")
    assert ended.value.code == 1
    told = capfd.readouterr()
    result = json.loads(told.out.splitlines()[-1])["audit"]
    assert result["lost"] >= 20 and result["not_checked"] == list(NOT_CHECKED)
    assert f"not checked: {NOT_CHECKED[0]}" in told.err and "report:" not in told.err
    one = [*arguments, "--instance", "Chicago-1"]
    commands.pipeline_app(one, prog_name="pipeline", standalone_mode=False)
    result = json.loads(capfd.readouterr().out.splitlines()[-1])["audit"]
    assert result["valid"] and list(result["instances"]) == ["Chicago-1"]


def test_bad_input(local: Any, running: RunningFabric, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no fabric: an audit over the network asks"):
        audit_network_source(local, str(tmp_path))
    with pytest.raises(ConfigurationError, match="faulty has no instance Boston: there are Chi"):
        running.audit(local, instances=["Boston"])
    record = record_of(str(running.directory))
    assert record is not None
    (one,) = audited_instances(record, ["Chicago-2"])
    assert one.place.client["servers"][0].address == running.instances["Chicago-2"].address
    assert [topic.name for topic in one.sow] == ["board"]


def test_an_instance_that_is_down(
    local: Any, running: RunningFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raylay.services.pipeline.audit import network

    monkeypatch.setattr(network, "CONNECT_WAIT_S", 0.5)
    stopped = running.instances["Chicago-3"]
    stopped.stop()
    try:
        with pytest.raises(RaylayError, match=r"127\.0\.0\.1"):
            running.audit(local)
        assert running.audit(local, instances=["Chicago-1"]).valid
    finally:
        stopped.start()


@pytest.mark.slow
def test_the_example_of_the_page(
    local: Any, running: RunningFabric, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    section = page.partition("\n### The audit over the network\n")[2]
    block = section.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"spark": local}
    exec(compile(block.replace("data/flights", str(running.directory)), "the page", "exec"), names)
    assert names["asked"].lost >= 20
    assert " lost" in capsys.readouterr().out
