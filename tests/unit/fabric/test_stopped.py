"""Which fabrics could run here and do not, and how they are started again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.plan import record_of
from raylay.services.fabric.records import registry
from raylay.services.fabric.records.discovery import find_running
from raylay.services.fabric.records.registry import RegistryEntry, process_start
from raylay.services.fabric.records.stopped import kept_settings, refuse_empty, stopped


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory and an empty registry."""
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    yield place


def kept(directory: Path, name: str = "orders") -> Path:
    """A directory of a fabric."""
    record_of(Fabric(name).region("near", instances=2).settings(), directory).save()
    return directory


def running(directory: Path, name: str = "orders") -> RegistryEntry:
    """An entry of a process that is there."""
    return RegistryEntry(name, str(directory), "", os.getpid(), process_start(os.getpid()))


def test_a_fabric_whose_process_was_killed_is_found_with_its_command(tmp_path: Path) -> None:
    place = kept(tmp_path / "else where")
    gone = running(place)
    gone.host_start -= 1  # the process has another's number
    registry.register(gone)
    assert registry.find("orders") is None
    (found,) = stopped()
    assert (found.name, found.directory) == ("orders", place)
    assert found.command == f"raylay up '{place}'"
    with pytest.raises(FabricError, match="no fabric orders runs here; start it with `raylay up "):
        find_running("orders")


def test_one_that_was_stopped_in_good_order_is_found_until_its_data_is_gone(tmp_path: Path) -> None:
    place = kept(tmp_path / "elsewhere")
    registry.register(running(place))
    assert stopped() == []
    registry.unregister("orders")
    assert [each.directory for each in stopped()] == [place]
    # It runs again: it is stopped no more.
    registry.register(running(place))
    assert stopped() == []
    registry.unregister("orders")
    shutil.rmtree(place)
    assert stopped() == [] and registry.notes() == []


def test_a_directory_that_is_another_fabrics_by_now_is_not_told_for_it(tmp_path: Path) -> None:
    place = kept(tmp_path / "elsewhere")
    registry.register(running(place))
    registry.unregister("orders")
    assert [each.name for each in stopped()] == ["orders"]
    shutil.rmtree(place)
    kept(place, "trades")
    assert stopped() == []


def test_without_notes_the_usual_place_is_looked_at(here: Path) -> None:
    kept(here / "data" / "orders")
    kept(here / "data" / "b", "trades")
    (here / "data" / "none").mkdir()
    (here / "data" / "none" / "fabric.json").write_text("torn")
    assert [each.command for each in stopped()] == [
        "raylay up data/orders",
        "raylay up data/b",
    ]


def test_a_directory_names_the_settings_that_it_ran_with(here: Path) -> None:
    place = kept(here / "data" / "orders")
    settings = kept_settings([place])
    assert settings is not None and settings.name == "orders" and len(settings.instances) == 2
    assert kept_settings([here / "f.yaml"]) is None
    with pytest.raises(FabricError, match=r"here holds no fabric: it has no fabric\.json"):
        kept_settings([here])


def test_a_fabric_that_is_stopped_elsewhere_is_not_begun_anew(here: Path, tmp_path: Path) -> None:
    """`raylay up FILE` from another directory began an empty fabric of the same name."""
    elsewhere = kept(tmp_path / "elsewhere" / "data" / "orders")
    registry.register(running(elsewhere))
    registry.unregister("orders")
    place = Path("data") / "orders"
    with pytest.raises(FabricError, match=rf"is stopped, its data is in {elsewhere}, and {place}"):
        refuse_empty("orders", place)
    refuse_empty("trades", Path("data") / "trades")
    kept(here / place)
    refuse_empty("orders", place)
