"""What no seed runs is known, and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from sim import unseen

SEEDS = 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_line_that_no_seed_runs_is_explained() -> None:
    """In a process of its own: the modules must not have been imported before they are measured."""
    done = subprocess.run(
        [sys.executable, "-m", "sim.unseen", "--seeds", str(SEEDS), "--processes", "1"],
        env={**os.environ, "PYTHONPATH": str(unseen.ROOT / "tests")},
        cwd=unseen.ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_each_entry_is_of_a_line_that_is_there_and_has_a_reason() -> None:
    text = unseen.EXPLAINED.read_text()
    known = unseen.explained(text)
    assert len(known) >= 50
    assert all(reason.endswith(":") and len(reason) > 40 for reason in known.values())
    for path in re.findall(r"tests/\w+/\w+\.py", text):
        assert (unseen.ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("  services/messages/ranges.py\n", "an entry without a reason"),
        ("It is so:\n  services/replication/gone.py\n", "is not there"),
        ("It is so:\n  services/messages/ranges.py SequenceSet.gone\n", "is not there"),
        ("It is so:\n  services/messages/ranges.py SequenceSet.add: gone()\n", "is not there"),
    ],
)
def test_an_entry_that_says_nothing_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        unseen.explained(text)


def test_what_is_not_run_and_not_explained_is_told() -> None:
    """As if no seed had run anything."""
    lines = unseen.unseen({})
    known = unseen.explained(unseen.EXPLAINED.read_text())
    told = unseen.report(lines, known)
    machine = "services/replication/instance/destinations.py"
    assert any(f"{machine} Destinations.tick: " in line for line in told)
    assert not any("services/replication/validation.py" in line for line in told)
    assert not any(": raise " in line for line in told)
