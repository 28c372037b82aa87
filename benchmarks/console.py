"""How soon the console shows a fabric of 100 instances and 1,000 links, and what its refreshes cost
the browser. Chromium without a screen, before a generated fabric (tests/support).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from context import Bench, Figure

from raylay.services.hosts.latency import quantile

ROOT = Path(__file__).parents[1]
LOADS = 5
REFRESHES = 20
NAMES = (
    "console_100_drawn_ms",
    "console_100_longest_task_ms",
    "console_100_refresh_processor_ms",
    "console_first_load_kb",
)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
DRAWN = ".graph[data-ready] .graph-canvas[data-drawn]"
WATCH = f"""
window.tasks = [];
new PerformanceObserver((list) => {{
  for (const entry of list.getEntries()) window.tasks.push(entry.duration);
}}).observe({{ type: 'longtask', buffered: true }});
new MutationObserver(() => {{
  if (!window.drawnMs && document.querySelector('{DRAWN}')) window.drawnMs = performance.now();
}}).observe(document, {{ subtree: true, childList: true, attributes: true }});
"""
SINCE_DATA = """
() => {
  const all = performance.getEntriesByType('resource');
  const data = all.find(({ name }) => name.endsWith('fabric.json'));
  const sent = all.filter(({ name }) => name.includes('/console/'));
  const bytes = sent.reduce((sum, each) => sum + each.encodedBodySize, 0);
  return [window.drawnMs - data.responseEnd, bytes];
}
"""


@asynccontextmanager
async def generated_fabric() -> Any:
    """Serves 100 generated instances from a process of their own, and yields the address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.generated_fabric", "--instances", "100", "--port", "0"),
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def processor_ms(session: Any) -> float:
    """Returns the processor time of the page's main thread until now."""
    found = await session.send("Performance.getMetrics")
    return float(next(m["value"] for m in found["metrics"] if m["name"] == "TaskDuration")) * 1000


async def console(_: Bench) -> list[Figure]:
    from playwright.async_api import async_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise RuntimeError("there is no Chromium: apt-get install chromium fonts-dejavu-core")
    drawn_ms, longest_ms, refresh_ms, sent = [], [], [], 0
    async with generated_fabric() as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=[*FLAGS])
        for _load in range(LOADS):
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            page = await context.new_page()
            await page.add_init_script(WATCH)
            session = await context.new_cdp_session(page)
            await session.send("Performance.enable", {"timeDomain": "threadTicks"})
            await page.goto(address)
            await page.wait_for_selector(DRAWN)
            took_ms, sent = await page.evaluate(SINCE_DATA)
            drawn_ms.append(took_ms)
            before = await processor_ms(session)
            for _refresh in range(REFRESHES // LOADS):
                async with page.expect_response(lambda found: "fabric.json" in found.url):
                    pass
            refresh_ms.append((await processor_ms(session) - before) / (REFRESHES // LOADS))
            longest_ms.append(await page.evaluate("Math.max(0, ...window.tasks)"))
            await context.close()
        await browser.close()
    return [
        Figure("console_100_drawn_ms", quantile(drawn_ms, 0.5), "ms"),
        # A busy machine makes tasks longer, and none shorter.
        Figure("console_100_longest_task_ms", min(longest_ms), "ms"),
        Figure("console_100_refresh_processor_ms", quantile(refresh_ms, 0.5), "ms"),
        Figure("console_first_load_kb", sent / 1000, "kB"),
    ]
