"""services/messages/types/registry.py: types by name."""

from __future__ import annotations

import pytest

from raylay.services.errors import MessageTypeError
from raylay.services.messages.types.registry import BUILT_IN, message_type


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_built_in_types_by_name(name: str) -> None:
    found = message_type(name)
    assert found.name == found.kind == name
    assert message_type(name) is found


def test_a_type_that_nobody_knows() -> None:
    with pytest.raises(MessageTypeError, match=r"'jsn'.*built-in ones are .*json") as caught:
        message_type("jsn")
    assert caught.value.message_type == "jsn"
