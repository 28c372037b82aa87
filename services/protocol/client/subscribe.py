"""Subscriptions and queries of a client, decoded."""

from __future__ import annotations

from typing import Any

import msgpack

from raylay.services.errors import RemoteProtocolError
from raylay.services.messages.conflation_terms import ConflationTerms, conflation_terms
from raylay.services.messages.ranges import PublisherRanges
from raylay.services.messages.rates import Rate, parse_rate
from raylay.services.protocol.client.commands import (
    Pause,
    Resume,
    SowAndSubscribe,
    SowCommand,
    Subscribe,
    Unsubscribe,
)
from raylay.services.protocol.client.queue_commands import read_messages
from raylay.services.protocol.frames import Header
from raylay.services.protocol.header_values import (
    BadValue,
    read_acks,
    read_command_id,
    read_message_type,
    read_options,
    read_text,
    read_topic,
    read_whole,
)

SUBSCRIPTION_ID_BYTES_MAX = 1024
UNSUBSCRIBED_MAX = 10_000
"""Number of subscriptions in one command: as many as a connection may have."""
BATCH_DEFAULT, BATCH_MAX = 10, 10_000
"""Number of records in a frame of a query's answer: by default, and at most."""
BACKLOG_MAX = 1_000_000
"""Number of messages of a queue that one subscription takes before it acknowledges one, at most."""
ROWS_MAX = (1 << 63) - 1
HAVE_CHUNKS_MAX = 128 * 1024
"""Number of chunks of the sets that a subscriber says it has: a chunk of 14 bytes takes up to 0.6
KiB of memory."""
_OF_REPLAYS = ("fully_durable", "live", "pause", "rate", "rate_max_gap")
_SUBSCRIBING = (
    "oof",
    "delta",
    "replace",
    "pause",
    "no_empties",
    "no_sowkey",
    "conflation",
    "conflation_key",
)
_OF_CHANGES = ("oof", "delta", "select", "replace")
_OF_QUERIES = ("projection", "grouping")
TEXTS_MAX = 1_000
"""Number of texts in a list, such as the fields of a projection."""


def read_subscribe(header: Header, body: bytes) -> Subscribe | Pause | Resume:
    """Decodes the `subscribe` command, in all its forms."""
    options = read_options(header)
    if options.get("resume") or (options.get("pause") and header.get("t") is None):
        return _read_pause_or_resume(header, options)
    return _read_subscribe(header, options, body)


def read_sow(header: Header, _: bytes) -> SowCommand:
    """Decodes the `sow` command."""
    options = read_options(header)
    for name in _SUBSCRIBING:
        if options.get(name):
            raise BadValue(
                "bad_command",
                f"{name} is an option of subscriptions: send sow_and_subscribe, or leave it out",
            )
    return _read_query(header, options)


def read_sow_and_subscribe(header: Header, body: bytes) -> SowAndSubscribe:
    """Decodes the `sow_and_subscribe` command."""
    options = read_options(header)
    if header.get("bm"):
        _check_rows_before_replay(options, body)
    else:
        for name in _OF_REPLAYS:
            if options.get(name):
                raise BadValue(
                    "bad_command", f"{name} is an option of bookmark subscriptions: leave it out"
                )
    query = _read_query(header, options)
    if query.as_of:
        raise BadValue(
            "not_supported",
            "as_of is of sow alone: a sow_and_subscribe says by its bookmark `bm` of when it is",
        )
    if query.projection and options.get("replace") and query.top_n is None:
        raise BadValue(
            "not_supported",
            "replace gives an aggregated subscription another page, and this one has none: "
            "unsubscribe, and send sow_and_subscribe again",
        )
    return SowAndSubscribe(query, _read_subscribe(header, options, body))


def _check_rows_before_replay(options: dict[str, Any], body: bytes) -> None:
    """Checks a sow_and_subscribe with a bookmark: the log has messages, but no changing records."""
    for name in ("live", "pause", "keys", "top_n", *_OF_QUERIES):
        if options.get(name):
            raise BadValue(
                "not_supported",
                f"{name} does not go with a sow_and_subscribe that has a bookmark: leave one of "
                "them out",
            )
    if body or options.get("have") is not None:
        raise BadValue(
            "bad_command",
            "who has the rows of a sow_and_subscribe goes on with subscribe: send that with `have`",
        )


def _read_subscribe(header: Header, options: dict[str, Any], body: bytes) -> Subscribe:
    subscription = _read_id(header)
    for name in _OF_QUERIES if header["c"] == "subscribe" else ():
        if options.get(name):
            raise BadValue(
                "bad_command", f"{name} is an option of sow and sow_and_subscribe: send one of them"
            )
    not_found = options.get("bookmark_not_found", "now")
    if not_found not in ("now", "epoch", "fail"):
        raise BadValue("bad_command", "bookmark_not_found is none of now, epoch, fail")
    persisted_ms = options.get("persisted_ms") or 0
    if type(persisted_ms) is not int or not 0 <= persisted_ms <= 3_600_000:
        raise BadValue("bad_command", "persisted_ms is no whole number from 0 to 3600000")
    if options.get("window"):
        raise BadValue("bad_command", "window: credits are not spoken yet, leave it out or 0")
    bookmark = read_text(header, "bm")
    _check_delivery(options, bookmark)
    return Subscribe(
        subscription,
        read_topic(header),
        read_message_type(header, ""),
        bookmark,
        read_command_id(header),
        read_acks(header),
        not_found,
        read_have(options, body),
        persisted_ms,
        bool(options.get("fully_durable")),
        bool(options.get("non_regex_topic")),
        bool(options.get("live")),
        bool(options.get("pause")),
        _read_rate(options),
        _option_text(header, options, "filter"),
        _option_text(header, options, "select"),
        bool(options.get("oof")),
        bool(options.get("delta")),
        bool(options.get("no_empties")),
        bool(options.get("no_sowkey")),
        bool(options.get("replace")),
        _read_max_backlog(header, options),
        _read_conflation(header, options),
    )


def _read_conflation(header: Header, options: dict[str, Any]) -> ConflationTerms | None:
    try:
        return conflation_terms(
            _option_text(header, options, "conflation"), _read_texts(options, "conflation_key")
        )
    except RemoteProtocolError as error:
        raise BadValue(error.reason, str(error)) from None


def _read_texts(options: dict[str, Any], name: str) -> tuple[str, ...]:
    value = options.get(name) or ()
    if type(value) not in (list, tuple) or not all(type(each) is str and each for each in value):
        raise BadValue("bad_command", f"{name} is no list of texts")
    if len(value) > TEXTS_MAX:
        raise BadValue("bad_command", f"{name} has more than {TEXTS_MAX:,} texts")
    return tuple(value)


def _read_grouped(header: Header, options: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Returns the projection and the grouping of an aggregated query."""
    projection, grouping = (_read_texts(options, name) for name in _OF_QUERIES)
    if grouping and not projection:
        raise BadValue(
            "bad_command",
            "grouping goes with projection, and there is none: name the fields, such as "
            "COUNT(/id) AS /count",
        )
    for name in ("select", "keys", "as_of") if projection else ():
        if options.get(name):
            raise BadValue(
                "not_supported",
                f"{name} of a {header['c']} does not go with projection: leave one of them out",
            )
    return projection, grouping


def _read_max_backlog(header: Header, options: dict[str, Any]) -> int:
    if options.get("max_backlog") is None:
        return 0
    return _option_whole(header, options, "max_backlog", 1, BACKLOG_MAX)


def _read_query(header: Header, options: dict[str, Any]) -> SowCommand:
    top_n = options.get("top_n")
    if top_n is not None:
        top_n = _option_whole(header, options, "top_n", 1, ROWS_MAX)
    skip_n = _option_whole(header, options, "skip_n", 0, ROWS_MAX)
    if skip_n and top_n is None:
        raise BadValue("bad_command", "skip_n goes with top_n, and there is none: give both")
    return SowCommand(
        _read_id(header),
        read_topic(header),
        read_message_type(header, ""),
        read_command_id(header),
        read_acks(header),
        bool(options.get("non_regex_topic")),
        _option_text(header, options, "filter"),
        _option_text(header, options, "select"),
        _option_text(header, options, "order_by"),
        top_n,
        skip_n,
        _option_whole(header, options, "batch", 1, BATCH_MAX) or BATCH_DEFAULT,
        _read_keys(header, options),
        _option_text(header, options, "as_of"),
        *_read_grouped(header, options),
    )


def _read_id(header: Header) -> str:
    found = read_text(header, "sub")
    if not 1 <= len(found.encode("utf-8", "surrogatepass")) <= SUBSCRIPTION_ID_BYTES_MAX:
        what = "a query id" if header["c"] == "sow" else "a subscription id"
        raise BadValue(
            "bad_command",
            f"{header['c']} needs {what} `sub` of 1 to {SUBSCRIPTION_ID_BYTES_MAX} bytes",
        )
    return found


def _read_keys(header: Header, options: dict[str, Any]) -> frozenset[bytes] | None:
    value = options.get("keys")
    if value is None:
        return None
    if type(value) is not list or not all(type(each) is bytes and each for each in value):
        raise BadValue("bad_command", f"`keys` of {header['c']} is no list of SOW keys, as bytes")
    return frozenset(value)


def _option_text(header: Header, options: dict[str, Any], name: str) -> str:
    return read_text({"c": header["c"], name: options.get(name)}, name)


def _option_whole(header: Header, options: dict[str, Any], name: str, low: int, high: int) -> int:
    return read_whole({"c": header["c"], name: options.get(name)}, name, low, high)


def read_have(options: dict[str, Any], body: bytes) -> PublisherRanges | None:
    """Returns the messages that a reader says it has; None: it says nothing."""
    have = options.get("have")
    if have is None and body:
        try:
            # A map of numbers to bytes only, so that nothing else in it can be large.
            have = msgpack.unpackb(
                body,
                strict_map_key=False,
                max_array_len=0,
                max_ext_len=0,
                max_map_len=HAVE_CHUNKS_MAX,
            )
        except Exception:  # msgpack raises many kinds of errors on bad bytes
            raise BadValue(
                "bad_command",
                "the body is no msgpack map of publisher to ranges, of up to "
                f"{HAVE_CHUNKS_MAX} publishers",
            ) from None
    try:
        return None if have is None else PublisherRanges.from_wire(have, HAVE_CHUNKS_MAX)
    except RemoteProtocolError as error:
        raise BadValue("bad_command", f"`have` is no ranges: {error}") from None


def _check_delivery(options: dict[str, Any], bookmark: str) -> None:
    """Checks that the options for the delivery of a replay fit together."""
    unheard = next((name for name in _OF_CHANGES if options.get(name)), None)
    if bookmark and unheard:
        raise BadValue(
            "not_supported",
            f"{unheard} is no option of bookmark subscriptions: leave it out, or the bookmark",
        )
    given = [name for name in _OF_REPLAYS if options.get(name)]
    if given and not bookmark:
        raise BadValue(
            "bad_command",
            f"{given[0]} is an option of bookmark subscriptions: give a bookmark `bm`, "
            "such as 0 for the whole log",
        )
    if "live" in given and len(given) > 1:
        other = next(name for name in given if name != "live")
        raise BadValue(
            "bad_command",
            f"live delivers messages as they come, and {other} holds them back: give one of them",
        )


def _read_rate(options: dict[str, Any]) -> Rate | None:
    rate, gap = options.get("rate"), options.get("rate_max_gap") or ""
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        rate = f"{rate:.6f}".rstrip("0") if rate >= 0 else str(rate)
    if rate is None and gap:
        raise BadValue("bad_command", "rate_max_gap goes with a rate like 2X, and there is none")
    if rate is None:
        return None
    if type(rate) is not str or type(gap) is not str:
        raise BadValue(
            "bad_command", "rate is a text like 500, 500KB or 2X, rate_max_gap one like 10s"
        )
    try:
        return parse_rate(rate, gap)
    except RemoteProtocolError as error:
        raise BadValue(error.reason, str(error)) from None


def _read_pause_or_resume(header: Header, options: dict[str, Any]) -> Pause | Resume:
    value = header.get("sub")
    if isinstance(value, str):
        value = [name for name in value.split(",") if name]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise BadValue(
            "bad_command", "pause and resume need `sub`: one id, a comma list or a list of ids"
        )
    given = [name for name in options if options[name]]
    if len(given) != 1:
        raise BadValue(
            "bad_command",
            f"{given[0]} comes with {given[1]}: pause or resume of a subscription that there is "
            "takes no other option",
        )
    kind = Resume if given == ["resume"] else Pause
    names = tuple(dict.fromkeys(value))
    return kind(names, read_command_id(header), read_acks(header))


def read_unsubscribe(header: Header, body: bytes) -> Unsubscribe:
    """Decodes the `unsubscribe` command."""
    value = header.get("sub")
    subscriptions: tuple[str, ...] | None
    if value == "all":
        subscriptions = None
    elif isinstance(value, str) and value:
        subscriptions = (value,)
    elif (
        isinstance(value, list)
        and len(value) <= UNSUBSCRIBED_MAX
        and all(isinstance(item, str) for item in value)
    ):
        subscriptions = tuple(value)
    else:
        raise BadValue(
            "bad_command",
            f"unsubscribe needs `sub`: one id, a list of up to {UNSUBSCRIBED_MAX:,}, or all",
        )
    return Unsubscribe(
        subscriptions,
        read_command_id(header),
        read_acks(header),
        read_messages(body) if body else None,
        bool(header.get("cancel")),
    )
