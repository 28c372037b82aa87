"""The model of a capacity pool: what waits for clients that do not read (docs/capacity.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from raylay.services.capacity.config import CapacityConfig
from raylay.services.configuration.fields import Bytes, Milliseconds, Section
from raylay.services.errors import ConfigurationError


def _share(value: object) -> object:
    if isinstance(value, str):
        number = value.strip().removesuffix("%")
        try:
            if value.strip().endswith("%"):
                return float(number) / 100
            return float(number)
        except ValueError:
            raise ValueError(f"expected a share such as 50% or 0.5, got {value!r}") from None
    return value


Share = Annotated[
    float, BeforeValidator(_share), PlainSerializer(lambda value: f"{value * 100:.10g}%")
]


class CapacitySettings(Section):
    """The limits of a pool. What is left out: of a transport, as its instance says; of an instance,
    as the fabric says; of that, the default."""

    memory_bytes_max: Bytes | None = Field(default=None, alias="memory")
    """Memory for what waits for all clients; beyond it the largest goes offline."""
    disk_bytes_max: Bytes | None = Field(default=None, alias="disk")
    """Disk for what waits for all of them; beyond it the largest is disconnected; 0: nobody goes
    offline."""
    disk_path: str | None = None
    """Directory for that. A relative path is taken from the fabric's directory."""
    message_age_ms_max: Milliseconds | None = Field(default=None, alias="message_age")
    """Time that a message may wait for a client, which is then disconnected; 0: any time."""
    client_share: Share | None = None
    """Share of the limits that one client may hold, then it is disconnected: `50%`, or 0.5."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.config(str).check("capacity")
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("capacity: ")) from None
        return self

    def config(self, place: Callable[[str], str]) -> CapacityConfig:
        """Returns the configuration that an instance reads.

        Args:
            place: where the directory of a path is.
        """
        values: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        if self.disk_path:
            values["disk_path"] = place(self.disk_path)
        return CapacityConfig(**values)
