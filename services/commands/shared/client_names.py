"""Client names for publishing commands, where the user gives none.

An instance remembers each name that ever published, for good. So a command reuses a name that an
earlier command of the same host and user has released, and continues its sequences. Commands that
run at the same time have different names. A name is held as an abstract socket, which ends with the
process, and which all processes of a host see, whatever directory for temporary files they use.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE_MAX = 1_000
"""Most commands of one user and kind that share names; further ones have names with their process
ids."""


@contextmanager
def client_name(command: str) -> Iterator[str]:
    """Yields a name that no other command of this host has meanwhile."""
    common = f"raylay-{command}-{os.uname().nodename}-{os.getuid()}"
    for number in range(1, AT_ONCE_MAX + 1):
        name = f"{common}-{number}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
            try:
                held.bind("\0" + name)
            except OSError:
                continue
            yield name
            return
    yield f"{common}-pid-{os.getpid()}"
