"""Finds links that instances would refuse at their logon (seed: "Replication Configuration
Validation"; behaviour.md 1.5), from the files, before anything runs.

In a large fabric most pairs look alike to the checks, so equal pairs are checked once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raylay.services.replication.membership.validation import (
    DestinationTerms,
    InstanceDescription,
    ValidationFailure,
    check,
)
from raylay.services.topology.check import TopologyFinding, listed

Link = tuple[str, DestinationTerms, tuple[str, ...]]
"""An instance, a destination of it, and the instances that the destination may reach."""


def validate_links(
    descriptions: Mapping[str, InstanceDescription], links: Iterable[Link]
) -> list[TopologyFinding]:
    """Returns a finding for each check that fails at a destination, for all servers and topics with
    the same result.

    Args:
        descriptions: the description of every instance of the fabric, by name.
        links: the links to check. Servers without a description belong to another fabric and are
            left out.
    """
    shapes = {name: _Shape(description) for name, description in descriptions.items()}
    clean: set[tuple[object, ...]] = set()
    found: list[TopologyFinding] = []
    for name, terms, servers in links:
        upstream = descriptions[name]
        mine = InstanceDescription(
            name, upstream.group, upstream.log, (terms,), upstream.sow, upstream.queues
        )
        failures: dict[tuple[str, str], list[tuple[str, ValidationFailure]]] = {}
        for server in servers:
            if server not in descriptions:
                continue
            key = (
                terms.topics,
                upstream.log,
                upstream.sow,
                *shapes[server].towards(upstream),
            )
            if not upstream.queues and key in clean:
                continue
            failed = check(terms, mine, descriptions[server])
            if not failed:
                clean.add(key)
            for failure in failed:
                # The other servers of a list mostly fail alike: only their names differ.
                alike = failure.text.replace(server, "")
                failures.setdefault((failure.check, alike), []).append((server, failure))
        found += [_finding(name, terms, alike) for alike in failures.values()]
    return found


def _finding(
    name: str, terms: DestinationTerms, alike: list[tuple[str, ValidationFailure]]
) -> TopologyFinding:
    servers = tuple(dict.fromkeys(server for server, _ in alike))
    failure = alike[0][1]
    what, _, change = failure.text.partition(": ")
    also = f" (so with {listed(servers[1:])})" if servers[1:] else ""
    return TopologyFinding(
        "error",
        "refused",
        (name, *servers),
        failure.topic,
        f"destination {terms.name} of {name} will not connect to {listed(servers)}: check "
        f"{failure.check} fails: {what}",
        change + also,
    )


class _Shape:
    """The properties of a downstream instance that the checks read: its log, its definitions, the
    topics that its destinations carry, and those that come back. Equal shapes give equal
    results."""

    def __init__(self, description: InstanceDescription) -> None:
        self._common = (
            description.log,
            description.sow,
            frozenset(terms.topics for terms in description.destinations),
        )
        self._by_group: dict[str, list[DestinationTerms]] = {}
        for terms in description.destinations:
            self._by_group.setdefault(terms.group, []).append(terms)

    def towards(self, upstream: InstanceDescription) -> tuple[object, ...]:
        reaching = [
            (terms.topics, terms.name, terms.servers)
            for terms in self._by_group.get(upstream.group, ())
            if not terms.servers or upstream.name in terms.servers
        ]
        named = [each for each in reaching if upstream.name in (*each[2], each[1])]
        return (*self._common, tuple(topics for topics, _, _ in named or reaching))
