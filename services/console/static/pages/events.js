// Events of the whole fabric as they come, and the problems that are open or were closed.
import { html, signal, useEffect, useMemo, useState } from '../core/html.js';
import { events as listen, getJson } from '../core/api.js';
import { step } from '../core/amps.js';
import { fabric, nowUs } from '../core/fabric.js';
import { ago, count, plural, time } from '../core/format.js';
import { PageHead, Segments } from '../core/parts.js';
import { paused } from '../core/poll.js';
import { RangeBar, rangeOf, serverNowS } from '../core/range.js';
import { href, route } from '../core/route.js';
import { Empty, Loading } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';
import { closedProblems } from '../core/problem_log.js';

const KEPT_MAX = 10_000;
const LOADED = 500;
const AT_ONCE = 3;
const SHOWN_EVERY_MS = 250;
const LEVELS = { act: 'act', attention: 'attention', info: 'ready' };
const RANK = { act: 3, attention: 2, info: 1 };
const NONE = [];

// Kept while the page is left: coming back loses nothing.
const log = signal({ of: new Map(), isConnected: null, dropped: 0, loaded: false });
const keyOf = (each) => `${each.instance}/${each.incarnation ?? ''}/${each.number}`;

function add(events) {
  const { of, ...others } = log.peek();
  let dropped = others.dropped;
  for (const each of events) of.set(keyOf(each), each);
  if (of.size > KEPT_MAX) {
    const oldest = [...of.values()].sort((a, b) => a.time_us - b.time_us).slice(0, of.size - KEPT_MAX);
    for (const each of oldest) of.delete(keyOf(each));
    dropped += oldest.length;
  }
  log.value = { ...others, of, dropped };
}

function useEvents() {
  const names = (fabric.value?.instances ?? NONE).map((each) => each.name).join('\n');
  useEffect(() => {
    let waiting = [];
    let timer = 0;
    const flush = () => {
      timer = 0;
      if (paused.peek()) {
        timer = setTimeout(flush, SHOWN_EVERY_MS);
        return;
      }
      add(waiting);
      waiting = [];
    };
    const stop = listen(
      'raylay/events',
      (event) => {
        waiting.push(event);
        if (waiting.length > KEPT_MAX) waiting = waiting.slice(-KEPT_MAX);
        if (!timer) timer = setTimeout(flush, SHOWN_EVERY_MS);
      },
      (isConnected) => (log.value = { ...log.peek(), isConnected }),
    );
    return () => {
      stop();
      clearTimeout(timer);
      if (waiting.length) add(waiting);
    };
  }, []);
  // What each instance has kept of the time before.
  useEffect(() => {
    if (!names) return undefined;
    const control = new AbortController();
    const next = names.split('\n')[Symbol.iterator]();
    const worker = async () => {
      for (const name of next) {
        try {
          const answer = await getJson(`raylay/peer/${step(name)}/raylay/events.json?limit=${LOADED}`, { signal: control.signal });
          add((answer.events ?? answer ?? NONE).map((each) => ({ instance: name, ...each })));
        } catch {
          if (control.signal.aborted) return;
        }
      }
    };
    Promise.all(Array.from({ length: AT_ONCE }, worker)).then(() => {
      if (!control.signal.aborted) log.value = { ...log.peek(), loaded: true };
    });
    return () => control.abort();
  }, [names]);
  return log.value;
}

export default function Page() {
  const { params } = route.value;
  const { of, isConnected, dropped, loaded } = useEvents();
  const hasRange = Boolean(params.from || params.to);
  const range = rangeOf(params, serverNowS());
  const least = RANK[params.level] ?? 0;
  const rows = useMemo(() => {
    const found = [...of.values()].filter(
      (each) =>
        (RANK[each.level] ?? 1) >= least &&
        (!hasRange || (each.time_us >= range.fromS * 1e6 && (range.isLive || each.time_us <= range.toS * 1e6))),
    );
    return found.sort((a, b) => b.time_us - a.time_us);
  }, [log.value, least, hasRange, hasRange && range.fromS, hasRange && range.toS]);
  const { tz } = params;
  const columns = [
    { key: 'time', title: 'Time', value: (row) => row.time_us, text: (row) => time(row.time_us, tz),
      cell: (row) => html`<time class="event-time" title=${ago(row.time_us, nowUs.value)}>${time(row.time_us, tz)}</time>` },
    { key: 'level', title: 'Level', value: (row) => RANK[row.level] ?? 1, text: (row) => row.level || 'info',
      cell: (row) => html`<${Status} level=${LEVELS[row.level] ?? 'ready'} text=${row.level === 'act' ? 'act now' : row.level || 'info'} />` },
    { key: 'instance', title: 'Instance', value: (row) => row.instance, cell: (row) => html`<a href=${href('instance', [row.instance])}>${row.instance}</a>` },
    { key: 'event', title: 'Event', value: (row) => row.event, cell: (row) => html`<code>${row.event}</code>` },
    { key: 'text', title: 'What happened', value: (row) => row.text, wide: true, cell: (row) => html`<span class="event-text">${row.text}</span> <${Details} of=${row.details} />` },
  ];
  return html`<${PageHead} title="Events" level=${isConnected === false ? 'attention' : undefined} state=${isConnected === false ? 'the stream is interrupted, it connects again by itself' : undefined}>
      <p class="muted">${isConnected ? '● as they come' : isConnected === null ? 'connecting …' : ''}${dropped > 0 && ` · the latest ${count(KEPT_MAX)} are kept, ${count(dropped)} older ones are not shown`}</p>
    </${PageHead}>
    <${Problems} tz=${tz} />
    <h2>Events</h2>
    <div class="bars"><${RangeBar} range=${range} fallback="all" />
    <${Segments} name="level" label="Least level" fallback="all" options=${[['all', 'All'], ['attention', '▲ Attention and worse'], ['act', '■ Act now']]} /></div>
    ${!loaded && of.size === 0
      ? html`<${Loading} text="asking every instance for its events" />`
      : html`<${Table} id="events" columns=${columns} rows=${rows} sort="" rowKey=${keyOf} rowClass=${(row) => (row.level === 'act' ? 'row-act' : row.level === 'attention' ? 'row-attention' : '')}
          caption="Events, newest first"
          empty=${html`<${Empty} title=${hasRange ? 'Nothing happened in this range' : 'Nothing has happened'} text=${hasRange ? 'Choose a longer range: events are kept by each instance as long as its log is.' : 'Events of links, clients, failures and actions appear here as they come.'} />`} />`}`;
}

function Details({ of }) {
  const entries = Object.entries(of ?? {});
  if (!entries.length) return null;
  return html`<details class="event-details"><summary class="muted">details</summary><dl>${entries.map(
    ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${typeof value === 'object' ? JSON.stringify(value) : String(value)}</dd></div>`,
  )}</dl></details>`;
}

function Problems({ tz }) {
  const [isShown, setIsShown] = useState(false);
  const known = fabric.value;
  if (!known) return null;
  const open = known.problems ?? NONE;
  const closed = known.closed_problems ?? closedProblems.value;
  return html`<section class="card problems" aria-label="Problems">
    <h2>${open.length ? plural(open.length, 'open problem') : html`<${Status} level="ready" text="No open problem" />`}</h2>
    ${open.length > 0 && html`<ul class="plain">${open.map((each) => html`<li key=${each.id}>
      <a href=${each.href}><${Status} level=${each.level} text=${each.text} /></a>${' '}
      <span class="muted">${each.since_us ? `since ${time(each.since_us, tz, { seconds: true })}, ${ago(each.since_us, nowUs.value)}` : ''}${each.trend ? `, ${each.trend}` : ''}</span></li>`)}</ul>`}
    ${closed.length > 0 && html`<details open=${isShown} onToggle=${(event) => setIsShown(event.target.open)}><summary>${plural(closed.length, 'closed problem')}</summary>
      <ul class="plain">${closed.map((each) => html`<li key=${`${each.id}${each.closed_us}`} class="muted">✓ ${each.text}${' '}
        <span>closed ${time(each.closed_us, tz, { seconds: true })}${each.since_us ? `, ${lasted(each)}` : ''}</span></li>`)}</ul></details>`}
  </section>`;
}

const lasted = (each) => `after ${ago(each.since_us, each.closed_us).replace(' ago', '')}`;
