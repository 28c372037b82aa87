"""The process that the workers of a Ray are forked from, where Raylay starts that Ray.

A worker that begins from nothing takes 0.3 s of processor time, almost all of it for imports, and
35 MB, of which none is shared with the next one. So the first worker forks, before it connects to
its raylet, a process that keeps what it has imported and adds the modules of a link. Every further
worker begins as Python's bare start, hands its arguments, environment and open files over, and
ends; a fork of that process goes on in its place. Ray knows a worker by the id in its arguments,
and takes its pid from itself when it registers.

A worker runs by itself, as if there were no such process, whenever anything is in the way: another
interpreter, other variables of the environment (Ray reads them when it is imported), a module whose
file has changed since (an upgrade), no answer. The process ends with the raylet; the workers live
on without it.

`ray_worker.py` imports this file by its directory, before all else: it imports Python's own modules
only, and few of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

RAYLET_ARGUMENT = "--raylet-name="
SOCKET_NAME = "raylay_fork"
"""Name of the socket, beside the raylet's own. `SOCKET_NAME.lock` has the pid of the process
once it serves."""
ANSWER_S_MAX = 10.0
"""Longest wait of a worker for the process, which may still import what it keeps."""
REQUEST_S_MAX = 2.0
"""Longest wait of the process for the rest of a request."""
REQUEST_BYTES_MAX = 1 << 22
JOB_VARIABLE = "RAY_JOB_ID"
"""The variable in which a raylet tells a worker its job."""
NO_JOB = "ffffffff"
"""The job of a worker that may have work of any."""
OWN_VARIABLES = (JOB_VARIABLE,)
"""The variables that differ between the workers of one node."""
RAYLET_VARIABLE = "RAY_RAYLET_PID"
"""The variable in which a raylet tells its workers its pid."""
KEPT_MODULES = ("raylay.actors.child", "raylay.services.processes.link.run_link", "uvloop")
"""The modules of a link, of which there are most."""
TITLE = "ray::raylay_fork"
LENGTH = struct.Struct("<I")
CREDENTIALS = struct.Struct("3i")
YES, GO, NO = b"y", b"g", b"n"


def socket_path(arguments: list[str]) -> str:
    """Returns the path of the socket for a worker with these arguments; empty: it has no raylet."""
    for argument in arguments:
        if argument.startswith(RAYLET_ARGUMENT):
            return os.path.join(os.path.dirname(argument[len(RAYLET_ARGUMENT) :]), SOCKET_NAME)
    return ""


def start_of() -> list[Any]:
    """Returns what two processes must have in common for one to go on as a fork of the other."""
    shared = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    return [sys.executable, sys.prefix, [*sys.flags], [*sys.path], shared]


def is_own(connection: socket.socket) -> bool:
    """Returns whether the other end is a process of this user: Ray's directory may be open."""
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(given)[1] == os.getuid())


# -- a worker that begins ------------------------------------------------------------------------
def is_taken_over(path: str, start: list[Any]) -> bool:
    """Returns whether a fork now runs the worker that this process was started for, so that this
    process is to end.

    Args:
        path: path of the socket.
        start: what `start_of` returned when this process began.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S_MAX)
            connection.connect(path)
            if not is_own(connection):
                return False
            request = {
                "start": start,
                "arguments": sys.argv,
                "variables": {name: os.environ.get(name) for name in OWN_VARIABLES},
                "directory": os.getcwd(),
                "group": os.getpgrp(),
                "oom_score": oom_score(),
            }
            body = json.dumps(request).encode()
            socket.send_fds(connection, [LENGTH.pack(len(body))], [0, 1, 2])
            connection.sendall(body)
            if connection.recv(1) != YES:
                return False
            # A fork that is not told to go on ends: there is never a second worker of one id.
            connection.sendall(GO)
            return True
    except TimeoutError:
        # If it is not still about to begin, it hangs: whoever comes next does not wait for it, too.
        with contextlib.suppress(OSError):
            if os.path.getsize(path + ".lock"):
                os.unlink(path)
    except (OSError, ValueError):
        pass
    return False


def oom_score() -> str:
    """Returns the kernel's inclination to end this process when memory runs out. A raylet raises
    that of its workers when it starts them."""
    try:
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


# -- the process itself --------------------------------------------------------------------------
class Claim(NamedTuple):
    """The right of this worker to fork the process, while it imports what that is to keep. Workers
    that ask meanwhile wait.

    Attributes:
        path: path of the socket.
        listener: the socket.
        lock: descriptor of the file whose lock is held for as long as the process lives, so that
            there is never a second one, and nobody removes another one's socket.
    """

    path: str
    listener: socket.socket
    lock: int

    def close(self) -> None:
        """Gives this process's part of it up. The lock is held by whoever has it still."""
        self.listener.close()
        os.close(self.lock)


def claim_server(path: str) -> Claim | None:
    """Makes the socket, and returns the right to fork the process behind it; None: another worker
    has it, or the process runs.

    Raises:
        OSError: There can be no such socket.
    """
    lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    listener = socket.socket(socket.AF_UNIX)
    claim = Claim(path, listener, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(path)
        listener.listen(128)
    except BaseException as error:
        claim.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return claim


def start_server(claim: Claim, start: list[Any], load: Callable[[], None]) -> None:
    """Forks the process that further workers are forked from. Returns in this worker, and in every
    fork that is to run another one, whose `sys.argv` are then that one's.

    Ray keeps the job that its variable has when Ray is imported, and a raylet gives a worker of one
    job no work of another: it would start one worker after the other for that work, and wait a
    minute for each. So where this worker has a job, the process forgets the job before it imports
    Ray, and this worker does not share its imports.

    Args:
        claim: the right to do so, which ends here.
        start: what `start_of` returned when this process began.
        load: imports what the process keeps. No caller may have imported Ray before.
    """
    has_job = os.environ.get(JOB_VARIABLE, NO_JOB) != NO_JOB
    if not has_job:
        load()
    raylet = os.getppid()
    # Otherwise the raylet has ended, and the server would watch an init, which never ends.
    is_child = raylet != 1 and os.environ.get(RAYLET_VARIABLE, str(raylet)) == str(raylet)
    try:
        try:
            is_server = is_child and not has_threads() and os.fork() == 0
        except OSError:  # no more processes, no more memory: this worker runs by itself
            is_server = False
        if is_server:
            try:
                if has_job:
                    os.environ[JOB_VARIABLE] = NO_JOB
                    load()
                serve(claim, start, raylet)
            except BaseException:
                os._exit(1)
    finally:
        claim.close()


def serve(claim: Claim, start: list[Any], raylet: int) -> None:
    """Forks a worker for each request that fits, until the raylet ends. Returns in the forks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # When a worker has died, its raylet kills what is left of the worker's group.
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    close_all_but(claim.lock, claim.listener.fileno())
    watched = os.pidfd_open(raylet)
    name_process()
    files = module_files()
    gc.collect()
    gc.freeze()
    os.pwrite(claim.lock, b"%d\n" % os.getpid(), 0)
    while True:
        ready, _, _ = select.select([claim.listener.fileno(), watched], [], [])
        if watched in ready:
            os._exit(0)
        connection, _ = claim.listener.accept()
        with connection:
            try:
                request, descriptors = read_request(connection)
            except (OSError, ValueError):
                continue
            if request.get("start") != start:
                answer(connection, NO)
            elif has_threads() or any(file_state(path) != then for path, then in files.items()):
                os.unlink(claim.path)
                # First, so that the worker that asks can take its place.
                claim.close()
                answer(connection, NO)
                os._exit(0)
            elif os.fork() == 0:
                # The worker tells it to go on, or the connection's end says that it will not.
                connection.settimeout(None)
                join_group(request)
                become(request, descriptors)
                if not answer(connection, YES) or connection.recv(1) != GO:
                    os._exit(0)
                os.close(watched)
                return
            for descriptor in descriptors:
                os.close(descriptor)


def close_all_but(*kept: int) -> None:
    """Closes what this process has open, but for these descriptors and the standard ones: the
    raylet leaves some of its own to each worker, one of them for that worker alone, and the forks
    would all have those of the first worker."""
    first = 3
    for descriptor in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(first, descriptor)
        first = descriptor + 1


def keep_modules() -> None:
    """Imports what a link needs, if it is this installation's."""
    import importlib

    here = os.path.dirname(os.path.abspath(__file__))
    with contextlib.suppress(Exception):
        actors = importlib.import_module("raylay.actors")
        if os.path.dirname(os.path.abspath(str(actors.__file__))) == here:
            for name in KEPT_MODULES:
                importlib.import_module(name)


def name_process() -> None:
    """Gives this process its title, if Ray is imported."""
    raylet = sys.modules.get("ray._raylet")
    if raylet is not None:
        with contextlib.suppress(Exception):
            raylet.setproctitle(TITLE)


def has_threads() -> bool:
    """Returns whether this process has other threads, which a fork would not have."""
    return len(os.listdir("/proc/self/task")) > 1


def module_files() -> dict[str, tuple[int, int]]:
    """Returns the file of each module, with its time and size."""
    paths = [getattr(each, "__dict__", {}).get("__file__") for each in [*sys.modules.values()]]
    return {path: file_state(path) for path in paths if isinstance(path, str)}


def file_state(path: str) -> tuple[int, int]:
    """Returns time and size of a file; zeros: it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def read_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Reads a worker's request, with its standard input, output and errors.

    Raises:
        OSError: It did not come.
        ValueError: It is none.
    """
    connection.settimeout(REQUEST_S_MAX)
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    try:
        if not is_own(connection) or len(head) != LENGTH.size or len(descriptors) != 3:
            raise ValueError("not a worker of this user")
        (length,) = LENGTH.unpack(head)
        if length > REQUEST_BYTES_MAX:
            raise ValueError(f"{length} bytes")
        body = bytearray()
        while len(body) < length:
            part = connection.recv(length - len(body))
            if not part:
                raise ValueError("the worker has ended")
            body += part
        request = json.loads(body)
        if not isinstance(request, dict):
            raise ValueError("not a request")
        return request, descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def answer(connection: socket.socket, said: bytes) -> bool:
    """Answers a worker, and returns whether it could be."""
    try:
        connection.sendall(said)
    except OSError:
        return False
    return True


def join_group(request: dict[str, Any]) -> None:
    """Enters the process group of the worker that asked, of which its raylet knows. It lives on
    with its new member. A fork that must not enter it ends by the error, and the worker runs by
    itself: another worker's end would end that fork, too.

    Raises:
        OSError: It is a group of another session.
    """
    os.setpgid(0, request["group"])


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Takes over what the worker that asked was started with."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    sys.argv[:] = request["arguments"]
    for name, value in request["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as f:
        f.write(request["oom_score"])
