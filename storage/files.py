"""Files that survive a SIGKILL at any instant: write aside, sync, rename, sync the directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from raylay.services.errors import StorageLocked
from raylay.storage.file_systems import overwrite_in_place

PRIVATE_DIRECTORY_MODE = 0o700
PRIVATE_FILE_MODE = 0o600
"""The mode is given when a file is made, and not afterwards: a umask only takes bits away, and a
process that opens a file before its mode is changed keeps it open."""

COMPRESSED_SUFFIX = ".gz"
COPY_BYTES = 1024 * 1024
ASIDE_SUFFIX = ".aside"
"""Suffix of a file until it is complete; the recovery of a directory deletes such files."""

FAULT_VARIABLE = "RAYLAY_JOURNAL_FAULT"
FAULT_SESSION_VARIABLE = "RAYLAY_JOURNAL_FAULT_SESSION"


def _faults_wanted() -> dict[str, int]:
    wanted: dict[str, int] = {}
    for part in os.environ.get(FAULT_VARIABLE, "").split(","):
        name, _, reached = part.partition(":")
        if name:
            wanted[name] = int(reached or 1)
    return wanted


faults = _faults_wanted()
"""The fault points that a test asked for, with the times that each is passed. Callers that pass a
point for each commit look first whether there are any."""


def fault_point(name: str) -> None:
    """Ends the process with SIGKILL here when a test asked for it.

    The variable RAYLAY_JOURNAL_FAULT holds `point:n,…`: the nth time there is the last. With
    RAYLAY_JOURNAL_FAULT_SESSION every process of its session ends: of Spark, whose workers have
    process groups of their own, that is all.
    """
    left = faults.get(name)
    if left is None:
        return
    if left <= 1:
        if os.environ.get(FAULT_SESSION_VARIABLE):
            _kill_others_of_session()
        os.kill(os.getpid(), signal.SIGKILL)
    faults[name] = left - 1


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
    """Makes a directory, and those above it that are missing; their names are on disk then. Only
    this user can enter those that it makes, whatever the umask. One that exists stays as it is.

    Raises:
        OSError: one of them cannot be made.
    """
    missing: list[Path] = []
    while not directory.is_dir():
        if missing and directory.exists():
            break  # A file: the error names what cannot be made in it.
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        each.mkdir(PRIVATE_DIRECTORY_MODE, exist_ok=True)
        sync_directory(each.parent)


def private_opener(path: str, flags: int) -> int:
    """The `opener` of `open` for a file that only this user may read and write when it is made."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE_MODE)


def make_file(path: Path) -> None:
    """Makes an empty file that only this user may read and write, for whatever opens it next and
    cannot say a mode itself. The content of one that exists is gone.

    Raises:
        OSError: It cannot be made.
    """
    os.close(private_opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


def bind_private(unbound: socket.socket, path: str) -> None:
    """Binds a Unix socket to which only this user can connect, from the first moment: Linux gives
    the file the mode that the socket has.

    Raises:
        OSError: It cannot be bound.
    """
    os.fchmod(unbound.fileno(), PRIVATE_FILE_MODE)
    unbound.bind(path)


def sync_file(path: Path) -> None:
    """Makes a file's content durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def replaced_durably(target: Path, aside: Path) -> Iterator[Path]:
    """Replaces a file by the one that the block makes at `aside`, and syncs there.

    Raises:
        OSError: the file cannot be made; the old one is still there, and nothing else is.
    """
    try:
        yield aside
        os.replace(aside, target)
    except OSError:
        # On a full disk, half a file takes room that other files need.
        aside.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _aside_of_thread(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}{ASIDE_SUFFIX}")


def write_durably(path: Path, content: bytes, mode: int = PRIVATE_FILE_MODE) -> None:
    """Replaces a small file: afterwards it holds either the old or the new content, whole, also
    behind a power cut. When this returns the new one is on the disk.

    Args:
        mode: permission bits of the file, which also hold while it is written, whatever the umask
            is.

    Raises:
        OSError: It cannot be written; the old content is still there, and nothing else is.
    """
    with replaced_durably(path, _aside_of_thread(path)) as aside:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)


def write_text_durably(path: Path, text: str) -> None:
    """Replaces a file of a short line, as `write_durably` does, also on a full disk. That has no
    block for a file: there the text is that of a symbolic link, which most file systems keep in the
    link's own entry. `read_text` reads either.

    Raises:
        OSError: it cannot be written; the old content is still there, and nothing else is.
    """
    try:
        write_durably(path, text.encode() + b"\n")
        return
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    with replaced_durably(path, _aside_of_thread(path)) as aside:
        os.symlink(text, aside)


def move_durably(source: Path, target: Path) -> None:
    """Renames a file in its directory, in place of another one."""
    os.replace(source, target)
    sync_directory(target.parent)


def read_text(path: Path) -> bytes:
    """Reads the text that `write_text_durably` has written.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    return os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()


def copy_durably(source: Path, target: Path) -> None:
    """Copies a file; the target appears only when it is whole and on disk. Only this user may read
    the copy, whoever may read the source."""
    with replaced_durably(target, target.with_name(target.name + ASIDE_SUFFIX)) as aside:
        make_file(aside)
        shutil.copyfile(source, aside)
        sync_file(aside)
        fault_point("copy.written")


def compress_durably(path: Path) -> bool:
    """Replaces a file by a compressed one, whose name has `.gz` behind it. Returns whether it was
    still there.

    Raises:
        OSError: it cannot be compressed, was written to meanwhile, or the compressed file is there
            already: nothing was changed.
    """
    target = path.with_name(path.name + COMPRESSED_SUFFIX)
    if target.exists():
        raise FileExistsError(errno.EEXIST, f"{target.name} is there already")
    aside = target.with_name(target.name + ASIDE_SUFFIX)
    try:
        with path.open("rb") as source:
            before = os.fstat(source.fileno())
            make_file(aside)
            with (
                aside.open("wb") as written,
                gzip.GzipFile(path.name, "wb", fileobj=written, mtime=before.st_mtime) as packed,
            ):
                shutil.copyfileobj(source, packed, COPY_BYTES)
            after = os.fstat(source.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise OSError(errno.EBUSY, "it was written to meanwhile")
        aside.chmod(stat.S_IMODE(before.st_mode))
        os.utime(aside, ns=(before.st_atime_ns, before.st_mtime_ns))
        sync_file(aside)
        os.replace(aside, target)
        path.unlink()
    except FileNotFoundError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


class FileLock:
    """An flock on a file of its own, held until `release` or the end of the process.

    Raises:
        StorageLocked: it is held elsewhere and `wait` is false; names the directory and the holder.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
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


def holders_of(path: Path) -> list[int]:
    """Lists the processes that hold a lock on a file, but for this one, as far as the kernel names
    them: those of other containers are not in the list."""
    try:
        file = os.stat(path)
        locks = Path("/proc/locks").read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    inode = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    rows = (line.split() for line in locks if inode in line)
    pids = {int(row[4]) for row in rows if row[1] == "FLOCK" and row[4].isdigit()}
    return sorted(pids - {0, os.getpid()})


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
    descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE_MODE)
    try:
        if not os.fstat(descriptor).st_size:
            overwrite_in_place(descriptor)
        os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
