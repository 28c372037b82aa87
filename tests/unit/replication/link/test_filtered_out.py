"""What a link's filters left out is not read again: not at a reconnect, not after a restart, not
what its instance sent in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.replication.link.test_content import OWN, B, P, Words, rule, run, to

from raylay.services.errors import StorageError
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import Run
from raylay.services.processes.link.filtered_out_store import FilteredOutStore
from raylay.services.protocol.child import control
from raylay.services.protocol.frames import first_frame
from raylay.services.replication.acknowledgment import RootedRanges
from raylay.services.replication.effects import SendBatch
from raylay.services.replication.link import filtered_out
from raylay.services.replication.link.filtered_out import STRETCH, FilteredOut
from raylay.services.replication.link.outbound import OutboundLink
from raylay.services.replication.values import LinkStart
from raylay.storage.memory_journal import MemoryJournal

pytestmark = pytest.mark.covers("Replication", "a link judges nothing a second time")

RULES = ((".*", "*", "eu"),)


def left_out(*ranges: tuple[int, int], number: int = 0) -> FilteredOut:
    made = FilteredOut()
    found = PublisherRanges()
    found.add_ranges(P, list(ranges))
    made.update(number, found)
    return made


def held(*ranges: tuple[int, int]) -> PublisherRanges:
    found = PublisherRanges()
    found.add_ranges(P, list(ranges))
    return found


# -- what it says ------------------------------------------------------------------------------
def test_what_is_held_or_left_out_is_settled() -> None:
    made = left_out((2, 2), (4, 6))
    for ranges, settled in (
        ([(1, 6)], True),
        ([(1, 7)], False),
        ([(2, 2)], True),
        ([(3, 3)], True),
    ):
        assert made.settles(held((1, 1), (3, 3)), 1, 9, P, ranges) == settled
    assert made.settles(None, 1, 9, P, [(4, 6)]) and not made.settles(None, 1, 9, P, [(3, 6)])
    assert not made.settles(None, 1, 9, P + 1, [(4, 6)])
    assert FilteredOut().settles(held((1, 3)), 1, 9, P, [(1, 3)])
    assert not FilteredOut().settles(None, 1, 9, P, [(1, 3)])


def test_a_segment_may_reach_into_the_next_stretch() -> None:
    made = left_out((1, 2))
    made.update(1, held((3, 4)))
    assert made.settles(None, 1, STRETCH, P, [(1, 4)])
    assert not made.settles(None, 1, STRETCH - 1, P, [(1, 4)])


def test_it_goes_with_what_is_removed() -> None:
    made = left_out((1, 2))
    made.update(1, held((3, 4)))
    assert [number for number, _ in made.changed()] == [0, 1] and not list(made.changed())
    made.forget(STRETCH - 1)
    assert not list(made.changed())
    made.forget(STRETCH)
    assert list(made.changed()) == [(0, None)]
    assert not made.settles(None, 1, 9, P, [(1, 2)]) and made
    assert list(made.taken()) == [1] and not made


# -- a link ------------------------------------------------------------------------------------
class Log:
    """A journal of which every second message passes, in sealed segments and a live one, and one
    life after the other of a link that reads it as its process does."""

    def __init__(self, count: int = 400) -> None:
        self.journal = MemoryJournal(2_000)
        self.count = 0
        self.there = PublisherRanges()
        self.append(count)

    def append(self, count: int) -> None:
        for number in range(self.count + 1, self.count + count + 1, 10):
            made = run(*["eu", "us"] * 5, first=number, txid=number)
            self.journal.stage(made)
            self.journal.commit()
        self.count += count

    def connect(self, link: OutboundLink) -> int:
        """A connection: it catches up. Returns how many records were read with their payloads."""
        nothing = RootedRanges()
        start = LinkStart(False, nothing, nothing, OWN, self.count)
        link.connected(B, self.there.copy(), start, self.journal.first_txid)
        read = 0
        while link.wants:
            link.skip_segments(self.journal.segment_summaries())
            headers = self.journal.read_headers(link.cursor, 20)
            if headers and link.skip_headers(headers):
                continue
            runs: list[Run] = self.journal.read(link.cursor, 500)
            read += sum(each.count for each in runs)
            for effect in link.take(runs):
                if isinstance(effect, SendBatch):
                    for each in effect.runs:
                        self.there.add_ranges(each.publisher, each.ranges())
                    link.acked(effect.number, {}, {}, {})
        assert link.stored_txid == self.count
        assert list(self.there.of(P)) == [(n, n) for n in range(1, self.count, 2)]
        link.disconnected()
        return read


def a_link() -> OutboundLink:
    return OutboundLink(to(rule("eu"), sync=False), filters=Words())


def test_a_reconnect_reads_no_payload_again() -> None:
    log, link = Log(), a_link()
    assert log.connect(link) == 400
    assert log.connect(link) == 0, "by segments and headers"
    log.append(20)
    assert log.connect(link) == 20


def test_what_the_destination_lost_is_read_and_sent_again() -> None:
    log, link = Log(), a_link()
    log.connect(link)
    log.there.remove_ranges(P, [(101, 101)])
    assert 0 < log.connect(link) <= 40


def test_a_restart_reads_no_payload_again(tmp_path: Path) -> None:
    log, link = Log(), a_link()
    kept = FilteredOutStore(tmp_path, "to-b", RULES)
    kept.load(link.beside)
    assert log.connect(link) == 400
    kept.save(link.beside)
    kept.close()
    for name, rules, read in (("to-b", RULES, 0), ("to-c", RULES, 400), ("to-b", (), 400)):
        again = a_link()
        kept = FilteredOutStore(tmp_path, name, rules)
        kept.load(again.beside)
        assert log.connect(again) == read
        # What was judged by other filters is gone for good.
        kept.close()


def test_what_is_removed_from_the_journal_is_removed_there(tmp_path: Path) -> None:
    kept = FilteredOutStore(tmp_path, "to-b", RULES)
    kept.load(made := FilteredOut())
    made.update(0, held((1, 9)))
    made.update(1, held((11, 19)))
    kept.save(made)
    made.forget(STRETCH)
    kept.save(made)
    kept.close()
    kept = FilteredOutStore(tmp_path, "to-b", RULES)
    kept.load(again := FilteredOut())
    kept.close()
    assert list(again.taken()) == [1]


def test_a_damaged_file_is_told_by_its_name(tmp_path: Path) -> None:
    kept = FilteredOutStore(tmp_path, "to-b", RULES)
    kept.close()
    (file,) = [path for path in tmp_path.iterdir() if not path.name.endswith("-lock")]
    file.write_bytes(b"x" * 10_000)
    with pytest.raises(StorageError, match=file.name):
        FilteredOutStore(tmp_path, "to-b", RULES)


def test_what_an_instance_sent_in_its_place_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_out, "STRETCH", 100)
    log, link = Log(), a_link()
    log.connect(link)
    direct = a_link()
    direct.is_connected = True
    log.append(200)
    for each in log.journal.read(400, 1 << 20):
        direct.told(each.last_txid)
        for effect in direct.take([each]):
            assert isinstance(effect, SendBatch)
            for part in effect.runs:
                log.there.add_ranges(part.publisher, part.ranges())
    told = [control.beside(number, ranges) for number, ranges in direct.beside.taken().items()]
    assert len(told) == 2
    for frame in told:
        found = first_frame(frame, control.CONTROL_FRAME_BYTES_MAX)
        assert found is not None
        link.beside.update(*control.read_beside(*found[0]))
    assert log.connect(link) == 0
