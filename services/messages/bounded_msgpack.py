"""Decodes msgpack that somebody else wrote, and makes no more values of it than a right one has.

An empty array takes one byte on the wire and 56 bytes in memory, so a limit of bytes bounds little:
4 MiB of them took 0.8 s of the loop and 238 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

CONTAINERS_FREE = 1_000
"""Arrays and maps that any body may have, however short it is."""


def unpack_values(
    data: bytes | memoryview, values_max: int, length_max: int = 0, strict_map_key: bool = False
) -> Any:
    """Decodes msgpack of a limited number of values: elements of arrays, keys of maps, and the
    arrays and maps. Nothing is kept of it as soon as it has more.

    Args:
        length_max: elements of one array, and twice the keys of one map; 0: as many as values.
        strict_map_key: whether keys of maps are texts or bytes.

    Raises:
        ValueError: it has more, or is none; msgpack raises others on bad bytes, too.
    """
    longest = length_max or values_max
    if len(data) <= values_max:
        # Each value takes a byte.
        return msgpack.unpackb(
            data,
            strict_map_key=strict_map_key,
            max_array_len=longest,
            max_map_len=max(1, longest // 2),
        )
    return _unpack(data, values_max, lambda values: 1 + len(values), longest, strict_map_key)


def unpack_containers(data: bytes | memoryview, bytes_each: int) -> Any:
    """Decodes msgpack whose arrays and maps take so many bytes each, at least, with their keys.

    Raises:
        ValueError: it has more of them, or is none; msgpack raises others on bad bytes, too.
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
) -> Any:
    left = most

    def count(values: Any) -> Any:
        nonlocal left
        left -= weigh(values)
        if left < 0:
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
