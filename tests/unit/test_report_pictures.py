"""The pictures of reports are those of the pages that the production code writes: `make pictures`
draws them anew. Their headings and columns are compared, never pixels."""

from __future__ import annotations

import json
import re
import struct

import pytest
from support.console_pictures import BYTES_MAX, FOLDER, WIDTH
from support.report_pictures import PARTS_FILE, PICTURES, ReportPicture, parts

pytestmark = pytest.mark.covers("Drills", "the page and the JSON say what happened")


def test_every_picture_is_there_and_small() -> None:
    assert {each.file for each in PICTURES} == set(FOLDER.glob("report-*.png"))
    for each in PICTURES:
        content = each.file.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n"), each.name
        assert struct.unpack(">II", content[16:24]) == (WIDTH, each.height), each.name
        assert len(content) <= BYTES_MAX, each.name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_shows_the_report_as_it_is(picture: ReportPicture) -> None:
    drawn = json.loads(PARTS_FILE.read_text(encoding="utf-8"))
    assert list(drawn) == [each.name for each in PICTURES]
    assert parts(picture.page()) == drawn[picture.name], "`make pictures` draws it anew"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_every_picture_is_shown_in_the_page_that_teaches_the_report(picture: ReportPicture) -> None:
    text = (FOLDER.parent / picture.shown_in).read_text(encoding="utf-8")
    (words,) = re.findall(rf"!\[([^\]]+)\]\(pictures/{picture.file.name}\)", text)
    assert len(words.split()) > 3, "what is seen there, for the blind"
