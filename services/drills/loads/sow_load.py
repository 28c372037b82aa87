"""The load of a drill on a SOW topic: its writers, the answers of instances in the end, and the
writes in their journals.

One writer in each region publishes records, deltas and deletions by key, each writer on keys of its
own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from raylay.services.client import Client
from raylay.services.client.failover import Server
from raylay.services.configuration.reserved import SOW_TYPE
from raylay.services.drills.judgement import reaching, read_runs
from raylay.services.errors import RaylayError
from raylay.services.messages.records import Command, Kind, Run, iterate_records, publisher_id
from raylay.services.messages.topics import DRILL_SOW_TOPIC
from raylay.services.verification.history import HistoryMember
from raylay.services.verification.laws.sow_topics import (
    SowRow,
    SowVerdict,
    SowWrite,
    against_journal,
    against_publishers,
)
from raylay.storage.stores import MemoryPublishStore

RATE_PER_S = 20.0
KEYS = 16
FIELDS = 5
"""Number of fields that deltas change. The number of keys is no multiple of it, else each key would
only ever get one field."""
DELETIONS = 7
"""Every change whose number is a multiple of this is a deletion."""
DELTAS = 3
"""Every other change whose number is no multiple of this is a delta."""
ASK_S_MAX = 10.0
DELETE_S_MAX = 5.0
SOW_STORED_AS = f"{SOW_TYPE}/{DRILL_SOW_TOPIC}"
UNKEPT = f"no region has topic {DRILL_SOW_TOPIC} at every instance"
Options = Callable[[str, str], dict[str, Any]]
"""Returns the options of a client by its name and its region."""


@dataclass(eq=False)
class SowWriter:
    """One publisher on the drills' SOW topic, and the record of its writes."""

    name: str
    group: str
    client: Client | None = None
    store: MemoryPublishStore = field(default_factory=MemoryPublishStore)
    written: list[SowWrite] = field(default_factory=list)
    """The writes that were published; a delta is recorded as the whole message that results from
    it."""
    _values: dict[bytes, dict[str, int]] = field(default_factory=dict)

    @property
    def publisher(self) -> int:
        return publisher_id(self.name)

    @property
    def keys(self) -> list[bytes]:
        """Keys of the writer. No other writer uses them."""
        return [b"%016x-%d" % (self.publisher, number) for number in range(KEYS)]

    @property
    def is_acknowledged(self) -> bool:
        return not self.store.messages

    async def open(self, options: dict[str, Any]) -> None:
        self.client = Client(self.name, publish_store=self.store, **options)
        await self.client.connect()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Publishes at the load's rate until `is_over` returns true."""
        client = self.client
        assert client is not None
        number = 0
        while not is_over():
            number += 1
            # Known before the publish returns: it may wait for room.
            command, key, body = self.change(number, client.machine.outbox.next_sequence)
            if command == Command.DELETE:
                await client.sow_delete(DRILL_SOW_TOPIC, keys=[key], message_type=SOW_TYPE)
            elif command == Command.DELTA_PUBLISH:
                await client.delta_publish(DRILL_SOW_TOPIC, body, SOW_TYPE, key=key)
            else:
                await client.publish(DRILL_SOW_TOPIC, body, SOW_TYPE, key=key)
            await asyncio.sleep(1 / RATE_PER_S)

    def change(self, number: int, sequence: int) -> tuple[int, bytes, bytes]:
        """Makes and records the next change. Returns its (command, key, body).

        Args:
            number: the number of the change, from 1.
        """
        key = self.keys[number * 5 % KEYS]
        fields = {"n": sequence, f"d{number % FIELDS}": number}
        command = Command.DELETE
        if number % DELETIONS:
            command = Command.PUBLISH if number % DELTAS else Command.DELTA_PUBLISH
        before = self._values.pop(key, {})
        whole: bytes | None = None
        if command != Command.DELETE:
            merged = before | fields if command == Command.DELTA_PUBLISH else fields
            self._values[key] = merged
            whole = json.dumps(merged).encode()
        self.written.append(SowWrite(self.publisher, sequence, (key,), whole))
        return command, key, json.dumps(fields).encode()


async def ask(name: str, keys: list[bytes], options: Mapping[str, Any]) -> dict[bytes, SowRow]:
    """Returns the records that one instance has under these keys.

    Args:
        name: the name of the client.
        options: the options of the client, whose only server is that instance.

    Raises:
        RaylayError: the instance refused.
        TimeoutError: it did not answer.
    """
    async with asyncio.timeout(ASK_S_MAX), Client(name, **options) as client:
        rows = await client.sow(
            DRILL_SOW_TOPIC, message_type=SOW_TYPE, keys=keys, batch=1_000, non_regex_topic=True
        ).all()
    return {
        row.record.key: SowRow(row.record.publisher, row.record.sequence, bytes(row.record.body))
        for row in rows
    }


class SowLoad:
    """The writers of a drill, and the answers of the instances in the end. Owner: the drill's event
    loop. Lifecycle: `open` to `close`.

    Args:
        groups: the names of the instances of each region.
        statuses: the status of each instance before the drill.

    Attributes:
        why: the reason why nothing is published; empty: writers publish.
        complaints: faults of the load itself.
    """

    def __init__(
        self,
        number: str,
        groups: Mapping[str, Sequence[str]],
        statuses: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._number = number
        self._groups = groups
        self._keeping = [
            name for name, told in statuses.items() if SOW_STORED_AS in told.get("sow_topics", {})
        ]
        # A client may come to any instance of its region.
        self.writers = [
            SowWriter(f"drill-{number}-{group}-sow", group)
            for group, names in groups.items()
            if all(name in self._keeping for name in names)
        ]
        self.why = "" if self.writers else UNKEPT
        self.complaints: list[str] = []
        self.rows: dict[str, dict[bytes, SowRow]] = {}
        self._publishing = True
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def publishers(self) -> list[int]:
        return [writer.publisher for writer in self.writers]

    async def open(self, options: Options) -> None:
        """Connects the writers and begins to publish.

        Args:
            options: returns the options of a client by its name and its region.
        """
        for writer in self.writers:
            await writer.open(options(writer.name, writer.group))
        self._tasks = [
            asyncio.create_task(writer.run(lambda: not self._publishing)) for writer in self.writers
        ]

    async def settle(self, wait_s: float) -> None:
        """Ends the publishing, and waits until every writer has its acks."""
        self._publishing = False
        for done in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(done, Exception):
                self.complaints.append(f"a writer of the SOW topic failed: {done}")

        async def flush(writer: SowWriter) -> None:
            assert writer.client is not None
            try:
                await writer.client.flush(wait_s)
            except (TimeoutError, RaylayError) as error:
                self.complaints.append(f"{writer.name} waits for acks: {error!r}")

        await asyncio.gather(*map(flush, self.writers))

    async def ask(self, servers: Iterable[Server], options: Options) -> None:
        """Asks every instance that has the topic for the writers' records."""
        keys = [key for writer in self.writers for key in writer.keys]

        async def ask_one(server: Server) -> None:
            name = f"drill-{self._number}-asks-{server.instance}"
            made = {**options(name, server.group), "servers": [server]}
            try:
                self.rows[server.instance] = await ask(name, keys, made)
            except (TimeoutError, RaylayError) as error:
                self.complaints.append(
                    f"{server.instance} did not answer a query on its SOW topic: {error!r}"
                )

        wanted = [each for each in servers if each.instance in self._keeping] if keys else []
        await asyncio.gather(*map(ask_one, wanted))

    async def close(self) -> None:
        """Deletes the writers' records where instances answered, and closes every client."""
        self._publishing = False
        for task in self._tasks:
            task.cancel()

        async def close_one(writer: SowWriter) -> None:
            client = writer.client
            if client is None:
                return
            if self.rows:
                # Nobody asks for a drill's records any more.
                with suppress(TimeoutError, RaylayError):
                    await client.sow_delete(
                        DRILL_SOW_TOPIC, keys=writer.keys, message_type=SOW_TYPE
                    )
                    await client.flush(DELETE_S_MAX)
            await client.close(flush=False)

        await asyncio.gather(*map(close_one, self.writers))

    def judge(
        self,
        journals: Mapping[str, Iterable[SowWrite]],
        members: Mapping[str, HistoryMember],
        new: Collection[str],
        *,
        is_excused: bool,
    ) -> SowVerdict:
        """Judges the instances' answers.

        Args:
            journals: the writes of the load in each instance's journal.
            members: the members of the topology.
            new: the instances that lost their disks.
            is_excused: see `against_publishers`.
        """
        written = [write for writer in self.writers for write in writer.written]
        # What was deleted behind the answers is none of theirs.
        asked = {(write.publisher, write.sequence) for write in written}
        verdict = SowVerdict(
            len(written),
            sum(write.body is None for write in written),
            {name: len(rows) for name, rows in sorted(self.rows.items())},
            self.why or ("" if self.rows else "no instance was asked"),
        )
        for name, rows in self.rows.items():
            held = [each for each in journals[name] if each[:2] in asked]
            verdict.broken += against_journal(name, rows, held, is_whole=name not in new)
        reach = reaching(members, DRILL_SOW_TOPIC, SOW_TYPE)
        reached = {
            name: [
                writer.publisher
                for writer in self.writers
                if writer.is_acknowledged and writer.group in reach[group]
            ]
            for group, names in self._groups.items()
            for name in names
        }
        broken, verdict.separate = against_publishers(
            self.rows, reached, written, is_excused=is_excused
        )
        verdict.broken += broken
        return verdict


def read_changes(
    directory: Path, after_txid: int, publishers: Iterable[int], archive: Path | None = None
) -> tuple[list[SowWrite], str]:
    """Returns these publishers' writes in a journal behind a transaction id; and the reason why the
    journal cannot be read any further, empty where it was read to its end. Runs on the journal's
    host."""
    found: list[SowWrite] = []
    wanted = frozenset(publishers)

    def take(run: Run) -> None:
        if run.publisher in wanted and run.topic == DRILL_SOW_TOPIC.encode():
            found.extend(changes_of(run))

    return found, read_runs(directory, after_txid, archive, take)


def changes_of(run: Run) -> list[SowWrite]:
    found: list[SowWrite] = []
    if run.kind != Kind.RECORDS:
        return found
    for record in iterate_records(run.payload):
        if record.command == Command.DELETE:
            keys = tuple(msgpack.unpackb(record.body)["keys"])
            found.append(SowWrite(record.publisher, record.sequence, keys, None))
        else:
            found.append(
                SowWrite(record.publisher, record.sequence, (record.key,), bytes(record.body))
            )
    return found
