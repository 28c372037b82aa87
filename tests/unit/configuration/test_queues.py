"""Queues of a fabric: as they are written, what an instance gets of them, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.config.compared_terms import queue_terms
from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings, descriptions_of
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, instance_config
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.membership.validation import QueueTerms as QueueTerms

ENTRY = "{name: work, message_type: json, underlying: orders}"
FILE = f"""fabric: f
topics: [{{name: "^orders", message_type: json}}, {{name: ticks, journaled: false}}]
regions: {{A: 2}}
queues:
  - {ENTRY}
"""
MINUTE_US = 60_000_000


def declared(entry: str) -> FabricSettings:
    return parse(FILE.replace(ENTRY, entry), "f.yaml")


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
def test_a_queue_with_everything() -> None:
    settings = declared(
        """
    name: work
    message_type: json
    kind: group_local
    underlying: ^orders/
    filter: /qty > 5
    publish_target: orders/new
    semantics: at-least-once
    lease: 30s
    backlog_max: 1000
    subscription_backlog_max: 10
    expiration: 1m
    expiration_model: earliest
    recovery_point: 2026-01-02T03:04:05Z
    fairness: fast
    leasing: strict
    deliveries_max: 3
    cancels_max: 2
    priority: /urgency
    file_backed: true
    deferred_ack: 2m
    initial_owner: A-1
    domain: trading
"""
    )
    (found,) = settings.queues_of(settings.instance("A-1"))
    assert found == QueueDefinition(
        "work",
        "json",
        kind="group_local",
        underlying="^orders/",
        filter="/qty > 5",
        publish_target="orders/new",
        lease_us=MINUTE_US // 2,
        backlog_max=1000,
        subscription_backlog_max=10,
        expiration_us=MINUTE_US,
        expiration_model="earliest",
        recovery_point="2026-01-02T03:04:05+00:00",
        fairness="fast",
        strict=True,
        deliveries_max=3,
        cancels_max=2,
        priority="/urgency",
        file_backed=True,
        deferred_ack_us=2 * MINUTE_US,
        initial_owner="A-1",
        domain="trading",
    )
    assert FabricSettings.from_json(settings.to_json()) == settings
    assert queue_terms(settings.queues_of(settings.instance("A-1"))) == (
        QueueTerms("work", "json", "group_local", "^orders/", "/qty > 5", "trading", "A-1"),
    )


def test_what_else_there_is() -> None:
    barrier, once = declared(
        "{name: b, message_type: json, underlying: orders, barrier: /end = 1}\n"
        "  - {name: d, message_type: json, underlying: orders, target_depth: 5000,"
        " semantics: at-most-once}"
    ).queues
    assert barrier.definition().barrier == "/end = 1"
    assert (once.definition().target_depth, once.definition().at_most_once) == (5000, True)


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
def test_what_is_not_given_is_as_documented() -> None:
    settings = parse(FILE)
    assert settings.queues[0].definition() == QueueDefinition("work", "json", underlying="orders")


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
def test_in_python_it_is_the_same() -> None:
    made = FabricBuilder(
        "f",
        topics=[
            {"name": "^orders", "message_type": "json"},
            {"name": "ticks", "journaled": False},
        ],
        queues=[{"name": "work", "message_type": "json", "underlying": "orders"}],
    ).region("A", 2)
    assert made.settings().queues == parse(FILE).queues


def config_of(settings: FabricSettings, name: str, tmp_path: Path) -> InstanceConfig:
    record = FabricRecord("f", str(tmp_path), settings.to_json(), key="k")
    bring_up_to_date(record, settings)
    return instance_config(settings, record, settings.instance(name))


def test_an_instance_runs_them_and_journals_what_is_said_of_their_messages(tmp_path: Path) -> None:
    settings = parse(FILE)
    config = config_of(settings, "A-1", tmp_path)
    assert config.queue_definitions == (QueueDefinition("work", "json", underlying="orders"),)
    assert queue_terms(config.queue_definitions) == (
        QueueTerms("work", "json", underlying="orders"),
    )
    assert config.topics == (TopicRule("^orders", "json"), TopicRule("work", "json"))
    assert InstanceConfig.from_json(config.to_json()) == config
    assert descriptions_of(settings)["A-1"].queues == queue_terms(config.queue_definitions)
    plain = config_of(parse(FILE.partition("queues:")[0]), "A-1", tmp_path)
    assert plain.topics == (TopicRule("^orders", "json"),)


def test_an_instance_may_have_its_own() -> None:
    own = "{name: other, message_type: json, underlying: orders/eu}"
    settings = parse(FILE + f"instances: {{A-2: {{queues: [{own}]}}}}\n")
    names = {each.name: [q.name for q in settings.queues_of(each)] for each in settings.instances}
    assert names == {"A-1": ["work"], "A-2": ["other"]}
    assert TopicRule("other", "json") in settings.journaled_of(settings.instance("A-2"))


@pytest.mark.covers("Queues", "`Queue`, `LocalQueue`")
@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{name: work}", "message_type: is missing"),
        ("{name: '^w', message_type: json}", "expected a name, got the expression '^w'"),
        ("{name: raylay/x, message_type: json}", "topics that begin with raylay/ are Raylay's own"),
        ("{name: work, message_type: json, lese: 5s}", "this key is unknown here: did you mean le"),
        ("{name: work, message_type: json, lease: 0s}", "more than 0"),
        ("{name: work, message_type: json, backlog_max: 0}", "more than 0, got 0"),
        ("{name: work, message_type: json, kind: shared}", "'queue', 'local' or 'group_local'"),
        ("{name: work, message_type: json, kind: group_local}", "its initial_owner is missing"),
        ("{name: work, message_type: json, recovery_point: soon}", "expected epoch, now, creation"),
        (
            "{name: work, message_type: json, underlying: orders, priority: /p, barrier: /b}",
            "it has a priority and a barrier: give one of them",
        ),
        (
            "{name: work, message_type: json, underlying: ^orders}",
            "say with publish_target where publishes to the queue go",
        ),
        (
            "{name: work, message_type: json, underlying: ^orders/, publish_target: trades}",
            "trades is not of the underlying topic ^orders/",
        ),
        (
            "{name: work, message_type: json, underlying: ^orders/, publish_target: ^orders/}",
            "^orders/ is an expression: name one topic",
        ),
        (
            "{name: work, message_type: json, underlying: ^orders/, publish_target: orders/x, "
            "dead_letters: orders/failed}",
            "dead letters would be in the queue again. Name a topic that it does not match",
        ),
        (
            "{name: work, message_type: json, underlying: orders, dead_letters: nowhere}",
            "takes nowhere of type json, and a dead letter that is in no journal is lost",
        ),
        (
            "{name: work, message_type: json, underlying: (, publish_target: x}",
            "queue work, underlying: '(' cannot be used",
        ),
        (
            "{name: work, message_type: json, underlying: orders, filter: /a =}",
            "queue work, filter: '/a =', column 5",
        ),
        (
            "{name: work, message_type: json, underlying: orders, priority: UNKNOWN(/a)}",
            "queue work, priority: 'UNKNOWN(/a)', column 1",
        ),
        (
            "{name: work, message_type: binary, underlying: orders, filter: /a = 1}",
            "cannot be read field by field",
        ),
        (
            "{name: work, message_type: json, underlying: trades}",
            "no journaled topic takes trades of type json, and what is in no journal is in no",
        ),
        ("{name: ticks, message_type: json}", "no journaled topic takes ticks of type json"),
        (
            "{name: work, message_type: json, underlying: ^trades, publish_target: trades}",
            "no journaled topic takes ^trades of type json",
        ),
        (f"{ENTRY}\n  - {ENTRY}", "queue work of type json is defined twice"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(entry: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declared(entry)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(("f.yaml:5: ", "f.yaml:6: ")) for line in lines), lines
    assert says in str(caught.value), caught.value


def test_a_queue_of_the_name_of_a_topic_with_state() -> None:
    with pytest.raises(
        ConfigurationError, match="there is a SOW topic of this name: give the queu"
    ):
        parse(FILE + "sow_topics: [{name: work, message_type: json, keys: [/id]}]\n")


@pytest.mark.covers("Queues", "a local queue is not replicated")
def test_a_local_queue_whose_underlying_topic_alone_is_replicated() -> None:
    text = FILE.replace("regions: {A: 2}", "instances: {A: {}, B: {}}").replace(
        ENTRY, "{name: work, message_type: json, kind: local, underlying: orders}"
    )
    link = "links: [{from: A, to: B, mode: sync, topics: [%s]}]\n"
    settings = parse(text + link % '"^orders"')
    assert settings.queues[0].kind == "local"
    for topics in ('".*"', '"^(work|orders)"', "work"):
        with pytest.raises(ConfigurationError, match="destination B of A takes topic work"):
            parse(text + link % topics)


def test_links_that_regions_make_leave_a_local_queue_out() -> None:
    local = "{name: work, message_type: json, kind: local, underlying: orders}"
    text = FILE.replace("regions: {A: 2}", "regions: {A: 2, B: 2}\nconnect_regions: async")
    settings = parse(text.replace(ENTRY, f"{local}\n  - {{name: own, {local[13:]}"))
    assert check_settings(settings).errors == 0
    taken = {topic.name for _, each in settings.links() for topic in each.topics}
    assert taken == {"^(?!(work|own)$)"}
    # Only where the instance has it.
    some = text.replace(ENTRY, ENTRY) + f"instances: {{A-1: {{queues: [{local}]}}}}\n"
    taken = {(one.name, topic.name) for one, each in parse(some).links() for topic in each.topics}
    assert ("A-1", "^(?!work$)") in taken and ("A-2", ".*") in taken


PAIR = """fabric: f
topics: [{{name: '.*', message_type: json}}]
instances: {{A: {{group: g}}, B: {{group: g}}}}
queues:
  - {{name: work, message_type: json, {queue}}}
links:
  - {{from: A, to: B, mode: sync, topics: {topics}, pass_through: '.*'}}
  - {{from: B, to: A, mode: sync, topics: {topics}, pass_through: '.*'}}
"""


@pytest.mark.parametrize(
    ("queue", "topics", "said"),
    [
        ("underlying: orders", "[work]", "takes topic work and not orders: add topic orders to"),
        ("underlying: orders", "[orders]", "takes topic orders and not work: add topic work to"),
        ("kind: group_local, initial_owner: A, underlying: orders", "[work]", "and not orders"),
        ("underlying: ^orders, publish_target: orders", "[work]", "takes topic work and not"),
    ],
)
def test_a_pair_that_replicates_a_queue_in_part_is_refused(
    queue: str, topics: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse(PAIR.format(queue=queue, topics=topics))
    right = PAIR.format(queue=queue, topics="[work, '^orders']")
    settings = parse(right.replace("{name: '.*', message_type: json}", "'^orders', work"))
    assert check_settings(settings).errors == 0


@pytest.mark.parametrize("topics", ["[orders]", "['^(?!work$)']"])
@pytest.mark.parametrize("log", ["{name: '.*', message_type: json}", "orders", "orders, work"])
def test_a_right_fabric_with_a_local_queue_has_no_error(topics: str, log: str) -> None:
    text = PAIR.format(queue="kind: local, underlying: orders", topics=topics)
    settings = parse(text.replace("{name: '.*', message_type: json}", log))
    left = [each for each in check_settings(settings).findings if each.severity == "error"]
    # Of everything that is journaled, a link that takes one topic leaves the rest behind.
    assert not left or (log.startswith("{") and topics == "[orders]")
    assert not [each for each in left if "topic work" in each.explanation + each.repair]


@pytest.mark.covers("Queues", "a group-local queue is of a group")
@pytest.mark.covers("Queues", "where a queue is replicated its PassThrough lets all on")
@pytest.mark.parametrize(
    ("owner", "domain", "without"),
    [
        ("A-1", "trading", []),
        ("A-1", "", [("B-1", "B-2")]),
        ("nobody-1", "trading", [("A-1", "B-1", "B-2")]),
        ("nobody-1", "", [("A-1",), ("B-1", "B-2")]),
    ],
)
def test_messages_that_begin_at_who_has_no_such_queue_are_warned_of(
    owner: str, domain: str, without: list[tuple[str, ...]]
) -> None:
    queue = "{name: q, message_type: json, underlying: orders, kind: group_local"
    queue += f", initial_owner: {owner}, domain: '{domain}'}}"
    text = f"fabric: f\nregions: {{A: 1, B: 2}}\ntopics: [orders]\nqueues: [{queue}]\n"
    found = [e for e in check_settings(parse(text)).findings if e.kind == "no_initial_owner"]
    assert [each.instances for each in found] == without
    assert all(each.severity == "warning" and owner in each.explanation for each in found)


@pytest.mark.covers("Queues", "an archive that takes the underlying topic alone needs")
@pytest.mark.parametrize("more", ["", ", kind: group_local, initial_owner: A-1, domain: d"])
def test_an_archive_takes_the_underlying_topic_and_has_no_queue(more: str, tmp_path: Path) -> None:
    """What a queue has to be is asked of nobody who has none."""
    text = FILE.replace("{A: 2}", "{A: 2, B: 2}\nconnect_regions: async")
    text = text.replace(ENTRY, ENTRY.replace("}", more + "}")) + (
        "instances: {archive: {queues: []}}\n"
        "links: [{from: A-1, to: archive, mode: async, topics: [orders], pass_through: '.*', %s}]\n"
    )
    settings = parse(text % "exclude_validation: [replicate, cascade]")
    assert [e for e in check_settings(settings).findings if e.severity == "error"] == []
    config = config_of(settings, "archive", tmp_path)
    assert config.queue_definitions == () and TopicRule("work", "json") not in config.topics
    # Nor where nothing is said of its link; who publishes there reaches nobody else.
    findings = check_settings(parse(text.replace(", %s", "")), ("A", "B")).findings
    assert [each for each in findings if each.severity == "error"] == []
    wider = text.replace("topics: [orders], pass", "topics: [orders, work], pass")
    findings = check_settings(parse(wider.replace(", %s", "")), ("A", "B")).findings
    assert "refused" in {each.kind for each in findings}


@pytest.mark.parametrize(
    ("letters", "is_circle"),
    [
        (("first/failed", "second/failed"), False),
        (("second", "second/failed"), False),
        (("second", "first"), True),
        (("second/failed", "first"), False),
    ],
)
def test_dead_letters_may_not_come_back_by_way_of_other_queues(
    letters: tuple[str, str], is_circle: bool
) -> None:
    queues = "".join(
        f"\n  - {{name: work-{topic}, message_type: json, underlying: {topic}, "
        f"dead_letters: {letter}}}"
        for topic, letter in zip(("first", "second"), letters, strict=True)
    )
    topics = "[first, second, first/failed, second/failed]"
    text = f"fabric: f\ntopics: {topics}\nregions: {{A: 1}}\nqueues:{queues}\n"
    if is_circle:
        with pytest.raises(ConfigurationError, match="for ever"):
            parse(text, "f.yaml")
    else:
        assert check_settings(parse(text, "f.yaml")).errors == 0
