"""The modules of actions with their options, the actions made of them, and the occurrences that
start them (behaviour.md 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["on", "if", "do"]
Options = tuple[tuple[str, str], ...]
"""The documented name and the text of each option, in the order in which they are written."""


def last_text(options: Options, name: str, default: str) -> str:
    """Returns the last text that an option has."""
    return next((text for key, text in reversed(options) if key == name), default)


def all_texts(options: Options, name: str) -> tuple[str, ...]:
    """Returns all texts that an option has, in order."""
    return tuple(text for key, text in options if key == name)


@dataclass(frozen=True, slots=True)
class ActionModule:
    """One module of an action, with its options.

    Attributes:
        kind: `on`, `if` or `do`.
        module: name without its documented beginning: `publish-message` for
            `amps-action-on-publish-message` and for `amps-action-do-publish-message`.
        options: (documented name, text) of each option, in the written order; an option may be
            given several times.
    """

    kind: Kind
    module: str
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        """Returns the last text that an option has."""
        return last_text(self.options, name, default)

    def every(self, name: str) -> tuple[str, ...]:
        """Returns all texts that an option has, in order."""
        return all_texts(self.options, name)


@dataclass(frozen=True, slots=True)
class ActionDefinition:
    """One action of an instance.

    Attributes:
        name: name of the action, for people; unique in an instance.
        on: modules of which each starts it by itself.
        steps: `if` and `do` modules, in the order in which they are performed.
    """

    name: str
    on: tuple[ActionModule, ...]
    steps: tuple[ActionModule, ...]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened and may start actions.

    Attributes:
        kind: name of the `on` module that it starts, such as `connect-client`.
        variables: the documented variables that it sets, such as `AMPS_CLIENT_NAME`.
        topic, message_type: subject of the occurrence, by which modules with these options choose;
            empty: it has none.
        depth: number of actions that led to it, one by the other; 0: none did.
        on: the module that it is for, where only that module's conditions were found true; None:
            any module of its kind.
    """

    kind: str
    variables: Mapping[str, str]
    topic: str = ""
    message_type: str = ""
    depth: int = 0
    on: ActionModule | None = None
