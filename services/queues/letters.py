"""Dead letters: the copy that a topic gets of each message that leaves a queue undone.

An instance writes the letter into its journal before the removal, so no crash loses one. A crash
between the two writes it once more: the bookmark of the message tells two copies.
"""

from __future__ import annotations

import json

from raylay.services.messages.records import RECORD_BYTES_MAX, Record

CORRELATION_BYTES_MAX = 1_024
"""The limit of the message's own correlation id in the letter. A longer one is left out."""
LETTER_BYTES_MAX = RECORD_BYTES_MAX + 16 * 1024
"""The largest message has a letter, too, with the topic and the correlation id of the letter."""


def correlation_of(record: Record, queue: str, reason: str) -> bytes:
    """The correlation id of a letter: a JSON object.

    Args:
        record: the message.
        queue: name of the queue.
        reason: why it left the queue, one of `UNDONE` (services/queues/records.py).
    """
    said = {
        "queue": queue,
        "reason": reason,
        "topic": record.topic,
        "bookmark": f"{record.publisher}|{record.sequence}|",
    }
    if 0 < len(record.correlation) <= CORRELATION_BYTES_MAX:
        said["correlation_id"] = record.correlation.decode("utf-8", "replace")
    return json.dumps(said, separators=(",", ":")).encode()
