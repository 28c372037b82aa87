"""The checkers see every planted mistake."""

from __future__ import annotations

import pytest

from sim import mistakes, run

FIRST_SEED = 1000
SEEDS_MAX = 400


@pytest.mark.parametrize("name", mistakes.MISTAKES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    """Within a bounded number of seeds, by a law and not by a stumble of the machine."""
    caught = None
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS_MAX):
        laws = {found.law for found in run.run_seed(seed, mistakes.MISTAKES[name]).violations}
        if laws - {"crash"}:
            caught = (seed, laws)
            break
    assert caught is not None, f"{name}: not seen in {SEEDS_MAX} seeds"
    assert caught[1] & mistakes.CAUGHT_BY[name], caught
