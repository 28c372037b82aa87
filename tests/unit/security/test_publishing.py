"""services/security/publishing.py: which of what a session sends it may publish."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.expressions.budgets import BURST_STEPS
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Command, RecordBuilder, Run, publisher_id, run_of, scan
from raylay.services.messages.stateful import PreparedRun
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.security.permissions import read_permissions
from raylay.services.security.publishing import PublishJudge

pytestmark = pytest.mark.covers("Configuration", "Entitlement: publishes")

BOB = publisher_id("bob")
TYPES = MessageTypes()


def judge(*topics: dict[str, Any]) -> PublishJudge:
    found = read_permissions({"topic": list(topics)}, "here")
    return PublishJudge(found, "bob", lambda: (TYPES, BUILT_IN))


def run(*bodies: bytes, topic: str = "orders", command: int = Command.PUBLISH) -> Run:
    build = RecordBuilder(BOB, topic, "json").build
    payload = b"".join(
        build(number, body, 1, command=command) for number, body in enumerate(bodies, 1)
    )
    (chunk,) = scan(payload, commands=frozenset(Command))
    return run_of(chunk, payload)


def test_what_is_allowed_goes_on_untouched() -> None:
    sent = run(b"{}", b"not json")
    runs, refused, _ = judge({"topic": "orders", "write": True})(sent)
    assert list(runs) == [sent] and not refused


@pytest.mark.parametrize(
    "given", [{"topic": "orders", "read": True}, {"topic": "o", "write": True}]
)
def test_what_is_not_is_refused_whole(given: dict[str, Any]) -> None:
    runs, (refused,), _ = judge(given)(run(b"{}", b"{}"))
    assert not runs and refused.ranges == [(1, 2)] and refused.reason == "not_entitled"
    assert refused.text == "bob may not publish to 'orders'"


def test_a_filter_parts_a_run() -> None:
    bodies = [b'{"px": 1}', b'{"px": 0}', b'{"px": 0}', b'{"px": 2}', b"[", b'{"px": 3}']
    runs, (refused,), _ = judge({"topic": "orders", "write": "/px > 0"})(run(*bodies))
    (left,) = runs
    assert left.ranges() == [(1, 1), (4, 4), (6, 6)]
    assert refused.ranges == [(2, 3), (5, 5)]
    assert refused.text == "bob may not publish such a message to 'orders'"


def test_long_stretches_stay_whole() -> None:
    bodies = [b'{"px": 1}'] * 4 + [b'{"px": 0}'] * 5
    runs, (refused,), _ = judge({"topic": "orders", "write": "/px > 0"})(run(*bodies))
    (left,) = runs
    assert left.ranges() == [(1, 4)] and refused.ranges == [(5, 9)]


def test_a_filter_that_all_pass_parts_nothing() -> None:
    sent = run(b'{"px": 1}', b'{"px": 2}')
    runs, refused, _ = judge({"topic": "orders", "write": "/px > 0"})(sent)
    assert list(runs) == [sent] and not refused
    runs, (refused_all,), _ = judge({"topic": "orders", "write": "/px > 5"})(sent)
    assert not runs and refused_all.ranges == [(1, 2)]


def test_where_a_state_knows_the_records_a_filter_is_asked_of_those() -> None:
    sent = run(b'{"px": 1}', b'{"px": 0}', command=Command.DELTA_PUBLISH)
    judged = judge({"topic": "orders", "write": "/px > 0"}, {"topic": "all", "write": True})
    assert judged(sent, by_record=True) == PreparedRun((sent,))
    assert not judged.writes_all(b"orders") and judged.writes_all(b"all")
    assert judged.passes(b"orders", {"px": 1}) and not judged.passes(b"orders", {"px": 0})
    assert judged.passes(b"all", {}) and not judged.passes(b"others", {"px": 1})
    assert judged.refusal(b"orders", "publish to") == (
        "not_entitled", "bob may not publish to 'orders'"
    )  # fmt: skip
    # What needs no message to be judged is judged as ever.
    assert not judged(run(b"{}", topic="others"), by_record=True).runs
    deletion = run(b"{}", command=Command.DELETE)
    assert judged(deletion, by_record=True) == PreparedRun((deletion,)), "by the state, too"
    assert not judged(run(b"{}", topic="others", command=Command.DELETE), by_record=True).runs
    assert judged.writes_some(b"orders") and not judged.writes_some(b"others")


def test_a_delta_without_a_record_is_judged_by_what_it_brings() -> None:
    sent = run(b'{"px": 1}', b'{"px": 0}', command=Command.DELTA_PUBLISH)
    runs, (refused,), _ = judge({"topic": "orders", "write": "/px > 0"})(sent)
    assert runs[0].ranges() == [(1, 1)] and refused.ranges == [(2, 2)]


def test_who_may_write_some_messages_may_delete_none() -> None:
    sent = run(b"{}", command=Command.DELETE)
    assert judge({"topic": "orders", "write": True})(sent).runs == (sent,)
    runs, (refused,), _ = judge({"topic": "orders", "write": "1 = 1"})(sent)
    assert not runs and refused.text == "bob may not delete from 'orders'"
    assert not judge({"topic": "orders", "read": True})(sent).runs


def test_who_reads_a_queue_may_acknowledge() -> None:
    sent = run(b"\x80", topic="jobs", command=Command.QUEUE_ACKNOWLEDGMENT)
    assert judge({"topic": "jobs", "read": True})(sent).runs == (sent,)
    runs, (refused,), _ = judge({"topic": "jobs", "write": True})(sent)
    assert not runs and refused.text == "bob may not acknowledge messages of queue 'jobs'"


@pytest.mark.covers("Configuration", "who may read some of a queue acknowledges what he holds")
@pytest.mark.parametrize("given", [{"read": "/desk = 'fx'"}, {"read": True, "select": "-/pay"}])
def test_who_reads_some_of_a_queue_acknowledges_what_he_holds(given: dict[str, Any]) -> None:
    sent = run(b"\x80", topic="jobs", command=Command.QUEUE_ACKNOWLEDGMENT)
    less = PreparedRun(())
    found = read_permissions({"topic": [{"topic": "jobs", **given}]}, "here")
    asked: list[Run] = []

    def held_only(run: Run) -> PreparedRun:
        asked.append(run)
        return less

    judged = PublishJudge(found, "bob", lambda: (TYPES, BUILT_IN), held_only=held_only)
    assert judged(sent) is less and asked == [sent]


def test_a_type_without_fields_passes_no_filter() -> None:
    build = RecordBuilder(BOB, "orders", "nobody-knows").build
    payload = build(1, b"{}", 1)
    (chunk,) = scan(payload)
    runs, (refused,), _ = judge({"topic": "orders", "write": "1 = 1"})(run_of(chunk, payload))
    assert not runs and refused.ranges == [(1, 1)]


def test_a_filter_of_permissions_may_work_for_long() -> None:
    """What somebody publishes is not to exhaust it: others of the same permission publish, too."""
    asked = judge({"topic": "orders", "write": "/tags = 'fx'"})
    large = run(b'{"tags": [%s]}' % b",".join([b'"x"'] * 65_000))
    for _ in range(2 * BURST_STEPS // 13_000_000):
        assert asked(large).refused
    assert not asked(run(b'{"tags": ["fx", "eu"]}')).refused
