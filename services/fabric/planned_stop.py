"""Planned stops of instances: the links that rest meanwhile, the reasons against a stop, and the
messages that an instance must have handed over before it goes.

Values in, values out: the fabric's settings, the instances that are stopped, and the statuses that
the others tell. `services/fabric/maintenance.py` asks and acts.

An instance may be stopped when its messages stay within reach: each destination has stored all of
them, or one instance of its group that gets everything has. It may be removed when every
destination has stored all of them and no shared queue has a message that the instance owns, because
nobody else could deliver it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)

ALL = ".*"
Link = tuple[str, str]
"""The names of an instance and of one of its destinations."""


@dataclass(frozen=True, slots=True)
class PlannedStop:
    """The plan of a stop.

    Attributes:
        name: name of the instance.
        downgrades: links whose acks stop waiting, because they reach nobody else.
        against: reasons against the stop, a phrase each; empty: there are none.
        is_ready: whether the instance is ready, so that it can tell what others lack of it.
        leaves: whether the instance is removed from the fabric.
    """

    name: str
    downgrades: tuple[Link, ...]
    against: tuple[str, ...]
    is_ready: bool = True
    leaves: bool = False

    def refusal(self) -> str:
        """Returns why the instance is not stopped; empty: it may be."""
        if not self.against:
            return ""
        verb = "removed" if self.leaves else "stopped"
        return (
            f"instance {self.name} is not {verb}: {'; '.join(self.against)}. It goes on as before; "
            f"with --force it is {verb} all the same"
        )


# -- links -----------------------------------------------------------------------------------------
def reached(
    settings: FabricSettings, instance: InstanceSettings, destination: DestinationSettings
) -> frozenset[str]:
    """Returns the instances that a destination may reach. Empty: it reaches another fabric, too,
    and nothing is known of that one."""
    named = (*destination.to, *destination.waits_for)
    if any(":" in each for each in named):
        return frozenset()
    if destination.to:
        return frozenset(named)
    # One that waits to be dialled names the group of those that may come.
    members = (each.name for each in settings.instances if each.group == destination.group)
    return frozenset(members) - {instance.name}


def links_at_rest(settings: FabricSettings, stopped: Collection[str]) -> frozenset[Link]:
    """Returns the links that cannot catch up as long as these instances are stopped: their own, and
    those that reach nobody else."""
    if not stopped:
        return frozenset()
    gone = frozenset(stopped)
    found = set()
    for instance, destination in settings.links():
        servers = reached(settings, instance, destination)
        if instance.name in gone or (servers and servers <= gone):
            found.add((instance.name, destination.name))
    return frozenset(found)


def waiting_links(
    settings: FabricSettings, name: str, stopped: Collection[str]
) -> tuple[Link, ...]:
    """Returns the sync links of running instances that reach only stopped instances once this
    instance is stopped, and not before: those that are downgraded by its stop, and upgraded when it
    is started."""
    others = frozenset(stopped) - {name}
    newly = links_at_rest(settings, {*others, name}) - links_at_rest(settings, others)
    return tuple(
        (instance.name, destination.name)
        for instance, destination in settings.links()
        if destination.sync
        and instance.name != name
        and instance.name not in others
        and (instance.name, destination.name) in newly
    )


def links_between(settings: FabricSettings, name: str, ready: Collection[str]) -> list[Link]:
    """Returns the links from and to an instance whose other side is ready, too: the others cannot
    catch up."""
    found = []
    for instance, destination in settings.links():
        ends = {instance.name, *destination.to}
        if name in ends and ends <= set(ready):
            found.append((instance.name, destination.name))
    return found


# -- decisions -------------------------------------------------------------------------------------
def plan_stop(
    settings: FabricSettings,
    name: str,
    stopped: Collection[str],
    statuses: Iterable[Mapping[str, Any]],
    leaving: Collection[str] = (),
) -> PlannedStop:
    """Plans the stop of one instance.

    Args:
        stopped: instances that are stopped.
        statuses: statuses of all instances, as `Fabric.status` tells them.
        leaving: instances that are removed, if this one is one of them; empty: it stays.

    Raises:
        ConfigurationError: there is no such instance.
    """
    known = {str(each["name"]): each for each in statuses}
    instance = settings.instance(name)
    downgrades = waiting_links(settings, name, stopped)
    against: list[str] = []
    mine = known.get(name, {})
    if not mine.get("ready"):
        why = str(mine.get("reason") or mine.get("phase") or "it does not answer")
        against.append(f"it is not ready ({why}), and may have messages that no other instance has")
    else:
        against += not_handed_over(settings, name, stopped, mine, leaving)
    leaves = {name, *leaving}
    others = [each.name for each in settings.group(instance.group) if each.name not in leaves]
    if (others or not leaving) and not any(known.get(each, {}).get("ready") for each in others):
        against.append(
            f"no other instance of group {instance.group} is ready, so clients of the group would "
            "wait until it is started again"
        )
    against += _too_few(settings, downgrades, known)
    is_ready = bool(mine.get("ready"))
    return PlannedStop(name, downgrades, tuple(against), is_ready, bool(leaving))


def not_handed_over(
    settings: FabricSettings,
    name: str,
    stopped: Collection[str],
    status: Mapping[str, Any],
    leaving: Collection[str] = (),
    *,
    up_to_txid: int = 0,
) -> list[str]:
    """Returns the destinations that lack messages of an instance, a phrase each. Empty: enough of
    them have everything.

    Args:
        stopped: instances that are stopped.
        status: status of the instance.
        leaving: instances that are removed: if this one is one of them, every destination must have
            everything, except those that reach only others of them which are stopped. Empty: one
            destination is enough that reaches only the instance's own group and gets every message;
            of the others, those that reach only stopped instances do not count.
        up_to_txid: transaction id up to which destinations must have stored the log of the
            instance: its last one after it was closed to clients. What comes later comes from
            others, and is there. 0: it is enough that the links have caught up.
    """
    instance = settings.instance(name)
    told = status.get("destinations", {})
    gone = [each for each in stopped if each != name and (not leaving or each in leaving)]
    resting = links_at_rest(settings, gone)
    lacking: list[str] = []
    whole = False
    waited_for = [each for each in instance.destinations if (name, each.name) not in resting]
    for destination in waited_for:
        found = told.get(destination.name, {})
        left = up_to_txid - int(found.get("stored_txid", 0))
        if found.get("caught_up") and left <= 0:
            whole |= _keeps_all(settings, instance, destination)
        elif found.get("caught_up"):
            entries = "entry" if left == 1 else f"{left:,} entries"
            lacking.append(f"{destination.name} has not stored the last {entries} of its log")
        else:
            why = str(found.get("why") or "its link has not caught up")
            lacking.append(f"{destination.name} may lack messages of it: {why}")
    if not waited_for and len(settings.instances) > 1:
        return ["none of its destinations runs, so no other instance gets its messages"]
    return lacking if leaving or not whole else []


def _keeps_all(
    settings: FabricSettings, instance: InstanceSettings, destination: DestinationSettings
) -> bool:
    """Returns whether a destination gets every message of an instance, in its own group."""
    servers = reached(settings, instance, destination)
    groups = {each.name: each.group for each in settings.instances}
    return (
        bool(servers)
        and all(groups.get(each) == instance.group for each in servers)
        and destination.pass_through == ALL
        and not destination.own_group_only
        and any(
            (each.name, each.message_type, each.filter) == (ALL, "*", "")
            for each in destination.topics
        )
    )


def _too_few(
    settings: FabricSettings, downgrades: Sequence[Link], known: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Returns the instances that would have fewer sync destinations than their policy asks for."""
    fewer: dict[str, int] = {}
    for name, destination in downgrades:
        told = known.get(name, {}).get("destinations", {})
        fewer[name] = fewer.get(name, 0) + bool(told.get(destination, {}).get("sync"))
    found = []
    for name, count in fewer.items():
        told = known.get(name, {}).get("destinations", {})
        syncs = sum(bool(each.get("sync")) for each in told.values())
        least = settings.downgrade_of(settings.instance(name)).min_sync_destinations
        if count and syncs - count < least:
            found.append(
                f"{name} would have {syncs - count} destinations with sync acknowledgment, and "
                f"MinSyncDestinations is {least}"
            )
    return found


def queues_owned(settings: FabricSettings, name: str, status: Mapping[str, Any]) -> list[str]:
    """Returns a phrase on each shared queue of whose messages an instance owns some: their number,
    and what to do. Only the owner of a message delivers it."""
    told = status.get("queues", {})
    found = []
    for queue in settings.queues_of(settings.instance(name)):
        if not queue.is_distributed:
            continue
        figures = told.get(queue.stored_as, {})
        keys = ("available_here", "inactive_message_count", "backlog")
        if figures.get("available_here") is None:
            found.append(f"queue {queue.name} does not tell how many messages it has")
        elif owned := sum(int(figures.get(key) or 0) for key in keys):
            plural = "" if owned == 1 else "s"
            typed = "" if queue.message_type == "json" else f" --type {queue.message_type}"
            found.append(
                f"queue {queue.name} has {owned:,} message{plural} that {name} owns: consumers at "
                f"any instance take them over, and `raylay queue expire {shlex.quote(queue.name)} "
                f'--filter "1=1"{typed}` drops them'
            )
    return found
