"""The commands of a client about named readers, for which an instance keeps segments."""

from __future__ import annotations

from typing import Any

import msgpack

from raylay.services.client.keywords import checks_keywords
from raylay.services.client.runtime import ClientRuntime
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header


class ReaderCommands:
    """The part of `Client` that names readers."""

    runtime: ClientRuntime

    @checks_keywords
    async def tell_reader(
        self,
        name: str,
        topic: str,
        have: PublisherRanges,
        *,
        expires_s: int = 7 * 86_400,
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
        await self.runtime.command(header, msgpack.packb(have.to_wire()))

    async def drop_reader(self, name: str) -> None:
        """Lets the instance forget a named reader, whether it has it or not. Raises as
        `tell_reader`."""
        await self.runtime.command({"c": "reader", "name": name, "release": True})

    async def named_readers(self) -> list[dict[str, Any]]:
        """Returns the named readers of the instance that the client is connected to, with what each
        lacks; with permissions, those of its user. Raises as `tell_reader`."""
        _, body = await self.runtime.command({"c": "reader"})
        found: list[dict[str, Any]] = msgpack.unpackb(body)
        return found
