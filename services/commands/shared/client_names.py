"""The client names of commands that publish, where the user gives none.

An instance remembers each name that ever published, for good. So a command takes a name that an
earlier one of this host and user has given back, and numbers on where that one ended; commands that
run at once have names of their own. A name is held as an abstract socket, which ends with the
process, and which all processes of a host see, whatever directory for temporary files they have.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE_MAX = 1_000
"""Commands of one user and kind; more have names by their process ids."""


@contextmanager
def client_name(command: str) -> Iterator[str]:
    """A name that no other command of this host has meanwhile."""
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
