"""An instance of the simulation that takes over the connection of one of its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.records import Run
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import first_frame
from raylay.services.protocol.link.replication import REPLICATION_FRAME_BYTES_MAX, read_ack
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    NotifyLink,
    SendBatch,
)
from raylay.services.replication.link.direct_link import DirectLink
from raylay.services.replication.link.report_coalescer import ReportCoalescer
from sim.network import Connection

if TYPE_CHECKING:
    from sim.link import LinkProcess

PAUSE_US = (1_000, 40_000)


class Ended:
    """Behind the last frame of a connection."""

    def __init__(self, why: str) -> None:
        self.why = why


class DirectLinkControl:
    """The instance's side of it. As the server's DirectLinkControl and DirectLinkSocket
    together."""

    def __init__(self, link: LinkProcess) -> None:
        world = self.world = link.world
        self.link = link
        self.instance = link.instance
        pause_us = world.direct_rng.randint(*PAUSE_US)
        self.policy = world.machines.direct_policy(
            is_allowed=world.direct_links, pause_us_min=pause_us
        )
        self.direct: DirectLink | None = None
        self.connection: Connection | None = None
        self._behind: list[Run] = []
        self._is_open = False
        self._due_us: int | None = None
        self._telling = self._new_telling()

    def _new_telling(self) -> ReportCoalescer:
        return ReportCoalescer(
            lambda told, _: self._tell(told),
            lambda *_: None,
            waited_for=self.link.destination.sync,
        )

    def _tell(self, told: Any) -> None:
        self.instance.link_reports(self.link, told, is_direct=True)

    def tick(self) -> None:
        """Called regularly."""
        link, machine = self.link, self.instance.machine
        if self.direct is not None:
            self._telling.flush()
        elif link.alive and self.policy.asks(
            caught_up=machine.destinations[link.destination.name].caught_up,
            committed_txid=machine.committed_txid,
            now_us=self.instance.now_us,
        ):
            link.inbox.send(link.asked_to_lend, machine.committed_txid)

    def committed(self, runs: list[Run]) -> bool:
        """Takes runs that are on disk. Returns whether the link need not be told."""
        if self.direct is None:
            self.policy.committed(runs)
            return False
        if self._is_open:
            self._perform(self.direct.committed(runs, self.instance.now_us))
        else:
            self.world.probes["committed while a direct connection opens"] += 1
            self._behind += runs
        return True

    def notice(self, effect: NotifyLink) -> bool:
        """The destination is to be asked. Whether that is done."""
        if self.direct is None:
            self.policy.said()
            return False
        if self._is_open:
            self.world.probes["notice over a direct connection"] += 1
            now_us = self.instance.now_us
            self._perform(self.direct.notice(effect.awaited, effect.last_txid, now_us))
        else:
            self.abort("it was to be asked before it was open")
        return True

    def mode(self, sync: bool) -> bool:
        """Marks what is sent from now on. Returns whether that is done."""
        if self.direct is None:
            self.policy.said()
            return False
        self.world.probes["mode of a direct link"] += 1
        self.direct.machine.set_mode(sync)
        return True

    def kept(self, for_good: bool) -> None:
        """The link does not hand over its connection."""
        self.world.probes["connection not handed over"] += 1
        self.policy.kept(self.instance.now_us, for_good=for_good)

    def given(self, connection: Connection, frame: bytes) -> None:
        """The link hands it over."""
        world, link = self.world, self.link
        if not self.instance.alive or not link.alive:
            return
        self.instance.catch_up_commits()
        found = first_frame(frame, control.CONTROL_FRAME_BYTES_MAX)
        assert found is not None
        state = control.read_hand_over(*found[0])
        behind = self.policy.taken(state.cursor, self.instance.now_us)
        if behind is None:
            world.probes["direct connection not gone on with"] += 1
            link.inbox.send(link.returned, "the instance cannot go on with it")
            return
        if behind:
            world.probes["committed while a link was asked"] += 1
        machine = world.machines.link(link.destination, world.window_bytes, filters=world.filters)
        if hasattr(world.machines.link, "__annotations__"):
            machine.__dict__.update({"name_of": world.name_of})
        machine.take_over(state)
        self.direct, self.connection = world.machines.direct_link(machine), connection
        self._telling = self._new_telling()
        self._behind, self._is_open = behind, False
        world.after(world.direct_rng.randint(*world.timing.local_us), self._open, self.direct)

    def _open(self, direct: DirectLink) -> None:
        connection = self.connection
        if direct is not self.direct or connection is None or not self.instance.alive:
            return
        self.world.probes["connection handed over"] += 1
        self._is_open = True
        behind, self._behind = self._behind, []
        self._perform(direct.committed(behind, self.instance.now_us))
        if direct is not self.direct:
            return
        connection.receive[0] = self._frame
        connection.closed[0] = lambda why: self._frame(Ended(why))
        unread, self.link.unread = self.link.unread, []
        for frame in unread:
            self._frame(frame)

    def _frame(self, frame: Any) -> None:
        if self.direct is None or not self.instance.alive:
            return
        if isinstance(frame, Ended):
            self.abort(frame.why)
            return
        if not isinstance(frame, bytes):
            self.world.probes["news over a direct connection"] += 1
            self.abort("the link is to hear that")
            return
        try:
            found = first_frame(frame, REPLICATION_FRAME_BYTES_MAX)
            assert found is not None
            ack = read_ack(*found[0])
            effects = self.direct.acked(*ack, self.instance.now_us)
        except RemoteProtocolError as error:
            self.abort(f"{error.reason}: {error}")
            return
        self._perform(effects)

    def _perform(self, effects: list[Any]) -> None:
        direct, connection = self.direct, self.connection
        for effect in effects:
            if isinstance(effect, SendBatch) and connection is not None:
                connection.send(0, effect)
        for effect in effects:
            if isinstance(effect, LinkAnswered):
                self._telling.answered(effect, 0)
            elif isinstance(effect, LinkProgress):
                self._telling.progress(effect)
            elif isinstance(effect, LinkLacks):
                self._telling.lacks(effect)
        if direct is None or direct is not self.direct:
            return
        if direct.trouble:
            self.world.probes["direct connection in trouble"] += 1
            self.abort(direct.trouble)
        elif direct.due_us is not None and direct.due_us != self._due_us:
            self._due_us = direct.due_us
            self.world.after(max(direct.due_us - self.instance.now_us, 0), self._look_again, direct)

    def _look_again(self, direct: DirectLink) -> None:
        if direct is self.direct and self._is_open and self.instance.alive:
            self._perform(direct.look_again(self.instance.now_us))

    def abort(self, why: str) -> None:
        """Ends the connection; the link dials again."""
        link, connection = self.link, self.connection
        if self.direct is None:
            self.policy.said()
            return
        self._telling.flush()
        if self.direct is None:
            return  # What was told has ended it.
        if link.alive and self.direct.machine.beside:
            for stretch, ranges in self.direct.machine.beside.taken().items():
                link.inbox.send(link.machine.beside.update, stretch, ranges)
        self.direct = self.connection = None
        self._due_us = None
        if connection is not None:
            connection.close(0, why)
        if link.alive:
            link.inbox.send(link.returned, why)

    def ended(self, why: str) -> None:
        """The link is disconnected, or gone."""
        if self.direct is not None:
            self.world.probes["link lost while its connection is handed over"] += 1
            self.abort(why)
        self.policy.ended(self.instance.now_us)
