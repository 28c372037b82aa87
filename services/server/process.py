"""Process settings that instances and links share: loop, thread switching, memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

FATAL_EXIT_CODE = 70
"""Exit code of a process that a fault ends: whoever started it starts another one."""
GC_THRESHOLD = 50_000
"""Allocations between two looks of the garbage collector: frames and runs die by reference count,
and a collection walks everything that is held."""


def prepare_process() -> None:
    """Call once at the start of a process of ours.

    The interpreter's switch interval stays as it is: shorter ones (0.05 to 1 ms) were measured to
    make one message's way through a sync pair no faster, idle or under load, and its p99 worse."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)


def keep_what_is_there() -> None:
    """Call when an instance has recovered: no look of the collector walks what it holds then, which
    takes 100 ms and more with 100,000 publishers, in whichever thread, while all others wait."""
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
    """Runs to the end on a loop of its own, on this thread."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)
