"""The process that runs the actions of an instance: the shell of the engine (services/actions).

Its instance tells it occurrences over the Unix socket; the messages that start actions come by
subscriptions of its own client. It never holds up a message: the instance waits for nothing here,
and this process reads all that it is told at once. What waits is bounded by the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from typing import Any

from raylay.services.actions.engine import ActionEngine, EngineEvent, StepRequest
from raylay.services.actions.message_triggers import (
    MessageTrigger,
    TriggerMessage,
    TriggerSubscription,
    message_triggers,
)
from raylay.services.client.client import Client
from raylay.services.client.messages import MessageBatch
from raylay.services.client.subscriptions.subscription import Subscription
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.messages.types.registry import MessageTypes
from raylay.services.processes.actions.instance_calls import InstanceCalls
from raylay.services.processes.actions.local_publishers import LocalPublishers
from raylay.services.processes.actions.own_client import OwnClient
from raylay.services.processes.actions.steps import ActionSteps
from raylay.services.processes.child_program import ChildProgram, InstanceSocket
from raylay.services.protocol.child import action_control as protocol
from raylay.services.protocol.frames import Header
from raylay.services.telemetry import logs

STATUS_S = 1.0
"""Time, in seconds, between two checks whether the status has changed and is to be sent."""
REPORTS_A_SECOND_MAX = 20
"""Most events a second that the instance is told: each wakes its loop. All are in this process's
log."""
TEXT_CHARACTERS_MAX = 2_000
PRIORITY = 5
"""Nice value of the process's threads: actions do not take the processor from the instance."""
_EVENTS = {
    "step_failed": "action_failed",
    "occurrences_dropped": "action_runs_dropped",
    "chain_stopped": "action_chain_stopped",
}
"""Name of the logged event for each kind of `EngineEvent`."""


class ActionServer:
    """See the file's docstring. Owner: the ActionRunner actor. Lifecycle: `run` until the instance
    is gone or says stop."""

    def __init__(self, config: ActionRunnerConfig) -> None:
        self._config = config
        self._log = logs.get("actions")
        self._program = ChildProgram(self)
        self._instance: InstanceSocket | None = None
        types = MessageTypes(config.type_definitions)
        self._engine = ActionEngine(
            config.actions,
            instance_name=config.instance,
            seed_us=time.time_ns() // 1000,
            types=types,
        )
        self._triggers: list[MessageTrigger] = message_triggers(config.actions)
        self._calls = InstanceCalls(config.instance, self._send)
        self._client = OwnClient(config, self._connected, self._refused)
        self._publishers = LocalPublishers(self._calls)
        self._steps: ActionSteps | None = None
        self._performing: set[asyncio.Task[None]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_settling = False
        self._told_status: Any = None
        self._reports_left = REPORTS_A_SECOND_MAX
        self._reports_left_out = 0

    async def run(self) -> str:
        """Runs until the instance is gone. Returns the reason.

        Raises:
            OSError: the instance's socket cannot be connected.
        """
        config, program = self._config, self._program
        program.begin()
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        steps = self._steps = ActionSteps(config, self._calls, self._client, self._echo)
        hello = protocol.hello(config.instance, config.start_number, os.getpid())
        self._instance = await program.connect(config.unix_path, hello)
        self._turn()
        try:
            return await program.run(self._client.run(), self._tell_each_second())
        finally:
            for task in (*self._performing, *self._following):
                task.cancel()
            steps.close()

    def _send(self, frame: bytes) -> None:
        assert self._instance is not None, "steps come after the instance is connected"
        self._instance.send(frame)

    # -- what the instance says ----------------------------------------------------------------
    def instance_said(self, header: Header, body: bytes) -> None:
        kind = header["c"]
        if kind == "occurred":
            occurrences = protocol.read_occurred(body)
            for each in occurrences:
                self._engine.occurred(each, _now_us())
            self._send(protocol.taken(len(occurrences)))
            self._turn()
        elif kind == "answer":
            self._calls.answered(header, body)
        elif kind == "settle":
            self._is_settling = True
            self._turn()
        elif kind == "stop":
            self._program.end("its instance stops it")

    def failed(self, text: str) -> None:
        """Reports a fault that ends the program."""
        self._log.error("action_runner_failed", name=self._config.process_name, text=text)

    # -- the engine ----------------------------------------------------------------------------
    def _turn(self) -> None:
        """Begins what is due, and performs the steps that come next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_us = _now_us()
        self._engine.ring(now_us, time.time_ns() // 1000)
        record_us = self._engine.begin_due(self._triggers, now_us)
        while (asked := self._engine.take()) is not None:
            task = asyncio.ensure_future(self._perform(asked))
            self._performing.add(task)
            task.add_done_callback(self._performing.discard)
        self._tell_events()
        if self._is_settling and self._engine.is_idle:
            self._is_settling = False
            self._send(protocol.SETTLED)
        dues = (self._engine.next_due_us(), record_us)
        due_us = min((each for each in dues if each is not None), default=None)
        if due_us is not None:
            delay_s = max(0.0, (due_us - _now_us()) / 1e6)
            self._timer = self._program.loop.call_later(delay_s, self._turn)

    async def _perform(self, asked: StepRequest) -> None:
        assert self._steps is not None, "it runs"
        result = await self._steps.perform(asked)
        self._engine.done(asked.run, result, _now_us())
        self._turn()

    def _tell_events(self) -> None:
        for event in self._engine.take_events():
            self._tell(event)

    def _tell(self, event: EngineEvent) -> None:
        name = _EVENTS[event.kind]
        self._log.report(name, action=event.action, text=event.text)
        details: dict[str, Any] = {"action": event.action, "text": event.text}
        if event.count != 1:
            details["count"] = event.count
        self._report(name, details)

    def _report(self, event: str, details: dict[str, Any]) -> None:
        """Tells the instance an event, unless it was told many in this second."""
        if not self._reports_left:
            self._reports_left_out += 1
            return
        self._reports_left -= 1
        self._send(
            protocol.report(
                event,
                {
                    key: each[:TEXT_CHARACTERS_MAX] if isinstance(each, str) else each
                    for key, each in details.items()
                },
            )
        )

    def _echo(self, action: str, text: str) -> None:
        text = text[:TEXT_CHARACTERS_MAX]
        self._log.event("action_message", action=action, text=text)
        self._report("action_message", {"action": action, "text": text})

    def _refused(self, text: str) -> None:
        text = f"a message that an action published is refused: {text}"
        self._log.warning("action_failed", action="", text=text)
        self._report("action_failed", {"action": "", "text": text})

    async def _tell_each_second(self) -> None:
        """Tells the instance the status of the actions when it has changed; never returns."""
        while True:
            self._turn()  # what was not begun in the last second is told, though nothing happens
            found = {each.name: _status(asdict(each)) for each in self._engine.status()}
            if found != self._told_status:
                self._told_status = found
                self._send(protocol.status(found))
            left_out, self._reports_left_out = self._reports_left_out, 0
            self._reports_left = REPORTS_A_SECOND_MAX
            if left_out:
                text = f"{left_out:,} further events are in the log of the actions' process only"
                self._report("action_failed", {"action": "", "text": text})
            await asyncio.sleep(STATUS_S)

    # -- messages that start actions -----------------------------------------------------------
    async def _connected(self, client: Client) -> None:
        """Subscribes for the actions that messages start. One that cannot be subscribed for is
        reported; the others go on."""
        for task in self._following:
            task.cancel()
        subscribing = [asyncio.Event() for _ in self._triggers]
        for trigger, subscribed in zip(self._triggers, subscribing, strict=True):
            task = asyncio.ensure_future(self._follow(client, trigger, subscribed))
            self._following.add(task)
            task.add_done_callback(self._following.discard)
        for subscribed in subscribing:
            await subscribed.wait()
        self._send(protocol.READY)

    async def _follow(
        self, client: Client, trigger: MessageTrigger, subscribed: asyncio.Event
    ) -> None:
        """Takes the messages of a trigger's subscription.

        Args:
            subscribed: event that is set when the subscription has begun, or has failed.
        """
        trigger.restart()
        asked = trigger.subscription()
        try:
            subscription = await _subscribed(client, asked)
            subscribed.set()
            async for batch in subscription.batches():
                await self._publishers.meet(batch)
                self._arrived(trigger, batch)
        except Exception as error:  # the other actions go on, whatever it is
            why = str(error) or type(error).__name__
            text = f"the subscription to {asked.topic}, which starts actions, has ended: {why}"
            self._log.warning("action_subscription_failed", topic=asked.topic, text=text)
            self._report("action_subscription_failed", {"topic": asked.topic, "text": text})
        finally:
            subscribed.set()

    def _arrived(self, trigger: MessageTrigger, batch: MessageBatch) -> None:
        now_us, wall_us = _now_us(), time.time_ns() // 1000
        for each in batch.messages():
            client = self._publishers.client_of(each.publisher)
            message = TriggerMessage(
                kind=each.kind,
                topic=each.topic,
                message_type=each.message_type,
                body=each.body,
                reason=each.reason,
                key=each.key,
                bookmark=each.bookmark,
                # A batch of records has no time of its own.
                timestamp_us=each.origin_time_us if each.kind == "sow" else each.timestamp_us,
                correlation=each.correlation,
                client_name=client or "",
                is_local=client is not None,
            )
            for occurrence in trigger.message(message, now_us, wall_us):
                self._engine.occurred(occurrence, now_us)
        self._turn()


async def _subscribed(client: Client, asked: TriggerSubscription) -> Subscription:
    options: dict[str, Any] = dict(asked.options)
    subscribe = (
        client.sow_and_subscribe if asked.command == "sow_and_subscribe" else client.subscribe
    )
    return await subscribe(asked.topic, message_type=asked.message_type, **options)


def _status(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "name"}


def _now_us() -> int:
    return time.monotonic_ns() // 1000
