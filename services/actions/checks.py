"""Checks of actions before they run: modules, options and their texts, and circles of actions that
would start one another for ever.

A circle is refused where nothing can end it: no content filter, and no condition before the step.
Every other one is bounded while it runs (`engine`): no chain of actions is longer than the limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from raylay.services.actions.message_triggers import subscription_options
from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.actions.modules import ModuleDefinition, TextKind, definition_of, of_kind
from raylay.services.actions.option_text import assignment, flag, text_problem
from raylay.services.actions.variables import names_in
from raylay.services.errors import ConfigurationError
from raylay.services.messages.event_topics import EVENTS, is_event_topic
from raylay.services.messages.topics import compile_regex, is_regex

CUTOFF = 0.7
"""Likeness, of 1, from which an unknown name is taken for a misspelled one."""

ExpressionCheck = Callable[[TextKind, str], str]
"""Function that returns what is wrong with a filter or a condition; empty: nothing."""


class ModuleProblem(NamedTuple):
    """A fault of one module of an action.

    Attributes:
        option: documented name of the option that is wrong; empty: the module itself is.
        text: sentence that says what is wrong, and what to do.
    """

    option: str
    text: str


class NamingScheme(NamedTuple):
    """The functions that give modules and options the names that a configuration has for them."""

    module: Callable[[ModuleDefinition], str]
    option: Callable[[str], str]


DOCUMENTED = NamingScheme(lambda module: module.documented_name, lambda option: option)


def near(name: str, known: Iterable[str]) -> str:
    """Returns the most similar of some names; empty: none is similar."""
    close = difflib.get_close_matches(name, list(known), 1, CUTOFF)
    return close[0] if close else ""


def unknown_module(kind: str, name: str, written: Iterable[str]) -> str:
    """Returns the error text of a module that does not exist.

    Args:
        name: name of the module in the configuration.
        written: names of the modules of this kind, as the configuration writes them.
    """
    # The prefix that all names share would make each of them similar to every other one.
    begin = f"amps-action-{kind}-"
    by_rest = {each.removeprefix(begin): each for each in written}
    close = near(name.removeprefix(begin), by_rest)
    if close:
        advice = f"is {by_rest[close]} meant?"
    else:
        advice = f"expected one of {', '.join(by_rest.values())}"
    return f"{name} is no {kind.capitalize()} module: {advice}"


def module_problems(
    use: ActionModule,
    names: NamingScheme = DOCUMENTED,
    expression: ExpressionCheck = lambda kind, text: "",
) -> Iterator[ModuleProblem]:
    """Yields what is wrong with a module and its options.

    Args:
        names: the names of the configuration.
        expression: check of filters and conditions.
    """
    known = definition_of(use)
    if known is None:
        known_names = [each.module for each in of_kind(use.kind)]
        yield ModuleProblem("", unknown_module(use.kind, use.module, known_names))
        return
    shown = names.module(known)
    given = [name for name, _ in use.options]
    for option in known.options:
        if option.required and option.name not in given:
            yield ModuleProblem("", f"{shown} has no {names.option(option.name)}: give it one")
        if not option.repeated and given.count(option.name) > 1:
            text = f"{shown} has {names.option(option.name)} twice: give it once"
            yield ModuleProblem(option.name, text)
    if known.one_of and len([name for name in given if name in known.one_of]) != 1:
        either = " or ".join(names.option(name) for name in known.one_of)
        yield ModuleProblem("", f"{shown} needs either {either}")
    for name, text in use.options:
        found = known.option(name)
        if found is None:
            yield ModuleProblem(name, _unknown_option(name, known, names))
            continue
        wrong = text_problem(found, text) or (
            _on_problem(use, name, text) if use.kind == "on" else ""
        )
        if not wrong and found.text in ("filter", "condition"):
            wrong = expression(found.text, text)
        elif not wrong and found.text == "assignment" and not text.startswith("{{"):
            wrong = expression("condition", assignment(text)[1])
        if not wrong and known.changes_topic and name == "Topic" and is_event_topic(text):
            wrong = f"topics that begin with {EVENTS} are the instance's own: take another one"
        if wrong:
            yield ModuleProblem(name, f"{names.option(name)} of {shown}: {wrong}")


def _on_problem(use: ActionModule, name: str, text: str) -> str:
    """Returns why an `on` module cannot begin with the text of an option; empty: it can."""
    variables = sorted(names_in(text))
    if variables:
        return (
            f"{variables[0]} is no variable yet: nothing sets one before an action begins. Use it "
            "in an If or a Do"
        )
    if use.module == "publish-message" and name == "Options":
        try:
            subscription_options(text)
        except ConfigurationError as error:
            return str(error)
    return ""


def refused_option(use: ActionModule) -> str:
    """Returns which option of a module does not run, and why, where its texts were checked; empty:
    all of them run."""
    known = definition_of(use)
    for name, text in use.options:
        option = known.option(name) if known is not None else None
        if option is not None and option.refused and "{{" not in text and flag(text):
            return f"{name} {text.strip()} does not run: {option.refused}"
    return ""


def _unknown_option(name: str, known: ModuleDefinition, names: NamingScheme) -> str:
    allowed = [names.option(each.name) for each in known.options]
    close = near(names.option(name), allowed)
    if not allowed:
        advice = "it has none"
    elif close:
        advice = f"is {close} meant?"
    else:
        advice = f"expected {', '.join(allowed)}"
    return f"{names.option(name)} is no option of {names.module(known)}: {advice}"


def check_actions(actions: Iterable[ActionDefinition], where: str) -> None:
    """Checks the actions of an instance before it starts.

    Raises:
        ConfigurationError: with one line for each thing that is wrong.
    """
    actions = tuple(actions)
    found = []
    for action in actions:
        begin = f"{where}: action {action.name}"
        if not action.on:
            found.append(f"{begin} has no On: name what starts it")
        if not any(step.kind == "do" for step in action.steps):
            found.append(f"{begin} has no Do: name what it does")
        for use in (*action.on, *action.steps):
            found += [f"{begin}: {problem.text}" for problem in module_problems(use)]
    names = [action.name for action in actions]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            found.append(
                f"{where}: {names.count(name)} actions are called {name}: give each a name"
            )
    found += [f"{where}: {text}" for text in endless(actions)]
    if found:
        raise ConfigurationError("\n".join(found))


# -- circles -------------------------------------------------------------------------------------
def endless(actions: Sequence[ActionDefinition]) -> list[str]:
    """Returns an error text for each circle of actions that start one another for ever."""
    starts = {
        number: [
            other for other, started in enumerate(actions) if _certainly_starts(action, started)
        ]
        for number, action in enumerate(actions)
    }
    found: list[str] = []
    told: set[frozenset[int]] = set()
    for number in starts:
        circle = _circle(number, starts)
        if circle and frozenset(circle) not in told:
            told.add(frozenset(circle))
            names = [actions[each].name for each in circle]
            how = f"starts {', which starts '.join((*names[1:], names[0]))}"
            found.append(
                f"action {names[0]} {how}, for ever: publish to another topic, or narrow what "
                "starts it by a Filter or an If"
            )
    return found


def _circle(start: int, starts: dict[int, list[int]]) -> list[int]:
    """Returns the shortest way from an action back to itself; empty: there is none."""
    ways = [[start]]
    seen: set[int] = set()
    for way in ways:
        for following in starts[way[-1]]:
            if following == start:
                return way
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def _certainly_starts(action: ActionDefinition, other: ActionDefinition) -> bool:
    """Returns whether every run of an action starts another one."""
    for step in action.steps:
        if step.kind == "if":
            return False
        for trigger in other.on:
            if _starts(step, trigger, action.on):
                return True
    return False


def _starts(step: ActionModule, trigger: ActionModule, on: tuple[ActionModule, ...]) -> bool:
    """Returns whether a step certainly causes an occurrence that a trigger takes.

    Args:
        on: the triggers of the step's own action.
    """
    if step.module == "publish-message" and trigger.module == "publish-message":
        return (
            not trigger.option("Filter")
            and trigger.option("MessageSource", "all") != "replicated"
            and step.option("MessageType") == trigger.option("MessageType")
            and (
                _takes(trigger.option("Topic"), step.option("Topic"))
                or (trigger in on and step.option("Topic") == "{{AMPS_TOPIC}}")
            )
        )
    if step.module == "execute-event" and trigger.module == "execute-event":
        return step.option("Event") == trigger.option("Event") != ""
    return False


def _takes(rule: str, topic: str) -> bool:
    """Returns whether a rule certainly names a topic; False where the topic has variables, which
    are not expanded yet."""
    if "{{" in topic or not topic:
        return False
    if not is_regex(rule):
        return rule == topic
    try:
        return compile_regex(rule, "Topic").search(topic) is not None
    except ConfigurationError:
        return False
