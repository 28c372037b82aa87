"""services/drills/judgement.py: what is owed to whom, and that mistakes are seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.journal_cases import StepJournal, a_run

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.drills import judgement
from raylay.services.drills.history_builder import HistoryBuilder, LostDisk, members_of
from raylay.services.drills.judgement import (
    RunJudgement,
    judge_laws,
    judged,
    reaching,
    read_journal,
    seen,
    unjudged,
)
from raylay.services.drills.verdict import PublishRecord, SequenceStretch
from raylay.services.errors import StorageError
from raylay.services.fabric.plan import FabricRecord, InstancePorts, instance_config
from raylay.services.messages.records import Flag, Run
from raylay.services.verification.history import HistoryMember
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.maintenance import SegmentMaintenance

pytestmark = pytest.mark.covers("Drills", "which regions are owed what")

A1, A2, B1 = 101, 102, 103
INCARNATIONS = {"A-1": A1, "A-2": A2, "B-1": B1}


def members(builder: FabricBuilder) -> dict[str, HistoryMember]:
    settings = builder.settings()
    ports = {each.name: InstancePorts(1, 2) for each in settings.instances}
    record = FabricRecord("f", "/x", settings.to_json(), ports)
    return members_of(
        (
            instance.name,
            instance.group,
            [
                (found.destination(), found.server_names)
                for found in instance_config(settings, record, instance).destinations
            ],
        )
        for instance in settings.instances
    )


@pytest.fixture(scope="module")
def regions() -> dict[str, HistoryMember]:
    builder = FabricBuilder("f").region("A", 2).region("B", 1)
    return members(builder.connect_regions("async"))


def run(txid: int, publisher: int, first: int, last: int, **more: object) -> Run:
    made = Run(publisher, first, last, last - first + 1, b"", b"t", b"json", first_txid=txid)
    return replace(made, receive_time_us=txid, **more)  # type: ignore[arg-type]


# -- who gets what -------------------------------------------------------------------------------
def test_connected_regions_reach_each_other(regions: dict[str, HistoryMember]) -> None:
    assert reaching(regions, "t", "json") == {"A": {"A", "B"}, "B": {"A", "B"}}


@pytest.mark.parametrize(
    ("pass_through", "orders"),
    [("A", {"A": {"A"}, "B": {"A", "B"}}), (None, {"A": {"A"}, "B": {"B"}})],
)
def test_a_one_way_link_reaches_one_way_and_only_its_topics(
    pass_through: str | None, orders: dict[str, set[str]]
) -> None:
    """Without PassThrough only what clients publish at A-1 goes there: B is not owed the region."""
    builder = FabricBuilder("f").region("A", 2).region("B", 1)
    builder.destination("A-1", "B-1", topics=("orders",), pass_through=pass_through)
    found = members(builder)
    assert reaching(found, "orders", "json") == orders
    assert reaching(found, "other", "json") == {"A": {"A"}, "B": {"B"}}


# -- places --------------------------------------------------------------------------------------
def verdict_of(
    journals: dict[str, list[Run]], got: list[SequenceStretch], *, splits: bool = False
) -> RunJudgement:
    record = PublishRecord()
    record.add(7, 1, 10, 8)
    verdict, late = judged(
        {"A": ["A-1", "A-2"], "B": ["B-1"]},
        journals,
        {"A": {"reader": got}, "B": {}},
        {"A": record, "B": record},
        record,
        splits,
    )
    return RunJudgement(verdict, late=late)


WHOLE = {name: [run(1, 7, 1, 10)] for name in INCARNATIONS}
GOT = [SequenceStretch(7, 1, 8)]


def test_everything_everywhere_is_clean() -> None:
    found = verdict_of(WHOLE, GOT)
    assert found.valid
    assert [place.place for place in found.verdict.places] == [
        "journal A-1", "journal A-2", "subscriber reader", "journal B-1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "wrong"),
    [
        ([run(1, 7, 1, 7)], "lost"),
        ([run(1, 7, 1, 8), run(9, 7, 8, 8)], "duplicated"),
        ([run(1, 7, 5, 8), run(5, 7, 1, 4)], "out_of_order"),
        ([run(1, 7, 1, 11)], "unexpected"),
    ],
)
def test_a_mistake_of_one_journal_is_seen(runs: list[Run], wrong: str) -> None:
    found = verdict_of({**WHOLE, "A-2": runs}, GOT)
    assert not found.valid
    assert {name for name in ("lost", "duplicated", "out_of_order", "unexpected")
            if getattr(found.verdict, name)} == {wrong}  # fmt: skip


def test_a_subscriber_s_loss_is_seen() -> None:
    assert verdict_of(WHOLE, [SequenceStretch(7, 1, 3), SequenceStretch(7, 5, 8)]).verdict.lost == 1


def test_late_copies_are_allowed_where_paths_split_and_flagged() -> None:
    late = [run(1, 7, 5, 8), run(5, 7, 1, 4, flags=Flag.CONTIGUOUS | Flag.LATE)]
    found = verdict_of({**WHOLE, "B-1": late}, GOT, splits=True)
    assert found.valid and found.late == 4
    assert not verdict_of({**WHOLE, "B-1": late}, GOT).valid
    unflagged = [run(1, 7, 5, 8), run(5, 7, 1, 4)]
    assert not verdict_of({**WHOLE, "B-1": unflagged}, GOT, splits=True).valid


# -- a load that nobody wrote down ---------------------------------------------------------------
def test_what_was_journaled_first_between_two_moments_is_owed(
    regions: dict[str, HistoryMember],
) -> None:
    journals = {
        "A-1": [run(1, 7, 1, 5), run(6, 7, 6, 9), run(10, 7, 10, 12)],
        "A-2": [run(1, 7, 1, 9, path=(A1,), group="A"), run(10, 8, 1, 2)],
        "B-1": [run(1, 7, 1, 9, path=(A1,), group="A")],
    }
    after = {"A-1": 5, "A-2": 9, "B-1": 9}
    records, total = seen(journals, after, {"A-1": 9, "A-2": 11, "B-1": 9}, regions)
    assert records["B"].persisted.get(7) is not None
    assert list(records["B"].persisted.of(7)) == [(6, 9)]
    assert list(records["A"].persisted.of(8)) == [(1, 2)]
    assert total.persisted_messages == 6 and total.published_messages == 14
    verdict, _ = judged(
        {"A": ["A-1", "A-2"], "B": ["B-1"]}, journals, {"A": {}, "B": {}}, records, total, False
    )
    lost = {place.place: place.lost for place in verdict.places}
    assert lost == {"journal A-1": 2, "journal A-2": 0, "journal B-1": 2}


def test_what_a_lost_disk_journaled_first_is_owed(regions: dict[str, HistoryMember]) -> None:
    """And what was journaled on the new one, whose transaction ids begin again."""
    lost = LostDisk(20, "A-1", [run(1, 7, 1, 5), run(6, 7, 6, 9), run(10, 7, 10, 12)], upto_txid=9)
    journals = {
        "A-1": [run(1, 7, 13, 14)],
        "A-2": [run(1, 7, 1, 6, path=(A1,), group="A")],
        "B-1": [run(1, 7, 1, 14, path=(A1,), group="A")],
    }
    after, upto = {"A-1": 5, "A-2": 0, "B-1": 0}, {"A-1": 2, "A-2": 9, "B-1": 9}
    records, total = seen(journals, after, upto, regions, [lost])
    # 10 to 12 came in when the disk was about to go: nobody had an ack for them.
    assert list(records["B"].persisted.of(7)) == [(6, 9), (13, 14)]
    assert total.persisted_messages == 6 and total.published_messages == 14
    verdict, _ = judged(
        {"A": ["A-1", "A-2"], "B": ["B-1"]}, journals, {"A": {}, "B": {}}, records, total, False
    )
    lacking = {place.place: place.lost for place in verdict.places}
    assert lacking == {"journal A-1": 4, "journal A-2": 5, "journal B-1": 0}


def test_a_drill_without_a_message_is_not_judged() -> None:
    faults = [(20, "SIGKILL of A-1"), (30, "SIGKILL of A-2")]
    assert unjudged({"pub1": [10, 40], "pub2": [15]}, faults, "acknowledged") == []
    assert unjudged({"pub1": [10, 40], "pub2": []}, faults, "acknowledged") == [
        "could not judge: nothing of pub2 was acknowledged"
    ]
    assert unjudged({"pub1": [10, 25]}, faults, "acknowledged") == [
        "could not judge the effect of this fault, as nothing was acknowledged from then on: "
        "SIGKILL of A-2"
    ]
    assert unjudged({"its own load": []}, faults, "journaled") == [
        "could not judge: nothing of its own load was journaled"
    ]


# -- journals ------------------------------------------------------------------------------------
RUNS = 12


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a journal of several segments, a run of ten messages each."""
    (tmp_path / "A-1").mkdir()
    journal = StepJournal(tmp_path / "A-1" / "journal", segment_bytes=20_000)
    for number in range(RUNS):
        first = 1 + 10 * number
        journal.stage(a_run(first, range(first, first + 10), body_bytes=1_000))
        journal.commit()
    journal.close()
    return tmp_path / "A-1"


def test_a_damaged_journal_is_read_up_to_there(data: Path) -> None:
    assert [run.first_txid for run in read_journal(data, 10)[0]] == [*range(11, 10 * RUNS, 10)]
    second = sorted((data / "journal").glob("journal-*.sealed"))[1]
    second.write_bytes(b"this is no environment" * 1_000)
    runs, why = read_journal(data, 0)
    assert 0 < len(runs) < RUNS and str(second) in why
    runs, why = read_journal(data / "none", 0)
    assert not runs and "none" in why


def test_archived_segments_of_a_disk_that_was_put_aside_are_read(data: Path) -> None:
    SegmentMaintenance(data / "journal", data / "archive").archive()
    aside = data.with_name("A-1.lost")
    data.rename(aside)
    runs, why = read_journal(aside, 0, archive=aside / "archive")
    assert len(runs) == RUNS and not why


def test_a_journal_that_changes_under_its_reader_is_read_on(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = StorageError("it changed during one read: retry", "x")
    told.retriable = True

    class Changing(LmdbJournalReader):
        fails = 3

        def read(self, *arguments: Any, **options: Any) -> list[Run]:
            Changing.fails -= 1
            if Changing.fails % 2:
                raise told
            return super().read(*arguments, **options)

    monkeypatch.setattr(judgement, "LmdbJournalReader", Changing)
    monkeypatch.setattr(judgement, "READS_MAX", 1_000)
    runs, why = read_journal(data, 0)
    assert [run.first_txid for run in runs] == [*range(1, 10 * RUNS, 10)] and not why
    monkeypatch.setattr(judgement, "READS_MAX", 1)
    Changing.fails = 2
    assert read_journal(data, 0) == ([], str(told))


# -- laws ----------------------------------------------------------------------------------------
def statuses() -> dict[str, dict[str, object]]:
    return {
        name: {"incarnation": f"{incarnation:016x}", "destinations": {}, "pending": 0}
        for name, incarnation in INCARNATIONS.items()
    }


def recording(regions: dict[str, HistoryMember]) -> HistoryBuilder:
    made = HistoryBuilder(regions, None, "t", uniform=False)
    made.missed = [
        {"instance": name, "time_us": 0, "event": "started", "incarnation": f"{incarnation:016x}"}
        for name, incarnation in INCARNATIONS.items()
    ]
    return made


def test_laws_are_judged_without_clients_too(regions: dict[str, HistoryMember]) -> None:
    round_trip = run(2, 7, 2, 2, path=(A2, A1), group="A")
    journals = {"A-1": [run(1, 7, 1, 1), round_trip], "A-2": [], "B-1": []}
    found, history = judge_laws(recording(regions), journals, statuses(), {}, own_load=True)
    assert history is not None
    assert [each.law for each in found] == ["loops"]


def test_an_instance_that_does_not_answer_in_the_end_is_judged_all_the_same(
    regions: dict[str, HistoryMember],
) -> None:
    """It has neither links nor an incarnation to tell: what it lacks is wrong, and no crash."""
    journals = {"A-1": [run(1, 7, 1, 1)], "A-2": [], "B-1": []}
    silent = {"name": "A-2", "group": "A", "ready": False, "reason": "the actor is dead"}
    found, history = judge_laws(recording(regions), journals, {**statuses(), "A-2": silent}, {})
    assert history is not None and history.final["A-2"].incarnation == A2
    assert history.final["A-2"].servers == {} and "liveness" in {each.law for each in found}


def test_a_history_that_is_too_long_is_not_judged(
    regions: dict[str, HistoryMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raylay.services.drills.judgement.COPIES_MAX", 9)
    journals = {"A-1": [run(1, 7, 1, 10)], "A-2": [], "B-1": []}
    assert judge_laws(recording(regions), journals, statuses(), {}) == ([], None)
