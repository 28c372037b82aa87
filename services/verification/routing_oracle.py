"""The documented rules of routing, written a second time for the checkers.

The code that production asks when it sends (services/replication/link/routing.py) must not judge
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
    """Returns whether a Topic element takes messages of a topic and type. A name with a regex
    character is a regular expression, which may match anywhere in the topic."""
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
    """Returns whether a Topic element takes a message, its content included."""
    if not takes(rule, topic, message_type):
        return False
    return not rule.filter or passes_filter is None or passes_filter(rule.filter)


def passes(
    destination: DestinationRoute, groups: Sequence[str], sender_group: str, own_group: str
) -> bool:
    """Returns whether a message that came by replication may go on. PassThrough is an expression
    over the group of the instance that sent it here; without one the message does not go on.
    `own_group_only` also requires that it was never in another group.

    Args:
        groups: the groups of all instances that it came through.
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
        path: the incarnations that it came through, first the one where it was published; empty: it
            was published here.
        groups: the groups of those incarnations.
        sender_group: the group of the last one when it sent the message.
        downstream: the incarnation that would receive it; 0: not known yet.
        passes_filter: whether the message passes a filter as it is written; None: there are no
            filters.
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
    """Returns whether a resync sends a message that came by replication and is not routed.
    ResyncPassThrough is an expression over the group of the instance that sent it here."""
    found = destination.resync_pass_through
    return (
        found is not None
        and re.search(found, sender_group) is not None
        and any(_carries(rule, topic, message_type, passes_filter) for rule in destination.topics)
    )


def carries_everything(destination: DestinationRoute, journaled: Sequence[TopicRule]) -> bool:
    """Returns whether every message in an instance's journal goes to a destination and is stored
    there, except those that came from there: all topics, types, contents and senders.

    Args:
        journaled: the topics of the instance's transaction log. They are compared as they are
            written, so two ways to write the same pattern count as different.
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
