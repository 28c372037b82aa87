"""Which checks of a link are left out (docs/fabric.md): those that its file excludes, else those
that the shape of the fabric makes impossible.

A fabric in Python or YAML shows all its links at once, so a link without a way back is meant that
way, not forgotten. Where nothing is said of a destination:

- `replicate` and `cascade` are left out where none of its instances replicates back;
- `cascade` is left out where one of its instances leaves out more at a destination of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque

from raylay.services.configuration.model import DestinationSettings, FabricSettings, TopicSettings
from raylay.services.configuration.topology import waited_for
from raylay.services.messages.topics import TopicRule

Link = tuple[str, str]
"""Instance, destination."""

ONE_WAY = frozenset(("replicate", "cascade"))
_CASCADE = frozenset(("cascade",))


def exclusions(settings: FabricSettings) -> dict[Link, frozenset[str]]:
    """For each destination the checks that its topics leave out unless they say so themselves."""
    targets = {
        (instance.name, destination.name): destination.to
        # Whoever of its group connects.
        or waited_for(settings, instance, destination)
        for instance, destination in settings.links()
    }
    ways = {(name, target) for (name, _), names in targets.items() for target in names}
    # Destinations by the instances that they lead to.
    leading: dict[str, list[Link]] = defaultdict(list)
    found: dict[Link, frozenset[str]] = {}
    automatic: set[Link] = set()
    for instance, destination in settings.links():
        link = (instance.name, destination.name)
        for target in targets[link]:
            leading[target].append(link)
        if destination.exclude_validation is not None:
            found[link] = frozenset(destination.exclude_validation)
            continue
        automatic.add(link)
        # Without targets it waits for another fabric's, which then replicates to it.
        is_one_way = bool(targets[link]) and not any(
            (target, instance.name) in ways or ":" in target for target in targets[link]
        )
        found[link] = ONE_WAY if is_one_way else frozenset()
    # What its topics say counts for those upstream as well.
    relaxed = {
        (instance.name, destination.name): found[instance.name, destination.name].union(
            *(topic.exclude_validation or () for topic in destination.topics)
        )
        for instance, destination in settings.links()
    }
    pending = deque(link for link, excluded in relaxed.items() if excluded)
    while pending:
        onward = pending.popleft()
        for link in leading[onward[0]]:
            if link not in automatic or "cascade" in found[link]:
                continue
            if relaxed[onward] - found[link]:
                found[link] |= _CASCADE
                relaxed[link] |= _CASCADE
                pending.append(link)
    return found


def topic_rule(topic: TopicSettings, excluded: frozenset[str]) -> TopicRule:
    """The rule of a destination's topic; `excluded`: of the destination, from `exclusions`."""
    mine = topic.exclude_validation
    return TopicRule(
        topic.name,
        topic.message_type,
        topic.filter,
        include_validation=topic.include_validation,
        exclude_validation=tuple(sorted(excluded)) if mine is None else mine,
    )


def server_names(destination: DestinationSettings) -> tuple[str, ...]:
    """The instances that a destination may reach; none where another fabric's are among them."""
    known = not any(":" in target for target in destination.to)
    return destination.to if known else ()
