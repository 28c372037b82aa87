"""services/fabric/silence.py: the words for an instance that does not answer."""

from __future__ import annotations

from typing import Any

import pytest
import ray.exceptions

from raylay.services.fabric.cluster.ray_access import first_line
from raylay.services.fabric.silence import has_begun, silence

RAYS_WORDS = "Get timed out: some object(s) not ready."


def told(state: dict[str, Any], ago_s: float | None = None, *, late: bool = True) -> str:
    phase, reason = silence(
        state, is_late=late, said=RAYS_WORDS, logs="/r/logs", waited_s=5.0, launched_ago_s=ago_s
    )
    return f"{phase}: {reason}"


LOOK = "look at the load and the free memory of its host, and at raylet.out in /r/logs"


@pytest.mark.parametrize(
    ("state", "ago_s", "words"),
    [
        ("PENDING_CREATION", 43.4, f"starting: Ray has not started its process for 43 s: {LOOK}"),
        (
            "DEPENDENCIES_UNREADY",
            -1.0,
            f"starting: Ray has not started its process for 0 s: {LOOK}",
        ),
        ("PENDING_CREATION", None, f"starting: Ray has not started its process yet: {LOOK}"),
        ("RESTARTING", 43.4, f"restarting: Ray has not started its new process yet: {LOOK}"),
        ("ALIVE", 43.4, "alive: process 7 has not answered within 5 s"),
        ("DEAD", None, "dead: it has not answered within 5 s"),
        ("", None, "unknown: it has not answered within 5 s"),
    ],
)
def test_one_that_is_late_is_told_in_plain_words(
    state: str, ago_s: float | None, words: str
) -> None:
    assert told({"state": state, "pid": 7}, ago_s) == words
    assert told({}) == "unknown: it has not answered within 5 s"


def test_what_ray_says_of_one_that_has_died_is_told() -> None:
    assert told({"state": "DEAD"}, late=False) == f"dead: {RAYS_WORDS}"
    assert "Ray has not started its new process" in told({"state": "RESTARTING"}, late=False)


@pytest.mark.parametrize(
    ("status", "begun"),
    [
        ({"name": "a", "phase": "starting"}, False),
        ({"state": "starting"}, False),
        ({"state": "failed"}, False),
        ({"state": "recovering"}, True),
    ],
)
def test_an_instance_has_begun_once_its_process_opens_its_data(
    status: dict[str, Any], begun: bool
) -> None:
    assert has_begun(status) is begun


def test_a_process_that_is_being_restarted_is_told_in_plain_words() -> None:
    unreachable = ray.exceptions.ActorUnavailableError("The actor is restarting.", b"1" * 16)
    assert "1" * 16 in str(unreachable) or "may or may not" in str(unreachable), "Ray's words"
    assert first_line(unreachable) == (
        "its process cannot be reached at the moment, as while it is restarted: ask again"
    )
    assert first_line(ValueError("one\ntwo")) == "one"
