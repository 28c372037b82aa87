"""docs/queues.md, typed as it stands there, against one instance of its fabric: the commands, the
scripts, and the answers that it shows."""

from __future__ import annotations

import contextlib
import io
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transcripts
from end_to_end.test_instance import DEADLINE_S, Server
from end_to_end.test_queues import Consumer
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from raylay.services.cli import app
from raylay.services.commands.failing import line_of
from raylay.services.configuration.files import load_fabric
from raylay.services.messages.topics import TopicRule
from raylay.services.server.config import InstanceConfig

TEXT = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
FENCES = [each for each in MarkdownIt("commonmark").parse(TEXT) if each.type == "fence"]
STARTS = ("raylay up ",)
"""The fabric of the page is one instance here."""
SERVER = "host-a:9007"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("queues_page")
    first, regions = (each.content for each in FENCES if each.info == "yaml")
    for name, text in (("pool.yaml", first), ("two.yaml", regions)):
        (place / name).write_text(text, encoding="utf-8")
    # Both are right; the second one needs a fabric to run.
    load_fabric([place / "two.yaml"])
    settings = load_fabric([place / "pool.yaml"])
    topics = tuple(TopicRule(name, "json") for name in ("orders", "orders/failed"))
    queues = settings.queues_of(settings.instances[0])
    config = InstanceConfig("solo", "here", topics=topics, queue_definitions=queues)
    made = Server(place / "solo", config)
    asks = Consumer(made.address, "asks", filter="/none = 1")
    deadline_s = time.monotonic() + DEADLINE_S
    while not asks.status()["json/work"].get("is_ready"):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    asks.close()
    yield made
    made.kill()


def typed(command: str) -> str:
    """What a terminal shows of it, the error with it."""
    found = CliRunner().invoke(app, shlex.split(command.removeprefix("raylay ")))
    line = line_of(found.exception) if isinstance(found.exception, Exception) else None
    return found.output + (f"{line}\n" if line else "")


@pytest.mark.slow
def test_the_page(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In order: each answer is of what was done before it."""
    monkeypatch.setenv("RAYLAY_SERVER", server.address)
    monkeypatch.setenv("RAYLAY_RUNTIME_DIR", str(tmp_path))
    names: dict[str, Any] = {}
    printed = ""
    compared = 0
    for fence in FENCES:
        if fence.info == "console":
            for step in transcripts.read(f"```console\n{fence.content}```\n").steps:
                if step.command.startswith(STARTS):
                    continue
                came = typed(step.command)
                assert transcripts.matches(step.answer, came), (step.command, came)
                compared += 1
        elif fence.info == "python":
            assert SERVER in fence.content
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(fence.content.replace(SERVER, server.address), names)
            printed = out.getvalue()
        elif fence.info == "text":
            assert transcripts.matches(fence.content, printed), printed
            compared += 1
    assert compared == 16
