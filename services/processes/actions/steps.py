"""The steps of actions that need more than variables: each with the means that it has.

A step never raises: whatever happens is its result, and a failing one ends its run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from raylay.services.actions.engine import StepRequest, StepResult
from raylay.services.actions.message_triggers import correlation_of
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.errors import ConfigurationError, FabricError, RaylayError
from raylay.services.messages.documented_units import parse_count, parse_interval_ns
from raylay.services.messages.lossless_text import bytes_of, text_of
from raylay.services.processes.actions.file_steps import (
    FileChoice,
    FileStepOutcome,
    FileSteps,
    used_percent,
)
from raylay.services.processes.actions.function_calls import FunctionCalls
from raylay.services.processes.actions.instance_calls import InstanceCalls
from raylay.services.processes.actions.own_client import OwnClient
from raylay.services.processes.actions.system_command import SystemCommands

THREADS_MAX = 32
"""Most steps that block at the same time: commands and files."""
OUTPUT_SHOWN_BYTES = 500
QUERY_S = 30.0
Result = TypeVar("Result")
Step = Callable[[StepRequest], Awaitable[StepResult]]
DONE = StepResult(True)


class ActionSteps:
    """Performs steps. Owner: the process's event loop. Lifecycle: until `close`.

    Args:
        calls: the control calls of the instance.
        client: the client at the instance.
        echo: takes the name of an action and a message that it writes to the log.
    """

    def __init__(
        self,
        config: ActionRunnerConfig,
        calls: InstanceCalls,
        client: OwnClient,
        echo: Callable[[str, str], None],
    ) -> None:
        self._config = config
        self._calls = calls
        self._client = client
        self._echo = echo
        directory = Path(config.directory)
        self._files = FileSteps(directory, map(Path, config.own_directories))
        self._commands = SystemCommands(directory)
        self._functions = FunctionCalls()
        self._threads = ThreadPoolExecutor(THREADS_MAX, "raylay-action")
        self._began_s = asyncio.get_running_loop().time()
        self._table: Mapping[str, Step] = {
            "publish-message": self._publish,
            "query-sow": self._query,
            "delete-sow": self._delete,
            "compact-sow": self._compact,
            "rotate-logs": partial(self._switch, "rotate_logs"),
            "compress-files": partial(self._treat_files, self._files.compress),
            "remove-files": partial(self._treat_files, self._files.remove),
            "truncate-statistics": partial(self._by_age, "truncate_statistics"),
            "vacuum-statistics": self._nothing,
            "archive-journal": partial(self._by_age, "archive"),
            "compress-journal": partial(self._by_age, "compress"),
            "remove-journal": partial(self._by_age, "remove"),
            "reset-authentication": partial(self._reset, "reset_authentication"),
            "reset-entitlement": partial(self._reset, "reset_entitlement"),
            "enable-transport": partial(self._transport, "enable_transport"),
            "disable-transport": partial(self._transport, "disable_transport"),
            "downgrade-replication": partial(self._by_age, "downgrade_by_age"),
            "upgrade-replication": partial(self._by_age, "upgrade_by_age"),
            "enable-proxied-transfer": partial(self._proxied, "enable_proxied"),
            "disable-proxied-transfer": partial(self._proxied, "disable_proxied"),
            "execute-system": self._execute,
            "call-function": self._call_function,
            "shutdown": self._shut_down,
            "echo-message": self._echo_message,
            "file-system-usage": self._file_system_usage,
            **{
                f"{verb}-{kind}": partial(self._switch, f"{verb}_{kind}")
                for verb in ("enable", "disable")
                for kind in ("authentication", "entitlement")
            },
        }

    @property
    def modules(self) -> frozenset[str]:
        """Returns the modules that can be performed."""
        return frozenset(self._table)

    async def perform(self, asked: StepRequest) -> StepResult:
        """Performs a step. Raises nothing but a cancellation."""
        step = self._table.get(asked.module)
        if step is None:
            return StepResult(False, f"{asked.module} is no step that can be performed")
        try:
            return await step(asked)
        except (RaylayError, OSError, ValueError) as error:
            return StepResult(False, str(error) or type(error).__name__)
        except Exception as error:  # a fault of a step must not end the other actions
            return StepResult(False, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Kills the commands that still run. What hangs in a thread is left: the process ends."""
        self._commands.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, work, *arguments)

    async def _nothing(self, asked: StepRequest) -> StepResult:
        return DONE

    # -- messages ------------------------------------------------------------------------------
    async def _publish(self, asked: StepRequest) -> StepResult:
        topic, message_type = asked.option("Topic"), asked.option("MessageType")
        if _is_set(asked.option("UpdateOnly", "false"), "UpdateOnly"):
            raise ConfigurationError(
                "UpdateOnly cannot be performed: leave it out, and put a query_sow and an "
                "if_condition before the publish"
            )

        delta = asked.option("Delta")
        await self._client.publish(
            topic,
            bytes_of(asked.option("Data")),
            message_type,
            delta=_is_set(delta, "Delta")
            if delta
            else (topic, message_type) in self._config.sow_topics,
            correlation=correlation_of(asked.depth),
        )
        return DONE

    async def _query(self, asked: StepRequest) -> StepResult:
        client = await self._client.client()
        skip, select = read_query_options(asked.option("Options"))
        rows = await client.sow(
            asked.option("Topic"),
            message_type=asked.option("MessageType"),
            filter=asked.option("Filter"),
            order_by=asked.option("OrderBy"),
            select=select,
            skip_n=skip,
            top_n=1,
            non_regex_topic=True,
            timeout_s=QUERY_S,
        ).all()
        text = asked.option("DefaultData")
        if rows:
            text = text_of(rows[0].body)
        return StepResult(True, variables={asked.option("CaptureData", "AMPS_DATA"): text})

    async def _delete(self, asked: StepRequest) -> StepResult:
        topic, message_type = asked.option("Topic"), asked.option("MessageType")
        names = [
            name
            for name, kind in self._config.sow_topics
            if kind == message_type and re.fullmatch(topic, name)
        ]
        client = await self._client.client()
        for name in names or [topic]:
            await self._client.settled(
                await client.sow_delete(
                    name, filter=asked.option("Filter") or "1=1", message_type=message_type
                )
            )
        return DONE

    # -- the instance --------------------------------------------------------------------------
    async def _call(self, asked: StepRequest, call: str, **arguments: Any) -> StepResult:
        result = await self._calls.call(asked.action, call, **arguments)
        return StepResult(True, "" if result is None else str(result))

    async def _compact(self, asked: StepRequest) -> StepResult:
        topic = asked.option("Topic")
        if not topic:
            return await self._call(asked, "compact_all")
        message_type = asked.option("MessageType")
        return await self._call(
            asked, "compact", topic=f"{message_type}/{topic}" if message_type else topic
        )

    async def _by_age(self, call: str, asked: StepRequest) -> StepResult:
        grace_s = _milliseconds(asked.option("GracePeriod") or "0") / 1000
        if asyncio.get_running_loop().time() < self._began_s + grace_s:
            return DONE
        return await self._call(asked, call, age_ms=_milliseconds(asked.option("Age") or "0"))

    async def _switch(self, call: str, asked: StepRequest) -> StepResult:
        return await self._call(asked, call)

    async def _reset(self, call: str, asked: StepRequest) -> StepResult:
        return await self._call(
            asked,
            call,
            transport=asked.option("Transport"),
            of_user=asked.option("AuthenticationId"),
        )

    async def _transport(self, call: str, asked: StepRequest) -> StepResult:
        return await self._call(asked, call, transport=asked.option("Transport"))

    async def _proxied(self, call: str, asked: StepRequest) -> StepResult:
        return await self._call(asked, call, queue=asked.option("Topic"))

    async def _shut_down(self, asked: StepRequest) -> StepResult:
        return await self._call(asked, "shut_down", why=f"by the action {asked.action}")

    async def _echo_message(self, asked: StepRequest) -> StepResult:
        self._echo(asked.action, asked.option("Message"))
        return DONE

    # -- the host ------------------------------------------------------------------------------
    async def _treat_files(
        self, treat: Callable[[FileChoice], FileStepOutcome], asked: StepRequest
    ) -> StepResult:
        count = asked.option("Count")
        choice = FileChoice(
            asked.option("Pattern"),
            _milliseconds(asked.option("Age") or "0") / 1000,
            parse_count(asked.option("Keep") or "0"),
            parse_count(count) if count else None,
        )
        return StepResult(True, str(await self._in_thread(treat, choice)))

    async def _file_system_usage(self, asked: StepRequest) -> StepResult:
        path = asked.option("Path")
        text = asked.option("GreaterThan").strip().removesuffix("%").strip()
        used = await self._in_thread(used_percent, str(Path(self._config.directory) / path))
        return StepResult(True, f"{used:.1f} % of {path} is in use", stop=used <= float(text))

    async def _execute(self, asked: StepRequest) -> StepResult:
        command = asked.option("Command")
        outcome = await self._in_thread(self._commands.run, command, dict(asked.parameters))
        output = outcome.output[-OUTPUT_SHOWN_BYTES:].decode("utf-8", "replace").strip()
        told = f"; it wrote: {output}" if output else ""
        if outcome.is_late:
            raise FabricError(f"the command did not end in time and was killed: {command}{told}")
        if outcome.code:
            raise FabricError(f"the command ended with {outcome.code}: {command}{told}")
        return StepResult(True, output)

    async def _call_function(self, asked: StepRequest) -> StepResult:
        found = await self._functions.call(asked.option("Function"), dict(asked.variables))
        return StepResult(True, variables=found)


def read_query_options(text: str) -> tuple[int, str]:
    """Reads the options of a query that an action may give: `skip_n=2,select=[-/,+/price]`.

    Returns:
        the number of rows to leave out, and the select list.

    Raises:
        ConfigurationError: an option is another one.
    """
    skip, select = 0, ""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        name, _, value = part.strip().partition("=")
        if name == "skip_n" and value.isdecimal():
            skip = int(value)
        elif name == "select":
            select = value
        elif name != "top_n":
            raise ConfigurationError(
                f"{part.strip()!r} is no option that a query of an action takes: give skip_n or "
                "select"
            )
    return skip, select


def _is_set(text: str, option: str) -> bool:
    found = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
        text.strip().lower()
    )
    if found is None:
        raise ConfigurationError(f"{option} is {text!r}: give true or false")
    return found


def _milliseconds(text: str) -> int:
    return parse_interval_ns(text) // 1_000_000
