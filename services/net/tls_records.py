"""Counts the TLS records in a stream, without looking into them."""

from __future__ import annotations

HEADER_BYTES = 5
RECORDS_AT_ONCE = 64
"""Most records in one slice. Bounds the time that records without data can take before they are
counted: a key update takes some 20 µs."""


class TlsRecordCounter:
    """Finds where records end. Owner: one connection; given its bytes in order, from the first byte
    of a record."""

    def __init__(self) -> None:
        self._header = b""
        """The part of the next header that has arrived."""
        self._missing_bytes = 0
        """Bytes until the end of the record that has begun."""

    def slices(self, data: bytes) -> list[tuple[int, int]]:
        """Returns slices of the data, each as (its end, number of records that end in it)."""
        before = self._header
        whole = before + data if before else data
        size, shift = len(whole), len(before)
        at, count = self._missing_bytes, 0
        if at > size:
            self._missing_bytes = at - size
            return [(size, 0)]
        if at:
            count = 1
        found: list[tuple[int, int]] = []
        self._header, self._missing_bytes = b"", 0
        while at + HEADER_BYTES <= size:
            end = at + HEADER_BYTES + (whole[at + 3] << 8 | whole[at + 4])
            if end > size:
                self._missing_bytes = end - size
                break
            at = end
            count += 1
            if count >= RECORDS_AT_ONCE:
                found.append((at - shift, count))
                count = 0
        else:
            self._header = whole[at:]
        found.append((size - shift, count))
        return found
