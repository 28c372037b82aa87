"""The position in the log from which a queue is rebuilt: behind what its store has, or, where the
store is empty, damaged or of another configuration, where the configuration says
(`recovery_point`)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from raylay.services.config.instance import QueueOwnerConfig
from raylay.services.errors import CorruptRecord, StorageError
from raylay.services.messages.bookmarks import Point
from raylay.services.messages.records import Flag, Run
from raylay.services.protocol.child.queue_control import OwnerBegin
from raylay.services.queues.checkpoint import QueueCheckpoint, RecoveryStart
from raylay.services.queues.definition import QueueDefinition, recovery_from
from raylay.services.queues.records import U64_MAX
from raylay.storage.queue import QueueStore, StoredQueue

HEADERS_AT_ONCE = 4_096


class HeaderReader(Protocol):
    """The reads of the journal that this file needs (`JournalReader`)."""

    def read_headers(self, after_txid: int, runs_max: int = ...) -> list[Run]:
        """Returns committed runs behind a transaction id, without their records."""


def rules_of(definition: QueueDefinition, incarnation: int) -> bytes:
    """Encodes all settings that decide which messages a queue has.

    Args:
        incarnation: the incarnation of the instance. Another incarnation has another journal.
    """
    return json.dumps(
        [
            incarnation,
            definition.stored_as,
            definition.kind,
            definition.topic,
            definition.filter,
            definition.recovery_point,
            definition.initial_owner,
        ]
    ).encode()


def start_of(
    config: QueueOwnerConfig, snapshot: QueueCheckpoint, begin: OwnerBegin
) -> RecoveryStart:
    """Returns the start state of a queue's machine.

    The machine's life includes that of the instance's process: an old copy of the data directory
    that is put back counts its starts anew, and gets back the records that were written after the
    copy was made.
    """
    life = (config.life + config.start_number) & U64_MAX
    return RecoveryStart(snapshot, begin.fence_txid, life, begin.leases, begin.serves)


def durable_recovery_start(
    definition: QueueDefinition,
    incarnation: int,
    store: QueueStore,
    journal: HeaderReader,
    committed_txid: int,
) -> tuple[QueueCheckpoint, str]:
    """Calls `recovery_start`, and stores the start of a queue that begins anew at once: such a
    queue's `now` is taken once, so what comes afterwards belongs to it even if its owner ends.

    Raises:
        StorageError: the journal or the store cannot be read.
    """
    stored = store.load()
    found, why = recovery_start(definition, incarnation, stored, journal, committed_txid)
    if stored is None or why:
        rules = rules_of(definition, incarnation)
        with suppress(StorageError):  # who saves it next says so
            store.save(StoredQueue(found.after_txid, rules, found.to_bytes()))
    return found, why


def recovery_start(
    definition: QueueDefinition,
    incarnation: int,
    stored: StoredQueue | None,
    journal: HeaderReader,
    committed_txid: int,
) -> tuple[QueueCheckpoint, str]:
    """Returns the checkpoint from which a queue is rebuilt.

    Args:
        incarnation: the incarnation of the instance.
        stored: the contents of the queue's store; None: it is empty.
        committed_txid: the last transaction that is committed.

    Returns:
        The checkpoint, and the reason why the stored one was not used; empty: it was used, or the
        store is empty.

    Raises:
        StorageError: the journal cannot be read.
    """
    why = ""
    point = recovery_from(definition.recovery_point)
    if stored is not None:
        why = "its configuration has changed"
        if stored.rules == rules_of(definition, incarnation):
            try:
                found = QueueCheckpoint.from_bytes(stored.snapshot)
                if found.folded_txid <= committed_txid:
                    return found, ""
                why = (
                    f"it is of transaction {found.folded_txid}, and the journal ends with "
                    f"{committed_txid}"
                )
                if point.kind == "now":
                    # The position `now` was fixed when the queue was begun, so what came since then
                    # is in the queue.
                    if found.after_txid <= committed_txid:
                        return replace(found, folded_txid=committed_txid), why
                    return QueueCheckpoint(committed_txid), why
            except CorruptRecord as error:
                why = str(error)
    return QueueCheckpoint(_behind(point, journal, committed_txid)), why


def _behind(point: Point, journal: HeaderReader, committed_txid: int) -> int:
    if point.kind == "epoch":
        return 0
    after_txid = 0
    while point.kind != "now":
        runs = journal.read_headers(after_txid, HEADERS_AT_ONCE)
        if not runs:
            break
        for run in runs:
            if point.kind == "time" and run.receive_time_us >= point.time_us:
                return run.first_txid - 1
            if (
                run.publisher == point.publisher
                and run.first_sequence <= point.sequence <= run.last_sequence
            ):
                if run.flags & Flag.CONTIGUOUS:
                    return run.first_txid + point.sequence - run.first_sequence
                # The position in the run is not known, so some earlier messages are included.
                return run.first_txid - 1
        after_txid = runs[-1].last_txid
    return committed_txid
