"""Views and conflated topics of simulated instances, and what they have to hold: computed here once
more from the records under them, without anything that production asks.

The fields of a record follow from the sum of the numbers in its body. At each fold an instance's
views are compared with a computation from nothing, in value and type, and so is what followers hold
who apply what comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from raylay.services.core.conflation import ConflationFeature
from raylay.services.core.feature import CommitBatch
from raylay.services.core.live import LiveSubscriptions
from raylay.services.core.views import ViewFeature
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.records import Command, iterate_records
from raylay.services.messages.types.json import Json
from raylay.services.sow.book import SowBook
from raylay.services.sow.topic import SowTopic
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.follow_terms import FollowKind, FollowTerms
from raylay.services.subscriptions.matching import LiveSubscription, topic_filter
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions
from raylay.services.verification.history import SowDiffers
from raylay.services.views.conflated_topic import ConflatedTopic, conflated_filter
from raylay.services.views.definition import ConflatedTopicDefinition, ViewDefinition
from raylay.services.views.sources import SourceTopic
from raylay.services.views.view import view_plan
from sim import sow

if TYPE_CHECKING:
    from sim.instance import Instance

JUDGED_EVERY = 3
"""Every so manieth fold that changes records is compared with a computation from nothing."""
INTERVAL_US = 100_000
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
def _no_filters() -> NoReturn:
    raise AssertionError("nobody filters by content here")


class SimViews:
    """The views and conflated topics of one life of an instance, beside production's code for them.

    Args:
        topics: the SOW topics.
    """

    name = "replays"
    """Behind everything that folds records."""
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
            passes = conflated_filter(each, KINDS, known)
            under = known[SourceTopic(each.message_type, each.topic)]
            conflated.append(machines.conflated(each, under, passes))
        self.conflation: ConflationFeature = machines.conflation(
            conflated, lambda: instance.world.now_us, self._wake
        )
        self.followed = Followed(self)
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
        """The SOW topics have recovered."""
        self.views.build()
        for each in self.conflation.topics:
            each.build()
        for feature in (self.views, self.conflation, self):
            self._instance.folds.enlist(feature, True)
        self.followed.begin(self._instance)
        self._tell(differences(self))
        self._instance.world.probes["views built from records"] += bool(
            sum(each.topic.state.count for each in self.views.views)
        )

    def _wake(self, at_us: int) -> None:
        self._instance.world.at(at_us, self._conflate)

    def _conflate(self) -> None:
        """As services/server/sow/manager.py does it."""
        instance = self._instance
        if instance.alive and (changes := self.conflation.due()):
            instance.world.probes["conflated topic given"] += 1
            folded_txid = instance.folds.folded_txid(instance.machine.committed_txid)
            instance.folds.fold(CommitBatch([], folded_txid, changes))

    # -- a feature, behind all others ------------------------------------------------------------
    def fold(self, batch: CommitBatch) -> None:
        """Judges what the fold of a slice has made."""
        if not batch.changes or not self._instance.alive:
            return
        now_us = self._instance.world.now_us
        self._tell(self.followed.given(batch, now_us))
        self._tell(self.followed.late(now_us))
        self._folds += 1
        if self._folds % JUDGED_EVERY == 0:
            self._tell(differences(self))
            self._tell(self.followed.differences())

    def failed(self, committed_txid: int) -> None:
        """Nothing of it was folded."""

    def end(self) -> None:
        """Judges it in the end."""
        self._tell(differences(self))
        self._tell(self.followed.differences())
        self._tell(self.followed.late(self._instance.world.now_us))

    def _tell(self, found: Iterable[str]) -> None:
        world = self._instance.world
        for text in found:
            world.log(SowDiffers(world.now_us, self._instance.name, text))


# -- for the checkers --------------------------------------------------------------------------
def shown(tree: dict[str, Any]) -> str:
    """Fields in value and type, in any order."""
    return repr(sorted(tree.items()))


def held(topic: SowTopic) -> list[str]:
    """What an instance says that a view holds."""
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
    """Where a view is not what its records say."""
    expected = computed(*(_records(views.sow[name]) for name in (sow.ARRIVAL, sow.LAST_WRITER)))
    for view in views.views.views:
        name = view.definition.name
        there, found = sorted(map(shown, expected[name])), held(view.topic)
        if there != found:
            yield f"view {name} holds {found}, its records say {there}"
        if view.topic.state.count != len(there):
            yield f"view {name} counts {view.topic.state.count} records of {len(there)}"


class _Follower:
    """One who applies what comes. `rows`: what it holds, by SOW key."""

    def __init__(self, topic: SowTopic, terms: FollowTerms) -> None:
        self.topic = topic
        definition = topic.definition
        self.subscription = LiveSubscription(
            0,
            f"{definition.name} {terms.text}",
            topic_filter(definition.name, definition.message_type, literal=True),
            following=terms,
        )
        self.rows = {each.key: each.body or b"" for each in topic.state.records()}
        self.wrong: list[str] = []

    def changed(self, delivery: DeliveryContent) -> None:
        for record in iterate_records(b"".join(delivery.bodies)):
            body = record.body
            if record.command == Command.DELTA_PUBLISH:
                if record.key not in self.rows:
                    self.wrong.append(f"a delta to {record.key!r}, which it does not have")
                    continue
                before = json.loads(self.rows[record.key])
                body = json.dumps(before | json.loads(body)).encode()
            self.rows[record.key] = body

    def left(self, delivery: DeliveryContent) -> None:
        for record in iterate_records(b"".join(delivery.bodies)):
            if self.rows.pop(record.key, None) is None:
                self.wrong.append(f"the end of {record.key!r}, which it does not have")

    def differs(self) -> bool:
        there = {each.key: each.body or b"" for each in self.topic.state.records()}
        if there == self.rows:
            return False
        return there.keys() != self.rows.keys() or any(
            self.topic.type_name == b"json"
            or shown(json.loads(body)) != shown(json.loads(self.rows[key]))
            for key, body in there.items()
            if body != self.rows[key]
        )


class Followed:
    """Those who follow views and conflated topics, and what these owe them."""

    def __init__(self, views: SimViews) -> None:
        self._views = views
        self._followers: dict[str, _Follower] = {}
        self._given_us: dict[tuple[str, bytes], int] = {}
        self._differs_us: dict[tuple[str, bytes], int] = {}
        self._conflated = {each.topic: each for each in views.conflation.topics}

    def begin(self, instance: Instance) -> None:
        """All have asked for the rows, and go on with what comes."""
        names = {each.name for each in self._views.topics.values()}
        member = instance.disk.member
        live = LiveSubscriptions(
            lambda subscriptions, delivery: self._changed(subscriptions, delivery),
            instance.folds.enlist,
            _no_filters,
            {
                FollowKind.RECORDS: lambda: SowSubscriptions(
                    KINDS, BUILT_IN, lambda name, _: name in names, instance.name, member.group
                )
            },
            lambda subscription, _, left: self._followers[subscription.id].left(left),
        )
        for name, topic in self._views.topics.items():
            # Words have no deltas.
            delta = name in (PAIRS, TOPS, SLOWER)
            follower = _Follower(topic, FollowTerms(oof=True, delta=delta, began_with_rows=True))
            self._followers[follower.subscription.id] = follower
            live.add(follower.subscription)

    def _changed(
        self, subscriptions: tuple[LiveSubscription, ...], delivery: DeliveryContent
    ) -> None:
        for each in subscriptions:
            self._followers[each.id].changed(delivery)

    def given(self, batch: CommitBatch, now_us: int) -> Iterator[str]:
        """What a conflated topic gives too early."""
        for change in batch.changes:
            conflated = self._conflated.get(change.topic)
            if conflated is None:
                continue
            place = conflated.definition.name, change.change.key
            before_us = self._given_us.get(place)
            if before_us is not None and now_us < before_us + conflated.definition.interval_us:
                yield f"{place} is given {now_us - before_us} us after it was given"
            self._given_us[place] = now_us

    def differences(self) -> Iterator[str]:
        """Who holds something else than what he follows."""
        for follower in self._followers.values():
            if follower.differs():
                yield f"follower {follower.subscription.id} does not hold what there is"
            told, follower.wrong = follower.wrong, []
            for text in told:
                yield f"follower {follower.subscription.id} is told of {text}"

    def late(self, now_us: int) -> Iterator[str]:
        """What conflated topics have not given in time."""
        for conflated in self._conflated.values():
            yield from self._late(conflated, now_us)

    def _late(self, conflated: ConflatedTopic, now_us: int) -> Iterator[str]:
        name = conflated.definition.name
        sorted_out = name == SLOW
        under = {
            each.key: each.body
            for each in conflated.under.state.records()
            if not sorted_out or 1 in map(sow.sort_of, (each.body or b"").split())
        }
        there = {each.key: each.body for each in conflated.topic.state.records()}
        before = [key for topic, key in self._differs_us if topic == name]
        for key in sorted({*under, *there, *before}):
            place = name, key
            if under.get(key) == there.get(key):
                self._differs_us.pop(place, None)
                continue
            since_us = self._differs_us.setdefault(place, now_us)
            if now_us - since_us > conflated.definition.interval_us:
                yield f"{place} has waited {now_us - since_us} us"
