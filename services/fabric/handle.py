"""The state of a fabric's remote control: settings, the record, handles of its actors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.model import (
    FabricSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric.locks import StartLocks
from raylay.services.fabric.plan import (
    FabricRecord,
    data_directory,
    instance_config,
)
from raylay.services.fabric.ray_access import (
    ask_head,
    leave_ray,
    ray_module,
)
from raylay.services.fabric.record_store import (
    claim,
    is_newer,
    namespace_of,
    store_record,
    stored_record,
)
from raylay.services.security.control import Caller
from raylay.services.telemetry.tracing import Tracing


def _say_nothing(text: str) -> None:
    """Ignores progress that nobody asked for."""


class FabricHandle(FabricBuilder):
    """A fabric as one process sees it. What can be done with it, is built on this.

    Attributes of `_record` and `_settings` are as this process read them last: `_refresh` takes
    what others have changed.
    """

    def __init__(self, name: str, **sections: Any) -> None:
        """Declares an empty fabric; the arguments are those of `FabricBuilder`."""
        super().__init__(name, **sections)
        self.name = name
        self._settings: FabricSettings | None = None
        self._record: FabricRecord | None = None
        self._handles: dict[str, Any] = {}
        self._errands: dict[str, Any] = {}
        self._started_ray = False
        self._temporary = False
        self._owns = False
        self._tracing: Tracing | None = None
        self._holds: StartLocks | None = None
        self._tell: Callable[[str], None] = _say_nothing
        self._said: Caller | None = None

    @classmethod
    def of(cls, settings: FabricSettings) -> Self:
        """A fabric of settings that were checked before."""
        fabric = cls(settings.name)
        fabric._settings = settings
        return fabric

    # -- asking ------------------------------------------------------------------------------
    @property
    def directory(self) -> Path:
        """The fabric's directory."""
        return Path(self._known()[1].directory)

    @property
    def declared(self) -> FabricSettings:
        """The checked settings."""
        return self._settings or self.settings()

    def data_directory(self, name: str) -> Path:
        """An instance's data directory."""
        settings, record = self._known()
        return data_directory(record, settings.instance(name))

    def instance_config(self, name: str) -> InstanceConfig:
        """Returns the configuration with which an instance is started.

        Raises:
            FabricError: the fabric is not started.
        """
        settings, record = self._known()
        return instance_config(settings, record, settings.instance(name))

    # -- helpers -----------------------------------------------------------------------------
    def _known(self) -> tuple[FabricSettings, FabricRecord]:
        if self._settings is None or self._record is None:
            raise FabricError(f"fabric {self.name} is not started: start it or attach to it")
        return self._settings, self._record

    def _handle(self, name: str) -> Any:
        handle = self._handles.get(name)
        if handle is None:
            namespace = namespace_of(self.name)
            try:
                handle = ask_head(lambda: ray_module().get_actor(name, namespace=namespace))
            except ValueError:
                return None
            self._handles[name] = handle
        return handle

    def _keep(self, record: FabricRecord) -> None:
        """Writes the record down, here and at the head.

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
        self._record = record

    def _refresh(self) -> None:
        """Takes what other processes have changed meanwhile."""
        _, mine = self._known()
        record = stored_record(self.name)
        if record is not None and record.number > mine.number:
            self._record, self._settings = record, FabricSettings.from_json(record.settings)
            # One that was moved is another actor now.
            self._handles.clear()

    def _finish(self) -> None:
        if self._tracing is not None:
            self._tracing.close()
            self._tracing = None
        record, self._record = self._record, None
        if record is not None and self._temporary:
            shutil.rmtree(record.directory, ignore_errors=True)
        if self._started_ray:
            leave_ray()
            self._started_ray = False
        self._let_go()

    def _let_go(self) -> None:
        if self._holds is not None:
            self._holds.release()
            self._holds = None

    def leave(self) -> None:
        """Disconnects from the fabric and lets it run on."""
        self._record = None
        self._handles.clear()
        if self._started_ray:
            leave_ray()
            self._started_ray = False
        self._let_go()
