"""The tables of modules in docs/actions.md, written from their table (`make action-modules`)."""

from __future__ import annotations

import re
from pathlib import Path

from raylay.services.actions.model import Kind
from raylay.services.actions.modules import ModuleDefinition, OptionDefinition, of_kind
from raylay.services.configuration.actions import written_name

PAGE = Path(__file__).parents[2] / "docs" / "actions.md"
_PLACE = re.compile(r"<!-- modules: (on|if|do) -->\n.*?<!-- end -->", re.DOTALL)
LEFT_OUT = ("vacuum-statistics",)
"""Modules that only AMPSConfig has."""


def written(page: str) -> str:
    """Returns the page with its tables."""
    return _PLACE.sub(lambda found: _table(found[1]), page)  # type: ignore[arg-type]


def _table(kind: Kind) -> str:
    sets = kind == "on"
    head = "| module | what it does | options |" if not sets else "| module | when | options |"
    lines = [
        f"<!-- modules: {kind} -->",
        head + (" variables |" if sets else ""),
        "|---|---|---|" + ("---|" if sets else ""),
    ]
    for module in of_kind(kind):
        if not module.refused and module.module not in LEFT_OUT:
            cells = [f"`{written_name(module)}`", module.note.rstrip("."), _options(module)]
            if sets:
                names = (f"`{name}`" for name in module.variables)
                cells.append(", ".join(names) or "-")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "<!-- end -->"])


def _options(module: ModuleDefinition) -> str:
    return "; ".join(_option(each) for each in module.options) or "-"


def _option(option: OptionDefinition) -> str:
    name = f"**`{option.written_name}`**" if option.required else f"`{option.written_name}`"
    said = option.note
    if option.choices:
        said += ": " + ", ".join(f"`{each}`" for each in option.choices)
    if option.default:
        said += f" (`{option.default}`)"
    return f"{name} {said}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
