"""A simulated DestinationLink: one life of the shell around its machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import first_frame
from raylay.services.protocol.link.replication import (
    REPLICATION_FRAME_BYTES_MAX,
    read_ack,
)
from raylay.services.queues.frontend import RoutedRequest
from raylay.services.replication.effects import (
    LinkAnswered,
    LinkLacks,
    LinkProgress,
    NotifyLink,
    SendBatch,
)
from raylay.services.replication.instance import (
    UpstreamAnswer,
)
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.replication.membership.connection_sharing import gives_way
from raylay.services.replication.membership.placement import InstancePlacement
from sim import instance as sim_instance
from sim.direct_link import DirectLinkControl, Ended
from sim.network import Carried, Channel, Connection

if TYPE_CHECKING:
    from sim.instance import Instance
    from sim.salvage import SalvagedDisk


LENDS_WITHIN_US = 20_000
TAKEN_US = (0, 20_000)
NAMES_US = (100, 30_000)
LYING = 0.1
"""Part of the lost connections behind which a living process seems to have ended."""
"""As long names are on their way."""


@dataclass(frozen=True, slots=True)
class LinkLogon:
    """What a link says when it connects."""

    name: str
    group: str
    expect: str
    incarnation: int
    destination: str
    epoch: int
    host: str
    generation: int
    salvages: bool
    placements: dict[str, InstancePlacement]
    proven: bool = True

    @property
    def address(self) -> str:
        """Where others reach its instance."""
        return self.host


@dataclass(frozen=True, slots=True)
class Welcome:
    """What it is answered."""

    name: str
    incarnation: int
    answer: UpstreamAnswer
    called: str
    """Its name when it is a former one: else `name`."""
    generation: int
    placements: dict[str, InstancePlacement]
    names: bytes = b""


@dataclass(frozen=True, slots=True)
class Placed:
    """Either side tells of instances that were moved."""

    placements: dict[str, InstancePlacement]


@dataclass(frozen=True, slots=True)
class Stale:
    """A link is refused: a higher epoch of its instance was seen."""


class LinkProcess:
    """One life of a DestinationLink: the shell around its machine."""

    def __init__(self, instance: Instance | SalvagedDisk, destination: DestinationRoute) -> None:
        world = self.world = instance.world
        self.instance = instance
        self.destination = destination
        self.alive = True
        self.inbox = Channel(world)
        self.outbox = Channel(world)
        self.machine = world.machines.link(
            destination, world.window_bytes, instance.removed, world.filters
        )
        if hasattr(world.machines.link, "__annotations__"):
            # One of the planted mistakes knows instances by their names.
            self.machine.__dict__.update({"name_of": world.name_of})
        self._verdicts = self._known()
        for stretch, known in self._verdicts.items():
            self.machine.beside.update(stretch, PublisherRanges.from_wire(known))
        world.probes["link started with verdicts"] += bool(self._verdicts)
        self.connection: Connection | None = None
        self.server = ""
        self.woken_txid = 0
        """What the instance's writer thread told it of last."""
        self.later_txid = 0
        """What it is to be told of within a moment."""
        self._early: list[bytes] = []
        self.direct_link = DirectLinkControl(self)
        self.is_direct = False
        """Whether the instance sends and reads over the connection."""
        self.unread: list[Any] = []
        """Frames that came over a direct connection that the instance has not opened yet."""
        self._lends_until_us = 0
        self._address = 0
        self._epoch = 0
        self._pause_us = world.timing.pause_us[0]
        self._pumping = False
        self._waiting = False
        self._deferred = False
        self._is_looking = False
        """True while the other side was connected, and may have ended since."""
        self._failed = 0
        """The connection over which the last attempt to go over one failed, or is being made."""
        self.outbox.send(instance.give_epoch, self)

    def die(self) -> None:
        """Ends with its instance."""
        self.alive = False
        self.direct_link.ended("link died")
        if self.connection is not None:
            self.connection.close(0, "link died")
            self.connection = None

    def crash(self) -> None:
        """Dies alone: the instance sees its channel close and starts another one."""
        instance, world = self.instance, self.world
        self.die()
        instance.names_told[self.destination.name].disconnected()
        instance.perform(instance.machine.link_disconnected(self.destination.name, "link died"))
        world.probes["link crashed"] += 1
        world.after(world.drawn((1_000, 50_000)), self._replace)

    def _replace(self) -> None:
        if self.instance.alive:
            self.instance.links[self.destination.name] = LinkProcess(
                self.instance, self.destination
            )

    def quiet(self, last_txid: int) -> bool:
        """Whether everything is sent and stored."""
        direct = self.direct_link.direct
        machine = direct.machine if direct is not None else self.machine
        return (
            self.alive
            and (direct is not None or not self.is_direct)
            and machine.is_connected
            and not machine.resyncing
            and machine.cursor >= last_txid
            and machine.stored_txid >= last_txid
        )

    # -- connecting --------------------------------------------------------------------------
    def epoch_given(self, epoch: int) -> None:
        """The epoch is on disk: dial."""
        if self.alive:
            self._epoch = epoch
            carrier = self.instance.incoming_for(self)
            if carrier is not None and carrier.number != self._failed:
                self._join(carrier)
            elif self.destination.dials:
                self._dial()
            else:
                self._failed = 0
                self._waiting = True
                self.world.probes["link waited for the other side to connect"] += 1
                if carrier is not None:
                    # It failed over the only one there is: again in a while.
                    self.world.after(self._pause_us, self.arrived)

    def _join(self, carrier: Connection) -> None:
        """Connects over a connection that the other side made."""
        world = self.world
        self._failed = carrier.number
        connection = self._opened(Carried(carrier))
        world.after(world.drawn(world.timing.network_us), self._reach_over, connection, self._epoch)
        world.after(world.timing.dial_us, self._no_answer, connection)

    def arrived(self) -> None:
        """Another instance has connected."""
        if self.alive and self._waiting:
            self._waiting = False
            self._again()
        self._give_way()

    def _give_way(self) -> None:
        """Where both sides dialled, the connection of one of them is enough."""
        connection = self.connection
        if not self.alive or not self.machine.is_connected or isinstance(connection, Carried):
            return
        carrier = self.instance.incoming_for(self)
        world, disk = self.world, self.instance.disk
        if connection is None or carrier is None or carrier.hosts[0] != connection.hosts[1]:
            return
        peer = world.hosts[carrier.hosts[0]].disk
        if carrier.number != self._failed and gives_way(
            disk.member.name, disk.incarnation, peer.member.name, peer.incarnation
        ):
            world.probes["link gave up its own connection for the other side's"] += 1
            connection.close(0, "the other side has connected")
            self._lost(connection, "the other side has connected")

    def _reach_over(self, connection: Carried, epoch: int) -> None:
        """The logon arrives at the other end of the carrier."""
        if connection.is_cut(0):
            return  # The carrier's end is noticed sooner or later.
        if connection.open[0]:
            self.world.probes["link over the other side's connection"] += 1
            self._log_on(connection, epoch)

    def _dial(self) -> None:
        world = self.world
        target = self.instance.host_of(world.answering(self.destination.addresses[self._address]))
        connection = self._opened(Connection(world, self.instance.host, target))
        delay_us = world.drawn(world.timing.network_us)
        if self._real() < 0.02 and not world.healed:
            # A logon that the network kept for long: the link has dialed again by then, and that
            # it gave up is heard later still.
            delay_us += world.drawn((20_000, 300_000))
            connection.dead[0] = True
        world.after(delay_us, self._reach, connection, self._epoch)
        # Nothing overtakes the logon, the connection's end neither.
        connection.last_us[0] = world.now_us + delay_us
        world.after(world.timing.dial_us, self._no_answer, connection)

    def _opened(self, connection: Connection) -> Connection:
        self.connection = connection
        connection.receive[0] = lambda frame: self._frame(connection, frame)
        connection.closed[0] = lambda why: self._lost(connection, why)
        return connection

    def _real(self) -> float:
        return self.world.rng.random()

    def _reach(self, connection: Connection, epoch: int) -> None:
        """The logon arrives, though the link may have given up since."""
        world = self.world
        here, there = connection.hosts
        target = world.hosts[there]
        if not target.alive or (here, there) in world.blocked or (there, here) in world.blocked:
            connection._end(0, "refused")
            return
        if not connection.open[0]:
            # Its stream is dead, but the other side does not know.
            connection.dead[0] = connection.dead[1] = True
        elif not connection.dead[1]:
            connection.dead[0] = False
        self._log_on(connection, epoch)
        if connection.dead[0]:
            world.after(world.drawn(world.timing.notice_us), connection._end, 1, "lost")

    def _log_on(self, connection: Connection, epoch: int) -> None:
        target = self.world.hosts[connection.hosts[1]]
        if not isinstance(target, sim_instance.Instance):
            return
        connection.receive[1] = lambda batch: target.upstream_frame(connection, batch)
        connection.closed[1] = lambda why: target.upstream_gone(connection.number)
        member = self.instance.disk.member
        logon = LinkLogon(
            member.name,
            member.group,
            self.destination.group,
            self.instance.machine.identity.incarnation,
            self.destination.name,
            epoch,
            self.instance.host,
            self.instance.disk.generation,
            self.instance.salvages,
            self.instance.told_at_logon(),
        )
        target.link_logs_on(connection, logon)

    def _no_answer(self, connection: Connection) -> None:
        if self.connection is connection and not self.server:
            connection.close(0, "no answer")
            self._lost(connection, "no answer")

    def _frame(self, connection: Connection, frame: Any) -> None:
        if not self.alive or connection is not self.connection:
            return
        if isinstance(frame, Placed):
            self.outbox.send(self.instance.learn, frame.placements)
        elif isinstance(frame, Stale):
            self.outbox.send(self.instance.epoch_refused, self)
        elif isinstance(frame, Welcome):
            self.server = frame.called
            if self._address:
                self.world.probes["second server of a list"] += 1
            self.outbox.send(self.instance.link_connected, self, connection, frame)
        elif self.machine.is_connected:
            self._acked(connection, frame)
        else:
            self._early.append(frame)

    def started(self, connection: Connection, welcome: Welcome, start: Any) -> None:
        """The instance has said how to begin."""
        if not self.alive or connection is not self.connection:
            return
        self._pause_us = self.world.timing.pause_us[0]
        self._address = 0
        if start.notice:
            self.world.probes["notice at a connect"] += 1
        self._perform(
            self.machine.connected(
                welcome.incarnation,
                welcome.answer.held,
                start,
                self.instance.journal.first_txid,
            )
        )
        early, self._early = self._early, []
        for ack in early:
            self._acked(connection, ack)
        if isinstance(connection, Carried):
            self._failed = 0
        self._pump_soon()
        self._give_way()

    def _known(self) -> dict[int, dict[int, bytes]]:
        """What these very filters left out (services/processes/link/filtered_out_store.py)."""
        disk, name, world = self.instance.disk, self.destination.name, self.world
        known = disk.verdicts.setdefault(name, {})
        rules = self.machine.router.contents.carried
        if disk.judged_by.get(name, rules) != rules and not world.machines.verdicts_outlive_filters:
            world.probes["verdicts of other filters forgotten"] += bool(known)
            known.clear()
        disk.judged_by[name] = rules
        return known

    def _lost(self, connection: Connection, why: str) -> None:
        if not self.alive or connection is not self.connection:
            return
        world = self.world
        self.connection = None
        self._early.clear()
        was_connected = bool(self.server)
        self.server = ""
        self.is_direct = False
        self._lends_until_us = 0
        self.machine.disconnected()
        for stretch, ranges in self.machine.beside.changed():
            if ranges is None:
                self._verdicts.pop(stretch, None)
            else:
                self._verdicts[stretch] = ranges.to_wire()
        if was_connected:
            self.outbox.send(self.instance.link_disconnected, self, why)
            self._address = 0
        else:
            self._address += 1
        if was_connected:
            # A server that has connected by itself may have an address that is not among those.
            is_elsewhere = isinstance(connection, Carried) and self.destination.waits
            self._is_looking = not is_elsewhere
        self._look_for_process()
        if self._address >= len(self.destination.addresses):
            self._address = 0
            world.after(self._pause_us, self._again)
            self._pause_us = min(2 * self._pause_us, world.timing.pause_us[1])
        else:
            self._again()

    def _look_for_process(self) -> None:
        """Tells the instance if all addresses refuse connections, as they do when the process has
        ended. Now and then a proxy, or a closed port, refuses for a process that lives."""
        world = self.world
        if not self._is_looking or not self.destination.addresses:
            return
        here = self.instance.host
        lies = world.evidence_rng.random() < LYING
        for address in self.destination.addresses:
            there = self.instance.host_of(world.answering(address))
            is_cut = (here, there) in world.blocked or (there, here) in world.blocked
            if is_cut or (world.hosts[there].alive and not lies):
                return
        world.probes["wrong evidence of an end" if lies else "evidence of an end"] += 1
        self.outbox.send(self.instance.process_ended, self)

    def _again(self) -> None:
        if self.alive:
            self.outbox.send(self.instance.give_epoch, self)

    # -- names of publishers -----------------------------------------------------------------
    def tell_names(self, part: bytes) -> bool:
        """The instance tells its destination names. Whether they go out."""
        world, connection = self.world, self.connection
        direct = self.direct_link
        if connection is None or (direct.direct is None and direct.policy.is_asked):
            return False
        self.instance.names_under_way += 1
        world.after(world.names_rng.randint(*NAMES_US), self._names_arrive, connection, part)
        return True

    def _names_arrive(self, connection: Connection, part: bytes) -> None:
        """With the connection they are lost."""
        self.instance.names_under_way -= 1
        is_cut = isinstance(connection, Carried) and connection.is_cut(0)
        if not all(connection.open) or connection.dead[0] or is_cut:
            self.world.probes["names lost with a connection"] += 1
            return
        target = self.world.hosts[connection.hosts[1]]
        if isinstance(target, sim_instance.Instance):
            target.names_arrived(connection, part)

    # -- moved instances ---------------------------------------------------------------------
    def placed(self, news: dict[str, InstancePlacement]) -> None:
        """Instances were moved: the other side is told, and left where it is what was moved."""
        connection = self.connection
        if not self.alive or connection is None:
            return
        if self.world.machines.spreads:
            connection.send(0, Placed(news))
        moved = set(news) & set(self.world.topology.servers(self.destination))
        if moved and connection.hosts[1] not in {place.address for place in news.values()}:
            server = self.world.hosts[connection.hosts[1]].disk
            if server.member.name in moved:
                self.refused("moved")

    def refused(self, why: str) -> None:
        """It may not go on to the server that it has reached."""
        connection = self.connection
        if self.alive and connection is not None:
            connection.close(0, why)
            self._lost(connection, why)

    # -- how the instance tells it of a commit -----------------------------------------------
    @property
    def is_connected(self) -> bool:
        """Returns whether its instance knows its destination to be connected."""
        return self.instance.machine.destinations[self.destination.name].connected

    @property
    def is_wakeable(self) -> bool:
        """Returns whether the writer thread wakes it."""
        return True

    def wake(self, last_txid: int) -> bool:
        """The writer thread tells it itself: not in order with what the loop tells it."""
        if self.direct_link.direct is None and self.alive and self.is_connected:
            self.woken_txid = last_txid
            self.world.probes["link woken by the writer thread"] += 1
            self.world.after(self.world.drawn(self.world.timing.local_us), self.heard, last_txid)
        return True

    def told(self, last_txid: int) -> None:
        """The loop tells it."""
        self.later_txid = 0
        self.inbox.send(self.heard, last_txid)

    def told_later(self, last_txid: int) -> None:
        """The loop tells it within a moment."""
        if not self.later_txid:
            self.world.after(self.world.timing.told_later_us, self._told_due)
        self.later_txid = last_txid

    def _told_due(self) -> None:
        if self.instance.alive and self.later_txid:
            self.told(self.later_txid)

    # -- what the instance says --------------------------------------------------------------
    def heard(self, last_txid: int) -> None:
        """The instance has committed."""
        if self.alive:
            self.machine.told(last_txid)
            self._pump_soon()

    def notified(self, effect: NotifyLink) -> None:
        """The instance asks again."""
        if self.alive:
            self._perform(self.machine.notice(effect.awaited, effect.last_txid))

    def queue_request(self, asked: RoutedRequest) -> None:
        """Passes a request of a queue on, where it is connected."""
        connection = self.connection
        if self.alive and connection is not None and self.server:
            connection.send(0, asked)

    def mode_set(self, sync: bool) -> None:
        """What is sent from now on is marked awaited, or not."""
        if self.alive:
            self.machine.set_mode(sync)

    # -- the journal -------------------------------------------------------------------------
    def _pump_soon(self) -> None:
        if not self._pumping and self.machine.wants:
            self._pumping = True
            self.world.after(self.world.drawn(self.world.timing.local_us), self._pump)

    def _pump(self) -> None:
        """Reads one batch behind the cursor and sends what is missing there."""
        self._pumping = False
        machine = self.machine
        if not self.alive or not machine.wants:
            return
        journal = self.instance.journal
        if machine.resyncing:
            before = machine.cursor
            machine.skip_segments(journal.segment_summaries())
            if machine.cursor > before:
                self.world.probes["segments skipped in a resync"] += 1
            while machine.cursor < machine.told_txid:
                headers = [
                    run
                    for run in journal.read_headers(machine.cursor, 16)
                    if run.last_txid <= machine.told_txid
                ]
                if not headers or not machine.skip_headers(headers):
                    break
        runs = [
            run
            for run in journal.read(machine.cursor, self.world.rng.randint(1, 1_200))
            if run.last_txid <= machine.told_txid
        ]
        probes = self.world.probes
        for run in runs if self.world.filters is not None else ():
            ranges = run.ranges()
            part = machine.router.passing(run, ranges) if ranges else ranges
            if part is not ranges:
                probes["run routed in part" if part else "run filtered out"] += 1
        ended, skipped = machine.deferrals_ended, machine.skipped
        self._perform(machine.take(runs, self.world.now_us))
        probes["deferred message sent after all"] += machine.deferrals_ended - ended
        if machine.skipped > skipped and self._deferred:
            probes["deferred message skipped"] += 1
        due_us = machine.due_us
        self._deferred = due_us is not None
        if due_us is not None:
            probes["message deferred"] += 1
            self.world.at(due_us, self._look_again)
        if self.connection is not None and not self.world.healed and self._real() < 0.001:
            self.connection.dead[0] = True
            self.world.after(3_000, self._unblock, self.connection)
        self._pump_soon()
        if self._lends_until_us and self.connection is not None:
            self._lend(self.connection)

    def _look_again(self) -> None:
        due_us = self.machine.due_us
        if self.alive and due_us is not None and due_us <= self.world.now_us:
            self.machine.look_again()
            self._pump_soon()

    def _unblock(self, connection: Connection) -> None:
        """Frames were lost and the stream goes on: what no TCP does, and a gap must show."""
        if connection.open[0] and connection.open[1]:
            connection.dead[0] = False
            self.world.after(self.world.drawn(self.world.timing.notice_us), connection.sever)

    def _acked(self, connection: Connection, frame: bytes) -> None:
        """An ack as it was written: what cannot be read ends the connection."""
        if connection is not self.connection:
            return
        try:
            found = first_frame(frame, REPLICATION_FRAME_BYTES_MAX)
            assert found is not None
            number, held, persisted, conflicts = read_ack(*found[0])
        except RemoteProtocolError as error:
            self.refused(f"{error.reason}: {error}")
            return
        self._perform(self.machine.acked(number, held, persisted, conflicts))
        self._pump_soon()
        if self._lends_until_us:
            self._lend(connection)

    # -- handing over its connection --------------------------------------------------------------
    def asked_to_lend(self, last_txid: int) -> None:
        """The instance asks for the connection; it has committed up to here."""
        if not self.alive:
            return
        self.heard(last_txid)
        connection = self.connection
        if connection is None or isinstance(connection, Carried):
            self._keep(for_good=connection is not None)
            return
        self._lends_until_us = self.world.now_us + LENDS_WITHIN_US
        self.world.after(LENDS_WITHIN_US, self._lends_no_more)
        self._lend(connection)

    def _lends_no_more(self) -> None:
        if self.alive and self._lends_until_us and self.world.now_us >= self._lends_until_us:
            self._keep(for_good=False)

    def _keep(self, *, for_good: bool) -> None:
        self._lends_until_us = 0
        self.outbox.send(self.direct_link.kept, for_good)

    def _lend(self, connection: Connection) -> None:
        if connection.carried or not self.server:
            return
        state = self.machine.hand_over()
        if state is None:
            return
        self._lends_until_us = 0
        self.is_direct = True
        self.unread = []
        connection.receive[0] = self.unread.append
        connection.closed[0] = lambda why: self.unread.append(Ended(why))
        frame = control.hand_over(state, self._epoch, self.server)
        # The instance has other things to do first: it commits, and asks.
        self.outbox.last_us = max(
            self.outbox.last_us, self.world.now_us + self.world.direct_rng.randint(*TAKEN_US)
        )
        self.outbox.send(self.direct_link.given, connection, frame)

    def returned(self, why: str) -> None:
        """The connection that was handed over is over."""
        connection = self.connection
        if self.alive and self.is_direct and connection is not None:
            connection.close(0, why)
            self._lost(connection, why)

    def _perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, SendBatch):
                if self.connection is not None:
                    self.connection.send(0, effect)
            elif isinstance(effect, LinkAnswered | LinkLacks | LinkProgress):
                self.outbox.send(self.instance.link_reports, self, effect)
