"""`raylay status`, `list`, `topics` and `subscribers`."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import (
    FabricOption,
    HttpOption,
    JsonOption,
)
from raylay.services.commands.shared.printing import (
    FittingTable,
    echo,
    echo_json,
    print_rich,
    print_table,
)
from raylay.services.errors import FabricError, RaylayError

if TYPE_CHECKING:
    from raylay.services.fabric.locks import LockOwner
    from raylay.services.fabric.records.stopped import StoppedFabric
    from raylay.services.fabric.topics import TopicRow
    from raylay.services.messages.topic_totals import TopicTotal

STATUS_COLUMNS = (
    "instance", "group", "state", "clients", "messages", "notes", "destination", "address", "mode",
    "unacked", "age",
)  # fmt: skip
VIEW_WAITS_SHOWN = 10_000
"""Updates that a view has not applied from which the status names it."""
RATE_S = 1.0
"""Time between the two looks from which a rate is computed."""
SUBSCRIBER_COLUMNS = ("instance", "client", "topic", "reads", "delivered", "behind", "unsent")
SUBSCRIBER_NUMBERS = frozenset(("delivered", "behind", "unsent"))
STATUS_NUMBERS = frozenset(("clients", "messages", "notes", "unacked", "age"))
STATUS_OPTIONAL = ("address", "notes", "group", "age", "clients", "messages")
"""Columns that are left out on a narrow terminal, the first one first."""
TOPIC_COLUMNS = (
    "topic", "type", "messages", "size", "oldest", "newest", "rate", "journaled by",
)  # fmt: skip
TOPIC_OPTIONAL = ("oldest", "journaled by", "type", "newest", "rate")


def status(
    fabric: FabricOption = "",
    as_json: JsonOption = False,
    watched: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Look again and again until Ctrl-C: in place on a terminal, elsewhere a line for "
            "each change. One fabric.",
        ),
    ] = False,
    interval_s: Annotated[
        float,
        typer.Option("--interval", min=0.2, max=3600, help="Seconds between two looks of --watch."),
    ] = 2.0,
    http: HttpOption = None,
) -> None:
    """Show every instance and its destinations, of all fabrics that run here or of one. Exit code 1
    if an instance is neither ready nor stopped by `raylay stop`.

    With --json an object a fabric and line, with --watch an object a change. The columns:

    \b
    state        ready, or what it does or waits for instead; stopped: by
                 `raylay stop`
    clients      connections to it now
    messages     that its journal has; notes: its own entries between them, and
                 the acknowledgments and other records of queues
    destination  an instance, or one of several, that gets what this one logs
    address      the address dialled, or over whose connection
    mode         sync: acks wait for it; async: they do not; downgraded: they
                 should and do not for now, since it is behind or away
    unacked      messages sent or kept for it that it has not acknowledged
    age          of the oldest of these

    Below the table stand what is wrong, and what waits for slow clients:
    of each pool what they take of its limits, and who is offline.
    """
    from raylay.services.fabric.records.discovery import NONE_RUNS, all_running

    if watched:
        from raylay.services.commands.status_watch import watch_status

        with controlled(fabric, http) as attached:
            watch_status(
                attached.status,
                lambda found: (status_table(found), status_lines(found)),
                status_facts,
                interval_s=interval_s,
                as_json=as_json,
                now_us=lambda: time.time_ns() // 1_000,
            )
        return
    if http:
        with controlled("", http) as named:
            found = named.status()
        print_status(found, as_json)
        if not all(map(is_as_meant, found["instances"])):
            raise typer.Exit(1)
        return
    entries = all_running(fabric)
    begun, idle = ([], []) if fabric else _begun_and_idle()
    if not entries and not idle:
        raise FabricError(NONE_RUNS)
    whole = bool(entries)
    for entry in entries:
        try:
            with controlled(entry.name, None) as attached:
                found = attached.status()
        except RaylayError as error:
            if len(entries) == 1:
                raise
            # One that cannot be asked does not hide the others.
            echo(f"raylay: fabric {entry.name}: {error}", err=True)
            whole = False
            continue
        print_status(found, as_json)
        whole &= all(map(is_as_meant, found["instances"]))
    for owner in begun if not as_json else ():
        echo(f"fabric {owner.fabric} is starting, in {owner.directory} (process {owner.pid})")
    for each in idle if not as_json else ():
        echo(
            f"fabric {each.name} is stopped; its data is in {each.directory}: start it with "
            f"`{each.command}`"
        )
    if not whole:
        raise typer.Exit(1)


def subscribers(
    fabric: FabricOption = "", as_json: JsonOption = False, http: HttpOption = None
) -> None:
    """Show the subscribers of each instance, and how far behind each is.

    With --json an object a subscription and line. The columns:

    \b
    topic      as it was asked for: a name, or an expression
    reads      log: it reads the log at its own pace; new: it gets what is
               published while it is connected; conflated, paginated,
               aggregated: it gets less of that, as it asked
    delivered  messages that it was given since it connected
    behind     entries of the log, of any topic, not looked at for it yet
    unsent     bytes that its client has not taken: many, and for long, are
               a slow client
    """
    with controlled(fabric, http) as attached:
        found = attached.status()
    rows = [
        {"instance": instance["name"], **each}
        for instance in found["instances"]
        for each in instance.get("subscribers", [])
    ]
    if as_json:
        for row in rows:
            echo_json(row)
        return
    if not rows:
        echo(f"no client subscribes to fabric {found['fabric']}")
        return
    print_table(
        f"subscribers of fabric {found['fabric']}",
        SUBSCRIBER_COLUMNS,
        [
            (
                row["instance"],
                row["client"],
                row["topic"],
                ", ".join(("log" if row["bookmark"] else "new", *filter(None, (row.get("kind"),)))),
                f"{row['delivered']:,}",
                f"{row['behind']:,}" if row["bookmark"] else "",
                f"{row['unsent_bytes']:,}" if row["unsent_bytes"] else "",
            )
            for row in rows
        ],
        SUBSCRIBER_NUMBERS,
        optional=("unsent", "reads", "delivered"),
    )


def topics(
    fabric: FabricOption = "",
    as_json: JsonOption = False,
    http: HttpOption = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show each instance's numbers, and the topics of drills, too."),
    ] = False,
) -> None:
    """Show the topics of a fabric: their messages, size and rate, and who journals them.

    With --json an object a topic and line. The columns:

    \b
    type          the message type; *: declared for any, none came yet
    messages      that are in the journal of the instance which has most
    size          of these messages and their headers there, before compression; a
                  dash: the topic has only records of a queue, which are no messages
    oldest        when the oldest message of any journal came (UTC), and the newest
    rate          messages a second now
    journaled by  the instances whose transaction log takes it, or that have the
                  queue of this name; nobody: it is delivered, and neither
                  stored nor replicated

    Acknowledgments and other records of a queue are no messages. Every
    instance that journals a topic has all of its messages: --all shows the
    numbers of each.
    Topics that are declared by an expression show when they have messages.
    """
    from raylay.services.configuration.reserved import CARRIED
    from raylay.services.fabric.topics import topic_rows

    with controlled(fabric, http) as attached:
        before, began_s = attached.status()["instances"], time.monotonic()
        time.sleep(RATE_S)
        # One that did not answer is not waited for twice.
        told = [each["name"] for each in before if "topics" in each]
        after, seconds = attached.status(told)["instances"], time.monotonic() - began_s
        rows = topic_rows(attached.declared, before, after, seconds)
        instances = [instance.name for instance in attached.declared.instances]
    if not every:
        rows = [row for row in rows if row.topic not in CARRIED]
    if as_json:
        for row in rows:
            echo_json(row.to_json())
        return
    table: list[tuple[str, ...]] = []
    for row in rows:
        everywhere = len(row.journaled_by) == len(instances)
        journaled_by = "all" if everywhere else ", ".join(row.journaled_by) or "nobody"
        rate = f"{row.rate_per_s:,.1f}/s" if row.rate_per_s else ""
        table.append((row.topic, row.message_type, *_stored(row), rate, journaled_by))
        if every:
            table += [(f"  {name}", "", *_stored(each), "", "") for name, each in row.instances]
    print_table(
        f"topics of fabric {attached.name}",
        TOPIC_COLUMNS,
        table,
        frozenset(("messages", "size", "rate")),
        optional=TOPIC_OPTIONAL,
    )
    uncounted = [each["name"] for each in after if each.get("topics_counted") is False]
    if uncounted:
        echo(f"{', '.join(uncounted)}: still counting what was there at the start")
    others = max((int(each.get("topics_of_others", 0)) for each in after), default=0)
    if others:
        echo(f"{others:,} more messages on topics beyond the number that is shown")


def _stored(row: TopicRow | TopicTotal) -> tuple[str, str, str, str]:
    from raylay.services.messages.units import about_bytes

    if not row.messages:
        size = "-" if row.bytes else ""
    else:
        size = about_bytes(row.bytes)
    return f"{row.messages:,}", size, short_time(row.oldest_us), short_time(row.newest_us)


def short_time(time_us: int) -> str:
    """Returns a time as day and time of day in UTC; empty for 0."""
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%F %H:%M:%S}" if time_us else ""


def list_fabrics(as_json: JsonOption = False) -> None:
    """List the fabrics of this machine: those that run, those that are starting, and those that
    are stopped, with the command that starts them again.

    Stopped ones are found by what they left in the runtime directory, and in `data` here.
    """
    from raylay.services.fabric.records import registry

    begun, idle = _begun_and_idle()
    found = [(fabric.name, "running", fabric.directory, "") for fabric in registry.running()]
    found += [(owner.fabric, "starting", owner.directory, "") for owner in begun]
    found += [(fabric.name, "stopped", str(fabric.directory), fabric.command) for fabric in idle]
    inside = [regions(directory) for _, _, directory, _ in found]
    if as_json:
        keys = ("fabric", "state", "directory", "start")
        told = [dict(zip(keys, row, strict=True)) for row in found]
        echo(json.dumps([{**row, "regions": each} for row, each in zip(told, inside, strict=True)]))
        return
    if not found:
        echo("no fabric is known here: start one with `raylay up FILE`")
        return
    rows = [
        (name, state, ", ".join(f"{group} {count}" for group, count in each.items()), place, start)
        for (name, state, place, start), each in zip(found, inside, strict=True)
    ]
    print_table("", ("fabric", "state", "instances", "directory", "start it with"), rows)


def _begun_and_idle() -> tuple[list[LockOwner], list[StoppedFabric]]:
    """Returns who starts a fabric on this machine, and the fabrics that are stopped. A fabric that
    is starting has the directory of a stopped one until it is up."""
    from raylay.services.fabric.locks import starting
    from raylay.services.fabric.records.stopped import stopped

    begun = starting()
    places = {Path(owner.directory).resolve() for owner in begun}
    return begun, [each for each in stopped() if each.directory.resolve() not in places]


def regions(directory: str | Path) -> dict[str, int]:
    """Counts a fabric's instances by region, from the record in its directory; none where that
    cannot be read."""
    from raylay.services.configuration.model import FabricSettings
    from raylay.services.fabric.plan import FabricRecord

    try:
        record = FabricRecord.load(directory)
        settings = FabricSettings.from_json(record.settings) if record is not None else None
    except RaylayError:
        settings = None
    return dict(Counter(instance.group for instance in settings.instances)) if settings else {}


def print_status(found: dict[str, Any], as_json: bool) -> None:
    """Prints the result of `Fabric.status`."""
    if as_json:
        echo_json(found, default=str)
        return
    print_rich(status_table(found))
    for line in status_lines(found):
        echo(line)


def status_table(found: dict[str, Any]) -> FittingTable:
    """Returns the instances and their destinations as a table."""
    rows: list[tuple[str, ...]] = []
    for instance in found["instances"]:
        front = (
            instance["name"],
            instance["group"],
            state_text(instance),
            str(instance.get("sessions", "")),
            *logged(instance),
        )
        destinations = instance.get("destinations", {})
        ends = [destination_row(*item) for item in destinations.items()] or [("",) * 5]
        for number, end in enumerate(ends):
            rows.append((*(front if not number else ("",) * len(front)), *end))
    title = f"fabric {found['fabric']}"
    return FittingTable(title, STATUS_COLUMNS, rows, STATUS_NUMBERS, STATUS_OPTIONAL)


def state_text(instance: dict[str, Any]) -> str:
    """Returns `ready`, or what an instance does or waits for instead."""
    if instance["ready"]:
        return "ready"
    return f"{instance['phase']}: {instance['reason']}".rstrip(": ")


def status_lines(found: dict[str, Any]) -> list[str]:
    """Returns the lines below the table: what is wrong, and what waits for slow clients."""
    from raylay.services.fabric.records.orphans import left_over_lines

    instances = found["instances"]
    return [
        *head_lines(instances),
        *stopped_lines(instances),
        *disconnected_lines(instances),
        *unavailable_lines(instances),
        *front_log_lines(instances),
        *retention_lines(instances),
        *security_file_lines(instances),
        *certificate_lines(instances),
        *view_lines(instances),
        *slow_client_lines(instances),
        *action_lines(instances),
        *left_over_lines(found.get("left_over", [])),
    ]


def is_as_meant(instance: dict[str, Any]) -> bool:
    """Returns whether an instance is ready, or was stopped on purpose."""
    return bool(instance["ready"] or instance.get("is_stopped"))


def stopped_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each instance that `raylay stop` stopped."""
    return [
        f"{instance['name']} is stopped: `raylay start {instance['name']}` starts it"
        for instance in instances
        if instance.get("is_stopped")
    ]


def logged(instance: dict[str, Any]) -> tuple[str, str]:
    """Returns the number of messages that an instance ever journaled, and the number of notes
    beside them (waiters, conflicts, unavailable messages). Both are empty for an instance that does
    not answer."""
    if "messages" not in instance:
        return ("", "")
    return f"{instance['messages']:,}", f"{instance['notes']:,}" if instance["notes"] else ""


def head_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line that says since when Ray's head has been away, as the instances' interfaces
    see it; none where it answers, or no interface was asked."""
    seen = [
        (int(head["away_since_us"]), str(head["address"]), instance["name"])
        for instance in instances
        if (head := instance.get("head")) and head.get("away_since_us")
    ]
    if not seen:
        return []
    since_us, address, name = min(seen)
    others = len(seen) - 1
    more = f" and {others:,} more instance{'' if others == 1 else 's'}" if others else ""
    moment = datetime.fromtimestamp(since_us / 1e6, UTC)
    return [
        f"Ray's head at {address} has not answered {name}{more} since {moment:%F %H:%M:%S} UTC: "
        "no instance that ends is started again; `raylay head start` on its host starts it"
    ]


def disconnected_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each destination that is not connected, with the reason."""
    return [
        f"{instance['name']} to {name}: {destination['why']}"
        for instance in instances
        for name, destination in instance.get("destinations", {}).items()
        if not destination.get("connected") and destination.get("why")
    ]


def unavailable_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each instance that lacks messages which no upstream has any more."""
    return [
        f"{instance['name']}: {instance['unavailable']:,} messages are unavailable: no upstream "
        "has them any more"
        for instance in instances
        if instance.get("unavailable")
    ]


def front_log_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each instance whose commits do not, or not all, become durable in the
    front log, with the reason."""
    return [
        f"{instance['name']}: {instance['front_log_failure']}"
        for instance in instances
        if instance.get("front_log_failure")
    ]


def retention_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each journal that is above its limits of size or age, with what holds
    it."""
    return [
        f"{instance['name']}: retention waits: {instance['retention_held']}"
        for instance in instances
        if instance.get("retention_held")
    ]


def certificate_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each certificate that ends soon, or has ended, with what to do."""
    return [
        f"{instance['name']}: {each['warning']}"
        for instance in instances
        for each in instance.get("certificates", [])
        if each["warning"]
    ]


def security_file_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each password or permissions file whose current content is not in use,
    with the reason."""
    return [
        f"{instance['name']}: {where}: {problem}"
        for instance in instances
        for where, problem in (
            *(
                (f"transport {each['name']}", each.get("problem"))
                for each in instance.get("transports", ())
            ),
            ("admin", instance.get("control_problem")),
        )
        if problem
    ]


def view_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each view and conflated topic that is out of service, with the reason, and
    one for each that is built or has much to apply."""
    lines = []
    for instance in instances:
        for kind in ("views", "conflated_topics"):
            for name, each in (instance.get(kind) or {}).items():
                waits = each.get("queue_depth", 0)
                if each.get("refusal"):
                    lines.append(f"{instance['name']}: {each['refusal']}")
                elif each.get("built_percent") is not None:
                    lines.append(
                        f"{instance['name']}: view {name} is {each['built_percent']:.0f} % built"
                    )
                elif kind == "views" and waits >= VIEW_WAITS_SHOWN:
                    lines.append(f"{instance['name']}: view {name} has {waits:,} updates to apply")
    return lines


def slow_client_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each pool in which messages wait for slow clients, and one for each client
    that is offline."""
    from raylay.services.messages.units import about_bytes

    lines = []
    for instance in instances:
        for pool in instance.get("capacity", []):
            if not pool["behind"]:
                continue
            lines.append(
                f"{instance['name']}, pool {pool['pool']}: "
                f"{about_bytes(pool['memory_bytes'])} of {about_bytes(pool['memory_bytes_max'])} "
                f"in memory, {about_bytes(pool['disk_bytes'])} of "
                f"{about_bytes(pool['disk_bytes_max'])} on disk for {pool['behind']:,} slow "
                f"client{'' if pool['behind'] == 1 else 's'}, {pool['offline']:,} offline"
            )
            shown = pool["offline_clients"]
            lines += [
                f"  {each['client'] or each['peer']} is offline: "
                f"{about_bytes(each['unsent_bytes'])} wait for it, the oldest for "
                f"{each['age_ms'] / 1000:.1f} s"
                for each in shown
            ]
            if shown and pool["offline"] > len(shown):
                lines.append(f"  and {pool['offline'] - len(shown):,} more")
    return lines


def action_lines(instances: list[dict[str, Any]]) -> list[str]:
    """Returns a line for each action that has failed, was not begun, or waits, with the last error;
    none for those that run well: `--json` has all."""
    lines = []
    for instance in instances:
        actions = instance.get("actions") or {}
        if actions.get("dropped"):
            lines.append(
                f"{instance['name']}: {actions['dropped']:,} occurrences did not reach the process "
                "of the actions"
            )
        for name, each in (actions.get("actions") or {}).items():
            said = [
                f"{each[key]:,} {words}"
                for key, words in (
                    ("failures", "failed"),
                    ("dropped", "not begun"),
                    ("chains_stopped", "cut as a circle"),
                    ("waiting", "waiting"),
                )
                if each.get(key)
            ]
            if said:
                error = f": {each['last_error']}" if each.get("last_error") else ""
                runs = f"{each.get('runs', 0):,} runs"
                lines.append(f"{instance['name']}: action {name}: {runs}, {', '.join(said)}{error}")
    return lines


def destination_row(name: str, destination: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Returns name, address, mode, unacked messages and age of a destination, for a table."""
    unacked = int(destination.get("unacked", 0))
    return (
        name,
        str(destination.get("address", "")),
        destination_mode(destination),
        f"{unacked:,}",
        f"{destination.get('age_ms', 0)} ms" if unacked else "",
    )


def destination_mode(destination: dict[str, Any]) -> str:
    """Returns whether acks wait for a destination, and whether it is connected."""
    mode = "sync" if destination.get("sync") else "async"
    if destination.get("downgraded"):
        by_hand = destination.get("downgraded_by_hand")
        mode = "async (downgraded by hand)" if by_hand else "async (downgraded)"
    if not destination.get("connected"):
        mode += ", disconnected"
    return mode


def status_facts(found: dict[str, Any]) -> dict[str, str]:
    """Returns what a status says of each instance and of each destination, without the figures that
    change at each look."""
    facts: dict[str, str] = {}
    for instance in found["instances"]:
        name = instance["name"]
        facts[name] = state_text(instance)
        if instance.get("front_log_failure"):
            facts[f"{name}, front log"] = str(instance["front_log_failure"])
        for to, destination in instance.get("destinations", {}).items():
            why = "" if destination.get("connected") else destination.get("why")
            facts[f"{name} to {to}"] = destination_mode(destination) + (f": {why}" if why else "")
    return facts
