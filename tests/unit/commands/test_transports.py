"""`raylay transport`: what it shows of a fabric, and what it asks for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from raylay.services import fabric
from raylay.services.cli import app
from raylay.services.commands.shared import controlled
from raylay.services.config.transport import TransportConfig
from raylay.services.fabric.records.registry import RegistryEntry
from raylay.services.server.clients.transport import ClientTransport


class Attached:
    """A fabric of which one instance does not run."""

    asked: list[Any]

    def status(self) -> dict[str, Any]:
        few = ClientTransport(
            TransportConfig("few", message_types=("json", "fix"), connections_max=1_000)
        )
        few.address = "h:9007"
        links = ClientTransport(TransportConfig("replication"), kind="replication")
        return {
            "instances": [
                {"name": "here-1", "transports": [few.status(), links.status()]},
                {"name": "here-2", "phase": "stopped"},
            ]
        }

    def switch_transport(self, *asked: Any, on: bool) -> str:
        self.asked = [*asked, on]
        return "done"


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Attached:
    made = Attached()
    monkeypatch.setattr(controlled, "running", lambda name: RegistryEntry("f", "/f", ""))
    monkeypatch.setattr(fabric.Fabric, "attach", lambda name: nullcontext(made))
    return made


def test_every_transport_is_a_row(attached: Attached) -> None:
    shown = CliRunner().invoke(app, ["transport", "status"])
    assert [line.split() for line in shown.output.splitlines()] == [
        ["instance", "transport", "for", "address", "state", "tls", "connections", "at", "most",
         "types"],
        ["here-1", "few", "clients", "h:9007", "disabled", "no", "0", "1,000", "fix,", "json"],
        ["here-1", "replication", "instances", "disabled", "no", "0", "any"],
    ]  # fmt: skip
    assert '"tls_refused": 0' in CliRunner().invoke(app, ["transport", "status", "--json"]).output


@pytest.mark.parametrize(("verb", "on"), [("enable", True), ("disable", False)])
def test_one_is_switched(attached: Attached, verb: str, on: bool) -> None:
    done = CliRunner().invoke(app, ["transport", verb, "here-1", "few"])
    assert done.output == "done\n" and attached.asked == ["here-1", "few", on]
