"""The followers of the views and conflated topics of a simulated instance, in every way that there
is: each change, conflated, a page, an aggregation of its own. Each applies what comes, as a client
does, and is compared with what there is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from raylay.services.core.feature import CommitBatch
from raylay.services.core.live import LiveSubscriptions
from raylay.services.expressions.functions import BUILT_IN
from raylay.services.messages.conflation_terms import ConflationTerms
from raylay.services.messages.records import Command, iterate_records
from raylay.services.sow.topic import SowTopic
from raylay.services.subscriptions.conflated_subscriptions import ConflatedSources
from raylay.services.subscriptions.delivery import DeliveryContent
from raylay.services.subscriptions.follow_terms import (
    AggregationTerms,
    FollowKind,
    FollowTerms,
    PageTerms,
)
from raylay.services.subscriptions.matching import (
    LiveSubscription,
    TopicFilter,
    nobody,
    topic_filter,
)
from raylay.services.subscriptions.sow_subscriptions import SowSubscriptions
from raylay.services.views.aggregated import AggregatedUse, AggregatedView, AggregatedViews
from raylay.services.views.building import ComputedTopic, TopicBuild
from sim import sow

if TYPE_CHECKING:
    from sim.instance import Instance
    from sim.views import SimViews

CONFLATED_US = 70_000
"""Interval of conflated subscriptions."""
JOINS_US = 150_000
"""Makes another follower join each of them after the start, and asks for an aggregation: meanwhile
there is something pending."""
BUILT_US = 3_000
"""Between two turns of the build of an aggregation."""
PAGES = (PageTerms(0, 2, "/count"), PageTerms(1, 2, "/count DESC"), PageTerms(1, 1))
COUNTS = AggregationTerms(
    "totals", "fields", "", ("/count AS /count", "SUM(/sum) AS /sum"), ("/count",)
)
Rows = dict[bytes, bytes]


def _no_filters() -> NoReturn:
    raise AssertionError("nobody filters by content here")


def shown(tree: Mapping[str, Any]) -> str:
    """Fields in value and type, in any order."""
    return repr(sorted(tree.items()))


def rows_of(topic: SowTopic) -> Rows:
    """The bodies of a topic."""
    return {each.key: each.body or b"" for each in topic.state.records()}


def _equal(one: bytes | None, other: bytes | None) -> bool:
    if one == other or one is None or other is None or one[:1] != b"{":
        return one == other
    return shown(json.loads(one)) == shown(json.loads(other))


def page_of(topic: SowTopic, page: PageTerms) -> Rows:
    """The slice of a sort."""
    rows = rows_of(topic)
    keys = sorted(rows)
    if page.order_by:
        sign = -1 if page.order_by.endswith(" DESC") else 1
        keys.sort(key=lambda key: sign * json.loads(rows[key])["count"])
    return {key: rows[key] for key in keys[page.skip : page.skip + page.most]}


class Pace:
    """The law that a follower gets a key at most once an interval, and not late."""

    def __init__(self, name: str, interval_us: int) -> None:
        self._name, self._interval_us = name, interval_us
        self._given_us: dict[bytes, int] = {}
        self._differs_us: dict[bytes, int] = {}

    def given(self, key: bytes, now_us: int) -> Iterator[str]:
        """A key is given."""
        before_us = self._given_us.get(key)
        if before_us is not None and now_us < before_us + self._interval_us:
            yield f"{self._name}: {key!r} comes {now_us - before_us} us after it came"
        self._given_us[key] = now_us

    def late(self, there: Rows, under: Rows, now_us: int) -> Iterator[str]:
        """The records that a follower holds, and those that it should hold."""
        for key in sorted({*under, *there, *self._differs_us}):
            if _equal(under.get(key), there.get(key)):
                self._differs_us.pop(key, None)
                continue
            since_us = self._differs_us.setdefault(key, now_us)
            if now_us - since_us > self._interval_us:
                yield f"{self._name}: {key!r} has waited {now_us - since_us} us"


class Follower:
    """One who applies what comes.

    Attributes:
        rows: what it holds, by SOW key.
        wrong: what it was told that it had no use for.
        pace: of one with an interval.
    """

    def __init__(
        self,
        topic: SowTopic,
        terms: FollowTerms,
        number: int,
        now_us: Callable[[], int],
        wanted: TopicFilter | None = None,
    ) -> None:
        self.topic = topic
        definition = topic.definition
        name = f"{number} of {definition.name} {terms.text}"
        asked = topic_filter(definition.name, definition.message_type, literal=True)
        self.terms = terms
        self.subscription = LiveSubscription(0, name, wanted or asked, following=terms)
        self.rows = self._wanted()
        self.wrong: list[str] = []
        self._now_us = now_us
        self.pace: Pace | None = None
        if terms.conflation is not None:
            self.pace = Pace(name, terms.conflation.interval_us)

    def _wanted(self) -> Rows:
        page = self.terms.page
        return rows_of(self.topic) if page is None else page_of(self.topic, page)

    def _came(self, key: bytes) -> None:
        if self.pace is not None:
            self.wrong += self.pace.given(key, self._now_us())

    def changed(self, delivery: DeliveryContent) -> None:
        """Messages and deltas have come."""
        for record in iterate_records(b"".join(delivery.bodies)):
            body = record.body
            self._came(record.key)
            if record.command == Command.DELTA_PUBLISH and self.terms.delta:
                if record.key not in self.rows:
                    self.wrong.append(f"a delta to {record.key!r}, which it does not have")
                    continue
                before = json.loads(self.rows[record.key])
                body = json.dumps(before | json.loads(body)).encode()
            self.rows[record.key] = body

    def left(self, delivery: DeliveryContent) -> None:
        """Records have left its focus."""
        for record in iterate_records(b"".join(delivery.bodies)):
            self._came(record.key)
            if self.rows.pop(record.key, None) is None:
                self.wrong.append(f"the end of {record.key!r}, which it does not have")

    def differences(self) -> Iterator[str]:
        """Returns the differences between the records that are held and those that there are."""
        told, self.wrong = self.wrong, []
        for text in told:
            yield f"follower {self.subscription.id}: {text}"
        if self.pace is not None:
            return
        there = self._wanted()
        if there != self.rows and any(
            not _equal(there.get(key), self.rows.get(key)) for key in {**there, **self.rows}
        ):
            yield f"follower {self.subscription.id} holds {self.rows}, there is {there}"


class OneByOne:
    """A scan that takes one record at a time."""

    def __init__(self, scan: Any) -> None:
        self._scan = scan

    @property
    def done(self) -> bool:
        done: bool = self._scan.done
        return done

    def take(self, most: int) -> Any:
        return self._scan.take(1)


class Followed:
    """All who follow in one life of an instance, and what conflated topics owe them."""

    def __init__(self, views: SimViews, instance: Instance) -> None:
        self._views, self._instance = views, instance
        self._followers: dict[str, Follower] = {}
        self._paces = {
            each.topic: (each, Pace(each.definition.name, each.definition.interval_us))
            for each in views.conflation.topics
        }
        self._use: AggregatedUse | None = None
        self._asked = self._added = 0
        self._is_building = False
        machines, world, name = instance.world.machines, instance.world, instance.name
        group = instance.disk.member.group
        book = views.book()
        self._aggregated: AggregatedViews = machines.aggregated(
            views.kinds,
            book.find,
            BUILT_IN,
            lambda is_used: instance.folds.enlist(self._aggregated, is_used),
            self._build_later,
        )
        self._conflated = machines.conflated_subscriptions(
            views.kinds,
            BUILT_IN,
            ConflatedSources(book.find, book.matching),
            name,
            group,
            lambda: world.now_us,
            lambda at_us: world.at(at_us, self._due),
        )
        self._live = LiveSubscriptions(
            self._changed,
            instance.folds.enlist,
            _no_filters,
            {
                FollowKind.RECORDS: lambda: SowSubscriptions(
                    views.kinds, BUILT_IN, lambda *of: book.find(*of) is not None, name, group
                ),
                FollowKind.CONFLATED: lambda: self._conflated,
                FollowKind.PAGES: lambda: machines.pages(
                    views.kinds, BUILT_IN, book.matching, name, group
                ),
            },
            lambda subscription, _, left: self._followers[subscription.id].left(left),
        )

    def follows(self, topic: SowTopic) -> bool:
        """Returns whether the changes of a view are needed (services/server/sow/manager.py)."""
        return (
            any(each.under is topic for each, _ in self._paces.values())
            or self._live.follows(topic.name, topic.type_name)
            or self._aggregated.is_over(topic)
        )

    # -- who follows ---------------------------------------------------------------------------
    def begin(self) -> None:
        """The instance lives."""
        self._instance.world.after(JOINS_US, self._more)

    def built(self, topic: SowTopic) -> None:
        """A topic is built: all who have asked for its rows have them, and go on with what
        comes."""
        name = topic.definition.name
        # Words have no deltas. Nobody but the other views needs the records of `tops`.
        if name != "tops":
            self._add(topic, FollowTerms(oof=True, delta=name in ("pairs", "slower")))
        if name == "totals":
            for number, page in enumerate(PAGES):
                self._add(topic, FollowTerms(oof=True, delta=number == 0, page=page))
            self._add_conflated()

    def _add(
        self, topic: SowTopic, terms: FollowTerms, wanted: TopicFilter | None = None
    ) -> Follower:
        world = self._instance.world
        number = self._added = self._added + 1
        follower = Follower(topic, terms, number, lambda: world.now_us, wanted)
        self._followers[follower.subscription.id] = follower
        self._live.add(follower.subscription)
        return follower

    def _add_conflated(self) -> None:
        slowly = ConflationTerms(CONFLATED_US, ())
        self._add(self._views.sow[sow.ARRIVAL], FollowTerms(oof=True, conflation=slowly))
        for delta in (False, True):
            terms = FollowTerms(oof=True, delta=delta, conflation=slowly)
            self._add(self._views.topics["totals"], terms)

    def _more(self) -> None:
        """Others join, and an aggregation is built while its topic changes."""
        if not self._instance.alive or not self._views.topics["totals"].is_built:
            return
        before, self._asked = self._use, self._asked + 1
        if before is None:
            self._add_conflated()
            self._remove("conflation", first=True)
        else:
            self._remove("projection")
            if self._asked % 2:
                # The next use has it built anew; otherwise they share it for a moment.
                before.release()
        self._use = use = self._aggregated.use(COUNTS, nobody(0), 0)
        if before is not None:
            before.release()
        use.when_ready(lambda refusal: self._aggregation_built(use, refusal))
        if use.is_ready:
            use.told()
        self._instance.world.after(2 * JOINS_US, self._more)

    def _remove(self, option: str, *, first: bool = False) -> None:
        """Ends followers with an option."""
        found = [each for each in self._followers if option in each]
        for name in found[:1] if first else found:
            self._live.remove(self._followers.pop(name).subscription)

    def _aggregation_built(self, use: AggregatedUse, refusal: str) -> None:
        if use is self._use and not refusal:
            self._instance.world.probes["aggregation built"] += 1
            terms = FollowTerms(oof=True, aggregation=use.terms)
            self._add(use.topic, terms, use.wanted)

    def _build_later(self) -> None:
        if not self._is_building:
            self._is_building = True
            self._instance.world.after(BUILT_US, self._build)

    def _build(self) -> None:
        """One record a turn."""
        self._is_building = False
        if self._instance.alive and self._aggregated.build(lambda: True):
            self._build_later()

    # -- what they get ---------------------------------------------------------------------------
    def _due(self) -> None:
        if self._instance.alive:
            self._live.give(self._conflated.due())
            self._views.judge_pace()

    def _changed(
        self, subscriptions: tuple[LiveSubscription, ...], delivery: DeliveryContent
    ) -> None:
        for each in subscriptions:
            self._followers[each.id].changed(delivery)

    def given(self, batch: CommitBatch, now_us: int) -> Iterator[str]:
        """Returns the changes that a conflated topic gives too early."""
        for change in batch.changes:
            if change.topic in self._paces:
                yield from self._paces[change.topic][1].given(change.change.key, now_us)

    def late(self, now_us: int) -> Iterator[str]:
        """Returns the changes that conflated topics and subscriptions have not given in time."""
        for conflated, pace in self._paces.values():
            if not conflated.topic.is_built:
                continue
            under = rows_of(conflated.under)
            if conflated.definition.filter:
                under = {
                    key: body for key, body in under.items() if 1 in map(sow.sort_of, body.split())
                }
            yield from pace.late(rows_of(conflated.topic), under, now_us)
        for follower in self._followers.values():
            if follower.pace is not None:
                yield from follower.pace.late(follower.rows, rows_of(follower.topic), now_us)

    def differences(self) -> Iterator[str]:
        """Returns the followers that hold other records than those that they follow, and the
        aggregations that differ from a computation of their topic."""
        for follower in self._followers.values():
            yield from follower.differences()
        use = self._use
        if use is not None and use.is_ready:
            groups: dict[int, list[Any]] = {}
            for body in rows_of(self._views.topics["totals"]).values():
                fields = json.loads(body)
                groups.setdefault(fields["count"], []).append(fields["sum"])
            expected = []
            for count, sums in groups.items():
                numbers = [each for each in sums if each is not None]
                expected.append(shown({"count": count, "sum": sum(numbers) if numbers else None}))
            found = [shown(json.loads(each)) for each in rows_of(use.topic).values()]
            if sorted(expected) != sorted(found):
                yield f"an aggregation holds {sorted(found)}, its topic says {sorted(expected)}"


class SimBuild(TopicBuild):
    """Builds views a record a turn."""

    def take(self, is_over: Callable[[], bool]) -> list[ComputedTopic]:
        if self._topics and self._scan is None:
            scan: Any = OneByOne(self._topics[0].state.present())
            self._scan = scan
        return super().take(is_over)


class SimAggregated(AggregatedViews):
    """Builds a record a turn."""

    def _take_some(self, shared: AggregatedView, scan: Any) -> None:
        super()._take_some(shared, OneByOne(scan))  # type: ignore[arg-type]
