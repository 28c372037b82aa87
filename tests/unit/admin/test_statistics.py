"""services/admin/statistics.py: the tables of a tree, and where a leaf's history lies."""

from __future__ import annotations

import pytest

from raylay.services.admin.statistics import (
    ROWS_MAX,
    Place,
    Row,
    past_tree,
    place_of,
    rows_of,
)
from raylay.services.admin.tree import Branch, Collection, Node, Value, node_at

TREE: Branch = {
    "instance": {
        "name": "north",
        "uptime_s": 3,
        "memory": {"rss": 5, "caches": {"filters": 6}},
        "clients": Collection(
            "client", {"7": {"bytes_in": 1, "tls": {"version": "1.3"}}, "a/b": {"bytes_in": 2}}
        ),
        "transaction_log": {
            "min_txid": 1,
            "journals": Collection("journal", {"1": {"bytes": 9}}),
        },
        "queues": Collection(
            "queue",
            {"jobs": {"depth": 4, "consumers": Collection("consumer", {"c": {"leases": 8}})}},
        ),
    },
    "host": {"cpus": Collection("cpu", {"all": {"idle_percent": 50.0}})},
    "administrator": {"clients": Collection("client", {"7": {"disconnect": None}})},
}


def test_each_kind_of_thing_has_a_table() -> None:
    found = {(row.table, row.id): dict(row.values) for row in rows_of(TREE)}
    assert found == {
        ("IGLOBALS", ""): {"name": "north", "uptime_s": 3},
        ("IMEMORY", ""): {"rss": 5, "caches_filters": 6},
        ("ICLIENTS", "7"): {"bytes_in": 1, "tls_version": "1.3"},
        ("ICLIENTS", "a/b"): {"bytes_in": 2},
        ("ITRANSACTION_LOG", ""): {"min_txid": 1},
        ("IQUEUES", "jobs"): {"depth": 4},
        ("IQUEUES_CONSUMERS", "jobs/c"): {"leases": 8},
        ("HCPUS", "all"): {"idle_percent": 50.0},
    }


def leaves(node: Node, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(node, Collection):
        return [leaf for key, each in node.branches.items() for leaf in leaves(each, (*path, key))]
    if isinstance(node, dict):
        return [leaf for key, each in node.items() for leaf in leaves(each, (*path, key))]
    return [path]


def test_every_leaf_is_found_in_the_row_that_has_it() -> None:
    rows = {(row.table, row.id): row for row in rows_of(TREE)}
    places = [
        place_of(TREE, path)
        for path in leaves(TREE)
        if path[0] != "administrator" and "journals" not in path
    ]
    assert len(places) == len(set(places)) == sum(len(row.values) for row in rows.values())
    for place in places:
        assert place.column in rows[place.table, place.id].values


@pytest.mark.parametrize(
    "path", ["", "instance", "instance/clients", "instance/clients/7", "instance/name/x",
             "instance/x", "administrator/clients/7/disconnect",
             "instance/transaction_log/journals/1/bytes"],
)  # fmt: skip
def test_only_leaves_have_a_history(path: str) -> None:
    with pytest.raises(KeyError):
        place_of(TREE, path.split("/") if path else ())


def test_an_empty_branch_has_no_row() -> None:
    assert [*rows_of({"instance": {"memory": {}, "name": "n"}})] == [
        Row("IGLOBALS", "", {"name": "n"})
    ]
    assert place_of({"instance": {"name": "n"}}, ("instance", "name")) == Place(
        "IGLOBALS", "", "name"
    )


@pytest.mark.covers("Administration", "the statistics database: documented tables; a week s")
def test_documented_tables_have_their_documented_names() -> None:
    tree: Branch = {
        "instance": {
            "cpu": {"percent": 1},
            "replication": Collection("link", {"south": {"lag": 2, "raylay": {"sync": True}}}),
            "transaction_log": {"write_latency": {"minimum": 3}, "write_size": {"minimum": 4}},
        },
        "host": {"network": Collection("interface", {"eth0": {"errors": 5}})},
    }
    found = {(row.table, row.id): dict(row.values) for row in rows_of(tree)}
    assert found == {
        ("ICPUS", ""): {"percent": 1},
        ("IREPLICATIONS", "south"): {"lag": 2, "raylay_sync": True},
        ("ITRANSACTION_WRITE_LATENCY", ""): {"minimum": 3},
        ("ITRANSACTION_WRITE_SIZE", ""): {"minimum": 4},
        ("HNET", "eth0"): {"errors": 5},
    }
    for path in leaves(tree):
        place = place_of(tree, path)
        assert place.column in found[place.table, place.id]


def test_a_collection_gives_a_bounded_number_of_rows() -> None:
    many = {str(each): {"bytes_in": each} for each in range(ROWS_MAX + 5)}
    assert len([*rows_of({"instance": {"clients": Collection("client", many)}})]) == ROWS_MAX


def sample_of(tree: Branch) -> dict[str, dict[str, dict[str, Value]]]:
    """A sample as the database gives it: truth as a number, nothing for None."""
    found: dict[str, dict[str, dict[str, Value]]] = {}
    for row in rows_of(tree):
        found.setdefault(row.table, {})[row.id] = {
            name: int(value) if isinstance(value, bool) else value
            for name, value in row.values.items()
            if value is not None
        }
    return found


@pytest.mark.covers("Administration", "history of a leaf by `t0` and `t1`, of a branch at a")
def test_a_past_tree_has_the_form_of_the_present_one_and_what_has_left_it() -> None:
    instance: dict[str, Node] = {
        "name": "north",
        "memory": {"rss": 5, "caches": Collection("cache", {"sow": {"size": 1}})},
        "clients": Collection(
            "client",
            {
                "7": {"bytes_in": 1, "raylay": {"state": "offline", "is_read": False}},
                "8": {"bytes_in": 3, "raylay": {"state": "connected", "is_read": True}},
            },
        ),
        "queues": Collection(
            "queue",
            {"jobs": {"depth": 4, "consumers": Collection("consumer", {"c": {"leases": 8}})}},
        ),
        "transaction_log": {"write_size": {"minimum": 4, "raylay": {"p50": 9}}},
        "lifetimes": Collection("lifetime", {"1": {"event": "start"}}),
    }
    then: Branch = {"instance": instance}
    now: Branch = {
        "instance": {
            **instance,
            "later": 5,
            "clients": Collection(
                "client", {"8": {"bytes_in": 9, "raylay": {"state": "x", "is_read": False}}}
            ),
            "queues": Collection(
                "queue",
                {"jobs": {"depth": 0, "consumers": Collection("consumer", {})}},
            ),
        },
        "host": {"memory": {"free": 6}},
    }
    expected = {**instance, "timestamp": "19700101T000001.000000Z"}
    del expected["lifetimes"]
    found = past_tree(now, sample_of(then), 1_000_000)
    assert found == {"instance": expected, "host": {"memory": {}}}


def test_a_past_tree_without_an_example_has_the_columns_as_they_are() -> None:
    then: Branch = {"instance": {"clients": Collection("client", {"7": {"a": {"b": 1}}})}}
    now: Branch = {"instance": {"clients": Collection("client", {})}}
    clients = node_at(past_tree(now, sample_of(then), 0), ("instance", "clients"))
    assert clients == Collection("client", {"7": {"a_b": 1}})
