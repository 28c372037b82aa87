"""docs/codes.md, written from the catalogue of events (`make codes-page`)."""

from __future__ import annotations

from pathlib import Path

from raylay.services.telemetry.catalogue import by_category

PAGE = Path(__file__).parents[2] / "docs" / "codes.md"
HEAD = """# Events and codes

Each event of `raylay events`, of a log and of the console has a name, a level and a code. The code
is that of one event for ever; what is before its dash is the category. The same words:

    raylay error 21-0010
    raylay error downgraded

*info*: an operator may want to know. *warning*: the work goes on, but not as it should. *error*:
somebody should look now. *critical*: a whole part of the instance is out of order. *emergency*: the
process ends. [Logging](logging.md) says how to log the events of a code, a category or a level, or
to leave them out. `make codes-page` writes this page from the catalogue in
`services/telemetry/event_table.py`.
"""


def page() -> str:
    """Returns the page."""
    lines = [HEAD]
    for number, title, entries in by_category():
        lines.append(f"## {number}: {title}\n")
        lines.append("| code | event | level | what happened | why | what to do |")
        lines.append("|---|---|---|---|---|---|")
        for each in entries:
            cells = (each.code, f"`{each.event}`", each.level, each.what, each.why, each.action)
            lines.append(f"| {' | '.join(each or '-' for each in cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
