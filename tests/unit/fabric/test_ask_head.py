"""Ray's head on a busy machine: one that gives signs of life is waited for, and one that stands
still is reported within seconds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.listening import drain, listening

from raylay.services.fabric.cluster import ray_access
from raylay.services.fabric.cluster.ray_access import HeadSilent, ask_head

SHORT_S = 0.2


@contextmanager
def head(monkeypatch: pytest.MonkeyPatch, *, lives: bool) -> Iterator[threading.Event]:
    """Serves in the place of Ray's head. A head that lives answers the first bytes of a connection;
    yields an event that is set then."""
    answered = threading.Event()

    def serve(connection: socket.socket) -> None:
        if lives and connection.recv(100):
            connection.sendall(b"\0")
            answered.set()
        else:
            drain(connection)

    with listening(serve) as address:

        class Ray:
            def get_runtime_context(self) -> Any:
                return type("Context", (), {"gcs_address": address})

        monkeypatch.setattr(ray_access, "ray_module", Ray)
        yield answered


def test_a_head_that_gives_a_sign_of_life_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with head(monkeypatch, lives=True) as asked_for_a_sign:
        # The head answers only after the time in which it should have answered.
        assert ask_head(lambda: asked_for_a_sign.wait(60) and "late", SHORT_S) == "late"


def test_an_error_that_comes_late_is_that_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    with head(monkeypatch, lives=True) as asked_for_a_sign:

        def fail() -> None:
            asked_for_a_sign.wait(60)
            raise ValueError("no such actor")

        with pytest.raises(ValueError, match="no such actor"):
            ask_head(fail, SHORT_S)


@pytest.mark.parametrize(("lives", "waited"), [(True, "0.3 s"), (False, "0.2 s")])
def test_a_head_that_never_answers_is_silent(
    lives: bool, waited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_access, "BUSY_TIMEOUT_S", 0.3)
    over = threading.Event()
    with (
        head(monkeypatch, lives=lives),
        pytest.raises(HeadSilent, match=f"nothing within {waited}"),
    ):
        ask_head(over.wait, SHORT_S)
    over.set()
