"""The configuration of one SOW topic, as values from YAML or AMPSConfig (behaviour.md 4.1)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field

from raylay.services.sow.state import SowRules


@dataclass(frozen=True, slots=True)
class SowTopicDefinition:
    """The configuration of one SOW topic.

    Attributes:
        name: name of the topic; with a pattern, the name of the physical topic, to which no client
            publishes.
        message_type: name of the message type, as the fabric defines it.
        pattern: regular expression: the SOW topic keeps the messages of all topics that it matches;
            empty: the messages of topic `name`.
        keys: identifiers of the key fields; without any and without a generator, the publisher
            gives the key.
        key_domain: domain of the keys; empty: the topic's name.
        key_generator: entry point that makes the keys; empty: none.
        key_generator_options: options for the key generator, passed on unchanged.
        transient: whether the topic is in memory only; a restart makes it anew from the journal.
        recovery_point: place in the journal from which a topic without a store is made anew:
            `epoch`, `now`, or an instant (ISO 8601), see `recovery_from_us`.
        rules: rules of expiration and history.
        hash_indexes: identifiers of each index for exact matches.
        preprocessing, enrichment: `expression AS /field`, in order.
        last_writer: whether the later of two publishers' values of one key counts, on all
            instances.

    Raises:
        ValueError: two of these do not go together; says which and what to do.
    """

    name: str
    message_type: str
    pattern: str = ""
    keys: tuple[str, ...] = ()
    key_domain: str = ""
    key_generator: str = ""
    key_generator_options: Mapping[str, str] = field(default_factory=dict)
    transient: bool = False
    recovery_point: str = "epoch"
    rules: SowRules = field(default_factory=SowRules)
    hash_indexes: tuple[tuple[str, ...], ...] = ()
    preprocessing: tuple[str, ...] = ()
    enrichment: tuple[str, ...] = ()
    last_writer: bool = False

    def __post_init__(self) -> None:
        if self.keys and self.key_generator:
            raise ValueError(f"topic {self.name} has keys and a key generator: give one of them")
        if self.key_domain and not self.keys:
            raise ValueError(f"topic {self.name} has a key domain and no keys: give both, or none")
        if self.pattern and self.rules.window_us:
            raise ValueError(f"topic {self.name} has a pattern: it cannot have a history")
        if self.pattern and (self.key_domain or not (self.keys or self.key_generator)):
            # A record is found by its key alone.
            what = "a key domain: leave it out" if self.key_domain else "no keys: give it some"
            raise ValueError(
                f"topic {self.name} has a pattern and {what}, else a message of one topic would "
                "replace one of another"
            )
        recovery_from_us(self.recovery_point)

    @property
    def stored_as(self) -> str:
        """Returns the name of the topic in the store, which includes the type: two types may have
        topics of the same name."""
        return f"{self.message_type}/{self.name}"


def recovery_from_us(text: str) -> int | None:
    """Returns the instant of a recovery point, in microseconds since 1970: 0 for `epoch`, None for
    `now`; an instant without a zone is UTC.

    Raises:
        ValueError: the text is no recovery point.
    """
    if text in ("epoch", "now"):
        return 0 if text == "epoch" else None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expected epoch, now, or an instant such as 2026-01-02T03:04:05Z, got {text!r}"
        ) from None
    aware = found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
