"""The occurrences of delivered messages, for actions (services/server/occurrences.py).

Deliveries are told where they are sent. The topics of the instance's actions decide first: of a
run on another topic nothing but its first record is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from raylay.services.actions.model import ActionDefinition
from raylay.services.errors import CorruptRecord
from raylay.services.messages.records import iterate_records
from raylay.services.server.message_occurrences import variables_of
from raylay.services.server.runtime import InstanceRuntime

DELIVER = "deliver-message"
TOPICS_KEPT_MAX = 4_096
"""Number of topics whose answer is kept: publishers choose them."""


class DeliverOccurrences:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: one life of the instance.
    """

    __slots__ = ("_answers", "_occurrences", "_wanted")

    def __init__(self, runtime: InstanceRuntime) -> None:
        self._occurrences = runtime.occurrences
        self._wanted = _wanted_by(runtime.config.actions)
        self._answers: dict[tuple[str, str], bool] = {}

    def delivered(
        self, client: str, runs: Iterable[bytes], *, queue: str = "", journaled: bool = True
    ) -> None:
        """Tells messages that are sent to a client. To be called only where somebody listens to
        `DELIVER`.

        Args:
            client: name of the client.
            runs: records of the messages, those of one topic together.
            queue: the queue that the messages are of, whose name is their topic; empty: none.
            journaled: whether the messages have bookmarks.
        """
        for run in runs:
            # A damaged record is reported where it was read; its client gets it as it is.
            with suppress(CorruptRecord):
                self._tell(client, run, queue, journaled)

    def _tell(self, client: str, run: bytes, queue: str, journaled: bool) -> None:
        is_wanted = None
        for record in iterate_records(run):
            topic = queue or record.topic
            if is_wanted is None:
                is_wanted = self._is_wanted(topic, record.message_type)
            if not is_wanted:
                return
            found = variables_of(topic, record.message_type, record.body, record.correlation)
            found["AMPS_BOOKMARK"] = record.bookmark if journaled else ""
            found["AMPS_CLIENT_NAME"] = client
            self._occurrences.tell(DELIVER, found)

    def _is_wanted(self, topic: str, message_type: str) -> bool:
        key = topic, message_type
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= TOPICS_KEPT_MAX:
                self._answers.clear()
            found = self._answers[key] = any(
                of_type in ("", message_type) and fits(topic) for fits, of_type in self._wanted
            )
        return found


def _wanted_by(
    actions: Sequence[ActionDefinition],
) -> tuple[tuple[Callable[[str], bool], str], ...]:
    """Returns the topics whose deliveries begin actions: for each `on` module a test of a topic's
    name, and the message type (empty: any)."""
    modules = [module for each in actions for module in each.on if module.module == DELIVER]
    if not modules:
        return ()
    # Most instances have no actions, and need not load what reads their options.
    from raylay.services.actions.matching import topic_search

    return tuple(
        (topic_search(each.option("Topic")), each.option("MessageType")) for each in modules
    )
