"""services/server/links/direct_link.py: an instance takes over the connection of a link, from the
moment in
which it asks to the one in which the connection is over. Real sockets on a real loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.replication.link.test_outbound import OWN, THERE, P, run

from raylay.services.config.instance import DestinationConfig
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.net.framed import WriteQueue
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.protocol.link.replication import ack_frames, refusal
from raylay.services.replication.acknowledgment import UNAWAITED
from raylay.services.replication.effects import AckUpstream, LinkAnswered
from raylay.services.replication.link.direct_link import PAUSE_US_MAX, PAUSE_US_MIN
from raylay.services.replication.values import DirectLinkState
from raylay.services.server.links.direct_link import DescriptorReceiver, DirectLinkControl

START = 5
DEADLINE_S = 20.0


class Link:
    """The link that hands over: what its process is told, and what the instance is told through
    it."""

    name = "B"

    def __init__(self) -> None:
        self.config = DestinationConfig("B", "g", True, ("127.0.0.1:1",), timeout_ms=60_000)
        self.connection: Any = self
        self.process: Any = self
        self.said: list[Frame] = []
        self.told: list[Any] = []
        self.wakes = 0
        self._reader = FrameReader()

    def say(self, frame: bytes) -> None:
        if self.connection is not None:
            self.send(frame)

    def send(self, frame: bytes) -> None:
        self.said += self._reader.feed(frame)

    def take_report(self, told: Any) -> None:
        self.told.append(told)

    def wakeable_changed(self) -> None:
        self.wakes += 1

    @property
    def words(self) -> list[str]:
        return [frame.header["c"] for frame in self.said]


class Bench:
    """An instance with a link that has caught up at transaction 0."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self.path = path
        self.now_us = 0
        self.events: list[str] = []
        self.machine = SimpleNamespace(committed_txid=0)
        self.runtime: Any = SimpleNamespace(
            loop=loop,
            outbox=WriteQueue(loop),
            config=SimpleNamespace(name="A", direct_links=True, drills=False),
            steady_us=lambda: self.now_us,
            report=lambda event, **_: self.events.append(event),
            spawn=lambda work: self.spawned.append(loop.create_task(work)),
        )
        self.instance: Any = SimpleNamespace(
            machine=self.machine, filters=None, tracing=SimpleNamespace(enabled=False)
        )
        self.spawned: list[asyncio.Task[None]] = []
        self.link = Link()
        self.descriptors = DescriptorReceiver()
        self.descriptors.open(path)
        self.direct_link = DirectLinkControl(
            self.runtime, self.instance, self.link, self.descriptors
        )
        self.theirs: socket.socket | None = None
        self.kept: socket.socket
        self.reader = FrameReader()

    def ask(self) -> None:
        """Has the link asked for its connection: it has been caught up for long enough."""
        self.direct_link.tick(caught_up=True)
        self.now_us += PAUSE_US_MIN
        self.direct_link.tick(caught_up=True)

    def commit(self, txid: int) -> bool:
        self.machine.committed_txid = txid
        return self.direct_link.committed([run(txid, txid)])

    def give(
        self, *, cursor: int = 0, number: int = 1, start: int = START, keeps: bool = False
    ) -> None:
        """The link hands it over, having sent all up to the cursor.

        Args:
            keeps: its process goes on having the descriptor, too.
        """
        self.kept, self.theirs = socket.socketpair()
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
            sender.connect(self.path)
            socket.send_fds(sender, [control.handed_over("B", start)], [self.kept.fileno()])
        self.theirs.setblocking(False)
        if not keeps:
            self.kept.close()
        state = DirectLinkState(
            THERE, PublisherRanges(), cursor, number, OWN, True, PublisherRanges(), False
        )
        (frame,) = FrameReader().feed(control.hand_over(state, 1, "B"))
        self.direct_link.given(frame.header, frame.body, START)

    async def opened(self) -> None:
        for task in self.spawned:
            await task
        self.spawned.clear()
        await asyncio.sleep(0)

    async def batches(self, count: int) -> list[tuple[int, list[int]]]:
        """The numbers of the next batches that the destination gets, and of what they have."""
        assert self.theirs is not None
        found: list[tuple[int, list[int]]] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < count:
                data = await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)
                assert data, "it was closed"
                for frame in self.reader.feed(data):
                    if frame.header["c"] == "batch":
                        found.append((frame.header["n"], [frame.header.get("sz", 0)]))
        return found

    async def closed(self) -> None:
        """The destination sees its end."""
        assert self.theirs is not None
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16):
                    pass


def on_loop(directory: Path, work: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(str(directory / "direct"))
        try:
            await work(bench)
        finally:
            bench.direct_link.return_it("the test is over")
            bench.descriptors.close()
            if bench.theirs is not None:
                bench.theirs.close()
                bench.kept.close()

    asyncio.run(main())


def test_a_link_is_asked_once_and_only_where_it_has_a_process(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.link.connection = None
        bench.ask()
        assert bench.link.words == []
        bench.link.connection = bench.link
        bench.ask()
        bench.ask()
        assert bench.link.words == ["take_over"] and not bench.direct_link.is_direct

    on_loop(tmp_path, work)


def test_what_is_committed_until_it_is_open_goes_out_in_order_and_once(tmp_path: Path) -> None:
    """Between asked and given the link has sent 1 itself; 2 came behind that, 3 before it is open,
    4 then."""

    async def work(bench: Bench) -> None:
        bench.ask()
        assert not bench.commit(1), "the link has to be told: it has its connection yet"
        assert not bench.commit(2)
        bench.give(cursor=1, number=7)
        assert bench.direct_link.is_direct and bench.link.wakes == 1
        assert bench.commit(3), "the link need not be told any more"
        await bench.opened()
        assert bench.events == ["link_direct"]
        assert bench.commit(4)
        bench.runtime.outbox.flush()
        found = await bench.batches(2)
        assert [number for number, _ in found] == [8, 9]
        counts = bench.direct_link.counts({"sent_records": 10})
        assert counts["sent_records"] == 13 and counts["cursor_txid"] == 4

    on_loop(tmp_path, work)


@pytest.mark.parametrize("what", ["notice", "mode", "returned"])
def test_what_the_link_is_told_while_it_is_asked_makes_its_connection_useless(
    tmp_path: Path, what: str
) -> None:
    """It may have handed it over before it heard of that."""

    async def work(bench: Bench) -> None:
        bench.ask()
        if what == "notice":
            assert not bench.direct_link.notice({OWN: {P: [(1, 1)]}}, 0)
        elif what == "mode":
            assert not bench.direct_link.mode(False)
        else:
            bench.direct_link.return_it("another address")
        bench.give()
        assert not bench.direct_link.is_direct and bench.link.words == ["take_over", "returned"]
        await bench.closed()
        bench.direct_link.ended("it dials again")
        bench.ask()
        assert bench.link.words[-1] == "returned", "it is not asked again so soon"

    on_loop(tmp_path, work)


def test_a_connection_of_an_earlier_process_is_not_taken(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.ask()
        bench.give(start=START - 1)
        assert not bench.direct_link.is_direct and bench.link.words == ["take_over", "returned"]
        await bench.closed()

    on_loop(tmp_path, work)


def test_what_a_link_sent_before_it_ended_is_closed(tmp_path: Path) -> None:
    """Its frame that tells of it never came: nobody else would close the descriptor."""

    async def work(bench: Bench) -> None:
        bench.ask()
        bench.kept, bench.theirs = socket.socketpair()
        bench.theirs.setblocking(False)
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
            sender.connect(bench.path)
            socket.send_fds(sender, [control.handed_over("B", START)], [bench.kept.fileno()])
        bench.kept.close()
        bench.direct_link.ended("killed")
        await bench.closed()
        assert not bench.direct_link.is_direct

    on_loop(tmp_path, work)


def test_one_that_is_behind_what_was_asked_for_is_not_taken(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.commit(1)
        bench.commit(2)
        bench.ask()
        bench.give(cursor=1)
        assert not bench.direct_link.is_direct and "returned" in bench.link.words
        await bench.closed()

    on_loop(tmp_path, work)


def test_what_is_asked_before_it_is_open_ends_it(tmp_path: Path) -> None:
    """In the turn between given and open nothing can be asked: the link dials, and asks itself."""

    async def work(bench: Bench) -> None:
        bench.ask()
        bench.give()
        assert bench.direct_link.notice({OWN: {P: [(1, 1)]}}, 0), "seen to, by its end"
        await bench.opened()
        await bench.closed()
        assert not bench.direct_link.is_direct and bench.link.words[-1] == "returned"
        assert bench.events == [], "it never was handed over"

    on_loop(tmp_path, work)


def test_one_that_ends_before_it_is_open_is_over_once(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.ask()
        bench.give()
        bench.direct_link.return_it("the instance stops")
        await bench.opened()
        await bench.closed()
        assert bench.link.words.count("returned") == 1 and not bench.direct_link.is_direct

    on_loop(tmp_path, work)


def test_the_mode_of_a_direct_connection_is_that_of_what_goes_out_next(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        bench.ask()
        bench.give()
        assert bench.direct_link.mode(False)
        await bench.opened()
        bench.commit(1)
        bench.runtime.outbox.flush()
        assert bench.theirs is not None
        async with asyncio.timeout(DEADLINE_S):
            data = await asyncio.get_running_loop().sock_recv(bench.theirs, 1 << 16)
        (frame,) = bench.reader.feed(data)
        assert frame.header["c"] == "batch" and not frame.header.get("m"), "nobody waits for it"

    on_loop(tmp_path, work)


@pytest.mark.parametrize("how", ["refused", "closed", "nonsense", "link gone"])
def test_when_it_is_over_the_link_hears_it_once_and_what_it_counted_stays(
    tmp_path: Path, how: str
) -> None:
    async def work(bench: Bench) -> None:
        bench.ask()
        bench.give(keeps=True)
        await bench.opened()
        bench.commit(1)
        bench.runtime.outbox.flush()
        await bench.batches(1)
        assert bench.theirs is not None
        loop = asyncio.get_running_loop()
        for frame in ack_frames(AckUpstream(1, 2, persisted={UNAWAITED: {P: [(1, 1)]}}), 0):
            await loop.sock_sendall(bench.theirs, frame)
        async with asyncio.timeout(DEADLINE_S):
            while not any(isinstance(each, LinkAnswered) for each in bench.link.told):
                await asyncio.sleep(0.001)
        if how == "refused":
            await loop.sock_sendall(bench.theirs, refusal("gap", "batch 9 came", None))
        elif how == "closed":
            bench.theirs.shutdown(socket.SHUT_RDWR)
        elif how == "nonsense":
            await loop.sock_sendall(bench.theirs, b"\xff" * 64)
        else:
            bench.direct_link.ended("its process is gone")
        async with asyncio.timeout(DEADLINE_S):
            while bench.direct_link.is_direct:
                await asyncio.sleep(0.001)
        if how != "closed":
            await bench.closed()  # whoever has the descriptor as well
        assert bench.link.words.count("returned") == 1 and bench.link.wakes == 2
        counts = bench.direct_link.counts({"sent_records": 5})
        assert counts["sent_records"] == 6 and "cursor_txid" not in counts
        assert not bench.commit(2), "the link sends it"

    on_loop(tmp_path, work)


def test_what_went_over_several_direct_connections_is_counted_together(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        for txid in (1, 2):
            for _ in range(3):
                bench.direct_link.tick(caught_up=True)
                bench.now_us += PAUSE_US_MAX
            bench.give(cursor=txid - 1, number=txid)
            assert bench.direct_link.is_direct
            await bench.opened()
            bench.commit(txid)
            bench.runtime.outbox.flush()
            await bench.batches(1)
            bench.direct_link.return_it("it is needed elsewhere")
            async with asyncio.timeout(DEADLINE_S):
                while bench.direct_link.is_direct:
                    await asyncio.sleep(0.001)
            assert bench.direct_link.counts({"sent_records": 10})["sent_records"] == 10 + txid
            bench.direct_link.ended("the link dials again")
            assert bench.theirs is not None
            bench.theirs.close()

    on_loop(tmp_path, work)
