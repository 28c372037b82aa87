"""The place of a fabric's kept logs on this host, whether the fabric runs or not."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raylay.services.errors import FabricError

if TYPE_CHECKING:
    from raylay.services.fabric.plan import FabricRecord
    from raylay.services.fabric.records.registry import RegistryEntry

KeptDirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        help="The directory of a fabric that is stopped, where this host does not know it.",
    ),
]


@dataclass(frozen=True, slots=True)
class FabricPlace:
    """A fabric, and the directories of this host that may hold its instances' kept logs.

    Attributes:
        hosts: host of each instance, by name.
        entry: the entry of the fabric in the registry; None: it does not run.
    """

    name: str
    directories: Sequence[Path]
    hosts: Mapping[str, str]
    entry: RegistryEntry | None

    def log_directory(self, instance: str) -> Path | None:
        """Returns the directory of an instance's kept log; None: this host has none.

        Raises:
            FabricError: the fabric has no such instance, and this host no log of it.
        """
        from raylay.services.messages.spelling import did_you_mean
        from raylay.services.telemetry.kept_log import kept_log_directory

        for directory in self.directories:
            found = kept_log_directory(directory, instance)
            # An instance that was taken out of the fabric leaves its log.
            if found.is_dir():
                return found
        if instance not in self.hosts:
            hint = did_you_mean(instance, self.hosts) or f"it has {', '.join(self.hosts) or 'none'}"
            raise FabricError(f"fabric {self.name} has no instance {instance[:200]!r}: {hint}")
        return None

    def has_logs(self) -> bool:
        """Returns whether this host has a log of one of the instances."""
        return any(self.log_directory(each) is not None for each in self.hosts)

    def is_here(self, instance: str) -> bool:
        """Returns whether an instance's host is this one; an instance that the fabric does not
        have has no other."""
        return is_this_host(self.hosts.get(instance, ""))

    def elsewhere(self, instance: str) -> str:
        """Returns a sentence on where the log of an instance is of which this host has none."""
        return (
            f"this host has no log of {instance}: its host is {self.hosts[instance]}, and there it "
            f"is in {self.directories[-1]}/log; it has none before its first start. An instance "
            "with an administrator's interface tells its log from afar"
        )


def is_this_host(host: str) -> bool:
    """Returns whether an address or a name is one of this host's; an empty one is."""
    if not host:
        return True
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def kept_place(fabric: str, directory: Path | None = None) -> FabricPlace:
    """Returns the place of the fabric that a command means: one that runs, or a stopped one that
    this host knows.

    Args:
        fabric: name of the fabric; empty: the only one that runs, or else the only stopped one.
        directory: directory of a stopped fabric; None: it is looked for.

    Raises:
        FabricError: there is no such fabric here, or several; or its record cannot be read.
    """
    # Late: a fabric is looked for without what it takes to read its record.
    from raylay.services.fabric.records.discovery import find_running
    from raylay.services.fabric.records.stopped import stopped

    entry = None
    if directory is None:
        try:
            entry = find_running(fabric)
            directory = Path(entry.directory)
        except FabricError as error:
            idle = [each for each in stopped() if fabric in ("", each.name)]
            if not idle:
                raise
            if len(idle) > 1:
                names = ", ".join(f"{each.name} in {each.directory}" for each in idle)
                raise FabricError(
                    f"{error}; stopped are {names}: give --fabric, or --directory"
                ) from None
            directory = idle[0].directory
    from raylay.services.fabric.plan import FabricRecord
    from raylay.services.fabric.records.registry import FABRIC_FILE

    record = FabricRecord.load(directory)
    if record is None:
        raise FabricError(f"{directory} holds no fabric: it has no {FABRIC_FILE}")
    places = dict.fromkeys((directory, Path(record.directory)))
    return FabricPlace(record.name, [*places], _hosts(record), entry)


def _hosts(record: FabricRecord) -> dict[str, str]:
    from raylay.services.configuration.model import FabricSettings

    settings = FabricSettings.from_json(record.settings)
    nodes = record.nodes
    return {
        each.name: (nodes[each.name].address if each.name in nodes else "") or each.host
        for each in settings.instances
    }
