"""Random schedules by seed, and schedules made by hand."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, NamedTuple

from .healing import heal
from .instance import Rules
from .world import Action, Violation, World

TOPOLOGIES = [
    ("AB", ["AB"]),
    ("ABC", ["AB", "BC", "AC"]),
    ("ABC", ["AB", "BC"]),
    ("ABCD", ["AB", "BC", "CD", "AD"]),
    ("ABCD", ["AB", "CD", "AC", "BD"]),
    ("ABCD", ["AB", "AC", "AD"]),
]
MESHES = [*TOPOLOGIES[:2], ("ABCD", ["AB", "BC", "CD", "AD", "AC", "BD"])]
"""Where all have links to one another, none has to pass anything on."""
FAULTS = [
    "crash",
    "restart",
    "restart",
    "losedisk",
    "rollback",
    "qcrash",
    "fail",
    "cut",
    "heal",
    "heal",
    "brk",
    "pfail",
    "cdie",
    "cjoin",
    "proxy",
    "lostpub",
]
USUAL = [
    "pub",
    "pack",
    "commit",
    "commit",
    "commit",
    "send",
    "send",
    "send",
    "recv",
    "recv",
    "recv",
    "conn",
    "fold",
    "fold",
    "fold",
    "fold",
    "in",
    "in",
    "in",
    "out",
    "out",
    "out",
    "deliver",
    "request",
    "timer",
    "cnew",
    "ack",
    "ack",
    "cancel",
    "tick",
    "pfail0",
]
STEPS = (60, 150, 300)
TRIMS = 0.1


class Ran(NamedTuple):
    """What came of a schedule.

    Attributes:
        missed: actions that were not possible.
    """

    world: World
    violation: str
    missed: list[str]


def explore(
    seed: int,
    rules: Rules,
    *,
    without: Collection[str] = (),
    at_most_once: bool = False,
    group_local: bool = False,
    one_never_returns: bool = False,
    narrow: str = "",
    trims: bool = False,
) -> Ran:
    """Runs the schedule of a seed.

    Args:
        narrow: what links do not pass on (world.py).
        trims: whether journals are removed from the front.
    """
    chance = random.Random(seed)
    names, pairs = chance.choice(MESHES if narrow else TOPOLOGIES)
    world = World(
        names,
        pairs,
        rules,
        at_most_once=at_most_once,
        initial_owner=chance.choice(names) if group_local else "",
        store_every=chance.choice([1, 3, 10]),
        folded_most=chance.choice([1, 1, 5]),
        narrow=narrow,
        trims=trims,
    )
    faults = chance.choice([0, 0.03, 0.08, 0.15, 0.25])
    steps, tries = chance.choice(STEPS), 0
    ending = _ending(chance, world, one_never_returns)
    try:
        while len(world.log) < steps and tries < steps * 8:
            tries += 1
            if trims and chance.random() < TRIMS:
                world.do("trim", chance.choice(world.names))
                continue
            action = _next(chance, world, faults, without)
            if action is not None:
                world.do(*action)
        heal(world, *ending)
    except Violation as error:
        return Ran(world, str(error), [])
    return Ran(world, "", [])


def _ending(chance: random.Random, world: World, one_never_returns: bool) -> tuple[str, ...]:
    final = chance.choice(world.names)
    if not one_never_returns:
        return (final,)
    dead = chance.choice(world.names)
    rest = [name for name in world.names if name != dead]
    seen, waiting = {rest[0]}, [rest[0]]
    while waiting:
        at = waiting.pop()
        for a, b in world.links:
            if a == at and b != dead and b not in seen:
                seen.add(b)
                waiting.append(b)
    if len(seen) < len(rest):
        return (final,)  # what is left would not be one network
    return chance.choice(rest), dead, chance.choice(rest)


def _next(
    chance: random.Random, world: World, faults: float, without: Collection[str]
) -> Action | None:
    name = chance.choice(world.names)
    link = chance.choice(list(world.links))
    who = chance.choice(list(world.clients)) if world.clients else None
    publisher = chance.choice(list(world.publishers))
    if chance.random() < faults:
        kind = chance.choice(FAULTS)
        return None if kind in without else _fault(chance, world, kind, name, link, who, publisher)
    kind = chance.choice(USUAL)
    if kind == "pub":
        return kind, publisher, chance.choice([0, 1]), chance.choice([0, 0, 0, 60])
    if kind == "pack":
        return kind, publisher
    if kind in ("send", "recv", "conn"):
        return kind, *link
    if kind == "cnew":
        color = chance.choice([None, 0, 1])
        return (kind, name, color) if len(world.clients) < 3 else None
    if kind in ("ack", "cancel"):
        if who is None or (kind == "cancel" and chance.random() < 0.7):
            return None
        return kind, who, chance.randrange(2)
    if kind == "tick":
        return (kind, chance.choice([3, 10, 45])) if chance.random() < 0.3 else None
    if kind == "pfail0":
        at = world.publishers[publisher].at
        return ("pfail", publisher, name) if at is None else None
    return kind, name


def _fault(
    chance: random.Random,
    world: World,
    kind: str,
    name: str,
    link: tuple[str, str],
    who: str | None,
    publisher: int,
) -> Action | None:
    if kind == "rollback":
        return kind, name, chance.randrange(len(world.instances[name].disk.commits))
    if kind in ("cut", "heal", "brk"):
        return kind, *link
    if kind == "pfail":
        return kind, publisher, name, chance.choice([1, 2, 99])
    if kind == "cdie":
        return (kind, who) if who else None
    if kind == "cjoin":
        return (kind, who, name) if who else None
    if kind == "proxy":
        return kind, name, chance.random() < 0.5
    if kind == "lostpub":
        return "pub", publisher, chance.choice([0, 1]), 0, False
    return kind, name


def play(
    topology: str,
    steps: str,
    rules: Rules,
    *,
    final: str = "B",
    dead: str = "",
    proxy: str = "",
    at_most_once: bool = False,
    initial_owner: str = "",
    narrow: str = "",
) -> Ran:
    """Runs a schedule made by hand: actions with their arguments behind dots; `=`: all that is
    under way arrives, and nobody decides anything new.

    Args:
        topology: names of the instances, and after a blank their links.
    """
    names, *pairs = topology.split()
    world = World(
        names,
        pairs,
        rules,
        at_most_once=at_most_once,
        initial_owner=initial_owner,
        narrow=narrow,
    )
    missed: list[str] = []
    try:
        for step in steps.split():
            if step == "=":
                world.settle()
            elif not world.do(*_read(step)):
                missed.append(step)
        heal(world, final, dead, proxy)
    except Violation as error:
        return Ran(world, str(error), missed)
    return Ran(world, "", missed)


_WORDS = {"None": None, "True": True, "False": False, "p": 1, "q": 2}


def _read(step: str) -> tuple[Any, ...]:
    kind, *rest = step.split(".")
    words = [int(word) if word.isdigit() else _WORDS.get(word, word) for word in rest]
    return kind, *words
