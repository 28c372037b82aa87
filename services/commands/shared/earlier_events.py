"""The kept events of a fabric's instances: of the files on this host, or else over the instances'
administrator's interfaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from raylay.services.commands.shared.kept_logs import FabricPlace
from raylay.services.errors import FabricError

if TYPE_CHECKING:
    from raylay.services.fabric.by_interface import FabricAccess, InterfaceFabric


LISTENS_S = 5.0
"""Time, in seconds, in which the interfaces of all instances are found to listen or not."""


class EarlierEvents:
    """See the file's docstring.

    Args:
        place: the place of the files; None: interfaces were named, and files are not read.
        instances: names of the instances whose events are read; empty: all.
        since_us: time from which they are read, in microseconds since 1970.
        tell: function that is called with a sentence on events that cannot be read.
    """

    def __init__(
        self,
        place: FabricPlace | None,
        instances: Collection[str],
        since_us: int,
        tell: Callable[[str], None],
    ) -> None:
        self._place = place
        self._instances = instances
        self._since_us = since_us
        self._tell = tell
        self._interfaces: InterfaceFabric | None = None
        """The interfaces of instances of other hosts; None: there is none."""
        self._names: list[str] = [] if place is None else [*place.hosts]
        self._afar: set[str] = set()
        """Names of the instances that are asked over their interfaces."""
        self._lacking: dict[str, str] = {}
        """Host by name of the instances of other hosts that have no interface that answers."""

    def find_interfaces(self, fabric: FabricAccess) -> None:
        """Finds out which instances have to be asked over their interfaces.

        Args:
            fabric: the running fabric, reached by Ray or over interfaces.
        """
        from raylay.services.fabric.ask_all import ask_all
        from raylay.services.fabric.by_interface import InterfaceFabric, known_interfaces

        place = self._place
        if place is None:
            assert isinstance(fabric, InterfaceFabric), "interfaces were named"
            self._interfaces = fabric
            self._names = fabric.names()
            self._afar = set(self._names)
            return
        elsewhere = [each for each in self._chosen() if not place.is_here(each)]
        if not elsewhere or place.entry is None:
            return
        settings, found = known_interfaces(place.entry)
        self._interfaces = InterfaceFabric(place.name, found, settings)
        interfaced = [name for name in elsewhere if name in found]
        listening = ask_all(interfaced, lambda name: found[name].listens(), LISTENS_S)
        for name in elsewhere:
            if listening.get(name):
                self._afar.add(name)
            elif place.log_directory(name) is None:
                self._lacking[name] = place.hosts[name]

    def refuse_unknown(self) -> None:
        """Raises a FabricError where an instance is named of which the fabric has none, nor this
        host a log."""
        for name in sorted({*self._instances} - {*self._names}):
            if self._place is not None:
                self._place.log_directory(name)
                continue
            known = ", ".join(self._names) or "none"
            raise FabricError(f"there is no instance {name[:200]!r}: there are {known}")

    def by_instance(self) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
        """Yields each instance with its kept events, the oldest first."""
        if self._lacking:
            names = ", ".join(f"{name} ({host})" for name, host in self._lacking.items())
            self._tell(
                f"earlier events of {names} are not shown: no administrator's interface answers "
                "there; `raylay events` on the host itself shows them"
            )
        for name in self._chosen():
            if name in self._afar:
                yield name, self._told(name)
            elif self._place is not None:
                found = self._place.log_directory(name)
                if found is not None:
                    from raylay.services.telemetry.kept_log import kept_events

                    yield name, kept_events(found, name)

    def _chosen(self) -> list[str]:
        return [each for each in self._names if not self._instances or each in self._instances]

    def _told(self, name: str) -> Iterator[dict[str, Any]]:
        assert self._interfaces is not None, "an instance that is asked has an interface"
        try:
            yield from self._interfaces.kept_events(name, self._since_us)
        except FabricError as error:
            self._tell(f"earlier events of {name} are not shown: {error}")
