"""Consumers of simulated queues: clients whose acknowledgments are records that they publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylay.services.client.events import Connected
from raylay.services.messages.records import Command
from raylay.services.queues.records import Acknowledgment, keys_of, pack_acknowledgment
from raylay.services.verification.history import MessagesPublished
from sim import queues
from sim.client import SimClient
from sim.network import Connection

if TYPE_CHECKING:
    from sim.world import World

WORK_US = (50, 6_000)
GATHER_US = (0, 4_000)
EXPIRES = 0.3
"""The share of acknowledgments that give messages up, where there are dead letters."""
BACKLOG_AT_THE_END = 8
ONE_AT_THE_END = 0.5
"""Of a single consumer that is to get everything, from all instances."""


class SimConsumer(SimClient):
    """See the file's docstring. Some of what it is given it gives back, or forgets, or has done
    only when its lease is over."""

    def __init__(
        self, world: World, name: str, servers: list[str], group: str, filter_: str, backlog: int
    ) -> None:
        self._filter = filter_
        self._backlog_max = backlog
        self._done: list[tuple[int, int]] = []
        self._is_gathering = False
        self.rests = False
        super().__init__(world, name, servers, group)

    @property
    def _definition(self) -> Any:
        assert self.world.queues is not None
        return self.world.queues.definition

    def quiet(self) -> bool:
        """Whether all that it has done is acknowledged."""
        return super().quiet() and (bool(self.failed) or not self._done)

    def _told(self, event: Any) -> None:
        super()._told(event)
        if isinstance(event, Connected):
            self.subscribe()
            if self._done:
                self._gather()

    def subscribe(self) -> None:
        """Asks for messages, if it wants any."""
        connection = self.connection
        if connection is None or not self.machine.instance or self.rests:
            return
        header = {"c": "queue_subscribe", "sub": "q", "t": self._definition.name}
        header |= {"filter": self._filter, "backlog": self._backlog_max}
        connection.send(0, (header, b""))

    def rest(self) -> None:
        """Wants no more for now."""
        self.rests = True
        if self.connection is not None and self.machine.instance:
            self.connection.send(0, ({"c": "queue_leave"}, b""))

    def consume(self) -> None:
        """Takes all that there is."""
        self.rests, self._filter, self._backlog_max = False, "", BACKLOG_AT_THE_END
        self.subscribe()

    def _reach(self, connection: Connection, number: int) -> None:
        """It reaches only instances that have the queue: others refuse what it acknowledges, even
        what they hold of it."""
        assert self.world.queues is not None
        if self.world.hosts[connection.hosts[1]].disk.member.name in self.world.queues.instances:
            super()._reach(connection, number)
        elif connection.open[0]:
            connection._end(0, "unreachable")

    def _frame(self, connection: Connection, number: int, frame: Any) -> None:
        header, _ = frame
        if header["c"] != "queue":
            super()._frame(connection, number, frame)
        elif self.alive:
            self._work(connection, header["keys"])

    def _work(self, connection: Connection, keys: list[tuple[int, int]]) -> None:
        world, rng = self.world, self.world.queue_rng
        lease_us = self._definition.lease_us
        took_us = rng.randint(*WORK_US)
        if not world.healed:
            what = rng.random()
            if what < 0.07 and lease_us:
                world.probes["queue message forgotten by its consumer"] += 1
                return
            if what < 0.15:
                world.after(took_us, self._cancel, connection, keys)
                return
            if what < 0.25 and lease_us:
                took_us = rng.randint(lease_us // 2, 2 * lease_us)
        for key in keys:
            world.after(rng.randint(took_us // 2, took_us), self._finish, self.lives, key)

    def _cancel(self, connection: Connection, keys: list[tuple[int, int]]) -> None:
        if self.alive and connection is self.connection:
            header = {"c": "queue_cancel", "t": self._definition.name, "keys": keys_of(keys)}
            connection.send(0, (header, b""))

    def _finish(self, life: int, key: tuple[int, int]) -> None:
        if life == self.lives and self.alive:
            self._done.append(key)
            self._gather()

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self.world.after(
                self.world.queue_rng.randint(*GATHER_US), self._acknowledge, self.lives
            )

    def _acknowledge(self, life: int) -> None:
        if life != self.lives:
            return
        self._is_gathering = False
        machine, world = self.machine, self.world
        if not self.alive or self.failed or not machine.outbox.next_sequence or not self._done:
            return
        done, self._done = self._done, []
        topic, how = self._definition.name, "ack"
        if self._definition.dead_letters and not world.consumes:
            how = "expire" if world.queue_rng.random() < EXPIRES else "ack"
        body = pack_acknowledgment(Acknowledgment(keys_of(set(done)), how))
        command = Command.QUEUE_ACKNOWLEDGMENT
        sequence = machine.outbox.publish(topic, body, "json", world.now_us, command=command)
        world.log(
            MessagesPublished(world.now_us, self.name, machine.outbox.publisher, sequence, topic)
        )
        self._pump_soon()

    def crash(self, down_us: int) -> None:
        """Dies with what it was about to acknowledge."""
        self._done.clear()
        self._is_gathering = False
        super().crash(down_us)


def begin(world: World) -> None:
    """Starts what a world's queues have besides."""
    plan = world.queues
    if plan is None:
        return
    for each in plan.consumers:
        SimConsumer(world, *each)
    for time_ms, name in plan.owner_crashes:
        world.at(time_ms * 1000, queues.crash_owners, world, name)


def rest(world: World) -> None:
    """Nobody consumes any more."""
    for client in world.clients.values():
        if isinstance(client, SimConsumer):
            client.rest()


def consume(world: World) -> None:
    """All is quiet: the queues are written down, and then everything is consumed."""
    for manager in queues.managers(world):
        manager.log_holds(is_last=False)
    world.consumes = True
    # Those that there are may be at an instance that has no queue, and stay there.
    assert world.queues is not None
    names, rng = list(world.queues.instances), world.queue_rng
    found = [manager.keys for manager in queues.managers(world) if manager.definitions]
    # Who lost its disk may not have all: then nobody gets everything.
    is_one = rng.random() < ONE_AT_THE_END and all(each == found[0] for each in found)
    for name in rng.sample(names, 1) if is_one else names:
        group = world.topology.members[name].group
        SimConsumer(world, f"last of {name}", [name], group, "", BACKLOG_AT_THE_END)
    for client in [] if is_one else list(world.clients.values()):
        if isinstance(client, SimConsumer):
            client.consume()


def end(world: World) -> None:
    """Writes down what is left. There are letters of what consumers have given up."""
    plan = world.queues
    assert plan is not None
    # What no disk has any more was on one that was lost, and on no other.
    managers = [each for each in queues.managers(world) if each.definitions]
    there = {key for each in managers for key in each.instance.disk.index}
    for publisher, sequence in plan.expired & there - plan.done - plan.barriers:
        world.probes["queue message given up"] += 1
        if f"{publisher}|{sequence}|" not in plan.letters:
            text = f"{publisher}|{sequence}| was given up, and has no letter"
            world.queue_faults.append(("queue dead letters", text))
    for manager in queues.managers(world):
        manager.log_holds(is_last=True)
