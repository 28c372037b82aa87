"""The values of a whole fabric for a screen, by whichever way leads to it: an instance's
administrator's interface, which serves them, or the statuses that Ray's actors tell.

Both ways give the document `/raylay/fabric.json` (services/admin/fabric_view.py). By Ray it lacks
the time of acks and the free space of disks, which only the interfaces know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from raylay.services.admin.fabric_problems import (
    ProblemBook,
    problem_documents,
    problems_of,
    verdict_of,
)
from raylay.services.admin.fabric_summary import InstanceSummary, Summarizer
from raylay.services.admin.fabric_topology import FabricTopology
from raylay.services.admin.fabric_view import PeerAnswer, fabric_document, view_of
from raylay.services.errors import FabricError
from raylay.services.fabric.admin_topology import configured_topology
from raylay.services.fabric.ask_all import answers
from raylay.services.fabric.by_interface import (
    FabricAccess,
    InterfaceFabric,
    known_interfaces,
    reach,
)
from raylay.services.fabric.interface_client import InterfaceClient
from raylay.services.fabric.plan import FabricRecord
from raylay.services.fabric.records.registry import RegistryEntry

DOCUMENT_S = 5.0
"""Time, in seconds, that an interface has for the values of the fabric."""


class FabricLook(Protocol):
    """A way to look at a fabric again and again."""

    def document(self) -> dict[str, Any]:
        """Returns the values of the fabric now.

        Raises:
            FabricError: nothing answers.
        """

    def statuses(self) -> list[dict[str, Any]]:
        """Returns the status of each instance, as `Fabric.status` does."""


class InterfaceLook:
    """A look over the administrator's interfaces: the first one that answers serves all values."""

    def __init__(self, fabric: InterfaceFabric) -> None:
        self._fabric = fabric
        self._clients = fabric.interfaces()
        self._last: InterfaceClient | None = None
        """The interface that answered last; None: none has answered."""

    def document(self) -> dict[str, Any]:
        """Returns the values of the fabric now.

        Raises:
            FabricError: no interface answers.
        """
        errors: dict[InterfaceClient, FabricError] = {}
        # The one that answered last is asked alone; the others all at once: each of them may take
        # seconds to be silent.
        last = [] if self._last is None else [self._last]
        others = [each for each in self._clients if each is not self._last]
        for asked in (last, others):
            for client, found in answers(asked, _document_at, DOCUMENT_S):
                if isinstance(found, dict):
                    self._last = client
                    return found
                if found is not None:
                    errors[client] = found
        first = next((errors[each] for each in self._clients if each in errors), None)
        raise first or FabricError("no administrator's interface tells the values of the fabric")

    def statuses(self) -> list[dict[str, Any]]:
        """Returns the status of each instance."""
        found: list[dict[str, Any]] = self._fabric.status()["instances"]
        return found


def _document_at(client: InterfaceClient) -> dict[str, Any] | FabricError | None:
    """Returns the values of the fabric that an interface tells, or the error that it does not
    answer; None: it answers with something else."""
    try:
        found = client.get("/raylay/fabric.json", DOCUMENT_S)
    except FabricError as error:
        return error
    return found if isinstance(found, dict) else None


class StatusLook:
    """A look by Ray: the values are made of the instances' statuses, rates and trends of those of
    one look after the other.

    Args:
        fabric: the fabric, by Ray.
        topology: the configured instances, links and queues.
        now_us, steady_us: return the time in microseconds, since 1970 and by a clock that never
            goes back.
    """

    def __init__(
        self,
        fabric: FabricAccess,
        topology: FabricTopology,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        steady_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        self._fabric = fabric
        self._topology = topology
        self._now_us, self._steady_us = now_us, steady_us
        self._summarizers = {each.name: Summarizer() for each in topology.instances}
        self._last: dict[str, tuple[InstanceSummary, int, int]] = {}
        """The last summary of each instance, with the time by either clock."""
        self._problems = ProblemBook()

    def document(self) -> dict[str, Any]:
        """Returns the values of the fabric now."""
        statuses = self.statuses()
        now_us, steady_us = self._now_us(), self._steady_us()
        answers = {
            each["name"]: self._answer(each, now_us, steady_us)
            for each in statuses
            if each["name"] in self._summarizers
        }
        view = view_of(self._topology, answers, served_by="", now_us=now_us)
        problems = self._problems.dated(problems_of(view), view)
        return fabric_document(
            view,
            problem_documents(view, problems),
            verdict_of(view, problems),
            user="",
            guarded=False,
            closed=self._problems.closed(view),
        )

    def _answer(self, status: dict[str, Any], now_us: int, steady_us: int) -> PeerAnswer:
        name = status["name"]
        if status.get("state"):
            told = self._summarizers[name].take(status, time_us=now_us, steady_us=steady_us)
            self._last[name] = told, now_us, steady_us
            return PeerAnswer(told, now_us, 0.0, "")
        why = f"{status.get('phase') or 'unknown'}: {status.get('reason') or ''}".rstrip(": ")
        if name not in self._last:
            return PeerAnswer(missing="silent", text=why)
        told, at_us, at_steady_us = self._last[name]
        return PeerAnswer(told, at_us, (steady_us - at_steady_us) / 1e6, "silent", why)

    def statuses(self) -> list[dict[str, Any]]:
        """Returns the status of each instance."""
        found: list[dict[str, Any]] = self._fabric.status()["instances"]
        return found


@contextmanager
def look_at(
    entry: RegistryEntry | None,
    addresses: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[FabricLook]:
    """Yields a look at a fabric: over an interface where one listens, which tells more and asks
    nothing of Ray; else by Ray.

    Args:
        entry: the fabric; None: `addresses` say all.
        addresses: interfaces that the user names.
        tell: function that is called with a phrase that names the interface, where the user named
            one or Ray's head does not answer.

    Raises:
        FabricError: no way leads there.
        ConfigurationError: an address is not valid.
    """
    if entry is not None and not addresses:
        settings, found = known_interfaces(entry)
        listening = answers(found.values(), InterfaceClient.listens, DOCUMENT_S)
        if any(listens for _, listens in listening):
            yield InterfaceLook(InterfaceFabric(entry.name, found, settings))
            return
    with reach(entry, addresses, tell) as fabric:
        if isinstance(fabric, InterfaceFabric) or entry is None:
            assert isinstance(fabric, InterfaceFabric), "only an entry leads to Ray"
            yield InterfaceLook(fabric)
            return
        record = FabricRecord.load(entry.directory)
        if record is None:
            raise FabricError(f"{entry.directory} has no record of fabric {entry.name}")
        yield StatusLook(fabric, configured_topology(fabric.declared, record))
