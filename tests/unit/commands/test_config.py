"""`raylay config check` and `show`, and the other commands that take files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from support.amps_examples import completed, published
from typer.testing import CliRunner

from raylay.services import cli
from raylay.services.commands.config import config_app
from raylay.services.configuration.amps.load import load_amps
from raylay.services.configuration.amps.show import publish_store_messages, shown
from raylay.services.configuration.files import load_fabric, load_files
from raylay.services.configuration.model import FabricSettings, downgrade_of
from raylay.services.errors import ConfigurationError
from raylay.services.replication.downgrade import DowngradePolicy

FABRIC = "fabric: f\nregions: {A: 2}\ndowngrade: {age: 5s, every: 1s}\n"


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """The published pair, and the published downgrade in the first of it."""
    actions = published("downgrade-and-upgrade")
    actions = actions[actions.index("    <Actions>") : actions.index("</Actions>") + 10]
    names = []
    for name, clients in (("hot-hot-amps-1", "9007"), ("hot-hot-amps-2", "9008")):
        path = tmp_path / f"{name}.xml"
        text = completed(name, clients)
        path.write_text(text.replace("</AMPSConfig>", f"{actions}</AMPSConfig>"))
        actions = ""
        names.append(str(path))
    return names


def output(*arguments: str) -> str:
    done = CliRunner().invoke(config_app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def error(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says as it ends with 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["raylay", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert caught.value.code == 1
    return capsys.readouterr().err


def test_check_of_a_pair_that_runs(pair: list[str]) -> None:
    assert output("check", *pair) == "2 instances, 2 destinations: all of it runs\n"


def test_check_notes_addresses_of_other_instances(pair: list[str]) -> None:
    note, summary = output("check", pair[0]).splitlines()
    assert "amps-2-server.example.com:10005 belongs to no instance of these files" in note
    assert note.startswith(f"{pair[0]}:")
    assert summary == "1 instance, 1 destination: all of it runs"


def test_check_lists_what_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "s.xml"
    path.write_text(
        completed("slow-clients").replace(
            "<MessageMemoryLimit>", f"{UNSUPPORTED}<MessageMemoryLimit>"
        )
    )
    lines = output("check", str(path)).splitlines()
    assert len(lines) == 2
    assert lines[0] == f"{path}:5: RegexTopicSupport does not run yet"
    assert lines[-1].startswith("1 instance, 0 destinations: 1 thing of it would not run")
    with pytest.raises(ConfigurationError, match="give --ignore-unsupported"):
        load_fabric([path])
    assert load_fabric([path], ignore_unsupported=True).instances[0].client_port == 9007


def test_check_fails_with_every_error_of_every_file(
    pair: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in pair:
        path = Path(name)
        path.write_text(path.read_text().replace(">sync<", ">both<").replace(".*<", "(<"))
    lines = error("config", "check", *pair, capsys=capsys).splitlines()
    assert len(lines) == 4
    assert [line.removeprefix("raylay: ").split(":")[0] for line in lines] == [
        pair[0],
        pair[0],
        pair[1],
        pair[1],
    ]


def test_two_files_of_one_instance(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(pair[0]).with_name("copy.xml")
    copy.write_text(Path(pair[0]).read_text())
    said = error("config", "check", *pair, str(copy), capsys=capsys)
    assert f"{copy}:2: Name amps-1 is taken at {pair[0]}:2" in said


def test_a_fabric_and_an_ampsconfig_do_not_mix(pair: list[str], tmp_path: Path) -> None:
    fabric = tmp_path / "f.yaml"
    fabric.write_text(FABRIC)
    assert output("check", str(fabric)).startswith("2 instances, 2 destinations: all of it runs")
    with pytest.raises(ConfigurationError, match=r"f.yaml: this is no AMPSConfig"):
        load_files([fabric, *pair])
    with pytest.raises(ConfigurationError, match="names the fabric f, not g"):
        load_fabric([fabric], name="g")
    with pytest.raises(ConfigurationError, match="give one YAML file"):
        load_files([])


def test_up_takes_the_files_and_refuses_what_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.xml"
    text = completed("slow-clients").replace(
        "<MessageMemoryLimit>", f"{UNSUPPORTED}<MessageMemoryLimit>"
    )
    path.write_text(text.replace("9007", "${PORT}"))
    assert f"{path}:17: ${{PORT}} is not set" in error("up", str(path), capsys=capsys)
    refused = error("up", str(path), "-D", "PORT=9007", capsys=capsys)
    assert f"{path}:5: RegexTopicSupport does not run yet" in refused
    assert refused.splitlines()[-1].endswith("give --ignore-unsupported to start without")


UNSUPPORTED = "<RegexTopicSupport>false</RegexTopicSupport>"
FILTERED = """\
fabric: f
regions: {{A: {{instances: 2, links: none}}}}
message_types: [{{name: mine, kind: fix}}]
links:
- from: A-1
  to: A-2
  topics: [{{name: orders, message_type: {type}, filter: "{filter}"}}]
"""


@pytest.mark.covers("Filters by content", "a filter of a destination")
@pytest.mark.parametrize("message_type", ["'*'", "json", "mine"])
def test_a_filter_of_a_destination_runs(tmp_path: Path, message_type: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(FILTERED.format(filter="/price > 1", type=message_type))
    assert output("check", str(path)) == "2 instances, 1 destination: all of it runs\n"
    settings = load_fabric([path])
    assert settings.instances[0].destinations[0].topics[0].filter == "/price > 1"


@pytest.mark.covers("Filters by content", "a filter of a destination")
@pytest.mark.parametrize(
    ("text", "message_type", "problem"),
    [
        ("/price >", "json", "'/price >' is no filter: column 9: expected a field"),
        ("UNIX_TIMESTAMP() > 1", "json", "column 1: UNIX_TIMESTAMP gives something else each"),
        ("/price > 1", "binary", "messages of type binary cannot be read field by field"),
        ("/price > 1", "nobodys", "no message type is called 'nobodys'"),
    ],
)
def test_a_filter_that_is_none_is_refused_with_its_place(
    tmp_path: Path, text: str, message_type: str, problem: str
) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(FILTERED.format(filter=text, type=message_type))
    with pytest.raises(ConfigurationError) as told:
        load_fabric([path])
    assert "f.yaml:5: destination A-2 of A-1, topic orders: Filter: " in str(told.value)
    assert problem in str(told.value)


def test_a_filter_of_a_fabrics_topic_is_in_the_wrong_place(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("fabric: f\nregions: {A: 1}\ntopics: [{name: orders, filter: /a = 1}]\n")
    with pytest.raises(ConfigurationError, match="it belongs to a topic of a destination"):
        load_fabric([path])


def test_show_fills_in_defaults_and_loads_again(pair: list[str]) -> None:
    shown_once = output("show", *pair)
    first, second = yaml.safe_load_all(shown_once)
    assert first["AMPSConfig"]["ClientMaxCapacity"] == "50%"
    assert "MessageDiskPath" not in first["AMPSConfig"]
    assert "# without MessageDiskPath: offline in the data directory" in shown_once
    (destination,) = second["AMPSConfig"]["Replication"]["Destination"]
    assert destination["CompressionType"] == "zlib"
    document = load_amps(pair[0])
    again = load_amps("again.yaml", text=shown(document))
    assert again.config.model_dump() == document.config.model_dump()


def test_what_show_prints_starts_the_same(pair: list[str], tmp_path: Path) -> None:
    """A default that Raylay departs from is told, not filled in: it would change what runs."""
    wanted = load_fabric(pair, name="pair", ignore_unsupported=True)
    again = []
    for number, part in enumerate(output("show", *pair).split("---\n")):
        assert "# without AckConflationInterval: acks at once" in part
        again.append(tmp_path / f"again-{number}.yaml")
        again[-1].write_text(part)
    assert load_fabric(again, name="pair", ignore_unsupported=True) == wanted
    text = Path(pair[0]).read_text()
    given = text.replace(
        "</Destination>", "<AckConflationInterval>1s</AckConflationInterval></Destination>"
    )
    Path(pair[0]).write_text(given)
    shown_given = output("show", pair[0])
    assert "# without AckConflationInterval" not in shown_given
    assert "AckConflationInterval: 1s" in shown_given
    assert "# without JournalSize: segments of 64 MiB" in shown_given


def test_show_of_a_fabric(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(FABRIC)
    values = yaml.safe_load(output("show", str(path)))
    assert values["journal"]["segment_size"] == "64MiB"
    assert FabricSettings.model_validate(values) == load_fabric([path])


def test_the_publish_store_that_a_rate_needs(pair: list[str], tmp_path: Path) -> None:
    first, second = output("show", *pair, "--rate", "10000").splitlines()[-2:]
    assert "at least 3,150,000 messages: (15 s between checks + Age 300 s)" in first
    assert second == "# amps-2: nothing is downgraded by age: a publish store has no bound"
    path = tmp_path / "f.yaml"
    path.write_text(FABRIC)
    assert "at least 6,000 messages" in output("show", str(path), "--rate", "1000")


@pytest.mark.covers("Configuration", "Automatically Downgrading")
@pytest.mark.covers("The replication chapters", "the publish store that it takes")
def test_the_rule_of_the_publish_store() -> None:
    def store(age: str, every: str) -> int | None:
        return publish_store_messages(10_000, downgrade_of({"age": age, "every": every}))

    assert store("60s", "15s") == 750_000, "what the documents say belongs to their older Age"
    assert store("300s", "15s") == 3_150_000
    assert publish_store_messages(10_000, DowngradePolicy()) is None


def test_a_check_as_json_has_the_findings(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text("fabric: small\ntopics: [notes]\nregions: {here: 2}\n")
    done = CliRunner().invoke(cli.app, ["config", "check", str(file), "--json"])
    assert json.loads(done.stdout) == {
        "instances": 2,
        "destinations": 2,
        "would_not_run": 0,
        "findings": [],
    }
