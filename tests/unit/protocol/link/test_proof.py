"""A proof covers all that a logon says of the instance and of where others live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raylay.services.protocol.frames import FrameReader
from raylay.services.protocol.link.proof import PROOF_BYTES, is_proven, proof_of
from raylay.services.protocol.link.replication import UpstreamLogon, link_logon, read_link_logon
from raylay.services.replication.membership.placement import InstancePlacement

KEY = "the key of a fabric"
MOVED = {"B": InstancePlacement(3, "b:1", "b:2"), "A": InstancePlacement(1, "a:1", "a:2", 5)}
LOGON = UpstreamLogon("A", "g", 1, "h", "to-B", 2, bytes(64), generation=1, placements=MOVED)


def proven(**changed: Any) -> UpstreamLogon:
    logon = replace(LOGON, **changed)
    logon.proof = proof_of(KEY, logon)
    return logon


def test_a_golden_proof() -> None:
    assert proof_of(KEY, LOGON).hex() == "2d0c54cee26f3c87ee37291ea6c849c7"
    assert len(proof_of(KEY, LOGON)) == PROOF_BYTES


def test_what_goes_over_the_wire_is_proven_there() -> None:
    sent = proven()
    (frame,) = FrameReader().feed(link_logon(sent))
    read = read_link_logon(frame.header)
    assert read == sent and is_proven(KEY, read)
    assert not is_proven("another key", read) and not is_proven("", read)


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "C"},
        {"group": "h"},
        {"incarnation": 2},
        {"generation": 2},
        {"destination": "to-C"},
        {"epoch": 3},
        {"salvages": True},
        {"announces": True},
        {"placements": {}},
        {"placements": MOVED | {"B": InstancePlacement(3, "evil:1", "b:2")}},
        {"placements": MOVED | {"C": InstancePlacement(1, "evil:1", "evil:2")}},
        {"proof": b""},
        {"proof": bytes(PROOF_BYTES)},
    ],
)
def test_nothing_of_it_can_be_another(forged: dict[str, Any]) -> None:
    assert not is_proven(KEY, replace(proven(), **forged))


def test_without_a_key_nothing_is_proven() -> None:
    assert proof_of("", LOGON) == b""
    assert not is_proven("", LOGON) and not is_proven(KEY, LOGON)
