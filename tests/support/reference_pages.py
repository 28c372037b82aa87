"""The references in docs, written from the code by `make reference-pages`: python.md from the
docstrings, shell.md from the commands' own help, settings.md and fabric.schema.json from the model
of a fabric's file."""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import raylay
from raylay.services.cli import COMMANDS, CommandGroup
from raylay.services.commands.shared.connection_options import connection_options
from raylay.services.configuration.schema import file_schema

DOCS = Path(__file__).parents[2] / "docs"
PYTHON_PAGE = DOCS / "python.md"
SHELL_PAGE = DOCS / "shell.md"
PYTHON_HEAD = """# Python reference

Every name that a script imports from `raylay`, from the docstrings (`make reference-pages`).
[Clients](clients.md) and [Fabrics](fabric.md) teach them by task.
"""
SHELL_HEAD = """# Shell reference

Every command of `raylay`, from its own help (`make reference-pages`). `raylay COMMAND --help` shows
the same. [Operations](operations.md) teaches them by task. An error is one line on stderr and exit
code 1; wrong usage is exit code 2; after Ctrl-C it is 130.
"""
SCHEMA_FILE = DOCS / "fabric.schema.json"
SETTINGS_PAGE = DOCS / "settings.md"
SETTINGS_HEAD = """# Settings of a fabric

Every key of a fabric's YAML file, from the model that reads it (`make reference-pages`).
[Fabrics](fabric.md) teaches them by task. A time has a unit (`500ms`, `10s`, `2h`), a size too
(`64MiB`). `raylay config check FILE` says what is wrong with a file, and `raylay config show FILE`
fills in the defaults.

An editor completes the keys and says what is wrong while you type, where the file begins with the
line

    # yaml-language-server: $schema=fabric.schema.json

It names `docs/fabric.schema.json`, or what `raylay config schema > fabric.schema.json` writes.
"""
SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Raises": "Raises",
    "Returns": "Returns",
    "Yields": "Yields",
    "Invariants": "Invariants",
    "Owner": "Owner",
}
_SECTION = re.compile(rf"({'|'.join(SECTIONS)})( \([^)]*\))?:(.*)")
_ITEM = re.compile(r"([\w*, .`|]+): (.*)")


def python_page() -> str:
    """Returns the page of the Python API."""
    lines = [PYTHON_HEAD]
    for name in raylay.__all__:
        lines += _described(name, getattr(raylay, name))
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, found: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if inspect.isclass(found):
        if issubclass(found, BaseException):
            bases = ", ".join(each.__name__ for each in found.__bases__)
            yield f"An error; a kind of `{bases}`.\n"
        elif issubclass(found, BaseModel):
            # Its fields are in settings.md; its signature depends on whether it is built yet.
            yield "A part of the [settings of a fabric](settings.md).\n"
        elif not issubclass(found, enum.Enum):
            yield _code(f"{name}{_signature(found)}")
        yield _text(name, inspect.getdoc(found) if "__doc__" in vars(found) else None)
        for each, member in vars(found).items():
            if each.startswith("_") or isinstance(found, enum.EnumMeta):
                continue
            yield from _member(name, each, member)
    elif inspect.isfunction(found):
        yield _code(f"{name}{_signature(found)}")
        yield _text(name, inspect.getdoc(found))
    else:
        yield f"`{str(found).replace('typing.', '')}`\n"


def _member(owner: str, name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        yield f"### {owner}.{name}\n"
        yield _text(f"{owner}.{name}", inspect.getdoc(member))
        return
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if not inspect.isfunction(function):
        return
    front = "await " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    yield f"### {owner}.{name}\n"
    yield _code(f"{front}{name}{_signature(function)}")
    yield _text(f"{owner}.{name}", inspect.getdoc(function))


def _signature(found: Any) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return "(…)"
    kept = [each for name, each in signature.parameters.items() if name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept))
    # Annotations are texts in this project.
    text = re.sub(r": '([^']*)'", r": \1", text)
    text = re.sub(r"-> '([^']*)'", r"-> \1", text)
    text = re.sub(r" at 0x[0-9a-f]+", "", text).replace(" -> None", "")
    if len(text) <= 90:
        return text
    inside = text[1 : text.rindex(")")]
    return "(\n    " + ",\n    ".join(_parts(inside)) + ",\n)" + text[text.rindex(")") + 1 :]


def _parts(text: str) -> Iterator[str]:
    """Divides a list at the commas that are in no brackets."""
    depth, part = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += character
    if part.strip():
        yield part.strip()


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _text(name: str, docstring: str | None) -> str:
    """Returns the docstring of a name as Markdown: its sections are lists.

    Raises:
        ValueError: there is none, so that the name would have an empty entry.
    """
    if not (docstring or "").strip():
        raise ValueError(f"{name} has no docstring, and would have an empty entry: write one")
    lines: list[str] = []
    section = ""
    for line in (docstring or "").splitlines():
        match = _SECTION.fullmatch(line)
        if match:
            section = match[1]
            lines += [f"*{SECTIONS[section]}{match[2] or ''}:*{match[3]}", ""]
        elif not section or not line.strip():
            lines.append(line)
        elif not line.startswith(" "):
            section = ""
            lines += ["", line]
        else:
            inner = line[4:]
            item = _ITEM.fullmatch(inner)
            if item and not inner.startswith(" "):
                lines.append(f"- `{item[1].strip('`')}`: {item[2]}")
            else:
                lines.append(f"  {inner.strip()}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


# -- the settings of a fabric --------------------------------------------------------------------
def settings_page() -> str:
    """Returns the page of the keys of a fabric's file."""
    schema = file_schema()
    lines = [SETTINGS_HEAD, "## The file\n", *_keys_table(schema)]
    for name, each in sorted(schema["$defs"].items(), key=lambda one: _title(one[0])):
        forms = [each, *each.get("anyOf", ())]
        section = next((form for form in forms if "properties" in form), None)
        if section is None:
            continue
        lines.append(f"## {_title(name)}\n")
        if about := section.get("description"):
            lines.append(f"{about}\n")
        short = [_kind_of(form) for form in each.get("anyOf", ()) if form is not section]
        if short:
            lines.append(f"It may be written in short, as {' or '.join(short)}.\n")
        lines += _keys_table(section)
    return "\n".join(lines).rstrip() + "\n"


def _title(name: str) -> str:
    """Returns the heading of a section, from the name of its class."""
    front = re.sub(r"(Settings|Config|Choices|Entry|Section)$", "", name)
    words = re.findall(r"[A-Z][a-z]*", front)
    return " ".join(words).capitalize()


def _keys_table(section: dict[str, Any]) -> Iterator[str]:
    required = set(section.get("required", ()))
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    for name, each in section["properties"].items():
        default = "required" if name in required else ""
        if "default" in each:
            default = f"`{json.dumps(each['default']).strip(chr(34)) or ' '}`"
        about = each.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {_kind_of(each)} | {'' if default == '` `' else default} | {about} |"
    yield ""


def _kind_of(schema: dict[str, Any]) -> str:
    """Returns the kind of a value in words."""
    if "x-raylay-kind" in schema:
        return f"a {schema['x-raylay-kind']}"
    if "$ref" in schema:
        title = _title(schema["$ref"].rpartition("/")[2])
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        kinds = dict.fromkeys(map(_kind_of, schema["anyOf"]))
        kinds.pop("nothing", None)
        return " or ".join(kinds)
    if schema.get("type") == "array":
        inside = _kind_of(schema["items"]) if "items" in schema else ""
        return f"a list: {inside}" if inside else "a list"
    if schema.get("type") == "object":
        inside = schema.get("additionalProperties")
        return f"names, each with {_kind_of(inside)}" if isinstance(inside, dict) else "a section"
    words = {
        "string": "a text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "null": "nothing",
    }
    return words.get(str(schema.get("type")), "a value")


def schema_text() -> str:
    """Returns the JSON schema of a fabric's file."""
    return json.dumps(file_schema(), indent=2, sort_keys=False) + "\n"


# -- the shell -----------------------------------------------------------------------------------
def commands() -> Iterator[tuple[str, Any]]:
    """Yields each command that can be called, with its whole name."""
    group: Any = CommandGroup()
    for name in COMMANDS:
        yield from _leaves(name, group.get_command(None, name))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    alone = getattr(command, "alone", None)
    if inner is None:
        yield name, command
        return
    if alone is not None:
        yield name, alone
    for each, found in inner.items():
        yield from _leaves(f"{name} {each}", found)


def shell_page() -> str:
    """Returns the page of the commands."""
    common = connection_options()
    lines = [SHELL_HEAD, "## Options of every command that connects\n"]
    lines += _table(common, "option")
    lines.append("A command that takes `--fabric` only has none of the last three.\n")
    shared = {each.name for each in common}
    for name, command in commands():
        lines.append(f"## raylay {name}\n")
        lines.append(_help(command.help or ""))
        own = [each for each in command.params if each.name not in ("help", "version")]
        connects = any(each.name == "context" for each in own)
        options = [
            each
            for each in own
            if each.param_type_name == "option"
            and not (connects and each.name in shared and not getattr(each, "expose_value", True))
        ]
        arguments = [each for each in own if each.param_type_name == "argument"]
        words = [_usage(each) for each in arguments]
        lines.append(f"```\nraylay {' '.join([name, *words, '[OPTIONS]'])}\n```\n")
        lines += _table(arguments, "argument")
        lines += _table(options, "option")
        if connects:
            lines.append("It takes the options of every command that connects.\n")
    return "\n".join(lines).rstrip() + "\n"


def _usage(argument: Any) -> str:
    word = str(argument.metavar or argument.name.upper()).strip("[]")
    word += "…" if argument.nargs == -1 or argument.multiple else ""
    return word if argument.required else f"[{word}]"


def _help(text: str) -> str:
    r"""Returns a command's help as Markdown: what stands behind `\b` keeps its lines."""
    kept = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            body = paragraph.lstrip("\b\n")
            kept.append(f"```\n{body}\n```")
        else:
            kept.append(paragraph)
    return "\n\n".join(kept) + "\n"


def _table(parameters: list[Any], kind: str) -> Iterator[str]:
    if not parameters:
        return
    yield f"| {kind} | | default |"
    yield "|---|---|---|"
    for each in parameters:
        names = (
            _usage(each) if kind == "argument" else ", ".join((*each.opts, *each.secondary_opts))
        )
        default = each.default
        if each.required:
            shown = "required"
        elif default in (None, "", False) or not isinstance(default, str | int | float):
            shown = ""
        else:
            shown = f"`{default}`"
        about = (getattr(each, "help", None) or "").replace("|", "\\|").replace("\n", " ")
        variable = getattr(each, "envvar", None)
        if variable:
            about += f" (`{variable}`)"
        yield f"| `{names}` | {about} | {shown} |"
    yield ""


if __name__ == "__main__":
    PYTHON_PAGE.write_text(python_page(), encoding="utf-8")
    SHELL_PAGE.write_text(shell_page(), encoding="utf-8")
    SETTINGS_PAGE.write_text(settings_page(), encoding="utf-8")
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
