"""The options `conflation` and `conflation_key` of a subscription (behaviour.md 4.5)."""

from __future__ import annotations

from typing import NamedTuple

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.documented_units import parse_interval_ns

AUTO = "auto"
INTERVAL_US_MIN = 10_000
"""Shortest interval of a conflated subscription, in microseconds."""
INTERVAL_US_MAX = 24 * 3600 * 1_000_000
KEY_FIELDS_MAX = 32


class ConflationTerms(NamedTuple):
    """The conflation that a subscription asks for.

    Attributes:
        interval_us: interval in microseconds; 0: `auto`, which conflates only while the client does
            not take what it is sent.
        key: identifiers of the fields that make the key; none: the SOW key.
    """

    interval_us: int
    key: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Returns the options as a client would write them."""
        interval = f"{self.interval_us / 1000:g}ms" if self.interval_us else AUTO
        key = f",conflation_key=[{','.join(self.key)}]" if self.key else ""
        return f"conflation={interval}{key}"


def conflation_terms(conflation: str, key: tuple[str, ...]) -> ConflationTerms | None:
    """Returns the conflation that the options ask for; None: none.

    Args:
        conflation: an interval such as `1s`, `auto` or `none`; empty: none.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    asked = conflation.strip().lower()
    if asked in ("", "none"):
        if key:
            raise RemoteProtocolError(
                "conflation_key goes with conflation, and there is none: give an interval such as "
                "1s, or auto",
                "bad_command",
            )
        return None
    if len(key) > KEY_FIELDS_MAX:
        raise RemoteProtocolError(
            f"conflation_key has {len(key)} fields: give up to {KEY_FIELDS_MAX}", "bad_command"
        )
    for field in key:
        if not field.startswith("/") or len(field) < 2:
            raise RemoteProtocolError(
                f"conflation_key {field[:80]!r} is no field: give one such as /symbol",
                "bad_command",
            )
    if asked == AUTO:
        return ConflationTerms(0, key)
    try:
        interval_us = parse_interval_ns(asked) // 1000
    except ValueError as error:
        raise RemoteProtocolError(f"conflation: {error}; or auto, or none", "bad_command") from None
    if not INTERVAL_US_MIN <= interval_us <= INTERVAL_US_MAX:
        raise RemoteProtocolError(
            f"conflation={conflation[:80]} is not between 10ms and 1d: give another interval",
            "bad_command",
        )
    return ConflationTerms(interval_us, key)
