"""Seeds of slow clients keep the laws, and find planted mistakes (tests/sim/slow.py)."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from raylay.services.capacity.offline import OfflineFrames
from raylay.services.capacity.pool import DisconnectClient, Pool
from raylay.services.processes.slow_client_buffer.buffer_server import BufferServer
from raylay.services.protocol.child import buffer_control
from raylay.services.server.clients.buffered_connection import BufferedConnection
from raylay.services.server.clients.slow_clients import BufferControl, ClientPool
from raylay.services.subscriptions.deferred_deliveries import DeferredDeliveries
from sim import run
from sim.slow import MET, Loop, Pipe, SlowWorld

pytestmark = pytest.mark.covers("Clients and protocol", "order, once, limits")

SEEDS = 40
SEEDS_OF_A_MISTAKE = 120


def violations(seeds: int, met: Counter[str] | None = None) -> str:
    """The first, with its seed; empty: there is none."""
    for seed in range(seeds):
        world = SlowWorld(seed)
        if found := world.run():
            return f"seed {seed}: {found[0]}"
        if met is not None:
            met.update(world.met)
    return ""


def test_seeds_of_slow_clients_keep_the_laws() -> None:
    assert not (found := violations(SEEDS)), found


@pytest.mark.slow
def test_many_seeds_of_slow_clients_keep_the_laws_and_meet_everything() -> None:
    met: Counter[str] = Counter()
    assert not (found := violations(1_500, met)), found
    assert met.keys() >= MET, MET - met.keys()


def test_a_seed_is_one_history() -> None:
    worlds = [SlowWorld(10) for _ in range(2)]
    for world in worlds:
        world.run()
    first, second = (
        [(bytes(c.wanted), c.socket.taken if c.transport else 0, c.ended_by) for c in w.clients]
        for w in worlds
    )
    assert first == second and worlds[0].met == worlds[1].met


def test_frames_between_instance_and_buffer_arrive_in_order() -> None:
    """Also where one waits for the other, and both arrive at the same moment."""
    rng = random.Random(1)
    for _ in range(200):
        loop = Loop()
        arrived: list[int] = []
        world: Any = SimpleNamespace(loop=loop, late_s=partial(rng.uniform, 0, 0.3))
        pipe = Pipe(world, lambda header, _, to=arrived: to.append(header["k"]))
        for number in range(20):
            loop.run(loop.now_s + rng.uniform(0, 0.02))
            pipe.send(buffer_control.drop(number))
        loop.run(loop.now_s + 1)
        assert arrived == list(range(20))


def test_a_client_that_is_dropped_behind_its_last_frame_leaves_nothing_on_disk() -> None:
    """The drop of this seed waits for a frame of the same client, and arrives with it."""
    assert not (found := SlowWorld(923773860).run()), found


def test_general_seeds_have_slow_clients() -> None:
    """A law that one of them breaks is told with its seed, as every other one."""
    seeds = range(0, 40 * run.SLOW_EVERY, run.SLOW_EVERY)
    with patch.object(ClientPool, "_perform", lambda *_: None):
        results = (run.run_seed(seed) for seed in seeds)
        found = next(each for result in results for each in result.violations)
    assert found.law == "slow clients" and found.text.startswith("memory: ")


# -- planted mistakes ----------------------------------------------------------------------------
def comes_back_too_early(frames: OfflineFrames, size_bytes: int, empty_upto: int | None) -> bool:
    """The buffer has nothing left: something may still be on its way to it."""
    frames.is_asked = False
    frames.disk_bytes -= size_bytes
    return empty_upto is not None


def stays_direct(connection: BufferedConnection, buffer: Any) -> None:
    """What it is sent goes to its socket, and what was kept to the disk."""
    go_offline(connection, buffer)
    connection.may_write = True


def smallest_goes(pool: Pool, *, is_offline: bool) -> int:
    """And not the one that holds most."""
    held = {each: one for each, one in pool._clients.items() if one.is_offline == is_offline}
    return min(held, key=lambda each: held[each].holding.memory_bytes)


def without(limit: str) -> Callable[[Pool], list[Any]]:
    """A limit that nobody asks for."""

    def decided(pool: Pool) -> list[Any]:
        found = decide(pool)
        return [e for e in found if not (isinstance(e, DisconnectClient) and e.limit == limit)]

    return decided


def ends_who_came_since(control: BufferControl, why: str) -> None:
    """Who went offline behind the end of a buffer is ended with it."""
    process_ended(control, why)
    control._lose_all()


def forgets_unsaid(control: BufferControl, connection: Any, header: Any) -> bool:
    """What came before the buffer was there is not given to it."""
    control._unsaid.clear()
    return greeted(control, connection, header)


def gives_back_the_last(control: BufferControl, client: int, bytes_max: int) -> None:
    """What waits here is taken from its end."""
    frames = control._unsaid.get(client)
    if frames is not None and control.process.connection is None and len(frames) > 1:
        control._unsaid[client] = deque((frames[0][0], *frames[-1][1:]) for _ in (0,))
    give_back(control, client, bytes_max)


def loses_silently(server: BufferServer, client: int, error: Any) -> None:
    """A full disk has lost what waited for a client, and its instance does not hear of it."""
    server._store.drop(client)


def not_behind(behind: DeferredDeliveries, subscription: str, delivery: Any) -> None:
    """A message passes the rows of the query."""
    sim_client: Any = behind._grown.__self__  # type: ignore[attr-defined]
    sim_client.send(delivery.frame)


def twice(behind: DeferredDeliveries, sink: Any) -> None:
    """What waited behind a query comes and stays."""
    held = list(behind._held)
    release(behind, sink)
    for subscription, _, delivery in held[:1]:
        sink.deliver(subscription, delivery)


go_offline, decide = BufferedConnection.go_offline, Pool.decide
greeted, give_back = BufferControl.greeted, BufferControl._give_back
process_ended = BufferControl._process_ended
release = DeferredDeliveries.release
# Where it is planted, and the laws that may find it.
MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "back too early": (OfflineFrames, "taken", comes_back_too_early, "order"),
    "direct though offline": (BufferedConnection, "go_offline", stays_direct, "order"),
    "the smallest goes offline": (Pool, "_largest_in_memory", smallest_goes, "largest"),
    "no memory limit": (Pool, "decide", without("memory"), "memory"),
    "no disk limit": (Pool, "decide", without("disk"), "disk"),
    "no share": (Pool, "_over_share", lambda *_: False, "share"),
    "no age": (Pool, "look", lambda *_: [], "age"),
    "nobody goes": (ClientPool, "_perform", lambda *_: None, "memory"),
    "those of a killed buffer stay": (BufferControl, "_lose_all", lambda *_: None, "order whole"),
    "a buffer ends who came since": (
        BufferControl,
        "_process_ended",
        ends_who_came_since,
        "reason",
    ),
    "who is gone leaves its data": (BufferControl, "drop", lambda *_: None, "removed"),
    "the pool keeps who came back": (Pool, "back_online", lambda *_: None, "counted"),
    "the pool keeps who left": (ClientPool, "left", lambda *_: None, "counted reason"),
    "unsaid is forgotten": (BufferControl, "greeted", forgets_unsaid, "order whole"),
    "given back in no order": (BufferControl, "_give_back", gives_back_the_last, "order circles"),
    "a full disk loses silently": (BufferServer, "_lose", loses_silently, "order whole"),
    "messages pass rows": (DeferredDeliveries, "deliver", not_behind, "order"),
    "a message behind a query comes twice": (DeferredDeliveries, "release", twice, "order"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    where, attribute, planted, law = MISTAKES[name]
    with patch.object(where, attribute, planted):
        try:
            found = violations(SEEDS_OF_A_MISTAKE)
        except AssertionError as error:
            found = f"a seed: circles: {error}"
    assert found and found.split(": ")[1] in law.split(), found
