"""The outbox of a client by itself: numbers, batches, acks. With its connections:
test_machine.py."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_stores import DictPublishStore

from raylay.services.client.events import Effect, Notify, SendPublishes, Settled
from raylay.services.client.publishing.outbox import (
    CLOCK_AHEAD_US_MAX,
    CROWD_PART,
    SMALL_FRAME_BYTES,
    SMALL_FRAME_MESSAGES,
    UNANSWERED_MESSAGES_MAX,
    PublishOutbox,
    check_values,
)
from raylay.services.errors import (
    ConnectionLost,
    LocalProtocolError,
    PublishStoreFull,
    SequenceConflict,
)
from raylay.services.messages.records import (
    KEY_BYTES_MAX,
    SEQUENCE_MAX,
    Command,
    iterate_records,
    sequences_of,
)

pytestmark = [
    pytest.mark.covers("Clients and protocol", "lives without a publish store"),
    pytest.mark.covers("SOW", "deltas and deletes of a client are kept and sent again"),
]

CLOCK_US = 5_000
FRAME_BYTES = 1 << 20


def logged_on(store: DictPublishStore | None = None, **header: Any) -> PublishOutbox:
    """One whose server takes what is published."""
    outbox = PublishOutbox("desk", store if store is not None else DictPublishStore(), CLOCK_US)
    outbox.take_durable(header)
    outbox.settle([])
    outbox.sending = True
    return outbox


def publish(outbox: PublishOutbox, messages: int = 1) -> list[int]:
    found = [outbox.publish("t", b"x", "json", 1) for _ in range(messages)]
    outbox.check_invariants()
    return found


def sent(outbox: PublishOutbox) -> list[int]:
    """The sequences of what is sent now."""
    found: list[int] = []
    while (batch := outbox.next_batch(FRAME_BYTES)) is not None:
        found += sequences_of(b"".join(batch.records))
        outbox.check_invariants()
    return found


def told(outbox: PublishOutbox, **header: Any) -> list[Effect]:
    effects: list[Effect] = []
    outbox.persisted(header, effects)
    outbox.check_invariants()
    return effects


def test_numbers_begin_behind_whatever_was_seen() -> None:
    assert publish(logged_on()) == [CLOCK_US]
    assert publish(logged_on(highest=9_000)) == [9_001]
    store = DictPublishStore()
    store.advance(70)
    assert publish(logged_on(store)) == [71], "a store that knows its past needs no clock"
    with pytest.raises(ConnectionLost, match="connect before"):
        publish(PublishOutbox("desk", DictPublishStore(), CLOCK_US))
    last = logged_on(highest=SEQUENCE_MAX)
    with pytest.raises(LocalProtocolError, match="no sequence left"):
        publish(last)


def test_what_is_held_and_not_durable_is_sent_before_what_is_new_each_once() -> None:
    store = DictPublishStore()
    first = publish(logged_on(store), 4)[0]
    again = logged_on(store, durable=[[first + 1, first + 2]])
    assert publish(again, 2) == [first + 4, first + 5]
    assert sent(again) == [first, first + 3, first + 4, first + 5]
    again.stop_sending()
    assert again.next_batch(1 << 20) is None and not again.unsent


def test_an_ack_never_frees_what_was_not_sent_here() -> None:
    store = DictPublishStore()
    outbox = logged_on(store)
    first = publish(outbox, 3)[0]
    assert not told(outbox, s=first + 2) and store.messages == 3
    sent(outbox)
    assert told(outbox, s=first + 1, unjournaled=2) == [Settled(first + 1)]
    assert (store.messages, outbox.unjournaled, outbox.settled_upto) == (1, 2, first + 1)


def test_a_refusal_is_told_with_its_record_and_leaves_the_store() -> None:
    outbox = logged_on()
    first = publish(outbox, 2)[0]
    sent(outbox)
    refusal = {"status": "failure", "reason": "sequence_conflict", "text": "held"}
    tell, settled = told(outbox, s=first, **refusal)
    assert isinstance(tell, Notify) and settled == Settled(first)
    (failed,) = outbox.failures
    assert tell.event is failed and failed.sequence == first and failed.record
    assert isinstance(failed.error, SequenceConflict) and str(failed.error) == "held"


@pytest.mark.parametrize(
    "values", [(-1, b"", b""), (0, bytes(KEY_BYTES_MAX + 1), b""), (0, b"", bytes(70_000))]
)
def test_values_that_have_no_place_in_a_record(values: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        check_values(*values)


@pytest.mark.parametrize("command", [99, -1, 4, 5, 7, 256, 1 << 70])
def test_a_command_that_no_publisher_may_give_is_refused_before_anything_is_kept(
    command: int,
) -> None:
    outbox = logged_on()
    (first,) = publish(outbox)
    with pytest.raises(LocalProtocolError, match=r"command is -?\d+: give 0 .* 2 \(delete\), 3"):
        outbox.publish("t", b"x", "json", 1, command=command)
    assert (outbox.store.messages, outbox.next_sequence) == (1, first + 1)
    assert sent(outbox) == [first]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"command": "x"}, "command is of type str"),
        ({"command": True}, "command is of type bool"),
        ({"command": None}, "command is of type NoneType"),
        ({"correlation": None}, "correlation is of type NoneType"),
        ({"key": ""}, "key is of type str"),
        ({"expiration_s": None}, "expiration_s is of type NoneType"),
    ],
)
def test_a_value_of_another_type_is_refused_also_where_it_counts_as_false(
    values: dict[str, Any], words: str
) -> None:
    outbox = logged_on()
    with pytest.raises(TypeError, match=words):
        outbox.publish("t", b"x", "json", 1, **values)
    assert not outbox.store.messages and outbox.next_sequence == CLOCK_US


@pytest.mark.parametrize("names", [("\ud800", "json"), ("t", "\udfff")])
def test_a_name_without_utf_8_is_refused(names: tuple[str, str]) -> None:
    outbox = logged_on()
    with pytest.raises(LocalProtocolError, match=r"UTF-8.*surrogate"):
        outbox.publish(names[0], b"x", names[1], 1)


def crowded(**options: Any) -> tuple[PublishOutbox, int]:
    """One with as many unanswered messages, each in a frame of its own, as it may have; and the
    first of them."""
    outbox = logged_on(**options)
    first = outbox.next_sequence
    for sequence in range(first, first + UNANSWERED_MESSAGES_MAX):
        publish(outbox)
        assert sent(outbox) == [sequence], "a lone message goes at once"
    return outbox, first


def test_behind_unanswered_messages_more_is_gathered_and_goes_with_an_answer() -> None:
    outbox, first = crowded()
    more = publish(outbox, 2)
    assert sent(outbox) == [] and outbox.gathering and outbox.unsent
    more += publish(outbox, 3)
    assert sent(outbox) == []
    assert told(outbox, s=first) == [Settled(first), SendPublishes()]
    assert not outbox.gathering
    assert sent(outbox) == more, "in one frame, in order"
    # They are unanswered now, all five of them.
    later = publish(outbox)
    assert sent(outbox) == []
    assert told(outbox, s=more[-2]) == [Settled(more[-2])], "of a frame that is not all answered"
    assert sent(outbox) == []
    assert told(outbox, s=more[-1]) == [Settled(more[-1]), SendPublishes()]
    assert sent(outbox) == later
    assert told(outbox, s=later[-1]) == [Settled(later[-1])], "nothing waits to be sent"


def test_who_asks_before_he_looks_what_to_send_misses_nothing_and_looks_seldom() -> None:
    """`gathers_on` says that there is nothing, and never where there is something."""
    outbox, first = crowded()
    assert not outbox.gathers_on(FRAME_BYTES), "nobody has found yet that it is to wait"
    publish(outbox)
    assert not outbox.gathers_on(FRAME_BYTES) and sent(outbox) == []
    for _ in range(SMALL_FRAME_MESSAGES - 1):
        publish(outbox)
        assert outbox.gathers_on(FRAME_BYTES) and sent(outbox) == []
    publish(outbox)
    assert not outbox.gathers_on(FRAME_BYTES), "it has become large"
    assert len(sent(outbox)) == SMALL_FRAME_MESSAGES + 1
    for ends in ("answer", "hurry", "bytes", "connection"):
        outbox, first = crowded()
        publish(outbox)
        assert sent(outbox) == [] and outbox.gathers_on(FRAME_BYTES)
        if ends == "answer":
            told(outbox, s=first)
        elif ends == "hurry":
            outbox.hurry()
        elif ends == "bytes":
            outbox.publish("t", bytes(SMALL_FRAME_BYTES), "json", 1)
        else:
            outbox.stop_sending()
        assert not outbox.gathers_on(FRAME_BYTES), ends


def test_where_frames_have_several_messages_one_is_under_way_at_a_time() -> None:
    outbox = logged_on()
    for _ in range(2 * CROWD_PART):
        several = publish(outbox, 3)
        assert sent(outbox) == several
        told(outbox, s=several[-1])
    under_way = publish(outbox, 2)
    assert sent(outbox) == under_way
    more = publish(outbox)
    assert sent(outbox) == [] and outbox.gathering
    assert told(outbox, s=under_way[0]) == [Settled(under_way[0])], "not all of it is answered"
    more += publish(outbox)
    assert sent(outbox) == []
    assert told(outbox, s=under_way[-1])[-1] == SendPublishes()
    assert sent(outbox) == more
    told(outbox, s=more[-1])
    # Somebody who publishes one by one again is not made to wait for each answer.
    for _ in range(2 * CROWD_PART):
        lone = publish(outbox)
        assert sent(outbox) == lone
        told(outbox, s=lone[-1])
    for _ in range(UNANSWERED_MESSAGES_MAX):
        lone = publish(outbox)
        assert sent(outbox) == lone
    outbox.check_invariants()


def test_one_at_a_time_gathers_nothing() -> None:
    outbox = logged_on()
    for _ in range(3 * UNANSWERED_MESSAGES_MAX):
        (sequence,) = publish(outbox)
        assert sent(outbox) == [sequence]
        assert told(outbox, s=sequence) == [Settled(sequence)]


def test_large_frames_neither_wait_nor_make_others_wait() -> None:
    outbox = logged_on()
    for _ in range(3):
        large = publish(outbox, SMALL_FRAME_MESSAGES + 1)
        assert sent(outbox) == large, "with a window of 1,000, say"
    lone = publish(outbox)
    assert sent(outbox) == lone
    outbox, _ = crowded()
    gathered = publish(outbox, SMALL_FRAME_MESSAGES)
    assert sent(outbox) == []
    gathered += publish(outbox)
    assert sent(outbox) == gathered and not outbox.gathering, "it has become large"
    outbox, _ = crowded()
    large = [outbox.publish("t", bytes(SMALL_FRAME_BYTES), "json", 1)]
    assert sent(outbox) == large, "by its bytes"


def test_what_is_hurried_waits_for_no_answer_and_what_comes_behind_it_does() -> None:
    outbox, _ = crowded()
    gathered = publish(outbox, 2)
    assert sent(outbox) == []
    outbox.hurry()
    assert not outbox.gathering and sent(outbox) == gathered
    publish(outbox)
    assert sent(outbox) == []
    # Also where nobody had asked yet what there is to send.
    outbox, _ = crowded()
    hurried = publish(outbox)
    outbox.hurry()
    hurried += publish(outbox)
    assert sent(outbox) == hurried, "with what follows, as it would go in the same frame anyway"


def test_a_refusal_is_an_answer() -> None:
    outbox, first = crowded()
    gathered = publish(outbox)
    assert sent(outbox) == []
    effects = told(outbox, s=first, status="failure", reason="not_journaled")
    assert effects[-1] == SendPublishes() and sent(outbox) == gathered


def test_a_resend_does_not_wait_and_leaves_nothing_to_wait_for() -> None:
    store = DictPublishStore()
    outbox, first = crowded(store=store)
    publish(outbox, 2)
    assert sent(outbox) == [] and outbox.gathering
    outbox.stop_sending()
    assert not outbox.gathering
    outbox.take_durable({"durable": [[first, first]]})
    outbox.sending = True
    new = publish(outbox)
    held = list(range(first + 1, first + UNANSWERED_MESSAGES_MAX + 2))
    assert sent(outbox) == [*held, *new], "each once, in order, and the new one at once"


def test_where_answers_are_kept_back_nothing_waits_for_them() -> None:
    outbox = PublishOutbox("desk", DictPublishStore(), CLOCK_US, gathers=False)
    outbox.take_durable({})
    outbox.settle([])
    outbox.sending = True
    for _ in range(3 * UNANSWERED_MESSAGES_MAX):
        lone = publish(outbox)
        assert sent(outbox) == lone


def stamps(outbox: PublishOutbox) -> list[int]:
    """The origin times of what the store holds."""
    return [
        record.origin_time_us
        for _, payload in outbox.store.replay()
        for record in iterate_records(payload)
    ]


def test_origin_times_ascend_whatever_the_clock_does() -> None:
    outbox = logged_on()
    for clock_us in (100, 100, 90, 101, 200):
        outbox.publish("t", b"x", "json", clock_us)
    assert stamps(outbox) == [100, 101, 102, 103, 200]


def test_what_is_published_is_later_than_what_was_delivered_before() -> None:
    outbox = logged_on()
    outbox.wall_us = 1_000
    outbox.heard_stamp(5_000, 0)
    outbox.heard_stamp(4_000, 0)
    outbox.publish("t", b"x", "json", 1_001)
    outbox.publish("t", b"x", "json", 9_000)
    assert stamps(outbox) == [5_001, 9_000]


def test_an_origin_time_far_ahead_of_every_clock_is_not_gone_by() -> None:
    outbox = logged_on()
    outbox.wall_us = 1_000
    outbox.heard_stamp(1_001 + CLOCK_AHEAD_US_MAX, 900)
    outbox.publish("t", b"x", "json", 1_000)
    assert stamps(outbox) == [1_000]
    # This client's clock is behind, the instance's is not.
    outbox.heard_stamp(1_001 + CLOCK_AHEAD_US_MAX, 5_000)
    outbox.publish("t", b"x", "json", 1_000)
    assert stamps(outbox)[1] == 1_002 + CLOCK_AHEAD_US_MAX


@pytest.mark.covers("Replication", "a wall clock that is set both ways")
def test_a_clock_that_was_ahead_once_is_gone_by_no_longer_than_it_is() -> None:
    """What was published meanwhile was refused on topics where the last writer counts."""
    outbox = logged_on()
    now_us, hour_us = 10 * CLOCK_AHEAD_US_MAX, 60 * CLOCK_AHEAD_US_MAX
    outbox.hear_clock(now_us, 5.0)
    outbox.heard_s = 6.0
    for wall_us in (now_us, now_us + hour_us, now_us + hour_us, now_us + 7, now_us + 8):
        outbox.publish("t", b"x", "json", wall_us)
    latest_us = now_us + 1_000_000 + CLOCK_AHEAD_US_MAX
    ahead = [now_us + hour_us, now_us + hour_us + 1]
    assert stamps(outbox) == [now_us, *ahead, latest_us, latest_us]
    outbox.heard_s = 7.0
    outbox.publish("t", b"x", "json", now_us + 1_000_000)
    assert stamps(outbox)[-1] == latest_us + 1, "it is later, and goes on"


def test_a_clock_that_is_set_back_leaves_the_order_of_what_is_published() -> None:
    outbox = logged_on()
    now_us, hour_us = 100 * CLOCK_AHEAD_US_MAX, 60 * CLOCK_AHEAD_US_MAX
    outbox.hear_clock(now_us, 5.0)
    outbox.heard_s = 5.0
    for wall_us in (now_us, now_us - hour_us, now_us - hour_us + 5):
        outbox.publish("t", b"x", "json", wall_us)
    assert stamps(outbox) == [now_us, now_us + 1, now_us + 2]


def test_a_store_whose_last_life_had_a_clock_that_was_ahead_does_not_keep_it_ahead() -> None:
    now_us, hour_us = 100 * CLOCK_AHEAD_US_MAX, 60 * CLOCK_AHEAD_US_MAX
    store = DictPublishStore()
    logged_on(store).publish("t", b"x", "json", now_us + hour_us)
    outbox = logged_on(store)
    outbox.hear_clock(now_us, 0.0)
    outbox.publish("t", b"x", "json", now_us)
    assert stamps(outbox)[-1] == now_us + CLOCK_AHEAD_US_MAX


def test_a_later_life_with_the_store_goes_on_behind_its_origin_times() -> None:
    store = DictPublishStore()
    logged_on(store).publish("t", b"x", "json", 7_000)
    logged_on(store).publish("t", b"x", "json", 50)
    outbox = logged_on(store)
    assert stamps(outbox) == [7_000, 7_001]


def test_a_record_carries_what_it_does() -> None:
    outbox = logged_on()
    outbox.publish("t", b"x", "json", 1, command=Command.DELETE)
    outbox.publish("t", b"x", "json", 1, key=b"k")
    outbox.publish("t", b"x", "json", 1)
    records = [next(iterate_records(payload, verify=True)) for _, payload in outbox.store.replay()]
    assert [(each.command, each.key) for each in records] == [(2, b""), (1, b"k"), (1, b"")]


def batches(outbox: PublishOutbox) -> list[tuple[list[int], str | None]]:
    """What is sent now, frame by frame, with whom it was sent to first."""
    found = []
    while (batch := outbox.next_batch(1 << 20)) is not None:
        found.append((sequences_of(b"".join(batch.records)), batch.resent))
    return found


def test_what_is_sent_again_says_to_whom_it_was_sent_first() -> None:
    outbox = logged_on(highest=0, instance="a")
    first = publish(outbox, 2)
    assert batches(outbox) == [(first, None)]
    unsent = publish(outbox)
    outbox.stop_sending()
    outbox.take_durable({"instance": "b"})
    outbox.sending = True
    assert batches(outbox) == [(first, "a"), (unsent, None)]
    fresh = publish(outbox)
    assert batches(outbox) == [(fresh, None)]
    outbox.stop_sending()
    outbox.take_durable({"instance": "c"})
    outbox.sending = True
    assert batches(outbox) == [(first, "a"), (unsent + fresh, "b")]


def test_what_an_earlier_life_sent_is_of_an_unknown_instance() -> None:
    store = DictPublishStore()
    publish(logged_on(store, highest=0, instance="a"), 2)
    outbox = logged_on(store, highest=0, instance="b")
    (found,) = batches(outbox)
    assert found[1] == "" and len(found[0]) == 2


# -- lives without a store -----------------------------------------------------------------------
def follower(store: DictPublishStore | None = None, **header: Any) -> PublishOutbox:
    """One that goes on with what an earlier client of its name left."""
    store = store if store is not None else DictPublishStore()
    outbox = PublishOutbox("desk", store, CLOCK_US, takes_over=True)
    outbox.take_durable(header)
    outbox.sending = True
    return outbox


def test_it_goes_on_with_what_was_left_and_leaps_when_that_is_used_up() -> None:
    outbox = follower(highest=9, unused=[10, 13])
    assert outbox.took_over and publish(outbox, 3) == [10, 11, 12]
    assert outbox.unused(CLOCK_US + 50) == (13, 13)
    assert publish(outbox, 2) == [13, CLOCK_US]
    assert sent(outbox) == [10, 11, 12, 13], "a frame of four: what follows is gathered"
    told(outbox, s=13, status="success")
    assert sent(outbox) == [CLOCK_US]
    assert publish(outbox) == [CLOCK_US + 1]
    assert outbox.unused(CLOCK_US + 50) == (CLOCK_US + 2, CLOCK_US + 50)
    assert outbox.unused(CLOCK_US + 1) is None, "it used all of its time"


def test_whose_store_knows_a_sequence_asks_for_none() -> None:
    store = DictPublishStore()
    assert PublishOutbox("desk", store, CLOCK_US, takes_over=True).asks_for_unused
    store.advance(7)
    assert not PublishOutbox("desk", store, CLOCK_US, takes_over=True).asks_for_unused


def test_what_lies_on_both_sides_of_a_leap_is_sent_apart() -> None:
    outbox = follower(highest=9, unused=[10, 11])
    publish(outbox, 4)
    batches = []
    while (batch := outbox.next_batch(FRAME_BYTES)) is not None:
        outbox.check_invariants()
        batches.append((batch.first, batch.last, len(batch.records)))
    assert batches == [(10, 11, 2), (CLOCK_US, CLOCK_US + 1, 2)]


def test_a_leap_with_nothing_to_send_before_it() -> None:
    outbox = follower(highest=9, unused=[10, 11])
    publish(outbox, 2)
    assert sent(outbox) == [10, 11]
    assert publish(outbox) == sent(outbox) == [CLOCK_US]


def test_a_leap_is_forgotten_with_the_connection() -> None:
    outbox = follower(highest=9, unused=[10, 11])
    publish(outbox, 4)
    outbox.stop_sending()
    outbox.take_durable({"highest": 9})
    outbox.sending = True
    assert sent(outbox) == [10, 11, CLOCK_US, CLOCK_US + 1]
    assert publish(outbox) == sent(outbox) == [CLOCK_US + 2]


def test_a_full_store_leaves_a_leap_for_the_next_publish() -> None:
    store = DictPublishStore(messages_max=2)
    outbox = follower(store, highest=9, unused=[10, 11])
    publish(outbox, 2)
    with pytest.raises(PublishStoreFull):
        publish(outbox)
    outbox.check_invariants()
    assert sent(outbox) == [10, 11]
    told(outbox, s=11)
    assert publish(outbox) == sent(outbox) == [CLOCK_US]


@pytest.mark.parametrize("unused", [[9, 12], [5, 4], [], "10", None])
def test_what_another_life_may_have_used_is_not_taken(unused: Any) -> None:
    outbox = follower(highest=9, unused=unused)
    assert not outbox.took_over and publish(outbox) == [CLOCK_US]


def test_at_an_instance_that_knows_more_it_goes_on_by_the_clock() -> None:
    """It was given what was left where another life was unknown."""
    outbox = follower(highest=9, unused=[10, 30])
    assert publish(outbox) == [10]
    outbox.stop_sending()
    outbox.take_durable({"highest": 20})
    outbox.sending = True
    assert publish(outbox) == [CLOCK_US] and sent(outbox) == [10, CLOCK_US]


def test_at_one_that_knows_less_it_goes_on() -> None:
    outbox = follower(highest=9, unused=[10, 30])
    publish(outbox)
    outbox.stop_sending()
    outbox.take_durable({"highest": 0})
    assert publish(outbox) == [11] and outbox.unused(CLOCK_US) == (12, 30)


def test_who_published_nothing_leaves_only_what_it_was_left() -> None:
    assert follower().unused(CLOCK_US + 50) is None
    assert follower(highest=9, unused=[10, 30]).unused(CLOCK_US + 50) == (10, 30)


def test_whose_store_lives_on_neither_takes_nor_leaves_anything() -> None:
    outbox = logged_on(highest=9, unused=[10, 30])
    assert not outbox.asks_for_unused and publish(outbox) == [CLOCK_US]
    assert outbox.unused(CLOCK_US + 50) is None


@pytest.mark.parametrize("highest", [CLOCK_US, CLOCK_US + 70])
def test_behind_a_clock_that_is_ahead_nothing_is_left(highest: int) -> None:
    """More of that client may be at other instances, above what is known at this one."""
    outbox = follower(highest=highest, unused=[highest + 1, highest + 9])
    assert publish(outbox) == [highest + 1] and not outbox.took_over
    assert outbox.unused(CLOCK_US + 500) is None


@pytest.mark.covers("Replication", "a wall clock that is set both ways")
def test_a_clock_that_is_set_back_gives_no_time_before_an_accepted_one() -> None:
    """The clock was ahead of what was last heard of the instance: with an earlier time, later
    messages would have lost to an accepted one for good."""
    outbox = logged_on()
    now_us, hour_us = 100 * CLOCK_AHEAD_US_MAX, 60 * CLOCK_AHEAD_US_MAX
    outbox.hear_clock(now_us, 5.0)
    outbox.heard_s = 5.0
    for wall_us in (now_us + hour_us, now_us + 5_000, now_us - hour_us, now_us + 9_000):
        outbox.publish("t", b"x", "json", wall_us)
    _, accepted, back, again = stamps(outbox)
    assert accepted == now_us + 5_000 + CLOCK_AHEAD_US_MAX
    assert accepted <= back <= again
