"""docs/queues.md, typed as it stands there, against one instance of its fabric: the commands, the
scripts, and the answers that it shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from end_to_end.test_queues import Consumer
from support.instance_processes import DEADLINE_S, Server
from support.typed_pages import Typist, blocks

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.files import load_fabric
from raylay.services.fabric.checks.check import check_settings
from raylay.services.messages.topics import TopicRule

pytestmark = pytest.mark.covers("Queues", "docs/queues.md")

PAGE = "queues.md"
STARTS = ("raylay up ", "raylay queue proxied ")
"""The fabric of the page is one instance here; the other one, of two regions, is typed in
cluster/test_queues.py."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("queues_page")
    first, regions, archive = blocks(PAGE, "yaml")
    for name, text in (("pool.yaml", first), ("two.yaml", regions), ("archive.yaml", archive)):
        (place / name).write_text(text, encoding="utf-8")
    # All are right; the others need a fabric to run.
    for name in ("two.yaml", "archive.yaml"):
        assert not check_settings(load_fabric([place / name])).errors
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


@pytest.mark.slow
def test_the_page(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typist = Typist(PAGE, server.address, tmp_path, monkeypatch, left_out=STARTS)
    typist.type()
    assert typist.compared == 21
