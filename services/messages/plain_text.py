"""Text from outside, made safe to be printed, logged or drawn.

Client names, topics, users, keys, bodies and error texts of peers are chosen by others. A terminal
executes some characters as commands (ESC, the C1 controls), a newline forges a line of a log, and a
bidirectional override disguises a name as another one. Everything that prints, logs or draws such
text passes it through this module at the place of output: stored and sent text keeps its bytes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Python counts spaces of other scripts and private characters as not printable; they do no harm.
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
    """Returns the text as one line without control characters: each character that is not visible
    by itself (C0 and C1 controls, line separators, bidirectional and zero-width marks, lone
    surrogates) is replaced by its escape, such as `\\x1b`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def plain_lines(text: str) -> str:
    """Returns a text whose line breaks are our own, with each line made safe by `plain`."""
    return "\n".join(map(plain, text.split("\n")))


def plain_value(value: object) -> str:
    """Returns the value of a `key=value`, in quotes where it could be mistaken for several."""
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
    """Returns a value as JSON in one line, without the control characters that JSON allows (DEL,
    C1).

    Args:
        default: returns a JSON value for an object that JSON cannot represent.
        ascii_only: whether letters beyond ASCII are escaped as well.
        separators: the separators of `json.dumps`.
    """
    return _json_escaped(
        json.dumps(value, default=default, ensure_ascii=ascii_only, separators=separators)
    )


def _json_escaped(text: str) -> str:
    if text.isprintable():
        return text
    # Outside of its strings JSON is ASCII, so each escape is inside a string.
    return "".join(
        each if _is_shown(each) else json.dumps(each)[1:-1].replace("\x7f", "\\u007f")
        for each in text
    )
