"""services/processes/actions/steps.py: steps of actions, with a client and an instance that the
test stands for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raylay.services.actions.engine import StepRequest, StepResult
from raylay.services.actions.message_triggers import correlation_of
from raylay.services.actions.modules import MODULES
from raylay.services.config.actions import ActionRunnerConfig
from raylay.services.errors import ConfigurationError, FabricError
from raylay.services.processes.actions.steps import ActionSteps, read_query_options

PURE = frozenset(
    (
        *("extract-values", "translate-data", "increment-counter", "execute-event", "nothing"),
        "condition",
    )
)
"""Steps that the engine performs."""


class Calls:
    """The calls of the instance: keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.result: Any = None

    async def call(self, action: str, call: str, **arguments: Any) -> Any:
        """Takes a call."""
        assert action == "tidy"
        self.asked.append((call, arguments))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Publisher:
    """The client: keeps what was published."""

    def __init__(self) -> None:
        self.published: list[tuple[Any, ...]] = []

    async def publish(
        self, topic: str, body: bytes, message_type: str, *, delta: bool, correlation: bytes
    ) -> None:
        """Takes a message."""
        self.published.append((topic, body, message_type, delta, correlation))


class Bench:
    """The steps, and what they did."""

    def __init__(self, directory: Path) -> None:
        self.calls, self.client = Calls(), Publisher()
        self.echoed: list[tuple[str, str]] = []
        self.steps = ActionSteps(
            ActionRunnerConfig(
                "north", "main", 1, "", "", str(directory), (), (), sow_topics=(("state", "json"),)
            ),
            self.calls,  # type: ignore[arg-type]
            self.client,  # type: ignore[arg-type]
            lambda action, text: self.echoed.append((action, text)),
        )

    async def perform(self, module: str, **options: str) -> StepResult:
        """Performs a step."""
        asked = StepRequest(1, "tidy", 0, module, tuple(options.items()), 2, {"A": "x"})
        return await self.steps.perform(asked)


def run(directory: Path, work: Callable[[Bench], Awaitable[None]]) -> Bench:
    """Runs some work with steps."""

    async def with_bench() -> Bench:
        bench = Bench(directory)
        try:
            await work(bench)
        finally:
            bench.steps.close()
        return bench

    return asyncio.run(with_bench())


def test_every_documented_step_that_is_not_refused_can_be_performed(tmp_path: Path) -> None:
    known = {
        name
        for (kind, name), module in MODULES.items()
        if kind != "on" and not module.refused and name not in PURE
    }

    async def work(bench: Bench) -> None:
        assert known - bench.steps.modules == set()
        result = await bench.perform("minidump")
        assert result == StepResult(False, "minidump is no step that can be performed")

    run(tmp_path, work)


@pytest.mark.covers("Actions", "Publish a Message")
def test_messages_are_published_whole_or_as_changes(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        def message(topic: str, **options: str) -> Awaitable[StepResult]:
            options = {"Topic": topic, "MessageType": "json", "Data": "\udcff{}", **options}
            return bench.perform("publish-message", **options)

        for given in (message("state"), message("other"), message("state", Delta="false")):
            assert (await given).ok
        assert (await message("other", Delta="true", UpdateOnly="false")).ok
        assert "UpdateOnly cannot be performed" in (await message("state", UpdateOnly="true")).text
        assert "Delta is 'maybe'" in (await message("state", Delta="maybe")).text

    published = run(tmp_path, work).client.published
    assert [each[0] for each in published] == ["state", "other", "state", "other"]
    assert [each[3] for each in published] == [True, False, False, True]
    assert {each[1:3] for each in published} == {(b"\xff{}", "json")}
    assert {each[4] for each in published} == {correlation_of(2)}


@pytest.mark.parametrize(
    ("module", "options", "asked"),
    [
        ("compact-sow", {}, ("compact_all", {})),
        ("compact-sow", {"Topic": "state"}, ("compact", {"topic": "state"})),
        (
            "compact-sow",
            {"Topic": "state", "MessageType": "json"},
            ("compact", {"topic": "json/state"}),
        ),
        ("rotate-logs", {}, ("rotate_logs", {})),
        ("truncate-statistics", {"Age": "1d"}, ("truncate_statistics", {"age_ms": 86_400_000})),
        ("archive-journal", {"Age": "1h"}, ("archive", {"age_ms": 3_600_000})),
        ("remove-journal", {"Age": "2m"}, ("remove", {"age_ms": 120_000})),
        ("downgrade-replication", {"Age": "30s"}, ("downgrade_by_age", {"age_ms": 30_000})),
        ("upgrade-replication", {"Age": "10ms"}, ("upgrade_by_age", {"age_ms": 10})),
        ("disable-authentication", {}, ("disable_authentication", {})),
        (
            "reset-entitlement",
            {"Transport": "client", "AuthenticationId": "amy"},
            ("reset_entitlement", {"transport": "client", "of_user": "amy"}),
        ),
        ("enable-transport", {}, ("enable_transport", {"transport": ""})),
        (
            "enable-proxied-transfer",
            {"Topic": "work", "MessageType": "json"},
            ("enable_proxied", {"queue": "work"}),
        ),
        ("shutdown", {}, ("shut_down", {"why": "by the action tidy"})),
    ],
)
def test_a_step_makes_its_call(
    tmp_path: Path, module: str, options: dict[str, str], asked: tuple[str, dict[str, Any]]
) -> None:
    async def work(bench: Bench) -> None:
        bench.calls.result = "it is done"
        assert await bench.perform(module, **options) == StepResult(True, "it is done")

    assert run(tmp_path, work).calls.asked == [asked]


def test_nothing_is_downgraded_in_the_grace_period(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        result = await bench.perform("downgrade-replication", Age="1s", GracePeriod="1d")
        assert result == StepResult(True)

    assert run(tmp_path, work).calls.asked == []


def test_whatever_happens_is_the_result_of_the_step(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        for error, text in (
            (FabricError("north is busy"), "north is busy"),
            (OSError(), "OSError"),
            (KeyError("x"), "KeyError: 'x'"),
        ):
            bench.calls.result = error
            assert await bench.perform("shutdown") == StepResult(False, text)
        assert not (await bench.perform("remove-journal", Age="soon")).ok
        assert not (await bench.perform("remove-files", Pattern="*", Age="1d", Keep="x")).ok

    run(tmp_path, work)


def test_commands_functions_files_and_echoes(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        found = await bench.perform("execute-system", Command="pwd")
        assert found == StepResult(True, str(tmp_path))
        found = await bench.perform("execute-system", Command="exit 2")
        assert found == StepResult(False, "the command ended with 2: exit 2")
        found = await bench.perform("call-function", Function="builtins:dict")
        assert found == StepResult(True, variables={"A": "x"})
        found = await bench.perform("remove-files", Pattern="*.log", Age="0s", Count="1")
        assert found == StepResult(True, "0 files")
        assert (await bench.perform("echo-message", Message="hello")).ok
        assert (await bench.perform("vacuum-statistics")).ok
        assert bench.echoed == [("tidy", "hello")]

    run(tmp_path, work)


@pytest.mark.covers("Actions", "If: File System Usage")
def test_a_file_system_that_is_not_fuller_stops_the_run(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        def usage(share: str) -> Awaitable[StepResult]:
            return bench.perform("file-system-usage", Path=".", GreaterThan=share)

        assert not (await usage("0 %")).stop
        assert (await usage("100%")).stop
        assert not (await usage("full")).ok
        assert "is in use" in (await usage("0%")).text

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (0, "")),
        ("skip_n=2", (2, "")),
        ("select=[-/,+/price], skip_n=1", (1, "[-/,+/price]")),
        ("top_n=5", (0, "")),
    ],
)
def test_the_options_of_a_query(text: str, found: tuple[int, str]) -> None:
    assert read_query_options(text) == found


@pytest.mark.parametrize("text", ["live", "skip_n=x", "skip_n"])
def test_an_option_that_a_query_does_not_take_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no option that a query of an action takes"):
        read_query_options(text)
