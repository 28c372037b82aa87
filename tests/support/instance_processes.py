"""Instances and links as real processes, and a client on a plain socket."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from raylay.services.config.instance import DestinationConfig, InstanceConfig, split_address
from raylay.services.config.transport import TransportConfig
from raylay.services.fabric.plan import free_port
from raylay.services.messages.records import (
    SEQUENCE_MAX,
    Flag,
    Kind,
    RecordBuilder,
    Run,
    iterate_records,
    run_of,
    scan,
    sequences_of,
)
from raylay.services.protocol.frames import Frame, FrameReader, Header, encode_frame
from raylay.services.queues.definition import QueueDefinition
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.server.data.data_files import JOURNAL_DIRECTORY
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.telemetry.tracing import TracingOptions
from raylay.storage.journal_reader import LmdbJournalReader
from raylay.storage.lmdb_journal import LmdbJournal
from support import forked
from support.journal_runs import every_run
from support.waiting import wait_until
from support.watched_instance import READ_ON_THE_LOOP

DEADLINE_S = 60.0
"""For what is awaited: only a failure comes near it."""
START_S_MAX = 120.0
"""Until an instance serves: on a machine that does much else, with a log to copy."""
FRAME_MESSAGES = 25
"""Number of messages in a frame: few enough that a link which has caught up stays with its
instance."""
WATCHED = Path(__file__).with_name("watched_instance.py")


class Client:
    """A client on a plain socket: what it sends and gets is what is on the wire."""

    def __init__(self, address: str, name: str = "", low: int = 0, **options: Any) -> None:
        self.socket = socket.create_connection(split_address(address), DEADLINE_S)
        self.socket.settimeout(DEADLINE_S)
        self.reader = FrameReader()
        self.frames: list[Frame] = []
        self.answer: Header = {}
        if name:
            self.send({"c": "logon", "v": 1, "client_name": name, "low": low, "cid": "1"} | options)
            self.answer = self.next(lambda frame: frame.header.get("cid") == "1").header

    def send(self, header: Header, body: bytes = b"") -> None:
        self.socket.sendall(encode_frame(header, body))

    def next(self, wanted: Any = lambda frame: True, *, kept: str = "") -> Frame:
        """The next frame that is wanted. Those before it are dropped, but for those of the command
        `kept`, which stay to be read."""
        stay: list[Frame] = []
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if wanted(frame):
                    self.frames[:0] = stay
                    return frame
                if frame.header["c"] == kept:
                    stay.append(frame)
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError("the server closed the connection")
            self.frames += self.reader.feed(data)

    def ack(self, **values: Any) -> Frame:
        """The next ack of these values. Deliveries that came before it stay."""
        return self.next(
            lambda frame: (
                frame.header["c"] == "ack"
                and all(frame.header.get(key) == value for key, value in values.items())
            ),
            kept="p",
        )

    def closed(self) -> bool:
        """Waits for the server to close the connection. Returns whether it did."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def publish(self, sequences: range, topic: str = "orders", text: str = "m") -> None:
        builder = RecordBuilder(self.answer["publisher"], topic, "json")
        payload = b"".join(
            builder.build(number, f"{text}{number}".encode(), time.time_ns() // 1000)
            for number in sequences
        )
        self.send({"c": "pb", "n": len(sequences)}, payload)

    def publish_numbered(self, first: int, last: int) -> None:
        """Publishes a message with each of the client's numbers, and one for each number that the
        instance gives. All of them are persisted then."""
        self.publish(range(first, last + 1))
        self.persisted(last)
        for number in range(first, last + 1):
            self.send(
                {"c": "p", "t": "orders", "cid": f"n{number}", "a": "persisted"}, b"%d" % number
            )
            assert self.ack(cid=f"n{number}", a="persisted").header["status"] == "success"

    def publish_steadily(self, first: int, messages: int) -> None:
        """Publishes messages of half a KiB. Each frame is durable before the next one, so that
        links stay caught up, and are handed over."""
        for at in range(first, first + messages, FRAME_MESSAGES):
            self.publish(range(at, at + FRAME_MESSAGES), text="m" * 512)
            self.persisted(at + FRAME_MESSAGES - 1)

    def persisted(self, sequence: int) -> None:
        """Waits for the persisted ack of everything up to `sequence`."""
        frame = self.next(
            lambda frame: (
                frame.header.get("a") == "persisted"
                and (frame.header.get("s", 0) >= sequence or frame.header["status"] == "failure")
            ),
            kept="p",
        )
        assert frame.header["status"] == "success", frame.header

    def receive(self, count: int, subscription: str = "s") -> list[str]:
        """The bodies of the next `count` messages."""
        bodies: list[str] = []
        while len(bodies) < count:
            frame = self.next(
                lambda frame: frame.header["c"] == "p" and frame.header["sub"] == subscription
            )
            found = [record.body.decode() for record in iterate_records(frame.body, verify=True)]
            assert len(found) == frame.header["n"]
            bodies += found
        return bodies

    def close(self) -> None:
        self.socket.close()


class Server:
    """An instance's process.

    Args:
        awaited: whether it is up when this returns; if not, `await_start` is to be called.
    """

    popen: type[subprocess.Popen[str]] = forked.Popen

    def __init__(self, directory: Path, config: InstanceConfig, *, awaited: bool = True) -> None:
        self.directory = directory
        self.config = config
        self.log = ""
        self._logged = threading.Condition()
        config.save(directory)
        if awaited:
            self.start()
        else:
            self.begin_start()

    def start(self) -> None:
        self.begin_start()
        self.await_start()

    def begin_start(self) -> None:
        """Several begun at once are up sooner."""
        self.process = self.popen(
            [sys.executable, str(WATCHED), str(self.directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read_log, args=(self.process.stderr,), daemon=True).start()

    def await_start(self) -> None:
        self.status: dict[str, Any] = json.loads(self.first_line())
        self.address = self.status["client_address"]

    def first_line(self) -> str:
        """Waits for the line that it prints once it serves, and shows its log if that does not
        come."""
        assert self.process.stdout is not None
        ready, _, _ = select.select((self.process.stdout,), (), (), START_S_MAX)
        assert ready, f"it does not serve after {START_S_MAX:g} s: {self.log}"
        line = self.process.stdout.readline()
        assert line, self.log
        return line

    def _read_log(self, stream: IO[str]) -> None:
        for line in stream:
            with self._logged:
                self.log += line
                self._logged.notify_all()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def state(self) -> str:
        """The state of its process and of each of its threads, for a test that waited in vain."""
        status = self.process.poll()
        if status is not None:
            return f"(the process of {self.config.name} has ended: {status})"
        threads = []
        for thread in sorted(Path(f"/proc/{self.process.pid}/task").iterdir()):
            with suppress(OSError):
                name, _, rest = (thread / "stat").read_text().rpartition(") ")
                threads.append(f"{name.partition('(')[2]} {rest[0]}")
        return f"(the threads of {self.config.name}: {', '.join(threads)})"

    def events(self, text: str) -> int:
        """Returns how many events of that text were logged."""
        return self.log.count(text)

    def wait_for(self, text: str, times: int = 1) -> None:
        """Waits for an event."""
        with self._logged:
            assert self._logged.wait_for(lambda: self.events(text) >= times, DEADLINE_S), (
                f"no event {text!r} came {self.state()}: {self.log}"
            )

    def wait_for_behind(self, text: str, other: str, times: int) -> None:
        """Waits for an event behind so many others of another kind."""
        with self._logged:
            assert self._logged.wait_for(
                lambda: self.events(other) >= times and text in self.log.split(other)[-1],
                DEADLINE_S,
            ), f"no event {text!r} came behind {times} of {other!r} {self.state()}: {self.log}"

    def wait_until_journaled(self, publisher: int, sequence: int) -> None:
        """Waits until a message is in its journal: nobody is told of that while the message waits
        for other instances."""
        wait_until(lambda: (publisher, sequence) in self.journal())

    def journal(self) -> list[tuple[int, int]]:
        """(publisher, sequence) of everything in its journal."""
        found: list[tuple[int, int]] = []
        with LmdbJournalReader(self.directory / JOURNAL_DIRECTORY) as reader:
            for run in every_run(reader):
                if run.kind == Kind.RECORDS:
                    found += [(run.publisher, number) for number in sequences_of(run.payload)]
        return found

    def stage(self, payload: bytes, sequence_max: int = SEQUENCE_MAX) -> Run:
        """Writes records of one publisher into the journal, past the checks of an instance, while
        no process uses it. Returns their run."""
        (chunk,) = scan(payload, sequence_max=sequence_max)
        run = run_of(chunk, payload)
        run.flags |= Flag.AWAITED
        journal = LmdbJournal(self.directory / JOURNAL_DIRECTORY)
        run.first_txid, run.receive_time_us = journal.recovered.next_txid, 1
        journal.start(lambda *_: None, lambda *_: None)
        journal.stage(run)
        journal.close()
        return run


class Executed(Server):
    """With processes that begin as a user's do, from an interpreter; also those of its links."""

    popen = subprocess.Popen


Servers = list[Server]


@pytest.fixture
def servers() -> Iterator[Servers]:
    made: Servers = []
    yield made
    for server in made:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    for server in made:
        assert READ_ON_THE_LOOP not in server.log, server.log


PORTS_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that no connection takes meanwhile, nor while their server is away; each once."""
    return [free_port(PORTS_GIVEN) for _ in range(count)]


def single(servers: Servers, path: Path, *, kind: type[Server] = Server, **values: Any) -> Server:
    config = InstanceConfig("solo", "group", **values)
    servers.append(kind(path / "solo", config))
    return servers[-1]


def pair(
    servers: Servers,
    path: Path,
    policy: DowngradePolicy | None = None,
    sow: tuple[SowTopicDefinition, ...] = (),
    queues: tuple[QueueDefinition, ...] = (),
    tracing: TracingOptions | None = None,
    kind: type[Server] = Server,
    of_each: dict[str, Any] | None = None,
    **values: Any,
) -> tuple[Server, Server]:
    """Two instances of one group that replicate to each other, sync.

    Args:
        of_each: More values of each InstanceConfig.
        values: More values of each DestinationConfig.
    """
    ports = dict(zip("AB", free_ports(2), strict=True))
    for name, other in (("A", "B"), ("B", "A")):
        destination = DestinationConfig(
            f"to-{other}",
            "group",
            True,
            (f"127.0.0.1:{ports[other]}",),
            pass_through=".*",
            retry_ms_max=200,
            **values,
        )
        config = InstanceConfig(
            name,
            "group",
            destinations=(destination,),
            replication_transports=(TransportConfig("replication", ports[name]),),
            first=True,
            policy=policy or DowngradePolicy(),
            sow=sow,
            queue_definitions=queues,
            tracing=tracing or TracingOptions(),
            **(of_each or {}),
        )
        servers.append(kind(path / name, config, awaited=False))
    first, second = servers[-2:]
    for server in (first, second):
        server.await_start()
        server.wait_for("link_caught_up")
    return first, second


def subscribe(client: Client, bookmark: str, topic: str = "orders", **options: Any) -> Frame:
    client.send(
        {
            "c": "subscribe",
            "sub": "s",
            "t": topic,
            "bm": bookmark,
            "cid": "b",
            "a": "processed,completed,persisted,stats",
            "o": options,
        }
    )
    return client.ack(cid="b", a="processed")


def impatient_pair(
    servers: Servers, path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Server, Server]:
    """Of those who give each other up after a second, and are heard of ten times as often."""
    monkeypatch.setenv("RAYLAY_TEST_BEAT_S", "0.1")
    return pair(servers, path, heartbeat_ms=100, timeout_ms=1_000)


def is_given_up_and_found_again(first: Server, second: Server, client: Client) -> None:
    """The second, which is stopped for a while. As its host answers it takes four times as long."""
    silent = "nothing came for 4 s, although its host answers"
    second.process.send_signal(signal.SIGSTOP)
    before = first.events(silent)
    try:
        client.publish(range(1, 11))
        first.wait_for(silent, before + 1)
    except AssertionError as error:
        error.add_note(f"The other side: {second.state()}")
        raise
    finally:
        second.process.send_signal(signal.SIGCONT)
    client.persisted(10)
    assert len(second.journal()) == 10
