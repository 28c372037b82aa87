"""Debian's Chromium before a generated fabric: what the tests of the console share.

A process starts one browser; each test gets a context of its own. A test fails where its page broke
the content policy, wrote an error to the console, or asked another host for anything.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from support.generated_fabric import GeneratedFabric, GeneratedServer, serving

T = TypeVar("T")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
MISSING = "apt-get install chromium fonts-dejavu-core (Debian), for the tests of the console"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
]
WIDTHS = {"desktop": 1440, "tablet": 1024, "phone": 390}
HEIGHT = 900
WAIT_MS = 60_000
"""Bound on waits for what certainly comes: a busy machine takes long."""
GRID_PX = 8
AXE = Path(__file__).parents[1] / "console" / "axe" / "axe.min.js"

WATCH = """
window.__tasks = [];
window.__violations = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.__tasks.push(Math.round(entry.duration));
}).observe({ type: 'longtask', buffered: true });
document.addEventListener('securitypolicyviolation', (event) => {
  window.__violations.push(`${event.effectiveDirective}: ${event.blockedURI} ${event.sample}`);
});
"""

STRUCTURE = """
([root, grid]) => {
  const snap = (value) => Math.round(value / grid) * grid;
  const roles = {
    A: 'link', BUTTON: 'button', H1: 'heading', H2: 'heading', H3: 'heading', TH: 'columnheader',
    TR: 'row', TD: 'cell', TABLE: 'table', NAV: 'navigation', MAIN: 'main', INPUT: 'field',
    SELECT: 'field', DIALOG: 'dialog', LI: 'item', CAPTION: 'caption',
  };
  const found = [];
  for (const element of root.querySelectorAll('*')) {
    const role = element.getAttribute('role') ?? roles[element.tagName];
    if (!role) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const state = ['aria-current', 'aria-sort', 'aria-expanded', 'aria-pressed', 'aria-selected']
      .filter((name) => element.hasAttribute(name))
      .map((name) => `${name}=${element.getAttribute(name)}`);
    if (element.disabled) state.push('disabled');
    for (const name of element.classList) if (name.startsWith('status-')) state.push(name);
    const text = element.getAttribute('aria-label') ?? element.textContent;
    found.push({
      role, state: state.join(' '),
      text: text.trim().replace(/\\s+/g, ' ').slice(0, 80),
      box: [snap(box.x), snap(box.y + scrollY), snap(box.width), snap(box.height)],
    });
  }
  return found;
}
"""

HOLDS = """
([argument, left]) => new Promise((done, fail) => {
  const end = performance.now() + left;
  const look = () => {
    try {
      const found = (CONDITION);
      if (typeof found === 'function' ? found(argument) : found) done(true);
      else if (performance.now() >= end) done(false);
      else setTimeout(look, 20);
    } catch (error) { fail(error); }
  };
  look();
})
"""

FAULTS = """
() => {
  const wrong = [];
  const name = (element) => {
    const names = element.className.baseVal ?? element.className;
    const more = element.id ? '#' + element.id : names;
    return `${element.tagName.toLowerCase()} ${more} “${element.textContent.trim().slice(0, 40)}”`;
  };
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    wrong.push(`the page is ${root.scrollWidth} px wide, the window ${root.clientWidth}`);
    for (const element of document.querySelectorAll('body *')) {
      const box = element.getBoundingClientRect();
      const isOut = box.right > root.clientWidth + 1 && box.width;
      if (isOut) wrong.push(`too far right: ${name(element)}`);
      if (wrong.length > 6) break;
    }
  }
  const hides = (element) => {
    const style = getComputedStyle(element);
    return style.overflowX !== 'visible' && style.textOverflow !== 'ellipsis'
      && !['auto', 'scroll'].includes(style.overflowX);
  };
  for (const element of document.querySelectorAll('body *')) {
    const isApart = element.closest('.hidden-text, svg, thead, dialog:not([open])');
    if (isApart || !element.checkVisibility() || element.clientWidth <= 1) continue;
    if (hides(element) && element.scrollWidth > element.clientWidth + 1) {
      wrong.push(`cut off: ${name(element)}`);
    }
  }
  return wrong;
}
"""

MISPLACED = """
(selector) => {
  const boxes = [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility())
    .map((element) => [element.textContent.trim().slice(0, 40), element.getBoundingClientRect()]);
  const wrong = [];
  for (let a = 0; a < boxes.length; a += 1) {
    for (let b = a + 1; b < boxes.length; b += 1) {
      const [one, two] = [boxes[a][1], boxes[b][1]];
      const width = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const height = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (width > 1 && height > 1) wrong.push(`“${boxes[a][0]}” and “${boxes[b][0]}” overlap`);
    }
  }
  return wrong;
}
"""


class ServerThread:
    """Serves a generated fabric from a thread of its own. What a test does to the fabric goes
    through `do`, since only the thread's loop may touch it."""

    def __init__(self, fabric: GeneratedFabric) -> None:
        self.fabric = fabric
        self.server = GeneratedServer(fabric)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(60), "the generated fabric did not begin to listen"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with serving(self.server) as self.port:
            self._ready.set()
            await self._end.wait()

    def do(self, act: Callable[[GeneratedFabric], T]) -> T:
        """Does something to the fabric, and returns its result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(act(self.fabric))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


class Console:
    """A page of the console in a test.

    Attributes:
        page: of Playwright.
        at: the served fabric.
        allowed: texts in console errors that the test expects.
    """

    def __init__(self, page: Any, at: ServerThread) -> None:
        self.page, self.at = page, at
        self.allowed: list[str] = []
        self._wrong: list[str] = []
        self._costs: Any = None
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(WATCH)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._wrong.append(f"error: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._wrong.append(f"console {message.type}: {message.text}")

    def _on_request(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws") and address.port != self.at.port:
            self._wrong.append(f"foreign request: {request.url}")

    # -- going about -------------------------------------------------------------------------
    def open(self, hash: str = "#/", ready: str = "main h1") -> None:
        """Opens a page by its address, and waits until it shows something."""
        self.page.goto(self.at.url + hash)
        self.page.wait_for_selector(ready)

    def tick(self, seconds: int = 1) -> None:
        """Lets the fabric's time pass, and waits until the page shows it."""
        self.at.do(lambda fabric: fabric.advance(seconds))
        self.settled()

    def do(self, act: Callable[[GeneratedFabric], T]) -> T:
        """Does something to the fabric, lets a second pass, and waits until the page shows it."""
        found = self.at.do(act)
        self.tick()
        return found

    def settled(self) -> None:
        """Waits until the page has drawn the fabric as it is now."""
        now_us = self.at.do(lambda fabric: fabric.now_us)
        # It asks at once, unless an answer is on its way: then a second later.
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        self.until("(us) => Number(document.querySelector('main')?.dataset.timeUs) >= us", now_us)
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def until(self, condition: str, argument: Any = None) -> None:
        """Waits until an expression of the page is true, or a function of the page returns true.

        Playwright's own `wait_for_function` evaluates its text again at each look, which the
        console's Content-Security-Policy forbids: only a condition that is true at once passes.
        """
        from playwright.sync_api import Error

        look = HOLDS.replace("CONDITION", condition)
        deadline_s = time.monotonic() + WAIT_MS / 1000
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                if self.page.evaluate(look, [argument, left_s * 1000]):
                    return
            except Error as error:
                # The page was left while it looked: the next page answers.
                if "context was destroyed" not in str(error):
                    raise
        raise AssertionError(f"after {WAIT_MS} ms still false at {self.page.url}: {condition}")

    def closed(self) -> None:
        """Waits until no dialog is open: the browser closes them a little later than it is told."""
        self.page.wait_for_selector("dialog", state="detached")

    def text(self, selector: str = "main") -> str:
        return str(self.page.inner_text(selector))

    # -- judging -----------------------------------------------------------------------------
    def faults(self) -> list[str]:
        """Returns what is cut off, or wider than the window."""
        return list(self.page.evaluate(FAULTS))

    def overlaps(self, selector: str) -> list[str]:
        """Returns which of the elements lie on one another."""
        return list(self.page.evaluate(MISPLACED, selector))

    def structure(self, selector: str = "body") -> list[dict[str, Any]]:
        """Returns role, state, text and box of each element, on a grid of 8 px."""
        root = self.page.query_selector(selector)
        return list(self.page.evaluate(STRUCTURE, [root, GRID_PX]))

    def places(self, selector: str) -> list[tuple[str, list[int]]]:
        """Returns text and box of each element."""
        found = self.page.eval_on_selector_all(
            selector,
            "(all) => all.map((each) => { const box = each.getBoundingClientRect();"
            " return [each.textContent, [box.x, box.y, box.width, box.height]]; })",
        )
        return [(text, box) for text, box in found]

    def axe(self, *disabled: str) -> list[str]:
        """Returns what axe finds wrong for WCAG 2.2 AA."""
        # The page's policy forbids scripts of others: the browser's own debugger does not ask it.
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        rules = {rule: {"enabled": False} for rule in disabled}
        found = self.page.evaluate(
            """async (rules) => (await axe.run(document, {
              runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice'], rules,
              preload: false,  // It would write inline styles, which the policy forbids.
            })).violations.map(({ id, nodes }) => nodes.slice(0, 4)
              .map((node) => `${id}: ${node.html.slice(0, 160)} ${node.failureSummary}`)).flat()""",
            rules,
        )
        return list(found)

    def long_tasks(self) -> list[int]:
        """Returns the durations in ms of tasks above 50 ms."""
        return list(self.page.evaluate("() => window.__tasks"))

    def cost(self) -> float:
        """Returns the page's processor time until now in ms, however busy the machine is."""
        if self._costs is None:
            self._costs = self.page.context.new_cdp_session(self.page)
            self._costs.send("Performance.enable", {"timeDomain": "threadTicks"})
        found = self._costs.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in found if each["name"] == "TaskDuration")) * 1000

    def picture(self, name: str, full_page: bool = True) -> None:
        """Writes a picture to the folder that RAYLAY_PICTURES names; without it does nothing."""
        folder = os.environ.get("RAYLAY_PICTURES")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=full_page)

    def check(self) -> None:
        """Fails where the page did what it must not."""
        if not self.page.is_closed():
            self._wrong += [f"policy: {each}" for each in self.page.evaluate("window.__violations")]
        wrong = [each for each in self._wrong if not any(text in each for text in self.allowed)]
        assert not wrong, "\n".join(wrong)


class Browser:
    """One Chromium of a process, for all of its tests.

    Playwright's loop stands for running in this thread as long as it is there, and no other test
    could run one: it is taken out between the tests.
    """

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        self._loop: asyncio.AbstractEventLoop | None = asyncio._get_running_loop()
        self._chromium = self._playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        asyncio._set_running_loop(None)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        with self._entered():
            self._chromium.close()
            self._playwright.stop()

    def drawn(self, html: str, width: int, height: int) -> bytes:
        """Returns the picture of the first pixels of a page that asks for nothing, as PNG."""
        with self._entered():
            page = self._chromium.new_page(viewport={"width": width, "height": height})
            try:
                page.set_content(html)
                return bytes(page.screenshot())
            finally:
                page.close()

    @contextmanager
    def console(
        self,
        fabric: GeneratedFabric,
        width: int = 1440,
        scheme: str = "light",
        make: Callable[[GeneratedFabric], ServerThread] = ServerThread,
        **more: Any,
    ) -> Iterator[Console]:
        """Serves a fabric, and opens a window that is checked at its end."""
        at = make(fabric)
        at.start()
        try:
            with self._entered():
                context = self._chromium.new_context(
                    viewport={"width": width, "height": HEIGHT},
                    color_scheme=scheme,
                    reduced_motion="reduce",
                    timezone_id="Europe/Berlin",
                    locale="en-GB",
                    **more,
                )
                try:
                    console = Console(context.new_page(), at)
                    yield console
                    console.check()
                finally:
                    context.close()
        finally:
            at.stop()


def make_browser() -> Iterator[Browser]:
    """The body of the fixture `browser` of tests/console/conftest.py."""
    pytest.importorskip("playwright", reason="pip install playwright, for the console's tests")
    if not CHROMIUM:
        pytest.skip(MISSING)
    browser = Browser()
    yield browser
    browser.close()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Waits for something that certainly comes.

    Raises:
        AssertionError: it has not come.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not yet after {seconds} s: {what}"
        time.sleep(0.02)


def as_lines(structure: list[dict[str, Any]]) -> str:
    """Returns a structure as lines, for a diff that a person reads."""
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in structure)
