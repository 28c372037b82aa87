"""A configuration with its defaults filled in, and the publish store that its downgrades need."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from raylay.services.configuration.amps.actions import actions_of
from raylay.services.configuration.amps.load import Document, slots
from raylay.services.configuration.amps.model import ActionStanza
from raylay.services.configuration.amps.tree import DOLLAR_VARIABLE, ROOT
from raylay.services.configuration.amps.types import Options, Stanza
from raylay.services.configuration.model import FabricSettings
from raylay.services.messages.plain_text import plain_lines
from raylay.services.replication.downgrade import DowngradePolicy
from raylay.services.security.modules import shown_option, without_secrets

OWN_DEFAULTS = {
    "JournalSize": "segments of 64 MiB (documented: 1GB)",
    "FlushInterval": "what is staged is committed at once (documented: 100ms)",
    "MessageDiskPath": "offline in the data directory (documented: /var/tmp)",
    "AckConflationInterval": "acks at once, at most one a commit (documented: 1s)",
}
"""Elements whose absence means something else in Raylay than their documented default
(docs/deviations.md), each with that meaning. Filled in, they would change how the instance runs."""


def shown(document: Document) -> str:
    """Returns an instance's configuration as YAML of documented names, with defaults; loaded again,
    it is the same configuration. Comments name the elements of `OWN_DEFAULTS` that are left out."""
    left_out: dict[str, None] = {}
    values = _kept_as_they_are({ROOT: _elements(document.config, left_out)})
    lines = [f"# {document.file}"]
    lines += [f"# without {tag}: {OWN_DEFAULTS[tag]}" for tag in left_out]
    return "\n".join(lines) + "\n" + _dumped(values)


def document_values(document: Document) -> dict[str, Any]:
    """Returns an instance's configuration as values for JSON: `file`; `AMPSConfig`, with the
    documented names and defaults; and `left_out`, with the meaning of each element of
    `OWN_DEFAULTS` that the file leaves out. The elements of an action are a list of objects of one
    name each, because their order has a meaning, and a name may occur several times."""
    left_out: dict[str, None] = {}
    values = _listed(_elements(document.config, left_out))
    own = {tag: OWN_DEFAULTS[tag] for tag in left_out}
    return {"file": str(document.file), ROOT: values, "left_out": own}


class _OrderedElements(list[tuple[str, Any]]):
    """The elements of a stanza, in their order, which has a meaning. A name may stand there several
    times, as AMPSConfig allows, and is written as a key each time."""


class _Dumper(yaml.SafeDumper):
    """Writes `_OrderedElements` as a YAML mapping."""


_Dumper.add_representer(
    _OrderedElements,
    lambda dumper, pairs: dumper.represent_mapping("tag:yaml.org,2002:map", pairs),
)


def _kept_as_they_are(value: Any) -> Any:
    """Returns the values with each `${` escaped, so that a reader of them replaces no variable."""
    if isinstance(value, _OrderedElements):
        return _OrderedElements((key, _kept_as_they_are(each)) for key, each in value)
    if isinstance(value, dict):
        return {key: _kept_as_they_are(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_kept_as_they_are(each) for each in value]
    if isinstance(value, str):
        return value.replace("${", f"${{{DOLLAR_VARIABLE}}}{{")
    return value


def _listed(value: Any) -> Any:
    """Returns the values, in which ordered elements have become lists of objects."""
    if isinstance(value, _OrderedElements):
        return [{key: _listed(each)} for key, each in value]
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_listed(each) for each in value]
    return value


def shown_fabric(settings: FabricSettings) -> str:
    """Returns a fabric's settings as YAML, including links and defaults, without secrets."""
    return _dumped(fabric_values(settings))


def fabric_values(settings: FabricSettings) -> Any:
    """Returns a fabric's settings as values for JSON, including links and defaults, without
    secrets."""
    return without_secrets(json.loads(settings.model_dump_json(by_alias=True)))


def _dumped(values: Any) -> str:
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if plain_lines(text) == text:
        return text
    # YAML takes marks that turn a line round for letters like any other.
    escaped: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False)
    return escaped


def _elements(stanza: Stanza, left_out: dict[str, None]) -> Any:
    if isinstance(stanza, Options):
        made: dict[str, Any] = {}
        for entry in stanza.entries:
            made.setdefault(entry.name, []).append(shown_option(entry.name, entry.value))
        return {key: each if len(each) > 1 else each[0] for key, each in made.items()} or None
    if isinstance(stanza, ActionStanza):
        inside = [("On", each) for each in stanza.on], stanza.ordered_steps()
        return _OrderedElements(
            (tag, _elements(each, left_out)) for elements in inside for tag, each in elements
        )
    plain = stanza.model_dump(mode="json", by_alias=True)
    values: dict[str, Any] = {}
    for name, info in type(stanza).model_fields.items():
        tag, value = info.alias, getattr(stanza, name)
        if tag is None or value is None or value == () or value == Options():
            continue
        if tag in OWN_DEFAULTS and name not in stanza.model_fields_set:
            left_out[tag] = None
            continue
        slot = slots(type(stanza))[tag]
        if slot.stanza is None:
            kept = plain[tag]
            values[tag] = [str(each) for each in kept] if slot.many else str(kept)
        elif slot.many:
            values[tag] = [_elements(each, left_out) for each in value]
        else:
            values[tag] = _elements(value, left_out)
    return values or None


def _slowest_ms(downgrade: DowngradePolicy) -> tuple[int, int] | None:
    """Returns (time between two checks, Age), in milliseconds, of the check that downgrades a
    destination first; None: no check looks at the age."""
    found = []
    if downgrade.age_ms is not None:
        found.append((downgrade.every_ms, downgrade.age_ms))
    for look in downgrade.looks:
        if look.age_ms is not None:
            between_ms = min(each.between_ms() for each in look.every)
            found.append((between_ms, look.age_ms))
    checked = [(max(each_ms, downgrade.check_interval_ms), age_ms) for each_ms, age_ms in found]
    return min(checked, key=sum) if checked else None


def publish_store_messages(rate_per_s: int, downgrade: DowngradePolicy) -> int | None:
    """Returns the number of messages that a publisher's store must hold at least
    (configuring-replication, "Automatically Downgrading and Upgrading Acknowledgment"): peak rate x
    (time between two checks + Age). None: nothing is downgraded by age, so a store has no bound."""
    times_ms = _slowest_ms(downgrade)
    return None if times_ms is None else -(-rate_per_s * sum(times_ms) // 1000)


def store_lines(rate_per_s: int, downgrades: Iterable[tuple[str, DowngradePolicy]]) -> list[str]:
    """Returns the lines on the publish stores of several instances' clients.

    Args:
        downgrades: (instance, its settings).
    """
    lines = []
    for name, downgrade in downgrades:
        times_ms = _slowest_ms(downgrade)
        if times_ms is None:
            lines.append(f"{name}: nothing is downgraded by age: a publish store has no bound")
            continue
        every_ms, age_ms = times_ms
        lines.append(
            f"{name}: at {rate_per_s:,} messages/s a publish store holds at least "
            f"{publish_store_messages(rate_per_s, downgrade):,} messages: ({every_ms / 1000:g} s "
            f"between checks + Age {age_ms / 1000:g} s) x {rate_per_s:,}"
        )
    return lines


def downgrades_of(documents: Iterable[Document]) -> list[tuple[str, DowngradePolicy]]:
    """Returns the downgrade settings of each instance."""
    return [
        (document.config.name, actions_of(document.config).downgrade_settings())
        for document in documents
    ]
