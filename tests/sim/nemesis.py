"""Performs the steps of a nemesis script on a world. The scripts are data (sim/plans.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylay.services.errors import StorageError, StorageFull
from raylay.services.messages.topics import TopicRule
from raylay.services.queues.clock_steps import STEP_US
from sim.world import World


def perform(world: World, action: str, arguments: tuple[Any, ...]) -> None:
    """Performs one step."""
    _ACTIONS[action](world, *arguments)


def _crash(world: World, name: str, down_ms: int) -> None:
    world.crash(name, down_ms * 1000)


def _refilter(
    world: World, name: str, down_ms: int, topics: dict[str, tuple[TopicRule, ...]]
) -> None:
    """The topics of some destinations are said otherwise, for the next start: now, or of whoever is
    down or about to be moved, when it comes."""
    world.fault(f"other filters of {name} for {sorted(topics)}")
    world.disks[name].topics_to_be.update(topics)
    if world.instances[name].alive:
        world.crash(name, down_ms * 1000)


def _all_are_whole(world: World) -> bool:
    """Whether no instance is to be filled again from what others have. An old copy that was put in
    place of a directory, and that nobody has found out yet, passes for a source: then a peer that
    lost its disk waits to copy from it, and it to catch up with that peer."""
    return all(disk.was_ready and not disk.is_old_copy for disk in world.disks.values())


def _lose_disk(world: World, name: str, down_ms: int) -> None:
    """One at a time: who lost the only other copy before it was copied again is beyond help."""
    if _all_are_whole(world):
        world.crash(name, down_ms * 1000, lose_disk=True)


def _lose_disk_and_copy(world: World, name: str, down_ms: int, source: str) -> None:
    """As `_lose_disk`; it comes back as a copy of another one's log."""
    if world.instances[name].alive and _all_are_whole(world):
        world.disks[name].copies_from = source
        world.crash(name, down_ms * 1000, lose_disk=True)


def _keep(world: World, name: str) -> None:
    world.keep(name)


def _put_back(world: World, name: str, in_place: bool, down_ms: int) -> None:
    """As `_lose_disk`: what only this one had is beyond help."""
    if _all_are_whole(world):
        world.put_back(name, down_ms * 1000, in_place=in_place)


def _write(world: World, name: str, topics: list[str]) -> None:
    """The instance makes records itself."""
    if world.instances[name].alive:
        world.instances[name].write(topics)


def _crash_link(world: World, name: str, destination: str) -> None:
    world.crash_link(name, destination)


def _break(world: World, name: str, destination: str) -> None:
    instance = world.instances[name]
    connection = instance.links[destination].connection if instance.alive else None
    if connection is not None:
        world.fault(f"break the connection of {name} {destination}")
        connection.sever()


def _partition(world: World, pairs: frozenset[tuple[str, str]], symmetric: bool) -> None:
    world.partition(set(pairs), symmetric=symmetric)


def _heal(world: World) -> None:
    world.heal()


def _point(world: World, address: str, server: str) -> None:
    world.point(address, server)


def _downgrade(world: World, name: str, destination: str) -> None:
    instance = world.instances[name]
    if instance.alive:
        instance.downgrade(destination)


def _upgrade(world: World, name: str, destination: str) -> None:
    instance = world.instances[name]
    if instance.alive:
        instance.upgrade(destination)


def _admit(world: World) -> None:
    """By hand and without force: who has not caught up admits clients if nothing may be missing."""
    for instance in world.instances.values():
        if instance.alive and not instance.machine.ready:
            instance.admit()


def _move(world: World, client: str) -> None:
    world.clients[client].move()


def _go_away(world: World, client: str, away_ms: int) -> None:
    world.clients[client].go_away(away_ms * 1000)


def _take_over(world: World, client: str, other: str) -> None:
    world.clients[client].take_over(world.clients[other])


def _crash_client(world: World, client: str, down_ms: int) -> None:
    world.clients[client].crash(down_ms * 1000)


def _next_life(world: World, client: str, down_ms: int, in_good_order: bool) -> None:
    world.clients[client].next_life(down_ms * 1000, in_good_order=in_good_order)


def _fail_commit(world: World, name: str) -> None:
    instance = world.instances[name]
    if instance.alive:
        world.fault(f"the next commit of {name} fails")
        # What fails as the disk writes ends an instance that went ahead of it.
        broken = instance.journal.last_txid % 2
        error = StorageError("it cannot be written", name) if broken else None
        instance.journal.fail_next(error or StorageFull("no space left", name))


def _remove(world: World) -> None:
    for instance in world.instances.values():
        if instance.alive:
            instance.remove_segments()


def _remove_by_force(world: World, name: str) -> None:
    instance = world.instances[name]
    if instance.alive:
        world.fault(f"{name} removes all sealed segments by force")
        instance.remove_segments(force=True)


def _slow(world: World, times: int) -> None:
    world.fault(f"the network is {times} times as slow")
    world.slow = times


def _relocate(
    world: World,
    name: str,
    how: str,
    reached: frozenset[str],
    source: str,
    back_ms: int,
    salvages: bool,
) -> None:
    """Moves an instance of which the operator believes that its host is lost. It is: `down`, and
    back after a while; `cut` off from all others, but not from clients, until somebody heals; or
    `alive` and connected, and moved by force. `reached`: peers that the operator can tell of it."""
    peer = world.instances[source]
    if not peer.alive or not peer.machine.ready or world.disks[source].is_old_copy:
        return  # As `_all_are_whole`: it would have nobody to catch up with but whom it fills.
    if how == "down":
        world.crash(name)
    elif how == "cut":
        host = world.disks[name].host
        world.partition({(host, other) for other in world.hosts if other != host})
    former = world.relocate(name, reached, source, salvages=salvages)
    if how == "down" and back_ms:
        world.after(back_ms * 1000, world.come_back, former)


FAR_US = 60_000_000


def _set_clock(world: World, name: str, ahead_ms: int) -> None:
    """Sets the wall clock of an instance's host, which its steady clock follows from the next start
    on and not before."""
    instance = world.instances[name]
    if not instance.alive:
        return
    # A world begins in 1970, and no clock is set to before that.
    ahead_us = max(ahead_ms * 1000, -world.now_us)
    step_us = ahead_us - instance.disk.clock_ahead_us
    # What is less is drift, which queues let pass (ClockSteps).
    if abs(step_us) >= STEP_US:
        world.fault(f"the clock of {name} is set {ahead_ms} ms ahead")
        if abs(step_us) >= FAR_US:
            world.probes["clock set forward" if step_us > 0 else "clock set back"] += 1
        instance.set_clock(ahead_us)


_ACTIONS: dict[str, Callable[..., None]] = {
    "crash": _crash,
    "refilter": _refilter,
    "write": _write,
    "lose_disk": _lose_disk,
    "lose_disk_and_copy": _lose_disk_and_copy,
    "keep": _keep,
    "put_back": _put_back,
    "crash_link": _crash_link,
    "break": _break,
    "partition": _partition,
    "heal": _heal,
    "point": _point,
    "downgrade": _downgrade,
    "upgrade": _upgrade,
    "admit": _admit,
    "move": _move,
    "go_away": _go_away,
    "take_over": _take_over,
    "crash_client": _crash_client,
    "next_life": _next_life,
    "fail_commit": _fail_commit,
    "remove": _remove,
    "remove_by_force": _remove_by_force,
    "relocate": _relocate,
    "slow": _slow,
    "set_clock": _set_clock,
}
