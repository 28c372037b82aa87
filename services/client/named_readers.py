"""The commands of a client about named readers, for which an instance keeps segments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import msgpack

from raylay.services.client.keywords import checks_keywords
from raylay.services.client.runtime import ClientRuntime
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.protocol.frames import Header

EXPIRES_S_DEFAULT = 7 * 86_400


class ReaderPlace(NamedTuple):
    """The topic, message type and filter of a named reader, and its place.

    Attributes:
        topic: topic, or regular expression.
        message_type: message type; empty: any.
        filter: filter; empty: none.
        have: messages of all topics that it does not need any more.
    """

    topic: str
    message_type: str
    filter: str
    have: PublisherRanges

    @property
    def terms(self) -> tuple[str, str, str]:
        """Returns topic, message type and filter."""
        return self.topic, self.message_type, self.filter


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
        message_type: str = "",
        filter: str = "",
        add: bool = False,
    ) -> None:
        """Says what a named reader holds: the instance that the client is connected to removes no
        segment with another message, until it is told more (docs/journal.md). Durable there when
        this returns; other instances are not told.

        Args:
            topic: what it reads. The user must be allowed to read it.
            have: messages of all topics that it does not need any more.
            expires_s: seconds after which the instance forgets a reader that says nothing.
            message_type, filter: message type and filter of what it reads, for those who ask.
            add: whether `have` is added to what the reader holds; otherwise it takes its place. A
                reader of another topic, message type or filter is then refused.

        Raises:
            CommandFailed: the server refused: `not_entitled`, `too_many`, `bad_command`.
            ConnectionLost: no server answered; the command may have been performed.
        """
        header: Header = {"c": "reader", "name": name, "t": topic, "expires_s": expires_s}
        header |= {"mt": message_type} if message_type else {}
        header |= {"filter": filter} if filter else {}
        header |= {"add": True} if add else {}
        await self._runtime.command(header, msgpack.packb(have.to_wire()))

    async def drop(self, name: str) -> None:
        """Lets the instance forget a named reader, whether it has it or not. Raises as `tell`."""
        await self._runtime.command({"c": "reader", "name": name, "release": True})

    async def place(self, name: str) -> ReaderPlace | None:
        """Returns what a named reader reads and its place at the instance that the client is
        connected to; None: the instance knows no reader of this name. Raises as `tell`."""
        _, body = await self._runtime.command({"c": "reader", "name": name, "ask": True})
        found = msgpack.unpackb(body, strict_map_key=False)
        if found is None:
            return None
        topic, message_type, filter_, have = found
        return ReaderPlace(topic, message_type, filter_, PublisherRanges.from_wire(have))

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
        self,
        name: str,
        topic: str,
        have: PublisherRanges,
        *,
        expires_s: int = EXPIRES_S_DEFAULT,
        message_type: str = "",
        filter: str = "",
        add: bool = False,
    ) -> None:
        """Says what a named reader holds (`ReaderCommands.tell`)."""
        of_reader = {"message_type": message_type, "filter": filter}
        told = self._readers.tell(name, topic, have, expires_s=expires_s, add=add, **of_reader)
        self._run(told)

    def place(self, name: str) -> ReaderPlace | None:
        """Returns what a named reader reads and its place (`ReaderCommands.place`)."""
        found: ReaderPlace | None = self._run(self._readers.place(name))
        return found

    def drop(self, name: str) -> None:
        """Lets the instance forget a named reader (`ReaderCommands.drop`)."""
        self._run(self._readers.drop(name))

    def known(self) -> list[dict[str, Any]]:
        """Returns the named readers of the instance (`ReaderCommands.known`)."""
        found: list[dict[str, Any]] = self._run(self._readers.known())
        return found
