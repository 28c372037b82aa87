"""The placements that this instance knows (design.md 2, Placement): on disk before it acts on them.

services/replication/membership/placement.py and the machine decide; this module stores, learns and
passes on placements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgpack

from raylay.services.errors import InstanceRetired, RaylayError
from raylay.services.protocol.link.proof import proof_of
from raylay.services.protocol.link.replication import UpstreamLogon
from raylay.services.replication.instance import Identity
from raylay.services.replication.membership.placement import (
    InstancePlacement,
    Placements,
    from_wire,
    renewed,
    retired_text,
)
from raylay.services.server.data.data_directory import GENERATION_KEY
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.recovered_instance import RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime

PLACEMENTS_KEY = "placements"


class StoredPlacements:
    """The placements on disk, which an instance knows when it starts. Making it reads them.

    Owner: the instance's event loop. Lifecycle: until the instance has recovered; `settle` once the
    transports listen.

    Args:
        state: the state store of the data directory.

    Attributes:
        found: the placements from the disk and from the configuration.

    Raises:
        InstanceRetired: the instance has moved away from this directory, which is not used again,
            whatever is in it.
    """

    def __init__(self, runtime: InstanceRuntime, state: StateThread) -> None:
        self._runtime = runtime
        self._state = state
        self.found = Placements()
        self._check()

    def _check(self) -> None:
        runtime = self._runtime
        config, state, found = runtime.config, self._state, self.found
        name = config.name
        kept = state.get(PLACEMENTS_KEY)
        told = from_wire([list(entry) for entry in config.placements])
        if kept is not None:
            found.learn(from_wire(msgpack.unpackb(kept)))
        found.learn(told)
        generation = state.get_number(GENERATION_KEY)
        if not state.get_number("incarnation"):
            generation = max(generation, config.generation)
        elif config.generation > generation:
            found.learn({name: InstancePlacement(config.generation)})
        placement = found.get(name)
        if placement is not None and found.is_retired(name, generation):
            runtime.retirement = retired_text(name, placement)
            runtime.phase = "retired"
            runtime.report("retired", text=runtime.retirement)
            raise InstanceRetired(f"{runtime.directory}: {runtime.retirement}")

    def settle(self, identity: Identity, *, follows: bool) -> None:
        """Writes the instance's own placement to disk, if others cannot know it from their
        configurations, and the placements of others.

        Args:
            follows: whether the node has another address than the instance is configured with.
        """
        runtime, found = self._runtime, self.found
        name, own = identity.name, own_placement(runtime, identity)
        known = found.get(name)
        if known is not None and known.generation == own.generation:
            found.learn({name: renewed(known, own, runtime.now_us())})
        elif own.generation:
            found.learn({name: own})
        elif follows:
            found.learn({name: renewed(None, own, runtime.now_us())})
        if len(found):
            self._state.put_now({PLACEMENTS_KEY: msgpack.packb(found.to_wire())})


def own_placement(runtime: InstanceRuntime, identity: Identity) -> InstancePlacement:
    """The placement of this instance itself: its generation, and its present addresses."""
    return InstancePlacement(
        identity.generation, runtime.replication_address, runtime.client_address
    )


class PlacementKeeper:
    """The placements that a serving instance knows, and their copy on disk.

    Owner: the instance's event loop. Lifecycle: one life of the instance.
    """

    def __init__(self, runtime: InstanceRuntime, instance: RecoveredInstance) -> None:
        self._runtime = runtime
        self._instance = instance
        self._learning = asyncio.Lock()

    def known(self) -> dict[str, InstancePlacement]:
        """The known placements of instances that were moved, or followed their node."""
        return self._instance.machine.placements.items()

    def logon_words(
        self, destination: str, epoch: int, *, announces: bool = False
    ) -> UpstreamLogon:
        """Returns this instance's part of a logon at another instance, with its proof; a link adds
        the rest."""
        runtime = self._runtime
        identity = self._instance.identity
        logon = UpstreamLogon(
            identity.name,
            identity.group,
            identity.incarnation,
            "",
            destination,
            epoch,
            b"",
            generation=identity.generation,
            placements=self._instance.machine.placements.items(),
            announces=announces,
        )
        logon.proof = proof_of(runtime.config.fabric_key, logon)
        return logon

    async def learn(self, told: Mapping[str, InstancePlacement]) -> None:
        """Takes the placements of moved instances: they are on disk before the instance acts on
        them.

        Raises:
            RaylayError: they cannot be written to disk; nothing has changed.
        """
        runtime = self._runtime
        if not told or not runtime.is_serving:
            return
        async with self._learning:
            placements = self._instance.machine.placements
            news = placements.news(told)
            if not news or not runtime.is_serving:
                return
            name = runtime.config.name
            heard = news.get(name)
            if heard is not None and heard.generation == self._instance.identity.generation:
                # The placement may be of a life whose disk was lost, for example: others are sent a
                # newer one.
                news[name] = renewed(
                    heard, own_placement(runtime, self._instance.identity), runtime.now_us()
                )
            known = placements.copy()
            known.learn(news)
            await self._instance.state.put({PLACEMENTS_KEY: msgpack.packb(known.to_wire())})
            self._instance.perform(self._instance.machine.placed(news))
            runtime.outbox.flush()

    async def learn_quietly(self, told: Mapping[str, InstancePlacement]) -> None:
        """Learns placements as `learn` does, where a failure does no harm because they are told
        again."""
        try:
            await self.learn(told)
        except RaylayError as error:
            self._runtime.report("state_failed", text=str(error))
