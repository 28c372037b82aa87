"""Running fabrics: those on this machine, or those on the Ray that an address names."""

from __future__ import annotations

import os

from raylay.services.errors import FabricError
from raylay.services.fabric.records import registry

NONE_RUNS = (
    "no fabric runs here: start one with `raylay up FILE`; `raylay list` shows those that are "
    "stopped"
)


def fetch(address: str) -> None:
    """Keeps here the records of the fabrics that run on the Ray at `address`: from then on they are
    found by name, and their clients need no Ray.

    Raises:
        FabricError: no Ray can be reached there.
    """
    # Late: who looks for a fabric of this machine needs an entry of the registry and no more.
    from raylay.services.fabric.cluster.ray_access import join_ray, leave_ray
    from raylay.services.fabric.records.record_store import remember, stored_names, stored_record

    started_ray = join_ray(address)
    try:
        for name in stored_names():
            known = registry.find(name)
            record = stored_record(name) if known is None or known.copied else None
            if record is not None:
                remember(record)
    finally:
        if started_ray:
            leave_ray()


def find_running(name: str = "") -> registry.RegistryEntry:
    """Returns the fabric with this name that runs on this host, or on the Ray that RAY_ADDRESS
    names. If the name is empty, returns the only fabric that runs.

    Raises:
        FabricError: no such fabric runs, or several fabrics do; the error names them.
    """
    entry = registry.find(name) if name else None
    if entry is None:
        # Late: most commands find what they look for.
        from raylay.services.fabric.locks import refuse_starting

        refuse_starting(name)
    address = os.environ.get("RAY_ADDRESS", "")
    if address and entry is None and (name or not registry.running()):
        fetch(address)
        entry = registry.find(name) if name else None
    if entry is not None:
        return entry
    running = registry.running()
    names = ", ".join(each.name for each in running)
    if name:
        # Late: most commands find what they look for.
        from raylay.services.fabric.records.stopped import stopped
        from raylay.services.messages.spelling import did_you_mean

        starts = [each.command for each in stopped() if each.name == name]
        hint = did_you_mean(name, [each.name for each in running])
        todo = hint or f"there are {names or 'none'}"
        if starts:
            todo = f"start it with `{starts[0]}`"
        raise FabricError(f"no fabric {name} runs here; {todo}")
    if not running:
        raise FabricError(NONE_RUNS)
    if len(running) != 1:
        raise FabricError(f"say which fabric with --fabric, or RAYLAY_FABRIC; there are {names}")
    return running[0]


def all_running(name: str = "") -> list[registry.RegistryEntry]:
    """Returns the fabric with this name. If the name is empty, returns all fabrics that run on this
    host, or else on the Ray that RAY_ADDRESS names.

    Raises:
        FabricError: no fabric of this name runs; or no fabric runs, and one is starting.
    """
    if name:
        return [find_running(name)]
    address = os.environ.get("RAY_ADDRESS", "")
    if address and not registry.running():
        fetch(address)
    running = registry.running()
    if not running:
        from raylay.services.fabric.locks import refuse_starting

        refuse_starting("")
    return running


def runs_already(name: str, where: str) -> FabricError:
    """Returns the error for the start of a fabric that runs already."""
    return FabricError(
        f"fabric {name} runs already, in {where}: see it with `raylay status --fabric {name}`, "
        f"change it with `raylay apply FILE`, or stop it first with `raylay down --fabric {name}`"
    )


def is_over(entry: registry.RegistryEntry) -> bool:
    """Returns whether the Ray of a fabric ended without it: nothing listens where its head was."""
    from raylay.services.fabric.cluster.ray_access import HeadSilent, refuse_silent_head

    try:
        refuse_silent_head("" if entry.host_pid else entry.address)
    except HeadSilent:
        return True
    return False
