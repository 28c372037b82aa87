/*
 * The live graph of the fabric: `<Graph fabric/>`.
 *
 * Places come from the configured topology (topology, layout, routes, scene); a refresh changes texts and strokes only. The drawing is SVG:
 * its parts have roles, names and addresses. Panning and zooming move the drawn layer by a CSS transform and draw once at the end.
 */
import { html, Component, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState } from '../core/html.js';
import { href, go, route, setParam } from '../core/route.js';
import { count, plural } from '../core/format.js';
import { badness } from '../core/status.js';
import { select } from '../vendor/d3-selection.js';
import { zoom, zoomIdentity } from '../vendor/d3-zoom.js';
import { signatureOf, topologyOf } from './topology.js';
import { leadOf, linesOf, pointAt, routeLines, routeSingle } from './routes.js';
import { nextTask, prepareScene } from './scene.js';
import { bundleSentence, instanceSentence, isUnsafe, kindOf, lineFace, linkLevel, linkSentence, regionFace, troubledLinks } from './faces.js';
import { Card, Instance, Line, LineShape, Region, cardTexts, instanceKey, lineKey, regionKey, regionTexts } from './marks.js';
import { InfoCard, facts } from './info.js';
import { GraphList } from './list.js';
import { Legend } from './legend.js';

const LIST_BELOW = 600;
const SINGLES_MAX = 50;
const LINES_A_TASK = 100;
const HISTORY = 60;
const DENSE_ABOVE = 64;

/* The last minute's acknowledgments of each instance, for sparklines: {name → [values]}, gaps as null. */
const history = { fabric: '', timeUs: 0, values: new Map() };

function remember(fabric) {
  if (history.fabric !== fabric.fabric) Object.assign(history, { fabric: fabric.fabric, timeUs: 0, values: new Map() });
  if (!(fabric.time_us > history.timeUs)) return;
  history.timeUs = fabric.time_us;
  for (const instance of fabric.instances || []) {
    let values = history.values.get(instance.name);
    if (!values) history.values.set(instance.name, (values = []));
    values.push(instance.level === 'unknown' ? null : (instance.acks_per_sec ?? null));
    if (values.length > HISTORY) values.shift();
  }
}

/** Names of the queues that an instance owns messages of: {instance → 'orders, fills'}. */
function ownedQueues(fabric) {
  const owned = new Map();
  for (const queue of fabric.queues || []) {
    for (const one of queue.instances || []) {
      if (!(Number(one.owned) > 0)) continue;
      owned.set(one.name, owned.has(one.name) ? `${owned.get(one.name)}, ${queue.name}` : queue.name);
    }
  }
  return owned;
}

/** Everything that a render looks up by name. */
function indexOf(fabric) {
  return {
    nowUs: fabric.time_us,
    instances: new Map((fabric.instances || []).map((instance) => [instance.name, instance])),
    links: new Map((fabric.links || []).map((link) => [link.id, link])),
    owned: ownedQueues(fabric),
  };
}

function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.floor(ref.current.clientWidth / 8) * 8);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** The scene of a topology at a width; the one before stays until the next is ready. */
function useScene(topology, signature, width) {
  const [scene, setScene] = useState(null);
  const wanted = useRef('');
  useEffect(() => {
    if (!width || width < LIST_BELOW || !topology.regions.length) return;
    const key = `${width}|${signature}`;
    wanted.current = key;
    prepareScene(topology, width, () => wanted.current === key).then((made) => {
      if (made && wanted.current === key) setScene(Object.assign(made, { key }));
    });
  }, [signature, width]);
  return scene;
}

/**
 * Grows by a slice with each task up to `total`, so that a thousand lines are no long task. Not with each frame: without a graphics
 * processor, to paint a thousand curves takes longer than to make them.
 */
function useSlices(total, key) {
  // Many lines come after the boxes; few come with them.
  const begin = total > LINES_A_TASK ? 0 : total;
  const [state, setState] = useState({ key, drawn: begin });
  const current = state.key === key ? state : { key, drawn: begin };
  useEffect(() => {
    if (current.drawn >= total) return undefined;
    let wanted = true;
    nextTask().then(() => {
      if (wanted) setState({ key, drawn: Math.min(total, current.drawn + LINES_A_TASK) });
    });
    return () => {
      wanted = false;
    };
  });
  return current.drawn;
}

/* Keys of drawn parts: i: instance, r: region, l: link, b: bundle. */
const lineId = (line) => (line.links.length === 1 && line.key === line.links[0] ? `l:${line.key}` : `b:${line.key}`);
const lineHref = (line) => (line.links.length === 1 ? href('link', [line.links[0]]) : href('links', [], { q: `${line.fromRegion} ${line.toRegion}` }));

function linksOf(line, index) {
  return line.links.map((id) => index.links.get(id)).filter(Boolean);
}

function lineName(line, face, index) {
  return line.links.length > 1 || !face.worst ? bundleSentence(line.fromRegion, line.toRegion, face) : linkSentence(face.worst, index.nowUs);
}

export function Graph({ fabric: given }) {
  const fabric = given && given.peek ? given.value : given;
  const box = useRef(null);
  const width = useWidth(box);
  const { params } = route.value;
  const topology = useMemo(() => topologyOf(fabric), [fabric]);
  const signature = useMemo(() => signatureOf(topology), [topology]);
  const index = useMemo(() => indexOf(fabric), [fabric]);
  useMemo(() => remember(fabric), [fabric]);
  const scene = useScene(topology, signature, width);
  const list = params.view === 'list' || (width > 0 && width < LIST_BELOW);
  const all = params.lines === 'all';
  return html`<section class="graph" ref=${box} aria-label="replication graph" data-detail=${topology.detail} data-ready=${scene && !list ? 'true' : null}>
    <${Bar} topology=${topology} index=${index} list=${list} small=${width < LIST_BELOW} all=${all} />
    ${list
      ? html`<${GraphList} fabric=${fabric} topology=${topology}/>`
      : scene
        ? html`<${Canvas} scene=${scene} index=${index} all=${all} open=${params.open || ''}/><${Legend}/>`
        : html`<div class="graph-canvas graph-empty"></div>`}
  </section>`;
}

const STATE_GLYPHS = [['disconnected', '⊘'], ['refused', '⊘'], ['downgraded', '▲'], ['catching_up', '»'], ['unknown', '?'], ['sync', '═'], ['async', '─']];

/** What the graph holds, by state, and its switches. */
function Bar({ topology, index, list, small, all }) {
  const states = new Map();
  let unsafe = 0;
  for (const link of index.links.values()) {
    const state = states.get(kindOf(link)) || { number: 0, level: 'ready' };
    state.number += 1;
    if (badness(linkLevel(link)) > badness(state.level)) state.level = linkLevel(link);
    states.set(kindOf(link), state);
    if (isUnsafe(link)) unsafe += 1;
  }
  const more = !list && topology.detail === 'cells' && !all ? Math.max(0, troubledLinks([...index.links.values()]).length - SINGLES_MAX) : 0;
  return html`<div class="graph-bar ${states.size + (unsafe ? 1 : 0) > 7 ? 'is-many' : ''}">
    <h2>${plural(topology.instances, 'instance')}, ${plural(index.links.size, 'link')}</h2>
    <ul class="graph-counts">
      ${STATE_GLYPHS.filter(([kind]) => states.has(kind)).map(([kind, glyph]) => html`<li key=${kind} class="is-${kind === 'sync' || kind === 'async' ? 'ready' : states.get(kind).level}"><a href=${href('links', [], { q: kind === 'catching_up' ? 'catching' : kind })}>
        <span class="graph-counts-glyph" aria-hidden="true">${glyph}</span>${count(states.get(kind).number)} ${kind.replace('_', ' ')}</a></li>`)}
      ${unsafe ? html`<li class="is-attention" key="unsafe"><a href=${href('links', [], { q: 'unsafe' })}><svg class="graph-counts-shield" viewBox="-8 -9 16 18" aria-hidden="true"><path d="M0 -7L6 -5V0C6 4 3 6 0 7.5C-3 6 -6 4 -6 0V-5Z"/><path d="M-4.5 4.5L4.5 -4.5"/></svg>${unsafe} unsafe</a></li>` : null}
      ${more ? html`<li key="more"><a href=${href('links', [], { sort: '-lag' })}>+ ${more} more</a></li>` : null}
    </ul>
    <div class="graph-tools">
    ${!list && topology.bundled ? html`<label class="graph-switch"><input type="checkbox" checked=${all} onChange=${(event) => setParam('lines', event.currentTarget.checked ? 'all' : null)}/> all links</label>` : null}
    ${small ? null : html`<button class="button button-small" type="button" aria-pressed=${String(list)} onClick=${() => setParam('view', list ? null : 'list')}>${list ? 'graph' : 'as a list'}</button>`}
    </div>
  </div>`;
}

/** The part of the page that pans and zooms. */
function Canvas({ scene, index, all, open }) {
  const canvas = useRef(null);
  const svg = useRef(null);
  const view = useRef(null);
  const hot = useSignal(null);
  const camera = useRef(null);
  const transform = useRef(zoomIdentity);
  const lines = useMemo(() => {
    if (!all || !scene.topology.bundled) return { lines: scene.lines, routes: scene.routes };
    const single = linesOf(scene.topology, scene.layout, true);
    return { lines: single.lines, routes: routeLines(single.lines, scene.layout) };
  }, [scene, all]);
  const panel = useMemo(() => (open && scene.layout.regions.has(open) && canOpen(scene, open) ? panelOf(scene, open) : null), [scene, open]);

  useLayoutEffect(() => {
    const element = canvas.current;
    element.style.height = `${scene.height}px`;
    const { world } = scene.layout;
    const scale = Math.min(1, scene.width / world.width, scene.height / world.height);
    const start = zoomIdentity.translate((scene.width - world.width * scale) / 2, (scene.height - world.height * scale) / 2).scale(scale);
    const draw = () => {
      view.current.setAttribute('transform', `translate(${transform.current.x} ${transform.current.y}) scale(${transform.current.k})`);
      svg.current.style.transform = '';
    };
    const behaviour = zoom()
      .scaleExtent([Math.min(0.5, scale), 4])
      .translateExtent([[-200, -200], [world.width + 200, world.height + 200]])
      .extent([[0, 0], [scene.width, scene.height]])
      .filter((event) => (event.type === 'wheel' ? event.ctrlKey || event.metaKey : event.type.startsWith('touch') ? event.touches.length > 1 : !event.button))
      .on('start', () => {
        hot.value = null;
      })
      .on('zoom', (event) => {
        const drawn = transform.current;
        const k = event.transform.k / drawn.k;
        svg.current.style.transform = `translate(${event.transform.x - k * drawn.x}px, ${event.transform.y - k * drawn.y}px) scale(${k})`;
      })
      .on('end', (event) => {
        transform.current = event.transform;
        draw();
      });
    const selection = select(element).call(behaviour).on('dblclick.zoom', null);
    element.__zoom = start;
    transform.current = start;
    draw();
    camera.current = {
      by: (factor) => behaviour.scaleBy(selection, factor),
      fit: () => behaviour.transform(selection, start),
      reveal: (x, y) => {
        const t = transform.current;
        const [sx, sy] = t.apply([x, y]);
        if (sx < 24 || sy < 24 || sx > scene.width - 24 || sy > scene.height - 24) behaviour.translateTo(selection, x, y);
      },
    };
    return () => selection.on('.zoom', null);
  }, [scene]);

  const keyOf = (event) => {
    const found = event.target.closest && event.target.closest('[data-key]');
    return found && canvas.current.contains(found) ? found.dataset.key : null;
  };
  const activate = (key, element) => {
    if (key && key.startsWith('r:')) {
      const name = key.slice(2);
      if (canOpen(scene, name)) setParam('open', open === name ? null : name);
    } else if (element && element.dataset.href) go(element.dataset.href);
  };
  const onClick = (event) => {
    const part = event.target.closest('[data-key]');
    if (part && !part.hasAttribute('href')) activate(part.dataset.key, part);
  };
  const onKeyDown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const key = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
    if (event.key.startsWith('Arrow')) {
      const next = neighbour(key, event.key, placesOf(scene, lines, panel), canvas.current);
      if (next) {
        camera.current.reveal(next.x, next.y);
        next.element.focus({ preventScroll: false });
      }
    } else if ((event.key === 'Enter' || event.key === ' ') && key && key.startsWith('r:')) activate(key, null);
    else if (event.key === '+' || event.key === '=') camera.current.by(1.3);
    else if (event.key === '-') camera.current.by(1 / 1.3);
    else if (event.key === '0') camera.current.fit();
    else if (event.key === 'Escape' && open) setParam('open', null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return html`<div class="graph-canvas" ref=${canvas} tabindex="0" role="group"
      aria-label="replication graph: arrows walk it, Enter opens, plus and minus zoom" aria-roledescription="graph"
      onClick=${onClick} onKeyDown=${onKeyDown}
      onPointerOver=${(event) => (hot.value = keyOf(event))} onPointerLeave=${() => (hot.value = null)}
      onFocusIn=${(event) => (hot.value = keyOf(event))} onFocusOut=${() => (hot.value = null)}>
    <svg class="graph-svg" ref=${svg} width="100%" height="100%" role="presentation">
      <defs><pattern id="g-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><path class="g-hatch-line" d="M0 3H6"/></pattern></defs>
      <g ref=${view}>
        <${Base} scene=${scene} index=${index} lines=${lines} all=${all} open=${open} panel=${panel} hot=${hot} onDrawn=${(isDrawn) => canvas.current.toggleAttribute('data-drawn', isDrawn)}/>
        ${panel ? html`<${Panel} panel=${panel} scene=${scene} index=${index}/>` : null}
        <${Overlay} scene=${scene} index=${index} lines=${lines} panel=${panel} hot=${hot} all=${all && scene.topology.bundled}/>
      </g>
    </svg>
    <${Info} scene=${scene} index=${index} lines=${lines} panel=${panel} hot=${hot} transform=${transform} open=${open} all=${all && scene.topology.bundled}/>
    <div class="graph-zoom">
      <button class="button button-small" type="button" aria-label="zoom in" onClick=${() => camera.current.by(1.3)}>+</button>
      <button class="button button-small" type="button" aria-label="zoom out" onClick=${() => camera.current.by(1 / 1.3)}>−</button>
      <button class="button button-small" type="button" aria-label="show all of the graph" onClick=${() => camera.current.fit()}>fit</button>
    </div>
  </div>`;
}

const canOpen = (scene, name) => (scene.topology.bundled || scene.inside.get(name).length > 0) && scene.layout.regions.get(name).instances.length > 1;

/** A group whose lines are faint while something is pointed at. */
function Lines({ hot, children, name, open }) {
  return html`<g class="${name} ${hot.value ? 'is-behind' : open ? 'is-below' : ''}">${children}</g>`;
}

/** Frames, lines, boxes and cards. */
function Base({ scene, index, lines, all, open, panel, hot, onDrawn }) {
  const { layout, topology } = scene;
  const { detail } = layout;
  const drawn = useSlices(lines.lines.length, `${scene.key}|${all}`);
  const bundles = topology.bundled && !all;
  const faces = new Map();
  for (const line of lines.lines.slice(0, drawn)) faces.set(line.key, lineFace(linksOf(line, index), line.type));
  // Worse lines are drawn over better ones; the order in the document is that of the configuration, for whoever walks it.
  const singles = bundles && detail === 'cells' ? singleLines(scene, index) : [];
  const thin = all && topology.bundled;
  // Among many lines what is well stands back, and only what needs somebody has a card.
  const dense = detail === 'cells' || lines.lines.length > DENSE_ABOVE;
  const faint = lines.lines.length > DENSE_ABOVE * 6 ? 'is-fainter' : 'is-faint';
  const isDrawn = drawn >= lines.lines.length;
  useLayoutEffect(() => {
    onDrawn(isDrawn);
  }, [isDrawn, scene, all]);
  const frames = (part) => [...layout.regions.values()].map((region) => {
      const inside = scene.inside.get(region.name);
      const instances = region.instances.map(({ name }) => index.instances.get(name));
      const shown = regionTexts(instances, inside.length && !thin ? lineFace(inside.map((id) => index.links.get(id)).filter(Boolean), 'async') : null);
      const face = regionKey(shown.face, shown.chip, open === region.name);
      return html`<${Region} key=${`${region.name} ${part}`} part=${part} id=${`r:${region.name}`} name=${region.name} shown=${shown} face=${face} place=${region} detail=${detail}
        frameless=${topology.frameless !== null} open=${open === region.name} canOpen=${canOpen(scene, region.name)}
        label=${`region ${region.name}: ${shown.face.answered} of ${shown.face.of} answered`}/>`;
    });
  // Lines of bundles end at frames and pass behind them; links of instances reach into them.
  const bundled = topology.bundled && !all;
  return html`
    ${bundled ? null : frames('frame')}
    <${Lines} hot=${hot} name="g-lines" open=${panel}>
      ${lines.lines.slice(0, drawn).map((line) => {
        const face = faces.get(line.key);
        const card = thin ? null : scene.cards.get(line.key);
        const mark = !card || card.moved;
        return html`<${Line} key=${line.key} id=${lineId(line)} href=${lineHref(line)} name=${thin ? `${line.from} to ${line.to || line.toRegion}: ${face.kind.replace('_', ' ')}` : lineName(line, face, index)}
          shown=${face} face=${`${lineKey(face)}|${mark}|${thin}`} place=${lines.routes.get(line.key)} at=${card ? card.t : 0.5} mark=${mark && (!thin || face.level !== 'ready')} thin=${thin} faint=${(bundles && detail === 'cells' && face.level !== 'act') || ((thin || dense) && face.level === 'ready' && !face.unsafe) ? faint : ''}/>`;
      })}
      ${singles.map(({ link, place, face }) => html`<${Line} key=${`single ${link.id}`} id=${`l:${link.id}`} href=${href('link', [link.id])} name=${linkSentence(link, index.nowUs)}
          shown=${face} face=${lineKey(face)} place=${place} at=${0.5} mark=${face.kind === 'disconnected' || face.kind === 'refused'} thin=${true}/>`)}
    </${Lines}>
    ${topology.bundled ? null : leads(scene, faces)}
    ${bundled ? frames('whole') : frames('texts')}
    ${[...layout.instances.values()].map((place) => {
      const instance = index.instances.get(place.name);
      const queues = index.owned.get(place.name) || '';
      const values = history.values.get(place.name) || [];
      return html`<${Instance} key=${place.name} id=${`i:${place.name}`} href=${href('instance', [place.name])} name=${place.name} label=${instanceSentence(instance, place.name)}
        instance=${instance} face=${instanceKey(instance, detail, queues, values)} place=${place} detail=${detail} queues=${queues} values=${values}/>`;
    })}
    <${Lines} hot=${hot} name="g-cards" open=${panel}>
      ${thin ? null : lines.lines.map((line) => {
        const card = scene.cards.get(line.key);
        const face = faces.get(line.key);
        if (!card || !face || !face.worst) return null;
        if (dense && face.level === 'ready' && !face.unsafe) return null;
        const texts = cardTexts(line, face, card, index.nowUs);
        return html`<${Card} key=${line.key} id=${lineId(line)} href=${lineHref(line)} shown=${face} texts=${texts} place=${card} face=${`${lineKey(face)}|${texts.glyph}|${texts.first}|${texts.second}`}/>`;
      })}
    </${Lines}>`;
}

/** From the ends of links to groups to the instances that they are connected to. */
function leads(scene, faces) {
  const found = [];
  for (const line of scene.lines) {
    if (line.to || line.within) continue;
    const { worst, level } = faces.get(line.key);
    const instance = worst && scene.layout.instances.get(worst.connected_to);
    const region = scene.layout.regions.get(line.toRegion);
    if (!instance || instance.region !== line.toRegion || !region.line || region.instances.length < 2) continue;
    const way = leadOf(scene.routes.get(line.key), region, instance, scene.layout.world);
    found.push(html`<path key=${line.key} class="g-lead is-${level}" data-link=${line.key} data-to=${instance.name} d=${way}/>`);
  }
  return html`<g class="g-leads" aria-hidden="true">${found}</g>`;
}

/** The box that a link ends at: its one or its connected instance, else its region. */
function targetOf(link, scene) {
  const to = link.to || [];
  const name = link.connected_to && scene.layout.instances.has(link.connected_to) ? link.connected_to : to.length === 1 ? to[0] : '';
  return scene.layout.instances.get(name) || scene.layout.regions.get(link.to_group) || scene.layout.instances.get(to[0]);
}

/** The worst links, drawn singly over the bundles. */
function singleLines(scene, index) {
  const found = [];
  for (const link of troubledLinks([...index.links.values()]).slice(0, SINGLES_MAX)) {
    const place = singleRoute(link, scene);
    if (place) found.push({ link, place, face: lineFace([link], link.configured_type) });
  }
  return found;
}

function singleRoute(link, scene) {
  let kept = scene.singleRoutes;
  if (!kept) kept = scene.singleRoutes = new Map();
  const a = scene.layout.instances.get(link.from);
  const b = targetOf(link, scene);
  if (!a || !b) return null;
  const key = `${link.id}|${b.name}`;
  if (!kept.has(key)) kept.set(key, routeSingle(a, b, scene.layout.world));
  return kept.get(key);
}

/* -- an unfolded region --------------------------------------------------------------------- */

/** Places of an unfolded region: its instances on an ellipse, every link between them a line, over everything else. */
function panelOf(scene, name) {
  const region = scene.layout.regions.get(name);
  const { world } = scene.layout;
  const number = region.instances.length;
  const size = { width: 136, height: 28 };
  const rx = Math.max(150, number * 28);
  const ry = Math.max(90, number * 14);
  const width = Math.min(world.width - 32, 2 * rx + size.width + 64);
  const height = Math.min(world.height - 32, 2 * ry + size.height + 96);
  const cx = Math.round(Math.min(Math.max(region.cx, width / 2 + 16), world.width - width / 2 - 16));
  const cy = Math.round(Math.min(Math.max(region.cy, height / 2 + 16), world.height - height / 2 - 16));
  const instances = new Map();
  region.instances.forEach((one, i) => {
    const angle = Math.PI + (number % 2 || number < 4 ? 0 : Math.PI / number) + (2 * Math.PI * i) / number;
    const x = Math.round(cx + Math.cos(angle) * (width / 2 - size.width / 2 - 32));
    const y = Math.round(cy + 16 + Math.sin(angle) * (height / 2 - size.height / 2 - 48));
    instances.set(one.name, { name: one.name, cx: x, cy: y, x: x - size.width / 2, y: y - size.height / 2, ...size, region: name });
  });
  const frame = { x: cx - width / 2, y: cy - height / 2, width, height, cx, cy };
  const lines = [];
  const byPair = new Map();
  for (const link of scene.topology.links) {
    const a = instances.get(link.from);
    if (!a) continue;
    if (link.toRegion === name) {
      for (const to of link.to.slice(0, 1)) {
        const b = instances.get(to);
        if (b) lines.push({ id: link.id, place: routeSingle(a, b, { width: 2, height: 1 }, byPair.has(`${to}|${link.from}`) ? 0.2 : -0.2), within: true });
        byPair.set(`${link.from}|${to}`, true);
      }
      continue;
    }
    const target = scene.layout.regions.get(link.toRegion);
    const covered = target.cx > frame.x && target.cx < frame.x + width && target.cy > frame.y && target.cy < frame.y + height;
    if (!covered) lines.push({ id: link.id, place: routeSingle(a, target, world), within: false });
  }
  return { name, frame, instances, lines };
}

function Panel({ panel, index }) {
  const { frame } = panel;
  const drawn = useSlices(panel.lines.length, panel);
  const made = panel.lines.slice(0, drawn).map((line) => {
    const link = index.links.get(line.id);
    const face = lineFace(link ? [link] : [], link ? link.configured_type : 'async');
    return { ...line, face, name: link ? linkSentence(link, index.nowUs) : line.id };
  });
  const draw = ({ id, place, face, name }) => html`<${Line} key=${id} id=${`l:${id}`} href=${href('link', [id])} name=${name} shown=${face} face=${lineKey(face)} place=${place} at=${0.5} mark=${face.level !== 'ready'} thin=${true}/>`;
  const summary = regionFace([...panel.instances.keys()].map((name) => index.instances.get(name)));
  return html`<g class="g-panel" role="group" aria-label=${`region ${panel.name}, unfolded`}>
    ${made.filter((line) => !line.within).map(draw)}
    <rect class="g-panel-frame" x=${frame.x} y=${frame.y} width=${frame.width} height=${frame.height} rx="12"/>
    <text class="g-title" x=${frame.x + 16} y=${frame.y + 26}>${panel.name}</text>
    <text class=${summary.answered < summary.of ? 'g-missing' : 'g-figures'} x=${frame.x + 16} y=${frame.y + 46}>${summary.answered < summary.of ? `${summary.answered} of ${summary.of} answered` : plural(summary.of, 'instance')}</text>
    <g class="g-close" role="button" tabindex="-1" aria-label=${`fold ${panel.name}`} data-key=${`r:${panel.name}`} transform="translate(${frame.x + frame.width - 24} ${frame.y + 24})"><circle r="12"/><path d="M-4 -4L4 4M4 -4L-4 4"/></g>
    ${made.filter((line) => line.within).map(draw)}
    ${[...panel.instances.values()].map((place) => {
      const instance = index.instances.get(place.name);
      return html`<${Instance} key=${place.name} id=${`i:${place.name}`} href=${href('instance', [place.name])} name=${place.name} label=${instanceSentence(instance, place.name)}
        instance=${instance} face=${instanceKey(instance, 'names', '', [])} place=${place} detail="names" queues="" values=${[]}/>`;
    })}
  </g>`;
}

/* -- what is pointed at ---------------------------------------------------------------------- */

/** The part of a key: {kind, lines: [{route, face}], boxes, facts, at: {x, y, half}} or null where it is gone. */
function partOf(key, { scene, index, lines, panel, open, all }) {
  if (!key) return null;
  const kind = key[0];
  const name = key.slice(2);
  const { layout } = scene;
  const tz = route.peek().params.tz;
  const byKey = (lineKeyText) => lines.lines.find((line) => line.key === lineKeyText);
  const own = (link) => {
    const inPanel = panel && panel.lines.find((line) => line.id === link.id);
    const place = inPanel ? inPanel.place : lines.routes.get(link.id) || singleRoute(link, scene);
    return place ? { route: place, face: lineFace([link], link.configured_type), line: { links: [link.id] }, card: inPanel ? null : scene.cards.get(link.id) } : null;
  };
  if (kind === 'i') {
    const place = (panel && panel.instances.get(name)) || layout.instances.get(name);
    if (!place) return null;
    const instance = index.instances.get(name);
    const touching = [];
    for (const link of index.links.values()) {
      const one = link.to && link.to.length === 1 ? link.to[0] : '';
      if (link.from === name || (link.connected_to || one) === name) touching.push(own(link));
    }
    return { lines: touching.filter(Boolean), box: place, facts: facts.instance(instance, name, index.owned.get(name)), at: { x: place.cx, y: place.cy, half: place.width / 2 } };
  }
  if (kind === 'r') {
    const place = layout.regions.get(name);
    if (!place) return null;
    const touching = lines.lines.filter((line) => line.fromRegion === name || line.toRegion === name)
      .map((line) => ({ route: lines.routes.get(line.key), face: lineFace(linksOf(line, index), line.type), line, card: all ? null : scene.cards.get(line.key) }));
    const instances = place.instances.map((one) => index.instances.get(one.name));
    return { lines: touching, box: place, facts: open === name ? null : facts.region(name, instances, scene.inside.get(name), canOpen(scene, name)), at: { x: place.cx, y: place.cy, half: place.width / 2 } };
  }
  if (kind === 'l') {
    const link = index.links.get(name);
    const line = link && own(link);
    if (!line) return null;
    const { card } = line;
    const spot = card ? { x: card.x + card.width / 2, y: card.y + card.height / 2, below: card.height / 2 } : { ...pointAt(line.route, 0.5), below: 10 };
    return { lines: [line], box: null, facts: facts.link(link, index.nowUs, tz), at: spot };
  }
  const line = byKey(name);
  if (!line) return null;
  const links = linksOf(line, index);
  const face = lineFace(links, line.type);
  const card = scene.cards.get(name);
  const place = lines.routes.get(name);
  const spot = card ? { x: card.x + card.width / 2, y: card.y + card.height / 2, below: card.height / 2 } : { ...pointAt(place, 0.5), below: 10 };
  return { lines: [{ route: place, face, line, card }], box: null, facts: facts.bundle(line, face, links, index.nowUs), at: spot };
}

/** Draws what is pointed at once more, over the faint rest. */
function Overlay(props) {
  const part = partOf(props.hot.value, props);
  if (!part) return null;
  return html`<g class="g-overlay" aria-hidden="true">
    ${part.lines.map(({ route: place, face, card }) => html`<g class="g-line is-${face.level} kind-${face.kind}"><${LineShape} route=${place} face=${face} at=${card ? card.t : 0.5} mark=${!card}/></g>`)}
    ${part.lines.map(({ face, line, card }) => card && face.worst ? html`<${Card} shown=${face} texts=${cardTexts(line, face, card, props.index.nowUs)} place=${card}/>` : null)}
    ${part.box ? html`<rect class="g-ring" x=${part.box.x - 3} y=${part.box.y - 3} width=${part.box.width + 6} height=${part.box.height + 6} rx="9"/>` : null}
  </g>`;
}

function Info(props) {
  const { hot, scene, transform } = props;
  const part = partOf(hot.value, props);
  if (!part || !part.facts) return null;
  const [x, y] = transform.current.apply([part.at.x, part.at.y]);
  return html`<${InfoCard} found=${part.facts} at=${{ x, y, half: (part.at.half || 0) * transform.current.k, below: (part.at.below || 0) * transform.current.k }} bounds=${scene}/>`;
}

/* -- the keyboard ---------------------------------------------------------------------------- */

/** Where each drawn part is, for walking: {key → {x, y}}. */
function placesOf(scene, lines, panel) {
  const places = new Map();
  for (const region of scene.layout.regions.values()) places.set(`r:${region.name}`, { x: region.cx, y: region.y + 12 });
  for (const line of lines.lines) {
    const card = scene.cards.get(line.key);
    places.set(lineId(line), card ? { x: card.x + card.width / 2, y: card.y + card.height / 2 } : pointAt(lines.routes.get(line.key), 0.5));
  }
  for (const instance of scene.layout.instances.values()) places.set(`i:${instance.name}`, { x: instance.cx, y: instance.cy });
  if (panel) {
    for (const line of panel.lines) places.set(`l:${line.id}`, pointAt(line.place, 0.5));
    for (const instance of panel.instances.values()) places.set(`i:${instance.name}`, { x: instance.cx, y: instance.cy });
  }
  return places;
}

const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** The nearest focusable part in the direction of an arrow; the first instance where nothing has the focus. */
function neighbour(key, arrow, places, root) {
  const elements = new Map();
  // An unfolded region's parts come later in the document and stand for those below.
  for (const element of root.querySelectorAll('[data-key][tabindex]')) elements.set(element.dataset.key, element);
  const here = key ? places.get(key) : null;
  if (!here) {
    for (const [other, element] of elements) if (other.startsWith('i:')) return { ...places.get(other), element };
    return null;
  }
  const [dx, dy] = WAYS[arrow];
  let best = null;
  for (const [other, place] of places) {
    const element = elements.get(other);
    if (other === key || !element) continue;
    const along = (place.x - here.x) * dx + (place.y - here.y) * dy;
    const across = Math.abs((place.x - here.x) * dy) + Math.abs((place.y - here.y) * dx);
    if (along < 4 || across > along * 2.5) continue;
    const cost = along + across * 2;
    if (!best || cost < best.cost) best = { cost, x: place.x, y: place.y, element };
  }
  return best;
}
