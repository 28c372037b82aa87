"""The instance's side of a link: what its process is told when it has come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raylay.services.protocol.frames import FrameReader
from raylay.services.replication.placement import Placement
from raylay.services.server.config import DestinationConfig, InstanceConfig
from raylay.services.server.link_control import LinkControl

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"


class Connection:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, data: bytes) -> None:
        self.sent += [frame.header for frame in FrameReader().feed(data)]


def greeted(*, moved: bool) -> list[dict[str, Any]]:
    """What a process hears that was started, and whose destination moved before it came."""
    to = DestinationConfig("B", "pair", True, (OLD,), server_names=("B",))
    server: Any = SimpleNamespace(
        config=InstanceConfig("A", "pair", destinations=(to,)),
        injections=SimpleNamespace(tell_link=lambda name: None),
    )
    link = LinkControl(server, to)
    link.offer_incoming = lambda: None  # type: ignore[method-assign]
    if moved:
        link.aim({"B": Placement(1, NEW, "")})
    connection: Any = Connection()
    assert link.greeted(connection, {"start": link._start_number, "pid": 7})
    return list(connection.sent)


def test_a_link_that_starts_while_its_destination_moves_hears_where_it_is() -> None:
    (told,) = greeted(moved=True)
    assert (told["c"], list(told["addresses"])) == ("aim", [NEW])
    assert greeted(moved=False) == []
