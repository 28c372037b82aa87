"""The proof that a link's logon comes from an instance of the same fabric.

Anybody who reaches a replication transport could claim that an instance was moved, which ends the
instance for good. So this claim counts only from instances that prove that they belong to the
fabric: the fabric's record has a key, which the driver gives to every instance and which is never
sent. A proof is a keyed hash over the logon, including its epoch: 16 bytes, BLAKE2b.

An instance without a key ignores this claim from those that connect to it. It believes servers that
it dialled itself, at an address of its own configuration.
"""

from __future__ import annotations

import hashlib
import hmac

import msgpack

from raylay.services.protocol.link.replication import UpstreamLogon
from raylay.services.replication.membership.placement import to_wire

PROOF_BYTES = 16
_pack = msgpack.Packer(use_bin_type=True).pack


def proof_of(key: str, logon: UpstreamLogon) -> bytes:
    """Returns the proof of a logon; empty without a key."""
    if not key:
        return b""
    words = (
        ("raylay logon", logon.name, logon.group, logon.incarnation, logon.generation),
        (logon.destination, logon.epoch, logon.salvages, logon.announces),
        to_wire(logon.placements),
    )
    secret = hashlib.sha256(key.encode()).digest()
    return hashlib.blake2b(_pack(words), key=secret, digest_size=PROOF_BYTES).digest()


def is_proven(key: str, logon: UpstreamLogon) -> bool:
    """Returns whether the logon was made by a holder of the key."""
    return bool(key) and hmac.compare_digest(logon.proof, proof_of(key, logon))
