"""The status of an instance's subscriptions: subscribers, and how far behind each is."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from raylay.services.subscriptions.bookmark import BookmarkSubscription
from raylay.services.subscriptions.matching import LiveSubscription

SHOWN_MAX = 1_000


class SubscribedClient(Protocol):
    """A client's connection, as far as this asks it."""

    client_name: str
    subscriptions: dict[str, LiveSubscription | BookmarkSubscription]

    @property
    def unsent_bytes(self) -> int:
        """The bytes that it was sent and its socket has not taken."""


def subscription_status(
    clients: Iterable[SubscribedClient], committed_txid: int
) -> list[Mapping[str, Any]]:
    """Each subscription, `SHOWN_MAX` at most. Of its keys

    - `topic`, `message_types` (none: any): as it was asked for;
    - `filter`: by content, where it has one;
    - `bookmark`: whether it reads the log, at its own pace; else it gets what is published;
    - `delivered`: messages that it was given in this session;
    - `behind`: entries of the log, of any topic, that were not looked at for it yet; None where it
      does not read the log;
    - `unsent_bytes`: what waits for its client, all of whose subscriptions share that.
    """
    every = ((each, sub) for each in clients for sub in each.subscriptions.values())
    return [
        {
            "client": client.client_name,
            "subscription": found.id,
            "topic": found.filter.topic.decode("utf-8", "replace"),
            "message_types": sorted(
                each.decode("utf-8", "replace") for each in found.filter.message_types
            ),
            **({"filter": text} if (text := _content(found)) else {}),
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
        return found.content
    return found.content.text if found.content is not None else ""
