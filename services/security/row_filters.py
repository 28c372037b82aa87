"""Row filters of a session's reads by regular expressions.

A topic that is asked for by name has its filter in the subscription's own. A regular expression
finds topics one by one, and the filter of each is looked up when the topic is first seen. It is
evaluated before any filter of the client, which therefore sees no other message.
"""

from __future__ import annotations

from collections.abc import Callable

from raylay.services.errors import ExpressionError, RemoteProtocolError
from raylay.services.expressions.expression import Expression, ExpressionUse, expression
from raylay.services.expressions.functions.registry import EvalContext, Functions
from raylay.services.security.permissions import Permissions


class RowFilters:
    """See the file's docstring.

    Owner: the session. Lifecycle: as long as its permissions.

    Args:
        functions: returns the functions that filters may use; called when the first is needed.
        client: properties of the session's client that filters can read.
    """

    __slots__ = ("_client", "_compiled", "_functions", "permissions")

    def __init__(
        self, permissions: Permissions, functions: Callable[[], Functions], client: EvalContext
    ) -> None:
        self.permissions = permissions
        self._functions = functions
        self._client = client
        self._compiled: dict[tuple[str, ExpressionUse], Expression | None] = {}

    def restricts(self, topic: bytes) -> bool:
        """Returns whether the client may read only some messages of a topic, and all of their
        fields. A topic of which it may read only some fields has to be asked for by name."""
        grant = self.permissions.read(topic)
        return grant.allowed and bool(grant.filter) and not grant.select

    def of(self, topic: bytes, use: ExpressionUse) -> Expression | None:
        """Returns the filter of a topic that is restricted so.

        Returns None where the topic is not restricted so, and where its filter cannot be used in
        this place, as one that reads the clock cannot where records are followed: then the client
        must not be given any message.
        """
        if not self.restricts(topic):
            return None
        key = self.permissions.read(topic).filter, use
        if key not in self._compiled:
            try:
                self._compiled[key] = expression(key[0], use, self._functions(), self._client)
            except (ExpressionError, RemoteProtocolError):
                self._compiled[key] = None
        return self._compiled[key]
