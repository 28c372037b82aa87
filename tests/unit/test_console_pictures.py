"""The pictures of the console are there, are shown in the pages, and are small: `make pictures`
draws them, and tests/console/test_pictures.py shows that they are not out of date."""

from __future__ import annotations

import json
import re
import struct

from support.console_pictures import BYTES_MAX, FOLDER, PARTS_FILE, PICTURES, WIDTH


def test_every_picture_is_there_and_small() -> None:
    assert {each.file for each in PICTURES} == set(FOLDER.glob("console-*.png"))
    for each in PICTURES:
        content = each.file.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n"), each.name
        width, height = struct.unpack(">II", content[16:24])
        assert (width, height) == (each.width, each.height), each.name
        assert width <= WIDTH and len(content) <= BYTES_MAX, each.name


def test_every_picture_is_shown_in_the_page_that_teaches_the_console() -> None:
    text = (FOLDER.parent / "administration.md").read_text(encoding="utf-8")
    found = re.findall(r"!\[([^\]]+)\]\(pictures/(console-[\w-]+\.png)\)", text)
    assert {name for _, name in found} == {each.file.name for each in PICTURES}
    assert all(len(words.split()) > 3 for words, _ in found), "what is seen there, for the blind"


def test_what_a_picture_shows_is_written_down() -> None:
    drawn = json.loads(PARTS_FILE.read_text(encoding="utf-8"))
    assert list(drawn) == [each.name for each in PICTURES]
    assert all(found for found in drawn.values())
