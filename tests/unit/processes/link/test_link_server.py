"""The link's process: what comes while its instance is still asked how to begin."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raylay.services.config.instance import DestinationConfig, LinkConfig
from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.processes.link.dialling import LinkDialler
from raylay.services.processes.link.link_server import LinkServer
from raylay.services.processes.link.pump import EARLY_ACKS_MAX, Pump
from raylay.services.processes.link.runtime import LinkRuntime
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import FrameReader
from raylay.services.protocol.link.replication import LinkAccepted, ack_frames
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import AckUpstream
from raylay.services.replication.instance import LinkStart

PUBLISHER, ROOT, THERE = 7, 0xA, 0xB


def linked() -> tuple[LinkServer, Any, list[Any]]:
    """A link that has logged on, its connection, and what it tells its instance."""
    to = DestinationConfig("B", "pair", True, ("127.0.0.1:1",))
    link = LinkServer(LinkConfig("A", "pair", ROOT, 1, "", "", None, to))
    told: list[Any] = []
    stands: Any = SimpleNamespace
    runtime = link.runtime
    runtime.loop = asyncio.new_event_loop()
    runtime.outbox = stands(flush=lambda: None)
    runtime.instance = stands(send=lambda data: told.extend(FrameReader().feed(data)))
    link.pump.reader = stands(first_txid=1, removed=PublisherRanges)
    link.dialling._start_answer = runtime.loop.create_future()
    runtime.loop.close()
    downstream = stands(
        early=[],
        is_open=True,
        carried=None,
        held=PublisherRanges(),
        accepted=LinkAccepted("B", "pair", THERE, "", False),
    )
    link.pump.downstream = downstream
    link.pump.pump = lambda: None  # type: ignore[method-assign]
    return link, downstream, told


def receive(link: LinkServer, downstream: Any, ack: AckUpstream) -> None:
    for data in ack_frames(ack, 0):
        for frame in FrameReader().feed(data):
            link.pump.acked(downstream, frame.header, frame.body)


def begin(link: LinkServer) -> None:
    start = LinkStart(False, RootedRanges(), RootedRanges(), ROOT, 0, PublisherRanges(), False)
    for frame in FrameReader().feed(b"".join(control.start_frames(start, None))):
        link.instance_said(frame.header, frame.body)


def test_answers_that_come_before_the_instance_said_how_to_begin_are_kept() -> None:
    """A destination answers once. Its account of what is waited for, in the logon, told of these,
    so that nobody asks for them again: dropped, they were owed for ever."""
    link, downstream, told = linked()
    receive(link, downstream, AckUpstream(1, 0, persisted={ROOT: {PUBLISHER: [(1, 183)]}}))
    assert not told, "the instance does not know the connection yet"
    begin(link)
    (answered,) = [frame for frame in told if frame.header["c"] == "answered"]
    assert control.read_answered(answered.body)[0] == {ROOT: {PUBLISHER: [(1, 183)]}}
    assert not downstream.early


def test_answers_of_a_connection_that_is_over_are_dropped() -> None:
    link, old, told = linked()
    receive(link, old, AckUpstream(1, 0, persisted={ROOT: {PUBLISHER: [(1, 9)]}}))
    _, new, _ = linked()
    link.pump.downstream = new
    begin(link)
    receive(link, old, AckUpstream(1, 0, persisted={ROOT: {PUBLISHER: [(10, 19)]}}))
    assert not [frame for frame in told if frame.header["c"] == "answered"]


def test_a_bad_ack_before_the_beginning_is_the_destinations_fault() -> None:
    """It is told to the connection that it came on, when it comes, and nothing of it is kept; so is
    one too many."""
    link, downstream, _ = linked()
    with pytest.raises(RemoteProtocolError, match="`n` of ack is not a whole number"):
        link.pump.acked(downstream, {"c": "ack"}, b"")
    assert not downstream.early
    for _ in range(EARLY_ACKS_MAX):
        receive(link, downstream, AckUpstream(1, 0))
    with pytest.raises(
        RemoteProtocolError, match="acks, or one of batch 0, came before anything was"
    ):
        receive(link, downstream, AckUpstream(1, 0))
    assert len(downstream.early) == EARLY_ACKS_MAX


def asked_for_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[LinkServer, Any, list[Any], list[Any]]:
    """As `linked`, caught up but for one answer; last, what it does in the next turn."""
    link, downstream, told = linked()
    begin(link)
    link.pump.machine.take([])
    later: list[Any] = []
    stands: Any = SimpleNamespace
    link.runtime.loop = stands(time=lambda: 0.0, call_soon=later.append, call_later=lambda *_: None)
    downstream.is_carried, downstream.unsent_bytes = False, 0
    downstream.reader = stands(buffered=0)
    downstream.transport = stands(pause_reading=lambda: None)
    monkeypatch.setattr(link.pump, "_hand_over", lambda transport: True)
    link.instance_said({"c": "take_over", "tx": 0}, b"")
    return link, downstream, told, later


def test_a_connection_is_handed_over_with_all_that_came_in_the_same_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, downstream, told, later = asked_for_its_connection(monkeypatch)
    receive(link, downstream, AckUpstream(1, 1))
    receive(link, downstream, AckUpstream(1, 1, held={PUBLISHER: [(1, 3)]}))
    assert not [frame for frame in told if frame.header["c"] == "hand_over"]
    for call in later:
        call()
    (handed,) = [frame for frame in told if frame.header["c"] == "hand_over"]
    held = control.read_hand_over(handed.header, handed.body).held.get(PUBLISHER)
    assert held is not None and list(held) == [(1, 3)]
    assert link.pump.is_direct


def test_a_link_writes_nothing_to_a_connection_that_it_has_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a part of a frame of the instance's it would break the stream."""
    link, downstream, _, later = asked_for_its_connection(monkeypatch)
    sent: list[bytes] = []
    downstream.send = sent.append
    link.instance_said({"c": "queue"}, b"asked")
    receive(link, downstream, AckUpstream(1, 1))
    for call in later:
        call()
    assert link.pump.is_direct
    link.instance_said({"c": "queue"}, b"asked once more")
    assert sent == [b"asked"]


def test_a_link_that_is_asked_for_what_it_just_lost_may_be_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, downstream, told, later = asked_for_its_connection(monkeypatch)
    receive(link, downstream, AckUpstream(1, 1))
    link.pump.drop()
    for call in later:
        call()
    assert not [frame for frame in told if frame.header["c"] in ("hand_over", "keeps")]
    link.instance_said({"c": "take_over", "tx": 0}, b"")
    assert [frame.header["for_good"] for frame in told if frame.header["c"] == "keeps"] == [False]


def test_a_connection_is_not_handed_over_that_was_dialled_behind_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, downstream, told, later = asked_for_its_connection(monkeypatch)
    link.pump.drop()
    link.pump.downstream, downstream.early = downstream, []
    loop = asyncio.new_event_loop()
    link.dialling._start_answer = loop.create_future()
    loop.close()
    begin(link)
    link.pump.machine.take([])
    receive(link, downstream, AckUpstream(1, 1))
    assert link.pump.is_started
    for call in later:
        call()
    assert not link.pump.is_direct and not [f for f in told if f.header["c"] == "hand_over"]


class Dialler(LinkDialler):
    """A link that notes when it would wait, and whose servers answer when they are told to."""

    def __init__(self, to: DestinationConfig, rounds: int) -> None:
        runtime = LinkRuntime(LinkConfig("A", "pair", ROOT, 1, "", "", None, to))
        super().__init__(runtime, Pump(runtime))
        self.rounds = rounds
        self.up: dict[int, str] = {}
        self.done: list[str | int] = []

    async def _connect(self, address: str, server: int) -> None:
        self.done.append(address)
        if self.up.get(len(self.done)) != address:
            raise ConnectionRefusedError("nobody listens")

    async def _stay(self) -> None:
        """The connection is lost at once."""

    async def _look_for_process(self) -> None:
        """Dials nothing."""

    async def _arrives_within(self, timeout_s: float) -> None:
        self.done.append(round(timeout_s * 1000))
        self.rounds -= 1
        if not self.rounds:
            raise asyncio.CancelledError


@pytest.mark.covers("The replication chapters", "addresses in order")
def test_a_list_is_tried_from_its_first_server_with_pauses_that_grow_until_one_connects() -> None:
    x, y = "127.0.0.1:1", "127.0.0.1:2"
    to = DestinationConfig("B", "pair", True, (x, y), retry_ms_min=50, retry_ms_max=300)
    link = Dialler(to, rounds=8)
    # The second server answers in the sixth round: two attempts and a pause each.
    link.up = {5 * 3 + 2: y}
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(link.connect_forever())
    pauses = (50, 100, 200, 300, 300, 50, 100, 200)
    assert link.done == [step for pause_ms in pauses for step in (x, y, pause_ms)]


@pytest.mark.parametrize(
    ("unsent_bytes", "is_open", "goes"), [(0, True, True), (1, True, False), (0, False, False)]
)
def test_a_request_of_a_queue_goes_to_who_reads(
    unsent_bytes: int, is_open: bool, goes: bool
) -> None:
    link, downstream, _ = linked()
    sent: list[bytes] = []
    downstream.send, downstream.unsent_bytes = sent.append, unsent_bytes
    downstream.is_open = is_open
    link.instance_said({"c": "queue"}, b"early")
    assert not sent, "before the instance said how to begin nothing goes"
    begin(link)
    link.instance_said({"c": "queue"}, b"a frame")
    assert sent == ([b"a frame"] if goes else [])


@pytest.mark.covers("Replication", "downgraded at once on evidence")
@pytest.mark.parametrize(
    ("why", "evidence"),
    [("connection lost", 1), ("transport_disabled: an operator has disabled it", 0)],
)
def test_a_refusal_is_no_evidence_where_the_destination_said_that_it_disables_its_transport(
    why: str, evidence: int
) -> None:
    """The destination lives, and was downgraded at once, as if its process had ended."""
    link, downstream, told = linked()
    dialler = link.dialling
    downstream.is_carried, downstream.is_open, downstream.refused = False, False, ""
    downstream.why = why

    async def connected() -> None:
        dialler._lost.set()

    async def run(address: str) -> None:
        link.runtime.loop = asyncio.get_running_loop()
        to = replace(link.runtime.config.destination, addresses=(address,))
        link.runtime.config = replace(link.runtime.config, destination=to)
        link.pump.drop = lambda: downstream  # type: ignore[method-assign]
        assert await dialler._connected_by(address, connected(), None, [])
        for _ in range(2):
            await dialler._look_for_process()

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        asyncio.run(run(f"127.0.0.1:{bound.getsockname()[1]}"))
    # Behind each attempt: the first time the instance may not act yet.
    assert [header["c"] for header, _ in told] == ["ended"] * 2 * evidence


@pytest.mark.covers("Replication", "downgraded at once on evidence")
@pytest.mark.parametrize(
    ("accepts", "waits", "evidence"), [(True, False, 1), (False, False, 0), (True, True, 0)]
)
def test_a_refusal_is_evidence_of_a_server_that_connected_by_itself_if_it_accepted_before(
    accepts: bool, waits: bool, evidence: int
) -> None:
    """Behind a firewall the server lives, and where the destination waits as well it has another
    address than those."""
    link, downstream, told = linked()
    dialler = link.dialling
    downstream.is_carried, downstream.is_open, downstream.refused = True, False, ""
    downstream.why = "connection lost"
    link.pump.drop = lambda: downstream  # type: ignore[method-assign]

    async def run(bound: socket.socket) -> None:
        link.runtime.loop = asyncio.get_running_loop()
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        to = replace(link.runtime.config.destination, addresses=(address,), waits=waits)
        link.runtime.config = replace(link.runtime.config, destination=to)

        async def connected() -> None:
            """The connection is lost once the dialler knows what the address says."""

        async def stay() -> None:
            assert dialler._trying is not None
            await dialler._trying

        dialler._stay = stay  # type: ignore[method-assign]
        assert await dialler._connected_by("over B's", connected(), None, [])
        bound.close()
        await dialler._look_for_process()

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if accepts:
            bound.listen()
        asyncio.run(run(bound))
    assert [header["c"] for header, _ in told] == ["ended"] * evidence
