"""The checks that a fabric's file leaves out by its shape: with them every link passes validation,
and without one of them some link does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as limited
from hypothesis import strategies as st
from support.amps_examples import completed
from unit.configuration.amps.test_fabric import regional_defines, regional_files

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.exclusions import exclusions
from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.model import FabricSettings
from raylay.services.configuration.queues import QueueSettings
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings
from raylay.services.fabric.plan import FabricRecord, InstancePorts, instance_config
from raylay.services.replication.membership.validation import ValidationFailure, check
from raylay.services.server.describe import describe

pytestmark = pytest.mark.covers("Replication", "what a declared fabric leaves out")


def record(settings: FabricSettings) -> FabricRecord:
    """Without asking the machine which ports are free."""
    ports = {
        instance.name: InstancePorts(20_000 + 2 * number, 20_001 + 2 * number, None)
        for number, instance in enumerate(settings.instances)
    }
    return FabricRecord(settings.name, "d", "", ports)


def failures(settings: FabricSettings) -> list[tuple[str, str, ValidationFailure]]:
    """What validation finds at every link, to each of its instances."""
    configs = {
        instance.name: instance_config(settings, record(settings), instance)
        for instance in settings.instances
    }
    found = []
    for instance, destination in settings.links():
        upstream = describe(configs[instance.name], destination.name)
        (terms,) = upstream.destinations
        for target in destination.to:
            for failure in check(terms, upstream, describe(configs[target])):
                found.append((instance.name, target, failure))
    return found


def left_out(settings: FabricSettings) -> dict[tuple[str, str], set[str]]:
    return {link: set(names) for link, names in exclusions(settings).items() if names}


def test_who_waits_for_whoever_connects_is_replicated_to_by_it() -> None:
    made = instances("In", "Out").destination("In", to=["Out"])
    settings = made.destination("Out", to=[], group="In", dial=False).settings()
    assert ("Out", "In") not in left_out(settings)


def instances(*names: str) -> FabricBuilder:
    builder = FabricBuilder("f")
    for name in names:
        builder.instance(name)
    return builder


SHARED = """fabric: f
topics: [orders, other]
instances: {A: {group: g}, B: {group: h%s}}
queues: [{name: work, message_type: json, underlying: orders}]
links:
  - {from: A, to: B, topics: %s}
"""


@pytest.mark.parametrize("topics", ["['.*']", "[work, orders]"])
def test_a_link_without_a_way_back_is_not_meant_so_of_a_queue_at_both_ends(topics: str) -> None:
    settings = parse(SHARED % ("", topics))
    (refused,) = failures(settings)
    assert (*refused[:2], refused[2].check, refused[2].topic) == ("A", "B", "replicate", "work")
    # Whoever says so himself, and who has no such queue, is not asked.
    said = topics + ", exclude_validation: [replicate, cascade]"
    assert not failures(parse(SHARED % ("", said)))
    archived = [each for each in failures(parse(SHARED % (", queues: []", topics)))]
    assert "replicate" not in [each[2].check for each in archived]


@pytest.mark.covers("Replication", "what a link takes of a queue")
def test_a_queue_of_which_nothing_comes_back_is_an_error_whatever_is_left_out() -> None:
    said = "['.*'], exclude_validation: [replicate, cascade]"
    checked = check_settings(parse(SHARED % ("", said)))
    (found,) = [each for each in checked.findings if each.kind == "one_way_queue"]
    assert found.severity == "error" and found.topic == "work"
    assert "consumers at B are given nothing" in found.explanation
    ring = SHARED.replace("B: {group: h%s}}", "B: {group: h%s}, C: {group: i}}") + (
        "  - {from: B, to: C, pass_through: '.*', exclude_validation: [replicate, cascade]}\n"
        "  - {from: C, to: A, pass_through: '.*', exclude_validation: [replicate, cascade]}\n"
    )
    checked = check_settings(parse(ring % ("", said)))
    assert not [each for each in checked.findings if each.kind == "one_way_queue"]


def test_one_server_that_replicates_back_is_enough() -> None:
    made = instances("A").instance("B", "g").instance("C", "g").destination("A", to=["B", "C"])
    one_way = made.settings()
    both_ways = made.destination("B", to="A").settings()
    found = [
        {name for link, names in left_out(each).items() if link[0] == "A" for name in names}
        for each in (one_way, both_ways)
    ]
    assert "replicate" in found[0] and "replicate" not in found[1]


def test_regions_that_replicate_back_leave_nothing_out() -> None:
    settings = FabricBuilder("f").region("C", 3).region("L", 2).connect_regions().settings()
    assert left_out(settings) == {} and failures(settings) == []


def test_a_link_without_a_way_back_and_what_leads_to_it() -> None:
    builder = FabricBuilder("f").region("C", 2).region("L", 2).connect_regions()
    settings = builder.instance("Audit").destination("C-1", "Audit").settings()
    assert left_out(settings) == {
        ("C-1", "Audit"): {"replicate", "cascade"},
        ("C-2", "C-1"): {"cascade"},
        ("C-1", "C-2"): {"cascade"},
        ("C-1", "L"): {"cascade"},
        ("C-2", "L"): {"cascade"},
        ("L-1", "C"): {"cascade"},
        ("L-2", "C"): {"cascade"},
        ("L-1", "L-2"): {"cascade"},
        ("L-2", "L-1"): {"cascade"},
    }
    assert failures(settings) == []


WORK = {"name": "work", "message_type": "json", "underlying": "orders"}


def with_a_queue(builder: FabricBuilder) -> FabricSettings:
    return builder.settings().model_copy(update={"queues": (QueueSettings.model_validate(WORK),)})


@pytest.mark.parametrize("regions", [(2, 2), (3, 1, 2)])
def test_a_queue_over_regions_that_each_send_on_what_is_theirs(regions: tuple[int, ...]) -> None:
    """As docs/queues.md shows it: nobody passes anything on between regions, and nobody has to."""
    builder = FabricBuilder("f")
    for number, instances in enumerate(regions):
        builder.region(f"R{number}", instances)
    made = builder.connect_regions()
    settings = with_a_queue(made)
    assert failures(settings) == []
    named = left_out(settings)
    between = {link for link, names in named.items() if "queue_passthrough" in names}
    assert between == {(i.name, d.name) for i, d in settings.links() if d.group != i.group}
    # It is left out for queues alone.
    assert left_out(made.settings()) == {}


@pytest.mark.covers("Queues", "an archive that takes the underlying topic alone needs")
def test_an_archive_of_what_a_queue_is_of_keeps_no_link_from_being_one() -> None:
    """It takes the underlying topic alone, and passes nothing on."""
    builder = FabricBuilder("f").region("C", 2).region("L", 2).connect_regions()
    builder.instance("Archive", queues=[])
    builder.destination("C-1", "Archive", sync=False, topics=["orders"])
    assert failures(with_a_queue(builder)) == []
    builder.destination("C-2", "Archive", sync=False)
    wrong = {found.check for *_, found in failures(with_a_queue(builder))}
    assert "queue" in wrong, "it takes what is said of the queue's messages, too"


def test_a_queue_that_some_of_a_region_do_not_send_to_all_is_refused() -> None:
    builder = FabricBuilder("f").region("C", 2).region("L", 1).region("N", 1)
    builder.destination("C-1", "L-1", pass_through="^C$", own_group_only=True)
    builder.destination("C-2", "N-1", pass_through="^C$", own_group_only=True)
    for one, other in (("L-1", "C-1"), ("L-1", "N-1"), ("N-1", "C-2"), ("N-1", "L-1")):
        group = f"^{one[0]}$"
        builder.destination(one, other, pass_through=group, own_group_only=True)
    wrong = {found.check for *_, found in failures(with_a_queue(builder))}
    assert "queue_passthrough" in wrong


def test_what_is_said_counts() -> None:
    builder = instances("A", "B").destination("A", "B", exclude_validation=())
    settings = builder.settings()
    assert left_out(settings) == {}
    assert [(*pair, found.check) for *pair, found in failures(settings)] == [
        ("A", "B", "replicate")
    ]
    explicit = {"name": ".*", "include_validation": ["txlog"]}
    builder = instances("A", "B").destination("A", "B", topics=[explicit])
    assert [found.check for *_, found in failures(builder.settings())] == []
    explicit = {"name": ".*", "exclude_validation": ["cascade"]}
    builder = instances("A", "B").destination("A", "B", topics=[explicit])
    assert [found.check for *_, found in failures(builder.settings())] == ["replicate"]


def test_none_of_them_is_left_out_for_nothing() -> None:
    builder = instances("A", "B", "C").destination("B", "A").destination("B", "C")
    settings = builder.destination("A", "B", exclude_validation=()).settings()
    assert [(*pair, found.check) for *pair, found in failures(settings)] == [("A", "B", "cascade")]


def test_a_topic_that_comes_back_in_part_is_a_mistake() -> None:
    builder = instances("A", "B").destination("A", "B")
    settings = builder.destination("B", "A", topics=["orders"]).settings()
    assert [(*pair, found.check) for *pair, found in failures(settings)] == [
        ("A", "B", "replicate")
    ]


def test_another_fabrics_instances_are_not_seen() -> None:
    """Whether they replicate back is said by another file: nothing is left out."""
    builder = instances("A").destination("A", "there:9", group="g")
    assert left_out(builder.settings()) == {}


def test_the_file_says_the_same() -> None:
    text = """\
fabric: f
instances: {A: , B: , C: }
links:
  - {from: A, to: B, exclude_validation: [sow, replicate]}
  - {from: B, to: C, topics: [{name: orders, exclude_validation: []}]}
"""
    assert left_out(parse(text)) == {
        ("A", "B"): {"sow", "replicate"},
        ("B", "C"): {"replicate", "cascade"},
    }


@pytest.mark.parametrize(
    ("links", "text"),
    [
        ("{from: A, to: A2, exclude_validation: [queue]}", "4: .*queue cannot be excluded"),
        ("{from: A, to: A2, exclude_validation: [all]}", "4: .*no check is called 'all'"),
        (
            "{from: A, to: A2, topics: [{name: o, include_validation: [x]}]}",
            "4: .*no check is called 'x'",
        ),
    ],
)
def test_wrong_words_are_errors_with_their_line(links: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        parse(f"fabric: f\ninstances: {{A: , A2: }}\nlinks:\n  - {links}\n")


def test_checks_belong_to_destinations() -> None:
    topic = {"name": "orders", "exclude_validation": ["sow"]}
    with pytest.raises(ConfigurationError, match="belong to the topics of a destination"):
        FabricBuilder("f", topics=[topic]).instance("A").settings()


@limited(deadline=None)
@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14),
    st.dictionaries(st.integers(0, 5), st.sampled_from([(), ("sow",)]), max_size=1),
)
def test_in_any_fabric_of_whole_topics_every_link_passes(
    links: set[tuple[int, int]], said: dict[int, tuple[str, ...]]
) -> None:
    names = [f"i{number}" for number in range(6)]
    builder = instances(*names)
    ways = {(a, b) for a, b in links if a != b}
    for a, b in sorted(ways):
        # Only where there is a way back may a link be held to all checks.
        told = {}
        if (b, a) in ways and a in said:
            told = {"exclude_validation": ("replicate", "cascade", *said[a])}
        builder.destination(names[a], names[b], **told)
    assert failures(builder.settings()) == []


def test_settings_survive_their_file() -> None:
    settings = instances("A", "B").destination("A", "B").settings()
    again = FabricSettings.from_json(settings.to_json())
    assert exclusions(again) == exclusions(settings)


def test_the_published_fabrics_pass_the_documented_defaults(tmp_path: Path) -> None:
    """In the published XML every check is made that no Topic excludes."""
    pair = []
    for name, clients in (("hot-hot-amps-1", "9007"), ("hot-hot-amps-2", "9008")):
        pair.append(tmp_path / f"{name}.xml")
        pair[-1].write_text(completed(name, f"127.0.0.1:{clients}"))
    fabrics = (
        load_fabric(pair, name="pair"),
        load_fabric(regional_files(), defines=regional_defines(), name="regions"),
    )
    for settings in fabrics:
        assert left_out(settings) == {} and failures(settings) == []


def test_in_the_published_pair_a_topic_left_out_is_found(tmp_path: Path) -> None:
    pair = []
    for name, clients in (("hot-hot-amps-1", "9007"), ("hot-hot-amps-2", "9008")):
        pair.append(tmp_path / f"{name}.xml")
        pair[-1].write_text(completed(name, f"127.0.0.1:{clients}"))
    text = pair[1].read_text()
    assert text.count("<Name>topic</Name>") == 2
    pair[1].write_text(text.replace("<Name>topic</Name>", "<Name>^/rep_topic</Name>", 1))
    found = failures(load_fabric(pair, name="pair"))
    assert [(*link, failure.check, failure.topic) for *link, failure in found] == [
        ("amps-1", "amps-2", "replicate", "topic"),
        ("amps-2", "amps-1", "replicate", "^/rep_topic"),
    ]
