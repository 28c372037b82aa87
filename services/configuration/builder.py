"""Declares a fabric in a few calls. Python scripts and YAML files both come through here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Self, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from raylay.services.configuration.fields import name_in_files
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
    TopicSettings,
)
from raylay.services.configuration.topology import problems
from raylay.services.errors import ConfigurationError
from raylay.services.messages.spelling import did_you_mean
from raylay.services.messages.topics import all_but
from raylay.services.messages.units import format_bytes, format_milliseconds

TopicLike = TopicSettings | str | Mapping[str, Any]
Origins = dict[tuple[str, ...], str]
"""Place (`file:line`) where an instance, or a destination of one (instance, destination), was
declared."""
Mode = str
"""`sync` or `async`."""
Model = TypeVar("Model", bound=BaseModel)


def Topic(name: str, message_type: str = "*", *, journaled: bool = True) -> TopicSettings:
    """Returns the settings of a topic, or of all topics that a regular expression matches, for
    `Fabric(topics=…)`. Messages of a topic that is not journaled are delivered to live subscribers
    only."""
    return TopicSettings(name=name, message_type=message_type, journaled=journaled)


class FabricBuilder:
    """The declaration of a fabric, call by call; `settings()` checks and completes it."""

    def __init__(self, name: str, *, downgrade_age: str | None = None, **sections: Any) -> None:
        """
        Args:
            name: name of the fabric.
            downgrade_age: short for `downgrade={"age": …}`.
            sections: fields of `FabricSettings`, as `Fabric` describes them; None: the default.

        Raises:
            ConfigurationError: a value is wrong.
        """
        given = {key: value for key, value in sections.items() if value is not None}
        if downgrade_age is not None:
            if "downgrade" in given:
                raise ConfigurationError("give either downgrade or downgrade_age")
            given["downgrade"] = {"age": downgrade_age}
        for key in (
            "topics",
            "message_types",
            "sow_topics",
            "views",
            "conflated_topics",
            "queues",
            "actions",
        ):
            # A text would become a tuple of its letters; the model refuses a text.
            if key in given and not isinstance(given[key], str | Mapping):
                given[key] = tuple(given[key])
        self._instances: dict[str, dict[str, Any]] = {}
        self._destinations: dict[str, list[DestinationSettings]] = {}
        self._regions: list[str] = []
        self._of_regions: set[tuple[str, str]] = set()
        """Instances and destinations that regions made, of all that may be replicated."""
        self.origins: Origins = {}
        """Places where the parts of the fabric are declared; error messages begin with them."""
        self.settings_base = _validated(FabricSettings, {"name": name, **given}, f"fabric {name}")

    # -- declaring ---------------------------------------------------------------------------
    def region(
        self,
        name: str,
        instances: int | Sequence[str] = 2,
        *,
        links: Mode | None = "sync",
        origin: str = "",
        **options: Any,
    ) -> Self:
        """Adds a group of instances, as `Fabric.region` does."""
        if name in self._regions:
            raise ConfigurationError(f"region {name} is declared twice")
        if isinstance(instances, int):
            if instances < 1:
                raise ConfigurationError(f"region {name} has {instances} instances: give 1 or more")
            names = [f"{name}-{number}" for number in range(1, instances + 1)]
        elif isinstance(instances, str):
            raise ConfigurationError(
                f"region {name}: expected a number of instances or a list of names such as "
                f"[{instances!r}], got {instances!r}"
            )
        else:
            names = list(instances)
            if not names:
                raise ConfigurationError(f"region {name} has no instances: name one or more")
        sync = _is_sync(links, f"region {name}") if links is not None else False
        for member in names:
            self.instance(member, group=name, origin=origin, **options)
        self._regions.append(name)
        for member in names if links is not None else ():
            for other in names:
                if other != member:
                    self.destination(
                        member, to=[other], sync=sync, pass_through=".*", group=name, origin=origin
                    )
                    self._of_regions.add((member, other))
        return self

    def connect_regions(
        self,
        mode: Mode = "async",
        *,
        origin: str = "",
        pass_through: str | None = "own",
        **options: Any,
    ) -> Self:
        """Links every instance of every region to the others, as `Fabric.connect_regions` does."""
        if len(self._regions) < 2:
            raise ConfigurationError(
                "connect_regions needs two regions or more: declare them first, or leave it out"
            )
        sync = _is_sync(mode, "connect_regions")
        members = {region: self._members(region) for region in self._regions}
        for region, names in members.items():
            for name in names:
                for other in self._regions:
                    if other != region:
                        self.destination(
                            name,
                            to=members[other],
                            name=other,
                            sync=sync,
                            pass_through=f"^{re.escape(region)}$"
                            if pass_through == "own"
                            else pass_through,
                            own_group_only=pass_through == "own",
                            group=other,
                            origin=origin,
                            **options,
                        )
                        if "topics" not in options:
                            self._of_regions.add((name, other))
        return self

    def instance(
        self, name: str, group: str | None = None, *, origin: str = "", **options: Any
    ) -> Self:
        """Adds an instance, or options of one, as `Fabric.instance` does."""
        known = self._instances.get(name)
        if known is not None and (not options or (group is not None and group != known["group"])):
            first = self.origins.get((name,), "")
            raise ConfigurationError(
                f"instance {name} is declared twice" + (f", first at {first}" if first else "")
            )
        made = {**(known or {"name": name, "group": group or name}), **options}
        _validated(InstanceSettings, made, f"instance {name}")
        self._instances[name] = made
        self._destinations.setdefault(name, [])
        if origin:
            self.origins.setdefault((name,), origin)
        return self

    def destination(
        self,
        source: str,
        to: str | Sequence[str],
        *,
        sync: bool = False,
        pass_through: str | None = None,
        topics: Iterable[TopicLike] = (".*",),
        name: str = "",
        group: str = "",
        origin: str = "",
        **options: Any,
    ) -> Self:
        """Adds a destination of an instance, as `Fabric.destination` does."""
        targets = [to] if isinstance(to, str) else list(to)
        if source not in self._instances:
            raise ConfigurationError(
                f"destination from {source}: no instance of that name is declared; there are "
                f"{', '.join(self._instances) or 'none'}"
            )
        if not group:
            group = next((self._instances[t]["group"] for t in targets if t in self._instances), "")
        if not name:
            single = len(targets) == 1 and ":" not in targets[0]
            name = targets[0] if single else group or "destination"
        made = _validated(
            DestinationSettings,
            {
                "name": name,
                "group": group,
                "to": tuple(targets),
                "sync": sync,
                "pass_through": pass_through,
                "topics": topics if isinstance(topics, str) else tuple(topics),
                **options,
            },
            f"destination {name} of {source}",
        )
        self._destinations[source].append(made)
        if origin:
            self.origins[(source, name)] = origin
        return self

    # -- the result --------------------------------------------------------------------------
    def _members(self, region: str) -> list[str]:
        return [name for name, made in self._instances.items() if made["group"] == region]

    def _shared(self, settings: FabricSettings, instance: InstanceSettings) -> InstanceSettings:
        """Returns an instance whose links between regions leave out the topics of the queues that
        it shares with no other."""
        local = [each.name for each in settings.queues_of(instance) if not each.is_distributed]
        if not local:
            return instance
        topics = (TopicSettings(name=all_but(local)),)
        made = tuple(
            each.model_copy(update={"topics": topics})
            if (instance.name, each.name) in self._of_regions
            else each
            for each in instance.destinations
        )
        return instance.model_copy(update={"destinations": made})

    def settings(self) -> FabricSettings:
        """Returns the settings of the whole fabric, checked.

        Raises:
            ConfigurationError: with one line for each thing that is wrong.
        """
        instances = tuple(
            _validated(
                InstanceSettings,
                {**made, "destinations": tuple(self._destinations[name])},
                f"instance {name}",
            )
            for name, made in self._instances.items()
        )
        settings = self.settings_base.model_copy(update={"instances": instances})
        settings = settings.model_copy(
            update={"instances": tuple(self._shared(settings, each) for each in instances)}
        )
        found = problems(settings)
        if found:
            raise ConfigurationError(
                "\n".join(
                    f"{origin}: {problem.text}" if origin else problem.text
                    for problem in found
                    for origin in [self._origin(problem.subject)]
                )
            )
        return settings

    def _origin(self, subject: tuple[str, ...]) -> str:
        for length in range(len(subject), 0, -1):
            found = self.origins.get(subject[:length])
            if found:
                return found
        return ""


def _is_sync(mode: Mode, where: str) -> bool:
    if mode not in ("sync", "async"):
        raise ConfigurationError(f"{where}: expected sync or async, got {mode!r}")
    return mode == "sync"


def _validated(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(
            "\n".join(f"{where}: {text}" for _, text in explain(error, model))
        ) from None


KEYS_SHOWN = 4
"""Keys of a section that an error names, so that it stays one line."""
_LISTS = frozenset(("tuple_type", "list_type"))
_SECTIONS = frozenset(
    ("dict_type", "model_type", "model_attributes_type", "dataclass_type", "mapping_type")
)
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_WORDS = {
    "string_type": "expected a text",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
}


def explain(
    error: ValidationError, model: type[BaseModel]
) -> list[tuple[tuple[int | str, ...], str]]:
    """Returns the place of each error that pydantic found in a model's values, and what was
    expected there."""
    found = []
    for entry in error.errors(include_url=False):
        path = entry["loc"]
        shown = ".".join(str(part) for part in path)
        message = entry["msg"].removeprefix("Value error, ")
        if entry["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            message = "this key is unknown here"
            keys = _keys(model, path[:-1])
            hint = did_you_mean(str(path[-1]), keys)
            if keys:
                message += f": {hint or 'expected ' + ', '.join(keys)}"
        elif entry["type"] == "missing":
            message = "is missing"
        else:
            expected = _expected(entry["type"], entry.get("ctx", {}), entry["input"])
            if not expected and entry["type"] in _SECTIONS:
                # A mapping of names has keys of the user's own.
                names = () if entry["type"] == "dict_type" else _keys(model, path)[:KEYS_SHOWN]
                of_these = f" with keys such as {', '.join(names)}" if names else ""
                expected = f"expected a section{of_these}"
            if expected:
                message = f"{expected}, got {_given(entry['input'])}"
            elif _is_unsaid(entry["input"], entry["type"], message):
                message = f"{message[:1].lower()}{message[1:]}, got {entry['input']!r}"
        found.append((path, f"{shown}: {message}" if shown else message))
    return found


def _expected(kind: str, context: Mapping[str, Any], given: object) -> str:
    """Returns what is expected where pydantic found an error of some kind; empty: its own words
    are told."""
    if kind in _LISTS:
        if isinstance(given, dict):
            return "expected a list: put a hyphen before the first key, or brackets around it all"
        return (
            f"expected a list such as [{given}]"
            if isinstance(given, str | int)
            else "expected a list"
        )
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"expected {word} {_limit(context[key], given)}"
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "string_type" and isinstance(given, int | float) and given is not True:
        return f'expected a text: write "{given}" with quotes if you mean that'
    return _WORDS.get(kind, "")


def _limit(value: float, given: object) -> str:
    """Returns a limit in units as those of the value that breaks it."""
    if isinstance(given, str) and given.rstrip()[-1:].isalpha():
        return (
            format_bytes(int(value))
            if given.rstrip().endswith("B")
            else format_milliseconds(int(value))
        )
    return str(value)


def _given(value: object) -> str:
    """Returns a value as a file has it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a section"
    return "a list" if isinstance(value, list | tuple) else repr(value)


def _is_unsaid(given: object, kind: str, message: str) -> bool:
    """Returns whether a message does not say what was given. One of pydantic's own never does,
    though it may have the same number for another reason."""
    return not isinstance(given, dict | list) and (
        kind != "value_error" or repr(given) not in message
    )


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Returns the keys that a file may have at a place among a model's values."""
    here: list[type] = [model]
    for part in path:
        found = [known for each in here for known in _fields(each) if part in known[:2]]
        # Any other part is a place in a list, a key of a mapping or a branch of a union.
        if found:
            here = [inside for _, _, annotation in found for inside in _models(annotation)]
    return list(dict.fromkeys(key for each in here for _, key, _ in _fields(each)))


def _fields(model: type) -> Iterator[tuple[str, str, Any]]:
    """Yields the name, the name in files and the type of each field of a model."""
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            yield name, info.alias or name_in_files(name), info.annotation
    else:
        for name, annotation in get_type_hints(model).items():
            yield name, name_in_files(name), annotation


def _models(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models(part)]
