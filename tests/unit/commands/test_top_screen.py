"""The screen of `raylay top` and its keys: values and size in, lines out."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.commands.top_screen import (
    HELP,
    SORTS,
    VIEWS,
    Line,
    Screen,
    TopState,
    client_rows,
    clock,
    cut,
    keys_of,
    milliseconds,
    number,
    padded,
    picture,
    pressed,
    screen,
    seconds,
    width_of,
)

pytestmark = pytest.mark.covers("Utilities", "`raylay top` draws")


def instance(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "group": "NY",
        "level": "ready",
        "state": "ready",
        "why": "",
        "why_missing": "",
        "clients": 12,
        "in_per_sec": 1234.0,
        "out_per_sec": 250_000.0,
        "ack_ms_p50": 0.8,
        "ack_ms_p99": 12.0,
        "unacknowledged": 0,
        "disk_free_percent": 81.4,
        "slow_clients": 0,
        **values,
    }


def link(source: str, destination: str, **values: Any) -> dict[str, Any]:
    return {
        "from": source,
        "destination": destination,
        "level": "ready",
        "state": "sync",
        "text": "sync, caught up",
        "unacked": 3,
        "lag": 0,
        "seconds_behind": 0.0,
        "rate_per_sec": 99.0,
        "trend": "steady",
        "configured_type": "sync",
        **values,
    }


def queue(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        "level": "ready",
        "depth": 7,
        "trend": "growing",
        "leased": 2,
        "consumers": 1,
        "oldest_lease_s": 61.0,
        "expired": 0,
        "instances": [{"name": "NY-1", "why": ""}],
        **values,
    }


UNKNOWN = dict.fromkeys(
    (
        *("clients", "in_per_sec", "out_per_sec", "ack_ms_p50", "ack_ms_p99", "unacknowledged"),
        *("disk_free_percent", "slow_clients"),
    )
)
DOCUMENT: dict[str, Any] = {
    "fabric": "orders",
    "served_by": "NY-1",
    "time_us": 1_700_000_000_000_000,
    "verdict": {"level": "attention", "text": "NY-2 does not answer"},
    "problems": [{"level": "unknown", "text": "NY-2 does not answer"}],
    "instances": [
        instance("NY-1"),
        instance("NY-2", level="unknown", state="unknown", why_missing="it is silent", **UNKNOWN),
    ],
    "links": [
        link("NY-1", "LN-1"),
        link("NY-1", "NY-2", level="act", state="disconnected", text="disconnected since 1 m"),
    ],
    "queues": [queue("work"), queue("empty", depth=0, oldest_lease_s=None)],
    "totals": {
        "answered": 1,
        "instances": 2,
        "in_per_sec": 1234.0,
        "out_per_sec": 250_000.0,
        "acks_per_sec": None,
        "clients": 12,
        "subscriptions": 4,
    },
}
CLIENTS = [
    {
        "client": "desk", "instance": "NY-1", "subscriptions": 2, "delivered": 123_456,
        "behind": 4, "unsent_bytes": 0, "level": "", "text": "",
    },
]  # fmt: skip
QUIET: dict[str, Any] = {"fabric": "", "verdict": {"level": "ready", "text": "1 is ready"}}


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def drawn(state: TopState, width: int = 100, height: int = 30, **more: Any) -> Screen:
    return screen(DOCUMENT, CLIENTS, state, width, height, **more)


# -- the picture -----------------------------------------------------------------------------------
def test_the_overview_has_what_is_wrong_first() -> None:
    found = drawn(TopState(), 110, 24)
    assert texts(found.lines) == [
        "fabric orders  22:13:20 UTC  by NY-1",
        "NY-2 does not answer",
        "1 of 2 instances answer   in 1,234/s   out 250k/s   acks ?/s   clients 12   "
        "subscriptions 4",
        "[1 overview]   2 instances    3 links    4 queues    5 clients    6 views ",
        "! NY-2 does not answer",
        "",
        "instance  state    clients   in/s  out/s  ack p50  ack p99  unacked  disk free  group",
        "NY-2      unknown        ?      ?      ?        ?        ?        ?          ?  NY     "
        "it is silent",
        "NY-1      ready         12  1,234   250k   0.8 ms    12 ms        0       81 %  NY",
        "",
        "link         state         unacked  lag  behind  sent/s  trend   type",
        "NY-1 → NY-2  disconnected        3    0   0.0 s      99  steady  sync  "
        "disconnected since 1 m",
        "NY-1 → LN-1  sync                3    0   0.0 s      99  steady  sync  sync, caught up",
        "",
        "queue  depth  trend  leased  consumers  oldest lease  expired  instances",
        "work       7  grows       2          1          61 s        0          1",
        "empty      0  grows       2          1             -        0          1",
        "",
        "",
        "",
        "",
        "",
        "",
        "q quit  ? help  s trouble first  space hold  every 2 s",
    ]
    styles = {line.text[:12]: line.style for line in found.lines}
    assert styles["NY-2 does no"] == "attention" and styles["! NY-2 does "] == "unknown"
    assert styles["NY-1 → NY-2 "] == "act" and styles["NY-1      re"] == "good"


def test_by_name_the_order_stays_whatever_fails() -> None:
    lines = texts(drawn(TopState(view="links", sort="by name")).lines)
    assert [line[:11] for line in lines[5:7]] == ["NY-1 → LN-1", "NY-1 → NY-2"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [1, 5, 11, 20, 40, 79, 132, 300])
@pytest.mark.parametrize("height", [1, 2, 3, 9, 10, 50])
def test_no_size_breaks_the_screen(view: str, width: int, height: int) -> None:
    for sort in SORTS:
        for stale in ("", "no answer " * 50):
            found = drawn(TopState(view=view, sort=sort), width, height, stale=stale)
            assert len(found.lines) == height or (height < 4 and len(found.lines) <= height)
            assert all(width_of(line.text) <= width for line in found.lines)


def test_a_narrow_screen_leaves_the_least_columns_out_and_then_cuts_names() -> None:
    heads = {
        width: texts(drawn(TopState(view="instances"), width).lines)[4]
        for width in (86, 84, 60, 40, 20)
    }
    assert heads[86].split()[-1] == "group"
    assert "group" not in heads[20] and heads[40].split()[:2] == ["instance", "state"]
    assert heads[60].startswith("instance") and "disk" not in heads[60]
    assert heads[84].startswith("instan"), "two columns less are a shorter name"
    assert "clients" not in heads[20] and heads[20].split()[0].startswith("instan")


def test_a_low_screen_keeps_fabric_verdict_and_keys() -> None:
    lines = texts(drawn(TopState(), 100, 5).lines)
    assert lines[0].startswith("fabric orders") and lines[1] == "NY-2 does not answer"
    assert lines[2] == "! NY-2 does not answer" and lines[4].startswith("q quit")


def test_without_an_answer_it_says_so() -> None:
    found = screen(None, [], TopState(), 80, 12, stale="no way leads there")
    assert texts(found.lines)[:2] == ["raylay top", "waiting for the first answer"]
    assert found.lines[-2] == Line("no way leads there", "attention")
    assert found.offset_max == 0


def test_what_is_empty_is_a_line() -> None:
    lines = texts(screen(QUIET, [], TopState(), 80, 30).lines)
    assert lines[0] == "fabric  ?"
    assert "instances: none is known" in lines and "links: none is configured" in lines
    clients = screen(QUIET, [], TopState(view="clients"), 80, 30)
    assert "clients: nobody subscribes" in texts(clients.lines)
    queues = texts(screen(QUIET, [], TopState(view="queues"), 80, 30).lines)
    assert "queues: none is configured" in queues


def test_text_of_others_is_no_command_to_the_terminal() -> None:
    evil = "\x1b[2J\nfoo"
    document = {
        **DOCUMENT,
        "fabric": evil,
        "verdict": {"level": evil, "text": evil},
        "problems": [{"level": evil, "text": evil}],
        "instances": [instance(evil, why=evil, state=evil, level=evil)],
        "links": [link(evil, evil, text=evil)],
        "queues": [queue(evil, instances=[{"name": evil, "why": evil}])],
    }
    client = {**CLIENTS[0], "client": evil, "instance": evil, "text": evil}
    lines = picture(document, [client], TopState(), 200)
    lines += screen(document, [client], TopState(), 200, 40, stale=evil).lines
    assert all(line.text.isprintable() for line in lines)
    assert any("\\x1b[2J\\nfoo" in line.text for line in lines)


def test_more_problems_than_fit_are_counted() -> None:
    problems = [{"level": "act", "text": f"problem {at}"} for at in range(8)]
    lines = texts(screen({**DOCUMENT, "problems": problems}, [], TopState(), 80, 40).lines)
    assert [line for line in lines if line.startswith("!")] == [
        *(f"! problem {at}" for at in range(5)),
        "! and 3 more: `raylay console`",
    ]


def test_slow_clients_are_noted_at_their_instance() -> None:
    slow = [instance("a", slow_clients=1), instance("b", slow_clients=2, why="catches up")]
    lines = texts(screen({**DOCUMENT, "instances": slow}, [], TopState(), 160, 40).lines)
    assert any(line.endswith("NY     1 slow client") for line in lines)
    assert any(line.endswith("2 slow clients; catches up") for line in lines)


def test_a_picture_is_the_overview_with_the_clients() -> None:
    lines = texts(picture(DOCUMENT, CLIENTS, TopState(), 160))
    assert not any("[1 overview]" in line for line in lines)
    assert lines[-1].split() == ["desk", "NY-1", "2", "123k", "4", "0"]
    only = texts(picture(DOCUMENT, CLIENTS, TopState(view="queues"), 160))
    assert only[4].startswith("queue") and len(only) == 7


def view(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": "view", "under": "orders", "level": "ready", "records": 1_204,
        "taken_per_sec": 90.0, "updates_per_sec": 30.0, "waiting": 0, "memory_bytes": 3 * 2**20,
        "subscribers": 4, "built_percent": None, "instances": [], **more,
    }  # fmt: skip


def test_views_have_a_table_where_there_are_any() -> None:
    full = [{"name": "NY-1", "why": "it would take too much"}, {"name": "NY-2", "why": ""}]
    views = [
        view("sums"),
        view("built", level="working", built_percent=41.6),
        view("full", level="act", instances=full, memory_bytes=None),
    ]
    lines = texts(screen({**DOCUMENT, "views": views}, [], TopState(view="views"), 160, 30).lines)
    assert lines[4].split() == [
        *("view", "kind", "over", "records", "in/s", "updates/s", "waiting", "memory", "followers"),
    ]
    assert lines[5].split()[:1] == ["full"] and lines[5].endswith("NY-1: it would take too much")
    assert lines[6].endswith("42 % built") and " ? " in lines[5]
    assert lines[7].split() == [
        "sums",
        "view",
        "orders",
        "1,204",
        "90",
        "30",
        "0",
        "3.0",
        "MiB",
        "4",
    ]
    overview = texts(screen({**DOCUMENT, "views": views}, [], TopState(), 160, 40).lines)
    assert any(line.startswith("sums") for line in overview)
    empty = texts(screen(QUIET, [], TopState(view="views"), 80, 30).lines)
    assert "views and conflated topics: none is configured" in empty
    assert not any("views and conflated" in line for line in drawn(TopState()).lines)


# -- scrolling and keys ----------------------------------------------------------------------------
def test_a_screen_scrolls_to_its_last_line_and_no_further() -> None:
    many = {**DOCUMENT, "instances": [instance(f"i-{at:03}") for at in range(100)]}
    state: TopState | None = TopState(view="instances")
    seen = []
    for key in ("end", "down", "page up", "home", "up", "page down", "down"):
        assert state is not None
        found = screen(many, [], state, 80, 25)
        state = pressed(state, key, found)
        assert state is not None
        seen.append(state.offset)
    assert (found.page, found.offset_max) == (20, 81)
    assert seen == [81, 81, 62, 0, 0, 19, 20]
    last = texts(screen(many, [], TopState(view="instances", offset=1_000), 80, 25).lines)
    assert last[23].startswith("i-099"), "a fabric that shrank leaves no empty screen"


def test_keys_choose_a_view_and_what_is_asked() -> None:
    page = Screen([], 0, 10)

    def after(state: TopState, *keys: str) -> TopState:
        for key in keys:
            found = pressed(state, key, page)
            assert found is not None
            state = found
        return state

    assert [after(TopState(offset=4), str(at)).view for at in range(1, 7)] == list(VIEWS)
    assert after(TopState(), "next").view == "instances"
    assert after(TopState(), "back").view == "views"
    assert after(TopState(), "next", "back") == TopState()
    assert after(TopState(), "s").sort == "by name" and after(TopState(), "s", "s") == TopState()
    assert after(TopState(), " ").is_held and not after(TopState(), " ", " ").is_held
    assert after(TopState(), "?").shows_help and not after(TopState(), "?", "2").shows_help
    assert after(TopState(), "r").hurried == 1
    assert after(TopState(), "+").interval_s == 1.0 and after(TopState(), "-").interval_s == 5.0
    fastest = after(TopState(), *["+"] * 9)
    assert fastest.interval_s == 0.5 and after(fastest, *["-"] * 9).interval_s == 60.0
    assert after(TopState(), "x", "7", "0", "²", "\r") == TopState()
    assert pressed(TopState(), "q", page) is None is pressed(TopState(), "Q", page)


def test_help_and_a_held_picture_show() -> None:
    lines = texts(drawn(TopState(shows_help=True)).lines)
    assert lines[4 : 4 + len(HELP)] == list(HELP)
    assert texts(drawn(TopState(is_held=True)).lines)[-1].startswith("HELD  q quit")


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q2s", ["q", "2", "s"]),
        (b"\x1b[A\x1bOB", ["up", "down"]),
        (b"jk\t\x1b[Z", ["down", "up", "next", "back"]),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"]),
        (b"\x1b[H\x1bOF\x1b[1~\x1b[4~", ["home", "end", "home", "end"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b[15~q", ["q"]),
        (b"\x1b[", []),
        (b"\x1b[12", []),
        (b"\x1b", ["\x1b"]),
        (b"h=_", ["?", "+", "-"]),
        (b"\xb2", ["²"]),
    ],
)
def test_keys_are_read_out_of_what_a_terminal_sends(data: bytes, keys: list[str]) -> None:
    assert keys_of(data) == keys


# -- text ------------------------------------------------------------------------------------------
def test_wide_and_combining_letters_are_measured() -> None:
    assert width_of("abc") == 3 and width_of("日本") == 4 and width_of("e\u0301") == 1
    assert cut("日本語", 4) == "日…" and cut("日本語", 6) == "日本語"
    assert cut("abcdef", 4) == "abc…" and cut("abc", 1) == "…" and cut("abc", 0) == ""
    assert padded("日", 4) == "日  " and padded("7", 3, right=True) == "  7"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"), ("x", "?"), (0, "0"), (0.25, "0.2"), (12.7, "13"), (99_999, "99,999"),
        (100_000, "100k"), (2_345_678, "2.3M"), (45e9, "45G"), (7e12, "7T"), (7e15, "7,000T"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: object, text: str) -> None:
    assert number(value) == text


def test_times_are_short() -> None:
    assert [milliseconds(each) for each in (None, 0.04, 42.0, 1500.0)] == [
        "?", "0.0 ms", "42 ms", "1.5 s",
    ]  # fmt: skip
    assert [seconds(each) for each in ("", 1.0, 61.0, 600, 10_000)] == [
        "?", "1.0 s", "61 s", "10 m", "3 h",
    ]  # fmt: skip
    assert (clock(None), clock(10**20), clock(0)) == ("?", "?", "00:00:00 UTC")


# -- clients ---------------------------------------------------------------------------------------
def test_a_client_is_one_row_an_instance() -> None:
    def subscribed(client: str, **values: Any) -> dict[str, Any]:
        return {"client": client, "delivered": 5, "behind": 7, "unsent_bytes": 9, **values}

    rows = client_rows(
        [
            {
                "name": "NY-1",
                "subscribers": [
                    subscribed("desk"),
                    subscribed("desk", delivered=None, behind=None, unsent_bytes=4),
                    subscribed("wall"),
                ],
                "capacity": [
                    {"offline_clients": [
                        {"client": "wall", "unsent_bytes": 50, "age_ms": 4_000},
                        {"client": "", "peer": "1.2.3.4:5", "age_ms": None},
                    ]},
                    {},
                ],
            },
            {"name": "NY-2", "subscribers": [subscribed("desk")]},
            {"name": "silent"},
        ]
    )  # fmt: skip
    told = {(each["client"], each["instance"]): each for each in rows}
    assert len(told) == len(rows) == 4
    desk = told["desk", "NY-1"]
    assert (desk["subscriptions"], desk["delivered"], desk["behind"]) == (2, 5, 7)
    assert desk["unsent_bytes"] == 9 and desk["level"] == ""
    wall = told["wall", "NY-1"]
    assert (wall["level"], wall["unsent_bytes"]) == ("attention", 50)
    assert wall["text"] == "offline: the oldest waits for 4.0 s"
    assert told["1.2.3.4:5", "NY-1"]["subscriptions"] == 0
