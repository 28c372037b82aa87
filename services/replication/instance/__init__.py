"""The instance's replication machine; `machine.py` says what it is and what holds of it."""

from __future__ import annotations

from raylay.services.replication.instance.machine import (
    Counters,
    Identity,
    InstanceMachine,
    LinkStart,
    LogonAnswer,
    UpstreamAnswer,
    decode_note,
    encode_note,
)

__all__ = [
    "Counters",
    "Identity",
    "InstanceMachine",
    "LinkStart",
    "LogonAnswer",
    "UpstreamAnswer",
    "decode_note",
    "encode_note",
]
