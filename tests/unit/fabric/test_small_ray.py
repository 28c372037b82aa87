"""services/fabric/cluster/ray_access.py: a Ray that starts no more than a fabric needs, where it is
as expected, and starts all the same where it is not."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from typing import Any

import pytest
import ray._private.node
import ray._private.parameter
import ray._private.utils

from raylay.actors import ray_worker
from raylay.services.fabric.cluster import ray_access

PLACES: tuple[tuple[Any, str], ...] = (
    (ray._private.parameter, "RayParams"),
    (ray._private.node.Node, "start_api_server"),
    (ray._private.utils, "get_dashboard_dependency_error"),
)


def present() -> list[Any]:
    return [vars(place).get(name) for place, name in PLACES]


def test_what_is_changed_for_the_start_is_as_before_afterwards() -> None:
    before = present()
    with ray_access._small_ray():
        assert not [each for each in present() if each in before]
        params: Any = ray._private.parameter.RayParams()
        assert params.worker_path == ray_worker.__file__
        assert params.no_monitor
        assert not params.include_log_monitor
    assert present() == before


@pytest.mark.parametrize(("place", "name"), PLACES)
def test_a_ray_without_a_name_starts_as_it_is_with_a_word_in_the_log(
    place: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(place, name)
    before = present()
    with caplog.at_level(logging.WARNING), ray_access._small_ray():
        assert name not in vars(place)
        assert len([each for each in present() if each in before]) == 1
    assert present() == before
    assert name in caplog.text


def test_a_ray_without_a_module_starts_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ray._private.parameter", None)
    with caplog.at_level(logging.WARNING), ray_access._small_ray():
        pass
    assert "ray._private.parameter.RayParams" in caplog.text


def test_a_ray_whose_worker_is_elsewhere_runs_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_worker, "RAY_PROGRAM", "ray._private.no_such_worker")
    with caplog.at_level(logging.WARNING), ray_access._small_ray():
        params: Any = ray._private.parameter.RayParams()
        assert params.worker_path != ray_worker.__file__
        assert params.no_monitor
    assert "no_such_worker" in caplog.text


def test_a_parameter_that_ray_has_no_more_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fewer(no_monitor: bool = False) -> bool:
        return no_monitor

    monkeypatch.setattr(ray._private.parameter, "RayParams", fewer)
    with caplog.at_level(logging.WARNING), ray_access._small_ray():
        assert ray._private.parameter.RayParams() is True  # type: ignore[comparison-overlap]
    assert "worker_path" in caplog.text
    assert "include_log_monitor" in caplog.text


def test_a_dashboard_that_cannot_be_left_out_of_its_table_keeps_no_ray_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Node:
        """One without `get_gcs_client`."""

        _webui_url: str | None = None

    node = Node()
    with caplog.at_level(logging.WARNING):
        ray_access._start_no_dashboard(node)
    assert node._webui_url == ""
    assert "get_gcs_client" in caplog.text


class JoinedRay:
    """A Ray that sets two handlers of SIGTERM, as Ray's Python part and its C++ part do."""

    def __init__(self) -> None:
        self.during: object = None

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(1))
        self.during = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *_: None)


@pytest.mark.parametrize("own", [True, False])
def test_ray_takes_sigterm_only_from_a_program_that_has_no_handler(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = JoinedRay()
    monkeypatch.setattr(ray_access, "ray_module", lambda: joined)
    before = signal.getsignal(signal.SIGTERM)
    set_handler = ray._private.utils.set_sigterm_handler
    mine = signal.default_int_handler if own else signal.SIG_DFL
    signal.signal(signal.SIGTERM, mine)
    try:
        ray_access.join_ray("auto")
        assert (joined.during is mine) == own
        assert (signal.getsignal(signal.SIGTERM) is mine) == own
        assert ray._private.utils.set_sigterm_handler is set_handler
    finally:
        signal.signal(signal.SIGTERM, before)


# The program does what Ray's C++ part does while a program joins a Ray.
JOINING = """
import ctypes, os, signal, time
import ray._raylet
from raylay.services.fabric.cluster import ray_access
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with ray_access._own_termination():
        ctypes.CDLL(ray._raylet.__file__)[ray_access.STACK_PRINTER](None, False)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_program_that_is_ended_while_it_joins_ray_prints_no_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOINING], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
