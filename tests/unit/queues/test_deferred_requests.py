"""services/queues/transfer/deferred_requests.py: requests that were refused and are still out."""

from __future__ import annotations

from raylay.services.queues.decisions import TransferCandidate
from raylay.services.queues.transfer.deferred_requests import (
    REQUESTERS_MAX,
    DeferredRequest,
    DeferredRequests,
)
from raylay.services.queues.transfer.transfer_requests import REPEAT_US

WANTED = [TransferCandidate((1, 1), 0, "A")]


def refusal(requester: str, count: int = 1) -> DeferredRequest:
    """It asked for that."""
    return DeferredRequest(requester, count, WANTED)


def test_the_last_request_of_each_is_out_until_its_end() -> None:
    refused = DeferredRequests()
    refused.note(refusal("B"), 10)
    refused.note(refusal("C"), 20)
    refused.note(refusal("B", 7), 30)
    assert refused.take(20) == [(30, refusal("B", 7))]
    assert not refused


def test_who_got_all_waits_for_nothing() -> None:
    refused = DeferredRequests()
    refused.note(refusal("B"), 10)
    refused.note(refusal("B", 0), 10)
    refused.note(DeferredRequest("C", 1, []), 10)
    assert not refused


def test_something_that_came_free_matters_where_somebody_waits() -> None:
    refused = DeferredRequests()
    refused.freed()
    assert not refused.has_freed
    refused.note(refusal("B"), 10)
    assert not refused.has_freed
    refused.freed()
    assert refused.has_freed
    assert refused.take(1)
    assert not refused.has_freed


def test_a_clock_that_was_set_back_keeps_no_request_alive() -> None:
    refused = DeferredRequests()
    refused.note(refusal("B"), 2 * REPEAT_US)
    assert refused.take(REPEAT_US - 1) == []


def test_only_so_many_are_remembered() -> None:
    refused = DeferredRequests()
    for number in range(REQUESTERS_MAX + 3):
        refused.note(refusal(str(number)), 10)
    found = [each.requester for _, each in refused.take(0)]
    assert len(found) == REQUESTERS_MAX
    assert found[0] == "3"
