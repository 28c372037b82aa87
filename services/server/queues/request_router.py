"""Requests for messages of queues on their way from instance to instance: sent over all links, and
passed on once by each instance. No request is journaled; the owner that needs messages asks
again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from raylay.services.protocol.child.queue_requests import Candidate, QueueRequest, queue_request

if TYPE_CHECKING:
    # Most instances have no queues.
    from raylay.services.queues.definition import QueueDefinition
    from raylay.services.queues.frontend import RoutedRequest


class RequestLink(Protocol):
    """A link to another instance (`LinkControl`)."""

    def queue_request(self, frame: bytes) -> None:
        """Sends the request to the destination, if it is connected."""


class QueueRequestRouter:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: as long as the instance.

    Args:
        group: the group of the instance.
        links: the links to all destinations.
    """

    def __init__(self, group: str, links: Mapping[str, RequestLink]) -> None:
        self._group = group
        self._links = links

    def send(self, asked: RoutedRequest, definition: QueueDefinition) -> None:
        """Sends the request of a queue's owner at this instance over all links."""
        self.forward(
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

    def routed(self, request: QueueRequest, definition: QueueDefinition | None) -> RoutedRequest:
        """Converts another instance's request into the form that the queues of this instance take.
        Its queue is empty where the request is for a queue that this instance shares with no other
        instance, or for a different queue of the same name.

        Args:
            definition: definition of the queue of that name here; None: there is none.
        """
        from raylay.services.queues.decisions import TransferCandidate
        from raylay.services.queues.frontend import RoutedRequest

        queue = f"{request.message_type}/{request.queue}"
        if definition is not None and (
            not definition.is_distributed or self._domain(definition) != request.domain
        ):
            # The queue here has the same name, but is another one.
            queue = ""
        wanted = [
            TransferCandidate((each.publisher, each.sequence), each.generation, each.owner)
            for each in request.wanted
        ]
        return RoutedRequest(
            request.incarnation,
            request.life,
            request.number,
            request.name,
            queue,
            request.places,
            wanted,
        )

    def forward(self, request: QueueRequest) -> None:
        frame = queue_request(request)
        for link in self._links.values():
            link.queue_request(frame)

    def _domain(self, definition: QueueDefinition) -> str:
        if definition.kind != "group_local":
            return ""
        return definition.domain or self._group
