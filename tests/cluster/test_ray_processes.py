"""The processes of a Ray that a fabric begins: no more than it needs."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from raylay.actors import fork_server
from raylay.actors.launch_program import StartedActor
from raylay.services.fabric import Fabric

HEAVY = (
    *("numpy", "pandas", "pyarrow", "pydantic", "pyspark"),
    *("aiohttp", "attrs", "grpc", "jinja2", "markdown_it", "starlette", "urllib3"),
    *("opentelemetry.exporter", "ray.data", "ray.serve"),
    # A client refuses to work in a fork of the process that has imported it.
    "raylay.services.client",
)
"""Packages that no instance and no link of a fabric that asks for nothing special may import. The
environment of the tests has all of them."""
MODULES_MAX = 1_200
"""Far above what there is: 980 in an instance and 740 in a link, of which 510 are Ray's."""

pytestmark = pytest.mark.cluster


def children() -> list[str]:
    """The command lines of this process's children."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.append(line)
    return found


def test_nothing_watches_for_drivers_that_print_and_clusters_that_grow(fabric: Fabric) -> None:
    found = children()
    assert any("raylet" in line for line in found), found
    assert not [line for line in found if "log_monitor.py" in line or "monitor.py" in line], found
    assert not [line for line in found if "dashboard.py" in line], found


def modules_of(fabric: Fabric, name: str) -> list[list[str]]:
    """The names of the modules in the process of an instance, then in those of its children."""

    # Within this function, as Ray would import this file for them in the processes asked.
    def loaded(actor: Any) -> list[str]:
        return sorted(sys.modules)

    def loaded_by_children(actor: Any) -> list[list[str]]:
        found = []
        for each in gc.get_objects():
            if isinstance(each, StartedActor):
                # One that an earlier test has ended may still be in memory.
                with suppress(ray.exceptions.RayActorError):
                    found.append(ray.get(each._handle.__ray_call__.remote(loaded)))
        return found

    ask = fabric.handle.actor(name).__ray_call__
    return [ray.get(ask.remote(loaded)), *ray.get(ask.remote(loaded_by_children))]


def test_instances_and_links_import_none_of_the_heavy_packages(whole: Fabric) -> None:
    processes = modules_of(whole, "near-1")
    assert len(processes) >= 3  # the instance, and its links to near-2 and to far-1
    for names in processes:
        heavy = [
            name
            for name in names
            for package in HEAVY
            # The name alone may stand for a package that is loaded when it is first used.
            if name.startswith(package + ".")
        ]
        assert not heavy, heavy
        assert len(names) < MODULES_MAX


def fork_socket() -> str:
    """The path of the socket of the process that workers are forked from."""
    node: Any = ray._private.worker._global_node
    return fork_server.socket_path([fork_server.RAYLET_ARGUMENT + node.raylet_socket_name])


def fork_process() -> int:
    """The pid of the process that workers are forked from, when it waits for requests; 0: there is
    none."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(60)
        try:
            asking.connect(fork_socket())
        except ConnectionRefusedError:
            return 0
        asking.shutdown(socket.SHUT_WR)
        assert asking.recv(1) == b""
    return int(Path(fork_socket() + ".lock").read_text())


class Plain:
    """An actor of which only its process counts."""

    def pids(self) -> tuple[int, int]:
        """Its pid and that of its parent."""
        return os.getpid(), os.getppid()


def has_ended(pid: int, within_s: float) -> bool:
    """Returns whether a process ends."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(within_s * 1000))
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_workers_are_forked_and_live_on_without_the_process_that_they_are_forked_from(
    whole: Fabric,
) -> None:
    before = {name: whole.pid(name) for name in ("near-1", "near-2", "far-1")}
    if not Path(fork_socket()).exists():
        pytest.skip("the machine stood still: a worker waited 10 s, and gave the process up")
    server = fork_process()
    started: Any = ray.remote(num_cpus=0)(Plain)
    kept: list[Any] = []

    def forked_from(parent: int) -> tuple[Any, int]:
        """An actor whose process is a fork of another one, and its pid. Ray gives the first actors
        the idle workers that it has."""
        for _ in range(20):
            actor = started.remote()
            pid, found = ray.get(actor.pids.remote())
            if found == parent:
                return actor, pid
            kept.append(actor)
        raise AssertionError(f"no worker is a fork of {parent}")

    # Ray ends a worker that does not answer by the pid that the fork has told it, and its group.
    stopped, pid = forked_from(server)
    os.kill(pid, signal.SIGSTOP)
    ray.kill(stopped)
    assert has_ended(pid, 60)
    assert os.path.exists(f"/proc/{server}")

    lasting, pid = forked_from(server)
    os.kill(server, signal.SIGKILL)
    assert has_ended(server, 60)
    assert ray.get(lasting.pids.remote())[0] == pid
    assert {name: whole.pid(name) for name in before} == before
    # The next worker runs by itself, and another process is forked from it.
    for _ in range(20):
        kept.append(started.remote())
        ray.get(kept[-1].pids.remote())
        if fork_process():
            break
    after = fork_process()
    assert after not in (0, server)
    kept.append(forked_from(after)[0])
    for actor in (lasting, *kept):
        ray.kill(actor)
