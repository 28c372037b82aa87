"""Digests by which Raylay takes two things for the same one, where others choose what they are.

A digest that decides whose something is (a publisher's id, a record's key), or what two instances
hold, is BLAKE2b: nobody may choose one thing so that it passes for another. With XXH3 that takes no
time at all. Checksums stay XXH3 where only damage is to be found, in files of one's own and in
frames. Each purpose has a personalisation of its own, so that a digest of one is none of another.
"""

from __future__ import annotations

from hashlib import blake2b

SUM_BYTES = 64
_SUM_MASK = (1 << 8 * SUM_BYTES) - 1
DIGEST_BYTES = 16
"""The length of a digest. A value with a given digest takes 2^128 tries to find, two values with
the same digest 2^64."""
PUBLISHER = b"raylay-publisher"
SOW_KEY = b"raylay-sow-key"
SOW_BODY = b"raylay-sow-body"
SOW_RECORD = b"raylay-sow-rec"
HELD = b"raylay-held"
SUBSCRIPTION = b"raylay-bookmarks"
FILTER = b"raylay-filter"


def digest(data: bytes, purpose: bytes, size_bytes: int = DIGEST_BYTES) -> bytes:
    """The digest of some bytes.

    Args:
        purpose: one of those above; at most 16 bytes.
        size_bytes: of the digest, at most 64.
    """
    return blake2b(data, digest_size=size_bytes, person=purpose).digest()


def summand(data: bytes, purpose: bytes) -> int:
    """Returns what one value adds to the digest of a set: the sum of its members modulo 2^512.

    It has 512 bits, as sums give way more easily than digests: of many things one can choose some
    whose digests add up to a given value. With fewer bits that is quickly done, and with an
    exclusive or always.
    """
    return int.from_bytes(digest(data, purpose, SUM_BYTES), "little")


def summed(summands: int) -> bytes:
    """The digest of things whose summands add up to this; those taken away may be subtracted."""
    return (summands & _SUM_MASK).to_bytes(SUM_BYTES, "little")
