"""What a misspelled name was probably meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylay.services.configuration.amps.load import load_amps
from raylay.services.configuration.yaml_file import parse
from raylay.services.errors import ConfigurationError
from raylay.services.messages.spelling import did_you_mean, queue_hint

KNOWN = ("connect_regions", "regions", "topics")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("conect_regions", "did you mean connect_regions?"),
        ("topic", "did you mean topics?"),
        ("Regions", "did you mean regions?"),
        ("colour", ""),
        ("", ""),
    ],
)
def test_the_closest_name_is_told_where_one_is_close(word: str, hint: str) -> None:
    assert did_you_mean(word, KNOWN) == hint


def test_each_misspelled_key_is_told_with_its_own_line() -> None:
    text = """fabric: f
conect_regions: async
regions:
  near:
    instances: 2
    journal:
      durabilty: fsync
links:
  - from: near-1
    to: near-2
    pas_through: x
colour: red
"""
    with pytest.raises(ConfigurationError) as caught:
        parse(text, "f.yaml")
    told = dict(line.split(": ", 1) for line in str(caught.value).splitlines())
    unknown = "this key is unknown here"
    assert told["f.yaml:2"] == f"conect_regions: {unknown}: did you mean connect_regions?"
    key = "regions.near.journal.durabilty"
    assert told["f.yaml:7"] == f"{key}: {unknown}: did you mean durability?"
    assert told["f.yaml:11"] == f"links.0.pas_through: {unknown}: did you mean pass_through?"
    # Nothing is close: what there is.
    assert told["f.yaml:12"].startswith(f"colour: {unknown}: expected fabric, topics, ")


def test_a_misspelled_element_is_told_with_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text("<AMPSConfig>\n<Name>a</Name>\n<Trnsports/>\n</AMPSConfig>\n")
    with pytest.raises(ConfigurationError) as caught:
        load_amps(path)
    lines = str(caught.value).splitlines()
    assert f"{path}:3: Trnsports is unknown in AMPSConfig: did you mean Transports?" in lines


def test_a_name_that_is_no_queue_is_told_the_queue_that_was_meant() -> None:
    queues = [("work", "json"), ("jobs", "msgpack")]
    assert queue_hint("wrk", "json", queues) == "did you mean work?"
    assert queue_hint("jobs", "json", queues) == "the queue jobs is of type msgpack"
    assert queue_hint("orders", "json", queues) == ""
