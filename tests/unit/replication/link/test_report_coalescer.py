"""What an instance is told of a destination, and how often."""

from __future__ import annotations

from typing import Any

from raylay.services.replication.effects import LinkAnswered, LinkProgress, LinkReport
from raylay.services.replication.link.report_coalescer import ReportCoalescer

OWN, P = 3, 7


class Bench:
    """Takes what is told, and calls what is due by hand."""

    def __init__(self, *, waited_for: bool = False) -> None:
        self.told: list[LinkReport] = []
        self.due: list[Any] = []
        self.telling = ReportCoalescer(
            lambda told, _: self.told.append(told),
            lambda _, call: self.due.append(call),
            waited_for=waited_for,
        )

    def later(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()

    @property
    def kinds(self) -> list[str]:
        return [type(each).__name__ for each in self.told]


def answer(*sequences: int, root: int = 0) -> LinkAnswered:
    return LinkAnswered({root: {P: [(sequence, sequence) for sequence in sequences]}}, {})


def test_what_nobody_waits_for_wakes_the_instance_once_for_many() -> None:
    bench = Bench()
    for sequence in range(1, 101):
        bench.telling.answered(answer(sequence), 5)
        bench.telling.progress(LinkProgress(sequence, {}, False, 0))
    assert (bench.told, len(bench.due)) == ([], 1)
    bench.later()
    assert bench.kinds == ["LinkAnswered", "LinkProgress"]
    assert bench.told[0] == LinkAnswered({0: {P: [(1, 100)]}}, {})
    assert bench.told[1] == LinkProgress(100, {}, False, 0)
    assert not bench.due


def test_what_somebody_waits_for_is_told_at_once() -> None:
    bench = Bench(waited_for=True)
    bench.telling.answered(answer(1), 5)
    assert bench.kinds == ["LinkAnswered"]
    asynchronous = Bench()
    asynchronous.telling.answered(answer(2, root=OWN), 5)
    asynchronous.telling.answered(LinkAnswered({}, {P: [(3, 3)]}), 5)
    assert asynchronous.kinds == ["LinkAnswered", "LinkAnswered"]


def test_answers_keep_their_order_with_what_is_sent_again() -> None:
    """Told behind it, they would settle what is owed anew."""
    bench = Bench()
    bench.telling.answered(answer(1), 5)
    bench.telling.progress(LinkProgress(4, {P: [(1, 1)]}, False, 0))
    assert bench.kinds == ["LinkAnswered", "LinkProgress"]


def test_what_was_not_told_of_a_connection_is_not_told_of_the_next_one() -> None:
    bench = Bench()
    bench.telling.answered(answer(1), 5)
    bench.telling.progress(LinkProgress(9, {}, False, 2))
    bench.telling.disconnected()
    bench.later()
    assert bench.told == []
    bench.telling.progress(LinkProgress(3, {}, True, 0))
    assert bench.told == [LinkProgress(3, {}, True, 2)], "that was skipped nevertheless"


def test_who_looks_regularly_needs_no_timer() -> None:
    bench = Bench()
    bench.telling.answered(answer(1), 5)
    bench.telling.flush()
    assert bench.told == [answer(1)]
    bench.telling.flush()
    assert len(bench.told) == 1
