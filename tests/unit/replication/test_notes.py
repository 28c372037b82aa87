"""WAITER notes, byte for byte."""

from __future__ import annotations

from raylay.services.messages.ranges import SequenceSet
from raylay.services.messages.records import Kind
from raylay.services.replication.notes import decode_note, encode_note


def test_a_note_names_the_root_then_the_sender_then_the_set() -> None:
    run = encode_note(0x0102, 0x0304, 9, [(2, 3), (7, 7)])
    assert (run.publisher, run.first_sequence, run.last_sequence) == (9, 2, 7)
    assert run.kind == Kind.WAITER and run.count == 1 and run.flags == 0
    fields = b"\x02\x01\0\0\0\0\0\0" + b"\x04\x03\0\0\0\0\0\0"
    assert run.payload == fields + SequenceSet([(2, 3), (7, 7)]).to_bytes()
    assert decode_note(run) == (0x0102, 0x0304, [(2, 3), (7, 7)])
