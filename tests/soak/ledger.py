"""What all soaks came to: one JSON line a run in `build/soak.jsonl`, and their sum.

A failed run's seed stays there until somebody deletes the file: replay it with `SEED=`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

LEDGER_FILE = Path(__file__).parents[2] / "build" / "soak.jsonl"
COMPLAINTS_MAX = 10


@dataclass(slots=True)
class Entry:
    """One run."""

    seed: int
    scenario: str
    seconds: float
    published: int
    persisted: int
    judged: int
    """Copies of messages that were looked at, in journals, at subscribers and at consumers."""
    faults: Mapping[str, int]
    valid: bool
    complaints: list[str] = field(default_factory=list)
    directory: str = ""
    """Where what a failed run left is kept."""


def append(path: Path, entry: Entry) -> None:
    """Adds a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry)) + "\n")


def entries(path: Path) -> list[Entry]:
    """All runs, oldest first; none where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [Entry(**json.loads(line)) for line in text.splitlines() if line]


def summary(found: list[Entry]) -> str:
    """All runs added up, in one line."""
    faults: Counter[str] = Counter()
    for entry in found:
        faults.update(entry.faults)
    failed = [f"{entry.scenario} SEED={entry.seed}" for entry in found if not entry.valid]
    return (
        f"{len(found)} runs, {sum(entry.seconds for entry in found) / 60:.0f} minutes, "
        f"{sum(entry.published for entry in found):,} messages published, "
        f"{sum(entry.judged for entry in found):,} copies judged, {faults.total()} faults ("
        + ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))
        + f"), {len(failed)} failed"
        + (": " + ", ".join(failed) if failed else "")
    )
