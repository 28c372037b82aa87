"""services/fabric/planned_stop.py: which links rest, and when an instance may be stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.plan import FabricRecord, bring_up_to_date, changes, instance_config
from raylay.services.fabric.planned_stop import (
    links_at_rest,
    links_between,
    not_handed_over,
    plan_stop,
    queues_owned,
    waiting_links,
)


def settings_of(**sections: Any) -> FabricSettings:
    """A pair in London, a pair in Paris; across, each has one destination to the other region."""
    builder = FabricBuilder("shop", **sections)
    builder.region("London", 2)
    builder.region("Paris", 2)
    return builder.connect_regions().settings()


def status(
    settings: FabricSettings, name: str, *, ready: bool = True, **links: dict[str, Any]
) -> dict[str, Any]:
    """The status of an instance; its links have caught up, unless `links` say otherwise."""
    destinations = {
        to.name: {"caught_up": True, "unacked": 0, "sync": to.sync, **links.get(to.name, {})}
        for instance, to in settings.links()
        if instance.name == name
    }
    return {"name": name, "ready": ready, "reason": "", "destinations": destinations}


def statuses(settings: FabricSettings, *down: str) -> list[dict[str, Any]]:
    names = [each.name for each in settings.instances]
    return [status(settings, name, ready=name not in down) for name in names]


# -- links -----------------------------------------------------------------------------------------
def test_links_rest_that_reach_stopped_instances_only() -> None:
    settings = settings_of()
    assert links_at_rest(settings, []) == frozenset()
    own = {(each.name, to.name) for each, to in settings.links() if each.name == "London-2"}
    assert links_at_rest(settings, ["London-2"]) == {*own, ("London-1", "London-2")}
    both = links_at_rest(settings, ["Paris-1", "Paris-2"])
    assert {("London-1", "Paris"), ("London-2", "Paris")} <= both, "a list of which nobody runs"


def test_one_that_waits_to_be_dialled_or_reaches_another_fabric() -> None:
    builder = FabricBuilder("shop")
    builder.region("London", 2, links=None)
    builder.instance("Rome-1", "Rome")
    builder.destination("London-1", (), group="Rome", name="dialled", sync=True, dial=False)
    builder.destination("London-2", ["h.example:9"], group="Rome", name="other", sync=True)
    settings = builder.settings()
    assert links_at_rest(settings, ["Rome-1"]) == {("London-1", "dialled")}


def test_only_sync_links_of_running_instances_wait_for_it() -> None:
    settings = settings_of()
    assert waiting_links(settings, "London-2", []) == (("London-1", "London-2"),)
    assert waiting_links(settings, "London-2", ["London-1"]) == ()
    assert waiting_links(settings, "Paris-2", ["Paris-1"]) == (), "the links across are async"
    stopped = ["London-2"]
    assert waiting_links(settings, "London-2", stopped) == (("London-1", "London-2"),), "a start"


def test_links_between_those_that_are_ready() -> None:
    settings = settings_of()
    found = links_between(settings, "London-1", ["London-1", "London-2", "Paris-1"])
    pair = {("London-1", "London-2"), ("London-2", "London-1")}
    assert set(found) == {*pair, ("Paris-1", "London")}, "none to Paris, of which one is away"


# -- decisions -------------------------------------------------------------------------------------
def test_one_whose_group_has_everything_may_be_stopped() -> None:
    settings = settings_of()
    found = statuses(settings)
    planned = plan_stop(settings, "London-2", [], found)
    assert planned.refusal() == ""
    assert planned.downgrades == (("London-1", "London-2"),)
    with pytest.raises(ConfigurationError, match="Rome-1"):
        plan_stop(settings, "Rome-1", [], found)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("down", "it is not ready"),
        ("alone", "no other instance of group London is ready"),
        ("behind", "London-1 may lack messages of it: its link has not caught up"),
        ("few", "London-1 would have 0 destinations with sync acknowledgment"),
    ],
)
def test_what_speaks_against_a_stop(kind: str, why: str) -> None:
    least = {"min_sync_destinations": 1} if kind == "few" else {}
    settings = settings_of(downgrade={"age": "1s", **least})
    down = {"down": ["London-2"], "alone": ["London-1"]}.get(kind, [])
    found = statuses(settings, *down)
    if kind == "behind":
        found[1] = status(settings, "London-2", **{"London-1": {"caught_up": False}})
    refusal = plan_stop(settings, "London-2", [], found).refusal()
    assert why in refusal and "--force" in refusal and "It goes on as before" in refusal


def test_a_region_that_is_behind_is_no_reason_where_the_group_has_everything() -> None:
    """The other instance of the group sends it on."""
    settings = settings_of()
    found = status(settings, "London-2", Paris={"caught_up": False, "why": "refused"})
    assert not_handed_over(settings, "London-2", [], found) == []
    leaving = ["London-2"]
    everywhere = not_handed_over(settings, "London-2", [], found, leaving)
    assert everywhere == ["Paris may lack messages of it: refused"], "if it goes for good"
    stopped = ["Paris-1", "Paris-2"]
    assert not_handed_over(settings, "London-2", stopped, found, leaving), "they may come back"
    leaving += stopped
    assert not_handed_over(settings, "London-2", stopped, found, leaving) == []


def test_a_region_that_goes_as_a_whole_leaves_no_clients_behind() -> None:
    settings = settings_of()
    found = statuses(settings)
    both = ["London-1", "London-2"]
    assert plan_stop(settings, "London-1", [], found, both).refusal() == ""
    found = statuses(settings, "London-1")
    alone = plan_stop(settings, "London-2", ["London-1"], found, both).refusal()
    assert "no other instance of group" not in alone
    alone = plan_stop(settings, "London-2", [], found, ["London-2"]).refusal()
    assert "no other instance of group London is ready" in alone


def test_the_last_one_cannot_be_removed() -> None:
    settings = FabricBuilder("shop").region("London", 2).settings()
    both = ["London-1", "London-2"]
    found = statuses(settings)
    assert plan_stop(settings, "London-1", [], found, both).refusal() == ""
    refusal = plan_stop(settings, "London-2", ["London-1"], found, both).refusal()
    assert refusal.startswith("instance London-2 is not removed: none of its destinations runs")


def test_what_the_log_had_when_clients_were_gone_must_be_stored() -> None:
    """Later entries come from others, who have them: they never end under load."""
    settings = settings_of()
    links = {"London-1": {"stored_txid": 7}, "Paris": {"stored_txid": 9}}
    found = status(settings, "London-2", **links)
    assert not_handed_over(settings, "London-2", [], found) == []
    assert not_handed_over(settings, "London-2", [], found, up_to_txid=10) == [
        "London-1 has not stored the last 3 entries of its log",
        "Paris has not stored the last entry of its log",
    ]
    assert not_handed_over(settings, "London-2", [], found, up_to_txid=7) == []


def test_the_group_that_gets_a_part_does_not_have_everything() -> None:
    builder = FabricBuilder("shop")
    builder.region("London", 2, links=None)
    builder.region("Paris", 1)
    builder.destination("London-2", "London-1", sync=True)
    builder.destination("London-2", "Paris-1", name="Paris")
    settings = builder.settings()
    found = status(settings, "London-2", Paris={"caught_up": False})
    # Its link to London-1 passes on nothing that came from others, and so Paris is waited for.
    assert not_handed_over(settings, "London-2", [], found)


def test_one_that_replicates_to_nobody_keeps_its_messages_to_itself() -> None:
    builder = FabricBuilder("shop")
    builder.region("London", 2, links=None)
    settings = builder.settings()
    found = not_handed_over(settings, "London-2", [], status(settings, "London-2"))
    assert found == ["none of its destinations runs, so no other instance gets its messages"]


def test_who_owns_messages_of_a_shared_queue_delivers_them_alone() -> None:
    typed = {"message_type": "json"}
    queues = [{"name": "work", **typed}, {"name": "desk", "kind": "local", **typed}]
    settings = settings_of(queues=queues)
    told = {"available_here": 2, "backlog": 1, "queue_depth": 9}
    keys = {each.name: each.stored_as for each in settings.queues_of(settings.instances[0])}
    found = {"queues": {each: told for each in keys.values()}}
    assert queues_owned(settings, "London-1", found) == [
        "queue work has 3 messages that London-1 owns: consumers at any instance take them over, "
        'and `raylay queue expire work --filter "1=1"` drops them'
    ]
    found["queues"][keys["work"]] = {"available_here": 0, "backlog": 0, "queue_depth": 9}
    assert queues_owned(settings, "London-1", found) == []
    assert "does not tell" in queues_owned(settings, "London-1", {})[0]


# -- the record ------------------------------------------------------------------------------------
def record_of(settings: FabricSettings, directory: Path) -> FabricRecord:
    record = FabricRecord("shop", str(directory), settings.to_json(), key="k")
    bring_up_to_date(record, settings)
    return record


def test_a_peer_that_restarts_begins_without_waiting_for_a_stopped_one(tmp_path: Path) -> None:
    settings = settings_of()
    record = record_of(settings, tmp_path)

    def downgraded(name: str) -> list[str]:
        config = instance_config(settings, record, settings.instance(name))
        return [each.name for each in config.destinations if each.starts_downgraded]

    assert downgraded("London-1") == []
    record.stopped = ["London-2"]
    assert downgraded("London-1") == ["London-2"] and downgraded("Paris-1") == []
    # Its own acks wait for its peers from the moment on in which it is started.
    assert downgraded("London-2") == []
    kept = FabricRecord.from_json(record.to_json(), "a test")
    assert kept.stopped == ["London-2"]


def test_a_stopped_instance_is_not_restarted_by_a_changed_file(tmp_path: Path) -> None:
    settings, changed = settings_of(), settings_of(downgrade_age="7s")
    running, wanted = record_of(settings, tmp_path), record_of(settings, tmp_path)
    wanted.ports, running.stopped, wanted.stopped = running.ports, ["Paris-1"], ["Paris-1"]
    bring_up_to_date(wanted, changed)
    assert changes(running, wanted).restarted == ("London-1", "London-2", "Paris-2")
