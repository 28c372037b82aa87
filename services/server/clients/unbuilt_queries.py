"""The queries of views that are still built: they are accepted when that is done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.bookmarks import Position
from raylay.services.protocol.client.commands import SowCommand, Subscribe
from raylay.services.security.retained_bytes import RetainedClaim
from raylay.services.server.clients.replay_members import ReplayClient
from raylay.services.subscriptions.bookmark import ReplayContent


class UnbuiltQuery(NamedTuple):
    """One query, with the arguments of `QueryRunner.ask`."""

    connection: ReplayClient
    sow: SowCommand
    subscribe: Subscribe | None
    position: Position | None
    content: ReplayContent | None
    claim: RetainedClaim | None


class UnbuiltQueries:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: one life of the instance.

    Args:
        ask: accepts a query (`QueryRunner.ask`).
    """

    def __init__(self, ask: Callable[..., None]) -> None:
        self._ask = ask
        self._waiting: list[UnbuiltQuery] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def number_of(self, connection: ReplayClient) -> int:
        """Returns the number of queries of a client that wait."""
        return sum(each.connection is connection for each in self._waiting)

    def names(self, connection: ReplayClient, name: str) -> bool:
        """Returns whether a query of this id waits."""
        return any(
            each.connection is connection and each.sow.query == name for each in self._waiting
        )

    def add(self, query: UnbuiltQuery) -> None:
        """Lets a query wait."""
        self._waiting.append(query)
        sow, connection = query.sow, query.connection
        if query.subscribe is not None and sow.query not in connection.subscriptions:
            connection.resolving[sow.query] = query.subscribe

    def go_on(self) -> None:
        """Asks all of them again, as a view is built: some may wait for another one."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            connection, sow = each.connection, each.sow
            if each.subscribe is not None:
                connection.resolving.pop(sow.query, None)
            try:
                self._ask(*each)
            except RemoteProtocolError as error:
                refused = connection.codec.acknowledgment(
                    "processed", sow.command_id, error.reason, str(error), sub=sow.query
                )
                connection.send(refused)

    def forget(self, connection: ReplayClient, names: Collection[str] | None = None) -> None:
        """Ends the waiting queries of a client.

        Args:
            names: their ids; None: all.
        """
        kept = []
        for each in self._waiting:
            if each.connection is connection and (names is None or each.sow.query in names):
                if each.claim is not None:
                    each.claim.release()
            else:
                kept.append(each)
        self._waiting = kept
