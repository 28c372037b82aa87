"""The addresses of a destination whose instances were moved, and the name of its link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raylay.services.config.instance import DestinationConfig
from raylay.services.replication.membership.placement import InstancePlacement, aimed


def resolve_addresses(
    destination: DestinationConfig, placements: Mapping[str, InstancePlacement]
) -> DestinationConfig:
    """Returns the destination with the present addresses of moved instances. A destination whose
    list names instances of another fabric stays as it is: their names are not known."""
    names = destination.server_names
    return replace(
        destination,
        addresses=aimed(
            names, destination.addresses, {n: p.address for n, p in placements.items()}
        ),
        client_addresses=aimed(
            names,
            destination.client_addresses,
            {name: place.client_address for name, place in placements.items()},
        ),
    )


def client_name(instance: str, destination: DestinationConfig) -> str:
    """Returns the client name of a link at the instance downstream (behaviour.md 1.9)."""
    kind = "sync" if destination.sync else "async"
    return f"{instance}!{destination.name}!{kind}!amps-replication"
