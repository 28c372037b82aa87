"""Queues of AMPSConfig files: what they become, what is refused."""

from __future__ import annotations

import pytest
from unit.configuration.amps.test_fabric import FILE, GROUP, TOPIC, config_of, document
from unit.configuration.test_exclusions import failures

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.amps.fabric import fabric_of
from raylay.services.configuration.amps.load import slots
from raylay.services.configuration.amps.sow import SowStanza
from raylay.services.configuration.amps.support import NEEDS_NOTHING, RUNS, findings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition

EVERYTHING = """<Queue>
  <Name>work</Name><MessageType>json</MessageType><UnderlyingTopic>orders</UnderlyingTopic>
  <DefaultPublishTarget>orders</DefaultPublishTarget><LeasePeriod>30s</LeasePeriod>
  <Semantics>at-least-once</Semantics><MaxBacklog>1000</MaxBacklog>
  <MaxPerSubscriptionBacklog>10</MaxPerSubscriptionBacklog><Expiration>1m</Expiration>
  <ExpirationModel>latest</ExpirationModel><Filter>/a = 1</Filter>
  <RecoveryPoint>now</RecoveryPoint><FairnessModel>fast</FairnessModel><Leasing>strict</Leasing>
  <MaxDeliveries>3</MaxDeliveries><MaxCancels>2</MaxCancels><Priority>/p</Priority>
  <FileBackedMetadata>enabled</FileBackedMetadata>
  <DeferredAckExpiration>2m</DeferredAckExpiration></Queue>"""


def running(queues: str) -> InstanceConfig:
    text = FILE.replace(GROUP, GROUP + f"<SOW>{queues}</SOW>")
    return config_of(fabric_of([document(text)]), "A-1")


def queue(kind: str, name: str, more: str = "") -> str:
    return f"<{kind}><Name>{name}</Name><MessageType>json</MessageType>{more}</{kind}>"


OVER = "<UnderlyingTopic>orders</UnderlyingTopic>"


def test_every_element_comes_through() -> None:
    config = running(EVERYTHING)
    assert config.queue_definitions == (
        QueueDefinition(
            "work",
            "json",
            underlying="orders",
            filter="/a = 1",
            publish_target="orders",
            lease_us=30_000_000,
            backlog_max=1000,
            subscription_backlog_max=10,
            expiration_us=60_000_000,
            expiration_model="latest",
            recovery_point="now",
            fairness="fast",
            strict=True,
            deliveries_max=3,
            cancels_max=2,
            priority="/p",
            file_backed=True,
            deferred_ack_us=120_000_000,
        ),
    )
    assert TopicRule("work", "json") in config.topics


def test_the_three_kinds() -> None:
    config = running(
        queue("Queue", "a", OVER)
        + queue("LocalQueue", "b", OVER)
        + queue(
            "GroupLocalQueue",
            "c",
            OVER + "<InitialOwner>A-1</InitialOwner>"
            "<GroupLocalQueueDomain>d</GroupLocalQueueDomain>",
        )
    )
    assert [(q.name, q.kind, q.initial_owner, q.domain) for q in config.queue_definitions] == [
        ("a", "queue", "", ""),
        ("b", "local", "", ""),
        ("c", "group_local", "A-1", "d"),
    ]


def test_what_the_reference_gives_where_nothing_is_given() -> None:
    (found,) = running(queue("Queue", "a", OVER)).queue_definitions
    assert found == QueueDefinition("a", "json", underlying="orders")
    once = OVER + "<Semantics>at-most-once</Semantics>"
    (found,) = running(queue("Queue", "a", once)).queue_definitions
    assert found.at_most_once and found.fairness_model == "round-robin"


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        (queue("Queue", "a", OVER + "<Filter>/a =</Filter>"), "queue a: '/a =', column 5"),
        (queue("Queue", "a", OVER + "<Priority>NO(/a)</Priority>"), "queue a: 'NO(/a)', column 1"),
        (queue("Queue", "a", OVER + "<RecoveryPoint>soon</RecoveryPoint>"), "expected epoch, now"),
        (
            queue("Queue", "a", OVER + "<DefaultPublishTarget>x</DefaultPublishTarget>"),
            "x is not of the underlying topic orders",
        ),
    ],
)
def test_what_cannot_run_is_told_with_its_line(queues: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        document(FILE.replace(GROUP, GROUP + f"<SOW>{queues}</SOW>"))
    assert says in str(caught.value) and str(caught.value).startswith("f.xml:3: ")


@pytest.mark.covers("Queues", "a local queue that a Destination takes")
@pytest.mark.parametrize(("topic", "refused"), [("b", True), ("^b", True), ("^orders", False)])
def test_a_local_queue_is_not_replicated(topic: str, refused: bool) -> None:
    text = FILE.replace(GROUP, GROUP + f"<SOW>{queue('LocalQueue', 'b', OVER)}</SOW>")
    more = f"<Topic><Name>{topic}</Name><MessageType>json</MessageType></Topic>\n      <S"
    text = text.replace(f"{TOPIC}</Topic>\n      <S", f"{TOPIC}</Topic>{more}", 1)
    assert more in text
    if not refused:
        document(text)
        return
    how = r" \(as \^b would\)" if topic == "^b" else ""
    with pytest.raises(
        ConfigurationError, match=f"b is a LocalQueue: it cannot be replicated{how}"
    ):
        document(text)


def replicating(name: str, port: int, to: dict[str, tuple[int, str]], more: str = "") -> str:
    """The file of an instance, with destinations (port, topics) by the group that they lead to."""
    destination = (
        "<Destination><Name>{0}-1</Name><Group>{0}</Group>{2}<PassThrough>.*</PassThrough>"
        "<SyncType>async</SyncType><Transport><Type>amps-replication</Type>"
        "<InetAddr>127.0.0.1:{1}</InetAddr></Transport></Destination>"
    )
    links = "".join(destination.format(group, *how) for group, how in to.items())
    text = FILE.replace(">A-1<", f">{name}-1<").replace(GROUP, f"<Group>{name}</Group>{more}")
    text = text.replace(":10004", f":{port}").replace(":9007", f":{port + 1000}")
    before, _, rest = text.partition("<Replication>")
    text = f"{before}<Replication>{links}</Replication>{rest.partition('</Replication>')[2]}"
    return text if links else text.replace("<Replication></Replication>", "")


@pytest.mark.covers("Queues", "an archive that takes the underlying topic alone needs")
def test_an_archive_takes_the_underlying_topic_and_has_no_queue() -> None:
    topic = "<Topic><Name>{}</Name><MessageType>json</MessageType>{}</Topic>"
    away = "<ExcludeValidation>replicate,cascade</ExcludeValidation>"
    queues = f"<SOW>{queue('Queue', 'work', OVER)}</SOW>"
    both = topic.format("orders", away) + topic.format("work", away)
    archived = topic.format("orders", away)
    for kept, wrong in ((archived, set()), (both, {"queue", "txlog"})):
        files = [
            replicating("A", 10004, {"B": (10005, both), "C": (10006, kept)}, queues),
            replicating("B", 10005, {"A": (10004, both)}, queues),
            replicating("C", 10006, {}),
        ]
        made = fabric_of([document(text, f"{at}.xml") for at, text in enumerate(files)])
        assert {found.check for *_, found in failures(made)} == wrong
        found = {each.severity for each in check_settings(made, ("A",)).findings}
        assert ("error" in found) == bool(wrong)


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
def test_every_element_of_a_queue_runs_or_is_told_to_need_nothing() -> None:
    """`EVERYTHING` has all that go together, and start does not refuse it."""
    (note,) = findings(document(FILE.replace(GROUP, GROUP + f"<SOW>{EVERYTHING}</SOW>")))
    assert (note.refuses, note.text) == (
        False,
        "FileBackedMetadata needs nothing here: it is always kept in files",
    )
    kinds = {name: each for name, each in slots(SowStanza).items() if name.endswith("Queue")}
    assert len(kinds) == 3
    for name, kind in kinds.items():
        assert kind.stanza is not None
        # `Topic` is a synonym of `Name`.
        elements = {f"SOW/{name}/{tag}" for tag in slots(kind.stanza) if tag != "Topic"}
        assert elements <= RUNS | NEEDS_NOTHING.keys()
