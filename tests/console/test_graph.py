"""The replication graph (services/console/static/graph): where its parts stand, how links are
drawn, and that it is read, walked and opened by pointer and keyboard. In a real browser before
generated fabrics of 2, 6, 30 and 100 instances."""

from __future__ import annotations

from typing import Any

import pytest
from support.console_browser import Browser, Console
from support.generated_fabric import HOSTILE, GeneratedFabric

GRAPH = ".graph[data-ready] .graph-canvas[data-drawn]"
SIZES = (2, 6, 30, 100)

GEOMETRY = """
() => {
  const wrong = [];
  const round = (box) => [box.left, box.top, box.right, box.bottom].map(Math.round).join(' ');
  const inside = (small, large, what) => {
    const isIn = small.left >= large.left - 1 && small.right <= large.right + 1
      && small.top >= large.top - 1 && small.bottom <= large.bottom + 1;
    if (!isIn) wrong.push(`${what} (${round(small)}) is not inside ${round(large)}`);
  };
  const boxes = (selector) => [...document.querySelectorAll(selector)]
    .map((each) => ({ name: each.parentElement.textContent, box: each.getBoundingClientRect() }));
  const apart = (some, others, what) => {
    for (const a of some) for (const b of others) {
      if (a === b || (some === others && some.indexOf(a) > others.indexOf(b))) continue;
      const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (width > 1 && height > 1) wrong.push(`${what}: “${a.name}” lies on “${b.name}”`);
    }
  };
  const frames = boxes('.g-frame');
  const instances = boxes('.g-instance .g-box');
  const cards = boxes('.g-cards .g-card rect');
  apart(frames, frames, 'regions');
  apart(instances, instances, 'instances');
  apart(cards, cards, 'cards');
  apart(cards, instances, 'cards and instances');
  const canvas = document.querySelector('.graph-canvas').getBoundingClientRect();
  for (const { name, box } of [...frames, ...instances, ...cards]) inside(box, canvas, name);
  const owners = [
    ['.g-instance', '.g-box'], ['.g-cards .g-card', 'rect'], ['.g-region:not(.g-over)', '.g-frame'],
  ];
  for (const [group, own] of owners) {
    for (const each of document.querySelectorAll(group)) {
      const outer = each.querySelector(own).getBoundingClientRect();
      for (const text of each.querySelectorAll('text')) {
        inside(text.getBoundingClientRect(), outer, `“${text.textContent}”`);
      }
    }
  }
  return wrong;
}
"""
"""Finds parts that overlap, lie outside the canvas, or have a text wider than their box."""

PLACES = """
() => Object.fromEntries([
  ...document.querySelectorAll('.g-instance, .g-region[data-key]'),
].map((each) => {
  const box = each.querySelector('rect').getBoundingClientRect();
  return [each.dataset.key, [box.x, box.y + scrollY, box.width, box.height]];
}))
"""


def opened(console: Console, hash: str = "#/") -> None:
    """Opens the graph, and waits until all of it is drawn."""
    console.open(hash, ready=GRAPH)


def placed(console: Console) -> dict[str, list[float]]:
    """Boxes of instances and regions, measured from the graph's corner."""
    found = console.page.evaluate(PLACES)
    corner = console.page.evaluate(
        "() => { const box = document.querySelector('.graph-canvas').getBoundingClientRect();"
        " return [box.x, box.y + scrollY]; }"
    )
    return {
        key: [round(box[0] - corner[0]), round(box[1] - corner[1]), round(box[2]), round(box[3])]
        for key, box in found.items()
    }


def refreshed(console: Console, times: int) -> None:
    """Gives the page as many answers of its instance, a second apart, and lets it draw each."""
    console.at.do(lambda fabric: fabric.advance())
    later = console.at.do(lambda fabric: fabric.fabric_json())
    console.page.evaluate(
        """async ([later, times]) => {
          const { fabric } = await import('./console/core/fabric.js');
          const answers = [later, fabric.value];
          for (let at = 0; at < times; at += 1) {
            fabric.value = { ...answers[at % 2], time_us: later.time_us + at * 1e6 };
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          }
        }""",
        [later, times],
    )


def modules(console: Console, script: str, argument: Any = None) -> Any:
    """Evaluates a function of the graph's modules and an argument."""
    return console.page.evaluate(
        f"""async (given) => {{
          const names = ['topology', 'layout', 'routes', 'faces', 'scene'];
          const all = await Promise.all(
            names.map((name) => import(`./console/graph/${{name}}.js`)),
          );
          const graph = Object.assign({{}}, ...all);
          return ({script})(graph, given);
        }}""",
        argument,
    )


def fabric_of(regions: dict[str, int], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A topology in the shape of fabric.json: the instances of each pair of regions link to the
    other's group."""
    members = {name: [f"{name}-{at + 1}" for at in range(size)] for name, size in regions.items()}
    links = [
        {"id": f"{source}~{group}", "from": source, "to": members[group], "to_group": group}
        for one, other in pairs
        for begin, group in ((one, other), (other, one))
        for source in members[begin]
    ]  # fmt: skip
    return {
        "fabric": "made",
        "regions": [{"name": name, "instances": own} for name, own in members.items()],
        "instances": [
            {"name": name, "group": group} for group, own in members.items() for name in own
        ],
        "links": links,
    }  # fmt: skip


def mesh(names: list[str]) -> list[tuple[str, str]]:
    return [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]


# -- places ----------------------------------------------------------------------------------------
def test_places_depend_on_the_topology_alone(browser: Browser) -> None:
    with browser.console(GeneratedFabric(2)) as console:
        console.open()
        for size in SIZES:
            one, other = GeneratedFabric(size), GeneratedFabric(size, seed=9, scenario="healthy")
            other.advance(77)
            places = modules(
                console,
                """(graph, fabrics) => fabrics.map((fabric) => {
                  const topology = graph.topologyOf(fabric);
                  const places = graph.placeRegions(topology);
                  const made = graph.arrange(topology, places, { width: 1200, height: 640 });
                  return [...made.regions.values(), ...made.instances.values()]
                    .map((box) => [box.name, box.x, box.y]);
                })""",
                [one.fabric_json(), other.fabric_json(), one.fabric_json()],
            )
            assert places[0] == places[1] == places[2]
            regions = places[0][: len(one.regions)]
            assert [name for name, *_ in regions] == list(one.regions), "in configured order"
            assert all(x % 8 == 0 and y % 8 == 0 for _, x, y in regions), "on a grid of 8 px"


def test_up_to_eight_regions_stand_on_an_ellipse_and_a_hub_in_its_middle(browser: Browser) -> None:
    names = [f"R{at}" for at in range(9)]
    around = fabric_of(dict.fromkeys(names[:8], 1), mesh(names[:8]))
    hub = fabric_of(
        dict.fromkeys(names, 1), [(names[3], name) for name in names if name != names[3]]
    )
    place = "(graph, fabric) => graph.placeRegions(graph.topologyOf(fabric))"
    with browser.console(GeneratedFabric(2)) as console:
        console.open()
        ring = modules(console, place, around)
        star = modules(console, place, hub)
    assert ring["R0"]["x"] < 0 and ring["R0"]["y"] < 0, "begins upper left"
    assert all(max(abs(each["x"]), abs(each["y"])) > 0.6 for each in ring.values())
    assert star["R3"] == {"x": 0, "y": 0}
    assert all(
        max(abs(star[name]["x"]), abs(star[name]["y"])) > 0.6 for name in names if name != "R3"
    )


def test_a_new_region_is_fitted_in_and_the_others_stay(browser: Browser) -> None:
    names = [f"R{at}" for at in range(12)]
    with browser.console(GeneratedFabric(2)) as console:
        console.open()
        for before in (3, 5, 11):
            old = fabric_of(dict.fromkeys(names[:before], 2), mesh(names[:before]))
            new = fabric_of(dict.fromkeys(names[: before + 1], 2), mesh(names[: before + 1]))
            first, second, layout = modules(
                console,
                """(graph, [before, after]) => {
                  const first = graph.placeRegions(graph.topologyOf(before));
                  const topology = graph.topologyOf(after);
                  const names = topology.regions.map((region) => region.name);
                  const kept = graph.keptPlaces([{ places: first }], names);
                  const second = graph.placeRegions(topology, kept);
                  const layout = graph.arrange(topology, second, { width: 1200, height: 640 });
                  return [first, second, [...layout.regions.values()]
                    .map(({ x, y, width, height }) => [x, y, width, height])];
                }""",
                [old, new],
            )
            assert {name: second[name] for name in first} == first
            assert set(second) == set(names[: before + 1])
            assert not [
                (a, b)
                for at, a in enumerate(layout)
                for b in layout[at + 1 :]
                if a[0] < b[0] + b[2] and b[0] < a[0] + a[2]
                and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]
            ]  # fmt: skip


@pytest.mark.covers("Administration", "the console's graph stays where it is, shows each st")
@pytest.mark.parametrize("size", SIZES)
def test_no_refresh_reload_or_dead_peer_moves_anything(browser: Browser, size: int) -> None:
    with browser.console(GeneratedFabric(size)) as console:
        opened(console)
        before = placed(console)
        assert len([key for key in before if key.startswith("i:")]) == size
        refreshed(console, 20)
        assert placed(console) == before, "after 20 refreshes"
        dead = list(console.at.fabric.instances)[-1]
        console.do(lambda fabric: fabric.kill(dead))
        console.page.wait_for_selector(f'.g-instance.is-unknown[data-key="i:{dead}"]')
        assert placed(console) == before, "after a peer died"
        console.page.reload()
        console.page.wait_for_selector(GRAPH)
        assert placed(console) == before, "after a reload"


@pytest.mark.covers("Administration", "the console's graph stays where it is, shows each st")
@pytest.mark.parametrize("width", [1440, 1024])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_overlaps_or_is_cut_off(browser: Browser, size: int, width: int) -> None:
    with browser.console(GeneratedFabric(size), width) as console:
        opened(console)
        console.tick()
        assert console.page.evaluate(GEOMETRY) == []
        assert console.faults() == []
        console.picture(f"graph-{size}-{width}")


# -- how links read --------------------------------------------------------------------------------
def link_like(state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "a~b", "from": "a", "destination": "b", "to": ["b"], "to_group": "B",
        "configured_type": "async", "state": state, "level": "ready", "text": "",
        "rate_per_sec": 900, "lag": 0, "seconds_behind": 0.2,
        "trend": "steady", "seconds_left": None, "since_us": None, "safe": True, "why": "", **more,
    }  # fmt: skip


@pytest.mark.covers("Administration", "the console's graph stays where it is, shows each st")
def test_each_state_has_its_line_and_its_text(browser: Browser) -> None:
    fabric = GeneratedFabric(6, scenario="healthy")
    links = list(fabric.links.values())
    with browser.console(fabric) as console:
        opened(console)
        sync = next(
            each for each in links if each.configured_sync and each.destination in fabric.regions
        )
        plain = next(each for each in links if not each.configured_sync)

        def strokes(link_id: str) -> list[str]:
            return list(
                console.page.eval_on_selector_all(
                    f'.g-lines a[data-key="l:{link_id}"] :is(path:not(.g-hit), circle)',
                    "(all) => all.map((each) => (each.getAttribute('class') ?? each.tagName)"
                    " + (each.getAttribute('stroke-dasharray') ? ' dashed' : ''))",
                )
            )

        def card(link_id: str) -> str:
            return str(console.page.text_content(f'.g-cards .g-card[data-key="l:{link_id}"]'))

        assert strokes(sync.id) == ["g-stroke", "g-inner", "g-head"], "sync is double"
        assert strokes(plain.id) == ["g-stroke", "g-head"], "async is single"

        console.do(lambda _: fabric.downgrade(sync.id, owes=1_204, seconds_ago=130))
        found = strokes(sync.id)
        assert found[:3] == ["g-stroke dashed", "g-inner", "g-head"], "downgraded: double, dashed"
        assert {"g-shield-body", "g-shield-bar"} < set(found), "and unsafe: a barred shield"
        assert "▲" in card(sync.id) and "unsafe: owes 1," in card(sync.id)

        def catch_up(_: GeneratedFabric) -> None:
            plain.state, plain.owes, plain.trend = "catching_up", 48_000, "shrinking"

        console.do(catch_up)
        assert "g-chevrons" in strokes(plain.id)
        assert "»" in card(plain.id)

        def refuse(_: GeneratedFabric) -> None:
            plain.state, plain.owes, plain.since_us = "refused", 0, fabric.now_us - 900_000_000
            plain.why = "validation failed"

        console.do(refuse)
        assert strokes(plain.id).count("g-stroke") == 2, "a gap"
        assert "⊘refused 15 m" in card(plain.id)

        console.do(lambda _: fabric.silence(plain.source, 38))
        assert "g-stroke dashed" in strokes(plain.id)
        assert "?" in card(plain.id) and "ago" in card(plain.id)
        name = console.page.get_attribute(f'a[data-key="l:{plain.id}"]', "aria-label")
        assert name and "unknown" in name


def test_texts_of_links_and_bundles(browser: Browser) -> None:
    links = [
        link_like("async"),
        link_like("async", seconds_behind=3.2, trend="growing", lag=310),
        link_like("unknown", level="unknown", rate_per_sec=None, lag=None, seconds_behind=None),
        link_like(
            "downgraded",
            level="attention",
            configured_type="sync",
            seconds_behind=1.0,
            text="downgraded 2 m",
            safe=False,
            lag=12,
        ),
    ]
    # Along an async link to another group nobody fails over.
    links[1] |= {"safe": False, "from_group": "A", "to_group": "B"}
    with browser.console(GeneratedFabric(2)) as console:
        console.open()
        bundle, some, steps, lying = modules(
            console,
            """(graph, links) => {
              const face = graph.lineFace(links, 'async');
              return [
                { ...face, worst: face.worst.state, texts: graph.bundleTexts(face) },
                graph.bundleTexts(graph.lineFace(links.slice(0, 3), 'async')),
                [null, 0, 99, 100, 4999, 5000].map(graph.widthOf),
                graph.lineFace([{ id: 1, state: 'splendid', level: 'splendid' }], 'async'),
              ];
            }""",
            links,
        )
    assert (bundle["worst"], bundle["level"], bundle["rate"]) == ("downgraded", "attention", 2700)
    assert (bundle["lag"], bundle["trend"], bundle["unknown"], bundle["unsafe"]) == (
        3.2,
        "growing",
        1,
        1,
    )
    assert bundle["texts"][0] == "4 links, worst 3.2 s ▲"
    assert some[0] == "2 of 3 answered"
    assert steps == [0, 0, 0, 1, 1, 2]
    assert (lying["kind"], lying["level"], lying["rate"]) == ("unknown", "unknown", None)


def test_what_is_unknown_is_in_no_sum(browser: Browser) -> None:
    with browser.console(GeneratedFabric(30)) as console:
        opened(console)
        missing = [each.name for each in console.at.fabric.instances.values() if each.missing]
        region = missing[0].rsplit("-", 1)[0]
        assert "of 5" in str(console.page.text_content(f'[data-key="r:{region}"]'))
        assert "answered" in str(
            console.page.get_attribute(f'[data-key="r:{region}"]', "aria-label")
        )
        box = console.page.text_content(f'[data-key="i:{missing[0]}"]')
        assert box is not None and "?" in box and missing[0] in box


def test_a_failover_shows_and_moves_nothing(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6, scenario="healthy")) as console:
        opened(console)
        link = next(each for each in console.at.fabric.links.values() if len(each.to) > 1)
        lead = f'.g-leads path[data-link="{link.id}"]'
        first, second = link.to
        assert console.page.get_attribute(lead, "data-to") == first
        before, line = (
            placed(console),
            console.page.get_attribute(f'a[data-key="l:{link.id}"] .g-stroke', "d"),
        )
        for connected, shown in ((second, second), ("", None)):
            found = console.page.evaluate(
                """async ([id, connected_to, lead]) => {
                  const { fabric } = await import('./console/core/fabric.js');
                  const links = fabric.value.links
                    .map((link) => (link.id === id ? { ...link, connected_to } : link));
                  fabric.value = { ...fabric.value, links };
                  await new Promise((done) => setTimeout(done));
                  return document.querySelector(lead)?.dataset.to ?? null;
                }""",
                [link.id, connected, lead],
            )
            assert found == shown
            assert placed(console) == before
            assert console.page.get_attribute(f'a[data-key="l:{link.id}"] .g-stroke', "d") == line


# -- reading and walking it ------------------------------------------------------------------------
@pytest.mark.parametrize("size", [2, 6])
def test_every_part_has_a_name_and_opens_its_page(browser: Browser, size: int) -> None:
    with browser.console(GeneratedFabric(size)) as console:
        opened(console)
        # What the opened pages show, and whether they are there, is for their own tests.
        console.allowed.append("Failed to load resource")
        names = console.page.eval_on_selector_all(
            ".graph-svg [data-key][tabindex]",
            "(all) => all.map((each) => [each.dataset.key, each.getAttribute('aria-label'),"
            " each.getAttribute('href')])",
        )  # fmt: skip
        assert all(name for _, name, _ in names)
        hrefs = {key: href for key, _, href in names if href}
        for name in console.at.fabric.instances:
            assert hrefs[f"i:{name}"] == f"#/instance/{name}"
        for link_id in console.at.fabric.links:
            assert hrefs[f"l:{link_id}"] == f"#/link/{link_id}"
        first = next(iter(console.at.fabric.instances))
        console.page.click(f'[data-key="i:{first}"] .g-name')
        console.until(f"location.hash.startsWith('#/instance/{first}')")
        console.page.go_back()
        console.page.wait_for_selector(GRAPH)
        console.page.click(".g-cards .g-card")
        console.until("location.hash.startsWith('#/link/')")


def test_pointing_at_a_part_tells_everything_of_it(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        opened(console)
        down = next(each for each in console.at.fabric.links.values() if each.state == "downgraded")
        console.page.hover(f'.g-cards .g-card[data-key="l:{down.id}"]')
        console.page.wait_for_selector(".graph-info")
        told = console.text(".graph-info")
        for word in ("→", "downgraded", "configured sync", "unacknowledged", "oldest", "growing"):
            assert word in told
        assert console.page.query_selector(".g-overlay .g-line") is not None
        assert console.faults() == []


def test_arrows_walk_the_graph_and_enter_opens(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        opened(console)
        console.allowed.append("Failed to load resource")  # The opened page is another's test.
        console.page.focus(".graph-canvas")
        seen = []
        for key in (
            "ArrowRight",
            "ArrowRight",
            "ArrowRight",
            "ArrowRight",
            "ArrowDown",
            "ArrowLeft",
        ):
            console.page.keyboard.press(key)
            seen.append(console.page.evaluate("() => document.activeElement.dataset.key"))
        first, *_ = console.at.fabric.instances
        assert seen[0] == f"i:{first}", "begins at the first instance"
        assert len(set(seen)) >= 5, seen
        assert any(key.startswith("l:") for key in seen), "lines are walked too"
        assert console.page.query_selector(".graph-info") is not None
        focused = str(console.page.evaluate("() => document.activeElement.getAttribute('href')"))
        console.page.keyboard.press("Enter")
        console.until("(href) => location.hash === href", focused)


def test_a_region_unfolds_and_all_links_are_drawn(browser: Browser) -> None:
    with browser.console(GeneratedFabric(30)) as console:
        opened(console)
        before = placed(console)
        console.page.click('[data-key="r:Tokyo"] .g-title')
        console.page.wait_for_selector(".g-panel")
        assert "open=Tokyo" in console.page.evaluate("() => location.hash")
        console.until(
            "(number) => document.querySelectorAll('.g-panel .g-line').length >= number", 5
        )
        assert {
            key: box for key, box in placed(console).items() if not key.startswith("i:Tokyo")
        } == {key: box for key, box in before.items() if not key.startswith("i:Tokyo")}
        console.page.focus(".graph-canvas")
        console.page.keyboard.press("Escape")
        console.page.wait_for_selector(".g-panel", state="detached")
        console.page.click(".graph-switch input")
        number = len(console.at.fabric.links)
        console.until(
            "(number) => document.querySelectorAll('.g-lines > .g-line').length === number",
            number,
        )
        assert "lines=all" in console.page.evaluate("() => location.hash")
        assert placed(console) == before


def test_a_large_fabric_shows_its_worst_links_singly(browser: Browser) -> None:
    with browser.console(GeneratedFabric(100)) as console:
        opened(console)
        down = next(each for each in console.at.fabric.links.values() if each.state == "downgraded")
        assert console.page.query_selector(f'.g-lines a[data-key="l:{down.id}"]') is not None
        singles = console.page.query_selector_all('.g-lines a[data-key^="l:"]')
        assert 0 < len(singles) <= 50
        bundles = console.page.query_selector_all('.g-lines a[data-key^="b:"]')
        assert len(bundles) >= 90


def test_panning_moves_the_layer_and_draws_once_at_the_end(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        opened(console)
        page = console.page
        box = page.query_selector(".graph-canvas").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + 24
        state = """() => { const svg = document.querySelector('.graph-svg');
          return [svg.style.transform, svg.querySelector('g').getAttribute('transform')]; }"""
        _, drawn = page.evaluate(state)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 60, y + 40, steps=3)
        moving, still = page.evaluate(state)
        assert "translate(-60px, 40px)" in moving and still == drawn
        page.mouse.up()
        moving, after = page.evaluate(state)
        assert not moving and after != drawn
        page.click(".graph-zoom button:last-child")
        console.until(f"() => ({state})()[1] === {drawn!r}")


@pytest.mark.parametrize("size", [6, 100])
def test_a_narrow_page_has_a_list_instead(browser: Browser, size: int) -> None:
    with browser.console(GeneratedFabric(size), 390, "dark") as console:
        console.open(ready=".graph-list a")
        assert console.page.query_selector(".graph-svg") is None
        hrefs = set(
            console.page.eval_on_selector_all(
                ".graph-list a", "(all) => all.map((each) => each.getAttribute('href'))"
            )
        )  # fmt: skip
        assert {f"#/instance/{name}" for name in console.at.fabric.instances} <= hrefs
        if size == 6:
            assert {f"#/link/{link}" for link in console.at.fabric.links} <= hrefs
        assert console.faults() == []
        console.picture(f"graph-{size}-390")


def test_the_list_is_one_step_away_for_screen_readers(browser: Browser) -> None:
    with browser.console(GeneratedFabric(6)) as console:
        opened(console)
        console.page.click("text=as a list")
        console.page.wait_for_selector(".graph-list a")
        assert "view=list" in console.page.evaluate("() => location.hash")
        assert console.axe() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_passes_axe(browser: Browser, scheme: str) -> None:
    with browser.console(GeneratedFabric(6), scheme=scheme) as console:
        opened(console)
        assert console.axe() == []


def test_names_are_texts_and_lies_are_unknown(browser: Browser) -> None:
    fabric = GeneratedFabric(6, hostile=True)
    with browser.console(fabric) as console:
        opened(console)
        label = console.page.get_attribute(f".g-instance[aria-label^='{HOSTILE}']", "aria-label")
        assert label
        first = next(iter(fabric.instances))
        console.do(lambda _: fabric.lie(first))
        console.page.wait_for_selector(f'.g-instance.is-unknown[data-key="i:{first}"]')
        assert console.page.evaluate(GEOMETRY) == []


# -- speed -----------------------------------------------------------------------------------------
DRAWN_MS = 1_000
TASK_MS = 100
ATTEMPTS = 8

LOOP_MS = 20.0
SLOWNESS = """
async () => {
  let total = 0;
  for (let round = 0; round < 5; round += 1) {
    const begin = performance.now();
    let sum = 0;
    for (let i = 0; i < 3e6; i += 1) sum += Math.sqrt(i) % 7;
    total += performance.now() - begin;
    await new Promise((done) => setTimeout(done, sum ? 10 : 0));
  }
  return total / 5;
}
"""
"""A loop that takes LOOP_MS on a quiet machine of two cores. What it takes longer, others take."""

TIMES = """
window.__long = [];
window.__answered = 0;
window.__drawn = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.__long.push([each.startTime, each.duration]);
}).observe({ type: 'longtask', buffered: true });
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) {
    if (window.__answered || !each.name.includes('fabric.json')) continue;
    window.__answered = each.responseEnd;
  }
}).observe({ type: 'resource', buffered: true });
const look = () => {
  const isDrawn = document.querySelector('.graph[data-ready] .graph-canvas[data-drawn]');
  if (isDrawn) window.__drawn = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


@pytest.mark.covers("Administration", "the console's graph stays where it is, shows each st")
@pytest.mark.parametrize("hash", ["#/", "#/?lines=all"])
def test_a_hundred_instances_and_a_thousand_links_are_drawn_at_once(
    browser: Browser, hash: str
) -> None:
    """Drawn within 1 s of their data without a task above 100 ms. The machine's other work only
    adds to both: the best of several loads is judged, against a loop that ran just before and
    after."""
    fabric = GeneratedFabric(100)
    assert len(fabric.links) >= 1_000
    tried = []
    with browser.console(fabric) as console:
        console.page.add_init_script(TIMES)
        for _ in range(ATTEMPTS):
            console.page.goto("about:blank")
            opened(console, hash)
            before = console.page.evaluate(SLOWNESS)
            console.page.reload()
            console.page.wait_for_selector(GRAPH)
            answered, drawn, long = console.page.evaluate(
                "() => [window.__answered, window.__drawn, window.__long]"
            )
            worst = max((task for begin, task in long if begin + task > answered), default=0)
            loop = (before + console.page.evaluate(SLOWNESS)) / 2
            slow = max(1.0, loop / LOOP_MS)
            tried.append((round(drawn - answered), round(worst), round(slow, 1)))
            if drawn - answered <= DRAWN_MS * slow and worst <= TASK_MS * slow:
                break
        else:
            pytest.fail(f"drawn after and longest task in ms, slowness: {tried}")
