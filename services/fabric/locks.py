"""Locks on the start of a fabric and on its directory: one process holds them, from its first
moment to its end.

Two files say so, each locked by that process as long as it is true: `NAME.starting` in the registry
until the fabric runs, and `up.lock` in the fabric's directory until it is stopped. The locks are
the kernel's, so that they end with the process, whatever ends it; the content of the files is for
the message to another user.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.services.fabric.records import registry
from raylay.storage.files import PRIVATE_FILE_MODE, make_directory

LOCK_FILE = "up.lock"
STARTING_SUFFIX = ".starting"
INHERITED_VARIABLE = "RAYLAY_UP_LOCKS"
"""Descriptors of locks that the process which began this one took for it."""
TRIES = 10
TRY_S = 0.03
"""Pause in seconds between two tries: a process that only asks whether a file is locked holds the
lock for an instant."""


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A process that starts or runs a fabric, by its id and by when it began (clock ticks since
    boot; an id may be given again)."""

    fabric: str
    directory: str
    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Returns whether that process is still there."""
        return self.start > 0 and registry.process_start(self.pid) == self.start


class StartLock:
    """A locked file. Lifecycle: `take`, then `release`; or `hand_over` to a process that was given
    the descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def take(cls, path: Path, holder: LockOwner) -> StartLock | None:
        """Locks the file, or takes over the lock that this process inherited from the process that
        started it. None: another process holds the lock.

        Raises:
            FabricError: it cannot be written.
        """
        try:
            make_directory(path.parent)
            for _ in range(TRIES):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE_MODE)
                found = os.fstat(descriptor)
                hold = cls(path, _inherited(found) or descriptor)
                if hold.descriptor != descriptor:
                    os.close(descriptor)
                elif not _lock(descriptor, fcntl.LOCK_EX):
                    os.close(descriptor)
                    time.sleep(TRY_S)
                    continue
                elif not _is(path, found):  # Its last holder has just removed it.
                    os.close(descriptor)
                    continue
                hold.say(holder)
                return hold
        except OSError as error:
            raise FabricError(f"{path} cannot be written: {error.strerror}") from None
        return None

    def say(self, holder: LockOwner) -> None:
        """Writes down whose it is.

        Raises:
            OSError: the disk does not take it.
        """
        text = json.dumps(asdict(holder)).encode()
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text, 0)

    def hand_over(self, holder: LockOwner) -> None:
        """Hands the lock over to that process, which has the descriptor as well."""
        # That process says so itself when it begins.
        with suppress(OSError):
            self.say(holder)
        os.close(self.descriptor)

    def release(self) -> None:
        """Removes the file and the lock."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


class StartLocks:
    """The two locked files of a fabric's start: one for the fabric's name, one for its
    directory."""

    def __init__(self, fabric: str, directory: Path) -> None:
        """Locks both files for this process.

        Raises:
            FabricError: another process starts this fabric, or has the directory; names it.
        """
        self._fabric = fabric
        self._directory = str(directory)
        holder = self._holder(os.getpid())
        path = starting_path(fabric)
        name = StartLock.take(path, holder)
        if name is None:
            other = holder_of(path)
            raise FabricError(
                f"fabric {fabric} is being started already{_by(other)}: wait until it is up, or "
                f"end that with `raylay down --fabric {fabric}`"
            )
        self._name: StartLock | None = name
        path = directory / LOCK_FILE
        try:
            place = StartLock.take(path, holder)
        except FabricError:
            name.release()
            raise
        if place is None:
            name.release()
            other = holder_of(path)
            if other is not None and other.fabric == fabric:
                # It is another host's registry, or another runtime directory, that knows of it.
                raise FabricError(
                    f"fabric {fabric} runs already, in {directory} (process {other.pid}): stop it "
                    "first"
                )
            raise FabricError(
                f"{directory} is in use{_by(other)}: end that with `raylay down`, or give another "
                "--directory"
            )
        self._place: StartLock | None = place

    def _holder(self, pid: int) -> LockOwner:
        return LockOwner(self._fabric, self._directory, pid, registry.process_start(pid))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Returns the descriptors for a process that is to have them."""
        return tuple(hold.descriptor for hold in (self._name, self._place) if hold is not None)

    def hand_over(self, pid: int) -> None:
        """Hands the locks over to that process from now on, which was begun with the descriptors,
        and their numbers in INHERITED_VARIABLE."""
        holder = self._holder(pid)
        for hold in (self._name, self._place):
            if hold is not None:
                hold.hand_over(holder)
        self._name = self._place = None

    def started(self) -> None:
        """Notes that the fabric runs, and is found by its registry entry; the directory stays
        locked."""
        if self._name is not None:
            self._name.release()
            self._name = None

    def release(self) -> None:
        """Releases the locks."""
        self.started()
        if self._place is not None:
            self._place.release()
            self._place = None


def starting_path(fabric: str) -> Path:
    """Returns the file that is locked while a fabric with this name is started."""
    return registry.registry_directory() / f"{fabric}{STARTING_SUFFIX}"


def starting() -> list[LockOwner]:
    """Returns the holders of the locks on starting a fabric, on this machine, as this user."""
    paths = sorted(registry.registry_directory().glob(f"*{STARTING_SUFFIX}"))
    return [found for path in paths if (found := holder_of(path)) is not None]


def refuse_starting(name: str) -> None:
    """Raises a FabricError where the fabric of this name is being started; empty: where one is,
    and none runs."""
    if not name and registry.running():
        return
    for each in starting():
        if name in ("", each.fabric):
            raise FabricError(
                f"fabric {each.fabric} is starting, in {each.directory} (process {each.pid}): wait "
                "until it is up"
            )


def holder_of(path: Path) -> LockOwner | None:
    """Returns the process that has locked the file; None: no process has, or the one that has did
    not write its identity yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if _lock(descriptor, fcntl.LOCK_SH):
            return None
        return LockOwner(**json.loads(os.read(descriptor, 65_536)))
    except (OSError, ValueError, TypeError):
        return None
    finally:
        os.close(descriptor)


def _by(other: LockOwner | None) -> str:
    if other is None:
        return " by another process"
    return f" by process {other.pid}, for fabric {other.fabric} in {other.directory}"


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), found)
    except FileNotFoundError:
        return False


def _inherited(wanted: os.stat_result) -> int | None:
    """Returns the descriptor of this file that the process inherited at its start; None: the
    process inherited none."""
    numbers = [int(each) for each in os.environ.get(INHERITED_VARIABLE, "").split(",") if each]
    for number in numbers:
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), wanted):
                # What this process begins is not to have it, nor to look for it.
                os.set_inheritable(number, False)
                rest = [str(each) for each in numbers if each != number]
                os.environ[INHERITED_VARIABLE] = ",".join(rest)
                return number
    return None
