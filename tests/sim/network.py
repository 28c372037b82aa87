"""The ways between simulated processes: Connections between hosts break, Channels never do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.world import World


class Connection:
    """A stream between two hosts. Side 0 dialed, side 1 accepted."""

    __slots__ = (
        "carried",
        "closed",
        "dead",
        "hosts",
        "last_us",
        "number",
        "open",
        "receive",
        "world",
    )

    def __init__(self, world: World, dialer: str, acceptor: str) -> None:
        self.world = world
        self.number = world.number()
        self.hosts = (dialer, acceptor)
        self.open = [True, True]
        self.dead = [False, False]
        """Whether what this side sends is lost."""
        self.last_us = [0, 0]
        self.receive: list[Callable[[Any], None]] = [_ignore, _ignore]
        self.closed: list[Callable[[str], None]] = [_ignore, _ignore]
        self.carried: list[Carried] = []
        world.connections[self.number] = self

    def _arrival_us(self, side: int) -> int:
        world = self.world
        time_us = world.now_us + world.drawn(world.timing.network_us) * world.slow
        if time_us < self.last_us[side]:
            time_us = self.last_us[side]
        self.last_us[side] = time_us
        return time_us

    def send(self, side: int, frame: Any) -> None:
        """Sends a frame to the other side."""
        if self.open[side] and not self.dead[side]:
            self.world.at(self._arrival_us(side), self._arrive, 1 - side, frame)

    def _arrive(self, side: int, frame: Any) -> None:
        if self.open[side]:
            self.receive[side](frame)

    def close(self, side: int, why: str) -> None:
        """This side closes; the other one hears of it behind what was sent."""
        if not self.open[side]:
            return
        self.open[side] = False
        self._carried_end(side)
        if not self.open[1 - side]:
            self.world.connections.pop(self.number, None)
        elif self.dead[side]:
            self.world.after(
                self.world.drawn(self.world.timing.notice_us), self._end, 1 - side, why
            )
        else:
            self.world.at(self._arrival_us(side), self._end, 1 - side, why)

    def _end(self, side: int, why: str) -> None:
        if self.open[side]:
            self.open[side] = False
            self._carried_end(side)
            if not self.open[1 - side]:
                self.world.connections.pop(self.number, None)
            self.closed[side](why)

    def _carried_end(self, side: int) -> None:
        for carried in self.carried:
            delay_us = self.world.drawn(self.world.timing.local_us)
            self.world.after(delay_us, carried._end, 1 - side, "its carrier ended")

    def sever(self) -> None:
        """Nothing sent from now on arrives; each side notices when it does."""
        for side in (0, 1):
            self.dead[side] = True
            if self.open[side]:
                self.world.after(
                    self.world.drawn(self.world.timing.notice_us), self._end, side, "lost"
                )

    def sever_if_blocked(self) -> None:
        """What a partition does to it."""
        a, b = self.hosts
        blocked = ((a, b) in self.world.blocked, (b, a) in self.world.blocked)
        if not any(blocked):
            return
        for side in (0, 1):
            self.dead[side] = self.dead[side] or blocked[side]
            if self.open[side]:
                self.world.after(
                    self.world.drawn(self.world.timing.notice_us), self._end, side, "lost"
                )


class Carried(Connection):
    """A stream over a connection that the other side dialled: side 0 is where that one was
    accepted. It has the fate of its carrier, on each side when that side notices."""

    __slots__ = ("carrier",)

    def __init__(self, carrier: Connection) -> None:
        there, here = carrier.hosts
        super().__init__(carrier.world, here, there)
        self.carrier = carrier
        carrier.carried.append(self)

    def is_cut(self, side: int) -> bool:
        """Whether what this side sends does not get through the carrier."""
        return self.carrier.dead[1 - side] or not self.carrier.open[1 - side]

    def send(self, side: int, frame: Any) -> None:
        """Sends a frame to the other side."""
        if not self.is_cut(side):
            super().send(side, frame)

    def close(self, side: int, why: str) -> None:
        """This side closes. Where that does not get through, the carrier's end ends the other."""
        if self.open[side] and self.is_cut(side):
            self.open[side] = False
            if not self.open[1 - side]:
                self.world.connections.pop(self.number, None)
        else:
            super().close(side, why)

    def _arrive(self, side: int, frame: Any) -> None:
        # What the carrier's end overtook is not handed on.
        if self.carrier.open[1 - side]:
            super()._arrive(side, frame)

    def sever(self) -> None:
        """It breaks with its carrier."""
        self.carrier.sever()

    def sever_if_blocked(self) -> None:
        """It breaks with its carrier."""


def _ignore(_: Any) -> None:
    pass


class Channel:
    """One direction between an instance and a process beside it: ordered, delayed, no losses."""

    __slots__ = ("last_us", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.last_us = 0

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Calls there a little later."""
        world = self.world
        time_us = max(self.last_us, world.now_us + world.drawn(world.timing.local_us))
        self.last_us = time_us
        world.at(time_us, call, *args)
