"""A link on a thread of its own, for processes whose main thread belongs to somebody else: Ray."""

from __future__ import annotations

import asyncio
import os
import threading

from raylay.services.programs.link.link_server import LinkServer
from raylay.services.server.config import LinkConfig
from raylay.services.server.process import FATAL_EXIT_CODE, new_loop, prepare_process
from raylay.services.telemetry import logs


class LinkThread:
    """A LinkServer on a thread. When the link ends, for whatever reason, the process does.

    Owner: the DestinationLink actor.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        self._thread = threading.Thread(target=self._run, name="raylay-link", daemon=True)

    def start(self) -> None:
        """Starts the thread. Does not wait and does not raise."""
        self._thread.start()

    def _run(self) -> None:
        code = FATAL_EXIT_CODE
        try:
            logs.configure(self._config.process_name, self._config.log)
            prepare_process()
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(LinkServer(self._config).run())
            code = 0
        except BaseException as error:
            logs.get("link").error("link_ended", name=self._config.process_name, text=repr(error))
        finally:
            os._exit(code)
