"""The shell around InstanceMachine: sockets, journal, clock, links (design.md 2 to 6).

The shell decides nothing: it passes every input to the machine and performs the machine's effects
in order. This module starts an instance and stops it, in three stages, each complete when it is
made:

    runtime     from the beginning: the loop, its clocks and tasks (runtime.py)
    data        the stores of the data directory, opened; the transports listen, and refuse
    parts       from the recovery on: the machine, and all that serves (instance_parts.py)
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import ConfigurationError, FabricError, RaylayError, StorageError
from raylay.services.replication.effects import InstanceRetirement, StaleCopyDetected
from raylay.services.replication.instance import Identity
from raylay.services.replication.link.routing import SYNC_DESTINATIONS_MAX
from raylay.services.security.control import Caller
from raylay.services.server.admin_interface import AdminInterface
from raylay.services.server.admin_snapshot import InstanceFiles
from raylay.services.server.children.starts import ChildStarts
from raylay.services.server.children.supervisor import ChildStart, no_children
from raylay.services.server.clients.connection_limit import ConnectionLimit, connections_max
from raylay.services.server.control import ControlAccess
from raylay.services.server.data.data_directory import GENERATION_KEY
from raylay.services.server.data.data_files import AGING_KEY, STATE_FILE, open_journal
from raylay.services.server.data.journal_reads import opened_journal_reads
from raylay.services.server.data.recovery import InstanceRecovery
from raylay.services.server.data.state_thread import StateThread
from raylay.services.server.instance_parts import InstanceParts
from raylay.services.server.links.bootstrap import BootstrapJournal, BootstrapRun
from raylay.services.server.links.direct_link import DescriptorReceiver
from raylay.services.server.links.node_address import following
from raylay.services.server.links.placements import StoredPlacements
from raylay.services.server.listening import InstanceListeners
from raylay.services.server.occurrences import SHUTDOWN, SIGNAL, STARTUP
from raylay.services.server.recovered_instance import OpenedData, RecoveredInstance
from raylay.services.server.runtime import InstanceRuntime
from raylay.services.server.starting_connections import StartingConnections
from raylay.services.server.status import StartStatus
from raylay.services.telemetry.metrics import Metrics
from raylay.services.telemetry.tracing import start_tracing
from raylay.storage.exposure import exposed
from raylay.storage.files import make_directory
from raylay.storage.state import LmdbStateStore

CLOSING_ORDER = (
    "admin",
    "transports",
    "parts",
    "starting connections",
    "tasks",
    "reads",
    "journal",
    "sow",
    "last point",
    "state",
    "metrics",
    "tracing",
    "note",
    "sockets",
)
"""Order in which the opened parts are closed. The last recovery point, which is written to the
state, covers the last commit of the journal."""


class InstanceServer:
    """One instance. It is made on an event loop, and all methods run on that loop, except `status`.

    Owner: the Instance actor. Lifecycle: `start` once, `stop` once; `finished` waits for the end.

    Args:
        config: the instance's name and configuration.
        directory: the instance's data directory, made when it is missing.
        node_address: the present address of the instance's node; empty: it is not known.
        start_child: starts the processes of the instance's links, its queues' owners and its slow
            clients' buffers.
    """

    begins_anew = False
    """Whether the instance is to be started again in this process after it has stopped."""

    def __init__(
        self,
        config: InstanceConfig,
        directory: str | Path,
        start_child: ChildStart = no_children,
        node_address: str = "",
    ) -> None:
        followed = following(config, node_address)
        self._follows = followed is not config
        """Whether the node has another address than the instance is configured with."""
        self._ending: asyncio.Task[None] | None = None
        self._is_settling = False
        """Whether the actions on the end of the instance have been begun."""
        self._closing: dict[str, Callable[[], Awaitable[None] | None]] = {}
        self.runtime = InstanceRuntime(followed, directory)
        self.control = ControlAccess(self.runtime)
        self._starts = ChildStarts(self.runtime, start_child)
        self._start_status = StartStatus(self.runtime, self.control)
        self._files = InstanceFiles(self.runtime)
        self.admin = AdminInterface(
            self.runtime,
            self._starts.admin,
            status=self.status,
            snapshot=self._admin_snapshot,
            access=self.control,
            perform=self._perform,
        )
        self._parts: InstanceParts | None = None
        """The parts that serve; None: the instance has not recovered."""

    @property
    def parts(self) -> InstanceParts:
        """The parts that serve.

        Raises:
            FabricError: the instance has not recovered.
        """
        if self._parts is None:
            runtime = self.runtime
            raise FabricError(
                f"{runtime.config.name} does not serve: it is {runtime.phase}; try again"
            )
        return self._parts

    # -- start -------------------------------------------------------------------------------
    async def start(self) -> None:
        """Opens the transports, recovers, and serves.

        Raises:
            ConfigurationError: a value is wrong, or a port is in use.
            StorageLocked: another process owns the directory.
            StorageError: the journal or the state cannot be used; the error names the file.
        """
        runtime = self.runtime
        runtime.begin()
        config = runtime.config
        config.check()
        syncs = sum(1 for destination in config.destinations if destination.sync)
        if syncs > SYNC_DESTINATIONS_MAX:
            raise ConfigurationError(
                f"{config.name} has {syncs} sync destinations: at most {SYNC_DESTINATIONS_MAX}"
            )
        try:
            parts = await self._open()
        except BaseException:
            await self._close_everything()
            raise
        instance = parts.instance
        runtime.is_serving = True
        runtime.phase = "serving" if instance.machine.ready else "waiting to catch up with a peer"
        runtime.report("started", incarnation=f"{instance.identity.incarnation:016x}")
        parts.run()
        runtime.occurrences.tell(STARTUP, {})

    async def _open(self) -> InstanceParts:
        runtime = self.runtime
        config = runtime.config
        files = await self._open_journal()
        state = await self._open_state()
        files.journal.age_behind(state.get_number(AGING_KEY))
        recovery = InstanceRecovery(runtime, state)
        self._closing["note"] = recovery.close
        tracing = start_tracing(config.name, config.tracing)
        self._closing["tracing"] = partial(runtime.in_thread, tracing.close)
        placements = StoredPlacements(runtime, state)
        is_due = config.bootstrap is not None and await files.is_due()
        if is_due:
            recovery.forget()
        identity = Identity(
            config.name,
            config.group,
            recovery.incarnation(files.journal),
            state.get_number(GENERATION_KEY),
            in_fabric=bool(config.fabric_key),
            life=secrets.randbits(64),
        )
        bootstrap = None
        if is_due and config.bootstrap is not None:
            bootstrap = BootstrapRun(runtime, config.bootstrap, identity, files)
            self._start_status.bootstrap = bootstrap
        self.control.open()
        connection_limit = ConnectionLimit(connections_max())
        starting = StartingConnections(
            runtime,
            connection_limit,
            self.admin,
            () if bootstrap is None else bootstrap.config.sources,
        )
        descriptors = DescriptorReceiver()
        listening = InstanceListeners(runtime, state, starting, connection_limit, descriptors)
        await self._listen(listening, starting)
        placements.settle(identity, follows=self._follows)
        if bootstrap is not None:
            await bootstrap.run()
            starting.copies_from = ()
        data = OpenedData(files.journal, state, identity, tracing)
        reading = await opened_journal_reads(runtime, data.journal)
        self._closing["reads"] = reading.close
        runtime.phase = "recovering"
        recovered = await runtime.in_thread(
            recovery.recover, data, placements.found, reading.lookup
        )
        self._closing["sow"] = recovered.sow.close
        instance = RecoveredInstance(runtime, data, recovered.machine, recovered.filters)
        parts = self._parts = InstanceParts(
            runtime,
            instance,
            recovered,
            recovery.directory,
            admin=self.admin,
            control=self.control,
            descriptors=descriptors,
            connection_limit=connection_limit,
            listening=listening,
            reading=reading,
            start=self._start_status,
            starts=self._starts,
            endings={InstanceRetirement: self._retired, StaleCopyDetected: self._went_back},
            shut_down=self._shut_down,
        )
        self._closing["parts"] = parts.stop
        self._closing["sow"] = parts.sow.close
        self._closing["last point"] = partial(self._write_last_point, parts)
        parts.begin()
        self._start_metrics(parts)
        return parts

    async def _open_journal(self) -> BootstrapJournal:
        """Opens the journal before anything else: its lock on the directory admits one process."""
        runtime = self.runtime
        config = runtime.config
        runtime.phase = "opening the journal"
        await runtime.in_thread(make_directory, runtime.directory)
        for place in {
            runtime.directory,
            Path(config.journal.archive_directory or runtime.directory),
        }:
            for each in await runtime.in_thread(exposed, place):
                runtime.report("data_exposed", text=f"{each.text}: {each.change}")
        files = BootstrapJournal(
            runtime, await runtime.in_thread(open_journal, config, runtime.directory)
        )
        self._closing["journal"] = partial(self._close_journal, files)
        return files

    async def _open_state(self) -> StateThread:
        runtime = self.runtime
        state = StateThread(await runtime.in_thread(LmdbStateStore, runtime.directory / STATE_FILE))
        self._closing["state"] = partial(runtime.in_thread, state.close)
        runtime.aging.resume(state.get_number(AGING_KEY))
        return state

    async def _listen(self, listening: InstanceListeners, starting: StartingConnections) -> None:
        """Opens the transports, whose connections are refused until the instance has recovered, and
        starts the administrator's interface, which shows how far the start is."""
        runtime = self.runtime
        self._start_status.listening = listening
        self._closing["transports"] = listening.close
        self._closing["starting connections"] = partial(starting.close, "the instance stops")
        self._closing["sockets"] = listening.remove
        await listening.begin()
        self._closing["admin"] = self.admin.stop
        self.admin.run()
        if self.admin.is_configured:
            runtime.every(1.0, lambda: self.admin.process.look(runtime.loop.time()))
        if self._follows:
            runtime.report(
                "address_changed",
                former=runtime.config.node_address,
                address=runtime.replication_address,
                client=runtime.client_address,
            )

    def _start_metrics(self, parts: InstanceParts) -> None:
        config = self.runtime.config
        if config.metrics_port is not None:
            metrics = Metrics(config.name, parts.status.snapshot_from_thread)
            self._closing["metrics"] = partial(self.runtime.in_thread, metrics.stop)
            metrics.start(config.metrics_port, config.metrics_host)

    # -- the end -----------------------------------------------------------------------------
    async def finished(self) -> None:
        """Waits until the instance was stopped; raises the error that ended it otherwise."""
        await self.runtime.finished()

    async def stop(self) -> None:
        """Stops: tells the clients, commits what is staged, ends the links, and closes the files.

        Raises:
            StorageError: a file could not be closed, for example because the directory was removed.
                The instance has ended all the same.
        """
        runtime = self.runtime
        if self._parts is not None and not self._is_settling:
            self._is_settling = True
            runtime.occurrences.tell(SHUTDOWN, {})
            if runtime.is_serving:
                # Actions on the shutdown may publish, so they run before clients are refused.
                await self._parts.actions.settle()
        if runtime.is_stopping:
            return await runtime.finished()
        runtime.is_stopping = True
        runtime.phase = "stopping"
        reason, text = "shutting_down", f"{runtime.config.name} stops"
        if runtime.retirement:
            reason, text = "retired", runtime.retirement
        if self._parts is not None:
            self._parts.clients.end(reason, text)
        runtime.outbox.flush()
        try:
            await self._close_everything()
        except BaseException as error:
            runtime.phase = "stopped"
            runtime.end(error)
            raise
        runtime.phase = "retired" if runtime.retirement else "stopped"
        runtime.end()

    async def _close_everything(self) -> None:
        runtime = self.runtime
        runtime.is_serving = False
        self._closing["tasks"] = self._cancel_tasks
        for part in CLOSING_ORDER:
            close = self._closing.pop(part, None)
            is_closing = None if close is None else close()
            if is_closing is not None:
                await is_closing

    def _cancel_tasks(self) -> None:
        self.runtime.cancel_timers()
        self.runtime.cancel_tasks()

    async def _close_journal(self, files: BootstrapJournal) -> None:
        files.journal.hand_over()
        await self.runtime.in_thread(files.journal.close)
        # Takes the last commit, so that the recovery point covers it.
        await asyncio.sleep(0)

    async def _write_last_point(self, parts: InstanceParts) -> None:
        runtime = self.runtime
        # After a fault the machine may be half way through a step, or ahead of the disk.
        if runtime.fault is None:
            try:
                await parts.recovery.write_last_point()
            except RaylayError as error:
                runtime.report("state_failed", text=str(error))

    def _shut_down(self, why: str) -> None:
        """Begins the end of the instance, by an action."""
        self.runtime.report("shut_down_by_action", text=why)
        if self._ending is None:
            self._ending = self.runtime.loop.create_task(self.stop())

    def _retired(self, effect: InstanceRetirement) -> None:
        self.runtime.retirement = effect.text
        if self._ending is None:
            self._ending = self.runtime.loop.create_task(self.stop())

    def _went_back(self, _: StaleCopyDetected) -> None:
        self.runtime.phase = "beginning anew"
        if self._ending is None:
            self._ending = self.runtime.loop.create_task(self._begin_anew())

    async def _begin_anew(self) -> None:
        self.begins_anew = True
        await self.parts.recovery.begin_anew()
        await self.stop()

    def signalled(self, name: str) -> None:
        """Takes a signal of the process that begins actions.

        Args:
            name: name of the signal, such as `SIGUSR1`.
        """
        self.runtime.report("signal_received", signal=name)
        self.runtime.occurrences.tell(SIGNAL, {"AMPS_SIGNAL": name})

    # -- events ------------------------------------------------------------------------------
    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest events behind number `after`."""
        return self.runtime.events_log.after(after, limit)

    def status(self) -> dict[str, Any]:
        """The status; before the instance serves, with the phase of its start."""
        parts = self._parts
        found = self._start_status.unserved() if parts is None else parts.status.status()
        if self.admin.is_configured:
            found["admin_interface"] = self.admin.status()
        if parts is not None and parts.actions.is_configured:
            found["actions"] = parts.actions.status()
        return found

    async def _admin_snapshot(self) -> dict[str, Any]:
        """Returns the values for the administrator's interface, in any state of the instance."""
        if self._parts is None or not self.runtime.is_serving:
            return {**self._start_status.unserved(), **self._files.told()}
        found = await self._parts.admin_snapshots.take()
        if self._parts.actions.is_configured:
            found["actions"] = self._parts.actions.status()
        return found

    async def _perform(self, call: str, arguments: Mapping[str, Any], caller: Caller | None) -> Any:
        """Performs a control call that the administrator's interface passes on."""
        return await self.parts.calls.perform(call, arguments, caller)


__all__ = ["InstanceServer", "StorageError"]
