"""The checkers must see what is wrong: small broken histories, each with a false verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raylay.services.messages.topics import TopicRule
from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.verification import checkers
from raylay.services.verification.history import (
    AckGiven,
    CatchUpEnded,
    ClientCrashed,
    DiskSalvaged,
    FeatureFolded,
    FiltersChanged,
    FinalLog,
    HistoryMember,
    InstanceCrashed,
    InstanceMoved,
    InstanceReady,
    InstanceStarted,
    LackNoted,
    LinkConnected,
    LinkModeSet,
    LinkReached,
    MessagesApplied,
    MessagesDelivered,
    MessagesOffered,
    MessagesPublished,
    MessagesSent,
    MessagesUndone,
    MissingHeard,
    Operation,
    PublishesDropped,
    PublishRefused,
    RecordsDrafted,
    ResumeRead,
    RunHistory,
    RunJournaled,
    SafetyHeard,
    SafetySent,
    SegmentsRemoved,
    ServerUsed,
    SowDiffers,
    StoreState,
    SubscriptionResumed,
    Topology,
    WaiterNoted,
)
from raylay.services.verification.queue_history import SharedQueue

A, B, C, P = 0xA, 0xB, 0xC, 0x99


def to(name: str, *, sync: bool = True) -> DestinationRoute:
    return DestinationRoute(f"to-{name}", "g", sync, pass_through=".*", addresses=(name,))


def chain() -> Topology:
    """`a` to `b` to `c`, all sync."""
    return Topology(
        "chain",
        {
            "a": HistoryMember("a", "g", (to("b"),)),
            "b": HistoryMember("b", "g", (to("c"),)),
            "c": HistoryMember("c", "g", ()),
        },
        uniform=True,
    )


def up() -> list[Operation]:
    return [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        InstanceStarted(0, "c", C, True),
        LinkConnected(1, "a", "to-b", "b"),
        LinkConnected(1, "b", "to-c", "c"),
    ]


def journaled(
    time_us: int,
    instance: str,
    *sequences: int,
    txid: int = 1,
    path: tuple[int, ...] = (),
    late: bool = False,
    awaited: bool = True,
) -> RunJournaled:
    incarnation = {"a": A, "b": B, "c": C}[instance]
    group = "g" if path else ""
    return RunJournaled(
        time_us, instance, incarnation, txid, P, sequences, "t", path, group, awaited, late
    )


def published(*sequences: int) -> list[Operation]:
    return [MessagesPublished(2, "p", P, sequence, "t") for sequence in sequences]


def acked(time_us: int, *sequences: int, instance: str = "a", by: str = "ack") -> AckGiven:
    return AckGiven(time_us, instance, "p", P, 1, sequences, by)


def log(incarnation: int, *present: int, ever: tuple[int, ...] = (), to: str = "") -> FinalLog:
    held = frozenset((P, sequence) for sequence in present)
    more = frozenset((P, sequence) for sequence in ever)
    servers = {f"to-{to}": to} if to else {}
    return FinalLog(incarnation, held, held | more, servers, 0, 0)


def narrowed(text: str) -> Topology:
    """`a` to `b`, which gets what a filter lets through: what has the very content `text`."""
    rules = (TopicRule(".*", filter=text),)
    return Topology(
        "narrowed",
        {
            "a": HistoryMember("a", "g", (replace(to("b"), topics=rules),)),
            "b": HistoryMember("b", "g", ()),
        },
        passes=lambda text, content: text == content,
    )


@pytest.mark.parametrize("law", ["", "routing", "acknowledged", "liveness"])
def test_what_a_filter_lets_through_is_judged_by_its_content(law: str) -> None:
    """Of two messages one passes: without it too little is there, with the other one too much."""
    history = RunHistory(narrowed("5"))
    there = {"": (1,), "routing": (1, 2)}.get(law, ())
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        LinkConnected(1, "a", "to-b", "b"),
        *published(1, 2),
        journaled(3, "a", 1, 2)._replace(contents=("5", "6")),
    ]
    if there:
        history.operations.append(journaled(4, "b", *there, path=(A,)))
    if law != "liveness":
        history.operations.append(acked(5, 1, 2))
    history.final = {"a": log(A, 1, 2, to="b"), "b": log(B, *there)}
    found = {violation.law for violation in checkers.check_all(history)}
    assert law in found if law else not found
    assert "routing" not in found or law == "routing"


@pytest.mark.parametrize("law", ["", "routing", "acknowledged", "liveness"])
def test_what_another_filter_lets_through_is_judged_from_its_start_on(law: str) -> None:
    """1 and 3 pass the first filter, 2, 4 and 5 the second one. 2 was answered before, when nobody
    had to have it, and may be called durable; 3 was on its way when `a` died."""
    history = RunHistory(narrowed("5"))
    another = narrowed("6").members["a"].destinations
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        LinkConnected(1, "a", "to-b", "b"),
        *published(1, 2, 3, 4, 5),
        journaled(3, "a", 1, 2)._replace(contents=("5", "6")),
        journaled(4, "b", 1, path=(A,)),
        acked(5, 1, 2),
        journaled(6, "a", 3, txid=3)._replace(contents=("5",)),
        InstanceCrashed(7, "a", A, False),
        FiltersChanged(8, "a", another),
        InstanceStarted(8, "a", A, True),
        acked(9, 2, by="logon"),
        journaled(10, "b", 3, txid=2, path=(A,)),
        journaled(11, "a", 4, 5, txid=4)._replace(contents=("6", "5")),
    ]
    there = {"": (2, 4), "routing": (2, 4, 5), "liveness": (4,), "acknowledged": (2,)}[law]
    late = any(sequence < 3 for sequence in there)
    for n, sequence in enumerate(there):
        is_late = late and sequence < 3
        came = journaled(12 + n, "b", sequence, txid=3 + n, path=(A,), late=is_late)
        history.operations.append(came)
    history.operations.append(acked(20, 4))
    history.final = {"a": log(A, 1, 2, 3, 4, 5, to="b"), "b": log(B, 1, 3, *there)}
    found = {violation.law for violation in checkers.check_all(history)}
    assert found - {"liveness"} == ({law} if law in ("routing", "acknowledged") else set())
    assert ("liveness" in found) == (law in ("liveness", "acknowledged"))


@pytest.mark.parametrize("wrong", ["", "early", "twice", "out of order", "left", "both"])
def test_what_an_instance_writes_itself_is_acted_on_once_when_it_is_on_disk(wrong: str) -> None:
    drafted = RecordsDrafted(2, "a", P, (1, 2))
    on_disk = journaled(3, "a", 1, 2)
    took = {
        "early": [MessagesApplied(3, "a", P, (1,)), on_disk, MessagesApplied(4, "a", P, (2,))],
        "twice": [on_disk, MessagesApplied(4, "a", P, (1, 2)), MessagesApplied(5, "a", P, (2,))],
        "out of order": [on_disk, MessagesApplied(4, "a", P, (2, 1))],
        "left": [on_disk, MessagesApplied(4, "a", P, (1,))],
        "both": [on_disk, MessagesApplied(4, "a", P, (1, 2)), MessagesUndone(5, "a", P, (2,))],
    }.get(wrong, [on_disk, MessagesApplied(4, "a", P, (1,)), MessagesUndone(5, "a", P, (2,))])
    found = checkers.authored(RunHistory(chain(), [*up(), drafted, *took]))
    assert bool(found) == bool(wrong) and {each.law for each in found} <= {"authored"}
    died = [*up(), drafted, on_disk, InstanceCrashed(4, "a", A, False)]
    assert not checkers.authored(RunHistory(chain(), died)), "its next life reads it like all else"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("", ("nothing", f"{P}|1|")),
        ("older", ("nothing", "nothing")),
        ("never was", ("nothing", f"{P}|9|")),
        ("nothing added", ("nothing", "")),
    ],
)
def test_what_is_published_is_made_of_what_comes_before_it(
    wrong: str, said: tuple[str, ...]
) -> None:
    on_disk = journaled(3, "a", 1, 2)._replace(behind=said)
    found = checkers.state(RunHistory(chain(), [*up(), on_disk]))
    assert bool(found) == bool(wrong) and {each.law for each in found} <= {"state"}


def test_what_is_made_of_a_message_is_made_once() -> None:
    here = journaled(3, "a", 1)._replace(behind=("nothing",))
    there = journaled(4, "b", 1, path=(A,))._replace(behind=("nothing",))
    assert not checkers.state(RunHistory(chain(), [*up(), here, there]))
    again = there._replace(behind=(f"{P}|1|",))
    assert checkers.state(RunHistory(chain(), [*up(), here, again]))
    written = [RecordsDrafted(2, "a", P, (1,)), here._replace(behind=("",))]
    assert not checkers.state(RunHistory(chain(), [*up(), *written])), "nothing is added to it"


def test_what_a_state_refused_is_in_no_journal() -> None:
    here = journaled(4, "a", 1)._replace(behind=("nothing",))
    for reason in ("bad_message", "sequence_conflict"):
        refused = PublishRefused(3, "a", "p", P, 1, 1, reason)
        found = checkers.state(RunHistory(chain(), [*up(), refused, here]))
        assert bool(found) == (reason == "bad_message")
    elsewhere = journaled(5, "a", 1)
    assert not checkers.state(RunHistory(chain(), [*up(), refused, elsewhere]))


def test_what_an_old_copy_makes_anew_may_differ_from_what_it_had_sent() -> None:
    """Seed 970000787: what a life before had made and sent arrived when the same incarnation, an
    older copy of its directory by then, had made the message anew."""
    sent = journaled(3, "a", 2)._replace(behind=("nothing",))
    older = journaled(5, "a", 1)._replace(behind=("nothing",))
    anew = journaled(6, "a", 2, txid=2)._replace(behind=(f"{P}|1|",))
    there = journaled(7, "b", 2, path=(A,))
    for behind in ("nothing", f"{P}|1|", f"{P}|9|"):
        arrived = there._replace(behind=(behind,))
        operations = [*up(), sent, InstanceCrashed(4, "a", A, True), older, anew, arrived]
        assert bool(checkers.state(RunHistory(chain(), operations))) == behind.endswith("9|")


def test_a_lost_disk_begins_with_nothing() -> None:
    first = journaled(3, "a", 1)._replace(behind=("nothing",))
    again = journaled(6, "a", 2)._replace(behind=("nothing",))
    for lost in (True, False):
        found = checkers.state(
            RunHistory(chain(), [*up(), first, InstanceCrashed(4, "a", A, lost), again])
        )
        assert bool(found) == (not lost)


@pytest.mark.parametrize(
    "wrong", ["", "early", "twice", "left", "order", "before the state", "before the acks"]
)
def test_what_is_committed_is_folded_once_behind_its_acks(wrong: str) -> None:
    on_disk = journaled(3, "a", 1, 2)
    state = [FeatureFolded(4, "a", "sow", txid) for txid in (1, 2)]
    live = [FeatureFolded(4, "a", "live", txid, ((P, txid),)) for txid in (1, 2)]
    folded = {
        "early": [*state, live[0], on_disk, live[1]],
        "twice": [on_disk, *state, *live, live[1]],
        "left": [on_disk, *state, live[0]],
        "order": [on_disk, *state, live[1], live[0]],
        "before the state": [on_disk, state[0], *live, state[1]],
        "before the acks": [on_disk, *state, live[0], live[1]._replace(kept_back=("p",))],
    }.get(wrong, [on_disk, state[0], live[0], state[1], live[1]])
    history = RunHistory(chain(), [*up(), *folded])
    history.final = {"a": log(A, 1, 2)}
    found = checkers.folds(history)
    assert bool(found) == bool(wrong) and {each.law for each in found} <= {"folds"}
    again = [
        InstanceCrashed(5, "a", A, False),
        InstanceStarted(6, "a", A, True),
        FeatureFolded(7, "a", "sow", 1),
    ]
    assert bool(checkers.folds(replace(history, operations=[*up(), *folded, *again]))) == bool(
        wrong not in ("", "left")
    ), "the next life begins anew"


@pytest.mark.parametrize("why", ["topic", "PassThrough", "nobody"])
def test_what_is_not_routed_there_is_seen(why: str) -> None:
    topology = chain()
    narrow = {
        "topic": replace(to("c"), topics=(TopicRule("other"),)),
        "PassThrough": replace(to("c"), pass_through=None),
    }
    found = narrow.get(why)
    topology.members["b"] = HistoryMember("b", "g", (found,) if found is not None else ())
    history = RunHistory(topology)
    history.operations += sound().operations
    history.final = sound().final
    assert {each.law for each in checkers.routing(history)} == {"routing"}
    assert not checkers.routing(sound())


def test_what_a_resync_lets_on_and_what_an_instance_is_filled_with_is_routed() -> None:
    topology = chain()
    only = replace(to("c"), pass_through=None)
    topology.members["b"] = HistoryMember("b", "g", (replace(only, resync_pass_through="^g$"),))
    history = RunHistory(topology, sound().operations)
    assert not checkers.routing(history)
    topology.members["b"] = HistoryMember("b", "g", (only,))
    before = [op for op in sound().operations if getattr(op, "instance", "") != "c"]
    copied = [*before, journaled(9, "c", 1, path=(A, B)), InstanceStarted(10, "c", C, True)]
    assert not checkers.routing(RunHistory(topology, copied))


def sound() -> RunHistory:
    """One message, published at `a`, everywhere, and acked."""
    history = RunHistory(chain())
    history.operations += [
        *up(),
        *published(1),
        journaled(10, "a", 1),
        journaled(20, "b", 1, path=(A,)),
        journaled(30, "c", 1, path=(A, B)),
        acked(40, 1),
        PublishesDropped(50, "p", P, (1,)),
        MessagesDelivered(60, "s", "c", P, (1,)),
    ]
    history.final = {"a": log(A, 1, to="b"), "b": log(B, 1, to="c"), "c": log(C, 1)}
    history.unacked = {"p": 0}
    history.subscribed = {"s": ("c", ".*")}
    return history


def laws(history: RunHistory) -> set[str]:
    return {found.law for found in checkers.check_all(history)}


def without(history: RunHistory, *kinds: type) -> RunHistory:
    history.operations = [op for op in history.operations if not isinstance(op, kinds)]
    return history


def test_a_sound_history_has_no_verdict() -> None:
    assert checkers.check_all(sound()) == []


def test_unknown_is_allowed_either_way() -> None:
    """A publish that was never acked may be nowhere."""
    history = without(sound(), AckGiven, PublishesDropped, RunJournaled, MessagesDelivered)
    history.final = {"a": log(A, to="b"), "b": log(B, to="c"), "c": log(C)}
    assert checkers.check_all(history) == []


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_law_1_sees_an_ack_before_an_instance_of_the_closure_has_it(missing: str) -> None:
    history = sound()
    history.operations = [
        operation
        for operation in history.operations
        if not (isinstance(operation, RunJournaled) and operation.instance == missing)
    ]
    assert "acknowledged" in laws(history)


def test_law_1_sees_an_ack_that_comes_before_the_copy() -> None:
    history = sound()
    at = history.operations.index(acked(40, 1))
    history.operations.insert(at - 1, history.operations.pop(at))
    assert "acknowledged" in laws(history)


def test_law_1_holds_for_what_is_called_durable_at_a_logon() -> None:
    history = sound()
    history.operations = [
        acked(15, 1, by="logon") if isinstance(operation, AckGiven) else operation
        for operation in history.operations
    ]
    history.operations.sort(key=lambda operation: operation[0])
    assert "acknowledged" in laws(history)


def test_law_1_does_not_wait_for_async_links_nor_for_lost_disks() -> None:
    history = sound()
    copy = next(
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
    )
    history.operations.remove(copy)
    history.operations.insert(5, LinkModeSet(3, "b", "to-c", False))
    history.operations.append(copy)
    assert "acknowledged" not in laws(history)
    history = sound()
    at = history.operations.index(acked(40, 1))
    history.operations.insert(at, InstanceCrashed(35, "c", C, True))
    assert "acknowledged" not in laws(history)


@pytest.mark.parametrize("was_async", [True, False])
def test_law_1_counts_the_answer_that_a_lost_disk_let_out(was_async: bool) -> None:
    """`b` is sent the message again, after `a` had its answer: as long as `c` was async there."""
    history = sound()
    copy = next(
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
    )
    history.operations.remove(copy)
    at = history.operations.index(acked(40, 1))
    history.operations[at:at] = [
        *([LinkModeSet(25, "b", "to-c", False)] if was_async else []),
        InstanceCrashed(31, "b", B, True),
        InstanceStarted(32, "b", B + 10, True),
        LinkModeSet(32, "b", "to-c", True),
        LinkConnected(33, "a", "to-b", "b", B + 10, ((A, P, 1),)),
        LinkConnected(33, "b", "to-c", "c", C),
        journaled(34, "b", 1, path=(A,))._replace(incarnation=B + 10),
        CatchUpEnded(35, "a", "to-b", B + 10),
    ]
    history.operations.sort(key=lambda operation: operation[0])
    assert ("acknowledged" in laws(history)) is not was_async


def test_law_1_counts_what_an_upgrade_asked_again() -> None:
    """Pending at the upgrade: no earlier answer excuses it. Durable by then: one may."""
    for pending, expected in ((((A, P, 1),), True), (((B, P, 1),), False), ((), False)):
        history = sound()
        copy = next(
            op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
        )
        history.operations.remove(copy)
        at = history.operations.index(acked(40, 1))
        history.operations[at:at] = [
            LinkModeSet(32, "b", "to-c", False),
            LinkModeSet(35, "b", "to-c", True, pending),
        ]
        history.operations.append(copy)
        assert ("acknowledged" in laws(history)) is expected


@pytest.mark.parametrize("was_async", [True, False])
def test_law_1_counts_the_answer_that_was_let_out_before_a_crash(was_async: bool) -> None:
    """`b` does not know of it any more, and calls the message pending when it is upgraded next:
    seed 767186530."""
    history = sound()
    copy = next(
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
    )
    history.operations.remove(copy)
    at = history.operations.index(acked(40, 1))
    history.operations[at:at] = [
        *([LinkModeSet(25, "b", "to-c", False)] if was_async else []),
        InstanceCrashed(31, "b", B, False),
        InstanceStarted(32, "b", B, True),
        LinkModeSet(32, "b", "to-c", True, ((A, P, 1),)),
        LinkModeSet(33, "b", "to-c", False),
        LinkModeSet(35, "b", "to-c", True, ((A, P, 1),)),
    ]
    history.operations.sort(key=lambda operation: operation[0])
    assert ("acknowledged" in laws(history)) is not was_async


@pytest.mark.parametrize(
    ("pending", "excused"), [(((A, P, 1),), False), (((B, P, 1),), True), ((), True), (None, True)]
)
def test_law_1_counts_what_waited_when_a_link_came_to_a_server_that_lost_its_disk(
    pending: tuple[tuple[int, int, int], ...] | None, excused: bool
) -> None:
    """`b` comes back, and has the message before `c` has it. Pending when the link reaches it: the
    answer is that of `b` as it is now. Durable by then, or not reached yet: it is not."""
    history = sound()
    copy = next(
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
    )
    history.operations.remove(copy)
    at = history.operations.index(acked(40, 1))
    back = 0xBB
    history.operations[at:at] = [
        InstanceCrashed(31, "b", B, True),
        InstanceStarted(33, "b", back, True),
        journaled(34, "b", 1, path=(A,))._replace(incarnation=back),
    ]
    at = history.operations.index(LinkConnected(1, "a", "to-b", "b"))
    history.operations[at] = LinkConnected(1, "a", "to-b", "b", B)
    if pending is not None:
        at = history.operations.index(acked(40, 1))
        history.operations.insert(at, LinkConnected(36, "a", "to-b", "b", back, pending))
    history.operations.append(copy)
    assert ("acknowledged" not in laws(history)) is excused


@pytest.mark.parametrize(("noted_us", "excused"), [(15, True), (30, False)])
def test_law_1_counts_a_link_that_was_async_before_its_instance_was_awaited(
    noted_us: int, excused: bool
) -> None:
    """A client of `b` publishes again what is there, and `c` has it not."""
    history = sound()
    kept = [op for op in history.operations if not isinstance(op, RunJournaled | AckGiven)]
    history.operations = sorted(
        [
            *kept,
            LinkModeSet(5, "b", "to-c", False),
            journaled(10, "b", 1, path=(A,), awaited=False),
            WaiterNoted(noted_us, "b", B, B, 0, P, (1,)),
            LinkModeSet(20, "b", "to-c", True),
            acked(40, 1, instance="b"),
        ],
        key=lambda operation: operation[0],
    )
    assert (not checkers.acknowledged(history)) is excused


def test_law_1_is_not_excused_by_another_root() -> None:
    """A client of `b` waits there for the same message: that is no answer for the root `a`."""
    history = sound()
    copy = next(
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance == "c"
    )
    history.operations.remove(copy)
    at = history.operations.index(acked(40, 1))
    history.operations.insert(at, WaiterNoted(35, "b", B, B, 0, P, (1,)))
    history.operations.append(copy)
    found = checkers.acknowledged(history)
    assert [violation.separate for violation in found] == [False]


@pytest.mark.parametrize(
    ("there_us", "reached_us", "noted_us", "excused"),
    [
        (30, 35, 60, True),  # `b` was told that it is there, and asks for it by its range.
        (30, 25, 60, False),  # Nobody told `b`: it has sent its own.
        (50, 55, 40, False),  # It waited for an answer by then: its own was sent once more.
        (30, 35, 0, False),
    ],
)
def test_law_1_sees_an_ack_while_another_content_is_where_the_acked_one_must_be(
    there_us: int, reached_us: int, noted_us: int, excused: bool
) -> None:
    """At `c`. The link of `a` is async until it is upgraded, so that `b` is awaited for what it has
    only then; or, noted at no time, it is sync all along."""
    operations = [
        MessagesPublished(2, "p", P, 1, "t", 7),
        MessagesPublished(2, "q", P, 1, "t", 8),
        journaled(10, "a", 1)._replace(digests=(7,)),
        journaled(20, "b", 1, path=(A,), awaited=not noted_us)._replace(digests=(7,)),
        journaled(there_us, "c", 1)._replace(digests=(8,)),
        LinkReached(reached_us, "b", "to-c", "c", C),
    ]
    if noted_us:
        operations += [
            LinkModeSet(5, "a", "to-b", False),
            LinkModeSet(noted_us - 5, "a", "to-b", True, ((A, P, 1),)),
            WaiterNoted(noted_us, "b", B, A, A, P, (1,)),
        ]
    history = RunHistory(chain())
    history.operations += [*up(), *sorted(operations, key=lambda op: op.time_us), acked(70, 1)]
    assert bool(checkers.acknowledged(history)) == (not excused)


@pytest.mark.parametrize(
    "but", ["", "nothing there", "not lost", "another lost", "behind the link", "brought there"]
)
def test_law_1_excuses_what_a_client_of_the_same_name_published_in_place_of_what_a_disk_lost(
    but: str,
) -> None:
    """Seed 6054: `b` had it and answered, lost its disk, and holds the other content when the link
    comes back: it is not asked again. `a` names the message durable to its client."""
    history = sound()
    history.operations[:] = [
        op._replace(digest=7)
        if isinstance(op, MessagesPublished)
        else op._replace(digests=(8 if but == "another lost" and op.instance == "b" else 7,))
        if isinstance(op, RunJournaled)
        else op
        for op in history.operations
    ]
    lost = [InstanceCrashed(70, "b", B, True), InstanceStarted(71, "b", B, True)]
    there = journaled(75, "b", 1, path=(C,) if but == "brought there" else ())
    replaced: list[Operation] = [
        MessagesPublished(72, "q", P, 1, "t", 8),
        there._replace(digests=(8,)),
    ]
    link: list[Operation] = [
        LinkReached(80, "a", "to-b", "b", B),
        LinkConnected(81, "a", "to-b", "b"),
        CatchUpEnded(82, "a", "to-b", B),
    ]
    if but == "behind the link":
        replaced[1] = there._replace(digests=(8,), time_us=85)
    steps = [*([] if but == "not lost" else lost), *([] if but == "nothing there" else replaced)]
    steps = sorted([*steps, *link], key=lambda op: op.time_us)
    if but == "not lost":
        # It never had the first one.
        history.operations[:] = [
            op
            for op in history.operations
            if not (isinstance(op, RunJournaled) and op.instance == "b")
        ]
    history.operations += [*steps, acked(90, 1, by="logon")]
    found = [each for each in checkers.acknowledged(history) if each.text.startswith("at 0.090")]
    assert bool(found) == bool(but)


def test_an_acked_message_that_no_log_holds_is_lost() -> None:
    history = sound()
    history.final = {"a": log(A, to="b"), "b": log(B, to="c"), "c": log(C)}
    history.subscribed = {}
    assert laws(history) == {"nothing lost"}
    # Every disk that had it died: beyond help.
    history.operations += [
        InstanceCrashed(70, name, incarnation, True)
        for name, incarnation in (("a", A), ("b", B), ("c", C))
    ]
    assert laws(history) == set()


@pytest.mark.parametrize("asked_in_time", [False, True])
def test_who_is_asked_for_what_it_has_removed_asks_nobody_behind_it(asked_in_time: bool) -> None:
    """`a` was upgraded and asks `b`, whose retention has removed the message: `b` does not know any
    more that `c` is to have it, which waits for `d`. Had it been asked before, it would wait."""
    names = "abcd"
    members = {
        name: HistoryMember(name, "g", (to(names[at + 1]),) if name != "d" else ())
        for at, name in enumerate(names)
    }
    asked = WaiterNoted(35, "b", B, A, A, P, (1,))
    removed = SegmentsRemoved(34, "b", B, 1, (("to-c", "c"),))
    history = RunHistory(Topology("chain", members))
    history.operations += [
        *up(),
        InstanceStarted(0, "d", 0xD, True),
        LinkConnected(1, "c", "to-d", "d"),
        *published(1),
        journaled(10, "a", 1),
        journaled(20, "b", 1, path=(A,)),
        journaled(30, "c", 1, path=(A, B)),
        *((asked, removed) if asked_in_time else (removed, asked)),
        acked(40, 1),
    ]
    assert bool(checkers.acknowledged(history)) == asked_in_time


@pytest.mark.parametrize("incarnation", [A, 0xAA])
def test_what_came_through_an_older_copy_put_in_place_is_not_routed_there(incarnation: int) -> None:
    """The message went from `a` to `b`, where its client goes when `a` has lost it. Under another
    incarnation it is owed to `a`, and to be there before it is acknowledged."""
    members = {
        "a": HistoryMember("a", "g", (to("b"),)),
        "b": HistoryMember("b", "g", (to("a"),)),
    }
    history = RunHistory(Topology("pair", members))
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        LinkConnected(1, "a", "to-b", "b", B),
        LinkConnected(1, "b", "to-a", "a", A),
        *published(1),
        journaled(10, "a", 1),
        journaled(20, "b", 1, path=(A,)),
        InstanceCrashed(30, "a", A, True),
        InstanceStarted(40, "a", incarnation, True),
        WaiterNoted(45, "b", B, B, 0, P, (1,)),
        LinkConnected(50, "b", "to-a", "a", incarnation, ((B, P, 1),)),
        CatchUpEnded(55, "b", "to-a", incarnation),
        acked(60, 1, instance="b"),
    ]
    assert [each.law for each in checkers.acknowledged(history)] == (
        [] if incarnation == A else ["acknowledged"]
    )


@pytest.mark.parametrize("incarnation", [B, C])
def test_a_link_reaches_who_bears_the_incarnation_whatever_it_is_called(incarnation: int) -> None:
    """`b` was moved, and `a`, which nobody told, reaches the former one: that has the message."""
    topology = Topology(
        "pair", {"a": HistoryMember("a", "g", (to("b"),)), "b": HistoryMember("b", "g", ())}
    )
    history = RunHistory(topology)
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        *published(1),
        journaled(10, "a", 1),
        journaled(20, "b", 1, path=(A,)),
        InstanceMoved(30, "b", "b#0", B),
        InstanceStarted(40, "b", C, True),
        LinkConnected(50, "a", "to-b", "b", incarnation),
        CatchUpEnded(60, "a", "to-b", incarnation),
        SegmentsRemoved(70, "a", A, 1, (("to-b", "b"),)),
    ]
    assert len(checkers.removal(history)) == (incarnation == C)


def test_a_disk_that_was_lost_is_not_given_back_by_a_salvage() -> None:
    """An older copy is put in the place of the only disk that has the message, with the same
    incarnation. That is moved and salvaged: what it had lost before, it could not bring. What was
    acked behind that it has to bring."""
    history = RunHistory(Topology("pair", {name: HistoryMember(name, "g", ()) for name in "ab"}))
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        *published(1),
        journaled(10, "a", 1),
        acked(20, 1),
        InstanceCrashed(30, "a", A, True),
        InstanceStarted(40, "a", A, True),
        InstanceMoved(50, "a", "a#0", A),
        InstanceStarted(60, "a", C, True),
        DiskSalvaged(70, "a#0", A),
    ]
    history.final = {"a": log(C), "b": log(B)}
    assert checkers.nothing_lost(history) == []
    history.operations[7:7] = [*published(2), journaled(42, "a", 2), acked(44, 2)]
    (violation,) = checkers.nothing_lost(history)
    assert "sequence 2 of" in violation.text


def test_law_2_sees_a_second_copy() -> None:
    history = sound()
    history.operations.append(journaled(70, "b", 1, txid=2, path=(A,), late=False))
    assert "once" in laws(history)


def test_law_2_sees_a_second_delivery() -> None:
    history = sound()
    history.operations.append(MessagesDelivered(70, "s", "a", P, (1,)))
    assert laws(history) == {"once"}


@pytest.mark.parametrize("late", [False, True])
def test_law_3_sees_what_comes_behind(late: bool) -> None:
    """Not flagged: wrong anywhere. Flagged: wrong where no paths split."""
    history = RunHistory(chain())
    history.operations += [
        *up(),
        *published(1, 2),
        journaled(10, "a", 2),
        journaled(20, "a", 1, txid=2, late=late),
    ]
    assert [found.law for found in checkers.order(history)] == ["order"]
    history.topology.uniform = False
    assert len(checkers.order(history)) == (0 if late else 1)


@pytest.mark.parametrize("in_place", [False, True])
def test_law_3_excuses_what_an_old_copy_gets_back_behind_what_it_admitted(in_place: bool) -> None:
    """A new incarnation admits nobody before it has caught up: there it is wrong."""
    own = A if in_place else C
    history = RunHistory(chain())
    history.operations += [
        *up(),
        journaled(10, "a", 1),
        InstanceCrashed(20, "a", A, True),
        InstanceStarted(30, "a", own, in_place),
        journaled(40, "a", 2, txid=2)._replace(incarnation=own),
        journaled(50, "a", 1, txid=3, late=True)._replace(incarnation=own),
    ]
    assert [found.law for found in checkers.order(history)] == ["order"] * (not in_place)


@pytest.mark.parametrize(
    "but",
    ["", "another reason", "data", "refused where it was taken", "the same way", "taken there"],
)
def test_law_3_excuses_an_acknowledgment_that_another_instance_refused_for_want_of_a_lease(
    but: str,
) -> None:
    """The one that leased the message has it in its log; what came before is of the other one."""
    history = RunHistory(chain())
    history.queues = () if but == "data" else (SharedQueue("t", "of", ("a", "b")),)
    refuser = "a" if but == "refused where it was taken" else "b"
    reason = "bad_message" if but == "another reason" else "not_leased"
    history.operations += [
        *up(),
        *published(1, 2),
        journaled(10, "a", 1),
        PublishRefused(20, refuser, "p", P, 2, 1, reason),
        journaled(30, "b", 2, path=(A,) if but == "the same way" else ()),
        journaled(40, "b", 1, txid=2, path=() if but == "taken there" else (A,), late=True),
    ]
    found = [found.law for found in checkers.order(history)]
    assert found == (["order"] if but else [])


def test_law_3_sees_a_flag_without_a_reason() -> None:
    history = RunHistory(chain())
    history.operations += [*up(), *published(1), journaled(10, "a", 1, late=True)]
    history.topology.uniform = False
    assert [found.law for found in checkers.order(history)] == ["order"]


def test_law_4_sees_what_was_removed_too_early() -> None:
    history = sound()
    removed = SegmentsRemoved(25, "b", B, 1, (("to-c", "c"),))
    history.operations.insert(history.operations.index(acked(40, 1)) - 1, removed)
    assert laws(history) == {"removal"}
    history.operations.remove(removed)
    history.operations.append(removed)
    assert laws(history) == set()


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(("linked_to", "verdict"), [("c", set()), ("x", {"removal"})])
def test_law_4_asks_the_last_server_of_a_link_that_is_cut(
    linked_to: str, verdict: set[str], begins: bool
) -> None:
    """Seed 253906074: a link had gone on to the second server of its list, which acked and was
    then cut off; the removal was blamed on the first one, which had not come so far."""
    history = sound()
    b = history.topology.members["b"]
    listed = replace(b.destinations[0], addresses=("x", "c"))
    history.topology.members |= {
        "b": replace(b, destinations=(listed,)),
        "x": HistoryMember("x", "g", ()),
    }
    if begins:
        history.operations.append(LinkConnected(61, "b", "to-c", linked_to))
    else:
        other = "x" if linked_to == "c" else "c"
        history.operations.append(LinkConnected(60, "b", "to-c", other))
        history.operations.append(LinkReached(61, "b", "to-c", linked_to, 0))
    history.operations.append(SegmentsRemoved(62, "b", B, 1, (("to-c", ""),)))
    assert {found.law for found in checkers.removal(history)} == verdict


@pytest.mark.parametrize(("reached", "verdict"), [("c", set()), ("x", {"removal"})])
def test_law_4_counts_what_the_link_behind_was_compared_with(
    reached: str, verdict: set[str]
) -> None:
    """Of several servers the answer counts, which rests on what `b` has found where it looked."""
    history = sound()
    members = history.topology.members
    listed = replace(members["b"].destinations[0], addresses=("x", "c"))
    several = replace(members["a"].destinations[0], addresses=("b", "x"))
    history.topology.members |= {
        "a": replace(members["a"], destinations=(several,)),
        "b": replace(members["b"], destinations=(listed,)),
        "x": HistoryMember("x", "g", ()),
    }
    history.operations.insert(5, LinkConnected(2, "b", "to-c", "x"))
    history.operations.append(LinkReached(61, "b", "to-c", reached, 0))
    history.operations.append(SegmentsRemoved(62, "a", A, 1, (("to-b", "b"),)))
    assert {found.law for found in checkers.removal(history)} == verdict


def test_law_5_sees_a_circle() -> None:
    history = sound()
    history.operations.append(journaled(70, "a", 2, txid=2, path=(B, A)))
    assert "loops" in laws(history)


@pytest.mark.parametrize("what", ["unacked", "missing", "unconnected", "owed", "unstarted"])
def test_law_7_sees_what_never_comes(what: str) -> None:
    history = sound()
    if what == "unacked":
        history.unacked["p"] = 3
    elif what == "missing":
        history.final["c"] = log(C)
        history.subscribed = {}
    elif what == "unconnected":
        history.final["b"].servers["to-c"] = ""
    elif what == "unstarted":
        history.unstarted["d"] = "c"
    else:
        history.final["b"].owed = 1
    assert laws(history) == {"liveness"}


def test_what_is_missing_and_removed_upstream_is_recorded() -> None:
    """`b` has removed it, `c` has lost it and is told."""
    history = sound()
    history.operations += [
        SegmentsRemoved(61, "b", B, 1, (("to-c", "c"),)),
        InstanceCrashed(70, "c", C, True),
        InstanceStarted(80, "c", 0xD, True),
    ]
    history.final["b"] = log(B, ever=(1,), to="c")
    history.final["c"] = log(0xD)
    assert laws(history) == {"unavailable"}, "nothing was said"
    history.operations.append(LackNoted(90, "c", 0xD, P, (1,)))
    assert laws(history) == {"unavailable"}, "it is forgotten"
    history.final["c"].unavailable = frozenset({(P, 1)})
    assert laws(history) == set()
    history.operations.append(LackNoted(90, "a", A, P, (1,)))
    assert laws(history) == {"unavailable"}, "it is there"


def test_a_store_forgets_nothing_that_was_not_acked() -> None:
    assert "store" in laws(without(sound(), AckGiven))


def test_what_was_acked_never_fails_later() -> None:
    history = sound()
    history.operations.append(PublishRefused(70, "b", "p", P, 2, 1, "sequence_conflict"))
    assert laws(history) == {"store"}


@pytest.mark.parametrize(
    "but", ["", "by who acked it", "data", "of another client", "where it is", "heard"]
)
def test_what_was_acked_is_refused_for_want_of_a_lease_only_by_who_has_not_got_it(but: str) -> None:
    """A client that does not know of the ack sends its acknowledgment of a queue again, to an
    instance that has not got it."""
    history = RunHistory(chain())
    history.queues = () if but == "data" else (SharedQueue("t", "of", ("a", "b")),)
    history.operations += [
        *up(),
        *published(1),
        journaled(10, "a", 1),
        *([journaled(20, "b", 1, path=(A,))] if but == "where it is" else []),
        acked(30, 1),
        *([PublishesDropped(40, "p", P, (1,))] if but == "heard" else []),
        PublishRefused(
            70,
            "a" if but == "by who acked it" else "b",
            "q" if but == "of another client" else "p",
            P,
            2,
            1,
            "not_leased",
        ),
    ]
    assert [found.law for found in checkers.store(history)] == (["store"] if but else [])


@pytest.mark.parametrize("moved", [False, True])
def test_an_instance_that_was_moved_may_refuse_an_acknowledgment_that_it_took_before(
    moved: bool,
) -> None:
    """Seed 3000010150: it began as the copy of another one, which had not got it yet."""
    history = RunHistory(chain())
    history.queues = (SharedQueue("t", "of", ("a", "b")),)
    history.operations += [*up(), *published(1), journaled(10, "a", 1), acked(30, 1)]
    if moved:
        history.operations.append(InstanceMoved(40, "a", "a#0", A))
    history.operations.append(PublishRefused(70, "a", "p", P, 2, 1, "not_leased"))
    assert [found.law for found in checkers.store(history)] == ([] if moved else ["store"])


@pytest.mark.parametrize("loses", ["", "client", "disk"])
def test_who_has_lost_what_it_knew_of_an_acknowledgment_may_send_or_refuse_it(loses: str) -> None:
    """A client that has not kept that it heard, and an instance whose disk is gone."""
    history = RunHistory(chain())
    history.queues = (SharedQueue("t", "of", ("a", "b")),)
    history.operations += [
        *up(),
        *published(1),
        journaled(10, "a", 1),
        journaled(20, "b", 1, path=(A,)),
        acked(30, 1),
        PublishesDropped(40, "p", P, (1,)),
    ]
    if loses != "disk":
        del history.operations[-3]
    if loses == "disk":
        del history.operations[-1]
        history.operations.append(InstanceCrashed(50, "b", B, True))
    elif loses == "client":
        history.operations.append(ClientCrashed(50, "p", P, ()))
    history.operations.append(PublishRefused(70, "b", "p", P, 2, 1, "not_leased"))
    assert [found.law for found in checkers.store(history)] == ([] if loses else ["store"])


@pytest.mark.parametrize("but", ["", "not downgraded", "upgraded before", "not crashed", "heard"])
def test_an_ack_of_a_downgraded_link_may_be_forgotten_in_a_crash_where_nobody_heard_it(
    but: str,
) -> None:
    """Another content is where the link leads: after the crash it is asked for there again."""
    history = RunHistory(chain())
    history.operations += [
        *up(),
        MessagesPublished(2, "p", P, 1, "t", 7),
        MessagesPublished(2, "q", P, 1, "t", 8),
        journaled(10, "b", 1),
        *([LinkModeSet(20, "a", "to-b", False)] if but != "not downgraded" else []),
        *([LinkModeSet(21, "a", "to-b", True)] if but == "upgraded before" else []),
        acked(30, 1),
        *([PublishesDropped(35, "p", P, (1,))] if but == "heard" else []),
        *(
            [InstanceCrashed(40, "a", A, False), InstanceStarted(50, "a", A, True)]
            if but != "not crashed"
            else []
        ),
        LinkModeSet(50, "a", "to-b", True),
        PublishRefused(60, "a", "p", P, 2, 1, "sequence_conflict"),
    ]
    assert [found.law for found in checkers.store(history)] == ["store"] * bool(but)


def test_a_number_is_used_once() -> None:
    history = sound()
    history.operations.append(MessagesPublished(70, "p", P, 1, "t"))
    assert laws(history) == {"store"}


def test_a_peer_that_was_called_safe_has_what_was_acked() -> None:
    """The downgrade's notice comes first, or the client would fail over to who has less."""
    history = sound()
    copies = [
        op for op in history.operations if isinstance(op, RunJournaled) and op.instance != "a"
    ]
    for copy in copies:
        history.operations.remove(copy)
    at = history.operations.index(acked(40, 1))
    told: list[Operation] = [
        SafetySent(5, "a", "p", 1, ("b",)),
        LinkModeSet(35, "a", "to-b", False),
    ]
    history.operations[at:at] = told
    history.operations += copies
    assert laws(history) == {"safety"}
    history.operations.insert(
        history.operations.index(acked(40, 1)), SafetySent(36, "a", "p", 1, ())
    )
    assert laws(history) == set()


@pytest.mark.parametrize("moved", [False, True])
def test_an_old_copy_put_back_excuses_until_a_link_made_since_has_caught_up(moved: bool) -> None:
    """It bears the incarnation of what it is a copy of, and nobody can tell before it is asked."""
    history = sound()
    told = SafetySent(80, "a", "p", 1, ("b",))
    back: list[Operation] = [
        CatchUpEnded(50, "a", "to-b", B),
        InstanceCrashed(70, "b", B, True),
        CatchUpEnded(71, "a", "to-b", B),
    ]
    if moved:
        back.append(InstanceMoved(75, "b", "b#0", B))
        history.topology.members["b#0"] = replace(history.topology.members["b"], name="b#0")
    history.operations += [*back, told]
    assert "safety" not in laws(history)
    if not moved:
        history.operations += [InstanceStarted(90, "b", B, True), told]
        assert "safety" not in laws(history)
        history.operations += [
            LinkConnected(95, "a", "to-b", "b"),
            CatchUpEnded(96, "a", "to-b", B),
            told,
        ]
        assert "safety" in laws(history)


@pytest.mark.parametrize("begins", [False, True])
def test_a_server_of_a_list_is_called_safe_until_the_link_begins_with_the_next_one(
    begins: bool,
) -> None:
    """Seed 400004626: what `b` had sent to `a` was lost with its disk, and acked at `a` while the
    link compared what is there with the second server."""
    history = RunHistory(chain())
    listed = replace(to("b"), addresses=("b", "c"))
    history.topology.members["a"] = HistoryMember("a", "g", (listed,))
    history.operations += [
        *up(),
        CatchUpEnded(3, "a", "to-b", B),
        SafetySent(4, "a", "p", 1, ("b",)),
        *published(1),
        journaled(10, "b", 1),
        journaled(20, "a", 1, path=(B,)),
        InstanceCrashed(30, "b", B, True),
        LinkReached(40, "a", "to-b", "c", C),
        *([LinkConnected(41, "a", "to-b", "c", C)] * begins),
        acked(50, 1),
    ]
    assert [found.law for found in checkers.safety(history)] == ["safety"] * begins


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_acked_and_lost_with_the_disk_is_not_acked_when_it_is_journaled_anew(
    kept: bool,
) -> None:
    """`b` never got it; the copy that was put back in place at `a` has it or not."""
    history = RunHistory(chain())
    history.operations += [
        *up(),
        CatchUpEnded(3, "a", "to-b", B),
        journaled(10, "a", 1),
        LinkModeSet(20, "a", "to-b", False),
        acked(30, 1),
        InstanceCrashed(40, "a", A, True),
        *([journaled(40, "a", 1)] * kept),
        InstanceStarted(50, "a", A, True),
        *([journaled(60, "a", 1)] * (not kept)),
        SafetySent(70, "a", "p", 1, ("b",)),
    ]
    assert [found.law for found in checkers.safety(history)] == ["safety"] * kept


def told(*operations: Operation) -> set[str]:
    history = RunHistory(chain(), [*up(), *operations])
    return {found.text for found in checkers.failover(history)}


def test_a_client_goes_only_where_everybody_who_spoke_to_it_calls_it_safe() -> None:
    at_a = [ServerUsed(2, "p", "a", ""), SafetyHeard(2, "p", "a", ("b",))]
    at_b = [ServerUsed(3, "p", "b", "a"), SafetyHeard(3, "p", "b", ("a", "c"))]
    assert not told(*at_a, *at_b, ServerUsed(4, "p", "a", "b"))
    assert told(*at_a, ServerUsed(3, "p", "c", "a"))
    # b cannot answer for a.
    (text,) = told(*at_a, *at_b, ServerUsed(4, "p", "c", "b"))
    assert "p went on at c, which a does not call safe" in text
    # A word is complete, and the last one counts.
    assert told(*at_a, SafetyHeard(3, "p", "a", ()), ServerUsed(4, "p", "b", "a"))
    assert not told(*at_a, SafetyHeard(3, "p", "a", ()), ServerUsed(4, "p", "a", "a"))
    assert not told(*at_a, ServerUsed(3, "q", "c", "")), "another client"


def test_a_client_that_crashed_is_bound_by_what_was_on_its_disk() -> None:
    kept = [ServerUsed(2, "p", "a", ""), SafetyHeard(2, "p", "a", ("b",)), StoreState(3, "p")]
    later = [SafetyHeard(4, "p", "a", ("c",)), ClientCrashed(5, "p", P, ())]
    assert told(*kept, ClientCrashed(5, "p", P, ()), ServerUsed(6, "p", "c", "a"))
    assert not told(*kept, *later, ServerUsed(6, "p", "b", "a"))
    assert told(*kept, *later, ServerUsed(6, "p", "c", "a"))


@pytest.mark.parametrize(
    ("what", "operations"),
    [
        ("", [MessagesSent(3, "p", P, 1, (1, 2)), MessagesSent(4, "p", P, 2, (1, 2, 3))]),
        (
            "",
            [
                MessagesSent(3, "p", P, 1, (1, 2)),
                PublishesDropped(4, "p", P, (1,)),
                MessagesSent(5, "p", P, 2, (2, 3)),
            ],
        ),
        ("", [ClientCrashed(3, "p", P, (1, 2)), MessagesSent(4, "p", P, 1, (3,))]),
        ("and not [2]", [MessagesSent(3, "p", P, 1, (1, 3))]),
        ("and not [1, 2]", [MessagesSent(3, "p", P, 1, (1, 2)), MessagesSent(4, "p", P, 2, (3,))]),
        ("behind 2", [MessagesSent(3, "p", P, 1, (1, 2)), MessagesSent(4, "p", P, 1, (2, 3))]),
        ("had sent 2", [MessagesSent(3, "p", P, 1, (1, 2)), ClientCrashed(4, "p", P, (2, 3))]),
    ],
)
def test_a_client_sends_what_is_not_settled_in_order_and_once(
    what: str, operations: list[Operation]
) -> None:
    found = checkers.sending(RunHistory(chain(), [*published(1, 2, 3), *operations]))
    assert bool(found) == bool(what) and all(what in each.text for each in found)


def test_an_instance_that_lost_its_disk_is_ready_with_what_a_peer_of_its_group_had() -> None:
    again = 0xBB
    start: list[Operation] = [
        *up(), *published(1), journaled(10, "a", 1), journaled(20, "b", 1, path=(A,)),
        InstanceCrashed(30, "b", B, True), InstanceStarted(40, "b", again, False),
    ]  # fmt: skip
    copied = journaled(50, "b", 1, path=(A,))._replace(incarnation=again)
    ready = InstanceReady(60, "b", again, False)

    def found(*operations: Operation) -> list[str]:
        history = RunHistory(chain(), [*start, *operations])
        return [each.text for each in checkers.readiness(history)]

    assert not found(copied, ready)
    (text,) = found(ready)
    assert text.startswith("b admits clients, and lacks 1 of a")
    assert not found(ready._replace(by_hand=True)), "somebody took that upon himself"
    # Its own retention had removed it before the old directory was put back.
    history = RunHistory(chain(), [*start, ready])
    history.operations.insert(-3, SegmentsRemoved(25, "b", B, 1, (("to-c", "c"),)))
    assert not checkers.readiness(history)
    # What retention removed meanwhile nobody misses, nor what came after its start.
    assert not found(SegmentsRemoved(55, "a", A, 1, (("to-b", "b"),)), ready)
    assert not found(copied, journaled(55, "a", 2, txid=2), ready)


@pytest.mark.parametrize("end", ["", "c"])
def test_a_subscriber_has_all_of_its_log(end: str) -> None:
    history = without(sound(), MessagesDelivered)
    history.subscribed = {"s": (end, ".*")}
    assert laws(history) == {"subscribers"}


@pytest.mark.parametrize(
    ("told", "is_lawful"),
    [((1, 2, 2), True), (None, False), ((2, 1, 2), False), ((1, 3, 3), False)],
    ids=["as it is", "nothing", "what it has", "what is there"],
)
def test_a_subscriber_is_told_what_retention_removed_and_no_more(
    told: tuple[int, int, int] | None, is_lawful: bool
) -> None:
    """It has 1, 2 is removed as well, and 3 is left."""
    history = sound()
    history.operations += [
        *published(2, 3),
        journaled(70, "c", 2, txid=2),
        journaled(71, "c", 3, txid=3),
        SegmentsRemoved(80, "c", C, 2, ()),
        ResumeRead(90, "c", "s"),
        SubscriptionResumed(91, "s", "c"),
    ]
    if told is not None:
        history.operations.append(MissingHeard(92, "s", "c", told[0], ((P, told),)))
    assert (checkers.told_missing(history) == []) is is_lawful


@pytest.mark.parametrize("comes", [True, False])
def test_a_subscriber_is_told_what_is_removed_while_it_is_connected_and_never_comes(
    comes: bool,
) -> None:
    """It has 1; 2 is on its way to it, or was passed over, when it is removed."""
    history = sound()
    history.operations += [
        *published(2, 3),
        SubscriptionResumed(65, "s", "c"),
        journaled(70, "c", 2, txid=2),
        journaled(71, "c", 3, txid=3),
        SegmentsRemoved(80, "c", C, 2, ()),
        MessagesDelivered(90, "s", "c", P, (2, 3) if comes else (3,)),
    ]
    assert (checkers.told_missing(history) == []) is comes
    history.operations += [ResumeRead(100, "c", "s"), SubscriptionResumed(101, "s", "c")]
    assert (checkers.told_missing(history) == []) is comes
    history.operations.append(MissingHeard(102, "s", "c", 1, ((P, (1, 2, 2)),)))
    assert (checkers.told_missing(history) == []) is not comes


@pytest.mark.parametrize("removed_before", [True, False])
def test_what_was_removed_before_a_subscriber_connected_is_no_gap_in_what_it_reads(
    removed_before: bool,
) -> None:
    """It has 4 when it connects, and gets 1 behind that: 2 is between the two only since then."""
    history = sound()
    history.operations = [
        *published(1, 2, 4, 5),
        journaled(21, "c", 2, txid=1),
        journaled(22, "c", 4, txid=2),
        journaled(23, "c", 1, txid=3),
        journaled(24, "c", 5, txid=4),
        SubscriptionResumed(30, "s", "c"),
        MessagesDelivered(31, "s", "c", P, (4,)),
    ]
    again = [ResumeRead(42, "c", "s"), SubscriptionResumed(43, "s", "c")]
    came = [MessagesDelivered(50, "s", "c", P, (1, 5))]
    removed = [SegmentsRemoved(41 if removed_before else 51, "c", C, 1, ())]
    first, second = (removed, again + came) if removed_before else (again + came, removed)
    history.operations += [*first, *second, SegmentsRemoved(60, "c", C, 2, ())]
    assert (checkers.told_missing(history) == []) is removed_before


def test_a_subscriber_with_a_filter_gets_what_passes_and_nothing_else() -> None:
    history = sound()
    history.operations = [
        op._replace(contents=("5",)) if isinstance(op, RunJournaled) else op
        for op in history.operations
    ]
    history.passes = {"s": lambda content: content == "5"}
    assert laws(history) == set()
    history.passes = {"s": lambda content: content == "4"}
    assert laws(history) == {"subscribers"}, "it got what does not pass"
    assert laws(without(history, MessagesDelivered)) == set()
    history.passes = {"s": lambda content: content == "5"}
    assert laws(history) == {"subscribers"}, "it did not get what passes"


@pytest.mark.parametrize("is_delivered", [True, False])
def test_a_delta_that_became_two_messages_may_be_judged_as_either(is_delivered: bool) -> None:
    history = sound() if is_delivered else without(sound(), MessagesDelivered)
    contents = ["6", "6", "5"]
    history.operations = [
        op._replace(contents=(contents.pop(),)) if isinstance(op, RunJournaled) else op
        for op in history.operations
    ]
    assert not contents, "all instances have it"
    history.passes = {"s": lambda content: content == "5"}
    assert laws(history) == set()
    history.passes = {"s": lambda content: content in ("5", "6")}
    assert laws(history) == (set() if is_delivered else {"subscribers"})


def offered(at_us: int, instance: str) -> RunHistory:
    """`sound`, and the message is sent to a fully durable subscriber at that moment."""
    history = sound()
    history.operations.append(MessagesOffered(at_us, instance, "s2", P, (1,)))
    history.operations.sort(key=lambda operation: operation[0])
    return history


@pytest.mark.parametrize(
    ("at_us", "instance", "broken"),
    [
        (5, "a", True),  # not on its own disk
        (15, "a", True),  # not at b
        (25, "a", True),  # at b, but not at c behind it
        (35, "a", False),
        (25, "b", True),  # not at c
        (35, "b", False),
        (35, "c", False),
    ],
)
def test_a_fully_durable_subscriber_is_sent_nothing_too_early(
    at_us: int, instance: str, broken: bool
) -> None:
    assert laws(offered(at_us, instance)) == ({"fully durable"} if broken else set())


@pytest.mark.parametrize("began_anew", [False, True])
def test_what_an_old_copy_once_sent_is_durable_until_it_is_found_out(began_anew: bool) -> None:
    """Seed 950019223: an older copy was put in the place of `b` and the link to it caught up; what
    `b` had sent before came to `a` by `c`, over the incarnation that the copy bears as well."""
    history, incarnation = RunHistory(chain()), 0xD if began_anew else B
    history.operations += [
        *up(),
        *published(1),
        journaled(10, "b", 1),
        journaled(12, "c", 1, path=(B,)),
        InstanceCrashed(20, "b", B, True),
        InstanceStarted(21, "b", incarnation, True),
        LinkConnected(22, "a", "to-b", "b", incarnation),
        CatchUpEnded(23, "a", "to-b", incarnation),
        journaled(30, "a", 1, path=(B, C)),
        MessagesOffered(31, "a", "s2", P, (1,)),
    ]
    assert [each.law for each in checkers.fully_durable(history)] == ["fully durable"] * began_anew


@pytest.mark.parametrize("held", [False, True])
def test_what_a_moved_server_had_is_durable_though_an_earlier_one_had_caught_up(held: bool) -> None:
    """Seed 6003802: `b` was moved twice. The link had caught up with the first one, the second one
    had the message and showed that when the link was compared with it, and then was moved, too."""
    pair = Topology(
        "pair", {"a": HistoryMember("a", "g", (to("b"),)), "b": HistoryMember("b", "g", ())}
    )
    history = RunHistory(pair)
    history.operations += [
        InstanceStarted(0, "a", A, True),
        InstanceStarted(0, "b", B, True),
        LinkConnected(1, "a", "to-b", "b", B),
        CatchUpEnded(2, "a", "to-b", B),
        InstanceMoved(5, "b", "b#0", B),
        *published(1),
        journaled(10, "a", 1),
        *([journaled(12, "b", 1, path=(A,))._replace(incarnation=C)] if held else []),
        InstanceStarted(13, "b", C, False),
        LinkReached(14, "a", "to-b", "b", C),
        InstanceMoved(20, "b", "b#1", C),
        MessagesOffered(31, "a", "s2", P, (1,)),
    ]
    assert bool(checkers.fully_durable(history)) is not held


def test_a_downgrade_lets_a_fully_durable_subscriber_go_on() -> None:
    history = offered(15, "a")
    assert laws(history) == {"fully durable"}
    history.operations.insert(-1, LinkModeSet(12, "a", "to-b", False))
    history.operations.sort(key=lambda operation: operation[0])
    assert "fully durable" not in laws(history)


def test_a_topic_that_is_not_what_its_journal_says_is_told() -> None:
    history = sound()
    history.operations.append(SowDiffers(99, "a", "orders k1: nothing is held"))
    assert laws(history) == {"sow"}


def test_nobody_misses_a_deletion() -> None:
    history = sound()
    history.operations = [
        each for each in history.operations if not isinstance(each, MessagesDelivered)
    ]
    assert laws(history) == {"subscribers"}
    history.deletions = {(P, sequence) for sequence in range(1, 10)}
    assert laws(history) == set()


@pytest.mark.parametrize("got", [True, False])
@pytest.mark.parametrize("there", ["yes", "no"])
def test_of_a_message_that_was_made_twice_either_content_may_be_judged(
    there: str, got: bool
) -> None:
    """Seed 5355: a client sent it again to another instance, whose state made another one of it."""
    operations = [
        *up(),
        *published(1),
        journaled(3, "a", 1)._replace(contents=("no",)),
        journaled(4, "b", 1)._replace(contents=(there,)),
        *([MessagesDelivered(5, "s", "b", P, (1,))] if got else []),
    ]
    history = RunHistory(chain(), operations)
    history.final = {"b": log(B, 1)}
    history.subscribed = {"s": ("b", ".*")}
    history.passes = {"s": lambda content: content == "yes"}
    assert bool(checkers.subscribers(history)) == (got and there == "no")
