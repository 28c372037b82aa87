"""The risk of an administrator's action in live numbers: the same sentences for the console's
dialogs, for `/raylay/risk` and for the shell."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raylay.services.admin.actions import AdminAction, is_full
from raylay.services.admin.tree import Branch, Collection, Node
from raylay.services.security.control import ROOT


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """The leaf by which an action's effect is seen.

    Attributes:
        path: below the interface's root, percent-encoded: `amps/instance/…`.
        value: the text that it has afterwards; None: it is gone.
    """

    path: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ActionRisk:
    """The risk of an administrator's action.

    Attributes:
        sentences: the effects of the action, with their present costs and dangers.
        typed: the name that a person must type to confirm the action; empty: none.
        effect: the leaf that shows the action's effect; None: no leaf shows it.
        takes: the approximate time until the action has its effect, in words; empty: a moment, or
            not known.
        refused: why the instance will refuse it; empty: as far as the numbers tell, it will not.
    """

    sentences: tuple[str, ...]
    typed: str = ""
    effect: ActionEffect | None = None
    takes: str = ""
    refused: str = ""


def risk_of(action: AdminAction, instance: Branch) -> ActionRisk:
    """Returns the present risk of an action.

    Args:
        action: an action that `action_at` returned.
        instance: `/amps/instance`. A value that it lacks is left out of the sentences.
    """
    return _RISKS[action.call](action, _Instance(instance))


def shell_command(action: AdminAction, instance: str) -> str:
    """Returns the command of `raylay` that performs an action at an instance."""
    path = action.path.removeprefix(ROOT)
    command = _COMMANDS.get(action.call, "action {instance} {path}")
    words = {"instance": instance, "name": action.name, "path": path}
    quoted = {word: shlex.quote(text) for word, text in words.items()}
    return f"raylay {command.format_map(quoted)}"


def curl_command(action: AdminAction, interface: str, user: str = "") -> str:
    """Returns the command of curl that performs an action.

    Args:
        interface: the interface's root: `http://127.0.0.1:8085`.
        user: curl asks for the user's password; empty: none is needed.
    """
    who = f"-u {shlex.quote(user)} " if user else ""
    place = shlex.quote(interface.rstrip("/") + action.path)
    return f"curl -X POST -H 'X-Raylay: 1' {who}{place}"


_COMMANDS: Mapping[str, str] = {
    "downgrade": "downgrade {instance} {name}",
    "upgrade": "upgrade {instance} {name}",
    "reconnect": "reconnect {instance} {name}",
    "disconnect": "disconnect {name} --instance {instance}",
    "drop_reader": "reader drop {name} --any-user",
    "compact": "compact {instance} {name}",
    "dump": "diagnostics {instance}",
    "enable_proxied": "queue proxied {name} {instance}",
    "disable_proxied": "queue proxied {name} {instance} --off",
    "enable_transport": "transport enable {instance} {name}",
    "disable_transport": "transport disable {instance} {name}",
    "reset_authentication": "entitlement reset {instance} --authentication",
    "reset_entitlement": "entitlement reset {instance}",
    "admit": "admit {instance}",
}


# -- the numbers ---------------------------------------------------------------------------------
class _Instance:
    """The values of an instance's tree by their places; missing ones are None or empty."""

    def __init__(self, tree: Branch) -> None:
        self._tree = tree
        self.name = str(tree.get("name") or "the instance")

    def entries(self, *steps: str) -> Mapping[str, Branch]:
        node: Node = self._tree
        for step in steps:
            node = node.get(step) if isinstance(node, Mapping) else None
        return node.branches if isinstance(node, Collection) else {}

    def number(self, branch: Branch, *steps: str) -> float | None:
        node: Node = branch
        for step in steps:
            node = node.get(step) if isinstance(node, Mapping) else None
        if isinstance(node, bool) or not isinstance(node, int | float):
            return None
        return node

    def own(self, name: str) -> Any:
        own = self._tree.get("raylay")
        return own.get(name) if isinstance(own, Mapping) else None

    def log(self, name: str) -> Any:
        log = self._tree.get("transaction_log")
        own = log.get("raylay") if isinstance(log, Mapping) else None
        return own.get(name) if isinstance(own, Mapping) else None


def _count(number: float, one: str, many: str) -> str:
    return f"{number:,.0f} {one if number == 1 else many}"


def _owed(at: _Instance, destination: Branch) -> float | None:
    """Messages that a destination lacks."""
    found = at.number(destination, "raylay", "unacked")
    return at.number(destination, "raylay", "lag") if found is None else found


# -- the sentences -------------------------------------------------------------------------------
def _downgrade(action: AdminAction, at: _Instance) -> ActionRisk:
    name = action.name
    links = at.entries("replication")
    destination = links.get(name, {})
    owed = _owed(at, destination)
    sentences = [f"Acks at {at.name} stop waiting for {name}."]
    if owed:
        sentences.append(
            f"{_count(owed, 'message that', 'messages that')} {name} lacks "
            f"{'counts' if owed == 1 else 'count'} as acknowledged now; if {at.name}'s disk dies "
            f"{'it is' if owed == 1 else 'they are'} lost."
        )
    elif owed is None:
        sentences.append(
            f"Messages that {name} lacks count as acknowledged then; if {at.name}'s disk dies they "
            "are lost."
        )
    else:
        sentences.append(
            f"{name} lacks nothing now; what it lacks later is lost if {at.name}'s disk dies."
        )
    sentences.append(f"Clients may not fail over to {name}.")
    least = at.own("min_sync_destinations")
    sync = sum(1 for each in links.values() if each.get("replication_type") == "sync")
    left = sync - (destination.get("replication_type") == "sync")
    is_few = isinstance(least, int) and left < least
    if is_few:
        sentences.append(
            f"{_count(left, 'sync destination remains', 'sync destinations remain')}, and "
            f"min_sync_destinations is {least}: it is refused unless it is forced."
        )
    return ActionRisk(
        tuple(sentences),
        typed=name if is_few else "",
        effect=ActionEffect(_leaf("replication", name, "raylay/is_downgraded"), "true"),
    )


def _upgrade(action: AdminAction, at: _Instance) -> ActionRisk:
    name = action.name
    destination = at.entries("replication").get(name, {})
    owed = _owed(at, destination)
    rate = at.number(destination, "messages_out_per_sec")
    takes = ""
    text = f"Acks wait for {name} again"
    if owed:
        text += f": it owes {owed:,.0f}"
        if rate:
            takes = f"about {_duration(owed / rate)}"
            text += f", {takes}"
    elif owed is not None:
        text += ": it owes nothing"
    return ActionRisk(
        (f"{text}.",),
        effect=ActionEffect(_leaf("replication", name, "raylay/is_downgraded"), "false"),
        takes=takes,
    )


def _reconnect(action: AdminAction, at: _Instance) -> ActionRisk:
    destination = at.entries("replication").get(action.name, {})
    waits = destination.get("replication_type") == "sync"
    meanwhile = "publishers wait meanwhile" if waits else "its messages wait meanwhile"
    return ActionRisk(
        (f"The link begins again, {meanwhile}. Nothing is lost.",),
        effect=ActionEffect(_leaf("replication", action.name, "is_connected"), "true"),
    )


def _disconnect(action: AdminAction, at: _Instance) -> ActionRisk:
    client = at.entries("clients").get(action.name, {})
    name = client.get("client_name") or action.name
    sentences = [f"{name} may come back."]
    count = at.number(client, "subscription_count")
    if count:
        sentences.append(f"It has {_count(count, 'subscription', 'subscriptions')}.")
    sentences.append(
        "Its queue messages go to others; live subscriptions miss what comes meanwhile."
    )
    waiting = at.number(client, "raylay", "unacknowledged")
    if waiting:
        sentences.append(
            f"{_count(waiting, 'publish of it has', 'publishes of it have')} no ack yet: it "
            "publishes them again."
        )
    return ActionRisk(
        tuple(sentences), effect=ActionEffect(_leaf("clients", action.name, "client_name"), None)
    )


def _switch_transport(action: AdminAction, at: _Instance) -> ActionRisk:
    transport = at.entries("transports").get(action.name, {})
    is_on = action.call == "enable_transport"
    effect = ActionEffect(
        _leaf("transports", action.name, "is_enabled"), "true" if is_on else "false"
    )
    if is_on:
        return ActionRisk((f"{action.name} listens until {at.name} restarts.",), effect=effect)
    is_replication = str(transport.get("type", "")).startswith("amps-replication")
    one, many = ("instance", "instances") if is_replication else ("client", "clients")
    count = at.number(transport, "raylay", "connections")
    who = f"Its {many} are"
    if count is not None:
        who = _count(count, f"{one} is", f"{many} are")
    return ActionRisk((f"{who} cut off until it is enabled or {at.name} restarts.",), effect=effect)


def _maintain(action: AdminAction, at: _Instance) -> ActionRisk:
    journals = at.entries("transaction_log", "journals")
    journal = journals.get(action.name, {})
    refused = ""
    if journals and not journal and action.name != "all":
        refused = f"{at.name} has no journal {action.name}."
    elif journal and not is_full(journal):
        refused = f"{at.name} still writes journal {action.name}: only full ones are taken."
    if action.call != "remove":
        leaf = {"compress": "is_compressed", "archive": "is_archived"}[action.call]
        return ActionRisk(
            ("This and older segments; slower meanwhile.",),
            effect=ActionEffect(_leaf("transaction_log/journals", action.name, leaf), "true"),
            refused=refused,
        )
    text = "This and older segments, for good"
    until = journal.get("max_timestamp")
    if until:
        text += f"; no replay before {_day(str(until))}"
    sentences = [f"{text}."]
    last_txid = at.number(journal, "raylay", "last_txid")
    behind = [] if last_txid is None else _lacking(at, last_txid)
    if behind:
        who = ", ".join(f"{name} lacks {count:,.0f} of it" for name, count in behind)
        sentences.append(f"Refused while {who}.")
        refused = refused or sentences[-1]
    return ActionRisk(
        tuple(sentences),
        typed=action.name,
        effect=ActionEffect(_leaf("transaction_log/journals", action.name, "file_name"), None),
        refused=refused,
    )


def _lacking(at: _Instance, last_txid: float) -> list[tuple[str, float]]:
    """The destinations that lack entries of the log up to a transaction id, each with how many."""
    committed = at.log("committed_txid")
    found = []
    for name, each in at.entries("replication").items():
        lag = at.number(each, "raylay", "lag")
        if isinstance(committed, int) and lag and committed - lag < last_txid:
            found.append((name, last_txid - (committed - lag)))
    return found


def _proxied(action: AdminAction, at: _Instance) -> ActionRisk:
    is_on = action.call == "enable_proxied"
    text = (
        "Takes over messages of an owner out of reach. If that lives, work may be done twice. At "
        "one instance only."
        if is_on
        else "Messages of other instances are theirs again."
    )
    return ActionRisk(
        (text,),
        effect=ActionEffect(
            _leaf("queues", action.name, "proxied_transfer"), "true" if is_on else "false"
        ),
    )


def _admit(action: AdminAction, at: _Instance) -> ActionRisk:
    group = at.own("group")
    peers = [
        str(each.get("destination_name") or name)
        for name, each in at.entries("replication").items()
        if group and each.get("destination_group_name") == group
    ]
    who = ", ".join(peers) or "its peers"
    return ActionRisk(
        (f"Clients come in though {who} may hold acknowledged messages that are missing here.",),
        typed=at.name,
        effect=ActionEffect("amps/instance/raylay/ready", "true"),
    )


def _reset(action: AdminAction, at: _Instance) -> ActionRisk:
    count = len(at.entries("clients"))
    known = f" {at.name} has {_count(count, 'client', 'clients')} now." if count else ""
    return ActionRisk((f"Its users are disconnected and log on again.{known}",))


def _drop_reader(action: AdminAction, at: _Instance) -> ActionRisk:
    return ActionRisk(
        (
            f"Retention may remove messages that reader {action.name} has not read: it goes on "
            "behind them, or where its own place says.",
        )
    )


def _compact(action: AdminAction, at: _Instance) -> ActionRisk:
    return ActionRisk(("Slower meanwhile; the disk needs room for a second copy of the file.",))


def _run_action(action: AdminAction, at: _Instance) -> ActionRisk:
    return ActionRisk(
        (
            f"Begins what the configuration of {at.name} gives to this path: its steps may do "
            "whatever actions do.",
        )
    )


def _dump(action: AdminAction, at: _Instance) -> ActionRisk:
    return ActionRisk(("Writes the state of queues, links and clients to the log. No risk.",))


_RISKS: Mapping[str, Callable[[AdminAction, _Instance], ActionRisk]] = {
    "downgrade": _downgrade,
    "upgrade": _upgrade,
    "reconnect": _reconnect,
    "disconnect": _disconnect,
    "drop_reader": _drop_reader,
    "compact": _compact,
    "dump": _dump,
    "enable_proxied": _proxied,
    "disable_proxied": _proxied,
    "enable_transport": _switch_transport,
    "disable_transport": _switch_transport,
    "reset_authentication": _reset,
    "reset_entitlement": _reset,
    "compress": _maintain,
    "archive": _maintain,
    "remove": _maintain,
    "admit": _admit,
    "run_action": _run_action,
}


def _leaf(collection: str, name: str, leaf: str) -> str:
    step = AdminAction("disconnect", {"client": name}).path.split("/")[-2]
    return f"amps/instance/{collection}/{step}/{leaf}"


def _day(timestamp: str) -> str:
    """Returns the day of a documented timestamp as people write it: `2026-11-20`."""
    return f"{timestamp[:4]}-{timestamp[4:6]}-{timestamp[6:8]}"


def _duration(seconds: float) -> str:
    whole = max(1, math.ceil(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7_200:
        return f"{whole // 60} m"
    return f"{whole // 3_600} h"
