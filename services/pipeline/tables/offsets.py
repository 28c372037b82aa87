"""Places in the journals of instances: where a read begins and ends, and the offsets of streams."""

from __future__ import annotations

import json
from typing import Any

from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.messages.bookmarks import NOW
from raylay.services.pipeline.journals import JournalPlace, position, record_told


class StreamBegin:
    """The begin of a new stream that starts from now. Spark keeps no offset before the first
    micro-batch is planned, and asks for the begin again if it is killed in that one, when `now` is
    later. So the first micro-batch is empty: what came meanwhile is in the second one."""

    def __init__(self) -> None:
        self._moving: dict[str, Any] | None = None

    def now_is(self, starting: str, begin: dict[str, Any]) -> None:
        """Takes the begin of a stream with this option `starting`. All but `now` stay the same."""
        self._moving = begin if starting.strip() in (NOW, NOW.rstrip("|")) else None

    def is_kept_by(self, start: dict[str, Any]) -> bool:
        """Returns whether a micro-batch from `start` has to be an empty one; once."""
        first, self._moving = self._moving, None
        return first is not None and first == start


def given_txids(name: str, text: str) -> dict[str, int] | None:
    """Returns transaction ids by instance, where the option is such JSON."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
        return {str(instance): int(txid) for instance, txid in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f'{name} is {text!r}: {error}; give {{"instance": last transaction id, …}}'
        ) from None


def bound(place: JournalPlace, txids: dict[str, int] | None, text: str) -> int:
    """Returns the last transaction id before the position that an option names."""
    if txids is None:
        return position(place, text)
    found = txids.get(place.instance, txids.get("*"))
    if found is None:
        raise ConfigurationError(f"{text} names no transaction id for {place.instance}")
    return found


def offset_of(place: JournalPlace, txid: int) -> dict[str, Any]:
    with place.reader() as reader:
        record = record_told(reader, txid)
    return {"incarnation": place.incarnation(), "txid": txid, "record": record}


def replaced_since(place: JournalPlace, known: dict[str, Any]) -> str:
    """Returns how an instance's journal differs from the journal of an offset; empty: it is the
    same. An offset has no record where the journal had none at its transaction id."""
    incarnation, txid, record = known["incarnation"], known["txid"], known.get("record")
    if (its := place.incarnation()) != incarnation:
        return f"has incarnation {its or 'none'}, but the query read incarnation {incarnation}"
    if "record" in known and not record:
        return ""
    with place.reader() as reader:
        try:
            newest = reader.last_txid
        except CorruptRecord:  # it is to be skipped; nobody knows where the journal ended
            newest = txid
        found = record_told(reader, txid)
    if newest < txid:
        return f"ends at transaction id {newest}, but the query read {txid}"
    if record and found and found != record:
        return f"has another record at transaction id {txid} than the query read"
    return ""


def another_journal(place: JournalPlace, text: str) -> StorageError:
    return StorageError(
        f"{place.journal} {text}: the instance's data was replaced, or restored from a backup; "
        "begin a new checkpoint, or set on_data_loss to go_on",
        place.journal,
    )
