"""The actions of an AMPSConfig (behaviour.md 8).

What is done on schedules to links alone (downgrade, upgrade), or to old journal (compress, archive,
remove), the instance does by itself; all other actions are performed by the process beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from raylay.services.actions.checks import (
    endless,
    module_problems,
    refused_option,
    unknown_module,
)
from raylay.services.actions.model import ActionModule, Kind
from raylay.services.actions.modules import ModuleDefinition, named, of_kind
from raylay.services.actions.option_text import interval_us, occasion
from raylay.services.configuration.actions import (
    JOURNAL_STEPS,
    NOTHING,
    UPGRADE,
    Action,
    ActionSettings,
    definitions,
    expression_problem,
    is_by_instance,
)
from raylay.services.configuration.amps.model import (
    ActionStanza,
    AmpsConfig,
    ConditionStanza,
    DoStanza,
    TriggerStanza,
)
from raylay.services.configuration.amps.types import ModuleUse
from raylay.services.configuration.model import downgrade_of
from raylay.services.replication.downgrade import DowngradePolicy

MILLISECOND_NS = 1_000_000
ARCHIVE_JOURNAL = "archive-journal"
DOES_NOTHING = "vacuum-statistics"
Path = tuple[str | int, ...]
_KINDS: dict[type[ModuleUse], tuple[Kind, str]] = {
    TriggerStanza: ("on", "On"),
    ConditionStanza: ("if", "If"),
    DoStanza: ("do", "Do"),
}


def problems_of(config: AmpsConfig) -> Iterator[tuple[Path, str]]:
    """Yields the place and the text of each error in the modules of actions, their options, and
    circles of actions."""
    own = {module.name for module in config.modules.modules} if config.modules else set()
    wrong = False
    for path, use in _uses(config):
        kind, _ = _KINDS[type(use)]
        known = named(kind, use.module)
        if known is None:
            if use.module not in own:
                text = unknown_module(
                    kind, use.module, [each.documented_name for each in of_kind(kind)]
                )
                yield (*path, "Module"), text
            wrong = True
            continue
        for problem in module_problems(_module(known, use), expression=expression_problem):
            where = (*path, "Options", problem.option) if problem.option else path
            yield where, problem.text
            wrong = True
    if not wrong:
        for text in endless(definitions(actions_of(config).running)):
            yield ("Actions",), text


def _uses(config: AmpsConfig) -> Iterator[tuple[Path, ModuleUse]]:
    for number, action in enumerate(config.actions.actions if config.actions else ()):
        path: Path = ("Actions", "Action", number)
        for uses in (action.on, action.conditions, action.steps):
            for inner, use in enumerate(uses):
                yield (*path, _KINDS[type(use)][1], inner), use


def _module(known: ModuleDefinition, use: ModuleUse) -> ActionModule:
    options = tuple((entry.name, entry.value) for entry in use.options.entries)
    return ActionModule(known.kind, known.module, options)


@dataclass(slots=True)
class InstanceActions:
    """The actions of an instance, by what performs them.

    Attributes:
        downgrade: values of `DowngradePolicy`, by name: the first downgrade and the first upgrade
            with an interval.
        looks: values of `AgeCheck`: the others, and those at a time of the day.
        journal: values of `JournalAction`, in the order of the file.
        running: the others, which the process beside the instance performs.
        left: (path, text) of what does not run.
        needless: (path, text) of what has no meaning here, and needs none.
    """

    downgrade: dict[str, int] = field(default_factory=dict)
    looks: list[dict[str, Any]] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    running: list[ActionSettings] = field(default_factory=list)
    left: list[tuple[Path, str]] = field(default_factory=list)
    needless: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def any_downgrade(self) -> bool:
        """Returns whether anything is said of downgrades."""
        return bool(self.downgrade or self.looks)

    def downgrade_settings(self) -> DowngradePolicy:
        """Returns the settings of downgrades and upgrades; without actions for them, destinations
        are never downgraded."""
        values: dict[str, Any] = {
            key: f"{value}ms" if key.endswith("_ms") else value
            for key, value in self.downgrade.items()
        }
        # The documents know ages alone.
        return downgrade_of({**values, "looks": tuple(self.looks), "by_evidence": False})


def actions_of(config: AmpsConfig) -> InstanceActions:
    """Returns the actions of an instance; their modules and options were checked before."""
    made = InstanceActions()
    log = config.transaction_log
    archives = log is not None and log.archive_directory is not None
    for number, action in enumerate(config.actions.actions if config.actions else ()):
        _one(made, ("Actions", "Action", number), action, archives=archives)
    if "age_ms" in made.downgrade:
        # Without an upgrade action nothing is upgraded by age; half the age is Raylay's default.
        made.downgrade.setdefault("upgrade_age_ms", 0)
    tuning = config.tuning.replication if config.tuning else None
    if tuning is not None and tuning.min_sync_destinations is not None:
        made.downgrade["min_sync_destinations"] = tuning.min_sync_destinations
    return made


def _one(made: InstanceActions, path: Path, action: ActionStanza, *, archives: bool) -> None:
    on = []
    for number, start in enumerate(action.on):
        trigger = _known(made, (*path, "On", number), start)
        if trigger is not None:
            on.append(trigger)
    steps = []
    # An `If` guards all steps behind it, so none of them may run when the `If` cannot.
    numbered: list[tuple[int, ModuleUse]] = [
        *enumerate(action.conditions),
        *enumerate(action.steps),
    ]
    for number, use in sorted(numbered, key=lambda each: each[1].position):
        where = (*path, _KINDS[type(use)][1], number)
        step = _known(made, where, use)
        if step is None:
            return
        if step.module == ARCHIVE_JOURNAL and not archives:
            text = f"{use.module} has nowhere to archive to: give JournalArchiveDirectory"
            made.left.append((where, text))
        elif step.module == DOES_NOTHING:
            made.needless.append((where, f"{use.module} needs nothing here: it does nothing"))
        else:
            steps.append(step)
    if not on or not steps:
        return
    if is_by_instance(on, steps):
        for step in steps:
            _on_schedule(made, step, [each.option("Every") for each in on])
    else:
        made.running.append(ActionSettings.model_validate(Action(on, steps)))


def _known(made: InstanceActions, where: Path, use: ModuleUse) -> ActionModule | None:
    """Returns a module that runs; else notes that it does not."""
    kind, tag = _KINDS[type(use)]
    known = named(kind, use.module)
    if known is None:
        text = f"{use.module} is of a Library: no such module of actions runs"
        made.left.append((where, text))
        return None
    if not known.refused:
        found = _module(known, use)
        refused = refused_option(found)
        if refused:
            made.left.append((where, f"{use.module}: {refused}"))
            return None
        return found
    if known.never:
        made.needless.append((where, f"{tag} {use.module} never happens: {known.refused}"))
    else:
        made.left.append((where, f"{use.module} does not run: {known.refused}"))
    return None


def _on_schedule(made: InstanceActions, step: ActionModule, every: list[str]) -> None:
    if step.module in JOURNAL_STEPS:
        made.journal.append(
            {
                "do": JOURNAL_STEPS[step.module],
                "age": f"{_milliseconds(step, 'Age')}ms",
                "every": _times(every),
            }
        )
    elif step.module != NOTHING:
        _look(made, step, every)


def _times(every: list[str]) -> tuple[str, ...]:
    """Returns the times as the settings of a fabric have them."""
    return tuple(each.at or f"{each.every_ms}ms" for each in map(occasion, every))


def _milliseconds(step: ActionModule, option: str) -> int:
    return interval_us(step.option(option, "0")) // 1000


def _look(made: InstanceActions, step: ActionModule, every: list[str]) -> None:
    prefix = "upgrade_" if step.module == UPGRADE else ""
    values = made.downgrade
    age_ms, grace_period_ms = _milliseconds(step, "Age"), _milliseconds(step, "GracePeriod")
    first = occasion(every[0])
    if f"{prefix}age_ms" not in values and len(every) == 1 and not first.at:
        values[f"{prefix}age_ms"] = age_ms
        values[f"{prefix}every_ms"] = first.every_ms
        values[f"{prefix}grace_period_ms"] = grace_period_ms
        return
    made.looks.append(
        {
            f"{prefix}age": f"{age_ms}ms",
            "every": _times(every),
            "grace_period": f"{grace_period_ms}ms",
        }
    )
