"""Seeds keep the laws, and the same seed is the same history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raylay.services.replication.instance import intake
from sim import mistakes, plans, run

pytestmark = pytest.mark.covers(
    "SOW", "a query behind a persisted ack sees what was acknowledged", note="every seed"
)

TESTS = Path(__file__).resolve().parents[1]
FEW = 24
BASE = 3_000_000
"""Everybody's run takes the same ones, so that a failure is the change's own and not chance. Fresh
ones are what `make sim` is for."""


def keep_the_laws(seeds: int, behind: int) -> None:
    """In processes of their own: a fork of the test process would copy its threads' locks."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sim.run", "--failures", "1", "--probes"),
            *("--seeds", str(seeds), "--base", str(BASE + behind)),
        ],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    print(last)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert last.startswith(f"sim: {seeds} seeds, 0 failed, base seed ")


def test_seeds_keep_the_laws() -> None:
    keep_the_laws(FEW, behind=0)


@pytest.mark.covers("The replication chapters", "the order of each source is kept")
@pytest.mark.covers("The replication chapters", "it is composable")
@pytest.mark.covers("The replication chapters", "the order of each publisher on a topic")
@pytest.mark.slow
@pytest.mark.timeout(1_300)
def test_a_thousand_seeds_keep_the_laws_and_hit_every_probe() -> None:
    """Other ones than those of `make test`."""
    keep_the_laws(run.PROBED_SEEDS_MIN, behind=FEW)


FORGETFUL = (7_000_019, 7_000_033, *range(7_000_040, 7_000_050))
"""Among them some that fail with the planted mistake below."""


def broken_seeds(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of them break a law where hardly any topic is remembered."""
    monkeypatch.setattr(intake, "TOPICS_KNOWN_MAX", 1)
    return sum(bool(run.run_seed(seed).violations) for seed in FORGETFUL)


@pytest.mark.slow
def test_seeds_keep_the_laws_where_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not broken_seeds(monkeypatch)


@pytest.mark.slow
def test_what_is_forgotten_though_it_is_in_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = intake.Intake._forget_topics

    def planted(self: Any) -> None:
        forget(self)
        self._topic_highest.clear()

    monkeypatch.setattr(intake.Intake, "_forget_topics", planted)
    assert broken_seeds(monkeypatch)


def test_a_failing_seed_is_told_with_its_history_and_the_command_to_replay_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a planted mistake."""
    machines = mistakes.MISTAKES["one logon number"]
    run_seed = run.run_seed

    def planted(seed: int) -> run.Result:
        return run_seed(seed, machines)

    monkeypatch.setattr(run, "run_seed", planted)
    failing = next(seed for seed in range(1000, 1100) if planted(seed).violations)
    assert run.main(["--seeds", "1", "--seed", str(failing)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"sim: base seed {failing}"
    assert sum(" ms  " in line for line in out) >= 150
    assert any(f"python -m sim.run --seeds 1 --seed {failing}" in line for line in out)
    assert out[-1].startswith(f"sim: 1 seeds, 1 failed, base seed {failing}, ")


def test_a_seed_decides_everything() -> None:
    """The same seed twice: the same history. Another seed: another one."""

    def history(seed: int) -> list[object]:
        return list(run.execute(plans.draw(seed), seed).finish().operations)

    assert history(7) == history(7)
    assert history(7) != history(8)


RELOCATING = (830_000_009, 830_000_013, 830_000_014, 830_000_035, 830_000_037, 830_000_115)
"""Seeds whose histories once hung on the order of a set of names, other in every process."""
DIGEST = """
import hashlib, sys
from sim import plans, run
for seed in map(int, sys.argv[1:]):
    operations = run.execute(plans.draw(seed), seed).finish().operations
    print(seed, hashlib.sha256(repr(list(operations)).encode()).hexdigest())
"""


@pytest.mark.slow
def test_a_seed_decides_everything_in_every_process() -> None:
    """Strings hash otherwise in every process, so nothing may go by the order of a set of them."""

    def histories(hash_seed: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", DIGEST, *map(str, RELOCATING)],
            env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": str(hash_seed)},
            cwd=TESTS.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout

    first = histories(1)
    assert len(first.splitlines()) == len(RELOCATING)
    assert histories(2) == first == histories(3)


def test_a_seed_has_the_faults_that_it_promises() -> None:
    """2 to 6 instances, at least 3 publishers, 200 publishes, 5 crashes, 2 partitions."""
    lost_disks = copies = 0
    for seed in range(200):
        plan = plans.draw(seed)
        actions = [action for _, action, _ in plan.script]
        assert 2 <= len(plan.topology.members) <= 6
        assert sum(not topic for _, _, _, topic in plan.clients) >= 3
        published = sum(len(topics) for _, _, topics in plan.publishes)
        # Who shares a publisher or a name with another one publishes beside it, and where a region
        # of a queue loses messages there are more of them.
        more = plan.twins or plan.parts or plan.queues is not None
        assert published >= 200 if more else published == 200
        assert actions.count("crash") >= 5
        assert actions.count("partition") == 2
        assert "move" in actions
        lost_disks += "lose_disk" in actions
        copies += "lose_disk_and_copy" in actions
    assert lost_disks > 20 and copies > 20


def test_a_part_of_the_seeds_sets_clocks() -> None:
    """Probes say that they go back as well (`clock set back`)."""
    drawn = [plans.draw(seed) for seed in range(5_000, 5_600)]
    sets = [any(action == "set_clock" for _, action, _ in plan.script) for plan in drawn]
    of_queues = [each for each, plan in zip(sets, drawn, strict=True) if plan.queues is not None]
    assert sum(sets) > 0.2 * len(drawn) and sum(of_queues) > 0.1 * len(of_queues)


def test_seeds_alone_see_most_mistakes() -> None:
    """Counts the tables alone: test_mistakes.py plants each one in general seeds, and a scenario
    that has to show a mistake is the exception."""
    shown = set(mistakes.SHOWN_BY_A_SCENARIO)
    assert shown.isdisjoint(mistakes.MISTAKES)
    assert len(mistakes.MISTAKES) > 5 * len(shown)
    for kind in ("queue: ", "SOW"):
        assert sum(name.startswith(kind) for name in mistakes.MISTAKES) >= 10
        assert not [name for name in shown if name.startswith(kind)]
