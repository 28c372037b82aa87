"""services/configuration/action_modules.py, written from the table of modules of actions
(`make action-modules`)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from raylay.services.actions.model import Kind
from raylay.services.actions.modules import ModuleDefinition, OptionDefinition, of_kind

FILE = Path(__file__).parents[2] / "services" / "configuration" / "action_modules.py"
HEAD = '''"""The modules of actions for scripts: `On`, `If` and `Do` (docs/actions.md).

Written by `make action-modules` from the table in services/actions/modules.py: change that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raylay.services.actions.model import ActionModule
from raylay.services.configuration.actions import used_module
'''
CLASSES: dict[Kind, tuple[str, str]] = {
    "on": ("On", "The modules that start an action."),
    "if": ("If", "The conditions without which an action does not go on."),
    "do": ("Do", "The steps of an action."),
}
TYPES = {
    "flag": "bool",
    "number": "int",
    "percent": "str",
    "assignment": "Mapping[str, str] | Sequence[str] | str",
    "case": "Mapping[str, str] | Sequence[str] | str",
    "function": "Callable[..., Any] | str",
}
"""Types of options that are not a text."""
WIDTH = 100


def text() -> str:
    """Returns the file, before it is formatted."""
    lines = [HEAD]
    for kind, (name, note) in CLASSES.items():
        lines += [f"\nclass {name}:", f'    """{note}"""\n']
        for module in of_kind(kind):
            if not module.refused and module.module != "vacuum-statistics":
                lines += _method(module)
    return "\n".join(lines)


def _method(module: ModuleDefinition) -> list[str]:
    needed = [each for each in module.options if each.required]
    one_of = [each for each in module.options if each.name in module.one_of]
    other = [each for each in module.options if not each.required and each not in one_of]
    arguments = [f"{each.written_name}: {_type(each)}" for each in needed]
    arguments += [f"{each.written_name}: {_type(each)} | None = None" for each in one_of]
    needed += one_of
    if other:
        arguments += ["*", *(f"{each.written_name}: {_type(each)} | None = None" for each in other)]
    names = ", ".join(f"{each.written_name}={each.written_name}" for each in (*needed, *other))
    given = f", {names}" if names else ""
    return [
        "    @staticmethod",
        f"    def {module.written_name}({', '.join(arguments)}) -> ActionModule:",
        *_docstring(module, (*needed, *other)),
        f'        return used_module("{module.kind}", "{module.module}"{given})',
        "",
    ]


def _docstring(module: ModuleDefinition, options: tuple[OptionDefinition, ...]) -> list[str]:
    note = module.note
    if module.kind == "on":
        note = f"Starts the action {note[0].lower()}{note[1:]}"
    lines = _wrapped(f'"""{note}', "        ", "        ")
    if not options:
        return [f'{lines[0]}"""' if len(lines) == 1 else "\n".join(lines) + '"""']
    lines += ["", "        Args:"]
    for each in options:
        said = each.note
        if each.choices:
            said += f" ({', '.join(each.choices)})"
        if each.default:
            said += f"; default: {each.default}"
        lines += _wrapped(f"{each.written_name}: {said}.", "            ", "                ")
    return [*lines, '        """']


def _wrapped(text: str, begin: str, following: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH - 1, initial_indent=begin, subsequent_indent=following, break_long_words=False
    )


def _type(option: OptionDefinition) -> str:
    if option.repeated and option.text not in TYPES:
        return "Sequence[str] | str"
    return TYPES.get(option.text, "str")


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(FILE)], check=True)
