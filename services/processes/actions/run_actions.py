"""`python -m raylay.services.processes.actions.run_actions`: the actions of an instance without
Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.processes.actions.action_server import ActionServer
from raylay.services.processes.running import run_program


async def serve(config: ActionRunnerConfig) -> None:
    """Runs the actions until the instance is gone."""
    await ActionServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("actions", ActionRunnerConfig.from_json, serve))
