"""The look-up of a fabric's servers by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.fabric.clients import FabricClients, lookup
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date
from raylay.services.fabric.records import registry


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FabricRecord:
    """A fabric `newshop` that the registry knows, with an instance in `here`."""
    monkeypatch.setenv(registry.REGISTRY_VARIABLE, str(tmp_path / "runtime"))
    settings = FabricBuilder("newshop", topics=["orders"]).region("here", instances=1).settings()
    record = FabricRecord("newshop", str(tmp_path), settings.to_json())
    bring_up_to_date(record, settings)
    record.save()
    registry.register(registry.RegistryEntry("newshop", str(tmp_path), "127.0.0.1:1"))
    return record


def test_a_fabric_is_found_by_its_name() -> None:
    assert [each.instance for each in lookup("newshop", "here")()] == ["here-1"]


def test_a_misspelled_name_is_an_error_at_once() -> None:
    with pytest.raises(FabricError, match=r"no fabric newshopp runs here: did you mean newshop\?"):
        lookup("newshopp", "here")
    with pytest.raises(FabricError, match="no fabric billing runs here: there are newshop"):
        lookup("billing", "here")
    with pytest.raises(ConfigurationError, match=r"has no group her; did you mean here\?"):
        lookup("newshop", "her")


def test_the_look_up_fails_when_the_fabric_has_ended() -> None:
    find = lookup("newshop", "here")
    registry.unregister("newshop")
    with pytest.raises(FabricError, match="there are none"):
        find()


def test_a_misspelled_option_of_a_client_is_named(shop: FabricRecord) -> None:
    class Handle:
        def known(self) -> tuple[FabricSettings, FabricRecord]:
            return FabricSettings.from_json(shop.settings), shop

    handle: Any = Handle()
    clients = FabricClients(handle)
    assert clients.options("desk", "here", {"heartbeat_s": 1.0})["heartbeat_s"] == 1.0
    with pytest.raises(TypeError, match=r"client\(\) has no argument 'grp': did you mean 'group'"):
        clients.options("desk", None, {"grp": "here"})
    with pytest.raises(TypeError, match=r"no argument 'zzz': it takes servers, group, .*heartbeat"):
        clients.options("desk", "here", {"zzz": 1})
    clients.close()
