"""What instances and links are started with survives its files, and wrong values are named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.instance import (
    DestinationConfig,
    InstanceConfig,
    LinkConfig,
    reachable,
    split_address,
)
from raylay.services.config.journal import JournalConfig, RetentionConfig
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.server.links.destination_addresses import client_name
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules
from raylay.services.telemetry.logs import LogOptions, LogTarget
from raylay.services.telemetry.tracing import TracingOptions

pytestmark = pytest.mark.covers("Replication", "ResyncPassThrough")


def full() -> InstanceConfig:
    return InstanceConfig(
        "A",
        "g",
        topics=(TopicRule("orders", "json"), TopicRule("^fx")),
        destinations=(
            DestinationConfig(
                "to-B",
                "h",
                False,
                ("one:1", "[::1]:2"),
                (TopicRule("orders"),),
                "^g$",
                True,
                5,
                ("one:3",),
            ),
        ),
        client_transports=(TransportConfig("client", 4000),),
        first=True,
        journal=JournalConfig(durability="interval", retention=RetentionConfig(size_bytes=5)),
        policy=DowngradePolicy(500, None, 1),
        tracing=TracingOptions(0.5, console=True),
        log=LogOptions("developer", "none", also=(LogTarget(target="stdout", exclude=("07",)),)),
        metrics_port=0,
    )


def test_an_instance_survives_its_file(tmp_path: Path) -> None:
    full().save(tmp_path / "made")
    assert InstanceConfig.load(tmp_path / "made") == full()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["instance.json"]


def test_what_is_configured_of_topics_with_state_survives() -> None:
    made = dataclasses.replace(
        full(),
        sow=(
            SowTopicDefinition(
                "all",
                "json",
                pattern="^orders",
                key_generator="mine",
                key_generator_options={"n": "1"},
                transient=True,
            ),
            SowTopicDefinition(
                "orders",
                "json",
                keys=("/id", "/day"),
                rules=SowRules(window_us=5, granularity_us=2),
                hash_indexes=(("/a", "/b"), ("/c",)),
                enrichment=("/a AS /b",),
                last_writer=True,
            ),
        ),
    )
    assert InstanceConfig.from_json(made.to_json()) == made
    values = json.loads(made.to_json())
    values["sow"][0]["recovery_point"] = "soon"
    with pytest.raises(ConfigurationError, match=r"sow\[0\]: expected epoch, now, or an instant"):
        InstanceConfig.from_json(json.dumps(values))


@pytest.mark.parametrize("version", [None, 2])
def test_a_file_of_another_version_is_refused(version: int | None) -> None:
    values = json.loads(InstanceConfig("A", "g").to_json())
    assert values["version"] == 1
    told = f"^it has version {version}, this software reads 1: use the release that wrote it"
    with pytest.raises(ConfigurationError, match=told):
        InstanceConfig.from_json(json.dumps(values | {"version": version}), "it")


def test_a_link_survives() -> None:
    config = LinkConfig("A", "g", (1 << 64) - 1, 7, "sock", "journal", None, full().destinations[0])
    assert LinkConfig.from_json(config.to_json()) == config
    assert config.process_name == "A.to-B"


def test_a_bootstrap_survives_and_is_checked() -> None:
    config = full()
    config.bootstrap = BootstrapConfig(("one:1", "[::1]:2"), (TopicRule("^o", "json"),), 5)
    assert InstanceConfig.from_json(config.to_json()) == config
    config.check()
    for wrong, words in (
        (BootstrapConfig(()), "Bootstrap names no source"),
        (BootstrapConfig(("nowhere",)), "'nowhere' is not of the form host:port"),
        (
            BootstrapConfig(("one:1",), (TopicRule("("),)),
            "Bootstrap Topic: '\\(' cannot be used as a regular",
        ),
    ):
        config.bootstrap = wrong
        with pytest.raises(ConfigurationError, match=words):
            config.check()


def test_a_destination_without_an_address_waits() -> None:
    waiting = DestinationConfig("x", "h", server_names=("B", "C"))
    InstanceConfig("A", "g", destinations=(waiting,)).check()
    assert not waiting.destination().dials
    assert waiting.destination().addresses == ("B", "C")
    assert waiting.reconnect_timeouts_s() == ()
    shared = DestinationConfig("x", "h", addresses=("b:1",), share_connection=True).destination()
    assert shared.dials and shared.share_connection


@pytest.mark.covers("Replication", "the name of a link as a client")
def test_the_name_of_a_link_as_a_client() -> None:
    hot = DestinationConfig("HotBackup", "h", True)
    assert client_name("OrderServer", hot) == "OrderServer!HotBackup!sync!amps-replication"
    assert client_name("A", DestinationConfig("B", "h", False)) == "A!B!async!amps-replication"


def test_who_listens_everywhere_has_no_address_to_tell() -> None:
    for address in ("0.0.0.0:5", "[::]:5"):
        assert reachable(address) == ""
    for address in ("127.0.0.1:5", "[::1]:5", "host:5"):
        assert reachable(address) == address


def test_the_machines_get_their_part() -> None:
    asked = DestinationRoute(
        "to-B", "h", False, (TopicRule("orders"),), "^g$", ("one:1", "[::1]:2"), True, 5
    )
    given = full().destinations[0]
    # Nobody names the servers at its addresses: several may answer at one.
    assert given.destination() == dataclasses.replace(asked, wide_ip=True)
    for named in (
        dataclasses.replace(given, server_names=("B", "C")),
        dataclasses.replace(given, wide_ip=False),
    ):
        assert named.destination() == asked


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": 1}, "instance.json: colour is no value of InstanceConfig"),
        ({"policy": {"age": 1}}, r"policy\.age is no value"),
        ({"destinations": [{"name": "x"}]}, r"json: destinations\[0\]: .*group"),
        ({"destinations": [{"name": "x", "group": "g", "port": 1}]}, r"destinations\[0\]\.port is"),
        (
            {"client_transports": [{"name": "x", "port": "1"}]},
            r"client_transports\[0\]\.port: .*int",
        ),
        ({"destinations": [5]}, "destinations"),
        ({"log": {"level": "loud"}}, "loud"),
        ({"bootstrap": {"source": "b:1"}}, "source"),
        ({"bootstrap": 5}, "bootstrap"),
        ({"tracing": {"sampling_ratio": 2}}, "sampling_ratio"),
    ],
)
def test_a_wrong_file_names_what_is_wrong(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    values = json.loads(full().to_json()) | change
    (tmp_path / "instance.json").write_text(json.dumps(values))
    with pytest.raises(ConfigurationError, match=named):
        InstanceConfig.load(tmp_path)


def test_a_missing_file_and_one_that_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        InstanceConfig.load(tmp_path)
    (tmp_path / "instance.json").write_text("{")
    with pytest.raises(ConfigurationError, match="no JSON"):
        InstanceConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (InstanceConfig("", "g"), "name"),
        (InstanceConfig("A", "g", journal=JournalConfig(durability="hope")), "hope"),
        (
            InstanceConfig(
                "A", "g", destinations=(DestinationConfig("x", "h", True, ("a:1",)),) * 2
            ),
            "'x'",
        ),
        (
            InstanceConfig("A", "g", destinations=(DestinationConfig("x", "h", True, ("a",)),)),
            "'a'",
        ),
    ],
)
def test_values_that_do_not_fit(config: InstanceConfig, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        config.check()


def test_addresses() -> None:
    assert split_address("host:80") == ("host", 80)
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address(":80") == ("127.0.0.1", 80)
    for address in ("host", "host:", "host:port", "host:70000"):
        with pytest.raises(ConfigurationError):
            split_address(address)


@pytest.mark.parametrize(
    ("given", "expected"),
    [((), (None, None)), ((1500,), (1.5, 1.5)), ((1000, 2500), (1.0, 2.5))],
)
def test_each_address_has_its_time(
    given: tuple[int, ...], expected: tuple[float | None, ...]
) -> None:
    found = DestinationConfig("d", "g", addresses=("a:1", "b:2"), reconnect_timeout_ms=given)
    InstanceConfig("A", "g", destinations=(found,)).check()
    assert found.reconnect_timeouts_s() == expected


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"reconnect_timeout_ms": (1, 2, 3)}, "ReconnectTimeout"),
        ({"reconnect_timeout_ms": (0,)}, "ReconnectTimeout"),
        ({"compression_type": "gzip"}, "CompressionType"),
    ],
)
def test_wrong_values_of_a_destination(values: dict[str, Any], named: str) -> None:
    found = DestinationConfig("d", "g", addresses=("a:1", "b:2"), **values)
    with pytest.raises(ConfigurationError, match=named):
        InstanceConfig("A", "g", destinations=(found,)).check()


def test_transports_are_on_loopback_where_no_address_is_given() -> None:
    config = InstanceConfig("A", "g")
    assert {config.metrics_host, *(each.host for each in config.transports)} == {"127.0.0.1"}
