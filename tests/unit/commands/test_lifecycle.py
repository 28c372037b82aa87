"""The fabric that the files of `raylay apply` are of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylay.services.commands import lifecycle
from raylay.services.fabric.records import registry

ONE = """<AMPSConfig><Name>one</Name><Group>A</Group>
<Transports><Transport><Name>clients</Name><Type>tcp</Type><Protocol>amps</Protocol>
<MessageType>json</MessageType><InetAddr>127.0.0.1:{port}</InetAddr></Transport></Transports>
</AMPSConfig>
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    path = tmp_path / "one.xml"
    path.write_text(ONE.format(port=9007))
    return path


def run(name: str, place: Path) -> None:
    pid = os.getpid()
    registry.register(
        registry.RegistryEntry(name, str(place), "127.0.0.1:1", pid, registry.process_start(pid))
    )


def applied(path: Path, name: str = "") -> str:
    return lifecycle.settings_to_apply([path], {}, name, ignore_unsupported=False).name


def test_amps_files_without_a_name_are_of_the_only_fabric_that_runs(given: Path) -> None:
    assert applied(given) == "A"
    run("trading", given.parent / "trading")
    assert applied(given) == "trading"
    assert applied(given, "other") == "other"


def test_amps_files_are_of_the_fabric_of_their_group_where_that_runs(given: Path) -> None:
    run("A", given.parent / "a")
    assert applied(given) == "A"
    run("trading", given.parent / "trading")
    assert applied(given) == "A"


def test_with_several_fabrics_that_run_amps_files_need_a_name(given: Path) -> None:
    run("trading", given.parent / "trading")
    run("settling", given.parent / "settling")
    assert applied(given) == "A"


def test_a_yaml_file_says_its_name_itself(given: Path) -> None:
    run("trading", given.parent / "trading")
    path = given.parent / "f.yaml"
    path.write_text("fabric: walked\ntopics: [notes]\nregions: {here: 2}\n")
    assert applied(path) == "walked"
