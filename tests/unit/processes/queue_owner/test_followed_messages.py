"""Messages that come to a queue and leave it, on their way to the instance's views
(services/processes/queue_owner/followed_messages.py)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from unit.processes.queue_owner.test_owner_server import Journal, bodies

from raylay.services.errors import StorageError
from raylay.services.messages.records import iterate_records
from raylay.services.processes.queue_owner import followed_messages
from raylay.services.processes.queue_owner.followed_messages import FollowedMessages
from raylay.services.protocol.child import queue_control as control
from raylay.services.protocol.frames import FrameReader
from raylay.services.queues.message import AVAILABLE, GONE, LEASED

pytestmark = pytest.mark.covers("Views", "views over queues")


class Instance:
    """The socket to the instance: what it was sent."""

    def __init__(self) -> None:
        self.may_write = True
        self.frames: list[tuple[str, Any]] = []

    def send(self, frame: bytes) -> None:
        ((header, body),) = FrameReader().feed(frame)
        said = control.read_gone(body) if header["c"] == "gone" else None
        self.frames.append((header["c"], said))

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        frame = b"".join(parts)
        assert len(frame) == size_bytes
        ((header, body),) = FrameReader().feed(frame)
        self.frames.append((header["c"], [each.sequence for each in iterate_records(body)]))


def message(sequence: int, state: int = AVAILABLE) -> Any:
    """A message that lies in the journal one transaction behind its sequence."""
    return SimpleNamespace(txid=sequence + 1, key=(7, sequence), state=state)


def made(count: int = 30, begun_txid: int = 0) -> tuple[FollowedMessages, Instance]:
    instance: Any = Instance()
    return FollowedMessages(bodies(Journal(count)), instance, begun_txid), instance


def test_messages_are_told_as_they_are_now() -> None:
    found, instance = made()
    gone = message(2, GONE)
    found.waiting += [message(1), gone, message(3, LEASED), gone, message(9, GONE)]
    assert len(found) == 5
    found.send(0)
    assert instance.frames == [
        ("gone", {7: [(2, 2), (9, 9)]}), ("came", [1, 3]), ("all_came", None)
    ]  # fmt: skip
    found.send(0)
    assert len(instance.frames) == 3 and not len(found), "it is told once"


def test_all_have_come_when_the_owner_has_read_what_was_there_before() -> None:
    found, instance = made(begun_txid=9)
    found.waiting.append(message(1))
    found.send(8)
    found.waiting.append(message(2, GONE))
    found.send(9)
    assert [word for word, _ in instance.frames] == ["came", "gone", "all_came"]


def test_a_turn_tells_of_some_in_frames_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_messages, "FRAME_MESSAGES", 4)
    monkeypatch.setattr(followed_messages, "TURN_MESSAGES", 8)
    monkeypatch.setattr(followed_messages, "DELIVERY_BYTES", 300)
    found, instance = made()
    found.waiting += [message(at) for at in range(1, 16)]
    found.send(0)
    assert len(found) == 7 and [len(said) for _, said in instance.frames] == [3, 1, 3, 1]
    instance.may_write = False
    found.send(0)
    assert len(found) == 7, "the instance does not read"
    instance.may_write = True
    found.send(0)
    told = [sequence for _, said in instance.frames for sequence in said or ()]
    assert told == list(range(1, 16))
    assert instance.frames[-1] == ("all_came", None)


def test_a_journal_that_lacks_a_message_of_the_queue_ends_the_owner() -> None:
    found, _ = made()
    found.waiting.append(message(99))
    with pytest.raises(StorageError, match="no message with transaction 100"):
        found.send(0)
