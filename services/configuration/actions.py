"""Actions of a fabric: how files in YAML and scripts declare them (docs/actions.md).

actions:
- name: letters
  on:
  - sow_expire_message: {topic: work, message_type: json}
  do:
  - if_condition: {condition: "'{{AMPS_REASON}}' = 'time_limit'"}
  - publish_message: {topic: letters, message_type: json, data: "{{AMPS_DATA}}"}
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from raylay.services.actions.checks import (
    NamingScheme,
    module_problems,
    refused_option,
    unknown_module,
)
from raylay.services.actions.model import ActionDefinition, ActionModule, Kind
from raylay.services.actions.modules import (
    MODULES,
    ModuleDefinition,
    OptionDefinition,
    TextKind,
    definition_of,
    of_kind,
)
from raylay.services.actions.option_text import interval_us, occasion
from raylay.services.configuration.fields import Section
from raylay.services.errors import ConfigurationError, ExpressionError
from raylay.services.plugins.filters import subscription_filter_problem
from raylay.services.replication.downgrade import AgeCheck
from raylay.services.replication.timetable import JournalAction

NAME_CHARACTERS_MAX = 64
DOWNGRADE = "downgrade-replication"
UPGRADE = "upgrade-replication"
JOURNAL_STEPS: Mapping[str, Literal["compress", "archive", "remove"]] = {
    "compress-journal": "compress",
    "archive-journal": "archive",
    "remove-journal": "remove",
}
NOTHING = "nothing"
BY_INSTANCE = frozenset((DOWNGRADE, UPGRADE, *JOURNAL_STEPS, NOTHING))
"""Steps that an instance performs by itself, where nothing but schedules start them."""
_IF = "if_"


def written_name(module: ModuleDefinition) -> str:
    """Returns the name of a module in YAML and Python. A condition has `if_` before it, because it
    stands among the steps."""
    return f"{_IF}{module.written_name}" if module.kind == "if" else module.written_name


def _written_option(name: str) -> str:
    return OptionDefinition(name, "text", "").written_name


WRITTEN = NamingScheme(written_name, _written_option)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of instances, for `Fabric(actions=[…])` and `Fabric.instance(…, actions=[…])`.

    Attributes:
        on: triggers, made by `On`: one or several, of which each starts the action by itself.
        do: its steps in order, made by `Do` and `If`.
        name: name of the action in the log and in status; unique in an instance. Empty: that of
            the first module that starts it.
    """

    on: ActionModule | Sequence[ActionModule]
    do: ActionModule | Sequence[ActionModule]
    name: str = ""


def _read_on(value: object) -> ActionModule:
    return _checked(_module(value, ("on",)))


def _read_step(value: object) -> ActionModule:
    return _checked(_module(value, ("do", "if")))


def _checked(use: ActionModule) -> ActionModule:
    known = definition_of(use)
    if known is not None and known.refused:
        raise ValueError(f"{written_name(known)} does not run: {known.refused}")
    found = [problem.text for problem in module_problems(use, WRITTEN, expression_problem)]
    refused = refused_option(use) if not found else ""
    if refused:
        raise ValueError(f"{use.module.replace('-', '_')}: {refused}")
    if found:
        raise ValueError("; ".join(found))
    return use


def expression_problem(kind: TextKind, text: str) -> str:
    """Returns what is wrong with a filter or with an expression over variables; empty: nothing, as
    far as one can say before its variables are expanded."""
    if kind == "filter":
        return "" if "{{" in text else subscription_filter_problem(text)
    # Without actions, neither the language nor its functions are loaded.
    from raylay.services.actions.pure_steps import check_expression
    from raylay.services.plugins.functions import functions

    try:
        check_expression(text, functions())
    except ExpressionError as error:
        return str(error)
    return ""


def _module(value: object, kinds: tuple[Kind, ...]) -> ActionModule:
    if isinstance(value, ActionModule):
        if value.kind not in kinds:
            raise ValueError(f"expected {_made_by(kinds)}, got {value.kind} {value.module}")
        return value
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError("expected the name of one module, with its options behind a colon")
    ((name, options),) = value.items()
    known = {written_name(each): each for kind in kinds for each in of_kind(kind)}
    module = known.get(str(name))
    if module is None:
        raise ValueError(unknown_module(kinds[0], str(name), known))
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise ValueError(f"expected the options of {name} as keys and values, got {options!r}")
    return ActionModule(module.kind, module.module, tuple(_options(module, options)))


def used_module(kind: Kind, module: str, **options: Any) -> ActionModule:
    """Returns a module with its options, as a script gives them.

    Args:
        options: by the names that YAML has for them; None: not given.

    Raises:
        ConfigurationError: an option is wrong.
    """
    known = MODULES[kind, module]
    given = {
        name: function_path(value) if callable(value) else value
        for name, value in options.items()
        if value is not None
    }
    try:
        return _checked(_module({written_name(known): given}, (kind,)))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def function_path(function: Callable[..., Any]) -> str:
    """Returns `package.module:function` of a function that other processes can import.

    Raises:
        ConfigurationError: it is of the script itself, or inside of another function.
    """
    module = getattr(function, "__module__", "") or ""
    name = getattr(function, "__qualname__", "") or ""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module in ("", "__main__") or found is not function:
        raise ConfigurationError(
            f"the function {name or repr(function)} cannot be imported by instances: define it by "
            "`def` at the top of a module that is installed where they run"
        )
    return f"{module}:{name}"


def _made_by(kinds: tuple[Kind, ...]) -> str:
    return " or ".join(f"a module of {kind.capitalize()}" for kind in kinds)


def _options(module: ModuleDefinition, options: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    by_name = {each.written_name: each for each in module.options}
    for name, value in options.items():
        option = by_name.get(str(name))
        # The checks of all modules refuse an unknown option, and list the known ones.
        documented = option.name if option is not None else str(name)
        if isinstance(value, Mapping):
            value = [f"{key}={each}" for key, each in value.items()]
        for each in value if isinstance(value, list | tuple) else (value,):
            yield documented, _text(option, str(name), each)


def _text(option: OptionDefinition | None, name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if option is not None and option.text == "schedule":
        raise ValueError(f"{name}: give the time in quotes: YAML reads 11:00 as a number")
    if isinstance(value, int | float):
        return str(value)
    raise ValueError(f"{name}: expected a text, got {value!r}")


def _shown(use: ActionModule) -> dict[str, dict[str, Any]]:
    """Returns a module as files have it."""
    known = definition_of(use)
    assert known is not None, "it was checked"
    made: dict[str, Any] = {}
    for name, text in use.options:
        option = known.option(name)
        assert option is not None, "it was checked"
        if option.repeated:
            made.setdefault(option.written_name, []).append(text)
        else:
            made[option.written_name] = text
    return {written_name(known): made}


def _several(value: object) -> object:
    """Returns the modules of an action where it has but one, or has them as keys and values."""
    if isinstance(value, Mapping):
        return [{name: options} for name, options in value.items()]
    return [value] if isinstance(value, str | ActionModule) else value


OnModule = Annotated[ActionModule, BeforeValidator(_read_on), PlainSerializer(_shown)]
StepModule = Annotated[ActionModule, BeforeValidator(_read_step), PlainSerializer(_shown)]


class ActionSettings(Section):
    """An action: what an instance does by itself when something happens (docs/actions.md)."""

    name: Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)] = ""
    """Name in the log and in status, unique in an instance. Empty: that of the first module that
    starts it."""
    on: Annotated[tuple[OnModule, ...], BeforeValidator(_several), Field(min_length=1)]
    """Modules of which each starts the action by itself."""
    do: Annotated[tuple[StepModule, ...], BeforeValidator(_several), Field(min_length=1)]
    """Steps and conditions, in the order in which they are performed."""

    @model_validator(mode="before")
    @classmethod
    def _from_action(cls, value: Any) -> Any:
        if isinstance(value, Action):
            return {"name": value.name, "on": value.on, "do": value.do}
        return value


def definitions(actions: Iterable[ActionSettings]) -> tuple[ActionDefinition, ...]:
    """Returns the actions as an instance has them, each with a name."""
    actions = tuple(actions)
    taken = {each.name for each in actions if each.name}
    made = []
    for each in actions:
        name = each.name or _free(each.on[0].option("Name") or each.on[0].module, taken)
        taken.add(name)
        made.append(ActionDefinition(name, each.on, each.do))
    return tuple(made)


def is_by_instance(on: Iterable[ActionModule], steps: Iterable[ActionModule]) -> bool:
    """Returns whether an instance performs an action by itself, without the process for actions: it
    is started by schedules alone, and only downgrades, upgrades or works on the journal."""
    return all(each.module == "schedule" for each in on) and all(
        each.module in BY_INSTANCE and not any("{{" in text for _, text in each.options)
        for each in steps
    )


class DividedActions(NamedTuple):
    """The actions of an instance, by what performs them.

    Attributes:
        running: actions that the process beside the instance performs.
        journal, age_checks: actions that the instance performs by itself.
    """

    running: tuple[ActionDefinition, ...]
    journal: tuple[JournalAction, ...]
    age_checks: tuple[AgeCheck, ...]


def divided(actions: Iterable[ActionDefinition]) -> DividedActions:
    """Returns actions by what performs them."""
    running, journal, checks = [], [], []
    for action in actions:
        if not is_by_instance(action.on, action.steps):
            running.append(action)
            continue
        every = tuple(occasion(each.option("Every")) for each in action.on)
        for step in action.steps:
            age_ms = interval_us(step.option("Age", "0")) // 1000
            grace_ms = interval_us(step.option("GracePeriod", "0")) // 1000
            if step.module in JOURNAL_STEPS:
                journal.append(JournalAction(JOURNAL_STEPS[step.module], age_ms, every))
            elif step.module == DOWNGRADE:
                checks.append(AgeCheck(age_ms, None, every, grace_ms))
            elif step.module == UPGRADE:
                checks.append(AgeCheck(None, age_ms, every, grace_ms))
    return DividedActions(tuple(running), tuple(journal), tuple(checks))


def _free(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
