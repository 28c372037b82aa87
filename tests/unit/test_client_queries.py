"""How queries, and subscriptions that begin with one, go on after a connection."""

from __future__ import annotations

from typing import Any

from unit.fake_server import records

from raylay.services.client.machine import ClientMachine, ClientOptions
from raylay.services.client.messages import MessageBatch
from raylay.services.client.queries import FocusedSubscription, Query
from raylay.services.errors import ConnectionLost
from raylay.storage.stores import MemoryPublishStore


def grouped(asked: Query | FocusedSubscription, command: str, *rows: bytes, **header: Any) -> Any:
    """(kind, reason, sequences) of each batch that is handed out."""
    header = {"c": command, "n": len(rows), **header}
    return [shown(batch) for batch in asked.grouped(header, b"".join(rows))]


def shown(batch: MessageBatch) -> tuple[str, str, list[int]]:
    return batch.kind, batch.reason, [message.sequence for message in batch]


def row(sequence: int, key: bytes) -> bytes:
    return records(7, [sequence], key=key)


def test_a_query_says_what_is_asked() -> None:
    header, body = Query("q", "t", "json", {"filter": "/a = 1"}).subscribe_frame("c1")
    assert (header, body) == (
        {
            "c": "sow",
            "cid": "c1",
            "sub": "q",
            "t": "t",
            "mt": "json",
            "a": "processed,completed",
            "o": {"filter": "/a = 1"},
        },
        b"",
    )
    header, _ = FocusedSubscription("s", "t", "", {"oof": True}).subscribe_frame("c2")
    assert (header["c"], header["a"]) == ("sow_and_subscribe", "processed,completed")


def test_a_query_gives_its_rows_and_how_many_there_are() -> None:
    query = Query("q", "t", "", {})
    assert grouped(query, "group_begin") == []
    assert grouped(query, "sow", row(1, b"a"), row(2, b"b")) == [("sow", "", [1, 2])]
    assert query.matches is None
    assert grouped(query, "group_end", matches=5) == []
    assert query.matches == 5 and query.bounded


def test_a_query_outlives_a_connection_until_something_was_handed_out() -> None:
    query = Query("q", "t", "", {})
    query.active = True
    assert query.lost() is None and not query.active
    query.handed_out = True
    assert isinstance(query.lost(), ConnectionLost)


def test_what_differs_is_handed_out_and_what_is_gone_where_it_was_asked_for() -> None:
    for options, gone in (({"oof": True}, [("oof", "deleted", [2])]), ({}, [])):
        asked = FocusedSubscription("s", "t", "", options)
        for command in ("group_begin", "group_end"):
            assert grouped(asked, command) == []
        assert asked.arrived({"n": 2}, row(1, b"a") + row(2, b"b")) is not None
        assert asked.lost() is None
        grouped(asked, "group_begin")
        assert grouped(asked, "sow", row(1, b"a")) == []
        assert grouped(asked, "sow", row(3, b"c")) == [("sow", "", [3])]
        assert grouped(asked, "group_end") == gone
        assert asked.arrived({"n": 1}, row(3, b"c")) is None
        assert asked.suppressed == 2
        assert grouped(asked, "oof", row(4, b"c"), r="expired") == [("oof", "expired", [4])]


def test_frames_of_what_nobody_asked_are_passed_over() -> None:
    machine = ClientMachine(ClientOptions("desk", ()), MemoryPublishStore())
    assert machine.grouped({"c": "sow", "sub": "gone", "n": 1}, row(1, b"a")) == []


def test_behind_a_replaced_filter_comes_what_is_newly_in_focus_and_then_all_of_it_again() -> None:
    asked = FocusedSubscription("s", "t", "", {"oof": True})
    asked.active = asked.completed = True
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(1, b"a")) == [("sow", "", [1])]
    grouped(asked, "group_end")
    assert asked.takes_replace
    asked.replaced({"oof": True, "filter": "/a = 2"})
    assert not asked.takes_replace, "its group has not come yet"
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(2, b"b")) == [("sow", "", [2])]
    assert grouped(asked, "group_end") == []
    asked.completed = True
    asked.replaced({"oof": True})
    asked.lost()
    assert not asked.completed
    grouped(asked, "group_begin")
    assert grouped(asked, "sow", row(2, b"b")) == []
    assert grouped(asked, "group_end") == [("oof", "deleted", [1])]
