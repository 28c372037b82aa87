"""The message types that the fabric defines, as the answer to the last logon names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from raylay.services.errors import MessageTypeError
from raylay.services.protocol.client.told_types import ToldType, read_types

if TYPE_CHECKING:
    from raylay.services.messages.types.base import MessageType
    from raylay.services.messages.types.definitions import TypeDefinition
    from raylay.services.messages.types.registry import MessageTypes

TEXT_KINDS = frozenset(("fix", "nvfix", "xml"))
"""Kinds of message types whose values are all texts."""


class FabricTypes:
    """See the file's docstring.

    Owner: the client's event loop calls `hear`. Any thread may read.
    """

    def __init__(self) -> None:
        self._body = b""
        self._heard = _HeardTypes(())

    def hear(self, body: bytes) -> None:
        """Replaces the known types by those of the answer to a logon. A body that cannot be decoded
        counts as one without types: the client then writes and reads built-in types only."""
        if body == self._body:
            return
        try:
            told = read_types(body)
        except ValueError:
            told = ()
        self._body, self._heard = body, _HeardTypes(told)

    def find(self, name: str) -> MessageType | None:
        """Returns the type of a name; None: the fabric does not define it. It may be a built-in
        type.

        Raises:
            MessageTypeError: the client cannot make the type; the text gives the reason.
            ConfigurationError: the definition of the type cannot be used by this process.
        """
        return self._heard.find(name)

    def are_texts(self, name: str) -> bool:
        """Returns whether all values of a type are texts."""
        told = self._heard.told.get(name)
        return (name if told is None else told.kind) in TEXT_KINDS

    def names(self) -> list[str]:
        """Returns the names of the types that the fabric defines, sorted."""
        return sorted(self._heard.told)

    def definitions(self) -> list[TypeDefinition]:
        """Returns the definitions of the types that the fabric tells as a whole."""
        found = (each.definition for each in self._heard.told.values())
        return [each for each in found if each is not None]


class _HeardTypes:
    """The types of one answer. They never change, so a thread may use them while the client hears
    the next answer."""

    def __init__(self, told: Iterable[ToldType]) -> None:
        self.told = {each.name: each for each in told}
        self._made: MessageTypes | None = None

    def find(self, name: str) -> MessageType | None:
        told = self.told.get(name)
        if told is None:
            return None
        if told.options is None:
            raise MessageTypeError(
                f"the fabric defines {name} as {told.kind}, and tells clients no more of it: the "
                "kind is installed at its instances, or its definition is too large",
                name,
            )
        if self._made is None:
            # Imported late, because most clients write and read bytes or JSON.
            from raylay.services.messages.types.registry import MessageTypes

            whole = (each.definition for each in self.told.values())
            self._made = MessageTypes(each for each in whole if each is not None)
        return self._made[name]


NO_TYPES = FabricTypes()
"""The types where the fabric defines none."""
