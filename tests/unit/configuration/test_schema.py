"""The JSON schema of a fabric's file accepts what the file reader accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from raylay.services.configuration import yaml_file
from raylay.services.configuration.schema import field_texts, file_schema
from raylay.services.configuration.sow_topics import SowTopicSettings
from raylay.services.errors import ConfigurationError

pytestmark = pytest.mark.covers("Fabrics and tracing", "the JSON schema of a fabric's file")

ROOT = Path(__file__).parents[3]
FILES = ("examples/three_regions.yaml", "deploy/guarded.yaml")
VALIDATOR = jsonschema.Draft202012Validator(file_schema())


class WordsLoader(yaml.SafeLoader):
    """Reads `on` and `yes` as the words that they are, as editors do."""


WordsLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
WordsLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|false"), list("tf"))


def texts() -> list[Any]:
    found = [(name, (ROOT / name).read_text(encoding="utf-8")) for name in FILES]
    for page in sorted((ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        found += [
            (f"{page.name}-{number}", text)
            for number, text in enumerate(blocks)
            if re.search(r"^fabric:", text, re.M)
        ]
    return [pytest.param(text, id=name) for name, text in found]


def refusals(text: str) -> list[str]:
    values = yaml.load(text, WordsLoader)
    return [f"{list(each.absolute_path)}: {each.message}" for each in VALIDATOR.iter_errors(values)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(file_schema())


@pytest.mark.parametrize("text", texts())
def test_every_file_of_the_project_passes(text: str) -> None:
    assert refusals(text) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "topics: orders",
        "topics: [{nam: orders}]",
        "tls: true",
        "downgrade: 5s",
        "downgrade: {age: 5}",
        "downgrade: {age: soon}",
        "journal: {segment_size: 64XiB}",
        "connect_regions: sink",
        "tracing: {sampling_ratio: 3}",
        "queues: [{message_type: json}]",
        "queues: [{name: q, message_type: json, lease: 5}]",
        "instances: {a-1: {client_port: 99999}}",
        "sow_topics: [{name: q, message_type: json, keys: /id}]",
        "metrics: {enabled: maybe}",
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(wrong: str) -> None:
    text = f"fabric: f\nregions: {{a: 2}}\n{wrong}\n"
    with pytest.raises(ConfigurationError):
        yaml_file.parse(text)
    assert refusals(text) != []


@pytest.mark.parametrize(
    "short",
    [
        "topics: [orders, {name: ticks, message_type: fix}]",
        "regions: {a: 2, b: [b-1, b-2], c: {instances: 1, links: none}, d: }",
        "authentication: passwords",
        "logs: []",
        "journal: {disk_timeout: 0, segment_size: 1048576}",
        "downgrade: {age: 1.5min}",
        "instances: {more: }",
    ],
)
def test_what_may_be_written_in_short(short: str) -> None:
    front = "fabric: f\n" if short.startswith("regions") else "fabric: f\nregions: {a: 2}\n"
    assert refusals(f"{front}{short}\n") == []


def test_defaults_and_descriptions_are_those_of_a_file() -> None:
    journal = file_schema()["$defs"]["JournalConfig"]["properties"]
    assert journal["segment_size"]["default"] == "64MiB"
    assert journal["durability"]["enum"] == ["fsync", "interval"]
    assert "before clients are sent" in journal["disk_timeout"]["description"]
    assert field_texts(SowTopicSettings)["hash_indexes"].startswith("Hash indexes, each")
