"""Proof that a link's logon is of an instance of the same fabric.

Whoever reaches a replication transport can say that an instance was moved, and that ends the
instance for good. So it counts only from those who prove that they belong to the fabric: its record
has a key, which the driver gives to every instance and which is never sent. A proof is a keyed hash
of what the logon says, its epoch among it: 16 bytes, BLAKE2b.

An instance that was given no key believes none of this from those that connect to it. What is told
by a server that it dialled itself, at an address of its own configuration, it believes as before.
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
    """The proof of a logon; nothing without a key."""
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
    """Returns whether the logon was made by somebody who has the key."""
    return bool(key) and hmac.compare_digest(logon.proof, proof_of(key, logon))
