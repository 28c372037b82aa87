// Parts that several pages are made of: a page's head, facts, tiles, lag, segments, the notice of
// instances that do not answer, and any branch of the resource tree as a table.
import { html, useEffect, useMemo, useState } from './html.js';
import { Status } from './status.js';
import { Table } from './table.js';
import { bytes, count, duration, exact, isKnown, ms, percent, plural, rate, UNKNOWN } from './format.js';
import { Number as HistoryNumber } from './history_link.js';
import { instancesByName, nowUs } from './fabric.js';
import { route, setParam } from './route.js';
import { Sparkline } from './sparkline.js';
import { num, step } from './amps.js';

// `crumbs`: [[text, href], …] above the title.
export function PageHead({ crumbs = [], title, level, state, children }) {
  return html`<header class="page-head">
    ${crumbs.length > 0 &&
    html`<nav class="crumbs" aria-label="Path">${crumbs.map(
      ([text, to], i) => html`${i > 0 && html`<span aria-hidden="true"> / </span>`}<a key=${to} href=${to}>${text}</a>`,
    )}</nav>`}
    <div class="page-title">
      <h1>${title}</h1>
      ${level && html`<${Status} level=${level} text=${state} />`}
    </div>
    ${children && html`<div class="page-facts">${children}</div>`}
  </header>`;
}

// Facts: [[name, content], …]; what has no content is left out.
export function Facts({ facts }) {
  return html`<dl class="facts">${facts
    .filter((each) => each && each[1] !== undefined && each[1] !== null && each[1] !== '')
    .map(([name, content]) => html`<div key=${name}><dt>${name}</dt><dd>${content}</dd></div>`)}</dl>`;
}

// One of several views of a page, remembered in the URL.
export function Segments({ name, label, options, fallback }) {
  const now = route.value.params[name] ?? fallback;
  return html`<div class="segments" role="group" aria-label=${label}>${options.map(
    ([key, text]) => html`<button type="button" key=${key} aria-pressed=${key === now}
      onClick=${() => setParam(name, key === fallback ? null : key)}>${text}</button>`,
  )}</div>`;
}

const GLYPH = { growing: '▲', shrinking: '▼', steady: '=' };

// How far behind a subscriber is: seconds, and whether that grows.
export function Lag({ seconds, trend, instance, path, label }) {
  if (!isKnown(seconds)) return UNKNOWN;
  const level = lagLevel(seconds, trend);
  const text = seconds === 0 ? '0 s' : duration(seconds);
  return html`<span class=${`lag lag-${level}`}>
    <${HistoryNumber} instance=${instance} path=${path} label=${label}>${text}</${HistoryNumber}>
    ${seconds > 0 && GLYPH[trend] &&
    html`<span class=${`trend trend-${trend}`}> ${GLYPH[trend]} ${trend}</span>`}
  </span>`;
}

export const LAG_ATTENTION_S = 5;
export const LAG_ACT_S = 60;

// Far behind is worth attention; far behind and growing has to be acted on.
export function lagLevel(seconds, trend) {
  if (!isKnown(seconds)) return 'unknown';
  if (seconds >= LAG_ACT_S && trend !== 'shrinking') return 'act';
  if (seconds >= LAG_ATTENTION_S) return 'attention';
  return 'ready';
}

// What an operator sees first of a number. `values`: of its last minutes, for the line.
export function Tile({ label, value, note, level, instance, path, paths, values }) {
  const lines = paths?.map((each) => [instance, each]);
  return html`<div class=${`tile ${level ? `tile-${level}` : ''}`}>
    <span class="tile-label">${label}</span>
    <span class="tile-value"><${HistoryNumber} instance=${instance} path=${path} lines=${lines}
      label=${label}>${value}</${HistoryNumber}></span>
    ${values && html`<${Sparkline} values=${values} />`}
    ${note && html`<span class="tile-note muted">${note}</span>`}
  </div>`;
}

// Instances whose part of a list is missing are named: nothing vanishes silently.
export function SilentNotice({ silent, what }) {
  if (!silent.length) return null;
  const known = instancesByName.value;
  return html`<div class="notice" role="status">
    <${Status} level="unknown" text=${`${what} at ${plural(silent.length, 'instance')}: unknown, or as of its last answer`} />
    <ul>${silent.slice(0, 8).map(
      ([name, each]) => html`<li key=${name}><a href=${`#/instance/${encodeURIComponent(name)}`}>${name}</a>: ${
        each.error?.message ?? 'no answer'
      }${known.get(name)?.seen_by_others?.map((seen) => `; ${seen.by}: ${seen.text}`)}</li>`,
    )}${silent.length > 8 && html`<li>and ${silent.length - 8} more</li>`}</ul>
  </div>`;
}

export function Old({ polled }) {
  if (!polled.error || polled.ageS === null) return null;
  return html`<p class="notice" role="status"><${Status} level="unknown"
    text=${`These values are ${duration(polled.ageS)} old: ${polled.error.message}`} /></p>`;
}

// Leaves that people call otherwise than the documents do.
const TITLES = {
  messages_received_per_sec: 'Messages in per second', matches_found_per_sec: 'Messages out per second',
  persisted_per_sec: 'Acknowledged per second', ack_ms_p50: 'Acknowledgment, median', ack_ms_p99: 'Acknowledgment, p99',
  commit_ms_p50: 'Commit, median', commit_ms_p99: 'Commit, p99', loop_delay_ms_p99: 'Delay of the loop, p99',
  pending: 'Unacknowledged messages', rss: 'Memory of the process', vmsize: 'Virtual memory', idle_percent: 'Processors idle',
  user_percent: 'Processors, programs', system_percent: 'Processors, system', iowait_percent: 'Processors waiting for disks',
  queued_bytes_out: 'Backlog in bytes', seconds_behind: 'Seconds behind', transactions_behind: 'Messages behind',
  published_upto: 'Last sequence', valid_keys: 'Records', lag: 'Messages owed', unacked: 'Unacknowledged messages',
  queue_depth: 'Depth', file_system_free_percent: 'Disk free',
};

// -- values of the tree, by the name of their leaf -----------------------------------------
const WORDS = { ms: 'ms', us: 'µs', cpu: 'CPU', io: 'I/O', tcp: 'TCP', id: 'ID', sow: 'SOW', txid: 'transaction', p50: 'median' };

export function titleOf(name) {
  if (TITLES[name]) return TITLES[name];
  const words = name
    .replace(/_per_sec$/, ' per second')
    .replace(/_percent$/, ' %')
    .replace(/_ms(?=_|$)/, '')
    .split(/[_ ]+/)
    .map((word) => WORDS[word] ?? word);
  const text = words.join(' ').trim();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// A leaf's number as people read it, by what its documented name says of its unit.
export function formatOf(name) {
  if (/bytes.*_per_sec$/.test(name)) return (value) => (isKnown(value) ? `${bytes(value)}/s` : UNKNOWN);
  if (/_per_sec(ond)?$|_per_s$/.test(name)) return rate;
  if (/_ms(_|$)/.test(name)) return ms;
  if (/_us(_|$)|^(read|write)_latency/.test(name)) return (value) => (isKnown(value) ? ms(Number(value) / 1000) : UNKNOWN);
  if (/percent/.test(name)) return percent;
  if (/seconds|_latency$|_s$/.test(name)) return duration;
  if (/bytes|^(rss|vmsize|total|available|free|in_use|buffers|cached|swap_.*|file_size|memory_used)$/.test(name)) return bytes;
  return count;
}

export const isNumeric = (text) => /^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text);

function flat(node, path, found) {
  for (const [name, value] of Object.entries(node)) {
    const below = [...path, name];
    if (Array.isArray(value)) value.forEach((entry) => flat(rest(entry), [...below, entry.id], found));
    else if (value !== null && typeof value === 'object') flat(value, below, found);
    else found.push({ path: below, text: String(value ?? '') });
  }
  return found;
}

const rest = ({ id, ...others }) => others;

// All leaves below a node as rows. `path`: of the node, in encoded steps.
export const leavesOf = (node) => flat(node, [], []);

// Any branch as a table of names and values; each number opens its history.
export function BranchTable({ id, caption, node, instance, path, empty, prefix = '' }) {
  const rows = useMemo(() => leavesOf(node ?? {}), [node]);
  const columns = [
    {
      key: 'name',
      title: 'Name',
      value: (row) => row.path.join(' › '),
      text: (row) => row.path.map((each, i) => (i === row.path.length - 1 ? titleOf(each) : each)).join(' › '),
    },
    {
      key: 'value',
      title: 'Value',
      numeric: true,
      value: (row) => (isNumeric(row.text) ? num(row.text) : row.text),
      text: (row) => shown(row),
      cell: (row) =>
        isNumeric(row.text)
          ? html`<${HistoryNumber} instance=${instance} path=${`${path}/${row.path.map(step).join('/')}`}
              label=${row.path.join(' ')}><span title=${exact(row.text)}>${shown(row)}</span></${HistoryNumber}>`
          : html`<span class="text-value">${shown(row)}</span>`,
    },
  ];
  return html`<div class="narrow"><${Table} id=${id} columns=${columns} rows=${rows} caption=${caption} empty=${empty} prefix=${prefix} rowKey=${(row) => row.path.join('/')} /></div>`;
}

function shown(row) {
  if (row.text === '') return UNKNOWN;
  if (!isNumeric(row.text)) return row.text;
  const name = row.path.at(-1);
  if (/(^|_)(id|hash|pid|txid|incarnation|generation|number|first|last)$/.test(name)) return row.text;
  return formatOf(name)(row.text);
}

// A chart of lines [[instance, path], …] inside a page. The chart's code is read when one is shown.
export function HistoryPanel(props) {
  const [Panel, setPanel] = useState(null);
  useEffect(() => {
    let isCurrent = true;
    import('../pages/history.js').then((found) => isCurrent && setPanel(() => found.HistoryPanel), () => {});
    return () => {
      isCurrent = false;
    };
  }, []);
  return html`<div class="panel-place">${Panel && html`<${Panel} ...${props} />`}</div>`;
}

// Seconds since a time of the server, by the server's clock.
export const secondsSince = (timeUs) =>
  !isKnown(timeUs) || !isKnown(nowUs.value) ? null : (nowUs.value - timeUs) / 1e6;
