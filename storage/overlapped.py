"""A write to a disk that goes on while its process does something else: Linux's `io_submit`.

A `pwrite` past the page cache keeps its thread until the disk has taken it, and to hand the write
to another thread and back costs as much. Here the kernel takes it and the thread goes on, until it
comes back for the answer. To sync is left to the thread: a kernel that is to do that, too, does so
on a thread of its own, which waits for whoever is running (tried: now and then 3 ms).

The calls go by their numbers: no library that has them is sure to be there. Where a kernel, or what
guards a container, refuses them, whoever wants to write is told and writes as ever.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit; no others are known here."""
_PWRITE = 1
_REQUEST = struct.Struct("<QIIHHIQQqQII")
"""data, key and flags (0 here), operation, priority, descriptor, buffer, length, offset, and 0."""
_EVENT = struct.Struct("<QQqq")
"""data, request, what was written or below 0 the error's number, and 0."""


class OverlappedWrite:
    """Writes from one buffer, one write at a time.

    Owner: who writes; one thread at a time. Lifecycle: `close`, with no write under way.

    Args:
        buffer: aligned as the disk wants it; from its beginning is written.

    Raises:
        OSError: the kernel does not do it.
    """

    def __init__(self, buffer: memoryview) -> None:
        is_64_bit = struct.calcsize("P") == 8
        numbers = _NUMBERS.get(platform.machine()) if is_64_bit else None
        if numbers is None:
            raise OSError(f"not known on {platform.machine()}")
        setup, destroy, getevents, submit = map(ctypes.c_long, numbers)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._held = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        self._address = ctypes.addressof(self._held)
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._number = 0
        self._requests = ctypes.c_void_p(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        context, one = ctypes.c_ulong(0), ctypes.c_long(1)
        if self._call(setup, one, ctypes.byref(context)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._destroy = (destroy, context)
        self._submit = (submit, context, one, ctypes.byref(self._requests))
        self._wait = (getevents, context, one, one, self._event, None)

    def begin(self, descriptor: int, length: int, offset: int) -> bool:
        """The kernel begins to write so many bytes; the buffer is not changed before `end`. False:
        it does not.

        Args:
            descriptor: of a file that is written past the page cache, and whose blocks are there.
        """
        address = self._address
        number = self._number = self._number + 1
        _REQUEST.pack_into(
            self._request, 0, number, 0, 0, _PWRITE, 0, descriptor, address, length, offset, 0, 0, 0
        )
        return bool(self._call(*self._submit) == 1)

    def end(self) -> int:
        """Waits until the disk has taken it. How many bytes were written.

        Raises:
            OSError: it could not be written.
        """
        while True:
            if self._call(*self._wait) != 1:
                error = ctypes.get_errno()
                if error != errno.EINTR:
                    raise OSError(error, os.strerror(error))
                continue
            number, _, written, _ = _EVENT.unpack_from(self._event)
            # Another one: of a write before, whose answer nobody waited for to the end.
            if number == self._number:
                break
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        return int(written)

    def close(self) -> None:
        self._call(*self._destroy)
        del self._held
