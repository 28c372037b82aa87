"""The pictures of the console in the pages show it as it is: their pages have the headings, columns
and navigation that they had when `make pictures` drew them. Pixels are never compared."""

from __future__ import annotations

import json

import pytest
from support.console_browser import Browser
from support.console_pictures import PARTS_FILE, PICTURES, Picture, parts, shown


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_shows_the_page_as_it_is(browser: Browser, picture: Picture) -> None:
    drawn = json.loads(PARTS_FILE.read_text(encoding="utf-8"))
    with shown(browser, picture) as console:
        assert parts(console) == drawn[picture.name], "`make pictures` draws it anew"
