"""The words for an instance that does not answer: what Ray's head knows of its process, and where
to look.

Values in, values out: `services/fabric/instances.py` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AWAITED = {
    "DEPENDENCIES_UNREADY": ("starting", "its process"),
    "PENDING_CREATION": ("starting", "its process"),
    "RESTARTING": ("restarting", "its new process"),
}
"""Ray's states of an actor that has no process, each with the phase of the instance and the name of
what Ray is to start."""


def silence(
    state: Mapping[str, Any],
    *,
    is_late: bool,
    said: str,
    logs: str,
    waited_s: float,
    launched_ago_s: float | None = None,
) -> tuple[str, str]:
    """Returns the phase of an instance that has not answered, and the reason.

    Args:
        state: state of its actor, as `actor_state` returns it.
        is_late: whether nothing came within the time; False: Ray says `said` instead.
        said: Ray's own words.
        logs: directory of Ray's logs.
        waited_s: seconds for which the answer was awaited.
        launched_ago_s: seconds since the instance was first launched; None: not known.
    """
    found = str(state.get("state") or "")
    look = f"look at the load and the free memory of its host, and at raylet.out in {logs}"
    if found in AWAITED:
        phase, process = AWAITED[found]
        since = "yet"
        # Of a restart, Ray does not tell when it began.
        if phase == "starting" and launched_ago_s is not None:
            since = f"for {max(0.0, launched_ago_s):.0f} s"
        return phase, f"Ray has not started {process} {since}: {look}"
    phase = found.lower() or "unknown"
    if not is_late:
        return phase, said
    if found == "ALIVE":
        return phase, f"process {state.get('pid') or 0} has not answered within {waited_s:g} s"
    return phase, f"it has not answered within {waited_s:g} s"


def has_begun(status: Mapping[str, Any]) -> bool:
    """Returns whether the status of an instance comes from its process, and does not say that the
    instance cannot start."""
    return status.get("state", "starting") not in ("starting", "failed")
