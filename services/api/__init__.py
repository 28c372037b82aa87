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
    from raylay.services.client import (
        EPOCH,
        NOW,
        Client,
        LmdbBookmarkStore,
        LmdbPublishStore,
        Merged,
        Message,
        MessageBatch,
        PublishFailed,
        Server,
        Subscription,
        SyncClient,
        SyncSubscription,
    )
    from raylay.services.errors import (
        BodyTypeError,
        BookmarkNotFound,
        CommandFailed,
        ConfigurationError,
        ConnectionLost,
        FabricError,
        FlushTimeout,
        PublishStoreFull,
        RaylayError,
        SequenceConflict,
    )
    from raylay.services.fabric import Action, Do, Fabric, If, On, Topic, lookup

__all__ = [
    "Fabric",
    "Topic",
    "lookup",
    "Action",
    "On",
    "If",
    "Do",
    "Client",
    "SyncClient",
    "Subscription",
    "SyncSubscription",
    "Merged",
    "Message",
    "MessageBatch",
    "Server",
    "EPOCH",
    "NOW",
    "LmdbBookmarkStore",
    "LmdbPublishStore",
    "PublishFailed",
    "RaylayError",
    "BodyTypeError",
    "BookmarkNotFound",
    "CommandFailed",
    "ConfigurationError",
    "ConnectionLost",
    "FabricError",
    "FlushTimeout",
    "PublishStoreFull",
    "SequenceConflict",
]

_ROOMS = dict.fromkeys(
    ("Fabric", "Topic", "lookup", "Action", "On", "If", "Do"), "fabric"
) | dict.fromkeys(
    (
        "RaylayError",
        "BodyTypeError",
        "BookmarkNotFound",
        "CommandFailed",
        "ConfigurationError",
        "ConnectionLost",
        "FabricError",
        "FlushTimeout",
        "PublishStoreFull",
        "SequenceConflict",
    ),
    "errors",
)

if not TYPE_CHECKING:  # What reads types takes the imports above, and nothing else for a name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        room = importlib.import_module(f"raylay.services.{_ROOMS.get(name, 'client')}")
        found = globals()[name] = getattr(room, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
