"""The number of messages that named readers lack: of their own topics, counted from headers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.journal_cases import a_run

from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Flag, Run
from raylay.services.subscriptions import reader_counts
from raylay.services.subscriptions.named_readers import NamedReader
from raylay.services.subscriptions.reader_counts import LackedMessages, ReaderCounts

pytestmark = pytest.mark.covers("Journal", "named readers that hold retention")

RUNS = (
    a_run(1, range(1, 11), topic="orders"),
    a_run(11, range(11, 111), topic="log"),
    a_run(111, [111, 113], topic="orders"),
    a_run(113, range(1, 4), publisher=8, topic="orders/eu"),
)


class Log:
    """A log of some runs, of which those below `first_txid` are removed."""

    def __init__(self, runs: Sequence[Run] = RUNS, first_txid: int = 1) -> None:
        self.runs = runs
        self.first_txid = first_txid
        self.headers_read = 0

    @property
    def last_txid(self) -> int:
        return self.runs[-1].last_txid

    def read_headers(self, after_txid: int, runs_max: int) -> list[Run]:
        assert after_txid >= self.first_txid - 1
        found = [each for each in self.runs if each.last_txid > after_txid][:runs_max]
        self.headers_read += len(found)
        return found

    def removed(self) -> PublisherRanges:
        return held(*(each for each in self.runs if each.last_txid < self.first_txid))


def held(*runs: Run) -> PublisherRanges:
    found = PublisherRanges()
    for run in runs:
        found.add_ranges(run.publisher, run.ranges())
    return found


def reader(topic: str, *have: Run, message_type: str = "", filter: str = "") -> NamedReader:
    return NamedReader(
        "lake", "", topic, held(*have), 60, 1, message_type=message_type, filter=filter
    )


def counted(log: Log, *readers: NamedReader, runs_max: int = 100) -> list[LackedMessages]:
    counts = ReaderCounts()
    counts.read(log, readers, runs_max)
    return [counts.lacked(each, held(*log.runs)) for each in readers]


def test_messages_of_other_topics_do_not_count() -> None:
    assert counted(
        Log(),
        reader("orders"),
        reader("orders", RUNS[0]),
        reader("orders", RUNS[0], RUNS[2]),
        reader("^orders"),
        reader("log", RUNS[0]),
        reader("nothing"),
        reader("orders", message_type="xml"),
    ) == [(12, False), (2, False), (0, False), (15, False), (100, False), (0, False), (0, False)]


def test_records_of_queues_and_a_pattern_that_is_none_do_not_count() -> None:
    acknowledgments = a_run(1, range(1, 5))
    acknowledgments.flags |= Flag.COMMANDS
    log = Log([acknowledgments, a_run(5, range(5, 7))])
    assert counted(log, reader("orders"), reader("orders(")) == [(2, False), (0, False)]


def test_a_filter_makes_an_upper_bound_but_of_nothing() -> None:
    wanted = "/price > 10"
    assert counted(
        Log(), reader("orders", filter=wanted), reader("orders", RUNS[0], RUNS[2], filter=wanted)
    ) == [(12, True), (0, False)]


def test_until_all_headers_are_read_a_number_is_an_upper_bound() -> None:
    log, lake = Log(), reader("orders", RUNS[0])
    counts = ReaderCounts()
    everything = held(*RUNS)
    assert counts.lacked(lake, everything) == (105, True), "all that the instance holds"
    found = []
    for _ in range(4):
        counts.read(log, [lake], 1)
        found.append(counts.lacked(lake, everything))
    assert found == [(105, True), (5, True), (5, True), (2, False)]
    counts.read(log, [lake], 100)
    assert log.headers_read == 4, "each header is read once"
    late = reader("log")
    counts.read(log, [lake, late], 100)
    assert counts.lacked(late, everything) == (100, False)


def test_what_retention_removed_is_lacked_no_more() -> None:
    log, lake = Log(), reader("orders")
    counts = ReaderCounts()
    counts.read(log, [lake], 100)
    log.first_txid = 11
    counts.read(log, [lake], 100)
    assert counts.lacked(lake, held(*RUNS)) == (2, False)
    assert counted(log, lake) == [(2, False)], "read from there on"


def test_above_its_memory_no_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_counts, "COUNTED_BYTES_MAX", 0)
    monkeypatch.setattr(reader_counts, "RUNS_AT_ONCE", 1)
    log = Log()
    assert counted(log, reader("orders")) == [(115, True)]
    assert log.headers_read == 1
