"""The outbox of a client by itself: numbers, batches, acks. With its connections:
test_client_machine.py."""

from __future__ import annotations

from typing import Any

import pytest
from unit.fake_stores import DictPublishStore

from raylay.services.client.events import Effect, SendPublishes, Settled, Tell
from raylay.services.client.outbox import (
    CLOCK_AHEAD_US_MAX,
    CROWD_PART,
    SMALL_FRAME_BYTES,
    SMALL_FRAME_MESSAGES,
    UNANSWERED_MESSAGES_MAX,
    Outbox,
    check_values,
)
from raylay.services.errors import ConnectionLost, LocalProtocolError, SequenceConflict
from raylay.services.messages.records import (
    KEY_BYTES_MAX,
    SEQUENCE_MAX,
    Command,
    iterate_records,
    sequences_of,
)

CLOCK_US = 5_000
FRAME_BYTES = 1 << 20


def logged_on(store: DictPublishStore | None = None, **header: Any) -> Outbox:
    """One whose server takes what is published."""
    outbox = Outbox("desk", store if store is not None else DictPublishStore(), CLOCK_US)
    outbox._take_durable(header)
    outbox._settle([])
    outbox.sending = True
    return outbox


def publish(outbox: Outbox, messages: int = 1) -> list[int]:
    found = [outbox.publish("t", b"x", "json", 1) for _ in range(messages)]
    outbox.check_invariants()
    return found


def sent(outbox: Outbox) -> list[int]:
    """The sequences of what is sent now."""
    found: list[int] = []
    while (batch := outbox.next_batch(FRAME_BYTES)) is not None:
        found += sequences_of(b"".join(batch.records))
        outbox.check_invariants()
    return found


def told(outbox: Outbox, **header: Any) -> list[Effect]:
    effects: list[Effect] = []
    outbox._persisted(header, effects)
    outbox.check_invariants()
    return effects


def test_numbers_begin_behind_whatever_was_seen() -> None:
    assert publish(logged_on()) == [CLOCK_US]
    assert publish(logged_on(highest=9_000)) == [9_001]
    store = DictPublishStore()
    store.advance(70)
    assert publish(logged_on(store)) == [71], "a store that knows its past needs no clock"
    with pytest.raises(ConnectionLost, match="connect before"):
        publish(Outbox("desk", DictPublishStore(), CLOCK_US))
    last = logged_on(highest=SEQUENCE_MAX)
    with pytest.raises(LocalProtocolError, match="no sequence left"):
        publish(last)


def test_what_is_held_and_not_durable_is_sent_before_what_is_new_each_once() -> None:
    store = DictPublishStore()
    first = publish(logged_on(store), 4)[0]
    again = logged_on(store, durable=[[first + 1, first + 2]])
    assert publish(again, 2) == [first + 4, first + 5]
    assert sent(again) == [first, first + 3, first + 4, first + 5]
    again._stop_sending()
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
    assert isinstance(tell, Tell) and settled == Settled(first)
    (failed,) = outbox.failures
    assert tell.event is failed and failed.sequence == first and failed.record
    assert isinstance(failed.error, SequenceConflict) and str(failed.error) == "held"


@pytest.mark.parametrize(
    "values", [(-1, b"", b""), (0, bytes(KEY_BYTES_MAX + 1), b""), (0, b"", bytes(70_000))]
)
def test_values_that_have_no_place_in_a_record(values: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        check_values(*values)


def crowded(**options: Any) -> tuple[Outbox, int]:
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
            outbox._stop_sending()
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
    outbox._stop_sending()
    assert not outbox.gathering
    outbox._take_durable({"durable": [[first, first]]})
    outbox.sending = True
    new = publish(outbox)
    held = list(range(first + 1, first + UNANSWERED_MESSAGES_MAX + 2))
    assert sent(outbox) == [*held, *new], "each once, in order, and the new one at once"


def test_where_answers_are_kept_back_nothing_waits_for_them() -> None:
    outbox = Outbox("desk", DictPublishStore(), CLOCK_US, gathers=False)
    outbox._take_durable({})
    outbox._settle([])
    outbox.sending = True
    for _ in range(3 * UNANSWERED_MESSAGES_MAX):
        lone = publish(outbox)
        assert sent(outbox) == lone


def stamps(outbox: Outbox) -> list[int]:
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


def batches(outbox: Outbox) -> list[tuple[list[int], str | None]]:
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
    outbox._stop_sending()
    outbox._take_durable({"instance": "b"})
    outbox.sending = True
    assert batches(outbox) == [(first, "a"), (unsent, None)]
    fresh = publish(outbox)
    assert batches(outbox) == [(fresh, None)]
    outbox._stop_sending()
    outbox._take_durable({"instance": "c"})
    outbox.sending = True
    assert batches(outbox) == [(first, "a"), (unsent + fresh, "b")]


def test_what_an_earlier_life_sent_is_of_an_unknown_instance() -> None:
    store = DictPublishStore()
    publish(logged_on(store, highest=0, instance="a"), 2)
    outbox = logged_on(store, highest=0, instance="b")
    (found,) = batches(outbox)
    assert found[1] == "" and len(found[0]) == 2
