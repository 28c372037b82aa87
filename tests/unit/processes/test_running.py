"""The process of a program beside an instance's loads that program, and of the server what it is
given and prepared by."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.modules if name.startswith(("raylay.", "pydantic"))]))
"""
OF_OTHERS = (
    *("raylay.services.subscriptions", "raylay.services.replication.instance"),
    "pydantic",  # 50 ms; the records that it reads for the fabric are plain ones
)


PROGRAMS = "raylay.services.processes"
CONFIGS = ("admin_interface", "instance", "bootstrap", "journal", "json_text", "transport")
"""What an instance gives a program, and what that is made of."""


@pytest.mark.parametrize(
    "module",
    [
        f"{PROGRAMS}.link.run_link",
        f"{PROGRAMS}.queue_owner.run_queue_owner",
        f"{PROGRAMS}.slow_client_buffer.run_slow_client_buffer",
    ],
)
def test_a_program_loads_nothing_that_it_never_runs(module: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED, module], capture_output=True, text=True, check=True
    )
    loaded = json.loads(found.stdout)
    assert module in loaded
    of_server = {name for name in loaded if name.startswith("raylay.services.server.")}
    configs = ("buffer", "json_text") if "buffer" in module else CONFIGS
    assert of_server == {"raylay.services.server.process"}
    of_config = {name for name in loaded if name.startswith("raylay.services.config.")}
    assert of_config == {f"raylay.services.config.{name}" for name in configs}
    assert not [name for name in loaded if name.startswith(OF_OTHERS)]


RUNNING = """
import io, sys
from types import SimpleNamespace
from raylay.services.errors import FabricError
from raylay.services.processes.running import ProgramThread, run_program
from raylay.services.telemetry.logs import LogOptions

config = SimpleNamespace(process_name="solo.work", log=LogOptions())
async def serve(given):
    assert given is config
    if sys.argv[2] == "fails":
        raise FabricError("the store is full")

if sys.argv[1] == "process":
    sys.stdin = io.StringIO("the configuration")
    sys.exit(run_program("sorter", {"the configuration": config}.get, serve))
ProgramThread("sorter", config, serve).start()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("how", "ends", "code", "said"),
    [
        ("process", "well", 0, ""),
        ("process", "fails", 1, "error: sorter solo.work: the store is full\n"),
        ("thread", "well", 0, ""),
        ("thread", "fails", 70, "sorter_ended"),
    ],
)
def test_a_program_that_ends_ends_its_process_and_says_why(
    how: str, ends: str, code: int, said: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNNING, how, ends],
        stdin=subprocess.PIPE,  # stays open: the thread is not awaited by its main thread
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.wait(60) == code
        assert running.stderr is not None
        found = running.stderr.read()
    assert found == said if how == "process" or not said else said in found
