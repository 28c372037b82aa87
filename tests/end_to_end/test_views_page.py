"""docs/views.md, typed as it stands there, against one instance of its fabric: the commands, the
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

pytestmark = pytest.mark.covers("Views", "docs/views.md as it stands there")

PAGE = "views.md"
STARTS = ("raylay up ", "raylay down", "python ")
"""The fabric of the page is one instance here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("views_page")
    (place / "airport.yaml").write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    settings = load_fabric([place / "airport.yaml"])
    instance = settings.instances[0]
    config = replace(
        InstanceConfig("solo", "group"),
        topics=tuple(TopicRule(name) for name in ("flights", "carriers")),
        sow=settings.sow_of(instance),
        views=settings.views_of(instance),
        conflated_topics=settings.conflated_of(instance),
    )
    made = Server(place / "solo", config)
    yield made
    made.kill()


@pytest.mark.covers("Views and conflation, title by title", "the documented")
def test_the_page(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    typist = Typist(PAGE, server.address, tmp_path, monkeypatch, left_out=STARTS)
    typist.type()
    assert typist.compared == 17
