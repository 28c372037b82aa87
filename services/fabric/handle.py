"""A fabric as one process knows it: its settings, its record and the handles of its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.ray_access import ask_head, ray_module
from raylay.services.fabric.plan import FabricRecord
from raylay.services.fabric.records.record_store import (
    claim,
    is_newer,
    namespace_of,
    store_record,
    stored_record,
)


def ignore_progress(text: str) -> None:
    """Ignores reports of progress, as the default."""


class FabricHandle:
    """The knowledge of a fabric that the parts of its remote control share.

    Settings and record are as this process read them last; `refresh` takes over later changes of
    other processes.

    Args:
        name: name of the fabric.
        declare: returns the checked settings of the declaration.

    Attributes:
        settings: settings of the fabric that was started or attached to; None: those of the
            declaration hold.
        record: record of the running fabric; None: this process neither started it nor attached to
            it.
        actors: Ray's handles of instances, by instance name.
    """

    def __init__(self, name: str, declare: Callable[[], FabricSettings]) -> None:
        self.name = name
        self.settings: FabricSettings | None = None
        self.record: FabricRecord | None = None
        self.actors: dict[str, Any] = {}
        self._declare = declare

    @property
    def declared(self) -> FabricSettings:
        """Returns the checked settings, whether the fabric runs or not.

        Raises:
            ConfigurationError: the declaration is wrong.
        """
        return self.settings or self._declare()

    def known(self) -> tuple[FabricSettings, FabricRecord]:
        """Returns the settings and the record of the fabric that runs.

        Raises:
            FabricError: it was neither started here nor attached to.
        """
        if self.settings is None or self.record is None:
            raise FabricError(f"fabric {self.name} is not started: start it or attach to it")
        return self.settings, self.record

    def actor(self, name: str) -> Any:
        """Returns Ray's handle of an instance; None: no such actor runs.

        Raises:
            HeadSilent: Ray's head does not answer.
        """
        actor = self.actors.get(name)
        if actor is None:
            namespace = namespace_of(self.name)
            try:
                actor = ask_head(lambda: ray_module().get_actor(name, namespace=namespace))
            except ValueError:
                return None
            self.actors[name] = actor
        return actor

    def keep(self, record: FabricRecord) -> None:
        """Writes the record to this host's disk and to Ray's head.

        Raises:
            FabricError: another process has changed the fabric since this one looked; nothing is
                written. HeadSilent is one.
        """
        number = record.number + 1
        if is_newer(stored_record(self.name), number) or not claim(self.name, number):
            raise FabricError(
                f"fabric {self.name} was changed by another command meanwhile: look at `raylay "
                "status`, and say it again"
            )
        record.number = number
        record.save()
        store_record(record)
        self.record = record

    def refresh(self) -> None:
        """Takes over the changes that other processes have made to the record."""
        _, mine = self.known()
        record = stored_record(self.name)
        if record is not None and record.number > mine.number:
            self.record, self.settings = record, FabricSettings.from_json(record.settings)
            # One that was moved is another actor now.
            self.actors.clear()
