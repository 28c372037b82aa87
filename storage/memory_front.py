"""A front log in memory for the simulator: the same bytes and decisions, on pages that a test may
tear.

So a crash between the write of the front log and that of the store, or in the middle of a write,
leaves what front_entries.py has to recover from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylay.services.messages.records import Run, decode_run
from raylay.storage.front_entries import (
    FILES,
    PAGE_BYTES,
    FrontEntry,
    FrontPlace,
    FrontSpace,
    encode,
    recover,
    scan,
)

FILE_PAGES = 2
"""Number of pages of each file: so few that a short simulation reuses the files."""


class MemoryFront:
    """The two files of a front log, and the commits that are not in the store yet.

    Owner: a MemoryJournal, and after its crash the next one. Lifecycle: `recover` begins a life.

    Args:
        tears: returns for each page of an interrupted write whether the page was written; None: no
            page was.
    """

    space_of: type[FrontSpace] = FrontSpace

    def __init__(self, tears: Callable[[], bool] | None = None) -> None:
        self.tears = tears or (lambda: False)
        self._files = [bytearray(FILE_PAGES * PAGE_BYTES) for _ in range(FILES)]
        self._written = 0
        self._begin(1)

    def _begin(self, generation: int) -> None:
        self._space = self.space_of(generation, FILE_PAGES * PAGE_BYTES)
        self._written = 0

    def entries(self) -> list[FrontEntry]:
        return [entry for content in self._files for entry in scan(bytes(content))]

    def recover(self, stored_txid: int) -> list[Run]:
        """Returns the runs that a restart finds behind the end of the store; the caller stores
        them."""
        # Where something is lost it goes on with what is sound: the laws see what was lost.
        found = recover(self.entries(), stored_txid)
        self._begin(found.generation)
        runs = []
        for entry in found.entries:
            offset = 0
            while offset < len(entry.block):
                run = decode_run(entry.block, offset)
                assert run.raw is not None
                runs.append(run)
                offset += len(run.raw)
        return runs

    def take(self, runs: Sequence[Run]) -> bool:
        """Makes a commit durable. Returns whether there was room for it."""
        placed = self._pages(runs)
        if placed is None:
            if not self._space.is_usable and self._space.holds_nothing:
                self._begin(self._space.generation + 1)
            return False
        place, pages, block_bytes = placed
        self._files[place.file][place.offset : place.offset + len(pages)] = pages
        self._written = self._space.written(block_bytes)
        return True

    def tear(self, runs: Sequence[Run]) -> None:
        """Interrupts the write of this commit, as a crash or an error does."""
        placed = self._pages(runs)
        if placed is None:
            return
        place, pages, _ = placed
        for at in range(0, len(pages), PAGE_BYTES):
            if self.tears():
                begin = place.offset + at
                page = pages[at : at + PAGE_BYTES]
                self._files[place.file][begin : begin + PAGE_BYTES] = page

    def failed(self, runs: Sequence[Run]) -> None:
        """Notes that the write of this commit failed: its transaction ids will be used again."""
        if self._pages(runs) is not None:
            self.tear(runs)
            self._space.failed()

    def moved(self) -> None:
        self._space.moved(self._written)

    def _pages(self, runs: Sequence[Run]) -> tuple[FrontPlace, bytes, int] | None:
        block = b"".join(run.encode() for run in runs)
        place = self._space.place(len(block))
        if place is None:
            return None
        first_txid, last_txid = runs[0].first_txid, runs[-1].last_txid
        entry = FrontEntry(place.generation, place.number, first_txid, last_txid, block)
        return place, encode(entry), len(block)

    def copied(self) -> MemoryFront:
        """Returns another front log with the same pages."""
        other = type(self)(self.tears)
        other._files = [bytearray(content) for content in self._files]
        return other
