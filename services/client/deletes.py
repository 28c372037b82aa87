"""What a client's delete of SOW records says (docs/protocol.md): which of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from raylay.services.errors import LocalProtocolError


def delete_body(
    filter: str | None = None, keys: Sequence[bytes] | None = None, data: bytes | None = None
) -> bytes:
    """What a delete's record carries: a msgpack map of exactly one of the three.

    Raises:
        LocalProtocolError: none or several are given, or one says nothing.
    """
    all_three: dict[str, Any] = {"filter": filter, "keys": keys, "data": data}
    given = {name: value for name, value in all_three.items() if value is not None}
    if len(given) != 1:
        what = " and ".join(given) or "none"
        raise LocalProtocolError(
            f"a delete takes one of filter, keys and data, got {what}: nothing was deleted"
        )
    ((name, value),) = given.items()
    if name == "keys":
        if isinstance(keys, str | bytes) or not all(isinstance(key, bytes) for key in keys or ()):
            raise LocalProtocolError("keys of a delete: give a list of SOW keys, each as bytes")
        value = list(keys or ())
    if not value:
        raise LocalProtocolError(
            f"{name} of a delete is empty: say what to delete; `filter='1=1'` deletes all"
        )
    return bytes(msgpack.packb({name: value}))
