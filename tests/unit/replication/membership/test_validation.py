"""Validation at connect: each check both ways, excluded and not, and what the topic is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.topics import TopicRule
from raylay.services.replication.membership.validation import (
    ALWAYS_CHECKED,
    CHECKS,
    DestinationTerms,
    InstanceDescription,
    QueueTerms,
    SowTerms,
    ValidationFailure,
    check,
    check_rule,
    enforced,
    stored_topics,
    told,
)

pytestmark = pytest.mark.covers("Replication", "validation: each of the nine checks passes")

T = TopicRule
ORDERS = T("orders", "json")


def instance(name: str, group: str = "", **values: Any) -> InstanceDescription:
    values.setdefault("log", (ORDERS,))
    return InstanceDescription(name, group or name, **values)


def to(group: str, *topics: TopicRule, **values: Any) -> DestinationTerms:
    values.setdefault("name", group)
    return DestinationTerms(group=group, topics=topics or (ORDERS,), **values)


def failures(
    destination: DestinationTerms, here: dict[str, Any], there: dict[str, Any]
) -> list[ValidationFailure]:
    """Of a link from A, which is `here`, to B, which replicates everything back."""
    there = {"destinations": (to("A", T("orders", "json")),)} | there
    return check(destination, instance("A", **here), instance("B", **there))


def names(found: list[ValidationFailure]) -> list[tuple[str, str]]:
    return [(failure.check, failure.topic) for failure in found]


QUEUE = QueueTerms("orders", "json")
SOW = SowTerms("orders", "json", ("/id",))
BACK_ALL = to("A", ORDERS)

# check: (Topic, A, B that passes, B that fails, what the sentence says)
CASES: dict[str, tuple[TopicRule, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "txlog": (
        ORDERS,
        {},
        {"log": (T("^ord"),)},
        {"log": (T("orders", "fix"),)},
        "add a Topic for it to the TransactionLog of B",
    ),
    "replicate": (
        ORDERS,
        {},
        {"destinations": (to("C"), to("A", T(".*")))},
        {"destinations": (to("C"), to("A", T("trades")))},
        "add a Topic for it to Destination 'A' of B",
    ),
    "sow": (ORDERS, {"sow": (SOW,)}, {"sow": (SOW,)}, {}, "declare it in the SOW of B"),
    "cascade": (
        ORDERS,
        {},
        {"destinations": (BACK_ALL, to("C"))},
        {"destinations": (BACK_ALL, to("C", T("orders", exclude_validation=("sow",))))},
        "enforces sow for orders",
    ),
    "queue": (
        ORDERS,
        {"queues": (QUEUE,)},
        {"queues": (QUEUE,)},
        {"queues": (replace(QUEUE, kind="local"),)},
        "is a Queue at A and none at B",
    ),
    "keys": (
        ORDERS,
        {"sow": (SOW,)},
        {"sow": (SOW,)},
        {"sow": (replace(SOW, keys=("/id", "/day")),)},
        "the keys of SOW/Topic orders (json) are /id at A and /id, /day at B",
    ),
    "replicate_filter": (
        replace(ORDERS, filter="/qty > 5"),
        {},
        {"destinations": (to("A", replace(ORDERS, filter=" /qty > 5 ")),)},
        {"destinations": (to("A", replace(ORDERS, filter="/qty > 6")),)},
        "write the same Filter there",
    ),
    "queue_passthrough": (
        ORDERS,
        {"queues": (QUEUE,)},
        {"queues": (QUEUE,), "destinations": (BACK_ALL, to("C", pass_through="^A$"))},
        {"queues": (QUEUE,), "destinations": (BACK_ALL, to("C", pass_through="^C$"))},
        "let its PassThrough match that group",
    ),
    "queue_underlying": (
        ORDERS,
        {"queues": (QUEUE,)},
        {"queues": (replace(QUEUE, underlying="orders"),)},
        {"queues": (replace(QUEUE, filter="/qty > 5"),)},
        "the Filter of queue orders (json) is '' at A and '/qty > 5' at B",
    ),
}


@pytest.mark.covers("The replication chapters", "at each connect")
def test_every_check_has_its_case() -> None:
    assert tuple(CASES) == CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes(name: str) -> None:
    topic, here, passing, _, _ = CASES[name]
    assert failures(to("B", topic), here, passing) == []


@pytest.mark.covers("The replication chapters", "at each connect")
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_fails_and_says_what_to_change(name: str) -> None:
    topic, here, _, failing, says = CASES[name]
    found = failures(to("B", topic), here, failing)
    assert names(found) == [(name, "orders")]
    assert says in found[0].text and found[0].message_type == "json"
    excludable = f"or exclude {name} for Topic 'orders' of Destination 'B' at A"
    assert (excludable in found[0].text) == (name not in ALWAYS_CHECKED)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_left_out(name: str) -> None:
    topic, here, _, failing, _ = CASES[name]
    # `cascade` would find that B's own destinations enforce no more than this.
    others = tuple(other for other in CHECKS if other != name)
    excluded = replace(topic, exclude_validation=(name,))
    not_included = replace(topic, include_validation=others)
    both = replace(topic, include_validation=(name,), exclude_validation=(name,))
    for rule in (excluded, not_included, both):
        found = failures(to("B", rule), here, failing)
        assert names(found) == ([(name, "orders")] if name in ALWAYS_CHECKED else [])


def test_what_a_topic_enforces() -> None:
    assert enforced(T("a")) == set(CHECKS)
    assert enforced(T("a", include_validation=())) == ALWAYS_CHECKED
    assert enforced(T("a", include_validation=("txlog",))) == {"txlog", *ALWAYS_CHECKED}
    assert enforced(T("a", exclude_validation=("txlog",))) == set(CHECKS) - {"txlog"}


@pytest.mark.covers("Resync and bootstrap", "where `txlog` is left out")
def test_what_is_sure_to_be_stored_there_is_what_the_check_of_the_log_is_made_for() -> None:
    """No client may fail over to an instance that passes over what is acknowledged here."""
    made, left_out = T("a"), T("b", exclude_validation=("txlog",))
    asked, not_asked = T("c", include_validation=("txlog",)), T("d", include_validation=())
    assert stored_topics((made, left_out, asked, not_asked)) == (made, asked)


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (T("a", include_validation=("txlogg",)), "IncludeValidation of Topic 'a' names 'txlogg'"),
        (T("a", exclude_validation=("group",)), "ExcludeValidation of Topic 'a' names 'group'"),
        (T("a", exclude_validation=("queue",)), "'queue', which cannot be excluded"),
        (T("a", exclude_validation=("queue_underlying",)), "cannot be excluded"),
    ],
)
def test_wrong_words_are_configuration_errors(rule: TopicRule, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        check_rule(rule, "A")
    check_rule(T("a", include_validation=CHECKS, exclude_validation=("txlog",)), "A")


# -- what the topic is -----------------------------------------------------------------------
def txlog(topics: tuple[TopicRule, ...], up: tuple[TopicRule, ...], down: Any) -> Any:
    rules = tuple(replace(topic, include_validation=("txlog",)) for topic in topics)
    return names(failures(to("B", *rules), {"log": up}, {"log": down, "destinations": ()}))


@pytest.mark.parametrize(
    ("topics", "up", "down", "failing"),
    [
        # The same expression, or one that takes all of it.
        ([T(".*")], [T(".*")], [T(".*")], []),
        ([T(".*")], [T("^orders")], [T("^orders")], []),
        ([T("^orders")], [T(".*")], [T("^orders")], []),
        ([T("^orders/eu")], [T(".*")], [T("^orders")], []),
        ([T("^[o]rders")], [T(".*")], [T("^[o]rders")], []),
        # Names that nobody wrote are missing there.
        ([T(".*")], [T(".*")], [T("^orders")], [".*"]),
        ([T("^[o]rders")], [T(".*")], [T("^orders")], ["^[o]rders"]),
        # Only names are logged here: each of them, and no expression.
        ([T(".*")], [T("orders"), T("trades")], [T("trades")], ["orders"]),
        ([T("^ord")], [T("orders"), T("trades")], [T("orders")], []),
        ([T("^(orders|trades)$")], [T(".*")], [T("orders")], ["trades"]),
        # What is not logged here goes nowhere.
        ([T("orders")], [T("trades")], [T("trades")], []),
        ([T("^orders")], [T("^trades")], [T("^trades")], []),
        # Types.
        ([T(".*", "json")], [T(".*", "fix")], [T("x")], []),
        ([T(".*", "json")], [T(".*")], [T(".*", "json")], []),
        ([T(".*")], [T(".*", "json")], [T(".*", "fix")], [".*"]),
        ([T("orders")], [T("orders")], [T("orders", "json")], ["orders"]),
    ],
)
def test_what_the_topic_is(
    topics: list[TopicRule], up: list[TopicRule], down: list[TopicRule], failing: list[str]
) -> None:
    found = txlog(tuple(topics), tuple(up), tuple(down))
    assert found == [("txlog", topic) for topic in failing]


def test_a_literal_topic_goes_before_an_expression() -> None:
    everything = T(".*", include_validation=("replicate",))
    view = T("view", exclude_validation=("replicate", "cascade"))
    log = {"log": (T("view"), T("orders"))}
    back = {"destinations": (to("A", T("orders")),)} | log
    assert names(failures(to("B", everything, view), log, back)) == []
    assert names(failures(to("B", everything), log, back)) == [("replicate", "view")]


def test_one_failure_for_all_types_is_told_once() -> None:
    rule = T("orders", include_validation=("txlog",))
    here = {"log": (T("orders"),), "sow": (SOW,)}
    assert names(failures(to("B", rule), here, {"log": (T("x"),)})) == [("txlog", "orders")]


# -- who is replicated back to ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("back", "passes"),
    [
        ((to("g", name="g"),), True),
        ((to("g", name="some"),), True),
        ((to("h", name="A"),), False),
        ((to("g", name="C", servers=("C",)),), False),
        ((to("g", name="g", servers=("C", "A")),), True),
        ((to("g", T("trades"), name="A"), to("g", name="C")), False),
        ((to("g", name="A"), to("g", T("trades"), name="C")), True),
        ((), False),
    ],
)
def test_who_is_replicated_back_to(back: tuple[DestinationTerms, ...], passes: bool) -> None:
    rule = T("orders", "json", include_validation=("replicate",))
    found = check(to("h", rule), instance("A", "g"), instance("B", "h", destinations=back))
    assert names(found) == ([] if passes else [("replicate", "orders")])


@pytest.mark.covers("Queues", "where a queue is replicated its PassThrough lets all on")
def test_a_queue_is_passed_on_to_others_only() -> None:
    """What came from A is never sent back to it, so that destination needs no PassThrough."""
    rule = T("orders", "json", include_validation=())
    queue = {"queues": (QUEUE,)}
    rule = replace(rule, include_validation=("queue_passthrough",))
    for back, passes in (
        (to("g", name="A"), True),
        (to("g", name="g", servers=("A",)), True),
        (to("g", name="g", servers=("A", "C")), False),
        (to("g", name="g", servers=("A", "C"), pass_through=".*"), True),
        (to("k", T("other"), name="k"), True),
    ):
        there = instance("B", "h", destinations=(back,), **queue)
        found = check(to("h", rule), instance("A", "g", **queue), there)
        assert names(found) == ([] if passes else [("queue_passthrough", "orders")])


@pytest.mark.covers("Queues", "a group-local queue is of a group")
@pytest.mark.parametrize(
    ("there", "group", "failing"),
    [
        ((), "other", []),
        ((), "A", ["queue"]),
        ((replace(QUEUE, kind="group_local"),), "A", []),
        ((replace(QUEUE, kind="group_local", domain="d"),), "A", ["queue"]),
        ((replace(QUEUE, kind="group_local", domain="A", filter="/x"),), "other", [
            "queue_underlying"
        ]),
    ],
)  # fmt: skip
def test_a_group_local_queue_is_needed_within_its_group(
    there: tuple[QueueTerms, ...], group: str, failing: list[str]
) -> None:
    rule = T("orders", "json", include_validation=())
    here = instance("A", queues=(replace(QUEUE, kind="group_local"),))
    found = check(to(group, rule), here, instance("B", group, queues=there))
    assert names(found) == [(name, "orders") for name in failing]


@pytest.mark.covers("Queues", "where a queue is replicated its PassThrough lets all on")
@pytest.mark.parametrize(
    ("domain", "passes"),
    [("", True), ("d", False)],
)
def test_a_group_local_queue_is_passed_on_within_its_group(domain: str, passes: bool) -> None:
    """The published table: between groups only what was published in the group passes."""
    rule = T("orders", "json", include_validation=("queue_passthrough",))
    queue = {"queues": (replace(QUEUE, kind="group_local", domain=domain),)}
    mate, far = to("A", name="mates", pass_through=".*"), to("h", name="far", pass_through="^h$")
    there = instance("B", "A", destinations=(mate, far), **queue)
    found = check(to("A", rule), instance("A", "A", **queue), there)
    assert names(found) == ([] if passes else [("queue_passthrough", "orders")])


@pytest.mark.covers("Queues", "a group-local queue is of a group")
@pytest.mark.covers("Queues", "where a queue is replicated its PassThrough lets all on")
@pytest.mark.parametrize(
    ("owners", "differs"), [(("A", "A"), False), (("A", "B"), True), (("A", ""), True)]
)
def test_messages_of_a_group_local_queue_begin_at_one_instance(
    owners: tuple[str, str], differs: bool
) -> None:
    rule = T("orders", "json", include_validation=())
    mine, theirs = (replace(QUEUE, kind="group_local", initial_owner=each) for each in owners)
    here, there = instance("A", queues=(mine,)), instance("B", "A", queues=(theirs,))
    found = check(to("A", rule), here, there)
    assert names(found) == ([("queue_underlying", "orders")] if differs else [])
    if differs:
        told = f"the InitialOwner of queue orders (json) is 'A' at A and {owners[1]!r} at B"
        assert told in found[0].text


@pytest.mark.covers("Replication", "what a link takes of a queue")
@pytest.mark.parametrize("kind", ["queue", "group_local"])
@pytest.mark.parametrize(
    ("underlying", "taken", "failing"),
    [
        ("orders", ("work",), ["work"]),
        ("orders", ("orders",), ["orders"]),
        ("orders", ("work", "orders"), []),
        ("orders", (".*",), []),
        ("orders", ("^o",), ["orders"]),
        ("orders", ("^w",), ["work"]),
        ("^orders/", ("work",), ["work"]),
        ("^orders/", ("work", "^orders/eu"), []),
        ("", ("work",), []),
    ],
)
def test_a_link_brings_the_messages_of_a_queue_and_what_is_said_of_them(
    kind: str, underlying: str, taken: tuple[str, ...], failing: list[str]
) -> None:
    queue = QueueTerms("work", "json", kind=kind, underlying=underlying, domain="d")
    rules = tuple(T(name, "json", include_validation=()) for name in taken)
    more = {"log": (T(".*"),)}
    here, there = (instance(name, queues=(queue,), **more) for name in "AB")
    found = check(to("B", *rules), here, there)
    assert names(found) == [("queue_underlying", name) for name in failing]
    assert all("add a Topic for it there" in each.text for each in found)
    # An archive has no queue, and one that is local is nobody else's.
    local = (replace(queue, kind="local"),)
    for archive in (instance("B", **more), instance("B", queues=local, **more)):
        if "work" not in taken and "." not in taken[0] and "^w" not in taken:
            assert check(to("B", *rules), here, archive) == []


@pytest.mark.covers("Queues", "a local queue is not replicated")
def test_a_local_queue_stays_here() -> None:
    rule = T("orders", "json", include_validation=())
    here = instance("A", queues=(replace(QUEUE, kind="local"),))
    assert check(to("B", rule), here, instance("B")) == []


def test_failures_are_told_and_counted() -> None:
    log = tuple(T(f"t{number}") for number in range(20))
    rule = T(".*", include_validation=("txlog",))
    text = told(failures(to("B", rule), {"log": log}, {"log": (T("x"),)}))
    assert text.startswith("txlog: A replicates t0 (any type) to B, which does not log it")
    assert text.endswith("; and 12 more")
