"""Sleeps of microseconds: the timers of an event loop are whole milliseconds, and asked for less
they spin, so that a paced publisher would take a core from the servers that it measures."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

_CLOCK_MONOTONIC = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class KernelTimer:
    """A timerfd(2) of Linux's; Python has one from 3.13 on. `close` ends it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._fd = self._checked(
            self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        )
        self._due: asyncio.Future[None] | None = None
        self._loop.add_reader(self._fd, self._fired)

    def _checked(self, answer: int) -> int:
        if answer < 0:
            raise OSError(ctypes.get_errno(), "timerfd")
        return answer

    def _fired(self) -> None:
        os.read(self._fd, 8)
        if self._due is not None and not self._due.done():
            self._due.set_result(None)

    async def until(self, due_s: float) -> None:
        """Sleeps until a time of `time.perf_counter`; one turn of the loop where that is over."""
        left_ns = int((due_s - time.perf_counter()) * 1e9)
        if left_ns <= 0:
            await asyncio.sleep(0)
            return
        self._due = self._loop.create_future()
        first = _Timespec(*divmod(left_ns, 1_000_000_000))
        setting = _Itimerspec(_Timespec(0, 0), first)
        self._checked(self._libc.timerfd_settime(self._fd, 0, ctypes.byref(setting), None))
        await self._due

    def close(self) -> None:
        """Ends it."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
