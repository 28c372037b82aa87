"""The runtime that all parts of a link share: its configuration, loop and outbox, and the socket to
its instance."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from raylay.services.config.instance import LinkConfig
from raylay.services.net.framed import WriteQueue
from raylay.services.protocol.frames import encode_frame


class ControlSocket(Protocol):
    """The socket to the instance."""

    def send(self, frame: bytes) -> None:
        """Sends a frame at the end of the turn."""


class LinkRuntime:
    """The configuration, loop and sockets that the parts of a link share.

    Owner: the link's event loop. `loop` and `outbox` are there when it runs, `instance` when its
    instance's socket is connected.
    """

    def __init__(self, config: LinkConfig) -> None:
        self.config = config
        self.loop: asyncio.AbstractEventLoop
        self.outbox: WriteQueue
        self.instance: ControlSocket | None = None

    def tell(self, frame: bytes) -> None:
        if self.instance is not None:
            self.instance.send(frame)

    def event(self, event: str, **details: Any) -> None:
        """Reports something that people may want to know, as an event of the instance."""
        self.tell(encode_frame({"c": "event", "event": event, "details": details}))
