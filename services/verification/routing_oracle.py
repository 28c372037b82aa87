"""The rules of the documents about what goes where, said a second time for the checkers.

What production asks when it sends (services/replication/link/routing.py) must not be what judges
whether it sent enough: a mistake there would be invisible here. So nothing of it is used, nothing
is cached or prepared, and each sentence of the documents is one function (design.md 4, "Routed";
the reference's chapter on a Destination's elements and on message routing).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute

_IN_NO_NAME = set("^$*+?()[]{}|\\")


def takes(rule: TopicRule, topic: str, message_type: str) -> bool:
    """Returns whether a Topic element takes messages of a topic and type. A name with a character
    that only expressions have is one, and it is searched for anywhere in the topic."""
    if rule.message_type not in ("*", message_type):
        return False
    if _IN_NO_NAME & set(rule.name):
        return re.search(rule.name, topic) is not None
    return rule.name == topic


def _carries(
    rule: TopicRule,
    topic: str,
    message_type: str,
    passes_filter: Callable[[str], bool] | None,
) -> bool:
    """Returns whether a Topic element takes a message, content and all."""
    if not takes(rule, topic, message_type):
        return False
    return not rule.filter or passes_filter is None or passes_filter(rule.filter)


def passes(
    destination: DestinationRoute, groups: Sequence[str], sender_group: str, own_group: str
) -> bool:
    """Returns whether what came by replication may go on: PassThrough is an expression over the
    group of the instance that sent it here, and without one nothing goes on. `own_group_only` asks
    besides that it never was in another group.

    Args:
        groups: of all instances that it came through.
    """
    if destination.pass_through is None or not re.search(destination.pass_through, sender_group):
        return False
    return not destination.own_group_only or all(group == own_group for group in groups)


def is_routed(
    destination: DestinationRoute,
    topic: str,
    message_type: str,
    path: Sequence[int],
    groups: Sequence[str],
    sender_group: str,
    own_group: str,
    downstream: int,
    passes_filter: Callable[[str], bool] | None = None,
) -> bool:
    """Returns whether a journaled message goes to a destination.

    Args:
        path: the incarnations that it came through, the one where it was published first; empty
            where it was published here.
        groups: theirs.
        sender_group: that of the last one, as it was when it sent the message.
        downstream: the incarnation that would receive it; 0 while that is not known.
        passes_filter: whether it passes a filter as it is written; None: no filter runs.
    """
    if not any(_carries(rule, topic, message_type, passes_filter) for rule in destination.topics):
        return False
    if not path:
        return True
    return downstream not in path and passes(destination, groups, sender_group, own_group)


def is_let_on(
    destination: DestinationRoute,
    topic: str,
    message_type: str,
    sender_group: str,
    passes_filter: Callable[[str], bool] | None = None,
) -> bool:
    """Returns whether a resync sends what came by replication and is not routed: ResyncPassThrough
    is an expression over the group of the instance that sent it here."""
    found = destination.resync_pass_through
    return (
        found is not None
        and re.search(found, sender_group) is not None
        and any(_carries(rule, topic, message_type, passes_filter) for rule in destination.topics)
    )


def carries_everything(destination: DestinationRoute, journaled: Sequence[TopicRule]) -> bool:
    """Returns whether whatever is journaled at an instance goes to a destination and is stored
    there, but for what came from there: all its topics, types and contents, whoever sent them.

    Args:
        journaled: the topics of its transaction log. Compared as they are written: two ways to
            write the same are two to this function.
    """
    whole = {
        rule.name
        for rule in destination.topics
        if rule.message_type == "*" and not rule.filter and "txlog" not in rule.exclude_validation
    }
    return (
        (".*" in whole or {rule.name for rule in journaled} <= whole)
        and destination.pass_through == ".*"
        and not destination.own_group_only
    )
