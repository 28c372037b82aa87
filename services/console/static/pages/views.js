// Views and conflated topics of the whole fabric, and one of them: its definition, its numbers at each
// instance, its followers, and its rows as they change.
import { classes, html, useEffect, useMemo, useRef, useState } from '../core/html.js';
import { isTrue, leaf, num, step, useFabricAmps } from '../core/amps.js';
import { ApiError, lines, peerPath } from '../core/api.js';
import { fabric } from '../core/fabric.js';
import { bytes, count, exact, isKnown, percent, plural, rate, TRENDS, UNKNOWN } from '../core/format.js';
import { Number as HistoryNumber } from '../core/history_link.js';
import { Facts, HistoryPanel, PageHead, Segments, SilentNotice } from '../core/parts.js';
import { paused } from '../core/poll.js';
import { href, route, setParam } from '../core/route.js';
import { Empty, Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';
import { clientColumns, subscriberRows } from './clients.js';

const NONE = [];
const KINDS = { view: 'view', conflated: 'conflated topic' };
const PATHS = { view: 'instance/views', conflated: 'instance/conflated_topics' };
const LINES_MAX = 6;
const ROWS_SHOWN = 50;
const ROWS_EVERY_MS = 2_000;
const FIELDS_MAX = 12;
const TEXT_MAX = 80;

export default function Page({ names }) {
  return route.value.page === 'view' && names.length
    ? html`<${ViewPage} key=${names.join('/')} name=${names.join('/')} />`
    : html`<${ViewsPage} />`;
}

// The leaf that holds a number of fabric.json at an instance.
const leafOf = (kind, value) => ({
  records: 'raylay/records', taken: 'raylay/taken_per_sec', updates: 'raylay/updates_per_sec', subscribers: 'raylay/subscriptions',
  memory: kind === 'view' ? 'raylay/memory_bytes' : 'raylay/pending_bytes',
  waiting: kind === 'view' ? 'queue_depth' : 'raylay/pending',
}[value]);

const pathOf = (view, value) =>
  `${PATHS[view.kind]}/${step(`${view.message_type}/${view.name}`)}/${leafOf(view.kind, value)}`;

const linesOf = (view, value) =>
  (view.instances ?? NONE).slice(0, LINES_MAX).map((each) => [each.name, pathOf(view, value)]);

function stateOf(view) {
  if (view.level === 'act') return 'out of service';
  if (isKnown(view.built_percent)) return `${percent(view.built_percent)} built`;
  return view.level === 'unknown' ? 'unknown' : 'ready';
}

function numeric(key, title, name, format, more = {}) {
  return {
    key, title, numeric: true, value: (row) => row[name], text: (row) => format(row[name]),
    cell: (row) => html`<${HistoryNumber} lines=${linesOf(row, key)} label=${`${title} of ${row.name}`}>${format(row[name])}</${HistoryNumber}>`,
    ...more,
  };
}

const waitingText = (row) => `${exact(row.waiting)}${row.waiting > 0 && TRENDS[row.trend] ? ` ${TRENDS[row.trend]}` : ''}`;

const COLUMNS = [
  { key: 'name', title: 'View', wide: true, value: (row) => row.name },
  { key: 'state', title: 'State', value: stateOf, cell: (row) => html`<${Status} level=${row.level} text=${stateOf(row)} />` },
  { key: 'kind', title: 'Kind', value: (row) => KINDS[row.kind] ?? row.kind },
  { key: 'under', title: 'Over', value: (row) => row.under },
  numeric('records', 'Records', 'records', exact),
  numeric('taken', 'In', 'taken_per_sec', rate, { hint: 'Changes that come to it' }),
  numeric('updates', 'Updates', 'updates_per_sec', rate, { hint: 'Changes that its followers get' }),
  numeric('waiting', 'Waiting', 'waiting', exact, {
    hint: 'Updates that a view has not applied; records of a conflated topic that wait for their interval',
    text: waitingText,
    cell: (row) => html`<${HistoryNumber} lines=${linesOf(row, 'waiting')} label=${`what waits in ${row.name}`}>${waitingText(row)}</${HistoryNumber}>`,
  }),
  numeric('memory', 'Memory', 'memory_bytes', bytes, { hint: 'Of a view: all that it keeps. Of a conflated topic: what waits' }),
  numeric('subscribers', 'Followers', 'subscribers', exact),
  { key: 'instances', title: 'Instances', numeric: true, minor: 'tablet', value: (row) => row.instances?.length },
];

function ViewsPage() {
  const known = fabric.value;
  if (!known) return html`<${PageHead} title="Views" /><${Loading} text="asking for the fabric" />`;
  const views = known.views ?? NONE;
  const show = route.value.params.show ?? 'all';
  const rows = show === 'all' ? views : views.filter((each) => each.kind === show);
  const of = (kind) => count(views.filter((each) => each.kind === kind).length);
  return html`<${PageHead} title="Views" />
    <${Segments} name="show" label="Which of them" fallback="all" options=${[
      ['all', `All ${count(views.length)}`], ['view', `Views ${of('view')}`], ['conflated', `Conflated topics ${of('conflated')}`],
    ]} />
    <${Table} id="views" columns=${COLUMNS} rows=${rows} sort="-updates" caption="Views and conflated topics, busiest first"
      rowKey=${(row) => `${row.kind}/${row.message_type}/${row.name}`} rowHref=${(row) => href('view', [row.name])}
      empty=${html`<${Empty} title="No view is configured" text="A view has sums, counts and joins of other topics, computed once on the server; a conflated topic gives each record at most once an interval. See docs/views.md." />`} />`;
}

// -- one of them -----------------------------------------------------------------------------
function ViewPage({ name }) {
  const found = (fabric.value?.views ?? NONE).find((each) => each.name === name);
  const kind = found?.kind ?? 'view';
  const nodes = useFabricAmps(PATHS[kind], 2000);
  const subscriptions = useFabricAmps('instance/subscriptions', 2000);
  const rows = useMemo(
    () => [...nodes.of].flatMap(([instance, each]) =>
      (each.node ?? NONE).filter((entry) => entry.topic === name).map((entry) => ({ ...entry, instance, path: `${PATHS[kind]}/${step(entry.id)}` }))),
    [nodes.of, name, kind],
  );
  const followers = useMemo(
    () => [...subscriptions.of].flatMap(([instance, each]) => subscriberRows(instance, each.node)).filter((each) => each.topic === name),
    [subscriptions.of, name],
  );
  const head = html`<${PageHead} crumbs=${[['Views', href('views')]]} title=${name} level=${found?.level} state=${found ? stateOf(found) : undefined}>
    ${found && html`<${Facts} facts=${[
      ['Kind', KINDS[kind]],
      ['Over', html`<${Under} text=${found.under} />`],
      ['Message type', found.message_type],
      ...COLUMNS.filter((each) => each.numeric && each.key !== 'instances').map((each) => [each.title, each.cell(found)]),
    ]} />`}
    ${[...new Set((found?.instances ?? NONE).map((each) => each.why).filter(Boolean))].map((why) => html`<p key=${why} class="why act-text">${why}</p>`)}
  </${PageHead}>`;
  if (!fabric.value || (!found && nodes.loading)) return html`${head}<${Loading} text="asking every instance for the view" />`;
  if (!found && !rows.length) {
    return html`${head}<${SilentNotice} silent=${nodes.silent} what="Views" /><${Empty} title=${`There is no view ${name}`}
      text=${fabric.value.views?.length ? `The fabric has ${fabric.value.views.slice(0, 12).map((each) => each.name).join(', ')}.` : 'The fabric has no view.'} />`;
  }
  const updates = found ? linesOf(found, 'updates') : NONE;
  return html`${head}
    <${SilentNotice} silent=${nodes.silent} what=${`The part of ${name}`} />
    ${rows.length > 0 && html`<${Definition} kind=${kind} node=${rows[0]} />`}
    ${updates.length > 0 && html`<${HistoryPanel} title="Updates per second" lines=${updates}
      labels=${new Map(updates.map(([instance, path]) => [`${instance}:${path}`, instance]))} />`}
    <h2>At each instance</h2>
    <${Instances} name=${name} kind=${kind} rows=${rows} />
    <${LiveRows} key=${kind} name=${name} messageType=${found?.message_type ?? rows[0]?.message_type} instances=${rows.map((each) => each.instance)} />
    <h2>Followers</h2>
    <${Table} key=${String(subscriptions.isFirst)} id="view-followers" prefix="followers" rows=${followers} sort="-lag" rowKey=${(row) => `${row.instance}/${row.id}`}
      rowHref=${(row) => href('client', [row.client])} caption=${`Followers of ${name}, furthest behind first`}
      columns=${['client', 'kind', 'lag', 'instance', 'backlog', 'delivered', 'options', 'filter'].map((each) => clientColumns[each])}
      empty=${html`<${Empty} title="Nobody follows it" text="It is computed all the same, and queries read it." command=${`raylay sow ${JSON.stringify(name)}`} />`} />`;
}

function Under({ text }) {
  const names = text ? text.split(', ') : NONE;
  const views = new Set((fabric.value?.views ?? NONE).map((each) => each.name));
  return names.map((each, at) => html`${at > 0 && ', '}<a key=${each} href=${href(views.has(each) ? 'view' : 'topic', [each])}>${each}</a>`);
}

function Definition({ kind, node }) {
  const own = (path) => leaf(node, `raylay/${path}`);
  const ratio = num(node.conflation_ratio);
  const facts = kind === 'view'
    ? [
      ['Grouped by', mono(node.grouping) ?? 'each record by itself'],
      ['Filter', mono(own('filter'))],
      ['Joins', mono(own('joins'))],
      ['Conflation', node.conflation],
      ['Memory at most', isKnown(num(own('memory_bytes_max'))) && bytes(num(own('memory_bytes_max')))],
    ]
    : [['Interval', node.interval], ['Filter', mono(node.filter)], ['Enrichment', mono(own('enrichment'))], ['Pattern', mono(node.pattern)], ['Topic format', mono(node.topic_format)]];
  return html`<section class="card"><h2>Definition</h2>
    <${Facts} facts=${[...facts, ['Changes in for each one out', ratio > 0 && ratio.toFixed(2)]]} />
    ${kind === 'view' && node.projection && html`<pre class="config projection">${fieldsOf(node.projection).join('\n')}</pre>`}
  </section>`;
}

// The fields of a projection: apart by commas that are in no parentheses and no text.
function fieldsOf(text) {
  const found = [''];
  let depth = 0;
  let quote = '';
  for (const letter of text) {
    if (quote) quote = letter === quote ? '' : quote;
    else if (letter === "'" || letter === '"') quote = letter;
    else if (letter === '(') depth += 1;
    else if (letter === ')') depth -= 1;
    if (letter === ',' && !depth && !quote) found.push('');
    else found[found.length - 1] += letter;
  }
  return found.map((each) => each.trim());
}

const mono = (text) => (text ? html`<span class="mono">${text}</span>` : null);

function Instances({ name, kind, rows }) {
  const number = (key, title, format) => ({
    key, title, numeric: true, value: (row) => num(leaf(row, leafOf(kind, key))), text: (row) => format(num(leaf(row, leafOf(kind, key)))),
    cell: (row) => html`<${HistoryNumber} instance=${row.instance} path=${`${row.path}/${leafOf(kind, key)}`} label=${`${title} at ${row.instance}`}>${
      format(num(leaf(row, leafOf(kind, key))))}</${HistoryNumber}>`,
  });
  const isServing = (row) => isTrue(leaf(row, 'raylay/in_service'));
  const built = (row) => num(leaf(row, 'raylay/built_percent'));
  const state = (row) => (!isServing(row) ? 'out of service' : isKnown(built(row)) ? `${percent(built(row))} built` : 'ready');
  const columns = [
    { key: 'instance', title: 'Instance', wide: true, value: (row) => row.instance, cell: (row) => html`<a href=${href('instance', [row.instance, 'sow'])}>${row.instance}</a>` },
    { key: 'state', title: 'State', value: state,
      cell: (row) => html`<${Status} level=${!isServing(row) ? 'act' : isKnown(built(row)) ? 'working' : 'ready'} text=${state(row)} />` },
    number('records', 'Records', exact), number('taken', 'In', rate), number('updates', 'Updates', rate), number('waiting', 'Waiting', exact),
    number('memory', 'Memory', bytes), number('subscribers', 'Followers', exact),
  ];
  return html`<${Table} id="view-instances" prefix="at" filter=${false} columns=${columns} rows=${rows} rowKey=${(row) => row.instance} sort="instance"
    caption=${`${name} at each instance`} empty=${html`<${Loading} text="asking every instance for the view" />`} />`;
}

// -- its rows --------------------------------------------------------------------------------
// A number keeps all of its digits: where the browser tells a number's text, that is shown.
function parsed(text) {
  try {
    const found = JSON.parse(text, (_, value, context) =>
      typeof value === 'number' && context?.source ? new Digits(value, context.source) : value);
    return found !== null && typeof found === 'object' && !Array.isArray(found) && !(found instanceof Digits) ? found : null;
  } catch {
    return null;
  }
}

class Digits {
  constructor(value, text) {
    this.value = value;
    this.text = text;
  }

  toJSON() {
    return this.value;
  }
}

function fieldText(value) {
  if (value === undefined) return UNKNOWN;
  if (value instanceof Digits) return value.text;
  return typeof value === 'string' ? value : JSON.stringify(value);
}

// Reads the first rows of a query, which the instance asks again every two seconds over one
// connection: {rows, error}. What is on the page stays where a later look fails. A page that is
// paused looks once; one that is hidden does not look.
function useRows(path) {
  const [state, setState] = useState({ path, rows: null, error: null });
  const isPaused = paused.value;
  useEffect(() => {
    if (!path) return undefined;
    let control = new AbortController();
    let timer = 0;
    const read = async () => {
      if (document.hidden) return;
      const own = control;
      let rows = [];
      let failure = '';
      try {
        await lines(path, (line) => {
          if (line.row) rows.push(line.row);
          if (line.error) failure = line.error;
          if (!line.look || own.signal.aborted) return;
          setState({ path, rows, error: null });
          rows = [];
          if (isPaused) own.abort();
        }, { signal: own.signal });
        if (failure) throw new ApiError(409, failure);
      } catch (error) {
        if (own.signal.aborted) return;
        setState((last) => ({ ...(last.path === path ? last : { rows: null }), path, error }));
      }
      if (!own.signal.aborted) timer = setTimeout(read, ROWS_EVERY_MS);
    };
    const again = () => {
      clearTimeout(timer);
      control.abort();
      control = new AbortController();
      read();
    };
    document.addEventListener('visibilitychange', again);
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', again);
    };
  }, [path, isPaused]);
  return state.path === path ? state : { rows: null, error: null };
}

// The rows with their fields, and of each field whether it has changed since the last look.
function useChanges(rows) {
  const before = useRef({ rows: null, fields: new Map(), changed: new Map() });
  return useMemo(() => {
    const last = before.current.fields;
    const fields = new Map();
    const changed = new Map();
    const shown = (rows ?? NONE).map((row, at) => {
      const key = row.sow_key || String(at);
      const body = row.is_text && !row.is_cut ? parsed(row.body) : null;
      const texts = new Map(Object.entries(body ?? { body: row.body }).map(([name, value]) => [name, fieldText(value)]));
      const old = last.get(key);
      fields.set(key, texts);
      changed.set(key, new Set(last.size ? [...texts.keys()].filter((name) => old?.get(name) !== texts.get(name)) : NONE));
      return { key, body, texts };
    });
    before.current = { fields };
    return shown.map((each) => ({ ...each, changed: changed.get(each.key) }));
  }, [rows]);
}

function LiveRows({ name, messageType, instances }) {
  const { order = '', filter = '', i = '' } = route.value.params;
  const instance = i || (instances.includes(fabric.value?.served_by) ? fabric.value.served_by : instances[0]) || '';
  const query = new URLSearchParams({ source: 'sow', follow: '1', topic: name, limit: String(ROWS_SHOWN + 1) });
  if (order) query.set('order', order);
  if (filter) query.set('filter', filter);
  const { rows: read, error } = useRows(instance && peerPath(instance, `raylay/messages?${query}`));
  const own = useMemo(() => read?.filter((each) => each.message_type === messageType).slice(0, ROWS_SHOWN), [read, messageType]);
  const rows = useChanges(own);
  const names = [...new Set(rows.flatMap((row) => [...row.texts.keys()]))].slice(0, FIELDS_MAX);
  const isNumber = (field) => rows.every(({ body }) => body?.[field] == null || body[field] instanceof Digits || typeof body[field] === 'number');
  const columns = names.map((field) => ({
    key: field, title: field, numeric: isNumber(field), wide: field === names[0],
    value: (row) => (row.body?.[field] == null && row.body ? null : row.texts.get(field)),
    text: (row) => row.texts.get(field) ?? UNKNOWN,
    cell: (row) => {
      const text = row.texts.get(field) ?? UNKNOWN;
      return html`<span class=${classes('view-value', row.changed.has(field) && 'view-changed')} title=${text.length > TEXT_MAX ? text.slice(0, 1000) : undefined}>${
        text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text}</span>`;
    },
  }));
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    for (const each of ['order', 'filter', 'i']) setParam(each, String(form.get(each) ?? '').trim());
  };
  const isRefused = error && (error.status === 400 || error.status === 403 || error.status === 409);
  return html`<h2>Rows</h2>
    <form class="bar" onSubmit=${submit} role="search" aria-label=${`rows of ${name}`}>
      <label class="bar-filter">filter<input name="filter" class="mono" defaultValue=${filter} placeholder="/average > 30" spellcheck="false" autocomplete="off" /></label>
      <label class="bar-topic">order<input name="order" class="mono" defaultValue=${order} placeholder="/average DESC" spellcheck="false" autocomplete="off" /></label>
      <label>at<select name="i" defaultValue=${instance}>${instances.map((each) => html`<option key=${each} value=${each} selected=${each === instance}>${each}</option>`)}</select></label>
      <button type="submit" class="button button-main bar-go">Show</button>
    </form>
    ${error && html`<${Problem} title=${isRefused ? 'Its rows cannot be read' : 'Its rows could not be read'} error=${error} />`}
    ${!rows.length && own && !error && html`<${Empty} title="It has no rows" text=${filter ? 'No row passes the filter.' : 'Rows appear with the first record under it.'} />`}
    ${!own && !error && html`<${Loading} text=${`asking ${instance || 'an instance'} for its rows`} />`}
    ${rows.length > 0 && html`<${Table} id="view-rows" prefix="rows" filter=${false} columns=${columns} rows=${rows} rowKey=${(row) => row.key} caption=${`Rows of ${name} at ${instance}`} />
      <p class="muted">${read.length > ROWS_SHOWN ? `The first ${ROWS_SHOWN} rows` : plural(rows.length, 'row')}, read again every ${ROWS_EVERY_MS / 1000} s. What has changed is marked.</p>`}`;
}
