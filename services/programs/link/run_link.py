"""`python -m raylay.services.programs.link.run_link`: a link without Ray. Its configuration comes
on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.programs.link.link_server import LinkServer
from raylay.services.programs.running import run_program
from raylay.services.server.config import LinkConfig


async def serve(config: LinkConfig) -> None:
    """Runs the link until its instance is gone."""
    await LinkServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("link", LinkConfig.from_json, serve))
