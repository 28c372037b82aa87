"""`views` of a fabric's file, and what of them is refused."""

from __future__ import annotations

import pytest

from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric import Fabric
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition

pytestmark = pytest.mark.covers("Views", "`views` of a fabric and of an instance")

FILE = """\
fabric: f
regions: {A: 2}
sow_topics: [{name: orders, message_type: json, keys: [/id]}]
views:
  - %s
"""
SUMS = (
    "{name: sums, message_type: json, topic: orders, grouping: [/a], projection: [SUM(/n) AS /n]}"
)


def test_a_view_is_declared_for_all_instances_or_for_one() -> None:
    settings = parse(FILE % SUMS + "instances: {A-2: {views: []}}\n")
    assert [len(settings.views_of(each)) for each in settings.instances] == [1, 0]
    assert settings.views_of(settings.instances[0]) == (
        ViewDefinition(
            "sums", "json", topic="orders", grouping=("/a",), projection=("SUM(/n) AS /n",)
        ),
    )


def test_a_fabric_in_python_takes_what_its_file_has() -> None:
    declared = parse(FILE % SUMS + SLOW % ("sums", ", interval: 1s"))
    made = Fabric(
        "f",
        sow_topics=[{"name": "orders", "message_type": "json", "keys": ["/id"]}],
        views=[dict(declared.views[0])],
        conflated_topics=[
            {"name": "slow", "message_type": "json", "topic": "sums", "interval": "1s"}
        ],
    )
    settings = made.region("A", instances=2).settings()
    assert settings.views == declared.views
    assert settings.conflated_topics == declared.conflated_topics


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (SUMS.replace("orders", "trades"), "there is no SOW topic, view or queue json/trades"),
        (SUMS.replace("SUM(/n)", "SUM(MAX(/n))"), "a view of a view"),
        (SUMS.replace("topic: orders", "topic: sums"), "json/sums, which view sums is over"),
        (
            SUMS.replace("topic: orders", "topic: other")
            + "\n  - "
            + SUMS.replace("name: sums", "name: other").replace("topic: orders", "topic: sums"),
            "json/other, which view sums is over: define it before the view",
        ),
        (
            SUMS.replace("topic: orders", 'joins: ["[orders]./a = [sums]./a"]'),
            "no topic with a state here",
        ),
        (SUMS.replace("SUM(/n)", "SUM(UNIX_TIMESTAMP())"), "UNIX_TIMESTAMP"),
        (SUMS.replace("[/a]", "[SUM(/a)]"), "a grouping is a field"),
        (SUMS.replace("topic: orders", "topic: orders, filter: SUM(/a) > 1"), "group of messages"),
        (SUMS.replace("topic: orders", "topic: orders, filter: UNIX_TIMESTAMP() > 1"), "each time"),
        (SUMS.replace("SUM(/n) AS /n", ""), "projection"),
        (SUMS.replace("topic: orders", "filter: /a"), "give the topic under it, or the joins"),
        (SUMS.replace("message_type: json", "message_type: binary"), "cannot have messages"),
        (SUMS.replace("name: sums", "name: orders"), "there is a SOW topic of this name"),
        (SUMS.replace("name: sums", "name: ^sums"), "expected a name"),
        (f"{SUMS}\n  - {SUMS}", "is defined twice"),
    ],
)
@pytest.mark.covers("Views and conflation, title by title", "which message")
def test_what_cannot_be_is_told_with_its_line(entry: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        parse(FILE % entry, "f.yaml")
    assert str(caught.value).startswith("f.yaml:")


def test_a_view_needs_the_topics_under_it_at_each_instance() -> None:
    with pytest.raises(ConfigurationError, match="define it before the view"):
        parse(FILE % SUMS + "instances: {A-2: {sow_topics: []}}\n")


WORK = "queues: [{name: work, message_type: json, underlying: orders}]\n"


def test_a_view_may_be_over_a_queue() -> None:
    made = SUMS.replace("topic: orders", "topic: work")
    settings = parse(FILE % made + WORK)
    assert settings.views_of(settings.instances[0])[0].topic == "work"
    with pytest.raises(ConfigurationError, match="SOW topic, view or queue json/work"):
        parse(FILE % made + WORK.replace("work", "other"))


SLOW = "conflated_topics: [{name: slow, message_type: json, topic: %s%s}]\n"


@pytest.mark.covers("Views and conflation, title by title", "a copy of a topic")
def test_a_conflated_topic_is_declared_over_topics_and_views() -> None:
    for under in ("orders", "sums"):
        settings = parse(FILE % SUMS + SLOW % (under, ", interval: 1s"))
        assert settings.conflated_of(settings.instances[1]) == (
            ConflatedTopicDefinition("slow", "json", under, 1_000_000),
        )


@pytest.mark.parametrize(
    ("under", "more", "words"),
    [
        ("trades", "", "there is no SOW topic or view json/trades"),
        ("orders", ", interval: 99ms", "interval"),
        ("orders", ", filter: /a >", "expected"),
        ("orders", ", enrichment: [/a OF PREVIOUS AS /b]", "knows no PREVIOUS message"),
        ("orders", ", enrichment: [UNIX_TIMESTAMP() AS /b]", "something else each time"),
        ("slow", "", "define it before"),
    ],
)
def test_a_conflated_topic_that_cannot_be_is_refused(under: str, more: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        parse(FILE % SUMS + SLOW % (under, more), "f.yaml")
    assert str(caught.value).startswith("f.yaml:")


def test_a_conflated_topic_has_a_name_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="there is a SOW topic or view of this name"):
        parse(FILE % SUMS + (SLOW % ("orders", "")).replace("name: slow", "name: sums"))
