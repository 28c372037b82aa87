"""Digests that tell things apart whose content others choose.

Where a digest decides who owns something (a publisher's id, a record's key), or what two instances
hold, it is BLAKE2b, so that nobody can craft one thing to pass for another. With XXH3 that would
take no time at all. Checksums against damage, in own files and in frames, stay XXH3. Each purpose
has a personalisation of its own, so that a digest for one purpose is never valid for another.
"""

from __future__ import annotations

from hashlib import blake2b

SUM_BYTES = 64
_SUM_MASK = (1 << 8 * SUM_BYTES) - 1
DIGEST_BYTES = 16
"""Length of a digest in bytes. Finding a value with a given digest takes 2^128 tries; finding two
values with the same digest takes 2^64."""
PUBLISHER = b"raylay-publisher"
PUBLISHER_NAME = b"raylay-name"
PUBLISHER_NAMES = b"raylay-names"
SOW_KEY = b"raylay-sow-key"
SOW_BODY = b"raylay-sow-body"
SOW_RECORD = b"raylay-sow-rec"
HELD = b"raylay-held"
SUBSCRIPTION = b"raylay-bookmarks"
FILTER = b"raylay-filter"


def digest(data: bytes, purpose: bytes, size_bytes: int = DIGEST_BYTES) -> bytes:
    """Returns the digest of some bytes.

    Args:
        purpose: one of the purposes above; at most 16 bytes.
        size_bytes: length of the digest, at most 64.
    """
    return blake2b(data, digest_size=size_bytes, person=purpose).digest()


def summand(data: bytes, purpose: bytes) -> int:
    """Returns the number that one value adds to the digest of a set, which is the sum over its
    members modulo 2^512.

    Sums are easier to attack than digests: with many values to choose from, some can be chosen
    whose digests add up to a given value. With fewer than 512 bits this is done quickly, and with
    an exclusive-or always.
    """
    return int.from_bytes(digest(data, purpose, SUM_BYTES), "little")


def summed(summands: int) -> bytes:
    """Returns the digest of a set whose members' summands add up to this. The summands of removed
    members may be subtracted."""
    return (summands & _SUM_MASK).to_bytes(SUM_BYTES, "little")
