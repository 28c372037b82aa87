// A message's way through all processes: lanes in the order of the graph, spans, arrows, and where it
// is stored. The same as a table below, for screen readers and small screens.
import { html, useEffect, useMemo, useRef, useState } from '../core/html.js';
import { getJson } from '../core/api.js';
import { duration, exact, ms, plural, time } from '../core/format.js';
import { route } from '../core/route.js';
import { Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';

const LABEL_PX = 176;
const RIGHT_PX = 24;
const ROW_PX = 26;
const BAR_PX = 14;
const LANE_PAD_PX = 10;
const TOP_PX = 44;
const FOLD_PX = 56;
const TEXT_PX = 6.4; // A character of 12 px, about.
const CHILDREN_MAX = 200; // Spans that are drawn.

const KINDS = {
  publish: 'publish', commit: 'store', 'remote commit': 'store', 'link send': 'send', 'persisted ack': 'ack',
  acknowledgment: 'ack', delivery: 'deliver', enqueue: 'queue', lease: 'queue', transfer: 'send', removal: 'queue',
};
const kindOf = (name) => KINDS[name] ?? 'store';

export function useWay(bookmark, topic) {
  const [state, setState] = useState({});
  const [round, setRound] = useState(0);
  const query = topic ? `?topic=${encodeURIComponent(topic)}` : '';
  const path = `raylay/trace/${encodeURIComponent(bookmark)}${query}`;
  useEffect(() => {
    const control = new AbortController();
    setState({ path });
    getJson(path, { signal: control.signal }).then(
      (way) => setState({ path, way: completed(way) }),
      (error) => control.signal.aborted || setState({ path, error }),
    );
    return () => control.abort();
  }, [path, round]);
  return { ...(state.path === path ? state : {}), again: () => setRound(round + 1) };
}

// An instance of another version may tell less.
function completed(way) {
  const spans = way.lanes.flatMap(({ spans: own }) => own);
  return {
    begin_us: Math.min(...spans.map(({ begin_us: at }) => at)), end_us: Math.max(...spans.map(({ end_us: at }) => at)),
    links: [], skew: [], folds: [], without_spans: [], stored: [], not_stored: [], silent: [], persisted_ms: null, outcome: '', ...way,
  };
}

export function Way({ bookmark, topic }) {
  const { way, error, again } = useWay(bookmark, topic);
  return html`<section class="way" aria-labelledby="way-title">
    <div class="section-head"><h2 id="way-title">Its way</h2>
      <span class="spacer"></span>
      <button type="button" class="button button-quiet" onClick=${again}>look again</button></div>
    ${error ? html`<${Problem} title="Its way could not be read" error=${error} onRetry=${again} />`
      : way ? html`<${WayBody} way=${way} />` : html`<${Loading} text="asking all instances" />`}
  </section>`;
}

// Where a span lies, in words.
function placeOf(span) {
  const { from, to, instance, destination, upstream, client } = span.attributes;
  if (to) return `${from ?? '?'} → ${to}`;
  if (destination) return `${instance ?? '?'} → ${destination}`;
  if (upstream) return `${instance ?? '?'} ← ${upstream}`;
  if (client && instance) return `${instance} → ${client}`;
  return client ?? instance ?? span.process;
}

function noteOf(span) {
  const { outcome, how, generation, to } = span.attributes;
  if (to) return `generation ${generation ?? '?'}`;
  if (outcome && outcome !== 'persisted') return outcome;
  return how ?? '';
}

function WayBody({ way }) {
  const spans = useMemo(() => way.lanes.flatMap(({ spans: own }) => own), [way]);
  return html`
    <${Sum} way=${way} spans=${spans} />
    ${spans.length ? html`
      <${Timeline} way=${way} />
      <details class="way-steps" open=${matchMedia('(max-width: 599px)').matches}><summary>${plural(spans.length, 'step')} as a table</summary>
        <${Steps} way=${way} spans=${spans} /></details>` : html`<${NotTraced} way=${way} />`}
    <${Stored} way=${way} />`;
}

// What somebody wants to know first: how long, for what, and whether the clocks can be trusted.
function Sum({ way, spans }) {
  const longest = spans.find(({ id }) => id === way.longest);
  const lasted = (span) => (span.end_us - span.begin_us) / 1000;
  const whole = way.persisted_ms;
  const share = longest && whole ? Math.min(1, lasted(longest) / whole) : null;
  const isPersisted = !way.outcome || way.outcome === 'persisted';
  return html`<div class="way-sum">
    ${whole !== null
      ? isPersisted
        ? html`<p class="way-main"><${Status} level="ready" text="persisted after ${ms(whole)}" /></p>`
        : html`<p class="way-main"><${Status} level="attention" text="${way.outcome} after ${ms(whole)}" /></p>`
      : spans.length
        ? html`<p class="way-main"><${Status} level="unknown" text="The publisher's own span is missing: when it was told is not known." /></p>`
        : null}
    ${longest ? html`<p>The longest step: <strong>${longest.name}</strong> ${placeOf(longest)}, ${ms(lasted(longest))}${share === null || lasted(longest) > whole ? null : ` (${Math.round(share * 100)} % of the wait)`}.</p>` : null}
    ${way.skew.map(({ lane, behind_ms: behind }) => html`<p key=${lane}><${Status} level="attention"
      text="${way.lanes[lane].process}: clock ${ms(behind)} behind, at least. Times are shown as they were written." /></p>`)}
    ${spans.length && way.without_spans.length ? html`<p class="muted">No spans from ${names(way.without_spans)}:
      the message did not pass there, or the trace files lie on a host whose interface did not answer.</p>` : null}
  </div>`;
}

const names = (list) => (list.length > 6 ? `${list.slice(0, 6).join(', ')} and ${list.length - 6} more` : list.join(', '));

function NotTraced({ way }) {
  const text = !way.writes_traces
    ? 'This fabric writes no traces. Add `tracing: {directory: traces}` to its file; then one message in a thousand is traced.'
    : way.is_sampled === false
      ? 'It was not sampled: one in a thousand is. A test message that is published here always is.'
      : way.is_sampled === true
        ? 'It was sampled, and its spans are not here yet, or their files were removed. Look again in a second.'
        : 'No instance has it, so whether it was sampled is not known.';
  return html`<div class="state-box way-none"><h3>No trace of this message</h3><p class="muted">${text}</p></div>`;
}

// -- the timeline --------------------------------------------------------------------------------

// Returns a function from microseconds to pixels. Folded gaps have a width of their own.
function scaleOf(way, widthPx) {
  const { begin_us: begin, end_us: end, folds } = way;
  const folded = folds.reduce((sum, each) => sum + each.end_us - each.begin_us, 0);
  const free = Math.max(1, end - begin - folded);
  const px = Math.max(40, widthPx - LABEL_PX - RIGHT_PX - folds.length * FOLD_PX);
  return (moment) => {
    let us = Math.min(moment, end) - begin;
    let more = 0;
    for (const fold of folds) {
      if (moment >= fold.end_us) {
        us -= fold.end_us - fold.begin_us;
        more += FOLD_PX;
      } else if (moment > fold.begin_us) {
        us -= moment - fold.begin_us;
        more += (FOLD_PX * (moment - fold.begin_us)) / (fold.end_us - fold.begin_us);
      }
    }
    return LABEL_PX + more + (us / free) * px;
  };
}

function labelOf(span) {
  const note = noteOf(span);
  const what = span.name === 'link send' || span.name === 'transfer' ? `${span.name} ${placeOf(span)}` : span.name;
  return `${what}${note ? ` [${note}]` : ''} ${ms((span.end_us - span.begin_us) / 1000)}`;
}

// Puts the spans of each lane into rows in which neither bars nor labels overlap.
function layout(way, scale, widthPx) {
  const placed = new Map();
  let y = TOP_PX;
  const lanes = way.lanes.map((lane) => {
    const rows = [];
    const top = y;
    for (const span of lane.spans.slice(0, CHILDREN_MAX)) {
      const x = scale(span.begin_us);
      const width = Math.max(3, scale(span.end_us) - x);
      const label = labelOf(span);
      const labelPx = label.length * TEXT_PX + 8;
      const isInside = width > labelPx;
      const isLeft = !isInside && x + width + labelPx > widthPx - 4 && x - labelPx > LABEL_PX;
      const from = isLeft ? x - labelPx : x;
      const to = isInside || isLeft ? x + width : x + width + labelPx;
      let row = rows.findIndex((end) => end.every(([a, b]) => to + 4 < a || from > b + 4));
      if (row < 0) row = rows.push([]) - 1;
      rows[row].push([from, to]);
      placed.set(span.id, {
        span, x, width, label, isInside, isLeft, y: top + LANE_PAD_PX + row * ROW_PX + (ROW_PX - BAR_PX) / 2,
      });
    }
    y = top + 2 * LANE_PAD_PX + Math.max(1, rows.length) * ROW_PX;
    return { ...lane, top, bottom: y };
  });
  return { lanes, placed, heightPx: y + 8 };
}

function ticksOf(way, scale) {
  const { begin_us: begin, end_us: end, folds } = way;
  const folded = folds.reduce((sum, each) => sum + each.end_us - each.begin_us, 0);
  const free = Math.max(1, end - begin - folded);
  const rough = free / 6;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= rough);
  const found = [];
  let lastX = -Infinity;
  for (let number = 0; number <= 4000; number += 1) {
    let at = begin + number * step;
    if (folds.length && at > folds[0].begin_us && at < folds[0].end_us) {
      // On in even steps from the end of the gap.
      number = Math.ceil((folds[0].end_us - begin) / step) - 1;
      continue;
    }
    if (at > end) break;
    const x = scale(at);
    if (x - lastX > 64) {
      found.push([x, (at - begin) / 1000]);
      lastX = x;
    }
  }
  return found;
}

function Timeline({ way }) {
  const box = useRef(null);
  const [widthPx, setWidth] = useState(0);
  const [chosen, setChosen] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const drawn = Math.max(720, widthPx);
  return html`<div class="way-box" ref=${box} tabindex="0" role="region" aria-label="timeline">
    ${widthPx ? html`<${Drawing} way=${way} widthPx=${drawn} chosen=${chosen} onChoose=${setChosen} />` : null}
  </div>
  <ul class="way-legend" aria-hidden="true">
    <li><i class="way-key way-store"></i>stored</li><li><i class="way-key way-send"></i>on the way</li>
    <li><i class="way-key way-ack"></i>acknowledgment back</li><li><i class="way-key way-deliver"></i>delivered</li>
    ${way.lanes.some(({ spans }) => spans.some(({ name }) => kindOf(name) === 'queue')) ? html`<li><i class="way-key way-queue"></i>queue</li>` : null}
  </ul>
  ${chosen ? html`<${Chosen} span=${chosen} way=${way} onClose=${() => setChosen(null)} />` : null}`;
}

function Drawing({ way, widthPx, chosen, onChoose }) {
  const scale = useMemo(() => scaleOf(way, widthPx), [way, widthPx]);
  const { lanes, placed, heightPx } = useMemo(() => layout(way, scale, widthPx), [way, widthPx]);
  const ticks = useMemo(() => ticksOf(way, scale), [way, widthPx]);
  const skewOf = new Map(way.skew.map(({ lane, behind_ms: behind }) => [lane, behind]));
  const publish = [...placed.values()].find(({ span }) => span.name === 'publish');
  const persistedX = publish && way.persisted_ms !== null ? publish.x + publish.width : null;
  return html`<svg class="way-svg" width=${widthPx} height=${heightPx} viewBox="0 0 ${widthPx} ${heightPx}" role="group"
      aria-label=${`the way of ${way.bookmark} through ${plural(lanes.length, 'process', 'processes')}`}>
    <defs>
      <marker id="way-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="way-head" /></marker>
      <marker id="way-head-back" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="way-head-back" /></marker>
    </defs>
    ${lanes.map((lane, number) => html`<g key=${number}>
      <rect x="0" y=${lane.top} width=${widthPx} height=${lane.bottom - lane.top} class="way-lane ${number % 2 ? 'way-lane-odd' : ''}" />
      <text x="12" y=${lane.top + 24} class="way-name">${cut(lane.process, 22)}<title>${lane.process}</title></text>
      ${skewOf.has(number)
        ? html`<text x="12" y=${lane.top + 39} class="way-skew">▲ clock ${ms(skewOf.get(number))} behind</text>`
        : html`<text x="12" y=${lane.top + 39} class="way-sub">${cut(roleOf(lane), 26)}</text>`}
    </g>`)}
    ${ticks.filter(([x]) => persistedX === null || Math.abs(x - persistedX) > 40).map(([x, at]) => html`<g key=${x}>
      <line x1=${x} x2=${x} y1=${TOP_PX} y2=${heightPx - 8} class="way-tick" />
      <text x=${x} y=${TOP_PX - 8} class="way-sub way-middle">${ms(at)}</text></g>`)}
    ${way.folds.map((fold) => {
      const [a, b] = [scale(fold.begin_us), scale(fold.end_us)];
      return html`<g key=${a}><rect x=${a} y=${TOP_PX} width=${b - a} height=${heightPx - TOP_PX - 8} class="way-fold" />
        <path d=${zigzag(a, TOP_PX, heightPx - 8)} class="way-zigzag" /><path d=${zigzag(b, TOP_PX, heightPx - 8)} class="way-zigzag" />
        <text x=${(a + b) / 2} y=${TOP_PX - 8} class="way-sub way-middle">${duration((fold.end_us - fold.begin_us) / 1e6)}</text>
        <title>nothing happened for ${duration((fold.end_us - fold.begin_us) / 1e6)}</title></g>`;
    })}
    ${persistedX === null ? null : html`<g><line x1=${persistedX} x2=${persistedX} y1="22" y2=${heightPx - 8} class="way-persisted" />
      <text x=${persistedX > widthPx - 190 ? persistedX - 6 : persistedX + 6} y="18"
        class="way-persisted-text ${persistedX > widthPx - 190 ? 'way-end' : ''}">persisted after ${ms(way.persisted_ms)}</text></g>`}
    ${way.links.map(({ from, to, back }) => html`<${Arrow} key=${`${from}${to}`} from=${placed.get(from)} to=${placed.get(to)} back=${back} />`)}
    ${[...placed.values()].map((each) => html`<${Bar} key=${each.span.id} ...${each} isLongest=${each.span.id === way.longest}
      isChosen=${chosen?.id === each.span.id} onChoose=${() => onChoose(chosen?.id === each.span.id ? null : each.span)} />`)}
  </svg>`;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function roleOf(lane) {
  if (!lane.instance) return lane.spans.some(({ name }) => name === 'publish') ? 'publisher' : 'consumer';
  if (lane.process === lane.instance) return 'instance';
  if (lane.spans.some(({ name }) => name === 'enqueue' || name === 'lease')) return `queue at ${lane.instance}`;
  return `link of ${lane.instance}`;
}

function zigzag(x, top, bottom) {
  const points = [];
  for (let y = top, side = 0; y <= bottom; y += 8, side ^= 1) points.push(`${x + (side ? 3 : -3)} ${y}`);
  return `M${points.join('L')}`;
}

// From where the parent is when the child begins, straight down or up; an acknowledgment's when it ends.
function Arrow({ from, to, back }) {
  if (!from || !to || from === to) return null;
  const clamp = (x, { x: left, width }) => Math.min(Math.max(x, left), left + width);
  const target = back ? from.x + from.width : to.x;
  const [x1, x2] = back ? [target, clamp(target, to)] : [clamp(target, from), target];
  const isDown = to.y > from.y;
  const y1 = isDown ? from.y + BAR_PX : from.y;
  const y2 = isDown ? to.y - 1 : to.y + BAR_PX + 1;
  if (Math.abs(y2 - y1) < 6) return null;
  const bend = Math.abs(x2 - x1) < 2 ? 0 : (y2 - y1) / 2;
  const path = bend ? `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}` : `M${x1} ${y1}L${x2} ${y2}`;
  return html`<path d=${path} class=${back ? 'way-arrow way-arrow-back' : 'way-arrow'}
    marker-end="url(#way-head${back ? '-back' : ''})" />`;
}

function Bar({ span, x, y, width, label, isInside, isLeft, isLongest, isChosen, onChoose }) {
  const textX = isInside ? x + 6 : isLeft ? x - 6 : x + width + 6;
  return html`<g class="way-span way-${kindOf(span.name)} ${isLongest ? 'way-longest' : ''} ${isChosen ? 'way-chosen' : ''}" tabindex="0" role="button"
      aria-label=${`${labelOf(span)}, ${placeOf(span)}${isLongest ? ', the longest step' : ''}`} aria-pressed=${isChosen} onClick=${onChoose}
      onKeyDown=${(event) => {
        if (event.key === 'Enter' || event.key === ' ') {
          event.preventDefault();
          onChoose();
        }
      }}>
    <rect class="way-hit" x=${x - 4} y=${y - 6} width=${width + 8} height=${BAR_PX + 12} />
    <rect class="way-bar" x=${x} y=${y} width=${width} height=${BAR_PX} rx="2" />
    <text class=${`way-label ${isInside ? 'way-inside' : ''} ${isLeft ? 'way-end' : ''}`} x=${textX} y=${y + 11}>${label}${isLongest ? html`<tspan class="way-longest-word"> ◀ longest</tspan>` : null}</text>
    <title>${labelOf(span)}, ${placeOf(span)}</title>
  </g>`;
}

function Chosen({ span, way, onClose }) {
  const { tz } = route.value.params;
  return html`<div class="card way-chosen-card" role="status">
    <div class="section-head"><h3>${span.name} <span class="muted">${placeOf(span)}</span></h3><span class="spacer"></span>
      <button type="button" class="button button-quiet" aria-label="close the step" onClick=${onClose}>✕</button></div>
    <dl class="pairs">
      <dt>began</dt><dd>${time(span.begin_us, tz)} <span class="muted">${ms((span.begin_us - way.begin_us) / 1000)} after the first step</span></dd>
      <dt>took</dt><dd>${ms((span.end_us - span.begin_us) / 1000)}</dd>
      <dt>process</dt><dd>${span.process}</dd>
      ${Object.entries(span.attributes).filter(([name]) => !['bookmark', 'topic'].includes(name))
        .map(([name, value]) => html`<dt key=${name}>${name}</dt><dd class="mono">${String(value)}</dd>`)}
    </dl>
  </div>`;
}

function Steps({ way, spans }) {
  const columns = [
    { key: 'name', title: 'step', value: (span) => span.name, text: (span) => `${span.name}${noteOf(span) ? ` [${noteOf(span)}]` : ''}${span.id === way.longest ? ' (longest)' : ''}` },
    { key: 'place', title: 'where', value: placeOf },
    { key: 'process', title: 'process' },
    { key: 'at', title: 'begins', numeric: true, value: (span) => (span.begin_us - way.begin_us) / 1000, text: (span) => ms((span.begin_us - way.begin_us) / 1000) },
    { key: 'for', title: 'takes', numeric: true, value: (span) => (span.end_us - span.begin_us) / 1000, text: (span) => ms((span.end_us - span.begin_us) / 1000) },
  ];
  const rows = useMemo(() => [...spans].sort((a, b) => a.begin_us - b.begin_us), [spans]);
  return html`<${Table} id="steps" caption="steps" columns=${columns} rows=${rows} prefix="steps"
    rowKey=${(span) => `${span.id}${span.begin_us}`} />`;
}

// -- where it is ---------------------------------------------------------------------------------

function Stored({ way }) {
  const { tz } = route.value.params;
  const first = Math.min(...way.stored.map(({ time_us: at }) => at));
  const rows = [
    ...way.stored.map((each) => ({ ...each, id: each.instance, state: 'ready', text: 'stored' })),
    ...way.not_stored.map((instance) => ({ id: instance, instance, state: 'working', text: 'not here' })),
    ...way.silent.map(({ instance, why }) => ({ id: instance, instance, state: 'unknown', text: why })),
  ];
  const columns = [
    { key: 'instance', title: 'instance' },
    { key: 'text', title: 'state', cell: (row) => html`<${Status} level=${row.state} text=${row.text} />`, wide: way.silent.length > 0 },
    { key: 'time_us', title: 'received', text: (row) => (row.time_us ? time(row.time_us, tz) : null) },
    { key: 'after', title: 'after the first', numeric: true, value: (row) => (row.time_us ? (row.time_us - first) / 1000 : null),
      text: (row) => (row.time_us ? (row.time_us === first ? 'first' : ms((row.time_us - first) / 1000)) : null) },
    { key: 'txid', title: 'transaction', numeric: true, text: (row) => (row.txid ? exact(row.txid) : null) },
  ];
  return html`<div class="way-stored"><div class="section-head"><h2>Where it is stored</h2>
      <span class="muted">${way.stored.length} of ${plural(rows.length, 'instance')}</span></div>
    ${way.not_stored.length ? html`<p class="muted">“Not here”: it has not arrived, its topic is not replicated there, or retention has removed it.</p>` : null}
    <${Table} id="stored" caption="where it is stored" columns=${columns} rows=${rows} filter=${rows.length > 12} csv=${rows.length > 12} prefix="stored" />
  </div>`;
}
