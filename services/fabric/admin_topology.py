"""The topology that the administrator's interface of an instance is given: `admin-fabric.json`
beside the instance's configuration (`services/admin/fabric_topology.py`)."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from raylay.services.admin.fabric_topology import (
    TOPOLOGY_FILE,
    CheckFinding,
    ConfiguredInstance,
    ConfiguredLink,
    ConfiguredQueue,
    FabricTopology,
)
from raylay.services.config import json_text
from raylay.services.configuration.model import (
    DestinationSettings,
    FabricSettings,
    InstanceSettings,
)
from raylay.services.configuration.reserved import with_drill_topic
from raylay.services.errors import ConfigurationError
from raylay.services.fabric.checks.check import check_settings, impossible
from raylay.services.fabric.files import write_private_text
from raylay.services.fabric.plan import FabricRecord, admin_address
from raylay.services.fabric.planned_stop import links_at_rest
from raylay.services.fabric.transports import TransportPlanner

DRILLS_DIRECTORY = "drills"
"""Name of the folder with drill reports, in the present directory and in the fabric's."""


def admin_topology(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings, head: str = ""
) -> FabricTopology | None:
    """Returns the topology for an instance's interface; None: the instance has no interface.

    Raises:
        ConfigurationError: a value is wrong.
    """
    if record.ports[instance.name].admin is None:
        return None
    tls = TransportPlanner(settings, record.directory, instance).interface(0).tls
    findings, checked_us = _checked(settings.to_json())
    return replace(
        configured_topology(settings, record),
        findings=findings,
        checked_us=checked_us,
        drills_directories=_drills_directories(record),
        ca_file=tls.ca_file if tls is not None else "",
        ca_path=tls.ca_path if tls is not None else "",
        verify_name=tls.verify_name if tls is not None else True,
        head=head,
    )


def configured_topology(settings: FabricSettings, record: FabricRecord) -> FabricTopology:
    """Returns the instances, links and queues of a fabric, without what only an interface needs,
    and without the links that rest because instances are stopped.

    Raises:
        ConfigurationError: a value is wrong.
    """
    resting = links_at_rest(settings, record.stopped)
    return FabricTopology(
        settings.name,
        tuple(
            replace(_instance(settings, record, each), is_stopped=each.name in record.stopped)
            for each in settings.instances
        ),
        tuple(
            _link(settings, each, destination)
            for each, destination in settings.links()
            if (each.name, destination.name) not in resting
        ),
        _queues(with_drill_topic(settings)),
    )


def topology_text(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings, head: str = ""
) -> str:
    """Returns the text of the file; empty: the instance has no interface.

    Args:
        head: address of Ray's head; empty: not known.

    Raises:
        ConfigurationError: a value is wrong.
    """
    found = admin_topology(settings, record, instance, head)
    return "" if found is None else json_text.written(found)


def save_topology(text: str, directory: Path) -> None:
    """Writes the file into a data directory, whole or not at all; an empty text writes nothing.

    Raises:
        FabricError: it cannot be written.
    """
    if text:
        write_private_text(directory / TOPOLOGY_FILE, text)


def _instance(
    settings: FabricSettings, record: FabricRecord, instance: InstanceSettings
) -> ConfiguredInstance:
    ports = record.ports.get(instance.name)
    if ports is None or ports.admin is None:
        return ConfiguredInstance(instance.name, instance.group)
    interface = TransportPlanner(settings, record.directory, instance).interface(ports.admin)
    return ConfiguredInstance(
        instance.name,
        instance.group,
        admin_address(settings, record, instance),
        interface.host_names,
        interface.tls is not None,
    )


def _link(
    settings: FabricSettings, instance: InstanceSettings, destination: DestinationSettings
) -> ConfiguredLink:
    # A destination that waits to be dialled names the group of those that may come.
    to = destination.to or tuple(
        each.name
        for each in settings.instances
        if each.group == destination.group and each.name != instance.name
    )
    groups = {each.name: each.group for each in settings.instances}
    group = next((groups[name] for name in to if name in groups), destination.group)
    return ConfiguredLink(instance.name, destination.name, to, group, destination.sync)


def _queues(settings: FabricSettings) -> tuple[ConfiguredQueue, ...]:
    found: dict[tuple[str, str, bool], list[str]] = {}
    for instance in settings.instances:
        for queue in settings.queues_of(instance):
            key = (queue.name, queue.message_type, queue.is_distributed)
            found.setdefault(key, []).append(instance.name)
    return tuple(
        ConfiguredQueue(name, message_type, tuple(names), shared)
        for (name, message_type, shared), names in found.items()
    )


@lru_cache(maxsize=4)
def _checked(settings: str) -> tuple[tuple[CheckFinding, ...], int]:
    """Checks a topology once for all of its instances. Returns the findings, and when."""
    try:
        checked = check_settings(FabricSettings.from_json(settings))
    except ConfigurationError as error:
        checked = impossible(error)
    return (
        tuple(
            CheckFinding(
                each.severity,
                each.explanation,
                ", ".join(filter(None, (", ".join(each.instances), each.topic))),
                each.repair,
            )
            for each in checked.findings
        ),
        time.time_ns() // 1000,
    )


def _drills_directories(record: FabricRecord) -> tuple[str, ...]:
    """Returns where drill reports of the fabric may be: `raylay drill` writes them below the
    directory in which it is called, which is often that of `raylay up`."""
    places = (Path(record.directory), Path(os.getcwd()))
    return tuple(dict.fromkeys(str(place.absolute() / DRILLS_DIRECTORY) for place in places))
