"""The status of an instance's subscriptions: the subscribers, and how far behind each is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.matching import LiveSubscription

SHOWN_MAX = 1_000


class SubscribedClient(Protocol):
    """The properties of a client's connection that the status needs."""

    client_name: str
    subscriptions: dict[str, LiveSubscription | BookmarkSubscription]

    @property
    def unsent_bytes(self) -> int:
        """Returns the bytes that were sent to the client and that its socket has not taken."""


def subscription_status(
    clients: Iterable[SubscribedClient], committed_txid: int
) -> list[Mapping[str, Any]]:
    """Returns the subscriptions, `SHOWN_MAX` at most, each as a mapping with these keys:

    - `topic`, `message_types` (none: any): as subscribed to;
    - `filter`: the content filter, where there is one;
    - `bookmark`: whether the subscription reads the log, at its own pace; otherwise it gets
      messages as they are published;
    - `kind`: `aggregated`, `paginated`, `conflated`, or several of them, where it is one;
    - `delivered`: number of messages delivered in this session;
    - `behind`: number of entries of the log, of any topic, that the subscription has not reached;
      None where it does not read the log;
    - `unsent_bytes`: bytes that wait for its client; all subscriptions of the client share them.
    """
    every = ((each, sub) for each in clients for sub in each.subscriptions.values())
    return [
        {
            "client": client.client_name,
            "subscription": found.id,
            "topic": found.filter.written.decode("utf-8", "replace"),
            "message_types": sorted(
                message_type.decode("utf-8", "replace")
                for message_type in found.filter.message_types
            ),
            **({"filter": text} if (text := _content(found)) else {}),
            **({"kind": kind} if (kind := _kind(found)) else {}),
            "bookmark": isinstance(found, BookmarkSubscription),
            "delivered": found.delivered,
            "behind": (
                None
                if isinstance(found, LiveSubscription)
                else 0
                if found.ended
                else max(0, committed_txid - found.cursor)
            ),
            "unsent_bytes": client.unsent_bytes,
        }
        for client, found in itertools.islice(every, SHOWN_MAX)
    ]


def _content(found: LiveSubscription | BookmarkSubscription) -> str:
    if isinstance(found, LiveSubscription):
        return found.written_filter
    return found.content.text if found.content is not None else ""


def _kind(found: LiveSubscription | BookmarkSubscription) -> str:
    following = found.following if isinstance(found, LiveSubscription) else None
    return "" if following is None else following.kind_words
