"""The drills of `make soak`: one after another on one fabric, those that were run least first."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from soak.ledger import COMPLAINTS_MAX, Entry

from raylay.services.drills.drill import Drill, DrillResult
from raylay.services.drills.reports import report
from raylay.services.drills.scenario import built_in
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric, Topic

PREFIX = "drill "


def next_drill(done: Iterable[Entry], chance: random.Random) -> str:
    """Of those that were clean the fewest times one by chance."""
    counts = Counter(e.scenario.removeprefix(PREFIX) for e in done if e.valid)
    fewest = min(counts[name] for name in built_in())
    return chance.choice([name for name in built_in() if counts[name] == fewest])


def declare(seed: int) -> Fabric:
    """Two regions of two, marked for drills."""
    fabric = Fabric(
        f"drills-{seed}",
        topics=[Topic("t/.*", "json")],
        downgrade_age="4s",
        journal={"segment_size": "4MiB"},
        tracing={"sampling_ratio": 0.001, "directory": "traces"},
        logs={"target": "file", "format": "json"},
        drills="allowed",
    )
    for name in ("Chicago", "NewYork"):
        fabric.region(name, instances=2)
    return fabric.connect_regions("async")


def run_one(fabric: Fabric, name: str, seed: int, directory: Path) -> Entry:
    """One drill for the ledger; its report goes to `directory`."""
    began_s = time.monotonic()
    try:
        result = Drill(fabric, built_in()[name], tell=print).run()
    except FabricError as error:
        took_s = time.monotonic() - began_s
        return Entry(seed, PREFIX + name, took_s, 0, 0, 0, {}, False, [str(error)], str(directory))
    page = report.write(result, directory)
    print(page)
    return entry_of(result, name, seed, time.monotonic() - began_s, directory)


def entry_of(result: DrillResult, name: str, seed: int, took_s: float, directory: Path) -> Entry:
    """A drill for the ledger."""
    judgement = result.judgement
    assert judgement is not None
    verdict = judgement.verdict
    wrong = [f"{each.law}: {each.text}" for each in judgement.broken] + judgement.complaints
    wrong += [str(place) for place in verdict.places if not place.valid]
    return Entry(
        seed,
        PREFIX + name,
        round(took_s, 1),
        verdict.published,
        verdict.persisted,
        sum(place.messages for place in verdict.places),
        dict(Counter(each.fault for each in result.injected)),
        result.valid,
        [text[:500] for text in wrong[:COMPLAINTS_MAX]],
        directory="" if result.valid else str(directory),
    )
