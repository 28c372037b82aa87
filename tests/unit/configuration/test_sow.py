"""SOW topics of a fabric: as they are written, what an instance gets of them, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.config.compared_terms import sow_terms
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, changes, instance_config
from raylay.services.replication.membership.validation import SowTerms
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.state import SowRules

pytestmark = pytest.mark.covers("SOW", "`sow_topics` of a fabric and of an instance")

FILE = """fabric: f
topics: [{name: "^orders", message_type: json}, {name: ticks, journaled: false}]
regions: {A: 2}
sow_topics:
  - {name: orders, message_type: json, keys: [/id]}
"""
MINUTE_US = 60_000_000


def declared(entry: str) -> FabricSettings:
    return parse(FILE.replace("{name: orders, message_type: json, keys: [/id]}", entry), "f.yaml")


def test_a_topic_with_everything() -> None:
    settings = declared(
        """
    name: orders
    message_type: json
    keys: [/id, "/day"]
    key_domain: trading
    durability: transient
    recovery_point: 2026-01-02T03:04:05Z
    history: {window: 2m, granularity: 1s}
    hash_indexes: [/status, [/symbol, /side]]
    preprocessing: ["UPPER(/id) AS /id"]
    enrichment: ["/n - /n OF PREVIOUS AS /change HINT OPTIONAL"]
    conflict: last_writer
  - {name: all, message_type: json, pattern: "^orders/", keys: [/id], expiration: 1m}
  - {name: orders/eu, message_type: json, expiration: enabled}
"""
    )
    (first, pattern, given) = settings.sow_of(settings.instance("A-1"))
    assert first == SowTopicDefinition(
        "orders",
        "json",
        keys=("/id", "/day"),
        key_domain="trading",
        transient=True,
        recovery_point="2026-01-02T03:04:05+00:00",
        rules=SowRules(window_us=2 * MINUTE_US, granularity_us=1_000_000),
        hash_indexes=(("/status",), ("/symbol", "/side")),
        preprocessing=("UPPER(/id) AS /id",),
        enrichment=("/n - /n OF PREVIOUS AS /change HINT OPTIONAL",),
        last_writer=True,
    )
    assert pattern == SowTopicDefinition(
        "all", "json", "^orders/", ("/id",), rules=SowRules(expires=True, lifetime_us=MINUTE_US)
    )
    assert given == SowTopicDefinition("orders/eu", "json", rules=SowRules(expires=True))
    assert FabricSettings.from_json(settings.to_json()) == settings
    assert sow_terms(settings.sow_of(settings.instance("A-1")))[0] == SowTerms(
        "orders", "json", ("/id", "/day")
    )


def test_in_python_it_is_the_same() -> None:
    topic = {"name": "orders", "message_type": "json", "keys": ["/id"]}
    made = FabricBuilder(
        "f",
        topics=[
            {"name": "^orders", "message_type": "json"},
            {"name": "ticks", "journaled": False},
        ],
        sow_topics=[topic],
    ).region("A", 2)
    assert made.settings().sow_topics == parse(FILE).sow_topics


def test_an_instance_may_have_its_own() -> None:
    more = "instances: {A-2: {sow_topics: [{name: orders/eu, message_type: json}]}}\n"
    settings = parse(FILE + more)
    names = {
        each.name: [topic.name for topic in settings.sow_of(each)] for each in settings.instances
    }
    assert names == {"A-1": ["orders"], "A-2": ["orders/eu"]}
    none = parse(FILE + "instances: {A-2: {sow_topics: []}}\n")
    assert none.sow_of(none.instance("A-2")) == ()


@pytest.mark.covers("SOW", "what excludes one another")
@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{name: orders}", "message_type: is missing"),
        ("{name: '^o', message_type: json}", "expected a name, got the expression"),
        ("{name: raylay/x, message_type: json}", "topics that begin with raylay/ are Raylay's own"),
        (
            "{name: orders, message_type: json, key: [/id]}",
            "this key is unknown here: did you mean keys",
        ),
        (
            "{name: orders, message_type: json, expiration: 10}",
            "expected disabled, enabled, or a time such as 10s or 7d, got 10",
        ),
        ("{name: orders, message_type: json, expiration: 0s}", "nothing lives for no time"),
        (
            "{name: orders, message_type: json, expiration: 1s, history: {window: 1m}}",
            "a topic with History cannot have an Expiration",
        ),
        ("{name: orders, message_type: json, history: {}}", "window: is missing"),
        ("{name: orders, message_type: json, recovery_point: soon}", "expected epoch, now, or an"),
        ("{name: orders, message_type: json, keys: [/a], key_generator: g}", "give one of them"),
        ("{name: orders, message_type: json, key_domain: d}", "give both, or none"),
        (
            "{name: orders, message_type: json, pattern: '(', keys: [/id]}",
            "'(' cannot be used as a regular",
        ),
        ("{name: orders, message_type: json, durability: none}", "'persistent' or 'transient'"),
        ("{name: orders, message_type: json, conflict: first}", "'none' or 'last_writer'"),
        ("{name: orders, message_type: jsn}", "no message type is called 'jsn'"),
        ("{name: orders, message_type: json, keys: [id]}", "keys 1: 'id' names no field"),
        (
            "{name: orders, message_type: json, hash_indexes: [/a, [/b, c]]}",
            "hash_indexes 2: 'c' names no field",
        ),
        (
            "{name: orders, message_type: json, enrichment: [/a AS /b, /a + AS /b]}",
            "enrichment 2: '/a + AS /b', column 6: 'AS' alone means nothing",
        ),
        (
            "{name: orders, message_type: json, keys: [/a/b], enrichment: [1 AS /a]}",
            "enrichment 1: it sets the key field /a/b: do that in preprocessing",
        ),
        (
            "{name: orders, message_type: json, preprocessing: [/a OF PREVIOUS AS /b]}",
            "preprocessing 1: '/a OF PREVIOUS AS /b', column 1: preprocessing makes the key",
        ),
        (
            "{name: orders, message_type: json, key_generator: none}",
            "no key generator is called 'none'",
        ),
        (
            "{name: other, message_type: json, keys: [/id]}",
            "no journaled topic takes other of type json, and state is made from the journal",
        ),
        ("{name: ticks, message_type: json}", "no journaled topic takes ticks"),
        (
            "{name: all, message_type: json, pattern: ^trades, keys: [/id]}",
            "no journaled topic takes ^trades of type json",
        ),
        ("{name: orders, message_type: binary, keys: [/a]}", "cannot be read field by field"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(entry: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declared(entry)
    line = str(caught.value).splitlines()[0]
    assert line.startswith("f.yaml:5: ") and says in str(caught.value), caught.value


def test_a_problem_of_all_instances_is_told_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        declared("{name: other, message_type: json}\n  - {name: orders, message_type: jsn}")
    assert [line[:9] for line in str(caught.value).splitlines()] == [
        "f.yaml:5:",
        *["f.yaml:6:"] * 2,
    ]
    with pytest.raises(ConfigurationError, match="is defined twice"):
        declared("{name: orders, message_type: json}\n  - {name: orders, message_type: json}")


def test_an_instance_that_journals_less_needs_its_own() -> None:
    less = "instances: {A-2: {topics: [ticks]%s}}\n"
    with pytest.raises(ConfigurationError) as caught:
        parse(FILE + less % "", "f.yaml")
    assert str(caught.value) == (
        "f.yaml:5: SOW topic orders: no journaled topic of A-2 takes orders of type json, and "
        "state is made from the journal: add it to topics, or give A-2 sow_topics of its own"
    )
    settings = parse(FILE + less % ", sow_topics: []")
    assert [len(settings.sow_of(each)) for each in settings.instances] == [1, 0]


def test_the_line_within_a_topic() -> None:
    with pytest.raises(ConfigurationError, match=r"^f.yaml:9: SOW topic orders, enrichment 2: "):
        declared(
            "name: orders\n    message_type: json\n    enrichment:\n      - /a AS /b\n"
            "      - /a AS\n"
        )
    with pytest.raises(ConfigurationError, match=r"^f.yaml:8: SOW topic orders of A-2, keys 1: "):
        parse(
            FILE + "instances:\n  A-2:\n"
            "    sow_topics: [{name: orders, message_type: json, keys: [id]}]\n",
            "f.yaml",
        )


def test_binary_is_kept_by_the_keys_that_publishers_give() -> None:
    settings = parse(
        "fabric: f\nregions: {A: 2}\nsow_topics: [{name: blobs, message_type: binary}]\n"
    )
    assert settings.sow_of(settings.instances[0]) == (SowTopicDefinition("blobs", "binary"),)


@pytest.mark.parametrize(
    "entry",
    [
        "{name: orders, message_type: json, keys: [/id, /day]}",
        "{name: orders, message_type: json, keys: [/id], expiration: 1s}",
        "{name: orders, message_type: json, keys: [/id]}\n  - {name: orders/e, message_type: json}",
    ],
)
def test_other_topics_restart_the_instances(entry: str, tmp_path: Path) -> None:
    settings = parse(FILE)
    running = FabricRecord("f", str(tmp_path), settings.to_json(), key="k")
    bring_up_to_date(running, settings)
    config = instance_config(settings, running, settings.instance("A-1"))
    assert config.sow == settings.sow_of(settings.instance("A-1"))
    assert sow_terms(config.sow) == (SowTerms("orders", "json", ("/id",)),)
    wanted = FabricRecord("f", str(tmp_path), "", dict(running.ports), key="k")
    bring_up_to_date(wanted, declared(entry))
    assert changes(running, wanted).restarted == ("A-1", "A-2")
    bring_up_to_date(wanted, settings)
    assert changes(running, wanted).restarted == ()
