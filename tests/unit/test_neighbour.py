"""A client with one topic's permission says anything, beside a victim of the same transport.

A state machine of hypothesis chooses what is said next, in any order and on several connections:
what is in support/attacker.py. Behind each step the victim publishes on its topic, has the ack, and
its subscription has been given exactly what it published, in order; and nothing but the attacker's
own connections has ended. The benchmark `neighbour_…` measures what its acks take meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from argon2 import PasswordHasher
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from support import attacker
from support.attacker import ATTACKER, PASSWORD, QUEUE, TOPIC, VICTIM, VICTIMS_TOPIC
from support.one_instance import events, server_on

from raylay.services.capacity.config import CapacityConfig
from raylay.services.client import Client
from raylay.services.config.instance import split_address
from raylay.services.protocol.frames import FRAME_BYTES_MAX, FrameReader, encode_frame
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.subscriptions import SUBSCRIPTIONS_MAX

DEADLINE_S = 60.0
"""For what is awaited: only a failure comes near it."""
MEMORY_BYTES = 8 * 1024 * 1024
READ_BYTES = 1 << 18
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
FAULTS = ("fatal", "connection_fault", "query_failed")


class Attacker:
    """One connection of it. What it says is written without waiting for what it is told."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: Any) -> None:
        self.begins(name, reader, writer)

    def begins(self, name: str, reader: asyncio.StreamReader, writer: Any) -> None:
        self.name = name
        self.reader, self.writer = reader, writer
        self.frames = FrameReader(frame_bytes_max=2 * FRAME_BYTES_MAX)
        self.numbers = itertools.count(1)
        self.published = 0
        self.is_half = False
        """Whether it is in the middle of a frame: nothing behind that is answered."""
        self.is_over = False


class Street:
    """An instance on a loop of its own, with the victim in it and any number of attackers."""

    def __init__(self, directory: Path) -> None:
        config = replace(
            attacker.guarded(directory, CHEAP),
            capacity=CapacityConfig(memory_bytes_max=MEMORY_BYTES, disk_bytes_max=0),
        )
        self.loop = asyncio.new_event_loop()
        self.server = server_on(self.loop, config, directory / "data")
        self.numbers = itertools.count(1)
        self.published = 0
        self.run(self._start())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))

    async def _start(self) -> None:
        await self.server.start()
        address = self.server.runtime.client_address
        self.victim = Client(VICTIM, [address], user_id=VICTIM, password=PASSWORD, heartbeat_s=0)
        await self.victim.connect()
        self.subscription = await self.victim.subscribe(VICTIMS_TOPIC)
        (self.session,) = self.server.parts.clients.sessions

    async def comes(self) -> Attacker:
        return Attacker(*await self._connected())

    async def _connected(self) -> tuple[str, asyncio.StreamReader, Any]:
        address = split_address(self.server.runtime.client_address)
        return f"m{next(self.numbers)}", *await asyncio.open_connection(*address)

    async def enters(self, who: Attacker, password: str = PASSWORD, user: str = ATTACKER) -> None:
        who.writer.write(attacker.logon(who.name, password, user))
        await self.answered(who, "l")

    async def answered(self, who: Attacker, command_id: str) -> bool:
        """Whether it is, before the connection ends. What else it is told is read meanwhile."""
        try:
            while data := await who.reader.read(READ_BYTES):
                found = who.frames.feed(data)
                if any(header.get("cid") == command_id for header, _ in found):
                    return True
        except ConnectionError:
            pass
        who.is_over = True
        return False

    async def says(self, who: Attacker, data: bytes, is_read: bool) -> None:
        """It says that; where it reads, all that it was told up to there is read, or its connection
        has ended. One that has ended before comes again."""
        if who.is_over or who.reader.at_eof() or who.writer.is_closing():
            await self.goes(who)
            who.begins(*await self._connected())
            await self.enters(who)
        try:
            who.writer.write(data)
            if is_read and not who.is_half:
                command_id = f"behind {next(who.numbers)}"
                who.writer.write(attacker.ping(command_id))
                await self.answered(who, command_id)
        except ConnectionError:
            pass

    async def goes(self, who: Attacker) -> None:
        who.writer.transport.abort()

    async def everybody_is_gone(self) -> None:
        # The connection's end is told to the server in a turn of its own, and thousands of
        # subscriptions are taken out in several.
        clients = self.server.parts.clients
        while len(clients.connected) > 1 or clients._leaving:
            await asyncio.sleep(0)

    async def goes_on(self) -> None:
        """The victim publishes, has the ack, and is given that and nothing else."""
        bodies = [b'{"n": %d}' % (self.published + each) for each in range(1, 4)]
        self.published += len(bodies)
        for body in bodies:
            await self.victim.publish(VICTIMS_TOPIC, body)
        await self.victim.flush()
        given: list[bytes] = []
        async for message in self.subscription:
            given.append(bytes(message.body))
            if len(given) == len(bodies):
                break
        assert given == bodies

    def check(self) -> None:
        """Nothing but the attacker's connections has ended, and what is held for it is bounded."""
        runtime, clients = self.server.runtime, self.server.parts.clients
        assert runtime.fault is None and not runtime.faults_contained
        assert not self.server.parts.instance.is_half_done
        assert not [each for each in self.server.events(0) if each["event"] in FAULTS]
        ended = events(self.server, "client_disconnected")
        assert not [each for each in ended if each["client"] == VICTIM], ended
        assert clients.sessions[self.session].user_id == VICTIM
        for each in clients.connected:
            assert isinstance(each, ClientConnection)
            assert len(each.subscriptions) + len(each.resolving) <= SUBSCRIPTIONS_MAX
            codec: Any = each.codec
            assert codec.reader.buffered <= FRAME_BYTES_MAX + READ_BYTES

    async def settles(self) -> None:
        """What is held for the attacker is within the limit of the pool: who has more is sent away
        when that is looked at."""
        connected: Any = self.server.parts.clients.connected
        while sum(each.holding().memory_bytes for each in connected) > MEMORY_BYTES:
            await asyncio.sleep(0)

    def close(self) -> None:
        async def stop() -> None:
            await self.victim.close()
            await self.server.stop()

        self.run(stop())
        self.loop.close()


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    made = Street(tmp_path_factory.mktemp("neighbour"))
    yield made
    made.close()


TOPICS = st.sampled_from([TOPIC, TOPIC, TOPIC, QUEUE, VICTIMS_TOPIC, f"^{TOPIC}", ".*", "(", ""])
NAMES = st.sampled_from(["a", "b", "c"])
OWN = st.integers(0, 5)
FILTERS = st.one_of(
    st.sampled_from(["", "/id = 1", "/v[0] LIKE 'a*'", "/a = = 1", "(" * 60]),
    OWN.map(lambda own: attacker.growing(f"{own}")),
    OWN.map(lambda own: attacker.wide(f"{own}", 60)),
)
BODIES = st.one_of(
    st.sampled_from([b"", b"{", b"{}", b'{"id": 1}', b'{"id": 7}', b"\xff" * 9]),
    st.integers(1, 20).map(lambda key: attacker.nested(2_000, key)),
    st.sampled_from([500, 5_000]).map(lambda depth: attacker.nested(1, 1, depth)),
    st.just(b'{"id": 3, "s": "%b"}' % (b"x" * 300_000)),
)
BOOKMARKS = st.sampled_from(["", "0", "0|1|", "7|7|", "20260102T030405.123Z", "[0:7)", "x"])
HUGE = st.sampled_from([-1, 0, 1, 2**31, 2**63, 2**64 - 1, 1e308, float("nan"), None, "x" * 70_000])
IS_READ = st.sampled_from([True, True, True, False])


class Neighbour(RuleBasedStateMachine):
    """See the file's docstring."""

    street: Street
    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.street.run(self.street.everybody_is_gone())

    def _say(self, who: Attacker, data: bytes, is_read: bool = True) -> None:
        self.street.run(self.street.says(who, data, is_read))

    # -- who is there ------------------------------------------------------------------------
    @initialize(target=connections)
    def begin(self) -> Any:
        return self.log_on_as(ATTACKER)

    def log_on_as(self, user: str) -> Attacker:
        async def enters() -> Attacker:
            who = await self.street.comes()
            await self.street.enters(who, PASSWORD if user == ATTACKER else "guessed", user)
            return who

        found: Attacker = self.street.run(enters())
        return found

    @rule(target=connections, user=st.sampled_from([ATTACKER, ATTACKER, ATTACKER, VICTIM]))
    def log_on(self, user: str) -> Any:
        return self.log_on_as(user)

    @rule(target=connections)
    def connect_only(self) -> Any:
        return self.street.run(self.street.comes())

    @rule(count=st.integers(2, 6), name=st.sampled_from([VICTIM, "one-name"]))
    def many_logons(self, count: int, name: str) -> None:
        """Wrong ones at once, some under the victim's name."""

        async def flood() -> None:
            guests = [await self.street.comes() for _ in range(count)]
            for number, who in enumerate(guests):
                user = VICTIM if number % 2 else ATTACKER
                who.writer.write(attacker.logon(name, f"wrong {number}", user))
            for who in guests:
                await self.street.answered(who, "l")
                await self.street.goes(who)

        self.street.run(flood())

    @rule(who=connections, again=st.booleans())
    def log_on_again(self, who: Attacker, again: bool) -> None:
        self._say(who, attacker.logon(who.name if again else VICTIM))

    @rule(who=consumes(connections))
    def leave(self, who: Attacker) -> None:
        self.street.run(self.street.goes(who))

    # -- what is published -------------------------------------------------------------------
    @rule(who=connections, bodies=st.lists(BODIES, min_size=1, max_size=3), is_read=IS_READ)
    def publish(self, who: Attacker, bodies: list[bytes], is_read: bool) -> None:
        self._say(who, attacker.published(who.name, who.published + 1, *bodies), is_read)
        who.published += len(bodies)

    @rule(
        who=connections,
        first=st.one_of(st.integers(1, 9), st.sampled_from([2**40, 2**62, 2**63 - 9])),
        resent=st.sampled_from(["", "solo", "other", "x" * 500]),
        name=st.sampled_from(["", VICTIM]),
    )
    def claim_resent(self, who: Attacker, first: int, resent: str, name: str) -> None:
        """Messages that it says it has sent before, perhaps of another publisher."""
        bodies = (b'{"id": 1}', b'{"id": 2}')
        self._say(who, attacker.published(name or who.name, first, *bodies, resent=resent))

    @rule(who=connections, topic=TOPICS, body=BODIES, kind=st.integers(0, 7), sequence=HUGE)
    def publish_one(self, who: Attacker, topic: str, body: bytes, kind: int, sequence: Any) -> None:
        header = {"c": "p", "t": topic, "cmd": kind, "s": sequence, "a": "persisted", "cid": "p"}
        self._say(who, encode_frame(header, body))

    # -- what is asked -----------------------------------------------------------------------
    @rule(
        who=connections, name=NAMES, topic=TOPICS, filter_=FILTERS, bookmark=BOOKMARKS,
        oof=st.booleans(), replaces=st.booleans(), is_read=IS_READ,
    )  # fmt: skip
    def subscribe(
        self, who: Attacker, name: str, topic: str, filter_: str, bookmark: str, oof: bool,
        replaces: bool, is_read: bool,
    ) -> None:  # fmt: skip
        options = {"filter": filter_, "oof": oof, "replace": replaces}
        self._say(who, attacker.subscribe(name, topic, bookmark, **options), is_read)

    @rule(who=connections, count=st.sampled_from([50, 400, 10_100]), own=OWN)
    def many_subscriptions(self, who: Attacker, count: int, own: int) -> None:
        self._say(who, b"".join(attacker.subscribe(f"{own} {each}") for each in range(count)))

    @rule(who=connections, own=OWN)
    def expressions(self, who: Attacker, own: int) -> None:
        topics = [attacker.regex(own * 20 + each) for each in range(20)]
        self._say(who, b"".join(attacker.subscribe(f"r{each}", each) for each in topics))

    @rule(
        who=connections, name=NAMES, topic=TOPICS, filter_=FILTERS, command=st.sampled_from(
            ["sow", "sow_and_subscribe"]
        ),
        order_by=st.sampled_from(["", "/id DESC, /v", "/a" * 500, "/x," * 40, "("]),
        top_n=HUGE, batch=HUGE, is_read=IS_READ,
    )  # fmt: skip
    def ask(
        self, who: Attacker, name: str, topic: str, filter_: str, command: str, order_by: str,
        top_n: Any, batch: Any, is_read: bool,
    ) -> None:  # fmt: skip
        options = {"filter": filter_, "order_by": order_by, "top_n": top_n, "batch": batch}
        given = {key: value for key, value in options.items() if value is not None}
        self._say(who, attacker.query(name, command, topic, **given), is_read)

    @rule(who=connections, count=st.sampled_from([20, 300]))
    def many_queries(self, who: Attacker, count: int) -> None:
        """And all of them cancelled, half way through their rows."""
        asked = (attacker.query(f"q{each}", order_by="/id") for each in range(count))
        self._say(who, b"".join(asked) + attacker.unsubscribe())

    @rule(who=connections, name=st.sampled_from(["a", "all", "b,c", ""]))
    def cancel(self, who: Attacker, name: str) -> None:
        self._say(who, attacker.unsubscribe(name))

    @rule(
        who=connections, command=st.sampled_from(["queue_ack", "queue_cancel", "queue_status"]),
        filter_=FILTERS, how=st.sampled_from(["ack", "expire", "cancel", "x"]),
    )  # fmt: skip
    def say_of_a_queue(self, who: Attacker, command: str, filter_: str, how: str) -> None:
        self._say(who, attacker.queue_verb(command, filter_, how))

    @rule(who=connections, start_s=HUGE)
    def beat(self, who: Attacker, start_s: Any) -> None:
        self._say(who, encode_frame({"c": "heartbeat", "o": {"start_s": start_s}, "cid": "h"}))

    # -- what is hardly said -----------------------------------------------------------------
    @rule(who=connections, size_bytes=st.sampled_from([0, 3, 1_000, 1_000_000]))
    def half_frame(self, who: Attacker, size_bytes: int) -> None:
        self._say(who, attacker.half(size_bytes), is_read=False)
        who.is_half = True

    @rule(who=connections, depth=st.sampled_from([10, 1_000, 60_000]))
    def deep_header(self, who: Attacker, depth: int) -> None:
        self._say(who, attacker.deep_header(depth))

    @rule(who=connections, values=st.sampled_from([1_000, 60_000, 600_000]))
    def long_header(self, who: Attacker, values: int) -> None:
        self._say(who, attacker.long_header(values))

    @rule(who=connections, data=st.binary(min_size=1, max_size=60))
    def noise(self, who: Attacker, data: bytes) -> None:
        self._say(who, data, is_read=False)
        who.is_half = True

    @rule(who=connections, count=st.sampled_from([100, 5_000]))
    def pings(self, who: Attacker, count: int) -> None:
        self._say(who, attacker.ping("p") * count)

    # -- what must hold ----------------------------------------------------------------------
    @invariant()
    def the_victim_goes_on(self) -> None:
        self.street.run(self.street.goes_on())
        self.street.run(self.street.settles())
        self.street.check()

    def teardown(self) -> None:
        async def all_go() -> None:
            for each in list(self.street.server.parts.clients.connected):
                if each.number != self.street.session and each.transport is not None:
                    each.transport.abort()
            await self.street.everybody_is_gone()

        self.street.run(all_go())
        clients = self.street.server.parts.clients
        assert set(clients.sessions) == {self.street.session}
        assert len(clients.live) == 1 and not len(clients.queries), "nothing is left of who is gone"


FEW = settings(
    max_examples=20, stateful_step_count=30, deadline=None, database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.covers("Configuration", "a user who says anything harms no neighbour's acks")
@pytest.mark.timeout(600)
def test_a_victim_beside_any_session_of_an_attacker(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Neighbour, "street", street, raising=False)
    run_machine(Neighbour, settings=FEW)


@pytest.mark.covers("Configuration", "a user who says anything harms no neighbour's acks")
def test_a_fault_in_what_an_attacker_says_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the invariants are known to see something."""
    street = Street(tmp_path)

    def raises(*_: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(ClientConnection, "_heartbeat", raises)

    async def beats() -> None:
        who = await street.comes()
        who.writer.write(attacker.logon(who.name))
        assert await street.answered(who, "l")
        await street.says(who, encode_frame({"c": "heartbeat", "cid": "h"}), is_read=True)

    street.run(beats())
    with pytest.raises(AssertionError):
        street.check()
    street.run(street.goes_on())
    street.close()
