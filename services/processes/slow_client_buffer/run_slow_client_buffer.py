"""`python -m raylay.services.processes.slow_client_buffer.run_slow_client_buffer`: a pool's buffer
without Ray.

Its configuration comes on standard input, as JSON; its instance starts it."""

from __future__ import annotations

import sys

from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.processes.running import run_program
from raylay.services.processes.slow_client_buffer.buffer_server import BufferServer


async def serve(config: SlowClientBufferConfig) -> None:
    """Runs the buffer until its instance is gone."""
    await BufferServer(config).run()


if __name__ == "__main__":
    sys.exit(run_program("slow_client_buffer", SlowClientBufferConfig.from_json, serve))
