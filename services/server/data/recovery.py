"""The identity and the recovery of an instance from its data directory, and the recovery points
that it writes so that a restart need not read the whole journal."""

from __future__ import annotations

from collections.abc import Callable

import msgpack

from raylay.services.core.compose import Composition, compose
from raylay.services.errors import CorruptRecord, RaylayError
from raylay.services.messages.suspects import Suspects
from raylay.services.messages.topic_book import TopicBook
from raylay.services.plugins.filters import filter_language
from raylay.services.replication.instance import InstanceMachine
from raylay.services.replication.publisher_names import PublisherNames
from raylay.services.replication.recovery import RecoveryLog, RecoveryPoint
from raylay.services.replication.staged import RECENT_BYTES_MAX
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.data.data_directory import (
    FORMER_KEY,
    GENERATION_KEY,
    RESTORED_KEY,
    DataDirectory,
)
from raylay.services.server.data.data_files import (
    NAME_KEYS,
    STATE_FILE,
    name_key,
    publisher_of,
)
from raylay.services.server.data.journal_reads import JournalReads
from raylay.services.server.links.placements import PlacementKeeper
from raylay.services.server.queues.manager import QueueManager
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.sow.manager import SowManager
from raylay.storage.in_hand import InHand

_NOWHERE = (-1, -1)


class InstanceRecovery:
    """The identity of an instance and its recovery from the data directory.

    Owner: the instance's event loop; `recover` runs in a thread.

    Lifecycle: `open` when the state store is open, `incarnation`, `recover`, then the methods that
    write.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        *,
        admission: ClientAdmission,
        placements: PlacementKeeper,
        queues: QueueManager,
        reading: JournalReads,
        sow: SowManager,
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._placements = placements
        self._queues = queues
        self._reading = reading
        self._sow = sow
        self._directory: DataDirectory
        self._log: RecoveryLog
        self._in_hand: InHand | None = None
        self._hinted = _NOWHERE
        """Position of the machine when the recovery point was last written."""

    # -- recovering --------------------------------------------------------------------------
    def open(self) -> None:
        runtime = self._runtime
        self._directory = DataDirectory(runtime.state, runtime.directory / STATE_FILE)
        try:
            self._in_hand = InHand(runtime.directory)
        except OSError as error:
            runtime.report("no_shared_memory", text=f"no note of messages in hand is kept: {error}")
            return
        suspect = self._in_hand.just_left
        if suspect is not None:
            runtime.report(
                "messages_suspected",
                publisher=f"{suspect.publisher:016x}",
                first=suspect.first,
                last=suspect.last,
                deaths=suspect.deaths,
                text="the process before this one ended while it worked on these messages: they "
                "are taken one at a time, and one that ends this process too is refused",
            )

    def close(self) -> None:
        if self._in_hand is not None:
            self._in_hand.close()
            self._in_hand = None

    def forget(self) -> None:
        """Removes the identity that the directory had before, as a bootstrap begins in it."""
        keys = "incarnation", "ready", RESTORED_KEY, FORMER_KEY
        self._runtime.state.put_now(dict.fromkeys((*keys, *self._directory.hints())))

    def incarnation(self) -> int:
        """Returns the incarnation of the data directory. Makes one for a new directory, and another
        one for a copy."""
        runtime, directory = self._runtime, self._directory
        found = directory.incarnation
        if not found:
            generation = max(runtime.config.generation, runtime.state.get_number(GENERATION_KEY))
            return directory.begin({GENERATION_KEY: generation.to_bytes(8, "big")})
        last_txid = runtime.journal.recovered.next_txid - 1
        why = directory.why_another(last_txid)
        if why:
            directory.begin_anew(last_txid)
            runtime.report(
                "data_directory_copied",
                former=f"{found:016x}",
                text=f"{runtime.directory} {why}: {runtime.config.name} begins anew as another "
                "incarnation and takes from its peers what it lacks",
            )
        return directory.incarnation

    def recover(self) -> InstanceMachine:
        """Builds the machine from the journal, beginning at the last recovery point."""
        try:
            return self._recovered()
        except CorruptRecord as error:
            if not self._sow.is_mended(error):
                raise
            return self._recovered()

    def _recovered(self) -> InstanceMachine:
        runtime, directory = self._runtime, self._directory
        config, state = runtime.config, runtime.state
        peers: dict[str, int] = {}
        servers: dict[str, list[str]] = {}
        for destination in config.destinations:
            known = state.get(f"peer/{destination.name}")
            if known is not None:
                peers[destination.name] = msgpack.unpackb(known)[0]
                met = state.get(f"servers/{destination.name}")
                servers[destination.name] = [] if met is None else msgpack.unpackb(met)
        is_restored = self._admission.is_restored = directory.is_restored
        alone = not any(item.group == config.group for item in config.destinations)
        runtime.filters = filter_language(
            (rule for each in config.destinations for rule in each.topics), config.type_definitions
        )
        note = self._in_hand
        sow = self._sow.open()
        stateful = () if sow is None else sow.book.stateful()
        composition = Composition(
            runtime.identity,
            [item.destination() for item in config.destinations],
            TopicBook(
                self._queues.journaled(),
                f"{config.name} Topic",
                config.unjournaled,
                config.name,
                stateful,
                self._queues.open(),
            ),
            peers=peers,
            servers=servers,
            placements=self._placements.found,
            former=directory.former,
            ready=alone or (config.first and not is_restored) or state.get("ready") is not None,
            policy=config.policy,
            recent_bytes_max=RECENT_BYTES_MAX,
            filters=runtime.filters,
            suspects=None if note is None else Suspects(note, note.left),
            names=PublisherNames((publisher_of(key), name) for key, name in state.items(NAME_KEYS)),
            sow=sow,
            sow_folded=self._sow.folded,
        )
        machine, self._log = compose(
            composition,
            runtime.journal,
            self._reading.lookup,
            directory.hints(),
            runtime.steady_us(),
        )
        if machine.ready and state.get("ready") is None:
            state.put_now({"ready": b"1", RESTORED_KEY: None})
        return machine

    # -- writing -----------------------------------------------------------------------------
    def keep_refused(self) -> None:
        """Writes the recovery point together with messages that were refused for good: the refusals
        must not be lost once the recovery point moves beyond them."""
        self._hinted = _NOWHERE
        self.write_point()

    def write_point(self) -> None:
        """Called now and then. Writes the recovery point, from which a restart begins, if it has
        moved."""
        machine = self._runtime.machine
        now = machine.committed_txid, machine.settlements
        if now == self._hinted:
            return
        self._hinted = now
        self._runtime.spawn(self._write_point(machine.recovery_point()))

    async def _write_point(self, point: RecoveryPoint) -> None:
        runtime = self._runtime
        if await self._write_quietly(self._writes(point)) and runtime.is_serving:
            runtime.perform(runtime.machine.recovery_written(point))

    async def write_last_point(self) -> None:
        """Writes the last recovery point, after the last commit, and the names of publishers that
        are not written yet.

        Raises:
            StorageError: the point cannot be written; a restart reads more of the journal.
        """
        runtime = self._runtime
        names = runtime.machine.publisher_names
        await runtime.state.put({name_key(each): names.get(each) for each in names.unwritten})
        await runtime.state.run(self._writes(runtime.machine.recovery_point()))

    def _writes(self, point: RecoveryPoint) -> Callable[[], None]:
        """Returns the work with which the state's thread writes a recovery point."""

        def write() -> None:
            self._runtime.state.put_now(self._log.changes(point))
            self._log.written(point)

        return write

    async def _write_quietly(self, write: Callable[[], None]) -> bool:
        try:
            await self._runtime.state.run(write)
        except RaylayError as error:
            # The point is a hint only: without it, a restart reads more of the journal.
            self._hinted = _NOWHERE
            self._runtime.report("state_failed", text=str(error))
            return False
        return True

    async def note_ready(self) -> None:
        """Writes that the instance has caught up, so that it admits clients at once after a
        restart."""
        state = self._runtime.state
        await self._write_quietly(lambda: state.put_now({"ready": b"1", RESTORED_KEY: None}))
        self._runtime.report("ready")

    async def begin_anew(self) -> None:
        """Has the next life in this directory begin as another incarnation."""
        try:
            await self._runtime.state.run(self._directory.begin_anew)
        except RaylayError as error:
            # The next life meets the same state, and tries again.
            self._runtime.report("state_failed", text=str(error))
