"""What an instance and its link say to each other survives the way."""

from __future__ import annotations

from raylay.services.protocol import control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import LinkAnswered, LinkLacks, LinkProgress
from raylay.services.replication.instance import LinkStart
from raylay.services.replication.ranges import PublisherRanges

BIG = (1 << 64) - 1


def sets() -> PublisherRanges:
    found = PublisherRanges()
    found.add_ranges(BIG, [(1, 10), (12, 5_000)])
    found.add(3, 7, 7)
    return found


def one(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def test_hello() -> None:
    frame = one(control.hello("to-B", 3, 99))
    assert frame.header == {"c": "hello", "destination": "to-B", "start": 3, "pid": 99}


def test_connections_that_the_other_side_made() -> None:
    assert one(control.incoming(5, "B", BIG)).header == {
        "c": "incoming",
        "upstream": 5,
        "name": "B",
        "incarnation": BIG,
        "proven": False,
    }
    assert one(control.carry("to-B", 3, 5)).header == {
        "c": "carry",
        "destination": "to-B",
        "start": 3,
        "upstream": 5,
    }
    assert one(control.carried("to-B", 3)).header == {
        "c": "carried",
        "destination": "to-B",
        "start": 3,
    }


def test_connected() -> None:
    waited = RootedRanges()
    waited.of(BIG).add(3, 7, 7)
    frame = one(control.connected(BIG, "B", "host:1", "host:2", sets(), waited))
    assert frame.header["incarnation"] == BIG and not frame.header["same"]
    held, found = control.read_connected(frame.body)
    assert held == sets() and found.roots == waited.roots
    frame = one(control.connected(BIG, "B", "host:1", "host:2", None, waited))
    assert frame.header["same"]
    held, found = control.read_connected(frame.body)
    assert held == PublisherRanges() and found.roots == waited.roots


def test_answered() -> None:
    effect = LinkAnswered({BIG: {BIG: [(1, 2), (4, 4)]}}, {5: [(9, 9)]})
    frame = one(control.answered(effect, 123))
    assert frame.header["at"] == 123
    assert control.read_answered(frame.body) == (effect.persisted, effect.conflicts)


def test_progress() -> None:
    for effect in (
        LinkProgress(10, {BIG: [(1, 2)]}, True, 5),
        LinkProgress(11, {}, False, 0),
    ):
        frame = one(control.progress(effect))
        assert control.read_progress(frame.header, frame.body) == effect


def test_start() -> None:
    start = LinkStart(True, {5: {BIG: [(1, 2)]}}, {BIG: {3: [(7, 7)]}}, BIG, 100, sets(), True)
    for held in (None, sets()):
        frame = one(control.start(start, held))
        assert control.read_start(frame.header, frame.body) == (start, held)


def test_lacks() -> None:
    frame = one(control.lacks(LinkLacks({BIG: [(1, 2), (4, 4)]})))
    assert frame.header == {"c": "lacks"}
    assert control.read_lacks(frame.body) == {BIG: [(1, 2), (4, 4)]}


def test_notice() -> None:
    frame = one(control.notice({BIG: {BIG: [(1, 2)]}}, 7))
    assert frame.header == {"c": "notice", "tx": 7}
    assert control.read_notice(frame.body) == {BIG: {BIG: [(1, 2)]}}
