"""A fabric declared in Python and in YAML is the same; what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from raylay.services.configuration import yaml_file
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.fields import name_in_files
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import (
    _File,
    _InstanceEntry,
    _LinkEntry,
    _RegionEntry,
    load,
    parse,
)
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.observability import log_options
from raylay.services.messages.units import (
    format_bytes,
    format_milliseconds,
    parse_bytes,
    parse_milliseconds,
)
from raylay.services.security.modules import ModuleConfig
from raylay.services.telemetry.log_options import from_environment, to_environment

FILE = """\
fabric: flights
topics:
  - {name: flights/.*, message_type: json}
regions:
  Chicago: 2
  NewYork: [NewYork-1, NewYork-2]
  London: {instances: 2, links: sync}
connect_regions: async
instances:
  Audit: {client_port: 9001}
links:
  - {from: Chicago-1, to: Audit, mode: async, pass_through: Chicago}
downgrade: {age: 5s}
journal: {segment_size: 64MiB, durability: fsync}
"""


EVERY_KEY = """\
fabric: every
topics: [{name: t/.*, message_type: json, journaled: true}]
regions:
  A:
    instances: [A-1, A-2]
    links: async
    host: 127.0.0.1
    node_labels: {region: A}
    journal: {durability: interval, flush_interval: 20ms, archive_directory: old,
      segment_size: 2MiB, retention: {age: 7d, size: 1GiB}}
    downgrade: {age: 6s, upgrade_age: 3s, min_sync_destinations: 1, every: 1s, upgrade_every: 2s,
      grace_period: 4s, upgrade_grace_period: 5s, by_evidence: false, check_interval: 50ms}
  B: 1
connect_regions: async
message_types: [{name: pipes, kind: fix, options: {field_separator: 124}}]
sow_topics: [{name: t/last, message_type: json, keys: [/id]}]
views: [{name: t/view, message_type: json, topic: t/last, projection: [/id AS /id]}]
conflated_topics: [{name: t/slow, message_type: json, topic: t/last, interval: 1s}]
queues: [{name: t/work, message_type: json, underlying: t/orders, lease: 30s}]
actions: [{name: hello, on: startup, do: {echo_message: {message: hello}}}]
sow_stats_interval: 5s
instances:
  C:
    group: G
    host: 127.0.0.2
    client_port: 9001
    replication_port: 9002
    accepts_links: true
    metrics_port: 9003
    directory: elsewhere
    node_labels: {host: c}
    journal: {flush_interval: 30ms}
    downgrade: {age: 7s}
    topics: [own]
    sow_topics: [{name: own, message_type: json, expiration: 5s}]
    views: [{name: own/view, message_type: json, topic: own, projection: [COUNT(/id) AS /n]}]
    conflated_topics: [{name: own/slow, message_type: json, topic: own}]
    queues: [{name: own/work, message_type: json, underlying: own}]
    actions: [{on: shutdown, do: nothing}]
    sow_stats_interval: 250ms
    replication_host: 127.0.0.3
    logs: {level: developer}
    bootstrap: {sources: [A-1], topics: [own], authenticator: copies}
    message_types: [json]
    tls: {certificate: "{instance}.crt", private_key: /k, ca_file: ca, verify_name: false}
    replication_transport: {name: back, enabled: false, tls: false, authentication: passwords}
    replication_transports:
      - {name: more, port: 9005, host: 127.0.0.5, enabled: false, entitlement: none}
    client_transport:
      {name: main, connections_max: 100, connections_per_user_max: 30,
       connections_per_address_max: 40, outstanding_publishes_max: 9, enabled: false}
    authentication: {module: passwords, options: {File: who}}
    entitlement: amps-default-entitlement-module
    replication_authentication: certificates
    replication_entitlement: {module: http, options: {ResourceURI: "http://h/"}}
    authenticator: {module: exec, options: {Command: c}}
    admin: {entitlement: amps-default-no-entitlement-module}
    capacity: {disk: 3GB}
    transports:
      - name: typed
        port: 9004
        host: 127.0.0.4
        message_types: [fix]
        authentication: certificates
links:
  - from: A-1
    to: [C]
    mode: sync
    pass_through: A
    own_group_only: true
    exclude_validation: [sow]
    topics: [own]
    name: there
    group: G
    resync_pass_through: B
    compression: true
    compression_type: zlib
    reconnect_timeout: [500ms]
    ack_conflation: 20ms
    dial: false
    share_connection: true
    wide_ip: true
    waits: true
    waits_for: [C]
    tls: {ca_file: /ca, server_name: c.example}
    authenticator: {module: theirs, options: {PasswordFileName: pw}}
  - {from: C, to: A-1}
journal: {segment_size: 64MiB}
downgrade: {age: 5s}
tracing: {sampling_ratio: 0.5, otlp_endpoint: "http://127.0.0.1:4318", console: true, directory: t}
metrics: {enabled: true}
logs: {level: warning, target: file, directory: l, format: json}
client: {heartbeat: 4s, ack_conflation: 10ms, publish_timeout: 20s}
tls: {certificate: c, private_key: k, protocols: [TLSv1.3], ciphers: HIGH}
drills: allowed
unauthenticated: allowed
authentication: {module: tokens, options: {SecretFile: /s, Audience: 7}}
entitlement: {module: permissions, options: {File: what}}
replication_authentication: tokens
replication_entitlement: permissions
authenticator: amps-default-authenticator-module
admin: {authentication: {module: passwords, options: {File: who}}, entitlement: permissions}
capacity: {memory: 1GB, client_share: 60%}
direct_links: false
relocate_after: 10m
"""


def test_every_key_of_a_file_comes_through() -> None:
    values = yaml.safe_load(EVERY_KEY)
    for model, given in (
        (_File, values),
        (_RegionEntry, values["regions"]["A"]),
        (_InstanceEntry, values["instances"]["C"]),
        (_LinkEntry, values["links"][0]),
    ):
        keys = {info.alias or name_in_files(name) for name, info in model.model_fields.items()}
        assert keys == set(given), "a key that this file does not have is not tested"
    settings = parse(EVERY_KEY)
    assert settings.relocate_after_ms == 600_000 and not settings.direct_links
    counted = [settings.sow_stats_interval_ms_of(settings.instance(each)) for each in ("A-1", "C")]
    assert counted == [5_000, 250]
    link = next(d for d in settings.instance("A-1").destinations if d.name == "there")
    assert (link.reconnect_timeout_ms, link.ack_conflation_ms) == ((500,), 20)
    assert (link.sync, link.dial, link.compression_type) == (True, False, "zlib")
    assert link.wide_ip is True and (link.waits, link.waits_for) == (True, ("C",))
    first = settings.instance("C").client_transport
    assert first is not None
    assert (first.name, first.enabled, first.connections_max) == ("main", False, 100)
    assert first.outstanding_publishes_max == 9
    assert (first.connections_per_user_max, first.connections_per_address_max) == (30, 40)
    (typed,) = settings.instance("C").transports
    assert (typed.port, typed.message_types) == (9004, ("fix",))
    assert typed.authentication is not None and typed.authentication.module == "certificates"
    given = settings.instance("C").authentication
    assert given is not None and given.options == {"File": "who"}
    assert settings.authentication is not None and settings.entitlement is not None
    assert settings.authentication.options == {"SecretFile": "/s", "Audience": "7"}
    assert settings.admin is not None and settings.controlled() == ["A-1", "A-2", "B-1", "C"]
    assert settings.admin.authentication == ModuleConfig("passwords", {"File": "who"})
    assert settings.admin.entitlement == ModuleConfig("permissions")
    own = settings.instance("C").admin
    assert own is not None and own.authentication is None
    for name, modules in (
        ("replication_authentication", ("tokens", "certificates")),
        ("replication_entitlement", ("permissions", "http")),
        ("authenticator", ("amps-default-authenticator-module", "exec")),
    ):
        found = getattr(settings, name), getattr(settings.instance("C"), name)
        assert tuple(each.module for each in found) == modules
    there = settings.instance("A-1").destinations[-1].authenticator
    assert there is not None and there.options == {"PasswordFileName": "pw"}
    limits, of_all = settings.instance("C").capacity, settings.capacity
    assert limits is not None and limits.disk_bytes_max == 3 * 10**9
    assert of_all is not None and (of_all.memory_bytes_max, of_all.client_share) == (10**9, 0.6)
    assert settings.instance("C").message_types == ("json",)
    (pipes,) = settings.types_of(settings.instance("C"))
    assert (pipes.name, pipes.kind, pipes.options) == ("pipes", "fix", {"field_separator": 124})
    assert settings.journal_of(settings.instance("A-2")).retention.age_ms == 604_800_000
    assert settings.downgrade_of(settings.instance("C")).age_ms == 7_000
    for name, kept in (("A-1", "hello"), ("C", "shutdown")):
        assert [each.name for each in settings.actions_of(settings.instance(name))] == [kept]
    assert settings.client.heartbeat_ms == 4_000 and settings.tracing.sampling_ratio == 0.5
    assert FabricSettings.from_json(settings.to_json()) == settings


@pytest.mark.covers("Logging", "one format of options", note="YAML and Python")
def test_logs_have_one_target_or_a_list_of_them() -> None:
    written = (
        "[{target: stdout, exclude: ['07']}, "
        "{level: none, levels: [stats], target: gzip, file_name: '%p-%n.log', rotation: 1MiB, "
        "kept: 10MiB}, {level: error, target: syslog, options: [LOG_PID], facility: LOG_LOCAL1}]"
    )
    settings = parse(f"fabric: f\nlogs: {written}\ninstances: {{A: {{}}}}", "f.yaml")
    options = log_options(settings.logs, "/data", "A")
    stdout, zipped, syslog, kept = options.targets
    assert (kept.in_background, kept.directory, kept.format) == (True, "/data/log/A", "json")
    assert (stdout.target, stdout.exclude, stdout.directory) == ("stdout", ("07",), "")
    assert (zipped.levels, zipped.directory) == (("stats",), "/data/logs")
    assert (zipped.rotation_bytes, zipped.files_bytes_max) == (1 << 20, 10 << 20)
    assert (syslog.options, syslog.facility) == (("LOG_PID",), "LOG_LOCAL1")
    logs = yaml.safe_load(written)
    builder = FabricBuilder("f", logs=logs)
    builder.instance("A")
    declared = builder.settings()
    assert log_options(declared.logs, "/data", "A") == options
    assert FabricSettings.from_json(declared.to_json()).logs == declared.logs
    assert from_environment(to_environment(options)) == options
    of_instance = parse("fabric: f\ninstances: {A: {logs: []}}", "f.yaml")
    assert of_instance.logs_of(of_instance.instance("A")).target == "none"


@pytest.mark.parametrize(
    ("logs", "told"),
    [
        ("{level: loud}", "log level 'loud' is unknown: choose from developer"),
        ("[{target: stdout}, {target: tape}]", "log target 'tape' is unknown"),
        ("{targets: file}", "did you mean target"),
        ("[stdout]", "expected a list of targets"),
        ("{target: file, file_name: a.log}", "of all instances: write %p"),
        ("{target: file, file_name: '%Q-%p'}", "unknown symbol %Q"),
        ("{rotation: many}", "logs.*rotation"),
        ("{exclude: ['(']}", "neither a code"),
    ],
)
def test_wrong_logs_are_named(logs: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse(f"fabric: f\nlogs: {logs}\ninstances: {{A: {{}}}}", "f.yaml")
    if "%p" in told:
        parse(f"fabric: f\ninstances: {{A: {{logs: {logs}}}}}", "f.yaml")


def three_regions() -> FabricBuilder:
    builder = FabricBuilder(
        "flights",
        topics=[{"name": "flights/.*", "message_type": "json"}],
        downgrade_age="5s",
        journal={"segment_size": "64MiB", "durability": "fsync"},
    )
    for city in ("Chicago", "NewYork", "London"):
        builder.region(city, instances=2)
    builder.instance("Audit", client_port=9001)
    builder.connect_regions("async")
    return builder.destination("Chicago-1", "Audit", pass_through="Chicago")


def test_python_and_yaml_give_the_same_model() -> None:
    assert parse(FILE) == three_regions().settings()


def test_json_gives_the_same_model_back() -> None:
    settings = parse(FILE)
    assert FabricSettings.from_json(settings.to_json()) == settings


def test_the_published_table_of_three_regions() -> None:
    settings = three_regions().settings()
    rows = [
        (source.name, source.group, d.to, d.sync, d.pass_through, d.group)
        for source, d in settings.links()
        if source.name in ("Chicago-1", "London-2") and d.name != "Audit"
    ]
    assert rows == [
        ("Chicago-1", "Chicago", ("Chicago-2",), True, ".*", "Chicago"),
        ("Chicago-1", "Chicago", ("NewYork-1", "NewYork-2"), False, "^Chicago$", "NewYork"),
        ("Chicago-1", "Chicago", ("London-1", "London-2"), False, "^Chicago$", "London"),
        ("London-2", "London", ("London-1",), True, ".*", "London"),
        ("London-2", "London", ("Chicago-1", "Chicago-2"), False, "^London$", "Chicago"),
        ("London-2", "London", ("NewYork-1", "NewYork-2"), False, "^London$", "NewYork"),
    ]


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(FILE)
    assert load(path).groups() == ["Chicago", "NewYork", "London", "Audit"]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("age: 5s", "age: 5", 13, ["downgrade.age", "without a unit", "500ms"]),
        ("64MiB", "64 parsecs", 14, ["journal.segment_size", "64 parsecs", "MiB"]),
        ("fsync", "never", 14, ["journal.durability", "never", "fsync"]),
        ("to: Audit", "to: Audat", 12, ["Audat", "Chicago-1"]),
        ("9001", "70000", 10, ["client_port", "70000", "65535"]),
        ("flights/.*", "'flights/(.*'", 3, ["flights/(.*", "regular expression"]),
        ("flights/.*", "'flights/(?<!x)a'", 3, ["look-around", "character 9", "write several"]),
        ("async\nins", "asink\nins", 8, ["connect_regions", "asink"]),
        ("Chicago: 2", "Chicago: two", 5, ["two", "number of instances"]),
        ("Chicago: 2", "Chicago: 0", 5, ["Chicago", "1 or more"]),
        ("  NewYork:", "  Chicago:", 6, ["Chicago", "twice", "line 5"]),
        ("  Audit: {", "  Chicago-1: {group: X, ", 10, ["Chicago-1", "twice"]),
        ("mode: async,", "mood: async,", 12, ["mood", "unknown", "did you mean mode?"]),
        ("age: 5s", "aged: 5s", 13, ["downgrade.aged", "did you mean age?"]),
        ("mode: async,", "zone: async,", 12, ["zone", "unknown", "expected from, to, ", "mode"]),
        ("regions:\n", "regins:\n", 4, ["regins", "did you mean regions?"]),
        ("pass_through: Chicago", "pass_through: '['", 12, ["'['", "regular expression"]),
        ("fabric: flights", "fabrik: flights", 1, ["fabric", "missing"]),
        ("regions:\n", "regions: [\n", 6, ["no YAML"]),
        ("to: Audit", "to: Chicago-1", 12, ["Chicago-1", "itself"]),
        ("to: Audit", "to: [Audit, London-1]", 12, ["London-1", "one group"]),
        ("to: Audit", "to: Audit:port, group: X", 12, ["Audit:port", "host:port"]),
        ("to: Audit", "to: Chicago-2, name: other", 12, ["same instance", "Chicago-2"]),
        ("from: Chicago-1", "from: Nowhere", 12, ["Nowhere", "Chicago-1"]),
    ],
)
def test_errors_name_the_line_and_what_was_expected(
    old: str, new: str, line: int, words: list[str]
) -> None:
    assert old in FILE
    with pytest.raises(ConfigurationError) as caught:
        parse(FILE.replace(old, new, 1), "f.yaml")
    text = str(caught.value)
    assert f"f.yaml:{line}: " in text
    for word in words:
        assert word in text


def test_ports_that_clash_are_refused() -> None:
    builder = FabricBuilder("f").region("A", 2)
    builder.instance("A-1", client_port=9000).instance("A-2", replication_port=9000)
    with pytest.raises(
        ConfigurationError, match=r"A-2: replication_port 9000 .* client_port of A-1"
    ):
        builder.settings()


def test_names_that_differ_only_by_case_are_refused() -> None:
    builder = FabricBuilder("f").instance("A").instance("a")
    with pytest.raises(ConfigurationError, match="only by case"):
        builder.settings()


def test_sixty_four_sync_destinations_and_not_one_more() -> None:
    def star(count: int) -> FabricBuilder:
        builder = FabricBuilder("f").instance("hub")
        for number in range(count):
            builder.instance(f"n{number}")
            builder.destination("hub", f"n{number}", sync=True)
        return builder

    assert len(star(64).settings().instance("hub").destinations) == 64
    with pytest.raises(ConfigurationError, match="65 sync destinations: at most 64"):
        star(65).settings()


def test_a_fabric_without_instances_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no instances"):
        FabricBuilder("f").settings()
    with pytest.raises(ConfigurationError, match=r"f\.yaml:1: .*no instances"):
        parse("fabric: f\n", "f.yaml")


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 65, "a/b", ".."])
def test_names_that_are_no_folder_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        FabricBuilder(name)


def test_a_topic_cannot_be_journaled_and_not() -> None:
    topics = [{"name": "t/.*"}, {"name": "t/fast", "journaled": False}]
    builder = FabricBuilder("f", topics=topics).instance("A")
    with pytest.raises(ConfigurationError, match=r"t/fast .* t/\.\* matches it"):
        builder.settings()


def test_a_yaml_bomb_is_refused() -> None:
    nested = "a: " + "[" * 100 + "]" * 100
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        parse(nested)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        parse("fabric: &a\n  x: *a\n")
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        parse("fabric: " + "[" * 10_000)


@pytest.mark.parametrize(
    ("text", "value_bytes"),
    [("64MiB", 64 << 20), ("1.5KiB", 1536), ("1kB", 1000), (4096, 4096), ("12", 12), ("7B", 7)],
)
def test_sizes(text: object, value_bytes: int) -> None:
    assert parse_bytes(text) == value_bytes
    assert parse_bytes(format_bytes(value_bytes)) == value_bytes


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [("500ms", 500), ("10s", 10_000), ("1.5m", 90_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_times(text: str, value_ms: int) -> None:
    assert parse_milliseconds(text) == value_ms
    assert parse_milliseconds(format_milliseconds(value_ms)) == value_ms
    assert parse_milliseconds(0) == 0


@pytest.mark.parametrize("text", ["", "5", 5, True, None, "5 parsecs", "-5s", "1.0001ms", "s"])
def test_times_that_are_none(text: object) -> None:
    with pytest.raises(ConfigurationError, match="heartbeat"):
        parse_milliseconds(text, "heartbeat")


@pytest.mark.parametrize("text", ["", True, None, "5 parsecs", "-5", -5, 1.5, "0.3B", "MiB"])
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(ConfigurationError, match="segment_size"):
        parse_bytes(text, "segment_size")


def test_an_instance_has_topics_logs_and_a_replication_host_of_its_own() -> None:
    settings = parse(
        "fabric: f\nregions: {A: 2}\ninstances:\n"
        "  A-1: {topics: [own], logs: {level: developer}, replication_host: 127.0.0.2,"
        " journal: {archive_directory: old}}\n"
    )
    first, second = settings.instances
    assert [topic.name for topic in settings.topics_of(first)] == ["own"]
    assert [topic.name for topic in settings.topics_of(second)] == [".*"]
    assert (settings.logs_of(first).level, settings.logs_of(second).level) == ("developer", "info")
    assert (first.replication_host, second.replication_host) == ("127.0.0.2", "")
    assert settings.journal_of(first).archive_directory == "old"
    assert FabricSettings.from_json(settings.to_json()) == settings


def test_topics_that_are_declared_as_not_journaled() -> None:
    """What the journaled ones leave over, and, with an instance's own topics, the fabric's too."""
    topics = [{"name": "orders"}, {"name": "live", "journaled": False}]
    others = [{"name": ".*", "message_type": "json"}, {"name": ".*", "journaled": False}]
    builder = FabricBuilder("f", topics=topics)
    builder.instance("A").instance("B", topics=["trades"]).instance("C", topics=[".*"])
    builder.instance("D", topics=others)
    settings = builder.settings()
    found = {
        each.name: None if rules is None else [rule.name for rule in rules]
        for each in settings.instances
        for rules in [settings.unjournaled_of(each)]
    }
    assert found == {"A": ["live"], "B": ["live"], "C": None, "D": [".*", "live"]}
    twice = FabricBuilder("f", topics=[{"name": ".*"}, {"name": ".*", "journaled": False}])
    with pytest.raises(ConfigurationError, match="narrow that expression"):
        twice.instance("A").settings()


def test_a_bomb_of_aliases_is_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of which each names the one before ten times."""
    monkeypatch.setattr(yaml_file, "VALUES_MAX", 1_000)
    lists = ["a0: &a0 [x, x]", *(f"a{at}: &a{at} [{f'*a{at - 1}, ' * 10}]" for at in range(1, 5))]
    text = "\n".join(["fabric: f", *lists])
    with pytest.raises(ConfigurationError, match=r"f\.yaml:2: .*more than 1,000 keys and values"):
        parse(text, "f.yaml")
