"""`python -m raylay.services.processes.queue_owner.run_queue_owner`: a queue's owner without Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.config.instance import QueueOwnerConfig
from raylay.services.processes.queue_owner.owner_server import OwnerServer
from raylay.services.processes.running import run_program


async def serve(config: QueueOwnerConfig) -> None:
    """Runs the owner until its instance is gone."""
    await OwnerServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("queue_owner", QueueOwnerConfig.from_json, serve))
