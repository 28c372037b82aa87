"""Signals to an actor: they begin actions, although its main thread is Ray's."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from raylay.services.fabric import Action, Do, Fabric, On

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.covers("Actions", "On a Linux Signal")
def test_a_signal_to_an_actor_begins_an_action(tmp_path: Path) -> None:
    told = Action(On.signal("SIGUSR1"), Do.echo_message("{{AMPS_SIGNAL}} came"), name="told")
    fabric = Fabric("signalled", topics=["notes"], actions=[told])
    fabric.region("here", instances=1)
    with fabric.start(tmp_path / "data") as started:
        started.wait_ready()
        pid = started.status()["instances"][0]["pid"]

        def events(name: str) -> list[dict[str, Any]]:
            return [each for each in started.events() if each["event"] == name]

        for count in (1, 2):
            os.kill(pid, signal.SIGUSR1)
            wait_until(lambda n=count: len(events("signal_received")) == n)
        wait_until(lambda: len(events("action_message")) == 2)
        assert {each["text"] for each in events("action_message")} == {"SIGUSR1 came"}
        assert started.status()["instances"][0]["pid"] == pid, "the signals did not end it"
