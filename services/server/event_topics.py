"""Publishes the event topics of an instance: listens to occurrences while a subscription or a SOW
topic wants events, and gives the events to these at the end of the loop's turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raylay.services.messages.event_topics import CLIENT_STATUS, EVENT_TOPICS, SOW_STATS
from raylay.services.messages.records import Run
from raylay.services.messages.topics import RESERVED
from raylay.services.plugins.message_types import installed_types
from raylay.services.replication.values import Identity
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.services.subscriptions.event_topics import CLIENT_EVENTS, EventTopics, SowCount
from raylay.services.subscriptions.matching import LiveSubscription, TopicFilter


class EventPublisher:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: one life of the instance; `begin` once, when it
    serves.

    Args:
        sow: the SOW topics, some of which may keep events.
        deliver: delivers events to the subscriptions; with whether SOW topics keep them.
    """

    __slots__ = ("_deliver", "_is_due", "_is_listening", "_runtime", "_sow", "_told", "_topics")

    def __init__(
        self,
        runtime: InstanceRuntime,
        identity: Identity,
        sow: SowManager,
        deliver: Callable[[Sequence[Run], bool], None],
    ) -> None:
        self._runtime = runtime
        self._sow = sow
        self._deliver = deliver
        config = runtime.config
        kept = [(each.name, each.message_type) for each in config.sow if each.name in EVENT_TOPICS]
        self._topics = EventTopics(identity, lambda: installed_types(config.type_definitions), kept)
        self._is_listening = False
        self._is_due = False
        """Whether events are published at the end of this turn of the loop."""
        self._told = 0
        """Number of left-out events that the log was told of."""
        self._listen()

    def begin(self) -> None:
        """Begins to count the records of SOW topics, where that is configured."""
        interval_ms = self._runtime.config.sow_stats_interval_ms
        if interval_ms and self._sow.feature is not None:
            self._runtime.every(interval_ms / 1000, self._count)

    # -- who wants them ------------------------------------------------------------------------
    def check(self, wanted: TopicFilter) -> None:
        """Refuses a subscription to event topics in a message type that has none.

        Raises:
            RemoteProtocolError: with reason `bad_message_type`.
        """
        self._topics.check(wanted)

    def changed(self, subscription: LiveSubscription, is_added: bool) -> None:
        """Takes a subscription to event topics that begins (True) or ends."""
        self._topics.changed(subscription, is_added)
        self._listen()

    def _listen(self) -> None:
        """Listens to the occurrences of clients while `/AMPS/ClientStatus` has a subscriber or a
        SOW topic, and no longer."""
        is_wanted = self._topics.is_wanted(CLIENT_STATUS)
        if is_wanted == self._is_listening:
            return
        self._is_listening = is_wanted
        occurrences = self._runtime.occurrences
        if is_wanted:
            occurrences.listen(CLIENT_EVENTS, self._occurred)
        else:
            occurrences.ignore(self._occurred)

    # -- what happens --------------------------------------------------------------------------
    def _occurred(self, kind: str, variables: Mapping[str, str]) -> None:
        self._topics.occurred(kind, variables, self._runtime.now_us())
        self._publish_soon()

    def _count(self) -> None:
        if not self._topics.is_wanted(SOW_STATS):
            return
        self._topics.counted(
            (
                SowCount(each.definition.name, each.definition.message_type, each.state.count)
                for each in self._sow.book.topics
                if not each.definition.name.startswith(RESERVED)
            ),
            self._runtime.now_us(),
        )
        self._publish_soon()

    def _publish_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._runtime.loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._is_due = False
        runtime, topics = self._runtime, self._topics
        if not runtime.is_serving:
            return
        others: list[Run] = []
        kept: list[Run] = []
        for run in topics.take():
            (kept if topics.is_kept(run) else others).append(run)
        if others:
            self._deliver(others, False)
        if kept:
            self._deliver(kept, True)
            topics.left_out += self._sow.keep(kept)
        runtime.outbox.flush()
        if len(topics):
            self._publish_soon()
        elif topics.left_out > self._told:
            runtime.report(
                "event_messages_left_out",
                count=topics.left_out - self._told,
                text="more happened at once than is published on the event topics: subscribers and "
                "SOW topics of event topics lack these messages",
            )
            self._told = topics.left_out

    def status(self) -> dict[str, int]:
        """Returns the counters of the instance's status."""
        return self._topics.status()
