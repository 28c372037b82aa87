"""A fabric as a picture: sites as boxes, sync links drawn through, async ones dashed, the further
servers of a list thin; what a finding is about is red (error) or amber (warning)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from raylay.services.topology.check import Checked, Finding
from raylay.services.topology.members import Member

NODE_WIDTH = 104
NODE_HEIGHT = 30
GAP = 26
MARGIN = 70
COLOURS = {"error": "#c0392b", "warning": "#d68910", "": "#34495e"}
FACES = {"error": "#fadbd8", "warning": "#fcf3cf", "": "#eaf2f8"}

Point = tuple[float, float]

_STYLE = (
    "text{font:12px sans-serif;fill:#2c3e50}"
    ".site{fill:#fbfcfc;stroke:#aab7b8}.group{font-weight:bold}"
    ".link{fill:none;stroke-width:1.4}.async{stroke-dasharray:6 4}.further{stroke-width:.6}"
)


def svg(checked: Checked, name: str) -> str:
    """The picture as SVG, complete with its size; the same input gives the same picture."""
    places, boxes, width, height = _layout(checked.members)
    marked = _marked(checked.findings)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>fabric {escape(name)}</title><style>{_STYLE}</style><defs>",
    ]
    for severity, colour in COLOURS.items():
        parts.append(
            f'<marker id="head{severity}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        )
    parts.append("</defs>")
    for group, (x, y, w, h) in boxes.items():
        parts.append(
            f'<rect class="site" x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" rx="8"/>'
            f'<text class="group" x="{x + 10:.0f}" y="{y + 17:.0f}">{escape(group)}</text>'
        )
    parts += _links(checked, places)
    for member in checked.members:
        x, y = places[member.name]
        severity = marked.get(member.name, "")
        parts.append(
            f'<g><rect x="{x - NODE_WIDTH / 2:.0f}" y="{y - NODE_HEIGHT / 2:.0f}" '
            f'width="{NODE_WIDTH}" height="{NODE_HEIGHT}" rx="5" fill="{FACES[severity]}" '
            f'stroke="{COLOURS[severity]}"/><text x="{x:.0f}" y="{y + 4:.0f}" '
            f'text-anchor="middle">{escape(_short(member.name))}</text>'
            f"<title>{escape(member.name)}, group {escape(member.group)}</title></g>"
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def html(checked: Checked, name: str) -> str:
    """A page with the picture, its legend, and the findings."""
    rows = "\n".join(
        f'<tr class="{f.severity}"><td>{f.severity}</td><td>{escape(f.kind)}</td>'
        f"<td>{escape(f.topic)}</td><td>{escape(f.explanation)}</td>"
        f"<td>{escape(f.repair)}</td></tr>"
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
        f"<title>fabric {escape(name)}</title><style>body{{font:14px sans-serif;margin:2em}}"
        "td,th{text-align:left;vertical-align:top;padding:3px 12px 3px 0}"
        f".error td{{color:{COLOURS['error']}}}</style></head><body>\n"
        f"<h1>fabric {escape(name)}</h1>\n{svg(checked, name)}"
        "<p>Drawn through: sync. Dashed: async. Thin: further servers of a list.</p>\n"
        f"{table}\n</body></html>\n"
    )


def _short(name: str) -> str:
    return name if len(name) <= 15 else name[:14] + "…"


def _marked(findings: Sequence[Finding]) -> dict[str, str]:
    found: dict[str, str] = {}
    for finding in findings:
        if finding.severity == "note":
            continue
        for instance in finding.instances:
            if found.get(instance) != "error":
                found[instance] = finding.severity
    return found


def _layout(
    members: Sequence[Member],
) -> tuple[dict[str, Point], dict[str, tuple[float, float, float, float]], float, float]:
    """Places of instances, boxes of sites, and the size: sites on a circle, their members in a
    square."""
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.group, []).append(member)
    sizes = {}
    for group, inside in groups.items():
        columns = max(1, math.ceil(math.sqrt(len(inside) / 2)))
        rows = math.ceil(len(inside) / columns)
        sizes[group] = (
            columns,
            columns * (NODE_WIDTH + GAP) + GAP,
            rows * (NODE_HEIGHT + GAP) + GAP + 12,
        )
    widest = max((math.hypot(w, h) for _, w, h in sizes.values()), default=0)
    count = len(groups)
    radius = 0.0 if count < 2 else max(widest * 0.6, widest * 0.62 / math.sin(math.pi / count))
    places: dict[str, Point] = {}
    boxes: dict[str, tuple[float, float, float, float]] = {}
    for number, (group, inside) in enumerate(groups.items()):
        columns, width, height = sizes[group]
        angle = 2 * math.pi * number / count - math.pi / 2
        x = radius * math.cos(angle) - width / 2
        y = radius * math.sin(angle) - height / 2
        boxes[group] = (x, y, width, height)
        for i, member in enumerate(inside):
            places[member.name] = (
                x + GAP + (i % columns) * (NODE_WIDTH + GAP) + NODE_WIDTH / 2,
                y + GAP + 12 + (i // columns) * (NODE_HEIGHT + GAP) + NODE_HEIGHT / 2,
            )
    left = min((box[0] for box in boxes.values()), default=0) - MARGIN / 2
    top = min((box[1] for box in boxes.values()), default=0) - MARGIN / 2
    right = max((box[0] + box[2] for box in boxes.values()), default=0) + MARGIN / 2
    bottom = max((box[1] + box[3] for box in boxes.values()), default=0) + MARGIN / 2
    return (
        {name: (x - left, y - top) for name, (x, y) in places.items()},
        {group: (x - left, y - top, w, h) for group, (x, y, w, h) in boxes.items()},
        right - left,
        bottom - top,
    )


def _links(checked: Checked, places: dict[str, Point]) -> list[str]:
    wrong = {
        finding.instances[:2]: finding.severity
        for finding in checked.findings
        if finding.kind in ("unsafe_failover", "overlap")
    }
    found = []
    for member in checked.members:
        for destination in member.destinations:
            for rank, address in enumerate(destination.addresses):
                if address not in places:
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
                    f'<path class="{style}" d="{_curve(places[member.name], places[address])}" '
                    f'stroke="{COLOURS[severity]}" marker-end="url(#head{severity})">'
                    f"<title>{escape(told)}</title></path>"
                )
    return found


def _curve(start: Point, end: Point) -> str:
    """A bow to the left, so that the two directions of a pair lie apart."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy) or 1.0
    bow = min(40.0, length * 0.14)
    middle = (
        (start[0] + end[0]) / 2 - dy / length * bow,
        (start[1] + end[1]) / 2 + dx / length * bow,
    )
    sx, sy = _edge(start, middle)
    ex, ey = _edge(end, middle)
    return f"M{sx:.1f} {sy:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {ex:.1f} {ey:.1f}"


def _edge(node: Point, towards: Point) -> Point:
    """Where a line from the middle of a node leaves it."""
    dx, dy = towards[0] - node[0], towards[1] - node[1]
    scale = min(
        NODE_WIDTH / 2 / abs(dx) if dx else math.inf, NODE_HEIGHT / 2 / abs(dy) if dy else math.inf
    )
    scale = min(scale, 1.0)
    return node[0] + dx * scale, node[1] + dy * scale
