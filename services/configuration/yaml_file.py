"""A fabric in a YAML file. Errors name the file and the line.

fabric: flights
topics:
  - {name: flights/.*, message_type: json}
regions:                     # a number of instances, their names, or a section
  Chicago: 2
  NewYork: [NewYork-1, NewYork-2]
  London: {instances: 2, links: sync}
connect_regions: async
instances:                   # others, or more about those of a region
  Audit: {client_port: 9001}
links:
  - {from: Chicago-1, to: Audit, mode: async, pass_through: Chicago}
message_types:               # of names of their own
  - {name: pipes, kind: fix, options: {field_separator: 124}}
sow_topics:                  # whose last message of each key is kept
  - {name: flights/last, message_type: json, keys: [/tail]}
views:                       # computed from those
  - {name: flights/late, message_type: json, topic: flights/last, grouping: [/carrier],
     projection: [/carrier AS /carrier, COUNT(/delay) AS /late], filter: /delay > 15}
conflated_topics:            # which give each record at most once an interval
  - {name: flights/slow, message_type: json, topic: flights/last, interval: 5s}
queues:                      # whose messages go to one consumer each
  - {name: work, message_type: json, underlying: orders, lease: 30s}
downgrade: {age: 5s}
journal: {segment_size: 64MiB, durability: fsync}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from raylay.services.config.journal import JournalConfig
from raylay.services.configuration.admin import Admin
from raylay.services.configuration.builder import FabricBuilder, Origins, explain
from raylay.services.configuration.fields import Name, Section
from raylay.services.configuration.message_types import with_descriptors
from raylay.services.configuration.model import (
    DestinationChoices,
    Downgrade,
    FabricChoices,
    FabricSettings,
    InstanceChoices,
)
from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import format_milliseconds

FILE_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 32
VALUES_MAX = 500_000
"""Keys and values of a file, those behind an alias each time counted."""

Path_ = tuple[int | str, ...]
Lines = dict[Path_, int]
"""Path of a value in the file to its line, from 1."""


class _InstanceEntry(InstanceChoices):
    group: Name | None = None
    admin: Admin = None

    @model_validator(mode="before")
    @classmethod
    def _from_nothing(cls, value: Any) -> Any:
        return {} if value is None else value

    def options(self) -> dict[str, Any]:
        """Returns the options in the file, for `FabricBuilder.instance`."""
        chosen = self.model_fields_set - {"group"}
        return {
            key: _as_text(self.sow_stats_interval_ms)
            if key == "sow_stats_interval_ms"
            else getattr(self, key)
            for key in chosen
        }


class _RegionEntry(Section):
    instances: int | tuple[Name, ...] = 2
    links: Literal["sync", "async", "none"] = "sync"
    host: str | None = None
    node_labels: dict[str, str] | None = None
    journal: JournalConfig | None = None
    downgrade: Downgrade | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: Any) -> Any:
        if value is None:
            return {}
        if isinstance(value, str | bool):
            raise ValueError(
                f"expected a number of instances, a list of names or a section, got {value!r}"
            )
        return {"instances": value} if isinstance(value, int | list) else value

    def options(self) -> dict[str, Any]:
        """Returns the options in the file, for `FabricBuilder.region`."""
        chosen = self.model_fields_set - {"instances", "links"}
        return {key: getattr(self, key) for key in chosen}


class _LinkEnds(Section):
    source: str = Field(alias="from")
    to: str | tuple[str, ...]
    mode: Literal["sync", "async"] = "async"
    name: str = ""
    group: str = ""


class _LinkEntry(DestinationChoices, _LinkEnds):
    def options(self) -> dict[str, Any]:
        """Returns the options in the file, for `FabricBuilder.destination`."""
        return {
            "sync": self.mode == "sync",
            "name": self.name,
            "group": self.group,
            # The builder reads times as people write them.
            **self.model_dump(include=set(DestinationChoices.model_fields), exclude_defaults=True),
        }


class _Head(Section):
    fabric: Name


class _File(FabricChoices, _Head):
    admin: Admin = None
    regions: dict[str, _RegionEntry] = Field(default_factory=dict)
    connect_regions: Literal["sync", "async"] | None = None
    instances: dict[str, _InstanceEntry] = Field(default_factory=dict)
    links: tuple[_LinkEntry, ...] = ()


FILE_MODEL: type[Section] = _File
"""The model of a whole file."""


def load(path: str | Path, origins: Origins | None = None) -> FabricSettings:
    """Returns the settings of the fabric that a file declares.

    Args:
        origins: is filled with the place where each instance and destination is declared.

    Raises:
        ConfigurationError: the file cannot be read, or one line for each thing that is wrong:
            file, line, what was found and what was expected.
    """
    path = Path(path)
    try:
        size_bytes = path.stat().st_size
        if size_bytes > FILE_BYTES_MAX:
            raise ConfigurationError(
                f"{path}: {size_bytes} bytes, at most {FILE_BYTES_MAX} are read"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: no UTF-8 text: {error.reason}") from None
    return parse(text, str(path), origins)


def parse(text: str, name: str = "<text>", origins: Origins | None = None) -> FabricSettings:
    """Parses a text as `load` does a file; `name` leads its error messages."""
    values, lines = _read(text, name)
    _read_descriptors(values, lines, name)
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(
            "\n".join(
                f"{name}:{_line_of(path, lines)}: {message}" for path, message in _explain(error)
            )
        ) from None
    builder = _build(file, lines, name)
    if origins is not None:
        origins.update(builder.origins)
    try:
        return builder.settings()
    except ConfigurationError as error:
        # Problems of single instances carry their line; one of the whole fabric carries none.
        text = str(error)
        if text.startswith(f"{name}:"):
            raise
        raise _at(f"{name}:{_line_of(('fabric',), lines)}", error) from None


def _read_descriptors(values: Any, lines: Lines, name: str) -> None:
    """Puts what the files of message types have in the place of their names."""
    types = values.get("message_types")
    for number, each in enumerate(types if isinstance(types, list) else ()):
        options = each.get("options") if isinstance(each, dict) else None
        if isinstance(options, dict):
            try:
                each["options"] = with_descriptors(options, Path(name).parent)
            except ConfigurationError as error:
                line = _line_of(("message_types", number), lines)
                raise ConfigurationError(f"{name}:{line}: {error}") from None


def _explain(error: ValidationError) -> list[tuple[Path_, str]]:
    # A union reports every branch that did not fit; the first is enough for one place.
    found: dict[int | str | Path_, tuple[Path_, str]] = {}
    for path, message in explain(error, _File):
        kept = tuple(p for p in path if not (isinstance(p, str) and ("[" in p or p in _BRANCHES)))
        shown = ".".join(str(part) for part in kept)
        _, _, rest = message.partition(": ")
        found.setdefault(kept, (kept, f"{shown}: {rest or message}" if shown else message))
    return list(found.values())


_BRANCHES = frozenset(("int", "str", "constrained-str", "TlsConfig"))


def _at(place: str, error: ConfigurationError) -> ConfigurationError:
    return ConfigurationError("\n".join(f"{place}: {line}" for line in str(error).splitlines()))


def _build(file: _File, lines: Lines, name: str) -> FabricBuilder:
    def origin(*path: int | str) -> str:
        return f"{name}:{_line_of(path, lines)}"

    builder = FabricBuilder(
        file.fabric,
        relocate_after=_as_text(file.relocate_after_ms),
        sow_stats_interval=_as_text(file.sow_stats_interval_ms),
        **{
            name: getattr(file, name)
            for name in FabricChoices.model_fields
            if name not in ("relocate_after_ms", "sow_stats_interval_ms")
        },
    )
    for path, line in lines.items():
        if subject := _topic_subject(path):
            builder.origins[subject] = f"{name}:{line}"
    for region, entry in file.regions.items():
        place = origin("regions", region)
        try:
            builder.region(
                region,
                entry.instances,
                links=None if entry.links == "none" else entry.links,
                origin=place,
                **entry.options(),
            )
        except ConfigurationError as error:
            raise _at(place, error) from None
    for instance, more in file.instances.items():
        place = origin("instances", instance)
        try:
            builder.instance(instance, more.group, origin=place, **more.options())
        except ConfigurationError as error:
            raise _at(place, error) from None
    if file.connect_regions is not None:
        place = origin("connect_regions")
        try:
            builder.connect_regions(file.connect_regions, origin=place)
        except ConfigurationError as error:
            raise _at(place, error) from None
    for number, link in enumerate(file.links):
        place = origin("links", number)
        try:
            builder.destination(
                link.source,
                link.to if isinstance(link.to, str) else list(link.to),
                **link.options(),
                origin=place,
            )
        except ConfigurationError as error:
            raise _at(place, error) from None
    return builder


def _topic_subject(path: Path_) -> tuple[str, ...]:
    """Returns the steps of a problem's path in the file, as text, where the path lies in a SOW
    topic or a queue; empty: it does not."""
    inside = path[1:] if path[:1] == ("instances",) else path
    begin = 1 if inside is not path else 0
    return tuple(map(str, inside)) if inside[begin : begin + 1] in _LISTED else ()


_LISTED = (("sow_topics",), ("views",), ("conflated_topics",), ("queues",))


def _as_text(time_ms: int | None) -> str | None:
    # The builder reads times as people write them, and refuses a number without a unit.
    return None if time_ms is None else format_milliseconds(time_ms)


# -- reading with lines ----------------------------------------------------------------------
class _FabricLoader(yaml.SafeLoader):
    """Reads a node tree; mappings, lists and scalars are built by `_value`."""


def _read(text: str, name: str) -> tuple[Any, Lines]:
    try:
        loader = _FabricLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigurationError(
            f"{name}:{line}: this is no YAML: it has the control character {error.character:#x}"
        ) from None
    lines: Lines = {}
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigurationError(f"{name}:1: the file is empty: begin with `fabric: NAME`")
        if not isinstance(node, yaml.MappingNode):
            raise ConfigurationError(
                f"{name}:{node.start_mark.line + 1}: expected keys and values, beginning with "
                "`fabric: NAME`"
            )
        return _value(loader, node, (), lines, name, frozenset()), lines
    except RecursionError:
        raise ConfigurationError(f"{name}: nested too deeply (more than {DEPTH_MAX})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error)
        if "'\\t'" in problem:
            problem = "a line is indented with a tab; use spaces"
        raise ConfigurationError(f"{name}:{line}: this is no YAML: {problem}") from None
    finally:
        loader.dispose()


def _value(
    loader: _FabricLoader,
    node: yaml.Node,
    path: Path_,
    lines: Lines,
    name: str,
    open_nodes: frozenset[int],
) -> Any:
    line = node.start_mark.line + 1
    lines[path] = line
    if len(lines) > VALUES_MAX:
        # A few lines of aliases of aliases stand for more than any memory has.
        raise ConfigurationError(
            f"{name}:{line}: the file has more than {VALUES_MAX:,} keys and values, those behind "
            "an alias (`*name`) each time counted"
        )
    if len(path) > DEPTH_MAX or id(node) in open_nodes:
        raise ConfigurationError(f"{name}:{line}: nested too deeply (more than {DEPTH_MAX})")
    inside = open_nodes | {id(node)}
    if isinstance(node, yaml.MappingNode):
        made: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigurationError(
                    f"{name}:{key_node.start_mark.line + 1}: a key is a single word"
                )
            # The text as written: YAML would read `on` or `5` as something else than a name.
            key = key_node.value
            if key in made:
                raise ConfigurationError(
                    f"{name}:{key_node.start_mark.line + 1}: {key} is there twice, first on line "
                    f"{lines[(*path, key)]}"
                )
            made[key] = _value(loader, value_node, (*path, key), lines, name, inside)
            lines[(*path, key)] = key_node.start_mark.line + 1
        return made
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(loader, item, (*path, number), lines, name, inside)
            for number, item in enumerate(node.value)
        ]
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a date such as 2026-13-45
        raise ConfigurationError(
            f"{name}:{line}: {node.value!r} cannot be read ({error}): correct it, or write it in "
            "quotes if it is a text"
        ) from None


def _line_of(path: Sequence[int | str], lines: Mapping[Path_, int]) -> int:
    # What is missing has no line of its own: its parent's then.
    for length in range(len(path), -1, -1):
        line = lines.get(tuple(path[:length]))
        if line is not None:
            return line
    return 1
