"""`python -m raylay.services.server.run_instance DATA_DIRECTORY`: an instance without Ray.

The instance's links are subprocesses. The program prints one JSON line with the instance's status
when it serves. It ends at SIGTERM or SIGINT, unless these begin actions of the
instance, or with exit code 1 when the instance cannot start.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import InstanceRetired, RaylayError
from raylay.services.messages.plain_text import plain_lines
from raylay.services.server.children.subprocess import ChildSubprocess
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.process import keep_what_is_there, prepare_process, run_on_loop
from raylay.services.server.process_signals import signals_of
from raylay.services.telemetry import logs


async def serve(directory: Path) -> None:
    """Serves the instance of a data directory until a signal comes.

    Raises:
        InstanceRetired: the instance lives elsewhere now.
        RaylayError: the instance cannot start, or was ended by a fault.
    """
    stopping: list[asyncio.Task[None]] = []
    told = False
    while True:
        config = InstanceConfig.load(directory)
        logs.configure(config.name, config.log)
        server = InstanceServer(config, directory, ChildSubprocess)
        await server.start()
        keep_what_is_there()
        _stop_at_signals(server, stopping)
        if not told:
            print(json.dumps(server.status()), flush=True)
            told = True
        await server.finished()
        if not server.begins_anew or stopping:
            break
    if server.runtime.retirement:
        raise InstanceRetired(f"{directory}: {server.runtime.retirement}")


def _stop_at_signals(server: InstanceServer, stopping: list[asyncio.Task[None]]) -> None:
    loop = asyncio.get_running_loop()
    wanted = signals_of(server.runtime.config.actions)
    for number in wanted:
        loop.add_signal_handler(number, server.signalled, number.name)
    for number in {signal.SIGTERM, signal.SIGINT} - {*wanted}:
        loop.add_signal_handler(number, lambda: stopping.append(loop.create_task(server.stop())))


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m raylay.services.server.run_instance DATA_DIRECTORY")
        return 2
    prepare_process()
    try:
        run_on_loop(serve(Path(sys.argv[1])))
    except RaylayError as error:
        print(plain_lines(f"error: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
