"""A simulated bootstrap: what services/server/links/bootstrap.py does, at one instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylay.services.messages.records import Kind, Run
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.instance import Identity
from raylay.services.replication.membership.bootstrap import BootstrapChoice, BootstrapCopy
from raylay.services.replication.unavailable import decode_unavailable

if TYPE_CHECKING:
    from sim.instance import Disk, Instance

ALL = (TopicRule(".*"),)
READ_BYTES = 2_000


def copy_log(disk: Disk, source: Instance) -> bool:
    """Fills an empty disk from an instance. False where that one cannot be a source now."""
    if not source.alive or not source.machine.ready:
        return False
    source.catch_up_commits()
    machine = source.machine
    world = disk.world
    world.fault(f"{disk.member.name} begins as a copy of {source.name}")
    world.probes["began as a copy"] += 1
    identity = Identity(disk.member.name, disk.member.group, disk.incarnation)
    copying = BootstrapCopy(identity, world.topics, machine.identity)
    choice = BootstrapChoice(ALL, world.topics.rules)
    lacks = source.journal.removed()
    lacks.update(machine.missing.ranges)
    copying.lacks(lacks)
    journal = disk.journal
    journal.start(lambda last_txid, commit_ns: None, lambda first_txid, error: None)
    at_txid = source.journal.first_txid - 1
    while at_txid < machine.committed_txid:
        runs = [
            run
            for run in source.journal.read(at_txid, READ_BYTES)
            if run.first_txid <= machine.committed_txid
        ]
        at_txid = runs[-1].last_txid
        _write(disk, source, copying.take(choice.of(runs), at_txid))
    _write(disk, source, copying.end(world.now_us))
    disk.journal = journal.crash()
    return True


def _write(disk: Disk, source: Instance, runs: list[Run]) -> None:
    for run in runs:
        disk.journal.stage(run)
    disk.journal.commit()
    for run in runs:
        disk.sow_ledger.journaled(run)
        if run.kind == Kind.UNAVAILABLE:
            (ranges,) = decode_unavailable(run).sets.values()
            lacked = tuple(n for a, b in ranges for n in range(a, b + 1))
            disk.log_lacked(run.publisher, lacked)
            continue
        sequences = tuple(n for a, b in run.ranges() for n in range(a, b + 1))
        for sequence in sequences:
            disk.index[run.publisher, sequence] = run
            # A copied run says when its source received it, by a clock that may have been ahead.
            came_us = source.disk.received_us.get((run.publisher, sequence), disk.world.now_us)
            received_us = min(run.receive_time_us, came_us)
            disk.received_us[run.publisher, sequence] = received_us
        disk.log_records(run, sequences)
