"""What the journals of the tiny world hold: production runs of one record each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.messages.records import (
    Command,
    Flag,
    RecordBuilder,
    Run,
    decode_record,
)
from raylay.services.queues.decisions import Key
from raylay.services.queues.definition import QueueDefinition
from raylay.services.queues.records import (
    Keys,
    OwnershipChange,
    read_acknowledgment,
    read_removal,
    read_transfer,
)

STEP_US = 100_000
"""A step of the world's clock."""
LEASE_STEPS = 40
QUEUE, UNDERLYING, TYPE = "q", "orders", "json"


class Rec(NamedTuple):
    """A record as the checks see it.

    Attributes:
        kind: `pub`, `ack`, `rm` or `xfer`.
        keys: messages that it removes, or that it is.
        moves: whose they are to be.
        by: who authored it: an instance's name, or empty.
        why: of a removal.
        color: of a message: what filters ask for.
        payload: the record itself.
    """

    ident: Key
    kind: str
    payload: bytes
    keys: tuple[Key, ...] = ()
    moves: tuple[OwnershipChange, ...] = ()
    by: str = ""
    why: str = ""
    tag: int = 0

    def run(self, path: tuple[int, ...]) -> Run:
        """It as it stands in a journal, without its place there."""
        is_message = self.kind == "pub"
        flags = Flag.CONTIGUOUS if is_message else Flag.CONTIGUOUS | Flag.COMMANDS
        topic = UNDERLYING if is_message else QUEUE
        publisher, sequence = self.ident
        return Run(
            publisher,
            sequence,
            sequence,
            1,
            self.payload,
            topic.encode(),
            TYPE.encode(),
            path,
            flags=flags,
        )


def message(publisher: int, sequence: int, color: int, expiration_steps: int) -> Rec:
    """What a publisher sends."""
    body = json.dumps({"color": color}).encode()
    expiration_s = expiration_steps * STEP_US // 1_000_000
    builder = RecordBuilder(publisher, UNDERLYING, TYPE)
    payload = builder.build(sequence, body, 0, expiration_s=expiration_s)
    return Rec((publisher, sequence), "pub", payload, ((publisher, sequence),))


def command(publisher: int, sequence: int, number: int, body: bytes) -> Rec:
    """A record on the queue's topic."""
    payload = RecordBuilder(publisher, QUEUE, TYPE).build(sequence, body, 0, command=number)
    ident = publisher, sequence
    if number == Command.TRANSFER:
        said = read_transfer(body)
        return Rec(ident, "xfer", payload, (), tuple(said.moves), said.by, tag=said.tag)
    if number == Command.QUEUE_REMOVAL:
        gone = read_removal(body)
        return Rec(ident, "rm", payload, each(gone.keys), (), gone.by, gone.why, gone.tag)
    return Rec(ident, "ack", payload, each(read_acknowledgment(body).keys))


def each(keys: Keys) -> tuple[Key, ...]:
    """Ranges, one by one."""
    return tuple(
        (publisher, sequence)
        for publisher, ranges in keys.items()
        for first, last in ranges
        for sequence in range(first, last + 1)
    )


class Entry(NamedTuple):
    """A record in a journal, or on its way into it."""

    rec: Rec
    path: tuple[int, ...]


class Disk:
    """What an instance keeps: its journal, and the last snapshot of its queue."""

    def __init__(self, incarnation: int, expired: set[Key]) -> None:
        self.incarnation = incarnation
        self.expired = expired
        self.journal: list[Entry] = []
        self.runs: list[Run] = []
        self.held: dict[Key, int] = {}
        self.commits = [0]
        self.first = 0
        """What is before this is removed from the journal."""
        self.removed: set[Key] = set()
        self.stored = b""
        self.is_rolled = False
        self.proxied = False

    def add(self, entry: Entry, now_us: int) -> Run:
        """Appends one."""
        self.held[entry.rec.ident] = len(self.journal)
        self.journal.append(entry)
        run = replace(
            entry.rec.run(entry.path), first_txid=len(self.journal), receive_time_us=now_us
        )
        self.runs.append(run)
        if entry.rec.kind in ("ack", "rm"):
            self.removed.update(entry.rec.keys)
        return run

    # What a machine and its picking ask of it.
    def tree(self, txid: int) -> dict[str, Any]:
        """What a message says."""
        found: dict[str, Any] = json.loads(decode_record(self.runs[txid - 1].payload).body)
        return found

    def around(self, txid: int) -> EvalContext:
        """Nothing is asked of it."""
        return NO_CONTEXT

    def body(self, txid: int) -> bytes:
        """What a delivery has."""
        return decode_record(self.runs[txid - 1].payload).body


def queue(at_most_once: bool, initial_owner: str) -> QueueDefinition:
    """The queue of a world."""
    return QueueDefinition(
        QUEUE,
        TYPE,
        kind="group_local" if initial_owner else "queue",
        underlying=UNDERLYING,
        at_most_once=at_most_once,
        lease_us=LEASE_STEPS * STEP_US,
        subscription_backlog_max=100,
        deferred_ack_us=0,
        initial_owner=initial_owner,
    )


def keys_of_moves(moves: Sequence[OwnershipChange]) -> set[Key]:
    """The messages that a transfer is about."""
    return {
        (move.publisher, sequence)
        for move in moves
        for sequence in range(move.first, move.last + 1)
    }
