"""Errors of a fabric's file speak of YAML: what is written, and what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from raylay import Fabric
from raylay.services.configuration import yaml_file
from raylay.services.errors import ConfigurationError

pytestmark = pytest.mark.covers("Fabrics and tracing", "errors of a fabric's file speak of YAML")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("topics: orders", "3: topics: expected a list such as [orders], got 'orders'"),
        ("topics: {name: orders}", "3: topics: expected a list: put a hyphen before the first key"),
        ("topics:", "3: topics: expected a list, got nothing"),
        ("tls: true", "3: tls: expected a section with keys such as certificate, private_key,"),
        ("tls: true", "got true"),
        ("downgrade: 5s", "3: downgrade: expected a section with keys such as age, "),
        ("admin: yes", "3: admin: expected a section with keys such as "),
        ("logs: /tmp/log", "3: logs: expected a section with keys such as level, target,"),
        ("metrics: {enabled: maybe}", "3: metrics.enabled: expected true or false, got 'maybe'"),
        (
            "tracing: {sampling_ratio: 3}",
            "3: tracing.sampling_ratio: expected at most 1.0, got 3",
        ),
        (
            "tracing: {sampling_ratio: often}",
            "3: tracing.sampling_ratio: expected a number, got 'often'",
        ),
        (
            "instances: {a-1: {client_port: many}}",
            "3: instances.a-1.client_port: expected a whole number, got 'many'",
        ),
        (
            "instances: {a-1: {client_port: 99999}}",
            "3: instances.a-1.client_port: expected at most 65535, got 99999",
        ),
        (
            "sow_topics: [{name: q, message_type: json, keys: /id}]",
            "3: sow_topics.0.keys: expected a list such as [/id], got '/id'",
        ),
        ("sow_stats_interval: 1ms", "3: sow_stats_interval: expected at least 100ms, got '1ms'"),
        ("links: [{from: a-1, to: 5}]", '3: links.0.to: expected a text: write "5" with quotes'),
        (
            "sow_topics: [{name: q, message_type: json, keys: [/id], recovery_point: 2026-13-45}]",
            "3: '2026-13-45' cannot be read (month must be in 1..12)",
        ),
        ("\x01: 1", "3: this is no YAML: it has the control character 0x1"),
        ("connect_regions: sink", "3: connect_regions: expected 'sync' or 'async', got 'sink'"),
        ("region: {b: 2}", "3: region: this key is unknown here: did you mean regions?"),
        ("topics: [{name: 5}]", 'write "5" with quotes if you mean that'),
        ("\ttopics: [a]", "3: this is no YAML: a line is indented with a tab; use spaces"),
    ],
)
def test_an_error_says_what_to_write(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        yaml_file.parse(f"fabric: f\nregions: {{a: 2}}\n{text}\n", "f.yaml")
    assert told in str(found.value), found.value
    words = str(found.value).casefold()
    for word in ("input should", "tuple", "dictionary", "instance of", "pydantic", "none"):
        assert word not in words or word in text, found.value


@pytest.mark.parametrize("wrong", ["true", "two"])
def test_a_region_that_is_no_number_of_instances(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"2: regions\.a: expected a number of instances"):
        yaml_file.parse(f"fabric: f\nregions: {{a: {wrong}}}\n", "f.yaml")


def test_a_script_that_gives_a_text_for_a_list_is_told_so() -> None:
    """A text would be taken for its letters."""
    wrong: Any = "orders"
    with pytest.raises(ConfigurationError, match=r"topics: expected a list such as \[orders\]"):
        Fabric("f", topics=wrong)
    with pytest.raises(ConfigurationError, match=r"such as \['a-1'\], got 'a-1'"):
        Fabric("f").region("a", instances="a-1")
    with pytest.raises(ConfigurationError, match=r"such as \[orders\]"):
        Fabric("f").region("a", instances=2).destination("a-1", "a-2", topics=wrong)


def test_regions_that_are_a_number() -> None:
    with pytest.raises(ConfigurationError, match="2: regions: expected a section, got 2"):
        yaml_file.parse("fabric: f\nregions: 2\n", "f.yaml")
