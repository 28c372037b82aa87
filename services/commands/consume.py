"""`raylay subscribe QUEUE --backlog N`: prints the messages of a queue, one on each line."""

from __future__ import annotations

import sys
from typing import Any

from raylay.services.commands.shared.connection_log import ConnectionLog
from raylay.services.commands.shared.printing import print_message


async def consume(
    options: dict[str, Any],
    queue: str,
    content: str,
    backlog: int,
    ack: str,
    count: int,
    as_json: bool,
) -> None:
    """Prints messages of a queue, one on each line, as a consumer of the queue.

    Args:
        ack: `auto`: a message is acknowledged when its line was printed; `none`: none is, and the
            messages go back to the queue at the end.
        count: number of messages after which the command ends; 0: never.
    """
    from raylay.services.client import Client

    async with Client(**options, on_event=ConnectionLog()) as client:
        how = "auto" if ack == "auto" else "manual"
        async with client.queue(queue, filter=content, backlog=backlog, ack=how) as work:
            left = count
            async for message in work:
                print_message(message, as_json, False)
                # Before it is acknowledged: whoever reads the lines has it.
                sys.stdout.flush()
                left -= 1
                if not left:
                    return
