"""The instance's end of the process that runs its actions: it keeps the process running, tells it
the occurrences that start actions, and performs the control calls of their steps.

Nothing here waits for the process, and nothing is computed where the instance has no action:
occurrences are told in batches, a bounded number waits, and those beyond it are counted, reported
and dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import Any

from raylay.services.actions.model import Occurrence
from raylay.services.config.actions import ACTIONS_TRANSPORT, client_name
from raylay.services.config.transport import TransportConfig
from raylay.services.errors import ConfigurationError, FabricError, RaylayError
from raylay.services.net.framed import FramedConnection
from raylay.services.protocol.child import action_control as protocol
from raylay.services.protocol.child import admin_control
from raylay.services.protocol.frames import Header
from raylay.services.server.children.supervisor import ChildHandle, Supervisor
from raylay.services.server.clients.admission import ClientAdmission
from raylay.services.server.clients.connection import ClientConnection
from raylay.services.server.clients.transport import ClientTransport
from raylay.services.server.occurrences import SHUTDOWN
from raylay.services.server.runtime import InstanceRuntime

WAITING_MAX = 1_000
WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Limits on the occurrences that wait for the process: their number (`WAITING_MAX`), and the bytes
of their variables."""
UNTAKEN_MAX = 1_000
"""Limit on the occurrences that were sent and that the process has not taken yet."""
CALLS_MAX = 64
"""Number of control calls that are performed at the same time."""
READY_S_MAX = 10
"""Time, in seconds, for which clients are not admitted because the process has not subscribed to
the messages that start actions."""
SETTLE_S = 10.0
"""Time, in seconds, for which a stopping instance waits for the actions that have begun, where one
of them is started by the shutdown."""
SETTLE_OTHERS_S = 2.0
"""Time, in seconds, for which it waits where no action is started by the shutdown."""
SUBSCRIBED = frozenset(("publish-message", "oof-message", "message-condition-timeout", "alert"))
"""Kinds that the process finds by its subscriptions."""
WITHOUT_OCCURRENCE = SUBSCRIBED | {"schedule", "execute-event"}
"""Kinds that the process itself finds: by its clock, by its subscriptions, or by its steps."""
LEAVE_S = 10.0
"""Time, in seconds, that the process has for its end before it is killed."""
EVENTS = frozenset(
    (
        *("action_failed", "action_chain_stopped", "action_runs_dropped", "action_message"),
        *("action_subscription_failed", "action_performed"),
    )
)
"""Events that the process may report."""

ActionStart = Callable[[int, str], ChildHandle]
"""Function that starts the process, with the number of the start and the secret of its client."""


class ActionControl:
    """See the file's docstring.

    Owner: the instance's event loop. Lifecycle: `run` and `stop` once; both do nothing where the
    instance has no action.

    Args:
        start: starts the process.
        perform: performs a control call with its arguments, for an action of this name.
        client: makes the protocol of a client that was accepted at a transport.
        admission: admits clients. It waits for the process where messages start actions, so that
            none is missed.
    """

    def __init__(
        self,
        runtime: InstanceRuntime,
        start: ActionStart,
        *,
        perform: Callable[[str, Mapping[str, Any], str], Awaitable[Any]],
        client: Callable[[ClientTransport], ClientConnection],
        admission: ClientAdmission,
    ) -> None:
        self._runtime = runtime
        self._start = start
        self._perform = perform
        self._client = client
        self._admission = admission
        self._waited_s: int | None = None
        """Seconds for which clients have been waiting for the process; None: they do not."""
        self._client_name = client_name(runtime.config.name)
        self._transport = ClientTransport(TransportConfig(ACTIONS_TRANSPORT))
        self._secret = ""
        self._waiting: deque[tuple[Occurrence, int]] = deque()
        self._waiting_bytes = 0
        self._untaken = 0
        self._will_flush = False
        self._dropped = self._dropped_told = 0
        self._calling = 0
        self._settled = asyncio.Event()
        self._status: dict[str, Any] = {}
        self.name = "the actions"
        self.process = Supervisor(
            runtime,
            self._start_process,
            self._process_ended,
            kill_failed="action_runner_kill_failed",
            of={"instance": runtime.config.name},
        )

    def _listens_to(self, kind: str) -> bool:
        actions = self._runtime.config.actions
        return any(on.module == kind for action in actions for on in action.on)

    @property
    def is_configured(self) -> bool:
        return bool(self._runtime.config.actions)

    def run(self) -> None:
        """Starts the process, and listens to the occurrences that start actions."""
        if not self.is_configured:
            return
        kinds = {on.module for action in self._runtime.config.actions for on in action.on}
        self._runtime.occurrences.listen(sorted(kinds - WITHOUT_OCCURRENCE), self._occurred)
        self._runtime.every(1.0, self._each_second)
        if kinds & SUBSCRIBED:
            self._waited_s = 0
            self._admission.hold()
        self.process.run()

    async def stop(self) -> None:
        """Ends the process."""
        if self.is_configured:
            self._runtime.occurrences.ignore(self._occurred)
            # Its end kills the commands that it has started.
            await self.process.end(protocol.STOP, LEAVE_S)

    async def settle(self) -> None:
        """Waits until the process has performed the runs that have begun, so that actions on the
        end of the instance still find it serving. The time is bounded; a process that is not
        connected is not waited for."""
        if not self.is_configured or self.process.connection is None:
            return
        wait_s = SETTLE_S if self._listens_to(SHUTDOWN) else SETTLE_OTHERS_S
        self._settled.clear()
        self._flush()
        self.process.say(protocol.SETTLE)
        self._runtime.outbox.flush()
        try:
            async with asyncio.timeout(wait_s):
                await self._settled.wait()
        except TimeoutError:
            text = f"actions that had begun have not ended within {wait_s:g} s"
            self._runtime.report("action_failed", action="", module="", text=text)

    def status(self) -> dict[str, Any]:
        """Returns the status of the process, and of each action as the process last told it."""
        return {
            "pid": self.process.pid,
            "starts": self.process.starts,
            "waiting": len(self._waiting) + self._untaken,
            "dropped": self._dropped,
            "actions": self._status,
        }

    # -- occurrences -----------------------------------------------------------------------------
    def _occurred(self, kind: str, variables: Mapping[str, str]) -> None:
        if variables.get("AMPS_CLIENT_NAME") == self._client_name:
            return  # an action must not start by the client that performs it
        size_bytes = sum(len(text) for text in variables.values())
        if (
            len(self._waiting) >= WAITING_MAX
            or self._waiting_bytes + size_bytes > WAITING_BYTES_MAX
        ):
            self._dropped += 1
            return
        topic, message_type = variables.get("AMPS_TOPIC", ""), variables.get("AMPS_MESSAGE_TYPE")
        occurrence = Occurrence(kind, dict(variables), topic, message_type or "")
        self._waiting.append((occurrence, size_bytes))
        self._waiting_bytes += size_bytes
        if not self._will_flush:
            self._will_flush = True
            self._runtime.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Sends as many of the waiting occurrences as the process may have."""
        self._will_flush = False
        room = UNTAKEN_MAX - self._untaken
        if self.process.connection is None or not self._waiting or room <= 0:
            return
        batch: list[Occurrence] = []
        while self._waiting and len(batch) < room:
            occurrence, size_bytes = self._waiting.popleft()
            self._waiting_bytes -= size_bytes
            batch.append(occurrence)
        self._untaken += len(batch)
        self.process.say(protocol.occurred(batch))
        self._runtime.outbox.flush()

    def _each_second(self) -> None:
        self.process.look(self._runtime.loop.time())
        if self._waited_s is not None and self._admission.refusal(ACTIONS_TRANSPORT) is None:
            self._waited_s += 1
            if self._waited_s > READY_S_MAX:
                self._ready()
                self._runtime.report(
                    "actions_late", text=f"they have not subscribed within {READY_S_MAX} s"
                )
        new = self._dropped - self._dropped_told
        if new:
            self._dropped_told = self._dropped
            self._runtime.report("action_occurrences_dropped", occurrences=new)

    def _ready(self) -> None:
        if self._waited_s is not None:
            self._waited_s = None
            self._admission.release()

    # -- the process -----------------------------------------------------------------------------
    def _start_process(self, number: int) -> ChildHandle:
        self._secret = secrets.token_hex(16)
        return self._start(number, self._secret)

    def _process_ended(self, why: str) -> None:
        # Runs that the last process had taken do not begin again: it is not known which of their
        # steps were performed.
        lost, self._untaken = self._untaken, 0
        self._dropped += lost
        self._settled.set()
        if not self._runtime.is_stopping:
            self._runtime.report("action_runner_ended", text=why or "its process ended")

    def greeted(self, connection: FramedConnection, header: Header) -> bool:
        """Takes the connection of the process. Returns whether it is that of the last start."""
        if not self.process.greeted(connection, header):
            return False
        self._runtime.loop.call_soon(self._flush)
        return True

    def lost(self, connection: FramedConnection, why: str) -> None:
        """Notes that the process's socket has closed."""
        self.process.lost(connection)

    def client_of(self, header: Header) -> ClientConnection | None:
        """Returns the protocol for the connection by which the process is a client.

        Args:
            header: the logon, whose password proves that it is the process of the last start; None
                is returned for any other one.
        """
        password = str(header.get("pw") or "")
        if not self._secret or not compare_digest(password.encode(), self._secret.encode()):
            return None
        return self._client(self._transport)

    def frame_received(self, header: Header, body: bytes) -> None:
        kind = header["c"]
        if kind == "taken":
            self._untaken = max(0, self._untaken - int(header["n"]))
            self._flush()
        elif kind == "call":
            self._called(int(header["n"]), protocol.read_call(body))
        elif kind == "report":
            event = str(header["event"])
            if event in EVENTS:
                self._runtime.report(event, **admin_control.read_map(body))
        elif kind == "status":
            self._status = admin_control.read_map(body)
        elif kind == "ready":
            self._ready()
        elif kind == "settled":
            self._settled.set()

    def _called(self, number: int, asked: protocol.ActionCall) -> None:
        if self._calling >= CALLS_MAX:
            busy = FabricError(f"{self._runtime.config.name} is busy: try again a little later")
            self.process.say(admin_control.refusal(number, busy))
            return
        self._calling += 1
        self._runtime.spawn(self._answer(number, asked))

    async def _answer(self, number: int, asked: protocol.ActionCall) -> None:
        try:
            if not self._runtime.is_serving:
                raise FabricError(
                    f"{self._runtime.config.name} does not serve: {self._runtime.phase}"
                )
            result = await self._perform(asked.call, asked.arguments, asked.action)
            frame = admin_control.answer(number, result)
        except RaylayError as error:
            frame = admin_control.refusal(number, error)
        except TypeError as error:  # a call without one of its arguments, or with another one
            text = f"{self._runtime.config.name} cannot perform {asked.call}: {error}"
            frame = admin_control.refusal(number, ConfigurationError(text))
        finally:
            self._calling -= 1
        self.process.say(frame)
        self._runtime.outbox.flush()
