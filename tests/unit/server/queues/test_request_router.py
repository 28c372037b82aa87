"""Requests for messages of queues go out over all links, and on where they did not come before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.server.queues.test_manager import Bench

from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.child.queue_requests import QueueRequest
from raylay.services.queues.decisions import TransferCandidate, TransferRequest
from raylay.services.queues.definition import QueueDefinition

GROUP_LOCAL = QueueDefinition(
    "work", "json", kind="group_local", underlying="orders", initial_owner="a"
)
LOCAL = QueueDefinition("work", "json", kind="local", underlying="orders")


class Meeting:
    """An instance with two links."""

    def __init__(self, *definitions: QueueDefinition) -> None:
        self.bench = Bench(*definitions)
        self.links = self.bench.links
        self.owner = self.bench.owner()

    def carried(self) -> list[list[QueueRequest]]:
        return [link.carried for link in self.links.values()]

    def asks(self) -> QueueRequest:
        """What the owner here asks of all."""
        self.bench.says(control.request(TransferRequest(2, [TransferCandidate((7, 1), 3, "b")])))
        (found,) = self.links["b"].carried
        return found


def test_what_an_owner_asks_for_goes_out_over_every_link() -> None:
    runtime = Meeting()
    request = runtime.asks()
    assert request == QueueRequest(0xA, 3, 1, "a", "work", "json", "", 2, [(7, 1, 3, "b")])
    assert runtime.carried() == [[request], [request]]


def test_what_another_asks_for_is_told_the_owner_and_passed_on_once() -> None:
    request = replace_of(Meeting().asks())
    runtime = Meeting()
    runtime.bench.manager.requested(request)
    runtime.bench.manager.requested(request)
    (told,) = runtime.owner.said("request")
    assert told.header["from"] == "z"
    assert control.read_request(told.header, told.body) == TransferRequest(
        2, [TransferCandidate((7, 1), 3, "b")]
    )
    assert runtime.carried() == [[request], [request]]


def test_another_queue_of_the_name_is_not_told_but_its_request_goes_on() -> None:
    request = replace_of(Meeting().asks())
    for runtime in (Meeting(GROUP_LOCAL), Meeting(LOCAL)):
        runtime.bench.manager.requested(request)
        assert not runtime.owner.said("request")
        assert runtime.carried() == [[request], [request]]


@pytest.mark.covers("Queues", "a group-local queue is of a group")
def test_a_group_local_queue_is_asked_within_its_domain() -> None:
    own = Meeting(GROUP_LOCAL)
    assert own.asks().domain == "g"
    named = replace(GROUP_LOCAL, domain="east")
    request = replace_of(Meeting(named).asks())
    runtime, elsewhere = Meeting(named), Meeting(GROUP_LOCAL)
    runtime.bench.manager.requested(request)
    elsewhere.bench.manager.requested(request)
    assert runtime.owner.said("request") and not elsewhere.owner.said("request")


def replace_of(request: QueueRequest) -> QueueRequest:
    """As if another instance had asked."""
    return request._replace(incarnation=0xF, name="z")
