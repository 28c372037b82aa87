"""Long commits are cut into slices, and long frames into parts: nothing is lost, doubled or moved,
and each is short."""

from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest
from support.sow_given import P, record_bytes, run

from raylay.services.core.batch import CommitBatch
from raylay.services.core.fold_backlog import (
    PART_BYTES,
    PART_RECORDS,
    PART_RUNS,
    SLICE_BYTES,
    SLICE_RECORDS,
    SLICE_RUNS,
    FoldBacklog,
    FoldBarrier,
    NextTurn,
    PublishInParts,
    RunParts,
    weight,
)
from raylay.services.messages.records import Command, Flag, Kind, Run, iterate_records
from raylay.services.sow.apply import deleted_keys


def run_at(
    first_txid: int, sequences: list[int], body: bytes = b"{}", topic: str = "orders"
) -> Run:
    records = (record_bytes(each, body, publisher=P) for each in sequences)
    return replace(run(first_txid, *records), topic=topic.encode())


def delete_run(first_txid: int, *named: list[bytes]) -> Run:
    """Deletes as they are journaled, each of these keys."""
    records = (
        record_bytes(at, msgpack.packb({"keys": keys}), command=Command.DELETE)
        for at, keys in enumerate(named, first_txid)
    )
    return run(first_txid, *records)


def sequences_of(runs: list[Run]) -> list[tuple[bytes, int, int]]:
    """Topic, transaction id and sequence of each record."""
    return [
        (each.topic, each.first_txid + at, record.sequence)
        for each in runs
        for at, record in enumerate(iterate_records(each.payload))
    ]


def is_heavy(run: Run) -> bool:
    return run.topic == b"orders"


def test_the_parts_of_a_run_are_runs_of_their_own() -> None:
    whole = run_at(11, [1, 2, 3, 7, 8, 9, 10])
    parts = RunParts(whole)
    found = []
    while parts.left:
        left_bytes = parts.left_bytes
        found.append(parts.take(3))
        assert left_bytes - parts.left_bytes == len(found[-1].payload)
    assert [(each.first_txid, each.last_txid) for each in found] == [(11, 13), (14, 16), (17, 17)]
    assert [each.ranges() for each in found] == [[(1, 3)], [(7, 9)], [(10, 10)]]
    assert all(each.flags & Flag.CONTIGUOUS for each in found), "though the whole is not"
    assert not whole.flags & Flag.CONTIGUOUS
    assert b"".join(each.payload for each in found) == whole.payload
    (both,) = [RunParts(whole).take(5)]
    assert not both.flags & Flag.CONTIGUOUS and both.ranges() == [(1, 3), (7, 8)]
    assert RunParts(whole).take(7) is whole, "nothing is copied"


def test_a_run_whose_records_cannot_be_told_apart_is_one_part_from_there_on() -> None:
    whole = run_at(11, [1, 2, 3])
    one = len(whole.payload) // 3
    parts = RunParts(replace(whole, payload=whole.payload[:one] + b"\xff" * 50))
    found = [parts.take(1), parts.take(2)]
    assert [(each.first_txid, each.last_txid) for each in found] == [(11, 11), (12, 13)]
    assert found[1].payload == b"\xff" * 50 and not parts.left and not parts.left_bytes


def test_a_part_has_one_record_at_least_and_no_more_bytes() -> None:
    parts = RunParts(run_at(0, [1, 2, 3], b"x" * 1_000))
    assert parts.take(9, 10).count == 1
    assert parts.take(9, 1 << 20).first_txid == 0, "it has no transaction id yet"


def test_only_what_takes_long_is_long() -> None:
    unfolded = FoldBacklog(is_heavy)
    many = list(range(1, SLICE_RECORDS + 2))
    assert unfolded.is_long(CommitBatch([run_at(1, many)], 1))
    assert unfolded.is_long(CommitBatch([run_at(1, many[:100]), run_at(101, many[100:])], 1))
    assert not unfolded.is_long(CommitBatch([run_at(1, many[:-1])], 1))
    assert not unfolded.is_long(CommitBatch([run_at(1, many, topic="others")], 1))
    assert not unfolded.is_long(CommitBatch([replace(run_at(1, many), kind=Kind.WAITER)], 1))
    large = b"x" * SLICE_BYTES
    assert unfolded.is_long(CommitBatch([run_at(1, [1, 2], large)], 2))
    assert not unfolded.is_long(CommitBatch([run_at(1, [1], large)], 1)), "one is never cut"


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_the_commits_in_order(seed: int) -> None:
    draw = random.Random(seed)
    unfolded = FoldBacklog(is_heavy)
    expected, found, sequence, txid = [], [], 0, 1
    folded_txid = waiting_bytes = 0
    for _ in range(30):
        if draw.random() < 0.5 or not unfolded:
            runs = []
            for _ in range(draw.randrange(1, 4)):
                count = draw.choice((1, 5, 170, 400))
                numbers = list(range(sequence + 1, sequence + count + 1))
                body = b"x" * draw.choice((5, 2_000))
                runs.append(run_at(txid, numbers, body, draw.choice(("orders", "others"))))
                sequence, txid = sequence + count, txid + count
            unfolded.add(CommitBatch(runs, txid - 1))
            expected += runs
            assert unfolded.last_txid == txid - 1
        else:
            batch = unfolded.take()
            heavy = [each for each in batch.runs if is_heavy(each)]
            assert sum(each.count for each in heavy) <= SLICE_RECORDS
            assert sum(len(each.payload) for each in heavy) <= SLICE_BYTES + 2_200
            assert batch.last_txid == batch.runs[-1].last_txid == unfolded.folded_txid
            assert batch.runs[0].first_txid == folded_txid + 1
            folded_txid = batch.last_txid
            found += batch.runs
        waiting_bytes = sum(len(each.payload) for each in expected)
        waiting_bytes -= sum(len(each.payload) for each in found)
        assert unfolded.waiting_bytes == waiting_bytes
    while unfolded:
        found += unfolded.take().runs
    assert sequences_of(found) == sequences_of(expected)
    assert unfolded.waiting_bytes == 0


def test_who_waits_waits_for_what_was_committed_when_he_came() -> None:
    unfolded = FoldBacklog(is_heavy)
    unfolded.add(CommitBatch([run_at(1, list(range(1, 201)))], 200))
    caught_up = FoldBarrier(unfolded, lambda most: unfolded.take(most) and None)
    unfolded.add(CommitBatch([run_at(201, list(range(201, 401)))], 400))
    caught_up.take(0)
    assert not caught_up.done and unfolded.folded_txid == 0
    taken = []
    while not caught_up.done:
        caught_up.take(64)
        taken.append(unfolded.folded_txid)
    assert taken == [64, 128, 192, 200] and unfolded, "what came since is not waited for"
    caught_up.take(64)
    assert unfolded.folded_txid == 200, "it helps for as long as it waits"
    caught_up.close()
    while unfolded:
        unfolded.take()
    assert caught_up.done


@pytest.mark.parametrize("body", [b"{}", b"x" * 4_000])
def test_a_long_frame_is_taken_in_parts(body: bytes) -> None:
    unfolded = FoldBacklog(is_heavy)
    runs = [
        run_at(0, list(range(1, 3)), body),
        run_at(0, list(range(3, 2_003)), body, "others"),
        run_at(0, list(range(2_003, 3_003)), body),
    ]
    assert unfolded.in_parts(runs[:2]) is None
    published = unfolded.in_parts(runs)
    assert published is not None
    found = []
    while published.part is not None:
        heavy = [each for each in published.part if is_heavy(each)]
        assert sum(each.count for each in heavy) <= PART_RECORDS
        assert sum(len(each.payload) for each in heavy) <= PART_BYTES + len(body) + 200
        found += published.part
        published.go_on()
    numbers = [record.sequence for each in found for record in iterate_records(each.payload)]
    assert numbers == list(range(1, 3_003))
    assert PublishInParts([], is_heavy).part is None


def test_what_weighs_most_is_a_part_of_its_own() -> None:
    def weigh(run: Run) -> int:
        return {b"orders": 1, b"slow": PART_RECORDS}.get(run.topic, 0)

    unfolded = FoldBacklog(is_heavy, weigh_published=weigh)
    runs = [
        run_at(0, [1, 2, 3]),
        run_at(0, [4, 5, 6], topic="slow"),
        run_at(0, [7, 8], topic="others"),
        run_at(0, [9, 10]),
    ]
    assert unfolded.in_parts([runs[0], *runs[2:]]) is None
    assert unfolded.in_parts([run_at(0, [1], topic="slow")]) is None, "one record is never cut"
    assert not unfolded.is_long(CommitBatch([run_at(1, [4, 5, 6], topic="slow")], 3)), (
        "it folds as any"
    )
    published = unfolded.in_parts(runs)
    assert published is not None
    found = []
    while published.part is not None:
        found.append([sequence for _, _, sequence in sequences_of(published.part)])
        published.go_on()
    assert found == [[1, 2, 3], [4], [5], [6], [7, 8, 9, 10]]


def test_runs_are_counted_whatever_is_in_them() -> None:
    """Topics that alternate message by message: each message is a run."""
    unfolded = FoldBacklog()
    count = SLICE_RUNS + 2 * PART_RUNS
    runs = [run_at(each, [each], topic=f"t{each % 2}") for each in range(1, count + 1)]
    assert not unfolded.is_long(CommitBatch(runs[:SLICE_RUNS], SLICE_RUNS))
    assert unfolded.is_long(CommitBatch(runs, count))
    unfolded.add(CommitBatch(runs, count))
    slices = [unfolded.take() for _ in range(2)]
    assert [len(each.runs) for each in slices] == [SLICE_RUNS, 2 * PART_RUNS] and not unfolded
    assert [run for each in slices for run in each.runs] == runs
    assert unfolded.in_parts(runs[:PART_RUNS]) is None
    published = unfolded.in_parts(runs)
    assert published is not None
    found: list[list[Run]] = []
    while published.part is not None:
        found.append(published.part)
        published.go_on()
    assert [run for part in found for run in part] == runs
    assert max(len(part) for part in found) == PART_RUNS


def test_what_is_judged_has_gaps_or_is_no_message_is_taken_in_parts() -> None:
    unfolded = FoldBacklog()
    many = list(range(1, 2 * PART_RECORDS))
    whole, gaps = run_at(0, many), run_at(0, [2 * each for each in many])
    acks = replace(run_at(0, many[:PART_RECORDS]), flags=Flag.CONTIGUOUS | Flag.COMMANDS)
    assert unfolded.in_parts([whole]) is None
    for runs, judged in (([whole], lambda run: 1), ([gaps], None), ([acks], None)):
        published = unfolded.in_parts(runs, judged)
        assert published is not None and published.part is not None
        assert len(published.part) == 1 and published.part[0].count <= PART_RECORDS


def test_a_run_that_is_cut_stays_cut_when_it_weighs_nothing_any_more() -> None:
    """Its first part was folded, then who it took long for went: it must not be folded again."""
    weighs = [1]
    unfolded = FoldBacklog(lambda run: weighs[0])
    unfolded.add(CommitBatch([run_at(1, list(range(1, 2 * SLICE_RECORDS)))], 2 * SLICE_RECORDS - 1))
    found = unfolded.take().runs
    weighs[0] = 0
    while unfolded:
        found += unfolded.take().runs
    assert [sequence for _, _, sequence in sequences_of(found)] == list(range(1, 2 * SLICE_RECORDS))


def test_a_delete_weighs_what_it_names() -> None:
    keys = [b"%032x" % n for n in range(1_000)]
    many = delete_run(1, *([keys[n::10] for n in range(10)] * 3))
    few = delete_run(31, *([[key] for key in keys[:40]] * 3))
    assert weight(run_at(1, [1, 2], b"x" * 500)) == 1 and weight(few) == 1
    assert 95 <= weight(many) <= 105
    unfolded = FoldBacklog(weight)
    unfolded.add(CommitBatch([many, few], 150))
    assert unfolded.is_long(CommitBatch([many], 30))
    taken = []
    while unfolded:
        batch = unfolded.take()
        taken.append(batch.last_txid)
        named = sum(
            len(deleted_keys(record.body) or ())
            for each in batch.runs
            for record in iterate_records(each.payload)
        )
        assert named <= SLICE_RECORDS
    assert taken[-1] == 150 and taken[:3] == [1, 2, 3]
    assert unfolded.in_parts([many]) is not None
    assert unfolded.in_parts([delete_run(1, keys)]) is None, "one record is never cut"


def test_another_turn_is_waited_for_and_nothing_else() -> None:
    turn = NextTurn()
    turn.take(9)
    turn.close()
    assert turn.done
