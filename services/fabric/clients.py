"""Clients of a fabric, and where they find its instances."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from raylay.services.client import Client, Server
from raylay.services.client.keywords import refuse_unknown
from raylay.services.configuration.model import FabricSettings
from raylay.services.errors import FabricError
from raylay.services.fabric.handle import FabricHandle
from raylay.services.fabric.observability import tracing_options
from raylay.services.fabric.plan import FabricRecord, client_options
from raylay.services.fabric.plan import servers as servers_of_group
from raylay.services.fabric.records import registry
from raylay.services.messages.spelling import did_you_mean
from raylay.services.telemetry.client_traces import ClientTracer
from raylay.services.telemetry.tracing import Tracing, start_tracing

_OPTIONS = tuple(each for each in signature(Client).parameters if each != "name")


class FabricClients:
    """The arguments of clients of a fabric, and the traces that they share.

    Args:
        handle: the fabric's.
    """

    def __init__(self, handle: FabricHandle) -> None:
        self._handle = handle
        self._tracing: Tracing | None = None

    def options(
        self, name: str, group: str | None = None, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Returns the arguments of a `Client`, without its name.

        Args:
            name: name of the client.
            group: group whose instances the client uses; None: the fabric's only one.
            given: options that replace those of the fabric.

        Raises:
            ConfigurationError: there is no such group, or it has to be named.
            TypeError: an option is misspelt.
        """
        refuse_unknown("client", given or (), _OPTIONS)
        settings, record = self._handle.known()
        made = client_options(settings, record, group or "", name)
        made["servers"] = self._resolver(made["group"])
        tracing = tracing_options(settings, record.directory)
        if tracing.enabled:
            if self._tracing is None:
                self._tracing = start_tracing(f"clients-{os.getpid()}", tracing, of_client=True)
            made["sampling_ratio"] = tracing.sampling_ratio
            made["tracer"] = ClientTracer(self._tracing, name)
        return {**made, **(given or {})}

    def _resolver(self, group: str) -> Callable[[], list[Server]]:
        """Returns a look-up of the addresses of a group's instances, made anew each time: one may
        be moved."""
        known = self._handle.known()[1]

        def find() -> list[Server]:
            record = FabricRecord.load(known.directory) or known
            return servers_of_group(FabricSettings.from_json(record.settings), record, group)

        return find

    def close(self) -> None:
        """Writes out and ends the traces of the clients."""
        if self._tracing is not None:
            self._tracing.close()
            self._tracing = None


def lookup(fabric: str, group: str) -> Callable[[], list[Server]]:
    """Returns a look-up of servers by the fabric's name, for `Client(servers=lookup("flights",
    "London"))`.

    Asks no controller: it reads the fabric's own record on this machine, anew each time.

    Raises:
        FabricError: no such fabric runs here. So does the look-up when the fabric has ended.
        ConfigurationError: the fabric has no such group.
    """

    def find() -> list[Server]:
        entry = registry.find(fabric)
        record = FabricRecord.load(entry.directory) if entry is not None else None
        if record is None:
            names = [each.name for each in registry.running()]
            hint = did_you_mean(fabric, names) or f"there are {', '.join(names) or 'none'}"
            raise FabricError(f"no fabric {fabric} runs here: {hint}")
        return servers_of_group(FabricSettings.from_json(record.settings), record, group)

    find()  # A misspelled name is an error of the caller at once, and not of the client later.
    return find
