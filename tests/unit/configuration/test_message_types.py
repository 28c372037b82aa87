"""Message types of a fabric's own: in files, with descriptors, from entry points."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from raylay.services.configuration.builder import FabricBuilder
from raylay.services.configuration.yaml_file import load, parse
from raylay.services.errors import ConfigurationError
from raylay.services.messages.types.json import Json
from raylay.services.plugins import message_types
from raylay.services.plugins.message_types import plugins

pytestmark = pytest.mark.covers("Message types", "`message_types` of a fabric's file")

FILE = """fabric: f
regions: {{A: 2}}
message_types:
  - {{name: first, kind: json}}
  - {}
"""


def loud(name: str, options: Mapping[str, Any]) -> Json:
    assert options == {"volume": 11}
    return Json(name)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("{name: x, kind: jsn}", "no kind is called 'jsn'"),
        ("{name: x, kind: json, options: {a: 1}}", "json has no option 'a'"),
        ("{name: first, kind: json}", "first is defined twice"),
        ("{name: x, kind: bflat}", "there is no bflat"),
        (
            "{name: x, kind: protobuf, options: {descriptors: none.desc, message: a.B}}",
            "No such file",
        ),
        ("{name: x}", "kind"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line(entry: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(FILE.format(entry), str(tmp_path / "f.yaml"))
    line = str(caught.value).removeprefix(f"{tmp_path}/f.yaml:")
    assert line[0] in "345" and why in line, line


def test_descriptors_are_read_from_beside_the_file(tmp_path: Path) -> None:
    from support.protobuf_cases import BODY, descriptors

    from raylay.services.messages.types.registry import MessageTypes

    (tmp_path / "market.desc").write_bytes(descriptors("proto2"))
    entry = "{name: q, kind: protobuf, options: {descriptors: market.desc, message: market.Quote}}"
    (tmp_path / "f.yaml").write_text(FILE.format(entry))
    settings = load(tmp_path / "f.yaml")
    (_, quote) = settings.types_of(settings.instance("A-1"))
    assert base64.b64decode(quote.options["descriptors"]) == descriptors("proto2")
    assert MessageTypes([quote])["q"].parse(BODY)["sym"] == "IBM"
    (tmp_path / "market.desc").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="these are no descriptors"):
        load(tmp_path / "f.yaml")


def test_kinds_of_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("loud", f"{__name__}:loud", "raylay.message_types"),
        EntryPoint("broken", "no_such_module:x", "raylay.message_types"),
    ]
    monkeypatch.setattr(message_types, "entry_points", lambda group: entries)
    monkeypatch.setattr(EntryPoint, "load", lambda self: {"loud": loud}[self.name])
    assert plugins(["json", "loud", "other"]) == {"loud": loud}
    with pytest.raises(ConfigurationError, match=r"broken \(no_such_module:x\) cannot be loaded"):
        plugins(["broken"])
    builder = FabricBuilder(
        "f", message_types=[{"name": "x", "kind": "loud", "options": {"volume": 11}}]
    )
    assert builder.region("A").settings().message_types[0].kind == "loud"
    with pytest.raises(ConfigurationError, match="no kind is called 'quiet'"):
        FabricBuilder("f", message_types=[{"name": "x", "kind": "quiet"}])
