"""The client's machine: events in, effects out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_stores import DictPublishStore

from raylay.services.client.events import (
    ClientStopped,
    ClockDiffers,
    Connect,
    Connected,
    ConnectionEnded,
    ConnectionOpened,
    Disconnected,
    DropStream,
    Effect,
    Fail,
    FrameReceived,
    LoopBlocked,
    MessagesMissing,
    Notify,
    PauseAnswered,
    PauseWanted,
    PeerBecameUnsafe,
    PublishFailed,
    ResolveServers,
    ResumeWanted,
    SendFrame,
    SendPublishes,
    ServerRefused,
    ServersResolved,
    Settled,
    StartRequested,
    SubscriptionAccepted,
    SubscriptionFailed,
    SubscriptionUnwanted,
    SubscriptionWanted,
    TimePassed,
    WaitingForSafeInstance,
    WaitingForServer,
)
from raylay.services.client.failover import Server
from raylay.services.client.machine import (
    ASK_AFTER_ROUNDS,
    ClientOptions,
    ClientState,
    client_machine,
)
from raylay.services.client.subscriptions.subscription_state import SubscriptionState
from raylay.services.errors import (
    BookmarkNotFound,
    CommandFailed,
    ConnectionLost,
    LocalProtocolError,
    LogonRefused,
    NoUsableServer,
    PublishStoreFull,
    SequenceConflict,
)
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.records import SEQUENCE_MAX, RecordBuilder, publisher_id, sequences_of
from raylay.services.protocol.client.answers import OVERTAKEN

pytestmark = [
    pytest.mark.covers("Clients and protocol", "pause, resume; those resumed in one command"),
    pytest.mark.covers("Clients and protocol", "publish store: bounded"),
]

CLOCK_US = 5_000


class Bench:
    """A machine, its store and a clock."""

    def __init__(self, *names: str, store: DictPublishStore | None = None, **options: Any) -> None:
        self.store = store if store is not None else DictPublishStore()
        servers = tuple(Server(f"{name}:1", name, "G") for name in names or ("A", "B"))
        self.machine = client_machine(
            ClientOptions("desk", servers, clock_us=CLOCK_US, **options), self.store
        )
        self.now_s = 100.0

    def step(self, event: Any) -> list[Effect]:
        effects = self.machine.step(event, self.now_s)
        self.machine.check_invariants()
        return effects

    def ack(self, sequence: int, **extra: Any) -> list[Effect]:
        header = {"c": "ack", "a": "persisted", "s": sequence, "status": "success", **extra}
        return self.step(FrameReceived(self.machine.connection, header))

    def answer(self, instance: str = "A", **extra: Any) -> list[Effect]:
        """The server's answer to the logon."""
        peers = [
            {"name": name, "group": "G", "addresses": [f"{name}:1"], "safe": safe}
            for name, safe in extra.pop("peers", {}).items()
        ]
        header = {
            "c": "ack",
            "a": "processed",
            "cid": "logon",
            "status": "success",
            "v": 1,
            "instance": instance,
            "group": "G",
            "durable": [],
            "highest": 0,
            "peers": peers,
            **extra,
        }
        return self.step(FrameReceived(self.machine.connection, header))

    def log_on(self, instance: str = "A", **extra: Any) -> list[Effect]:
        if self.machine.state is ClientState.NEW:
            self.step(StartRequested())
        self.step(ConnectionOpened(self.machine.connection))
        return self.answer(instance, **extra)

    def lose(self) -> list[Effect]:
        return self.step(ConnectionEnded(self.machine.connection, "gone"))

    def publish(self, body: bytes = b"x") -> int:
        return self.machine.outbox.publish("t", body, "json", 1)

    def sent(self, bytes_max: int = 1 << 20) -> Iterator[list[int]]:
        """The sequences of each batch that is to be sent now."""
        while (batch := self.machine.outbox.next_batch(bytes_max)) is not None:
            found = sequences_of(b"".join(batch.records))
            assert (batch.first, batch.last) == (found[0], found[-1])
            yield found


def frames(effects: list[Effect], command: str) -> list[dict[str, Any]]:
    return [e.header for e in effects if isinstance(e, SendFrame) and e.header["c"] == command]


def told(effects: list[Effect]) -> list[Any]:
    return [effect.event for effect in effects if isinstance(effect, Notify)]


# -- what is in no journal ---------------------------------------------------------------------
def test_publishes_to_live_subscribers_only_are_counted() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    bench.publish()
    assert list(bench.sent()) == [[first, first + 1]]
    bench.ack(first)
    assert not bench.machine.outbox.unjournaled
    bench.ack(first + 1, unjournaled=1)
    assert bench.machine.outbox.unjournaled == 1 and not bench.store.messages


def test_the_text_of_a_refusal_holds_for_those_that_follow_without_one() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    for _ in range(2):
        bench.publish()
    list(bench.sent())
    texts = []
    for sequence, reason, text in (
        (first, "not_journaled", "topic 't'"),
        (first + 1, "not_journaled", ""),
        (first + 2, "storm", ""),
    ):
        effects = bench.ack(sequence, status="failure", reason=reason, text=text)
        (failed,) = told(effects)
        texts.append(str(failed.error))
    assert texts == ["topic 't'", "topic 't'", "the server refused publish: storm"]
    assert not bench.store.messages


# -- the beat ------------------------------------------------------------------------------------
def test_a_loop_that_stood_still_longer_than_the_heartbeat_is_told_once() -> None:
    bench = Bench()
    bench.log_on()
    due_s, beat_s = bench.machine.wake_s, bench.machine.options.heartbeat_s
    assert due_s is not None
    bench.machine.outbox.heard_s = due_s
    assert not told(bench.machine.step(TimePassed(), due_s + beat_s / 2))
    due_s += beat_s
    bench.machine.outbox.heard_s = due_s
    effects = bench.machine.step(TimePassed(), due_s + 0.6 * beat_s)
    assert [each for each in told(effects) if isinstance(each, LoopBlocked)] == [
        LoopBlocked(pytest.approx(0.6 * beat_s))
    ]
    assert not [
        each
        for each in told(bench.machine.step(TimePassed(), due_s + 0.7 * beat_s))
        if isinstance(each, LoopBlocked)
    ]


# -- logon and numbers ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ahead_us", "said"),
    [(0, []), (59_000_000, []), (61_000_000, [61.0]), (-3_600_000_000, [-3_600.0])],
)
def test_a_client_is_told_that_its_clock_and_the_instances_differ(
    ahead_us: int, said: list[float]
) -> None:
    bench = Bench()
    bench.machine.outbox.wall_us = 9_000_000_000
    effects = bench.log_on(now=9_000_000_000 - ahead_us)
    assert [each for each in told(effects) if isinstance(each, ClockDiffers)] == [
        ClockDiffers("A", each) for each in said
    ]


def test_connects_logs_on_and_is_connected() -> None:
    bench = Bench(user_id="u", password="secret", ack_conflation_ms=7)
    assert bench.step(StartRequested()) == [Connect(1, "A:1")]
    [logon] = frames(bench.step(ConnectionOpened(1)), "logon")
    assert logon == {
        "c": "logon",
        "v": 1,
        "client_name": "desk",
        "low": 0,
        "cid": "logon",
        "o": {"ack_conflation_ms": 7},
        "user_id": "u",
        "pw": "secret",
    }
    effects = bench.answer()
    assert Connected("A", "G", "A:1", 0) in told(effects)
    assert bench.machine.instance == "A"


@pytest.mark.parametrize(
    ("store_highest", "server_highest", "first"),
    [
        (0, 0, CLOCK_US),  # no past: the clock
        (0, 9_000, 9_001),  # the server has seen more than the clock
        (0, 3, CLOCK_US),  # … or less: another instance may have seen more than this one
        (10, 0, 11),  # the store knows its past
        (10, 12, 13),  # … and so does the server
    ],
)
def test_first_sequence(store_highest: int, server_highest: int, first: int) -> None:
    store = DictPublishStore()
    store.highest = store_highest
    bench = Bench(store=store)
    bench.log_on(highest=server_highest)
    assert bench.publish() == first


def test_numbers_go_on_across_a_reconnect() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    bench.lose()
    assert bench.publish() == first + 1
    bench.log_on("A")
    assert bench.publish() == first + 2


def test_publish_before_the_first_logon_and_after_the_end_is_refused() -> None:
    bench = Bench()
    with pytest.raises(ConnectionLost, match="connect before"):
        bench.publish()
    bench.log_on()
    bench.step(ClientStopped())
    with pytest.raises(ConnectionLost, match="closed"):
        bench.publish()
    assert bench.store.messages == 0


def test_a_full_store_refuses_and_uses_no_number() -> None:
    bench = Bench(store=DictPublishStore(messages_max=1))
    bench.log_on()
    first = bench.publish()
    with pytest.raises(PublishStoreFull, match="is full"):
        bench.publish()
    list(bench.sent())
    bench.ack(first)
    assert bench.publish() == first + 1


def test_a_record_larger_than_a_frame_is_refused() -> None:
    bench = Bench()
    bench.log_on()
    with pytest.raises(LocalProtocolError, match="a record may have"):
        bench.publish(bytes(16 * 1024 * 1024))
    assert bench.store.messages == 0


# -- sending and acks ----------------------------------------------------------------------------
def test_batches_are_bounded_in_bytes_and_in_order() -> None:
    bench = Bench()
    bench.log_on()
    published = [bench.publish(bytes(size)) for size in (10, 300, 10, 2_000, 10, 10)]
    batches = list(bench.sent(bytes_max=500))
    assert [sequence for batch in batches for sequence in batch] == published
    assert [len(batch) for batch in batches] == [2, 1, 1, 2]
    assert not bench.machine.outbox.unsent


def test_acks_empty_the_store_and_settle() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    for _ in range(4):
        bench.publish()
    list(bench.sent())
    assert bench.ack(first + 2) == [Settled(first + 2)]
    assert list(bench.store.records) == [first + 3, first + 4]
    assert bench.ack(first + 4) == [Settled(first + 4)]
    assert bench.ack(first + 4) == [], "nothing new"


def test_an_ack_beyond_what_was_sent_here_frees_nothing_more() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    list(bench.sent())
    bench.publish()
    bench.ack(first + 1_000)
    assert list(bench.store.records) == [first + 1]


def test_acks_of_an_old_connection_are_void() -> None:
    bench = Bench()
    bench.log_on()
    old = bench.machine.connection
    first = bench.publish()
    list(bench.sent())
    bench.lose()
    bench.log_on("A")
    header = {"c": "ack", "a": "persisted", "s": first, "status": "success"}
    assert bench.step(FrameReceived(old, header)) == []
    assert list(bench.store.records) == [first]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("sequence_conflict", SequenceConflict), ("storage_full", CommandFailed)],
)
def test_a_refused_publish_is_handed_back_and_the_others_go_on(
    reason: str, kind: type[CommandFailed]
) -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish(b"a")
    record = bench.store.records[first]
    bench.publish(b"b")
    list(bench.sent())
    effects = bench.ack(first, status="failure", reason=reason, text="no")
    [failure] = told(effects)
    assert isinstance(failure, PublishFailed)
    assert type(failure.error) is kind
    assert (failure.sequence, failure.error.reason, str(failure.error)) == (first, reason, "no")
    assert failure.record == record
    assert Settled(first) in effects
    assert list(bench.store.records) == [first + 1]


def test_resends_exactly_what_is_not_durable_before_anything_new() -> None:
    bench = Bench()
    bench.log_on(peers={"B": True})
    first = bench.publish()
    for _ in range(9):
        bench.publish()
    list(bench.sent())
    bench.ack(first)
    bench.lose()
    later = bench.publish()  # while there is no connection
    effects = bench.log_on("B", durable=[[first + 2, first + 4], [first + 7, first + 7]])
    assert SendPublishes() in effects
    newest = bench.publish()
    expected = [first + n for n in (1, 5, 6, 8, 9)]
    assert [n for batch in bench.sent(bytes_max=200) for n in batch] == [*expected, later, newest]
    assert Connected("B", "G", "B:1", 6) in told(effects)


def test_the_logon_names_the_lowest_unacknowledged() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    bench.publish()
    list(bench.sent())
    bench.ack(first)
    bench.lose()
    [logon] = frames(bench.step(ConnectionOpened(bench.machine.connection)), "logon")
    assert logon["low"] == first + 1


def test_nobody_numbers_beyond_the_highest_sequence() -> None:
    bench = Bench()
    bench.log_on(highest=SEQUENCE_MAX - 1)
    assert bench.publish() == SEQUENCE_MAX
    with pytest.raises(LocalProtocolError, match="choose another client name"):
        bench.publish()
    assert list(bench.sent()) == [[SEQUENCE_MAX]]
    bench.ack(SEQUENCE_MAX)
    assert bench.machine.outbox.settled_upto == SEQUENCE_MAX


def test_durable_ranges_of_a_logon_settle_too() -> None:
    bench = Bench()
    bench.log_on()
    first = bench.publish()
    list(bench.sent())
    bench.lose()
    assert Settled(first) in bench.log_on("A", durable=[[first, first]])


# -- failover ------------------------------------------------------------------------------------
def test_goes_to_the_safe_peer_at_once() -> None:
    bench = Bench("A", "B", "C")
    bench.log_on(peers={"B": False, "C": True})
    effects = bench.lose()
    assert effects[-1] == Connect(bench.machine.connection, "C:1")
    assert Disconnected("A", "A:1", "gone") in told(effects)


def test_waits_for_the_old_instance_where_no_other_is_safe_and_says_so() -> None:
    bench = Bench("A", "B")
    bench.log_on(peers={"B": True})
    notice = {"c": "safety", "peers": [{"name": "B", "safe": False}]}
    effects = bench.step(FrameReceived(bench.machine.connection, notice))
    assert told(effects) == [PeerBecameUnsafe("B", "A")]
    bench.now_s += 60
    assert bench.lose()[-1] == Connect(bench.machine.connection, "A:1")
    [waiting] = told(bench.lose())
    assert isinstance(waiting, WaitingForSafeInstance)
    assert dict(waiting.refused) == {"B": "A called it unsafe to fail over to"}
    bench.now_s += waiting.pause_s
    assert bench.step(TimePassed()) == [Connect(bench.machine.connection, "A:1")]


def test_an_unknown_server_is_asked_who_it_is_and_left_when_it_is_not_safe() -> None:
    bench = Bench("A")
    bench.machine.chooser.set_servers([Server("A:1"), Server("x:1")])
    bench.log_on("A", peers={"B": False})
    first = bench.publish()
    bench.now_s += 60
    assert bench.lose()[-1] == Connect(bench.machine.connection, "x:1")
    probed = bench.machine.connection
    effects = bench.log_on("B", durable=[[first, first]])
    assert DropStream(probed) in effects
    assert ServerRefused("B", "x:1", "A called it unsafe to fail over to") in told(effects)
    assert list(bench.store.records) == [first], "nothing is taken from its answer"
    assert effects[-1] == Connect(bench.machine.connection, "A:1")


def test_who_may_not_be_used_is_asked_where_the_one_last_used_lives_now() -> None:
    """One server is listed, A. Its client went on at B, which calls A unsafe, and then moved: only
    A can say where to. It waited for ever."""
    bench = Bench("A")
    bench.log_on("A", peers={"B": True})
    bench.now_s += 60
    bench.lose()
    bench.log_on("B", peers={"A": False})
    first = bench.publish()
    bench.now_s += 60
    bench.lose()
    rounds = 0
    while bench.machine.state is not ClientState.LOGGING_ON:
        assert isinstance(told(bench.lose())[-1], WaitingForSafeInstance)
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        assert bench.step(TimePassed()) == [Connect(bench.machine.connection, "B:1")]
        rounds += 1
        if rounds == ASK_AFTER_ROUNDS:
            assert bench.lose() == [Connect(bench.machine.connection, "A:1")]
            bench.step(ConnectionOpened(bench.machine.connection))
    moved = {"name": "B", "group": "G", "addresses": ["B:2"], "safe": False}
    header = {
        "c": "ack",
        "cid": "logon",
        "status": "success",
        "v": 1,
        "instance": "A",
        "group": "G",
        "durable": [[first, first]],
        "highest": first,
        "peers": [moved],
    }
    asked = bench.machine.connection
    effects = bench.step(FrameReceived(asked, header))
    assert DropStream(asked) in effects
    assert list(bench.store.records) == [first], "nothing but the address is taken from its answer"
    assert bench.machine.wake_s is not None
    bench.now_s = bench.machine.wake_s
    assert bench.step(TimePassed()) == [Connect(bench.machine.connection, "B:2")]
    bench.log_on("B", peers={"A": False})
    assert bench.machine.instance == "B" and bench.machine.chooser.refusal("A")


def test_a_refusal_by_one_that_was_only_asked_ends_nobody() -> None:
    bench = Bench("A", "B")
    bench.log_on("A", peers={"B": False})
    bench.now_s += 60
    bench.lose()
    while "B:1" not in {each.address for each in bench.lose() if isinstance(each, Connect)}:
        if bench.machine.state is ClientState.PAUSING:
            assert bench.machine.wake_s is not None
            bench.now_s = bench.machine.wake_s
            bench.step(TimePassed())
    bench.step(ConnectionOpened(bench.machine.connection))
    bench.answer("B", status="failure", reason="name_in_use", text="by another user")
    assert bench.machine.state is ClientState.PAUSING


def test_every_server_down_pauses_grow() -> None:
    bench = Bench("A", "B", pause_min_ms=100)
    bench.step(StartRequested())
    pauses = []
    for _ in range(3):
        bench.lose()
        [waiting] = told(bench.lose())
        assert isinstance(waiting, WaitingForServer)
        assert [address for address, reason in waiting.tried if reason] == ["A:1", "B:1"]
        pauses.append(waiting.pause_s)
        assert bench.machine.wake_s == bench.now_s + waiting.pause_s
        bench.now_s += waiting.pause_s
        assert bench.step(TimePassed()) == [Connect(bench.machine.connection, "A:1")]
    assert pauses[0] < pauses[1] < pauses[2]


def test_a_server_that_throws_the_client_out_again_and_again_is_not_stormed() -> None:
    bench = Bench("A")
    bench.log_on()
    assert bench.lose()[-1] == Connect(bench.machine.connection, "A:1")
    bench.log_on("A")
    assert isinstance(told(bench.lose())[-1], WaitingForServer)


def ended(bench: Bench, reason: str, text: str) -> list[Effect]:
    header = {"c": "ack", "a": "processed", "status": "failure", "reason": reason, "text": text}
    return bench.step(FrameReceived(bench.machine.connection, header))


def test_a_batch_that_is_refused_for_good_is_told_in_the_status_until_something_is_settled() -> (
    None
):
    bench = Bench("A")
    bench.log_on()
    first = bench.publish()
    assert [*bench.sent()] == [[first]]
    ended(bench, "foreign_publisher", "type json is none of this transport")
    bench.log_on()
    assert [*bench.sent()] == [[first]]
    status = bench.machine.status
    assert status.startswith("connected to A at A:1; A ended the connection with foreign_publisher")
    assert (
        "type json is none of this transport" in status and f"publishes from {first} on" in status
    )
    bench.ack(first)
    assert bench.machine.status == "connected to A at A:1"


def test_a_connection_that_ends_for_what_passes_is_told_as_no_fault_of_the_publishes() -> None:
    bench = Bench("A")
    bench.log_on()
    bench.publish()
    ended(bench, "storage_full", "no room")
    assert "storage_full" not in bench.machine.status


def test_of_a_batch_with_bad_records_only_those_that_were_sent_and_are_bad_are_refused() -> None:
    store = DictPublishStore()
    builder = RecordBuilder(publisher_id("desk"), "t", "json")
    good, bad = builder.build(1, b"x", 1), builder.build(2, b"x", 2, command=9)
    store.put(1, good)
    store.put(2, bad)
    bench = Bench("A", store=store)
    bench.log_on()
    assert next(bench.sent(1)) == [1]
    effects = ended(bench, "bad_record", "record at byte 0")
    assert not [event for event in told(effects) if isinstance(event, PublishFailed)], "not sent"
    assert "A ended the connection with bad_record: record at byte 0" in bench.machine.status
    bench.log_on()
    assert [*bench.sent()] == [[1, 2]]
    events = told(ended(bench, "bad_record", "record at byte 65"))
    (failed,) = [event for event in events if isinstance(event, PublishFailed)]
    assert (failed.sequence, failed.record, failed.error.reason) == (2, bad, "bad_record")
    assert "ended the connection" not in bench.machine.status, "what was to be done is done"
    assert [*bench.store.replay()] == [(1, good)]


def test_servers_are_looked_up_for_every_round() -> None:
    bench = Bench(resolves=True)
    assert bench.step(StartRequested()) == [ResolveServers()]
    assert bench.step(ServersResolved([Server("n:1")])) == [Connect(1, "n:1")]
    bench.lose()
    assert bench.machine.wake_s is not None
    bench.now_s = bench.machine.wake_s
    assert bench.step(TimePassed()) == [ResolveServers()]
    # The look-up failed: the last answer stays in force.
    assert bench.step(ServersResolved(None)) == [Connect(2, "n:1")]


def test_silence_while_connecting_is_given_up() -> None:
    bench = Bench("A", "B", connect_timeout_s=2.0)
    bench.step(StartRequested())
    bench.now_s += 2.0
    refused = ServerRefused("", "A:1", "no answer within 2.0 s")
    assert bench.step(TimePassed()) == [Notify(refused), DropStream(1), Connect(2, "B:1")]


@pytest.mark.parametrize("reason", ["not_ready", "shutting_down", "too_many"])
def test_a_refusal_that_may_pass_goes_elsewhere(reason: str) -> None:
    bench = Bench("A", "B")
    effects = bench.log_on("A", status="failure", reason=reason)
    assert effects[-1] == Connect(2, "B:1")


@pytest.mark.parametrize("reason", ["name_in_use", "bad_client_name", "not_entitled"])
def test_a_refusal_for_good_ends_the_client(reason: str) -> None:
    bench = Bench("A", "B")
    effects = bench.log_on("A", status="failure", reason=reason, text="go away")
    [error] = [effect.error for effect in effects if isinstance(effect, Fail)]
    assert isinstance(error, LogonRefused)
    assert error.reason == reason
    assert str(error) == "A:1 refused the logon of client desk: go away"
    assert bench.machine.state is ClientState.ENDED
    # The error says it: an event besides would be a second message of the same.
    assert not [effect for effect in effects if isinstance(effect, Notify)]


@pytest.mark.parametrize("stage", ["connecting", "logging on"])
def test_servers_that_cannot_be_used_end_the_client_in_its_first_round(stage: str) -> None:
    bench = Bench("A", "B")
    bench.step(StartRequested())
    effects: list[Effect] = []
    for reason in ("an unknown CA", "another name"):
        assert bench.machine.state is ClientState.CONNECTING
        if stage == "logging on":
            bench.step(ConnectionOpened(bench.machine.connection))
        effects = bench.step(ConnectionEnded(bench.machine.connection, reason, True))
    [error] = [effect.error for effect in effects if isinstance(effect, Fail)]
    assert isinstance(error, NoUsableServer)
    assert str(error) == (
        "client desk cannot use any of its servers: A:1: an unknown CA; B:1: another name"
    )
    assert not [effect for effect in effects if isinstance(effect, Notify)]


def test_one_server_that_may_come_back_keeps_the_client_trying() -> None:
    bench = Bench("A", "B")
    bench.step(StartRequested())
    refused = Notify(ServerRefused("", "A:1", "an unknown CA"))
    for _ in range(3):
        bench.step(ConnectionEnded(bench.machine.connection, "an unknown CA", True))
        effects = bench.lose()
        assert refused in effects and isinstance(effects[-1], Notify)
        assert bench.machine.state is ClientState.PAUSING
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        bench.step(TimePassed())
    # What lasted in an earlier round counts no more: A is down now.
    bench.lose()
    bench.step(ConnectionEnded(bench.machine.connection, "another name", True))
    assert bench.machine.state is ClientState.PAUSING


def test_a_client_that_was_logged_on_tries_on_whatever_its_servers_say() -> None:
    bench = Bench("A")
    bench.log_on("A")
    bench.now_s += 10
    bench.lose()
    for _ in range(3):
        effects = bench.step(ConnectionEnded(bench.machine.connection, "it has expired", True))
        assert Notify(ServerRefused("", "A:1", "it has expired")) in effects
        assert bench.machine.state is ClientState.PAUSING
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        bench.step(TimePassed())
    bench.step(ConnectionOpened(bench.machine.connection))
    bench.answer("A")
    assert bench.machine.state is ClientState.READY


@pytest.mark.covers("Configuration", "a challenge (`retry`) is answered on the same")
def test_a_challenge_is_answered_on_the_same_connection() -> None:
    asked = []

    def answers(user_id: str, question: str) -> tuple[str, str]:
        asked.append((user_id, question))
        return "bob", "4"

    bench = Bench("A", user_id="bob", password="hush", answers=answers)
    (sent,) = bench.log_on("A", status="failure", reason="retry", user_id="b", pw="2 + 2")
    assert isinstance(sent, SendFrame)
    assert (sent.header["c"], sent.header["user_id"], sent.header["pw"]) == ("logon", "bob", "4")
    assert asked == [("b", "2 + 2")] and bench.machine.state is ClientState.LOGGING_ON
    assert any(isinstance(each, Notify) for each in bench.answer("A"))
    assert bench.machine.state is ClientState.READY


def test_who_has_no_answer_to_a_challenge_is_refused() -> None:
    bench = Bench("A")
    effects = bench.log_on("A", status="failure", reason="retry", text="answer it")
    [error] = [effect.error for effect in effects if isinstance(effect, Fail)]
    assert isinstance(error, LogonRefused) and error.reason == "retry"


def test_another_client_of_the_name_ends_this_one() -> None:
    bench = Bench("A", "B")
    bench.log_on(peers={"B": True})
    header = {"c": "ack", "a": "processed", "status": "failure", "reason": "name_in_use"}
    effects = bench.step(FrameReceived(1, header))
    assert any(isinstance(effect, Fail) for effect in effects)


# -- heartbeat -----------------------------------------------------------------------------------
@pytest.mark.covers("The replication chapters", "heartbeats, the interval chosen")
def test_beats_are_sent_and_silence_ends_the_connection() -> None:
    bench = Bench("A", heartbeat_s=4.0)
    [start] = frames(bench.log_on(), "heartbeat")
    assert start["o"] == {"start_s": 4.0}
    for _ in range(3):
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        assert frames(bench.step(TimePassed()), "heartbeat") == [{"c": "heartbeat"}]
        bench.machine.outbox.heard_s = bench.now_s
    heard_s = bench.now_s
    while bench.machine.state is ClientState.READY:
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        effects = bench.step(TimePassed())
    assert Disconnected("A", "A:1", "heartbeat") in told(effects)
    assert bench.now_s - heard_s == 4.0


def test_silence_proves_nothing_while_reading_is_paused() -> None:
    bench = Bench("A", heartbeat_s=4.0)
    bench.log_on()
    bench.machine.reading_paused = True
    for _ in range(10):
        assert bench.machine.wake_s is not None
        bench.now_s = bench.machine.wake_s
        bench.step(TimePassed())
    assert bench.machine.state is ClientState.READY


# -- subscriptions -------------------------------------------------------------------------------
def test_a_subscription_is_made_again_after_a_reconnect() -> None:
    bench = Bench()
    bench.log_on()
    wanted = SubscriptionState("s", "t.*", "json")
    [header] = frames(bench.step(SubscriptionWanted(wanted)), "subscribe")
    assert header == {
        "c": "subscribe",
        "cid": "s1",
        "sub": "s",
        "t": "t.*",
        "mt": "json",
        "a": "processed",
    }
    ack = {"c": "ack", "a": "processed", "cid": "s1", "status": "success"}
    assert bench.step(FrameReceived(1, ack)) == [SubscriptionAccepted("s", None)]
    assert wanted.active
    bench.lose()
    assert not wanted.active
    [again] = frames(bench.log_on("A"), "subscribe")
    assert (again["sub"], again["cid"]) == ("s", "s2")


@pytest.mark.parametrize(
    ("reason", "kind"), [("bad_regex", CommandFailed), ("bookmark_not_found", BookmarkNotFound)]
)
def test_a_refused_subscription_carries_the_servers_reason(
    reason: str, kind: type[CommandFailed]
) -> None:
    bench = Bench()
    bench.log_on()
    bench.step(SubscriptionWanted(SubscriptionState("s", "t")))
    ack = {"c": "ack", "a": "processed", "cid": "s1", "status": "failure", "reason": reason}
    [failed] = bench.step(FrameReceived(1, ack))
    assert isinstance(failed, SubscriptionFailed)
    assert isinstance(failed.error, kind)
    assert failed.error.reason == reason
    assert not bench.machine.subscriptions


def test_what_retention_removed_is_told_once_for_each_instance() -> None:
    bench = Bench()
    bench.log_on()
    bench.step(SubscriptionWanted(SubscriptionState("s", "t", bookmark="0")))
    ack = {"c": "ack", "a": "processed", "sub": "s", "status": "success"}
    missing = {"missing": 3, "missing_of": {7: [3, 5, 8]}}

    def said(extras: dict[str, object]) -> list[MessagesMissing]:
        effects = bench.step(FrameReceived(bench.machine.connection, ack | extras))
        return [event for event in told(effects) if isinstance(event, MessagesMissing)]

    assert said(missing) == [MessagesMissing("s", bench.machine.instance, 3, {7: (3, 5, 8)})]
    assert said(missing) == []
    assert said({}) == []
    assert said({"missing": 4, "missing_of": {7: [4]}}) == [
        MessagesMissing("s", bench.machine.instance, 4, {})
    ]
    assert said({"missing": "many"}) == []


def overtaken(bench: Bench, name: str, command_id: str) -> list[Effect]:
    ended = {"c": "ack", "a": "processed", "sub": name, "status": "failure", "reason": OVERTAKEN}
    return bench.step(FrameReceived(bench.machine.connection, ended | {"cid": command_id}))


@pytest.mark.covers(
    "Journal",
    "a subscriber that goes on is told what retention removed",
    note="while it is connected",
)
def test_a_subscription_that_retention_overtook_is_made_again_with_what_it_has() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "s", "other", paused=False)
    accepted(bench, "s", "other")
    have = PublisherRanges()
    have.add(7, 1, 2)
    bench.machine.subscriptions["s"].named_persisted(have)
    effects = overtaken(bench, "s", "s1")
    [again] = frames(effects, "subscribe")
    assert (again["sub"], again["cid"], set(again["o"]["have"])) == ("s", "s3", {7})
    assert len(effects) == 1, "the application is told nothing yet"
    ack = {"c": "ack", "a": "processed", "sub": "s", "cid": "s3", "status": "success"}
    missing = {"missing": 3, "missing_of": {7: [3, 3, 5]}}
    [accept, event] = bench.step(FrameReceived(bench.machine.connection, ack | missing))
    assert accept == SubscriptionAccepted("s", None)
    assert told([event]) == [MessagesMissing("s", bench.machine.instance, 3, {7: (3, 3, 5)})]
    # One that was asked for since, under the same id, is another one.
    bench.step(SubscriptionUnwanted("s"))
    replays(bench, "s", paused=False)
    assert overtaken(bench, "s", "s3") == [] and "s" in bench.machine.subscriptions
    # And it may fail, where it was asked for so.
    overtaken(bench, "s", "s4")
    failure = {"c": "ack", "a": "processed", "sub": "s", "status": "failure", "cid": "s5"}
    failure["reason"] = "bookmark_not_found"
    [failed] = bench.step(FrameReceived(bench.machine.connection, failure))
    assert isinstance(failed, SubscriptionFailed) and isinstance(failed.error, BookmarkNotFound)


def test_one_that_was_overtaken_in_pause_stays_so_and_a_group_goes_on_together() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", "b", "idle")
    accepted(bench, "a", "b", "idle")
    answer_asked(bench, bench.step(ResumeWanted(1, ("a", "b"))))
    for name, command_id in (("a", "s1"), ("b", "s2"), ("idle", "s3")):
        [command] = frames(overtaken(bench, name, command_id), "subscribe")
        assert command["sub"] == name and command["o"]["pause"]
    assert asked(accepted(bench, "a", "idle")) == []
    assert asked(accepted(bench, "b")) == [(["a", "b"], {"resume": True})]


def test_one_subscription_id_once() -> None:
    bench = Bench()
    bench.step(SubscriptionWanted(SubscriptionState("s", "t")))
    with pytest.raises(LocalProtocolError, match="in use"):
        bench.step(SubscriptionWanted(SubscriptionState("s", "t")))


# -- pause and resume ----------------------------------------------------------------------------
def accepted(bench: Bench, *names: str) -> list[Effect]:
    """The server accepts these, one after the other."""
    found: list[Effect] = []
    for name in names:
        ack = {"c": "ack", "a": "processed", "sub": name, "status": "success"}
        found += bench.step(FrameReceived(bench.machine.connection, ack))
    return found


def replays(bench: Bench, *names: str, paused: bool = True) -> None:
    for name in names:
        bench.step(SubscriptionWanted(SubscriptionState(name, "t", bookmark="0", paused=paused)))


def asked(effects: list[Effect]) -> list[tuple[Any, Any]]:
    """(`sub`, `o`) of each pause and resume that goes out."""
    return [(h["sub"], h["o"]) for h in frames(effects, "subscribe") if "t" not in h]


def answer_asked(bench: Bench, effects: list[Effect], **extra: Any) -> list[Effect]:
    [header] = [h for h in frames(effects, "subscribe") if "t" not in h]
    ack = {"c": "ack", "a": "processed", "cid": header["cid"], "status": "success", **extra}
    return bench.step(FrameReceived(bench.machine.connection, ack))


def test_several_are_resumed_in_one_command_and_paused_in_one() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", "b")
    accepted(bench, "a", "b")
    effects = bench.step(ResumeWanted(1, ("a", "b")))
    assert asked(effects) == [(["a", "b"], {"resume": True})]
    assert not any(isinstance(effect, PauseAnswered) for effect in effects)
    assert answer_asked(bench, effects) == [PauseAnswered(1)]
    effects = bench.step(PauseWanted(2, ("a",)))
    assert asked(effects) == [(["a"], {"pause": True})]
    refused = answer_asked(bench, effects, status="failure", reason="x", text="because")
    [answered] = refused
    assert isinstance(answered, PauseAnswered) and "because" in str(answered.error)
    assert bench.step(PauseWanted(3, ("a",))) == [PauseAnswered(3)], "it is paused already"


def test_a_group_is_resumed_anew_when_the_last_of_it_is_accepted() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", "b", "idle")
    replays(bench, "alone", paused=False)
    accepted(bench, "a", "b", "idle", "alone")
    answer_asked(bench, bench.step(ResumeWanted(1, ("a", "b"))))
    bench.lose()
    headers = {h["sub"]: h for h in frames(bench.log_on("A"), "subscribe")}
    assert {name for name, h in headers.items() if h.get("o", {}).get("pause")} == {
        "a",
        "b",
        "idle",
    }
    assert asked(accepted(bench, "b", "alone", "idle")) == []
    assert asked(accepted(bench, "a")) == [(["a", "b"], {"resume": True})]


def test_the_others_do_not_wait_for_one_that_was_refused_or_given_up() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", "b", "c")
    accepted(bench, "a", "b", "c")
    answer_asked(bench, bench.step(ResumeWanted(1, ("a", "b", "c"))))
    bench.lose()
    bench.log_on("A")
    assert asked(accepted(bench, "a")) == []
    failure = {"c": "ack", "a": "processed", "sub": "b", "status": "failure", "reason": "x"}
    assert asked(bench.step(FrameReceived(bench.machine.connection, failure))) == []
    assert asked(bench.step(SubscriptionUnwanted("c"))) == [(["a"], {"resume": True})]


def test_what_is_asked_while_nobody_is_connected_holds_from_the_next_connection_on() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", paused=False)
    replays(bench, "b")
    accepted(bench, "a", "b")
    effects = bench.step(PauseWanted(1, ("a",)))
    assert asked(effects)
    assert PauseAnswered(1) in bench.lose(), "nobody waits for an answer that cannot come"
    assert bench.step(ResumeWanted(2, ("b",))) == [PauseAnswered(2)]
    headers = {h["sub"]: h for h in frames(bench.log_on("A"), "subscribe")}
    assert headers["a"]["o"] == {"pause": True} and "o" not in headers["b"]
    # Between the subscribe and its answer: it is told once the server knows the subscription.
    assert bench.step(PauseWanted(3, ("b",))) == [PauseAnswered(3)]
    assert bench.step(ResumeWanted(4, ("a",))) == [PauseAnswered(4)]
    assert asked(accepted(bench, "b")) == [(["b"], {"pause": True})]
    assert asked(accepted(bench, "a")) == [(["a"], {"resume": True})]


def test_what_cannot_be_paused_is_said_and_nothing_changes() -> None:
    bench = Bench()
    bench.log_on()
    replays(bench, "a", paused=False)
    bench.step(SubscriptionWanted(SubscriptionState("plain", "t")))
    bench.step(
        SubscriptionWanted(SubscriptionState("live", "t", bookmark="0", options={"live": True}))
    )
    accepted(bench, "a", "plain", "live")
    for names, says in (
        (("a", "gone"), "has ended"),
        (("a", "plain"), "ordinary"),
        (("a", "live"), "live"),
    ):
        with pytest.raises(LocalProtocolError, match=says):
            bench.step(PauseWanted(1, names))
    with pytest.raises(LocalProtocolError, match="not paused"):
        bench.step(ResumeWanted(1, ("a",)))
    assert not bench.machine.subscriptions["a"].paused


# -- lives without a store -----------------------------------------------------------------------
def test_who_owns_its_store_leaves_what_it_has_not_used() -> None:
    """By the clock of its beginning, whatever that on the wall was set to meanwhile."""
    bench = Bench(owns_store=True)
    started = bench.step(StartRequested())
    assert not frames(started, "logon")
    opened = bench.step(ConnectionOpened(bench.machine.connection))
    assert frames(opened, "logon")[0]["takes_unused"] is True
    bench.answer()
    assert bench.publish() == CLOCK_US
    bench.now_s += 0.001
    effects = bench.step(ClientStopped())
    assert frames(effects, "logoff") == [{"c": "logoff", "unused": [CLOCK_US + 1, CLOCK_US + 1000]}]
    assert isinstance(effects[-1], DropStream), "behind it"


def test_it_asks_only_until_it_has_a_number() -> None:
    bench = Bench(owns_store=True)
    bench.log_on(unused=[10, 30])
    assert bench.publish() == 10
    bench.lose()
    effects = bench.step(ConnectionOpened(bench.machine.connection))
    assert "takes_unused" not in frames(effects, "logon")[0]


@pytest.mark.parametrize("how", ["failed", "not connected", "store lives on"])
def test_who_does_not_end_in_good_order_leaves_nothing(how: str) -> None:
    bench = Bench(owns_store=how != "store lives on")
    bench.log_on()
    bench.publish()
    bench.now_s += 1
    if how == "not connected":
        bench.lose()
    assert not frames(bench.step(ClientStopped(failed=how == "failed")), "logoff")
