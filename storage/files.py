"""Files that survive a SIGKILL at any instant: write aside, sync, rename, sync the directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from pathlib import Path

from raylay.services.errors import StorageLocked

ASIDE_SUFFIX = ".aside"
"""What a file is called until it is whole; whoever recovers the directory deletes such files."""

FAULT_VARIABLE = "RAYLAY_JOURNAL_FAULT"
FAULT_SESSION_VARIABLE = "RAYLAY_JOURNAL_FAULT_SESSION"


def _faults_wanted() -> dict[str, int]:
    wanted: dict[str, int] = {}
    for part in os.environ.get(FAULT_VARIABLE, "").split(","):
        name, _, reached = part.partition(":")
        if name:
            wanted[name] = int(reached or 1)
    return wanted


_faults = _faults_wanted()


def fault_point(name: str) -> None:
    """Ends the process with SIGKILL here when a test asked for it.

    The variable RAYLAY_JOURNAL_FAULT holds `point:n,…`: the nth time there is the last. With
    RAYLAY_JOURNAL_FAULT_SESSION every process of its session ends: of Spark, whose workers have
    process groups of their own, that is all.
    """
    if not _faults:
        return
    left = _faults.get(name)
    if left is None:
        return
    if left <= 1:
        if os.environ.get(FAULT_SESSION_VARIABLE):
            _kill_others_of_session()
        os.kill(os.getpid(), signal.SIGKILL)
    _faults[name] = left - 1


def _kill_others_of_session() -> None:
    own = os.getsid(0)
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdecimal() else 0
        with contextlib.suppress(OSError):
            if pid and pid != os.getpid() and os.getsid(pid) == own:
                os.kill(pid, signal.SIGKILL)


def sync_directory(directory: Path) -> None:
    """Makes what was made, renamed and unlinked in the directory durable: to sync a new file does
    not make its name so."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Makes a directory, and those above it that are missing; their names are on disk then.

    Raises:
        OSError: one of them cannot be made.
    """
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def sync_file(path: Path) -> None:
    """Makes a file's content durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, content: bytes) -> None:
    """Replaces a small file: afterwards it holds either the old or the new content, whole."""
    aside = path.with_name(path.name + ASIDE_SUFFIX)
    with open(aside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_directory(path.parent)


def copy_durably(source: Path, target: Path) -> None:
    """Copies a file; the target appears only when it is whole and on disk."""
    aside = target.with_name(target.name + ASIDE_SUFFIX)
    shutil.copyfile(source, aside)
    sync_file(aside)
    fault_point("copy.written")
    os.replace(aside, target)
    sync_directory(target.parent)


class FileLock:
    """An flock on a file of its own, held until `release` or the end of the process.

    Raises:
        StorageLocked: it is held elsewhere and `wait` is false; names the directory and the holder.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            self._fd = -1
            raise StorageLocked(
                f"{path.parent} is in use by another process"
                + (f" (pid {holder})" if holder else "")
                + ": stop it, or give this one a directory of its own",
                str(path.parent),
            ) from None
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # Who holds it is only told to people. A full disk must not leave a lock behind that
            # nobody can give back.
            pass

    def release(self) -> None:
        """Gives the lock back. The file stays: unlinking a lock file lets two processes in."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def shared_lock(path: Path) -> int:
    """Opens a file and holds a shared lock on it: a descriptor, which the caller closes.

    Waits while the file is being replaced or removed, which takes a few synced renames.

    Raises:
        FileNotFoundError: there is no such file, or it was replaced meanwhile.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def try_exclusive(fd: int) -> bool:
    """Turns the lock on a descriptor into an exclusive one; false while anyone else has one."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_shared(fd: int) -> None:
    """Turns the lock on a descriptor into a shared one, so that others may read meanwhile."""
    fcntl.flock(fd, fcntl.LOCK_SH)


def allocate_lock_table(path: Path, size_bytes: int) -> None:
    """Gives the lock table of an environment that is not open here its space on the disk. LMDB
    leaves that to the first write into its mapping, and on a full disk such a write kills the
    process.

    Raises:
        OSError: there is no space.
    """
    descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
