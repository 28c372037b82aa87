"""An event loop never looks into the journal: what comes again is compared aside, and what comes
behind it on its connection waits, in order, while everybody else goes on.

Every server of these tests, and of those in the files beside, is watched (watched_instance.py): a
look into the journal on its event loop fails the test, by its fixture.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from support.instance_processes import Client, Server, Servers, single, subscribe
from support.journal_runs import every_run
from support.link_peers import DESCRIPTION
from support.watched_instance import HELD, READ_ON_THE_LOOP

from raylay.services.config.journal import JournalConfig
from raylay.services.messages.records import Flag, RecordBuilder, run_of, scan
from raylay.services.protocol.link.replication import (
    UpstreamLogon,
    batch_front,
    link_logon,
    read_ack,
)
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.storage.journal_reader import LmdbJournalReader

pytestmark = pytest.mark.covers("Journal", "a serving instance reads no journal on its event loop")

BODY = "x" * 1_000
MESSAGES = 40_000
FRAME_MESSAGES = 100
FRAME_AGAIN_MESSAGES = 1_000
READ_MS = 10
TURN_RATIO = 2
ACKS_RATIO = 3
MEMORY_MB_MAX = 60
"""What a resend may cost an instance: frames of a megabyte on their way, and what was read of the
history for one part. Of 40 MB of history before: all of it, and more."""


@pytest.fixture(autouse=True)
def nothing_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what comes again a moment later is looked up in the journal."""
    monkeypatch.setenv("RAYLAY_TEST_RECENT", "none")


class Held:
    """The reading thread of a server, held at its next look."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.before = server.events(HELD)
        self.pipe = server.directory / "hold"
        os.mkfifo(self.pipe)

    def comes(self) -> None:
        """Waits until it is there."""
        self.server.wait_for(HELD, self.before + 1)

    def release(self) -> None:
        """Lets it go on."""
        self.pipe.write_bytes(b".")


def frames_of(client: Client, messages: int) -> list[tuple[int, bytes]]:
    """All of the history, cut into frames: (how many, payload)."""
    builder = RecordBuilder(client.answer["publisher"], "orders", "json")
    records = [builder.build(n, BODY.encode(), 1) for n in range(1, MESSAGES + 1)]
    return [
        (len(records[at : at + messages]), b"".join(records[at : at + messages]))
        for at in range(0, MESSAGES, messages)
    ]


def sent(client: Client, frames: list[tuple[int, bytes]]) -> threading.Thread:
    def send() -> None:
        for count, payload in frames:
            client.send({"c": "pb", "n": count}, payload)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def looked(server: Server) -> dict[str, float]:
    """The longest turn of the server's loop, and its memory, since this was asked last."""
    before = server.events('{"longest_ms"')
    server.process.send_signal(signal.SIGUSR1)
    server.wait_for('{"longest_ms"', before + 1)
    lines = [line for line in server.log.splitlines() if line.startswith('{"longest_ms"')]
    found: dict[str, float] = json.loads(lines[-1])
    return found


def resend(servers: Servers, path: Path) -> dict[str, float]:
    """A client publishes a history, comes again and sends it all once more, in other frames, while
    another client publishes one message after the other."""
    server = single(servers, path)
    client = Client(server.address, "resender")
    sent(client, frames_of(client, FRAME_MESSAGES))
    client.persisted(MESSAGES)
    client.close()
    other = Client(server.address, "other")
    again = Client(server.address, "resender")
    frames = frames_of(again, FRAME_AGAIN_MESSAGES)
    before = looked(server)
    done = threading.Event()

    def await_ack() -> None:
        again.persisted(MESSAGES)
        done.set()

    begin_s = time.perf_counter()
    sent(again, frames)
    threading.Thread(target=await_ack, daemon=True).start()
    acks, slowest_s = 0, 0.0
    while not done.is_set():
        asked_s = time.perf_counter()
        other.publish(range(acks + 1, acks + 2))
        acks += 1
        other.persisted(acks)
        slowest_s = max(slowest_s, time.perf_counter() - asked_s)
    took_s = time.perf_counter() - begin_s
    found = looked(server)
    assert len(server.journal()) == MESSAGES + acks
    assert "conflict" not in server.log
    server.stop()
    return {
        "acks_per_s": acks / took_s,
        "slowest_ms": slowest_s * 1e3,
        "longest_ms": found["longest_ms"],
        "memory_mb": found["memory_mb"] - before["memory_mb"],
    }


@pytest.mark.slow
def test_the_resend_of_a_long_history_holds_nobody_up(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same with the looks on the loop, as they were: a machine's speed does not matter.
    Of several tries: others may keep its processors for a while. On a disk where a read takes its
    time: in the system's cache nobody would notice a history of this length."""
    monkeypatch.setenv("RAYLAY_TEST_READ_MS", str(READ_MS))
    tries = []
    for number in range(3):
        monkeypatch.setenv("RAYLAY_TEST_READS", "on-the-loop")
        before = resend(servers, tmp_path / f"before{number}")
        monkeypatch.delenv("RAYLAY_TEST_READS")
        now = resend(servers, tmp_path / f"now{number}")
        tries.append((before, now))
        assert now["memory_mb"] < MEMORY_MB_MAX, tries
        if (
            now["acks_per_s"] > ACKS_RATIO * before["acks_per_s"]
            and now["longest_ms"] * TURN_RATIO < before["longest_ms"]
        ):
            return
    raise AssertionError(tries)


def test_what_a_client_sends_behind_a_resend_waits_for_it_and_nobody_else_does(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "resender")
    client.publish(range(1, 11))
    client.persisted(10)
    client.close()
    client = Client(server.address, "resender")
    held = Held(server)
    client.publish(range(5, 8))
    held.comes()
    # The first asks nothing, the second is a command, the last asks again.
    client.publish(range(11, 13))
    client.send({"c": "p", "t": "orders", "s": 13, "a": "processed", "cid": "p"}, b"m13")
    client.send({"c": "flush", "a": "processed", "cid": "f"})
    client.publish(range(14, 21))
    other = Client(server.address, "other")
    other.publish(range(1, 4))
    other.persisted(3)
    publisher = client.answer["publisher"]
    assert [n for p, n in server.journal() if p == publisher] == list(range(1, 11))
    held.release()
    acks = []
    while len(acks) < 2:
        frame = client.ack(a="processed")
        acks.append(frame.header["cid"])
    client.persisted(20)
    assert acks == ["p", "f"]
    assert [n for p, n in server.journal() if p == publisher] == list(range(1, 21))
    assert "late" not in server.log


def test_a_client_that_goes_while_its_resend_is_looked_at_harms_nobody(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    client = Client(server.address, "resender")
    client.publish(range(1, 4))
    client.persisted(3)
    client.close()
    client = Client(server.address, "resender")
    held = Held(server)
    client.publish(range(1, 9))
    held.comes()
    newer = Client(server.address, "resender")
    assert client.closed()
    held.release()
    newer.publish(range(1, 6))
    newer.persisted(5)
    assert [n for _, n in server.journal()] == [1, 2, 3, 4, 5], "nothing of the older one"
    assert "fatal" not in server.log


def link_to(server: Server, epoch: int) -> Client:
    link = Client(server.status["replication_address"])
    logon = UpstreamLogon("up", "east", 77, "group", "to-solo", epoch, b"", 0, DESCRIPTION)
    link.socket.sendall(link_logon(logon))
    link.next(lambda frame: frame.header["c"] == "waited")
    return link


def batch(link: Client, number: int, *sequences: int, text: str = "m") -> None:
    builder = RecordBuilder(5, "orders", "json")
    payload = b"".join(builder.build(n, f"{text}{n}".encode(), 1) for n in sequences)
    run = run_of(scan(payload)[0], payload)
    run.flags |= Flag.AWAITED
    block = run.encode()
    link.socket.sendall(batch_front(number, False, True, b"", "", len(block)) + block)


def test_batches_behind_one_that_is_compared_wait_for_it(servers: Servers, tmp_path: Path) -> None:
    """Sequences 3 to 5 of the second batch must not be journaled behind those of the third, which
    asks nothing: the link's running numbers would refuse that, and order would be lost."""
    server = single(servers, tmp_path)
    link = link_to(server, 1)
    batch(link, 1, 1, 2)
    assert link.next(lambda frame: frame.header["c"] == "ack").header["n"] == 1
    held = Held(server)
    batch(link, 2, 1, 2, 3, 4, 5)
    held.comes()
    batch(link, 3, 6, 7)
    other = Client(server.address, "other")
    other.publish(range(1, 4))
    other.persisted(3)
    assert [n for p, n in server.journal() if p == 5] == [1, 2]
    held.release()
    numbers: list[int] = []
    while not numbers or numbers[-1] < 3:
        frame = link.next(lambda frame: frame.header["c"] == "ack")
        numbers.append(frame.header["n"])
    assert numbers == sorted(numbers)
    assert [n for p, n in server.journal() if p == 5] == [1, 2, 3, 4, 5, 6, 7]
    assert "late" not in server.log


def test_a_link_that_sends_another_content_is_told_when_it_was_read(
    servers: Servers, tmp_path: Path
) -> None:
    server = single(servers, tmp_path)
    link = link_to(server, 1)
    batch(link, 1, 1, 2)
    batch(link, 2, 3)
    link.next(lambda frame: frame.header["c"] == "ack" and frame.header["n"] == 2)
    batch(link, 3, 2, 3, 4, text="other")
    found: dict[int, list[tuple[int, int]]] = {}
    number = 0
    while number < 3:
        frame = link.next(lambda frame: frame.header["c"] == "ack")
        number, _, _, conflicts = read_ack(frame.header, frame.body)
        found |= conflicts
    assert found == {5: [(2, 3)]}
    assert [n for p, n in server.journal() if p == 5] == [1, 2, 3, 4]


def test_old_segments_late_messages_and_replays_are_read_aside(
    servers: Servers, tmp_path: Path
) -> None:
    """A restart in between, so that nothing is in memory, and many segments."""
    server = single(servers, tmp_path, journal=JournalConfig(segment_bytes=64 * 1024))
    client = Client(server.address, "p")
    for first in range(1, 2_001, 100):
        wanted = [n for n in range(first, first + 100) if n % 7]
        builder = RecordBuilder(client.answer["publisher"], "orders", "json")
        payload = b"".join(builder.build(n, BODY.encode(), 1) for n in wanted)
        client.send({"c": "pb", "n": len(wanted)}, payload)
    client.persisted(1_999)
    server.kill()
    server.start()
    client = Client(server.address, "p")
    client.publish(range(7, 8))
    client.publish(range(1_002, 1_003), text="other")
    reader = Client(server.address, "reader")
    subscribe(reader, "0")
    reader.receive(1_716)
    client.publish(range(2_001, 2_101))
    client.next(lambda frame: frame.header.get("s") == 2_100)
    server.wait_for("late")
    server.wait_for("conflict")
    assert late_in(server) == [7]


def late_in(server: Server) -> list[int]:
    with LmdbJournalReader(server.directory / JOURNAL_DIRECTORY) as reader:
        return [run.first_sequence for run in every_run(reader) if run.flags & Flag.LATE]


def test_the_watch_sees_a_look_on_the_loop(servers: Servers, tmp_path: Path) -> None:
    """What every other test of these relies on."""
    server = single(servers, tmp_path)
    client = Client(server.address, "p")
    client.publish(range(1, 4))
    client.persisted(3)
    server.process.send_signal(signal.SIGUSR2)
    server.wait_for(READ_ON_THE_LOOP)
    # The fixture would fail it.
    servers.remove(server)
    server.kill()
