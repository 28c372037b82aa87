"""docs/sow.md, typed as it stands there, against one instance of its fabric: the commands, the
scripts, and the answers that it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.instance_processes import Server
from support.typed_pages import Typist, blocks

from raylay.services.config.instance import InstanceConfig
from raylay.services.configuration.files import load_fabric
from raylay.services.messages.topics import TopicRule

pytestmark = pytest.mark.covers("SOW", "`raylay sow`, `delete`")

PAGE = "sow.md"
STARTS = ("raylay up ", "raylay down")
"""The fabric of the page is one instance here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("sow_page")
    (shown,) = blocks(PAGE, "yaml")
    (place / "desk.yaml").write_text(shown, encoding="utf-8")
    settings = load_fabric([place / "desk.yaml"])
    topics = tuple(TopicRule(name) for name in ("orders", "quotes", "sessions"))
    sow = settings.sow_of(settings.instances[0])
    config = replace(InstanceConfig("solo", "group"), topics=topics, sow=sow)
    made = Server(place / "solo", config)
    yield made
    made.kill()


def test_the_page(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typist = Typist(PAGE, server.address, tmp_path, monkeypatch, left_out=STARTS)
    typist.type()
    assert typist.compared == 16
