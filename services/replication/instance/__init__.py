"""The instance's replication machine; `machine.py` says what it is and what holds of it."""

from __future__ import annotations

from raylay.services.replication.instance.machine import InstanceMachine, MachineParts
from raylay.services.replication.notes import decode_note, encode_note
from raylay.services.replication.values import (
    Counters,
    Identity,
    LinkStart,
    LogonAnswer,
    UpstreamAnswer,
)

__all__ = [
    "Counters",
    "Identity",
    "InstanceMachine",
    "LinkStart",
    "LogonAnswer",
    "MachineParts",
    "UpstreamAnswer",
    "decode_note",
    "encode_note",
]
