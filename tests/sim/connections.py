"""The connections of a simulated instance, as the order of logons and batches takes them
(services/core/connection_order.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raylay.services.core.connection_order import ReachedServer
from raylay.services.protocol.link.replication import ack_frames
from raylay.services.replication.effects import AckUpstream
from raylay.services.replication.values import LinkStart, LogonAnswer
from sim.link import LinkProcess, Welcome
from sim.network import Connection

if TYPE_CHECKING:
    from sim.instance import Cursor, Instance


@dataclass(slots=True)
class Session:
    """A client's connection at an instance."""

    number: int
    connection: Connection
    client: str
    """What it is called in the history: another one may bear the name that it logged on with."""
    client_name: str
    publisher: int
    unacked: deque[int] = field(default_factory=deque)
    subscriptions: dict[str, Cursor] = field(default_factory=dict)


class EnteringClient:
    """A client that logs on, as the order of that takes it (`core/connection_order.py`)."""

    def __init__(self, instance: Instance, connection: Connection, header: dict[str, Any]) -> None:
        self._instance = instance
        self._connection = connection
        self._header = header
        self.number = connection.number

    def refusal(self) -> tuple[str, str] | None:
        """An instance that is not ready admits nobody, and one id is of one name."""
        machine, probes = self._instance.machine, self._instance.world.probes
        if not machine.ready:
            probes["logon refused, not ready"] += 1
            return "not_ready", "it catches up"
        refused: tuple[str, str] | None = machine.name_refusal(self._header["client_name"])
        probes["logon refused, id of another name"] += refused is not None
        return refused

    def turn_down(self, reason: str, text: str) -> None:
        answer = {"c": "ack", "a": "processed", "cid": self._header["cid"], "status": "failure"}
        self._connection.send(1, ({**answer, "reason": reason}, b""))
        self._connection.close(1, reason)

    def displace(self) -> None:
        instance = self._instance
        for older in list(instance.sessions.values()):
            if older.client_name == self._header["client_name"]:
                instance.client_gone(older.number)
                older.connection.close(1, "name_in_use")

    def enter(self) -> None:
        """Nobody is counted here, nor judged."""

    def logged_on(self, answer: LogonAnswer) -> None:
        called = self._connection.hosts[0].removeprefix("client ")
        name = self._header["client_name"]
        session = Session(self.number, self._connection, called, name, answer.publisher)
        self._instance.logged_on(session, self._header, answer)


class AdmittedLink:
    """An upstream link's connection, as the order of its logon and its batches takes it."""

    tells_names = True

    def __init__(self, instance: Instance, connection: Connection) -> None:
        self._instance = instance
        self.connection = connection
        self.number = connection.number
        self._behind: list[AckUpstream] | None = None
        """Acks that go out behind the answer to its logon; None: that is out."""

    @property
    def is_open(self) -> bool:
        return self._instance.alive and self.connection.open[1]

    def accepted(self) -> None:
        self._behind = []
        self._instance.upstreams[self.number] = self

    def answered(self) -> None:
        behind, self._behind = self._behind or [], None
        for ack in behind:
            self.acknowledge(ack)

    def acknowledge(self, ack: AckUpstream) -> None:
        """Sends an ack, behind the answer to the logon."""
        if self._behind is not None:
            self._instance.world.probes["ack behind the answer to a logon"] += 1
            self._behind.append(ack)
            return
        for frame in ack_frames(ack, 0):
            self.connection.send(1, frame)

    def shows_old_copy(self) -> bool:
        self._instance.world.probes["told what came from here"] += 1
        return True


class SetUpLink:
    """A link of the instance that has reached its destination, as the order of its beginning takes
    it."""

    def __init__(
        self, instance: Instance, link: LinkProcess, connection: Connection, welcome: Welcome
    ) -> None:
        self._instance = instance
        self._link = link
        self._connection = connection
        self._welcome = welcome
        self.name = link.destination.name

    @property
    def is_served(self) -> bool:
        return self._instance.alive

    def refuse(self, why: str) -> None:
        kind = "retired" if why.startswith("retired") else "former"
        self._instance.world.probes[f"{kind} server refused"] += 1
        self._link.inbox.send(self._link.refused, why)

    def reached(self, server: ReachedServer) -> None:
        self._instance.link_reached(self.name, server, self._welcome.called)

    def begins(self, start: LinkStart) -> None:
        self._link.inbox.send(self._link.started, self._connection, self._welcome, start)
