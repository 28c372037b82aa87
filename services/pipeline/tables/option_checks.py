"""Checks of the options of Spark's reads, and of the schema that Spark gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.tables.fields import sql_name
from raylay.services.pipeline.tables.value_column import VALUE

SPARK_OPTIONS = frozenset(("checkpointlocation", "queryname"))
"""Options of Spark's own that Spark passes to a source."""

_MIXED_CASE = {
    name.lower(): name
    for name in (
        "checkpointLocation",
        "columnNameOfCorruptRecord",
        "inferSchema",
        "queryName",
        "sampleSize",
    )
}
"""The documented names of options that have capitals, by the names that Spark passes."""


def documented(name: str) -> str:
    """Returns the documented name of an option, which Spark passes in lower case."""
    return _MIXED_CASE.get(name.lower(), name)


def names_known(known: Iterable[str]) -> str:
    """Returns the documented names of options, for an error."""
    return f"{', '.join(sorted(map(documented, known), key=str.lower))} are known"


def known_options(
    options: Mapping[str, str],
    known: Collection[str],
    no_option: str,
    hints: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the options of a source by their lower-case names, without those of Spark's own.

    Args:
        no_option: the beginning of the error for an unknown option, such as `there is no option`.
        hints: what an error adds for an option of this name.

    Raises:
        ConfigurationError: an option is unknown.
    """
    found: dict[str, Any] = {}
    for given, value in dict(options).items():
        name = given.lower()
        if name in SPARK_OPTIONS:
            continue
        if name not in known:
            hint = (hints or {}).get(name, "")
            raise ConfigurationError(f"{no_option} {documented(given)}{hint}: {names_known(known)}")
        found[name] = value
    return found


def whole_number(name: str, text: str) -> int:
    """Returns the number that an option gives.

    Raises:
        ConfigurationError: it is no whole number above 0.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ConfigurationError(f"{documented(name)} is {text!r}: give a whole number above 0")
    return number


def choose(options: Any, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Makes the values of these options lower-case.

    Raises:
        ConfigurationError: a value is none of those that its option may have.
    """
    for name, allowed in choices.items():
        value = getattr(options, name).lower()
        if value not in allowed:
            raise ConfigurationError(
                f"{documented(name)} is {getattr(options, name)!r}: give {' or '.join(allowed)}"
            )
        setattr(options, name, value)


def named_columns(text: str, kind_of: Callable[[str], pa.DataType]) -> list[str]:
    """Returns the columns that the option `columns` names; an empty list where it names none.

    Args:
        kind_of: returns the type of a column that the source has.

    Raises:
        ConfigurationError: the source has no such column, or one is named twice.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for at, name in enumerate(names):
        kind_of(name)
        if name in names[:at]:
            raise ConfigurationError(f"the option columns names {name} twice: name it once")
    return names


def check_fields(kind: pa.DataType) -> None:
    """Raises:
    ConfigurationError: a structure in this type has two fields of one name.
    """
    names = [child.name for child in (kind.field(at) for at in range(kind.num_fields))]
    for at, name in enumerate(names):
        if pa.types.is_struct(kind) and name in names[:at]:
            raise ConfigurationError(f"the schema has the field {name} twice: declare it once")
        check_fields(kind.field(at).type)


def check_column(wanted: pa.Field, kind: pa.DataType) -> None:
    """Raises:
    ConfigurationError: a column that Spark wants has another type than the source's.
    """
    if wanted.type != kind:
        raise ConfigurationError(
            f"column {wanted.name} has type {sql_name(kind)}, but the schema gives it "
            f"{sql_name(wanted.type)}"
        )


def wanted_columns(
    schema: StructType, kind_of: Callable[[str], pa.DataType]
) -> tuple[pa.Schema, list[str], pa.StructType | None]:
    """Returns the schema that Spark wants in Arrow's types, the names of its columns without
    `value`, and the type of `value`; None: it is not wanted.

    Args:
        kind_of: returns the type of a column that the source has.

    Raises:
        ConfigurationError: the source has no such column, or it has another type.
    """
    arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    columns = []
    value_type: pa.StructType | None = None
    for wanted in arrow_schema:
        if wanted.name == VALUE and pa.types.is_struct(wanted.type):
            value_type = wanted.type
            check_fields(value_type)
            continue
        check_column(wanted, kind_of(wanted.name))
        columns.append(wanted.name)
    return arrow_schema, columns, value_type
