"""A sign of life of Ray's head, asked without Ray: its own calls wait for minutes."""

from __future__ import annotations

import socket


def answers_as_head(address: str, timeout_s: float) -> bool:
    """Returns whether something that lives listens at the address of Ray's head. A head that stands
    still accepts a connection, and says nothing.

    Args:
        address: `host:port`; anything else is not judged here.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as probe:
            probe.settimeout(timeout_s)
            # The beginning of HTTP/2, on which gRPC answers at once. A head with TLS ends it: that
            # is an answer, too.
            probe.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            probe.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
