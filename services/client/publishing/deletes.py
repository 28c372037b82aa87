"""A client's delete of SOW records (docs/protocol.md), and the deletion in parts of more records
than one delete may name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, Protocol

import msgpack

from raylay.services.errors import CommandFailed, LocalProtocolError

DELETED_AT_ONCE_MAX = 50_000
"""Number of records that one delete may name."""
PART_KEYS = 1_000
"""Number of keys in one part of a delete in parts: an instance folds a part in a short turn."""
ROWS_A_FRAME = 1_000


class DeletableRow(Protocol):
    """A row of a query, of which only the key is needed."""

    @property
    def key(self) -> bytes:
        """Returns the SOW key of the row."""


class DeleteClient(Protocol):
    """The methods of a client that a delete in parts calls (`Client`)."""

    def sow(
        self,
        topic: str,
        *,
        message_type: str = "",
        filter: str = "",
        select: str = "",
        non_regex_topic: bool = False,
        batch: int = ROWS_A_FRAME,
    ) -> AsyncIterator[DeletableRow]:
        """Queries records."""

    def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[bytes] | None = None,
        message_type: str = "json",
    ) -> Awaitable[int]:
        """Publishes a delete."""


async def delete_in_parts(client: DeleteClient, topic: str, filter: str, message_type: str) -> int:
    """Deletes the records that pass a filter, however many there are: by the filter, or, where they
    are too many for one delete, by their keys, which are queried first, in parts. Each part deletes
    only the records that still pass.

    Returns:
        how many deletes were published.
    """
    keys: list[bytes] = []
    deletes = 0
    async for row in _rows(client, topic, filter, message_type):
        keys.append(row.key)
        if len(keys) > DELETED_AT_ONCE_MAX or (deletes and len(keys) >= PART_KEYS):
            for at in range(0, len(keys), PART_KEYS):
                part = keys[at : at + PART_KEYS]
                await client.sow_delete(topic, filter=filter, keys=part, message_type=message_type)
                deletes += 1
            keys.clear()
    if keys or not deletes:
        named = keys if deletes else None
        await client.sow_delete(topic, filter=filter, keys=named, message_type=message_type)
        deletes += 1
    return deletes


async def _rows(
    client: DeleteClient, topic: str, filter: str, message_type: str
) -> AsyncIterator[DeletableRow]:
    """Yields the rows that pass, each with as few fields as possible."""
    asked: dict[str, Any] = {
        "message_type": message_type,
        "filter": filter,
        "batch": ROWS_A_FRAME,
        "non_regex_topic": True,
    }
    try:
        async for row in client.sow(topic, select="[-/]", **asked):
            yield row
    except CommandFailed as error:
        if error.reason != "not_supported":
            raise
    else:
        return
    # Messages of some types cannot be cut; that is refused before the first row.
    async for row in client.sow(topic, **asked):
        yield row


def delete_body(
    filter: str | None = None, keys: Sequence[bytes] | None = None, data: bytes | None = None
) -> bytes:
    """Returns the body of a delete's record: a msgpack map with exactly one of `filter`, `keys` and
    `data`, or with a filter and keys, which deletes the records of these keys that pass the filter.

    Raises:
        LocalProtocolError: none or several of the three are given, or one is empty.
    """
    all_three: dict[str, Any] = {"filter": filter, "keys": keys, "data": data}
    given = {name: value for name, value in all_three.items() if value is not None}
    if len(given) != 1 and given.keys() != {"filter", "keys"}:
        what = " and ".join(given) or "none"
        raise LocalProtocolError(
            f"a delete takes one of filter, keys and data, or a filter with keys, got {what}: "
            "nothing was deleted"
        )
    if keys is not None:
        if isinstance(keys, str | bytes) or not all(isinstance(key, bytes) for key in keys):
            raise LocalProtocolError("keys of a delete: give a list of SOW keys, each as bytes")
        given["keys"] = list(keys)
    for name, value in given.items():
        if not value:
            raise LocalProtocolError(
                f"{name} of a delete is empty: say what to delete; `filter='1=1'` deletes all"
            )
    return bytes(msgpack.packb(given))
