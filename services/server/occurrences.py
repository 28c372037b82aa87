"""The occurrences in an instance that its actions and event topics want to know of.

The parts of the server tell an occurrence here, and the listeners of its kind are called. Without a
listener this costs one look into a table, and the parts ask `wanted` before they compute anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

STARTUP, SHUTDOWN = "startup", "shutdown"
"""Kinds that are told as the last step of a start and as the first step of a stop."""
ADMIN = "admin"
"""Kind of a request to the administrator's interface for an action of the configuration."""
SIGNAL = "signal"
"""Kind of a signal to the instance's process."""
Listener = Callable[[str, Mapping[str, str]], None]
"""Function that takes the kind of an occurrence, and its variables."""


class Occurrences:
    """See the file's docstring.

    Kinds are the names of documented `on` modules without their beginning, such as
    `connect-client`, and further ones of the event topics. Variables are the documented ones, such
    as `AMPS_CLIENT_NAME`.

    Owner: the instance's runtime; on its event loop only.

    Attributes:
        listened: the listeners of each kind that has any. The path of a message looks a kind up
            here, which costs it no call.
    """

    __slots__ = ("listened",)

    def __init__(self) -> None:
        self.listened: dict[str, tuple[Listener, ...]] = {}

    def listen(self, kinds: Iterable[str], take: Listener) -> None:
        """Has a function called with each occurrence of some kinds. It must be quick, and must not
        raise."""
        for kind in kinds:
            self.listened[kind] = (*self.listened.get(kind, ()), take)

    def ignore(self, take: Listener) -> None:
        """Removes a listener from all kinds."""
        for kind, listeners in list(self.listened.items()):
            kept = tuple(each for each in listeners if each != take)
            if kept:
                self.listened[kind] = kept
            else:
                del self.listened[kind]

    def wanted(self, kind: str) -> bool:
        """Returns whether anybody listens to a kind."""
        return kind in self.listened

    def tell(self, kind: str, variables: Mapping[str, str]) -> None:
        """Calls the listeners of an occurrence's kind."""
        for take in self.listened.get(kind, ()):
            take(kind, variables)
