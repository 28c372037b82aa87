"""The instance's side of a link: what its process is told when it has come."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raylay.services.config.instance import DestinationConfig, InstanceConfig
from raylay.services.protocol.frames import FrameReader
from raylay.services.replication.commit_notifications import TOLD_LATER_RECORDS
from raylay.services.replication.membership.placement import InstancePlacement
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.server.children import supervisor
from raylay.services.server.links.control import LinkControl, Links

pytestmark = pytest.mark.covers(
    "Moved instances", "a link that starts while its destination moves hears"
)

INSTANCE = SimpleNamespace(machine=SimpleNamespace(publisher_names=PublisherNames()))
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
    runtime = SimpleNamespace(config=InstanceConfig("A", "pair", destinations=(to,)))
    links: Any = SimpleNamespace(
        runtime=runtime, instance=INSTANCE, greeted=lambda name: None, descriptors=None
    )
    link = LinkControl(links, to)
    link.offer_incoming = lambda: None  # type: ignore[method-assign]
    if moved:
        link.aim({"B": InstancePlacement(1, NEW, "")})
    connection: Any = Connection()
    assert link.greeted(connection, {"start": link.process.number, "pid": 7})
    return list(connection.sent)


def test_a_link_that_starts_while_its_destination_moves_hears_where_it_is() -> None:
    (told,) = greeted(moved=True)
    assert (told["c"], list(told["addresses"])) == ("aim", [NEW])
    assert greeted(moved=False) == []


class Later:
    """An event loop's `call_later`, called by hand."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_later(self, delay_s: float, call: Any) -> None:
        self.calls.append(call)

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def connected_link() -> tuple[LinkControl, Connection, Later]:
    to = DestinationConfig("B", "other", False, (OLD,), server_names=("B",))
    loop = Later()
    config = InstanceConfig("A", "pair", destinations=(to,))
    runtime = SimpleNamespace(config=config, loop=loop)
    links: Any = SimpleNamespace(runtime=runtime, instance=INSTANCE, descriptors=None)
    link = LinkControl(links, to)
    connection = Connection()
    link.process.connection = connection  # type: ignore[assignment]
    link.is_connected = True
    return link, connection, loop


def test_a_link_is_not_woken_for_each_commit_that_does_not_concern_it() -> None:
    link, connection, loop = connected_link()
    for last_txid in range(1, 101):
        link.told_later(last_txid)
    assert (connection.sent, len(loop.calls)) == ([], 1), "one timer, whatever comes"
    loop.run()
    assert connection.sent == [{"c": "told", "tx": 100}]
    assert not loop.calls, "and none while nothing comes"


def test_a_link_that_falls_far_behind_is_told_at_once() -> None:
    link, connection, _ = connected_link()
    link.told_later(TOLD_LATER_RECORDS - 1)
    assert connection.sent == []
    link.told_later(TOLD_LATER_RECORDS)
    assert connection.sent == [{"c": "told", "tx": TOLD_LATER_RECORDS}]


def test_a_link_that_is_asked_something_has_heard_of_all_that_it_is_asked_about() -> None:
    link, connection, loop = connected_link()
    link.told_later(7)
    link.notice({1: {2: [(3, 4)]}}, 7)
    assert [frame["c"] for frame in connection.sent] == ["told", "notice"]
    loop.run()
    assert len(connection.sent) == 2


async def started(*, comes: bool) -> list[list[str]]:
    """Which links are started at once, and which when those have come, or could not."""
    local = DestinationConfig("local", "pair", False, (OLD,))
    awaited = DestinationConfig("awaited", "other", True, (OLD,))
    other = DestinationConfig("other", "other", False, (OLD,))
    config = InstanceConfig("A", "pair", destinations=(other, local, awaited))
    runtime: Any = SimpleNamespace(config=config, loop=asyncio.get_running_loop())
    nothing: Any = None
    links = Links(
        runtime,
        cast(Any, INSTANCE),
        {},
        commits=nothing,
        descriptors=nothing,
        digest=nothing,
        placements=nothing,
        upstreams=nothing,
        start=nothing,
        greeted=nothing,
        keep_refused=nothing,
    )
    connection: Any = SimpleNamespace()
    names: list[str] = []
    stages: list[list[str]] = []
    for each in config.destinations:
        link = links.add(each)
        link.process.run = partial(names.append, each.name)  # type: ignore[method-assign]
    links.run()
    task = links._starting
    assert task is not None
    await asyncio.sleep(0)
    stages.append(list(names))
    for name in ("local", "awaited") if comes else ("local",):
        await asyncio.sleep(0)
        assert len(names) == 2
        process = links.controls[name].process
        assert process.greeted(connection, {"start": process.number})
    await task
    return [*stages, names[2:]]


def test_links_that_clients_wait_for_are_started_before_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [["local", "awaited"], ["other"]]
    assert asyncio.run(started(comes=True)) == expected
    monkeypatch.setattr(supervisor, "OTHERS_WAIT_S", 0.02)
    assert asyncio.run(started(comes=False)) == expected, "one that never comes keeps none waiting"
