"""Process settings that instances and links share: loop, thread switching, memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

FATAL_EXIT_CODE = 70
"""Exit code of a process that a fault ends, after which the process is to be started again."""
GC_THRESHOLD = 50_000
"""Allocations between two runs of the garbage collector: frames and runs are freed by reference
count, and a collection walks every object in memory."""


def prepare_process() -> None:
    """Prepares a process for an instance or a child. To be called once at its start.

    The interpreter's switch interval stays as it is: shorter ones (0.05 to 1 ms) were measured to
    make one message's way through a sync pair no faster, idle or under load, and its p99 worse.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


def keep_what_is_there() -> None:
    """Excludes the present objects from garbage collection. To be called when an instance has
    recovered: with 100,000 publishers a collection would take 100 ms and more, in any thread, while
    all others wait."""
    gc.collect()
    gc.freeze()


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs the work to its end, on an event loop of its own on this thread."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)
