"""An instance in a process of its own that says how long its event loop's longest turn was.

    python publishers_instance.py DATA_DIRECTORY CONFIGURATION

CONFIGURATION is the pickled InstanceConfig. Each line on its standard input is answered by one JSON
line: what the instance says of itself, and the longest turns since the line before.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.process import keep_what_is_there, prepare_process, run_on_loop

LOOK_S = 0.001
LONG_MS = 5.0
"""Of processor time: a turn that is counted."""


class Turns:
    """The longest turns of the running loop, looked at from within.

    Processor time of the loop's thread is what its own work took, whatever else the machine does;
    the time on the clock holds waits for the interpreter's lock and for the processor, too.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.forget()
        self._look()

    def forget(self) -> None:
        """Begins anew."""
        self.longest_ms = self.longest_processor_ms = 0.0
        self.long = 0
        self._at_s, self._processor_s = time.perf_counter(), time.thread_time()

    def _look(self) -> None:
        at_s, processor_s = time.perf_counter(), time.thread_time()
        self.longest_ms = max(self.longest_ms, (at_s - self._at_s - LOOK_S) * 1000)
        used_ms = (processor_s - self._processor_s) * 1000
        self.longest_processor_ms = max(self.longest_processor_ms, used_ms)
        self.long += used_ms > LONG_MS
        self._at_s, self._processor_s = at_s, processor_s
        self._loop.call_later(LOOK_S, self._look)


async def serve(directory: Path, configuration: Path) -> None:
    """Serves until standard input ends."""
    config = pickle.loads(configuration.read_bytes())
    server = InstanceServer(config, directory, ChildSubprocess)
    started_s = time.perf_counter()
    await server.start()
    keep_what_is_there()
    start_s = time.perf_counter() - started_s
    turns = Turns()
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        found: dict[str, Any] = {
            "start_s": start_s,
            "turn_ms": turns.longest_ms,
            "turn_processor_ms": turns.longest_processor_ms,
            "long_turns": turns.long,
            "processor_s": time.process_time(),
            "status": server.status(),
        }
        print(json.dumps(found), flush=True)
        turns.forget()
    await server.stop()


if __name__ == "__main__":
    prepare_process()
    run_on_loop(serve(Path(sys.argv[1]), Path(sys.argv[2])))
