"""services/messages/types/binary.py, abilities.py: bytes without fields."""

from __future__ import annotations

import pytest

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.abilities import Ability
from raylay.services.messages.types.binary import Binary

pytestmark = [
    pytest.mark.covers("Message types", "every type against hand-written bodies"),
    pytest.mark.covers("Message types", "which types know no deltas"),
]


def test_everything_is_refused_with_what_to_do() -> None:
    binary = Binary()
    for act in (
        lambda: binary.parse(b"x"),
        lambda: binary.serialize({}),
        lambda: binary.merge(b"x", b"y"),
        lambda: binary.difference(b"x", b"y"),
    ):
        with pytest.raises(MessageTypeError, match=r"type binary cannot .*: publish them whole"):
            act()
    assert set(binary.lacks) == set(Ability)
