"""Windows into the ordered rows of a topic: what a paginated subscription shows (behaviour.md 4.4).

All windows of one filter and one order share the order of its rows. A window knows the first and
the last row that it shows, not their numbers: a row that comes, goes or moves before a window
pushes one neighbour in and one out, and the rows between stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raylay.services.messages.sorted_blocks import SortedBlocks

RowPlace = tuple[Any, ...]
"""Sort key of a row. Its last part is the row's key, so that no two rows have one place."""


class RowWindow:
    """A part of the ordered rows. It belongs to its `OrderedRows`, which moves it.

    Attributes:
        skip: number of rows before the window.
        most: largest number of rows in it, at least 1.
        first, last: places of the first and the last row in it; None: it is empty.
        count: number of rows in it.
    """

    __slots__ = ("count", "first", "last", "most", "skip")

    def __init__(self, skip: int, most: int) -> None:
        self.skip = skip
        self.most = most
        self.first: RowPlace | None = None
        self.last: RowPlace | None = None
        self.count = 0

    def has(self, place: RowPlace) -> bool:
        return self.first is not None and self.first <= place <= self.last  # type: ignore[operator]


class WindowChange(NamedTuple):
    """The rows that one change of a row brings into a window and takes out of it.

    Attributes:
        came: key of a row that is shown from now on; None: none came.
        left: key of a row that is not shown any more; None: none left.
        updated: key of the row that has changed and stays in the window; None: it is not in it.
    """

    window: RowWindow
    came: bytes | None
    left: bytes | None
    updated: bytes | None = None


class OrderedRows:
    """The rows of one topic that pass one filter, in one order, and the windows into them.

    Owner: the subscriptions of an instance. Lifecycle: as long as it has a window.

    Attributes:
        places: the place of each row, by its key.
        windows: the windows; others than those of `open` are not moved.
    """

    def __init__(self) -> None:
        self.places: dict[bytes, RowPlace] = {}
        self.windows: dict[RowWindow, None] = {}
        self._order = SortedBlocks()

    # -- windows -------------------------------------------------------------------------------
    def open(self, skip: int, most: int) -> RowWindow:
        """Returns a new window, which follows the changes from now on."""
        window = RowWindow(skip, most)
        rows = self._order.slice(skip, most)
        if rows:
            window.first, window.last, window.count = rows[0], rows[-1], len(rows)
        self.windows[window] = None
        return window

    def close(self, window: RowWindow) -> None:
        """Ends a window."""
        self.windows.pop(window, None)

    def keys(self, window: RowWindow) -> list[bytes]:
        """Returns the keys of the rows in a window, in order."""
        return [place[-1] for place in self._order.slice(window.skip, window.most)]

    # -- rows ----------------------------------------------------------------------------------
    def put(self, key: bytes, place: RowPlace) -> list[WindowChange]:
        """Takes a row that is new or has changed, and returns the windows that show a difference.

        Args:
            place: the row's place from now on, which ends with the key.
        """
        before = self.places.get(key)
        if before == place:
            return [WindowChange(each, None, None, key) for each in self.windows if each.has(place)]
        self.places[key] = place
        left = {} if before is None else self._taken_out(before)
        self._order.add(place)
        found = []
        for window in self.windows:
            out = left.get(window)
            came_in = self._inserted(window, place)
            if out is None and came_in is None:
                continue
            change = _together(window, key, out, came_in)
            if change is not None:
                found.append(change)
        return found

    def remove(self, key: bytes) -> list[WindowChange]:
        """Takes out a row that is gone, and returns the windows that show a difference."""
        place = self.places.pop(key, None)
        if place is None:
            return []
        return [
            WindowChange(window, _key(came), _key(gone))
            for window, (came, gone) in self._taken_out(place).items()
        ]

    def _taken_out(self, place: RowPlace) -> dict[RowWindow, _Exchange]:
        self._order.remove(place)
        found = {}
        for window in self.windows:
            change = self._removed(window, place)
            if change is not None:
                found[window] = change
        return found

    def _removed(self, window: RowWindow, place: RowPlace) -> _Exchange | None:
        """Moves a window after a row was taken out. Returns the places of the row that came into
        the window and of the one that left it; None: the window shows the same rows."""
        first, last = window.first, window.last
        if first is None or place > last:  # type: ignore[operator]
            return None
        came = self._order.behind(last)
        gone = place if place >= first else first
        if gone == first:
            window.first = self._order.behind(gone)
        if came is not None:
            window.last = came
        else:
            window.count -= 1
            if not window.count:
                window.first = window.last = None
            elif gone == last:
                window.last = self._order.before(gone)
        return came, gone

    def _inserted(self, window: RowWindow, place: RowPlace) -> _Exchange | None:
        """Moves a window after a row was put in. Returns the places of the row that came into the
        window and of the one that left it; None: the window shows the same rows."""
        first, last = window.first, window.last
        if first is None:
            if len(self.places) <= window.skip:
                return None
            window.first = window.last = self._order.last()
            window.count = 1
            return window.last, None
        if place > last:  # type: ignore[operator]
            if window.count == window.most:
                return None
            window.last = place
            window.count += 1
            return place, None
        came = place
        if place < first:
            came = window.first = self._order.before(first)
        if window.count < window.most:
            window.count += 1
            return came, None
        window.last = self._order.before(last)
        return came, last


_Exchange = tuple["RowPlace | None", "RowPlace | None"]
"""Places of the row that came into a window, and of the one that left it."""


def _together(
    window: RowWindow, key: bytes, out: _Exchange | None, came_in: _Exchange | None
) -> WindowChange | None:
    """Returns the change of a window by a row that moves: it was taken out, and put in at another
    place. None: the window shows no difference."""
    came = [_key(each[0]) for each in (out, came_in) if each is not None]
    left = [_key(each[1]) for each in (out, came_in) if each is not None]
    updated = key if key in came and key in left else None
    both = set(came) & set(left)
    shown = [each for each in came if each is not None and each not in both]
    hidden = [each for each in left if each is not None and each not in both]
    if not shown and not hidden and updated is None:
        return None
    return WindowChange(window, shown[0] if shown else None, hidden[0] if hidden else None, updated)


def _key(place: RowPlace | None) -> bytes | None:
    return None if place is None else place[-1]
