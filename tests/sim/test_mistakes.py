"""The checkers see every planted mistake."""

from __future__ import annotations

from itertools import count, islice

import pytest

from sim import mistakes, plans, run

pytestmark = pytest.mark.covers("SOW", "in a simulated fabric every SOW topic holds what follows")

FIRST_SEED = 1000
SEEDS_MAX = 400


def may_show(name: str, plan: plans.Plan, seed: int) -> bool:
    """Whether a seed has what the mistake needs: of the others none would show it."""
    return (
        mistakes.SHOWN_ON.get(name) in (None, plan.topology.name)
        and (
            name not in mistakes.PUT_BACK
            or any(action == "put_back" for _, action, _ in plan.script)
        )
        and (name not in mistakes.MOVED or bool(plan.resolves))
        and (name not in mistakes.WRITES or any(step[1] == "write" for step in plan.script))
        and (name not in mistakes.DELETES or plan.deletes)
        and (name not in mistakes.STATEFUL or bool(plan.stateful))
        and (name not in mistakes.FILTERED or plan.topology.passes is not None)
        and (
            name not in mistakes.REFILTERED
            or any(action == "refilter" for _, action, _ in plan.script)
        )
        and (name not in mistakes.FILTERED_SUBSCRIBERS or bool(plan.filters))
        and (
            name not in mistakes.PASSED_OVER
            or any(member.without for member in plan.topology.members.values())
        )
        and (name not in mistakes.QUEUES or plan.queues is not None)
        and (
            name not in mistakes.STRICT
            or (plan.queues is not None and plan.queues.definition.strict)
        )
        and (
            name not in mistakes.CLOCKS
            or any(action == "set_clock" for _, action, _ in plan.script)
        )
        and (name not in mistakes.DIRECT_LINKS or run.has_direct_links(seed))
        and (name not in mistakes.SOW_OF_FIELDS or run.has_key_fields(plan, seed))
        and (name not in mistakes.VIEWS or run.has_views(seed))
        and (name not in mistakes.TWINS or bool(plan.twins))
        and (name not in mistakes.LIVES or bool(plan.lives))
    )


@pytest.mark.covers("Queues", "in the simulator")
@pytest.mark.covers("The replication chapters", "sync: no persisted ack before local log")
@pytest.mark.covers("The replication chapters", "never through the same instance again")
@pytest.mark.slow
@pytest.mark.parametrize("name", mistakes.MISTAKES)
def test_a_planted_mistake_is_caught(name: str) -> None:
    """Within a bounded number of seeds, by a law that is to see it, not by a stumble."""
    seen: set[str] = set()
    first = mistakes.FIRST_SEEDS.get(name, FIRST_SEED)
    fitting = (seed for seed in count(first) if may_show(name, plans.draw(seed), seed))
    for seed in islice(fitting, SEEDS_MAX):
        result = run.run_seed(seed, mistakes.MISTAKES[name])
        crashes = [each.text for each in result.violations if each.law == "crash"]
        assert not crashes, f"{name}: seed {seed} says nothing of it: {crashes[0]}"
        seen |= {found.law for found in result.violations}
        if seen & mistakes.CAUGHT_BY[name]:
            return
    pytest.fail(f"{name}: not seen in {SEEDS_MAX} seeds, only {sorted(seen)}")
