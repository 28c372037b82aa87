"""What an instance and its link say to each other survives the way."""

from __future__ import annotations

import pytest

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.protocol.link import replication
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import LinkAnswered, LinkLacks, LinkProgress
from raylay.services.replication.instance import LinkStart

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
    shown = one(control.carried("to-B", 3, ["b", "DNS:b"])).header
    assert shown["certificate"] == ["b", "DNS:b"]


def test_connected() -> None:
    frame = one(control.connected(BIG, "B", "host:1", "host:2", epoch=7, same=False))
    assert frame.header["incarnation"] == BIG and not frame.header["same"]
    assert frame.header["epoch"] == 7
    assert one(control.connected(BIG, "B", "h:1", "h:2", epoch=7, same=True)).header["same"]
    frame = one(control.part_of_logon("waited", BIG, b"as it came"))
    assert (frame.header, frame.body) == ({"c": "waited", "root": BIG}, b"as it came")


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


@pytest.mark.parametrize("same", [False, True])
def test_start(same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, so that no frame is long: here one for each publisher."""
    monkeypatch.setattr(replication, "PART_BYTES", 1)
    notice, mark = RootedRanges(), RootedRanges()
    for publisher in (3, BIG):
        notice.of(5).add_ranges(publisher, [(1, 2), (4, 4)])
        mark.of(BIG).add(publisher, 7, 7)
    mark.of(6).add(3, 8, 8)
    start = LinkStart(True, notice, mark, BIG, 100, sets(), True)
    frames = list(control.start_frames(start, sets() if same else None))
    assert len(frames) >= 2 + 3 + len(sets().sets) * (1 + same) + 1
    reader = control.StartReader()
    *parts, last = map(one, frames)
    for part in parts:
        assert part.header["c"] == "part"
        reader.take(part.header, part.body)
    found = reader.started(last.header)
    assert last.header["c"] == "start" and not last.body
    assert (found.notice.roots, found.mark.roots) == (notice.roots, mark.roots)
    assert found[3:] == start[3:] and found.sync
    assert reader.held == (sets() if same else PublisherRanges())


def test_lacks() -> None:
    frame = one(control.lacks(LinkLacks({BIG: [(1, 2), (4, 4)]})))
    assert frame.header == {"c": "lacks"}
    assert control.read_lacks(frame.body) == {BIG: [(1, 2), (4, 4)]}


def test_notice() -> None:
    frame = one(control.notice({BIG: {BIG: [(1, 2)]}}, 7))
    assert frame.header == {"c": "notice", "tx": 7}
    assert control.read_notice(frame.body) == {BIG: {BIG: [(1, 2)]}}
