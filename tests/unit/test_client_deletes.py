"""What a delete's record says, and what is no delete."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from raylay.services.client.deletes import delete_body
from raylay.services.errors import LocalProtocolError


@pytest.mark.parametrize(
    "given", [{"filter": "/a = 1"}, {"keys": [b"k1", b"k2"]}, {"data": b'{"id": 1}'}]
)
def test_it_is_a_map_of_the_one_that_is_given(given: dict[str, Any]) -> None:
    assert msgpack.unpackb(delete_body(**given)) == given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "got none"),
        ({"filter": "/a = 1", "data": b"{}"}, "got filter and data"),
        ({"filter": "/a = 1", "keys": [b"k"], "data": b"{}"}, "got filter and keys and data"),
        ({"filter": ""}, "filter of a delete is empty"),
        ({"keys": []}, "keys of a delete is empty"),
        ({"data": b""}, "data of a delete is empty"),
        ({"keys": b"k"}, "give a list"),
        ({"keys": ["k"]}, "each as bytes"),
    ],
)
def test_none_or_several_or_nothing_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(LocalProtocolError, match=told):
        delete_body(**given)
