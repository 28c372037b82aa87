"""Signals to the process of an instance (services/server/process_signals.py)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unit.server.clients.test_queries import CONFIG

from raylay.services.actions.model import ActionDefinition, ActionModule
from raylay.services.server.instance_server import InstanceServer
from raylay.services.server.process_signals import (
    ProcessSignals,
    configured_signals,
    signals_of,
)

USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2
DEADLINE_S = 60.0


def action(*names: str) -> ActionDefinition:
    on = tuple(ActionModule("on", "signal", (("Signal", name),)) for name in names)
    return ActionDefinition("a", (*on, ActionModule("on", "startup")), ())


@pytest.fixture
def signals() -> Iterator[ProcessSignals]:
    made = ProcessSignals()
    yield made
    made.close()


def test_signals_are_those_of_the_actions(tmp_path: Path) -> None:
    found = signals_of((action("SIGUSR1", "SIGTERM"), action(), action("SIGUSR1")))
    assert set(found) == {USR1, signal.SIGTERM} and len(found) == 2
    config = replace(CONFIG, actions=(action("SIGUSR2"),))
    config.save(tmp_path)
    assert configured_signals(tmp_path) == (USR2,)
    assert configured_signals(tmp_path / "nothing") == ()


@pytest.mark.covers("Actions", "On a Linux Signal")
def test_a_signal_comes_to_a_loop_of_another_thread(signals: ProcessSignals) -> None:
    """As in an actor, whose main thread is Ray's: this one runs no Python while it waits."""
    before = signal.getsignal(USR1)
    signals.install((USR1,))
    assert signals.numbers == {USR1}
    told: list[str] = []
    came, listens = threading.Event(), threading.Event()

    def take(name: str) -> None:
        told.append(name)
        came.set()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        signals.listen(loop, take)
        listens.set()
        while len(told) < 2:
            await asyncio.sleep(0.005)
        signals.ignore(loop)

    thread = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(wait(), DEADLINE_S)))
    thread.start()
    assert listens.wait(DEADLINE_S)
    for _ in range(2):
        came.clear()
        os.kill(os.getpid(), USR1)
        assert came.wait(DEADLINE_S)
    thread.join()
    assert told == ["SIGUSR1", "SIGUSR1"]
    signals.close()
    assert signal.getsignal(USR1) == before and signal.set_wakeup_fd(-1) == -1
    signals.close()


def installed_elsewhere(signals: ProcessSignals) -> None:
    thread = threading.Thread(target=signals.install, args=((USR1,),))
    thread.start()
    thread.join()


def installed_beside_another(signals: ProcessSignals) -> None:
    reads, writes = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(writes)
    try:
        signals.install((USR1,))
        assert signal.set_wakeup_fd(-1) == writes, "the other part still has it"
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("install", [installed_elsewhere, installed_beside_another])
def test_what_cannot_be_caught_is_left_alone(
    signals: ProcessSignals, install: Callable[[ProcessSignals], None]
) -> None:
    before = signal.getsignal(USR1)
    install(signals)
    assert not signals.numbers and signal.getsignal(USR1) == before
    loop = asyncio.new_event_loop()
    signals.listen(loop, lambda _: None)
    signals.ignore(loop)
    loop.close()


def test_no_action_no_handler(signals: ProcessSignals) -> None:
    signals.install(())
    assert not signals.numbers and signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_nobody_may_catch_is_left_out(signals: ProcessSignals) -> None:
    signals.install((signal.SIGKILL, USR2))
    assert signals.numbers == {USR2}


def test_an_instance_tells_a_signal(tmp_path: Path) -> None:
    async def run() -> None:
        server = InstanceServer(CONFIG, tmp_path)
        told = []
        server.runtime.occurrences.listen(["signal"], lambda *each: told.append(each))
        server.signalled("SIGUSR1")
        assert told == [("signal", {"AMPS_SIGNAL": "SIGUSR1"})]
        assert server.events()[-1]["signal"] == "SIGUSR1"

    asyncio.run(run())
