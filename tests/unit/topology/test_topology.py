"""`raylay fabric check` on the published table (seed: "Geographic Replication with HA
Destinations"): clean as it is; with a mistake planted in it, the finding that names the mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from raylay.services.commands.fabric import fabric_app
from raylay.services.configuration.files import load_fabric
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings, members_of
from raylay.services.fabric.plan import instance_config, record_of
from raylay.services.topology.check import CheckResult, TopologyFinding

pytestmark = [
    pytest.mark.covers("Topology check", "the published table passes clean"),
    pytest.mark.covers("Topology check", "ports, names and groups that clash"),
]

GROUPS = ("Chicago", "NewYork", "London")
REGIONAL = Path(__file__).parents[2] / "fixtures" / "amps" / "regional"
Table = dict[str, Any]


def table(*, own_group_only: bool = True) -> Table:
    """The table, row by row. `own_group_only`: as `connect_regions` declares it."""
    links = []
    for group in GROUPS:
        for number in (1, 2):
            name, mate = f"{group}-{number}", f"{group}-{3 - number}"
            links.append({"from": name, "to": mate, "mode": "sync", "pass_through": ".*"})
            links += [
                {
                    "from": name,
                    "to": [f"{other}-1", f"{other}-2"],
                    "name": other,
                    "mode": "async",
                    "pass_through": group,
                    "own_group_only": own_group_only,
                }
                for other in GROUPS
                if other != group
            ]
    regions = {group: {"instances": 2, "links": "none"} for group in GROUPS}
    return {"fabric": "published", "regions": regions, "links": links, "instances": {}}


def row(broken: Table, source: str, name: str) -> dict[str, Any]:
    """A row of the table: by its destination's name, or the instance it goes to."""
    return next(
        link
        for link in broken["links"]
        if link["from"] == source and name in (link.get("name"), link["to"])
    )


def checked(broken: Table) -> CheckResult:
    return check_settings(parse(yaml.safe_dump(broken, sort_keys=False)))


def one(findings: list[TopologyFinding], kind: str) -> TopologyFinding:
    found = [finding for finding in findings if finding.kind == kind]
    assert len(found) == 1, findings
    return found[0]


@pytest.mark.covers("The replication chapters", "every path is traced by the software")
@pytest.mark.covers("The replication chapters", "the table, column for column")
def test_the_published_table_passes_clean() -> None:
    result = checked(table())
    assert result.findings == []
    for survey in result.surveys:
        assert all(flow.certain == 0b111111 for flow in survey.nominal.values())
        # Only the mates' copies beside the first: each message crosses once to each region.
        assert max(len(s) for p in survey.publishers for s in survey.all_senders(p).values()) == 2


def test_with_pass_through_alone_it_is_noted_what_comes_late() -> None:
    """No warning: everything arrives, but a part of it goes round (docs/deviations.md)."""
    result = checked(table(own_group_only=False))
    finding = one(result.findings, "late_arrivals")
    assert result.findings == [finding]
    assert finding.severity == "note" and (result.errors, result.warnings, result.notes) == (
        0,
        0,
        1,
    )
    assert finding.repair.startswith("set own_group_only on the destinations to other groups of ")


def test_the_amps_files_of_the_published_table_give_the_same_answer() -> None:
    names = [f"{group}-{number}" for group in GROUPS for number in (1, 2)]
    defines = {}
    for port, name in enumerate(names, 9_100):
        prefix = name.upper().replace("-", "_")
        defines |= {
            f"{prefix}_HOST": "127.0.0.1",
            f"{prefix}_PORT": str(port),
            f"{prefix}_CLIENT_PORT": str(port + 100),
        }
    files = [REGIONAL / f"{name}.xml" for name in names]
    result = check_settings(load_fabric(files, defines=defines, ignore_unsupported=True))
    assert {finding.kind for finding in result.findings} <= {"late_arrivals"}
    assert result.errors == result.warnings == 0
    assert [member.name for member in result.members] == names


@pytest.mark.covers("The replication chapters", "wide IP: several servers behind one address")
def test_an_address_of_which_nobody_says_who_answers_is_noted(tmp_path: Path) -> None:
    """Wide IP: the journal is freed by less where one instance answers there."""
    found = {}
    for said in (None, True, False):
        wide = table()
        for name in ("Chicago-1", "Chicago-2"):
            link = {"from": name, "to": "paris:9005", "name": "Paris", "group": "Paris"}
            wide["links"].append(link | ({} if said is None else {"wide_ip": said}))
        settings = parse(yaml.safe_dump(wide, sort_keys=False))
        found[said] = [f for f in check_settings(settings).findings if f.kind == "wide_ip"]
        config = instance_config(
            settings, record_of(settings, tmp_path), settings.instance("Chicago-1")
        )
        destinations = {each.name: each.destination() for each in config.destinations}
        assert destinations["Paris"].has_several_servers == (said is not False)
        assert not destinations["Chicago-2"].has_several_servers
    assert not found[True] and not found[False]
    assert [(f.severity, f.instances) for f in found[None]] == [
        ("note", ("Chicago-1",)),
        ("note", ("Chicago-2",)),
    ]
    assert found[None][0].repair.startswith("write wide_ip at destination Paris of Chicago-1")


def missing_link(broken: Table) -> None:
    broken["links"].remove(row(broken, "Chicago-1", "Chicago-2"))


def async_inside(broken: Table) -> None:
    row(broken, "NewYork-2", "NewYork-1")["mode"] = "async"


def nothing_passed_inside(broken: Table) -> None:
    del row(broken, "London-1", "London-2")["pass_through"]


def forgotten_region_inside(broken: Table) -> None:
    row(broken, "London-1", "London-2")["pass_through"] = "^(London|Chicago)$"


def one_server_instead_of_a_list(broken: Table) -> None:
    for source in ("Chicago-1", "Chicago-2"):
        row(broken, source, "NewYork")["to"] = ["NewYork-1"]


def nothing_passed_across(broken: Table) -> None:
    for source in ("Chicago-1", "Chicago-2"):
        del row(broken, source, "NewYork")["pass_through"]


def misspelled_group(broken: Table) -> None:
    row(broken, "Chicago-1", "NewYork")["pass_through"] = "Chcago"


def narrowed_topics(broken: Table) -> None:
    for source in ("Chicago-1", "Chicago-2"):
        row(broken, source, "London")["topics"] = ["orders"]


def different_member(broken: Table) -> None:
    row(broken, "NewYork-2", "London")["own_group_only"] = False
    row(broken, "NewYork-2", "London")["pass_through"] = ".*"


def server_claimed_twice(broken: Table) -> None:
    extra = {"from": "London-2", "to": ["Chicago-1"], "name": "extra", "pass_through": "London"}
    broken["links"].append({**extra, "own_group_only": True})


def receives_only(broken: Table) -> None:
    broken["links"] = [link for link in broken["links"] if link["from"] != "London-2"]


def mate_is_the_second_server(broken: Table) -> None:
    broken["links"].remove(row(broken, "NewYork-2", "NewYork-1"))


Expected = tuple[str, str, tuple[str, ...], str]
BROKEN: list[tuple[Callable[[Table], None], Expected]] = [
    (
        missing_link,
        (
            "error",
            "unreachable",
            ("Chicago-2",),
            "give Chicago-1 a destination to Chicago-2, sync, PassThrough '.*'",
        ),
    ),
    (
        async_inside,
        (
            "error",
            "unsafe_failover",
            ("NewYork-2", "NewYork-1"),
            "make destination NewYork-1 of NewYork-2 sync",
        ),
    ),
    (
        nothing_passed_inside,
        (
            "error",
            "unreachable",
            ("London-2",),
            "write PassThrough '.*' at destination London-2 of London-1",
        ),
    ),
    (
        forgotten_region_inside,
        (
            "error",
            "unreachable",
            ("London-2",),
            "write PassThrough '.*' at destination London-2 of London-1",
        ),
    ),
    (
        one_server_instead_of_a_list,
        (
            "warning",
            "instance_down",
            ("NewYork-1",),
            "add NewYork-2 to the servers of destination NewYork of Chicago-1",
        ),
    ),
    (
        nothing_passed_across,
        (
            "warning",
            "stranded",
            ("Chicago-1", "Chicago-2"),
            "write PassThrough '^Chicago$' at destination NewYork of Chicago-2",
        ),
    ),
    (
        misspelled_group,
        (
            "warning",
            "pass_through",
            ("Chicago-1",),
            "write PassThrough 'Chicago' at destination NewYork of Chicago-1",
        ),
    ),
    (
        narrowed_topics,
        (
            "error",
            "unreachable",
            ("London-1", "London-2"),
            "add topic .* to destination London of Chicago-1",
        ),
    ),
    (
        different_member,
        ("warning", "group_differs", ("NewYork-2",), "configure NewYork-2 as NewYork-1"),
    ),
    (
        server_claimed_twice,
        (
            "warning",
            "overlap",
            ("London-2", "Chicago-1"),
            "remove Chicago-1 from destination Chicago of London-2, or join the two",
        ),
    ),
    (
        receives_only,
        (
            "warning",
            "no_sync_destination",
            ("London-2",),
            "give London-2 a sync destination to London-1",
        ),
    ),
    (
        mate_is_the_second_server,
        (
            "error",
            "list_position",
            ("NewYork-1",),
            "give NewYork-2 a destination to NewYork-1, sync, PassThrough '.*'",
        ),
    ),
]


@pytest.mark.covers("Topology check", "a group's failover pairs are joined by sync links")
@pytest.mark.covers("The replication chapters", "who takes publishes has a sync destination")
@pytest.mark.covers("The replication chapters", "a group is one of equals")
@pytest.mark.covers("The replication chapters", "who may fail over between instances needs")
@pytest.mark.covers("The replication chapters", "every path is traced by the software")
@pytest.mark.parametrize(("plant", "expected"), BROKEN, ids=[plant.__name__ for plant, _ in BROKEN])
def test_a_planted_mistake_is_named(plant: Callable[[Table], None], expected: Expected) -> None:
    broken = table()
    plant(broken)
    findings = checked(broken).findings
    assert expected in [(f.severity, f.kind, f.instances, f.repair) for f in findings], findings


@pytest.mark.covers("The replication chapters", "unique names, in one set of files and among")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"instances": {"Chicago-1": {"client_port": 9001}, "London-1": {"client_port": 9001}}},
            "client_port 9001 on 127.0.0.1 is taken by client_port of Chicago-1",
        ),
        (
            {"instances": {"chicago-1": {"group": "Chicago"}}},
            "differs from another one only by case",
        ),
        (
            {"links": [{"from": "Chicago-1", "to": ["NewYork-1", "London-1"]}]},
            "London-1 is in group London, expected NewYork",
        ),
    ],
    ids=["ports", "names", "groups"],
)
def test_ports_names_and_groups_that_clash(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    broken = table() | change
    with pytest.raises(ConfigurationError, match=words):
        checked(broken)
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump(broken, sort_keys=False))
    done = CliRunner().invoke(fabric_app, ["check", str(path), "--json"])
    assert done.exit_code == 1
    findings = json.loads(done.stdout)["findings"]
    assert {f["kind"] for f in findings} == {"clash"}
    assert any(words in f["explanation"] for f in findings)


@pytest.mark.parametrize(
    ("sources", "circle"),
    [
        ({"A-1": ["A-2"]}, ()),
        ({"A-1": ["A-2"], "A-2": ["A-1"]}, ("A-1", "A-2")),
        ({"A-1": ["A-2", "A-3"], "A-2": ["A-1"]}, ()),
        ({"A-1": ["A-2", "A-3"], "A-2": ["A-1"], "A-3": ["A-1"]}, ("A-1", "A-2", "A-3")),
        ({"A-1": ["127.0.0.1:9100"], "A-2": ["A-1"]}, ("A-1", "A-2")),
        ({"A-1": ["elsewhere:9100"], "A-2": ["A-1"]}, ()),
    ],
    ids=["none", "two", "way_out", "three", "by_address", "another_fabric"],
)
def test_instances_that_copy_from_each_other(
    sources: dict[str, list[str]], circle: tuple[str, ...]
) -> None:
    values: dict[str, Any] = {"fabric": "f", "regions": {"A": 3}, "instances": {}}
    for name, froms in sources.items():
        values["instances"][name] = {"bootstrap": {"sources": froms}}
    values["instances"].setdefault("A-2", {})["replication_port"] = 9100
    found = [each for each in checked(values).findings if each.kind == "bootstrap_circle"]
    assert [each.instances for each in found] == ([circle] if circle else [])


def test_what_does_not_run_yet_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "f.xml"
    path.write_text(
        "<AMPSConfig><Name>A</Name><Admin/><Transports>"
        "<Transport><Name>t</Name><Type>tcp</Type><InetAddr>9007</InetAddr><Protocol>amps"
        "</Protocol></Transport></Transports></AMPSConfig>"
    )

    def notes(*options: str) -> list[str]:
        done = CliRunner().invoke(fabric_app, ["check", str(path), "--json", *options])
        return [
            finding["explanation"]
            for finding in json.loads(done.stdout)["findings"]
            if finding["kind"] == "not_running"
        ]

    (note,) = notes()
    assert note.startswith(f"{path}:1: Admin")
    assert not notes("--ignore-unsupported")


def test_the_command(tmp_path: Path) -> None:
    good, noted, warned, bad = (
        tmp_path / f"{name}.yaml" for name in ("good", "noted", "warned", "bad")
    )
    alone = {"fabric": "alone", "regions": {"one": {"instances": 1}}}
    broken = table()
    missing_link(broken)
    for path, values in (
        (good, table()),
        (noted, table(own_group_only=False)),
        (warned, alone),
        (bad, broken),
    ):
        path.write_text(yaml.safe_dump(values, sort_keys=False))

    def run(*arguments: str | Path) -> tuple[int, str]:
        done = CliRunner().invoke(fabric_app, ["check", *map(str, arguments)])
        return done.exit_code, done.stdout

    assert run(good, "--strict")[0] == 0
    assert run(good)[1].endswith("0 errors, 0 warnings, 0 notes\n")
    assert run(noted, "--strict")[0] == 0
    assert run(noted)[1].endswith("0 errors, 0 warnings, 1 notes\n")
    assert run(warned)[0] == 0
    assert run(warned, "--strict")[0] == 1
    code, text = run(bad)
    assert code == 1
    assert "error unreachable: messages published at Chicago-1, " in text
    assert "    repair: give Chicago-1 a destination to Chicago-2, sync" in text
    code, text = run(bad, "--json", "--routes")
    data = json.loads(text)
    assert code == 1
    assert data["fabric"] == "published"
    assert data["errors"] == sum(f["severity"] == "error" for f in data["findings"]) > 0
    assert set(data["findings"][0]) == {
        "severity",
        "kind",
        "instances",
        "topic",
        "explanation",
        "repair",
    }
    assert {"publisher", "instance", "certain", "route", "senders", "topic"} == set(
        data["routes"][0]
    )
    _, text = run(good, "--routes")
    assert "Chicago-1 > NewYork-1" in text
    for suffix in ("svg", "html"):
        picture = tmp_path / f"p.{suffix}"
        assert run(good, "--picture", picture)[0] == 0
        assert "<svg" in picture.read_text()
    with pytest.raises(ConfigurationError, match=r"ends in \.svg or \.html"):
        CliRunner().invoke(
            fabric_app, ["check", str(good), "--picture", "p.png"], catch_exceptions=False
        )


def test_who_publishes_can_be_said() -> None:
    hub = """
fabric: hub
instances: {In-1: {group: In}, In-2: {group: In}, Hub: {}, App: {}}
links:
  - {from: In-1, to: In-2, mode: sync, pass_through: .*}
  - {from: In-2, to: In-1, mode: sync, pass_through: .*}
  - {from: In-1, to: Hub, mode: sync, pass_through: .*}
  - {from: In-2, to: Hub, mode: sync, pass_through: .*}
  - {from: Hub, to: App, pass_through: .*EXCLUDED}
"""
    settings = parse(hub.replace("EXCLUDED", ""))
    everybody = check_settings(settings)
    assert {f.kind for f in everybody.findings if f.severity == "error"} == {"unreachable"}
    some = check_settings(settings, ("In",))
    assert some.errors == 0
    # The one hub is a single point of failure, and said to be one.
    assert one(some.findings, "instance_down").instances == ("Hub",)
    # A destination that excludes `replicate` says the same of those behind it.
    one_way = check_settings(
        parse(hub.replace("EXCLUDED", ", exclude_validation: [replicate, cascade]"))
    )
    told = [f for f in one_way.findings if f.kind == "unreachable"]
    assert not any("published at App" in f.explanation for f in told)
    with pytest.raises(ConfigurationError, match="no instance or group of that name"):
        check_settings(settings, ("Inn",))


DMZ = """
fabric: dmz
instances: {in-1: {group: inside}, in-2: {group: inside}, out: {group: outside}}
links:
  - {from: in-1, to: [in-2], mode: sync, pass_through: .*}
  - {from: in-2, to: [in-1], mode: sync, pass_through: .*}
  - {from: in-1, to: [out], pass_through: .*}
  - {from: in-2, to: [out], pass_through: .*}
  - {from: out, to: TO, group: inside, name: back, pass_through: .*, dial: false}
"""


@pytest.mark.parametrize("targets", ["[in-1, in-2]", "[]"])
def test_a_destination_that_does_not_dial_reaches_who_connects(targets: str) -> None:
    found = check_settings(parse(DMZ.replace("TO", targets)))
    assert found.errors == 0, found.findings
    assert members_of(parse(DMZ.replace("TO", targets)))[2].destinations[0].addresses == (
        "in-1",
        "in-2",
    )


def test_a_destination_that_does_not_dial_does_not_reach_who_does_not_connect() -> None:
    lonely = DMZ.replace("TO", "[]").replace("  - {from: in-2, to: [out], pass_through: .*}\n", "")
    assert members_of(parse(lonely))[2].destinations[0].addresses == ("in-1",)
    lonely = lonely.replace("  - {from: in-1, to: [out], pass_through: .*}\n", "")
    (missing,) = (
        finding
        for finding in check_settings(parse(lonely)).findings
        if finding.kind == "unreachable" and "published at out never" in finding.explanation
    )
    assert set(missing.instances) == {"in-1", "in-2"}


@pytest.mark.covers("Topology check", "a link that does not dial is where a server's own link")
def test_two_that_do_not_dial_each_other_and_what_cannot_be_waited_for() -> None:
    with pytest.raises(ConfigurationError, match="in-1, in-2 has no destination that dials out"):
        parse(
            DMZ.replace("TO", "[in-1, in-2]").replace(
                "to: [out], pass_through: .*", "to: [out], pass_through: .*, dial: false"
            )
        )
    with pytest.raises(ConfigurationError, match="so elsewhere:7000 is of no use"):
        parse(DMZ.replace("TO", "['elsewhere:7000']"))
    with pytest.raises(ConfigurationError, match="names no instance to go to"):
        parse(DMZ.replace("TO", "[]").replace("group: inside, name", "name"))


def test_an_address_of_the_fabric_is_that_instance() -> None:
    settings = parse(
        """
fabric: pair
instances:
  A: {group: G, replication_port: 7001}
  B: {group: G, replication_port: 7002}
links:
  - {from: A, to: "127.0.0.1:7002", group: G, mode: sync}
  - {from: B, to: "elsewhere:7002", group: G, mode: sync}
"""
    )
    first, second = members_of(settings)
    assert first.destinations[0].addresses == ("B",)
    assert second.destinations[0].addresses == ("elsewhere:7002",)
