"""Checks that a link leaves out (docs/fabric.md): those that its file excludes, else those that the
shape of the fabric makes impossible.

A fabric in Python or YAML shows all its links at once, so a link without a way back is meant that
way, not forgotten. Where a destination's file does not say which checks to leave out:

- `replicate` and `cascade` are left out where none of its instances replicates back, but for the
  queues that it has in common with one of them: each side has to know what the other does with a
  message;
- `queue_passthrough` is left out where every instance of its instance's group has links of its own
  to the same instances, and each region sends on only its own messages: no instance has to pass on
  messages of queues;
- `cascade` is left out where one of its instances leaves out more at a destination of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace

from raylay.services.config.compared_terms import queue_terms
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
    TopicSettings,
)
from raylay.services.configuration.topology import shares, waited_for
from raylay.services.messages.topics import TopicMatcher, TopicRule, compile_regex

Link = tuple[str, str]
"""Instance, destination."""

ONE_WAY = frozenset(("replicate", "cascade"))
_CASCADE = frozenset(("cascade",))
_PASSED_BY_NOBODY = frozenset(("queue_passthrough",))


def exclusions(settings: FabricSettings) -> dict[Link, frozenset[str]]:
    """Returns, for each destination, the checks that its topics leave out where they name none
    themselves."""
    targets = {
        (instance.name, destination.name): destination.to
        # Any member of its group that connects.
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
        # A link without targets waits for another fabric's instance, which then replicates to it.
        is_one_way = bool(targets[link]) and not any(
            (target, instance.name) in ways or ":" in target for target in targets[link]
        )
        found[link] = ONE_WAY if is_one_way else frozenset()
        if _brings_itself(settings, instance, link, targets):
            found[link] |= _PASSED_BY_NOBODY
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


def _brings_itself(
    settings: FabricSettings,
    instance: InstanceSettings,
    link: Link,
    targets: Mapping[Link, tuple[str, ...]],
) -> bool:
    """Returns whether some instances that a link leads to do not pass on messages from its
    instance's group, and need not: that group has links of its own to the same instances."""
    group = instance.group
    queues = [
        (each.name.encode(), each.message_type.encode())
        for each in queue_terms(settings.queues_of(instance))
        if each.kind != "local"
    ]
    if not queues or not targets[link] or any(":" in target for target in targets[link]):
        return False
    members = [each for each in settings.instances if each.group == group]
    found = False
    for name in targets[link]:
        for onward in settings.instance(name).destinations:
            if compile_regex(onward.pass_through or "^$", "PassThrough").search(group):
                continue
            if not any(TopicMatcher(_rules(onward)).matches(*topic) for topic in queues):
                continue  # To it they are topics like others: an archive's, for one.
            to = set(targets[name, onward.name])
            if to == {instance.name}:
                continue  # what came from there never goes back
            if not onward.own_group_only or not to:
                return False
            led = (
                to <= {each.name}.union(*(targets[each.name, d.name] for d in each.destinations))
                for each in members
            )
            if not all(led):
                return False
            found = True
    return found


def _rules(destination: DestinationSettings) -> tuple[TopicRule, ...]:
    return tuple(TopicRule(each.name, each.message_type) for each in destination.topics)


def topic_rule(topic: TopicSettings, excluded: frozenset[str]) -> TopicRule:
    """Returns the rule of a destination's topic. `excluded`: the checks that `exclusions` leaves
    out for the destination; they apply where the topic names none itself."""
    mine = topic.exclude_validation
    return TopicRule(
        topic.name,
        topic.message_type,
        topic.filter,
        include_validation=topic.include_validation,
        exclude_validation=tuple(sorted(excluded)) if mine is None else mine,
    )


def topic_rules(
    settings: FabricSettings,
    instance: InstanceSettings,
    destination: DestinationSettings,
    excluded: frozenset[str],
) -> tuple[TopicRule, ...]:
    """Returns the rules of a destination's topics. `excluded`: the checks that `exclusions` leaves
    out for the destination.

    Queues that both ends share keep the check `replicate` even where `exclusions` leaves it out by
    itself: they get rules of their own, in front of the rules that would take them without it.
    """
    found = tuple(topic_rule(topic, excluded) for topic in destination.topics)
    if destination.exclude_validation is not None or "replicate" not in excluded:
        return found
    own: list[TopicRule] = []
    for queue in settings.queues_of(instance):
        if not queue.is_distributed or not any(
            shares(settings, instance, queue, name)
            for name in destination.to or waited_for(settings, instance, destination)
        ):
            continue
        for topic, rule in zip(destination.topics, found, strict=True):
            taken = TopicMatcher((TopicRule(topic.name, topic.message_type),))
            if topic.exclude_validation is None and taken.matches(
                queue.name.encode(), queue.message_type.encode()
            ):
                kept = tuple(sorted(excluded - {"replicate"}))
                own.append(
                    replace(
                        rule,
                        name=queue.name,
                        message_type=queue.message_type,
                        exclude_validation=kept,
                    )
                )
                break
    names = {(rule.name, rule.message_type) for rule in own}
    return (*own, *(rule for rule in found if (rule.name, rule.message_type) not in names))


def server_names(destination: DestinationSettings) -> tuple[str, ...]:
    """Returns the instances that a destination may reach; empty if it may reach an instance of
    another fabric."""
    known = not any(":" in target for target in destination.to)
    return destination.to if known else ()
