"""The option `filter`: which records pass a filter by content (docs/filters.md), in the task that
reads them, before rows are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from raylay.services.config.instance import INSTANCE_FILE, InstanceConfig
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import ConfigurationError, ExpressionError, MessageTypeError
from raylay.services.expressions.expression import READ, Expression, expression, refusal
from raylay.services.expressions.functions.registry import NO_CONTEXT, EvalContext
from raylay.services.messages.records import MESSAGES
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.pipeline.journals import JournalPlace, record_of
from raylay.services.pipeline.tables.columns import Rows
from raylay.services.plugins.functions import functions
from raylay.services.plugins.message_types import installed_types

_AROUND = ("topic", "bookmark", "correlation_id", "receive_time")


def checked_filter(text: str) -> Expression:
    """Returns the compiled filter of a text.

    Raises:
        ConfigurationError: the text is no filter; the error names the column of the mistake.
    """
    try:
        return expression(text, READ, functions())
    except ExpressionError as error:
        raise ConfigurationError(f"filter: {refusal(text, error)}") from None


def types_at(place: JournalPlace) -> MessageTypes:
    """Returns the message types of a journal's instance, as its configuration beside the journal
    defines them; the built-in ones where there is none.

    Raises:
        RaylayError: the configuration cannot be used.
    """
    home = Path(place.journal).parent
    if not (home / INSTANCE_FILE).is_file():
        return installed_types(())
    return installed_types(InstanceConfig.load(home).type_definitions)


def types_of_fabric(fabric: str) -> MessageTypes:
    """Returns the message types of a fabric's first instance, as the fabric's record defines them;
    the built-in ones where the name is empty or that of no fabric.

    Raises:
        RaylayError: the record cannot be read, or a definition cannot be used.
    """
    record = record_of(fabric) if fabric else None
    if record is None:
        return installed_types(())
    settings = FabricSettings.from_json(record.settings)
    return installed_types(settings.types_of(settings.instances[0]))


class RowFilter:
    """Judges the records of one journal. A record that is no message, or cannot be read, passes no
    filter.

    Args:
        place: the journal. Its instance's configuration gives the message types that have names of
            their own.

    Raises:
        ConfigurationError: the text is no filter, or the configuration cannot be used.
    """

    def __init__(self, text: str, place: JournalPlace) -> None:
        found = checked_filter(text)
        self._matches = found.matches
        self._asks_around = found.asks_around
        self._place = place
        self._types = types_at(place)

    def passing(self, rows: Rows) -> Any:
        names = rows.column("message_type").to_pylist()
        bodies = rows.column("body").to_pylist()
        parsers = {name: self._parser(name) for name in set(names)}
        around = self._around(rows, bodies) if self._asks_around else None
        matches = self._matches
        found = np.zeros(len(bodies), bool)
        is_message = np.isin(rows.headers["command"], list(MESSAGES))
        for at in np.flatnonzero(is_message).tolist():
            parse = parsers[names[at]]
            if parse is None:
                continue
            try:
                message = parse(bodies[at])
            except MessageTypeError:
                continue
            found[at] = matches(message, NO_CONTEXT if around is None else around[at])
        return found

    def _parser(self, name: str) -> Any:
        try:
            return self._types[name].parse
        except MessageTypeError:
            return None

    def _around(self, rows: Rows, bodies: list[bytes]) -> list[EvalContext]:
        columns = [rows.column(name).to_pylist() for name in _AROUND]
        return [
            EvalContext(
                topic=topic,
                bookmark=bookmark,
                correlation_id=(correlation or b"").decode("utf-8", "surrogateescape"),
                now_s=time.timestamp(),
                size_bytes=len(body),
                instance=self._place.instance,
                group=self._place.group,
            )
            for body, topic, bookmark, correlation, time in zip(bodies, *columns, strict=True)
        ]
