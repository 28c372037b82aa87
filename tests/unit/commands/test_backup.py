"""services/commands/backup.py: where the data of each instance is, and what is said of those that
have no backup."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.commands import backup
from raylay.services.commands.backup import BackupSource, OtherHosts
from raylay.services.commands.shared.separate_backup import (
    BackupRequest,
    make_there,
    manifest_of,
)
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError, StorageError
from raylay.services.fabric import Fabric, plan
from raylay.services.fabric.cluster import ray_access
from raylay.services.fabric.cluster.nodes import NodePlace
from raylay.services.fabric.records import registry
from raylay.services.server.data.backup_manifest import BackupManifest
from raylay.services.server.data.restore import RestoreResult

pytestmark = pytest.mark.covers("Journal", "a backup of an instance of another host")
ELSEWHERE = "192.0.2.1"
"""An address of no host (RFC 5737)."""
THERE = {"region": "east", "host": "b"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plan.FabricRecord:
    """A stopped fabric: the data of east-1 is here, that of east-2 on another host."""
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    settings = Fabric("wide", topics=["orders"]).region("east", instances=2).settings()
    made = plan.record_of(settings, tmp_path / "wide")
    made.nodes["east-1"] = NodePlace({**THERE, "host": "a"}, "127.0.0.1")
    made.nodes["east-2"] = NodePlace(THERE, ELSEWHERE)
    made.save()
    (tmp_path / "wide" / "east-1").mkdir()
    return made


def test_each_instance_is_copied_on_its_host(record: plan.FabricRecord) -> None:
    home = Path(record.directory)
    here, there = backup._sources(record, [], is_running=True)
    assert here == BackupSource("east-1", home / "east-1")
    assert there == BackupSource("east-2", home / "east-2", ELSEWHERE, THERE)
    assert backup._sources(record, ["east-2"], is_running=True) == [there]


def test_a_directory_here_is_taken_where_the_fabric_was_stopped(record: plan.FabricRecord) -> None:
    """Its host may have another address by now."""
    (Path(record.directory) / "east-2").mkdir()
    assert all(not each.host for each in backup._sources(record, [], is_running=False))
    assert backup._sources(record, ["east-2"], is_running=True)[0].host == ELSEWHERE


def test_who_is_left_out_is_named_with_its_host_and_the_command_to_run_there(
    record: plan.FabricRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    manifest = BackupManifest(
        "0.1.0", "wide", "east-1", "east", "0" * 16, 0, "d", "", "2026-01-02T03:04:05Z", 1, 7, 7, ()
    )
    asked: list[BackupRequest] = []

    def made(request: BackupRequest) -> tuple[str, BackupManifest]:
        asked.append(request)
        return "/backups/east-1", manifest

    monkeypatch.setattr(backup, "_record_meant", lambda _: record)
    monkeypatch.setattr(backup, "make_separately", made)
    with pytest.raises(FabricError) as refused:
        backup.backup([], tmp_path / "to", "", as_json=False)
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  7 messages up to transaction 7, 0.0 MB in 0 files: verified",
        "  /backups/east-1",
    ]
    assert [Path(each.directory).name for each in asked] == ["east-1"]
    first, line = str(refused.value).splitlines()
    assert first == "1 of 2 instances have no backup:"
    assert line == (
        f"  east-2 on {ELSEWHERE}: its data is on another host, and the fabric does not run; "
        f"on that host: raylay backup east-2 --fabric wide --to {tmp_path / 'to'}"
    )


def test_a_stopped_fabric_has_no_other_hosts() -> None:
    source = BackupSource("east-2", Path("d"), ELSEWHERE, THERE)
    with ExitStack() as stack:
        ((told, error),) = OtherHosts(None, stack).make_all([source], request_of)
        assert told is source and isinstance(error, FabricError) and "does not run" in str(error)
        assert list(OtherHosts(None, stack).make_all([], request_of)) == []


def request_of(source: BackupSource) -> BackupRequest:
    return BackupRequest(source.name, "to", "wide", "")


def test_other_hosts_work_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host makes its first backup when both have begun: one after the other they never
    would."""
    sources = [
        BackupSource(name, Path("d"), host, {"host": host})
        for name, host in (("a-1", "a"), ("b-1", "b"), ("a-2", "a"), ("c-1", "c"))
    ]
    both = threading.Barrier(2, timeout=60)

    def on_node(labels: dict[str, str], _: object, request: BackupRequest, **__: object) -> Any:
        if request.directory in ("a-1", "b-1"):
            both.wait()
        return {"error": f"{request.directory} at {labels['host']}"}

    monkeypatch.setattr(Fabric, "attach", lambda _: nullcontext())
    monkeypatch.setattr(ray_access, "on_node", on_node)
    nodes = [SimpleNamespace(labels={"host": each}) for each in "ab"]
    monkeypatch.setattr(ray_access, "living_nodes", lambda: nodes)
    with ExitStack() as stack:
        entry = registry.RegistryEntry("wide", "d", "h:1")
        made = OtherHosts(entry, stack).make_all(sources, request_of)
        found = {source.name: str(error) for source, error in made}
    assert found == {
        "a-1": "a-1 at a",
        "a-2": "a-2 at a",
        "b-1": "b-1 at b",
        "c-1": "its host is not among the living nodes of Ray",
    }


def test_a_fault_on_the_other_host_is_told_here(tmp_path: Path) -> None:
    answer = make_there(BackupRequest(str(tmp_path / "none"), str(tmp_path / "to"), "wide", ""))
    with pytest.raises(StorageError, match="there is nothing to back up"):
        manifest_of(answer)
    assert not (tmp_path / "to").exists()


def test_a_restore_to_another_directory_names_the_one_that_is_used(
    record: plan.FabricRecord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    used = plan.data_directory(record, FabricSettings.from_json(record.settings).instances[0])
    manifest = BackupManifest(
        *("0.1.0", "wide", "east-1", "east", "0" * 16, 0, str(used), "", "2026-01-02T03:04:05Z"),
        *(1, 7, 7, ()),
    )
    monkeypatch.setattr(backup, "_record_of", lambda _: record)
    monkeypatch.setattr(backup, "check_backup", lambda _: manifest)
    monkeypatch.setattr(
        backup, "restore", lambda path, found, target, force: RestoreResult(target.directory, ())
    )
    told = {}
    for place in (tmp_path / "else", used):
        backup.restore_command([Path("b")], place, False, False, False)
        told[place] = capsys.readouterr().out.splitlines()[-1]
    assert told[tmp_path / "else"] == (
        f"  east-1 uses another directory, {used}: `raylay restore b` restores it there"
    )
    assert told[used].startswith("next: raylay ")
