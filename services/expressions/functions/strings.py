"""String functions. Strings are bytes here, as the documents have it: positions and lengths count
bytes, and upper and lower case are those of ASCII."""

from __future__ import annotations

from raylay.services.expressions.functions.registry import FunctionGroup
from raylay.services.expressions.patterns import Pattern
from raylay.services.expressions.values import TEXT_CHARACTERS_MAX, Value
from raylay.services.expressions.work import Meter
from raylay.services.messages.lossless_text import bytes_of, text_of

STRINGS = FunctionGroup()
_BLANK = " \t\n\v\f\r"


@STRINGS.add("INSTR", "text text", takes_null=True)
def instr(text: str | None, part: str | None) -> int | None:
    """Returns the position at which the part begins, from 1; 0: the text lacks it."""
    if text is None or part is None:
        return 0
    if text.isascii():
        return text.find(part) + 1
    return bytes_of(text).find(bytes_of(part)) + 1


@STRINGS.add("INSTR_I", "text text", takes_null=True)
def instr_i(text: str | None, part: str | None) -> int | None:
    """Returns the result of `INSTR` without regard to case."""
    if text is None or part is None:
        return 0
    return bytes_of(text).lower().find(bytes_of(part).lower()) + 1


@STRINGS.add("STREQUAL_I", "text text", takes_null=True)
def strequal_i(text: str | None, other: str | None) -> bool:
    """Returns whether the two are equal, whatever the case."""
    if text is None or other is None:
        return False
    return bytes_of(text).lower() == bytes_of(other).lower()


@STRINGS.add("LENGTH", "text", takes_null=True)
def length(text: str | None) -> int:
    """Returns the number of bytes; of NULL 0."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(bytes_of(text))


@STRINGS.add("CONCAT", "text...", takes_null=True)
def concat(*texts: str | None) -> str | None:
    """Returns all arguments joined; NULL adds nothing."""
    found = [text for text in texts if text]
    if sum(map(len, found)) > TEXT_CHARACTERS_MAX:
        return None
    joined = "".join(found)
    # Bytes of one character may come from several parts.
    return joined if joined.isascii() else text_of(bytes_of(joined))


@STRINGS.add("UPPER", "text")
def upper(text: str) -> str:
    """Returns the text in capital letters."""
    return text.upper() if text.isascii() else text_of(bytes_of(text).upper())


@STRINGS.add("LOWER", "text")
def lower(text: str) -> str:
    """Returns the text in small letters."""
    return text.lower() if text.isascii() else text_of(bytes_of(text).lower())


@STRINGS.add("REPLACE", "text text text", takes_null=True)
def replace(text: str | None, part: str | None, by: str | None) -> str | None:
    """Returns the text with each occurrence of a part replaced; NULL as the replacement removes
    it."""
    if text is None or part is None:
        return text
    by = by or ""
    if len(text) + text.count(part) * (len(by) - len(part)) > TEXT_CHARACTERS_MAX:
        return None
    return text.replace(part, by)


@STRINGS.add("REGEXP_REPLACE", "text pattern text", takes_null=True, counts=True)
def regexp_replace(
    meter: Meter | None, text: str | None, pattern: Pattern, by: str | None
) -> str | None:
    """Returns the text with each match of a pattern replaced."""
    if text is None:
        return None
    return pattern.replaced(text, by or "", TEXT_CHARACTERS_MAX, meter)


@STRINGS.add("REGEXP_MATCH", "text pattern", counts=True)
def regexp_match(meter: Meter | None, text: str, pattern: Pattern) -> str | None:
    """Returns the first match of a pattern."""
    return pattern.first(text, meter)


@STRINGS.add("SUBSTR", "text integer [integer")
def substr(text: str, start: int, count: int | None = None) -> Value:
    """Returns at most `count` bytes of the text from a position, counted from 1, or from the end if
    it is negative."""
    if count is not None and count <= 0:
        return None
    data: str | bytes = text if text.isascii() else bytes_of(text)
    begin = start - 1 if start > 0 else max(0, len(data) + start) if start else 0
    part = data[begin:] if count is None else data[begin : begin + count]
    return part if isinstance(part, str) else text_of(part)


@STRINGS.add("LEFT", "text integer")
def left(text: str, count: int) -> Value:
    """Returns at most so many bytes from the begin."""
    return substr(text, 1, count)


@STRINGS.add("RIGHT", "text integer")
def right(text: str, count: int) -> Value:
    """Returns at most so many bytes from the end."""
    return substr(text, -count) if count > 0 else None


@STRINGS.add("TRIM", "text [text")
def trim(text: str, characters: str = _BLANK) -> str:
    """Returns the text without these characters, or white space, at both ends."""
    return ltrim(rtrim(text, characters), characters)


@STRINGS.add("LTRIM", "text [text")
def ltrim(text: str, characters: str = _BLANK) -> str:
    """Returns the text without them at the begin."""
    if text.isascii() and characters.isascii():
        return text.lstrip(characters)
    return text_of(bytes_of(text).lstrip(bytes_of(characters)))


@STRINGS.add("RTRIM", "text [text")
def rtrim(text: str, characters: str = _BLANK) -> str:
    """Returns the text without them at the end."""
    if text.isascii() and characters.isascii():
        return text.rstrip(characters)
    return text_of(bytes_of(text).rstrip(bytes_of(characters)))


@STRINGS.add("REVERSE", "text")
def reverse(text: str) -> str:
    """Returns the text from the end to the begin."""
    return text[::-1] if text.isascii() else text_of(bytes_of(text)[::-1])
