"""The client library.

    async with Client("desk", servers=["host-a:9007", "host-b:9007"]) as client:
        sequence = await client.publish("orders", b'{"id": 1}')
        await client.flush()                       # durable, here and at every sync destination
        subscription = await client.subscribe("orders", bookmark=EPOCH)
        async for message in subscription:         # or: async for batch in subscription.batches()
            print(message.bookmark, message.body)

`SyncClient` is the same for scripts without an event loop. `machine.py` decides, with
`publishing/outbox.py` (what was published), `failover.py` (which server),
`subscriptions/subscription_registry.py` and
`subscriptions/subscription_state.py` (what was subscribed); they are pure as `messages.py` is.
`runtime.py` performs what they decide.

Tracing: hand in an object with the methods of `Tracer` (telemetry/client_traces.py has one).
Stores: anything with the methods of `PublishStoreProtocol` and `BookmarkStoreProtocol`;
`MemoryPublishStore`,
`LmdbPublishStore`, `MemoryBookmarkStore` and `LmdbBookmarkStore` have them.
"""

from __future__ import annotations

from raylay.services.client.arguments import Resolver, ServerLike, Tls
from raylay.services.client.client import Client
from raylay.services.client.events import (
    ClientEvent,
    ClockDiffers,
    Connected,
    Disconnected,
    LoopBlocked,
    MessagesMissing,
    PeerBecameSafe,
    PeerBecameUnsafe,
    PublishFailed,
    ServerRefused,
    StoreFailed,
    UnacknowledgedMessages,
    WaitingForSafeInstance,
    WaitingForServer,
)
from raylay.services.client.failover import FailoverRule, Server
from raylay.services.client.machine import ClientMachine, ClientOptions
from raylay.services.client.messages import Message, MessageBatch
from raylay.services.client.named_readers import ReaderCommands, ReaderPlace, SyncReaderCommands
from raylay.services.client.publishing.body_writer import Body
from raylay.services.client.publishing.publish_store import PublishStoreProtocol
from raylay.services.client.queues.queue import Acknowledging, Settling
from raylay.services.client.queues.queue_consumer import (
    AckMode,
    QueueBatch,
    QueueConsumer,
    QueueMessage,
)
from raylay.services.client.queues.sync_queue import SyncQueueConsumer
from raylay.services.client.subscriptions.sow_query import SowQuery
from raylay.services.client.subscriptions.subscription import Merged, Subscription
from raylay.services.client.subscriptions.subscription_state import BookmarkStoreProtocol
from raylay.services.client.sync import SyncClient, SyncQuery, SyncSubscription
from raylay.services.client.tracer import Tracer
from raylay.services.messages.bookmarks import EPOCH, NOW
from raylay.services.net.tls_config import TlsConfig
from raylay.storage.stores import (
    LmdbBookmarkStore,
    LmdbPublishStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
)

__all__ = [
    "Client",
    "SyncClient",
    "QueueConsumer",
    "SyncQueueConsumer",
    "QueueBatch",
    "QueueMessage",
    "Subscription",
    "Merged",
    "SyncSubscription",
    "SowQuery",
    "SyncQuery",
    "Message",
    "MessageBatch",
    "Body",
    "EPOCH",
    "NOW",
    "Server",
    "ServerLike",
    "Resolver",
    "FailoverRule",
    "AckMode",
    "Acknowledging",
    "Settling",
    "Tls",
    "ReaderCommands",
    "ReaderPlace",
    "SyncReaderCommands",
    "ClientEvent",
    "ClockDiffers",
    "LoopBlocked",
    "MessagesMissing",
    "UnacknowledgedMessages",
    "Connected",
    "Disconnected",
    "PeerBecameSafe",
    "PeerBecameUnsafe",
    "PublishFailed",
    "ServerRefused",
    "StoreFailed",
    "WaitingForSafeInstance",
    "WaitingForServer",
    "PublishStoreProtocol",
    "BookmarkStoreProtocol",
    "LmdbBookmarkStore",
    "LmdbPublishStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "TlsConfig",
    "Tracer",
    "ClientMachine",
    "ClientOptions",
]
