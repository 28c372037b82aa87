"""A queue's owner on a thread of its own, for processes whose main thread belongs to somebody else:
Ray."""

from __future__ import annotations

import asyncio
import os
import threading

from raylay.services.programs.queue_owner.owner_server import OwnerServer
from raylay.services.server.config import QueueOwnerConfig
from raylay.services.server.process import FATAL_EXIT_CODE, new_loop, prepare_process
from raylay.services.telemetry import logs


class OwnerThread:
    """An OwnerServer on a thread. When it ends, for whatever reason, the process does.

    Owner: the QueueOwner actor.
    """

    def __init__(self, config: QueueOwnerConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="raylay-queue", daemon=True)

    def start(self) -> None:
        """Starts the thread. Does not wait and does not raise."""
        self._thread.start()

    def _run(self) -> None:
        code = FATAL_EXIT_CODE
        try:
            logs.configure(self._config.process_name, self._config.log)
            prepare_process()
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(OwnerServer(self._config).run())
            code = 0
        except BaseException as error:
            logs.get("queue").error(
                "queue_owner_ended", name=self._config.process_name, text=repr(error)
            )
        finally:
            os._exit(code)
