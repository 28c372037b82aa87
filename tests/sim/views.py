"""Views and conflated topics of simulated instances, and what they have to hold: computed here once
more from the records under them, without anything that production asks.

The fields of a record follow from the sum of the numbers in its body. At each fold an instance's
views are compared with a computation from nothing, in value and type, and so is what followers hold
who apply what comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from raylay.services.core.conflation import ConflationFeature
from raylay.services.core.feature import CommitBatch
from raylay.services.core.views import ViewFeature
from raylay.services.messages.types.json import Json
from raylay.services.sow.book import SowBook
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.verification.history import SowDiffers
from raylay.services.views.building import TopicBuild
from raylay.services.views.conflated_topic import conflated_plan
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition
from raylay.services.views.sources import SourceTopic
from raylay.services.views.view import View, view_plan
from sim import sow
from sim.view_followers import Followed, shown

if TYPE_CHECKING:
    from sim.instance import Instance

JUDGED_EVERY = 3
"""Every so manieth fold that changes records is compared with a computation from nothing."""
INTERVAL_US = 100_000
TURN_US = 1_500
"""Between two turns of the build of views, each of one record."""
TOTALS, PAIRS, TOPS, COPIES = "totals", "pairs", "tops", "copies"
SLOW, SLOWER = "slow", "slower"
VIEWS = (
    ViewDefinition(
        TOTALS,
        "fields",
        topic=sow.ARRIVAL,
        filter="/side != 1",
        grouping=("/group",),
        projection=(
            "/group AS /group",
            "COUNT(/amount) AS /count",
            "SUM(/amount) AS /sum",
            "MAX(/amount) AS /most",
        ),
    ),
    ViewDefinition(
        PAIRS,
        "fields",
        joins=(f"[{sow.ARRIVAL}]./match = [{sow.LAST_WRITER}]./match",),
        grouping=(f"[{sow.ARRIVAL}]./group",),
        projection=(
            f"[{sow.ARRIVAL}]./group AS /group",
            f"COUNT([{sow.ARRIVAL}]./side) AS /rows",
            f"COUNT([{sow.LAST_WRITER}]./side) AS /matches",
            f"SUM([{sow.LAST_WRITER}]./amount) AS /sum",
        ),
    ),
    ViewDefinition(
        TOPS,
        "fields",
        topic=TOTALS,
        inline=True,
        grouping=("/count",),
        projection=("/count AS /count", "COUNT(/group) AS /groups", "SUM(/sum) AS /sum"),
    ),
    ViewDefinition(
        COPIES,
        "fields",
        topic=sow.LAST_WRITER,
        grouping=("/group",),
        projection=(
            "/group AS /group",
            "COUNT(/amount) AS /count",
            "SUM(/amount) AS /sum",
            "MAX(/amount) AS /most",
        ),
    ),
)
CONFLATED = (
    ConflatedTopicDefinition(SLOW, "json", sow.ARRIVAL, INTERVAL_US, filter="/sort1 = 1"),
    ConflatedTopicDefinition(SLOWER, "fields", TOTALS, 3 * INTERVAL_US),
)
KINDS = {"json": sow.Words("json"), "fields": Json("fields")}


# -- for the machines --------------------------------------------------------------------------
class SimViews:
    """The views and conflated topics of one life of an instance, beside production's code for them.

    Args:
        topics: the SOW topics.
    """

    kinds = KINDS
    name = "replays"
    """The feature that compares views, behind everything that folds records."""
    may_be_ahead = False

    def __init__(self, instance: Instance, topics: Iterable[SowTopic]) -> None:
        machines = instance.world.machines
        self._instance = instance
        self.sow = {topic.definition.name: topic for topic in topics}
        known = {
            SourceTopic(each.definition.message_type, name): each for name, each in self.sow.items()
        }
        made = []
        for definition in VIEWS:
            plan = view_plan(definition, KINDS, known)
            view = machines.view(plan, KINDS, [known[each.topic] for each in plan.sources.joined])
            known[SourceTopic("fields", definition.name)] = view.topic
            made.append(view)
        self.views: ViewFeature = machines.views(made)
        conflated = []
        for each in CONFLATED:
            plan = conflated_plan(each, KINDS, dict.fromkeys(known, ""))
            under = known[SourceTopic(each.message_type, each.topic)]
            conflated.append(machines.conflated(plan, under))
        self.conflation: ConflationFeature = machines.conflation(
            conflated, lambda: instance.world.now_us, self._wake
        )
        self.followed = Followed(self, instance)
        self.views.follow_by(self.followed.follows)
        self._folds = 0

    @property
    def topics(self) -> dict[str, SowTopic]:
        """The computed topics, by name."""
        computed = (*self.views.views, *self.conflation.topics)
        return {each.definition.name: each.topic for each in computed}

    def book(self) -> SowBook:
        """All topics, as production has them."""
        return SowBook(tuple(self.sow.values()), tuple(self.topics.values()))

    def begin(self) -> None:
        """The SOW topics have recovered: the others are built in turns, while they change."""
        for feature in (self.views, self.conflation, self):
            self._instance.folds.enlist(feature, True)
        computed = (*self.views.views, *self.conflation.topics)
        self._turn(self._instance.world.machines.build(computed))
        self.followed.begin()

    def _turn(self, build: TopicBuild) -> None:
        """As services/server/sow/manager.py does it."""
        instance, world = self._instance, self._instance.world
        if not instance.alive:
            world.probes["died while its views were built"] += 1
            return
        for each in build.take(lambda: True):
            if isinstance(each, View):
                self._fold_changes(self.views.began(each))
                world.probes["view built from records"] += bool(each.topic.state.count)
            self.followed.built(each.topic)
            self._tell(differences(self))
        if not build.is_done:
            world.after(TURN_US, self._turn, build)

    def _fold_changes(self, changes: list[SowChange]) -> None:
        instance = self._instance
        if changes:
            folded_txid = instance.folds.folded_txid(instance.machine.committed_txid)
            instance.folds.fold(CommitBatch([], folded_txid, changes))

    def _wake(self, at_us: int) -> None:
        self._instance.world.at(at_us, self._conflate)

    def _conflate(self) -> None:
        """As services/server/sow/manager.py does it."""
        instance = self._instance
        if instance.alive and (changes := self.conflation.due()):
            instance.world.probes["conflated topic given"] += 1
            self._fold_changes(changes)

    # -- a feature, behind all others ------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Judges what the fold of a slice has made."""
        if not batch.changes or not self._instance.alive:
            return
        self._tell(self.followed.given(batch, self._instance.world.now_us))
        self.judge_pace()
        self._folds += 1
        if self._folds % JUDGED_EVERY == 0:
            self._tell(differences(self))
            self._tell(self.followed.differences())

    def judge_pace(self) -> None:
        """Judges what is conflated: each time that something changes or is given."""
        self._tell(self.followed.late(self._instance.world.now_us))

    def failed(self, committed_txid: int) -> None:
        """Does nothing: no part of it was folded."""

    def end(self) -> None:
        """Judges it in the end."""
        self._tell(differences(self))
        self._tell(self.followed.differences())
        self.judge_pace()

    def _tell(self, found: Iterable[str]) -> None:
        world = self._instance.world
        for text in found:
            world.log(SowDiffers(world.now_us, self._instance.name, text))


# -- for the checkers --------------------------------------------------------------------------
def held(topic: SowTopic) -> list[str]:
    """Returns the records of a view at an instance."""
    return sorted(shown(json.loads(each.body or b"")) for each in topic.state.records())


def _records(topic: SowTopic) -> list[dict[str, Any]]:
    return [sow.fields_of(each.body or b"") for each in topic.state.records()]


def _grouped(
    rows: Iterable[dict[str, Any]], by: str, make: Callable[[list[dict[str, Any]]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Equal texts are a group; it has a number if any of them is one."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[by]), []).append(row)
    found = []
    for text, members in groups.items():
        number = any(not isinstance(each[by], str) for each in members)
        found.append({by: int(text) if number else text, **make(members)})
    return found


def total(values: Iterable[Any]) -> int | float | None:
    """The sum: NULL of none, a double if one is."""
    numbers = [each for each in values if each is not None]
    return sum(numbers) if numbers else None


def most(values: Iterable[Any]) -> int | float | None:
    """The largest: a double if any of them is one."""
    numbers = [each for each in values if each is not None]
    if not numbers:
        return None
    return float(max(numbers)) if any(isinstance(each, float) for each in numbers) else max(numbers)


def _amounts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    amounts = [each["amount"] for each in rows if each["amount"] is not None]
    return {"count": len(amounts), "sum": total(amounts), "most": most(amounts)}


def _pairs(
    orders: list[dict[str, Any]], trades: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    for order in orders:
        fitting = [
            each
            for each in trades
            if order["match"] is not None and each["match"] == order["match"]
        ]
        yield from ((order, each) for each in fitting or [None])


def computed(
    orders: list[dict[str, Any]], trades: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Each view's fields, from what the two topics hold."""
    totals = _grouped((each for each in orders if each["side"] != 1), "group", _amounts)
    rows = [
        {"group": order["group"], "order": order, "trade": trade}
        for order, trade in _pairs(orders, trades)
    ]

    def joined(members: list[dict[str, Any]]) -> dict[str, Any]:
        found = [each["trade"] for each in members if each["trade"] is not None]
        summed = total(each["amount"] for each in found)
        return {"rows": len(members), "matches": len(found), "sum": summed}

    def topped(members: list[dict[str, Any]]) -> dict[str, Any]:
        return {"groups": len(members), "sum": total(each["sum"] for each in members)}

    return {
        TOTALS: totals,
        PAIRS: _grouped(rows, "group", joined),
        TOPS: _grouped(totals, "count", topped),
        COPIES: _grouped(trades, "group", _amounts),
    }


def differences(views: SimViews) -> Iterator[str]:
    """Returns the differences between a view and a computation from its records."""
    expected = computed(*(_records(views.sow[name]) for name in (sow.ARRIVAL, sow.LAST_WRITER)))
    for view in views.views.views:
        name = view.definition.name
        if not view.topic.is_built:
            continue
        there, found = sorted(map(shown, expected[name])), held(view.topic)
        if there != found:
            yield f"view {name} holds {found}, its records say {there}"
        if view.topic.state.count != len(there):
            yield f"view {name} counts {view.topic.state.count} records of {len(there)}"
