"""The picture has every instance and every link, marks what is wrong, and is the same each time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from raylay.services.replication.link.routing import DestinationRoute
from raylay.services.topology import draw
from raylay.services.topology.check import CheckResult, check
from raylay.services.topology.members import ALL, TopologyMember

SVG = "{http://www.w3.org/2000/svg}"


def pair(*, sync: bool = True, name: str = "a<b>") -> CheckResult:
    return check(
        [
            TopologyMember(
                name, "G&H", (DestinationRoute("x", "G&H", sync, ALL, ".*", ("c", "d")),)
            ),
            TopologyMember("c", "G&H", (DestinationRoute("y", "G&H", True, ALL, ".*", (name,)),)),
            TopologyMember(
                "d", "far", (DestinationRoute("z", "G&H", True, ALL, None, ("elsewhere:1",)),)
            ),
        ]
    )


def test_every_instance_and_every_link_is_drawn() -> None:
    root = ElementTree.fromstring(draw.svg(pair(), "f"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["G&H", "far", "a<b>", "c", "d"]
    paths = [path for path in root.iter(f"{SVG}path") if "class" in path.attrib]
    assert [path.get("class") for path in paths] == ["link", "link further", "link"]
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert "a<b> to x, sync, PassThrough .*" in titles
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (width, height) == (float(root.attrib["width"]), float(root.attrib["height"]))
    for box in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert left <= x <= x + w <= left + width
        assert top <= y <= y + h <= top + height


def test_sync_and_async_and_what_is_wrong_look_different() -> None:
    fine = check(
        [
            TopologyMember("a", "G", (DestinationRoute("b", "G", True, ALL, ".*", ("b",)),)),
            TopologyMember("b", "G", (DestinationRoute("a", "G", True, ALL, ".*", ("a",)),)),
        ]
    )
    wrong = check(
        [
            TopologyMember("a", "G", (DestinationRoute("b", "G", False, ALL, ".*", ("b",)),)),
            TopologyMember("b", "G", (DestinationRoute("a", "G", True, ALL, ".*", ("a",)),)),
        ]
    )
    assert fine.findings == []
    assert draw.COLOURS["error"] not in draw.svg(fine, "f").partition("</defs>")[2]
    drawn = draw.svg(wrong, "f").partition("</defs>")[2]
    assert 'class="link async"' in drawn
    assert f'stroke="{draw.COLOURS["error"]}"' in drawn


def test_a_page_has_the_findings_and_escapes_names() -> None:
    page = draw.html(pair(name="<script>"), "f")
    assert "<script>" not in page
    assert "<td>error</td>" in page
    assert draw.html(pair(name="a\x1b\u202e"), "f\x9b").replace("\n", "").isprintable()
    assert draw.html(pair(), "f") == draw.html(pair(), "f")
    assert "Nothing is wrong." in draw.html(CheckResult(()), "empty")
