"""The capacity pools of an instance, and the buffers of those that have offline clients.

services/capacity/pool.py decides what is to be done, and this module does it: it sends a client's
connection offline or ends it, starts the buffer's process when it is first needed, and passes on
the buffer's replies.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raylay.services.capacity.config import CapacityConfig
from raylay.services.capacity.pool import GoOffline, Limits, Policy, Pool
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import buffer_control as control
from raylay.services.protocol.frames import Header
from raylay.services.server.children.supervisor import ChildHandle, Supervisor
from raylay.services.server.clients.buffered_connection import BufferedConnection
from raylay.services.server.runtime import InstanceRuntime

SLOW_CLIENT = "slow_client"
"""Reason given to a client that is disconnected because it does not read, in its notice and in the
log."""
POOL_OF_INSTANCE = "clients"
OFFLINE_DIRECTORY = "offline"
OFFLINE_SHOWN = 10
"""Number of a pool's clients that its status names: those with the most unsent bytes."""
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

BufferStart = Callable[[str, int, str, int], ChildHandle]
"""Function that starts a buffer: the pool's name, the number of the start, the buffer's file, and
the file's limit in bytes."""


def memory_of_process() -> int:
    """Returns the memory that this process may have, in bytes: that of the host, or less where
    `ulimit -m` or a container limits it."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
    if soft != resource.RLIM_INFINITY:
        found = min(found, soft)
    for path in CGROUP_LIMITS:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            found = min(found, int(text))
    return found


class BufferControl:
    """The buffer of one pool: its process, its connection, and the clients whose frames it has.

    Invariant: the instance talks to at most one process, that of the last start; clients whose
    frames an earlier process had are ended.
    Owner: the instance's event loop. Lifecycle: as long as the instance; its process runs from the
    first time that a client goes offline.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        name: str,
        path: Path,
        disk_bytes_max: int,
        start: BufferStart,
        lost_client: Callable[[BufferedConnection, str], None],
    ) -> None:
        self.name = name
        self.path = path
        self.why = ""
        self.members: dict[int, BufferedConnection] = {}
        """Offline clients by the number of their connection."""
        self._lost_client = lost_client
        self._runtime = runtime
        self._unsaid: dict[int, deque[tuple[int, Sequence[bytes], int]]] = {}
        """Frames by client that came before the buffer's process connected: number, parts, size in
        bytes."""
        self._given_back: dict[int, int] = {}
        """Number of the last of the `_unsaid` frames that the client has taken, by client: the
        buffer never sees those."""
        self._runs = False
        self.process = Supervisor(
            runtime,
            lambda number: start(name, number, str(path), disk_bytes_max),
            self._process_ended,
            kill_failed="slow_client_buffer_kill_failed",
            of={"pool": name},
        )

    # -- the process ---------------------------------------------------------------------------
    def wake(self) -> None:
        if not self._runs:
            self._runs = True
            self.process.run()

    def _process_ended(self, why: str) -> None:
        self.why = why or self.why
        self._runtime.report("slow_client_buffer_ended", pool=self.name, why=self.why)
        if why:
            # The process never connected. Clients whose frames an earlier one had were ended as its
            # socket closed; those that went offline since then wait for the next one.
            self._lose_all()

    def _lose_all(self) -> None:
        self._unsaid.clear()
        self._given_back.clear()
        members, self.members = self.members, {}
        for connection in members.values():
            self._lost_client(connection, f"the buffer that held it has ended: {self.why}")

    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        if not self.process.greeted(connection, header):
            return False
        self.why = ""
        unsaid, self._unsaid = self._unsaid, {}
        for client, frames in unsaid.items():
            for frame in frames:
                self._put(connection, client, *frame)
        return True

    def lost(self, connection: FramedConnection, why: str) -> None:
        if self.process.lost(connection):
            self.why = f"its process ended: {why}"
            self._lose_all()

    async def stop(self) -> None:
        await self.process.end(control.STOP)
        self.remove()

    def remove(self) -> None:
        """Removes the buffer's file, which is worth nothing without its process."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._runtime.report("slow_client_buffer_failed", pool=self.name, text=str(error))

    # -- frames to the buffer ------------------------------------------------------------------
    def _put(
        self,
        connection: FramedConnection,
        client: int,
        number: int,
        parts: Sequence[bytes],
        size_bytes: int,
    ) -> None:
        front = control.put(client, number, size_bytes)
        connection.send_parts([front, *parts], len(front) + size_bytes)

    def put(self, client: int, number: int, parts: Sequence[bytes], size_bytes: int) -> None:
        if client not in self.members:
            # The client's frames were lost, and its connection is about to be ended.
            return
        if self.process.connection is not None:
            self._put(self.process.connection, client, number, parts, size_bytes)
        else:
            self._unsaid.setdefault(client, deque()).append((number, parts, size_bytes))

    def take(self, client: int, bytes_max: int) -> None:
        """Asks for the oldest stored bytes of a client."""
        if client not in self.members:
            return
        if self.process.connection is not None:
            self.process.connection.send(control.take(client, bytes_max))
        else:
            # A process takes seconds to start. A client that reads meanwhile need not wait for it.
            self._runtime.loop.call_soon(self._give_back, client, bytes_max)

    def _give_back(self, client: int, bytes_max: int) -> None:
        """Gives a client its oldest frames from memory, as the buffer has not connected yet."""
        member = self.members.get(client)
        if member is None or self.process.connection is not None:
            # The buffer has connected meanwhile.
            self.take(client, bytes_max)
            return
        frames = self._unsaid.get(client, deque())
        found: list[bytes] = []
        last, size = self._given_back.get(client, 0), 0
        while frames and size < bytes_max:
            last, parts, size_bytes = frames.popleft()
            found += parts
            size += size_bytes
        self._given_back[client] = last
        member.stored(last)
        member.came(b"".join(found), None if frames else last)

    def drop(self, client: int) -> None:
        if self.members.pop(client, None) is not None:
            self._unsaid.pop(client, None)
            self._given_back.pop(client, None)
            self.process.say(control.drop(client))

    # -- frames from the buffer ----------------------------------------------------------------
    def frame_received(self, header: Header, body: bytes) -> None:
        """Takes a frame of the buffer.

        Raises:
            RemoteProtocolError: the frame is none that a buffer sends.
        """
        command = header["c"]
        if command == "stored":
            for client, number in control.read_stored(body):
                member = self.members.get(client)
                if member is not None:
                    member.stored(number)
        elif command == "taken":
            client = control.whole(header, "k")
            member = self.members.get(client)
            if member is not None:
                seen = max(control.whole(header, "n"), self._given_back.get(client, 0))
                member.came(body, seen if header.get("empty") is True else None)
        elif command == "lost":
            member = self.members.get(control.whole(header, "k"))
            if member is not None:
                self._lost_client(member, str(header.get("why")))


class ClientPool:
    """One pool and its clients. Owner: the instance's event loop. Lifecycle: as long as the
    instance."""

    def __init__(
        self, runtime: InstanceRuntime, name: str, limits: Limits, path: Path, start: BufferStart
    ) -> None:
        self.name = name
        self.pool = Pool(limits)
        self._limits = limits
        self.buffer = BufferControl(runtime, name, path, limits.disk_bytes_max, start, self._lost)
        self._runtime = runtime
        self._members: dict[int, BufferedConnection] = {}
        """Clients that hold bytes, or did at the last look, by the number of their connection."""
        self.went_offline = 0
        """Number of times that a client went offline in this life."""
        self.disconnected = 0

    def weigh(self, connection: BufferedConnection) -> None:
        """Counts a client's connection that holds more than before."""
        if connection.is_leaving or not connection.is_open:
            return
        self._members[connection.number] = connection
        if self._runtime.is_resting:
            self._runtime.hurry()
        if self.pool.holds(connection.number, connection.holding(), connection.policy):
            self._decide()

    def has_room(self, connection: BufferedConnection) -> bool:
        """Returns whether a connection that is offline can come online without exceeding a
        limit."""
        self.pool.holds(connection.number, connection.holding(), connection.policy)
        return self.pool.has_room(connection.number)

    def came_back(self, connection: BufferedConnection) -> None:
        self.pool.back_online(connection.number)
        self._runtime.report("client_online", client=connection.client_name, peer=connection.peer)
        self.weigh(connection)

    def left(self, connection: BufferedConnection) -> None:
        self._members.pop(connection.number, None)
        self.pool.left(connection.number)

    @property
    def numbers(self) -> Iterable[int]:
        """Returns the numbers of the connections that hold bytes, or did at the last look."""
        return self._members.keys()

    def age_ms(self, number: int) -> int:
        """Returns how long the oldest message for a client has waited."""
        return self.pool.age_ms(number, int(self._runtime.loop.time() * 1000))

    @property
    def is_idle(self) -> bool:
        """Returns whether `check` has nothing to do, because no client holds anything."""
        return not self._members

    def check(self, now_ms: int) -> None:
        """Called now and then. Counts what clients have read meanwhile, and applies the limit of
        age to those that have not."""
        if self._members:
            for connection in list(self._members.values()):
                connection.look()
            self._decide()
            for decision in self.pool.look(now_ms):
                self._perform(decision)

    def narrow(self, memory_bytes: int, disk_bytes: int) -> None:
        """Replaces the pool's limits for a drill, without a limit per client or of age. 0: the
        configured value; both 0: the configured limits again."""
        own, is_narrow = self._limits, bool(memory_bytes or disk_bytes)
        limits = Limits(memory_bytes or own.memory_bytes_max, disk_bytes or own.disk_bytes_max, 1.0)
        decided = self.pool.limit(*((limits, Policy(1.0, None)) if is_narrow else (own,)))
        for decision in decided:
            self._perform(decision)

    def _decide(self) -> None:
        """Decides by what each client holds now: some have read since they were weighed."""
        holds = self.pool.holds
        for number, connection in list(self._members.items()):
            holding = connection.holding()
            holds(number, holding, connection.policy)
            is_nothing = not holding.unsent_bytes and not holding.memory_bytes
            if is_nothing and not connection.is_offline:
                del self._members[number]
        for decision in self.pool.decide():
            self._perform(decision)

    def _perform(self, decision: Any) -> None:
        connection = self._members[decision.client]
        if not isinstance(decision, GoOffline):
            self._disconnect(connection, decision.limit, decision.why)
            return
        self.went_offline += 1
        self._runtime.report(
            "client_offline",
            client=connection.client_name,
            peer=connection.peer,
            pool=self.name,
            memory_bytes=decision.memory_bytes,
        )
        self.buffer.members[connection.number] = connection
        self.buffer.wake()
        connection.go_offline(self.buffer)

    def _lost(self, connection: BufferedConnection, why: str) -> None:
        self._disconnect(connection, "buffer", f"what waited for it on disk is gone: {why}")

    def _disconnect(self, connection: BufferedConnection, limit: str, why: str) -> None:
        if connection.is_leaving:
            return
        connection.is_leaving = True
        self._members.pop(connection.number, None)
        self.pool.left(connection.number)
        self.disconnected += 1
        holding = connection.holding()
        self._runtime.report(
            "slow_client",
            client=connection.client_name,
            peer=connection.peer,
            pool=self.name,
            limit=limit,
            memory_bytes=holding.memory_bytes,
            disk_bytes=holding.disk_bytes,
            text=why,
        )
        # Deferred, as the caller may be walking the client's subscriptions now.
        self._runtime.loop.call_soon(connection.end, SLOW_CLIENT, why)

    def _offline_clients(self, now_ms: int) -> list[dict[str, Any]]:
        held = [(self._members[n], n) for n in self.pool.offline if n in self._members]
        held.sort(key=lambda each: -each[0].unsent_bytes)
        return [
            {
                "client": connection.client_name,
                "peer": connection.peer,
                "unsent_bytes": connection.unsent_bytes,
                "disk_bytes": connection.holding().disk_bytes,
                "age_ms": self.pool.age_ms(number, now_ms),
            }
            for connection, number in held[:OFFLINE_SHOWN]
        ]

    def status(self) -> dict[str, Any]:
        pool, limits, buffer = self.pool, self.pool.limits, self.buffer
        now_ms = int(self._runtime.loop.time() * 1000)
        return {
            "pool": self.name,
            "memory_bytes": pool.memory_bytes,
            "memory_bytes_max": limits.memory_bytes_max,
            "disk_bytes": pool.disk_bytes,
            "disk_bytes_max": limits.disk_bytes_max,
            "client_share": limits.client_share,
            "message_age_ms_max": limits.message_age_ms_max,
            "age_ms": max((pool.age_ms(each, now_ms) for each in pool.clients), default=0),
            "behind": len(pool.clients),
            "offline": len(pool.offline),
            "offline_clients": self._offline_clients(now_ms),
            "went_offline": self.went_offline,
            "disconnected": self.disconnected,
            "path": str(buffer.path),
            "pid": buffer.process.pid,
            "starts": buffer.process.starts,
            "why": buffer.why,
        }


class ClientPools:
    """All pools of an instance: its own, and one for each transport that has memory or disk of its
    own.

    Owner: the instance's event loop. Lifecycle: `begin` and `stop` once.

    Args:
        start: starts a buffer.
    """

    def __init__(self, runtime: InstanceRuntime, start: BufferStart) -> None:
        self._runtime = runtime
        self._start = start
        self._memory_bytes = memory_of_process()
        config = runtime.config
        outer = config.capacity or CapacityConfig()
        self._of_instance = self._made(POOL_OF_INSTANCE, outer)
        self._of_transports = {
            each.name: self._made(f"{POOL_OF_INSTANCE}/{each.name}", each.capacity.within(outer))
            for each in config.client_transports
            if each.capacity is not None and each.capacity.has_pool
        }
        self._policies = {
            each.name: self._policy(each.capacity.within(outer))
            for each in config.client_transports
            if each.capacity is not None
        }

    def _made(self, name: str, config: CapacityConfig) -> ClientPool:
        runtime = self._runtime
        directory = runtime.directory / OFFLINE_DIRECTORY
        if config.disk_path:
            directory = Path(config.disk_path) / f"raylay-{quote(runtime.config.name, safe='')}"
        path = directory / f"{quote(name, safe='')}.lmdb"
        return ClientPool(runtime, name, config.limits(self._memory_bytes), path, self._start)

    def _policy(self, config: CapacityConfig) -> Policy:
        limits = config.limits(self._memory_bytes)
        return Policy(limits.client_share, limits.message_age_ms_max)

    def policy_of(self, transport: str) -> Policy:
        """Returns the policy of the clients of a transport."""
        return self._policies.get(transport, self._of_instance.pool.policy)

    @property
    def all(self) -> list[ClientPool]:
        """Returns all pools, that of the instance first."""
        return [self._of_instance, *self._of_transports.values()]

    def of(self, transport: str) -> ClientPool:
        return self._of_transports.get(transport, self._of_instance)

    def begin(self) -> None:
        for pool in self.all:
            pool.buffer.remove()

    def greeted(self, connection: FramedConnection, header: Header) -> BufferControl | None:
        """Takes the connection of a buffer. Returns the buffer's control; None: it is none of this
        instance."""
        for pool in self.all:
            if pool.name == header.get("buffer") and pool.buffer.greeted(connection, header):
                return pool.buffer
        return None

    def narrow(self, memory_bytes: int, disk_bytes: int) -> None:
        """Replaces the limits of every pool for a drill (`ClientPool.narrow`)."""
        for pool in self.all:
            pool.narrow(memory_bytes, disk_bytes)

    @property
    def is_idle(self) -> bool:
        """Returns whether `check` has nothing to do."""
        return all(pool.is_idle for pool in self.all)

    def check(self) -> None:
        now_ms = int(self._runtime.loop.time() * 1000)
        for pool in self.all:
            pool.check(now_ms)

    async def stop(self) -> None:
        for pool in self.all:
            await pool.buffer.stop()

    def status(self) -> dict[str, Any]:
        return {"capacity": [pool.status() for pool in self.all]}

    def snapshot(self) -> dict[str, Any]:
        found = [pool.status() for pool in self.all]
        return {
            "offline_bytes": sum(each["disk_bytes"] for each in found),
            "clients_offline": sum(each["offline"] for each in found),
            "slow_clients": sum(each["disconnected"] for each in found),
            "client_age_ms": max(each["age_ms"] for each in found),
        }
