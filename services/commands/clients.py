"""`raylay connections`, `consumers` and `disconnect`: the clients of every instance of a fabric."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylay.services.commands.shared.controlled import controlled
from raylay.services.commands.shared.options import FabricOption, HttpOption, JsonOption
from raylay.services.commands.shared.printing import echo, echo_json, print_table
from raylay.services.commands.shared.terminal import is_interactive
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.messages.units import about_bytes

if TYPE_CHECKING:
    from raylay.services.fabric.by_interface import FabricAccess

RATE_S = 1.0
"""Time between the two looks from which a rate is computed."""
COUNTERS = ("messages_in", "messages_out", "bytes_in", "bytes_out")
CONNECTION_COLUMNS = (
    "client", "user", "instance", "address", "since", "subs", "waits", "in/s", "out/s", "state",
)  # fmt: skip
CONNECTION_NUMBERS = frozenset(("since", "subs", "waits", "in/s", "out/s"))
CONSUMER_COLUMNS = (
    "client", "user", "instance", "address", "leases", "backlog", "oldest", "filter",
)  # fmt: skip
CONSUMER_NUMBERS = frozenset(("leases", "backlog", "oldest"))
Row = dict[str, Any]


def connections(
    fabric: FabricOption = "", as_json: JsonOption = False, http: HttpOption = None
) -> None:
    """Show the clients that are connected to each instance, those for which most waits first.

    With --json an object a connection and line, with all counters. The columns:

    \b
    user     the user it logged on as, where there is one
    since    time since it connected
    subs     its subscriptions, those to queues included
    waits    bytes that it has not taken: many, and for long, are a slow client
    in/s     messages a second that it publishes now; out/s: that it is given
    state    offline: what it does not take goes to the disk; not read: the
             instance waits with its publishes; empty: neither
    """
    with controlled(fabric, http) as attached:
        before, began_s = attached.status()["instances"], time.monotonic()
        time.sleep(RATE_S)
        # One that did not answer is not waited for twice.
        told = [each["name"] for each in before if "connections" in each]
        found = attached.status(told)
        later = {each["name"]: each for each in found["instances"]}
        found["instances"] = [later.get(each["name"], each) for each in before]
        rows = connection_rows(before, later.values(), time.monotonic() - began_s)
    if as_json:
        for row in rows:
            echo_json(row)
        return
    _say_silent(found["instances"])
    if not rows:
        echo(f"no client is connected to fabric {found['fabric']}")
        return
    now_us = time.time_ns() // 1_000
    _print_filled(
        f"connections of fabric {found['fabric']}",
        CONNECTION_COLUMNS,
        [
            (
                row["client"],
                row["user"],
                row["instance"],
                row["address"],
                age_text((now_us - row["connected_us"]) / 1e6) if row["connected_us"] else "",
                f"{row['subscriptions']:,}" if row["subscriptions"] else "",
                about_bytes(row["waiting_bytes"]) if row["waiting_bytes"] else "",
                _rate_text(row["rates"]["messages_in"]),
                _rate_text(row["rates"]["messages_out"]),
                "" if row["state"] == "connected" else row["state"],
            )
            for row in rows
        ],
        CONNECTION_NUMBERS,
    )
    shown = len(rows)
    every = sum(int(each.get("sessions", 0)) for each in found["instances"])
    if every > shown:
        echo(f"and {every - shown:,} more connections beyond the number that is shown")


def connection_rows(
    before: Iterable[Row], after: Iterable[Row], seconds: float
) -> list[dict[str, Any]]:
    """Returns a row for each connection, those for which most bytes wait first.

    Args:
        before, after: the instances' statuses at two looks.
        seconds: time between the looks. A connection that the first look does not have, or has in
            another life of its instance, has no rates.
    """
    known = {
        (each["name"], each.get("pid"), row["number"]): row
        for each in before
        for row in each.get("connections", ())
    }
    rows = []
    for each in after:
        for row in each.get("connections", ()):
            then = known.get((each["name"], each.get("pid"), row["number"]))
            rates = {
                name: None if then is None else round((row[name] - then[name]) / seconds, 3)
                for name in COUNTERS
            }
            rows.append(
                {
                    "instance": each["name"],
                    **row,
                    # The bytes in memory and on disk are among them.
                    "waiting_bytes": row["unsent_bytes"],
                    "rates": rates,
                }
            )
    rows.sort(key=lambda row: -row["waiting_bytes"])
    return rows


def consumers(
    queue: Annotated[str, typer.Argument(help="The name of the queue.")],
    fabric: FabricOption = "",
    as_json: JsonOption = False,
    http: HttpOption = None,
) -> None:
    """Show the consumers of a queue at every instance, and the messages that each holds.

    With --json an object a consumer and line. The columns:

    \b
    leases   messages that it holds and has not acknowledged
    backlog  of these, how many it asked for at most; the queue may allow fewer
    oldest   time since the oldest of its leases began; a dash: it has none, or
             leases do not end

    Below the table stands how much waits at each instance that has the queue.
    """
    with controlled(fabric, http) as attached:
        found = attached.status()
    instances = found["instances"]
    counts = queue_counts(instances, queue)
    rows = [
        {"instance": each["name"], **row}
        for each in instances
        for row in each.get("consumers", ())
        if row["queue"] == queue
    ]
    if not rows and not counts:
        raise FabricError(_no_queue(found["fabric"], instances, queue))
    if as_json:
        for row in rows:
            echo_json(row)
        return
    _say_silent(instances)
    if rows:
        _print_filled(
            f"consumers of queue {queue}, fabric {found['fabric']}",
            CONSUMER_COLUMNS,
            [
                (
                    row["client"],
                    row["user"],
                    row["instance"],
                    row["address"],
                    "many" if row["leases"] is None else f"{row['leases']:,}",
                    f"{row['backlog']:,}",
                    _lease_text(row),
                    row["filter"],
                )
                for row in rows
            ],
            CONSUMER_NUMBERS,
        )
    else:
        echo(f"nobody consumes queue {queue} of fabric {found['fabric']}")
    for name, told in counts:
        waiting, leased = told.get("available_here") or 0, told.get("leases") or 0
        parts = [f"{waiting:,} message{' waits' if waiting == 1 else 's wait'}"]
        parts.append(f"{leased:,} {'is' if leased == 1 else 'are'} leased")
        oldest_s = _oldest_lease_s(told, [row for row in rows if row["instance"] == name])
        if leased and oldest_s is not None:
            parts.append(f"the oldest for {age_text(oldest_s)}")
        echo(f"{name}: {', '.join(parts)}")


def _oldest_lease_s(told: Row, consumers: Sequence[Row]) -> float | None:
    """Returns the age of the oldest lease of a queue at an instance, in seconds: that of the
    consumers which are shown, so that the line agrees with the table, else the one that the queue
    tells. None: there is none.

    Args:
        told: the figures of the queue.
        consumers: the consumers of a queue of this name there.
    """
    held = [each for each in consumers if each.get("message_type") == told.get("message_type")]
    ages_ms = [each["oldest_lease_age_ms"] for each in held if each["oldest_lease_age_ms"]]
    if ages_ms and all(each["leases"] is not None for each in held):
        return float(max(ages_ms)) / 1e3
    oldest_us = told.get("age_of_oldest_lease_us")
    return None if oldest_us is None else float(oldest_us) / 1e6


def _lease_text(row: Row) -> str:
    """Returns the age of a consumer's oldest lease; a dash where it has none, and `?` where there
    are more leases than are looked at."""
    if row["oldest_lease_age_ms"] is not None:
        return age_text(row["oldest_lease_age_ms"] / 1e3)
    return "?" if row["leases"] is None else "-"


def queue_counts(instances: Iterable[Row], queue: str) -> list[tuple[str, Row]]:
    """Returns the instances that have a queue, each with what it counts of it."""
    return [
        (each["name"], told)
        for each in instances
        for name, told in (each.get("queues") or {}).items()
        if told.get("topic", name) == queue
    ]


def _no_queue(fabric: str, instances: Sequence[Row], queue: str) -> str:
    from raylay.services.messages.spelling import did_you_mean

    known = sorted(
        {
            str(told.get("topic", name))
            for each in instances
            for name, told in (each.get("queues") or {}).items()
        }
    )
    silent = _silent(instances)
    if silent and not known:
        return f"no instance of fabric {fabric} tells its queues: {silent[0]}"
    hint = did_you_mean(queue, known) or f"its queues are {', '.join(known) or 'none'}"
    return f"fabric {fabric} has no queue {queue[:200]!r}: {hint}"


# -- disconnect ------------------------------------------------------------------------------------
def disconnect(
    client: Annotated[
        str, typer.Argument(help="The client's name, or the number of its connection.")
    ],
    instance: Annotated[
        str, typer.Option(help="The instance that it is connected to; default: it is looked for.")
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="End all connections of this client.")
    ] = False,
    fabric: FabricOption = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a connection that ended.")
    ] = False,
    http: HttpOption = None,
) -> None:
    """End a client's connection. The client may come back.

    Where several connections are meant, a terminal asks which one; elsewhere give --instance,
    the number of the connection, or --all.
    """
    with controlled(fabric, http) as attached:
        if instance and not every:
            _end(attached, {"instance": instance, "number": None, "client": client}, as_json)
            return
        met = _looked_up(attached, client, instance)
        chosen: Sequence[Row] = met
        if len(met) > 1 and not every:
            if as_json or not is_interactive():
                raise ConfigurationError(_several(client, met))
            chosen = _asked(met)
            # An answer takes its time: the numbers of an instance that was started again meanwhile
            # are those of others.
            present = [_identity(each) for each in _connected(attached.status(), client, instance)]
            if gone := [each for each in chosen if _identity(each) not in present]:
                raise FabricError(f"{_place(gone[0])} is gone meanwhile: nothing was ended")
        for each in chosen:
            _end(attached, each, as_json)


def _looked_up(attached: FabricAccess, client: str, instance: str) -> list[Row]:
    status = attached.status()
    met = _connected(status, client, instance)
    if met:
        return met
    from raylay.services.messages.spelling import did_you_mean

    names = {str(name) for each in status["instances"] for name in each.get("clients", ())}
    hint = did_you_mean(client, names) or "`raylay connections` lists those that are"
    where = instance or f"an instance of fabric {status['fabric']}"
    silent = "".join(f"; {line}" for line in _silent(status["instances"]))
    raise FabricError(f"no client {client[:200]!r} is connected to {where}: {hint}{silent}")


def _connected(status: Row, client: str, instance: str) -> list[Row]:
    """Returns the connections of a client, by its name; of a name that nobody has, those of that
    number."""
    instances = [each for each in status["instances"] if not instance or each["name"] == instance]
    found: list[Row] = []
    for each in instances:
        rows = [row for row in each.get("connections", ()) if row["client"] == client]
        if not rows and client in each.get("clients", ()):
            # It is beyond the number of connections that are told; its name leads to it.
            rows = [{"client": client, "number": None}]
        found += ({"instance": each["name"], **row} for row in rows)
    if found or not client.isdecimal():
        return found
    return [
        {"instance": each["name"], **row}
        for each in instances
        for row in each.get("connections", ())
        if str(row["number"]) == client
    ]


def _identity(row: Row) -> tuple[Any, ...]:
    return row["instance"], row["number"], row["client"], row.get("address")


def _place(row: Row) -> str:
    number = "" if row["number"] is None else f", connection {row['number']}"
    address = f" at {row['address']}" if row.get("address") else ""
    return f"{row['client']}{address} of {row['instance']}{number}"


def _several(client: str, met: Sequence[Row]) -> str:
    listed = "; ".join(_place(each) for each in met[:10])
    more = f"; and {len(met) - 10:,} more" if len(met) > 10 else ""
    return (
        f"{len(met):,} connections are meant by {client[:200]!r}: {listed}{more}. Give --instance, "
        "with the number of the connection where one instance has several, or --all"
    )


def _asked(met: Sequence[Row]) -> Sequence[Row]:
    for at, each in enumerate(met, 1):
        since = (
            f"{datetime.fromtimestamp(each['connected_us'] / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
            if each.get("connected_us")
            else "an unknown time"
        )
        echo(f"{at:>3}  {_place(each)}, since {since}")
    while True:
        answer = str(typer.prompt(f"Which one ends? 1 to {len(met)}, or all")).strip()
        if answer == "all":
            return met
        if answer.isdecimal() and 1 <= int(answer) <= len(met):
            return [met[int(answer) - 1]]


def _end(attached: FabricAccess, row: Row, as_json: bool) -> None:
    name, number = row["instance"], row["number"]
    text = attached.control(
        name, "disconnect", client=row["client"] if number is None else str(number)
    )
    if as_json:
        echo_json({"instance": name, "client": row["client"], "number": number, "text": text})
    else:
        echo(str(text))


# -- what the tables share -------------------------------------------------------------------------
def _print_filled(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str]
) -> None:
    """Prints a table without the columns that no row fills, so that the rest fits a terminal."""
    filled = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    print_table(
        title,
        [columns[at] for at in filled],
        [[row[at] for at in filled] for row in rows],
        right,
        narrow=True,
    )


def _silent(instances: Iterable[Row]) -> list[str]:
    return [
        f"{each['name']} does not tell: {each.get('reason') or each.get('phase') or 'unknown'}"
        for each in instances
        if "connections" not in each
    ]


def _say_silent(instances: Iterable[Row]) -> None:
    for line in _silent(instances):
        echo(f"raylay: {line}", err=True)


def age_text(seconds: float) -> str:
    """Returns a time in its largest unit, in a few characters: `4.2s`, `12m`, `3h`, `9d`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f}{unit}"
    return f"{seconds:.0f}s"


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "?"
    if not rate:
        return ""
    return f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"
