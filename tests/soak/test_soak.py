"""`make soak`: MINUTES of faults (or SECONDS; default 10 minutes), SEED for their order.

A third of the time goes to a sync group of three whose history the simulator's checkers judge, a
third to three regions and a pair, a third to the drills of `raylay drill`, those that were run
least first. SCENARIO=group, =regions or =drills gives one of them all of it. Each run is kept in
build/soak.jsonl with its seed and what it came to; the last line adds up over all of them. What a
failed run leaves (journals, logs, soak.log, a drill's report) stays in build/soak.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak import drills
from soak.driver import Plan, Report, soak
from soak.ledger import COMPLAINTS_MAX, LEDGER_FILE, Entry, append, entries, summary

from raylay.services.fabric.records.registry import REGISTRY_VARIABLE

SECONDS_DEFAULT = 600.0
SETTLE_S = 900
SCENARIOS = ("group", "regions", "drills")
DRILLS = "drills"


def seconds_asked() -> float:
    """For all scenarios together."""
    if os.environ.get("MINUTES"):
        return float(os.environ["MINUTES"]) * 60
    return float(os.environ.get("SECONDS") or SECONDS_DEFAULT)


def scenarios_asked() -> tuple[str, ...]:
    """All, or the one of SCENARIO."""
    asked = os.environ.get("SCENARIO")
    assert not asked or asked in SCENARIOS, f"SCENARIO is one of {', '.join(SCENARIOS)}"
    return (asked,) if asked else SCENARIOS


def plan_of(scenario: str, seconds: float, seed: int) -> Plan:
    """What runs."""
    if scenario == "group":
        return Plan(seconds, seed, regions=0, pair=False, trio=True, queue=True)
    return Plan(seconds, seed, queue=True)


@pytest.fixture(scope="module", autouse=True)
def _sum() -> Iterator[None]:
    yield
    print(f"\nsoak so far: {summary(entries(LEDGER_FILE))}")


@pytest.mark.soak
@pytest.mark.timeout(int(seconds_asked()) + SETTLE_S)
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != DRILLS])
def test_faults_for_long(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scenarios_asked()
    if scenario not in asked:
        pytest.skip("SCENARIO names another one")
    seconds = seconds_asked() / len(asked)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    directory = LEDGER_FILE.parent / "soak" / f"{scenario}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    monkeypatch.setenv(REGISTRY_VARIABLE, str(directory))
    print(f"\n{scenario}: SEED={seed} SECONDS={seconds:.0f} {directory}")
    complaints = ["it was not judged: it stopped in the middle"]
    report: Report | None = None
    try:
        report = soak(plan_of(scenario, seconds, seed), directory)
        complaints = [] if report.valid else str(report).splitlines()[1:]
        print(report)
    finally:
        append(LEDGER_FILE, entry_of(scenario, seed, seconds, report, complaints, directory))
    log = (directory / "soak.log").read_text(encoding="utf-8")
    assert report.valid, f"{scenario} SEED={seed}\n{report}\n{log}"
    shutil.rmtree(directory)


@pytest.mark.soak
@pytest.mark.timeout(int(seconds_asked()) + SETTLE_S)
def test_drills_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scenarios_asked()
    if DRILLS not in asked:
        pytest.skip("SCENARIO names another one")
    end_s = time.monotonic() + seconds_asked() / len(asked)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    chance = random.Random(seed)
    directory = LEDGER_FILE.parent / "soak" / f"drills-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    monkeypatch.setenv(REGISTRY_VARIABLE, str(directory))
    print(f"\ndrills: SEED={seed} {directory}")
    bad: list[Entry] = []
    with drills.declare(seed).start(directory / "fabric", timeout_s=SETTLE_S) as fabric:
        fabric.wait_connected(SETTLE_S)
        while not bad and time.monotonic() < end_s:
            name = drills.next_drill(entries(LEDGER_FILE), chance)
            entry = drills.run_one(fabric, name, seed, directory / name)
            append(LEDGER_FILE, entry)
            bad += [entry] * (not entry.valid)
    assert not bad, f"SEED={seed}: {bad}"
    shutil.rmtree(directory)


def entry_of(
    scenario: str,
    seed: int,
    seconds: float,
    report: Report | None,
    complaints: list[str],
    directory: Path,
) -> Entry:
    """A run for the ledger; None: it did not come to its end."""
    if report is None:
        return Entry(
            seed, scenario, seconds, 0, 0, 0, {}, False, complaints, directory=str(directory)
        )
    verdict = report.verdict
    return Entry(
        seed,
        scenario,
        round(report.seconds, 1),
        verdict.published,
        verdict.persisted,
        sum(place.messages for place in verdict.places)
        + (report.queue.given if report.queue is not None else 0),
        {name: count for name, count in report.faults.items() if count > 0},
        report.valid,
        [complaint[:500] for complaint in complaints[:COMPLAINTS_MAX]],
        directory="" if report.valid else str(directory),
    )
