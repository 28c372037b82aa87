"""The summary of an instance, `/raylay/summary.json`: the few values of it that a view of the whole
fabric needs, small enough to be asked for once a second.

`Summarizer` makes it from what the instance tells of itself. `read_summary` reads that of a peer,
and believes nothing: every value is bounded in type and size before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from raylay.services.admin.computed_topics import KINDS, FollowerCounts, identity
from raylay.services.admin.fabric_events import FabricEvent, read_event
from raylay.services.admin.rates import CounterRates
from raylay.services.admin.trends import Trend, TrendBook
from raylay.services.errors import RaylayError
from raylay.services.messages.topic_totals import TopicTotal

SUMMARY_VERSION = 1
SUMMARY_BYTES_MAX = 1024 * 1024
TEXT_CHARACTERS_MAX = 1_000
LINKS_MAX = 1_000
QUEUES_MAX = 200
TOPICS_MAX = 200
VIEWS_MAX = 200
ACTIONS_MAX = 100
SLOW_MAX = 10
EVENTS_MAX = 50
SLOW_S_MIN = 5.0
"""Age of the oldest waiting message from which a client is called slow."""
MS_FLOOR = 200.0
MESSAGES_FLOOR = 10.0
_NUMBER_MAX = 2**63 - 1

Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_NUMBER_MAX)]
Number = Annotated[float, msgspec.Meta(ge=0, le=float(_NUMBER_MAX))]


class SummaryRefusal(RaylayError):
    """A peer's summary that cannot be used.

    Attributes:
        missing: `version` or `wrong`.
    """

    def __init__(self, missing: Literal["version", "wrong"], text: str) -> None:
        super().__init__(text)
        self.missing = missing


class LinkSummary(msgspec.Struct, frozen=True):
    """A destination, as its instance sees it.

    Attributes:
        connected_to: the server that the link has reached; empty: none.
        sync: whether acks wait for it now.
        refused: whether the other side, or this one, refuses the link; `why` says why.
        since_us: time since when it is as it is, in microseconds since 1970; None: not known.
        downgraded_us: time of the downgrade; None: not known, or not downgraded.
        lag: entries of the log that the destination has not stored.
        age_ms: age of the oldest message that it has not acknowledged.
        seconds_left: time until it has caught up, by its trend.
    """

    destination: Text
    connected_to: Text = ""
    configured_sync: bool = False
    sync: bool = False
    downgraded: bool = False
    by_hand: bool = False
    connected: bool = False
    caught_up: bool = False
    refused: bool = False
    safe: bool = False
    why_unsafe: Text = ""
    why: Text = ""
    since_us: Count | None = None
    downgraded_us: Count | None = None
    unacked: Count | None = None
    lag: Count | None = None
    age_ms: Count | None = None
    rate_per_sec: Number | None = None
    bytes_per_sec: Number | None = None
    trend: Trend | None = None
    seconds_left: Count | None = None


class QueueSummary(msgspec.Struct, frozen=True):
    """A queue at one instance."""

    name: Text
    message_type: Text = ""
    why: Text = ""
    depth: Count | None = None
    owned: Count | None = None
    leased: Count | None = None
    oldest_lease_s: Number | None = None
    expired: Count | None = None
    moved_in: Count | None = None
    moved_out: Count | None = None
    consumers: Count | None = None
    trend: Trend | None = None


class TopicSummary(msgspec.Struct, frozen=True):
    """A topic at one instance.

    Attributes:
        records: records of a SOW topic; None: it keeps none.
        messages: messages in the journal; None: not known.
        bytes: bytes of its records in the journal, before compression; None: not known.
        oldest_us: receive time of the oldest message in the journal, in microseconds since 1970;
            None: there is none.
        newest_us: receive time of the newest one.
    """

    name: Text
    message_type: Text = ""
    sow: bool = False
    records: Count | None = None
    in_per_sec: Number | None = None
    publishers: Count | None = None
    subscribers: Count | None = None
    messages: Count | None = None
    bytes: Count | None = None
    oldest_us: Count | None = None
    newest_us: Count | None = None


class ViewSummary(msgspec.Struct, frozen=True):
    """A view or a conflated topic at one instance.

    Attributes:
        kind: `view` or `conflated`.
        under: names of the topics under it, apart by commas.
        taken_per_sec: rate of the changes that came.
        updates_per_sec: rate of the changes that were given.
        waiting: updates that a view has not applied, or records of a conflated topic whose change
            waits for its interval.
        in_service: whether it is queried and followed; if not, `why` says why.
        built_percent: how far a view is built that is not ready yet; None: it is ready.
    """

    name: Text
    message_type: Text = ""
    kind: Literal["view", "conflated"] = "view"
    under: Text = ""
    records: Count | None = None
    taken_per_sec: Number | None = None
    updates_per_sec: Number | None = None
    memory_bytes: Count | None = None
    waiting: Count | None = None
    trend: Trend | None = None
    subscribers: Count | None = None
    in_service: bool = True
    why: Text = ""
    built_percent: Number | None = None


class ActionSummary(msgspec.Struct, frozen=True):
    """A configured action at one instance.

    Attributes:
        runs: the number of runs that ended.
        failures: the number of runs that a failing step ended.
        dropped: the number of occurrences beyond the bound of those that wait.
        last_error: text of the last failure; empty: there was none.
        last_run_us: time at which the last run ended, in microseconds since 1970; 0: none has.
    """

    name: Text
    runs: Count = 0
    failures: Count = 0
    dropped: Count = 0
    waiting: Count = 0
    last_error: Text = ""
    last_run_us: Count = 0


class SlowClient(msgspec.Struct, frozen=True):
    """A client that reads too slowly."""

    client: Text
    bytes: Count | None = None
    seconds_behind: Number | None = None
    offline: bool = False


class UpstreamSummary(msgspec.Struct, frozen=True):
    """An instance from which a link comes in."""

    name: Text
    group: Text = ""


class InstanceSummary(msgspec.Struct, frozen=True):
    """See the file's docstring.

    Attributes:
        time_us: time of the sample by the instance's clock, in microseconds since 1970.
        process: names the instance's process: numbers of events begin anew with each.
        last_event: number of the newest event; `events` has the newest ones.
    """

    summary_version: int
    instance: Text
    group: Text = ""
    time_us: Count = 0
    process: Text = ""
    version: Text = ""
    uptime_s: Number | None = None
    incarnation: Text = ""
    state: Text = ""
    why: Text = ""
    in_per_sec: Number | None = None
    out_per_sec: Number | None = None
    acks_per_sec: Number | None = None
    ack_ms_p50: Number | None = None
    ack_ms_p99: Number | None = None
    clients: Count | None = None
    subscriptions: Count | None = None
    disk_free_percent: Number | None = None
    unacknowledged: Count | None = None
    unavailable: Count | None = None
    storage_failure: Text = ""
    front_log_failure: Text = ""
    retention_held: Text = ""
    certificate_warning: Text = ""
    slow_clients: Count | None = None
    slow: Annotated[tuple[SlowClient, ...], msgspec.Meta(max_length=SLOW_MAX)] = ()
    links: Annotated[tuple[LinkSummary, ...], msgspec.Meta(max_length=LINKS_MAX)] = ()
    upstreams: Annotated[tuple[UpstreamSummary, ...], msgspec.Meta(max_length=LINKS_MAX)] = ()
    queues: Annotated[tuple[QueueSummary, ...], msgspec.Meta(max_length=QUEUES_MAX)] = ()
    topics: Annotated[tuple[TopicSummary, ...], msgspec.Meta(max_length=TOPICS_MAX)] = ()
    views: Annotated[tuple[ViewSummary, ...], msgspec.Meta(max_length=VIEWS_MAX)] = ()
    actions: Annotated[tuple[ActionSummary, ...], msgspec.Meta(max_length=ACTIONS_MAX)] = ()
    last_event: Count = 0
    events: Annotated[tuple[FabricEvent, ...], msgspec.Meta(max_length=EVENTS_MAX)] = ()


_DECODER = msgspec.json.Decoder(InstanceSummary)


class _Version(msgspec.Struct, frozen=True):
    summary_version: int


_VERSION_DECODER = msgspec.json.Decoder(_Version)


def read_summary(data: bytes, name: str) -> InstanceSummary:
    """Reads a peer's summary.

    Args:
        name: name of the instance that was asked.

    Raises:
        SummaryRefusal: it is of another version, too large, of another instance, or no summary.
    """
    if len(data) > SUMMARY_BYTES_MAX:
        raise SummaryRefusal(
            "wrong", f"{name} answers with more than {SUMMARY_BYTES_MAX:,} bytes: too large"
        )
    try:
        version = _VERSION_DECODER.decode(data).summary_version
        if version != SUMMARY_VERSION:
            raise SummaryRefusal(
                "version",
                f"{name} speaks version {str(version)[:20]} of the summary, this interface "
                f"{SUMMARY_VERSION}: install one release on both",
            )
        found = _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise SummaryRefusal(
            "wrong", f"{name} answers with what is no summary: {str(error)[:200]}"
        ) from None
    if found.instance != name:
        raise SummaryRefusal(
            "wrong",
            f"at the address of {name} answers {found.instance[:200]!r}: correct `advertised` or "
            "`port` of `admin`, then `raylay apply FILE`",
        )
    if any(each.instance != name for each in found.events):
        raise SummaryRefusal("wrong", f"{name} tells events of another instance as its own")
    return found


def _cut(text: object) -> str:
    return str(text or "")[:TEXT_CHARACTERS_MAX]


_REFUSED = re.compile(r"[a-z_]+: ")
"""The beginning of `why` of a link that is refused: the reason, one word."""
_STATE_OF = {
    "link_connected": "connected",
    "link_caught_up": "caught_up",
    "link_disconnected": "disconnected",
    "link_refused": "disconnected",
    "downgraded": "downgraded",
    "upgraded": "upgraded",
}


class Summarizer:
    """Makes the summaries of one instance, sample after sample.

    Owner: the process's event loop. Rates and trends are of the samples that it was given.
    """

    def __init__(self) -> None:
        self._rates = CounterRates()
        self._trends = TrendBook()
        self._since: dict[tuple[str, str], int] = {}
        """Time of the event that brought a link into a state, by destination and state."""
        self._process = ""
        self._number = 0

    def take(
        self,
        snapshot: Mapping[str, Any],
        *,
        time_us: int,
        steady_us: int,
        disk_free_percent: float | None = None,
    ) -> InstanceSummary:
        """Returns the summary of a sample.

        Args:
            snapshot: snapshot of an instance in any state.
            time_us: time of the sample, in microseconds since 1970.
            steady_us: the same time by a clock that never goes back.
        """
        self._rates.begin(steady_us)
        self._trends.forget_old(steady_us)
        process = f"{snapshot.get('pid', 0)}/{snapshot.get('started_us', 0)}"
        self._note_events(process, snapshot.get("events", ()))
        told_rates = snapshot.get("rates") or {}
        slow = self._slow(snapshot)
        links = tuple(
            self._link(name, each, steady_us)
            for name, each in [*snapshot.get("destinations", {}).items()][:LINKS_MAX]
        )
        events = [
            read_event(snapshot["name"], each)
            for each in [*snapshot.get("events", ())][-EVENTS_MAX:]
        ]
        return InstanceSummary(
            SUMMARY_VERSION,
            snapshot["name"],
            group=_cut(snapshot.get("group")),
            time_us=time_us,
            process=process,
            version=_cut(snapshot.get("version")),
            uptime_s=snapshot.get("uptime_s"),
            incarnation=_cut(snapshot.get("incarnation")),
            state=_cut(snapshot.get("state")),
            why=_cut(snapshot.get("reason")),
            in_per_sec=told_rates.get("published_per_s"),
            out_per_sec=told_rates.get("delivered_per_s"),
            acks_per_sec=told_rates.get("persisted_per_s"),
            ack_ms_p50=snapshot.get("ack_ms_p50"),
            ack_ms_p99=snapshot.get("ack_ms_p99"),
            clients=snapshot.get("sessions"),
            subscriptions=_sum(snapshot, "subscriptions", "bookmark_subscriptions"),
            disk_free_percent=disk_free_percent,
            unacknowledged=snapshot.get("pending"),
            unavailable=snapshot.get("unavailable"),
            storage_failure=_cut(snapshot.get("storage_failure")),
            front_log_failure=_cut(snapshot.get("front_log_failure")),
            retention_held=_cut(snapshot.get("retention_held")),
            certificate_warning=_cut(_first_warning(snapshot)),
            slow_clients=None if slow is None else len(slow),
            slow=() if slow is None else tuple(slow[:SLOW_MAX]),
            links=links,
            upstreams=tuple(
                UpstreamSummary(_cut(each["name"]), _cut(each["group"]))
                for each in [*snapshot.get("upstreams", ())][:LINKS_MAX]
            ),
            queues=tuple(
                self._queue(stored_as, each, steady_us)
                for stored_as, each in [*snapshot.get("queues", {}).items()][:QUEUES_MAX]
            ),
            topics=tuple(self._topics(snapshot)),
            views=tuple(self._views(snapshot, steady_us)),
            actions=_actions(snapshot),
            last_event=snapshot.get("last_event", 0),
            events=tuple(events),
        )

    def _note_events(self, process: str, events: Iterable[Mapping[str, Any]]) -> None:
        if process != self._process:
            # Links begin anew with their instance.
            self._process, self._number = process, 0
            self._since.clear()
        for each in events:
            state = _STATE_OF.get(each["event"])
            if each["number"] <= self._number or state is None:
                continue
            key = (str(each.get("destination", "")), state)
            if each["event"] == "link_refused":
                # A refused link dials again and again: it is refused since the first time.
                self._since.setdefault(key, each["time_us"])
            else:
                self._since[key] = each["time_us"]
            if state == "connected":
                self._since.pop((key[0], "disconnected"), None)
        self._number = max((each["number"] for each in events), default=self._number)

    def _link(self, name: str, told: Mapping[str, Any], steady_us: int) -> LinkSummary:
        connected, caught_up = bool(told.get("connected")), bool(told.get("caught_up"))
        lag, age_ms = told.get("lag"), told.get("age_ms")
        why = _cut(told.get("why"))
        is_catching_up = connected and not caught_up
        key = ("link", name, "lag" if is_catching_up else "age")
        self._trends.note(key, steady_us, lag if is_catching_up else age_ms)
        slope = self._trends.of(key, MESSAGES_FLOOR if is_catching_up else MS_FLOOR)
        left = None
        if is_catching_up and slope.trend == "shrinking" and lag is not None and slope.per_s:
            left = min(round(lag / -slope.per_s), _NUMBER_MAX)
        downgraded = bool(told.get("downgraded"))
        if not connected:
            state = "disconnected"
        elif downgraded:
            state = "downgraded"
        else:
            state = "caught_up" if caught_up else "connected"
        return LinkSummary(
            _cut(name),
            connected_to=_cut(told.get("peer")) if connected else "",
            configured_sync=bool(told.get("configured_sync")),
            sync=bool(told.get("sync")),
            downgraded=downgraded,
            by_hand=bool(told.get("downgraded_by_hand")),
            connected=connected,
            caught_up=caught_up,
            refused=not connected and _REFUSED.match(why) is not None,
            safe=bool(told.get("safe")),
            why_unsafe=_cut(told.get("why_unsafe")),
            why=why,
            since_us=self._since.get((name, state)) or _told_since(state, told),
            downgraded_us=self._since.get((name, "downgraded")) if downgraded else None,
            unacked=told.get("unacked"),
            lag=lag,
            age_ms=age_ms,
            rate_per_sec=self._rates.of((name, "messages"), told.get("sent_records", 0)),
            bytes_per_sec=self._rates.of((name, "bytes"), told.get("sent_bytes", 0)),
            trend=slope.trend,
            seconds_left=left,
        )

    def _queue(self, stored_as: str, told: Mapping[str, Any], steady_us: int) -> QueueSummary:
        depth, lease_us = told.get("queue_depth"), told.get("age_of_oldest_lease_us")
        self._trends.note(("queue", stored_as), steady_us, depth)
        return QueueSummary(
            _cut(told["topic"]),
            message_type=_cut(told.get("message_type")),
            why=_cut(told.get("why")),
            depth=depth,
            owned=told.get("available_here"),
            leased=told.get("leases"),
            oldest_lease_s=None if lease_us is None else lease_us / 1e6,
            expired=told.get("expired_leases"),
            moved_in=told.get("transferred_in"),
            moved_out=told.get("transferred_out"),
            consumers=told.get("subscriptions"),
            trend=self._trends.of(("queue", stored_as), MESSAGES_FLOOR).trend,
        )

    def _slow(self, snapshot: Mapping[str, Any]) -> list[SlowClient] | None:
        """Returns the slow clients, the one that is furthest behind first; None: the instance tells
        nothing of them."""
        if "capacity" not in snapshot:
            return None
        found: dict[str, SlowClient] = {}
        for pool in snapshot["capacity"]:
            for each in pool.get("offline_clients", ()):
                name = _cut(each.get("client"))
                age_ms = each.get("age_ms")
                age_s = None if age_ms is None else age_ms / 1000
                # `unsent_bytes` includes the bytes on disk.
                found[name] = SlowClient(name, each.get("unsent_bytes"), age_s, True)
        for each in snapshot.get("client_connections", ()):
            name, age_s = _cut(each["client"]), each["age_ms"] / 1000
            if age_s >= SLOW_S_MIN and name not in found:
                found[name] = SlowClient(name, each.get("unsent_bytes"), age_s)
        return sorted(found.values(), key=lambda each: (-(each.seconds_behind or 0), each.client))

    def _topics(self, snapshot: Mapping[str, Any]) -> Iterable[TopicSummary]:
        followers = FollowerCounts(snapshot)
        records = {
            identity(stored_as): told.get("records")
            for kind in ("sow_topics", *KINDS)
            for stored_as, told in (snapshot.get(kind) or {}).items()
        }
        totals = [TopicTotal(*values) for values in snapshot.get("topics", ())]
        counted = {(total.message_type, total.topic): total for total in totals}
        every = dict.fromkeys([*counted, *records])
        for message_type, name in [*every][:TOPICS_MAX]:
            key = message_type, name
            total = counted.get(key, TopicTotal(name, message_type))
            yield TopicSummary(
                _cut(name),
                _cut(message_type),
                key in records,
                records.get(key),
                self._rates.of(("topic", *key), total.logged),
                None,
                followers.of(name, message_type),
                total.messages,
                total.bytes,
                total.oldest_us or None,
                total.newest_us or None,
            )

    def _views(self, snapshot: Mapping[str, Any], steady_us: int) -> Iterable[ViewSummary]:
        followers = FollowerCounts(snapshot)
        every = [(kind, *each) for kind in KINDS for each in (snapshot.get(kind) or {}).items()]
        for kind, stored_as, told in every[:VIEWS_MAX]:
            message_type, name = identity(stored_as)
            key = (kind, stored_as)
            waiting = told.get("queue_depth" if kind == "views" else "pending")
            self._trends.note(key, steady_us, waiting)
            yield ViewSummary(
                _cut(name),
                _cut(message_type),
                "view" if kind == "views" else "conflated",
                _cut(", ".join(identity(each)[1] for each in told.get("under", ()))),
                told.get("records"),
                self._rates.of((*key, "taken"), told.get("taken", 0)),
                self._rates.of((*key, "updates"), told.get("updates", 0)),
                told.get("memory_bytes", told.get("pending_bytes")),
                waiting,
                self._trends.of(key, MESSAGES_FLOOR).trend,
                followers.of(name, message_type),
                bool(told.get("in_service", True)),
                _cut(told.get("refusal")),
                told.get("built_percent"),
            )


def _first_warning(snapshot: Mapping[str, Any]) -> str:
    """Returns the warning of the certificate that ends first; empty: none ends soon."""
    soon = sorted(
        (each["ends_us"], each["warning"])
        for each in snapshot.get("certificates", ())
        if each["warning"]
    )
    return str(soon[0][1]) if soon else ""


def _actions(snapshot: Mapping[str, Any]) -> tuple[ActionSummary, ...]:
    """Returns the actions of an instance; of too many those that failed come first."""
    told: Mapping[str, Mapping[str, Any]] = (snapshot.get("actions") or {}).get("actions") or {}
    found = [
        ActionSummary(
            _cut(name),
            each.get("runs") or 0,
            each.get("failures") or 0,
            each.get("dropped") or 0,
            each.get("waiting") or 0,
            _cut(each.get("last_error")),
            each.get("last_run_us") or 0,
        )
        for name, each in told.items()
    ]
    if len(found) > ACTIONS_MAX:
        found.sort(key=lambda each: -each.failures)
    return tuple(found[:ACTIONS_MAX])


def _told_since(state: str, told: Mapping[str, Any]) -> int | None:
    """Returns the time since when a link is in a state, as the instance tells it; None: it does
    not."""
    key = {"disconnected": "disconnected_us", "connected": "connected_us"}.get(state, "")
    found = told.get(key)
    return found if isinstance(found, int) and found > 0 else None


def _sum(values: Mapping[str, Any], *keys: str) -> int | None:
    """Returns the sum of values; None: one of them is not known."""
    found = [values.get(key) for key in keys]
    return None if any(each is None for each in found) else sum(each or 0 for each in found)
