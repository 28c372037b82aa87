"""Processes of Raylay for tests, forked off one that has imported already what they import.

An instance takes 0.3 s of processor time only to import, a link or a buffer half of that, and the
end-to-end tests start hundreds. `Popen` here is subprocess's, with its pipes, its `wait` and its
signals, but the process comes from a server: one for each pytest process, begun when it is first
needed, without a thread, an event loop or an LMDB environment of its own. What comes from it is a
child of whoever asked, has the environment, the directory, the arguments and the streams that it
was given, the limits of whoever asked, and shows its command to `ps`.

Each forked process has such a server below it, for what it starts itself: an instance's links.
What runs with `Popen` here must not be about how a process begins; such tests use subprocess.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

TESTS = Path(__file__).parent
IMPORTED = (
    "raylay.services.processes.link.run_link",
    "raylay.services.processes.queue_owner.run_queue_owner",
    "raylay.services.processes.slow_client_buffer.run_slow_client_buffer",
    "raylay.services.server.run_instance",
    "uvloop",
)
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
REQUEST_BYTES_MAX = 1 << 20
TITLE_BYTES_MAX = 400
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 36, 37
"""Of prctl(2)."""
ARG_START, ARG_END = 48, 49
"""Of /proc/self/stat, where the state, behind the name, is the third."""
START = "import sys; sys.path.insert(0, {!r}); import forked; del sys.path[0]; forked.main({})"
TOLD = 3
"""The descriptor on which a forked process says that it is what was asked for."""
HERE = "forked.py"
"""What stands first in the command line of a server below a forked process."""


class Server:
    """A process that forks what it is asked for. One request at a time."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = ours
        self._process = process  # Else subprocess warns of one that nobody has waited for.
        self._lock = threading.Lock()

    def start(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        libc = ctypes.CDLL(None)
        before = ctypes.c_int()
        with self._lock:
            # Who forked it ends at once; the orphan comes to its first forebear that takes orphans.
            libc.prctl(GET_CHILD_SUBREAPER, ctypes.byref(before))
            libc.prctl(SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(streams))
                answer = self._socket.recv(64)
            finally:
                libc.prctl(SET_CHILD_SUBREAPER, before.value)
        assert answer, f"{request['command']} cannot be begun; see the server's stderr"
        return int(answer)


_server: Server | None = None
_server_lock = threading.Lock()


def _found_server() -> Server:
    global _server
    with _server_lock:
        if _server is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = START.format(str(TESTS), theirs.fileno()).ljust(TITLE_BYTES_MAX)
            process = subprocess.Popen(
                [sys.executable, "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            _server = Server(ours, process)
        return _server


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen of a Python program: `[sys.executable, "-m", module, …]`, `-c` or a file."""

    def _execute_child(self, args: Any, *rest: Any) -> None:  # type: ignore[override]
        _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *streams = rest[:15]
        assert preexec_fn is None and not pass_fds and not shell, "is not done here"
        assert args[0] == sys.executable, args
        p2cread, _, _, c2pwrite, _, errwrite = streams
        given = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite]
        given.append(2 if errwrite == -1 else errwrite)
        request = {
            "command": [os.fspath(each) for each in args[1:]],
            "directory": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "new_session": bool(rest[-2]),
            "limits": [(limit, resource.getrlimit(limit)) for limit in LIMITS],
        }
        self.pid = _found_server().start(request, given)
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[Any]:
    """subprocess.run, as far as the tests use it: with `capture_output`, `text`, `timeout`, and
    `check`."""
    timeout_s, check = options.pop("timeout", None), options.pop("check", False)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


# -- in the server ---------------------------------------------------------------------------------
def main(number: int) -> None:
    """The server; its children leave it here, too."""
    for module in IMPORTED:
        importlib.import_module(module)
    for module in IMPORTED:
        if ".run_" in module:
            del sys.modules[module]  # Else runpy says that it is there already.
    tasks = os.listdir("/proc/self/task")
    assert len(tasks) == 1, f"a process with {len(tasks)} threads cannot be forked"
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=number)
    try:
        asked = _serve(requests)
    except KeyboardInterrupt:
        asked = None
    if asked is None:
        os._exit(0)
    _become(asked)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Forks for each request. None when whoever asks is gone; in a child: what it is to be."""
    while True:
        text, streams, *_ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not text:
            return None
        read, write = os.pipe()
        between = os.fork()
        if not between:
            parent = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == parent:
                os.sched_yield()  # On a busy machine its end may be later than what follows here.
            for at, stream in enumerate((*streams, write)):
                os.dup2(stream, at)
            os.closerange(TOLD + 1, max(read, write, requests.fileno(), *streams) + 1)
            requests.detach()
            asked: dict[str, Any] = json.loads(text)
            return asked
        for each in (write, *streams):
            os.close(each)
        os.waitpid(between, 0)
        begun = os.read(read, 64)
        os.close(read)
        if not begun:
            return None
        requests.send(begun)


def _become(asked: dict[str, Any]) -> None:
    """Is that process, from its first line to its end."""
    command = asked["command"]
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    for limit, values in asked["limits"]:
        resource.setrlimit(limit, tuple(values))
    if asked["new_session"]:
        os.setsid()
    if not asked.get("below"):
        _serve_below()
    _show([sys.executable, *command])
    os.write(TOLD, b"%d" % os.getpid())
    os.close(TOLD)
    code = _ended(command)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _serve_below() -> None:
    """A server for what this process starts, with its environment, before it has a thread."""
    global _server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        os.close(TOLD)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _show([HERE])
        asked = _serve(theirs)
        if asked is None:
            os._exit(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(asked | {"below": True})
    theirs.close()
    _server = Server(ours)
    subprocess_link = importlib.import_module("raylay.services.server.children.subprocess")
    subprocess_link.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=Popen, PIPE=subprocess.PIPE
    )


def _ended(command: list[str]) -> int:
    """The exit code of a Python command."""
    try:
        if command[0] == "-m":
            sys.argv, sys.path[:0] = command[1:], [os.getcwd()]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        elif command[0] == "-c":
            sys.argv, sys.path[:0] = ["-c", *command[2:]], [""]
            sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(command[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv, sys.path[:0] = command, [os.path.dirname(command[0])]
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _show(command: list[str]) -> None:
    """Writes the command over the one that `ps` shows."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (ARG_START, ARG_END))
    title = b"\0".join(map(os.fsencode, command))[: end - start - 1]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)
