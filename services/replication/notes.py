"""WAITER notes: journal entries that say who waits for messages that were here before.

payload: root u64, sender's incarnation u64 (0: a client), both little-endian, then the set
"""

from __future__ import annotations

import struct

from raylay.services.messages.ranges import Range, SequenceSet
from raylay.services.messages.records import Kind, Run

_NOTE = struct.Struct("<QQ")


def encode_note(root: int, sender: int, publisher: int, ranges: list[Range]) -> Run:
    """Returns a WAITER note, a journal entry that no client published."""
    payload = _NOTE.pack(root, sender) + SequenceSet(ranges).to_bytes()
    return Run(publisher, ranges[0][0], ranges[-1][1], 1, payload, flags=0, kind=int(Kind.WAITER))


def decode_note(run: Run) -> tuple[int, int, list[Range]]:
    root, sender = _NOTE.unpack_from(run.payload)
    return root, sender, list(SequenceSet.from_bytes(run.payload[_NOTE.size :]))
