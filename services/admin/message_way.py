"""One message's way through all processes: lanes, arrows, the clocks' difference, what to fold
(docs/tracing.md).

Each instance tells the spans that lie on its host; several instances of one host tell the same
ones. Together they are what `#/message/B` draws: a lane for each process in the order of the graph,
an arrow for each step from one process to another, acknowledgments backwards.

Times are shown as they were written. Where a child begins before its parent in another process, the
difference of the clocks is at least that: it is told and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

PUBLISH = "publish"
LINK_SEND = "link send"
DELIVERY = "delivery"
ACKNOWLEDGMENTS = frozenset(("persisted ack", "acknowledgment"))
"""Names of the spans of acknowledgments, which go back to the sender."""
_OF_CLIENTS = frozenset((PUBLISH, "delivery", "acknowledgment"))
SPANS_MAX = 2_000
"""Limit on the spans of one message that are passed on: a queue may deliver a message again and
again."""
FOLDED_SHARE = 0.5
"""Share of the whole above which a gap without any span is folded."""


@dataclass(frozen=True, slots=True)
class WaySpan:
    """One span.

    Attributes:
        id: id of the span in its trace.
        parent: id of the parent; empty: it has none.
        begin_us: microseconds since 1970, with fractions.
    """

    id: str
    parent: str
    name: str
    process: str
    begin_us: float
    end_us: float
    attributes: Mapping[str, Any]

    @property
    def instance(self) -> str:
        """Returns the instance of the span; empty: it is of a client."""
        return str(self.attributes.get("instance", ""))


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """The place of a message in an instance's journal.

    Attributes:
        txid: 0: not known.
        time_us: time at which the instance received it, in microseconds since 1970.
    """

    instance: str
    txid: int
    time_us: int


@dataclass(slots=True)
class InstanceTrace:
    """The knowledge of one instance about a message.

    Attributes:
        stored: None: the message is not in its journal.
        is_sampled: whether the message carries a trace context; None: it is not here.
        writes_traces: whether the fabric writes traces on this host.
        error: reason for which the instance told nothing; empty: it did.
    """

    instance: str
    spans: Sequence[WaySpan] = ()
    stored: StoredMessage | None = None
    is_sampled: bool | None = None
    writes_traces: bool = False
    error: str = ""


@dataclass(slots=True)
class _Lane:
    instance: str
    process: str
    spans: list[WaySpan]


def span_of(values: Mapping[str, Any]) -> WaySpan:
    """Returns a span as another instance tells it.

    Raises:
        KeyError, TypeError, ValueError: the values are no span.
    """
    return WaySpan(
        str(values["id"]),
        str(values["parent"]),
        str(values["name"]),
        str(values["process"]),
        float(values["begin_us"]),
        float(values["end_us"]),
        dict(values["attributes"]),
    )


def as_json(span: WaySpan) -> dict[str, Any]:
    """Returns a span as it is told to others."""
    return {
        "id": span.id,
        "parent": span.parent,
        "name": span.name,
        "process": span.process,
        "begin_us": span.begin_us,
        "end_us": span.end_us,
        "attributes": dict(span.attributes),
    }


def told_of(values: Mapping[str, Any], instance: str) -> InstanceTrace:
    """Reads another instance's knowledge about a message, as `told_as_json` writes it. An answer
    that cannot be read becomes one with an error.

    Args:
        instance: the name of the instance that was asked; a name in its answer is not used.
    """
    try:
        stored = values.get("stored")
        return InstanceTrace(
            instance,
            [span_of(each) for each in list(values["spans"])[:SPANS_MAX]],
            stored and StoredMessage(instance, int(stored["txid"]), int(stored["time_us"])),
            None if values.get("sampled") is None else bool(values["sampled"]),
            bool(values.get("writes_traces")),
            str(values.get("error") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return InstanceTrace(instance, error="it told no trace: it may be of another version")


def told_as_json(told: InstanceTrace) -> dict[str, Any]:
    """Returns an instance's knowledge about a message as JSON, for the peer that puts the message's
    way together."""
    stored = told.stored
    return {
        "instance": told.instance,
        "spans": [as_json(each) for each in told.spans[:SPANS_MAX]],
        "stored": stored and {"txid": stored.txid, "time_us": stored.time_us},
        "sampled": told.is_sampled,
        "writes_traces": told.writes_traces,
        "error": told.error,
    }


def message_way(
    bookmark: str,
    told: Sequence[InstanceTrace],
    async_links: Collection[tuple[str, str]] = frozenset(),
) -> dict[str, Any]:
    """Returns the way of a message as the console draws it.

    Args:
        told: knowledge of each instance about the message, in the order of the graph.
        async_links: (instance, instance that it sends to) of the links that no ack waits for.
    """
    order = {each.instance: place for place, each in enumerate(told)}
    spans = _one_of_each(span for each in told for span in each.spans)[:SPANS_MAX]
    lanes = _lanes(spans, order)
    lane_of = {span.id: number for number, lane in enumerate(lanes) for span in lane.spans}
    by_id = {span.id: span for span in spans}
    publish = next((span for span in spans if span.name == PUBLISH), None)
    begin_us = min((span.begin_us for span in spans), default=0.0)
    seen = {span.instance for span in spans}
    longest = max(
        (span for span in spans if _is_waited_for(span, by_id, async_links)),
        key=lambda span: span.end_us - span.begin_us,
        default=None,
    )
    return {
        "bookmark": bookmark,
        "begin_us": begin_us,
        "end_us": max((span.end_us for span in spans), default=0.0),
        "lanes": [
            {
                "instance": lane.instance,
                "process": lane.process,
                "spans": [as_json(span) for span in lane.spans],
            }
            for lane in lanes
        ],
        "links": _links(spans, lane_of, by_id),
        "persisted_ms": None if publish is None else _ms(publish),
        "outcome": "" if publish is None else str(publish.attributes.get("outcome", "")),
        "longest": None if longest is None else longest.id,
        "skew": _skew(spans, lane_of, by_id),
        "folds": _folds(spans),
        "without_spans": [each.instance for each in told if each.instance not in seen],
        "is_sampled": _any(each.is_sampled for each in told),
        "writes_traces": any(each.writes_traces for each in told),
        "stored": [
            {
                "instance": each.instance,
                "txid": each.stored.txid or None,
                "time_us": each.stored.time_us,
            }
            for each in told
            if each.stored is not None
        ],
        "not_stored": [each.instance for each in told if each.stored is None and not each.error],
        "silent": [{"instance": each.instance, "why": each.error} for each in told if each.error],
    }


def _is_waited_for(
    span: WaySpan, by_id: Mapping[str, WaySpan], async_links: Collection[tuple[str, str]]
) -> bool:
    """Returns whether the publisher's ack may wait for a step: it is no delivery, and it does not
    lie behind an async link."""
    if span.name in (PUBLISH, DELIVERY):
        return False
    above: WaySpan | None = span
    for _ in range(len(by_id)):  # parents of a broken trace may go round
        if above is None:
            break
        link = above.instance, str(above.attributes.get("destination", ""))
        if above.name == LINK_SEND and link in async_links:
            return False
        above = by_id.get(above.parent)
    return True


def _any(values: Iterable[bool | None]) -> bool | None:
    """Returns whether any of the values is true; None: all of them are unknown."""
    known = [each for each in values if each is not None]
    return any(known) if known else None


def _one_of_each(spans: Iterable[WaySpan]) -> list[WaySpan]:
    """Returns the spans by their beginnings, each once however many instances told it.

    Of two that have one id, as of an owner that restarted, both are kept if their times differ.
    """
    found = {(span.id, span.process, span.begin_us, span.end_us): span for span in spans}
    return sorted(found.values(), key=lambda span: (span.begin_us, span.end_us))


def _lanes(spans: Sequence[WaySpan], order: Mapping[str, int]) -> list[_Lane]:
    """Returns a lane for each process: clients that publish first, then the instances with their
    queues' owners in the order of the graph, then the clients that receive."""
    by_process: dict[str, list[WaySpan]] = {}
    for span in spans:
        by_process.setdefault(span.process, []).append(span)
    found = [
        _Lane("" if _is_client(process, its) else its[0].instance, process, its)
        for process, its in by_process.items()
    ]
    unknown = len(order)

    def place(lane: _Lane) -> tuple[int, int, bool, float]:
        first_us = min(span.begin_us for span in lane.spans)
        if lane.instance:
            is_beside = lane.process != lane.instance
            return 1, order.get(lane.instance, unknown), is_beside, first_us
        publishes = any(span.name == PUBLISH for span in lane.spans)
        return 0 if publishes else 2, 0, False, first_us

    return sorted(found, key=place)


def _is_client(process: str, spans: Sequence[WaySpan]) -> bool:
    """Returns whether a process is a client's: its deliveries and acknowledgments name an instance,
    too, as the one that sent them."""
    return all(
        span.name in _OF_CLIENTS and "client" in span.attributes and span.instance != process
        for span in spans
    )


def _links(
    spans: Sequence[WaySpan], lane_of: Mapping[str, int], by_id: Mapping[str, WaySpan]
) -> list[dict[str, Any]]:
    """Returns an arrow for each step from a lane to another one, from the parent to its child; of
    an acknowledgment from the child to the parent, whose end it is."""
    found = []
    for span in spans:
        parent = by_id.get(span.parent)
        if parent is None or parent is span:
            continue
        is_back = span.name in ACKNOWLEDGMENTS
        if lane_of[parent.id] == lane_of[span.id] and not is_back:
            continue
        ends = (span.id, parent.id) if is_back else (parent.id, span.id)
        found.append({"from": ends[0], "to": ends[1], "back": is_back})
    return found


def _skew(
    spans: Sequence[WaySpan], lane_of: Mapping[str, int], by_id: Mapping[str, WaySpan]
) -> list[dict[str, Any]]:
    """Returns by how much a lane's clock is behind at least, where a child begins before its parent
    in another lane."""
    behind: dict[int, float] = {}
    for span in spans:
        parent = by_id.get(span.parent)
        if parent is None or lane_of[parent.id] == lane_of[span.id]:
            continue
        early_us = parent.begin_us - span.begin_us
        lane = lane_of[span.id]
        if early_us > behind.get(lane, 0.0):
            behind[lane] = early_us
    return [
        {"lane": lane, "behind_ms": round(early_us / 1000, 3)}
        for lane, early_us in sorted(behind.items())
    ]


def _folds(spans: Sequence[WaySpan]) -> list[dict[str, float]]:
    """Returns the gaps, by their bounds in microseconds, in which nothing begins or ends and that
    take more than `FOLDED_SHARE` of the whole: there is at most one, and a lease of an hour would
    leave a pixel for everything else."""
    moments = sorted({moment for span in spans for moment in (span.begin_us, span.end_us)})
    if len(moments) < 3:
        return []
    whole_us = moments[-1] - moments[0]
    return [
        {"begin_us": before, "end_us": after}
        for before, after in pairwise(moments)
        if after - before > FOLDED_SHARE * whole_us
    ]


def _ms(span: WaySpan) -> float:
    return round((span.end_us - span.begin_us) / 1000, 3)
