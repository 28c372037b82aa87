"""Event topics in a configuration: the interval of counts, and SOW topics that keep events."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.api import Fabric
from raylay.services.config.compared_terms import sow_terms
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.messages.event_topics import CLIENT_STATUS, SOW_STATS

FILE = """\
fabric: f
instances: {A: {}}
topics: [orders]
"""
KEPT = "sow_topics: [{{name: {name}, message_type: json, keys: [/topic]{more}}}]\n"


def test_the_interval_in_python() -> None:
    fabric = Fabric("f", sow_stats_interval="5s")
    fabric.instance("A").instance("B", sow_stats_interval="1s").instance("C")
    settings = fabric.settings()
    found = [settings.sow_stats_interval_ms_of(each) for each in settings.instances]
    assert found == [5_000, 1_000, 5_000]
    settings = Fabric("f").instance("A").settings()
    assert settings.sow_stats_interval_ms_of(settings.instance("A")) == 0


@pytest.mark.parametrize("given", ["5", "1ms", "never"])
def test_an_interval_is_a_time_of_a_tenth_of_a_second_or_more(given: str) -> None:
    with pytest.raises(ConfigurationError, match="sow_stats_interval"):
        parse(f"{FILE}sow_stats_interval: {given}\n")
    with pytest.raises(ConfigurationError, match="sow_stats_interval"):
        Fabric("f").instance("A", sow_stats_interval=given)


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_a_sow_topic_keeps_events_whatever_is_journaled() -> None:
    settings = parse(FILE + KEPT.format(name=SOW_STATS, more=""))
    (kept,) = settings.sow_of(settings.instance("A"))
    assert kept.keys == ("/SOWStats/topic",)
    assert settings.journaled_of(settings.instance("A"))[0].name == "orders"
    assert sow_terms([kept]) == (), "each instance keeps its own: links do not compare them"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (KEPT.format(name="/AMPS/Else", more=""), "are events of the instance, of which SOW"),
        (KEPT.format(name=SOW_STATS, more=", pattern: a"), "pattern cannot be given for"),
        (KEPT.format(name=SOW_STATS, more=', preprocessing: ["1 AS /a"]'), "preprocessing cannot"),
        (KEPT.format(name=SOW_STATS, more=", conflict: last_writer"), "conflict cannot be given"),
        (KEPT.replace(", keys: [/topic]", "").format(name=CLIENT_STATUS, more=""), "/client_name"),
        (KEPT.replace("json", "binary").format(name=SOW_STATS, more=""), "binary"),
        (f"queues: [{{name: {SOW_STATS}, message_type: json}}]\n", "are events of the instance"),
        (f"queues: [{{name: q, message_type: json, underlying: {SOW_STATS}}}]\n", "no queue has"),
    ],
)
def test_what_cannot_be_said_of_event_topics(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse(FILE + text)


@pytest.mark.covers("Event topics", "SOW topics keep events: documented keys, restart")
def test_the_documented_configuration_runs(tmp_path: Path) -> None:
    from raylay.services.configuration.files import load_fabric

    path = tmp_path / "f.xml"
    kept = "".join(
        f"<Topic><Name>/AMPS/SOWStats</Name><FileName>./sow/stats.{kind}.sow</FileName>"
        f"<MessageType>{kind}</MessageType><Key>{key}</Key></Topic>"
        for kind, key in (("fix", "/20066"), ("json", "/topic"), ("xml", "/Topic"))
    )
    path.write_text(
        "<AMPSConfig><Name>A</Name><SOWStatsInterval>5s</SOWStatsInterval><Transports><Transport>"
        "<Name>any</Name><Type>tcp</Type><InetAddr>9007</InetAddr></Transport></Transports>"
        f"<SOW>{kept}</SOW></AMPSConfig>"
    )
    settings = load_fabric([path])
    instance = settings.instance("A")
    assert settings.sow_stats_interval_ms_of(instance) == 5_000
    found = [(each.message_type, each.keys) for each in settings.sow_of(instance)]
    assert found == [
        ("fix", ("/20066",)),
        ("json", ("/SOWStats/topic",)),
        ("xml", ("/SOWStats/Topic",)),
    ]
