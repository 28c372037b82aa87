"""The modules of actions, their options, and what of them the running system does
(behaviour.md 8): what is done on a schedule to links (downgrade, upgrade) and to old journal
(compress, archive, remove).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raylay.services.configuration.amps.model import Action, AmpsConfig, ConditionStanza
from raylay.services.configuration.amps.types import ModuleUse, check_schedule
from raylay.services.configuration.amps.units import parse_interval_ns
from raylay.services.configuration.model import downgrade_of
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.replication.timetable import is_time_of_day

MILLISECOND_NS = 1_000_000
SCHEDULE = "amps-action-on-schedule"
DOWNGRADE = "amps-action-do-downgrade-replication"
UPGRADE = "amps-action-do-upgrade-replication"
ARCHIVE_JOURNAL = "amps-action-do-archive-journal"
JOURNAL_STEPS = {
    "amps-action-do-compress-journal": "compress",
    ARCHIVE_JOURNAL: "archive",
    "amps-action-do-remove-journal": "remove",
}
NOTHING = "amps-action-do-nothing"
Path = tuple[str | int, ...]


class OptionRule(NamedTuple):
    """The options of a module."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def _modules(kind: str, text: str) -> dict[str, OptionRule]:
    # A line a module: names with a common beginning, then options; `?` marks optional ones.
    made = {}
    for line in text.strip().splitlines():
        names, _, options = line.strip().partition(" ")
        words = options.split()
        known = OptionRule(
            tuple(word for word in words if not word.endswith("?")),
            tuple(word[:-1] for word in words if word.endswith("?")),
        )
        made.update({f"amps-action-{kind}-{name}": known for name in names.split(",")})
    return made


ON_MODULES = _modules(
    "on",
    """
    schedule Every Name?
    startup,shutdown,minidump
    signal Signal
    admin Path RequiredParameter? Name? Description?
    connect-client,disconnect-client,logon-client,offline-start,offline-stop
    subscribe,unsubscribe Topic? MessageType?
    connect-incoming-replication,disconnect-incoming-replication
    connect-replication,disconnect-replication,replication-resync-complete
    upgrade-replication,downgrade-replication
    publish-message Topic MessageType MessageSource? Filter? Options?
    deliver-message Topic MessageType
    message-affinity MessageType ControlTopic DataTopic DataFilter?
    sow-expire-message Topic MessageType Reason?
    sow-delete-message Topic MessageType
    oof-message Topic MessageType Filter? Type?
    message-condition-timeout Topic MessageType Duration Filter?
    alert Topic MessageType Duration? Filter? OOFEvent? TimeoutEvent? EventVariable?
    execute-event Event
    """,
)
IF_MODULES = _modules(
    "if",
    """
    condition Condition
    file-system-usage Path GreaterThan
    """,
)
DO_MODULES = _modules(
    "do",
    """
    rotate-logs,minidump,shutdown,nothing,vacuum-statistics
    compress-files,remove-files Pattern Age? Keep? Count?
    truncate-statistics,archive-journal,compress-journal,remove-journal Age
    delete-sow Topic MessageType Filter
    compact-sow Topic? MessageType?
    query-sow Topic MessageType Filter? CaptureData? DefaultData? OrderBy? Options?
    enable-authentication,disable-authentication,enable-entitlement,disable-entitlement
    reset-authentication,reset-entitlement Transport? AuthenticationId?
    enable-transport,disable-transport Transport?
    publish-message Topic MessageType Data Delta? UpdateOnly?
    downgrade-replication,upgrade-replication Age GracePeriod?
    extract-values MessageType Value Data
    translate-data Data Value Case? Default?
    increment-counter Key Value?
    execute-event Event? EventVariable?
    execute-system Command
    enable-proxied-transfer,disable-proxied-transfer Topic MessageType
    echo-message Message
    """,
)
_INTERVALS = frozenset(("Age", "GracePeriod", "Duration"))


def module_problems(config: AmpsConfig) -> Iterator[tuple[Path, str]]:
    """Yields the place and the text of each error in modules and their options."""
    own = {module.name for module in config.modules.modules} if config.modules else set()
    for path, use, known in _uses(config):
        options = known.get(use.module)
        if options is None:
            if use.module not in own:
                yield (*path, "Module"), _unknown_module(use.module, known)
            continue
        yield from _option_problems(path, use, options)


def _uses(config: AmpsConfig) -> Iterator[tuple[Path, ModuleUse, dict[str, OptionRule]]]:
    for number, action in enumerate(config.actions.actions if config.actions else ()):
        path: Path = ("Actions", "Action", number)
        for kind, uses, known in (
            ("On", action.on, ON_MODULES),
            ("If", action.conditions, IF_MODULES),
            ("Do", action.steps, DO_MODULES),
        ):
            for inner, use in enumerate(uses):
                yield (*path, kind, inner), use, known


def _unknown_module(name: str, known: dict[str, OptionRule]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"{name} is no module here and none of Modules: " + (
        f"is {close[0]} meant?" if close else f"expected one of {', '.join(known)}"
    )


def _option_problems(path: Path, use: ModuleUse, known: OptionRule) -> Iterator[tuple[Path, str]]:
    allowed = (*known.required, *known.optional)
    given = {entry.name for entry in use.options.entries}
    for name in known.required:
        if name not in given:
            yield path, f"{use.module} has no {name}: give it in Options"
    for entry in use.options.entries:
        where = (*path, "Options", entry.name)
        if entry.name not in allowed:
            yield (
                where,
                f"{entry.name} is no option of {use.module}: "
                + (f"expected {', '.join(allowed)}" if allowed else "it has none"),
            )
            continue
        try:
            if entry.name == "Every":
                check_schedule(entry.value)
            elif entry.name in _INTERVALS and "{{" not in entry.value:
                parse_interval_ns(entry.value)
        except ValueError as error:
            yield where, f"{entry.name}: {error}"


@dataclass(slots=True)
class ActionSchedules:
    """The actions of an instance that the running system performs.

    Attributes:
        downgrade: values of `DowngradePolicy`, by name: the first downgrade and the first upgrade
            with an interval.
        looks: values of `AgeCheck`: the others, and those at a time of the day.
        journal: values of `JournalAction`, in the order of the file.
        left: (path, text) of what does not run.
    """

    downgrade: dict[str, int] = field(default_factory=dict)
    looks: list[dict[str, Any]] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    left: list[tuple[Path, str]] = field(default_factory=list)

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
        return downgrade_of({**values, "looks": tuple(self.looks)})


def schedules_of(config: AmpsConfig) -> ActionSchedules:
    """Returns the schedules of an instance's actions; the configuration was checked before."""
    made = ActionSchedules()
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


def _one(made: ActionSchedules, path: Path, action: Action, *, archives: bool) -> None:
    other = [use.module for use in action.on if use.module != SCHEDULE]
    if other:
        made.left.append((path, f"the action on {other[0]} does not run yet"))
        return
    every = [use.options.get("Every") or "" for use in action.on]
    for number, step in enumerate(_ordered(action)):
        where = (*path, "Do", number) if not isinstance(step, ConditionStanza) else (*path, "If", 0)
        if isinstance(step, ConditionStanza):
            made.left.append((where, "If does not run yet, nor does the rest of its action"))
            return
        if step.module == NOTHING:
            continue
        if step.module == ARCHIVE_JOURNAL and not archives:
            made.left.append(
                (where, f"{step.module} has nowhere to archive to: give JournalArchiveDirectory")
            )
        elif step.module in JOURNAL_STEPS:
            made.journal.append(
                {
                    "do": JOURNAL_STEPS[step.module],
                    "age": f"{_milliseconds(step, 'Age')}ms",
                    "every": _times(every),
                }
            )
        elif step.module in (DOWNGRADE, UPGRADE):
            _look(made, step, every)
        else:
            made.left.append((where, f"{step.module} does not run yet"))


def _ordered(action: Action) -> list[ModuleUse]:
    # Ifs stand before or between the Dos: what is behind one that does not run must not run.
    return sorted((*action.conditions, *action.steps), key=lambda use: use.position)


def _times(every: list[str]) -> tuple[str, ...]:
    """Returns the times as the settings of a fabric have them."""
    return tuple(
        text.strip() if is_time_of_day(text) else f"{_interval_ms(text)}ms" for text in every
    )


def _interval_ms(text: str) -> int:
    return max(1, parse_interval_ns(text) // MILLISECOND_NS)


def _milliseconds(step: ModuleUse, option: str) -> int:
    return parse_interval_ns(step.options.get(option) or "0") // MILLISECOND_NS


def _look(made: ActionSchedules, step: ModuleUse, every: list[str]) -> None:
    prefix = "upgrade_" if step.module == UPGRADE else ""
    values = made.downgrade
    age_ms, grace_period_ms = _milliseconds(step, "Age"), _milliseconds(step, "GracePeriod")
    if f"{prefix}age_ms" not in values and len(every) == 1 and not is_time_of_day(every[0]):
        values[f"{prefix}age_ms"] = age_ms
        values[f"{prefix}every_ms"] = _interval_ms(every[0])
        values[f"{prefix}grace_period_ms"] = grace_period_ms
        return
    made.looks.append(
        {
            f"{prefix}age": f"{age_ms}ms",
            "every": _times(every),
            "grace_period": f"{grace_period_ms}ms",
        }
    )
