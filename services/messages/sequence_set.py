"""An exact set of sequences.

It is kept by chunks of 4,096 sequences: a stretch of full chunks as one range, every other chunk
that is not empty as a bitmap in a Python integer. A contiguous stream is one range and at most two
bitmaps of 512 bytes; a filter that passes every second one of 10 million sequences is 2,442
bitmaps, under 2 MB.

Each message passes through about ten of these sets, usually as a single message in one chunk:
operations on one chunk make no further call.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from raylay.services.errors import RemoteProtocolError

_BITS = 12
CHUNK = 1 << _BITS
_MASK = CHUNK - 1
_FULL = (1 << CHUNK) - 1

STRETCH_BYTES = 16
BITMAP_BYTES = 10 + CHUNK // 8
"""Encoded sizes of a stretch of full chunks, and of the largest partial chunk."""

SET_MEMORY_BYTES, STRETCH_MEMORY_BYTES, PART_MEMORY_BYTES = 400, 80, 140
"""Memory in Python of a set, of a stretch, and of a bitmap besides its bits."""

Range = tuple[int, int]
"""First and last sequence, both included."""


def _bits(first: int, last: int) -> int:
    return ((1 << (last - first + 1)) - 1) << first


class SequenceSet:
    """A set of sequences (integers from 0). All ranges are inclusive at both ends."""

    __slots__ = ("_full_ends", "_full_starts", "_part")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        # Full chunks as disjoint, non-touching stretches of chunk numbers [start, end).
        self._full_starts: list[int] = []
        self._full_ends: list[int] = []
        self._part: dict[int, int] = {}
        for first, last in ranges:
            self.add(first, last)

    # -- full chunks -------------------------------------------------------------------------
    def _is_full(self, chunk: int) -> bool:
        at = bisect_right(self._full_starts, chunk) - 1
        return at >= 0 and chunk < self._full_ends[at]

    def _add_full(self, start: int, end: int) -> None:
        starts, ends = self._full_starts, self._full_ends
        if ends and ends[-1] == start and starts[-1] <= start:
            # The stream's own next chunk, by far the most frequent case.
            ends[-1] = end
        else:
            low = bisect_right(ends, start - 1)
            high = bisect_right(starts, end)
            if low < high:
                start = min(start, starts[low])
                end = max(end, ends[high - 1])
            starts[low:high] = [start]
            ends[low:high] = [end]
        part = self._part
        if part:
            if end - start > len(part):
                for chunk in [chunk for chunk in part if start <= chunk < end]:
                    del part[chunk]
            else:
                for chunk in range(start, end):
                    part.pop(chunk, None)

    def _cut_full(self, start: int, end: int) -> None:
        starts, ends = self._full_starts, self._full_ends
        low = bisect_right(ends, start)
        high = low
        left: list[Range] = []
        while high < len(starts) and starts[high] < end:
            if starts[high] < start:
                left.append((starts[high], start))
            if ends[high] > end:
                left.append((end, ends[high]))
            high += 1
        if low < high:
            starts[low:high] = [pair[0] for pair in left]
            ends[low:high] = [pair[1] for pair in left]

    # -- changes -----------------------------------------------------------------------------
    def add(self, first: int, last: int) -> None:
        """Adds the sequences first..last."""
        low, high = first >> _BITS, last >> _BITS
        if low == high:
            bits = 1 << (first & _MASK)
            if first != last:
                bits = (bits << (last - first + 1)) - bits
            part = self._part
            present = part.get(low)
            if present is not None:
                bits |= present
            elif self._full_starts and self._is_full(low):
                return
            if bits != _FULL:
                part[low] = bits
                return
            part.pop(low, None)
            self._add_full(low, low + 1)
            return
        if first & _MASK:
            self._or(low, _bits(first & _MASK, _MASK))
            low += 1
        if last & _MASK != _MASK:
            self._or(high, _bits(0, last & _MASK))
            high -= 1
        if low <= high:
            self._add_full(low, high + 1)

    def _or(self, chunk: int, bits: int) -> None:
        if self._full_starts and self._is_full(chunk):
            return
        bits |= self._part.get(chunk, 0)
        if bits == _FULL:
            self._part.pop(chunk, None)
            self._add_full(chunk, chunk + 1)
        else:
            self._part[chunk] = bits

    def remove(self, first: int, last: int) -> None:
        """Removes the sequences first..last."""
        low, high = first >> _BITS, last >> _BITS
        if low == high:
            present = self._part.get(low)
            if present is None:
                if not (self._full_starts and self._is_full(low)):
                    return
                self._cut_full(low, low + 1)
                present = _FULL
            bits = 1 << (first & _MASK)
            if first != last:
                bits = (bits << (last - first + 1)) - bits
            present &= ~bits
            if present:
                self._part[low] = present
            else:
                self._part.pop(low, None)
            return
        if first & _MASK:
            self._and_not(low, _bits(first & _MASK, _MASK))
            low += 1
        if last & _MASK != _MASK:
            self._and_not(high, _bits(0, last & _MASK))
            high -= 1
        if low <= high:
            self._cut_full(low, high + 1)
            part = self._part
            if part:
                if high - low > len(part):
                    for chunk in [chunk for chunk in part if low <= chunk <= high]:
                        del part[chunk]
                else:
                    for chunk in range(low, high + 1):
                        part.pop(chunk, None)

    def take(self, first: int, last: int) -> list[Range]:
        """Removes the sequences first..last; returns those that were present, as `within` would."""
        chunk = first >> _BITS
        if chunk == last >> _BITS:
            present = self._part.get(chunk)
            if present is not None:
                bits = 1 << (first & _MASK)
                if first != last:
                    bits = (bits << (last - first + 1)) - bits
                found = present & bits
                if not found:
                    return []
                if found == bits:
                    if found == present:
                        del self._part[chunk]
                    else:
                        self._part[chunk] = present ^ bits
                    return [(first, last)]
        taken = self.within(first, last)
        for a, b in taken:
            self.remove(a, b)
        return taken

    def _and_not(self, chunk: int, bits: int) -> None:
        present = self._part.get(chunk)
        if present is None:
            if not (self._full_starts and self._is_full(chunk)):
                return
            self._cut_full(chunk, chunk + 1)
            present = _FULL
        present &= ~bits
        if present:
            self._part[chunk] = present
        else:
            self._part.pop(chunk, None)

    def update(self, other: SequenceSet) -> None:
        for start, end in zip(other._full_starts, other._full_ends, strict=True):
            self._add_full(start, end)
        for chunk, bits in other._part.items():
            self._or(chunk, bits)

    def difference_update(self, other: SequenceSet) -> None:
        for start, end in zip(other._full_starts, other._full_ends, strict=True):
            self.remove(start << _BITS, (end << _BITS) - 1)
        if len(other._part) <= 16 or self._full_starts:
            for chunk, bits in other._part.items():
                self._and_not(chunk, bits)
        else:
            for chunk in self._part.keys() & other._part.keys():
                self._and_not(chunk, other._part[chunk])

    def clear(self) -> None:
        self._full_starts.clear()
        self._full_ends.clear()
        self._part.clear()

    # -- questions ---------------------------------------------------------------------------
    def __bool__(self) -> bool:
        return bool(self._part) or bool(self._full_starts)

    def __contains__(self, sequence: int) -> bool:
        bits = self._part.get(sequence >> _BITS)
        if bits is not None:
            return bits >> (sequence & _MASK) & 1 == 1
        return bool(self._full_starts) and self._is_full(sequence >> _BITS)

    @property
    def count(self) -> int:
        """Returns the number of sequences. Not the length (`__len__`): `list` would reserve memory
        by that, for ranges whose width a foreign sender chooses."""
        full = sum(self._full_ends) - sum(self._full_starts)
        return full * CHUNK + sum(bits.bit_count() for bits in self._part.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceSet):
            return NotImplemented
        return (
            self._part == other._part
            and self._full_starts == other._full_starts
            and self._full_ends == other._full_ends
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        ranges = list(self)
        shown = ", ".join(f"{a}..{b}" if a != b else str(a) for a, b in ranges[:8])
        return f"SequenceSet({shown}{', …' if len(ranges) > 8 else ''})"

    def __iter__(self) -> Iterator[Range]:
        """Iterates over the set as inclusive ranges, ascending, as few as possible."""
        first = last = -2
        for low, high in self._stretches():
            if low == last + 1 and first >= 0:
                last = high
                continue
            if first >= 0:
                yield first, last
            first, last = low, high
        if first >= 0:
            yield first, last

    def _stretches(self) -> Iterator[Range]:
        at = 0
        starts, ends = self._full_starts, self._full_ends
        for chunk in sorted(self._part):
            while at < len(starts) and starts[at] < chunk:
                yield starts[at] << _BITS, (ends[at] << _BITS) - 1
                at += 1
            base = chunk << _BITS
            bits = self._part[chunk]
            offset = 0
            while bits:
                zeros = (bits & -bits).bit_length() - 1
                bits >>= zeros
                offset += zeros
                ones = (~bits & (bits + 1)).bit_length() - 1
                yield base + offset, base + offset + ones - 1
                bits >>= ones
                offset += ones
        while at < len(starts):
            yield starts[at] << _BITS, (ends[at] << _BITS) - 1
            at += 1

    def ranges(self) -> list[Range]:
        """Returns the set as inclusive ranges, ascending, as few as possible; faster where it is
        one range in one chunk, as in the answer for one message."""
        if len(self._part) == 1 and not self._full_starts:
            ((chunk, bits),) = self._part.items()
            low = (bits & -bits).bit_length() - 1
            ones = bits >> low
            if not ones & (ones + 1):
                base = chunk << _BITS
                return [(base + low, base + bits.bit_length() - 1)]
        return list(self)

    @property
    def pieces(self) -> int:
        """Returns the number of stretches of full chunks and of partial chunks: the cost of the
        set."""
        return len(self._full_starts) + len(self._part)

    def pieces_with(self, ranges: Iterable[Range]) -> int:
        """Returns the largest number of pieces that the set would have after these ranges were
        added."""
        fresh: set[int] = set()
        stretches = 0
        for first, last in ranges:
            low, high = first >> _BITS, last >> _BITS
            stretches += high - low > 1
            for chunk in (low, high):
                if chunk not in self._part and not self._is_full(chunk):
                    fresh.add(chunk)
        return self.pieces + stretches + len(fresh)

    def first(self) -> int | None:
        """Returns the lowest sequence; None: the set is empty."""
        found = None
        if self._part:
            chunk = min(self._part)
            bits = self._part[chunk]
            found = (chunk << _BITS) + (bits & -bits).bit_length() - 1
        if self._full_starts:
            full = self._full_starts[0] << _BITS
            if found is None or full < found:
                found = full
        return found

    def last(self) -> int | None:
        """Returns the highest sequence; None: the set is empty."""
        found = None
        if self._part:
            chunk = max(self._part)
            found = (chunk << _BITS) + self._part[chunk].bit_length() - 1
        if self._full_ends:
            full = (self._full_ends[-1] << _BITS) - 1
            if found is None or full > found:
                found = full
        return found

    def _chunk_bits(self, chunk: int) -> int:
        bits = self._part.get(chunk)
        if bits is not None:
            return bits
        return _FULL if self._full_starts and self._is_full(chunk) else 0

    def touches(self, first: int, last: int) -> bool:
        """Returns whether at least one of first..last is in the set."""
        low, high = first >> _BITS, last >> _BITS
        if low == high:
            present = self._part.get(low)
            if present is None:
                return bool(self._full_starts) and self._is_full(low)
            return present >> (first & _MASK) & ((1 << (last - first + 1)) - 1) != 0
        if self._chunk_bits(low) & _bits(first & _MASK, _MASK):
            return True
        if self._chunk_bits(high) & _bits(0, last & _MASK):
            return True
        if high - low > 1:
            at = bisect_right(self._full_ends, low + 1)
            if at < len(self._full_starts) and self._full_starts[at] < high:
                return True
            if high - low - 1 > len(self._part):
                return any(low < chunk < high for chunk in self._part)
            return any(chunk in self._part for chunk in range(low + 1, high))
        return False

    def covers(self, first: int, last: int) -> bool:
        """Returns whether all of first..last are in the set."""
        low, high = first >> _BITS, last >> _BITS
        if low == high:
            bits = _bits(first & _MASK, last & _MASK)
            return self._chunk_bits(low) & bits == bits
        bits = _bits(first & _MASK, _MASK)
        if self._chunk_bits(low) & bits != bits:
            return False
        bits = _bits(0, last & _MASK)
        if self._chunk_bits(high) & bits != bits:
            return False
        if high - low > 1:
            at = bisect_right(self._full_starts, low + 1) - 1
            return at >= 0 and self._full_ends[at] >= high
        return True

    def within(self, first: int, last: int) -> list[Range]:
        """Returns the sequences of first..last that are in the set, as ranges."""
        low, high = first >> _BITS, last >> _BITS
        if low == high:
            present = self._part.get(low)
            if present is None:
                full = self._full_starts and self._is_full(low)
                return [(first, last)] if full else []
            wanted = (1 << (last - first + 1)) - 1
            found = present >> (first & _MASK) & wanted
            if not found:
                return []
            if found == wanted:
                return [(first, last)]
        elif not self.touches(first, last):
            return []
        elif self.covers(first, last):
            return [(first, last)]
        part = SequenceSet()
        if high - low <= len(self._part) + 2 * len(self._full_starts):
            for chunk in range(low, high + 1):
                bits = self._chunk_bits(chunk)
                if bits:
                    part._or(chunk, bits)
        else:
            for chunk, bits in self._part.items():
                if low <= chunk <= high:
                    part._part[chunk] = bits
            for start, end in zip(self._full_starts, self._full_ends, strict=True):
                if start <= high and end > low:
                    part._add_full(max(start, low), min(end, high + 1))
        return [(max(a, first), min(b, last)) for a, b in part if b >= first and a <= last]

    def first_within(self, first: int, last: int) -> int | None:
        """Returns the lowest sequence of first..last that is in the set; None: none is."""
        if not self.touches(first, last):
            return None
        while first < last:
            middle = (first + last) // 2
            if self.touches(first, middle):
                last = middle
            else:
                first = middle + 1
        return first

    def missing(self, first: int, last: int) -> list[Range]:
        """Returns the sequences of first..last that are not in the set, as ranges."""
        found: list[Range] = []
        at = first
        for a, b in self.within(first, last):
            if a > at:
                found.append((at, a - 1))
            at = b + 1
        if at <= last:
            found.append((at, last))
        return found

    @property
    def memory_bytes(self) -> int:
        """Returns an estimate of the memory that the set takes."""
        bits = sum([each.bit_length() for each in self._part.values()])
        stretches = STRETCH_MEMORY_BYTES * len(self._full_starts)
        return SET_MEMORY_BYTES + stretches + PART_MEMORY_BYTES * len(self._part) + bits // 7

    def copy(self) -> SequenceSet:
        """Returns an independent set with the same content."""
        other = SequenceSet()
        other._full_starts = self._full_starts.copy()
        other._full_ends = self._full_ends.copy()
        other._part = self._part.copy()
        return other

    def intersection(self, other: SequenceSet) -> SequenceSet:
        """Returns the sequences that are in both sets."""
        outside = self.copy()
        outside.difference_update(other)
        inside = self.copy()
        inside.difference_update(outside)
        return inside

    # -- bytes -------------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        """Returns a compact form: ranges or bitmaps, whichever is smaller, for each chunk.

        u32 number of full stretches, u32 of partial chunks; per stretch u64 start, u64 end; per
        chunk u64 number, u16 count of ranges or 0xFFFF for a bitmap, then u16 pairs or 512 bytes.
        """
        out = [struct.pack("<II", len(self._full_starts), len(self._part))]
        for start, end in zip(self._full_starts, self._full_ends, strict=True):
            out.append(struct.pack("<QQ", start, end))
        for chunk in sorted(self._part):
            bits = self._part[chunk]
            # A range takes 4 bytes: with 128 ranges the bitmap is as small.
            edges = (bits ^ (bits << 1)).bit_count() // 2 + 1
            if edges >= 128:
                out.append(struct.pack("<QH", chunk, 0xFFFF))
                out.append(bits.to_bytes(CHUNK // 8, "little"))
                continue
            if edges == 2:
                # One range: the usual case where sequences lie far apart.
                low = (bits & -bits).bit_length() - 1
                out.append(struct.pack("<QHHH", chunk, 1, low, bits.bit_length() - 1))
                continue
            single = SequenceSet()
            single._part[0] = bits
            pairs = list(single)
            out.append(struct.pack("<QH", chunk, len(pairs)))
            out.extend(struct.pack("<HH", a, b) for a, b in pairs)
        return b"".join(out)

    def parts(self, bytes_max: int) -> Iterator[bytes]:
        """Yields the set in several pieces of bytes, each the bytes of a set, of about `bytes_max`
        or less, except for one larger bitmap. Together they are the set."""
        size_bytes = STRETCH_BYTES * len(self._full_starts) + BITMAP_BYTES * len(self._part)
        if size_bytes <= bytes_max:
            yield self.to_bytes()
            return
        entries_max = max(1, bytes_max // STRETCH_BYTES)
        for at in range(0, len(self._full_starts), entries_max):
            piece = SequenceSet()
            piece._full_starts = self._full_starts[at : at + entries_max]
            piece._full_ends = self._full_ends[at : at + entries_max]
            yield piece.to_bytes()
        piece, size_bytes = SequenceSet(), 0
        for chunk in sorted(self._part):
            bits = self._part[chunk]
            piece._part[chunk] = bits
            size_bytes += 10 + min(2 * (bits ^ (bits << 1)).bit_count(), CHUNK // 8)
            if size_bytes >= bytes_max:
                yield piece.to_bytes()
                piece, size_bytes = SequenceSet(), 0
        if piece:
            yield piece.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> SequenceSet:
        """Reads a set from the bytes that `to_bytes` returns. Stretches and chunks must ascend, as
        `to_bytes` writes them: in another order they would cost the square of their number.

        Raises:
            RemoteProtocolError: the bytes are no sequence set.
        """
        made = cls()
        try:
            full, parts = struct.unpack_from("<II", data)
            at = 8
            last = -1
            for _ in range(full):
                start, end = struct.unpack_from("<QQ", data, at)
                at += 16
                if not last < start < end <= 1 << 52:
                    raise ValueError("stretch")
                made._add_full(start, end)
                last = end
            last = -1
            for _ in range(parts):
                chunk, pairs = struct.unpack_from("<QH", data, at)
                at += 10
                if not last < chunk < 1 << 52 or not pairs:
                    raise ValueError("chunk")
                last = chunk
                if pairs == 0xFFFF:
                    bits = int.from_bytes(data[at : at + CHUNK // 8], "little")
                    if len(data) < at + CHUNK // 8 or not bits:
                        raise ValueError("bitmap")
                    made._or(chunk, bits)
                    at += CHUNK // 8
                    continue
                for _ in range(pairs):
                    a, b = struct.unpack_from("<HH", data, at)
                    at += 4
                    if not a <= b <= _MASK:
                        raise ValueError("pair")
                    made._or(chunk, _bits(a, b))
            if at != len(data):
                raise ValueError("trailing bytes")
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"bytes are no sequence set: {error}", "bad_ranges") from None
        return made
