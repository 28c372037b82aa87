"""AMPSConfig files of several instances become one fabric; every element that runs changes what an
instance is started with, and what does not run is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.amps_examples import FIXTURES, completed

from raylay.services.capacity.config import CapacityConfig
from raylay.services.config.admin_interface import MEMORY, AdminInterfaceConfig
from raylay.services.config.bootstrap import BootstrapConfig
from raylay.services.config.compared_terms import queue_terms, sow_terms
from raylay.services.config.instance import (
    InstanceConfig,
    TransportConfig,
)
from raylay.services.configuration.amps import modules
from raylay.services.configuration.amps.fabric import LinkListener, fabric_of, resolve
from raylay.services.configuration.amps.load import Document, load_amps, slots
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.support import NEEDS_NOTHING, RUNS, findings
from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import (
    FabricRecord,
    InstancePorts,
    bring_up_to_date,
    instance_config,
)
from raylay.services.messages.topics import TopicRule
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.replication.downgrade import AgeCheck
from raylay.services.replication.timetable import JournalAction, Occasion
from raylay.services.security.modules import ModuleConfig

pytestmark = [
    pytest.mark.covers("Configuration", "Configuration Validation"),
    pytest.mark.covers("Configuration", "Automatically Downgrading"),
]

FILE = """\
<AMPSConfig>
  <Name>A-1</Name>
  <Group>A</Group>
  <Transports>
    <Transport>
      <Name>clients</Name>
      <Type>tcp</Type>
      <InetAddr>127.0.0.1:9007</InetAddr>
    </Transport>
    <Transport>
      <Name>amps-replication</Name>
      <Type>amps-replication</Type>
      <InetAddr>127.0.0.1:10004</InetAddr>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <Replication>
    <Destination>
      <Name>B-1</Name>
      <Group>B</Group>
      <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
      <SyncType>sync</SyncType>
      <Transport>
        <Type>amps-replication</Type>
        <InetAddr>elsewhere:10005</InetAddr>
        <InetAddr>other:10005</InetAddr>
      </Transport>
    </Destination>
  </Replication>
</AMPSConfig>
"""


def document(text: str, name: str = "f.xml") -> Document:
    return load_amps(name, text=text, environment={})


def config_of(settings: FabricSettings, name: str) -> InstanceConfig:
    """What an instance of a fabric is started with, on the ports that its file names."""
    ports = {
        each.name: InstancePorts(each.client_port, each.replication_port)
        for each in settings.instances
    }
    record = FabricRecord(settings.name, "/data", settings.to_json(), ports)
    return instance_config(settings, record, settings.instance(name))


def started(text: str) -> InstanceConfig:
    settings = fabric_of([document(text)])
    return config_of(FabricSettings.from_json(settings.to_json()), settings.instances[0].name)


def started_of(found: Document) -> InstanceConfig:
    settings = fabric_of([found])
    return config_of(FabricSettings.from_json(settings.to_json()), settings.instances[0].name)


def policy(every: str, downgrade: str, upgrade: str = "") -> str:
    """A schedule; options of its actions as elements."""
    module = "<Module>amps-action-{}</Module><Options>{}</Options>"
    second = module.format("do-upgrade-replication", upgrade)
    return (
        f"<Actions><Action><On>{module.format('on-schedule', f'<Every>{every}</Every>')}</On>"
        f"<Do>{module.format('do-downgrade-replication', downgrade)}</Do>"
        + (f"<Do>{second}</Do>" if upgrade else "")
        + "</Action></Actions>"
    )


def scheduled(every: list[str], **steps: str) -> str:
    """An action: its schedules, and the Age of each step."""
    module = "<Module>amps-action-{}</Module><Options>{}</Options>"
    names = {"downgrade": "downgrade-replication", "upgrade": "upgrade-replication"}
    ons = (module.format("on-schedule", f"<Every>{each}</Every>") for each in every)
    dos = (
        module.format(f"do-{names.get(name, f'{name}-journal')}", f"<Age>{age}</Age>")
        for name, age in steps.items()
    )
    inner = "".join(f"<On>{on}</On>" for on in ons) + "".join(f"<Do>{do}</Do>" for do in dos)
    return f"<Action>{inner}</Action>"


def minimum(number: int) -> str:
    return (
        f"<Tuning><Replication><MinSyncDestinations>{number}</MinSyncDestinations></Replication>"
        "</Tuning>"
    )


def target(inner: str) -> str:
    return f"<Logging><Target>{inner}</Target></Logging>"


JOURNAL = "<JournalDirectory>journal</JournalDirectory>"
GROUP = "<Group>A</Group>"
SYNC = "<SyncType>sync</SyncType>"
TOPIC = "<Name>orders</Name><MessageType>json</MessageType>"
ADDRESS = "<InetAddr>other:10005</InetAddr>"
LEVEL = "<Protocol>stdout</Protocol><Level>warning</Level>"
LOGGING = [
    ("stdout", "Levels", "trace, info", "levels", (), ("trace", "info")),
    ("stdout", "IncludeErrors", "00-0002,12", "include", (), ("00-0002", "12")),
    ("stdout", "ExcludeErrors", "00-0001,12-1.*", "exclude", (), ("00-0001", "12-1.*")),
    ("gzip", "RotationThreshold", "10MB", "rotation_bytes", 64 * 1024 * 1024, 10_000_000),
    ("gzip", "RotationThreshold", "10MB", "kept_bytes", None, 0),
    ("syslog", "Ident", "amps dma", "ident", "", "amps dma"),
    ("syslog", "Options", "LOG_CONS,LOG_PID", "options", (), ("LOG_CONS", "LOG_PID")),
    ("syslog", "Facility", "LOG_LOCAL3", "facility", "LOG_USER", "LOG_LOCAL3"),
]
FILE_TARGET = "<Protocol>file</Protocol><Level>info</Level><FileName>log/a.log</FileName>"


def bootstrap(address: str = "elsewhere:10005", inner: str = "") -> str:
    return (
        f"<Bootstrap><Transport><Type>amps-replication</Type><InetAddr>{address}</InetAddr>"
        f"</Transport>{inner}</Bootstrap>"
    )


def copied(name: str, message_type: str) -> str:
    return f"<Topic><Name>{name}</Name><MessageType>{message_type}</MessageType></Topic>"


def types(name: str, module: str, options: str = "") -> str:
    inner = f"<Name>{name}</Name><Module>{module}</Module>"
    if options:
        inner += f"<Options>{options}</Options>"
    return f"<MessageTypes><MessageType>{inner}</MessageType></MessageTypes>"


KEY = "<Certificate>c.pem</Certificate><PrivateKey>/k.pem</PrivateKey>"
INCOMING, OUTGOING = "Transports/Transport", "Replication/Destination/Transport"
SECURE = [
    # element, more beside certificate and key, the value that comes of it
    ("Certificate", "", "certificate", "/data/c.pem"),
    ("PrivateKey", "", "private_key", "/k.pem"),
    ("CAFile", "<CAFile>ca.pem</CAFile>", "ca_file", "/data/ca.pem"),
    ("CAPath", "<CAPath>/cas</CAPath>", "ca_path", "/cas"),
    ("Ciphers", "<Ciphers>HIGH</Ciphers>", "ciphers", "HIGH"),
]
SLOW_CLIENTS = [
    ("MessageMemoryLimit", "1GB", "memory_bytes_max", 10**9),
    ("MessageDiskLimit", "2GB", "disk_bytes_max", 2 * 10**9),
    ("MessageDiskPath", "offline", "disk_path", "/data/offline"),
    ("ClientMessageAgeLimit", "30s", "message_age_ms_max", 30_000),
    ("ClientMaxCapacity", "10%", "client_share", 0.1),
]
RUNNING: list[tuple[str, str, str, str, Any, Any]] = [
    # element, what is replaced, by what, the attribute, its value before and after
    ("Name", "A-1", "A-2", "name", "A-1", "A-2"),
    ("Group", GROUP, "<Group>C</Group>", "group", "A", "C"),
    ("Tuning/Replication/MinSyncDestinations", GROUP, GROUP + minimum(2),
     "policy.min_sync_destinations", 0, 2),
    ("SOWStatisticsInterval", GROUP, GROUP + "<SOWStatsInterval>5s</SOWStatsInterval>",
     "sow_stats_interval_ms", 0, 5_000),
    ("Transports/Transport/InetAddr", "9007", "9008", "client_transports.0.port", 9007, 9008),
    ("Transports/Transport/MessageType", "<Name>clients</Name>",
     "<Name>clients</Name><MessageType>fix</MessageType>", "client_transports.0.message_types", (),
     ("fix",)),
    ("Transports/Transport/InetAddr", "127.0.0.1:9007", "9007", "client_transports.0.host",
     "127.0.0.1", "0.0.0.0"),
    ("Transports/Transport/InetAddr", "127.0.0.1:10004", "localhost:10006",
     "replication_transports.0.port", 10004, 10006),
    ("Transports/Transport/InetAddr", "127.0.0.1:10004", "[::1]:10004",
     "replication_transports.0.host", "127.0.0.1", "::1"),
    ("Transports/Transport/InitialState", "<Name>clients</Name>",
     "<Name>clients</Name><InitialState>disabled</InitialState>", "client_transports.0.enabled",
     True, False),
    *((element, GROUP, f"{GROUP}<{element}>{text}</{element}>", f"capacity.{name}", None, after)
      for element, text, name, after in SLOW_CLIENTS),
    *((f"{INCOMING}/{element}", "<Name>clients</Name>",
       f"<Name>clients</Name><{element}>{text}</{element}>",
       f"client_transports.0.capacity.{name}", None, after)
      for element, text, name, after in SLOW_CLIENTS),
    *((f"{INCOMING}/{element}", "<Name>clients</Name>", f"<Name>clients</Name>{KEY}{more}",
       f"client_transports.0.tls.{name}", None, after) for element, more, name, after in SECURE),
    *((f"{OUTGOING}/{element}", ADDRESS, f"{ADDRESS}{KEY}{more}",
       f"destinations.0.tls.{name}", None, after) for element, more, name, after in SECURE),
    *((f"Bootstrap/Transport/{element}", GROUP,
       GROUP + bootstrap().replace("</InetAddr>", f"</InetAddr>{KEY}{more}"),
       f"bootstrap.tls.{name}", None, after) for element, more, name, after in SECURE),
    ("Transports/Transport/VerifyClient", "<Name>clients</Name>", f"<Name>clients</Name>{KEY}"
     "<CAFile>ca</CAFile><VerifyClient>true</VerifyClient>",
     "client_transports.0.tls.verify_client", None, True),
    ("Transports/Transport/InitialState", "amps-replication</Type>",
     "amps-replication</Type><InitialState>disabled</InitialState>",
     "replication_transports.0.enabled", True, False),
    ("TransactionLog/JournalArchiveDirectory", JOURNAL,
     JOURNAL + "<JournalArchiveDirectory>archive</JournalArchiveDirectory>",
     "journal.archive_directory", None,
     "/data/A-1/journal/../archive"),
    ("TransactionLog/JournalSize", JOURNAL, JOURNAL + "<JournalSize>20MB</JournalSize>",
     "journal.segment_bytes", 64 * 1024 * 1024, 20_000_000),
    ("TransactionLog/JournalSize", JOURNAL, JOURNAL + "<MinJournalSize>1MB</MinJournalSize>",
     "journal.segment_bytes", 64 * 1024 * 1024, 10_000_000),
    ("TransactionLog/FlushInterval", JOURNAL, JOURNAL + "<FlushInterval>25ms</FlushInterval>",
     "journal.flush_interval_ms", 10, 25),
    ("TransactionLog/FlushInterval", JOURNAL, JOURNAL + "<FlushInterval>25ms</FlushInterval>",
     "journal.durability", "fsync", "interval"),
    ("MessageTypes/MessageType/Name", GROUP, GROUP + types("pipes", "fix"),
     "type_definitions", (), (TypeDefinition("pipes", "fix"),)),
    ("MessageTypes/MessageType/Module", GROUP, GROUP + types("pipes", "nvfix"),
     "type_definitions", (), (TypeDefinition("pipes", "nvfix"),)),
    ("MessageTypes/MessageType/Options", GROUP,
     GROUP + types("pipes", "fix", "<FieldSeparator>124</FieldSeparator>"), "type_definitions",
     (), (TypeDefinition("pipes", "fix", {"field_separator": "124"}),)),
    ("Bootstrap/Transport/InetAddr", GROUP, GROUP + bootstrap("elsewhere:10005"),
     "bootstrap", None, BootstrapConfig(("elsewhere:10005",))),
    ("Bootstrap/Topic/Name", GROUP, GROUP + bootstrap(inner=copied("orders", "json")),
     "bootstrap", None, BootstrapConfig(("elsewhere:10005",), (TopicRule("orders", "json"),))),
    ("Bootstrap/Topic/MessageType", GROUP, GROUP + bootstrap(inner=copied("^o", "fix")),
     "bootstrap", None, BootstrapConfig(("elsewhere:10005",), (TopicRule("^o", "fix"),))),
    ("TransactionLog/Topic/Name", "orders", "trades", "topics.0.name", "orders", "trades"),
    ("TransactionLog/Topic/MessageType", ">json<", ">nvfix<", "topics.0.message_type",
     "json", "nvfix"),
    ("Replication/Destination/Name", "B-1", "B-2", "destinations.0.name", "B-1", "B-2"),
    ("Replication/Destination/Group", ">B<", ">BB<", "destinations.0.group", "B", "BB"),
    ("Replication/Destination/SyncType", ">sync<", ">async<", "destinations.0.sync", True, False),
    ("Replication/Destination/PassThrough", SYNC, SYNC + "<PassThrough>A</PassThrough>",
     "destinations.0.pass_through", None, "A"),
    ("Replication/Destination/ResyncPassThrough", SYNC,
     SYNC + "<ResyncPassThrough>.*</ResyncPassThrough>",
     "destinations.0.resync_pass_through", None, ".*"),
    ("Replication/Destination/Compression", SYNC, SYNC + "<Compression>enabled</Compression>",
     "destinations.0.compression", False, True),
    ("Replication/Destination/CompressionType", SYNC,
     SYNC + "<CompressionType>zstd</CompressionType>",
     "destinations.0.compression_type", "zlib", "zstd"),
    ("Replication/Destination/AckConflationInterval", SYNC,
     SYNC + "<AckConflationInterval>20ms</AckConflationInterval>",
     "destinations.0.ack_conflation_ms", 0, 20),
    ("Replication/Destination/Topic/Name", f"{TOPIC}</Topic>\n      <S",
     "<Name>^ord</Name><MessageType>json</MessageType></Topic>\n      <S",
     "destinations.0.topics.0.name", "orders", "^ord"),
    ("Replication/Destination/Topic/MessageType", f"{TOPIC}</Topic>\n      <S",
     "<Name>^ord</Name><MessageType>fix</MessageType></Topic>\n      <S",
     "destinations.0.topics.0.message_type", "json", "fix"),
    ("Replication/Destination/Topic/IncludeValidation", f"{TOPIC}</Topic>\n      <S",
     f"{TOPIC}<IncludeValidation>txlog</IncludeValidation></Topic>\n      <S",
     "destinations.0.topics.0.include_validation", None, ("txlog",)),
    ("Replication/Destination/Topic/Filter", f"{TOPIC}</Topic>\n      <S",
     f"{TOPIC}<Filter>/a = 1</Filter></Topic>\n      <S", "destinations.0.topics.0.filter",
     "", "/a = 1"),
    ("Replication/Destination/Topic/ExcludeValidation", f"{TOPIC}</Topic>\n      <S",
     f"{TOPIC}<ExcludeValidation>replicate, cascade</ExcludeValidation></Topic>\n      <S",
     "destinations.0.topics.0.exclude_validation", (), ("replicate", "cascade")),
    ("Replication/Destination/Transport/InetAddr", "other:10005", "third:10005",
     "destinations.0.addresses", ("elsewhere:10005", "other:10005"),
     ("elsewhere:10005", "third:10005")),
    ("Replication/Destination/Transport/ReconnectTimeout", ADDRESS,
     ADDRESS + "<ReconnectTimeout>2s,500ms</ReconnectTimeout>",
     "destinations.0.reconnect_timeout_ms", (), (2000, 500)),
    ("Logging/Target/Protocol", GROUP, GROUP + target(FILE_TARGET), "log.target",
     "stderr", "file"),
    ("Logging/Target/FileName", GROUP, GROUP + target(FILE_TARGET), "log.directory",
     "", "/data/log"),
    ("Logging/Target/FileName", GROUP, GROUP + target(FILE_TARGET), "log.file_name", "", "a.log"),
    ("Logging/Target/Level", GROUP, GROUP + target(LEVEL), "log.level", "info", "warning"),
    ("Logging/Target/Protocol", GROUP, GROUP + target(LEVEL), "log.target", "stderr", "stdout"),
    *((f"Logging/Target/{element}", GROUP,
       GROUP + target(f"<Protocol>{protocol}</Protocol><Level>none</Level>"
                      f"<FileName>a.log</FileName><{element}>{text}</{element}>"),
       f"log.{name}", before, after)
      for protocol, element, text, name, before, after in LOGGING),
    ("Actions", GROUP, GROUP + policy("250ms", "<Age>5s</Age>"), "policy.age_ms",
     None, 5000),
    ("Actions", GROUP, GROUP + policy("250ms", "<Age>5s</Age>"), "policy.every_ms", 0, 250),
    ("Actions", GROUP, GROUP + policy("250ms", "<Age>5s</Age>"), "policy.upgrade_age_ms",
     None, 0),
    ("Actions", GROUP, GROUP + policy("1s", "<Age>5s</Age>", "<Age>2s</Age>"),
     "policy.upgrade_age_ms", None, 2000),
    ("Actions", GROUP,
     GROUP + policy("1s", "<Age>5s</Age><GracePeriod>1m</GracePeriod>", "<Age>2s</Age>"),
     "policy.grace_period_ms", 0, 60_000),
]  # fmt: skip
NO_CHANGE = {
    "RequiredMinimumVersion": "a version above ours is an error: its own test",
    "Transports/Transport/Name": "names only: clashes are errors",
    "TransactionLog/JournalDirectory": "the data directory: its own test",
}


def attribute(config: Any, path: str) -> Any:
    for part in path.split("."):
        if config is None:
            return None
        config = config[int(part)] if part.isdigit() else getattr(config, part)
    return config


@pytest.mark.covers("Resync and bootstrap", "`Bootstrap` in AMPSConfig")
@pytest.mark.covers("Configuration", "each element that runs changes what is started")
@pytest.mark.covers("Configuration", "Transports with TLS")
@pytest.mark.parametrize(("element", "old", "new", "path", "before", "after"), RUNNING)
def test_an_element_that_runs_changes_what_is_started(
    element: str, old: str, new: str, path: str, before: Any, after: Any
) -> None:
    assert old in FILE
    text = FILE.replace(old, new) if element.startswith("TransactionLog/Topic") else ""
    changed = text or FILE.replace(old, new, 1)
    assert attribute(started(FILE), path) == before
    assert attribute(started(changed), path) == after


def test_limits_of_slow_clients_need_nothing_where_there_are_none() -> None:
    name = "<Name>amps-replication</Name>"
    changed = document(FILE.replace(name, f"{name}<MessageMemoryLimit>1GB</MessageMemoryLimit>"))
    (finding,) = findings(changed)
    assert (finding.origin, finding.refuses) == ("f.xml:10", False)
    assert "it is for other instances" in finding.text
    config = config_of(fabric_of([changed]), "A-1")
    assert config.replication_transports[0].capacity is None


@pytest.mark.covers("Configuration", "Slow Client Management")
def test_the_sample_of_the_documents_has_one_pool_and_two_policies() -> None:
    sample = load_amps("s.xml", text=completed("slow-clients"), environment={})
    config = started_of(sample)
    assert config.capacity == CapacityConfig(10**10, None, "/mnt/fastio/AMPS/offline", 30_000)
    first, low = config.client_transports
    assert first.capacity is None
    assert low.capacity == CapacityConfig(message_age_ms_max=15_000, client_share=0.1)
    assert not low.capacity.has_pool, "it shares the 10 GB"


@pytest.mark.covers("Configuration", "each element that runs changes what is started")
def test_every_element_that_runs_has_a_case() -> None:
    # unit/configuration/amps/test_sow.py has those of SOW, a test below those of Admin.
    runs = {each for each in RUNS if not each.startswith(("SOW/", "Admin/"))}
    assert {case[0] for case in RUNNING} | set(NO_CHANGE) == runs | {"Actions"}


def test_the_tables_name_elements_of_the_model() -> None:
    def exists(path: str) -> bool:
        model: Any = AmpsConfig
        for tag in path.split("/"):
            slot = slots(model).get(tag) if model is not None else None
            if slot is None:
                return False
            model = slot.stanza
        return True

    assert [path for path in (*RUNS, *NEEDS_NOTHING) if not exists(path)] == []


def test_a_version_above_ours_is_refused() -> None:
    def with_version(version: str) -> str:
        element = f"<RequiredMinimumVersion>{version}</RequiredMinimumVersion>"
        return FILE.replace(GROUP, GROUP + element)

    assert started(with_version("5.3.3.1"))
    with pytest.raises(ConfigurationError, match=r"f.xml:3: .* is 5.4: what is followed"):
        document(with_version("5.4"))


def test_where_the_journal_lies() -> None:
    def directory(text: str) -> str:
        return fabric_of([document(text)]).instances[0].directory

    assert directory(FILE) == "A-1/journal", "files of several hosts run on one machine"
    assert directory(FILE.replace(">journal<", ">/fast/a<")) == "/fast/a"
    both = [
        document(FILE.replace(">journal<", ">/fast/a<").replace("A-1", name), f"{name}.xml")
        for name in ("A-1", "A-2")
    ]
    with pytest.raises(ConfigurationError, match=r"A-2.xml:17: .*/fast/a is taken at A-1.xml:17"):
        fabric_of(both)


def test_the_name_of_a_fabric_that_no_file_holds() -> None:
    def name(folder: str) -> str:
        text = FILE.replace("<Group>A</Group>", "")
        other = text.replace("A-1", "A-2").replace("9007", "9008").replace(":10004", ":10006")
        files = [document(text, f"{folder}1.xml"), document(other, f"{folder}2.xml")]
        return fabric_of(files).name

    assert name("orders/") == "orders"
    assert name("") == name("../") == "fabric"


# -- several instances -------------------------------------------------------------------------
def pair() -> list[Document]:
    return [
        load_amps(f"{name}.xml", text=completed(name, clients), environment={})
        for name, clients in (("hot-hot-amps-1", "9007"), ("hot-hot-amps-2", "9008"))
    ]


@pytest.mark.covers("Configuration", "Configuring Replication")
def test_the_published_pair_finds_itself() -> None:
    settings = fabric_of(pair())
    assert settings.name == "DataCenter-NYC-1"
    assert [(source.name, link.to, link.sync) for source, link in settings.links()] == [
        ("amps-1", ("amps-2",), True),
        ("amps-2", ("amps-1",), True),
    ]
    config = config_of(settings, "amps-1")
    assert config.destinations[0].addresses == ("127.0.0.1:10005",)
    assert config.destinations[0].client_addresses == ("127.0.0.1:9008",)
    assert config.destinations[0].topics == (
        TopicRule("topic", "fix"),
        TopicRule("^/orders/", "json"),
    )
    assert config.replication_transports[0].host == "0.0.0.0", "a port alone is on every address"


@pytest.mark.covers("Resync and bootstrap", "`Bootstrap` in AMPSConfig")
def test_a_bootstrap_from_an_instance_of_the_files() -> None:
    files = pair()
    text = completed("hot-hot-amps-2", "9008").replace(
        "</AMPSConfig>", bootstrap("localhost:10004") + "</AMPSConfig>"
    )
    files[1] = load_amps("second.xml", text=text, environment={})
    settings = fabric_of(files)
    found = settings.instance("amps-2").bootstrap
    assert found is not None and found.sources == ("amps-1",)
    made = config_of(settings, "amps-2").bootstrap
    assert made is not None and made.sources == ("127.0.0.1:10004",) and made.topics == ()
    assert config_of(settings, "amps-1").bootstrap is None


def test_one_of_the_pair_alone_keeps_the_address() -> None:
    settings = fabric_of(pair()[:1])
    assert next(settings.links())[1].to == ("amps-2-server.example.com:10005",)


REGIONAL = FIXTURES / "regional"


def regional_files() -> list[Path]:
    return sorted(REGIONAL.glob("*-?.xml"))


def regional_defines() -> dict[str, str]:
    """Hosts as in production: one port everywhere, hosts called after the instances."""
    defines = {}
    for path in regional_files():
        name = path.stem.upper().replace("-", "_")
        defines[f"{name}_HOST"] = f"{path.stem.lower()}.example.com"
        defines[f"{name}_PORT"] = "10004"
        defines[f"{name}_CLIENT_PORT"] = "9007"
    return defines


@pytest.mark.covers("Configuration", "Geographic Replication with High Availability")
@pytest.mark.covers("The replication chapters", "the table, column for column")
def test_the_published_table_of_regions() -> None:
    settings = load_fabric(regional_files(), defines=regional_defines(), name="regions")
    rows = [
        (source.name, source.group, link.to, link.sync, link.pass_through)
        for source, link in settings.links()
    ]
    cities = ("Chicago", "London", "NewYork")
    expected = []
    for city in cities:
        for number, other in ((1, 2), (2, 1)):
            source = f"{city}-{number}"
            expected.append((source, city, (f"{city}-{other}",), True, ".*"))
            expected += [
                (source, city, (f"{away}-1", f"{away}-2"), False, city)
                for away in ("Chicago", "NewYork", "London")
                if away != city
            ]
    assert rows == expected
    downgrade = settings.downgrade_of(settings.instances[0])
    assert (downgrade.age_ms, downgrade.upgrade_age_ms, downgrade.every_ms) == (5000, 2500, 250)


@pytest.mark.covers("Configuration", "a Destination's addresses are instances of the files")
@pytest.mark.parametrize(
    ("address", "name", "group", "found"),
    [
        ("amps-1:10004", "x", "G", "amps-1"),
        ("AMPS-1.example.com:10004", "x", "G", "amps-1"),
        ("amps-1-server.example.com:10004", "x", "G", "amps-1-server.example.com:10004"),
        ("amps-1-server.example.com:10004", "amps-1", "G", "amps-1"),
        ("anywhere:10004", "amps-1", "G", "amps-1"),
        ("anywhere:10004", "other", "G", "anywhere:10004"),
        ("localhost:10004", "other", "G", "localhost:10004"),
        ("localhost:10005", "other", "G", "near"),
        ("localhost:10007", "other", "H", "here"),
        ("10.0.0.7:10006", "other", "H", "far"),
        ("10.0.0.8:10006", "far", "H", "10.0.0.8:10006"),
        ("anywhere:10005", "H", "H", "near"),
        ("amps-1:10009", "amps-1", "G", "amps-1:10009"),
    ],
)
def test_which_instance_an_address_is_of(address: str, name: str, group: str, found: str) -> None:
    listeners = [
        LinkListener("amps", "G", "0.0.0.0", 10004),
        LinkListener("amps-1", "G", "0.0.0.0", 10004),
        LinkListener("near", "H", "0.0.0.0", 10005),
        LinkListener("here", "H", "127.0.0.1", 10007),
        LinkListener("far", "H", "10.0.0.7", 10006),
    ]
    text = FILE.replace("<Name>B-1<", f"<Name>{name}<").replace("<Group>B<", f"<Group>{group}<")
    (destination,) = document(text).config.destinations()
    assert resolve(address, destination, listeners) == found


def test_a_group_that_differs_is_named_with_its_line() -> None:
    files = pair()
    text = completed("hot-hot-amps-2", "9008").replace("<Group>DataCenter-NYC-1", "<Group>Other", 1)
    files[1] = load_amps("second.xml", text=text, environment={})
    with pytest.raises(ConfigurationError) as caught:
        fabric_of(files, "f")
    assert "hot-hot-amps-1.xml:52: " in str(caught.value)
    assert "amps-2 is in group Other, expected DataCenter-NYC-1" in str(caught.value)


# -- what does not run yet ---------------------------------------------------------------------
DEFAULT_SAYS = "amps-default-authenticator-module"
OWN_MODULE = "<Modules><Module><Name>own</Name><Library>libown.so</Library></Module></Modules>"


def authenticator(module: str, options: str = "") -> str:
    return f"<Authenticator><Module>{module}</Module><Options>{options}</Options></Authenticator>"


NOT_YET = [
    (GROUP, GROUP + "<Admin><InetAddr>1</InetAddr><WWWAuthenticate>Negotiate x</WWWAuthenticate>"
     "</Admin>", 3, "WWWAuthenticate Negotiate x does not run: give Basic"),
    (GROUP, GROUP + "<Admin><Authentication><Module>amps-default-entitlement-module</Module>"
     "</Authentication></Admin>", 3, "Authentication with amps-default-entitlement-module"),
    (GROUP, GROUP + "<Admin/>", 3, "Admin without InetAddr, Authentication or Entitlement"),
    (GROUP, GROUP + OWN_MODULE + "<Authentication><Module>own</Module></Authentication>", 3,
     "Module own does not run yet"),
    (GROUP, GROUP + OWN_MODULE, 3, "Module own does not run yet"),
    ("<Name>clients</Name>", "<Name>clients</Name><Entitlement><Module>amps-default-authentication-"
     "module</Module></Entitlement>", 6, "Entitlement with amps-default-authentication-module"),
    (f"{TOPIC}</Topic>\n  <", f"{TOPIC}<Filter>/a = 1</Filter></Topic>\n  <", 18,
     "Filter does not run yet"),
    ("<Name>clients</Name>", "<Name>clients</Name><SecureSocketProtocols>TLSv1.1 TLSv1.2"
     "</SecureSocketProtocols>", 6, "SecureSocketProtocols TLSv1.1 does not run: TLSv1.2 and"),
    ("</Transport>\n    </Destination>", "</Transport><Transport><InetAddr>c:1</InetAddr>"
     f"<Type>amps-replication-secure</Type>{KEY}</Transport></Destination>", 21, "different TLS"),
    ("</Transports>", "<Transport><Name>t</Name><Type>tcp</Type><InetAddr>9</InetAddr>"
     "<Protocol>websocket</Protocol></Transport></Transports>", 15, "Protocol websocket"),
    ("<Name>clients</Name>", "<Name>clients</Name><Protocol>fix</Protocol>", 6, "Protocol fix"),
    (GROUP, GROUP + f"<Actions>{scheduled(['4h'], archive='1d')}</Actions>", 3,
     "give JournalArchiveDirectory"),
    (GROUP, GROUP + "<Actions><Action><On><Module>amps-action-on-startup</Module></On><Do>"
     "<Module>amps-action-do-minidump</Module></Do></Action></Actions>", 3,
     "amps-action-do-minidump does not run: Python writes no minidumps"),
]  # fmt: skip


@pytest.mark.covers("Configuration", "what does not run yet is listed and refused")
@pytest.mark.covers("Configuration", "Transports with TLS")
@pytest.mark.parametrize(("old", "new", "line", "words"), NOT_YET)
def test_what_does_not_run_is_listed_and_refused(old: str, new: str, line: int, words: str) -> None:
    assert old in FILE
    changed = document(FILE.replace(old, new, 1))
    (finding,) = [finding for finding in findings(changed) if finding.refuses]
    assert finding.origin == f"f.xml:{line}"
    assert words in finding.text
    with pytest.raises(ConfigurationError) as caught:
        fabric_of([changed])
    assert f"f.xml:{line}: " in str(caught.value)
    assert "--ignore-unsupported" in str(caught.value)
    settings = fabric_of([changed], ignore_unsupported=True)
    assert len(settings.instances) == 1


GUARDED = f"""{GROUP}
<Modules><Module><Name>web</Name><Library>/opt/lib/libamps_http_entitlement.so</Library>
<Options><ResourceURI>http://perms/</ResourceURI></Options></Module></Modules>
<Authentication><Module>amps-default-no-authentication-module</Module></Authentication>
<Entitlement><Module>web</Module><Options><RetryCount>2</RetryCount></Options></Entitlement>"""
OTHERS = "<Authentication><Module>amps-implicit-authentication-module</Module></Authentication>"
SAYS = authenticator(
    "amps-default-authenticator-module", "<User>a</User><PasswordFileName>/pw</PasswordFileName>"
)


@pytest.mark.covers("Configuration", "Entitlement of administrator actions")
def test_admin_says_who_may_control_the_instance() -> None:
    implicit = "amps-implicit-authentication-module"
    who = f"<Authentication><Module>{implicit}</Module></Authentication>"
    what = "<Entitlement><Module>web</Module></Entitlement>"
    for inside in (who, what, who + what):
        text = FILE.replace(GROUP, f"{GUARDED}<Admin>{inside}</Admin>")
        assert not [each for each in findings(document(text)) if each.refuses]
        config = started(text)
        assert config.admin is not None
        found = config.for_control()
        assert (found[0] and found[0].module) == (
            implicit if who in inside else "amps-default-no-authentication-module"
        )
        # Nothing said: as the instance says.
        retries = None if what in inside else "2"
        assert found[1] is not None and found[1].options.get("RetryCount") == retries
    assert started(FILE).admin is None
    # Left out with the rest it would let everybody in.
    text = FILE.replace(GROUP, f"{GROUP}<Admin><InetAddr>1</InetAddr>{who}</Admin>")
    assert started(text).admin is not None


def with_port(text: str) -> InstanceConfig:
    """Returns what an instance is started with whose interface has a port."""
    settings = FabricSettings.from_json(fabric_of([document(text)]).to_json())
    (instance,) = settings.instances
    record = FabricRecord(settings.name, "/data", settings.to_json())
    bring_up_to_date(record, settings)
    return instance_config(settings, record, instance)


@pytest.mark.covers("Administration", "`admin` in YAML and Python, `Admin` of an AMPSConfig")
def test_admin_with_an_address_serves_the_interface() -> None:
    inside = """<InetAddr>0.0.0.0:8085</InetAddr><FileName>stats.db</FileName>
<Interval>30s</Interval><AnonymousPaths>^/amps/instance/replication</AnonymousPaths>
<Header>X-A: b</Header><ExternalInetAddr>north.example:8085</ExternalInetAddr>
<AccessControlAllowOrigin>https://a</AccessControlAllowOrigin>
<SessionOptions>max-age=60; path=/; HttpOnly</SessionOptions><Galvanometer>enabled</Galvanometer>
<WWWAuthenticate>Basic realm="here"</WWWAuthenticate><SQLTransport>any</SQLTransport>"""
    text = FILE.replace(GROUP, f"{GROUP}<Admin>{inside}</Admin>")
    told = findings(document(text))
    assert [each.text for each in told] == [
        "SQLTransport needs nothing here: the console queries and subscribes by the interface "
        "itself"
    ]
    config = with_port(text)
    assert config.admin is None, "nothing says who may control the instance"
    assert config.interface == AdminInterfaceConfig(
        host="0.0.0.0",
        port=8085,
        advertised="north.example:8085",
        statistics_file="stats.db",
        interval_ms=30_000,
        anonymous_paths="^/amps/instance/replication",
        headers=("X-A: b",),
        allow_origin="https://a",
        session_ms=60_000,
        www_authenticate='Basic realm="here"',
    )
    # Documented defaults: no console, statistics in memory.
    plain = with_port(FILE.replace(GROUP, f"{GROUP}<Admin><InetAddr>8085</InetAddr></Admin>"))
    assert plain.interface is not None
    assert not plain.interface.console and plain.interface.statistics_file == MEMORY
    assert started(FILE).interface is None


@pytest.mark.covers("Configuration", "Authentication, Entitlement and Authenticator")
def test_modules_hold_for_clients_and_links_and_each_transport_may_set_its_own() -> None:
    text = FILE.replace(GROUP, GUARDED)
    text = text.replace("<Name>clients</Name>", f"<Name>clients</Name>{OTHERS}")
    text = text.replace("</Transport>\n    </Destination>", f"{SAYS}</Transport></Destination>")
    (note,) = findings(document(text))
    assert "Module web needs nothing here: the module http is taken" in note.text
    config = started(text)
    web = ModuleConfig("http", {"ResourceURI": "http://perms/", "RetryCount": "2"})
    nobody = ModuleConfig("amps-default-no-authentication-module")
    assert (config.authentication, config.entitlement) == (nobody, web)
    assert (config.replication_authentication, config.replication_entitlement) == (nobody, web)
    assert config.client_transports[0].authentication == ModuleConfig(
        "amps-implicit-authentication-module"
    )
    assert config.replication_transports[0].authentication is None, "as the instance says"
    says = ModuleConfig(
        "amps-default-authenticator-module", {"User": "a", "PasswordFileName": "/pw"}
    )
    (destination,) = config.destinations
    assert destination.authenticators == (says,) * len(destination.addresses)
    assert (destination.authenticator, config.authenticator) == (None, None)


def test_a_password_is_said_to_the_partner_that_it_is_meant_for_and_to_nobody_else() -> None:
    """A Destination with several Transports, one more Destination, a copy: each says what stands
    in its own Transport, also after it was written to `instance.json`."""
    other = SAYS.replace("<User>a</User>", "<User>b</User>")

    def transport(address: str, says: str) -> str:
        return (
            f"<Transport><InetAddr>{address}</InetAddr><Type>amps-replication</Type>{says}"
            "</Transport>"
        )

    text = FILE.replace(GROUP, GROUP + bootstrap(inner=""))
    text = text.replace(
        "</Transport>\n    </Destination>",
        f"</Transport>{transport('c:1', SAYS)}{transport('d:1', other)}</Destination>"
        "<Destination><Name>partner-2</Name><Group>elsewhere</Group><SyncType>async</SyncType>"
        f"<Topic>{TOPIC}</Topic>{transport('e:1', '')}</Destination>",
    )
    config = started(text)
    again = InstanceConfig.from_json(config.to_json())
    assert again == config
    first, second = config.destinations
    users = [None if each is None else each.options["User"] for each in first.authenticators]
    assert dict(zip(first.addresses, users, strict=True))["c:1"] == "a"
    assert dict(zip(first.addresses, users, strict=True))["d:1"] == "b"
    assert users.count(None) == len(first.addresses) - 2
    for address in ("e:1", *first.addresses):
        said = config.dialled_at(address)[1]
        wanted = {"c:1": "a", "d:1": "b"}.get(address)
        assert (said and said.options["User"]) == wanted, address
    assert second.authenticators == () and second.authenticator is None
    assert config.authenticator is None, "an instance has no Authenticator of its own"
    assert config.bootstrap is not None
    for source in config.bootstrap.sources:
        assert config.bootstrap.authenticator_of(source) is None


@pytest.mark.covers("The replication chapters", "incoming transports")
def test_an_instance_without_a_transport_for_others_accepts_no_links() -> None:
    text = re.sub(
        r"<Transport>\s*<Name>amps-replication</Name>.*?</Transport>", "", FILE, flags=re.DOTALL
    )
    assert text != FILE
    config = started(text)
    assert config.replication_transports == ()
    assert started(FILE).replication_transports


def test_transports_of_a_copy_with_and_without_tls_are_refused_together() -> None:
    """The first one's TLS was taken for all, so that a password could go out in plain text."""
    secure = (
        f"<Transport><InetAddr>c:1</InetAddr><Type>amps-replication-secure</Type>{KEY}</Transport>"
    )
    text = FILE.replace(GROUP, GROUP + bootstrap(inner="").replace("</Transport>",
                        f"</Transport>{secure}", 1))  # fmt: skip
    assert any(
        "Bootstrap has Transports with different TLS" in e.text for e in findings(document(text))
    )


@pytest.mark.covers("Configuration", "Authentication, Entitlement and Authenticator")
def test_a_replication_transport_and_a_copy_have_modules_of_their_own() -> None:
    text = FILE.replace(GROUP, GROUP + bootstrap(inner="").replace("</Transport>",
                        f"{SAYS}</Transport>"))  # fmt: skip
    text = text.replace("<Name>amps-replication</Name>", f"<Name>amps-replication</Name>{OTHERS}")
    config = started(text)
    implicit = ModuleConfig("amps-implicit-authentication-module")
    assert config.authentication is None and config.replication_authentication is None
    assert config.replication_transports[0].authentication == implicit
    assert config.bootstrap is not None
    (source,) = config.bootstrap.sources
    assert config.bootstrap.authenticator_of(source) is not None


@pytest.mark.covers("Configuration", "Authentication, Entitlement and Authenticator")
def test_a_module_of_an_installed_package_is_taken_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = "<Authentication><Module>own</Module></Authentication>"
    text = FILE.replace(GROUP, GROUP + OWN_MODULE + given)
    found = {("raylay.authentication", "own")}
    monkeypatch.setattr(
        modules, "entry_points", lambda *, group, name: [name] * ((group, name) in found)
    )
    (note,) = findings(document(text))
    assert not note.refuses and "the module own is taken, not its Library" in note.text
    assert started(text).authentication == ModuleConfig("own")


def test_what_runs_as_it_is_anyway_is_not_listed() -> None:
    defaults = (
        "<Authentication><Module>amps-default-authentication-module</Module></Authentication>"
        "<RegexTopicSupport>true</RegexTopicSupport><ClientMaxCapacity>50%</ClientMaxCapacity>"
    )
    assert findings(document(FILE)) == []
    assert findings(document(FILE.replace(GROUP, GROUP + defaults))) == []


def test_what_needs_nothing_is_a_note() -> None:
    text = FILE.replace(JOURNAL, JOURNAL + "<O_DIRECT>disabled</O_DIRECT>")
    (finding,) = findings(document(text))
    assert (finding.origin, finding.refuses) == ("f.xml:17", False)
    assert "LMDB" in finding.text
    assert started(text) == started(FILE)


@pytest.mark.parametrize("kind", ["sow", "transaction-log", "all"])
def test_a_bootstrap_copies_both_whatever_it_says(kind: str) -> None:
    plain = FILE.replace(GROUP, GROUP + bootstrap())
    text = FILE.replace(GROUP, GROUP + bootstrap(inner=f"<Type>{kind}</Type>"))
    found = [(each.text, each.refuses) for each in findings(document(text))]
    why = "Type needs nothing here: state is made from the transaction log, so both are copied"
    assert found == ([] if kind == "all" else [(why, False)])
    assert started(text) == started(plain)


@pytest.mark.covers("Filters by content", "a filter of a destination")
def test_a_filter_of_a_destination_runs() -> None:
    text = FILE.replace(
        f"{TOPIC}</Topic>\n      <S", f"{TOPIC}<Filter>/a = 1</Filter></Topic>\n      <S"
    )
    assert findings(document(text)) == []
    assert started(text).destinations[0].topics[0].filter == "/a = 1"
    with pytest.raises(ConfigurationError, match=r"f.xml:\d+: .*'/a =' is no filter: column 5"):
        document(text.replace("/a = 1", "/a ="))


def test_definitions_are_compared_though_they_do_not_run() -> None:
    sow = (
        "<SOW><Topic><Name>orders</Name><MessageType>json</MessageType>"
        "<Durability>transient</Durability><Key>/id</Key></Topic>"
        "<GroupLocalQueue><Name>q</Name><MessageType>json</MessageType><InitialOwner>A-1"
        "</InitialOwner><UnderlyingTopic>orders</UnderlyingTopic></GroupLocalQueue></SOW>"
    )
    text = FILE.replace(GROUP, GROUP + sow).replace(
        f"{TOPIC}</Topic>\n      <S", f"{TOPIC}<Filter>/a = 1</Filter></Topic>\n      <S"
    )
    config = config_of(fabric_of([document(text)], ignore_unsupported=True), "A-1")
    assert [(each.name, each.keys) for each in sow_terms(config.sow)] == [("orders", ("/id",))]
    assert [
        (each.name, each.kind, each.underlying) for each in queue_terms(config.queue_definitions)
    ] == [("q", "group_local", "orders")]
    assert config.destinations[0].topics[0].filter == "/a = 1"


WAITING = FILE.replace("        <InetAddr>elsewhere:10005</InetAddr>\n", "").replace(ADDRESS, "")


def test_a_destination_without_addresses_waits() -> None:
    (destination,) = started(WAITING).destinations
    assert destination.addresses == () and destination.server_names == ()
    assert destination.group == "B" and destination.name == "B-1"
    assert not destination.destination().dials


@pytest.mark.covers("Configuration", "more transports for clients")
def test_a_transport_without_an_address_beside_one_with() -> None:
    """It dials that one, and takes a server of its Name or Group that connects."""
    mixed = FILE.replace(
        ADDRESS, f"{ADDRESS}</Transport><Transport><Type>amps-replication</Type>", 1
    )
    assert findings(document(mixed)) == []
    (plain,) = started(FILE).destinations
    (both,) = started(mixed).destinations
    assert both == replace(plain, waits=True)
    back = other_side(FILE, "B-1", "B").replace(ADDRESS, "<InetAddr>127.0.0.1:10004</InetAddr>")
    back = back.replace("        <InetAddr>elsewhere:10005</InetAddr>\n", "")
    settings = fabric_of([document(mixed), document(back, "g.xml")])
    (both,) = config_of(settings, "A-1").destinations
    assert (both.waits_for, both.client_addresses) == (("B-1",), ("127.0.0.1:9008",))


@pytest.mark.covers("Configuration", "more transports for clients")
@pytest.mark.covers("Configuration", "`InitialState`")
def test_transports_for_clients_and_their_message_types() -> None:
    changed = FILE.replace(
        "<Name>clients</Name>", "<Name>clients</Name><MessageType>json</MessageType>"
    ).replace(
        "</Transports>",
        "<Transport><Name>fix-tcp</Name><Type>tcp</Type><InetAddr>10.0.0.1:9017</InetAddr>"
        "<MessageType>fix</MessageType><MessageType>nvfix</MessageType></Transport></Transports>",
    )
    assert findings(document(changed)) == []
    config = started(changed)
    first, more = config.client_transports
    assert first.message_types == ("json",)
    assert more == TransportConfig("fix-tcp", 9017, "10.0.0.1", ("fix", "nvfix"))
    assert InstanceConfig.from_json(config.to_json()) == config
    plain = TransportConfig("clients", 9007, advertised="127.0.0.1:9007")
    assert started(FILE).client_transports == (plain,)
    state = "</Name><InitialState>disabled</InitialState>"
    off = changed.replace("clients</Name>", f"clients{state}").replace("tcp</Name>", f"tcp{state}")
    assert findings(document(off)) == []
    assert [each.enabled for each in started(off).client_transports] == [False, False]


def test_connections_are_shared_as_documented() -> None:
    assert started(FILE).destinations[0].share_connection
    assert started(FILE).replication_transports[0].advertised == "127.0.0.1:10004"


def other_side(text: str, name: str, group: str) -> str:
    """An instance whose Destination is to A-1."""
    front, destination, rest = text.partition("<Destination>")
    front = front.replace("<Name>A-1<", f"<Name>{name}<").replace(GROUP, f"<Group>{group}</Group>")
    front = front.replace(":10004", ":20004").replace(":9007", ":9008")
    return front + destination + rest.replace(">B-1<", ">A-1<").replace("<Group>B<", "<Group>A<")


@pytest.mark.parametrize(
    ("name", "group", "dials", "waits_for"),
    [
        ("B-1", "B", "127.0.0.1:10004", ("B-1",)),
        ("B-7", "B", "127.0.0.1:10004", ("B-7",)),
        ("B-7", "B", "127.0.0.1:10099", ()),
        ("C-1", "C", "127.0.0.1:10004", ()),
    ],
)
def test_whom_a_destination_without_addresses_waits_for(
    name: str, group: str, dials: str, waits_for: tuple[str, ...]
) -> None:
    """The one that bears its Name; else those of its Group that dial this one."""
    back = other_side(FILE, name, group).replace(ADDRESS, f"<InetAddr>{dials}</InetAddr>")
    back = back.replace("        <InetAddr>elsewhere:10005</InetAddr>\n", "")
    settings = fabric_of([document(WAITING), document(back, "g.xml")])
    config = config_of(settings, "A-1")
    assert config.destinations[0].server_names == waits_for
    assert config.destinations[0].client_addresses == tuple("127.0.0.1:9008" for _ in waits_for)


def test_two_that_wait_for_each_other_are_told_so() -> None:
    back = other_side(WAITING, "B-1", "B")
    with pytest.raises(ConfigurationError, match="neither would ever connect") as caught:
        fabric_of([document(WAITING), document(back, "g.xml")])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["f.xml", "g.xml"]


ARCHIVED = FILE.replace(
    JOURNAL, JOURNAL + "<JournalArchiveDirectory>archive</JournalArchiveDirectory>"
)


@pytest.mark.covers("Configuration", "Actions: journal is compressed")
def test_what_is_done_to_old_journal_is_done_when_the_schedule_says() -> None:
    actions = (
        scheduled(["Saturday at 11:00"], remove="30d")
        + scheduled(["4h", "00:32Z"], compress="1d", archive="7d")
        + scheduled(["10s"], remove="60d")
    )
    config = started(ARCHIVED.replace(GROUP, f"{GROUP}<Actions>{actions}</Actions>"))
    assert findings(document(ARCHIVED.replace(GROUP, f"{GROUP}<Actions>{actions}</Actions>"))) == []
    twice = (Occasion(4 * 3_600_000), Occasion(at="00:32Z"))
    assert config.journal.actions == (
        JournalAction("remove", 30 * 86_400_000, (Occasion(at="Saturday at 11:00"),)),
        JournalAction("compress", 86_400_000, twice),
        JournalAction("archive", 7 * 86_400_000, twice),
        JournalAction("remove", 60 * 86_400_000, (Occasion(10_000),)),
    )
    # Not all the time, as a `retention` would.
    assert config.journal.retention.age_ms is None
    assert InstanceConfig.from_json(config.to_json()) == config


@pytest.mark.covers("Configuration", "Actions: journal is compressed")
def test_a_downgrade_at_a_time_of_the_day_a_second_one_and_two_schedules() -> None:
    actions = (
        scheduled(["15s"], downgrade="30s", upgrade="5s")
        + scheduled(["00:32", "1h"], downgrade="20s")
        + scheduled(["Sunday at 3:00Z"], upgrade="10s")
    )
    config = started(FILE.replace(GROUP, f"{GROUP}<Actions>{actions}</Actions>"))
    policy = config.policy
    assert (policy.age_ms, policy.every_ms, policy.upgrade_age_ms) == (
        30_000, 15_000, 5_000,
    )  # fmt: skip
    assert policy.looks == (
        AgeCheck(20_000, None, (Occasion(at="00:32"), Occasion(3_600_000))),
        AgeCheck(None, 10_000, (Occasion(at="Sunday at 3:00Z"),)),
    )
    assert InstanceConfig.from_json(config.to_json()) == config


@pytest.mark.covers("Resync and bootstrap", "checkpoints: a quiet instance is known to be up")
def test_the_checkpoint_topic_may_be_named() -> None:
    """There are no checkpoints (docs/deviations.md): it is a topic as any other."""
    named = f"<Topic>{TOPIC.replace('orders', '/AMPS/Tx/Checkpoint')}</Topic><Topic>{TOPIC}"
    config = started(FILE.replace(f"<Topic>{TOPIC}", named))
    for rules in (config.topics, config.destinations[0].topics):
        assert "/AMPS/Tx/Checkpoint" in {rule.name for rule in rules}


@pytest.mark.covers("The replication chapters", "what no transaction log takes")
def test_what_no_transaction_log_takes_is_delivered_as_ever() -> None:
    config = started(FILE)
    assert config.topics == (TopicRule("orders", "json"),)
    assert config.unjournaled == (TopicRule(".*"),)


# -- message types -----------------------------------------------------------------------------
@pytest.mark.covers("Message types", "`message_types` of a fabric's file")
def test_message_types_of_several_parts_and_fields() -> None:
    inner = "<MessageType><Name>{}</Name><Module>{}</Module><Options>{}</Options></MessageType>"
    text = FILE.replace(
        GROUP,
        GROUP
        + "<MessageTypes>"
        + inner.format("quote", "struct", "<Field>/px = &lt;d</Field><Field>/sym = 4S</Field>")
        + inner.format("json", "json", "<EarlyTerminationOptimization>true</EarlyTermination"
                       "Optimization>")
        + inner.format(
            "pair", "composite-local", "<MessageType>json</MessageType><MessageType>quote"
            "</MessageType>"
        )
        + inner.format("own", "libown.so", "<X>1</X>")
        + "</MessageTypes>",
        1,
    )  # fmt: skip
    config = started(text)
    assert [(each.name, each.kind) for each in config.type_definitions] == [
        ("quote", "struct"), ("json", "json"), ("pair", "composite-local"),
    ]  # fmt: skip
    found = MessageTypes(config.type_definitions)
    assert found["pair"].parse(bytes(3) + b"\x02{}" + bytes(4)) == {"0": {}}
    assert found["quote"].parse(bytes(12)) == {"px": 0.0, "sym": ""}
    again = InstanceConfig.from_json(config.to_json())
    assert again.type_definitions == config.type_definitions


@pytest.mark.covers("Message types", "`message_types` of a fabric's file")
@pytest.mark.parametrize(
    ("module", "options", "why"),
    [
        ("fix", "<FieldSeparator>|</FieldSeparator>", "expected the ASCII code"),
        ("fix", "<Separator>1</Separator>", "fix has no option 'Separator'"),
        ("struct", "<Field>px = d</Field>", "expected a field such as"),
        ("composite-local", "<MessageType>other</MessageType>", "called 'other'"),
    ],
)
def test_a_message_type_that_cannot_be_used(module: str, options: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        document(FILE.replace(GROUP, GROUP + types("mine", module, options), 1))
    assert "message type mine" in str(caught.value) and why in str(caught.value)
    assert str(caught.value).startswith("f.xml:")


@pytest.mark.parametrize(("module", "why"), [("bflat", "use msgpack"), ("protobuf", "descriptors")])
def test_a_message_type_that_does_not_run(module: str, why: str) -> None:
    found = document(FILE.replace(GROUP, GROUP + types("mine", module), 1))
    with pytest.raises(ConfigurationError, match=f"message type mine: .*{why}"):
        fabric_of([found])
    left_out = fabric_of([found], ignore_unsupported=True)
    assert config_of(left_out, "A-1").type_definitions == ()


@pytest.mark.covers("The replication chapters", "incoming transports")
def test_a_second_replication_transport_is_one_more() -> None:
    """The documents allow one; docs/deviations.md says why several are taken here."""
    second = (
        "<Transport><Name>inside</Name><Type>amps-replication</Type>"
        f"<InetAddr>127.0.0.2:10005</InetAddr>{OTHERS}</Transport></Transports>"
    )
    text = FILE.replace("</Transports>", second)
    assert not [each for each in findings(document(text)) if each.refuses]
    first, more = started(text).replication_transports
    assert (first.name, first.host, first.port) == ("amps-replication", "127.0.0.1", 10004)
    assert (more.name, more.host, more.port) == ("inside", "127.0.0.2", 10005)
    assert first.authentication is None and more.authentication is not None


@pytest.mark.covers("Logging", "`Logging`, several `Target`: all run")
def test_a_log_has_several_targets() -> None:
    targets = (
        "<Logging><Target><Protocol>stdout</Protocol><Level>warning</Level></Target>"
        "<Target><Protocol>file</Protocol><Level>debug</Level>"
        "<FileName>log/%Y/a-%n.log</FileName><RotationThreshold>1MB</RotationThreshold></Target>"
        "<Target><Protocol>gzip</Protocol><FileName>/var/log/a.log</FileName>"
        "<IncludeErrors>07</IncludeErrors></Target></Logging>"
    )
    *chosen, kept = started(FILE.replace(GROUP, GROUP + targets)).log.targets
    stdout, file, compressed = chosen
    assert kept.in_background
    assert (stdout.target, stdout.level) == ("stdout", "warning")
    # Documented: `debug` of older files means info.
    assert (file.level, file.directory, file.file_name) == ("info", "/data", "log/%Y/a-%n.log")
    assert (file.rotation_bytes, file.files_bytes_max) == (1_000_000, 0)
    assert (compressed.level, compressed.include) == ("none", ("07",))
    assert (compressed.directory, compressed.file_name) == ("/var/log", "a.log")
    assert compressed.files_bytes_max > 0


@pytest.mark.covers("Logging", "wrong values of a `Target` are refused with their line")
@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ("<Protocol>stdout</Protocol>", "needs one of Level, Levels and IncludeErrors"),
        ("<Protocol>file</Protocol><Level>info</Level>", "needs a FileName"),
        ("<Protocol>stdout</Protocol><Level>loud</Level>", "log level 'loud' is unknown"),
        ("<Protocol>stdout</Protocol><Levels>info,x</Levels>", "log level 'x' is unknown"),
        (
            "<Protocol>stdout</Protocol><IncludeErrors>12-(</IncludeErrors>",
            r"neither a code such as 21-0002, a category",
        ),
        (
            "<Protocol>file</Protocol><Level>info</Level><FileName>a-%Q.log</FileName>",
            "unknown symbol %Q",
        ),
        (
            "<Protocol>syslog</Protocol><Level>info</Level><Options>LOG_X</Options>",
            "log syslog option 'LOG_X' is unknown",
        ),
        (
            "<Protocol>syslog</Protocol><Level>info</Level><Facility>LOG_MAIL</Facility>",
            "log syslog facility 'LOG_MAIL' is unknown",
        ),
    ],
)
def test_a_wrong_target_is_refused(inner: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"f\.xml:3.*{told}"):
        started(FILE.replace(GROUP, GROUP + target(inner)))
