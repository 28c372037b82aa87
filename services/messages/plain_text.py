"""Text from outside, made fit to be printed, logged or drawn.

Client names, topics, users, keys, bodies and error texts of peers are chosen by others. A terminal
takes some characters for commands (ESC, the C1 controls), a newline forges a line of a log, and a
bidirectional override shows a name as another one. Everything that prints, logs or draws such text
passes it through here, at the place where it is written: what is stored and sent keeps its bytes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Spaces of other scripts and private characters are not printable for Python, and harm nobody.
_HARMLESS = frozenset(("Zs", "Co"))
_QUOTED = re.compile(r'[\s"=\\]')


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) in _HARMLESS


def _escaped(letter: str) -> str:
    if _is_shown(letter):
        return letter
    code = ord(letter)
    if code <= 0xFF:
        return _NAMED.get(letter) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def plain(text: str) -> str:
    """The text as one line without controls: each character that shows nothing of its own (C0 and
    C1 controls, line separators, bidirectional and zero-width marks, lone surrogates) stands as its
    escape, such as `\\x1b`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def plain_lines(text: str) -> str:
    """Returns a text of several lines that are our own, each as `plain` makes it: its newlines
    stay."""
    return "\n".join(map(plain, text.split("\n")))


def plain_value(value: object) -> str:
    """A value of `key=value`: in quotes where it could be taken for more than one."""
    text = str(value)
    if text and text.isprintable() and not _QUOTED.search(text):
        return text
    return _json_escaped(json.dumps(text, ensure_ascii=False))


def json_line(
    value: Any,
    *,
    default: Callable[[Any], Any] | None = None,
    ascii_only: bool = True,
    separators: tuple[str, str] | None = None,
) -> str:
    """A value as JSON in one line, without a control even where a JSON text may have it (DEL, C1).

    Args:
        default: gives what JSON can say of a value that it cannot.
        ascii_only: whether letters beyond ASCII are escaped too.
        separators: as of `json.dumps`.
    """
    return _json_escaped(
        json.dumps(value, default=default, ensure_ascii=ascii_only, separators=separators)
    )


def _json_escaped(text: str) -> str:
    if text.isprintable():
        return text
    # Outside its strings JSON has ASCII alone, so each escape stands in a string.
    return "".join(
        each if _is_shown(each) else json.dumps(each)[1:-1].replace("\x7f", "\\u007f")
        for each in text
    )
