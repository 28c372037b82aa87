"""Views and conflated topics of simulated instances: each equals a computation from what its topics
hold, and who applies what comes holds it."""

from __future__ import annotations

import pytest

from raylay.services.verification import checkers
from sim import plans, run, sow, views
from sim.mistakes import MISTAKES
from sim.test_scenarios import Play

pytestmark = pytest.mark.covers(
    "Views", "a view equals a fresh computation", note="at each fold and start of a simulated life"
)


def play_with(planted: str = "") -> Play:
    machines = MISTAKES[planted] if planted else None
    play = Play(plans.mesh(2), machines=machines, sow=True, views=True)
    play.world.deletes = True
    return play


def laws(play: Play) -> set[str]:
    return {violation.law for violation in checkers.check_all(play.end(check=False))}


def held(play: Play, name: str) -> list[list[str]]:
    """Returns the records of each instance's view."""
    found = []
    for each in play.world.instances.values():
        assert each.views is not None
        found.append(views.held(each.views.topics[name]))
    return found


@pytest.mark.parametrize("planted", ["", "views: deaf to deletes"])
def test_copies_of_a_view_over_a_last_writers_topic_are_equal(planted: str) -> None:
    play = play_with(planted)
    here, there = play.client("p", "m1"), play.client("q", "m2")
    play.until(50)
    play.world.partition({("m1", "m2")})
    for _ in range(4):
        for client in (here, there):
            client.publish([sow.LAST_WRITER] * 5)
        play.until(play.world.now_us // 1000 + 30)
    play.world.heal()
    found = laws(play)
    first, second = held(play, views.COPIES)
    assert first and found == ({"sow"} if planted else set())
    assert planted or first == second


@pytest.mark.parametrize("planted", ["", "views: built upper first"])
def test_after_a_crash_the_views_are_those_of_the_recovered_records(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    client.publish([sow.ARRIVAL, sow.LAST_WRITER] * 8)
    play.until(100)
    play.world.crash("m1")
    play.world.restart("m1")
    play.until(200)
    assert laws(play) == ({"sow"} if planted else set())
    assert planted or all(held(play, views.TOPS))


@pytest.mark.parametrize("planted", ["", "view: leaves to the build"])
def test_views_are_built_while_their_topics_change(planted: str) -> None:
    """The law holds in a life that dies amid that, too."""
    play = play_with(planted)
    client = play.client("p", "m1")
    for _ in range(8):
        client.publish([sow.ARRIVAL, sow.LAST_WRITER] * 6)
        play.until(play.world.now_us // 1000 + 60)
        play.world.crash("m1")
        play.world.restart("m1")
        play.until(play.world.now_us // 1000 + 8)
        play.world.crash("m1")
        play.world.restart("m1")
        client.publish([sow.ARRIVAL, sow.LAST_WRITER] * 3)
        play.until(play.world.now_us // 1000 + 400)
    assert laws(play) == ({"sow"} if planted else set())
    assert play.world.probes["died while its views were built"]


@pytest.mark.covers("Views", "conflation: a key")
@pytest.mark.parametrize("planted", ["", "conflated: keeps the first"])
def test_a_conflated_topic_has_the_last_value_when_its_interval_is_over(planted: str) -> None:
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    for _ in range(3):
        client.publish([sow.ARRIVAL] * 4)
        play.until(play.world.now_us // 1000 + 30)
    play.until(play.world.now_us // 1000 + 1_000)
    found = laws(play)
    instance = play.world.instances["m1"]
    assert instance.views is not None
    slower = {each.key: each for each in instance.views.topics[views.SLOWER].state.records()}
    totals = {each.key: each for each in instance.views.topics[views.TOTALS].state.records()}
    assert found == ({"sow"} if planted else set())
    assert totals and (slower == totals) == (not planted)


@pytest.mark.covers("Views", "windows into ordered rows")
@pytest.mark.parametrize("planted", ["", "page: gap not filled", "page: pushed out untold"])
def test_who_follows_a_page_holds_the_slice_of_a_sort(planted: str) -> None:
    assert laws(followed(planted)) == ({"sow"} if planted else set())


@pytest.mark.parametrize(
    "planted",
    ["", "conflated: delta of the last", "conflated: freed with the first"],
)
def test_conflated_subscribers_end_with_the_topic(planted: str) -> None:
    assert laws(followed(planted)) == ({"sow"} if planted else set())


@pytest.mark.parametrize(
    "planted", ["", "aggregated: leaves to the scan", "aggregated: ends with the first"]
)
def test_an_aggregation_is_built_while_its_topic_changes(planted: str) -> None:
    play = followed(planted)
    assert laws(play) == ({"sow"} if planted else set())
    assert play.world.probes["aggregation built"] > 1


def followed(planted: str) -> Play:
    """Messages over several intervals, so that all kinds of followers are given some."""
    play = play_with(planted)
    client = play.client("p", "m1")
    play.until(50)
    for _ in range(60):
        client.publish([sow.ARRIVAL, sow.LAST_WRITER, sow.ARRIVAL])
        play.until(play.world.now_us // 1000 + 13)
    return play


def test_few_seeds_have_views() -> None:
    assert 0 < sum(map(run.has_views, range(100))) < 10
