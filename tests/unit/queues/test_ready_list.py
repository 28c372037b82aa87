"""Messages in their order."""

from __future__ import annotations

import random

import pytest
from support.queues_given import message

from raylay.services.queues.delivery import ready_list
from raylay.services.queues.delivery.ready_list import ReadyList
from raylay.services.queues.entry import QueueEntry


@pytest.mark.parametrize("block", [1, 2, 5, 512])
def test_whatever_is_added_and_removed_the_order_holds(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_list, "BLOCK", block)
    chance = random.Random(block)
    there: dict[int, QueueEntry] = {}
    messages: ReadyList[QueueEntry] = ReadyList()
    for _ in range(600):
        txid = chance.randint(1, 80)
        if txid in there:
            messages.remove(there.pop(txid))
        else:
            there[txid] = message(txid)
            messages.add(there[txid])
        wanted = sorted(there)
        after = chance.randint(0, 81)
        assert [each.txid for each in messages.after(after)] == [t for t in wanted if t > after]
        assert len(messages) == len(wanted)
        assert messages.get(txid) is there.get(txid)
        assert messages.get(after) is there.get(after)
        first, last = messages.first(), messages.last()
        assert (first and first.txid) == min(wanted, default=None)
        assert (last and last.txid) == max(wanted, default=None)


@pytest.mark.parametrize("block", [1, 3, 512])
def test_several_are_added_at_the_end_and_taken_from_the_front(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_list, "BLOCK", block)
    chance = random.Random(block)
    there: list[QueueEntry] = []
    messages: ReadyList[QueueEntry] = ReadyList()
    txid = 0
    for _ in range(200):
        several = [message(txid + at) for at in range(1, chance.randint(1, 9))]
        txid += len(several)
        messages.extend(several)
        there += several
        most = chance.randint(0, 9)
        assert messages.take(most) == there[:most]
        del there[:most]
        if there and chance.random() < 0.5:
            # One in the midst, as who acknowledges it from elsewhere does.
            messages.remove(there.pop(chance.randrange(len(there))))
        assert list(messages.after(-1)) == there and len(messages) == len(there)
        assert messages.last() is (there[-1] if there else None)


def test_what_is_not_there_is_not_taken_for_another() -> None:
    messages: ReadyList[QueueEntry] = ReadyList()
    messages.add(message(1))
    with pytest.raises(AssertionError, match="is not where its order says"):
        messages.remove(message(1))
