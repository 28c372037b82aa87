"""The catalogue of events, by which logs, `raylay events`, `raylay error`, the console and
docs/codes.md say what an event means: entries by code, by name, and by words in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from raylay.services.telemetry.event_entry import CatalogueEntry
from raylay.services.telemetry.event_table import CATEGORIES, ENTRIES

BY_EVENT: Mapping[str, CatalogueEntry] = {each.event: each for each in ENTRIES}
BY_CODE: Mapping[str, CatalogueEntry] = {each.code: each for each in ENTRIES}
CODE = re.compile(r"[0-9A-Fa-f]{2}-\d{4}")


def code_of(event: str) -> str:
    """Returns the code of an event; empty: the catalogue does not have it."""
    entry = BY_EVENT.get(event)
    return "" if entry is None else entry.code


def found_for(text: str) -> list[CatalogueEntry]:
    """Returns the entries that a text is about: those of the codes in it; else those of the event
    names in it; else those that have all of its words.

    Args:
        text: a code, the name of an event, a line of a log, or words.
    """
    codes = [BY_CODE.get(each.upper()) for each in CODE.findall(text)]
    found = [each for each in codes if each is not None]
    if not found:
        found = [BY_EVENT[each] for each in re.findall(r"[a-z_]+", text) if each in BY_EVENT]
    if not found:
        words = text.lower().split()
        found = [each for each in ENTRIES if words and _has_all(each, words)]
    return list(dict.fromkeys(found))


def _has_all(entry: CatalogueEntry, words: list[str]) -> bool:
    text = " ".join(entry).lower()
    return all(word in text for word in words)


def by_category() -> Iterator[tuple[str, str, list[CatalogueEntry]]]:
    """Yields (number, title, entries) of each category."""
    for number, title in CATEGORIES.items():
        yield number, title, [each for each in ENTRIES if each.code.startswith(f"{number}-")]
