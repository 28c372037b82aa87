"""Properties of a file system that decide how a file on it may be written."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

_IN_PLACE = (0xEF53, 0x01021994)
"""f_type of statfs(2): ext2 to ext4, tmpfs. XFS is not one: what `cp --reflink` shared is not."""
_GET_FLAGS = 0x80086601
_SET_FLAGS = 0x40086602
_NO_COPY = 0x00800000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_NOCOW_FL, as `chattr +C` has them."""
_STATFS_BYTES = 256
"""More than the structure is on any machine; `f_type` is its first word."""


def overwrites_in_place(path: Path) -> bool:
    """Returns whether blocks of a file that are written again need no space on the disk.

    Only such a file may be written through a mapping: on a full disk, a page that needs space ends
    the process (SIGBUS), and no error tells why.
    """
    if sys.platform != "linux":
        return False
    import ctypes  # late: it takes milliseconds, and most commands ask for no file system

    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), status) != 0:
        return False
    return ctypes.c_long.from_buffer(status).value in _IN_PLACE


def has_every_block(descriptor: int, size_bytes: int) -> bool:
    """Returns whether the disk has allocated all blocks of a file.

    A sparse copy has holes: a write through a mapping into a hole needs space, and ends the process
    (SIGBUS) on a full disk.
    """
    return os.fstat(descriptor).st_blocks * 512 >= size_bytes


def overwrite_in_place(descriptor: int) -> None:
    """Has btrfs overwrite an empty file in place, as other file systems do. Otherwise btrfs copies
    on each write, which needs space: on a full disk a write through a mapping would end the process
    (SIGBUS). On a file system without such a flag, nothing happens."""
    flags = bytearray(struct.calcsize("l"))
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        wanted = struct.unpack("l", flags)[0] | _NO_COPY
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("l", wanted))
    except OSError:
        pass
