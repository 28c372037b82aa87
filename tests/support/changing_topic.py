"""Random logs of SOW topics, and their changes as a plain reading of the log has them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from raylay.services.config.instance import InstanceConfig
from raylay.services.messages.records import Command, Flag, RecordBuilder, Run, publisher_id
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.state import SowRules
from support.journal_cases import a_note
from support.pipeline_cases import START_US, Log, write_log

TOPIC = "prices"
WRITERS = (publisher_id("desk"), publisher_id("airport"))
Change = tuple[int, str, str, str, "bytes | None", "bytes | None"]
"""Transaction id, row kind, reason, key, old body and body."""


def key(number: int) -> bytes:
    return key_of({"id": number}, ("/id",), TOPIC)


@dataclass(slots=True)
class ChangingLog:
    """Runs on a SOW topic of keys `/id`, with others between them, and what they mean.

    Args:
        lifetime_s: lifetime of records whose message has none; 0: records do not expire.
    """

    lifetime_s: int = 0
    runs: list[Run] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    held: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Body and time of expiry of each record."""
    txid: int = 0
    time_us: int = START_US
    sequences: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, chance: random.Random) -> None:
        """Adds a run."""
        self.time_us += chance.randrange(3_000_000)
        kind = chance.random()
        if self.lifetime_s:
            self._expire()
        if kind < 0.1:
            self.runs.append(a_note(self.txid + 1))
            self.runs[-1].receive_time_us = self.time_us
            self.txid += 1
            return
        writer = chance.randrange(2)
        topic = "others" if kind < 0.25 else TOPIC
        builder = RecordBuilder(WRITERS[writer], topic, "json")
        parts = []
        first = self.sequences[writer] + 1
        count = chance.randint(1, 8)
        for at in range(count):
            self.sequences[writer] += 1
            parts.append(self._record(chance, builder, self.sequences[writer], at, topic))
        self.runs.append(
            Run(
                WRITERS[writer],
                first,
                first + count - 1,
                count,
                b"".join(parts),
                topic.encode(),
                b"json",
                path=(0xA1,),
                group="Chicago",
                flags=Flag.CONTIGUOUS,
                first_txid=self.txid + 1,
                receive_time_us=self.time_us,
            )
        )
        self.txid += count

    def _record(
        self, chance: random.Random, builder: RecordBuilder, sequence: int, at: int, topic: str
    ) -> bytes:
        txid = self.txid + 1 + at
        stamp_us = self.time_us - chance.randrange(500_000)
        if chance.random() < 0.25:
            keys = sorted(key(chance.randrange(8)) for _ in range(chance.randint(1, 3)))
            body = msgpack.packb({"keys": sorted(set(keys))})
            for each in sorted(set(keys)) if topic == TOPIC else ():
                if each in self.held:
                    old = self.held.pop(each)[0]
                    self._note(txid, "delete", "deleted", each, old, None)
            return builder.build(sequence, body, stamp_us, command=Command.DELETE)
        number = chance.randrange(8)
        body = json.dumps({"id": number, "price": chance.randrange(100)}).encode()
        expiration_s = chance.choice((0, 0, 1, 5)) if self.lifetime_s else 0
        if topic == TOPIC:
            old_body = self.held.get(key(number), (None, 0))[0]
            kinds = ("insert", "inserted") if old_body is None else ("update", "updated")
            self._note(txid, *kinds, key(number), old_body, body)
            end_us = stamp_us + (expiration_s or self.lifetime_s) * 1_000_000
            self.held[key(number)] = body, end_us
        command = chance.choice((Command.PUBLISH, Command.DELTA_PUBLISH))
        return builder.build(sequence, body, stamp_us, command=command, expiration_s=expiration_s)

    def _expire(self) -> None:
        gone = sorted((end, each) for each, (_, end) in self.held.items() if end <= self.time_us)
        for _, each in gone:
            old = self.held.pop(each)[0]
            self._note(self.txid + 1, "delete", "expired", each, old, None)

    def _note(
        self, txid: int, kind: str, why: str, of: bytes, old: bytes | None, new: bytes | None
    ) -> None:
        self.changes.append((txid, kind, why, of.decode(), old, new))

    def definition(self) -> SowTopicDefinition:
        rules = SowRules(bool(self.lifetime_s), self.lifetime_s * 1_000_000)
        return SowTopicDefinition(TOPIC, "json", keys=("/id",), rules=rules)

    def write(self, directory: Path) -> Log:
        """Writes the runs into the journal of an instance."""
        InstanceConfig(directory.name, "Chicago", sow=(self.definition(),)).save(directory)
        return write_log(directory, self.runs)


def changing_log(seed: int, lifetime_s: int = 0, runs: int = 60) -> ChangingLog:
    made, chance = ChangingLog(lifetime_s), random.Random(seed)
    for _ in range(runs):
        made.add(chance)
    return made


def snapshot(changes: list[Change], txid: int) -> dict[str, bytes]:
    """The records at a transaction id."""
    found: dict[str, bytes] = {}
    for at, _, _, of, _, new in changes:
        if at <= txid:
            found.pop(of, None)
            if new is not None:
                found[of] = new
    return found


def rows_of(batches: Any) -> list[Change]:
    """Rows of changes as `ChangingLog` notes them."""
    names = ("txid", "row_kind", "reason", "sow_key", "old_body", "body")
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def ordered(changes: list[Change]) -> list[Change]:
    """Changes in an order in which those that expire at one place may come."""
    expired = [each for each in changes if each[2] == "expired"]
    others = [each for each in changes if each[2] != "expired"]
    return sorted(expired) + others
