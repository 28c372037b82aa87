"""Windows into ordered rows (services/subscriptions/windows.py), compared with slices of a sort."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylay.services.subscriptions.windows import OrderedRows, RowWindow, WindowChange

pytestmark = pytest.mark.covers("Views", "windows into ordered rows")

CHANGES = st.lists(
    st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 5), st.integers(0, 5))),
    max_size=30,
)
WINDOWS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4)


def sliced(rows: dict[bytes, int], window: RowWindow) -> list[bytes]:
    order = sorted(rows, key=lambda key: (rows[key], key))
    return order[window.skip : window.skip + window.most]


@settings(max_examples=400)
@given(CHANGES, WINDOWS, st.integers(0, 20))
def test_who_applies_the_changes_holds_the_slice_of_a_sort(
    changes: list[tuple[int, int | None]], windows: list[tuple[int, int]], opened_after: int
) -> None:
    rows = OrderedRows()
    values: dict[bytes, int] = {}
    contents: dict[bytes, int] = {}
    """A row has another content with each change, also where it keeps its place."""
    held: dict[RowWindow, dict[bytes, int]] = {}
    for number, (row, value) in enumerate(changes):
        if number == opened_after:
            for skip, most in windows:
                window = rows.open(skip, most)
                held[window] = {key: contents[key] for key in sliced(values, window)}
        key = b"%d" % row
        if value is None:
            values.pop(key, None)
            found = rows.remove(key)
        else:
            values[key], contents[key] = value, number
            found = rows.put(key, (value, key))
        assert len({id(each.window) for each in found}) == len(found)
        for each in found:
            apply(held[each.window], each, contents)
        for window, shown in held.items():
            expected = sliced(values, window)
            assert shown == {key: contents[key] for key in expected}
            assert rows.keys(window) == expected
            assert window.count == len(expected)


def apply(shown: dict[bytes, int], change: WindowChange, contents: dict[bytes, int]) -> None:
    """Applies a change as a client does: it is told nothing that it does not need."""
    if change.left is not None:
        del shown[change.left]
    if change.came is not None:
        assert change.came not in shown
        shown[change.came] = contents[change.came]
    if change.updated is not None:
        assert change.updated in shown and change.updated not in (change.came, change.left)
        shown[change.updated] = contents[change.updated]
    assert change[1:] != (None, None, None)


def test_many_rows_and_windows() -> None:
    rng, rows = random.Random(5), OrderedRows()
    values: dict[bytes, int] = {}
    for number in range(3_000):
        key = b"%d" % number
        values[key] = rng.randrange(10_000)
        rows.put(key, (values[key], key))
    windows = [rows.open(skip, 50) for skip in range(0, 3_000, 300)]
    for _ in range(300):
        key = b"%d" % rng.randrange(3_000)
        values[key] = rng.randrange(10_000)
        rows.put(key, (values[key], key))
    for each in windows:
        assert rows.keys(each) == sliced(values, each)
        assert each.first is not None and each.first[-1] == sliced(values, each)[0]


def test_a_closed_window_is_not_told_of_changes() -> None:
    rows = OrderedRows()
    window = rows.open(0, 5)
    assert rows.put(b"a", (1, b"a")) == [WindowChange(window, b"a", None)]
    rows.close(window)
    assert rows.put(b"b", (0, b"b")) == []
    assert rows.remove(b"nobody") == []
