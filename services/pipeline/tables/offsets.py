"""Places in the journals of instances: where a read begins and ends, and the offsets of streams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from raylay.services.errors import ConfigurationError, CorruptRecord, StorageError
from raylay.services.messages.bookmarks import NOW
from raylay.services.pipeline.journals import (
    JournalPlace,
    OnCorrupt,
    last_txid,
    position,
    record_told,
)
from raylay.services.pipeline.selection import PLACE_FORMS, place_of, time_of
from raylay.services.pipeline.tables.copies import JournalBounds


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


def check_window(starting: str, ending: str, *, has_txids: bool = True) -> None:
    """Checks the forms of the options `starting` and `ending`, and the order of two times or of two
    sets of transaction ids. The order of bookmarks is known to a log only.

    Args:
        ending: empty: there is no such option.
        has_txids: whether the source has transaction ids: a journal has.

    Raises:
        ConfigurationError: an option names no place, or `ending` lies before `starting`.
    """
    given = {"starting": starting} | ({"ending": ending} if ending else {})
    for name, text in given.items():
        if not has_txids and _is_txids(text):
            raise ConfigurationError(
                f"{name} is {text[:80]!r}: a read over the network has no transaction ids, which "
                f"differ between instances: give {PLACE_FORMS}"
            )
    txids = {name: given_txids(name, text) for name, text in given.items()}
    times = {name: time_of(text) for name, text in given.items()}
    for name, text in given.items():
        if txids[name] is None and times[name] is None:
            place_of(name, text)
    first, last = times["starting"], times.get("ending")
    begins, ends = txids["starting"] or {}, txids.get("ending") or {}
    if first is not None and last is not None and last < first:
        raise reversed_window(starting, ending)
    for instance in begins.keys() | ends.keys():
        after, upto = (each.get(instance, each.get("*")) for each in (begins, ends))
        if after is not None and upto is not None and upto < after:
            raise reversed_window(starting, ending)


def reversed_window(starting: str, ending: str, where: str = "") -> ConfigurationError:
    """Returns the error for an option `ending` that lies before `starting`.

    Args:
        where: the instances whose logs say so; empty: the options do.
    """
    return ConfigurationError(
        f"ending {ending} lies before starting {starting}{f' at {where}' if where else ''}: a read "
        "goes from behind starting up to ending, so no message lies between them; give them in "
        "the order of the log"
    )


def bounds_of(
    found: Iterable[JournalPlace], starting: str, ending: str, on_corrupt: OnCorrupt = "stop"
) -> list[JournalBounds]:
    """Returns the part of each journal from `starting` up to `ending`, or up to what is committed.

    Raises:
        ConfigurationError: an option names no place in a journal, or `ending` lies before
            `starting` in each of them.
        CorruptRecord: a damaged record keeps the end of a journal unknown.
    """
    made: list[JournalBounds] = []
    is_reversed: list[bool] = []
    for place in found:
        after = bound(place, "starting", starting)
        last = last_txid(place, on_corrupt)
        if ending:
            upto = bound(place, "ending", ending)
            is_reversed.append(upto < after)
            last = min(last, upto)
        made.append(JournalBounds(place, after, last))
    # A journal whose beginning was removed ends after transaction ids that it had: no mistake.
    if all(is_reversed) and is_reversed and not any(map(_is_txids, (starting, ending))):
        names = ", ".join(each.place.instance for each in made)
        raise reversed_window(starting, ending, names)
    return made


def _is_txids(text: str) -> bool:
    return text.lstrip().startswith("{")


def given_txids(name: str, text: str) -> dict[str, int] | None:
    """Returns transaction ids by instance, where the option is such JSON."""
    if not _is_txids(text):
        return None
    try:
        found = json.loads(text)
        return {str(instance): int(txid) for instance, txid in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f'{name} is {text!r}: {error}; give {{"instance": last transaction id, …}}'
        ) from None


def bound(place: JournalPlace, name: str, text: str) -> int:
    """Returns the last transaction id before the position that an option names.

    Raises:
        ConfigurationError: it names none in this journal.
    """
    txids = given_txids(name, text)
    if txids is None:
        return position(place, text, name)
    found = txids.get(place.instance, txids.get("*"))
    if found is None:
        raise ConfigurationError(
            f"{name} is {text!r}, which names no transaction id for {place.instance}"
        )
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
