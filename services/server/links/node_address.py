"""An instance follows its node to another address.

A pod that restarts, a lease of DHCP, a cloud host that was replaced with its disk: the node that
holds the data comes back with another address than the instance was configured for by a driver that
is gone. It listens where the node is now, and says so as a moved instance does (announcer.py).
"""

from __future__ import annotations

import errno
import socket
from dataclasses import replace

from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.config.transport import TransportConfig


def following(config: InstanceConfig, address: str) -> InstanceConfig:
    """The configuration at the address that the node has now. The same object where nothing is to
    be followed: the instance was given its hosts, or this machine still has the former address.

    Args:
        address: as Ray knows the node; empty: there is no Ray.
    """
    former = config.node_address
    if not former or not address or address == former or is_own(former):
        return config

    def advertised(given: str | None) -> str | None:
        if given is None:
            return None
        host, port = split_address(given)
        return f"{shown(address)}:{port}" if host == former else given

    def host(given: str) -> str:
        return address if given == former else given

    def moved(transport: TransportConfig) -> TransportConfig:
        shown_as = advertised(transport.advertised)
        return replace(transport, host=host(transport.host), advertised=shown_as)

    return replace(
        config,
        client_transports=tuple(map(moved, config.client_transports)),
        replication_transports=tuple(map(moved, config.replication_transports)),
        metrics_host=host(config.metrics_host),
    )


def is_own(host: str) -> bool:
    """Returns whether this machine has that address. A name that is not known here is left to who
    binds it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def shown(host: str) -> str:
    """Returns the host as it stands in `host:port`."""
    return f"[{host}]" if ":" in host else host


def listen_advice(error: OSError) -> str:
    """Returns what to do where an address cannot be listened on."""
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address: correct the host, and `raylay apply FILE`"
    return "is the port in use?"
