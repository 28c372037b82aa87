"""What the adversary does: each fault is a method that breaks something and heals it again.

    kill             SIGKILL of an instance; Ray starts it again
    kill_region      … of every instance of a region at once
    kill_away        … which stays away for a while
    kill_link        SIGKILL of a link's process
    pause            SIGSTOP of an instance for a while, then SIGCONT
    pause_link       … of a link
    cut              connections reset, and refused for a while: of one link, between two instances,
                     or of one instance with everybody, its clients too
    stall            … nothing passes for a while, and everything after it
    swallow          … what is sent is lost on its way, in both directions or only the answers
    slow             … 20 to 200 ms later, and no more than 64 KiB a second
    full_disk        an instance's disk takes nothing more, for a while
    lose_disk        SIGKILL, the data directory deleted, started again: it must not be ready before
                     it has all that its publishers had acks for
    downgrade        by hand, and back by age
    kill_publisher   SIGKILL of a publisher with an LMDB store, started again under its name
    move_publisher   a publisher closes in good order and comes back, another server first
    move_subscriber  the same of a subscriber, with its bookmark store
    kill_consumers   the workers of a region's queue are gone for a while, with what they hold

What may not be asked of any system is left out: a disk is lost only where the rest of its region
has everything that was acknowledged, and a publisher that moves knows what it was told about
safety.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak import relay as relays

from raylay.services.drills.history_builder import LostDisk, now_us
from raylay.services.drills.verdict import judge
from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.ray_access import await_process_end
from raylay.services.verification.laws.queue_delivery import ExcusedPeriod

if TYPE_CHECKING:
    from soak.driver import Soak

WEIGHTS = {
    "kill": 4,
    "kill_region": 2,
    "kill_away": 2,
    "kill_link": 4,
    "pause": 3,
    "pause_link": 2,
    "cut": 4,
    "stall": 2,
    "swallow": 2,
    "slow": 1,
    "full_disk": 3,
    "lose_disk": 3,
    "downgrade": 2,
    "kill_publisher": 2,
    "move_publisher": 2,
    "move_subscriber": 2,
    "kill_consumers": 3,
}
"""How often each is drawn, against the others."""
LASTING = frozenset(
    ("pause", "pause_link", "cut", "stall", "swallow", "slow", "full_disk", "kill_consumers")
)
"""They go on while the next fault comes."""
WHOLE_S_MAX = 30.0
"""How long a disk that is to be lost waits for its group to be whole."""
WHOLE_POLL_S = 0.2
SMALL_DISK_BYTES = 512 * 1024 * 1024
SLOW_BYTES_PER_S = 64 * 1024


class SmallDisk:
    """A file system in memory, of its own, that can be full. Needs root.

    Raises:
        OSError: it cannot be mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        path.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "raylay-soak", str(path)]
        try:
            done = subprocess.run(mount, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            path.rmdir()
            raise OSError(f"no mount command: {error}") from None
        if done.returncode:
            path.rmdir()
            raise OSError(f"a small disk cannot be mounted: {done.stderr.strip()}")

    def fill(self) -> None:
        """Leaves no byte of room."""
        with self._ballast.open("wb", buffering=0) as file:
            free = os.statvfs(self.path)
            os.posix_fallocate(file.fileno(), 0, max(1, (free.f_bavail - 16) * free.f_frsize))
            file.seek(0, os.SEEK_END)
            try:
                while True:
                    file.write(bytes(free.f_frsize))
            except OSError:
                return  # full, which was the aim

    def free(self) -> None:
        """Gives the room back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it, and what is on it is gone."""
        subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


class Faults:
    """The faults of one run. Each is given a random source of its own, so that the order of faults
    and what each hits depend on the seed alone, and not on how fast the machine is."""

    def __init__(self, run: Soak) -> None:
        self._run = run
        self.full: set[str] = set()
        """Instances whose disk takes nothing now."""
        self.missed: list[dict[str, Any]] = []
        """Events of the time in which an instance could not write its log."""
        self.excuses: list[ExcusedPeriod] = []
        """When which instance could not act on what had come to it."""
        self.lost: set[str] = set()
        """Instances that lost a disk."""
        self._stopped: set[int] = set()
        self._broken: dict[str, int] = {}
        """Route to how many faults hold it."""

    def named(self, name: str) -> Callable[[random.Random], Awaitable[None]]:
        """The fault of this name."""
        found: Callable[[random.Random], Awaitable[None]] = getattr(self, name)
        return found

    def draw(self, chance: random.Random) -> str:
        """The name of the next one."""
        return chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def heal(self) -> None:
        """Whatever stands still goes on, and every route is open."""
        for pid in list(self._stopped):
            os.kill(pid, signal.SIGCONT)
        self._run.relay.heal(self._run.relay.routes)

    # -- who ---------------------------------------------------------------------------------
    def _anyone(self, chance: random.Random) -> str:
        return chance.choice([name for names in self._run.groups.values() for name in names])

    def _a_link(self, chance: random.Random) -> tuple[str, str]:
        name = self._anyone(chance)
        destinations = self._run.fabric.declared.instance(name).destinations
        return name, chance.choice(destinations).name

    def _seconds(self, chance: random.Random, least_s: float = 0.1) -> float:
        return chance.uniform(least_s, max(least_s, self._run.plan.pause_s_max))

    @contextmanager
    def _excused(self, name: str) -> Iterator[None]:
        since_us = now_us()
        try:
            yield
        finally:
            self.excuses.append(ExcusedPeriod(name, since_us, now_us()))

    # -- processes ---------------------------------------------------------------------------
    async def _kill(self, name: str, *, restart: bool = True) -> int:
        """Returns the pid that it had; 0 where nothing was killed."""
        run = self._run
        if name in self.full:
            # Its log cannot tell now what it did last: see services/drills/history_builder.py.
            run.note(f"{name} spared: its disk is full")
            return 0
        try:
            return await asyncio.to_thread(run.fabric.kill, name, restart=restart)
        except FabricError:
            run.note(f"{name} was down already")
            return 0

    async def kill(self, chance: random.Random) -> None:
        """SIGKILL of an instance; Ray starts it again."""
        name = self._anyone(chance)
        self._run.note(f"kill {name}")
        await self._kill(name)

    async def kill_region(self, chance: random.Random) -> None:
        """SIGKILL of a whole region at once."""
        group = chance.choice(list(self._run.groups))
        self._run.note(f"kill all of {group}")
        for name in self._run.groups[group]:
            await self._kill(name)

    async def kill_away(self, chance: random.Random) -> None:
        """SIGKILL; it comes back after a while, on its disk."""
        name, away_s = self._anyone(chance), self._seconds(chance, 0.5)
        self._run.note(f"kill {name}, away for {away_s:.1f} s")
        if await self._kill(name, restart=False):
            await asyncio.sleep(away_s)
            await asyncio.to_thread(self._run.fabric.restart, name)
            self._run.note(f"{name} is ready again")

    async def kill_link(self, chance: random.Random) -> None:
        """SIGKILL of a link."""
        name, destination = self._a_link(chance)
        self._run.note(f"kill link {name} to {destination}")
        try:
            await asyncio.to_thread(self._run.fabric.kill_link, name, destination)
        except FabricError as error:
            self._run.note(str(error))

    async def _stand_still(self, pid: int, seconds: float) -> None:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return
        self._stopped.add(pid)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._stopped.discard(pid)
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass

    async def pause(self, chance: random.Random) -> None:
        """An instance stands still."""
        name, seconds = self._anyone(chance), self._seconds(chance)
        pid = await asyncio.to_thread(self._run.fabric.pid, name)
        if pid:
            self._run.note(f"stop {name} for {seconds:.1f} s")
            with self._excused(name):
                await self._stand_still(pid, seconds)
            self._run.note(f"{name} goes on")

    async def pause_link(self, chance: random.Random) -> None:
        """A link stands still."""
        (name, destination), seconds = self._a_link(chance), self._seconds(chance)
        status = (await self._run.status()).get(name, {})
        pid = status.get("destinations", {}).get(destination, {}).get("pid")
        if pid:
            self._run.note(f"stop link {name} to {destination} for {seconds:.1f} s")
            await self._stand_still(pid, seconds)

    # -- the network -------------------------------------------------------------------------
    def _some_routes(self, chance: random.Random) -> tuple[str, list[str]]:
        """(what for people, routes): of a link, of two instances, or of one with everybody."""
        names = self._run.relay.routes
        links = [name for name in names if not name.startswith("clients>")]
        scope = chance.choice(("link", "pair", "everybody"))
        source, target = chance.choice(links).split(">")
        if scope == "link":
            return f"{source} to {target}", [f"{source}>{target}"]
        if scope == "pair":
            both = {f"{source}>{target}", f"{target}>{source}"}
            return f"{source} and {target}", [name for name in names if name in both]
        return f"{source} and everybody", [name for name in names if source in name.split(">")]

    async def _break_routes(
        self, chance: random.Random, mode: str, *, delay_ms: float = 0.0, bytes_per_s: float = 0.0
    ) -> None:
        run = self._run
        (between, routes), seconds = self._some_routes(chance), self._seconds(chance, 0.3)
        # A route that another fault holds is left to that one.
        routes = [name for name in routes if not self._broken.get(name)]
        run.note(f"{mode}: {between}, for {seconds:.1f} s")
        for name in routes:
            self._broken[name] = 1
        try:
            await asyncio.to_thread(
                run.relay.set, routes, mode, delay_ms=delay_ms, bytes_per_s=bytes_per_s
            )
            await asyncio.sleep(seconds)
        finally:
            run.relay.heal(routes)
            for name in routes:
                self._broken.pop(name, None)
        run.note(f"{between}: open again")

    async def cut(self, chance: random.Random) -> None:
        """Connections are reset, and refused for a while."""
        await self._break_routes(chance, relays.CUT)

    async def stall(self, chance: random.Random) -> None:
        """Nothing passes for a while, and everything after it."""
        await self._break_routes(chance, relays.STALLED)

    async def swallow(self, chance: random.Random) -> None:
        """What is sent is lost on its way, and nobody is told."""
        mode = chance.choice((relays.SWALLOWED, relays.SWALLOWED_BACK))
        await self._break_routes(chance, mode)

    async def slow(self, chance: random.Random) -> None:
        """A long and narrow line."""
        delay_ms = chance.uniform(20.0, 200.0)
        await self._break_routes(
            chance, relays.SLOW, delay_ms=delay_ms, bytes_per_s=SLOW_BYTES_PER_S
        )

    # -- disks -------------------------------------------------------------------------------
    async def full_disk(self, chance: random.Random) -> None:
        """An instance's disk takes nothing more for a while. On a disk of its own (root) it is
        really full; else the process may not make any file longer, which it hears of as an error
        of its writes as well (EFBIG instead of ENOSPC)."""
        run = self._run
        name, seconds = self._anyone(chance), self._seconds(chance, 0.5)
        if name in self.full:
            return
        small = run.small_disks.get(name)
        if small is not None:
            run.note(f"disk of {name} is full for {seconds:.1f} s")
            with self._excused(name):
                try:
                    await asyncio.to_thread(small.fill)
                    await asyncio.sleep(seconds)
                finally:
                    small.free()
            run.note(f"disk of {name} has room again")
            return
        pid = await asyncio.to_thread(run.fabric.pid, name)
        if not pid:
            return
        run.note(f"{name} may not write for {seconds:.1f} s")
        self.full.add(name)
        try:
            with self._excused(name):
                if _limit_files(pid, 0):
                    await asyncio.sleep(seconds)
        finally:
            _limit_files(pid, None)
            if any(name in recording.members for recording in run.recordings.values()):
                # It could not write its log either: what it did meanwhile is asked for.
                self.missed += [
                    event
                    for event in await asyncio.to_thread(lambda: list(run.fabric.events()))
                    if event["instance"] == name
                ]
            self.full.discard(name)
        run.note(f"{name} may write again")

    def _is_whole(self, found: dict[str, dict[str, Any]], members: list[str]) -> bool:
        """Whether each of the group has all that the others acknowledged, and nothing is broken."""
        return not (self._stopped or self._broken or self.full) and all(
            found[name]["ready"]
            and all(
                found[name]["destinations"][other]["safe"] for other in members if other != name
            )
            for name in members
        )

    async def lose_disk(self, chance: random.Random) -> None:
        """An instance loses its disk, where the others have everything."""
        run = self._run
        group = chance.choice([name for name, members in run.groups.items() if len(members) > 1])
        name = chance.choice(run.groups[group])
        deadline_s = time.monotonic() + WHOLE_S_MAX
        while not self._is_whole(await run.status(), run.groups[group]):
            if time.monotonic() > deadline_s:
                run.note(f"disk of {name} spared: {group} is not whole")
                run.faults["lose_disk"] -= 1
                return
            await asyncio.sleep(WHOLE_POLL_S)
        run.note(f"{name} loses its disk")
        pid = await self._kill(name, restart=False)
        if not pid:
            return
        await asyncio.to_thread(await_process_end, pid, run.heal_s_max)
        acked = run.record(group)
        self.lost.add(name)
        directory = run.fabric.data_directory(name)
        runs = await asyncio.to_thread(run.journal, name)
        await asyncio.to_thread(shutil.rmtree, directory)
        if group in run.recordings:
            run.recordings[group].lost.append(LostDisk(now_us(), name, runs))
        await asyncio.to_thread(run.fabric.restart, name, run.heal_s_max)
        run.note(f"{name} is ready again")
        held = await asyncio.to_thread(run.stretches, name)
        lacks = judge({name: held}, acked)
        if lacks.lost:
            run.complaints.append(
                f"{name} lost its disk and was ready without {lacks.lost} acknowledged messages: "
                f"{lacks.places[0].examples}"
            )

    # -- people and clients ------------------------------------------------------------------
    async def downgrade(self, chance: random.Random) -> None:
        """By hand; the age brings it back."""
        run = self._run
        group = chance.choice([name for name, members in run.groups.items() if len(members) > 1])
        name, other = chance.sample(run.groups[group], 2)
        run.note(f"downgrade {name} to {other}")
        try:
            await asyncio.to_thread(run.fabric.downgrade, name, other)
        except FabricError as error:
            run.note(str(error))

    async def kill_publisher(self, chance: random.Random) -> None:
        """SIGKILL of a publisher with an LMDB store, and started again under its name."""
        run = self._run
        killed = chance.choice(run.killed)
        process, reader = killed.process, killed.reader
        if process is None or reader is None:
            return
        run.note(f"kill publisher {killed.name}")
        killed.process = None
        process.kill()
        await process.wait()
        await reader
        await run.start_killed(killed)

    async def move_publisher(self, chance: random.Random) -> None:
        """A publisher closes and comes back, another server first."""
        run = self._run
        publisher = chance.choice(run.publishers)
        target = chance.choice(run.groups[publisher.group])
        if publisher.client is not None and not publisher.moving:
            run.note(f"move {publisher.name} from {publisher.client.instance} to {target}")
            await run.move_publisher(publisher, target)

    async def kill_consumers(self, chance: random.Random) -> None:
        """The workers of a region are gone for a while."""
        run = self._run
        seconds = self._seconds(chance, 0.5)
        if run.working.regions:
            await run.working.kill(chance.choice(run.working.regions), seconds)

    async def move_subscriber(self, chance: random.Random) -> None:
        """A subscriber closes and comes back, with its bookmark store."""
        run = self._run
        subscriber = chance.choice(run.subscribers)
        target = chance.choice(run.groups[subscriber.group])
        if subscriber.client is not None:
            run.note(f"move {subscriber.name} to {target}")
            await run.move_subscriber(subscriber, target)


def _limit_files(pid: int, bytes_max: int | None) -> bool:
    """How long a process may make a file; None: as long as it ever might. False: it is gone."""
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            pid, resource.RLIMIT_FSIZE, (hard if bytes_max is None else bytes_max, hard)
        )
    except ProcessLookupError:
        return False
    return True


def small_disks(places: dict[str, Path]) -> dict[str, SmallDisk]:
    """A small disk for each instance that a place is named for; none where they cannot be had."""
    made: dict[str, SmallDisk] = {}
    for name, path in places.items():
        try:
            made[name] = SmallDisk(path)
        except OSError:
            break
    return made
