"""The checkers see every planted mistake."""

from __future__ import annotations

import pytest

from sim import mistakes, plans, run

FIRST_SEED = 1000
SEEDS_MAX = 400


@pytest.mark.slow
@pytest.mark.parametrize("name", mistakes.MISTAKES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    """Within a bounded number of seeds, by a law that is to see it, not by a stumble."""
    seen: set[str] = set()
    shown_on = mistakes.SHOWN_ON.get(name)
    first = mistakes.RARE.get(name, FIRST_SEED)
    for seed in range(first, first + SEEDS_MAX):
        if shown_on is not None and plans.draw(seed).topology.name != shown_on:
            continue
        put_back = any(action == "put_back" for _, action, _ in plans.draw(seed).script)
        if name in mistakes.PUT_BACK and not put_back:
            continue
        if name in mistakes.MOVED and not plans.draw(seed).resolves:
            continue
        if name in mistakes.TWINS and not plans.draw(seed).twins:
            continue
        result = run.run_seed(seed, mistakes.MISTAKES[name])
        crashes = [each.text for each in result.violations if each.law == "crash"]
        assert not crashes, f"{name}: seed {seed} says nothing of it: {crashes[0]}"
        seen |= {found.law for found in result.violations}
        if seen & mistakes.CAUGHT_BY[name]:
            return
    pytest.fail(f"{name}: not seen in {SEEDS_MAX} seeds, only {sorted(seen)}")
