"""Published AMPSConfig files load; what is wrong is named with file, line and what was expected."""

from __future__ import annotations

import random
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.amps_examples import FIXTURES, completed, published

from raylay.services.configuration.amps import tree
from raylay.services.configuration.amps.load import Document, load_amps, places
from raylay.services.configuration.amps.model import AmpsConfig
from raylay.services.configuration.amps.show import shown
from raylay.services.configuration.amps.tree import (
    DEPTH_MAX,
    INCLUDE_DEPTH_MAX,
    TOTAL_BYTES_MAX,
    parse_defines,
)
from raylay.services.errors import ConfigurationError
from raylay.services.replication.membership.validation import CHECKS

EXAMPLES = sorted(path.stem for path in FIXTURES.glob("*.xml"))

FILE = """\
<AMPSConfig>
  <Name>A-1</Name>
  <Group>A</Group>
  <Transports>
    <Transport>
      <Name>clients</Name>
      <Type>tcp</Type>
      <InetAddr>9007</InetAddr>
    </Transport>
    <Transport>
      <Name>amps-replication</Name>
      <Type>amps-replication</Type>
      <InetAddr>localhost:10004</InetAddr>
    </Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <MinJournalSize>20MB</MinJournalSize>
    <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <Replication>
    <Destination>
      <Topic><Name>orders</Name><MessageType>json</MessageType></Topic>
      <Group>B</Group>
      <SyncType>sync</SyncType>
      <Transport>
        <Type>amps-replication</Type>
        <InetAddr>b:10004</InetAddr>
      </Transport>
    </Destination>
  </Replication>
  <SOW>
    <TopicDefinition>
      <Topic>orders</Topic>
      <MessageType>json</MessageType>
      <Key>/id</Key>
      <Duration>transient</Duration>
    </TopicDefinition>
    <QueueDefinition>
      <Name>work</Name>
      <MessageType>json</MessageType>
      <UnderlyingTopic>orders</UnderlyingTopic>
    </QueueDefinition>
    <LocalQueue>
      <Name>mine</Name>
      <MessageType>json</MessageType>
      <UnderlyingTopic>orders</UnderlyingTopic>
    </LocalQueue>
    <ViewDefinition>
      <Name>sums</Name>
      <MessageType>json</MessageType>
      <UnderlyingTopic>orders</UnderlyingTopic>
      <Projection><Field>SUM(/n) AS /n</Field></Projection>
    </ViewDefinition>
  </SOW>
  <Actions>
    <Action>
      <On>
        <Module>amps-action-on-schedule</Module>
        <Options><Every>15s</Every></Options>
      </On>
      <Do>
        <Module>amps-action-do-downgrade-replication</Module>
        <Options><Age>300s</Age></Options>
      </Do>
    </Action>
  </Actions>
</AMPSConfig>
"""


def parse(text: str, **variables: str) -> Document:
    """A file's document; nothing of this process's environment is in it."""
    return load_amps("f.xml", text=text, defines=variables, environment={})


def errors_of(text: str, **variables: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, **variables)
    return str(caught.value).splitlines()


# -- what is published -------------------------------------------------------------------------
def test_every_example_of_the_documents_is_there() -> None:
    assert len(EXAMPLES) == 8


@pytest.mark.covers("Configuration", "every whole example of the documents loads")
@pytest.mark.parametrize("name", EXAMPLES)
def test_published_examples_load(name: str) -> None:
    config = load_amps(f"{name}.xml", text=completed(name), environment={}).config
    assert config.client_transports()
    assert config.transaction_log is not None


def test_what_the_examples_leave_out_is_named_with_its_line() -> None:
    errors = errors_of(published("downgrade-and-upgrade"))
    assert errors[0] == "f.xml:1: AMPSConfig has no Name: it needs one"
    assert [line.split(": ")[0] for line in errors[1:]] == ["f.xml:2", "f.xml:42"]
    assert "the documents leave out" in errors[1]


def test_the_hot_hot_pair() -> None:
    first, second = (
        load_amps(name, text=completed(name), environment={}).config
        for name in ("hot-hot-amps-1", "hot-hot-amps-2")
    )
    assert (first.name, second.name) == ("amps-1", "amps-2")
    assert first.group == second.group == "DataCenter-NYC-1"
    (destination,) = first.destinations()
    assert (destination.name, destination.group) == ("amps-2", "DataCenter-NYC-1")
    assert [(topic.name, topic.message_type) for topic in destination.topics] == [
        ("topic", "fix"),
        ("^/orders/", "json"),
    ]
    assert destination.sync_type == "sync"
    assert destination.pass_through == ".*"
    assert destination.transports[0].inet_addresses == ("amps-2-server.example.com:10005",)
    listener = second.replication_transport()
    assert listener is not None
    assert listener.inet_address == "10005"


def test_a_name_inside_a_destinations_transport_is_accepted() -> None:
    config = load_amps("p", text=completed("pass-through"), environment={}).config
    (destination,) = config.destinations()
    assert destination.transports[0].name == "amps-replication"
    assert destination.group == "AMPS2-HKG", "without a Group it is the Name"
    assert destination.pass_through == "^((?!HKG).)*$"


@pytest.mark.covers("Configuration", "Configuration Validation")
def test_excluded_checks() -> None:
    config = load_amps("e", text=completed("exclude-validation"), environment={}).config
    topic = config.destinations()[0].topics[0]
    assert topic.exclude_validation == ("replicate", "cascade")
    assert topic.checks() == tuple(c for c in CHECKS if c not in ("replicate", "cascade"))


@pytest.mark.covers("Configuration", "Slow Client Management")
def test_limits_of_slow_clients() -> None:
    config = load_amps("s", text=completed("slow-clients"), environment={}).config
    assert config.message_memory_bytes_max == 10_000_000_000
    assert config.message_disk_path == "/mnt/fastio/AMPS/offline"
    assert config.client_message_age_ns_max == 30_000_000_000
    assert config.client_capacity_percent_max == 50, "the default"
    regular, low = config.client_transports()
    assert regular.client_message_age_ns_max is None
    assert low.client_message_age_ns_max == 15_000_000_000
    assert low.client_capacity_percent_max == 10
    assert low.message_types == ("bson",)


SLOW_CLIENTS: list[tuple[str, str, object, str, object]] = [
    # element, attribute, an instance's default, what is written, what it is
    ("MessageMemoryLimit", "message_memory_bytes_max", None, "10GB", 10**10),
    ("MessageDiskLimit", "message_disk_bytes_max", None, "2GB", 2 * 10**9),
    ("MessageDiskPath", "message_disk_path", "/var/tmp", "/fast/offline", "/fast/offline"),
    ("ClientMessageAgeLimit", "client_message_age_ns_max", None, "30s", 30 * 10**9),
    ("ClientMaxCapacity", "client_capacity_percent_max", 50, "10%", 10),
]


@pytest.mark.covers("Configuration", "Slow Client Management")
@pytest.mark.parametrize(("tag", "attribute", "usual", "text", "value"), SLOW_CLIENTS)
def test_a_limit_of_slow_clients_is_an_instances_or_a_transports(
    tag: str, attribute: str, usual: object, text: str, value: object
) -> None:
    """Nowhere else. A transport that does not set it has that of its instance."""
    limit = f"<{tag}>{text}</{tag}>"
    group, port = "<Group>A</Group>", "<InetAddr>9007</InetAddr>"
    for within, instance, transport in (
        (FILE, usual, None),
        (FILE.replace(group, group + limit), value, None),
        (FILE.replace(port, port + limit), usual, value),
    ):
        config = parse(within).config
        (clients,) = config.client_transports()
        assert (getattr(config, attribute), getattr(clients, attribute)) == (instance, transport)
    journal = "<JournalDirectory>journal</JournalDirectory>"
    (error,) = errors_of(FILE.replace(journal, journal + limit))
    assert tag in error and "AMPSConfig" in error and "Transport" in error


# -- defaults and synonyms ---------------------------------------------------------------------
@pytest.mark.covers("Configuration", "units, `${VAR}`")
def test_synonyms_and_defaults() -> None:
    config = parse(FILE).config
    log, sow = config.transaction_log, config.sow
    assert log is not None
    assert sow is not None
    assert log.journal_bytes == 20_000_000
    assert (log.preallocated_files, log.o_direct, log.flush_interval_ns) == (2, True, 10**8)
    (topic,) = sow.topics
    assert (topic.name, topic.durability, topic.slab_bytes) == ("orders", "transient", 5_000_000)
    (queue,) = sow.queues
    assert (queue.semantics, queue.leasing, queue.subscription_backlog_max) == (
        "at-least-once",
        "sublet",
        1,
    )
    assert sow.views[0].underlying.topic == "orders"
    (destination,) = config.destinations()
    assert destination.name == "B", "without a Name it is the Group"
    assert (destination.compression, destination.compression_type) == (False, "zlib")
    assert destination.ack_conflation_ns == 10**9
    assert destination.topics[0].checks() == CHECKS
    assert config.regex_topics


@pytest.mark.covers("The replication chapters", "without Group the name is the group")
def test_the_group_is_the_name_where_there_is_none() -> None:
    assert parse(FILE.replace("  <Group>A</Group>\n", "")).config.group == "A-1"


def test_every_documented_instance_element_is_modelled() -> None:
    named = "Name Group ProcessName Description Environment SuggestedMinimumVersion \
        RequiredMinimumVersion UserDefinedFunctions MiniDumpDirectory MiniDumpFileMask \
        SOWStatisticsInterval SOWStatsInterval RegexTopicSupport ConfigValidation Tuning \
        Externals Authentication Entitlement MessageMemoryLimit MessageDiskLimit MessageDiskPath \
        ClientMessageAgeLimit ClientMaxCapacity Modules Transports Protocols MessageTypes SOW \
        TransactionLog Replication Admin Logging Actions Bootstrap"
    assert [tag for tag in named.split() if "AMPSConfig" not in places().get(tag, ())] == []


# -- what is wrong -----------------------------------------------------------------------------
@pytest.mark.covers("Configuration", "unknown, misplaced")
@pytest.mark.covers("The replication chapters", "incoming transports")
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("<Group>A</Group>", "<Grupp>A</Grupp>", 3, ["Grupp is unknown", "did you mean Group?"]),
        ("<Group>A</Group>", "<SyncType>sync</SyncType>", 3, ["misplaced", "in Destination"]),
        ("<Group>A</Group>", "<Group>A</Group><Group>B</Group>", 3, ["twice", "f.xml:3"]),
        ("<Group>A</Group>", "<Group><X/></Group>", 3, ["holds a value", "X"]),
        ("<Group>A</Group>", "<Group a='b'>A</Group>", 3, ["attribute a"]),
        ("  <Name>A-1</Name>\n", "", 1, ["AMPSConfig has no Name"]),
        ("A-1", "A 1", 2, ["without spaces", "'A 1'"]),
        ("<Name>A-1</Name>", "<Name></Name>", 2, ["without spaces"]),
        ("      <SyncType>sync</SyncType>\n", "", 22, ["Destination has no SyncType"]),
        ("<SyncType>sync<", "<SyncType>both<", 25, ["'sync' or 'async'", "'both'"]),
        ("      <Group>B</Group>\n", "", 22, ["neither Name nor Group"]),
        ("b:10004", "b:port", 28, ["host:port", "b:port"]),
        ("b:10004", "10004", 28, ["host:port"]),
        ("9007", "90070", 8, ["port 1 to 65535"]),
        ("9007", "10004", 13, ["taken by clients"]),
        ("tcp<", "udp<", 7, ["'tcp'", "udp"]),
        ("clients", "amps-replication", 10, ["two transports"]),
        ("<Type>tcp<", "<Type>tcps<", 5, ["Certificate and PrivateKey"]),
        ("20MB", "20 barrels", 18, ["a size such as", "20 barrels"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n  </Tr",
         "<Name>orders</Name></Topic>\n  </Tr", 19, ["Topic has no MessageType"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n  </Tr",
         "<Name>trades</Name><MessageType>json</MessageType></Topic>\n  </Tr", 23,
         ["not in the TransactionLog"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n      <G",
         "<Name>mine</Name><MessageType>json</MessageType></Topic>\n      <G", 23,
         ["LocalQueue", "cannot be replicated"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n      <G",
         "<Name>orde(rs</Name><MessageType>json</MessageType></Topic>\n      <G", 23,
         ["regular expression"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n      <G",
         "<Name>orders</Name><MessageType>json</MessageType><ExcludeValidation>replicate,queue"
         "</ExcludeValidation></Topic>\n      <G", 23, ["queue cannot be excluded"]),
        ("<Name>orders</Name><MessageType>json</MessageType></Topic>\n      <G",
         "<Name>orders</Name><MessageType>json</MessageType><ExcludeValidation>replikate"
         "</ExcludeValidation></Topic>\n      <G", 23, ["replikate", "txlog, replicate"]),
        ("<Duration>transient<", "<Duration>forever<", 37, ["'persistent' or 'transient'"]),
        ("      <Duration>transient</Duration>\n", "", 33, ["FileName"]),
        ("<UnderlyingTopic>orders</UnderlyingTopic>\n      <Pro",
         "<UnderlyingTopic>later</UnderlyingTopic>\n      <Pro", 52, ["not defined above it"]),
        ("<UnderlyingTopic>orders</UnderlyingTopic>\n    </Q",
         "<UnderlyingTopic>^or</UnderlyingTopic>\n    </Q", 39, ["DefaultPublishTarget"]),
        ("amps-action-do-downgrade-replication", "amps-action-do-downgrade-replications", 63,
         ["is amps-action-do-downgrade-replication meant"]),
        ("<Age>300s</Age>", "", 62, ["has no Age"]),
        ("<Age>300s</Age>", "<Age>300</Age>", 64, ["an interval", "300"]),
        ("<Age>300s</Age>", "<Age>3s</Age><Aged>1s</Aged>", 64, ["Aged is no option", "Age"]),
        ("<Every>15s</Every>", "<Every>often</Every>", 60, ["a weekday", "often"]),
        ("</Action>\n", "</Action>\nwords\n", 67, ["got the text 'words'"]),
        ("<AMPSConfig>", "<!DOCTYPE a [<!ENTITY b 'c'>]><AMPSConfig>", 1,
         ["a DOCTYPE is not taken"]),
        ("<AMPSConfig>", "<!-- ü -->\n<!DOCTYPE a SYSTEM 'b'>\n<AMPSConfig>", 2,
         ["a DOCTYPE is not taken"]),
        ("</AMPSConfig>", "<Bootstrap><Transport><Type>amps-replication</Type></Transport>"
         "</Bootstrap></AMPSConfig>", 68, ["Bootstrap has no InetAddr"]),
        ("</AMPSConfig>", "", 1, ["no XML", "AMPSConfig has no end tag before line 69"]),
        ("</Group>", "", 3, ["no XML", "Group has no end tag before line", "mismatched tag"]),
        ("<Group>A</Group>", "<SOW><Topic><Name>t</Name><MessageType>json</MessageType>"
         "<Filter>/a = 1</Filter></Topic></SOW>", 3,
         ["Filter is misplaced in Topic", "TransactionLog/Topic or Destination/Topic"]),
        ("</AMPSConfig>", "</AMPSConfig><AMPSConfig/>", 1, ["one element AMPSConfig"]),
        ("9007", "${PORT}", 8, ["${PORT} is not set", "-D PORT=VALUE"]),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_what_was_expected(
    old: str, new: str, line: int, words: list[str]
) -> None:
    assert old in FILE
    errors = errors_of(FILE.replace(old, new, 1))
    found = [error for error in errors if error.startswith(f"f.xml:{line}: ")]
    assert found, errors
    for word in words:
        assert any(word in error for error in found), found


@pytest.mark.covers("Configuration", "unknown, misplaced")
def test_all_errors_come_at_once_in_their_order() -> None:
    text = FILE.replace("9007", "nowhere").replace(">sync<", ">both<").replace("20MB", "x")
    assert [error.split(": ")[0] for error in errors_of(text)] == [
        "f.xml:8",
        "f.xml:18",
        "f.xml:25",
    ]


@pytest.mark.covers("Configuration", "MinSyncDestinations is a number (a published sample")
def test_the_published_sample_that_shows_a_name() -> None:
    tuning = "<Tuning><Replication><MinSyncDestinations>{}</MinSyncDestinations></Replication>"
    wrong = FILE.replace("<Group>A<", f"{tuning.format('amps-2')}</Tuning><Group>A<")
    (error,) = errors_of(wrong)
    assert error.startswith("f.xml:3: MinSyncDestinations: expected a number of destinations")
    assert "a published sample shows a name here by mistake" in error
    right = parse(wrong.replace("amps-2", "1")).config.tuning
    assert right is not None
    assert right.replication is not None
    assert right.replication.min_sync_destinations == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("<Certificate>a</Certificate>", "Certificate and PrivateKey go together"),
        ("<PrivateKey>a</PrivateKey>", "Certificate and PrivateKey go together"),
        ("<CAFile>a</CAFile><VerifyClient>true</VerifyClient>", "VerifyClient needs TLS"),
    ],
)
def test_no_transport_speaks_without_tls_where_some_of_it_is_configured(
    given: str, words: str
) -> None:
    (error,) = errors_of(FILE.replace("<Type>tcp</Type>", f"<Type>tcp</Type>{given}", 1))
    assert words in error


@pytest.mark.covers("Configuration", "Maximum Downstream Destinations")
@pytest.mark.covers("The replication chapters", "64 that are sync")
def test_64_sync_destinations_and_no_more() -> None:
    one = FILE[FILE.index("    <Destination>") : FILE.index("  </Replication>")]
    many = "".join(one.replace("<Group>B<", f"<Group>B{n}<") for n in range(65))
    (error,) = errors_of(FILE.replace(one, many))
    assert "65 destinations use sync acknowledgment: at most 64" in error
    # Of those that are async there is no limit.
    most = parse(FILE.replace(one, many.replace(">sync<", ">async<", 1))).config
    assert len(most.destinations()) == 65
    assert sum(each.sync_type == "sync" for each in most.destinations()) == 64
    assert len(parse(FILE.replace(one, many.replace(">sync<", ">async<"))).config.destinations())


def test_two_destinations_of_one_name() -> None:
    one = FILE[FILE.index("    <Destination>") : FILE.index("  </Replication>")]
    (error,) = errors_of(FILE.replace(one, one + one))
    assert error.startswith("f.xml:31: 2 destinations are called B")


# -- variables and includes --------------------------------------------------------------------
@pytest.mark.covers("Configuration", "units, `${VAR}`")
def test_variables(tmp_path: Path) -> None:
    path = tmp_path / "f.xml"
    path.write_text(FILE.replace("9007", "${PORT}").replace("journal<", "${AMPS_CONFIG_PATH}.d<"))
    loaded = load_amps(path, defines={"PORT": "9100"}, environment={"PORT": "1"}).config
    assert loaded.client_transports()[0].inet_address == "9100", "-D goes before the environment"
    assert load_amps(path, environment={"PORT": "9101"}).config.client_transports()[
        0
    ].inet_address == ("9101")
    assert loaded.transaction_log is not None
    assert loaded.transaction_log.journal_directory == f"{path}.d"
    of_elsewhere = {"PORT": "1", "AMPS_CONFIG_PATH": "/elsewhere"}
    loaded = load_amps(path, environment=of_elsewhere).config
    assert loaded.transaction_log is not None
    assert loaded.transaction_log.journal_directory == f"{path}.d", "it is of this file"


def test_a_variable_brings_no_elements() -> None:
    text = FILE.replace("<Group>A</Group>", "<Group>${G}</Group>")
    assert parse(text, G="</Group><X/>").config.group == "</Group><X/>"
    assert parse(FILE.replace("<Group>A", "<!-- ${NOT_SET} --><Group>A")).config.group == "A"


def test_defines_are_checked() -> None:
    assert parse_defines(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1", "1A=2"):
        with pytest.raises(ConfigurationError, match="VAR=VALUE"):
            parse_defines([wrong])


@pytest.mark.covers("Configuration", "units, `${VAR}`")
def test_includes(tmp_path: Path) -> None:
    inner = tmp_path / "parts" / "log.xml"
    inner.parent.mkdir()
    start, end = FILE.index("  <TransactionLog>"), FILE.index("  <Replication>")
    inner.write_text(f"<?xml version='1.0'?>\n{FILE[start:end]}<Description>d</Description>\n")
    path = tmp_path / "f.xml"
    include = "<Include comment='true'>parts/log.xml</Include>"
    path.write_text(FILE[:start] + include + FILE[end:])
    document = load_amps(path, environment={})
    assert document.config.description == "d"
    assert document.config.sow == parse(FILE).config.sow
    assert document.origin(("TransactionLog", "JournalSize")) == f"{tmp_path}/parts/log.xml:4"
    inner.write_text(inner.read_text().replace("20MB", "?"))
    with pytest.raises(ConfigurationError, match=r"parts/log.xml:4: JournalSize: expected a size"):
        load_amps(path, environment={})


def test_an_include_bomb_is_stopped_at_once(tmp_path: Path) -> None:
    """Files of which each includes the next one ten times."""
    for number in range(12):
        inside = f"<Include>{number + 1}.xml</Include>" * 10 if number < 11 else "<Group>A</Group>"
        (tmp_path / f"{number}.xml").write_text(inside)
    path = tmp_path / "f.xml"
    path.write_text(FILE.replace("<Group>A</Group>", "<Include>0.xml</Include>"))
    began_s = time.thread_time()
    with pytest.raises(ConfigurationError, match=r"more than 1,000 files are included") as caught:
        load_amps(path)
    assert time.thread_time() - began_s < 5 and len(str(caught.value).splitlines()) == 1


def test_files_that_are_too_large_together_are_read_no_further(tmp_path: Path) -> None:
    (tmp_path / "g.xml").write_text(f"<!-- {'x' * 1_000_000} -->")
    path = tmp_path / "f.xml"
    path.write_text(FILE.replace("<Group>A</Group>", "<Include>g.xml</Include>" * 900))
    began_s = time.thread_time()
    with pytest.raises(ConfigurationError, match=r"more than 5,000,000 bytes") as caught:
        load_amps(path)
    assert time.thread_time() - began_s < 5 and len(str(caught.value).splitlines()) == 1


def test_a_value_that_looks_like_a_variable_is_shown_so_that_it_loads_as_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "f.xml"
    path.write_text(FILE.replace("<Group>A</Group>", "<Group>${OUTER}</Group>"))
    document = load_amps(path, defines={"OUTER": "a${INNER}b"}, environment={})
    assert document.config.group == "a${INNER}b"
    again = tmp_path / "again.yaml"
    again.write_text(shown(document))
    assert load_amps(again, environment={"INNER": "wrong"}).config.group == "a${INNER}b"


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("<Include>f.xml</Include>", "goes in a circle: f.xml → f.xml"),
        ("<Include>g.xml</Include>", "goes in a circle: f.xml → g.xml → f.xml"),
        ("<Include>missing.xml</Include>", "missing.xml: No such file"),
        ("<Include></Include>", "the name of a file"),
        ("<Include comment='maybe'>g.xml</Include>", "comment='true'"),
    ],
)
def test_includes_that_are_wrong(tmp_path: Path, include: str, words: str) -> None:
    path = tmp_path / "f.xml"
    path.write_text(FILE.replace("<Group>A</Group>", include))
    (tmp_path / "g.xml").write_text("<Include>f.xml</Include>")
    with pytest.raises(ConfigurationError) as caught:
        load_amps(path, environment={})
    assert words in str(caught.value)


@pytest.mark.parametrize("files", [INCLUDE_DEPTH_MAX, INCLUDE_DEPTH_MAX + 1])
def test_files_are_nested_so_deeply_and_no_deeper(tmp_path: Path, files: int) -> None:
    """The first one counts."""
    names = [tmp_path / f"{number}.xml" for number in range(files)]
    for path, inner in pairwise(names):
        path.write_text(f"<Include>{inner.name}</Include>")
    names[-1].write_text("<Group>deep</Group>")
    names[0].write_text(FILE.replace("<Group>A</Group>", f"<Include>{names[1].name}</Include>"))
    if files == INCLUDE_DEPTH_MAX:
        assert load_amps(names[0], environment={}).config.group == "deep"
    else:
        with pytest.raises(ConfigurationError, match=f"deeper than {INCLUDE_DEPTH_MAX}"):
            load_amps(names[0], environment={})


@pytest.mark.covers("Configuration", "a file cannot exhaust memory")
def test_includes_that_double_are_bounded(tmp_path: Path) -> None:
    for number in range(12):
        include = f"<Include>{number + 1}.xml</Include>"
        (tmp_path / f"{number}.xml").write_text(include * 4)
    (tmp_path / "12.xml").write_text(f"<!--{'x' * 10_000}-->")
    with pytest.raises(ConfigurationError, match=f"more than {TOTAL_BYTES_MAX:,} bytes"):
        load_amps(tmp_path / "0.xml", environment={})


@pytest.mark.covers("Configuration", "a file cannot exhaust memory")
def test_size_and_depth_are_bounded(tmp_path: Path) -> None:
    large = tmp_path / "f.xml"
    large.write_bytes(b"<AMPSConfig>" + b" " * TOTAL_BYTES_MAX)
    with pytest.raises(ConfigurationError, match="bytes are read"):
        load_amps(large, environment={})
    deep = "<A>" * (DEPTH_MAX + 2)
    (error,) = errors_of(f"<AMPSConfig>{deep}")
    assert f"nested too deeply (more than {DEPTH_MAX})" in error
    (error,) = errors_of("AMPSConfig: " + "[" * 10_000)
    assert f"nested too deeply (more than {DEPTH_MAX})" in error
    large.write_bytes(b"<AMPSConfig>\xff")
    with pytest.raises(ConfigurationError, match="no UTF-8 text"):
        load_amps(large, environment={})


# -- the same in YAML --------------------------------------------------------------------------
YAML = """\
AMPSConfig:
  Name: A-1
  Transports:
    Transport:
      - {Name: clients, Type: tcp, InetAddr: 9007}
      - Name: amps-replication
        Type: amps-replication
        InetAddr: ${PORT}
  TransactionLog:
    JournalDirectory: journal
    O_DIRECT: on
    Topic: {Name: orders, MessageType: json}
"""


def test_a_bomb_of_aliases_is_stopped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of which each names the one before ten times."""
    monkeypatch.setattr(tree, "ELEMENTS_MAX", 1_000)
    lists = ["  A0: &a0 [x, x]"]
    lists += [f"  A{at}: &a{at} [{f'*a{at - 1}, ' * 10}]" for at in range(1, 5)]
    path = tmp_path / "f.yaml"
    path.write_text("\n".join(["AMPSConfig:", *lists]))
    with pytest.raises(ConfigurationError, match=r"more than 1,000 elements") as caught:
        load_amps(path, environment={})
    assert len(str(caught.value).splitlines()) == 1


def test_yaml_of_an_ampsconfig() -> None:
    config = load_amps("f.yaml", text=YAML, defines={"PORT": "10004"}).config
    assert isinstance(config, AmpsConfig)
    assert [transport.inet_address for transport in config.transports.transports] == [
        "9007",
        "10004",
    ]
    assert config.transaction_log is not None
    assert config.transaction_log.topics[0].name == "orders"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("9007", "x", 5, "port"),
        ("${PORT}", "x", 8, "port"),
        ("Type: amps-rep", "Typo: amps-rep", 7, "did you mean Type?"),
        ("O_DIRECT: on", "O_DIRECT: often", 11, "enabled or disabled"),
        ("  Name: A-1", "  Name: [", 4, "no YAML"),
    ],
)
def test_errors_in_yaml_name_the_line(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_amps("f.yaml", text=YAML.replace(old, new, 1), defines={"PORT": "10004"})
    found = [error for error in str(caught.value).splitlines() if f"f.yaml:{line}: " in error]
    assert any(words in error for error in found), caught.value


# -- anything at all ---------------------------------------------------------------------------
VALUES = ("", "0", "-1", "15s", "^(", "x" * 3000, "${A}", "a b", "10004", "[::]:5", "9" * 400, "٣s")


def damaged(rng: random.Random) -> str:
    """The file with a few values, elements or characters changed, added or lost."""
    text = FILE
    for _ in range(rng.randint(1, 3)):
        kind, place = rng.randrange(4), rng.randrange(len(text))
        starts = [match.start() for match in re.finditer("<", text)] or [0]
        values = list(re.finditer(">([^<>]*)<", text))
        if kind == 0 and values:
            match = rng.choice(values)
            text = text[: match.start(1)] + rng.choice(VALUES) + text[match.end(1) :]
        elif kind == 1:
            tag, start = rng.choice(sorted(places())), rng.choice(starts)
            text = f"{text[:start]}<{tag}>{rng.choice(VALUES)}</{tag}>{text[start:]}"
        elif kind == 2:
            text = text[:place] + rng.choice("<>&;/'\"\n:{}") + text[place:]
        else:
            text = text[:place] + text[place + rng.randrange(30) :]
    return text


@pytest.mark.covers("Configuration", "unknown, misplaced")
def test_a_damaged_file_loads_or_is_refused_with_lines() -> None:
    rng = random.Random(5)
    loaded = refused = 0
    for _ in range(200):
        text = damaged(rng)
        try:
            document = parse(text)
        except ConfigurationError as error:
            refused += 1
            assert all(re.match(r"f\.xml:\d+: ", line) for line in str(error).splitlines()), text
        else:
            loaded += 1
            again = load_amps("again.yaml", text=shown(document), environment={})
            assert again.config.model_dump() == document.config.model_dump()
    assert loaded
    assert refused
