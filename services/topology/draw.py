"""Draws a fabric as a picture: sites as boxes, sync links as solid lines, async links dashed, the
further servers of a list thin. The subject of a finding is red (error) or amber (warning)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from raylay.services.messages.plain_text import plain
from raylay.services.topology.check import CheckResult, TopologyFinding
from raylay.services.topology.members import TopologyMember
from raylay.services.topology.picture_geometry import Arrow, Box, Point, arrow

NODE_WIDTH = 104
NODE_HEIGHT = 30
GAP = 26
MARGIN = 70
TITLE_HEIGHT = 12
LETTER_WIDTH = 7.5
RING_MIN = 4
"""Number of instances of a site from which on they are put in a ring: in rows, some would stand
between others."""
SPREADS = (1.0, 1.25, 1.5, 1.8, 2.2)
"""Factors by which the picture is spread, one after the other, until no arrow runs through an
instance."""
ARROWS_ROUTED_MAX = 1_500
"""Most arrows that are routed around instances; routing more takes too long, and a reader could not
follow them."""
COLOURS = {"error": "#c0392b", "warning": "#d68910", "": "#34495e"}
FACES = {"error": "#fadbd8", "warning": "#fcf3cf", "": "#eaf2f8"}

_STYLE = (
    "text{font:12px sans-serif;fill:#2c3e50}"
    ".site{fill:#fbfcfc;stroke:#aab7b8}.group{font-weight:bold}"
    ".link{fill:none;stroke-width:1.4}.async{stroke-dasharray:6 4}.further{stroke-width:.6}"
)


def svg(checked: CheckResult, name: str) -> str:
    """Returns the picture as a complete SVG. The same input gives the same picture."""
    made = layout(checked.members)
    left, top, width, height = made.extent()
    marked = _marked(checked.findings)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="{left:.0f} {top:.0f} {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>fabric {_word(name)}</title><style>{_STYLE}</style><defs>",
    ]
    for severity, colour in COLOURS.items():
        parts.append(
            f'<marker id="head{severity}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    parts.append("</defs>")
    for group, (x, y, w, h) in made.sites.items():
        parts.append(
            f'<rect class="site" x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" rx="8"/>'
            f'<text class="group" x="{x + 10:.0f}" y="{y + 17:.0f}">{_word(group)}</text>'
        )
    parts += _links(checked, made.arrows)
    for member in checked.members:
        x, y = made.places[member.name].middle
        severity = marked.get(member.name, "")
        parts.append(
            f'<g><rect x="{x - NODE_WIDTH / 2:.0f}" y="{y - NODE_HEIGHT / 2:.0f}" '
            f'width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="5" fill="{FACES[severity]}" '
            f'stroke="{COLOURS[severity]}"/><text x="{x:.0f}" y="{y + 4:.0f}" '
            f'text-anchor="middle">{_word(_short(member.name))}</text>'
            f"<title>{_word(member.name)}, group {_word(member.group)}</title></g>"
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def html(checked: CheckResult, name: str) -> str:
    """Returns a page with the picture, its legend and the findings."""
    rows = "\n".join(
        f'<tr class="{f.severity}"><td>{f.severity}</td><td>{_word(f.kind)}</td>'
        f"<td>{_word(f.topic)}</td><td>{_word(f.explanation)}</td>"
        f"<td>{_word(f.repair)}</td></tr>"
        for f in checked.findings
    )
    table = (
        "<table><tr><th></th><th>kind</th><th>topic</th><th>what is wrong</th><th>repair</th></tr>"
        f"{rows}</table>"
        if rows
        else "<p>Nothing is wrong.</p>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>fabric {_word(name)}</title><style>body{{font:14px sans-serif;margin:2em}}"
        "td,th{text-align:left;vertical-align:top;padding:3px 12px 3px 0}"
        f".error td{{color:{COLOURS['error']}}}</style></head><body>\n"
        f"<h1>fabric {_word(name)}</h1>\n{svg(checked, name)}"
        "<p>Drawn through: sync. Dashed: async. Thin: further servers of a list.</p>\n"
        f"{table}\n</body></html>\n"
    )


def _word(text: str) -> str:
    return escape(plain(text))


def _short(name: str) -> str:
    return name if len(name) <= 15 else name[:14] + "…"


def _marked(findings: Sequence[TopologyFinding]) -> dict[str, str]:
    found: dict[str, str] = {}
    for finding in findings:
        if finding.severity == "note":
            continue
        for instance in finding.instances:
            if found.get(instance) != "error":
                found[instance] = finding.severity
    return found


@dataclass(slots=True)
class Layout:
    """The layout of a picture: boxes of instances and sites by name, and arrows by (source
    instance, destination, target instance)."""

    places: dict[str, Box]
    sites: dict[str, Box]
    arrows: dict[tuple[str, int, str], Arrow] = field(default_factory=dict)

    def extent(self) -> Box:
        corners = [point for arrow in self.arrows.values() for point in arrow.points()]
        for box in self.sites.values():
            corners += [(box.x, box.y), (box.x + box.width, box.y + box.height)]
        xs, ys = [x for x, _ in corners] or [0.0], [y for _, y in corners] or [0.0]
        return Box(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)).wider(MARGIN / 2)


def layout(members: Sequence[TopologyMember]) -> Layout:
    """Places sites on a circle, instances within them, and arrows that run through no instance. The
    picture is spread where it is too dense for that."""
    wanted = [
        (member.name, number, address)
        for member in members
        for number, destination in enumerate(member.destinations)
        for address in dict.fromkeys(destination.addresses)
        if address in {each.name for each in members}
    ]
    made = _placed(members, SPREADS[0])
    for spread in SPREADS:
        made = _placed(members, spread)
        if _connect(made, wanted) or len(wanted) > ARROWS_ROUTED_MAX:
            break
    return made


def _connect(made: Layout, wanted: Sequence[tuple[str, int, str]]) -> bool:
    """Places the arrows. Returns whether none runs through an instance."""
    titles = [
        Box(box.x + 8, box.y + 5, LETTER_WIDTH * len(group) + 4, 15)
        for group, box in made.sites.items()
    ]
    clear = True
    for source, number, target in wanted:
        others = [box for name, box in made.places.items() if name not in (source, target)]
        drawn = arrow(
            made.places[source],
            made.places[target],
            others if len(wanted) <= ARROWS_ROUTED_MAX else (),
            titles,
        )
        made.arrows[source, number, target] = drawn
        clear &= not drawn.blocked
    return clear


def _placed(members: Sequence[TopologyMember], spread: float) -> Layout:
    groups: dict[str, list[TopologyMember]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
    inside = {group: _within(len(each), spread) for group, each in groups.items()}
    around = {}
    for group, points in inside.items():
        xs, ys = [x for x, _ in points], [y for _, y in points]
        around[group] = Box(
            min(xs) - NODE_WIDTH / 2 - GAP,
            min(ys) - NODE_HEIGHT / 2 - GAP - TITLE_HEIGHT,
            max(xs) - min(xs) + NODE_WIDTH + 2 * GAP,
            max(ys) - min(ys) + NODE_HEIGHT + 2 * GAP + TITLE_HEIGHT,
        )
    widest = max((math.hypot(box.width, box.height) for box in around.values()), default=0)
    count = len(groups)
    radius = 0.0 if count < 2 else max(widest * 0.6, widest * 0.62 / math.sin(math.pi / count))
    radius *= (1 + spread) / 2
    places: dict[str, Box] = {}
    sites: dict[str, Box] = {}
    for number, (group, each) in enumerate(groups.items()):
        box = around[group]
        angle = 2 * math.pi * number / count - math.pi / 2
        x = radius * math.cos(angle) - box.width / 2
        y = radius * math.sin(angle) - box.height / 2
        sites[group] = Box(x, y, box.width, box.height)
        for member, point in zip(each, inside[group], strict=True):
            places[member.name] = Box(
                x + point[0] - box.x - NODE_WIDTH / 2,
                y + point[1] - box.y - NODE_HEIGHT / 2,
                NODE_WIDTH,
                NODE_HEIGHT,
            )
    return Layout(places, sites)


def _within(count: int, spread: float) -> list[Point]:
    """Returns the places of a site's instances: a few in rows; more in a ring, so that none stands
    between two others."""
    if count < RING_MIN:
        columns = max(1, math.ceil(math.sqrt(count / 2)))
        return [
            (i % columns * (NODE_WIDTH + GAP), i // columns * (NODE_HEIGHT + GAP))
            for i in range(count)
        ]
    across, down = max(0.7 * NODE_WIDTH, 22 * count), max(48, 15 * count)
    return [
        (
            across * spread * math.sin(2 * math.pi * (i + 0.5) / count),
            -down * spread * math.cos(2 * math.pi * (i + 0.5) / count),
        )
        for i in range(count)
    ]


def _links(checked: CheckResult, arrows: Mapping[tuple[str, int, str], Arrow]) -> list[str]:
    wrong = {
        finding.instances[:2]: finding.severity
        for finding in checked.findings
        if finding.kind in ("unsafe_failover", "overlap")
    }
    found = []
    for member in checked.members:
        for number, destination in enumerate(member.destinations):
            for rank, address in enumerate(destination.addresses):
                drawn = arrows.get((member.name, number, address))
                if drawn is None:
                    continue
                severity = wrong.get((member.name, address), "")
                style = " ".join(
                    [
                        "link",
                        *(["async"] if not destination.sync else []),
                        *(["further"] * (rank > 0)),
                    ]
                )
                passing = destination.pass_through
                told = (
                    f"{member.name} to {destination.name}, "
                    f"{'sync' if destination.sync else 'async'}, PassThrough "
                    f"{passing if passing is not None else 'nothing'}"
                    f"{', own_group_only' if destination.own_group_only else ''}"
                    f"{'' if destination.dials else ', over the connection of the other side'}"
                )
                found.append(
                    f'<path class="{style}" d="{drawn.path()}" '
                    f'stroke="{COLOURS[severity]}" marker-end="url(#head{severity})">'
                    f"<title>{_word(told)}</title></path>"
                )
    return found
