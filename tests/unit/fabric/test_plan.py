"""Ports and directories of a fabric: chosen once, kept, and told to those who need them."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from raylay.services.admin.fabric_topology import TOPOLOGY_FILE
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.plan import (
    FabricChanges,
    FabricRecord,
    bring_up_to_date,
    changes,
    client_address,
    config_digest,
    free_port,
    instance_config,
    newest,
    record_of,
    replication_address,
    servers_of,
)
from raylay.services.fabric.records import discovery, record_store, registry
from raylay.services.fabric.records.registry import REGISTRY_VARIABLE, RegistryEntry
from raylay.services.messages.topics import TopicRule


def builder() -> FabricBuilder:
    made = FabricBuilder("flights", downgrade_age="500ms", topics=["flights/.*"])
    return made.region("Chicago", 2).region("London", 2).connect_regions("async")


def test_ports_are_kept_between_starts(tmp_path: Path) -> None:
    settings = builder().settings()
    first = record_of(settings, tmp_path)
    first.save()
    assert record_of(settings, tmp_path).ports == first.ports


def test_threads_of_one_process_save_a_record_at_once(tmp_path: Path) -> None:
    record = record_of(builder().settings(), tmp_path)
    with ThreadPoolExecutor(8) as threads:
        for saved in [threads.submit(record.save) for _ in range(100)]:
            saved.result()
    assert [path.name for path in tmp_path.iterdir()] == ["fabric.json"]
    assert FabricRecord.load(tmp_path) == record


def test_who_does_not_dial_is_given_no_address_but_the_names(tmp_path: Path) -> None:
    made = FabricBuilder("dmz").instance("In", "inside").instance("Out", "outside")
    made.destination("In", to=["Out"], share_connection=True)
    settings = made.destination("Out", to=["In"], dial=False).settings()
    record = record_of(settings, tmp_path)
    inside, outside = (instance_config(settings, record, each) for each in settings.instances)
    (waiting,), (dialling,) = outside.destinations, inside.destinations
    assert waiting.addresses == () and waiting.server_names == ("In",)
    assert waiting.client_addresses == (client_address(record, settings.instance("In")),)
    assert dialling.addresses == (outside.replication_transports[0].advertised,)
    assert (dialling.share_connection, waiting.share_connection) == (True, False)


@pytest.mark.covers("Resync and bootstrap", "`Bootstrap` in AMPSConfig")
def test_where_an_instance_is_copied_from(tmp_path: Path) -> None:
    made = builder().instance(
        "London-2",
        bootstrap={"sources": ["London-1", "far.example:9"], "topics": ["flights/eu"]},
    )
    settings = FabricSettings.from_json(made.settings().to_json())
    record = record_of(settings, tmp_path)
    config = instance_config(settings, record, settings.instance("London-2"))
    near = replication_address(record, settings.instance("London-1"))
    assert config.bootstrap == BootstrapConfig((near, "far.example:9"), (TopicRule("flights/eu"),))
    assert InstanceConfig.from_json(config.to_json()) == config
    assert instance_config(settings, record, settings.instance("London-1")).bootstrap is None


@pytest.mark.parametrize(
    ("bootstrap", "words"),
    [
        ({"sources": ["Paris"]}, "no instance is named Paris; there are Chicago-1"),
        ({"sources": ["London-2"]}, "London-2 is the instance itself"),
        ({"sources": ["host:port"]}, "'host:port' is no address"),
        ({"sources": ["London-1"], "topics": [{"name": "a", "journaled": False}]}, "topic a"),
        ({"sources": []}, "sources"),
    ],
)
def test_a_bootstrap_that_cannot_be(bootstrap: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        builder().instance("London-2", bootstrap=bootstrap).settings()
    assert words in str(caught.value)


def test_a_bootstrap_of_a_yaml_file() -> None:
    text = "fabric: f\nregions: {A: 2}\ninstances:\n  A-2: {bootstrap: {sources: [A-1]}}\n"
    first, second = parse(text).instances
    assert first.bootstrap is None
    assert second.bootstrap is not None and second.bootstrap.sources == ("A-1",)


def changed(settings: FabricSettings, running: FabricRecord) -> FabricChanges:
    wanted = replace(running)
    bring_up_to_date(wanted, settings)
    return changes(running, wanted)


def test_only_what_is_started_with_something_else_is_restarted(tmp_path: Path) -> None:
    def pairs(age: str = "500ms") -> FabricBuilder:
        made = FabricBuilder("flights", downgrade_age=age, topics=["flights/.*"])
        return made.region("Chicago", 2).region("London", 2)

    running = record_of(pairs().settings(), tmp_path)
    assert changed(pairs().settings(), running) == FabricChanges()
    reader = pairs().instance("desk").destination("London-2", to=["desk"])
    # London-1 has to leave out the check that London-2 passes everything on both ways.
    assert changed(reader.settings(), running) == FabricChanges(("desk",), ("London-1", "London-2"))
    names = ("Chicago-1", "Chicago-2", "London-1", "London-2")
    assert changed(pairs("700ms").settings(), running).restarted == names
    running.restarting = {"London-1": ""}
    assert changed(pairs().settings(), running) == FabricChanges((), ("London-1",))
    settings = pairs().settings()
    present = instance_config(settings, running, settings.instance("London-1"))
    running.restarting = {"London-1": config_digest(present)}
    assert changed(settings, running) == FabricChanges()
    assert changed(pairs("700ms").settings(), running).restarted == names


def test_instances_that_are_gone_leave_their_data(tmp_path: Path) -> None:
    running = record_of(builder().settings(), tmp_path)
    fewer = FabricBuilder("flights", topics=["flights/.*"]).region("Chicago", 2).settings()
    found = changed(fewer, running)
    assert found.removed == ("London-1", "London-2")
    assert found.directories == tuple(str(tmp_path / name) for name in found.removed)
    assert found.restarted == ("Chicago-1", "Chicago-2"), "they lose their links to them"


def test_no_change_moves_data(tmp_path: Path) -> None:
    running = record_of(builder().settings(), tmp_path)
    before = running.to_json()
    moved = builder().instance("Chicago-1", directory="elsewhere").settings()
    with pytest.raises(FabricError, match="instance Chicago-1: directory would change"):
        changed(moved, running)
    with pytest.raises(FabricError, match="these are settings of trains"):
        changed(FabricBuilder("trains", topics=["t"]).region("R", 1).settings(), running)
    assert running.to_json() == before


def test_all_ports_differ_and_none_is_of_outgoing_connections(tmp_path: Path) -> None:
    record = record_of(builder().settings(), tmp_path)
    ports = [p for each in record.ports.values() for p in (each.client, each.replication)]
    assert len(set(ports)) == 8
    low, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert all(port < int(low) for port in ports)


@pytest.mark.parametrize(
    "option",
    ["client_port", "replication_port", "metrics_port", "transports", "replication_transports"],
)
def test_configured_ports_go_before_kept_ones(tmp_path: Path, option: str) -> None:
    record = record_of(builder().settings(), tmp_path)
    record.save()
    taken = record.ports["Chicago-2"].client
    value = [{"name": "more", "port": taken}] if option.endswith("transports") else taken
    changed = builder().instance("Chicago-1", **{option: value}).settings()
    again = record_of(changed, tmp_path)
    assert again.ports["Chicago-2"].client != taken
    assert option != "client_port" or again.ports["Chicago-1"].client == taken


def test_a_port_in_use_is_not_chosen() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = free_port({other.getsockname()[1]})
        assert port != other.getsockname()[1]


def test_a_fabric_has_one_key_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    settings = builder().settings()
    record = record_of(settings, tmp_path / "f")
    configs = [instance_config(settings, record, each) for each in settings.instances]
    assert len(record.key) == 32 and {config.fabric_key for config in configs} == {record.key}
    record.save()
    configs[0].save(tmp_path / "one")
    for path in (tmp_path / "f" / "fabric.json", tmp_path / "one" / "instance.json"):
        assert path.stat().st_mode & 0o077 == 0, path
    again = FabricRecord.load(tmp_path / "f")
    assert again is not None and again.key == record.key


@pytest.mark.parametrize("version", [None, 2])
def test_a_record_of_another_version_is_refused(tmp_path: Path, version: int | None) -> None:
    values = json.loads(record_of(builder().settings(), tmp_path).to_json())
    assert values["version"] == 1
    told = f"^it has version {version}, this software reads 1: use the release that wrote it$"
    with pytest.raises(FabricError, match=told):
        FabricRecord.from_json(json.dumps(values | {"version": version}), "it")


def test_another_fabrics_directory_is_refused(tmp_path: Path) -> None:
    record_of(builder().settings(), tmp_path).save()
    other = FabricBuilder("other").instance("A").settings()
    with pytest.raises(FabricError, match="holds fabric flights, not other"):
        record_of(other, tmp_path)


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text('{"name": 1}')
    with pytest.raises(FabricError, match=r"fabric\.json"):
        FabricRecord.load(tmp_path)


def test_the_configuration_of_an_instance(tmp_path: Path) -> None:
    settings = builder().settings()
    record = record_of(settings, tmp_path)
    config = instance_config(settings, record, settings.instance("Chicago-1"))
    assert config.first
    assert config.policy.age_ms == 500
    inside, across = config.destinations
    assert (inside.name, inside.sync, inside.pass_through) == ("Chicago-2", True, ".*")
    assert (across.name, across.sync, across.group) == ("London", False, "London")
    assert across.addresses == tuple(
        replication_address(record, settings.instance(name)) for name in ("London-1", "London-2")
    )
    assert across.client_addresses == tuple(
        client_address(record, settings.instance(name)) for name in ("London-1", "London-2")
    )
    assert InstanceConfig.from_json(config.to_json()) == config


def test_only_the_first_start_admits_clients_without_a_peer(tmp_path: Path) -> None:
    settings = builder().settings()
    record = record_of(settings, tmp_path)
    record.settled = ["Chicago-1"]
    assert not instance_config(settings, record, settings.instance("Chicago-1")).first
    assert instance_config(settings, record, settings.instance("Chicago-2")).first


def test_a_client_gets_one_group(tmp_path: Path) -> None:
    record = record_of(builder().settings(), tmp_path)
    found = servers_of(record, "London", "desk")
    assert [server.instance for server in found["servers"]] == ["London-1", "London-2"]
    assert found["group"] == "London"
    with pytest.raises(ConfigurationError, match="desk: name one group of Chicago, London"):
        servers_of(record, "", "desk")
    with pytest.raises(ConfigurationError, match="no group Paris"):
        servers_of(record, "Paris", "desk")


def test_a_fabric_of_a_dead_process_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path))
    me = os.getpid()
    start = registry.process_start(me)
    registry.register(registry.RegistryEntry("alive", "/d", "a:1", me, start))
    # The pid is in use, but by a process that started at another time.
    registry.register(registry.RegistryEntry("gone", "/d", "a:1", me, start - 1))
    assert [entry.name for entry in registry.running()] == ["alive"]
    assert not (tmp_path / "gone.json").exists()
    registry.unregister("alive")
    assert registry.find("alive") is None


# -- several hosts -------------------------------------------------------------------------------
def test_of_several_records_the_one_written_last_counts(tmp_path: Path) -> None:
    first = record_of(builder().settings(), tmp_path)
    later = replace(first, number=3)
    assert newest(None, first, later, None) is later
    assert newest(first, replace(first)) is first
    assert newest(None) is None


def test_an_instance_that_did_not_come_up_is_started_by_the_next_apply(tmp_path: Path) -> None:
    running = record_of(builder().settings(), tmp_path)
    running.starting = ["London-2"]
    assert changed(builder().settings(), running) == FabricChanges(("London-2",), ())


def test_a_start_takes_the_record_that_another_host_has(tmp_path: Path) -> None:
    """The ports of the newest one, at the place where it starts."""
    settings = builder().settings()
    stale = record_of(settings, tmp_path / "here")
    stale.save()
    elsewhere = record_of(settings, tmp_path / "elsewhere")
    elsewhere.number = 7
    found = record_of(settings, tmp_path / "here", elsewhere)
    assert (found.number, found.ports) == (7, elsewhere.ports)
    assert found.directory == str(tmp_path / "here")


def test_a_node_keeps_the_newest_record_beside_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    settings = builder().settings()
    record = record_of(settings, tmp_path / "data")
    record.number = 5
    entry = RegistryEntry(settings.name, record.directory, "10.0.0.1:6379")
    text = instance_config(settings, record, settings.instances[0]).to_json()

    def sent(number: int) -> int:
        told = replace(record, number=number).to_json()
        record_store.save_config(text, str(tmp_path / "data" / "x"), told, entry, "{}")
        assert (tmp_path / "data" / "x" / TOPOLOGY_FILE).read_text() == "{}"
        kept = FabricRecord.load(tmp_path / "data")
        assert kept is not None
        return kept.number

    assert [sent(5), sent(4), sent(6)] == [5, 5, 6]
    assert FabricRecord.from_json(
        record_store.record_text(settings.name, str(tmp_path / "data")), "it"
    ) == replace(record, number=6)
    assert record_store.record_text("another", str(tmp_path / "data")) == ""
    assert record_store.record_text(settings.name, str(tmp_path / "nowhere")) == ""
    (tmp_path / "data" / "fabric.json").write_text("{")
    assert record_store.record_text(settings.name, str(tmp_path / "data")) == ""


def test_a_fabric_whose_head_is_gone_for_good_is_over() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        entry = RegistryEntry("f", "/data", f"127.0.0.1:{port}")
        assert not discovery.is_over(entry)
    assert discovery.is_over(entry)
    assert not discovery.is_over(replace(entry, host_pid=1)), "who began its Ray is alive"
