"""The link's process loads its program, and of the server what it is given and prepared by."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOADED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.modules if name.startswith("raylay.")]))
"""
OF_OTHERS = ("raylay.services.subscriptions", "raylay.services.replication.instance")


@pytest.mark.parametrize(
    "module", ["raylay.services.programs.link.thread", "raylay.services.programs.link.run_link"]
)
def test_a_link_loads_nothing_that_it_never_runs(module: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED, module], capture_output=True, text=True, check=True
    )
    loaded = json.loads(found.stdout)
    assert module in loaded
    of_server = {name for name in loaded if name.startswith("raylay.services.server.")}
    assert of_server == {"raylay.services.server.config", "raylay.services.server.process"}
    assert not [name for name in loaded if name.startswith(OF_OTHERS)]


def test_an_instance_of_an_earlier_release_starts_the_program_by_its_former_name() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "raylay.services.server.run_link"],
        input="[]",
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "programs/link/run_link.py" in found.stderr
