"""Run as a process by the crash test: commits `expected` states of three topics until it is
killed.

    sow_child.py FILE

Prints `committed <txid>` after each commit, and nothing before that.
"""

from __future__ import annotations

import os
import sys
from hashlib import blake2b

from raylay.storage import sow_blocks
from raylay.storage.sow import LmdbSowStore

KEYS = 40
BLOCK_BYTES, DEAD_BYTES_MIN = 3_000, 5_000
"""Sizes by which every few commits merge blocks and give up dead ones."""
DELETED_EVERY = 7


def change(txid: int) -> tuple[bytes, bytes | None]:
    """What a transaction does to a topic."""
    key = b"v%d" % (txid * 31 % KEYS)
    return key, None if txid % DELETED_EVERY == 0 else b"%d" % txid * 100


def made(key: bytes) -> bytes:
    """The entry of a record with a generated key."""
    return b"v" + blake2b(key, digest_size=16).hexdigest().encode()


def expected(txid: int) -> dict[bytes, bytes]:
    """The entries of a topic that is valid for a transaction."""
    entries: dict[bytes, bytes] = {}
    for each in range(1, txid + 1):
        key, value = change(each)
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
    return entries


def main(path: str) -> None:
    sow_blocks.BLOCK_BYTES, sow_blocks.DEAD_BYTES_MIN = BLOCK_BYTES, DEAD_BYTES_MIN
    sow_blocks.SMALL_BLOCKS_MAX, sow_blocks.MERGED_AT_ONCE = 6, 4
    store = LmdbSowStore(path, cache_bytes_max=10_000)
    txid = store.topic("orders").txid
    while True:
        batch = range(txid + 1, txid + 1 + txid % 5 + 1)
        changes = dict(change(each) for each in batch)
        txid = batch[-1]
        blocks = {made(key): value for key, value in changes.items()}
        # The last topic has nothing but the transaction.
        store.commit({"orders": (changes, txid), "made": (blocks, txid), "quiet": ({}, txid)})
        os.write(1, f"committed {txid}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
