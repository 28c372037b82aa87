"""The process that Ray's workers are forked from: real processes, without Ray."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from raylay.actors import fork_server

PATIENCE_S = 60.0
"""Far above what anything here takes on a busy machine."""
WORKER = """
import json, os, sys
sys.path.insert(0, {actors!r})
import fork_server as forks
forks.ANSWER_S_MAX = 0.2 if "--impatient" in sys.argv else {patience}
start = forks.start_of()
path = forks.socket_path(sys.argv)
if "--gives-up" in sys.argv:
    answer = forks.socket.socket.recv
    class Hasty(forks.socket.socket):
        def recv(self, size):
            assert super().recv(size) == forks.YES
            os._exit(0)
    forks.socket.socket = Hasty
if "--no-fork" in sys.argv:
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    os.fork = refuse
if "--renames" in sys.argv:
    os.getcwd = lambda: "/no/such/directory"
if forks.is_taken_over(path, start):
    os._exit(0)
with open("/proc/self/oom_score_adj") as file:
    score = file.read().strip()
claim = forks.claim_server(path)
def load():
    import late_module
if claim is not None:
    if "--slow" in sys.argv:
        print("claimed", flush=True)
        input()
    forks.start_server(claim, start, load)
load()
import late_module
with open("/proc/self/oom_score_adj") as file:
    score = file.read().strip()
job = os.environ.get("RAY_JOB_ID")
said = [os.getpid(), os.getppid(), sys.argv[1:], os.getcwd(), job, score, os.getpgrp()]
print(json.dumps([*said, getattr(late_module, "job", "")]))
"""
RAYLET = """
import subprocess, sys
subprocess.run(sys.argv[1:], close_fds=False)
sys.stdin.read()
"""
"""Starts the first worker, and ends when its input does."""


class Node:
    """A directory with workers, the first of which is started by a process that plays raylet."""

    def __init__(
        self, directory: Path, *arguments: str, raylet: str = "", leaves: int | None = None
    ) -> None:
        self.directory = directory
        self.path = str(directory / fork_server.SOCKET_NAME)
        self.module = directory / "late_module.py"
        self.module.write_text("")
        actors = str(Path(fork_server.__file__).parent)
        self.program = directory / "worker.py"
        self.program.write_text(WORKER.format(actors=actors, patience=PATIENCE_S))
        # With a locale, as else the interpreter sets one for its children.
        self.environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        if raylet:
            self.environment[fork_server.RAYLET_VARIABLE] = raylet
        self.raylet = subprocess.Popen(
            [sys.executable, "-c", RAYLET, *self.command("first", *arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            pass_fds=() if leaves is None else (leaves,),
        )
        if not arguments:
            self.first = self.said_by_first()

    def said_by_first(self) -> Any:
        assert self.raylet.stdout is not None
        return json.loads(self.raylet.stdout.readline())

    def command(self, *arguments: str) -> list[str]:
        raylet = f"{fork_server.RAYLET_ARGUMENT}{self.directory}/raylet"
        return [sys.executable, str(self.program), raylet, *arguments]

    def worker(self, *arguments: str, **more: Any) -> tuple[int, Any]:
        """Starts another worker. Returns the pid of the process that was started for it, and what
        the worker says of itself; None: nothing."""
        environment = {**self.environment, **more.pop("env", {})}
        started = subprocess.Popen(
            self.command(*arguments), stdout=subprocess.PIPE, env=environment, **more
        )
        said, _ = started.communicate(timeout=PATIENCE_S)
        assert started.returncode == 0
        return started.pid, json.loads(said) if said else None

    def server(self) -> int:
        """The pid of the process that workers are forked from."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PATIENCE_S)
            asking.connect(self.path)
            asking.shutdown(socket.SHUT_WR)
            assert asking.recv(1) == b""  # so it listens by now, and has written its pid
        return int(Path(self.path + ".lock").read_text())

    def end(self) -> None:
        assert self.raylet.stdin is not None
        assert self.raylet.stdout is not None
        self.raylet.stdin.close()
        self.raylet.wait(PATIENCE_S)
        self.raylet.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def has_ended(descriptor: int) -> bool:
    """Returns whether a process ends, given by its pidfd."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(PATIENCE_S * 1000))


def test_a_worker_goes_on_in_a_fork_with_all_that_it_was_started_with(
    node: Node, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    server = node.server()
    started, said = node.worker("second", "id 2", cwd=elsewhere, env={"RAY_JOB_ID": "02"})
    pid, parent, arguments, directory, job, *_ = said
    assert pid != started
    assert parent == server != node.first[0]
    assert arguments[1:] == ["second", "id 2"]
    assert directory == str(elsewhere)
    assert job == "02"
    _, said = node.worker("third")
    assert said[1] == server
    assert said[4] is None  # not what the one before it had


def test_a_fork_is_given_the_inclination_to_be_ended_of_the_process_that_was_started(
    node: Node,
) -> None:
    def raise_score() -> None:
        Path("/proc/self/oom_score_adj").write_text("437")

    started, said = node.worker("second", preexec_fn=raise_score)
    assert said[0] != started
    assert said[5] == "437"


def test_a_fork_is_in_the_group_of_the_process_that_was_started(node: Node) -> None:
    """A raylet kills what is left of a worker's group when the worker has died."""
    started, said = node.worker("second", process_group=0)
    assert said[0] != started
    assert said[6] == started
    assert os.getpgid(node.server()) not in (started, node.first[6])


@pytest.mark.parametrize("first", [fork_server.NO_JOB, "01"])
def test_a_fork_has_imported_no_module_with_the_job_of_another_worker(
    node: Node, first: str
) -> None:
    """Ray keeps the job that it finds when it is imported, and its raylet would give the fork no
    work of its own job."""
    before = node.server()
    node.module.write_text("import os\njob = os.environ.get('RAY_JOB_ID')\n")
    node.worker("first", env={"RAY_JOB_ID": first})  # it takes the place of the former process
    after = node.server()
    try:
        said = node.worker("second", env={"RAY_JOB_ID": "02"})[1]
        assert said[1] == after != before
        assert (said[4], said[7]) == ("02", fork_server.NO_JOB)
        assert node.worker("third", env={"RAY_JOB_ID": "01"})[1][1] == after
    finally:
        os.kill(after, 9)


def test_a_worker_runs_by_itself_whose_group_a_fork_cannot_enter(node: Node) -> None:
    started, said = node.worker("second", start_new_session=True)
    assert said[0] == started
    assert node.worker("third")[1][1] == node.server()


def test_a_worker_with_other_variables_runs_by_itself(node: Node) -> None:
    started, said = node.worker("second", env={"RAY_worker_niceness": "3"})
    assert said[0] == started
    assert node.worker("third")[1][1] == node.server()


def test_after_a_change_of_a_module_workers_are_forked_from_a_new_process(node: Node) -> None:
    server = node.server()
    descriptor = os.pidfd_open(server)
    node.module.write_text("changed = True\n")
    started, said = node.worker("second")
    assert said[0] == started
    assert has_ended(descriptor)
    os.close(descriptor)
    # The new one was forked from a worker whose parent is this process, which lives on.
    after = node.server()
    assert node.worker("third")[1][1] == after != server
    os.kill(after, 9)


def test_a_worker_runs_by_itself_when_the_process_has_been_killed(node: Node) -> None:
    server = node.server()
    descriptor = os.pidfd_open(server)
    os.kill(server, 9)
    assert has_ended(descriptor)
    os.close(descriptor)
    started, said = node.worker("second")
    assert said[0] == started
    after = node.server()
    assert node.worker("third")[1][1] == after != server
    os.kill(after, 9)


def test_the_process_ends_with_the_raylet(tmp_path: Path) -> None:
    node = Node(tmp_path)
    descriptor = os.pidfd_open(node.server())
    node.end()
    assert has_ended(descriptor)
    os.close(descriptor)


def test_a_fork_ends_whose_worker_has_given_up(node: Node) -> None:
    _, said = node.worker("second", "--gives-up")
    assert said is None
    assert node.worker("third")[1][1] == node.server()


NONSENSE = [
    (b"", 0),
    (b"x", 1),
    (b"\xff\xff\xff\xff", 3),
    (b"\x03\x00\x00\x00{}", 3),
    (b"\x02\x00\x00\x00{}", 0),
    (b"\x02\x00\x00\x00{}", 3),
    (b"\x02\x00\x00\x00[]", 3),
    (b"\x02\x00\x00\x0011", 3),
    (b"\x01\x00\x00\x00}", 3),
    (b"\x02\x00\x00\x00\xff\xfe", 3),
]


def test_nonsense_is_answered_by_a_close_and_leaves_the_process_as_it_is(node: Node) -> None:
    server = node.server()
    before = sorted(os.listdir(f"/proc/{server}/fd"))
    for sent, files in NONSENSE:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(PATIENCE_S)
            asking.connect(node.path)
            with suppress(ConnectionError):  # where it closes before it has read all
                if sent:
                    socket.send_fds(asking, [sent[:4]], [0] * files)
                    asking.sendall(sent[4:])
                asking.shutdown(socket.SHUT_WR)
                assert asking.recv(1) in (b"", fork_server.NO)
    assert node.server() == server
    assert node.worker("second")[1][1] == server
    assert node.server() == server  # so it has closed what it forked for
    assert sorted(os.listdir(f"/proc/{server}/fd")) == before


def test_a_worker_that_begins_beside_the_first_one_waits_for_its_imports(tmp_path: Path) -> None:
    node = Node(tmp_path, "--slow")
    try:
        assert node.raylet.stdin is not None
        assert node.raylet.stdout is not None
        assert node.raylet.stdout.readline() == b"claimed\n"
        second = subprocess.Popen(
            node.command("second"), stdout=subprocess.PIPE, env=node.environment
        )
        node.raylet.stdin.write(b"go on\n")
        node.raylet.stdin.flush()
        first = node.said_by_first()
        said, _ = second.communicate(timeout=PATIENCE_S)
        assert json.loads(said)[0] not in (second.pid, first[0])
        assert json.loads(said)[1] == node.server()
    finally:
        node.end()


def test_a_worker_does_not_wait_for_a_process_that_hangs(node: Node, tmp_path: Path) -> None:
    server = node.server()
    # At the end of its parent, a stopped process is sent SIGHUP.
    wait_until(lambda: not os.path.exists(f"/proc/{node.first[0]}"))
    os.kill(server, signal.SIGSTOP)
    wait_until(
        lambda: Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    )
    try:
        # Not a pipe, of which the stopped process has the other end as well.
        with (tmp_path / "said").open("w+") as said:
            second = subprocess.Popen(
                node.command("second", "--impatient"), stdout=said, env=node.environment
            )
            assert second.wait(PATIENCE_S) == 0
            said.seek(0)
            assert json.load(said)[0] == second.pid
        assert not os.path.exists(node.path)
        started, third = node.worker("third")  # at once
        assert third[0] == started
    finally:
        os.kill(server, signal.SIGCONT)


def test_no_process_is_forked_from_a_worker_whose_raylet_has_ended(tmp_path: Path) -> None:
    """The process would watch whoever took the raylet's children over, for good."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    node = Node(tmp_path, raylet=str(ended.pid))
    try:
        assert node.first[1] != ended.pid
        assert Path(node.path + ".lock").read_text() == ""
        with socket.socket(socket.AF_UNIX) as asking, pytest.raises(ConnectionRefusedError):
            asking.connect(node.path)
    finally:
        node.end()


def test_a_worker_runs_by_itself_where_there_can_be_no_more_processes(tmp_path: Path) -> None:
    node = Node(tmp_path, "--no-fork")
    try:
        assert "--no-fork" in node.said_by_first()[2]
    finally:
        node.end()


def test_the_process_has_nothing_open_of_the_worker_that_it_was_forked_from(
    tmp_path: Path,
) -> None:
    """Raylets leave some of their own files to a worker, and a pipe that ends with it."""
    own, left = os.pipe()
    os.set_inheritable(left, True)
    node = Node(tmp_path, leaves=left)
    os.close(left)
    try:
        node.server()
        assert node.worker("second")[1][1] == node.server()
        pipe = os.readlink(f"/proc/self/fd/{own}")
        server = f"/proc/{node.server()}/fd"
        assert pipe not in [os.readlink(f"{server}/{each}") for each in os.listdir(server)]
        node.end()
    finally:
        os.close(own)


def test_a_worker_runs_by_itself_whose_directory_the_process_cannot_enter(
    node: Node, tmp_path: Path
) -> None:
    """Once a fork has been told to go on, nothing may fail."""
    directory = tmp_path / "gone"
    directory.mkdir()
    started = subprocess.Popen(
        node.command("second", "--renames"),
        stdout=subprocess.PIPE,
        env=node.environment,
        cwd=directory,
    )
    said, _ = started.communicate(timeout=PATIENCE_S)
    assert json.loads(said)[0] == started.pid
    assert node.worker("third")[1][1] == node.server()


def test_of_two_that_begin_at_once_one_becomes_the_process(node: Node) -> None:
    server = node.server()
    os.unlink(node.path)  # as it is until the other one listens
    started, said = node.worker("second")
    assert said[0] == started
    assert not os.path.exists(node.path)
    assert os.path.exists(f"/proc/{server}")


def test_a_worker_without_a_raylet_has_no_such_process() -> None:
    assert fork_server.socket_path(["worker", "--node-ip-address=1"]) == ""
    given = ["worker", "--raylet-name=/s/sockets/raylet"]
    assert fork_server.socket_path(given) == "/s/sockets/raylay_fork"
