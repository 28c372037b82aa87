"""The conflated topics of an instance: changes of records are gathered, and given at the end of
each key's interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylay.services.core.feature import CommitBatch
from raylay.services.sow.topic import SowChange
from raylay.services.views.conflated_topic import ConflatedTopic

GIVEN_AT_ONCE = 500
"""Most changes of one topic that one turn of the loop gives; the next turn gives the rest."""


class ConflationFeature:
    """See the file's docstring.

    Owner: the instance's loop. Lifecycle: one life of the instance.

    Args:
        topics: the conflated topics, each behind those that it is over.
        now_us: returns the time by a clock that is never set back.
        wake: called with the time at which `due` is to be called next; replaces the time of the
            call before.
    """

    name = "conflation"
    may_be_ahead = False

    def __init__(
        self,
        topics: Sequence[ConflatedTopic],
        now_us: Callable[[], int],
        wake: Callable[[int], None],
    ) -> None:
        self.topics = tuple(topics)
        self._now_us = now_us
        self._wake = wake
        self._awaited_us: int | None = None
        self._over: dict[int, list[ConflatedTopic]] = {}
        for each in self.topics:
            self._over.setdefault(id(each.under), []).append(each)

    def fold(self, batch: CommitBatch) -> None:
        """Gathers a commit's changes of records."""
        for topic in self.topics:
            topic.look_under()
        now_us = self._now_us()
        for change in batch.changes:
            for topic in self._over.get(id(change.topic), ()):
                topic.take(change.change, now_us)
        self._await()

    def _await(self) -> None:
        found = [each.next_due_us for each in self.topics]
        due_us = min((each for each in found if each is not None), default=None)
        # A topic with a shorter interval may be due before the one that is awaited.
        if due_us is not None and (self._awaited_us is None or due_us < self._awaited_us):
            self._awaited_us = due_us
            self._wake(due_us)

    def due(self) -> list[SowChange]:
        """Returns the changes that are due, for the caller to fold as a commit without messages.
        Calls `wake` for the changes after them."""
        self._awaited_us = None
        now_us = self._now_us()
        found: list[SowChange] = []
        for topic in self.topics:
            began_us = self._now_us()
            found += topic.due(now_us, GIVEN_AT_ONCE)
            topic.spent_us += self._now_us() - began_us
        self._await()
        return found

    def failed(self, committed_txid: int) -> None:
        """Does nothing: staged runs are not folded."""

    def status(self) -> dict[str, dict[str, int]]:
        """Returns the status of each topic, for the instance's status."""
        return {each.definition.stored_as: dict(each.status()) for each in self.topics}
