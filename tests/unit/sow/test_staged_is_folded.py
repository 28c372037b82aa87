"""What a topic says of its records as they are staged is what the fold then makes of them: whatever
clients publish, other instances bring, in whichever order, and however much of it fails."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import msgpack
import pytest
from support.sow_given import ORDERS, P, Q, record_bytes, run
from unit.sow.test_staging import Bench

from raylay.services.core.batch import CommitBatch
from raylay.services.core.fold_backlog import RunParts
from raylay.services.messages.records import Run
from raylay.services.sow.records import SowRecord
from raylay.services.sow.state import SowRules

IDS = range(6)
RULES = (SowRules(), SowRules(expires=True, lifetime_us=5_000), SowRules(window_us=1_000_000_000))


class World:
    """An instance with one topic, a client (P) and two peers that bring some of theirs late."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.last_writer = draw.random() < 0.4
        self.rules = draw.choice(RULES)
        self.bench = Bench(replace(ORDERS, last_writer=self.last_writer, rules=self.rules))
        self.keys = [self.bench.key(each) for each in IDS]
        self.sequences = dict.fromkeys((P, Q, 3), 0)
        self.rest: list[Run] = []
        self.late: dict[int, list[int]] = {P: [], Q: [], 3: []}

    def at_us(self) -> int:
        return max(0, self.bench.now_us - self.draw.randrange(3_000))

    def message(self) -> bytes:
        draw = self.draw
        said = {"id": draw.choice(IDS), draw.choice("vw"): draw.randrange(100)}
        if draw.random() < 0.1:
            del said["id"]
        return json.dumps(said).encode()

    def publishes(self) -> None:
        draw, bench = self.draw, self.bench
        command = draw.choice((1, 2) if self.last_writer else (1, 1, 2, 6))
        records = []
        for _ in range(draw.randrange(1, 5)):
            self.sequences[P] += 1
            body = self.message()
            if command == 2:
                by_data = {"data": json.dumps({"id": draw.choice(IDS)}).encode()}
                by_filter = {"filter": f"/v > {draw.randrange(50)}"}
                by_keys = {"keys": draw.sample(self.keys, 2)}
                body = msgpack.packb(draw.choice((by_data, by_filter, by_keys)))
            said = {"command": command, "at_us": self.at_us()}
            records.append(record_bytes(self.sequences[P], body, **said))
        for left in bench.staging.prepare(run(0, *records), bench.now_us, bench.now_us).runs:
            bench.stage(left)

    def peer_brings(self) -> None:
        draw = self.draw
        publisher = draw.choice((P, Q, 3))
        late = self.late[publisher]
        if late and draw.random() < 0.5:
            sequence = late.pop(draw.randrange(len(late)))
        else:
            for _ in range(draw.randrange(3)):
                self.sequences[publisher] += 1
                late.append(self.sequences[publisher])
            self.sequences[publisher] += 1
            sequence = self.sequences[publisher]
        command = draw.choice((1, 1, 2, 6))
        body = self.message()
        if command == 2:
            body = msgpack.packb({"keys": sorted(draw.sample(self.keys, 2))})
        said = {"command": command, "at_us": self.at_us(), "publisher": publisher}
        self.bench.stage(run(0, record_bytes(sequence, body, **said)))

    def time_passes(self) -> None:
        bench = self.bench
        bench.now_us += self.draw.randrange(1, 1_500)
        if not bench.waiting and self.draw.random() < 0.2:
            bench.feature.delivered_txid = self.draw.choice((0, bench.committed_txid))
            bench.feature.tick(bench.now_us)

    def fold_a_part(self) -> None:
        """Of a commit that takes long: the rest of it waits."""
        waiting = self.bench.waiting
        if waiting:
            parts = RunParts(waiting.pop(0))
            part = parts.take(self.draw.randrange(1, 3))
            self.bench.feature.fold(CommitBatch([part], part.last_txid))
            self.bench.committed_txid = part.last_txid + parts.left
            if parts.left:
                self.rest = [parts.take(parts.left)]
                waiting[:0] = self.rest

    def fail(self) -> None:
        """What is committed is folded before."""
        if self.rest and self.bench.waiting[:1] == self.rest:
            self.bench.commit(1)
        self.bench.fail()

    def compare(self) -> None:
        bench = self.bench
        staged = {key: bench.staging.value(key, bench.now_us) for key in self.keys}
        bench.commit()
        assert not len(bench.staging)
        for key in self.keys:
            found, said = bench.topic.state.get(key), staged[key]
            if found and self.rules.expires and 0 < found.expires_us <= bench.now_us:
                found = None
            assert _same(said) == _same(found)


def _same(record: SowRecord | None) -> SowRecord | None:
    """But for the transaction, which is not given before the end."""
    return None if record is None else record._replace(txid=0)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_staged_is_what_is_folded(seed: int) -> None:
    world = World(random.Random(seed))
    draw = world.draw
    for _ in range(100):
        world.time_passes()
        choice = draw.random()
        if choice < 0.45:
            world.publishes()
        elif choice < 0.75:
            world.peer_brings()
        elif choice < 0.8:
            world.bench.commit(draw.randrange(1, 5))
        elif choice < 0.87:
            world.fold_a_part()
        elif choice < 0.91:
            world.fail()
        else:
            world.compare()
    world.compare()
