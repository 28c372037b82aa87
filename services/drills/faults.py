"""Fault injectors: each breaks one thing for a fault of a scenario, and heals it.

A fault that lasts is a lease (`lease.py`): the drill renews it each second, and it expires a few
seconds after the last renewal, so that a drill which dies by SIGKILL leaves nothing broken. A
stopped process is woken by a guard process of its own session. An instance that must stay down
reads the time of its return from its data directory.

An injector of your own takes the place of one of these: `Drill(…, injectors={"drop": mine})`, for
instance one that cuts real networks between hosts.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from raylay.services.drills.history_builder import LostDisk, now_us
from raylay.services.drills.lease import FaultLease
from raylay.services.drills.scenario import FaultHit, FaultStep
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.cluster.ray_access import await_process_end
from raylay.services.fabric.records.registry import process_start
from raylay.services.server.fault_injection import SECONDS_MAX, hold, release
from raylay.storage.files import make_directory, sync_directory

RUNS_S_MAX = 60.0
"""Most time that an injector waits for its target's process, which Ray may be starting again."""
HOLD_S = 60.0
"""Most time that an instance waits while its disk is taken away."""
END_S_MAX = 30.0
POLL_S = 0.2
LOST = ".lost-by-drill-"
"""Text between the name of a data directory that was put aside and the number of the drill."""


class Injector(Protocol):
    """Injects one fault and heals it. Called in a thread; may block."""

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Injects the fault. Returns remarks for the report of the drill.

        Raises:
            FabricError: the fault could not be injected; nothing is broken then.
        """

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Keeps the fault on for `left_s` more seconds. Called each second."""

    def heal(self, step: FaultStep, hit: FaultHit) -> list[str] | None:
        """Heals the fault, or what is left of it. Called once, also when the drill is interrupted,
        and never while `inject` or `renew` runs. Returns remarks for the report, if any."""


class FaultPlaces:
    """The hosts of the instances, where faults are injected.

    Ray's head is asked for the hosts once, at the beginning, while it still answers.

    Args:
        over: set when the drill is interrupted: calls that wait for an instance then end.
        known: the last status of each instance, where a monitor asks for it regularly.
    """

    def __init__(
        self,
        fabric: Fabric,
        over: threading.Event | None = None,
        known: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.fabric = fabric
        self._over = over or threading.Event()
        self.names = [instance.name for instance in fabric.declared.instances]
        here = os.getpid(), socket.gethostname()
        self._known: Mapping[str, Mapping[str, Any]] = known if known is not None else {}
        self._here = {name: fabric.on_node_of(name, _who) == here for name in self.names}

    def is_here(self, name: str) -> bool:
        return bool(self._here[name])

    def errand(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function on the host of an instance, and returns its result."""
        if self._here[name]:
            return function(*arguments)
        return self.fabric.on_node_of(name, function, *arguments)

    def status(self, name: str) -> dict[str, Any]:
        """Returns the status that an instance reports.

        Raises:
            FabricError: the instance does not answer.
        """
        found: dict[str, Any] = self.fabric.ask(name, "status")
        return found

    def last_status(self, name: str) -> dict[str, Any]:
        """Returns the last known status of an instance while its process is the same one, because a
        stopped instance does not answer.

        Raises:
            FabricError: no status of this process is known, and the instance does not answer.
        """
        found = self._known.get(name)
        if found is not None and self._here[name] and process_start(int(found.get("pid") or 0)):
            return dict(found)
        return self.status(name)

    def running(self, name: str, *, anew: bool = False) -> dict[str, Any]:
        """Returns the status as `last_status` does, and waits while Ray starts the instance again.

        Args:
            anew: whether the instance is always asked.

        Raises:
            FabricError: the instance does not answer for a minute, or the drill was interrupted.
        """
        deadline_s = time.monotonic() + RUNS_S_MAX
        while True:
            try:
                return self.status(name) if anew else self.last_status(name)
            except FabricError:
                if time.monotonic() > deadline_s:
                    raise
            self._poll()

    def directory(self, name: str) -> Path:
        """The data directory of an instance, on the instance's host."""
        return self.fabric.data_directory(name)

    def link_pid(self, name: str, destination: str) -> int:
        """Returns the pid of a link's process. Waits while the instance or the link is being
        started again.

        Raises:
            FabricError: the link has no process for a minute, or the drill was interrupted.
        """
        deadline_s = time.monotonic() + RUNS_S_MAX
        ask, why = self.last_status, f"link {destination} of {name} has no process now"
        while True:
            try:
                found = ask(name).get("destinations", {}).get(destination, {})
            except FabricError as error:
                found, why = {}, str(error)
            pid = int(found.get("pid") or 0)
            if pid and (process_start(pid) or not self._here[name]):
                return pid
            if time.monotonic() > deadline_s:
                raise FabricError(why)
            ask = self.status
            self._poll()

    def _poll(self) -> None:
        if self._over.wait(POLL_S):
            raise FabricError("the drill was interrupted")


class MomentaryFault:
    """A fault that happens at one moment and needs no healing."""

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Nothing to do."""

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        """Nothing to do."""


class KillInstances(MomentaryFault):
    """SIGKILL of instances, with one call to each host. Ray starts the instances again."""

    def __init__(self, places: FaultPlaces, *, links_too: bool = False) -> None:
        self._places = places
        self._links_too = links_too

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Kills the instances. With `for` in the step, they stay down: each finds a mark in its
        data directory that makes it wait."""
        places = self._places
        pids: dict[str, list[int]] = {}
        for name in hit.instances:
            status = places.running(name)
            pids[name] = [int(status["pid"])]
            if self._links_too:
                found = status.get("destinations", {}).values()
                pids[name] += [int(link["pid"]) for link in found if link.get("pid")]
        if step.lasts_ms:
            for name in hit.instances:
                places.errand(name, hold, places.directory(name), step.lasts_ms / 1000)
        local = [pid for name in hit.instances if places.is_here(name) for pid in pids[name]]
        signal_all(local, signal.SIGKILL)
        for name in hit.instances:
            if not places.is_here(name):
                places.errand(name, signal_all, pids[name], signal.SIGKILL)
        if self._links_too:
            return ["Ray's own processes there are spared, because Ray does not start them again"]
        return []

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        if step.lasts_ms:
            for name in hit.instances:
                self._places.errand(name, release, self._places.directory(name))


class KillLink(MomentaryFault):
    """SIGKILL of a link's process. The link's instance starts another process."""

    def __init__(self, places: FaultPlaces) -> None:
        self._places = places

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        name, destination, _ = hit.ways[0]
        pid = self._places.link_pid(name, destination)
        self._places.errand(name, signal_all, [pid], signal.SIGKILL)
        return []


class StopProcess(MomentaryFault):
    """SIGSTOP of an instance or a link. A guard process on its host wakes it when the time is
    over."""

    def __init__(self, places: FaultPlaces, *, link: bool = False) -> None:
        self._places = places
        self._link = link
        self._pids: dict[FaultStep, tuple[str, int]] = {}

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        name = hit.instances[0]
        if self._link:
            _, destination, _ = hit.ways[0]
            pid = self._places.link_pid(name, destination)
        else:
            pid = int(self._places.running(name)["pid"])
        self._pids[step] = name, pid
        self._places.errand(name, stop_for, pid, step.lasts_ms / 1000)
        return []

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        if step in self._pids:
            name, pid = self._pids.pop(step)
            self._places.errand(name, signal_all, [pid], signal.SIGCONT)


class InternalFault:
    """A fault that an instance injects into itself on request: an impaired line, a wrong clock, a
    full disk, lower limits."""

    def __init__(self, places: FaultPlaces) -> None:
        self._places = places
        self._leases: dict[FaultStep, list[FaultLease]] = {}

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Injects the fault until its leases end. Waits for an instance that is being started
        again."""
        asked = [*self._asked(step, hit)]
        for name in dict.fromkeys(name for name, _, _ in asked):
            self._places.running(name)
        lasts_s = step.lasts_ms / 1000
        leases = [self._lease(*each, lasts_s) for each in asked]
        self._leases[step] = leases
        for lease in leases:
            lease.start()
        for lease in leases:
            lease.await_begun()
        self.renew(step, hit, lasts_s)
        return []

    def renew(self, step: FaultStep, hit: FaultHit, left_s: float) -> None:
        """Extends the leases, which renew themselves. An instance that was killed meanwhile is
        asked again too."""
        for lease in self._leases.get(step, ()):
            lease.last(left_s)

    def heal(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Ends the leases. An instance that does not answer heals the fault itself when its lease
        expires."""
        leases = self._leases.pop(step, [])
        for lease in leases:
            lease.end()
        return [note for lease in leases for note in lease.await_end()]

    def _lease(self, name: str, kind: str, options: dict[str, Any], lasts_s: float) -> FaultLease:
        def ask(seconds: float, timeout_s: float) -> None:
            self._places.fabric.control(
                name, "drill", timeout_s=timeout_s, kind=kind, seconds=seconds, options=options
            )

        to = options.get("destination")
        return FaultLease(f"{kind} of {name}{f' to {to}' if to else ''}", ask, lasts_s)

    def _asked(self, step: FaultStep, hit: FaultHit) -> Iterable[tuple[str, str, dict[str, Any]]]:
        if step.fault == "clock_jump":
            yield hit.instances[0], "clock", {"offset_us": step.offset_ms * 1000}
        elif step.fault == "full_disk":
            yield hit.instances[0], "disk", {}
        elif step.fault == "slow_consumer":
            if step.memory_bytes or step.disk_bytes:
                limits = {"memory_bytes": step.memory_bytes, "disk_bytes": step.disk_bytes}
                for instance in self._places.fabric.declared.group(hit.region):
                    yield instance.name, "capacity", limits
        else:
            for name, destination, forward in hit.ways:
                line = line_of(step, forward=forward, both=hit.both)
                if line:
                    yield name, "line", {"destination": destination, **line}


def line_of(step: FaultStep, *, forward: bool, both: bool) -> dict[str, Any]:
    """Returns the impairment of a link's line during a step; empty: the line is left alone.

    A link sends data in one direction and gets acknowledgments in the other. A fault that loses
    only what one side sends makes a link of that side lose its data, and a link towards that side
    lose its acknowledgments.
    """
    if step.fault == "drop":
        return {"mode": "dropped", "out": both or forward, "back": both or not forward}
    if not (both or forward):
        return {}
    if step.fault == "cut":
        return {"mode": "cut"}
    return {
        "mode": "slow",
        "delay_ms": step.delay_ms,
        "loss": step.loss,
        "bytes_per_s": step.bytes_per_s,
    }


def not_elsewhere(status: Mapping[str, Any], region: Iterable[str]) -> list[str]:
    """Returns the reasons why the rest of a region may lack something that an instance
    acknowledged, one sentence for each link; empty: the region has everything.

    Args:
        status: the status of the instance.
        region: the names of the other instances of the region.
    """
    names = set(region)
    wrong, links = [], 0
    for destination, to in status.get("destinations", {}).items():
        if to["peer"] not in names and to["group"] != status["group"]:
            continue
        links += 1
        expected = {"connected": True, "caught_up": True, "sync": True, "unacked": 0}
        found = {key: to[key] for key, value in expected.items() if to[key] != value}
        if found:
            told = ", ".join(f"{key} {value}" for key, value in found.items())
            wrong.append(f"{status['name']} to {destination}: {told}")
    return wrong if links else [f"{status['name']} has no link to {', '.join(sorted(names))}"]


class LoseDisk(MomentaryFault):
    """The loss of an instance's disk: SIGKILL, the data directory moved aside, and a start on an
    empty one.

    Args:
        read: returns the content of the journal of an instance (name) in a directory.
        keep: whether the directory that was moved aside stays for good.
    """

    def __init__(
        self,
        places: FaultPlaces,
        number: str,
        read: Callable[[str, Path], list[Any]],
        *,
        keep: bool = False,
    ) -> None:
        self._places = places
        self._keep = keep
        self._number = number
        self._read = read
        self.lost: list[LostDisk] = []
        self.aside: list[Path] = []
        """Directories with the content of the lost disks, until the verdict."""

    def inject(self, step: FaultStep, hit: FaultHit) -> list[str]:
        """Takes the disk away at a moment when the rest of the region has everything that the
        instance acknowledged."""
        places, name = self._places, hit.instances[0]
        if not places.is_here(name):
            raise FabricError(
                f"{name} runs on another host, and its disk can be taken away there only: run "
                "this drill there"
            )
        status = places.running(name, anew=True)
        region = [i.name for i in places.fabric.declared.group(status["group"]) if i.name != name]
        if not region:
            raise FabricError(
                f"{name} is the only instance of its region: no other one has what it acknowledged"
            )
        for other in region:
            for to in places.running(other, anew=True)["destinations"].values():
                if to["peer"] == name and not (to["caught_up"] and to["connected"]):
                    raise FabricError(
                        f"{other} has not caught up with {name}: nothing was broken; try again "
                        "when its link has"
                    )
        status = self._await_elsewhere(name, region)
        directory = places.directory(name)
        aside = directory.with_name(f"{directory.name}{LOST}{self._number}")
        # All that may fail comes before the kill; an earlier drill may have left something there.
        empty = directory.with_name(f".{directory.name}.empty")
        shutil.rmtree(empty, ignore_errors=True)
        try:
            make_directory(empty)
            shutil.copy2(directory / "instance.json", empty)
        except OSError as error:
            raise FabricError(
                f"{empty} cannot be made: {error.strerror}: nothing was broken"
            ) from None
        hold(directory, HOLD_S)
        signal_all([int(status["pid"])], signal.SIGKILL)
        await_process_end(int(status["pid"]), END_S_MAX)
        hold(empty, HOLD_S)
        directory.rename(aside)
        empty.rename(directory)
        sync_directory(directory.parent)
        self.aside.append(aside)
        upto_txid = int(status["committed_txid"])
        self.lost.append(LostDisk(now_us(), name, self._read(name, aside), upto_txid))
        release(directory)
        return [
            f"the content of the lost disk is in {aside}"
            + ("" if self._keep else " until the verdict")
        ]

    def _await_elsewhere(self, name: str, region: Iterable[str]) -> dict[str, Any]:
        """Waits until the rest of the region has everything that an instance acknowledged, and
        returns the instance's status at that moment.

        Raises:
            FabricError: there was no such moment within a minute.
        """
        deadline_s = time.monotonic() + RUNS_S_MAX
        while True:
            status = self._places.running(name, anew=True)
            wrong = not_elsewhere(status, region)
            if not wrong:
                return status
            if time.monotonic() > deadline_s:
                raise FabricError(
                    f"the region may lack what {name} acknowledged ({'; '.join(wrong)}): "
                    "nothing was broken"
                )
            time.sleep(POLL_S)

    def heal(self, step: FaultStep, hit: FaultHit) -> None:
        with contextlib.suppress(FabricError):
            release(self._places.directory(hit.instances[0]))


# -- on the host ---------------------------------------------------------------------------------
def _who() -> tuple[int, str]:
    return os.getpid(), socket.gethostname()


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def lost_disks(directory: Path) -> list[str]:
    """Lists the data directories that drills put aside and did not remove."""
    found = directory.parent.glob(f"{glob.escape(directory.name)}{LOST}*")
    return sorted(str(path) for path in found)


def stop_for(pid: int, seconds: float) -> None:
    """Stops a process with SIGSTOP and wakes it after `seconds`, through a guard process that
    outlives the caller."""
    seconds = min(seconds, SECONDS_MAX)
    guard = f"sleep {seconds:.3f}; kill -CONT {pid}"
    subprocess.Popen(
        ["/bin/sh", "-c", guard],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # After the guard: a drill that dies in between leaves nothing stopped.
    os.kill(pid, signal.SIGSTOP)
