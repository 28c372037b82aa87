"""The functions of the language, by groups (behaviour.md 5.3)."""

from __future__ import annotations

from raylay.services.expressions.functions.aggregates import AGGREGATES
from raylay.services.expressions.functions.around import AROUND
from raylay.services.expressions.functions.arrays import ARRAYS
from raylay.services.expressions.functions.checksums import CHECKSUMS
from raylay.services.expressions.functions.dates import DATES
from raylay.services.expressions.functions.numeric import NUMERIC
from raylay.services.expressions.functions.places import PLACES
from raylay.services.expressions.functions.registry import Functions
from raylay.services.expressions.functions.strings import STRINGS

BUILT_IN: Functions = {
    **STRINGS,
    **DATES,
    **ARRAYS,
    **NUMERIC,
    **CHECKSUMS,
    **PLACES,
    **AROUND,
    **AGGREGATES,
}
"""Functions that come with Raylay."""

LOADABLE = frozenset(
    [
        "TIMEZONEOFFSET",
        "YEAR",
        "MONTH",
        "DAY",
        "DATE_UTC",
        "DATE",
        "TODAY_UTC",
        "TODAY",
        "VALUE_LOOKUP",
    ]
)
"""Functions of the documents' loadable libraries: they are not here (docs/deviations.md)."""
