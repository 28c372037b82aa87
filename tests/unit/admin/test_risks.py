"""services/admin/risks.py: what an action risks, in the numbers of the moment."""

from __future__ import annotations

from typing import Any

import pytest

from raylay.services.admin.actions import BY_HTTP, AdminAction, action_at
from raylay.services.admin.risks import (
    ActionEffect,
    curl_command,
    risk_of,
    shell_command,
)
from raylay.services.admin.tree import Collection
from raylay.services.security.control import PATHS


def destination(**more: Any) -> dict[str, Any]:
    own = {"unacked": 1_204, "lag": 1_204, **more.pop("raylay", {})}
    return {
        "destination_name": "London-1", "destination_group_name": "London",
        "replication_type": "sync", "messages_out_per_sec": 155.0, "raylay": own, **more,
    }  # fmt: skip


def tree(**more: Any) -> dict[str, Any]:
    return {
        "name": "NewYork-1",
        "replication": Collection("destination", {"London": destination()}),
        "clients": Collection(
            "client",
            {
                "7": {
                    "client_name": "billing",
                    "subscription_count": 2,
                    "raylay": {"unacknowledged": 1},
                }
            },
        ),
        "transports": Collection(
            "transport",
            {
                "client": {"type": "tcp", "raylay": {"connections": 41}},
                "replication": {"type": "amps-replication", "raylay": {"connections": 1}},
            },
        ),
        "transaction_log": {
            "journals": Collection(
                "journal",
                {
                    "1": {
                        "max_timestamp": "20261120T101500.000000Z",
                        "raylay": {"state": "sealed", "last_txid": 100},
                    },
                    "101": {"raylay": {"state": "live", "last_txid": 1_300}},
                },
            ),
            "raylay": {"committed_txid": 1_292},
        },
        "raylay": {"group": "NewYork", "min_sync_destinations": 0},
        **more,
    }


def said(call: str, *, at: dict[str, Any] | None = None, **details: str) -> str:
    return " ".join(risk_of(AdminAction(call, details), tree() if at is None else at).sentences)


@pytest.mark.covers("Administration", "what an action risks is told in live numbers before")
def test_a_downgrade_tells_what_may_be_lost() -> None:
    assert said("downgrade", destination="London") == (
        "Acks at NewYork-1 stop waiting for London. 1,204 messages that London lacks count as "
        "acknowledged now; if NewYork-1's disk dies they are lost. Clients may not fail over to "
        "London."
    )
    found = risk_of(AdminAction("downgrade", {"destination": "London"}), tree())
    assert found.typed == "" and found.effect == ActionEffect(
        "amps/instance/replication/London/raylay/is_downgraded", "true"
    )


@pytest.mark.parametrize(
    ("owed", "text"),
    [
        (1, "1 message that London lacks counts as acknowledged now"),
        (0, "London lacks nothing now"),
        (None, "Messages that London lacks count as acknowledged then"),
    ],
)
def test_a_downgrade_knows_few_none_and_unknown(owed: int | None, text: str) -> None:
    links = {"London": destination(raylay={"unacked": owed, "lag": None})}
    at = tree(replication=Collection("destination", links))
    assert text in said("downgrade", at=at, destination="London")


def test_a_downgrade_below_the_least_must_be_typed() -> None:
    at = tree(raylay={"min_sync_destinations": 1})
    found = risk_of(AdminAction("downgrade", {"destination": "London"}), at)
    assert found.typed == "London"
    assert "0 sync destinations remain, and min_sync_destinations is 1" in found.sentences[-1]


def test_an_upgrade_tells_how_long_it_takes() -> None:
    assert said("upgrade", destination="London") == (
        "Acks wait for London again: it owes 1,204, about 8 s."
    )
    links = {
        "idle": destination(messages_out_per_sec=None),
        "even": destination(raylay={"unacked": 0}),
        "slow": destination(messages_out_per_sec=1.0),
        "slowest": destination(messages_out_per_sec=0.1),
    }
    at = tree(replication=Collection("destination", links))
    assert said("upgrade", at=at, destination="idle").endswith("it owes 1,204.")
    assert said("upgrade", at=at, destination="even").endswith("it owes nothing.")
    assert said("upgrade", at=at, destination="gone").endswith("for gone again.")
    assert said("upgrade", at=at, destination="slow").endswith("about 20 m.")
    assert said("upgrade", at=at, destination="slowest").endswith("about 3 h.")


def test_a_reconnect_loses_nothing() -> None:
    assert said("reconnect", destination="London") == (
        "The link begins again, publishers wait meanwhile. Nothing is lost."
    )
    links = {"London": destination(replication_type="async")}
    at = tree(replication=Collection("destination", links))
    assert "its messages wait meanwhile" in said("reconnect", at=at, destination="London")


def test_a_client_may_come_back() -> None:
    assert said("disconnect", client="7") == (
        "billing may come back. It has 2 subscriptions. Its queue messages go to others; live "
        "subscriptions miss what comes meanwhile. 1 publish of it has no ack yet: it publishes "
        "them again."
    )
    assert said("disconnect", client="8").startswith("8 may come back. Its queue")
    found = risk_of(AdminAction("disconnect", {"client": "7"}), tree())
    assert found.effect is not None and found.effect.value is None


def test_a_transport_counts_whom_it_cuts_off() -> None:
    assert said("disable_transport", transport="client") == (
        "41 clients are cut off until it is enabled or NewYork-1 restarts."
    )
    assert said("disable_transport", transport="replication").startswith("1 instance is cut off")
    assert said("disable_transport", transport="gone").startswith("Its clients are cut off")
    said_on = said("enable_transport", transport="client")
    assert said_on == "client listens until NewYork-1 restarts."


def test_a_removed_journal_is_no_longer_replayed() -> None:
    found = risk_of(AdminAction("remove", {"segments": "1"}), tree())
    assert found.sentences == (
        "This and older segments, for good; no replay before 2026-11-20.",
        "Refused while London lacks 12 of it.",
    )
    assert found.typed == "1" and found.refused == "Refused while London lacks 12 of it."
    even = {"London": destination(raylay={"lag": 0})}
    found = risk_of(
        AdminAction("remove", {"segments": "1"}),
        tree(replication=Collection("destination", even)),
    )
    assert not found.refused and len(found.sentences) == 1


@pytest.mark.parametrize(
    ("journal", "why"), [("101", "still writes journal 101"), ("7", "has no journal 7"), ("1", "")]
)
def test_only_a_full_journal_is_compressed_or_archived(journal: str, why: str) -> None:
    for call in ("compress", "archive"):
        found = risk_of(AdminAction(call, {"segments": journal}), tree())
        assert found.sentences == ("This and older segments; slower meanwhile.",)
        assert why in found.refused and bool(why) == bool(found.refused)
    assert not risk_of(AdminAction("compress", {"segments": "all"}), tree()).refused


def test_the_others_say_what_happens() -> None:
    assert "work may be done twice" in said("enable_proxied", queue="json/jobs")
    assert "theirs again" in said("disable_proxied", queue="json/jobs")
    links = {"pair": destination(destination_name="NewYork-2", destination_group_name="NewYork")}
    at = tree(replication=Collection("destination", links))
    assert said("admit", at=at) == (
        "Clients come in though NewYork-2 may hold acknowledged messages that are missing here."
    )
    assert "though its peers may hold" in said("admit")
    assert risk_of(AdminAction("admit", {}), tree()).typed == "NewYork-1"
    assert said("reset_entitlement").endswith("NewYork-1 has 1 client now.")
    assert said("reset_authentication", at={}) == "Its users are disconnected and log on again."
    assert "second copy" in said("compact", topic="json/orders")
    assert "No risk" in said("dump")


@pytest.mark.covers("Administration", "what an action risks is told in live numbers before")
@pytest.mark.parametrize("call", sorted(BY_HTTP))
def test_every_action_has_a_risk_and_two_commands_though_nothing_is_known(call: str) -> None:
    steps = [f"it's/{each[1:-1]}" if each[:1] == "{" else each for each in PATHS[call].split("/")]
    action = action_at(steps)
    assert action is not None
    assert all(risk_of(action, {}).sentences)
    assert shell_command(action, "a b").startswith("raylay ")
    curl = curl_command(action, "http://h:1/")
    assert curl.startswith("curl -X POST -H 'X-Raylay: 1' http://h:1/amps/administrator/")


def test_the_commands_are_those_that_people_type() -> None:
    action = AdminAction("downgrade", {"destination": "a b"})
    assert shell_command(action, "NewYork-1") == "raylay downgrade NewYork-1 'a b'"
    assert curl_command(action, "http://h:1", "amy") == (
        "curl -X POST -H 'X-Raylay: 1' -u amy "
        "http://h:1/amps/administrator/replication/a%20b/downgrade"
    )
    action = AdminAction("archive", {"segments": "17"})
    assert shell_command(action, "NewYork-1") == (
        "raylay action NewYork-1 transaction_log/journals/17/archive"
    )
    action = AdminAction("enable_proxied", {"queue": "jobs"})
    assert shell_command(action, "NewYork-1") == "raylay queue proxied jobs NewYork-1"
