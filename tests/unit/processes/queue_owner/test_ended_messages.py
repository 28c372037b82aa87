"""Messages that have left a queue, on their way to the instance
(services/processes/queue_owner/ended_messages.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from unit.processes.queue_owner.test_owner_server import Journal, bodies

from raylay.services.messages.records import iterate_records
from raylay.services.processes.queue_owner import ended_messages
from raylay.services.processes.queue_owner.ended_messages import EndedMessages
from raylay.services.protocol.frames import FrameReader
from raylay.services.queues.decisions import Expiration


class Instance:
    """The socket to the instance: what it was sent."""

    def __init__(self) -> None:
        self.may_write = True
        self.frames: list[tuple[str, Any]] = []

    def send(self, frame: bytes) -> None:
        ((header, body),) = FrameReader().feed(frame)
        bookmark = header["publisher"], header["sequence"]
        self.frames.append((header["why"], body if body else bookmark))

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        frame = b"".join(parts)
        assert len(frame) == size_bytes
        ((header, body),) = FrameReader().feed(frame)
        self.frames.append((header["why"], [each.sequence for each in iterate_records(body)]))


def ended(reason: str, *txids: int) -> list[Expiration]:
    """Messages that lie in the journal one transaction behind their sequence."""
    return [Expiration(txid, (7, txid - 1), reason) for txid in txids]


def made(journal: Journal) -> tuple[EndedMessages, Instance]:
    instance: Any = Instance()
    return EndedMessages(bodies(journal), instance), instance


def test_neighbours_with_one_reason_are_one_frame() -> None:
    found, instance = made(Journal(30))
    found.put(ended("time_limit", 2, 3, 9))
    found.put(ended("acknowledged", 4))
    found.put(ended("time_limit", 5))
    assert len(found) == 5
    found.send()
    assert instance.frames == [
        ("time_limit", [1, 2, 8]), ("acknowledged", [3]), ("time_limit", [4]),
    ]  # fmt: skip
    assert not len(found)
    found.send()
    assert len(instance.frames) == 3


def test_a_turn_sends_no_more_than_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_messages, "DELIVERY_BYTES", 1)
    monkeypatch.setattr(ended_messages, "TURN_BYTES", 200)
    found, instance = made(Journal(30))
    found.put(ended("time_limit", *range(2, 12)))
    turns = 0
    while len(found):
        before = len(instance.frames)
        found.send()
        turns += 1
        assert 0 < len(instance.frames) - before <= 3
    assert turns > 3
    assert [each for _, each in instance.frames] == [[number] for number in range(1, 11)]


def test_a_full_socket_is_given_nothing() -> None:
    found, instance = made(Journal(10))
    found.put(ended("time_limit", 2))
    instance.may_write = False
    found.send()
    assert len(found) == 1 and not instance.frames
    instance.may_write = True
    found.send()
    assert instance.frames == [("time_limit", [1])]


def test_a_message_that_the_journal_has_no_more_is_told_without_its_body() -> None:
    found, instance = made(Journal(10))
    found.put(ended("max_cancels", 2, 3, 99, 4))
    found.send()
    assert sorted(str(each) for each in instance.frames) == sorted(
        str(each)
        for each in [("max_cancels", [1]), ("max_cancels", [2]), ("max_cancels", (7, 98)),
                     ("max_cancels", [3])]
    )  # fmt: skip
    assert not len(found)


def test_unreadable_neighbours_do_not_make_a_turn_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_messages, "TURN_BYTES", 2 * ended_messages.UNREAD_BYTES)
    monkeypatch.setattr(ended_messages, "NEIGHBOURS_MAX", 3)
    found, instance = made(Journal(10))
    found.put(ended("time_limit", 2, 99, 98, 3, 4, 5, 6))
    found.send()
    assert [each for _, each in instance.frames] == [[1], (7, 98)], "two reads of their own"
    found.send()
    assert [each for _, each in instance.frames[2:]] == [(7, 97), [2, 3, 4], [5]]
