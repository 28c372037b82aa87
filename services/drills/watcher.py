"""Looks at every instance of a fabric again and again during a drill, for its status and its
events.

Each instance is asked on a thread of its own, so that an instance that does not answer does not
delay the others. Ray's head is not asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from raylay.services.drills.history_builder import now_us
from raylay.services.drills.measure import LinkSample, Sample, WaitingBytes
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric

LOOK_S = 0.2
ANSWER_S_MAX = 3.0
EVENTS_AT_ONCE = 1000


class Watcher:
    """Watches a fabric during a drill. Owner: the drill. Lifecycle: `start` to `stop`; the
    attributes are complete after `stop`.

    Args:
        first: the status of each instance before the drill. Events up to its `last_event` are left
            out.
    """

    def __init__(
        self, fabric: Fabric, first: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._fabric = fabric
        self._first = first or {}
        self.names = [instance.name for instance in fabric.declared.instances]
        self.samples: list[Sample] = []
        self.events: list[dict[str, Any]] = []
        self.statuses: dict[str, dict[str, Any]] = {}
        """The last status of each instance that answered."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._look, args=(name,), daemon=True, name=f"drill-{name}")
            for name in self.names
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Takes a last look and ends."""
        self._over.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_S_MAX + LOOK_S)
        self.samples.sort(key=lambda sample: sample.time_us)
        self.events.sort(key=lambda event: int(event["time_us"]))

    def _look(self, name: str) -> None:
        first = self._first.get(name, {})
        # Events are found by their numbers, because the instance's clock may be set back.
        pid, number = int(first.get("pid") or 0), int(first.get("last_event") or 0)
        while True:
            last = self._over.is_set()
            began_s, time_us = time.monotonic(), now_us()
            try:
                status = self._fabric.ask(name, "status", timeout_s=ANSWER_S_MAX)
                # It may have stood still, or been another process, when it was asked.
                time_us = now_us()
                found: list[dict[str, Any]] = []
                if int(status.get("pid") or 0) != pid:
                    # A new process counts from 1 again.
                    pid, number = int(status.get("pid") or 0), 0
                if status.get("last_event", 0) > number:
                    found = self._fabric.ask(
                        name, "events", number, EVENTS_AT_ONCE, timeout_s=ANSWER_S_MAX
                    )
            except FabricError as error:
                status, found = {"why": str(error)}, []
            if found:
                number = int(found[-1]["number"])
            with self._lock:
                self.samples.append(sample_of(time_us, name, status))
                self.events += [{**event, "instance": name} for event in found]
                if "ready" in status:
                    self.statuses[name] = status
            if last:
                return
            self._over.wait(max(0.01, LOOK_S - (time.monotonic() - began_s)))


def sample_of(time_us: int, name: str, status: dict[str, Any]) -> Sample:
    """Returns the sample of one answer, at the moment at which it arrived; of an error in place of
    an answer, at the moment of the question."""
    links = {
        destination: LinkSample(
            bool(found["connected"]),
            bool(found["caught_up"]),
            bool(found["sync"]),
            bool(found["configured_sync"]),
            bool(found["safe"]),
            int(found["unacked"]),
            float(found["age_ms"]),
            int(found.get("pid") or 0),
        )
        for destination, found in status.get("destinations", {}).items()
    }
    return Sample(
        time_us,
        name,
        int(status.get("pid") or 0),
        bool(status.get("ready")),
        str(status.get("reason") or status.get("why") or ""),
        links,
        int(status.get("published") or 0),
        int(status.get("delivered") or 0),
        _waiting(status.get("capacity", ())),
    )


def _waiting(pools: Sequence[Mapping[str, Any]]) -> WaitingBytes | None:
    if not pools:
        return None
    return WaitingBytes(*(sum(int(pool[key]) for pool in pools) for key in WaitingBytes._fields))
