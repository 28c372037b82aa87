"""Servers on a thread of their own, for processes whose main thread Ray uses.

An instance that cannot start tries again and gives the reason in its status. A fault that ends the
instance ends the process, so that Ray starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.config.instance import InstanceConfig
from raylay.services.errors import (
    ConfigurationError,
    FabricError,
    InstanceRetired,
    RaylayError,
    StorageError,
)
from raylay.services.security.control import NAME_SHOWN_MAX, Caller
from raylay.services.server.children.supervisor import ChildStart
from raylay.services.server.fault_injection import await_release, is_held
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.process import (
    FATAL_EXIT_CODE,
    keep_what_is_there,
    new_loop,
    prepare_process,
)
from raylay.services.server.process_signals import ProcessSignals, configured_signals
from raylay.services.telemetry import logs

RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
CALL_TIMEOUT_S = 30.0
STOPS = ("stop", "restart", "apply", "place")
"""Calls for which an instance is stopped: `place` only if the instance itself has moved."""

Result = TypeVar("Result")


class InstanceThread:
    """An InstanceServer on a thread with an event loop of its own.

    Owner: the Instance actor. Lifecycle: `start` once; the thread ends with the process, or by
    `stop`. Every method may be called from any thread.

    Args:
        directory: the data directory, whose `instance.json` has the configuration.
        name: the name for logs until the configuration is read.
        start_child: starts links, owners of queues and buffers of slow clients.
        node_address: the present address of the instance's node; empty: it is not known.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        start_child: ChildStart,
        node_address: str = "",
    ) -> None:
        self._directory = Path(directory)
        self._name = name
        self._start_child = start_child
        self._node_address = node_address
        self._server: InstanceServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Future[None] | None = None
        self._why = ""
        self._attempts = 0
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._asked: set[Future[Any]] = set()
        self._signals = ProcessSignals()
        self._thread = threading.Thread(target=self._run, name="raylay-instance", daemon=True)

    def start(self) -> None:
        """Starts the thread. Does not wait and does not raise. Signals that begin actions of the
        instance are caught from then on, if this is called on the main thread."""
        self._signals.install(configured_signals(self._directory))
        self._thread.start()

    def _run(self) -> None:
        try:
            prepare_process()
            with asyncio.Runner(loop_factory=new_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:
            logs.get("instance").emergency("fatal", name=self._name, text=repr(error))
            logs.close()
            os._exit(FATAL_EXIT_CODE)
        for asked in list(self._asked):
            self._leave(asked)
        self._stopped.set()

    async def _serve(self) -> None:
        pause_s = RETRY_S_MIN
        while not self._stopping.is_set():
            self._attempts += 1
            self._why = "a drill keeps it away" if is_held(self._directory) else self._why
            await await_release(self._directory, self._stopping.is_set)
            if self._stopping.is_set():
                return
            try:
                config = InstanceConfig.load(self._directory)
                logs.configure(config.name, config.log)
                server = InstanceServer(
                    config,
                    self._directory,
                    self._start_child,
                    self._node_address,
                )
                self._server = server
                self._starting = asyncio.ensure_future(server.start())
                await self._starting
                keep_what_is_there()
            except asyncio.CancelledError:
                return  # stopped during its start, which may take long in a bootstrap
            except InstanceRetired as error:
                # No further attempt can succeed: the process stays and reports the reason.
                logs.get("instance").report("retired", name=self._name, text=str(error))
                return
            except (RaylayError, OSError) as error:
                # A process that is ending still holds a port or the directory: try again.
                self._why = str(error)
                self._server = None
                logs.get("instance").error("cannot_start", name=self._name, text=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                continue
            self._why = ""
            loop = asyncio.get_running_loop()
            self._signals.listen(loop, server.signalled)
            try:
                await server.finished()
            except StorageError:
                if not self._stopping.is_set():
                    raise
                return  # `stop` reports it.
            finally:
                self._signals.ignore(loop)
            if not server.begins_anew:
                return
            pause_s = RETRY_S_MIN

    def _call(self, work: Callable[[InstanceServer], Coroutine[Any, Any, Result]]) -> Result:
        server = self._server
        if server is None or not server.runtime.is_serving:
            raise FabricError(f"{self._name} does not serve: {self._why or 'it is starting'}")
        return self._ask(work(server))

    def _ask(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs some work on the loop and returns its result.

        Raises:
            FabricError: the instance ended meanwhile.
        """
        loop = self._loop
        assert loop is not None, "a server is made by a loop"
        try:
            asked = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            work.close()
            raise FabricError(f"{self._name} has ended") from error
        self._asked.add(asked)
        if loop.is_closed():
            self._leave(asked)  # the thread may have ended without having seen it
        try:
            return asked.result(CALL_TIMEOUT_S)
        except CancelledError:
            raise FabricError(f"{self._name} has ended meanwhile") from None
        finally:
            self._asked.discard(asked)
            if loop.is_closed() and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def _leave(self, asked: Future[Any]) -> None:
        """Ends the wait for work that was given to a loop which has been closed."""
        with contextlib.suppress(InvalidStateError):
            asked.set_exception(FabricError(f"{self._name} has ended meanwhile"))

    def status(self) -> dict[str, Any]:
        """The status of the instance; before it serves, with the reason."""

        async def ask(server: InstanceServer) -> dict[str, Any]:
            return server.status()

        try:
            return self._call(ask)
        except FabricError:
            server = self._server
            if server is not None:
                # The instance is starting or stopping: its status is read from this thread.
                return server.status()
            return {
                "name": self._name,
                "state": "failed" if self._why else "starting",
                "phase": "cannot start" if self._why else "starting",
                "reason": self._why,
                "ready": False,
                "pid": os.getpid(),
                "attempts": self._attempts,
            }

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest events behind number `after`."""

        async def ask(server: InstanceServer) -> list[dict[str, Any]]:
            return server.events(after, limit)

        try:
            return self._call(ask)
        except FabricError:
            server = self._server
            if server is None:
                raise
            if server.runtime.retirement:
                return server.events(after, limit)
            # A start may take long, and its events tell how far it is.
            return self._ask(ask(server))

    def authorize(self, call: str, caller: Caller | None, details: dict[str, Any]) -> None:
        """Checks the caller of a change that another process performs on this instance: a kill, a
        restart, a move. An instance that has no server cannot check, and allows the change.

        Raises:
            ControlRefused: the caller may not make the change.
        """
        server = self._server
        if server is None:
            return
        with contextlib.suppress(FabricError):  # it has ended, or ends during the check
            self._ask(server.control.allow(call, caller, **details))

    def control(self, call: str, arguments: Mapping[str, Any], caller: Caller | None = None) -> Any:
        """Has the server perform a control call, and returns its result.

        Args:
            call: the name of the call, of `ControlCalls.table`.
            arguments: the call's arguments, by name.

        Raises:
            FabricError: the instance does not serve.
            ControlRefused: the caller may not make the call.
        """
        return self._call(lambda server: server.parts.calls.perform(call, arguments, caller))

    def stop(
        self,
        timeout_s: float = CALL_TIMEOUT_S,
        caller: Caller | None = None,
        call: str = "stop",
        **details: Any,
    ) -> bool:
        """Stops gracefully. Returns whether the instance has stopped in time.

        Args:
            call: the call for which the instance is stopped, of `STOPS`; the caller needs the
                permission for its path.

        Raises:
            ControlRefused: the caller may not stop the instance.
            ConfigurationError: no instance is stopped for that call. Otherwise permission for any
                other call would be permission to stop.
            StorageError: the instance has stopped, and a file could not be closed.
        """
        is_own = call != "place" or details.get("moved") == self._name
        if call not in STOPS or not is_own:
            raise ConfigurationError(
                f"{call[:NAME_SHOWN_MAX]!r} is no call that {self._name} is stopped for; nothing "
                f"was changed: give one of {', '.join(STOPS)}"
            )
        self.authorize(call, caller, details)
        self._stopping.set()
        try:
            self._call(lambda server: server.stop())
        except FabricError:
            # The instance was not serving: its start is given up.
            starting, loop = self._starting, self._loop
            if starting is not None and loop is not None and not starting.done():
                loop.call_soon_threadsafe(starting.cancel)
        return self._stopped.wait(timeout_s)
