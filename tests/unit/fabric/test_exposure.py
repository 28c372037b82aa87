"""services/fabric/checks/exposure.py: what of a fabric is open to others, before it runs and while
it is there; in a tree whose upper directories are everybody's to enter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.one_instance import events, in_instance
from typer.testing import CliRunner

from raylay.services.commands.fabric import fabric_app
from raylay.services.commands.host import check_app
from raylay.services.config.instance import InstanceConfig
from raylay.services.config.journal import JournalConfig
from raylay.services.configuration.model import FabricSettings, InstanceSettings
from raylay.services.fabric.checks import exposure
from raylay.services.fabric.records import registry
from raylay.services.security.modules import ModuleConfig
from raylay.services.server.instance_server import InstanceServer
from raylay.storage import exposure as judgement

pytestmark = pytest.mark.covers(
    "Configuration", "what is open all the same is said with the command"
)

FABRIC = """
fabric: f
authentication: {{module: passwords, options: {{File: {place}/passwords}}}}
entitlement: {{module: permissions, options: {{File: {place}/permissions.yaml}}}}
tls: {{certificate: "{place}/{{instance}}.crt", private_key: "{place}/{{instance}}.key"}}
regions: {{here: 2}}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: what is above it, of whatever machine, is not looked at."""
    whole = judgement.steps_to
    monkeypatch.setattr(
        judgement,
        "steps_to",
        lambda path: [each for each in whole(path) if each.path.startswith(str(tmp_path))],
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    tmp_path.chmod(0o755)
    return tmp_path


def write(path: Path, mode: int, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def checked(place: Path) -> dict[str, str]:
    """What `raylay fabric check` says of it: commands and texts."""
    write(place / "f.yaml", 0o644, FABRIC.format(place=place))
    done = CliRunner().invoke(fabric_app, ["check", "f.yaml", "--json"])
    findings = json.loads(done.stdout)["findings"]
    assert "clash" not in {each["kind"] for each in findings}, findings
    of_kind = [each for each in findings if each["kind"] == "exposed"]
    assert all(each["severity"] == "warning" for each in of_kind)
    return {each["repair"]: each["explanation"] for each in of_kind}


def test_files_that_a_fabric_names(place: Path) -> None:
    assert checked(place) == {}, "they need not be on this host"
    write(place / "passwords", 0o640)
    write(place / "permissions.yaml", 0o644)
    for name, mode in (("here-1", 0o600), ("here-2", 0o644)):
        write(place / f"{name}.key", mode)
        write(place / f"{name}.crt", 0o644)
    assert checked(place) == {
        f"chmod 600 {place}/passwords": f"a group may read {place}/passwords",
        f"chmod 600 {place}/here-2.key": f"every user of this host may read {place}/here-2.key",
    }
    (place / "permissions.yaml").chmod(0o666)
    assert f"chmod 600 {place}/permissions.yaml" in checked(place), "who may do what"


def test_the_data_of_a_fabric(place: Path) -> None:
    data = place / "data" / "f"
    for name in ("here-1", "here-2"):
        InstanceConfig(name, "g").save(data / name)
    assert checked(place) == {}
    (place / "data").chmod(0o755)
    (data / "here-1").chmod(0o755)
    assert checked(place) == {}, "its directory is closed"
    data.chmod(0o755)
    assert list(checked(place)) == [f"chmod 700 {data}"], "that closes what is below as well"


def test_an_archive_that_is_elsewhere_is_of_the_data(place: Path) -> None:
    archive = place / "archive"
    archive.mkdir(mode=0o700)
    InstanceConfig("here-1", "g", journal=JournalConfig(archive_directory=str(archive))).save(
        place / "data/f/here-1"
    )
    assert checked(place) == {}
    archive.chmod(0o755)
    assert list(checked(place)) == [f"chmod 700 {archive}"]


def test_an_instance_whose_data_is_elsewhere(place: Path) -> None:
    (place / "disk").mkdir(0o755)
    instance = InstanceSettings(name="a", group="g", directory=str(place / "disk"))
    found = exposure.of_fabric(FabricSettings(name="f", instances=(instance,)))
    assert [each.change for each in found] == [f"chmod 700 {place}/disk"]


def test_the_data_of_a_host(place: Path) -> None:
    write(place / "secret", 0o644)
    module = ModuleConfig("tokens", {"SecretFile": str(place / "secret")})
    InstanceConfig("a", "g", authentication=module).save(place / "data" / "f" / "a")
    write(place / "home" / ".ray" / "auth_token", 0o644)
    (place / "runtime").mkdir()
    (place / "runtime").chmod(0o777)

    def found() -> dict[str, str]:
        return {each.change: each.right for each in exposure.of_host(place / "data")}

    of_others = {
        f"chmod 600 {place}/secret": "read",
        f"chmod 600 {place}/home/.ray/auth_token": "read",
        f"chmod 700 {place}/runtime": "change",
    }
    assert found() == of_others
    (place / "data").chmod(0o755)
    (place / "data" / "f").chmod(0o755)
    assert found() == of_others, "there are names to read, no data"
    (place / "data" / "f" / "a").chmod(0o755)
    assert found() == of_others | {f"chmod 700 {place}/data/f/a": "read"}
    (place / "data").chmod(0o777)
    assert found()[f"chmod go-w {place}/data"] == "change"
    done = CliRunner().invoke(check_app, ["host", "--directory", "data", "--json"])
    told = {each["change"]: each["level"] for each in json.loads(done.stdout)}
    assert told[f"chmod 700 {place}/data/f/a"] == "change"
    assert told[f"chmod go-w {place}/data"] == "wrong" and done.exit_code == 1


def test_a_host_without_anything_has_nothing_open(place: Path) -> None:
    assert exposure.of_host(place / "data") == []


def test_settings_that_name_no_file_have_none() -> None:
    assert exposure.of_fabric(FabricSettings(name="f")) == []


def test_an_instance_warns_of_data_that_is_open(place: Path) -> None:
    """It serves all the same; of a directory that it makes there is nothing to say."""
    archive = place / "archive"
    config = InstanceConfig("a", "g", journal=JournalConfig(archive_directory=str(archive)))

    async def nothing(server: InstanceServer) -> None:
        assert events(server, "data_exposed") == []

    async def warned(server: InstanceServer) -> None:
        assert {each["text"] for each in events(server, "data_exposed")} == {
            f"every user of this host may read {place}/a: chmod 700 {place}/a",
            f"every user of this host may change {archive}: chmod 700 {archive}",
        }

    in_instance(place / "a", nothing, config)
    (place / "a").chmod(0o755)
    archive.mkdir()
    archive.chmod(0o777)
    in_instance(place / "a", warned, config)
