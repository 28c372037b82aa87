"""services/verification/history.py: an operation as people read it."""

from __future__ import annotations

from raylay.services.verification.history import (
    AckGiven,
    MessagesPublished,
    RunHistory,
    Topology,
    describe,
)


def test_an_operation_is_one_line() -> None:
    acked = AckGiven(1_500, "A1", "desk", 7, 3, (4, 5), "ack")
    assert describe(acked) == (
        "     1.500 ms  AckGiven   instance=A1 client=desk publisher=7 session=3 sequences=(4,5) "
        "by=ack"
    )


def test_a_long_list_is_counted_and_a_wide_number_shortened() -> None:
    acked = AckGiven(0, "A1", "desk", 1 << 40 | 0xABCD, 1, tuple(range(20)), "ack")
    line = describe(acked)
    assert "sequences=(20 values)" in line
    assert "publisher=abcd" in line


def test_the_tail_of_a_history_is_its_last_operations() -> None:
    published = [MessagesPublished(us, "desk", 7, us, "t") for us in range(5)]
    history = RunHistory(Topology("pair", {}), list(published))
    assert [line.split("sequence=")[1][0] for line in history.tail(2).splitlines()] == ["3", "4"]
