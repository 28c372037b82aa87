"""Errors of a fabric's file speak of YAML: what is written, and what to write instead."""

from __future__ import annotations

import pytest

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


def test_regions_that_are_a_number() -> None:
    with pytest.raises(ConfigurationError, match="2: regions: expected a section, got 2"):
        yaml_file.parse("fabric: f\nregions: 2\n", "f.yaml")
