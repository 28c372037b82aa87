"""The description of an instance at a link's logon, taken from its configuration."""

from __future__ import annotations

from raylay.services.config.compared_terms import queue_terms, sow_terms
from raylay.services.config.instance import InstanceConfig
from raylay.services.replication.membership.validation import DestinationTerms, InstanceDescription


def describe(config: InstanceConfig, destination: str | None = None) -> InstanceDescription:
    """Describes an instance, with one of its destinations or with all of them."""
    return InstanceDescription(
        config.name,
        config.group,
        config.topics,
        tuple(
            DestinationTerms(
                each.name, each.group, each.topics, each.pass_through, each.server_names
            )
            for each in config.destinations
            if destination in (None, each.name)
        ),
        sow_terms(config.sow),
        queue_terms(config.queue_definitions),
    )
