"""The front log's bytes and decisions: whatever a crash or the disk leaves, what was acknowledged
is found, in order, and nothing else is taken for it."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from xxhash import xxh3_64_intdigest as checksum64

from raylay.storage.front_entries import (
    FILES,
    MAGIC,
    MARK,
    PAGE_BYTES,
    FrontEntry,
    FrontRecovery,
    FrontSpace,
    decode,
    encode,
    encode_into,
    pages_of,
    recover,
    scan,
)

pytestmark = pytest.mark.covers("Journal", "the front log: an entry's bytes")

FILE_BYTES = 16 * PAGE_BYTES
BLOCK_LENGTHS = [1, 300, 4039, 4040, 4041, 4096, 8128, 8129, 20_000]


def an_entry(number: int, first_txid: int, last_txid: int, generation: int = 1) -> FrontEntry:
    return FrontEntry(generation, number, first_txid, last_txid, f"block {first_txid}".encode())


def test_the_bytes_of_an_entry_are_these() -> None:
    block = bytes(range(200)) * 21
    made = encode(FrontEntry(3, 17, 1_000, 1_009, block))
    checked = struct.pack("<QQQQII", 3, 17, 1_000, 1_009, 4_200, 0)
    assert made[:8] == MAGIC == b"RAYFRNT1"
    assert made[8:16] == checksum64(block, seed=checksum64(checked)).to_bytes(8, "little")
    assert made[16:56] == checked
    assert made[56:4096] == block[:4040]
    assert made[4096:4104] == MARK == b"RAYFRNT+"
    assert made[4104:4264] == block[4040:]
    assert made[4264:] == bytes(8192 - 4264)


@pytest.mark.parametrize("length", BLOCK_LENGTHS)
def test_an_entry_comes_back(length: int) -> None:
    entry = FrontEntry(5, 6, 7, 8, random.Random(length).randbytes(length))
    made = encode(entry)
    assert len(made) == pages_of(length) * PAGE_BYTES
    assert decode(made, 0) == entry
    assert decode(bytes(PAGE_BYTES) + made, PAGE_BYTES) == entry


@pytest.mark.parametrize("length", BLOCK_LENGTHS)
def test_pages_that_held_another_entry_hold_nothing_of_it(length: int) -> None:
    block = random.Random(length).randbytes(length)
    pages = bytearray(b"x" * 6 * PAGE_BYTES)
    made = encode_into(memoryview(pages), 5, 6, 7, 8, block)
    assert pages[:made] == encode(FrontEntry(5, 6, 7, 8, block))


@pytest.mark.parametrize("length", BLOCK_LENGTHS)
def test_no_byte_may_differ(length: int) -> None:
    rng = random.Random(length)
    made = encode(FrontEntry(5, 6, 7, 8, rng.randbytes(length)))
    used = 56 + length + 8 * (pages_of(length) - 1)
    for at in {*range(min(60, used)), *(rng.randrange(used) for _ in range(50)), used - 1}:
        broken = bytearray(made)
        broken[at] ^= 1 << rng.randrange(8)
        assert decode(broken, 0) is None, at


@pytest.mark.parametrize("length", BLOCK_LENGTHS)
def test_no_page_may_be_missing_or_of_another_entry(length: int) -> None:
    made = encode(FrontEntry(5, 6, 7, 8, b"a" * length))
    other = encode(FrontEntry(5, 5, 6, 6, b"b" * length))
    for page in range(pages_of(length)):
        at = page * PAGE_BYTES
        for wrong in (bytes(PAGE_BYTES), other[at : at + PAGE_BYTES]):
            broken = made[:at] + wrong + made[at + PAGE_BYTES :]
            assert decode(broken, 0) in (None, decode(other, 0))
    assert decode(made[:-PAGE_BYTES], 0) is None


def test_a_client_cannot_forge_an_entry() -> None:
    """What it sends never begins a page."""
    forged = encode(FrontEntry(99, 1, 11, 20, b"forged"))
    for shift in range(0, PAGE_BYTES, 8):
        block = bytes(shift) + forged * 4
        made = encode(FrontEntry(1, 1, 1, 10, block))
        # The entry's own first page is overwritten by a later one.
        left = encode(an_entry(2, 11, 11)) + made[PAGE_BYTES:]
        assert scan(left) == [an_entry(2, 11, 11)]


def test_garbage_is_no_entry() -> None:
    rng = random.Random(1)
    for _ in range(200):
        content = bytearray(rng.randbytes(4 * PAGE_BYTES))
        for page in range(4):
            if rng.random() < 0.7:
                content[page * PAGE_BYTES : page * PAGE_BYTES + 8] = rng.choice([MAGIC, MARK])
        assert scan(content) == []


# -- what a restart makes of it ------------------------------------------------------------------
def test_what_follows_the_store_is_taken() -> None:
    entries = [an_entry(1, 1, 4), an_entry(2, 5, 5), an_entry(3, 6, 9)]
    assert recover([], 3) == FrontRecovery([], 1, 0)
    assert recover(reversed(entries), 0) == FrontRecovery(entries, 2, 0)
    assert recover(entries, 4) == FrontRecovery(entries[1:], 2, 0)
    assert recover(entries, 9) == FrontRecovery([], 2, 0)
    assert recover(entries, 20) == FrontRecovery([], 2, 0)


def test_an_entry_whose_predecessor_is_missing_is_not_taken_but_told() -> None:
    entries = [an_entry(1, 1, 4), an_entry(3, 6, 9)]
    assert recover(entries, 0) == FrontRecovery(entries[:1], 2, 4)
    assert recover(entries[1:], 4) == FrontRecovery([], 2, 4)


def test_a_number_is_missing_though_the_ids_fit() -> None:
    entries = [an_entry(1, 1, 4), an_entry(3, 5, 9)]
    assert recover(entries, 0) == FrontRecovery(entries[:1], 2, 4)


def test_only_the_newest_generation_counts() -> None:
    old = [an_entry(1, 1, 4), an_entry(2, 5, 9)]
    new = [an_entry(1, 5, 6, generation=2)]
    assert recover([*old, *new], 4) == FrontRecovery(new, 3, 0)
    assert recover([*old, *new], 6) == FrontRecovery([], 3, 0)


def test_a_failed_write_whose_ids_were_used_again_is_not_taken() -> None:
    """11 to 20 could not be written, or so it was told; 11 to 15 went to the store instead."""
    failed = an_entry(4, 11, 20)
    assert recover([failed], 15) == FrontRecovery([], 2, 0)


# -- where the next one goes ---------------------------------------------------------------------
def test_a_file_is_used_again_when_its_entries_are_in_the_store() -> None:
    space = FrontSpace(1, FILE_BYTES)
    numbers = []
    for _ in range(32):
        place = space.place(100)
        assert place is not None
        numbers.append((place.file, place.offset // PAGE_BYTES))
        space.written(100)
    assert numbers == [(0, page) for page in range(16)] + [(1, page) for page in range(16)]
    assert space.place(100) is None
    space.moved(15)
    assert space.place(100) is None, "one of its entries is not"
    space.moved(16)
    place = space.place(100)
    assert place is not None and (place.file, place.offset, place.number) == (0, 0, 33)


def test_a_retired_file_is_not_written_again_and_the_generation_is_another() -> None:
    space = FrontSpace(4, FILE_BYTES)
    space.written(100)
    assert space.place(100) is not None
    space.failed()
    assert space.place(100) is None, "the first entry is not in the store"
    space.moved(1)
    for _ in range(3):
        for page in range(16):
            place = space.place(100)
            assert place is not None
            assert (place.file, place.offset) == (1, page * PAGE_BYTES)
            assert place.generation == 5
            upto = space.written(100)
        assert space.place(100) is None
        space.moved(upto)
    space.failed()
    assert not space.is_usable
    space.moved(upto)
    assert space.place(100) is None


def test_what_is_larger_than_a_file_has_no_place() -> None:
    assert FrontSpace(1, FILE_BYTES).place(FILE_BYTES) is None


# -- all of it, by chance ------------------------------------------------------------------------
class Mistakes:
    """Planted: what each of them breaks, the fuzz must see."""

    reuses_early = False
    keeps_generation = False
    takes_gaps = False
    ignores_checksum = False
    reuses_unsynced = False
    goes_on_in_failed_file = False


MISTAKES = [name for name in vars(Mistakes) if not name.startswith("_")]


class Simulated:
    """A store and a front on a disk that tears, lives that end at any instant. What was told is
    compared with what the next life finds."""

    def __init__(self, rng: random.Random, mistakes: type[Mistakes]) -> None:
        self.rng = rng
        self.mistakes = mistakes
        self.files = [bytearray(FILE_BYTES) for _ in range(FILES)]
        self.store: list[tuple[int, int, bytes]] = []
        self.unsynced: list[tuple[int, int, bytes]] = []
        self.told: list[tuple[int, int, bytes]] = []
        self.content = 0
        self.damaged = False
        """Whether the disk lost a page of what it had synced."""
        self.may_be_damaged = True
        """Not where a write failed: two faults at once may bring back what was refused."""

    def live(self) -> None:
        rng, mistakes = self.rng, self.mistakes
        found = [entry for file in self.files for entry in self._scan(file)]
        end = self.store[-1][1] if self.store else 0
        recovery = recover(found, end)
        if mistakes.takes_gaps:
            newest = recovery.generation - 1
            behind = [e for e in found if e.generation == newest and e.first_txid > end]
            recovery = replace(recovery, entries=sorted(behind, key=lambda e: e.number))
        assert self.damaged or not recovery.lost_after_txid, "nothing was damaged"
        self.store += [(e.first_txid, e.last_txid, e.block) for e in recovery.entries]
        self._check()
        self.damaged = False
        generation = 1 if mistakes.keeps_generation else recovery.generation
        space = FrontSpace(generation, FILE_BYTES)
        if mistakes.reuses_early:
            space.moved(1 << 60)
        # What a crash left of an entry that was never told belongs to the log now.
        self.told = list(self.store)
        pending: list[tuple[int, int, bytes]] = []
        upto = 0
        for _ in range(rng.randrange(60)):
            at = (pending or self.store or [(0, 0, b"")])[-1][1] + 1
            self.content += 1
            block = f"{self.content} ".encode() * rng.choice([1, 20, 2_000])
            commit = (at, at + rng.choice([0, 0, 1, 5]), block)
            place = space.place(len(block))
            move = rng.random() < 0.1
            if place is None or move:
                if mistakes.reuses_unsynced:
                    self.unsynced = list(pending)
                self.store += pending
                pending = []
                space.moved(upto)
                if place is None:
                    self.store.append(commit)
                    self.told.append(commit)
                    self.unsynced.clear()
                    continue
                place = space.place(len(block))
                assert place is not None
            pages = encode(FrontEntry(place.generation, place.number, *commit))
            fate = rng.random()
            if fate < 0.06:
                self._write(place.file, place.offset, pages, torn=True)
                return self.crash()
            if fate < 0.12:
                self.may_be_damaged = False
                # It failed; what was staged is dropped, and its ids are used again.
                self._write(place.file, place.offset, pages, torn=rng.random() < 0.5)
                if mistakes.goes_on_in_failed_file:
                    space._number += 1
                else:
                    space.failed()
                if rng.random() < 0.5:
                    return self.crash()
                if not mistakes.goes_on_in_failed_file:
                    self.store += pending
                    pending = []
                    space.moved(upto)
                continue
            self._write(place.file, place.offset, pages)
            self.told.append(commit)
            pending.append(commit)
            upto = space.written(len(block))
            if fate > 0.97:
                return self.crash()
        self.crash()

    def crash(self) -> None:
        if self.unsynced:
            lost = self.rng.randrange(len(self.unsynced) + 1)
            gone = self.unsynced[len(self.unsynced) - lost :] if lost else []
            at = self.store.index(gone[0]) if gone else len(self.store)
            del self.store[at:]
            self.unsynced.clear()
        if self.may_be_damaged and self.rng.random() < 0.2:
            self.damaged = True
            at = self.rng.randrange(FILE_BYTES // PAGE_BYTES) * PAGE_BYTES
            self.files[self.rng.randrange(FILES)][at : at + PAGE_BYTES] = bytes(PAGE_BYTES)

    def _write(self, file: int, offset: int, pages: bytes, *, torn: bool = False) -> None:
        for at in range(0, len(pages), PAGE_BYTES):
            if not torn or self.rng.random() < 0.5:
                self.files[file][offset + at : offset + at + PAGE_BYTES] = pages[
                    at : at + PAGE_BYTES
                ]

    def _scan(self, content: bytearray) -> list[FrontEntry]:
        if not self.mistakes.ignores_checksum:
            return scan(content)
        found = []
        for at in range(0, FILE_BYTES, PAGE_BYTES):
            if content[at : at + 8] == MAGIC:
                fields = struct.unpack_from("<QQQQI", content, at + 16)
                raw = bytes(content[at : at + pages_of(fields[4]) * PAGE_BYTES])
                parts = [raw[56:PAGE_BYTES]]
                parts += [
                    raw[page + 8 : page + PAGE_BYTES]
                    for page in range(PAGE_BYTES, len(raw), PAGE_BYTES)
                ]
                found.append(FrontEntry(*fields[:4], b"".join(parts)[: fields[4]]))
        return found

    def _check(self) -> None:
        told = self.told[: len(self.store)] if self.damaged else self.told
        assert self.store[: len(told)] == told, "what was told is not there"
        more = self.store[len(self.told) :]
        assert len(more) <= 1, "more than the commit that was under way"
        expected = 1
        for first, last, block in self.store:
            assert first == expected
            assert len(set(block.split())) == 1 and block.endswith(b" "), "a block is torn"
            expected = last + 1


def lives(seed: int, mistakes: type[Mistakes] = Mistakes) -> None:
    simulated = Simulated(random.Random(seed), mistakes)
    for _ in range(12):
        simulated.live()


def test_nothing_told_is_lost_in_any_life() -> None:
    for seed in range(100):
        lives(seed)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_shows(name: str) -> None:
    planted = type("Planted", (Mistakes,), {name: True})
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(300):
            lives(seed, planted)
