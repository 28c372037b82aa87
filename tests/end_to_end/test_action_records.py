"""Actions that begin with records of a SOW topic at a real instance: those that leave a condition,
and those that stay in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from end_to_end.test_actions import action, client, config, publish, run, subscribed

from raylay.services.messages.topics import TopicRule
from raylay.services.server.instance_server import InstanceServer
from raylay.services.sow.definition import SowTopicDefinition

STATE = SowTopicDefinition("state", "json", keys=("/id",))
NEW = {"Topic": "state", "MessageType": "json", "Filter": "/status = 'new'"}


def house(*actions: Any) -> Any:
    return config(*actions, topics=(TopicRule(".*"),), sow=(STATE,))


async def told(messages: Any) -> Any:
    """Returns the next message as JSON."""
    return orjson.loads((await anext(messages)).body)


@pytest.mark.covers("Actions", "On OOF Message")
def test_a_record_that_leaves_is_told_with_what_it_was(tmp_path: Path) -> None:
    now = '"why": "{{AMPS_REASON}}", "was": {{AMPS_PREVIOUS_DATA}}, "is": {{AMPS_DATA}}'
    left = action("left", [("oof-message", NEW)], publish("told", f"{{{now}}}"))

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            messages = await desk.subscribe("told")
            for body in (
                b'{"id":1,"status":"new"}',
                b'{"id":1,"status":"new","by":"ada"}',
                b'{"id":1,"status":"done"}',
                b'{"id":2,"status":"new"}',
            ):
                await desk.publish("state", body)
            assert await told(messages) == {
                "why": "match",
                "was": {"id": 1, "status": "new", "by": "ada"},
                "is": {"id": 1, "status": "done"},
            }
            await desk.sow_delete("state", filter="/id = 2")
            gone = {"id": 2, "status": "new"}
            assert await told(messages) == {"why": "delete", "was": gone, "is": gone}

    run(tmp_path, house(left), work)


@pytest.mark.covers("Actions", "On Message State Change")
@pytest.mark.covers("Actions", "On a Custom Event; Raise a Custom Event")
@pytest.mark.parametrize(("duration", "event"), [("1h", "done"), ("1ms", "late")])
def test_an_alert_raises_one_of_its_events(tmp_path: Path, duration: str, event: str) -> None:
    alert = {"Duration": duration, "OOFEvent": "done", "TimeoutEvent": "late"}
    actions = [
        action(
            "watch",
            [("alert", {**NEW, **alert, "EventVariable": "WHAT"})],
            ("execute-event", {"EventVariable": "WHAT"}),
        ),
        *(
            action(
                name,
                [("execute-event", {"Event": name})],
                publish("told", f'{{"on": "{name}", "what": "{{{{WHAT}}}}"}}'),
            )
            for name in ("done", "late")
        ),
    ]

    async def work(server: InstanceServer) -> None:
        await subscribed(server)
        async with client(server) as desk:
            messages = await desk.subscribe("told")
            await desk.publish("state", b'{"id":1,"status":"new"}')
            if event == "done":
                await desk.publish("state", b'{"id":1,"status":"done"}')
            assert await told(messages) == {"on": event, "what": event}

    run(tmp_path, house(*actions), work)


@pytest.mark.covers("Actions", "On Message Condition Timeout")
def test_a_record_that_is_late_at_the_start_is_told_again(tmp_path: Path) -> None:
    late = action(
        "late",
        [("message-condition-timeout", {**NEW, "Duration": "1ms"})],
        publish("told", "{{AMPS_DATA}}"),
    )
    # The topic of what is told is kept, so that nobody needs to listen before the start.
    kept = SowTopicDefinition("told", "json", keys=("/id",))
    whole = config(late, topics=(TopicRule(".*"),), sow=(STATE, kept))

    async def first(server: InstanceServer) -> None:
        async with client(server) as desk:
            messages = await desk.sow_and_subscribe("told")
            await desk.publish("state", b'{"id":1,"status":"new"}')
            assert (await told(messages))["id"] == 1
            await desk.sow_delete("told", filter="/id = 1")
            await desk.flush()

    async def second(server: InstanceServer) -> None:
        async with client(server) as desk:
            messages = await desk.sow_and_subscribe("told")
            assert await told(messages) == {"id": 1, "status": "new"}

    run(tmp_path, whole, first)
    run(tmp_path, whole, second)
