"""`python -m raylay.services.programs.queue_owner.run_queue_owner`: a queue's owner without Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.programs.queue_owner.owner_server import OwnerServer
from raylay.services.programs.running import run_program
from raylay.services.server.config import QueueOwnerConfig


async def serve(config: QueueOwnerConfig) -> None:
    """Runs the owner until its instance is gone."""
    await OwnerServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("queue_owner", QueueOwnerConfig.from_json, serve))
