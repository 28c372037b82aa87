"""services/drills/loads/sow_load.py: the load on the drills' SOW topic, and what journals have of
it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.journal_cases import StepJournal

from raylay.services.client.failover import Server
from raylay.services.drills.loads import sow_load
from raylay.services.drills.loads.sow_load import (
    DELETIONS,
    KEYS,
    SOW_STORED_AS,
    SowLoad,
    SowWriter,
    changes_of,
    read_changes,
)
from raylay.services.errors import CommandFailed
from raylay.services.messages.records import Command, RecordBuilder, Run
from raylay.services.messages.topics import DRILL_SOW_TOPIC
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification.history import HistoryMember
from raylay.services.verification.laws.sow_topics import SowRow, SowWrite, folded

pytestmark = pytest.mark.covers("Drills", "SOW records against journals and publishers")

GROUPS = {"near": ["near-1", "near-2"], "far": ["far-1"]}
KEEPS: dict[str, Any] = {"sow_topics": {SOW_STORED_AS: {"records": 0}}}
ALL: dict[str, Any] = dict.fromkeys(("near-1", "near-2", "far-1"), KEEPS)


def link(*names: str) -> DestinationRoute:
    return DestinationRoute("out", "any", True, addresses=names, pass_through=".*")


MEMBERS = {
    "near-1": HistoryMember("near-1", "near", (link("near-2"), link("far-1"))),
    "near-2": HistoryMember("near-2", "near", (link("near-1"), link("far-1"))),
    "far-1": HistoryMember("far-1", "far", ()),
}


def journaled(writer: SowWriter, count: int) -> list[Run]:
    """What instances journal of a writer's first changes."""
    builder = RecordBuilder(writer.publisher, DRILL_SOW_TOPIC, "json")
    for number in range(1, count + 1):
        writer.change(number, number)
    runs = []
    for each in writer.written:
        command, key, body = Command.DELTA_PUBLISH, each.keys[0], each.body
        if body is None:
            command, key, body = Command.DELETE, b"", msgpack.packb({"keys": list(each.keys)})
        payload = builder.build(each.sequence, body, 1, command=command, key=key)
        runs.append(
            Run(
                writer.publisher, each.sequence, each.sequence, 1, payload,
                DRILL_SOW_TOPIC.encode(), b"json", first_txid=each.sequence,
            )
        )  # fmt: skip
    return runs


def rows_of(writers: list[SowWriter]) -> dict[bytes, SowRow]:
    """What they wrote last."""
    last = folded(each for writer in writers for each in writer.written)
    return {
        key: SowRow(each.publisher, each.sequence, each.body)
        for key, each in last.items()
        if each.body is not None
    }


# -- writing -------------------------------------------------------------------------------------
def test_a_writer_publishes_deltas_and_deletes_on_every_key_of_its_own() -> None:
    writer = SowWriter("near-sow", "near")
    seen = [writer.change(number, 100 + number) for number in range(1, 10 * KEYS + 1)]
    commands = [command for command, _, _ in seen]
    assert set(commands) == {Command.PUBLISH, Command.DELTA_PUBLISH, Command.DELETE}
    assert {key for _, key, _ in seen} == set(writer.keys) and len(writer.keys) == KEYS
    assert not set(writer.keys) & set(SowWriter("far-sow", "far").keys)
    # What is kept of a delta is the whole message: some met something.
    whole = {each.sequence: each.body for each in writer.written}
    deltas = [
        (json.loads(body), json.loads(whole[100 + number] or b""))
        for number, (command, _, body) in enumerate(seen, 1)
        if command == Command.DELTA_PUBLISH
    ]
    assert all(delta.items() <= merged.items() for delta, merged in deltas)
    assert any(delta != merged for delta, merged in deltas)
    assert [each.body is None for each in writer.written] == [
        not number % DELETIONS for number in range(1, 10 * KEYS + 1)
    ]


# -- reading -------------------------------------------------------------------------------------
def test_a_journal_tells_its_changes(tmp_path: Path) -> None:
    writer, other = SowWriter("near-sow", "near"), SowWriter("far-sow", "far")
    runs = journaled(writer, 40)
    assert [each for run in runs for each in changes_of(run)] == writer.written
    journal = StepJournal(tmp_path / "journal")
    for txid, run in enumerate((*runs, *journaled(other, 3)), 1):
        run.first_txid = txid
        journal.stage(run)
        journal.commit()
    journal.close()
    assert read_changes(tmp_path, 0, [writer.publisher]) == (writer.written, "")
    assert read_changes(tmp_path, 30, [writer.publisher])[0] == writer.written[30:]
    found, why = read_changes(tmp_path / "nowhere", 0, [writer.publisher])
    assert not found and "nowhere" in why


# -- judging -------------------------------------------------------------------------------------
def test_only_regions_that_keep_the_topic_are_written_to() -> None:
    assert [each.group for each in SowLoad("1", GROUPS, ALL).writers] == ["near", "far"]
    some = SowLoad("1", GROUPS, {**ALL, "near-2": {}})
    assert [each.group for each in some.writers] == ["far"] and not some.why
    # As where no instance has it: it is judged without.
    none = SowLoad("1", GROUPS, {name: {"sow_topics": {}} for name in ALL})
    asyncio.run(none.open(lambda name, group: {}))
    asyncio.run(none.ask([Server("x:1", "near-1", "near")], lambda name, group: {}))
    verdict = none.judge({}, MEMBERS, (), is_excused=False)
    assert not verdict.broken and "no region has topic" in verdict.why


@pytest.mark.parametrize(
    ("planted", "wrong"),
    [
        ("", []),
        ("fold", ["far-1"]),
        ("journal", ["far-1"]),
        ("both", ["far-1"]),
        ("unreached", []),
    ],
)
def test_a_divergence_is_found_where_it_is(planted: str, wrong: list[str]) -> None:
    load = SowLoad("1", GROUPS, ALL)
    near, far = load.writers
    runs = {each: journaled(each, 60) for each in load.writers}
    changes = {each: [c for run in runs[each] for c in changes_of(run)] for each in load.writers}
    rows = rows_of([near, far])
    of_near = rows_of([near])
    # Nothing leads from far to near.
    load.rows = {"near-1": of_near, "near-2": of_near, "far-1": dict(rows)}
    journals = {
        "near-1": changes[near], "near-2": changes[near], "far-1": changes[near] + changes[far],
    }  # fmt: skip
    victim = next(iter(of_near))
    # What is deleted behind the answers, as the drill ends, changes nothing.
    for held in journals.values():
        held.append(SowWrite(near.publisher, 1_000, tuple(near.keys), None))
    if planted in ("fold", "both"):
        del load.rows["far-1"][victim]
    if planted in ("journal", "both"):
        journals["far-1"] = [each for each in journals["far-1"] if victim not in each.keys]
    if planted == "unreached":
        load.rows["near-1"] = rows
        journals["near-1"] = journals["far-1"]
    found = load.judge(journals, MEMBERS, (), is_excused=False)
    assert sorted({each.text.partition(",")[0] for each in found.broken}) == wrong
    assert all(victim.decode() in each.text for each in found.broken)
    assert (found.changes, found.deletions) == (120, 2 * (60 // DELETIONS))
    assert found.records["near-2"] == len(of_near)


def test_an_instance_that_does_not_tell_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    load = SowLoad("1", GROUPS, ALL)
    asked: dict[str, list[Server]] = {}

    async def answer(name: str, keys: list[bytes], options: dict[str, Any]) -> dict[bytes, SowRow]:
        asked[name] = options["servers"]
        assert keys == [key for writer in load.writers for key in writer.keys]
        if name.endswith("near-2"):
            raise CommandFailed("sow", "no_sow", "it has none")
        return {}

    monkeypatch.setattr(sow_load, "ask", answer)
    servers = [Server(f"{name}:1", name, "near") for name in (*ALL, "quiet")]
    asyncio.run(load.ask(servers, lambda name, group: {"servers": servers}))
    assert asked == {f"drill-1-asks-{each.instance}": [each] for each in servers[:3]}
    assert load.rows.keys() == {"near-1", "far-1"}
    (told,) = load.complaints
    assert told.startswith("near-2 did not answer a query on its SOW topic: ") and "none" in told
