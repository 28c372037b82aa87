"""The commands of a client about named readers, for which an instance keeps segments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgpack

from raylay.services.client.keywords import checks_keywords
from raylay.services.client.runtime import ClientRuntime
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header

EXPIRES_S_DEFAULT = 7 * 86_400


class ReaderCommands:
    """The commands of one client about named readers: its `readers`."""

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime

    @checks_keywords
    async def tell(
        self,
        name: str,
        topic: str,
        have: PublisherRanges,
        *,
        expires_s: int = EXPIRES_S_DEFAULT,
    ) -> None:
        """Says what a named reader holds: the instance that the client is connected to removes no
        segment with another message, until it is told more (docs/journal.md). Durable there when
        this returns; other instances are not told.

        Args:
            topic: what it reads. The user must be allowed to read it.
            have: messages of all topics that it does not need any more.
            expires_s: seconds after which the instance forgets a reader that says nothing.

        Raises:
            CommandFailed: the server refused: `not_entitled`, `too_many`, `bad_command`.
            ConnectionLost: no server answered; the command may have been performed.
        """
        header: Header = {"c": "reader", "name": name, "t": topic, "expires_s": expires_s}
        await self._runtime.command(header, msgpack.packb(have.to_wire()))

    async def drop(self, name: str) -> None:
        """Lets the instance forget a named reader, whether it has it or not. Raises as `tell`."""
        await self._runtime.command({"c": "reader", "name": name, "release": True})

    async def known(self) -> list[dict[str, Any]]:
        """Returns the named readers of the instance that the client is connected to, with what each
        lacks; with permissions, those of its user. Raises as `tell`."""
        _, body = await self._runtime.command({"c": "reader"})
        found: list[dict[str, Any]] = msgpack.unpackb(body)
        return found


class SyncReaderCommands:
    """`ReaderCommands` for a SyncClient.

    Args:
        run: runs a coroutine on the client's loop thread, and returns its result.
    """

    def __init__(
        self, run: Callable[[Coroutine[Any, Any, Any]], Any], readers: ReaderCommands
    ) -> None:
        self._run = run
        self._readers = readers

    def tell(
        self, name: str, topic: str, have: PublisherRanges, *, expires_s: int = EXPIRES_S_DEFAULT
    ) -> None:
        """Says what a named reader holds (`ReaderCommands.tell`)."""
        self._run(self._readers.tell(name, topic, have, expires_s=expires_s))

    def drop(self, name: str) -> None:
        """Lets the instance forget a named reader (`ReaderCommands.drop`)."""
        self._run(self._readers.drop(name))

    def known(self) -> list[dict[str, Any]]:
        """Returns the named readers of the instance (`ReaderCommands.known`)."""
        found: list[dict[str, Any]] = self._run(self._readers.known())
        return found
