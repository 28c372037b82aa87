"""`python -m raylay.services.programs.link.run_link`: a link without Ray. Its configuration comes
on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import os
import sys

from raylay.services.programs.link.link_server import LinkServer
from raylay.services.server.config import LinkConfig
from raylay.services.server.process import prepare_process, run_on_loop
from raylay.services.telemetry import logs


async def serve(config: LinkConfig) -> None:
    """Runs the link until its instance is gone."""
    await LinkServer(config).run()


def main() -> int:
    """The command."""
    # Its instance holds the other end of the terminal: a Ctrl-C there is the instance's affair.
    os.setsid()
    config = LinkConfig.from_json(sys.stdin.read())
    logs.configure(config.process_name, config.log)
    prepare_process()
    try:
        run_on_loop(serve(config))
    except OSError as error:
        print(f"error: link {config.process_name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
