"""services/messages/sorted_entries.py: a dict whose keys are in order."""

from __future__ import annotations

import random

import pytest

from raylay.services.messages import sorted_entries
from raylay.services.messages.sorted_entries import SortedEntries


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("leaf_max", [2, 5, 1024])
def test_it_is_a_dict_with_sorted_keys(
    seed: int, leaf_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_entries, "LEAF_KEYS_MAX", leaf_max)
    chance = random.Random(seed)
    made: SortedEntries[int] = SortedEntries()
    model: dict[bytes, int] = {}

    def key() -> bytes:
        return chance.choice((b"", b"%d" % chance.randrange(60), b"%d" % chance.randrange(600)))

    for step in range(600):
        given = key()
        if chance.random() < (0.3 if step < 400 else 0.9):
            assert made.pop(given) == model.pop(given, None)
        else:
            made[given] = model[given] = step
        start, end, most = key(), key(), chance.randrange(1, 30)
        wanted = sorted(each for each in model if start <= each < end)
        assert made.keys(start, end, most) == wanted[:most]
        assert made.last(start, end) == (wanted[-1] if wanted else None)
        assert len(made) == len(model) and dict(made.items()) == model == made.entries
        assert (given in made) == (given in model) and made.get(given) == model.get(given)
    for each, value in model.items():
        assert made[each] == value


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("added_max", [3, 100])
def test_keys_are_ordered_when_a_range_is_asked_for(
    seed: int, added_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_entries, "LEAF_KEYS_MAX", 4)
    chance = random.Random(seed)
    made: SortedEntries[int] = SortedEntries(added_max)
    model: dict[bytes, int] = {}
    for step in range(100):
        more = {b"%d" % chance.randrange(300): step for _ in range(chance.randrange(8))}
        if chance.random() < 0.5:
            made.update(more)
        else:
            for key, value in more.items():
                made[key] = value
        model.update(more)
        assert made.entries == model
        for key in chance.sample(sorted(model), len(model) // 10):
            assert made.pop(key) == model.pop(key)
        if chance.random() < 0.3:
            assert list(made) == sorted(model)
            assert made.keys(b"1", b"2", 99) == [
                each for each in sorted(model) if b"1" <= each < b"2"
            ]
