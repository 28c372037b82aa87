"""The outbox of a client by itself: numbers, batches, acks. With its connections:
test_client_machine.py."""

from __future__ import annotations

from typing import Any

import pytest
from unit.fake_stores import DictPublishStore

from raylay.services.client.events import Effect, Settled, Tell
from raylay.services.client.outbox import Outbox, check_values
from raylay.services.errors import ConnectionLost, LocalProtocolError, SequenceConflict
from raylay.services.messages.records import KEY_BYTES_MAX, SEQUENCE_MAX, sequences_of

CLOCK_US = 5_000


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
    while (batch := outbox.next_batch(1 << 20)) is not None:
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
