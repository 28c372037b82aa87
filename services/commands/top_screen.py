"""The screen of `raylay top`: values and size in, lines out.

The values are those of `/raylay/fabric.json` (services/admin/fabric_view.py) and a row for each
client. All text in them comes from others, so each cell is made safe here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeAlias

from raylay.services.messages.plain_text import plain
from raylay.services.messages.units import about_bytes

Style: TypeAlias = Literal["", "bold", "dim", "good", "working", "attention", "act", "unknown"]
Row: TypeAlias = Mapping[str, Any]

VIEWS = ("overview", "instances", "links", "queues", "clients", "views")
SORTS = ("trouble first", "by name")
PROBLEMS_SHOWN = 5
HEADER_LINES = 4
"""Lines above the tables of a screen that is high enough."""
LOW = 10
"""Height below which the line of totals and the names of the views make room for the tables."""
NOTE_MIN = 12
"""Least width of a column of sentences: narrower, it is left out."""
NAME_MIN = 6
GAP = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_URGENCY = {"act": 0, "attention": 1, "unknown": 2, "working": 3}
_STYLES: Mapping[str, Style] = {
    "ready": "good",
    "working": "working",
    "attention": "attention",
    "act": "act",
    "unknown": "unknown",
}
_TRENDS = {"growing": "grows", "shrinking": "shrinks", "steady": "steady"}
HELP = (
    "1 to 6, tab     overview, instances, links, queues, clients, views; the next",
    "up, down, j, k  a line up or down; page up, page down, home, end",
    "s               sort: trouble first, or by name",
    "space           hold the picture; again: go on",
    "+ -             look more often, less often",
    "r               look now",
    "?               this help; again: away",
    "q, Ctrl-C       end",
)


class Line(NamedTuple):
    """A line of the screen, without control characters and no wider than the screen."""

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class TopState:
    """The user's choice of what to see.

    Attributes:
        offset: number of lines by which the tables are scrolled.
        interval_s: time between two looks.
        hurried: count of the times that the user asked for a look at once.
    """

    view: str = "overview"
    sort: str = SORTS[0]
    offset: int = 0
    is_held: bool = False
    shows_help: bool = False
    interval_s: float = 2.0
    hurried: int = 0


@dataclass(frozen=True, slots=True)
class Screen:
    """A drawn screen.

    Attributes:
        lines: lines from the top; at most as many as the screen is high.
        offset_max: the offset at which the last line of the tables shows.
        page: lines of the tables that show at once.
    """

    lines: list[Line]
    offset_max: int
    page: int


# -- keys --------------------------------------------------------------------------------------
_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[Z": "back",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
}  # fmt: skip
_NAMED = {"k": "up", "j": "down", "\t": "next", "h": "?", "=": "+", "_": "-"}
_DIGITS = tuple(str(at) for at in range(1, len(VIEWS) + 1))
INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def keys_of(data: bytes) -> list[str]:
    """Returns the keys that a terminal sent: letters, and names such as `up` for other keys. An
    unknown control sequence is passed over as a whole."""
    found: list[str] = []
    at = 0
    while at < len(data):
        sequence = next((each for each in _SEQUENCES if data.startswith(each, at)), b"")
        if sequence:
            found.append(_SEQUENCES[sequence])
            at += len(sequence)
        elif data[at] == 0x1B and data[at + 1 : at + 2] in (b"[", b"O"):
            at += 2
            # A control sequence ends with a byte from 0x40 on.
            while at < len(data) and data[at] < 0x40:
                at += 1
            at += 1
        else:
            letter = chr(data[at])
            found.append(_NAMED.get(letter, letter))
            at += 1
    return found


def pressed(state: TopState, key: str, screen: Screen) -> TopState | None:
    """Returns the state after a key; None: the user wants to end."""
    offset = min(state.offset, screen.offset_max)
    moves = {
        "up": offset - 1,
        "down": offset + 1,
        "page up": offset - max(1, screen.page - 1),
        "page down": offset + max(1, screen.page - 1),
        "home": 0,
        "end": screen.offset_max,
    }
    at = VIEWS.index(state.view)
    if key in ("q", "Q"):
        return None
    if key in moves:
        return replace(state, offset=max(0, min(moves[key], screen.offset_max)))
    if key in _DIGITS:
        return replace(state, view=VIEWS[int(key) - 1], offset=0, shows_help=False)
    if key in ("next", "back"):
        step = 1 if key == "next" else -1
        view = VIEWS[(at + step) % len(VIEWS)]
        return replace(state, view=view, offset=0, shows_help=False)
    if key == "s":
        return replace(state, sort=SORTS[1 - SORTS.index(state.sort)])
    if key == " ":
        return replace(state, is_held=not state.is_held)
    if key == "?":
        return replace(state, shows_help=not state.shows_help, offset=0)
    if key == "r":
        return replace(state, hurried=state.hurried + 1)
    if key == "+":
        faster = [each for each in INTERVALS_S if each < state.interval_s]
        return replace(state, interval_s=max(faster, default=state.interval_s))
    if key == "-":
        slower = [each for each in INTERVALS_S if each > state.interval_s]
        return replace(state, interval_s=min(slower, default=state.interval_s))
    return state


# -- text --------------------------------------------------------------------------------------
def width_of(text: str) -> int:
    """Returns the columns of a terminal that a text without control characters takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def cut(text: str, width: int) -> str:
    """Returns the text, cut with an ellipsis where it is wider."""
    if width_of(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = text[: width - 1]
    while width_of(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Returns the text in a column of this width."""
    text = cut(text, width)
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def number(value: object) -> str:
    """Returns a number in five columns or so; an unknown one as `?`."""
    if not isinstance(value, (int, float)):
        return "?"
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    if value < 100_000:
        return f"{value:,.0f}"
    for unit in ("k", "M", "G"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return f"{value / 1000:,.0f}T"


def milliseconds(value: object) -> str:
    """Returns a time in milliseconds, or in seconds where it is long; an unknown one as `?`."""
    if not isinstance(value, (int, float)):
        return "?"
    if value < 1000:
        return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
    return seconds(value / 1000)


def seconds(value: object) -> str:
    """Returns a time in its largest unit; an unknown one as `?`."""
    if not isinstance(value, (int, float)):
        return "?"
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} m" if value < 7200 else f"{value / 3600:.0f} h"


def clock(time_us: object) -> str:
    """Returns the time of day of a time in microseconds since 1970."""
    if not isinstance(time_us, int):
        return "?"
    try:
        return f"{_EPOCH + timedelta(microseconds=time_us):%H:%M:%S} UTC"
    except OverflowError:
        return "?"


# -- tables ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        keep: the columns with the lowest values are left out first on a narrow screen.
    """

    title: str
    cell: Callable[[Row], str]
    keep: int
    right: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the first column is a name, which is cut on a narrow screen, and the last one may be
    a sentence, which takes the rest of the width."""

    title: str
    columns: tuple[Column, ...]
    note: Callable[[Row], str] | None = None
    empty: str = ""


def drawn(table: Table, rows: Sequence[Row], width: int) -> list[Line]:
    """Returns the lines of a table, its heads first."""
    if not rows:
        return [Line(cut(f"{table.title}: {table.empty}", width), "dim")]
    columns = list(table.columns)
    cells = {each.title: [plain(each.cell(row)) for row in rows] for each in columns}
    widths = {title: max(width_of(title), *map(width_of, texts)) for title, texts in cells.items()}

    def used() -> int:
        return sum(widths[each.title] + GAP for each in columns) - GAP

    while len(columns) > 1 and used() > width:
        first = columns[0].title
        if widths[first] > NAME_MIN and widths[first] - (used() - width) >= NAME_MIN:
            # A shorter name lets all of the columns stay.
            widths[first] -= used() - width
            break
        columns.remove(min(columns[1:], key=lambda each: each.keep))
    left = width - used() - GAP
    has_note = table.note is not None and left >= NOTE_MIN

    def line(texts: Iterable[tuple[Column, str]], note: str) -> str:
        parts = [padded(text, widths[each.title], right=each.right) for each, text in texts]
        if has_note:
            parts.append(cut(note, left))
        return cut((" " * GAP).join(parts).rstrip(), width)

    found = [Line(line(((each, each.title) for each in columns), ""), "bold")]
    for at, row in enumerate(rows):
        note = plain(table.note(row)) if table.note is not None else ""
        text = line(((each, cells[each.title][at]) for each in columns), note)
        found.append(Line(text, _STYLES.get(str(row.get("level", "")), "")))
    return found


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: str(row.get(name) or "")


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: number(row.get(name))


def _state(row: Row) -> str:
    return str(row.get("state") or "").replace("_", " ")


def _trend(row: Row) -> str:
    return _TRENDS.get(str(row.get("trend") or ""), "")


def _instance_note(row: Row) -> str:
    why = str(row.get("why") or row.get("why_missing") or "")
    if row.get("slow_clients"):
        slow = f"{row['slow_clients']:,} slow client{'' if row['slow_clients'] == 1 else 's'}"
        why = f"{slow}; {why}" if why else slow
    return why


def _disk(row: Row) -> str:
    free = row.get("disk_free_percent")
    return "?" if free is None else f"{free:.0f} %"


INSTANCES = Table(
    "instances",
    (
        Column("instance", _text("name"), 9, right=False),
        Column("state", _state, 8, right=False),
        Column("clients", _number("clients"), 5),
        Column("in/s", _number("in_per_sec"), 7),
        Column("out/s", _number("out_per_sec"), 6),
        Column("ack p50", lambda row: milliseconds(row.get("ack_ms_p50")), 3),
        Column("ack p99", lambda row: milliseconds(row.get("ack_ms_p99")), 4),
        Column("unacked", _number("unacknowledged"), 6),
        Column("disk free", _disk, 2),
        Column("group", _text("group"), 1, right=False),
    ),
    _instance_note,
    "none is known",
)
LINKS = Table(
    "links",
    (
        Column("link", lambda row: f"{row.get('from')} → {row.get('destination')}", 9, right=False),
        Column("state", _state, 8, right=False),
        Column("unacked", _number("unacked"), 6),
        Column("lag", _number("lag"), 5),
        Column("behind", lambda row: seconds(row.get("seconds_behind")), 7),
        Column("sent/s", _number("rate_per_sec"), 4),
        Column("trend", _trend, 3, right=False),
        Column("type", _text("configured_type"), 2, right=False),
    ),
    _text("text"),
    "none is configured",
)
QUEUES = Table(
    "queues",
    (
        Column("queue", _text("name"), 9, right=False),
        Column("depth", _number("depth"), 8),
        Column("trend", _trend, 5, right=False),
        Column("leased", _number("leased"), 6),
        Column("consumers", _number("consumers"), 7),
        Column("oldest lease", lambda row: _lease(row), 4),
        Column("expired", _number("expired"), 3),
        Column("instances", lambda row: str(len(row.get("instances") or ())), 2),
    ),
    lambda row: "; ".join(
        f"{each.get('name')}: {each['why']}" for each in row.get("instances") or () if each["why"]
    ),
    "none is configured",
)
COMPUTED = Table(
    "views and conflated topics",
    (
        Column("view", _text("name"), 9, right=False),
        Column("kind", _text("kind"), 3, right=False),
        Column("over", _text("under"), 2, right=False),
        Column("records", _number("records"), 7),
        Column("in/s", _number("taken_per_sec"), 4),
        Column("updates/s", _number("updates_per_sec"), 8),
        Column("waiting", _number("waiting"), 6),
        Column("memory", lambda row: _bytes(row.get("memory_bytes")), 5),
        Column("followers", _number("subscribers"), 5),
    ),
    lambda row: _view_note(row),
    "none is configured",
)
CLIENTS = Table(
    "clients",
    (
        Column("client", _text("client"), 9, right=False),
        Column("instance", _text("instance"), 8, right=False),
        Column("subscriptions", _number("subscriptions"), 3),
        Column("delivered", _number("delivered"), 5),
        Column("behind", _number("behind"), 6),
        Column("unsent bytes", _number("unsent_bytes"), 7),
    ),
    _text("text"),
    "nobody subscribes",
)


def _lease(row: Row) -> str:
    """Returns the age of the oldest lease; a dash where nothing is leased."""
    return "-" if row.get("oldest_lease_s") is None else seconds(row["oldest_lease_s"])


def _bytes(value: object) -> str:
    return about_bytes(int(value)) if isinstance(value, int | float) else "?"


def _view_note(row: Row) -> str:
    """Returns what is wrong with a view at the instances, or how far it is built."""
    wrong = [
        f"{each.get('name')}: {each['why']}"
        for each in row.get("instances") or ()
        if each.get("why")
    ]
    if not wrong and row.get("built_percent") is not None:
        return f"{row['built_percent']:.0f} % built"
    return "; ".join(wrong)


# -- the screen --------------------------------------------------------------------------------
def screen(
    document: Row | None,
    clients: Sequence[Row],
    state: TopState,
    width: int,
    height: int,
    *,
    stale: str = "",
) -> Screen:
    """Returns the screen.

    Args:
        document: `/raylay/fabric.json`; None: there was no answer yet.
        clients: rows of clients (`client_rows`).
        width, height: columns and lines of the terminal, however few.
        stale: why the values are not of now; empty: they are.
    """
    width, height = max(1, width), max(1, height)
    head = header(document, state, width)
    if height < LOW:
        head = head[:2]
    foot = [Line(cut(_footer(state), width), "dim")]
    if stale:
        foot.insert(0, Line(cut(plain(stale), width), "attention"))
    if state.shows_help:
        lines = [Line(cut(each, width)) for each in HELP]
    elif document is None:
        lines = []
    else:
        lines = body(document, clients, state, width)
    page = max(0, height - len(head) - len(foot))
    offset_max = max(0, len(lines) - page)
    offset = min(state.offset, offset_max)
    shown = lines[offset : offset + page]
    shown += [Line("")] * (page - len(shown))
    return Screen([*head, *shown, *foot][:height], offset_max, page)


def picture(document: Row, clients: Sequence[Row], state: TopState, width: int) -> list[Line]:
    """Returns all lines of a view, for a file or a pipe; the overview with the clients."""
    lines = [*header(document, state, width)[:3], Line(""), *body(document, clients, state, width)]
    if state.view == "overview":
        lines += [Line(""), *drawn(CLIENTS, _ordered(clients, state, "client"), width)]
    return lines


def header(document: Row | None, state: TopState, width: int) -> list[Line]:
    """Returns the lines above the tables: fabric, verdict, totals, views."""
    views = "  ".join(
        f"[{at} {each}]" if each == state.view else f" {at} {each} "
        for at, each in enumerate(VIEWS, 1)
    )
    if document is None:
        lines = [Line("raylay top", "bold"), Line("waiting for the first answer", "working")]
        return [*lines, Line(""), Line(cut(views, width))]
    by = document.get("served_by")
    front = [f"fabric {document.get('fabric') or ''}".rstrip(), clock(document.get("time_us"))]
    front += [f"by {by}"] if by else []
    verdict = document.get("verdict") or {}
    totals = document.get("totals") or {}
    told = (
        f"{number(totals.get('answered'))} of {number(totals.get('instances'))} instances answer"
        f"   in {number(totals.get('in_per_sec'))}/s   out {number(totals.get('out_per_sec'))}/s"
        f"   acks {number(totals.get('acks_per_sec'))}/s   clients {number(totals.get('clients'))}"
        f"   subscriptions {number(totals.get('subscriptions'))}"
    )
    level = str(verdict.get("level"))
    return [
        Line(cut(plain("  ".join(front)), width), "bold"),
        Line(cut(plain(str(verdict.get("text") or "")), width), _STYLES.get(level, "")),
        Line(cut(told, width)),
        Line(cut(views, width)),
    ]


def _footer(state: TopState) -> str:
    held = "HELD  " if state.is_held else ""
    return f"{held}q quit  ? help  s {state.sort}  space hold  every {state.interval_s:g} s"


def body(document: Row, clients: Sequence[Row], state: TopState, width: int) -> list[Line]:
    """Returns all lines of the tables of a view."""
    instances = _ordered(document.get("instances") or (), state, "name")
    links = _ordered(document.get("links") or (), state, "from", "destination")
    queues = _ordered(document.get("queues") or (), state, "name")
    if state.view == "instances":
        return drawn(INSTANCES, instances, width)
    if state.view == "links":
        return drawn(LINKS, links, width)
    if state.view == "queues":
        return drawn(QUEUES, queues, width)
    if state.view == "clients":
        return drawn(CLIENTS, _ordered(clients, state, "client"), width)
    views = _ordered(document.get("views") or (), state, "name")
    if state.view == "views":
        return drawn(COMPUTED, views, width)
    lines = _problems(document.get("problems") or (), width)
    lines += drawn(INSTANCES, instances, width)
    for table, rows in ((LINKS, links), (QUEUES, queues)):
        lines += [Line(""), *drawn(table, rows, width)]
    if views:
        lines += [Line(""), *drawn(COMPUTED, views, width)]
    return lines


def _problems(problems: Sequence[Row], width: int) -> list[Line]:
    lines = [
        Line(cut(plain(f"! {each.get('text')}"), width), _STYLES.get(str(each.get("level")), ""))
        for each in problems[:PROBLEMS_SHOWN]
    ]
    more = len(problems) - PROBLEMS_SHOWN
    if more > 0:
        lines.append(Line(cut(f"! and {more:,} more: `raylay console`", width), "dim"))
    return [*lines, Line("")] if lines else []


_WAITING = ("unsent_bytes", "depth", "unacked", "waiting")
"""Keys of the number that orders rows of one level, the largest first."""


def _ordered(rows: Iterable[Row], state: TopState, *names: str) -> list[Row]:
    def by_name(row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(name) or "") for name in names)

    def by_trouble(row: Row) -> tuple[int, float, tuple[str, ...]]:
        waiting = next((row[key] for key in _WAITING if row.get(key)), 0)
        return _URGENCY.get(str(row.get("level")), len(_URGENCY)), -float(waiting), by_name(row)

    return sorted(rows, key=by_trouble if state.sort == SORTS[0] else by_name)


# -- clients -----------------------------------------------------------------------------------
def client_rows(instances: Iterable[Row]) -> list[dict[str, Any]]:
    """Returns a row for each client that subscribes at an instance or for which messages wait
    there, from the instances' statuses."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for instance in instances:
        name = str(instance.get("name") or "")
        for each in instance.get("subscribers") or ():
            row = _client(found, name, str(each.get("client") or ""))
            row["subscriptions"] += 1
            row["delivered"] += each.get("delivered") or 0
            row["behind"] = max(row["behind"], each.get("behind") or 0)
            # Of the connection, which its subscriptions share.
            row["unsent_bytes"] = max(row["unsent_bytes"], each.get("unsent_bytes") or 0)
        for pool in instance.get("capacity") or ():
            for each in pool.get("offline_clients") or ():
                row = _client(found, name, str(each.get("client") or each.get("peer") or ""))
                row["unsent_bytes"] = max(row["unsent_bytes"], each.get("unsent_bytes") or 0)
                row["level"] = "attention"
                row["text"] = f"offline: the oldest waits for {milliseconds(each.get('age_ms'))}"
    return list(found.values())


def _client(
    found: dict[tuple[str, str], dict[str, Any]], instance: str, client: str
) -> dict[str, Any]:
    return found.setdefault(
        (instance, client),
        {
            "instance": instance,
            "client": client,
            "subscriptions": 0,
            "delivered": 0,
            "behind": 0,
            "unsent_bytes": 0,
            "level": "",
            "text": "",
        },
    )
