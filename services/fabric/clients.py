"""Clients of a fabric, and where they find its instances."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from raylay.services.client import Client, Server, SyncClient
from raylay.services.configuration.model import (
    FabricSettings,
)
from raylay.services.errors import FabricError
from raylay.services.fabric import registry
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.observability import tracing_options
from raylay.services.fabric.plan import (
    FabricRecord,
    client_options,
)
from raylay.services.fabric.plan import servers as servers_of_group
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.tracing import start_tracing


class FabricClients(FabricHandle):
    """Makes clients of the fabric; it starts none and keeps none."""

    # -- clients -----------------------------------------------------------------------------
    def servers(self, group: str | None = None) -> list[Server]:
        """The addresses for clients: of one group, or of all instances, in the order declared.

        Raises:
            ConfigurationError: there is no such group.
        """
        settings, record = self._known()
        return servers_of_group(settings, record, group)

    def client(self, name: str, *, group: str | None = None, **options: Any) -> Client:
        """A client of one group's instances; it is not connected yet (`async with`).

        Args:
            group: may be left out where the fabric has only one.
            options: of `Client`; the fabric's client section where they are not given.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return Client(name, **self._client_options(name, group, options))

    def sync_client(self, name: str, *, group: str | None = None, **options: Any) -> SyncClient:
        """Returns a client for scripts without an event loop; it connects at once."""
        return SyncClient(name, **self._client_options(name, group, options))

    def client_options(self, name: str, *, group: str | None = None) -> dict[str, Any]:
        """Arguments of a `Client` of the fabric but its name: servers, group, the settings' client
        section, tracing.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
        """
        return self._client_options(name, group, {})

    def _client_options(
        self, name: str, group: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings, record = self._known()
        made = client_options(settings, record, group or "", name)
        made["servers"] = self._resolver(made["group"])
        tracing = tracing_options(settings, record.directory)
        if tracing.enabled:
            if self._tracing is None:
                self._tracing = start_tracing(f"clients-{os.getpid()}", tracing)
            made["sampling_ratio"] = tracing.sampling_ratio
            made["tracer"] = ClientTracer(self._tracing, name)
        return {**made, **options}

    def _resolver(self, group: str) -> Callable[[], list[Server]]:
        """Returns a look-up of the addresses of a group's instances, made anew each time: one may
        be moved."""
        known = self._known()[1]

        def find() -> list[Server]:
            record = FabricRecord.load(known.directory) or known
            return servers_of_group(FabricSettings.from_json(record.settings), record, group)

        return find


def lookup(fabric: str, group: str) -> Callable[[], list[Server]]:
    """A look-up of servers by fabric name, for `Client(servers=lookup("flights", "London"))`.

    Asks no controller: it reads the fabric's own record on this machine, anew each time.

    Raises (when it is called):
        FabricError: no such fabric runs here.
    """

    def find() -> list[Server]:
        entry = registry.find(fabric)
        record = FabricRecord.load(entry.directory) if entry is not None else None
        if record is None:
            raise FabricError(f"no fabric {fabric} runs here")
        return servers_of_group(FabricSettings.from_json(record.settings), record, group)

    return find
