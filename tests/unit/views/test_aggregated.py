"""Aggregated queries and subscriptions (services/views/aggregated.py): views that are built in
turns while changes are folded, compared with a recomputation; who shares them, and how they end."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sow_given import ORDERS, book, delete, put

from raylay.services.core.feature import CommitBatch
from raylay.services.core.sow import SowFeature
from raylay.services.errors import RemoteProtocolError, StorageError
from raylay.services.expressions.budgets import FilterBudgets
from raylay.services.expressions.work import WORK_MAX
from raylay.services.plugins.message_types import installed_types
from raylay.services.plugins.views import aggregated_views, with_views
from raylay.services.sow.definition import SowTopicDefinition
from raylay.services.sow.keys import key_of
from raylay.services.sow.topic import SowChange, SowTopic
from raylay.services.subscriptions.follow_terms import AggregationTerms, FollowTerms
from raylay.services.subscriptions.matching import FilterOwner, LiveSubscription, topic_filter
from raylay.services.views import aggregated
from raylay.services.views.aggregated import AggregatedUse, AggregatedViews
from raylay.services.views.definition import ViewDefinition

pytestmark = pytest.mark.covers("Views", "aggregations: built in turns")

NOBODY = FilterOwner()
SUMS = ("/customer AS /customer", "SUM(/price) AS /sum", "COUNT(/price) AS /count")


def terms(
    filter_: str = "",
    projection: tuple[str, ...] = SUMS,
    grouping: tuple[str, ...] = ("/customer",),
) -> AggregationTerms:
    return AggregationTerms("orders", "json", filter_, projection, grouping)


def never() -> bool:
    return False


def always() -> bool:
    return True


class Aggregations:
    """SOW topic `orders`, and aggregations of it."""

    def __init__(self, *definitions: SowTopicDefinition, **more: Any) -> None:
        self.book = book(*definitions)
        self.sow = SowFeature(self.book)
        self.enlisted: list[bool] = []
        self.woken = 0
        self.views = AggregatedViews(
            installed_types(()),
            lambda topic, kind: self.book.find(topic, kind),
            enlist=self.enlisted.append,
            wake=self._wake,
            **more,
        )
        self.txid = 0

    def _wake(self) -> None:
        self.woken += 1

    def commit(self, run: Any) -> list[SowChange]:
        batch = CommitBatch([run], run.last_txid)
        self.sow.fold(batch)
        count = len(batch.changes)
        self.views.fold(batch)
        self.txid = batch.last_txid
        return batch.changes[count:]

    def publish(self, *orders: dict[str, Any]) -> list[SowChange]:
        return self.commit(put(self.txid + 1, *(json.dumps(each).encode() for each in orders)))

    def delete(self, number: int) -> list[SowChange]:
        return self.commit(delete(self.txid + 1, key_of({"id": number}, ("/id",), "orders")))

    def use(self, *asked: Any, asker: FilterOwner = NOBODY) -> AggregatedUse:
        return self.views.use(terms(*asked), asker)

    def built(self, *asked: Any) -> AggregatedUse:
        found = self.use(*asked)
        self.views.build(never)
        assert found.is_ready
        return found

    def fresh(self, asked: AggregationTerms) -> dict[bytes, bytes | None]:
        """The groups as a configured view of the same name has them."""
        definition = ViewDefinition(
            "orders", "json", topic="orders", projection=asked.projection,
            grouping=asked.grouping, filter=asked.filter,
        )  # fmt: skip
        _, views, _ = with_views(self.book, [definition], ())
        views.build()
        return rows_of(views.views[0].topic)


def rows_of(topic: Any) -> dict[bytes, bytes | None]:
    return {each.key: each.body for each in topic.state.records()}


def sums(use: AggregatedUse) -> list[Any]:
    return sorted((json.loads(each or b"") for each in rows_of(use.topic).values()), key=str)


ORDER = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "customer": st.sampled_from([1, 2, "1", None]),
        "price": st.sampled_from([1, 5, 5.0, -1, None, "x"]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), ORDER),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("use"), st.integers(0, 2)),
        st.tuples(st.just("release"), st.integers(0, 7)),
        st.tuples(st.just("build"), st.none()),
    ),
    max_size=40,
)
ASKED = (terms(), terms("/price > 0"), terms("", ("COUNT(/id) AS /count",), ()))


@settings(deadline=None)
@given(st.lists(ORDER, max_size=12), STEPS)
def test_whoever_asks_whenever_holds_a_fresh_computation(
    before: list[dict[str, Any]], steps: list[tuple[str, Any]]
) -> None:
    at = Aggregations()
    at.publish(*before) if before else None
    uses: list[tuple[AggregatedUse, dict[bytes, bytes | None] | None]] = []
    with pytest.MonkeyPatch.context() as patched:
        # Each build meets changes before and behind the place that it has reached.
        patched.setattr(aggregated, "TAKEN_AT_ONCE", 2)
        for step, value in steps:
            changes: list[SowChange] = []
            if step == "publish":
                changes = at.publish(value)
            elif step == "delete":
                changes = at.delete(value)
            elif step == "use":
                uses.append((at.views.use(ASKED[value], FilterOwner()), None))
            elif step == "release" and value < len(uses):
                uses.pop(value)[0].release()
            elif step == "build":
                at.views.build(always)
            for number, (use, held) in enumerate(uses):
                if not use.is_ready:
                    continue
                if held is None:
                    # The query begins, and returns the rows of this moment.
                    held = rows_of(use.topic)
                    uses[number] = use, held
                    assert held == at.fresh(use.terms)
                    continue
                for each in changes:
                    if each.name == use.topic.name:
                        held.pop(each.change.key, None)
                        if each.change.current is not None:
                            held[each.change.key] = each.change.current.body
                assert held == rows_of(use.topic) == at.fresh(use.terms)
    assert len(at.views) == len({use.terms for use, _ in uses})
    for use, _ in uses:
        use.release()
    assert not len(at.views) and at.enlisted.count(True) == at.enlisted.count(False)


@pytest.mark.covers("Views and conflation, title by title", "equal ones are")
def test_equal_terms_share_a_view_which_ends_with_its_last_user() -> None:
    at = Aggregations()
    at.publish({"id": 1, "customer": 1, "price": 10}, {"id": 2, "customer": 1, "price": 5})
    one, same, other = at.use(), at.use(), at.use("/price > 7")
    assert len(at.views) == 2 and at.enlisted == [True] and at.woken == 2
    assert one.topic is same.topic is not other.topic
    assert not at.views.build(never)
    assert sums(one) == [{"customer": 1, "sum": 15, "count": 2}]
    assert sums(other) == [{"customer": 1, "sum": 10, "count": 1}]
    one.release()
    one.release()
    assert [change.name for change in at.publish({"id": 2, "customer": 1, "price": 6})] == [
        same.topic.name
    ]
    same.release()
    assert at.publish({"id": 2, "customer": 1, "price": 7}) == []
    other.release()
    assert at.enlisted == [True, False] and len(at.views) == 0


@pytest.mark.covers("Views", "aggregations: what they refuse")
def test_what_is_shared_is_charged_in_equal_parts() -> None:
    at = Aggregations()
    at.publish({"id": 1, "customer": 1, "price": 10}, {"id": 2, "customer": 1, "price": 5})
    one = at.views.use(terms(), NOBODY, 1)
    at.views.build(never)
    whole = at.views.memory_bytes
    assert at.views.charges() == [(1, whole)] and at.views.charges() == []
    two = at.views.use(terms(), NOBODY, 2, follows=False)
    assert at.views.charges() == [(1, whole // 2 - whole), (2, whole // 2)]
    one.release()
    one.release()
    assert at.views.charges() == [(1, -(whole // 2)), (2, whole - whole // 2)]
    two.release()
    assert at.views.charges() == [(2, -whole)]


def test_changes_are_made_only_where_somebody_follows() -> None:
    at = Aggregations()
    query = at.views.use(terms(), NOBODY, follows=False)
    at.views.build(never)
    assert at.publish({"id": 1, "customer": 1, "price": 10}) == []
    assert sums(query) == [{"customer": 1, "sum": 10, "count": 1}]
    follower = at.use()
    assert len(at.publish({"id": 1, "customer": 1, "price": 11})) == 1
    follower.release()
    assert at.publish({"id": 1, "customer": 1, "price": 12}) == []
    assert sums(query) == [{"customer": 1, "sum": 12, "count": 1}]


def test_records_carry_the_name_of_the_topic_and_are_found_by_no_other() -> None:
    at = Aggregations()
    use = at.built()
    (change,) = at.publish({"id": 1, "customer": 1, "price": 10})
    assert change.topic.shown_as == b"orders" and change.name != b"orders"
    assert use.wanted.matches(change.name, b"json")
    assert use.wanted.written == b"orders"
    for pattern in (".*", "", "^.", "orders"):
        assert not topic_filter(pattern, "").matches(change.name, b"json")


def test_a_subscription_shows_its_aggregation_as_it_was_written() -> None:
    at = Aggregations()
    use = at.built("/price > 0")
    following = FollowTerms(oof=True, aggregation=use.terms)
    found = LiveSubscription(1, "s", use.wanted, "", 0, following)
    assert found.written_filter == "/price > 0"
    assert found.options == f"oof,projection=[{','.join(SUMS)}],grouping=[/customer]"
    assert terms("", ("COUNT(/id) AS /n",), ()).text == "projection=[COUNT(/id) AS /n]"
    assert LiveSubscription(1, "s", use.wanted, "/a = 1").written_filter == "/a = 1"


def test_several_builds_take_turns() -> None:
    at = Aggregations()
    at.publish(*({"id": number, "customer": number, "price": 1} for number in range(200)))
    one, other = at.use(), at.use("/price > 0")
    told: list[tuple[str, str]] = []
    one.when_ready(lambda refusal: told.append(("one", refusal)))
    other.when_ready(lambda refusal: told.append(("other", refusal)))
    turns = 0
    while at.views.build(always):
        turns += 1
        assert not any(name == "one" for name, _ in told) or turns >= 6
    assert told == [("one", ""), ("other", "")] and turns == 7
    later = at.use()
    assert later.is_ready


def test_who_gives_up_waiting_is_told_nothing() -> None:
    at = Aggregations()
    at.publish({"id": 1, "customer": 1, "price": 10})
    one, other = at.use(), at.use("/price > 0")
    one.when_ready(pytest.fail)
    told: list[str] = []
    other.when_ready(told.append)
    one.release()
    assert not at.views.build(never) and told == [""]


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.parametrize(
    ("asked", "reason", "text"),
    [
        (terms()._replace(topic="nowhere"), "no_sow", "state of the world"),
        (terms("/price >"), "bad_filter", "is no filter"),
        (terms("UNIX_TIMESTAMP() > 1"), "bad_filter", "UNIX_TIMESTAMP"),
        (terms("BOOKMARK() = '1'"), "bad_filter", "BOOKMARK"),
        (terms("", ("SUM(/price)",)), "bad_projection", "SUM"),
        (terms("", ("SUM(MAX(/price)) AS /x",)), "bad_projection", "stands within"),
        (terms("", ("UNIX_TIMESTAMP() AS /x",)), "bad_projection", "UNIX_TIMESTAMP"),
        (terms("", SUMS, ("/a + 1",)), "bad_projection", "a grouping is a field"),
        (terms("", ("/a AS /b", "/c AS /b")), "bad_projection", "another field"),
        (terms("", ("/" + "a" * 20_000 + " AS /b",)), "bad_projection", "more than 16,384"),
    ],
)  # fmt: skip
@pytest.mark.covers("Views and conflation, title by title", "no select list")
def test_what_cannot_be_aggregated_is_refused(
    asked: AggregationTerms, reason: str, text: str
) -> None:
    at = Aggregations()
    with pytest.raises(RemoteProtocolError, match=text.replace("(", r"\(")) as caught:
        at.views.use(asked, FilterOwner())
    assert caught.value.reason == reason and not len(at.views) and not at.enlisted


@pytest.mark.covers("Views", "aggregations: what they refuse")
def test_topics_that_cannot_be_aggregated_are_refused() -> None:
    many = SowTopicDefinition("many", "json", keys=("/id",), pattern="^many")
    blobs = SowTopicDefinition("blobs", "binary")
    at = Aggregations(ORDERS, many, blobs)
    for topic, kind in (("many1", "json"), ("blobs", "binary")):
        with pytest.raises(RemoteProtocolError) as caught:
            at.views.use(terms()._replace(topic=topic, message_type=kind), FilterOwner())
        assert caught.value.reason == "not_supported"


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.parametrize(
    ("kind", "projection"),
    [
        ("fix", ("/1 AS /price",)),
        ("nvfix", ("/id AS /a/b",)),
        ("xml", ("/m/id AS /1a",)),
        ("xml", ("/m/id AS /a", "/m/id AS /b")),
        ("xml", ("/m/id AS /a/b HINT OPTIONAL",)),
    ],
)
def test_fields_that_messages_of_the_type_cannot_have_are_refused(
    kind: str, projection: tuple[str, ...]
) -> None:
    at = Aggregations(SowTopicDefinition("orders", kind, keys=("/1",)))
    with pytest.raises(RemoteProtocolError, match="cannot have messages with") as caught:
        at.views.use(AggregationTerms("orders", kind, "", projection), NOBODY)
    assert caught.value.reason == "bad_projection"


@pytest.mark.parametrize("is_built", [True, False])
def test_an_unforeseen_error_ends_the_aggregation_and_not_the_fold(
    is_built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Aggregations()
    at.publish({"id": 1, "customer": 1, "price": 1})
    use, other = at.use(), at.use("/price > 0")
    if is_built:
        at.views.build(never)
    (shared, _) = at.views._shared.values()
    monkeypatch.setattr(shared.view, "take", lambda *_: 1 / 0)
    at.views.build(never)
    at.publish({"id": 2, "customer": 1, "price": 1})
    at.views.build(never)
    assert "ZeroDivisionError" in use.topic.refusal and not other.topic.refusal
    assert sums(other) == [{"customer": 1, "sum": 2, "count": 2}]


def test_a_filter_may_read_the_client_that_it_belongs_to() -> None:
    at = Aggregations()
    at.publish({"id": 1, "customer": "ann", "price": 1}, {"id": 2, "customer": "bob", "price": 2})
    uses = [
        at.use("/customer = USER()", asker=FilterOwner(user=name)) for name in ("ann", "bob", "ann")
    ]
    at.views.build(never)
    assert [sums(each)[0]["sum"] for each in uses] == [1, 2, 1]
    assert len(at.views) == 2


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.parametrize("is_built", [True, False])
def test_an_aggregation_beyond_its_limit_is_out_of_service(is_built: bool) -> None:
    at = Aggregations(memory_bytes_max=(50_000, 1_000_000))
    orders = [{"id": number, "customer": number, "price": 1} for number in range(600)]
    told: list[str] = []
    if is_built:
        use = at.built()
        at.publish(*orders)
    else:
        at.publish(*orders)
        use = at.use()
        use.when_ready(told.append)
        at.views.build(never)
        assert len(told) == 1 and "more than 50,000 bytes" in told[0]
    assert "group by fewer values" in use.topic.refusal and use.is_ready
    assert at.views.newly_refused() == [use.topic] and at.views.newly_refused() == []
    assert at.enlisted == [True, False] and rows_of(use.topic) == {}
    assert at.publish({"id": 1, "customer": 1, "price": 1}) == []
    again = at.use("/customer = 1")
    at.views.build(never)
    assert not again.topic.refusal, "a smaller one may fit"
    use.release()
    assert len(at.views) == 1


@pytest.mark.covers("Views", "aggregations: what they refuse")
@pytest.mark.covers("Views and conflation, title by title", "equal ones are")
def test_all_aggregations_together_have_a_limit() -> None:
    at = Aggregations(memory_bytes_max=(1_000_000, 400_000))
    at.publish(*({"id": number, "customer": number, "price": 1} for number in range(300)))
    uses = [at.built(f"/price < {number}") for number in range(2, 6)]
    assert "all clients" in uses[-1].topic.refusal
    assert not uses[0].topic.refusal and at.views.memory_bytes <= 400_000


@pytest.mark.covers("Views", "aggregations: what they refuse")
def test_a_user_has_half_of_the_aggregations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregated, "VIEWS_MAX", 4)
    budgets = FilterBudgets(lambda ends: None)
    ann, bob = (FilterOwner(user=name, budget=budgets.of(name)) for name in ("ann", "bob"))
    at = Aggregations()
    for number in range(2):
        at.use(f"/price > {number}", asker=ann)
    at.use("/price > 0", asker=ann)
    with pytest.raises(RemoteProtocolError, match="this user has 2") as caught:
        at.use("/price > 5", asker=ann)
    assert caught.value.reason == "too_many"
    for number in range(5, 7):
        at.use(f"/price > {number}", asker=bob)
    with pytest.raises(RemoteProtocolError, match="computes 4") as caught:
        at.use("/price > 9")
    assert caught.value.reason == "too_many"


@pytest.mark.covers("Views", "aggregations: what they refuse")
def test_an_aggregation_whose_users_have_no_budget_left_ends() -> None:
    budgets = FilterBudgets(lambda ends: None)
    ann, bob = (FilterOwner(user=name, budget=budgets.of(name)) for name in ("ann", "bob"))
    at = Aggregations()
    use, other = at.use(asker=ann), at.use(asker=bob)
    assert len(at.views) == 1
    at.views.build(never)
    assert ann.budget is not None
    ann.budget.spend(2 * WORK_MAX)
    assert ann.budget.is_spent
    (effort,) = (each.effort for each in at.views._shared.values())
    assert effort.payers == [ann.budget, bob.budget]
    other.release()
    assert effort.payers == [ann.budget]
    assert not effort.worked(5)
    effort.stop()
    at.publish({"id": 1, "customer": 1, "price": 1})
    assert "works too much" in use.topic.refusal


def test_an_aggregation_of_a_view_out_of_service_is_out_of_service() -> None:
    at = Aggregations()
    definition = ViewDefinition("sums", "json", topic="orders", projection=SUMS, grouping=("/id",))
    at.book, views, _ = with_views(at.book, [definition], ())
    of_view = terms("", ("SUM(/sum) AS /all",), ())._replace(topic="sums")
    use = at.views.use(of_view, FilterOwner())
    at.views.build(never)
    views.views[0].close("it is too large")
    at.publish({"id": 1, "customer": 1, "price": 1})
    assert "it is too large" in use.topic.refusal
    with pytest.raises(RemoteProtocolError, match="it is too large") as caught:
        at.views.use(of_view, FilterOwner())
    assert caught.value.reason == "view_full"


def test_an_aggregation_may_go_out_of_service_while_it_is_built() -> None:
    at = Aggregations()
    at.publish(*({"id": number, "customer": number, "price": 1} for number in range(200)))
    definition = ViewDefinition("sums", "json", topic="orders", projection=SUMS, grouping=("/id",))
    at.book, views = with_views(at.book, [definition], ())[:2]
    use = at.views.use(terms("", ("SUM(/sum) AS /all",), ())._replace(topic="sums"), NOBODY)
    told: list[str] = []
    use.when_ready(told.append)
    views.views[0].close("it is too large")
    at.publish({"id": 1, "customer": 1, "price": 1})
    assert told == [], "who waits is not told within a fold"
    assert not at.views.build(never)
    assert len(told) == 1 and "it is too large" in told[0]


def test_a_store_that_cannot_be_read_ends_the_aggregation_alone() -> None:
    at = Aggregations()
    use = at.use()
    told: list[str] = []
    use.when_ready(told.append)

    def chunk(start: bytes, end: bytes, most: int) -> Any:
        raise StorageError("the disk is gone", "/x")

    (shared,) = at.views._shared.values()
    assert shared.scan is not None
    shared.scan._chunk = chunk
    assert not at.views.build(never)
    assert len(told) == 1 and "the disk is gone" in told[0]


def test_a_wide_projection_is_built_and_folded_in_shorter_turns() -> None:
    """A turn of a build with 200 aggregates held up all other clients for 50 ms."""
    at = Aggregations()
    at.publish(*({"id": number, "customer": 1, "price": 1} for number in range(64)))
    wide = tuple(f"COUNT_DISTINCT(/price + {number}) AS /f{number}" for number in range(200))
    use = at.use("", wide, ())
    turns = 1
    while at.views.build(always):
        turns += 1
    assert turns > 10 and use.is_ready
    assert rows_of(use.topic) == at.fresh(use.terms)
    assert at.views.weigh(put(1, b"{}")) > 10


def test_weights_and_status_tell_of_the_views_over_a_topic() -> None:
    at = Aggregations()
    run = put(1, b'{"id":1,"customer":1,"price":1}')
    assert at.views.weigh(run) == 0
    use = at.built()
    at.use("/price > 0")
    assert at.views.weigh(run) == 2
    assert at.views.weigh(put(1, b"{}", topic="elsewhere")) == 0
    (orders,) = at.book.topics
    assert at.views.is_over(orders) and not at.views.is_over(use.topic)
    at.publish({"id": 1, "customer": 1, "price": 1})
    built, building = at.views.status()
    assert built["records"] == built["users"] == 1 and built["is_ready"]
    assert building["filter"] == "/price > 0" and not building["is_ready"]
    at.views.failed(1)


def test_what_is_installed_beside_raylay_is_used() -> None:
    at = Aggregations()
    views = aggregated_views(at.book, (), lambda is_used: None, lambda: None)
    assert views.use(terms(), FilterOwner()).topic.shown_as == b"orders"


def test_random_streams_with_long_builds() -> None:
    rng = random.Random(7)
    at = Aggregations()
    at.publish(*({"id": n, "customer": n % 7, "price": n} for n in range(500)))
    use = at.use()
    while not use.is_ready:
        at.views.build(always)
        at.publish({"id": rng.randrange(600), "customer": rng.randrange(9), "price": 2})
        at.delete(rng.randrange(600))
    assert rows_of(use.topic) == at.fresh(use.terms)


class Queues:
    """A queue `work`, whose owner tells of its messages."""

    def __init__(self) -> None:
        (self.work,) = book(SowTopicDefinition("work", "json", keys=("/id",))).topics
        self.told = False
        self.unfollowed = 0

    def follow(self, name: str, message_type: str) -> SowTopic | None:
        return self.work if (name, message_type) == ("work", "json") else None

    def is_told(self, topic: SowTopic) -> bool:
        return topic is not self.work or self.told

    def unfollow(self, topic: SowTopic) -> None:
        self.unfollowed += topic is self.work


@pytest.mark.covers("Views", "aggregations of queues")
def test_a_queue_is_aggregated_once_its_owner_has_told_of_all_messages() -> None:
    queues = Queues()
    at = Aggregations(queues=queues)
    with pytest.raises(RemoteProtocolError) as caught:
        at.views.use(terms()._replace(topic="play"), NOBODY)
    assert caught.value.reason == "no_sow"
    with pytest.raises(RemoteProtocolError):
        at.views.use(terms("", ("SUM(",))._replace(topic="work"), NOBODY)
    assert queues.unfollowed == 1, "nothing is over it"
    of_queue = terms()._replace(topic="work")
    use, of_topic = at.views.use(of_queue, NOBODY), at.use()
    ready: list[str] = []
    use.when_ready(ready.append)
    assert not at.views.build(never) and of_topic.is_ready and not use.is_ready
    at.views.look_again()
    assert not at.views.build(never) and ready == []
    queues.told = True
    at.views.look_again()
    at.views.look_again()
    assert not at.views.build(never) and ready == [""]
    same = at.views.use(of_queue, NOBODY)
    use.release()
    of_topic.release()
    assert queues.unfollowed == 1
    same.release()
    assert queues.unfollowed == 2
