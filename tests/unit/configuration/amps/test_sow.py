"""SOW topics of AMPSConfig files: what becomes of each element, what does not run or is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import Document, load_amps
from raylay.services.configuration.amps.support import NEEDS_NOTHING, RUNS, findings
from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

pytestmark = pytest.mark.covers("SOW", "`SOW/Topic` of AMPSConfig")

FILE = """\
<AMPSConfig>
  <Name>A-1</Name>
  <Group>A</Group>
  <Transports>
    <Transport><Name>c</Name><Type>tcp</Type><InetAddr>127.0.0.1:9007</InetAddr></Transport>
  </Transports>
  <TransactionLog>
    <JournalDirectory>journal</JournalDirectory>
    <Topic><Name>.*</Name><MessageType>json</MessageType></Topic>
  </TransactionLog>
  <SOW>
    <Topic>
      <Name>orders</Name>
      <MessageType>json</MessageType>
      <Durability>transient</Durability>
      <Key>/id</Key>
    </Topic>
  </SOW>
</AMPSConfig>
"""
KEY = "<Key>/id</Key>"
MINUTE_US = 60_000_000


def document(text: str) -> Document:
    return load_amps("f.xml", text=text, environment={})


def topics(text: str, **options: Any) -> tuple[SowTopicDefinition, ...]:
    settings = fabric_of([document(text)], **options)
    settings = FabricSettings.from_json(settings.to_json())
    return settings.sow_of(settings.instances[0])


RUNNING: list[tuple[str, str, str, str, Any]] = [
    # element, what is replaced, by what, the attribute, its value then
    ("Name", "<Name>orders", "<Name>trades", "name", "trades"),
    ("Name", "<Name>orders</Name>", "<Topic>trades</Topic>", "name", "trades"),
    ("MessageType", "</Name>\n      <MessageType>json", "</Name>\n      <MessageType>json",
     "message_type", "json"),
    ("Durability", "<Durability>transient</Durability>", "<FileName>./sow/%n.sow</FileName>",
     "transient", False),
    ("Durability", "<Durability>transient</Durability>", "<Duration>transient</Duration>",
     "transient", True),
    ("RecoveryPoint", KEY, KEY + "<RecoveryPoint>now</RecoveryPoint>", "recovery_point", "now"),
    ("RecoveryPoint", KEY, KEY + "<RecoveryPoint>20260102T030405.5Z</RecoveryPoint>",
     "recovery_point", "20260102T030405.5Z"),
    ("Expiration", KEY, KEY + "<Expiration>1m</Expiration>", "rules",
     SowRules(expires=True, lifetime_us=MINUTE_US)),
    ("Expiration", KEY, KEY + "<Expiration>enabled</Expiration>", "rules", SowRules(expires=True)),
    ("Expiration", KEY, KEY + "<Expiration>disabled</Expiration>", "rules", SowRules()),
    ("Key", KEY, KEY + "<Key>/day</Key>", "keys", ("/id", "/day")),
    ("KeyDomain", KEY, KEY + "<KeyDomain>all</KeyDomain>", "key_domain", "all"),
    ("HashIndex", KEY, KEY + "<HashIndex><Key>/a</Key><Key>/b</Key></HashIndex>"
     "<HashIndex><Key>/c</Key></HashIndex>", "hash_indexes", (("/a", "/b"), ("/c",))),
    ("History", KEY, KEY + "<History><Window>1m</Window><Granularity>1s</Granularity></History>",
     "rules", SowRules(window_us=MINUTE_US, granularity_us=1_000_000)),
    ("History", KEY, KEY + "<History><Window>1m</Window><Granularity>0s</Granularity></History>",
     "rules", SowRules(window_us=MINUTE_US)),
    ("Preprocessing", KEY, KEY + "<Preprocessing><Field>UPPER(/id) AS /id</Field></Preprocessing>",
     "preprocessing", ("UPPER(/id) AS /id",)),
    ("Enrichment", KEY, KEY + "<Enrichment><Field>/n OF PREVIOUS AS /m HINT OPTIONAL</Field>"
     "<Field>1 AS /b</Field></Enrichment>", "enrichment",
     ("/n OF PREVIOUS AS /m HINT OPTIONAL", "1 AS /b")),
    ("Pattern", KEY, KEY + "<Pattern>^orders/</Pattern>", "pattern", "^orders/"),
]  # fmt: skip
OWN_TESTS = {"KeyGenerator": "test_a_key_generator_is_an_entry_point"}


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
@pytest.mark.parametrize(("element", "old", "new", "path", "value"), RUNNING)
def test_an_element_that_runs(element: str, old: str, new: str, path: str, value: Any) -> None:
    assert old in FILE
    (changed,) = topics(FILE.replace(old, new, 1))
    assert getattr(changed, path) == value


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
def test_every_element_that_runs_has_a_case() -> None:
    runs = {each.removeprefix("SOW/Topic/") for each in RUNS if each.startswith("SOW/Topic/")}
    assert {case[0] for case in RUNNING} | set(OWN_TESTS) == runs


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
def test_the_older_name_of_the_stanza() -> None:
    text = FILE.replace("<Topic>\n      <Name>orders", "<TopicDefinition>\n      <Name>orders")
    text = text.replace(f"{KEY}\n    </Topic>", f"{KEY}\n    </TopicDefinition>")
    assert topics(text) == topics(FILE)


@pytest.fixture
def by_day(monkeypatch: pytest.MonkeyPatch) -> None:
    from raylay.services.plugins import key_generators

    class Entry:
        name, value = "by-day", "keys:by_day"

        def load(self) -> Any:
            return lambda options: lambda topic, message: b"k"

    monkeypatch.setattr(key_generators, "entry_points", lambda group: [Entry()])


GENERATED = FILE.replace(
    KEY,
    "<KeyGenerator><Module>by-day</Module><Options><Zone>UTC</Zone></Options></KeyGenerator>",
)
MODULES = (
    "<Modules><Module><Name>by-day</Name><Library>libday.so</Library></Module>"
    "<Module><Name>other</Name><Library>libother.so</Library></Module></Modules><SOW>"
)


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
def test_a_key_generator_is_an_entry_point(by_day: None) -> None:
    (topic,) = topics(GENERATED)
    assert (topic.key_generator, dict(topic.key_generator_options)) == ("by-day", {"Zone": "UTC"})
    found = findings(document(GENERATED.replace("<SOW>", MODULES)))
    assert [(each.text, each.refuses) for each in found] == [
        (
            "Module by-day needs nothing here: the installed key generator of its name is taken, "
            "not its Library",
            False,
        ),
        ("Module other does not run yet", True),
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (KEY, "<KeyGenerator><Module>none</Module></KeyGenerator>",
         "Topic orders of SOW does not run here: no key generator is called 'none'"),
        ("<Name>.*</Name><MessageType>json", "<Name>.*</Name><MessageType>fix",
         "Topic orders of SOW is not in the TransactionLog, and state is made from it: add it"),
        ("<Name>.*</Name>", "<Name>trades</Name>", "Topic orders of SOW is not in the Transaction"),
        (KEY, KEY + "<SlabSize>20MB</SlabSize>",
         "no message may have more than 16,711,680 bytes, whatever it is"),
    ],
)  # fmt: skip
def test_what_does_not_run_here_is_refused(old: str, new: str, words: str) -> None:
    changed = document(FILE.replace(old, new))
    (finding,) = [each for each in findings(changed) if each.refuses]
    assert words in finding.text
    assert finding.origin in ("f.xml:12", "f.xml:16"), "the Topic, or the element"
    with pytest.raises(ConfigurationError, match="--ignore-unsupported"):
        fabric_of([changed])
    left = topics(FILE.replace(old, new), ignore_unsupported=True)
    assert len(left) == ("SlabSize" in new)


def test_without_a_transaction_log_there_is_no_state() -> None:
    begin, rest = FILE.split("  <TransactionLog>")
    text = begin + rest.split("</TransactionLog>\n")[1]
    (finding,) = [each for each in findings(document(text)) if each.refuses]
    assert "Topic orders of SOW is not in the TransactionLog" in finding.text
    assert topics(text, ignore_unsupported=True) == ()


def test_a_type_that_does_not_run_takes_its_topics_with_it() -> None:
    defined = (
        "<MessageTypes><MessageType><Name>pb</Name><Module>protobuf</Module></MessageType>"
        "</MessageTypes><SOW>"
    )
    text = FILE.replace("<SOW>", defined).replace(
        "</Name>\n      <MessageType>json", "</Name>\n      <MessageType>pb"
    )
    text = text.replace(
        "<MessageType>json</MessageType></Topic>\n  </Tr",
        "<MessageType>pb</MessageType></Topic>\n  </Tr",
    )
    texts = [each.text for each in findings(document(text)) if each.refuses]
    assert texts[1] == "Topic orders of SOW has a message type that does not run"
    assert topics(text, ignore_unsupported=True) == ()


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
def test_what_needs_nothing_is_a_note() -> None:
    notes = (
        "<FileName>%n</FileName><InitialSlabCount>4</InitialSlabCount><Index>/a</Index>"
        "<ExpectedKeyCountHint>1000000</ExpectedKeyCountHint><SlabSize>10MB</SlabSize>"
    )
    found = findings(document(FILE.replace(KEY, KEY + notes)))
    assert [each.refuses for each in found] == [False] * 5
    assert {each for each in NEEDS_NOTHING if each.startswith("SOW/Topic/")} == {
        f"SOW/Topic/{name}"
        for name in ("FileName", "InitialSlabCount", "Index", "ExpectedKeyCountHint")
    }
    assert "a message may have 16,711,680 bytes" in found[-1].text or any(
        "16,711,680" in each.text for each in found
    )
    assert topics(FILE.replace(KEY, KEY + notes)) == topics(FILE)


@pytest.mark.covers("SOW", "`Name` (`Topic`)")
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (KEY, KEY + "\n<Key>id</Key>", 17, "topic orders: 'id' names no field"),
        (KEY, KEY + "\n<Enrichment><Field>1 AS /a</Field>\n<Field>/a AS b</Field></Enrichment>",
         18, "'/a AS b', column 7: expected the field that gets the value"),
        (KEY, KEY + "\n<HashIndex><Key>a</Key></HashIndex>", 17, "'a' names no field"),
        (KEY, KEY + "\n<RecoveryPoint>soon</RecoveryPoint>", 12, "expected epoch, now, or an"),
        (KEY, KEY + "\n<Pattern>(</Pattern>", 17, "'(' cannot be used as a regular expression"),
        ("<Name>orders", "<Name>^orders", 13, "expected a name, got the expression"),
        ("</Name>\n      <MessageType>json", "</Name>\n      <MessageType>jsn", 14,
         "topic orders: no message type is called 'jsn'"),
        (KEY, KEY + "\n<History><Window>0s</Window><Granularity>0s</Granularity></History>", 12,
         "window"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, line: int, words: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigurationError) as caught:
        document(FILE.replace(old, new, 1))
    assert f"f.xml:{line}: " in str(caught.value) and words in str(caught.value)


VIEW = """<View>
  <Name>sums</Name>
  <MessageType>json</MessageType>
  <UnderlyingTopic>orders</UnderlyingTopic>
  <Projection><Field>SUM(/n) AS /n</Field><Field>/id AS /id</Field></Projection>
  <Grouping><Field>/id</Field></Grouping>
  <Conflation>inline</Conflation>
  <Filter>/n > 1</Filter>
  <HashIndex><Key>/id</Key></HashIndex>
  <FileName>sums.view</FileName>
</View>
<View>
  <Name>joined</Name>
  <MessageType>json</MessageType>
  <UnderlyingTopic><Join>[orders]./id = [sums]./id</Join></UnderlyingTopic>
  <Projection><Field>[sums]./n AS /n</Field></Projection>
  <JoinNullEquivalency>true</JoinNullEquivalency>
</View>
</SOW>"""


@pytest.mark.covers("Views", "`SOW/View` of AMPSConfig")
@pytest.mark.covers("Views and conflation, title by title", "each element runs, `Topic`")
def test_views_are_translated() -> None:
    found = document(FILE.replace("</SOW>", VIEW))
    assert not [each for each in findings(found) if each.refuses]
    settings = fabric_of([found])
    sums, joined = settings.views_of(settings.instances[0])
    assert sums == ViewDefinition(
        "sums",
        "json",
        topic="orders",
        projection=("SUM(/n) AS /n", "/id AS /id"),
        grouping=("/id",),
        inline=True,
        filter="/n > 1",
        hash_indexes=(("/id",),),
    )
    assert joined == ViewDefinition(
        "joined",
        "json",
        joins=("[orders]./id = [sums]./id",),
        projection=("[sums]./n AS /n",),
        null_equals=True,
    )


@pytest.mark.covers("Views", "`SOW/View` of AMPSConfig")
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("SUM(/n) AS /n", "SUM(MAX(/n)) AS /n", "a view of a view"),
        ("[orders]./id = [sums]./id", "[orders]./id = [later]./id", "no topic with a state"),
        ("<Filter>/n > 1</Filter>", "<Filter>/n ></Filter>", "expected"),
        ("<Grouping><Field>/id", "<Grouping><Field>1 + /id", "a grouping is a field"),
        ("<Field>/id AS /id", "<Field>/id AS /n", "another field of the view"),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "each element runs, `Topic`")
def test_a_view_that_cannot_be_is_refused_with_its_line(old: str, new: str, words: str) -> None:
    assert old in VIEW
    with pytest.raises(ConfigurationError, match=words) as caught:
        document(FILE.replace("</SOW>", VIEW.replace(old, new, 1)))
    assert "f.xml:" in str(caught.value)


@pytest.mark.covers("Views", "`SOW/View` of AMPSConfig")
@pytest.mark.parametrize("kind", ["Queue", "LocalQueue"])
def test_a_view_may_be_over_a_queue(kind: str) -> None:
    queue = (
        f"<{kind}><Name>work</Name><MessageType>json</MessageType>"
        f"<UnderlyingTopic>orders</UnderlyingTopic></{kind}>"
    )
    over = VIEW.replace("<UnderlyingTopic>orders<", "<UnderlyingTopic>work<", 1)
    found = document(FILE.replace("</SOW>", queue + over))
    settings = fabric_of([found])
    assert settings.views_of(settings.instances[0])[0].topic == "work"
    with pytest.raises(ConfigurationError, match="SOW topic, view or queue json/work"):
        document(FILE.replace("</SOW>", over))


def test_a_view_over_a_topic_that_does_not_run_does_not_run() -> None:
    without = FILE.replace("</SOW>", VIEW).replace("<Name>orders</Name>", "<Name>x</Name>", 1)
    try:
        found = findings(document(without))
    except ConfigurationError as error:
        assert "orders" in str(error)
        return
    assert any(each.refuses for each in found)


CONFLATED = """<ConflatedTopic>
  <Name>slow</Name>
  <MessageType>json</MessageType>
  <UnderlyingTopic>orders</UnderlyingTopic>
  <Interval>2s</Interval>
  <Filter>/n > 1</Filter>
  <Enrichment><Field>/n + 1 AS /next</Field></Enrichment>
</ConflatedTopic>
</SOW>"""


@pytest.mark.covers("Views", "`SOW/ConflatedTopic` of AMPSConfig")
@pytest.mark.covers("Views and conflation, title by title", "each element runs or")
def test_conflated_topics_are_translated() -> None:
    found = document(FILE.replace("</SOW>", CONFLATED))
    assert not [each for each in findings(found) if each.refuses]
    settings = fabric_of([found])
    assert settings.conflated_of(settings.instances[0]) == (
        ConflatedTopicDefinition(
            "slow", "json", "orders", 2_000_000, "/n > 1", enrichment=("/n + 1 AS /next",)
        ),
    )


@pytest.mark.covers("Views", "`SOW/ConflatedTopic` of AMPSConfig")
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("/n > 1", "/n >", "expected"),
        (">orders<", ">trades<", "trades"),
        ("2s", "2ms", "100ms"),
        ("/n + 1 AS", "/n OF PREVIOUS AS", "knows no PREVIOUS message"),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "each element runs or")
def test_a_conflated_topic_that_cannot_be_is_refused(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        document(FILE.replace("</SOW>", CONFLATED.replace(old, new, 1)))
    assert "f.xml:" in str(caught.value)


@pytest.mark.covers("Views", "`SOW/ConflatedTopic` of AMPSConfig")
def test_a_conflated_topic_over_a_pattern_has_a_format() -> None:
    pattern = KEY + "<Pattern>^orders/</Pattern>"
    more = CONFLATED.replace("<Interval>", "<TopicFormat>slow/%n</TopicFormat>\n<Interval>")
    settings = fabric_of([document(FILE.replace(KEY, pattern).replace("</SOW>", more))])
    (made,) = settings.conflated_of(settings.instances[0])
    assert made.topic_format == "slow/%n" and made.pattern == "^slow/.+$"
    for text, words in (
        (FILE.replace("</SOW>", more), "has no pattern"),
        (FILE.replace(KEY, pattern).replace("</SOW>", CONFLATED), "give conflated topic slow a"),
        (FILE.replace("</SOW>", more.replace("slow/%n", "%n")), "needs %n once"),
    ):
        with pytest.raises(ConfigurationError, match=words) as caught:
            document(text)
        assert "f.xml:" in str(caught.value)


def test_what_show_prints_starts_the_same(tmp_path: Any) -> None:
    from raylay.services.configuration.amps.show import shown

    history = "<History><Window>1m</Window><Granularity>1s</Granularity></History>"
    text = FILE.replace(KEY, KEY + history)
    file = tmp_path / "f.yaml"
    file.write_text(shown(document(text)))
    settings = load_fabric([file])
    assert settings.sow_of(settings.instances[0]) == topics(text)
