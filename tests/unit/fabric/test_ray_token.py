"""A Ray that other hosts reach asks for its token, or no fabric starts on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster import ray_access
from raylay.services.fabric.cluster.ray_access import (
    ALIVE_METHOD,
    AUTH_VARIABLE,
    demand_token,
    refuse_open_ray,
)


@contextmanager
def head(asks_for_a_token: bool, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server in the place of Ray's head, which this host takes for one of another."""

    def answer(_: bytes, context: Any) -> bytes:
        if asks_for_a_token:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token is missing")
        return b""

    class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if details.method == ALIVE_METHOD:
                return grpc.unary_unary_rpc_method_handler(answer)
            return None

    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Methods(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setattr(ray_access, "is_loopback", lambda host: False)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("given", ["", "token", "TOKEN"])
def test_a_ray_that_we_begin_asks_for_a_token(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, given)
    demand_token()
    assert os.environ[AUTH_VARIABLE].lower() == "token"


def test_an_environment_that_says_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "disabled")
    with pytest.raises(FabricError, match=f"{AUTH_VARIABLE} is 'disabled': .*unset it") as refused:
        demand_token()
    assert "\n" not in str(refused.value)
    assert os.environ[AUTH_VARIABLE] == "disabled"


def test_ray_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:

    class FakeRay:
        def init(self, **options: Any) -> None:
            raise SystemExit(os.environ[AUTH_VARIABLE])

    monkeypatch.setenv(AUTH_VARIABLE, "")
    for name in ("RAY_worker_niceness", *ray_access.LOG_LIMITS):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(ray_access, "ray_module", FakeRay)
    with pytest.raises(SystemExit, match="token"):
        ray_access.start_ray({})
    monkeypatch.setenv(AUTH_VARIABLE, "disabled")
    with pytest.raises(FabricError, match="is 'disabled'"):
        ray_access.start_ray({})


def test_a_head_that_lets_everybody_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        head(asks_for_a_token=False, monkeypatch=monkeypatch) as address,
        pytest.raises(FabricError, match=f"Ray at {address} lets in everybody who reaches it"),
    ):
        refuse_open_ray(address)


def test_a_head_that_asks_for_a_token_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with head(asks_for_a_token=True, monkeypatch=monkeypatch) as address:
        refuse_open_ray(address)


def test_one_that_nobody_else_reaches_is_not_asked() -> None:
    # Nothing listens there; it would be waited for.
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        refuse_open_ray(address)
