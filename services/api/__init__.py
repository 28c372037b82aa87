"""A leaderless replicated message broker whose every moving part is a Ray actor.

    from raylay import EPOCH, Client, Fabric, Topic

What a script needs, by one name each; the rest lies in `raylay.services`. This folder is installed
as the package `raylay` itself. Each name is imported when it is used: `import raylay.services.…`
costs nothing more for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Not that of `typing`: nothing at all is imported with the package."""
if TYPE_CHECKING:
    from raylay.services.capacity.config import (
        CapacityConfig,
    )
    from raylay.services.client import (
        EPOCH,
        NOW,
        AckMode,
        Acknowledging,
        Body,
        BookmarkStoreProtocol,
        Client,
        ClientEvent,
        ClockDiffers,
        Connected,
        Disconnected,
        FailoverRule,
        LmdbBookmarkStore,
        LmdbPublishStore,
        LoopBlocked,
        MemoryBookmarkStore,
        MemoryPublishStore,
        Merged,
        Message,
        MessageBatch,
        MessagesMissing,
        PeerBecameSafe,
        PeerBecameUnsafe,
        PublishFailed,
        PublishStoreProtocol,
        QueueBatch,
        QueueConsumer,
        QueueMessage,
        ReaderCommands,
        ReaderPlace,
        Resolver,
        Server,
        ServerLike,
        ServerRefused,
        Settling,
        SowQuery,
        StoreFailed,
        Subscription,
        SyncClient,
        SyncQuery,
        SyncQueueConsumer,
        SyncReaderCommands,
        SyncSubscription,
        Tls,
        TlsConfig,
        Tracer,
        UnacknowledgedMessages,
        WaitingForSafeInstance,
        WaitingForServer,
    )
    from raylay.services.config.instance import (
        InstanceConfig,
    )
    from raylay.services.config.journal import (
        JournalConfig,
    )
    from raylay.services.configuration.admin import (
        AdminSettings,
    )
    from raylay.services.configuration.model import (
        ClientSettings,
        FabricSettings,
        InstanceSettings,
        LogSettings,
        MetricsSettings,
        TopicSettings,
        TracingSettings,
    )
    from raylay.services.configuration.queues import (
        QueueSettings,
    )
    from raylay.services.configuration.sow_topics import (
        SowTopicSettings,
    )
    from raylay.services.configuration.views import (
        ConflatedTopicSettings,
        ViewSettings,
    )
    from raylay.services.errors import (
        BodyTypeError,
        BookmarkNotFound,
        ClientFailed,
        CommandFailed,
        ConfigurationError,
        ConnectionLost,
        CorruptRecord,
        ExpressionError,
        FabricError,
        FlushTimeout,
        ForkedClient,
        LocalProtocolError,
        LogonRefused,
        MessageTypeError,
        NoSafeInstance,
        NoUsableServer,
        ProtocolError,
        PublishStoreFull,
        RaylayError,
        SequenceConflict,
        StorageError,
        StorageLocked,
    )
    from raylay.services.fabric import (
        Action,
        Do,
        Fabric,
        If,
        On,
        Topic,
        lookup,
    )
    from raylay.services.fabric.cluster.ray_access import (
        HeadSilent,
    )
    from raylay.services.fabric.plan import (
        FabricChanges,
    )
    from raylay.services.fabric.records.record import (
        OrphanedDirectory,
    )
    from raylay.services.fabric.relocation import (
        Relocation,
    )
    from raylay.services.fabric.rollout import (
        Progress,
    )
    from raylay.services.messages.ranges import (
        PublisherRanges,
    )
    from raylay.services.messages.types.definitions import (
        TypeDefinition,
    )
    from raylay.services.replication.downgrade import (
        DowngradePolicy,
    )

__all__ = [
    "Fabric",
    "Topic",
    "lookup",
    "Action",
    "On",
    "If",
    "Do",
    "FabricSettings",
    "InstanceSettings",
    "TopicSettings",
    "ClientSettings",
    "LogSettings",
    "MetricsSettings",
    "TracingSettings",
    "AdminSettings",
    "QueueSettings",
    "SowTopicSettings",
    "ConflatedTopicSettings",
    "ViewSettings",
    "CapacityConfig",
    "InstanceConfig",
    "JournalConfig",
    "TypeDefinition",
    "DowngradePolicy",
    "FabricChanges",
    "Relocation",
    "Progress",
    "OrphanedDirectory",
    "HeadSilent",
    "Client",
    "SyncClient",
    "Subscription",
    "SyncSubscription",
    "Merged",
    "Message",
    "MessageBatch",
    "Body",
    "SowQuery",
    "SyncQuery",
    "QueueConsumer",
    "SyncQueueConsumer",
    "QueueBatch",
    "QueueMessage",
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
    "TlsConfig",
    "PublishStoreProtocol",
    "BookmarkStoreProtocol",
    "LmdbBookmarkStore",
    "LmdbPublishStore",
    "MemoryBookmarkStore",
    "MemoryPublishStore",
    "Tracer",
    "ReaderCommands",
    "ReaderPlace",
    "SyncReaderCommands",
    "ClientEvent",
    "ClockDiffers",
    "Connected",
    "Disconnected",
    "LoopBlocked",
    "MessagesMissing",
    "UnacknowledgedMessages",
    "PeerBecameSafe",
    "PeerBecameUnsafe",
    "PublishFailed",
    "ServerRefused",
    "StoreFailed",
    "WaitingForSafeInstance",
    "WaitingForServer",
    "PublisherRanges",
    "RaylayError",
    "BodyTypeError",
    "BookmarkNotFound",
    "ClientFailed",
    "CommandFailed",
    "ConfigurationError",
    "ConnectionLost",
    "CorruptRecord",
    "ExpressionError",
    "FabricError",
    "FlushTimeout",
    "ForkedClient",
    "LocalProtocolError",
    "LogonRefused",
    "MessageTypeError",
    "NoSafeInstance",
    "NoUsableServer",
    "ProtocolError",
    "PublishStoreFull",
    "SequenceConflict",
    "StorageError",
    "StorageLocked",
]

_MODULES = {
    "fabric": (
        "Fabric",
        "Topic",
        "lookup",
        "Action",
        "On",
        "If",
        "Do",
    ),
    "configuration.model": (
        "FabricSettings",
        "InstanceSettings",
        "TopicSettings",
        "ClientSettings",
        "LogSettings",
        "MetricsSettings",
        "TracingSettings",
    ),
    "configuration.admin": ("AdminSettings",),
    "configuration.queues": ("QueueSettings",),
    "configuration.sow_topics": ("SowTopicSettings",),
    "configuration.views": (
        "ConflatedTopicSettings",
        "ViewSettings",
    ),
    "capacity.config": ("CapacityConfig",),
    "config.instance": ("InstanceConfig",),
    "config.journal": ("JournalConfig",),
    "messages.types.definitions": ("TypeDefinition",),
    "replication.downgrade": ("DowngradePolicy",),
    "fabric.plan": ("FabricChanges",),
    "fabric.relocation": ("Relocation",),
    "fabric.rollout": ("Progress",),
    "fabric.records.record": ("OrphanedDirectory",),
    "fabric.cluster.ray_access": ("HeadSilent",),
    "messages.ranges": ("PublisherRanges",),
    "errors": (
        "RaylayError",
        "BodyTypeError",
        "BookmarkNotFound",
        "ClientFailed",
        "CommandFailed",
        "ConfigurationError",
        "ConnectionLost",
        "CorruptRecord",
        "ExpressionError",
        "FabricError",
        "FlushTimeout",
        "ForkedClient",
        "LocalProtocolError",
        "LogonRefused",
        "MessageTypeError",
        "NoSafeInstance",
        "NoUsableServer",
        "ProtocolError",
        "PublishStoreFull",
        "SequenceConflict",
        "StorageError",
        "StorageLocked",
    ),
}
"""The names of each module of `raylay.services`; all others are of `client`."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # What reads types takes the imports above, and nothing else for a name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        module = importlib.import_module(f"raylay.services.{_MODULE_OF.get(name, 'client')}")
        found = globals()[name] = getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
