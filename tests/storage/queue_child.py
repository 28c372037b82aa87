"""A process that saves one state of a queue behind the other, and is killed on the way.

Arguments: the file. Prints the transaction id of each state that is saved."""

from __future__ import annotations

import sys

from raylay.storage.queue import LmdbQueueStore, StoredQueue


def main() -> None:
    store = LmdbQueueStore(sys.argv[1])
    found = store.load()
    txid = found.txid if found is not None else 0
    while True:
        txid += 1
        store.save(StoredQueue(txid, b"rules", txid.to_bytes(8, "little") * (txid * 1_000)))
        print(txid, flush=True)


if __name__ == "__main__":
    main()
