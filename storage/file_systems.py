"""What a file system is, where that decides how a file on it may be written."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_IN_PLACE = (0xEF53, 0x01021994)
"""f_type of statfs(2): ext2 to ext4, tmpfs. XFS is not one: what `cp --reflink` shared is not."""
_STATFS_BYTES = 256
"""More than the structure is on any machine; `f_type` is its first word."""


def overwrites_in_place(path: Path) -> bool:
    """Whether what was written of a file once can be written again without space on the disk.

    Only then may it be written through a mapping: where the disk is full, a page that needs space
    ends the process (SIGBUS), and no error tells why.
    """
    if sys.platform != "linux":
        return False
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), status) != 0:
        return False
    return ctypes.c_long.from_buffer(status).value in _IN_PLACE
