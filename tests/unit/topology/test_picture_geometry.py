"""No arrow of a picture runs through an instance that it does not end at: measured in the SVG."""

from __future__ import annotations

import itertools
import re
import runpy
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylay.services.configuration.model import FabricSettings
from raylay.services.fabric import Fabric
from raylay.services.fabric.checks.check import members_of
from raylay.services.topology import draw
from raylay.services.topology.check import CheckResult
from raylay.services.topology.members import TopologyMember
from raylay.services.topology.picture_geometry import Arrow, Box, arrow

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = ("hot_pair", "geographic", "three_regions", "hub_and_spoke", "one_way_feed", "dmz_pair")
ROUNDED = 1.0
"""Boxes of a picture are rounded to whole pixels; an arrow ends at the edge of one."""
STEPS = 500


def every_pair(regions: int, instances: int) -> FabricSettings:
    """Each instance linked to each other one, within a region and across."""
    fabric = Fabric("f")
    for number in range(1, regions + 1):
        fabric.region(f"region-{number}", instances=instances)
    return (fabric if regions == 1 else fabric.connect_regions("async")).settings()


def hub(spokes: int, instances: int) -> FabricSettings:
    """One region that sends to all others."""
    fabric = Fabric("f").region("hub", instances=2)
    for number in range(1, spokes + 1):
        fabric.region(f"spoke-{number}", instances=instances)
        to = [f"spoke-{number}-{each}" for each in range(1, instances + 1)]
        for source in ("hub-1", "hub-2"):
            fabric.destination(source, to, pass_through=".*")
    return fabric.settings()


def fabrics() -> Iterator[tuple[str, FabricSettings]]:
    for example in EXAMPLES:
        script = runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="declared")
        yield example, script["declare"]().declared
    for regions, most in ((1, 6), (2, 5), (3, 4), (4, 3), (5, 3), (6, 3)):
        for instances in range(1, most + 1):
            yield f"{regions} regions of {instances}", every_pair(regions, instances)
    for spokes, instances in itertools.product((3, 5, 8), (1, 2, 3)):
        yield f"{spokes} spokes of {instances}", hub(spokes, instances)


def point(path: list[float], t: float) -> tuple[float, float]:
    sx, sy, x, y, ex, ey = path
    a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
    return a * sx + b * x + c * ex, a * sy + b * y + c * ey


@pytest.mark.parametrize(
    ("name", "settings"), [pytest.param(*each, id=each[0]) for each in fabrics()]
)
def test_no_arrow_runs_through_an_instance(name: str, settings: FabricSettings) -> None:
    members = members_of(settings)
    root = ElementTree.fromstring(draw.svg(CheckResult(tuple(members), []), name))
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("class") != "site"
    ]
    assert len(boxes) == len(members)
    drawn = [path for path in root.iter(f"{SVG}path") if "class" in path.attrib]
    assert len(drawn) == sum(
        len(each.addresses) for member in members for each in member.destinations
    )
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for path in drawn:
        numbers = [float(each) for each in re.findall(r"-?[\d.]+", path.attrib["d"])]
        for step in range(STEPS + 1):
            x, y = point(numbers, step / STEPS)
            assert left < x < left + width and top < y < top + height, "it leaves the picture"
            for bx, by, bw, bh in boxes:
                inside = min(x - bx, bx + bw - x, y - by, by + bh - y)
                assert inside < ROUNDED, (path.attrib["d"], (bx, by))


@pytest.mark.parametrize("count", range(1, 12))
def test_no_two_instances_lie_upon_one_another(count: int) -> None:
    places = draw.layout(
        [TopologyMember(f"i{each}", "G", ()) for each in range(count)]
    ).places.values()
    for one, other in itertools.combinations(places, 2):
        apart = abs(one.x - other.x) >= one.width or abs(one.y - other.y) >= one.height
        assert apart, (one, other)


# -- one arrow -----------------------------------------------------------------------------------
LEFT, RIGHT = Box(0, 0, 100, 30), Box(400, 0, 100, 30)


def test_a_clear_way_is_a_slight_bow_and_the_way_back_lies_apart() -> None:
    there, back = arrow(LEFT, RIGHT, []), arrow(RIGHT, LEFT, [])
    assert there.blocked == back.blocked == 0
    assert there.at(0.5)[1] > 15 > back.at(0.5)[1]
    assert abs(there.at(0.5)[1] - 15) < 30
    assert there.start[0] > 50 and there.end[0] < 450, "from edge to edge"


def test_what_is_in_the_way_is_gone_round() -> None:
    wall = Box(240, -60, 20, 150)
    there = arrow(LEFT, RIGHT, [wall])
    assert there.blocked == 0 and not there.meets(wall)
    assert arrow(LEFT, RIGHT, []).meets(wall)


def test_a_text_is_left_free_where_that_is_possible_and_a_box_always_counts_more() -> None:
    text = Box(240, 15, 20, 40)
    assert arrow(LEFT, RIGHT, []).meets(text)
    assert not arrow(LEFT, RIGHT, [], [text]).meets(text)
    everywhere = Box(150, -4_000, 200, 8_000)
    over = arrow(LEFT, RIGHT, [Box(240, -60, 20, 150)], [everywhere])
    assert over.blocked == 0 and over.meets(everywhere)


def test_where_there_is_no_way_it_is_said() -> None:
    assert arrow(LEFT, RIGHT, [Box(240, -4_000, 20, 8_000)]).blocked == 1


@pytest.mark.parametrize(
    ("box", "meets"),
    [
        (Box(40, 40, 20, 20), True),
        (Box(49.99, 49.99, 0.02, 0.02), True),  # between two points of any sampling
        (Box(49, 51, 20, 20), False),  # touched at most
        (Box(0, 60, 40, 40), False),
        (Box(-5, -5, 200, 200), True),
    ],
)
def test_a_meeting_is_found_however_short(box: Box, meets: bool) -> None:
    curve = Arrow((0, 0), (50, 100), (100, 0))
    assert curve.meets(box) is meets
