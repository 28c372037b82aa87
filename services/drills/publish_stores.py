"""The law of publish stores, one of those that checkers.py lists."""

from __future__ import annotations

from collections import Counter, defaultdict

from raylay.services.drills.history import (
    Acked,
    ClientCrashed,
    Crashed,
    Failed,
    Heard,
    HeldBefore,
    History,
    Journaled,
    Published,
    Sent,
)
from raylay.services.drills.verdicts import VIOLATIONS_MAX, Key, Violation, at, listed, named


def store(history: History) -> list[Violation]:
    """A publish store forgets only what some instance acked or refused, and nothing acked is
    refused later by anyone. Another content is another message: what a logon names durable may be
    of another client of that name (see the top of checkers.py), and so may be what another instance
    than the one that acked it holds, or on another disk, and refuses it for. A number is used once,
    but that an instance gave, lost when an older copy was put in place of its directory, and gives
    again before a peer has found that out: where another one holds the first, it refuses it."""
    settled: set[Key] = set()
    acked: defaultdict[tuple[Key, int], set[tuple[str, int]]] = defaultdict(set)
    disks: Counter[str] = Counter()
    published: set[tuple[Key, int]] = set()
    anybody: set[Key] = set()
    digests: dict[tuple[str, Key], int] = {}
    by_clients = {each.publisher for each in history.operations if isinstance(each, Sent)}
    given: defaultdict[int, set[Key]] = defaultdict(set)
    lost: defaultdict[int, set[Key]] = defaultdict(set)
    found = []
    for operation in history.operations:
        if isinstance(operation, Published):
            key = (operation.publisher, operation.sequence)
            if (key, operation.digest) in published and not any(
                key in keys for keys in lost.values()
            ):
                text = f"{at(operation.time_us)} {operation.client} published {named(key)}, "
                found.append(Violation("store", text + "a number that was used before"))
            published.add((key, operation.digest))
            anybody.add(key)
            if operation.digest:
                digests[operation.client, key] = operation.digest
        elif isinstance(operation, ClientCrashed):
            for sequence in operation.lost:
                key = (operation.publisher, sequence)
                published.discard((key, digests.get((operation.client, key), 0)))
        elif isinstance(operation, Acked):
            every = {(operation.publisher, sequence) for sequence in operation.sequences}
            for key in every:
                digest = digests.get((operation.client, key), 0)
                settled.add(key)
                if operation.by != "logon" or not digest:
                    acked[key, digest].add((operation.instance, disks[operation.instance]))
            if not every <= anybody:
                text = f"{at(operation.time_us)} {operation.instance} acked {operation.client} "
                text += listed(every - anybody)
                found.append(Violation("store", f"{text}, never published"))
        elif isinstance(operation, Failed):
            key = (operation.publisher, operation.sequence)
            digest = digests.get((operation.client, key), 0)
            settled.add(key)
            by = acked[key, digest]
            if (operation.instance, disks[operation.instance]) in by or (by and not digest):
                text = f"{at(operation.time_us)} {operation.instance} refused {operation.client} "
                text += f"{named(key)} ({operation.reason}), which was acked before"
                found.append(Violation("store", text))
        elif isinstance(operation, Crashed) and operation.lost:
            disks[operation.instance] += 1
            lost[operation.incarnation] |= given.pop(operation.incarnation, set())
        elif isinstance(operation, Journaled | HeldBefore):
            if operation.publisher not in by_clients:
                held = {(operation.publisher, sequence) for sequence in operation.sequences}
                lost[operation.incarnation] -= held
                if isinstance(operation, HeldBefore) or not operation.path:
                    given[operation.incarnation] |= held
        elif isinstance(operation, Heard):
            for sequence in operation.sequences:
                key = (operation.publisher, sequence)
                # By a logon also what is the other client's (see the top of checkers.py).
                if key not in settled:
                    text = f"{at(operation.time_us)} {operation.client} forgot {named(key)}, "
                    found.append(Violation("store", text + "never acked"))
    return found[:VIOLATIONS_MAX]
