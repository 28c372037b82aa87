"""Decodes msgpack from foreign senders, and refuses more values than a correct message has.

A limit of bytes is not enough: an empty array takes one byte on the wire and 56 bytes in memory. 4
MiB of them took 0.8 s of the loop and 238 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

CONTAINERS_FREE = 1_000
"""Number of arrays and maps that any message may have, however short it is."""


def unpack_values(
    data: bytes | memoryview,
    values_max: int,
    length_max: int = 0,
    strict_map_key: bool = False,
    *,
    bytes_each: int = 0,
) -> Any:
    """Decodes msgpack with a limited number of values: elements of arrays, keys of maps, and the
    arrays and maps themselves. Stops, and keeps nothing, as soon as there are more.

    Args:
        length_max: limit on the elements of one array, and on twice the keys of one map; 0: the
            same limit as for values.
        strict_map_key: whether keys of maps must be texts or bytes.
        bytes_each: fewest bytes of an array or a map, with its keys; 0: not checked.

    Raises:
        ValueError: the data has more values, or is no msgpack; msgpack raises other errors on bad
            bytes, too.
    """
    longest = length_max or values_max
    if len(data) <= (min(CONTAINERS_FREE, values_max) if bytes_each else values_max):
        # Each value takes at least a byte.
        return msgpack.unpackb(
            data,
            strict_map_key=strict_map_key,
            max_array_len=longest,
            max_map_len=max(1, longest // 2),
        )
    containers_max = CONTAINERS_FREE + len(data) // bytes_each if bytes_each else values_max
    return _unpack(
        data, values_max, lambda values: 1 + len(values), longest, strict_map_key, containers_max
    )


def unpack_containers(data: bytes | memoryview, bytes_each: int) -> Any:
    """Decodes msgpack whose arrays and maps take at least `bytes_each` bytes each, with their keys.

    Raises:
        ValueError: the data has more arrays and maps, or is no msgpack; msgpack raises other errors
            on bad bytes, too.
    """
    if len(data) <= CONTAINERS_FREE:
        return msgpack.unpackb(data, strict_map_key=False)
    containers_max = CONTAINERS_FREE + len(data) // bytes_each
    return _unpack(data, containers_max, lambda _: 1, len(data))


def _unpack(
    data: bytes | memoryview,
    most: int,
    weigh: Callable[[Any], int],
    length_max: int,
    strict_map_key: bool = False,
    containers_max: int | None = None,
) -> Any:
    left = most
    containers_left = most if containers_max is None else containers_max

    def count(values: Any) -> Any:
        nonlocal left, containers_left
        left -= weigh(values)
        containers_left -= 1
        if left < 0 or containers_left < 0:
            raise ValueError("it has too many values")
        return values

    return msgpack.unpackb(
        data,
        strict_map_key=strict_map_key,
        max_array_len=length_max,
        max_map_len=max(1, length_max // 2),
        list_hook=count,
        object_hook=count,
    )
