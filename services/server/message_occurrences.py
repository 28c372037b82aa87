"""The occurrences of messages that leave a SOW topic or a queue, for actions
(services/server/occurrences.py). They are told where they are folded, a batch at a time, and only
where somebody listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raylay.services.errors import CorruptRecord, RemoteProtocolError
from raylay.services.messages.lossless_text import text_of
from raylay.services.messages.records import iterate_records
from raylay.services.queues.records import ACKNOWLEDGED
from raylay.services.server.occurrences import Occurrences

if TYPE_CHECKING:
    # Most instances have no SOW topics, and need not load the parsers of message types.
    from raylay.services.sow.topic import SowChange

EXPIRED, DELETED = "sow-expire-message", "sow-delete-message"
TIME_LIMIT = "time_limit"
"""Reason why a record of a SOW topic expires; messages of queues have others as well."""


def variables_of(topic: str, message_type: str, data: bytes, correlation: bytes) -> dict[str, str]:
    """Returns the variables that every occurrence about a message sets."""
    return {
        "AMPS_TOPIC": topic,
        "AMPS_MESSAGE_TYPE": message_type,
        "AMPS_DATA": text_of(data),
        "AMPS_DATA_LENGTH": str(len(data)),
        "AMPS_CORRELATION_ID": text_of(correlation),
    }


def tell_sow_changes(occurrences: Occurrences, changes: Sequence[SowChange]) -> None:
    """Tells the records that have expired or were deleted, of all changes of a batch."""
    wants_expired, wants_deleted = occurrences.wanted(EXPIRED), occurrences.wanted(DELETED)
    for of in changes:
        change, record = of.change, of.record
        previous = change.previous
        is_expired = change.reason == "expired"
        is_wanted = wants_expired if is_expired else wants_deleted and change.reason == "deleted"
        if previous is None or not is_wanted:
            continue
        found = variables_of(
            text_of(of.name),
            of.topic.definition.message_type,
            previous.body or b"",
            b"" if record is None else record.correlation,
        )
        found["AMPS_SOW_KEY"] = text_of(change.key)
        found["AMPS_REASON"] = TIME_LIMIT if is_expired else ""
        occurrences.tell(EXPIRED if is_expired else DELETED, found)


def tell_queue_messages(
    occurrences: Occurrences, queue: str, message_type: str, reason: str, records: bytes
) -> None:
    """Tells the messages that have left a queue.

    Args:
        queue: name of the queue.
        reason: `ACKNOWLEDGED`, or one of `UNDONE` (services/queues/records.py).
        records: the records of the messages, as they are in the journal.

    Raises:
        RemoteProtocolError: these are no records.
    """
    kind = DELETED if reason == ACKNOWLEDGED else EXPIRED
    if not occurrences.wanted(kind):
        return
    try:
        found_records = list(iterate_records(records))
    except CorruptRecord as error:
        raise RemoteProtocolError(
            f"the owner of queue {queue} sent messages that are none: {error}", "bad_frame"
        ) from None
    for record in found_records:
        found = variables_of(queue, message_type, record.body, record.correlation)
        found["AMPS_BOOKMARK"] = record.bookmark
        found["AMPS_REASON"] = "" if kind == DELETED else reason
        occurrences.tell(kind, found)


def tell_queue_message_unread(
    occurrences: Occurrences, queue: str, message_type: str, reason: str, bookmark: str
) -> None:
    """Tells that a message has left a queue, without its body: the journal no longer has it."""
    kind = DELETED if reason == ACKNOWLEDGED else EXPIRED
    found = variables_of(queue, message_type, b"", b"")
    found["AMPS_BOOKMARK"] = bookmark
    found["AMPS_REASON"] = "" if kind == DELETED else reason
    occurrences.tell(kind, found)
