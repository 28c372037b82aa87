"""Options of a table of Spark's catalog: `CREATE TABLE … USING raylay OPTIONS (…)`.

Spark gives a table's options to a source of Python when the table is created, and none when it is
read or written. So they are the comment of the table's first column, which comes back with the
schema. One table may have the options of a read and of a write.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from pyspark.sql.types import StructType

from raylay.services.errors import ConfigurationError
from raylay.services.pipeline.tables.option_checks import names_known

PROVIDER = "provider"
"""Property that Spark gives only where a table is created."""
OPTION_PREFIX = "option."
"""Prefix of the options among a created table's properties."""
COMMENT_PREFIX = "options: "
WRITTEN_COLUMNS = {
    "topic": "STRING",
    "message_type": "STRING",
    "command": "STRING",
    "body": "STRING",
    "key": "STRING",
    "correlation_id": "STRING",
    "expiration_s": "BIGINT",
}
"""Columns of a table that is only written to."""


def created_options(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the options of a table that is created; None: these are not a table's properties."""
    if PROVIDER not in properties:
        return None
    found = {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in properties.items()
        if name.startswith(OPTION_PREFIX)
    }
    if location := properties.get("location", ""):
        # Spark puts `file:` before the first of several directories, and quotes nothing.
        found["path"] = location.removeprefix("file:")
    return found


def checked_options(
    options: Mapping[str, str], read: Collection[str], written: Collection[str]
) -> dict[str, str]:
    """Returns the options of a created table.

    Raises:
        ConfigurationError: an option is neither one of a read nor one of a write.
    """
    known = {*read, *written}
    for name in options:
        if name.lower() not in known:
            raise ConfigurationError(f"there is no option {name}: {names_known(known)}")
    return {name.lower(): value for name, value in options.items()}


def as_comment(options: Mapping[str, str]) -> str:
    """Returns options as the text of a column's comment in DDL, with its quotes."""
    text = COMMENT_PREFIX + json.dumps(dict(sorted(options.items())), ensure_ascii=False)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def table_options(schema: StructType) -> dict[str, str]:
    """Returns the options that a table was created with; none where the schema has none."""
    comment = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
    if not comment.startswith(COMMENT_PREFIX):
        return {}
    try:
        return dict(json.loads(comment.removeprefix(COMMENT_PREFIX)))
    except (ValueError, TypeError):
        return {}  # a user's own words
