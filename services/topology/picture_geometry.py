"""The paths of arrows between boxes: curves that run through no box except the two that they
join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CLEARANCE = 3.0
"""Least distance in pixels between an arrow and a box that it does not end at."""
BOWS = (0.14, 0.02, 0.25, 0.4, 0.6, 0.8, 1.1, 1.5, 2.0)
"""Distances of a control point from the straight line, relative to the arrow's length."""
ALONG = (0.5, 0.25, 0.75, 0.0, 1.0, -0.3, 1.3)
"""Positions of the control point along the straight line."""
FIRST_BOW_MAX = 40.0
"""Most pixels of the bow that is tried first."""

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle, from its upper left corner, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2

    def wider(self, by: float) -> Box:
        return Box(self.x - by, self.y - by, self.width + 2 * by, self.height + 2 * by)

    def holds(self, point: Point) -> bool:
        return 0 < point[0] - self.x < self.width and 0 < point[1] - self.y < self.height

    def edge(self, towards: Point) -> Point:
        """Returns the point at which a line from the middle of the box leaves it."""
        x, y = self.middle
        dx, dy = towards[0] - x, towards[1] - y
        scale = min(
            self.width / 2 / abs(dx) if dx else math.inf,
            self.height / 2 / abs(dy) if dy else math.inf,
            1.0,
        )
        return x + dx * scale, y + dy * scale


class Arrow(NamedTuple):
    """An arrow as a quadratic curve.

    Attributes:
        blocked: the number of boxes that it runs through and does not end at.
    """

    start: Point
    control: Point
    end: Point
    blocked: int = 0

    def at(self, t: float) -> Point:
        """Returns the point at 0 (start) to 1 (end) of the curve."""
        a, b, c = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
        return (
            a * self.start[0] + b * self.control[0] + c * self.end[0],
            a * self.start[1] + b * self.control[1] + c * self.end[1],
        )

    def points(self, count: int = 16) -> list[Point]:
        """Returns `count` + 1 points from the start to the end."""
        return [self.at(number / count) for number in range(count + 1)]

    def path(self) -> str:
        (sx, sy), (x, y), (ex, ey) = self.start, self.control, self.end
        return f"M{sx:.1f} {sy:.1f}Q{x:.1f} {y:.1f} {ex:.1f} {ey:.1f}"

    def extent(self) -> Box:
        xs = (self.start[0], self.control[0], self.end[0])
        ys = (self.start[1], self.control[1], self.end[1])
        return Box(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))

    def meets(self, box: Box) -> bool:
        """Returns whether the arrow runs through a box. The result is exact: between two crossings
        of the lines of the box's edges the curve stays inside or outside."""
        around = self.extent()
        if (
            box.x >= around.x + around.width
            or box.x + box.width <= around.x
            or box.y >= around.y + around.height
            or box.y + box.height <= around.y
        ):
            return False
        cuts = [0.0, 1.0]
        for axis, low, size in ((0, box.x, box.width), (1, box.y, box.height)):
            points = self.start[axis], self.control[axis], self.end[axis]
            for line in (low, low + size):
                cuts += _times(*points, line)
        cuts.sort()
        return any(
            box.holds(self.at((before + after) / 2)) for before, after in itertools.pairwise(cuts)
        )


def _times(start: float, control: float, end: float, line: float) -> Iterator[float]:
    """Yields the parameters, between 0 and 1, at which a curve crosses a line along one axis."""
    a, b, c = start - 2 * control + end, 2 * (control - start), start - line
    if abs(a) < 1e-9:
        found = [-c / b] if abs(b) > 1e-9 else []
    else:
        root = b * b - 4 * a * c
        found = [] if root < 0 else [(-b + sign * math.sqrt(root)) / (2 * a) for sign in (-1, 1)]
    return (t for t in found if 0 < t < 1)


def arrow(start: Box, end: Box, others: Iterable[Box], shy: Sequence[Box] = ()) -> Arrow:
    """Returns the first of some curves that runs through no other box, nor over `shy`. Curves to
    the left are tried first, so that the two directions of a pair lie apart.

    Args:
        others: boxes that the arrow may not run through; neither end is among them.
        shy: boxes that it should not run over, such as a text.
    """
    hard = [box.wider(CLEARANCE) for box in others]
    # Its own two it only touches: a bow that comes back into one looks as if it ended elsewhere.
    hard += [start.wider(-1.0), end.wider(-1.0)]
    best: Arrow | None = None
    best_cost = (0, 0)
    for control in _controls(start.middle, end.middle):
        made = Arrow(start.edge(control), control, end.edge(control))
        blocked = sum(map(made.meets, hard))
        if best is not None and blocked > best_cost[0]:
            continue
        cost = blocked, sum(map(made.meets, shy))
        if best is None or cost < best_cost:
            best, best_cost = made._replace(blocked=blocked), cost
        if cost == (0, 0):
            break
    assert best is not None
    return best


def _controls(start: Point, end: Point) -> Iterator[Point]:
    """Yields control points of curves, the flattest first."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    for bow in BOWS:
        across = min(bow, FIRST_BOW_MAX / length) if bow == BOWS[0] else bow
        for along in ALONG[: 1 if bow < 0.2 else len(ALONG)]:
            for side in (across, -across):
                yield start[0] + dx * along - dy * side, start[1] + dy * along + dx * side
