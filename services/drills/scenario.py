"""The steps of a drill as data: a file, or one of the scenarios that come with Raylay.

    name: two-cuts
    about: The ocean cable fails, and before it is mended an instance is killed.
    steps:
      - {at: 0s, fault: drop, target: region 1 <-> region 2, for: 10s}
      - {at: 4s, fault: kill_instance, target: serving}

Times of `at` count from the end of the quiet seconds (`before`) that every drill begins with.
`Targets` lists the targets that a step may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from raylay.services.configuration.builder import explain
from raylay.services.configuration.fields import Section
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import (
    Bytes,
    Milliseconds,
    format_bytes,
    format_milliseconds,
    parse_milliseconds,
)

FAULT_MS_MAX = 600_000
AT_MS_MAX = 86_400_000
QUIET_MS_MAX = 3_600_000
"""Most time before the first fault, and most time after the last one."""
DELAY_MS_MAX = 60_000
LOSS_MAX = 0.9
OFFSET_MS_MAX = 3_650 * 86_400_000
"""Largest clock offset: the clock stays after 1970, and within what a journal can hold."""
STEPS_MAX = 100
BUILT_IN_FILE = Path(__file__).with_name("scenarios.yaml")
FILE_BYTES_MAX = 1024 * 1024

TargetKind = Literal["instance", "link", "ways", "instances", "region", "none"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """The targets and the requirements of a fault.

    Attributes:
        lasts: whether a step must, may or must not give `for`.
    """

    target: TargetKind
    lasts: Literal["must", "may", "no"]
    about: str
    options: tuple[str, ...] = ()
    needs_option: bool = True
    """Whether a step must give one of the options, where the fault has any."""


FAULTS: Mapping[str, FaultKind] = {
    "kill_instance": FaultKind(
        "instance", "may", ("SIGKILL; with `for` it stays down for that time")
    ),
    "kill_link": FaultKind("link", "no", "SIGKILL of a link's process"),
    "kill_node": FaultKind("instances", "may", "SIGKILL of everything on a host at once"),
    "kill_gcs": FaultKind("none", "must", "SIGKILL of Ray's head service"),
    "stop_gcs": FaultKind("none", "must", "SIGSTOP of Ray's head service: it does not answer"),
    "cut": FaultKind("ways", "must", "connections are reset, new ones refused"),
    "drop": FaultKind("ways", "must", "data is lost in silence"),
    "slow": FaultKind(
        "ways", "must", "delay, loss and a low rate", ("delay", "loss", "bytes_per_s")
    ),
    "stop": FaultKind(
        "instance", "must", ("SIGSTOP: it does nothing, and its connections stay open")
    ),
    "stop_link": FaultKind("link", "must", "SIGSTOP of a link's process"),
    "full_disk": FaultKind("instance", "must", "every write to its disk fails"),
    "clock_jump": FaultKind("instance", "must", "its clock is set by `offset`", ("offset",)),
    "lose_disk": FaultKind("instance", "no", "SIGKILL, and it starts again on an empty disk"),
    "slow_consumer": FaultKind(
        "region", "must", "a subscriber stops reading", ("memory", "disk"), needs_option=False
    ),
    "kill_consumers": FaultKind("region", "must", "SIGKILL of the consumers of the drills' queue"),
}
OF_A_LOAD = ("slow_consumer", "kill_consumers")
"""Faults that hit clients of the drill's load."""
OPTIONS = {
    "delay": "delay_ms",
    "loss": "loss",
    "bytes_per_s": "bytes_per_s",
    "offset": "offset_ms",
    "memory": "memory_bytes",
    "disk": "disk_bytes",
}
"""Options of steps, with the fields that hold them."""


def _offset_ms(value: object) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    text = str(value).strip()
    try:
        return (-1 if text.startswith("-") else 1) * parse_milliseconds(text.lstrip("+-"), "")
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix(": ")) from None


def _offset(value_ms: int) -> str:
    return ("-" if value_ms < 0 else "+") + format_milliseconds(abs(value_ms))


def _at_most(what: str, value_ms: int, most_ms: int) -> None:
    if abs(value_ms) > most_ms:
        raise ValueError(
            f"{what} {format_milliseconds(abs(value_ms))}: at most {format_milliseconds(most_ms)}"
        )


def _limits(memory_bytes: int, disk_bytes: int) -> str:
    found = [
        f"{format_bytes(size)} {where}"
        for size, where in ((memory_bytes, "of memory"), (disk_bytes, "on disk"))
        if size
    ]
    return f"; slow clients may have {' and '.join(found)}" if found else ""


class FaultStep(Section):
    """One step of a scenario: a fault, its target and its time."""

    at_ms: Milliseconds = 0
    fault: str
    target: str = ""
    lasts_ms: Milliseconds = Field(default=0, alias="for")
    delay_ms: Milliseconds = 0
    """Delay in each direction."""
    loss: Annotated[float, Field(ge=0.0, le=LOSS_MAX)] = 0.0
    """Share of lost segments, of 1,448 bytes each."""
    bytes_per_s: Annotated[int, Field(ge=0)] = 0
    """Bytes per second in each direction; 0: no limit."""
    offset_ms: Annotated[int, BeforeValidator(_offset_ms), PlainSerializer(_offset)] = 0
    """Offset of the clock into the future; negative: into the past."""
    memory_bytes: Annotated[Bytes, Field(ge=0)] = Field(default=0, alias="memory")
    """Memory that slow clients may take at each instance of the region during the step; 0: the
    fabric's own limit."""
    disk_bytes: Annotated[Bytes, Field(ge=0)] = Field(default=0, alias="disk")

    @model_validator(mode="after")
    def _fits(self) -> FaultStep:
        kind = FAULTS.get(self.fault)
        if kind is None:
            raise ValueError(f"no fault is called {self.fault!r}: there are {', '.join(FAULTS)}")
        if kind.lasts == "must" and not self.lasts_ms:
            raise ValueError(f"{self.fault} needs `for`, its duration, such as 10s")
        if kind.lasts == "no" and self.lasts_ms:
            raise ValueError(f"{self.fault} happens at one moment: remove `for`")
        _at_most(f"{self.fault} lasts", self.lasts_ms, FAULT_MS_MAX)
        _at_most("`at` is", self.at_ms, AT_MS_MAX)
        _at_most("`delay` is", self.delay_ms, DELAY_MS_MAX)
        _at_most("`offset` is", self.offset_ms, OFFSET_MS_MAX)
        for name, attribute in OPTIONS.items():
            if getattr(self, attribute) and name not in kind.options:
                allowed = ", ".join(kind.options) or "none"
                raise ValueError(f"{self.fault} takes no `{name}`; its options: {allowed}")
        given = any(getattr(self, OPTIONS[name]) for name in kind.options)
        if kind.options and kind.needs_option and not given:
            raise ValueError(f"{self.fault} needs one of {', '.join(kind.options)}")
        if kind.target == "none" and self.target:
            raise ValueError(f"{self.fault} has no target: remove `target`")
        return self

    @property
    def kind(self) -> FaultKind:
        return FAULTS[self.fault]

    def sentence(self, target: str) -> str:
        """Describes the step for people: `SIGKILL of Chicago-1`."""
        return _SENTENCES[self.fault].format(
            target=target,
            lasts=format_milliseconds(self.lasts_ms),
            away=f", away for {format_milliseconds(self.lasts_ms)}" if self.lasts_ms else "",
            how=", ".join(
                text
                for text in (
                    self.delay_ms and f"{format_milliseconds(self.delay_ms)} each way",
                    self.loss and f"{self.loss:.2g} of segments lost",
                    self.bytes_per_s and f"{self.bytes_per_s:,} bytes/s",
                )
                if text
            ),
            offset=_offset(self.offset_ms),
            limits=_limits(self.memory_bytes, self.disk_bytes),
        )


_SENTENCES = {
    "kill_instance": "SIGKILL of {target}{away}",
    "kill_link": "SIGKILL of the link {target}",
    "kill_node": "SIGKILL of everything on the host of {target}{away}",
    "kill_gcs": "SIGKILL of Ray's GCS",
    "stop_gcs": "SIGSTOP of Ray's GCS for {lasts}",
    "cut": "{target} cut for {lasts}: connections reset and refused",
    "drop": "{target} partitioned for {lasts}: data is lost in silence",
    "slow": "{target} slow for {lasts}: {how}",
    "stop": "SIGSTOP of {target} for {lasts}",
    "stop_link": "SIGSTOP of the link {target} for {lasts}",
    "full_disk": "disk of {target} full for {lasts}",
    "clock_jump": "clock of {target} set by {offset} for {lasts}",
    "lose_disk": "{target} loses its disk",
    "slow_consumer": "a subscriber in {target} reads nothing for {lasts}{limits}",
    "kill_consumers": "the consumers in {target} are killed, and it has none for {lasts}",
}


class LoadSettings(Section):
    """The publishers and subscribers that run during a drill."""

    publishers: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of publishers in each region. 0: the load is the fabric's own, and the journals show
    what was published."""
    rate_per_s: Annotated[float, Field(gt=0, le=100_000)] = Field(default=100.0, alias="rate")
    """Messages a second of each publisher."""
    subscribers: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of subscribers in each region. They are durable and start at the newest message when
    the drill begins."""
    body_bytes: Annotated[int, Field(ge=64, le=1_000_000)] = 128


class DrillScenario(Section):
    """A drill as data: its load and its steps."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    about: str = ""
    before_ms: Annotated[Milliseconds, Field(ge=1_000)] = Field(default=5_000, alias="before")
    """Time for which the load runs before the first fault, for comparison."""
    after_ms: Annotated[Milliseconds, Field(ge=1_000)] = Field(default=8_000, alias="after")
    """Time for which the load goes on after the last fault has ended."""
    load: LoadSettings = LoadSettings()
    steps: tuple[FaultStep, ...]

    @field_validator("steps", mode="before")
    @classmethod
    def _some(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError("expected a list of steps, such as `- {fault: kill_instance}`")
        if not 1 <= len(value) <= STEPS_MAX:
            raise ValueError(f"there are {len(value):,} steps: give 1 to {STEPS_MAX}")
        return value

    @model_validator(mode="after")
    def _has_whom_it_needs(self) -> DrillScenario:
        _at_most("`before` is", self.before_ms, QUIET_MS_MAX)
        _at_most("`after` is", self.after_ms, QUIET_MS_MAX)
        needs = [step.fault for step in self.steps if step.fault in OF_A_LOAD]
        if self.own_load and needs:
            raise ValueError(
                f"{needs[0]} needs a load of the drill's own: set `publishers` to at least 1"
            )
        return self

    @property
    def faults_ms(self) -> int:
        """Time from the first fault to the end of the last one."""
        return max(step.at_ms + step.lasts_ms for step in self.steps)

    @property
    def seconds(self) -> float:
        """Duration of the load in seconds."""
        return (self.before_ms + self.faults_ms + self.after_ms) / 1000

    @property
    def own_load(self) -> bool:
        return not self.load.publishers

    def with_own_load(self) -> DrillScenario:
        """Returns a copy of the scenario without publishers, so that the fabric's own load is
        judged.

        Raises:
            ConfigurationError: a step hits a client of the drill.
        """
        if any(step.fault in OF_A_LOAD for step in self.steps):
            raise ConfigurationError(
                f"{self.name} hits clients of the drill's own: run it with `publishers` of at "
                "least 1"
            )
        load = self.load.model_copy(update={"publishers": 0, "subscribers": 0})
        return self.model_copy(update={"load": load})

    def with_rate(self, rate_per_s: float) -> DrillScenario:
        """Returns a copy of the scenario with another rate of each publisher.

        Raises:
            ConfigurationError: the rate is out of range.
        """
        values = {**self.load.model_dump(by_alias=True), "rate": rate_per_s}
        try:
            return self.model_copy(update={"load": LoadSettings.model_validate(values)})
        except ValidationError as error:
            (_, text), *_ = explain(error, LoadSettings)
            raise ConfigurationError(text) from None

    def with_target(self, target: str) -> DrillScenario:
        """Returns a copy of the scenario whose first step has another target.

        Raises:
            ConfigurationError: the fault of that step has no target.
        """
        values = {**self.steps[0].model_dump(by_alias=True), "target": target}
        try:
            first = FaultStep.model_validate(values)
        except ValidationError as error:
            (_, text), *_ = explain(error, FaultStep)
            raise ConfigurationError(text) from None
        return self.model_copy(update={"steps": (first, *self.steps[1:])})


def parse(values: Any, where: str) -> DrillScenario:
    """Returns the scenario that a file's content describes.

    Raises:
        ConfigurationError: something is wrong; the error names the step and what is allowed.
    """
    if not isinstance(values, dict):
        raise ConfigurationError(f"{where} holds no scenario: give `name` and `steps`")
    try:
        return DrillScenario.model_validate(values)
    except ValidationError as error:
        lines = [f"{where}: {_shown(*found)}" for found in explain(error, DrillScenario)]
        raise ConfigurationError("\n".join(lines)) from None


def _shown(path: Sequence[int | str], text: str) -> str:
    if len(path) > 1 and path[0] == "steps" and isinstance(path[1], int):
        rest = text.removeprefix(".".join(str(part) for part in path)).removeprefix(": ")
        inside = ".".join(str(part) for part in path[2:])
        # What a whole step is wrong of is not told again as it was written.
        rest = re.sub(r", got \{.*\}$", "", rest)
        return f"step {path[1] + 1}{', ' + inside if inside else ''}: {rest}"
    return text


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses a repeated key, of which YAML would take the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            # Two of `<<` are no values of their own.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> DrillScenario:
    """Returns the scenario of a YAML file.

    Raises:
        ConfigurationError: the file cannot be read or is wrong; the error says where.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigurationError(f"{path} is longer than {FILE_BYTES_MAX:,} bytes")
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    if isinstance(values, dict):
        values.setdefault("name", re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-"))
    return parse(values, str(path))


@cache
def built_in() -> dict[str, DrillScenario]:
    listed = yaml.safe_load(BUILT_IN_FILE.read_text(encoding="utf-8"))
    found = [parse(values, BUILT_IN_FILE.name) for values in listed]
    return {scenario.name: scenario for scenario in found}


def find(name: str) -> DrillScenario:
    """Returns a built-in scenario by its name, or the scenario of a file.

    Raises:
        ConfigurationError: there is neither; the error lists the built-in ones.
    """
    known = built_in()
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.exists():
        return load(path)
    raise ConfigurationError(
        f"no scenario is called {name!r}: give a YAML file, or one of {', '.join(known)}"
    )


# -- targets -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FaultHit:
    """The targets of a step in a fabric.

    Attributes:
        text: a description.
        instances: the names of the instances.
        ways: (instance, destination, forward) of the links between two sides; `forward`: from the
            first side to the second.
        both: whether both directions are hit.
        region: the region of the clients that are hit.
    """

    text: str
    instances: tuple[str, ...] = ()
    ways: tuple[tuple[str, str, bool], ...] = ()
    both: bool = True
    region: str = ""


class Targets:
    """Finds what the targets of steps mean in a fabric.

        Chicago-1, serving, partner     an instance: by name, the one that the first region's
                                        publisher uses, another one of its region
        Chicago, region 1               a region: by name or number
        Chicago-1 -> Chicago-2          a link, or the way from one side to the other
        Chicago <-> London, rest        both ways; `rest`: all but the first side

    Args:
        serving: the instance that the first publisher uses now.
    """

    def __init__(self, settings: FabricSettings, serving: str) -> None:
        self._settings = settings
        self._serving = serving
        self._names = [instance.name for instance in settings.instances]
        self._groups = settings.groups()

    def resolve(self, step: FaultStep) -> FaultHit:
        """Resolves the target of a step.

        Raises:
            ConfigurationError: the fabric has no such target; the error lists those that it has.
        """
        kind = step.kind.target
        try:
            return getattr(self, f"_{kind}")(step.target)  # type: ignore[no-any-return]
        except ConfigurationError as error:
            raise ConfigurationError(f"{step.fault}: {error}") from None

    def _none(self, target: str) -> FaultHit:
        return FaultHit("")

    def _instance(self, target: str) -> FaultHit:
        name = self._an_instance(target or "serving")
        return FaultHit(name, (name,))

    def _instances(self, target: str) -> FaultHit:
        region, names = self._side(target or self._group_of(self._serving))
        return FaultHit(region, names)

    def _region(self, target: str) -> FaultHit:
        region = self._a_group(target or "region 1")
        if region is None:
            raise ConfigurationError(f"{target!r} is not a region: {self._known_groups()}")
        return FaultHit(region, region=region)

    def _link(self, target: str) -> FaultHit:
        hit = self._ways(target or "serving -> partner")
        forward = [way for way in hit.ways if way[2]]
        if not forward:
            raise ConfigurationError(f"there is no link {hit.text}")
        instance, destination, _ = forward[0]
        return FaultHit(f"{instance} to {destination}", (instance,), (forward[0],))

    def _ways(self, target: str) -> FaultHit:
        target = target or "region 1 <-> rest"
        parts = re.split(r"\s*(<->|->)\s*", target.strip())
        if len(parts) != 3 or not parts[0] or not parts[2]:
            raise ConfigurationError(
                f"{target!r} does not name two sides: write `Chicago <-> London`, or `->` for one "
                "way"
            )
        left, arrow, right = parts
        first, ours = self._side(left)
        if right == "rest":
            second, theirs = "the rest", tuple(n for n in self._names if n not in ours)
        else:
            second, theirs = self._side(right)
        if set(ours) & set(theirs):
            raise ConfigurationError(
                f"{target!r}: {', '.join(set(ours) & set(theirs))} is on both sides"
            )
        ways = [*self._links(ours, theirs, True), *self._links(theirs, ours, False)]
        if not ways:
            raise ConfigurationError(f"there is no link between {first} and {second}")
        both = arrow == "<->"
        text = f"{first} and {second}" if both else f"{first} to {second}"
        return FaultHit(text, (*ours, *theirs), tuple(ways), both)

    def _links(
        self, sources: Iterable[str], targets: Iterable[str], forward: bool
    ) -> list[tuple[str, str, bool]]:
        found = []
        wanted = set(targets)
        for name in sources:
            for destination in self._settings.instance(name).destinations:
                to = set(destination.to)
                if not to:
                    to = {i.name for i in self._settings.group(destination.group)}
                if to & wanted:
                    found.append((name, destination.name, forward))
        return found

    # -- names -----------------------------------------------------------------------------------
    def _side(self, text: str) -> tuple[str, tuple[str, ...]]:
        group = self._a_group(text)
        if group is not None:
            return group, tuple(i.name for i in self._settings.group(group))
        name = self._an_instance(text)
        return name, (name,)

    def _an_instance(self, text: str) -> str:
        if text == "serving":
            return self._serving
        if text == "partner":
            others = [
                instance.name
                for instance in self._settings.group(self._group_of(self._serving))
                if instance.name != self._serving
            ]
            if not others:
                raise ConfigurationError(
                    f"{self._serving} is the only instance of its region: `partner` names none"
                )
            return others[0]
        if text in self._names:
            return text
        raise ConfigurationError(
            f"{text!r} is not an instance of this fabric: {', '.join(self._names)}, `serving` or "
            f"`partner`; {self._known_groups()}"
        )

    def _a_group(self, text: str) -> str | None:
        match = re.fullmatch(r"region (\d+)", text)
        if match:
            number = int(match[1])
            if not 1 <= number <= len(self._groups):
                raise ConfigurationError(
                    f"there is no region {number}: this fabric has {len(self._groups)} "
                    f"({', '.join(self._groups)})"
                )
            return self._groups[number - 1]
        return text if text in self._groups and text not in self._names else None

    def _group_of(self, name: str) -> str:
        return self._settings.instance(name).group

    def _known_groups(self) -> str:
        return f"its regions are {', '.join(self._groups)}, or `region 1` and so on"
