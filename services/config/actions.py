"""The configuration of the process that runs an instance's actions: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from raylay.services.actions.model import ActionDefinition
from raylay.services.config.json_text import JsonText
from raylay.services.messages.types.definitions import TypeDefinition
from raylay.services.telemetry.logs import LogOptions

ACTIONS_TRANSPORT = "amps-actions"
"""Name of the transport of the actions' client, which listens on no port."""


@dataclass(slots=True)
class ActionRunnerConfig(JsonText):
    """The values that an instance gives to one start of the process that runs its actions.

    Attributes:
        start_number: number of this start, never used twice; the instance talks to the process of
            the last start only.
        secret: password with which the process logs on at the instance's Unix socket, as a client
            that may do everything; it is new at each start.
        directory: data directory of the instance.
        own_directories: directories of journals and archives, whose files no action touches.
        actions: the actions, in the order of the configuration.
        sow_topics: name and message type of each SOW topic.
        seed_us: time of the start, in microseconds since 1970.
    """

    instance: str
    group: str
    start_number: int
    unix_path: str
    secret: str
    directory: str
    own_directories: tuple[str, ...]
    actions: tuple[ActionDefinition, ...]
    sow_topics: tuple[tuple[str, str], ...] = ()
    seed_us: int = 0
    type_definitions: tuple[TypeDefinition, ...] = ()
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def process_name(self) -> str:
        return f"{self.instance}.actions"

    @property
    def client_name(self) -> str:
        """Returns the name of the client with which the process publishes and subscribes."""
        return client_name(self.instance)


def client_name(instance: str) -> str:
    """Returns the name of the client of an instance's actions."""
    return f"actions-{instance}"
