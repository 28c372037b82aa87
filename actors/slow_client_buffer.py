"""The SlowClientBuffer actor."""

from __future__ import annotations

from raylay.actors.program import Program
from raylay.services.config.buffer import SlowClientBufferConfig
from raylay.services.processes.slow_client_buffer.run_slow_client_buffer import serve


class SlowClientBuffer(Program):
    """The messages that wait for the slow clients of one capacity pool.

    Args:
        config: a SlowClientBufferConfig as JSON.
    """

    def __init__(self, config: str) -> None:
        made = SlowClientBufferConfig.from_json(config)
        title = f"{made.instance}/{made.pool}"
        super().__init__(SlowClientBuffer, title, "slow_client_buffer", made, serve)
