"""One event of the table of events."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["info", "warning", "error", "critical", "emergency"]
NOTHING_TO_DO = "Nothing needs to be done."


class CatalogueEntry(NamedTuple):
    """One event.

    Attributes:
        code: category, dash, four digits.
        event: name of the event in logs and `raylay events`.
        level: `emergency`: the process ends; `critical`: a whole part of the instance is out of
            order; `error`: an operator should look now; `warning`: the work goes on, but not as it
            should.
        what: sentence that says what happened.
        why: usual causes; empty: the event itself says it.
        action: advice to the operator.
    """

    code: str
    event: str
    level: Level
    what: str
    why: str = ""
    action: str = NOTHING_TO_DO
