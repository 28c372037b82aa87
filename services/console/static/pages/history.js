// History: up to six charts over one range with one cursor. The address holds all: which lines,
// which range, and the chosen time.
import { html, signal, useEffect, useMemo, useRef, useState } from '../core/html.js';
import { getJson, getText } from '../core/api.js';
import { ampsUrl, nodeAt, num, step, timeOf } from '../core/amps.js';
import { Chart, SERIES_MAX } from '../core/chart.js';
import { Dialog } from '../core/dialog.js';
import { fabric } from '../core/fabric.js';
import { time } from '../core/format.js';
import { CHARTS_MAX, decodeCharts, encodeCharts } from '../core/history_link.js';
import { formatOf, isNumeric, leavesOf, PageHead, titleOf } from '../core/parts.js';
import { paused } from '../core/poll.js';
import { isoOf, RangeBar, rangeOf, readTime, serverNowS, setRange } from '../core/range.js';
import { href, route, setParam } from '../core/route.js';
import { Loading } from '../core/states.js';

const LIVE_MS = 5_000;
const AT_ONCE = 3;
const EVENTS_MAX = 1000;
const NOTABLE = new Set(['attention', 'act']);

// The charts that the page opens with: the fabric at a glance, a line for each instance.
const FIRST = [
  'instance/processors/all/messages_received_per_sec',
  'instance/raylay/commit_ms_p99',
  'instance/raylay/pending',
  'instance/memory/rss',
];

export default function Page() {
  const { params } = route.value;
  const known = fabric.value;
  const instances = known?.instances ?? [];
  const names = instances.map((each) => each.name).join('\n');
  const isChosen = Boolean(params.charts);
  const charts = useMemo(
    () =>
      isChosen
        ? decodeCharts(params.charts)
        : FIRST.map((path) => names.split('\n').filter(Boolean).slice(0, SERIES_MAX).map((name) => [name, path])),
    [params.charts, names],
  );
  const [nowS, setNowS] = useState(serverNowS());
  const ticks = useRef(0);
  const range = useMemo(() => rangeOf(params, nowS), [params.from, params.to, nowS]);
  useEffect(() => {
    if (!range.isLive) return undefined;
    const timer = setInterval(() => {
      if (!paused.peek() && !document.hidden) setNowS(serverNowS());
      ticks.current += 1;
    }, LIVE_MS);
    return () => clearInterval(timer);
  }, [range.isLive]);
  const wanted = useMemo(() => [...new Map(charts.flat().map((line) => [line.join(':'), line])).values()], [charts]);
  const lines = useLines(wanted, range, nowS);
  const marks = useMarks([...new Set(wanted.map(([name]) => name))], range, nowS);
  const cursor = useMemo(() => signal(null), []);
  const chosenS = params.at ? readTime(params.at, nowS) : null;
  const head = html`<${PageHead} title="History" />`;
  if (!known && !isChosen) return html`${head}<${Loading} text="asking for the fabric" />`;

  const change = (next) => setParam('charts', encodeCharts(next.filter((each) => each.length)));
  return html`<${PageHead} title="History">
      ${!isChosen && instances.length > SERIES_MAX && html`<p class="muted">The first ${SERIES_MAX} of ${instances.length} instances: choose others with <em>add a chart</em>, or open a number's history where it stands.</p>`}
    </${PageHead}>
    <${RangeBar} range=${range}>
      <${AddChart} charts=${charts} onAdd=${change} />
    </${RangeBar}>
    <${Chosen} atS=${chosenS} tz=${params.tz} names=${[...new Set(wanted.map(([name]) => name))]} />
    <div class=${`charts charts-${charts.length}`}>
      ${charts.map((chart, index) => html`<${OneChart} key=${`${index}/${chart.map((line) => line.join(':')).join(';')}`} index=${index} chart=${chart} lines=${lines}
        range=${range} cursor=${cursor} chosenS=${chosenS} marks=${marks} tz=${params.tz}
        onRemove=${charts.length > 1 ? () => change(charts.filter((_each, i) => i !== index)) : null} />`)}
    </div>`;
}

// -- a chart -------------------------------------------------------------------------------------
function OneChart({ index, chart, lines, range, cursor, chosenS, marks, tz, onRemove }) {
  const paths = [...new Set(chart.map(([, path]) => path))];
  const instances = [...new Set(chart.map(([name]) => name))];
  const format = formatOf(decodeURIComponent(paths[0].split('/').at(-1)));
  const found = chart.slice(0, SERIES_MAX).map(([name, path]) => [name, path, lines.get(`${name}:${path}`)]);
  const series = useMemo(
    () =>
      found.map(([name, path, line]) => ({
        label: labelOf(name, path, instances, paths),
        times: line?.times ?? [],
        values: line?.values ?? [],
        format: formatOf(decodeURIComponent(path.split('/').at(-1))),
      })),
    [found.map(([, , line]) => line?.version ?? -1).join(), chart],
  );
  const failures = found.filter(([, , line]) => line?.error);
  const isLoading = found.some(([, , line]) => line === undefined || (!line.error && line.isLoading && !line.times.length));
  const title = paths.length === 1 ? titleOfPath(paths[0]) : paths.map(titleOfPath).slice(0, 2).join(', ') + (paths.length > 2 ? ', …' : '');
  const note = [instances.length === 1 ? instances[0] : '', ofPath(paths[0])].filter(Boolean).join(' · ');
  const before = found.map(([, , line]) => line?.hasUntilS).filter(Boolean);
  const empty = isLoading
    ? html`<p role="status">◐ reading the statistics …</p>`
    : failures.length === found.length && failures.length
      ? html`<p>▲ ${failures[0][2].error.message}</p><p class="muted">${adviceOf(failures[0][2].error)}</p>`
      : html`<p>No values from ${time(range.fromS * 1e6, tz, { seconds: true })} to ${time(range.toS * 1e6, tz, { seconds: true })}.</p>
          ${before.length
            ? html`<button type="button" class="button button-small" onClick=${() => {
                const end = Math.max(...before);
                setRange(end - (range.toS - range.fromS), end);
              }}>Show the last that there are, ${time(Math.max(...before) * 1e6, tz, { seconds: true })}</button>`
            : html`<p class="muted">Statistics are kept at the interval and for the time that <code>admin:</code> of the configuration says.</p>`}`;
  return html`<${Chart} id=${`chart-${index}`} title=${title} note=${note} series=${series} range=${range} cursor=${cursor}
    chosenS=${chosenS} marks=${marks} tz=${tz} format=${format} empty=${empty}
    onRange=${setRange} onChoose=${(s) => setParam('at', isoOf(s))}
    actions=${html`<${Failures} of=${failures.length < found.length ? failures : []} />
      <${Downloads} chart=${chart} range=${range} />
      ${onRemove && html`<button type="button" class="button button-quiet button-small" aria-label=${`Remove ${title}`} onClick=${onRemove}>✕</button>`}`} />`;
}

const adviceOf = (error) => error.status === 404
  ? 'It has left the tree: a client that went, or a name that is not configured any more.'
  : error.status === 503 || error.status === 0 ? 'The instance does not answer. The other charts go on.' : '';

function Failures({ of }) {
  if (!of.length) return null;
  return html`<span class="muted" title=${of.map(([name, , line]) => `${name}: ${line.error.message}`).join('\n')}>? ${of.length === 1 ? `${of[0][0]} is missing` : `${of.length} lines are missing`}</span>`;
}

// Each leaf as the instance serves it: the same as `curl` gets.
function Downloads({ chart, range }) {
  const period = `?t0=${encodeURIComponent(isoOf(range.fromS))}&t1=${encodeURIComponent(isoOf(range.toS))}`;
  return html`<details class="menu"><summary class="button button-quiet button-small">data</summary><ul>${chart.map(
    ([name, path]) => html`<li key=${`${name}${path}`}><span class="muted">${name}</span>
      <a href=${ampsUrl(name, path, 'csv') + period} download=${`${name}-${path.replaceAll('/', '-')}.csv`}>.csv</a>
      <a href=${ampsUrl(name, path, 'json') + period} download=${`${name}-${path.replaceAll('/', '-')}.json`}>.json</a></li>`,
  )}</ul></details>`;
}

function labelOf(name, path, instances, paths) {
  if (paths.length === 1) return name;
  const of = titleOfPath(path);
  return instances.length === 1 ? of : `${name} ${of}`;
}

export const titleOfPath = (path) => {
  const steps = path.split('/').map(decodeURIComponent);
  return titleOf(steps.at(-1));
};

// What a leaf belongs to: the steps between the root and its name.
const ofPath = (path) => path.split('/').slice(1, -1).filter((each) => each !== 'raylay').map(decodeURIComponent).join(' › ');

// One chart inside another page: the last quarter of an hour, or the range that came along.
export function HistoryPanel({ title, lines: wanted, labels }) {
  const { params } = route.value;
  const key = wanted.map((line) => line.join(':')).join('\n');
  const own = useMemo(() => wanted, [key]);
  const [nowS, setNowS] = useState(serverNowS());
  const range = useMemo(() => rangeOf(params, nowS, '-15m'), [params.from, params.to, nowS]);
  useEffect(() => {
    if (!range.isLive) return undefined;
    const timer = setInterval(() => !paused.peek() && !document.hidden && setNowS(serverNowS()), LIVE_MS);
    return () => clearInterval(timer);
  }, [range.isLive]);
  const lines = useLines(own, range, nowS);
  const cursor = useMemo(() => signal(null), []);
  const format = formatOf(decodeURIComponent(own[0][1].split('/').at(-1)));
  const found = own.map(([name, path]) => lines.get(`${name}:${path}`));
  const series = useMemo(
    () => own.map(([name, path], i) => ({
      label: labels?.get(`${name}:${path}`) ?? labelOf(name, path, [], [path]), times: found[i]?.times ?? [], values: found[i]?.values ?? [], format,
    })),
    [found.map((line) => line?.version ?? -1).join(), own],
  );
  return html`<${Chart} id="panel" title=${title} series=${series} range=${range} cursor=${cursor} tz=${params.tz} format=${format} height=${150}
    actions=${html`<a class="button button-quiet button-small" href=${href('history', [], { charts: encodeCharts([own]), from: params.from || '-15m' })}>open in History</a>`} />`;
}

// -- the chosen time -----------------------------------------------------------------------------
function Chosen({ atS, tz, names }) {
  if (atS === null) return null;
  const around = { from: isoOf(atS - 120), to: isoOf(atS + 30), at: isoOf(atS) };
  return html`<p class="callout" data-chosen>
    <span>Chosen: <strong>${time(atS * 1e6, tz)}</strong></span>
    <a href=${href('events', [], { ...around, q: names.length === 1 ? names[0] : '' })}>what happened just before</a>
    <a href=${href('messages', [], { source: 'replay', start: isoOf(atS) })}>messages from then on</a>
    <button type="button" class="button button-small" onClick=${() => setRange(atS - 150, atS + 150)}>five minutes around it</button>
    <button type="button" class="button button-quiet button-small" onClick=${() => setParam('at', null)}>forget it</button>
  </p>`;
}

// -- data ----------------------------------------------------------------------------------------
export function readLines(text) {
  const times = [];
  const values = [];
  for (const line of text.split('\n')) {
    const at = line.indexOf(',');
    if (at < 1) continue;
    const us = timeOf(line.slice(0, at));
    if (us === null) continue;
    const value = num(line.slice(at + 1).trim());
    times.push(us / 1e6);
    values.push(value === null ? null : Number(value));
  }
  return { times, values };
}

// The values of lines: read once for a range, then only what came since. Map of INSTANCE:PATH →
// {times, values, error, isLoading, version}.
function useLines(wanted, range, nowS) {
  const kept = useRef(new Map());
  const [shown, setShown] = useState(new Map());
  const key = wanted.map((line) => line.join(':')).join('\n');
  const control = useRef(null);
  // A live range moves on: only its width and a jump begin anew.
  const width = Math.round(range.toS - range.fromS);
  const base = range.isLive ? `live ${width}` : `${range.fromS} ${range.toS}`;

  useEffect(() => {
    for (const each of kept.current.keys()) if (!wanted.some((line) => line.join(':') === each)) kept.current.delete(each);
    for (const each of kept.current.values()) {
      each.stale = true;
      each.hasUntilS = undefined;
    }
    return () => control.current?.abort();
  }, [key, base]);

  useEffect(() => {
    control.current?.abort();
    const own = new AbortController();
    control.current = own;
    const next = wanted[Symbol.iterator]();
    const show = () => !own.signal.aborted && setShown(new Map(kept.current));
    const read = async ([name, path]) => {
      const id = `${name}:${path}`;
      const before = kept.current.get(id);
      const isMore = before && !before.stale && !before.error && before.times.length;
      const fromS = isMore ? before.times.at(-1) + 0.001 : range.fromS;
      if (!before) kept.current.set(id, { times: [], values: [], isLoading: true, version: 0 });
      try {
        const url = `${ampsUrl(name, path, 'csv')}?t0=${encodeURIComponent(isoOf(fromS))}${range.isLive ? '' : `&t1=${encodeURIComponent(isoOf(range.toS))}`}`;
        const found = readLines(await getText(url, { signal: own.signal }));
        let { times, values } = found;
        if (isMore) {
          const first = before.times.findIndex((at) => at >= range.fromS - 60);
          times = [...before.times.slice(Math.max(0, first)), ...times];
          values = [...before.values.slice(Math.max(0, first)), ...values];
        }
        const hasUntilS = times.length ? undefined : await lastBefore(name, path, range.fromS, own.signal);
        kept.current.set(id, { times, values, error: null, isLoading: false, hasUntilS, version: (before?.version ?? 0) + 1 });
      } catch (error) {
        if (own.signal.aborted) return;
        kept.current.set(id, { times: before?.times ?? [], values: before?.values ?? [], error, isLoading: false, stale: true, version: (before?.version ?? 0) + 1 });
      }
      show();
    };
    const worker = async () => {
      for (const line of next) {
        if (own.signal.aborted) return;
        await read(line);
      }
    };
    Promise.all(Array.from({ length: AT_ONCE }, worker));
    return () => own.abort();
  }, [key, base, range.isLive ? nowS : 0]);
  return shown;
}

// The time of the last value before a range without any: there is something to show.
async function lastBefore(name, path, fromS, signal) {
  try {
    const text = await getText(`${ampsUrl(name, path, 'csv')}?t0=${encodeURIComponent(isoOf(fromS - 7 * 86400))}&t1=${encodeURIComponent(isoOf(fromS))}`, { signal });
    return readLines(text).times.at(-1);
  } catch {
    return undefined;
  }
}

// Events of the instances in the charts, as marks.
function useMarks(names, range, nowS) {
  const [events, setEvents] = useState([]);
  const key = names.slice(0, SERIES_MAX * 2).join('\n');
  useEffect(() => {
    if (!key) return undefined;
    const control = new AbortController();
    (async () => {
      const found = [];
      for (const name of key.split('\n')) {
        try {
          const answer = await getJson(`raylay/peer/${step(name)}/raylay/events.json?limit=${EVENTS_MAX}`, { signal: control.signal });
          for (const each of answer.events ?? answer ?? []) found.push({ instance: name, ...each });
        } catch {
          if (control.signal.aborted) return;
          // Without its events the chart has no marks of this instance.
        }
      }
      setEvents(found);
    })();
    return () => control.abort();
  }, [key, Math.floor(nowS / 30)]);
  return useMemo(
    () =>
      events
        .filter((each) => NOTABLE.has(each.level) && each.time_us / 1e6 >= range.fromS && each.time_us / 1e6 <= range.toS)
        .map((each) => ({
          s: each.time_us / 1e6,
          level: each.level,
          text: `${time(each.time_us, route.value.params.tz, { seconds: true })} ${each.instance}: ${each.text}`,
          href: href('events', [], { from: isoOf(each.time_us / 1e6 - 60), to: isoOf(each.time_us / 1e6 + 60), q: '' }),
        })),
    [events, range.fromS, range.toS],
  );
}

// -- adding a chart ------------------------------------------------------------------------------
function AddChart({ charts, onAdd }) {
  const [isOpen, setIsOpen] = useState(false);
  const isFull = charts.length >= CHARTS_MAX;
  return html`<button type="button" class="button" data-actions aria-disabled=${isFull} title=${isFull ? `${CHARTS_MAX} charts at most: remove one first` : 'Add a chart'}
      onClick=${() => !isFull && setIsOpen(true)}>Add a chart</button>
    ${isOpen && html`<${Picker} onClose=${() => setIsOpen(false)} onPick=${(lines) => {
      setIsOpen(false);
      onAdd([...charts, lines]);
    }} />`}`;
}

const ENTRIES_MAX = 100;

function Picker({ onClose, onPick }) {
  const instances = (fabric.value?.instances ?? []).map((each) => each.name);
  const [name, setName] = useState(fabric.value?.served_by ?? instances[0] ?? '');
  const [words, setWords] = useState('');
  const [leaves, setLeaves] = useState(null);
  const [error, setError] = useState(null);
  const [isAll, setIsAll] = useState(false);
  useEffect(() => {
    const control = new AbortController();
    setLeaves(null);
    setError(null);
    Promise.all(['instance', 'host'].map((part) => getJson(ampsUrl(name, part), { signal: control.signal }).then((answer) => [part, nodeAt(answer, part)])))
      .then((parts) => setLeaves(parts.flatMap(([part, node]) =>
        leavesOf(bounded(node)).filter((each) => isNumeric(each.text)).map((each) => [part, ...each.path].map(step).join('/')))))
      .catch((failure) => !control.signal.aborted && setError(failure));
    return () => control.abort();
  }, [name]);
  const found = useMemo(() => {
    const every = words.toLowerCase().split(/\s+/).filter(Boolean);
    return (leaves ?? []).filter((path) => every.every((word) => decodeURIComponent(path).toLowerCase().includes(word)));
  }, [leaves, words]);
  return html`<${Dialog} title="Add a chart" onClose=${onClose}>
    <div class="picker">
      <label>Instance <select value=${name} onChange=${(event) => setName(event.target.value)}>${instances.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label>Value <input type="search" data-focus placeholder="such as lag, rss, depth" value=${words} onInput=${(event) => setWords(event.target.value)} /></label>
      <label class="check"><input type="checkbox" checked=${isAll} onChange=${(event) => setIsAll(event.target.checked)} /> of the first ${SERIES_MAX} instances, a line each</label>
      ${error ? html`<p role="alert">▲ ${error.message}</p>` : leaves === null ? html`<p role="status" class="muted">◐ asking ${name} …</p>` : html`
        <ul class="picker-list">${found.slice(0, ENTRIES_MAX).map((path) => html`<li key=${path}><button type="button" class="button button-quiet"
          onClick=${() => onPick(isAll ? instances.slice(0, SERIES_MAX).map((each) => [each, path]) : [[name, path]])}>
          <strong>${titleOfPath(path)}</strong> <span class="muted">${path.split('/').slice(0, -1).map(decodeURIComponent).join(' › ')}</span></button></li>`)}</ul>
        <p class="muted">${found.length > ENTRIES_MAX ? `${ENTRIES_MAX} of ${found.length} values: write more of the name` : `${found.length} values`}</p>`}
    </div>
  </${Dialog}>`;
}

// Collections of thousands would drown the list: some of each are enough, the rest is found by its page.
function bounded(node) {
  return Object.fromEntries(Object.entries(node ?? {}).map(([name, value]) => [name, Array.isArray(value) ? value.slice(0, 50) : value]));
}

