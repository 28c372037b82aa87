"""Signals to an actor begin actions, although its main thread is Ray's, and one to a command ends
the command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from raylay.services.fabric import Action, Do, Fabric, On

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


COMMAND = """
import sys, time
from raylay.services.commands.shared.interrupts import interruptible
from raylay.services.fabric import Fabric
try:
    with interruptible("it is ending"), Fabric.attach("signalled"):
        print("begun", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
PLAIN = """
import time
from raylay.services.fabric import Fabric
with Fabric.attach("signalled"):
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.mark.covers("Fabrics and tracing", "Ctrl-C ends a start", note="of commands that join Ray")
def test_a_command_that_has_joined_ray_ends_in_one_line(tmp_path: Path) -> None:
    fabric = Fabric("signalled", topics=["notes"])
    fabric.region("here", instances=1)
    with fabric.start(tmp_path / "data"):
        # Ray's own handler, which is Python's, ends a program with the signal's number.
        for program, told, code in ((COMMAND, "it is ending\n", 130), (PLAIN, "", signal.SIGTERM)):
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            with process:
                assert process.stdout is not None and process.stdout.readline() == "begun\n"
                process.terminate()
                assert process.communicate(timeout=60)[1] == told, "no stack of Ray's core"
            assert process.returncode == code


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
