"""The adversary on real actors: a short run of tests/soak, and its judge (`make test-all`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.driver import Plan, Report, broken_laws, soak, unwhole

from raylay.services.fabric import Fabric
from raylay.services.verification.history import AckGiven, FinalLog, RunHistory, RunJournaled

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.covers("Laws", "1 no acknowledged loss", note="on real processes"),
    pytest.mark.covers("Laws", "5 no loops", note="on real processes"),
]

SEED = 20
FAULTS = ("kill", "pause", "cut", "full_disk", "kill_link")


@pytest.mark.covers("The replication chapters", "the order of each publisher on a topic")
@pytest.mark.covers("The replication chapters", "each part can be restarted on its own")
@pytest.mark.slow
def test_a_sync_group_keeps_the_laws(runtime_directory: Path, tmp_path: Path) -> None:
    """SIGKILL of an instance, SIGSTOP, cut connections, a full disk and SIGKILL of a link under
    load, one after another."""
    plan = Plan(
        0.0,
        SEED,
        regions=0,
        pair=False,
        trio=True,
        rate_per_s=200,
        pause_s_max=1.0,
        faults=FAULTS,
        real_disk=False,
    )
    report = soak(plan, tmp_path)
    assert report.valid, f"{report}\n{(tmp_path / 'soak.log').read_text()}"
    assert dict(report.faults) == dict.fromkeys(FAULTS, 1)
    # Three journals and three subscribers, and something in each.
    assert len(report.verdict.places) == 6
    assert all(place.messages >= report.verdict.persisted > 300 for place in report.verdict.places)
    judge_sees_a_record_that_one_journal_lost(report)


def judge_sees_a_record_that_one_journal_lost(report: Report) -> None:
    """The first that was acknowledged is taken out of another instance's account."""
    history = report.history
    assert history is not None and not broken_laws(history)
    acked = next(found for found in history.operations if isinstance(found, AckGiven))
    lost = (acked.publisher, acked.sequences[0])
    victim = next(name for name in history.topology.members if name != acked.instance)
    broken = broken_laws(without(history, victim, lost))
    assert any(line.startswith("acknowledged: ") and victim in line for line in broken), broken
    assert any(line.startswith("liveness: ") and victim in line for line in broken), broken


def without(history: RunHistory, instance: str, key: tuple[int, int]) -> RunHistory:
    """The same history, but that one instance never had one message."""
    publisher, sequence = key
    told = RunHistory(
        history.topology, [], dict(history.final), history.unacked, history.subscribed
    )
    for operation in history.operations:
        if (
            isinstance(operation, RunJournaled)
            and operation.instance == instance
            and operation.publisher == publisher
            and sequence in operation.sequences
        ):
            left = tuple(each for each in operation.sequences if each != sequence)
            if not left:
                continue
            operation = operation._replace(sequences=left)
        told.operations.append(operation)
    final = told.final[instance]
    told.final[instance] = FinalLog(
        final.incarnation,
        final.present - {key},
        final.ever - {key},
        final.servers,
        final.owed,
        final.pending,
    )
    return told


def test_a_whole_fabric_says_so(whole: Fabric) -> None:
    statuses = {status["name"]: status for status in whole.status()["instances"]}
    statuses["near-1"]["destinations"]["near-2"]["unacked"] = 1
    statuses["far-1"]["ready"] = False
    wrong = unwhole(statuses)
    assert any(line.startswith("near-1 to near-2") for line in wrong)
    assert any(line.startswith("far-1 is not ready") for line in wrong)
