"""An instance follows its node to another address.

After a restart of a pod, a change of a DHCP lease, or the replacement of a cloud host, the node
that holds the data may have another address than the instance was configured for by a driver that
is gone. The instance listens at the node's present address, and announces it as a moved instance
does (announcer.py).
"""

from __future__ import annotations

import errno
import socket
from dataclasses import replace

from raylay.services.config.instance import InstanceConfig, split_address
from raylay.services.config.transport import TransportConfig


def following(config: InstanceConfig, address: str) -> InstanceConfig:
    """The configuration with the node's present address. The same object where there is nothing to
    follow: the instance was given its hosts, or this machine still has the former address.

    Args:
        address: the node's address as Ray knows it; empty: there is no Ray.
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
    """Returns whether this machine has that address. True for a name that cannot be resolved here:
    binding it will tell."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def shown(host: str) -> str:
    """Returns the host in the form that `host:port` needs."""
    return f"[{host}]" if ":" in host else host


def listen_advice(error: OSError) -> str:
    """Returns advice for an address that cannot be listened on."""
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address: correct the host, and `raylay apply FILE`"
    return "is the port in use?"
