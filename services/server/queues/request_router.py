"""Requests for messages of queues on their way from instance to instance: out over all links, in
from any, and on, each once. None is journaled; whoever asks asks again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from raylay.services.protocol.child.queue_requests import Candidate, QueueRequest, queue_request
from raylay.services.server.queues.manager import QueueManager

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.queues.definition import QueueDefinition
    from raylay.services.queues.frontend import RoutedRequest


class RequestLink(Protocol):
    """One to another instance (`LinkControl`)."""

    def queue_request(self, frame: bytes) -> None:
        """Asks the destination, where it is connected."""


class QueueRequestRouter:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: as long as the instance.

    Args:
        keeper: of the instance's queues; its requests go out from here.
        links: to all destinations.
    """

    def __init__(self, keeper: QueueManager, links: Mapping[str, RequestLink]) -> None:
        self._keeper = keeper
        self._links = links
        keeper.pass_on = self.send

    def send(self, asked: RoutedRequest) -> None:
        """An owner of this instance asks."""
        definition = self._keeper.controls[asked.queue].door.definition
        self._pass_on(
            QueueRequest(
                asked.incarnation,
                asked.life,
                asked.number,
                asked.name,
                definition.name,
                definition.message_type,
                self._domain(definition),
                asked.count,
                [Candidate(*key, generation, owner) for key, generation, owner in asked.wanted],
            )
        )

    def came(self, request: QueueRequest) -> None:
        """Another instance asks. Its owner here is told, where the queue is that one's, too, and
        every link is, where the request did not come before."""
        keeper = self._keeper
        if keeper.queues is None:
            return
        from raylay.services.queues.decisions import TransferCandidate
        from raylay.services.queues.frontend import RoutedRequest

        queue = f"{request.message_type}/{request.queue}"
        control = keeper.controls.get(queue)
        if control is not None:
            definition = control.door.definition
            if not definition.is_distributed or self._domain(definition) != request.domain:
                # Of the same name, but another queue.
                queue = ""
        wanted = [
            TransferCandidate((each.publisher, each.sequence), each.generation, each.owner)
            for each in request.wanted
        ]
        if keeper.asked(
            RoutedRequest(
                request.incarnation,
                request.life,
                request.number,
                request.name,
                queue,
                request.places,
                wanted,
            )
        ):
            self._pass_on(request)

    def _domain(self, definition: QueueDefinition) -> str:
        if definition.kind != "group_local":
            return ""
        return definition.domain or self._keeper.runtime.config.group

    def _pass_on(self, request: QueueRequest) -> None:
        frame = queue_request(request)
        for link in self._links.values():
            link.queue_request(frame)
