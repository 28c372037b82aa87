"""Faults of a definition in a configuration, beyond the consistency of its values."""

from __future__ import annotations

from typing import NamedTuple


class DefinitionProblem(NamedTuple):
    """The reason why a definition cannot run.

    Attributes:
        place: the value of the definition, and the index in it where it is a list; empty: the whole
            definition.
        text: what is wrong and what to do, without the place.
    """

    place: tuple[str | int, ...]
    text: str
