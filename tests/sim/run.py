"""Runs seeds: `python -m sim.run --seeds N [--seed S] [--base B]`, with tests/ on PYTHONPATH."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from raylay.services.verification import checkers
from raylay.services.verification.history import RunHistory
from sim import consumers, nemesis, plans, slow
from sim.client import SimClient
from sim.slow import SlowWorld
from sim.world import Machines, World

LIVENESS_MS = 20_000
"""So long after healing everything must be acknowledged and copied, in simulated time."""
STEP_MS = 50
STEPS_MAX = 400_000
SLOW_EVERY = 4
"""Every so many seeds have clients that are too slow, too."""
SHOWN_OPERATIONS = 200
PROBED_SEEDS_MIN = 1000
"""A run of as many seeds fails where one of these was never hit."""
PROBES = (
    "clock set back",
    "clock set forward",
    "steady clock began anew",
    *(f"slow clients: {what}" for what in sorted(slow.MET)),
    "draft of a queue failed",
    "queue acknowledgment before its message",
    "queue claim",
    "queue decision bounced",
    "queue grants cross",
    "queue lease ended",
    "queue made again from its store",
    "queue message forgotten by its consumer",
    "queue message let go that is not here",
    "queue messages given back",
    "queue not saved",
    "queue owner crashed",
    "queue owner crashed between decision and commit",
    "queue owner told of live leases",
    "queue acknowledged under strict leasing",
    "queue acknowledgment refused",
    "queue removal said again",
    "queue removal: barrier",
    "queue removal: max_cancels",
    "queue removal: max_deliveries",
    "queue removal: time_limit",
    "queue request passed on by a third instance",
    "queue transfer granted",
    "connection handed over",
    "committed while a link was asked",
    "direct connection not gone on with",
    "link lost while its connection is handed over",
    "notice over a direct connection",
    "mode of a direct link",
    "copy began anew",
    "old copy found by peers",
    "old copy put back",
    "old copy put back in place",
    "took back its own tail",
    "former instance came back",
    "former instance retired",
    "learnt of a moved instance",
    "relocated",
    "relocated while it is filled",
    "relocated while it lives",
    "restarted client waited for a safe instance",
    "retired disk salvaged",
    "retired refused",
    "salvaged what was missing",
    "ack owed across a restart",
    "SOW folded on from its store",
    "storage recovered",
    "taken while the disk wrote",
    "SOW not written",
    "acted on what it wrote itself",
    "admission by hand refused",
    "admitted by hand",
    "asked before all was folded",
    "aggregation built",
    "conflated topic given",
    "view built from records",
    "asked behind an ack",
    "asked for what is held there",
    "asked for what went unmarked",
    "began as a copy",
    "deleted by a filter",
    "deleted from the SOW",
    "died before its SOW was written",
    "died before its recovery point was written",
    "comparison given up",
    "comparison in slices",
    "recovery point not written",
    "recovery point written in part",
    "client crashed before its store was flushed",
    "client failed over",
    "client gathered publishes",
    "client restarted with its store",
    "client waited for a safe instance",
    "client went on with what an earlier life left",
    "commit at the end of the turn",
    "commit failure",
    "commit failure ahead of the disk",
    "commit failure at the end of a turn",
    "commit failure behind a commit that is not taken",
    "commit handed to the writer thread",
    "conflict at a client's instance",
    "conflict between instances",
    "conflict kept",
    "conflict told by a destination",
    "contents fetched for a comparison",
    "crash with an unsynced commit",
    "deferred message sent after all",
    "deferred message skipped",
    "told what retention removed",
    "topic passed over",
    "downgrade released acks",
    "downgraded",
    "duplicate by two paths",
    "fetched in several parts",
    "frames waited behind a fetch",
    "fully durable waited",
    "gap filled later",
    "gap refused",
    "late for the SOW",
    "looked for in several turns",
    "merged in the SOW",
    "late record",
    "learnt names of publishers",
    "names lost with a connection",
    "died before names were written",
    "link crashed",
    "link moved to another server or incarnation",
    "link gave up its own connection for the other side's",
    "link over the other side's connection",
    "judged again by other filters",
    "link started with verdicts",
    "link waited for the other side to connect",
    "link ahead of its instance",
    "link woken by the writer thread",
    "logon of a link that is gone",
    "logon refused, not ready",
    "looked up the highest on a topic",
    "looked up what fills a hole",
    "new incarnation caught up",
    "notice at a connect",
    "notice sent",
    "resend of what is held",
    "resend to the survivor",
    "second server behind one address",
    "incarnation known by the other side's logon",
    "second server of a list",
    "refused a topic that nobody declared",
    "refused a delta",
    "refused by a state",
    "removed by retention",
    "run filtered out",
    "run routed in part",
    "verdict of a filter at the recovery point",
    "verdicts of other filters forgotten",
    "segment removed",
    "segments skipped in a resync",
    "stale epoch refused",
    "started with other filters",
    "subscriber failed over",
    "subscriber with a filter failed over",
    "transient publish",
    "unavailable recorded",
    "undid what it wrote itself",
    "unnumbered publish",
    "unnumbered publish acked",
    "unnumbered publish of a transient topic",
    "unnumbered publish refused by a state",
    "upgrade asked again",
    "upgraded",
    "waited at the recovery point",
    "wrote before the last was on disk",
)


@dataclass(slots=True)
class Result:
    """How a seed went."""

    seed: int
    topology: str
    violations: list[checkers.Violation] = field(default_factory=list)
    separate: list[checkers.Violation] = field(default_factory=list)
    """Verdicts that do not fail a seed."""
    probes: Counter[str] = field(default_factory=Counter)
    tail: str = ""
    steps: int = 0


def has_direct_links(seed: int) -> bool:
    """Returns whether links hand over their connections in it."""
    return seed % 3 == 0


def has_views(seed: int) -> bool:
    """Returns whether its instances have views: in few, as all that they hold is computed again
    with each fold."""
    return seed % 23 == 5


def has_key_fields(plan: plans.Plan, seed: int) -> bool:
    """Returns whether a seed runs once more, with keys that are made of fields. Once more, and not
    instead: the bodies are longer, so that much else comes at another time."""
    is_judged_by_body = plan.topology.passes is not None or bool(plan.filters or plan.twins)
    return seed % 10 == 4 and not is_judged_by_body


def execute(
    plan: plans.Plan, seed: int, machines: Machines | None = None, *, keyed: bool = False
) -> World:
    """Runs a plan: safety first, with faults, then liveness, without.

    Args:
        keyed: whether the keys of a SOW topic are made of fields.
    """
    world = World(
        seed,
        plan.topology,
        timing=plan.timing,
        machines=machines,
        policy=plan.policy,
        window_bytes=plan.window_bytes,
        segment_bytes=plan.segment_bytes,
        retention_bytes=plan.retention_bytes,
        encode=plan.encode,
        check_every=plan.check_every,
        resolves=plan.resolves,
        journaled=plan.journaled,
        contents=bool(plan.twins),
        stateful=plan.stateful,
        direct_links=has_direct_links(seed),
        sow=True,
        deletes=plan.deletes,
        views=has_views(seed) and not keyed,
        keyed=keyed,
        queues=plan.queues,
    )
    for name, servers, group, topic in plan.clients:
        durable = name in plan.fully_durable
        SimClient(
            world,
            name,
            servers,
            group,
            subscribe=topic,
            fully_durable=durable,
            part=plan.parts.get(name),
            client_name=plan.twins.get(name, ""),
            filter_=plan.filters.get(name, ""),
            owns_store=name in plan.lives,
        )
    consumers.begin(world)
    for time_ms, client, topics in plan.publishes:
        world.at(time_ms * 1000, world.clients[client].publish, topics)
    for time_ms, client, topic in plan.commands:
        world.at(time_ms * 1000, world.clients[client].publish_unnumbered, topic)
    for time_ms, action, arguments in plan.script:
        world.at(time_ms * 1000, nemesis.perform, world, action, arguments)
    world.run_until(plan.end_ms * 1000)
    # The last faults of the script may lie behind the end of the publishing.
    world.run_until(max(plan.end_ms, *(step[0] for step in plan.script), 0) * 1000 + 1000)
    world.everything_heals()
    consumers.rest(world)
    settle(world)
    if world.queues is not None:
        consumers.consume(world)
        settle(world)
        consumers.end(world)
    # What was sent while the network was slow is still on its way.
    world.run_until(max(world.now_us, *world.arrivals_us()))
    return world


def settle(world: World) -> None:
    """Runs until nothing is left to happen, or it takes too long."""
    settled = 0
    # Twice: a subscriber's next batch may be about to be sent, and nobody could tell.
    for _ in range(LIVENESS_MS // STEP_MS):
        world.run_until(world.now_us + STEP_MS * 1000)
        settled = settled + 1 if world.settled() else 0
        if settled == 2 or world.steps > STEPS_MAX:
            break


def run_seed(seed: int, machines: Machines | None = None) -> Result:
    """Runs and judges one seed."""
    plan = plans.draw(seed)
    result = Result(seed, plan.topology.name)
    history: RunHistory | None = None
    try:
        world = execute(plan, seed, machines)
        history = world.finish()
        result.probes, result.steps = world.probes, world.steps
        _judge(result, world, history)
        if seed % SLOW_EVERY == 0:
            _run_slow_clients(result)
        if has_key_fields(plan, seed):
            is_first = not result.violations
            with_fields = _run_with_key_fields(result, machines)
            history = with_fields if is_first else history
    except Exception:
        result.violations.append(checkers.Violation("crash", traceback.format_exc(limit=-6)))
    if result.violations and history is not None:
        result.tail = history.tail(SHOWN_OPERATIONS)
    return result


def _judge(result: Result, world: World, history: RunHistory) -> None:
    faults = (checkers.Violation(law, text) for law, text in world.queue_faults[:20])
    for violation in (*faults, *checkers.check_all(history)):
        (result.separate if violation.separate else result.violations).append(violation)


def _run_with_key_fields(result: Result, machines: Machines | None) -> RunHistory:
    """The seed once more, where a SOW topic makes its keys of fields and is stored in blocks."""
    world = execute(plans.draw(result.seed), result.seed, machines, keyed=True)
    history = world.finish()
    result.probes.update(world.probes)
    result.steps += world.steps
    _judge(result, world, history)
    return history


def _run_slow_clients(result: Result) -> None:
    """The seed's clients that do not read as fast as they are sent, in a world of their own: what
    becomes of them depends on nothing that replication decides."""
    world = SlowWorld(result.seed)
    result.violations += [checkers.Violation("slow clients", text) for text in world.run()]
    result.probes.update(f"slow clients: {what}" for what in world.met)


def run_seeds(seeds: Iterable[int], processes: int | None = None) -> Iterable[Result]:
    """Runs seeds on all cores, results in order."""
    count = processes or os.cpu_count() or 1
    if count == 1:
        yield from map(run_seed, seeds)
        return
    pool = multiprocessing.get_context("fork").Pool(count)
    try:
        yield from pool.imap(run_seed, seeds, chunksize=4)
        # Asked to end, and not killed: a signal may find a process within a handler of its own.
        pool.close()
    except BaseException:
        pool.terminate()
        raise
    finally:
        pool.join()


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="sim.run", description="Simulated fabrics.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, help="the first one: with --seeds 1 it is replayed")
    parser.add_argument("--base", type=int, help="the first one, where --seed is not given")
    parser.add_argument("--probes", action="store_true", help="show how often each was hit")
    parser.add_argument("--failures", type=int, default=3, help="failing seeds shown in full")
    options = parser.parse_args(arguments)
    base = options.seed if options.seed is not None else options.base
    if base is None:
        base = random.SystemRandom().randrange(1 << 31)
    print(f"sim: base seed {base}", flush=True)
    started_s = time.perf_counter()
    probes: Counter[str] = Counter()
    laws: Counter[str] = Counter()
    separate: Counter[str] = Counter()
    failed = 0
    for result in run_seeds(range(base, base + options.seeds), 1 if options.seeds == 1 else None):
        probes.update(result.probes)
        separate.update(violation.law for violation in result.separate)
        if result.violations:
            failed += 1
            laws.update({violation.law for violation in result.violations})
            if failed <= options.failures:
                print(result.tail)
            print(f"seed {result.seed} ({result.topology}) failed:")
            for violation in result.violations[:5]:
                print(f"  {violation.law}: {violation.text}")
            print(f"  replay: PYTHONPATH=tests python -m sim.run --seeds 1 --seed {result.seed}")
            sys.stdout.flush()
    if options.probes:
        for name, count in sorted(probes.items()):
            print(f"probe {name}: {count}")
    for law, count in laws.most_common():
        print(f"failed law {law}: {count} seeds")
    for law, count in separate.most_common():
        print(f"separate verdict {law}: {count} times")
    missed = [name for name in PROBES if not probes[name]]
    unprobed = bool(missed) and options.seeds >= PROBED_SEEDS_MIN
    if unprobed:
        print(f"never hit: {', '.join(missed)}")
    elapsed_s = time.perf_counter() - started_s
    print(f"sim: {options.seeds} seeds, {failed} failed, base seed {base}, {elapsed_s:.1f} s")
    return 1 if failed or unprobed else 0


if __name__ == "__main__":
    sys.exit(main())
