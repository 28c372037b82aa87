"""A write to a disk that goes on while its process does something else: Linux's `io_submit`.

A `pwrite` past the page cache blocks its thread until the disk has the data, and handing the write
to another thread and back costs as much. With `io_submit` the kernel takes the write, and the
thread goes on until it asks for the result. The thread syncs by itself: a kernel that is asked to
sync as well does so on a kernel thread, which has to wait for a processor (measured: now and then 3
ms).

The system calls are made by number, because a library that has them may not be installed. Where the
kernel, or the seccomp filter of a container, refuses them, the constructor raises OSError and the
caller uses `pwrite`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit on the machines on which
overlapped writes are supported."""
_PWRITE = 1
_REQUEST = struct.Struct("<QIIHHIQQqQII")
"""The fields of a request: data, key and flags (0 here), operation, priority, descriptor, buffer,
length, offset, and three zeros."""
_EVENT = struct.Struct("<QQqq")
"""The fields of a result: data, request, the bytes written (or the negative number of an error),
and 0."""


class OverlappedWrite:
    """The overlapped writes from one buffer, one write at a time.

    Owner: the writer of the file; one thread at a time. Lifecycle: used until `close`, which may
    not be called during a write.

    Args:
        buffer: the bytes to write, from the beginning on; aligned as the disk requires.

    Raises:
        OSError: the kernel refuses overlapped writes.
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
        """Begins to write the first `length` bytes of the buffer, which must not be changed before
        `end`. Returns False when the kernel does not take the write.

        Args:
            descriptor: the descriptor of a file that is open past the page cache and has all of its
                blocks.
        """
        address = self._address
        number = self._number = self._number + 1
        _REQUEST.pack_into(
            self._request, 0, number, 0, 0, _PWRITE, 0, descriptor, address, length, offset, 0, 0, 0
        )
        return bool(self._call(*self._submit) == 1)

    def end(self) -> int:
        """Waits for the end of the write. Returns how many bytes were written.

        Raises:
            OSError: the write failed.
        """
        while True:
            if self._call(*self._wait) != 1:
                error = ctypes.get_errno()
                if error != errno.EINTR:
                    raise OSError(error, os.strerror(error))
                continue
            number, _, written, _ = _EVENT.unpack_from(self._event)
            # Another number belongs to an earlier write, for whose result `end` did not wait.
            if number == self._number:
                break
        if written < 0:
            raise OSError(-written, os.strerror(-written))
        return int(written)

    def close(self) -> None:
        self._call(*self._destroy)
        del self._held
