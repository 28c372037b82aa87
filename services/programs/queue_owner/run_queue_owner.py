"""`python -m raylay.services.programs.queue_owner.run_queue_owner`: a queue's owner without Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import os
import sys

from raylay.services.errors import RaylayError
from raylay.services.programs.queue_owner.owner_server import OwnerServer
from raylay.services.server.config import QueueOwnerConfig
from raylay.services.server.process import prepare_process, run_on_loop
from raylay.services.telemetry import logs


async def serve(config: QueueOwnerConfig) -> None:
    """Runs the owner until its instance is gone."""
    await OwnerServer(config).run()


def main() -> int:
    """The command."""
    # Its instance holds the other end of the terminal: a Ctrl-C there is the instance's affair.
    os.setsid()
    config = QueueOwnerConfig.from_json(sys.stdin.read())
    logs.configure(config.process_name, config.log)
    prepare_process()
    try:
        run_on_loop(serve(config))
    except (OSError, RaylayError) as error:
        print(f"error: queue {config.process_name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
