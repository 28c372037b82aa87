"""The pictures of the console in the pages, drawn from generated fabrics, and what they show:

    make pictures      # writes docs/pictures/console-*.png and console.json

The file `console.json` has the parts of each pictured page that a reader would look for: its
headings, columns and navigation. tests/console/test_pictures.py compares these, never pixels.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.console_browser import Browser, Console, ServerThread
from support.generated_fabric import GeneratedFabric
from support.messages_console import MessagesThread, way

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
PARTS_FILE = FOLDER / "console.json"
WIDTH = 1200
PHONE = 390
HEIGHT = 800
BYTES_MAX = 120_000
COLOURS = (256, 128, 64, 32)
"""Numbers of colours to try, until a picture is small enough."""
READY = """
() => document.querySelector('main h1') !== null
  && document.querySelector('main .state-box[role=status]') === null
"""
GRAPH = "() => document.querySelector('main svg text') !== null"
CHARTS = """
() => document.querySelector('.chart canvas') !== null
  && [...document.querySelectorAll('.chart')].every((each) => each.querySelector('canvas'))
  && [...document.querySelectorAll('.chart-legend')].every(
    (each) => /\\d/.test([...each.querySelectorAll('output')].map((one) => one.value)))
"""
PARTS = """
() => [...document.querySelectorAll('nav a, main h1, main h2, main th, dialog h2, dialog button')]
  .filter((each) => each.checkVisibility())
  .map((each) => `${each.tagName.toLowerCase()} ${each.textContent.trim()}`)
"""
UNTOLD = re.compile(r"(?<=\w)[▲■◐●].*|[▲■◐●\d,.|:]+")
ORDER = b'{"id": 7, "symbol": "RAY", "side": "buy", "quantity": 1200, "price": 127.5}'


def overview(console: Console) -> None:
    console.at.do(lambda fabric: fabric.downgrade("NewYork-1~London", owes=1_204, seconds_ago=130))
    console.at.do(lambda fabric: setattr(fabric.links["Tokyo-2~NewYork"], "owes", 310))
    hundred(console)


def phone(console: Console) -> None:
    """Below 600 px the graph is a list."""
    console.open()
    console.page.wait_for_selector(".problem")
    console.settled()


def hundred(console: Console) -> None:
    console.open()
    console.page.wait_for_selector(".problem")
    console.until(GRAPH)
    console.settled()


def problem(console: Console) -> None:
    console.at.do(lambda fabric: fabric.kill("NewYork-2", 20))
    hundred(console)
    console.page.locator(".problem-do button").first.click()
    console.page.wait_for_selector("dialog .risk li")
    console.page.click("dialog summary")


def instance(console: Console) -> None:
    console.open("#/instance/NewYork-1/now")
    console.until(READY)


def clients(console: Console) -> None:
    console.open("#/clients")
    console.until(READY)
    console.page.wait_for_selector("main tbody tr[data-row]")


def message(console: Console) -> None:
    at = console.at
    assert isinstance(at, MessagesThread)
    (bookmark,) = at.publish("orders", ORDER)
    at.trace(bookmark, way(ahead_ms=2.2))
    console.open(f"#/message/{bookmark}?topic=orders", ".way-svg")
    console.page.wait_for_selector("#stored tbody tr")


def history(console: Console) -> None:
    console.open("#/history")
    console.until(CHARTS)


@dataclass(frozen=True)
class Picture:
    """A picture of one page.

    Attributes:
        show: brings the console to what is pictured.
        size: number of instances.
        full_page: whether all of the page is drawn, or only what the window shows.
    """

    name: str
    show: Callable[[Console], None]
    size: int = 6
    scenario: str = "mixed"
    scheme: str = "light"
    width: int = WIDTH
    height: int = HEIGHT
    full_page: bool = False
    make: Callable[[GeneratedFabric], ServerThread] = ServerThread

    @property
    def file(self) -> Path:
        return FOLDER / f"console-{self.name}.png"


PICTURES = (
    Picture("overview", overview, scenario="healthy", height=1080),
    Picture("overview-dark", overview, scenario="healthy", scheme="dark", height=1080),
    Picture("problem", problem, scenario="healthy"),
    Picture("instance", instance),
    Picture("clients", clients, height=600),
    Picture("message", message, scenario="healthy", height=720, make=MessagesThread),
    Picture("history", history, scenario="healthy", height=850),
    Picture("overview-100", hundred, size=100, height=1280),
    Picture("phone", phone, width=PHONE, height=844),
)


@contextmanager
def shown(browser: Browser, picture: Picture) -> Iterator[Console]:
    """The console as a picture shows it."""
    fabric = GeneratedFabric(picture.size, scenario=picture.scenario)
    with browser.console(fabric, picture.width, picture.scheme, picture.make) as console:
        # What is silent in the fabric answers 503.
        console.allowed.append("status of 503")
        console.page.set_viewport_size({"width": picture.width, "height": picture.height})
        picture.show(console)
        # What comes from the whole fabric is drawn, too.
        console.settled()
        yield console


def parts(console: Console) -> list[str]:
    """Returns the parts of the page that a reader would look for, in order of their names, without
    numbers and the navigation's marks."""
    found: list[str] = console.page.evaluate(PARTS)
    return sorted({UNTOLD.sub("", each).strip() for each in found})


def reduced(png: bytes) -> bytes:
    """Returns a picture with as many colours as its bound allows."""
    from PIL import Image

    # Its colours are those of the marks, too, however few points these have.
    method = Image.Quantize.MAXCOVERAGE

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in COLOURS:
        written = io.BytesIO()
        found = image.quantize(colours, method=method, dither=Image.Dither.NONE)
        found.save(written, "PNG", optimize=True)
        if written.tell() <= BYTES_MAX:
            return written.getvalue()
    raise ValueError(f"a picture has more than {BYTES_MAX} bytes with {COLOURS[-1]} colours")


def main() -> None:
    """Draws all, or those that are named: the others keep what they show."""
    browser = Browser()
    found = json.loads(PARTS_FILE.read_text("utf-8")) if PARTS_FILE.exists() else {}
    try:
        for picture in PICTURES:
            if sys.argv[1:] and picture.name not in sys.argv[1:]:
                continue
            with shown(browser, picture) as console:
                found[picture.name] = parts(console)
                png = console.page.screenshot(full_page=picture.full_page)
            picture.file.write_bytes(reduced(png))
            print(f"{picture.file.name}: {picture.file.stat().st_size:,} bytes")
    finally:
        browser.close()
    found = {picture.name: found[picture.name] for picture in PICTURES}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    PARTS_FILE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
