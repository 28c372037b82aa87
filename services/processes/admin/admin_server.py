"""The process of an administrator's interface: it listens, keeps statistics, and asks its
instance.

The process never touches a message. It ends with the Unix socket to its instance, which starts it
again when it dies.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from raylay.services.config.admin_interface import MEMORY, AdminProcessConfig
from raylay.services.errors import RaylayError
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.net.tls_files import RenewedContext
from raylay.services.processes.admin.action_routes import ActionRoutes, check_origin
from raylay.services.processes.admin.connections import BoundedConnections
from raylay.services.processes.admin.console_routes import add_console_routes
from raylay.services.processes.admin.fabric_routes import FabricRoutes
from raylay.services.processes.admin.guard import NOTHING, InterfaceSettings, RequestGuard
from raylay.services.processes.admin.host import HostReader
from raylay.services.processes.admin.instance_client import InstanceClient
from raylay.services.processes.admin.instance_readings import InstanceReadings
from raylay.services.processes.admin.kept_log_routes import KeptLogRoutes, kept_directory_of
from raylay.services.processes.admin.message_clients import MessageClients
from raylay.services.processes.admin.messages_routes import MessagesRoutes
from raylay.services.processes.admin.resource_routes import ResourceRoutes
from raylay.services.processes.admin.sampler import Sampler
from raylay.services.processes.admin.statistics_thread import StatisticsThread
from raylay.services.processes.admin.viewers import Viewers
from raylay.services.processes.child_program import ChildProgram, InstanceSocket
from raylay.services.protocol.child import admin_control as protocol
from raylay.services.protocol.frames import Header
from raylay.services.telemetry import logs
from raylay.services.telemetry.tracing import TracingOptions
from raylay.storage.statistics import StatisticsStore

LISTEN_RETRY_S = 2.0
"""Pause, in seconds, before another attempt to listen on an address that is in use."""
REQUEST_LINE_BYTES_MAX = 8_190
SHUTDOWN_S = 1.0
PRIORITY = 10
"""Nice value of the process's threads."""


class AdminServer:
    """See the file's docstring. Owner: the AdministratorInterface actor. Lifecycle: `run` until the
    instance is gone or says stop."""

    def __init__(self, config: AdminProcessConfig) -> None:
        self._config = config
        self._log = logs.get("admin_interface")
        self._program = ChildProgram(self)
        self._instance: InstanceSocket | None = None
        self._client = InstanceClient(config.instance, self._send)
        self._viewers: Viewers | None = None
        self._statistics: StatisticsThread | None = None
        self._truncating: set[asyncio.Future[None]] = set()
        self._noted_life: object = None
        """Process id of the instance whose start is kept."""

    async def run(self) -> str:
        """Runs until the instance is gone. Returns the reason.

        Raises:
            OSError: the instance's socket cannot be connected.
        """
        config, program = self._config, self._program
        program.begin()
        # The interface never takes the processor from the instance.
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        statistics = self._statistics = await self._open_statistics()
        hello = protocol.hello(config.instance, config.start_number, os.getpid())
        self._instance = await program.connect(config.unix_path, hello)
        sampler = Sampler(
            self._client,
            HostReader().read,
            readings=InstanceReadings(),
            more=statistics.status,
        )
        runner = web.AppRunner(
            self._application(sampler, statistics),
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=REQUEST_LINE_BYTES_MAX,
        )
        await runner.setup()
        try:
            return await program.run(
                self._listen(runner), self._keep_statistics(sampler, statistics)
            )
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * SHUTDOWN_S):
                    await runner.cleanup()
            await sampler.close()
            await statistics.close()

    def _application(self, sampler: Sampler, statistics: StatisticsThread) -> web.Application:
        """Returns the application with all routes."""
        config, interface = self._config, self._config.interface
        viewers = self._viewers = Viewers(self._client, interface.session_ms / 1000)
        settings = InterfaceSettings(
            config.instance,
            host_names=frozenset((*interface.host_names, *_own_names())),
            guarded=config.guarded,
            anonymous_paths=re.compile(interface.anonymous_paths or NOTHING.pattern),
            allow_origin=re.compile(interface.allow_origin or NOTHING.pattern),
            headers=_headers(interface.headers),
            www_authenticate=interface.www_authenticate,
        )
        guard = RequestGuard(settings, viewers)
        fabric = FabricRoutes(
            config.instance,
            config.group,
            Path(config.directory),
            sampler,
            lambda: self._client.events,
            guard.viewer,
            check_origin,
            guarded=config.guarded,
        )
        actions = ActionRoutes(
            config.instance,
            self._client,
            sampler,
            viewers,
            get_actions=interface.get_actions,
            head=lambda: fabric.head.sight,
        )
        messages = MessagesRoutes(
            MessageClients(
                config.instance,
                lambda: config.client_address,
                config.client_tls,
                TracingOptions(1.0, file_directory=config.trace_directory),
            ),
            guard.viewer,
            check_origin,
            types=MessageTypes(config.type_definitions),
            trace_directory=Path(config.trace_directory) if config.trace_directory else None,
            peers=fabric.instances,
            ask_peer=fabric.ask_peer,
            async_links=fabric.async_links,
        )
        app = guard.build()
        ResourceRoutes(guard, sampler, statistics, actions).add_routes(app.router)
        messages.add_routes(app.router)
        kept = KeptLogRoutes(config.instance, kept_directory_of(config.log), guard.viewer)
        kept.add_routes(app.router)
        fabric.add_routes(app.router)
        app.on_startup.append(fabric.start_up)
        app.on_shutdown.append(fabric.shut_down)
        if interface.console:
            add_console_routes(app.router)
        return app

    def _send(self, frame: bytes) -> None:
        assert self._instance is not None, "questions come after the instance is connected"
        self._instance.send(frame)

    # -- what the instance says ----------------------------------------------------------------
    def instance_said(self, header: Header, body: bytes) -> None:
        if header["c"] == "answer":
            self._client.answered(header, body)
        elif header["c"] == "forget" and self._viewers is not None:
            self._viewers.forget(str(header["user"]))
        elif header["c"] == "truncate":
            self._truncate(int(header["n"]), int(header["before_us"]))
        elif header["c"] == "stop":
            self._program.end("its instance stops it")

    def _truncate(self, number: int, before_us: int) -> None:
        assert self._statistics is not None, "they are opened before the instance is connected"
        task = asyncio.ensure_future(self._truncated(self._statistics, number, before_us))
        self._truncating.add(task)
        task.add_done_callback(self._truncating.discard)

    async def _truncated(self, statistics: StatisticsThread, number: int, before_us: int) -> None:
        result: str | RaylayError
        try:
            result = await statistics.truncate(before_us)
        except RaylayError as error:
            result = error
        self._send(protocol.truncated(number, result))

    def failed(self, text: str) -> None:
        """Reports a fault that ends the program."""
        self._log.report("admin_interface_ended", name=self._config.process_name, text=text)

    # -- listening -----------------------------------------------------------------------------
    async def _listen(self, runner: web.AppRunner) -> None:
        """Listens, or tries until it can; never returns."""
        interface, loop = self._config.interface, asyncio.get_running_loop()
        assert runner.server is not None, "the runner is set up"
        connections = BoundedConnections(runner.server)
        told = ""
        while True:
            try:
                server = await loop.create_server(
                    connections, interface.host, interface.port, ssl=self._context()
                )
                break
            except (OSError, RaylayError) as error:
                where = format_address(interface.host, interface.port)
                why = f"the administrator's interface cannot listen on {where}: {error}"
                if why != told:
                    told = why
                    self._send(protocol.listens("", why))
                await asyncio.sleep(LISTEN_RETRY_S)
        try:
            port = server.sockets[0].getsockname()[1]
            address = format_address(interface.host, port)
            self._send(protocol.listens(interface.advertised or address))
            await asyncio.Event().wait()
        finally:
            server.close()
            connections.close()

    def _context(self) -> ssl.SSLContext | None:
        """Returns the TLS context; None: the interface speaks plain HTTP. Certificates that are
        renewed serve new connections."""
        if self._config.interface.tls is None:
            return None
        where = f"{self._config.instance}: admin"
        renewed = RenewedContext(
            self._config.interface.tls,
            where,
            lambda text: self._log.warning("tls_files_failed", name=where, text=text),
        )
        context = renewed.current()

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
            connection.context = renewed.current()

        context.set_servername_callback(choose)
        return context

    # -- statistics ------------------------------------------------------------------------------
    async def _open_statistics(self) -> StatisticsThread:
        """Opens the statistics database. If its file cannot be used, statistics are kept in memory:
        the interface is needed most when a disk is in trouble."""
        interface = self._config.interface
        retention_us, bytes_max = interface.retention_ms * 1000, interface.file_bytes_max
        name = interface.statistics_file
        thread = StatisticsThread(
            lambda path: StatisticsStore(path, retention_us, bytes_max),
            name if name == MEMORY else str(Path(self._config.directory) / name),
            interface.interval_ms / 1000,
        )
        await thread.open()
        if thread.problem:
            self._log.warning(
                "statistics_failed", name=self._config.process_name, text=thread.problem
            )
        return thread

    async def _keep_statistics(self, sampler: Sampler, statistics: StatisticsThread) -> None:
        """Adds a sample to the statistics at each interval; never returns."""
        loop, interval_s = asyncio.get_running_loop(), self._config.interface.interval_ms / 1000
        due_s, told = loop.time() + interval_s, ""
        while True:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            due_s = max(due_s + interval_s, loop.time())
            try:
                tree = await sampler.tree()
                await self._note_start(sampler, statistics)
                await statistics.append(sampler.time_us, tree)
                told = ""
            except RaylayError as error:
                if str(error) != told:
                    told = str(error)
                    self._log.warning(
                        "statistics_failed", name=self._config.process_name, text=told
                    )

    async def _note_start(self, sampler: Sampler, statistics: StatisticsThread) -> None:
        """Keeps the start of the instance, once in each of its lives."""
        snapshot = sampler.snapshot
        life = snapshot["pid"]
        if life != self._noted_life:
            began_us = sampler.time_us - round(snapshot["uptime_s"] * 1_000_000)
            await statistics.began(began_us, snapshot.get("version", ""))
            self._noted_life = life


def format_address(host: str, port: int) -> str:
    """Returns `host:port`, for people and URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_names() -> set[str]:
    """Returns the names of this host."""
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0], socket.getfqdn().lower()}


def _headers(lines: tuple[str, ...]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}
