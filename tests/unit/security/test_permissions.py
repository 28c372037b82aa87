"""services/security/permissions.py: what a document says of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.security.permissions import (
    ALLOWED,
    ANSWERS_KEPT_MAX,
    DENIED,
    ENTRIES_MAX,
    EVERYTHING,
    NOTHING,
    Grant,
    read_permissions,
    restricted,
)


def permissions(*topics: dict[str, Any], **others: Any) -> Any:
    return read_permissions({"topic": list(topics), **others}, "here")


@pytest.mark.covers("Configuration", "the permissions document")
def test_the_first_entry_that_fits_says_all() -> None:
    found = permissions(
        {"topic": "orders", "write": True},
        {"topic": "orders", "read": True},
        {"topic": "o.*", "read": True},
    )
    assert found.read(b"orders") == DENIED
    assert found.write(b"orders") == ALLOWED
    assert found.read(b"offers") == ALLOWED and found.write(b"offers") == DENIED
    assert found.read(b"prices") == DENIED


@pytest.mark.parametrize(
    ("topic", "fits", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "order"]),
        ("orders.eu", ["orders.eu"], ["orders-eu"]),
        ("orders/.*", ["orders/", "orders/eu"], ["my/orders/eu", "orders"]),
        ("a|b+", ["a", "b", "bb"], ["ab", "ba", "ac", "xa"]),
        ("(?i)orders?", ["Orders", "ORDER"], ["orders!"]),
    ],
)
def test_a_topic_is_a_name_or_a_pattern_of_whole_names(
    topic: str, fits: list[str], others: list[str]
) -> None:
    found = permissions({"topic": topic, "read": True})
    assert [name for name in fits if not found.read(name.encode()).allowed] == []
    assert [name for name in others if found.read(name.encode()).allowed] == []


def test_a_line_end_ends_no_name() -> None:
    found = permissions({"topic": "orders.?", "read": True})
    assert found.read(b"orders").allowed
    assert not found.read(b"orders\n\n").allowed and not found.read(b"orders/\nprices").allowed


def test_content_and_fields_may_be_restricted() -> None:
    found = permissions(
        {"topic": "orders", "read": "/desk = 'fx'", "write": "/px > 0", "select": "-/,+/id"}
    )
    assert found.read(b"orders") == Grant(True, "/desk = 'fx'", "-/,+/id")
    assert found.write(b"orders") == Grant(True, "/px > 0")
    assert not found.read(b"orders").is_whole and not found.write(b"orders").is_whole
    assert ALLOWED.is_whole and not DENIED.is_whole


def test_logons_and_replicated_topics_are_said_by_themselves() -> None:
    found = read_permissions(
        {
            "logon": True,
            "replicated-topics": [{"topic": "orders.*", "write": True}],
            "user_name": "bob",
        },
        "here",
    )
    assert found.logon and not found.replication_logon and found.user_name == "bob"
    assert found.replicates(b"orders-1") and not found.replicates(b"prices")
    assert not found.write(b"orders-1").allowed


def test_client_names_are_whole_names_or_patterns_of_them() -> None:
    found = read_permissions({"client-names": ["desk", "pub-.*"]}, "here")
    names = ("desk", "pub-1", "desk2", "my-pub-1", "")
    assert [name for name in names if found.may_be(name)] == ["desk", "pub-1"]
    assert read_permissions({}, "here").may_be("anything") and EVERYTHING.may_be("anything")


def test_everything_and_nothing() -> None:
    for topic in (b"a", b"", b"a\nb", "ü".encode(), b"\xff"):
        assert EVERYTHING.read(topic).is_whole and EVERYTHING.write(topic).is_whole
        assert EVERYTHING.replicates(topic)
        assert not NOTHING.read(topic).allowed and not NOTHING.replicates(topic)
    assert EVERYTHING.logon and EVERYTHING.replication_logon
    assert not NOTHING.logon and not NOTHING.replication_logon


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "no map"),
        ({"topics": []}, "have no 'topics'"),
        ({"logon": "yes"}, "logon is 'yes': give true or false"),
        ({"topic": {}}, "topic is no list"),
        ({"topic": [{"read": True}]}, r"topic\[0\] names no topic"),
        ({"topic": [{"topic": "a", "reads": True}]}, "'reads'"),
        ({"topic": [{"topic": "a", "read": 1}]}, "no true, no false and no content filter"),
        ({"topic": [{"topic": "a", "read": ""}]}, "no true, no false"),
        ({"topic": [{"topic": "(", "read": True}]}, r"topic '\('"),
        ({"topic": [{"topic": "", "read": True}]}, "empty topic"),
        ({"topic": [{"topic": "a", "select": 3}]}, "select is no text"),
        ({"user_name": 3}, "user_name is no text"),
        ({"client-names": "desk"}, "client-names is no list"),
        ({"client-names": [3]}, r"client-names\[0\]"),
        ({"admin": [{"topic": "a"}] * (ENTRIES_MAX + 1)}, "admin is no list of at most"),
    ],
)
def test_what_is_not_understood_is_refused(document: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match="there: .*" + says):
        read_permissions(document, "there")


def test_a_filter_passes_no_more_than_is_granted() -> None:
    grant = Grant(True, "/a = 1 OR /b = 2")
    assert restricted("/c = 3 OR /d = 4", grant) == "(/a = 1 OR /b = 2) AND (/c = 3 OR /d = 4)"
    assert restricted("", grant) == grant.filter
    assert restricted("/c = 3", ALLOWED) == "/c = 3"


def test_what_is_kept_of_topics_that_somebody_asks_about_is_bounded() -> None:
    found = read_permissions({"topic": [{"topic": "a.*", "write": True}]}, "there")
    for number in range(ANSWERS_KEPT_MAX + 2):
        assert found.write(b"a%d" % number).allowed
    assert len(found._writes) == 2
    assert not found.write(b"b").allowed


@pytest.mark.parametrize(
    ("replicated", "all_"),
    [
        ([], False),
        ([{"topic": ".*", "write": True}], True),
        ([{"topic": ".*", "read": True}], False),
        ([{"topic": "secret", "write": False}, {"topic": ".*", "write": True}], False),
        ([{"topic": ".*", "write": True}, {"topic": "secret", "write": False}], True),
        ([{"topic": "orders", "write": True}], False),
    ],
)
def test_a_link_brings_every_topic_where_the_first_entry_says_so(
    replicated: list[dict[str, Any]], all_: bool
) -> None:
    made = read_permissions({"replicated-topics": replicated}, "here")
    assert made.replicates_all is all_


@pytest.mark.covers("Configuration", "a copy is given the topics that its user may bring")
def test_what_an_instance_may_bring_it_may_copy() -> None:
    found = read_permissions(
        {"replicated-topics": [
            {"topic": "orders", "write": True}, {"topic": "news", "read": True}, {"topic": "none"},
            {"topic": "no.*", "read": True},
        ], "topic": [{"topic": ".*", "read": True, "write": True}]},
        "here",
    )  # fmt: skip
    for _ in range(2):
        may = {name: found.copies(name) for name in (b"orders", b"news", b"none", b"not", b"x")}
        assert may == {b"orders": True, b"news": True, b"none": False, b"not": True, b"x": False}
    assert found.replicates(b"orders") and not found.replicates(b"news")


@pytest.mark.parametrize(
    ("topics", "dead"),
    [
        (["to-pack", "orders/.*", "orders/state"], "topic[2]: the entry of 'orders/state' never"),
        (["orders", "trades", "orders"], "topic[2]: the entry of 'orders' never"),
        ([".*", "orders/.*"], "topic[1]: the entry of 'orders/.*' never"),
        (["a.*", "a.*"], "topic[1]: the entry of 'a.*' never"),
        (["orders/state", "orders/.*", ".*"], ""),
        (["orders", "orders.*", "my-orders"], ""),
    ],
)
def test_an_entry_that_never_applies_is_named(topics: list[str], dead: str) -> None:
    found = permissions(*({"topic": each, "read": True} for each in topics))
    told = found.dead_entries()
    assert len(told) == bool(dead) and all(each.startswith(dead) for each in told)
    lists = {key: [{"topic": each} for each in topics] for key in ("replicated-topics", "admin")}
    assert len(permissions(**lists).dead_entries()) == 2 * bool(dead)
