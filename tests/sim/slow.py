"""Clients that do not read as fast as they are sent, in virtual time: `SlowWorld(seed).run()`.

What runs is production: the pool and who goes (services/capacity), the connection that holds what
is not taken, the control of the buffer and the buffer itself. Simulated are the clock, the clients'
sockets, the socket between instance and buffer, the buffer's process (which takes its time to
start, and is killed) and its disk. A seed draws limits, publishes, queries with a subscription
behind (sow_and_subscribe), who takes how much, who leaves, and when.

The laws know nothing of all that: what a client's socket has taken is compared with what it is to
have, and limits with what was sent and not taken.

    order     what is taken is the beginning of what it is to have: rows of a query, then what was
              published meanwhile, each once
    whole     who is connected in the end, and takes all, has all, and is online
    reason    who was ended was so by a limit that it passed, or with the buffer that held its data
    memory    what was sent and not taken, and is not on disk, is twice the limit at most; what a
              full disk has lost is nowhere
    disk      what is on disk is the limit at most
    share     nobody stays who holds more than its share
    age       nobody stays for whom something waits for longer than the limit, from the last row
              of a query on where there is one: rows pass what waits behind it, and the pool, which
              counts bytes, holds that to be younger than it is
    largest   who goes offline is who holds most
    removed   nothing is left on disk of who is gone
    counted   the pool's books are right when nothing moves
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from raylay.services.capacity.pool import HARD_FACTOR, Limits, Policy
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.errors import StorageFull
from raylay.services.net.framed import WriteQueue
from raylay.services.processes.slow_client_buffer.buffer_server import BufferServer
from raylay.services.protocol.child.control import CONTROL_FRAME_BYTES_MAX
from raylay.services.protocol.frames import FrameReader
from raylay.services.server.children.supervisor import Supervisor
from raylay.services.server.clients import buffered_connection
from raylay.services.server.clients.buffered_connection import BufferedConnection
from raylay.services.server.clients.slow_clients import SLOW_CLIENT, BufferControl, ClientPool
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries
from raylay.storage.offline import MemoryOfflineStore

CLIENTS = 5
MET = {
    "client_offline", "client_online", "slow_client", "memory", "disk", "share", "age", "buffer",
    "killed", "left offline", "query offline",
}  # fmt: skip
STEPS = 160
STEP_S = 0.02
CHECK_S = 0.1
"""As the instance looks at its pools."""
ROW_BYTES = 4_000
SLACK_BYTES = 160_000
"""What one step brings may be over a limit until it is weighed; sockets give it back in pieces."""
SLACK_S = 0.3
TURNS_MAX = 20_000
"""In one step."""
HIGH_BYTES = 40_000
"""In the place of WRITE_HIGH_BYTES, and others in proportion: the limits here are a hundredth of
real ones."""


class Timer:
    """A call that is to come."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        """It does not come."""
        self.is_cancelled = True


class Loop:
    """What production uses of an event loop, in virtual time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._number = 0
        self._due: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        """In seconds."""
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Behind what comes at the same moment."""
        return self.call_at(self.now_s + delay_s, call, *arguments)

    def call_at(self, when_s: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Behind what comes at the same moment."""
        timer = Timer(lambda: call(*arguments))
        self._number += 1
        heapq.heappush(self._due, (when_s, self._number, timer))
        return timer

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> Timer:
        """In the next turn."""
        return self.call_later(0.0, call, *arguments)

    def run(self, until_s: float) -> None:
        """Everything that is due by then.

        Raises:
            AssertionError: there is no end of it: something goes in circles.
        """
        turns = 0
        while self._due and self._due[0][0] <= until_s:
            turns += 1
            assert turns < TURNS_MAX, "it goes in circles"
            self.now_s, _, timer = heapq.heappop(self._due)
            if not timer.is_cancelled:
                timer.call()
        self.now_s = until_s


class Socket:
    """The transport of a client: it takes what it is told to."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._waits = bytearray()
        self._high = self._low = 1 << 30
        self._is_over = False
        self.taken = 0
        """Bytes; each was compared when it was."""

    def get_extra_info(self, name: str) -> Any:
        """Nothing is known."""

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """As asyncio's, but that little is much here."""
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4

    def get_write_buffer_size(self) -> int:
        """Bytes that are written and not taken."""
        return len(self._waits)

    def is_closing(self) -> bool:
        """Whether it is closed, or is about to be."""
        return self._is_over

    def write(self, data: bytes) -> None:
        """Asyncio hands to the socket first what that takes."""
        before = len(self._waits)
        self._waits += data
        if self._client.reads_all:
            self.take(len(self._waits))
        if before <= self._high < len(self._waits):
            self._client.pause_writing()

    def writelines(self, parts: Sequence[bytes]) -> None:
        """Several."""
        self.write(b"".join(parts))

    def take(self, count: int) -> None:
        """The client's side reads."""
        if self._is_over:
            return
        before = len(self._waits)
        found = bytes(self._waits[:count])
        del self._waits[:count]
        self._client.got(found)
        if before > self._high >= self._low >= len(self._waits) or (
            self._client.is_paused and len(self._waits) <= self._low
        ):
            self._client.resume_writing()

    def close(self) -> None:
        """It ends; what waits is gone."""
        self._is_over = True

    abort = close


class SimDelivery:
    """A message for a subscription."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.size_bytes = len(frame)


class SimClient(BufferedConnection):
    """A client's connection, with what it is to have."""

    def __init__(self, world: SlowWorld, number: int, policy: Policy) -> None:
        super().__init__(
            world.outbox,
            world.loop,
            FrameReader(),
            world.pool,
            policy,  # type: ignore[arg-type]
        )
        self.world = world
        self.number = number
        self.client_name = f"c{number}"
        self.reads_all = False
        self.is_paused = False
        self.wanted = bytearray()
        """All that it is to have."""
        self.sent_at: deque[tuple[int, float]] = deque()
        """Up to which byte it was sent by when."""
        self.rows: deque[bytes] = deque()
        self.row_s = 0.0
        """When the last row was sent to it."""
        self.left = False
        self.ended_by = ""
        self.connection_made(Socket(self))  # type: ignore[arg-type]

    @property
    def socket(self) -> Socket:
        """Its transport."""
        found: Any = self.transport
        return found  # type: ignore[no-any-return]

    def frame_received(self, header: dict[str, Any], body: bytes) -> None:
        """Nothing comes."""

    def pause_writing(self) -> None:
        """As asyncio calls it."""
        self.is_paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """As asyncio calls it."""
        self.is_paused = False
        super().resume_writing()

    # -- what it is sent -----------------------------------------------------------------------
    def publish(self, frame: bytes) -> None:
        """A message of its subscription."""
        self._want(frame)
        if self.behind is not None:
            delivery: Any = SimDelivery(frame)
            self.behind.deliver("s", delivery)
        else:
            self.send(frame)

    def _want(self, frame: bytes) -> None:
        self.wanted += frame
        self.sent_at.append((len(self.wanted), self.loop.time()))

    def query(self, rows: Sequence[bytes]) -> None:
        """sow_and_subscribe: rows, and behind them what is published from now on."""
        if self.behind is not None:
            return
        for row in rows:
            # They wait on the server's disk until they are read: nobody holds them.
            self.wanted += row
        self.rows.extend(rows)
        self.behind = DeferredDeliveries(self.weigh)
        self.room()

    def room(self) -> None:
        """Rows go as there is room for them."""
        while self.rows and self.takes_rows and self.is_open:
            row = self.rows.popleft()
            self.row_s = self.loop.time()
            self.sent_at.append((len(self.wanted), self.row_s))
            self.send(row)
            # Each turn of a query ends with the loop's.
            self.world.loop.call_soon(self.room)
            return
        if not self.rows and self.behind is not None and self.is_open:
            behind, self.behind = self.behind, None
            behind.release(self)  # type: ignore[arg-type]

    writable = room

    def deliver(self, subscription: str, delivery: Any) -> None:
        """The sink's."""
        self.send(delivery.frame)

    # -- what it has ---------------------------------------------------------------------------
    def got(self, data: bytes) -> None:
        """Its socket has taken this."""
        socket = self.socket
        upto = socket.taken + len(data)
        if not self.ended_by and data != self.wanted[socket.taken : upto]:
            self.world.wrong("order", f"{self.client_name} at byte {socket.taken}")
        socket.taken = upto
        while self.sent_at and self.sent_at[0][0] <= upto:
            self.sent_at.popleft()

    @property
    def untaken_bytes(self) -> int:
        """Sent and not taken, rows that nobody has read yet left out."""
        return len(self.wanted) - self.socket.taken - sum(map(len, self.rows))

    # -- its end -------------------------------------------------------------------------------
    def end(self, reason: str, text: str) -> None:
        """As `ClientConnection` does it."""
        assert reason == SLOW_CLIENT
        self.ended_by = text
        self.send(b"why")
        self.write_collected()
        self.abort(text)

    def leave(self) -> None:
        """Its side closes."""
        self.left = True
        self.socket.close()
        self.connection_lost(None)


class Pipe:
    """One way of the socket between instance and buffer: in order, and late."""

    def __init__(self, world: SlowWorld, hear: Callable[[Any, bytes], None]) -> None:
        self._world = world
        self._hear = hear
        self._reader = FrameReader(frame_bytes_max=CONTROL_FRAME_BYTES_MAX)
        self._last_s = 0.0
        self.is_open = True
        self.pid = 1

    def send(self, frame: bytes) -> None:
        """One frame."""
        self.send_parts([frame], len(frame))

    def send_parts(self, parts: Sequence[bytes], size_bytes: int) -> None:
        """One frame in pieces."""
        loop, data = self._world.loop, b"".join(parts)
        assert len(data) == size_bytes
        self._last_s = max(self._last_s, loop.time() + self._world.late_s())
        # Not after a delay: rounded, the sum may be a moment before the frame that it is behind.
        loop.call_at(self._last_s, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.is_open:
            for header, body in self._reader.feed(data):
                self._hear(header, body)

    def close(self, why: str) -> None:
        """It ends."""
        self.is_open = False


class SimStore(MemoryOfflineStore):
    """The disk of a buffer: it is full when the world says so."""

    def __init__(self, world: SlowWorld) -> None:
        super().__init__()
        self._world = world

    def put(self, frames: Any) -> None:
        """Takes what waits."""
        if self._world.is_disk_full:
            self._world.losing.update(client for client, _ in frames)
            raise StorageFull("the disk is full", self._world.path)
        super().put(frames)


class SimProcess(Supervisor):
    """The supervisor of a buffer's process that is simulated, and what starts it again."""

    def __init__(self, world: SlowWorld) -> None:
        runtime: Any = SimpleNamespace(loop=world.loop)
        super().__init__(runtime, self._no_start, str, kill_failed="", of={})
        self._world = world
        self.server: BufferServer | None = None
        self.pipes: list[Pipe] = []

    @staticmethod
    def _no_start(number: int) -> Any:
        """What starts it is simulated, too."""

    def run(self) -> None:
        """Starts it, which takes its time."""
        self._world.loop.call_later(self._world.start_s(), self._begin)

    def _begin(self) -> None:
        world, control = self._world, self._world.control
        self.starts += 1
        config = SlowClientBufferConfig("A", "clients", self.number, "", "", 1 << 40)
        server: Any = BufferServer(config)
        here: Any = Pipe(world, control.frame_received)
        there: Any = Pipe(world, server.instance_said)
        server._loop, server._store, server._instance = world.loop, SimStore(world), here
        self.server, self.pipes = server, [here, there]
        header = {"start": self.number, "pid": 1, "buffer": "clients"}
        assert control.greeted(there, header)

    def die(self) -> None:
        """SIGKILL: all that it holds is gone, and so is what is on its way."""
        if self.server is None:
            return
        there = self.pipes[1]
        for pipe in self.pipes:
            pipe.is_open = False
        self.server = None
        self._world.killed(self._world.control.members)
        self._world.control.lost(there, "killed")  # type: ignore[arg-type]

    def lost(self, connection: Any) -> bool:
        """It is started again."""
        is_of_last_start = super().lost(connection)
        if is_of_last_start:
            self._world.loop.call_soon(self._start_again)
        return is_of_last_start

    def _start_again(self) -> None:
        self._world.control._process_ended("")
        self.run()

    @property
    def held_bytes(self) -> int:
        """On its disk."""
        return 0 if self.server is None else self.server._store.held_bytes

    def bytes_of(self, clients: Sequence[SimClient]) -> int:
        """Of these: that others are gone may still be on its way to it."""
        store = self.server._store if self.server is not None else None
        return sum(store.bytes_of(each.number) for each in clients) if store else 0


class SlowWorld:
    """One run of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = self._rng = random.Random(seed)
        self.loop = Loop()
        self.outbox = WriteQueue(self.loop)  # type: ignore[arg-type]
        self.path = Path("offline")
        self.violations: list[str] = []
        self.met: set[str] = set()
        """What this seed came by."""
        self.is_disk_full = False
        self._slow_pipe = rng.random() < 0.25
        memory = rng.choice([200_000, 400_000])
        disk = rng.choice([0, 400_000, 400_000, 1_000_000, 1_000_000_000])
        share = rng.choice([1.0, 1.0, 0.3])
        age_ms = rng.choice([None, None, 300])
        self.limits = Limits(memory, disk, share, age_ms)
        here: Any = SimpleNamespace(loop=self.loop, report=self._told, is_resting=False)
        start: Any = None
        self.pool = ClientPool(here, "clients", self.limits, self.path, start)
        self.control: BufferControl = self.pool.buffer
        self.process = SimProcess(self)
        self.control.process = self.process
        self.losing: set[int] = set()
        """Numbers of clients whose data the buffer has thrown away, as its disk was full: that is
        in no memory and on no disk, and the instance is about to hear of it."""
        self._lost: set[str] = set()
        """Clients of a buffer that was killed, or whose disk was full."""
        self.clients: list[SimClient] = []
        self._published = 0
        for _ in range(CLIENTS):
            self._come()

    # -- what it draws -------------------------------------------------------------------------
    def late_s(self) -> float:
        """Of a frame between instance and buffer."""
        return self._rng.uniform(0, 0.3 if self._slow_pipe else 0.01)

    def start_s(self) -> float:
        """Of a buffer's process."""
        return self._rng.choice([0.01, 0.1, 1.0])

    def _come(self) -> None:
        number = len(self.clients) + 1
        limits = self.limits
        policy = Policy(limits.client_share, limits.message_age_ms_max)
        client = SimClient(self, number, policy)
        # The first reads all the time: nothing ever happens to it.
        client.reads_all = number == 1 or self._rng.random() < 0.2
        self.clients.append(client)

    def _frames(self, count: int, size_bytes: int) -> list[bytes]:
        found = []
        for _ in range(count):
            self._published += 1
            found.append((b"%09d" % self._published) * (size_bytes // 9 + 1))
        return found

    def _step(self) -> None:
        rng, living = self._rng, [each for each in self.clients if each.is_open]
        if rng.random() < 0.7:
            for frame in self._frames(rng.randrange(1, 6), rng.choice([90, 3_000, 20_000])):
                for client in living:
                    client.publish(frame)
        for client in living[1:]:
            chance = rng.random()
            if chance < 0.3:
                client.socket.take(rng.choice([100, 50_000, 500_000]))
            elif chance < 0.33:
                client.reads_all = not client.reads_all
                if client.reads_all:
                    client.socket.take(1 << 40)
            elif chance < 0.34:
                self.met.add("left offline" if client.is_offline else "left")
                client.leave()
            elif chance < 0.37:
                self.met.add("query offline" if client.is_offline else "query")
                client.query(self._frames(rng.randrange(1, 60), ROW_BYTES))
        if rng.random() < 0.01:
            self.met.add("killed")
            self.process.die()
        if rng.random() < 0.01:
            self.is_disk_full = True
            self.loop.call_later(0.1, self._has_room)
        if rng.random() < 0.05:
            self._come()

    def _has_room(self) -> None:
        self.is_disk_full = False

    # -- the run -------------------------------------------------------------------------------
    def run(self) -> list[str]:
        """Its violations, of a run from the beginning until everybody has taken all."""
        small = {
            "WRITE_HIGH_BYTES": HIGH_BYTES,
            "CHUNK_BYTES": HIGH_BYTES // 8,
            "MOVING_BYTES": 2 * HIGH_BYTES,
        }
        with patch.multiple(buffered_connection, **small):
            self._run()
        return self.violations

    def _run(self) -> None:
        check_s = CHECK_S
        for number in range(STEPS):
            self._step()
            self.loop.run((number + 1) * STEP_S)
            if self.loop.now_s >= check_s:
                check_s += CHECK_S
                self.pool.check(int(self.loop.now_s * 1000))
                self._check_ages()
            self._check()
            if self.violations:
                return
        self._settle()

    def _settle(self) -> None:
        """Everybody takes all that there is."""
        self.is_disk_full = False
        for client in self.clients:
            if client.is_open:
                client.reads_all = True
                client.socket.take(1 << 40)
        for _ in range(300):
            self.loop.run(self.loop.now_s + CHECK_S)
            self.pool.check(int(self.loop.now_s * 1000))
            self._check()
            if self.violations:
                return
            if not any(each.is_open and each.untaken_bytes for each in self.clients):
                break
        self.loop.run(self.loop.now_s + 2.0)
        self.pool.check(int(self.loop.now_s * 1000))
        for client in self.clients:
            if client.is_open and (client.untaken_bytes or client.is_offline):
                self.wrong(
                    "whole", f"{client.client_name}: {client.untaken_bytes} never came, offline: "
                    f"{client.is_offline}",
                )  # fmt: skip
        if self.process.held_bytes:
            self.wrong("removed", f"{self.process.held_bytes} bytes are left on disk")
        pool = self.pool.pool
        books = (pool.direct_bytes, pool.offline_memory_bytes, pool.disk_bytes)
        if any(books) or pool.clients:
            self.wrong("counted", f"{books} of {pool.clients}, and nobody holds anything")

    # -- the laws ------------------------------------------------------------------------------
    def wrong(self, law: str, text: str) -> None:
        """A law is broken."""
        self.violations.append(f"{law}: {text} ({self.loop.now_s:.2f} s)")

    def killed(self, members: dict[int, Any]) -> None:
        """Those are offline at a buffer that is killed now."""
        self._lost |= {each.client_name for each in members.values()}

    def _told(self, event: str, **details: Any) -> None:
        self.met.add(event)
        if event == "client_offline":
            client = self._named(details["client"])
            direct = [
                each.holding().memory_bytes
                for each in self.clients
                if each.is_open and not each.is_leaving and not each.is_offline
            ]
            # What came in this turn may not be weighed yet.
            if client.holding().memory_bytes + SLACK_BYTES < max(direct):
                self.wrong("largest", f"{client.client_name} goes, and another holds more")
        elif event == "slow_client":
            self.met.add(details["limit"])
            self._check_reason(self._named(details["client"]), details["limit"], details["text"])

    def _named(self, name: str) -> SimClient:
        return next(each for each in self.clients if each.client_name == name)

    def _staying(self) -> list[SimClient]:
        return [each for each in self.clients if each.is_open and not each.is_leaving]

    def _untaken_bytes(self) -> int:
        return sum(each.untaken_bytes for each in self.clients if each.is_open)

    def _check_reason(self, client: SimClient, limit: str, text: str) -> None:
        limits = self.limits
        own = client.untaken_bytes
        if client.reads_all and client.number == 1:
            self.wrong("reason", f"{client.client_name} reads all the time: {text}")
        if limit == "buffer":
            is_so = client.client_name in self._lost or "the disk is full" in text
        elif limit == "age":
            is_so = limits.message_age_ms_max is not None and (
                self._oldest_s(client) * 1000 >= limits.message_age_ms_max
            )
        elif limit == "share":
            is_so = limits.client_share < 1 and own > limits.client_share * min(
                limits.memory_bytes_max, limits.disk_bytes_max or limits.memory_bytes_max
            )
        elif limit == "disk":
            is_so = own > 0 and self._untaken_bytes() > limits.disk_bytes_max
        else:
            is_so = own > 0 and self._untaken_bytes() > limits.memory_bytes_max
        if not is_so:
            self.wrong("reason", f"{client.client_name} was ended for nothing: {limit}, {text}")

    def _oldest_s(self, client: SimClient) -> float:
        return self.loop.now_s - client.sent_at[0][1] if client.sent_at else 0.0

    def _check_ages(self) -> None:
        most_ms = self.limits.message_age_ms_max
        for client in self.clients:
            if most_ms is None or not client.is_open or client.is_leaving or not client.sent_at:
                continue
            waits_s = min(self._oldest_s(client), self.loop.now_s - client.row_s)
            if waits_s * 1000 > most_ms + 1000 * SLACK_S:
                self.wrong("age", f"{client.client_name}: {waits_s:.2f} s")

    def _check(self) -> None:
        limits = self.limits
        held = [each for each in self._staying() if each.number not in self.losing]
        on_disk = self.process.bytes_of(held)
        in_memory = sum(each.untaken_bytes for each in held) - on_disk
        if in_memory > HARD_FACTOR * limits.memory_bytes_max + SLACK_BYTES:
            self.wrong("memory", f"{in_memory} bytes, limit {limits.memory_bytes_max}")
        if on_disk > limits.disk_bytes_max + SLACK_BYTES:
            self.wrong("disk", f"{on_disk} bytes, limit {limits.disk_bytes_max}")
        if limits.client_share < 1:
            for client in self.clients:
                if not client.is_open or client.is_leaving:
                    continue
                # Offline, what of it is in memory besides is on its way to the disk: law `memory`.
                most, holds = limits.memory_bytes_max, client.untaken_bytes
                if client.is_offline:
                    most, holds = limits.disk_bytes_max, self.process.bytes_of([client])
                if holds > most * limits.client_share + SLACK_BYTES:
                    self.wrong("share", f"{client.client_name}: {holds} bytes")
