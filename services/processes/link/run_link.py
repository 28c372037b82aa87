"""`python -m raylay.services.processes.link.run_link`: a link without Ray. Its configuration comes
on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.config.instance import LinkConfig
from raylay.services.processes.link.link_server import LinkServer
from raylay.services.processes.running import run_program


async def serve(config: LinkConfig) -> None:
    """Runs the link until its instance is gone."""
    await LinkServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("link", LinkConfig.from_json, serve))
