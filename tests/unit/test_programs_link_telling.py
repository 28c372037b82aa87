"""What a link tells its instance of its destination, in how many frames."""

from __future__ import annotations

from typing import Any

from raylay.services.programs.link.telling import Telling
from raylay.services.protocol import control
from raylay.services.protocol.frames import Frame, FrameReader
from raylay.services.replication.effects import LinkAnswered, LinkProgress

OWN, P = 3, 7


class Bench:
    """Takes what is told, and calls what is due by hand."""

    def __init__(self, *, waited_for: bool = False) -> None:
        self.frames: list[Frame] = []
        self.due: list[Any] = []
        self.telling = Telling(
            lambda data: self.frames.extend(FrameReader().feed(data)),
            lambda _, call: self.due.append(call),
            waited_for=waited_for,
        )

    def later(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()

    @property
    def kinds(self) -> list[str]:
        return [frame.header["c"] for frame in self.frames]


def answer(*sequences: int, root: int = 0) -> LinkAnswered:
    return LinkAnswered({root: {P: [(sequence, sequence) for sequence in sequences]}}, {})


def test_what_nobody_waits_for_wakes_the_instance_once_for_many() -> None:
    bench = Bench()
    for sequence in range(1, 101):
        bench.telling.answered(answer(sequence), 5)
        bench.telling.progress(LinkProgress(sequence, {}, False, 0))
    assert (bench.frames, len(bench.due)) == ([], 1)
    bench.later()
    assert bench.kinds == ["answered", "progress"]
    assert control.read_answered(bench.frames[0].body)[0] == {0: {P: [(1, 100)]}}
    header, body = bench.frames[1]
    assert control.read_progress(header, body).stored_txid == 100
    assert not bench.due


def test_what_somebody_waits_for_is_told_at_once() -> None:
    bench = Bench(waited_for=True)
    bench.telling.answered(answer(1), 5)
    assert bench.kinds == ["answered"]
    asynchronous = Bench()
    asynchronous.telling.answered(answer(2, root=OWN), 5)
    asynchronous.telling.answered(LinkAnswered({}, {P: [(3, 3)]}), 5)
    assert asynchronous.kinds == ["answered", "answered"]


def test_answers_keep_their_order_with_what_is_sent_again() -> None:
    """Told behind it, they would settle what is owed anew."""
    bench = Bench()
    bench.telling.answered(answer(1), 5)
    bench.telling.progress(LinkProgress(4, {P: [(1, 1)]}, False, 0))
    assert bench.kinds == ["answered", "progress"]


def test_what_was_not_told_of_a_connection_is_not_told_of_the_next_one() -> None:
    bench = Bench()
    bench.telling.answered(answer(1), 5)
    bench.telling.progress(LinkProgress(9, {}, False, 2))
    bench.telling.disconnected()
    bench.later()
    assert bench.frames == []
    bench.telling.progress(LinkProgress(3, {}, True, 0))
    assert control.read_progress(*bench.frames[0]).skipped == 2, "that was skipped nevertheless"
