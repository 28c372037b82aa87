"""The places of a fabric's record: its directory, Ray's head for drivers on other machines, and a
copy on each node, which then knows the fabric by name."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from raylay.services.errors import FabricError
from raylay.services.fabric.cluster.ray_access import (
    AUTH_VARIABLE,
    POLL_S,
    ask_head,
    head_address,
    ray_module,
)
from raylay.services.fabric.plan import (
    FabricRecord,
)
from raylay.services.fabric.records import registry

# -- the record in Ray's head, for drivers on other machines ---------------------------------
_KV_NAMESPACE = b"raylay"
_CLAIMS_NAMESPACE = b"raylay-claims"
CLAIM_S = 5.0


def namespace_of(fabric: str) -> str:
    """Returns the Ray namespace of a fabric's actors."""
    return f"raylay-{fabric}"


def remember(record: FabricRecord) -> None:
    """Keeps a copy of the record of a fabric of another host."""
    keep_copy(record, entry_of(record, holds_ray=False))


def keep_copy(record: FabricRecord, entry: registry.RegistryEntry) -> None:
    """Keeps a copy of the record where this machine finds it by name."""
    directory = registry.copy_directory(record.name)
    record.save(directory)
    registry.register(replace(entry, directory=str(directory), copied=True))


def entry_of(record: FabricRecord, holds_ray: bool) -> registry.RegistryEntry:
    """Returns the entry by which a machine knows the fabric. `holds_ray`: it ends with this
    process."""
    pid = os.getpid() if holds_ray else 0
    address = head_address()
    return registry.RegistryEntry(
        record.name,
        record.directory,
        address,
        pid,
        registry.process_start(pid) if pid else 0,
        os.environ.get(AUTH_VARIABLE, ""),
    )


def save_config(
    text: str, directory: str, record: str, entry: registry.RegistryEntry, topology: str
) -> None:
    """Saves the configuration on the node of an instance, and the topology for its administrator's
    interface: there the fabric is known by name, head or no head."""
    from raylay.services.config.instance import InstanceConfig
    from raylay.services.fabric.admin_topology import save_topology

    InstanceConfig.from_json(text).save(Path(directory))
    save_topology(topology, Path(directory))
    sent = FabricRecord.from_json(record, "what the driver sent")
    kept = FabricRecord.load(sent.directory)
    # The record is kept beside the data, which a start from any host uses again.
    if kept is None or (kept.name == sent.name and kept.number < sent.number):
        sent.save()
    known = registry.find(entry.name)
    if known is None or known.copied:
        keep_copy(sent, entry)


def record_text(name: str, directory: str) -> str:
    """Returns, on a node, the fabric's record in a directory; empty: none that can be read."""
    try:
        found = FabricRecord.load(directory)
    except FabricError:
        return ""
    return found.to_json() if found is not None and found.name == name else ""


def live_names(name: str) -> list[str]:
    """Returns the names of a fabric's actors that Ray's head does not know as ended."""
    found = ask_head(partial(ray_module().util.list_named_actors, all_namespaces=True))
    return [each["name"] for each in found if each["namespace"] == namespace_of(name)]


def store_record(record: FabricRecord) -> None:
    """Writes the record at Ray's head."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(
        record.name.encode(), record.to_json().encode(), overwrite=True, namespace=_KV_NAMESPACE
    )


def stored_record(name: str) -> FabricRecord | None:
    """Returns the record of a fabric at Ray's head; None: the head has none with this name."""
    from ray.experimental import internal_kv

    text = ask_head(lambda: internal_kv._internal_kv_get(name.encode(), namespace=_KV_NAMESPACE))
    return FabricRecord.from_json(text.decode(), f"the record of {name}") if text else None


def is_newer(stored: FabricRecord | None, number: int) -> bool:
    """Returns whether a record of this number, or of a later one, was written."""
    return stored is not None and stored.number >= number


def claim(name: str, number: int) -> bool:
    """Returns whether the record of this number is ours to write: the head lets one of several have
    it. A process that claimed it and did not write it within CLAIM_S has died."""
    from ray.experimental import internal_kv

    def put(each: int) -> bool:
        key = f"{name}#{each}".encode()
        return bool(
            internal_kv._internal_kv_put(key, b"", overwrite=False, namespace=_CLAIMS_NAMESPACE)
        )

    deadline_s = time.monotonic() + CLAIM_S
    while ask_head(partial(put, number)):
        if is_newer(stored_record(name), number):
            return False
        if time.monotonic() > deadline_s:
            return True
        time.sleep(POLL_S)
    # The claim on the record before stays until now: a process that has read that record still
    # meets this claim.
    before = f"{name}#{number - 1}".encode()
    internal_kv._internal_kv_del(before, namespace=_CLAIMS_NAMESPACE)
    return True


def stored_names() -> list[str]:
    """Returns the names of the fabrics that have a record at Ray's head."""
    from ray.experimental import internal_kv

    keys = ask_head(lambda: internal_kv._internal_kv_list(b"", namespace=_KV_NAMESPACE))
    return sorted(key.decode() for key in keys)


def forget_record(name: str) -> None:
    """Removes the record at Ray's head, and the claims on the next one."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(name.encode(), namespace=_KV_NAMESPACE)
    for claim in internal_kv._internal_kv_list(f"{name}#".encode(), namespace=_CLAIMS_NAMESPACE):
        internal_kv._internal_kv_del(claim, namespace=_CLAIMS_NAMESPACE)
