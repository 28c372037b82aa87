"""services/admin/statistics.py: the tables of a tree, and where a leaf's history lies."""

from __future__ import annotations

import pytest

from raylay.services.admin.statistics import Place, Row, place_of, rows_of
from raylay.services.admin.tree import Branch, Collection, Node

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
        ("ITRANSACTION_LOG_JOURNALS", "1"): {"bytes": 9},
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
    places = [place_of(TREE, path) for path in leaves(TREE) if path[0] != "administrator"]
    assert len(places) == len(set(places)) == sum(len(row.values) for row in rows.values())
    for place in places:
        assert place.column in rows[place.table, place.id].values


@pytest.mark.parametrize(
    "path", ["", "instance", "instance/clients", "instance/clients/7", "instance/name/x",
             "instance/x", "administrator/clients/7/disconnect"],
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
