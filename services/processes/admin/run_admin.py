"""`python -m raylay.services.processes.admin.run_admin`: an administrator's interface without Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.config.admin_interface import AdminProcessConfig
from raylay.services.processes.admin.admin_server import AdminServer
from raylay.services.processes.running import run_program


async def serve(config: AdminProcessConfig) -> None:
    """Runs the interface until its instance is gone."""
    await AdminServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("admin_interface", AdminProcessConfig.from_json, serve))
