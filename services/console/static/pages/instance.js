// One instance: its head, and a tab for each of its parts.
import { html, useEffect, useMemo, useState } from '../core/html.js';
import { Action, actionPath } from '../core/action.js';
import { getText } from '../core/api.js';
import { ampsUrl, isTrue, leaf, num, step, timeOf, useAmps } from '../core/amps.js';
import { fabric, instancesByName, nowUs } from '../core/fabric.js';
import { ago, bytes, clock, count, duration, exact, isKnown, ms, percent, rate, time, UNKNOWN } from '../core/format.js';
import { Number, historyHref } from '../core/history_link.js';
import { BranchTable, Facts, Old, PageHead, Tile, titleOf } from '../core/parts.js';
import { isoOf, serverNowS } from '../core/range.js';
import { usePolled } from '../core/poll.js';
import { href, route } from '../core/route.js';
import { Empty, Loading, Problem } from '../core/states.js';
import { Status } from '../core/status.js';
import { Table } from '../core/table.js';
import { ClientTables, clientRows, subscriberRows } from './clients.js';
import { SharedBySubscriptions } from './shared.js';

const TABS = [
  ['now', 'Now', NowTab],
  ['links', 'Links', LinksTab],
  ['clients', 'Clients', ClientsTab],
  ['queues', 'Queues', QueuesTab],
  ['sow', 'SOW', SowTab],
  ['journal', 'Journal', JournalTab],
  ['slow', 'Slow clients', SlowTab],
  ['host', 'Host', HostTab],
  ['configuration', 'Configuration', ConfigurationTab],
  ['actions', 'Actions', ActionsTab],
];
const WORDS = {
  ready: 'ready', catching_up: 'catching up', recovering: 'recovering', stopping: 'stopping', failed: 'failed',
  retired: 'retired', unknown: 'unknown',
};

export default function Page({ names }) {
  const [name, tab = 'now'] = names;
  const known = fabric.value;
  if (!known) return html`<${PageHead} title=${name ?? 'Instance'} /><${Loading} text="asking for the fabric" />`;
  if (!name) return html`<${Empty} title="No instance is named" text="Choose one in the list of instances." />`;
  const found = instancesByName.value.get(name);
  if (!found) {
    return html`<${PageHead} crumbs=${[['Instances', href('instances')]]} title=${name} />
      <${Empty} title=${`${name} is no instance of this fabric`} text=${`It has ${known.instances
        .map((each) => each.name).slice(0, 12).join(', ')}. An instance that was removed from the configuration is not shown.`} />`;
  }
  const [, title, Body] = TABS.find(([key]) => key === tab) ?? TABS[0];
  const place = TABS.some(([key]) => key === tab) ? tab : 'now';
  return html`<${Head} of=${found} />
    <nav class="tabs" aria-label=${`Parts of ${name}`}>${TABS.map(
      ([key, text]) => html`<a key=${key} href=${href('instance', [name, key])} aria-current=${key === place ? 'page' : undefined}>${text}</a>`,
    )}</nav>
    <section class="tab" aria-label=${title} key=${`${name}/${place}`}><${Body} name=${name} of=${found} /></section>`;
}

function Head({ of }) {
  const isOld = (of.age_s ?? 0) > 3;
  const isUnknown = of.level === 'unknown';
  const { tz } = route.value.params;
  return html`<${PageHead} crumbs=${[['Instances', href('instances')], [of.group, href('instances', [], { q: of.group })]]}
      title=${of.name} level=${of.level} state=${WORDS[of.state] ?? of.state}>
    ${of.why && html`<p class="why">${of.why}</p>`}
    ${isUnknown &&
    html`<p class="why">last answer ${of.answered_us ? `${clock(of.answered_us, tz)}, ${ago(of.answered_us, nowUs.value)}` : 'never'}</p>
      ${of.seen_by_others?.map((each) => html`<p class="why muted" key=${each.by}>${each.by}: ${each.text}</p>`)}`}
    <${Facts} facts=${[
      ['Up', isUnknown ? UNKNOWN : duration(of.uptime_s)],
      ['Version', of.version || UNKNOWN],
      ['Incarnation', of.incarnation ? html`<code title=${of.incarnation}>${String(of.incarnation).slice(0, 8)}</code>` : UNKNOWN],
      ['Failing over here', of.may_fail_over === null || of.may_fail_over === undefined || isUnknown
        ? html`<${Status} level="unknown" text=${of.why_not || 'not known'} />`
        : of.may_fail_over
          ? html`<${Status} level="ready" text="clients may" />`
          : html`<${Status} level="attention" text=${`not now: ${of.why_not || 'it may lack acknowledged messages'}`} />`],
      isOld && !isUnknown ? ['Age of values', duration(of.age_s)] : null,
    ]} />
  </${PageHead}>`;
}

// What a tab shows of its polled resource: loading, an error that says what to do, or the body.
function Resource({ polled, name, children }) {
  if (polled.loading) return html`<${Loading} text=${`asking ${name}`} />`;
  if (polled.node === undefined || polled.node === null) {
    return html`<${Problem} title=${`${name} did not tell this`} error=${polled.error ?? new Error('It is not in the answer: this instance may run another version.')} />`;
  }
  return html`<${Old} polled=${polled} />${children()}`;
}

// -- now -------------------------------------------------------------------------------------
const SPARK_S = 900;
const SPARK_POINTS = 60;
const TILES = [
  { label: 'In', path: 'instance/processors/all/messages_received_per_sec', format: rate, of: 'in_per_sec' },
  { label: 'Out', path: 'instance/processors/all/matches_found_per_sec', format: rate, of: 'out_per_sec' },
  { label: 'Acknowledged', path: 'instance/raylay/persisted_per_sec', format: rate, of: 'acks_per_sec' },
  { label: 'Ack median', path: 'instance/raylay/ack_ms_p50', format: ms, of: 'ack_ms_p50' },
  { label: 'Ack p99', path: 'instance/raylay/ack_ms_p99', format: ms, of: 'ack_ms_p99' },
  { label: 'Commits', path: 'instance/transaction_log/raylay/commits_per_sec', format: rate },
  { label: 'Commit median', path: 'instance/raylay/commit_ms_p50', format: ms },
  { label: 'Commit p99', path: 'instance/raylay/commit_ms_p99', format: ms },
  { label: 'Unacknowledged', path: 'instance/raylay/pending', format: count, of: 'unacknowledged' },
  { label: 'Memory', path: 'instance/memory/rss', format: bytes },
  { label: 'Disk free', format: percent, of: 'disk_free_percent' },
];

function NowTab({ name, of }) {
  const own = useAmps(name, 'instance/raylay', 2000);
  const log = useAmps(name, 'instance/transaction_log/raylay', 2000);
  const memory = useAmps(name, 'instance/memory', 5000);
  const isTold = (path) => {
    const [, part] = path.split('/');
    const node = { memory: memory.node, transaction_log: log.node, raylay: own.node }[part];
    return node === undefined ? part === 'processors' : path.split('/').at(-1) in node;
  };
  const lines = useSparks(name, TILES.map((tile) => tile.path).filter((path) => path && isTold(path)).join('\n'));
  const value = (tile) => {
    if (of.level === 'unknown') return null;
    if (tile.of && isKnown(of[tile.of])) return of[tile.of];
    const [, part] = tile.path.split('/');
    const node = { memory: memory.node, transaction_log: log.node }[part] ?? own.node;
    return num(leaf(node, tile.path.split('/').at(-1)));
  };
  const tiles = TILES.map((tile) => ({ ...tile, value: tile.path || tile.of ? value({ path: '', ...tile }) : null }));
  return html`<div class="tiles">${tiles.map(
      (tile) => html`<${Tile} key=${tile.label} label=${tile.label} value=${tile.format(tile.value)}
        instance=${name} path=${tile.path} values=${tile.path ? lines.get(tile.path) : undefined}
        level=${tile.label === 'Disk free' && tile.value !== null && tile.value < 10 ? 'attention' : undefined}
        note=${tile.of === 'unacknowledged' && of.oldest_unacknowledged_ms ? `oldest ${ms(of.oldest_unacknowledged_ms)}` : undefined} />`,
    )}</div>
    <div class="columns">
      <section class="card"><h2>Who is connected</h2>
        <${Facts} facts=${[
          ['Clients', html`<a href=${href('instance', [name, 'clients'])}>${count(of.clients)}</a>`],
          ['Subscriptions', count(of.subscriptions)],
          ['Slow clients', html`<a href=${href('instance', [name, 'slow'])}>${of.slow_clients > 0
            ? html`<${Status} level="attention" text=${exact(of.slow_clients)} />` : exact(of.slow_clients)}</a>`],
        ]} />
      </section>
      <section class="card"><h2>Links from here</h2><${LinkLines} name=${name} /></section>
      <section class="card"><h2>Problems here</h2><${ProblemLines} name=${name} /></section>
    </div>
    <${LatestEvents} name=${name} />
    <p class="links-row">
      <a href=${historyHref(name, TILES.slice(0, 3).map((tile) => tile.path))}>History of its rates</a>
      <a href=${historyHref(name, ['instance/raylay/ack_ms_p50', 'instance/raylay/ack_ms_p99'])}>History of its acks</a>
      <a href=${href('events', [], { q: name })}>Its events</a></p>`;
}

// What happened just before.
function LatestEvents({ name }) {
  const { data } = usePolled(`raylay/peer/${step(name)}/raylay/events.json?limit=8`, 5000);
  const events = [...(data?.events ?? [])].sort((a, b) => b.time_us - a.time_us).slice(0, 8);
  if (!events.length) return null;
  const { tz } = route.value.params;
  return html`<section class="card"><h2>What happened last</h2><ul class="event-lines">${events.map((each) => html`<li key=${each.number}>
    <time class="muted" title=${time(each.time_us, tz)}>${ago(each.time_us, nowUs.value)}</time>
    <${Status} level=${{ act: 'act', attention: 'attention' }[each.level] ?? 'ready'} text=${each.text} /></li>`)}</ul></section>`;
}

// The last quarter of an hour of each tile, read once and then carried on by the polls.
function useSparks(name, paths) {
  const [lines, setLines] = useState(new Map());
  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    const read = async () => {
      const toS = serverNowS();
      const found = new Map();
      for (const path of paths.split('\n').filter(Boolean)) {
        try {
          const text = await getText(`${ampsUrl(name, path, 'csv')}?t0=${encodeURIComponent(isoOf(toS - SPARK_S))}`, { signal: control.signal });
          found.set(path, sampled(text, toS));
        } catch {
          if (control.signal.aborted) return;
          // No statistics of it: the tile has a number and no line.
        }
      }
      setLines(found);
      timer = setTimeout(read, (SPARK_S / SPARK_POINTS) * 1000);
    };
    read();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [name, paths]);
  return lines;
}

function sampled(text, toS) {
  const sums = new Array(SPARK_POINTS).fill(0);
  const counts = new Array(SPARK_POINTS).fill(0);
  for (const line of text.split('\n')) {
    const at = line.indexOf(',');
    const value = num(line.slice(at + 1));
    if (at < 0 || value === null) continue;
    const place = Math.floor(((timeOf(line.slice(0, at)) / 1e6 - (toS - SPARK_S)) / SPARK_S) * SPARK_POINTS);
    if (place < 0 || place >= SPARK_POINTS) continue;
    sums[place] += globalThis.Number(value);
    counts[place] += 1;
  }
  // A sample each ten seconds leaves no gap; a minute without one does.
  return sums.map((sum, i) => (counts[i] ? sum / counts[i] : null));
}

function LinkLines({ name }) {
  const links = (fabric.value?.links ?? []).filter((each) => each.from === name);
  if (!links.length) return html`<p class="muted">It replicates to nobody.</p>`;
  return html`<ul class="plain">${links.map(
    (each) => html`<li key=${each.id}><a href=${href('link', [each.id])}><${Status} level=${each.level} text=${each.destination} /></a>
      ${' '}<span class="muted">${each.text || each.state}</span></li>`,
  )}</ul>`;
}

function ProblemLines({ name }) {
  const found = (fabric.value?.problems ?? []).filter(
    (each) => each.instance === name || each.id.includes(`/${name}~`) || each.id.split('/').includes(name) || each.text.includes(name),
  );
  if (!found.length) return html`<p><${Status} level="ready" text="none" /></p>`;
  return html`<ul class="plain">${found.map(
    (each) => html`<li key=${each.id}><a href=${each.href}><${Status} level=${each.level} text=${each.text} /></a></li>`,
  )}</ul>`;
}

// -- links -----------------------------------------------------------------------------------
const LINK = 'instance/replication';

function LinksTab({ name }) {
  const polled = useAmps(name, LINK, 1000);
  return html`<${Resource} polled=${polled} name=${name}>${() => html`<${LinksOf} name=${name} node=${polled.node} />`}</${Resource}>`;
}

function LinksOf({ name, node }) {
  const ofFabric = new Map((fabric.value?.links ?? []).filter((each) => each.from === name).map((each) => [each.destination, each]));
  const rows = node.map((each) => ({ ...each, link: ofFabric.get(each.id), path: `${LINK}/${step(each.id)}` }));
  const columns = [
    { key: 'destination', title: 'Destination', value: (row) => row.id },
    { key: 'state', title: 'State', value: (row) => row.link?.state ?? '', text: (row) => stateOf(row), wraps: true,
      cell: (row) => html`<${Status} level=${row.link?.level ?? 'unknown'} text=${stateOf(row)} />` },
    { key: 'type', title: 'Type', value: (row) => row.replication_type, text: (row) => leaf(row, 'raylay/configured_type') === row.replication_type
      ? row.replication_type : `${row.replication_type} for now` },
    numeric('rate', 'Rate', name, 'messages_out_per_sec', rate),
    numeric('lag', 'Owes', name, 'raylay/lag', exact),
    { ...numeric('unacked', 'Unacked', name, 'raylay/unacked', exact), minor: true },
    numeric('seconds', 'Behind', name, 'seconds_behind', duration),
    numeric('age', 'Oldest', name, 'raylay/age_ms', ms),
    { key: 'safe', title: 'Fail over there', wide: true, value: (row) => leaf(row, 'raylay/is_safe'),
      text: (row) => (isTrue(leaf(row, 'raylay/is_safe')) ? 'safe' : leaf(row, 'raylay/why_unsafe') || 'unsafe'),
      cell: (row) => isTrue(leaf(row, 'raylay/is_safe')) ? html`<${Status} level="ready" text="safe" />`
        : html`<${Status} level="attention" text=${leaf(row, 'raylay/why_unsafe') || 'unsafe'} />` },
    { key: 'actions', title: 'Actions', unsorted: true, value: () => '', text: () => '', cell: (row) => html`<${LinkActions} name=${name} row=${row} />` },
  ];
  return html`<${Table} id="instance-links" columns=${columns} rows=${rows} caption=${`Links of ${name}`}
    rowHref=${(row) => href('link', [row.link?.id ?? `${name}~${row.id}`])}
    empty=${html`<${Empty} title=${`${name} replicates to nobody`} text="Its configuration names no destination." />`} />`;
}

const stateOf = (row) => row.link?.text || row.link?.state || (isTrue(row.is_connected) ? 'connected' : 'disconnected');

function LinkActions({ name, row }) {
  const isDown = isTrue(leaf(row, 'raylay/is_downgraded'));
  const isAsync = leaf(row, 'raylay/configured_type') === 'async';
  const call = isDown ? 'upgrade' : 'downgrade';
  return html`<span class="actions" data-actions>
    ${!isAsync && html`<${Action} instance=${name} path=${actionPath('replication', row.id, call)} label=${`${call} ${row.id}`} text=${call}
      risk=${isDown ? 'Acks wait for it again.' : 'Acks stop waiting for it. Messages that it lacks count as acknowledged: if this disk dies they are lost.'} />`}
    <${Action} instance=${name} path=${actionPath('replication', row.id, 'reconnect')} label=${`reconnect ${row.id}`} text="reconnect"
      risk="The link begins again, publishers wait meanwhile. Nothing is lost." />
  </span>`;
}

// A numeric column of a documented leaf, which opens its history.
function numeric(key, title, name, path, format, base) {
  const value = (row) => num(leaf(row, path));
  return {
    key, title, numeric: true, value, text: (row) => format(value(row)),
    cell: (row) => html`<${Number} instance=${name} path=${`${base ?? row.path}/${path}`} label=${`${title} of ${row.id}`}>
      <span title=${exact(value(row))}>${format(value(row))}</span></${Number}>`,
  };
}

// -- clients ---------------------------------------------------------------------------------
function ClientsTab({ name }) {
  const clients = useAmps(name, 'instance/clients', 2000);
  const subscriptions = useAmps(name, 'instance/subscriptions', 2000);
  const subscribers = useMemo(() => subscriberRows(name, subscriptions.node), [name, subscriptions.node]);
  const rows = useMemo(() => clientRows(name, clients.node, subscribers), [name, clients.node, subscribers]);
  if (subscriptions.loading) return html`<${Loading} text=${`asking ${name}`} />`;
  return html`<${Resource} polled=${clients} name=${name}>${() => html`<${ClientTables} id=${`clients-of-${name}`}
    clients=${rows} subscribers=${subscribers} isOneInstance />
    <${SharedBySubscriptions} name=${name} />`}</${Resource}>`;
}

// -- queues ----------------------------------------------------------------------------------
function QueuesTab({ name }) {
  const polled = useAmps(name, 'instance/queues', 2000);
  return html`<${Resource} polled=${polled} name=${name}>${() => {
    const rows = polled.node.map((each) => ({ ...each, path: `instance/queues/${step(each.id)}` }));
    const columns = [
      { key: 'queue', title: 'Queue', wide: true, value: (row) => row.topic ?? row.id },
      { key: 'type', title: 'Type', value: (row) => row.message_type },
      ...QUEUE_NUMBERS.map(([key, title, path, format]) => numeric(key, title, name, path, format)),
    ];
    return html`<${Table} id="instance-queues" columns=${columns} rows=${rows} sort="-depth" caption=${`Queues at ${name}, deepest first`}
      rowHref=${(row) => href('queue', [row.topic ?? row.id])}
      empty=${html`<${Empty} title="No queue is configured here" text="Queues are declared in the fabric's configuration; see docs/queues.md." />`} />`;
  }}</${Resource}>`;
}

export const QUEUE_NUMBERS = [
  ['depth', 'Depth', 'queue_depth', exact],
  ['owned', 'Owned', 'owned', exact],
  ['leased', 'Leased', 'raylay/leases', exact],
  ['oldest', 'Oldest lease', 'age_of_oldest_lease', duration],
  ['expired', 'Expired', 'expired_leases', exact],
  ['in', 'Moved in', 'transferred_in', exact],
  ['out', 'Moved out', 'transferred_out', exact],
  ['rate', 'Delivered', 'delivered_per_sec', rate],
  ['consumers', 'Consumers', 'raylay/subscriptions', exact],
];

// -- SOW -------------------------------------------------------------------------------------
function SowTab({ name }) {
  const polled = useAmps(name, 'instance/sow', 2000);
  return html`<${Resource} polled=${polled} name=${name}>${() => {
    const rows = polled.node.map((each) => ({ ...each, path: `instance/sow/${step(each.id)}` }));
    const columns = [
      { key: 'topic', title: 'Topic', wide: true, value: (row) => row.topic ?? row.id },
      numeric('records', 'Records', name, 'valid_keys', exact),
      numeric('inserts', 'Inserts', name, 'inserts_per_sec', rate),
      numeric('updates', 'Updates', name, 'updates_per_sec', rate),
      numeric('deletes', 'Deletes', name, 'deletes_per_sec', rate),
      numeric('queries', 'Queries', name, 'queries_per_sec', rate),
      numeric('bytes', 'Stored', name, 'stored_bytes', bytes),
      { ...numeric('pending', 'Not yet saved', name, 'raylay/pending_bytes', bytes), minor: 'tablet' },
      { ...numeric('expired', 'Expired', name, 'raylay/expired', exact), minor: 'tablet' },
      { key: 'actions', title: 'Actions', unsorted: true, value: () => '', text: () => '', cell: (row) => html`<span class="actions">
        <a class="button button-small" href=${href('messages', [], { source: 'sow', topic: row.topic ?? row.id, at: name })}>look inside</a>
        ${!isTrue(leaf(row, 'raylay/computed')) && html`<${Action} instance=${name} path=${actionPath('sow', row.id, 'compact')} label=${`compact ${row.id}`} text="compact" risk="Queries and publishes of this topic are slower meanwhile." />`}
      </span>` },
    ];
    return html`<${Table} id="instance-sow" columns=${columns} rows=${rows} sort="-records" caption=${`SOW topics of ${name}`}
      rowHref=${(row) => href('topic', [row.topic ?? row.id])}
      empty=${html`<${Empty} title="No SOW topic is configured here" text="A topic with a key keeps its last message for each key; see docs/sow.md." />`} />`;
  }}</${Resource}>`;
}

// -- journal ---------------------------------------------------------------------------------
function JournalTab({ name, of }) {
  const polled = useAmps(name, 'instance/transaction_log', 5000);
  return html`<${Resource} polled=${polled} name=${name}>${() => html`<${Journal} name=${name} of=${of} node=${polled.node} />`}</${Resource}>`;
}

function Journal({ name, of, node }) {
  const { tz } = route.value.params;
  const segments = (node.journals ?? []).map((each) => ({ ...each, path: `instance/transaction_log/journals/${step(each.id)}` }));
  const size = segments.reduce((sum, each) => sum + globalThis.Number(num(leaf(each, 'raylay/bytes')) ?? 0), 0);
  const [fromUs, toUs] = [timeOf(node.min_timestamp), timeOf(node.max_timestamp)];
  const fullIn = num(leaf(node, 'raylay/full_in_s'));
  const log = 'instance/transaction_log';
  const columns = [
    { key: 'segment', title: 'First transaction', numeric: true, value: (row) => num(leaf(row, 'raylay/first_txid')) ?? row.id, text: (row) => exact(leaf(row, 'raylay/first_txid') || row.id),
      cell: (row) => html`<span title=${row.file_name}>${exact(leaf(row, 'raylay/first_txid') || row.id)}</span>` },
    { key: 'from', title: 'From', value: (row) => row.min_timestamp, text: (row) => time(timeOf(row.min_timestamp), tz, { seconds: true }) },
    { key: 'to', title: 'To', value: (row) => row.max_timestamp, text: (row) => time(timeOf(row.max_timestamp), tz, { seconds: true }) },
    { key: 'bytes', title: 'On disk', numeric: true, value: (row) => num(leaf(row, 'raylay/bytes')), text: (row) => bytes(num(leaf(row, 'raylay/bytes'))) },
    { key: 'records', title: 'Records', numeric: true, value: (row) => num(leaf(row, 'raylay/records')), text: (row) => exact(num(leaf(row, 'raylay/records'))) },
    { key: 'state', title: 'State', wide: true, value: (row) => leaf(row, 'raylay/state'), text: (row) => (isTrue(row.is_archived) ? `archived, ${leaf(row, 'raylay/state')}` : leaf(row, 'raylay/state')) },
    { key: 'actions', title: 'Actions', unsorted: true, value: () => '', text: () => '', cell: (row) => html`<${SegmentActions} name=${name} row=${row} />` },
  ];
  return html`<section class="card"><${Facts} facts=${[
      ['Span', fromUs ? `${time(fromUs, tz, { seconds: true })} to ${time(toUs, tz, { seconds: true })} (${duration((toUs - fromUs) / 1e6)})` : UNKNOWN],
      ['Segments', count(segments.length)],
      ['On disk', size ? bytes(size) : UNKNOWN],
      ['Disk free', percent(of.disk_free_percent)],
      ['Full in', fullIn === null ? null : duration(fullIn)],
      ['Committed', html`<${Number} instance=${name} path=${`${log}/raylay/committed_txid`} label="committed transactions">${exact(leaf(node, 'raylay/committed_txid'))}</${Number}>`],
      ['Messages', html`<${Number} instance=${name} path=${`${log}/raylay/messages`} label="messages">${exact(leaf(node, 'raylay/messages'))}</${Number}>`],
    ]} /></section>
    <div class="columns">
      <${Histogram} title="Write latency" node=${node.write_latency} unit=${(value) => ms(value === null ? null : globalThis.Number(value) / 1000)} />
      <${Histogram} title="Write size" node=${node.write_size} unit=${bytes} />
    </div>
    <h2>Segments</h2>
    <${Table} id="segments" columns=${columns} rows=${segments} sort="-segment" caption=${`Segments of the journal of ${name}`}
      empty=${html`<${Empty} title="No segment is listed" text="The first one is full after some time; until then it is written." />`} />`;
}

function SegmentActions({ name, row }) {
  const state = leaf(row, 'raylay/state');
  if (/active|open|current|live/.test(state)) return html`<span class="muted">written now</span>`;
  const path = (call) => actionPath('transaction_log', 'journals', row.id, call);
  return html`<span class="actions">
    ${!isTrue(row.is_compressed) && html`<${Action} instance=${name} path=${path('compress')} label=${`compress up to ${row.id}`} text="compress" risk="Reading is slower meanwhile. This and older segments." />`}
    ${!isTrue(row.is_archived) && html`<${Action} instance=${name} path=${path('archive')} label=${`archive up to ${row.id}`} text="archive" risk="Reading is slower meanwhile. This and older segments." />`}
    <${Action} instance=${name} path=${path('remove')} label=${`remove up to ${row.id}`} text="remove" typed=${name}
      risk="This and older segments, for good: nothing before can be replayed." />
  </span>`;
}

// A histogram as bars, and as the numbers that they draw.
function Histogram({ title, node, unit }) {
  const bins = useMemo(() => histogramOf(node), [node]);
  const top = Math.max(1, ...bins.map((each) => each.count));
  return html`<section class="card histogram"><h2>${title}</h2>
    ${bins.length
      ? html`<table><caption class="hidden-text">${title}: writes by size of the bin</caption>
          <thead><tr><th scope="col">up to</th><th scope="col" class="numeric">writes</th><th scope="col"><span class="hidden-text">share</span></th></tr></thead>
          <tbody>${bins.map((each) => html`<tr key=${each.upto}><td>${each.upto === null ? 'more' : unit(each.upto)}</td><td class="numeric">${exact(each.count)}</td>
            <td class="bar-cell"><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width=${(each.count / top) * 100} height="8" /></svg></td></tr>`)}</tbody></table>
          <p class="muted">smallest ${unit(num(leaf(node, 'minimum')))}, largest ${unit(num(leaf(node, 'maximum')))}</p>`
      : html`<p class="muted">No writes were measured yet.</p>`}
  </section>`;
}

// Bins come as texts `le:count` apart by commas, as a list, or as a branch of bounds.
function histogramOf(node) {
  const found = node?.histogram ?? node?.bins;
  if (!found) return [];
  const pairs = Array.isArray(found)
    ? found.map((each) => [each.id ?? each.upto ?? each.le, each.count ?? each.value])
    : typeof found === 'object'
      ? Object.entries(found)
      : String(found).split(/[,;\s]+/).filter(Boolean).map((each) => each.split(/[:=]/));
  return pairs
    .map(([upto, value]) => ({ upto: num(upto), count: globalThis.Number(num(value) ?? 0) }))
    .filter((each) => !globalThis.Number.isNaN(each.count));
}

// -- slow clients ----------------------------------------------------------------------------
function SlowTab({ name }) {
  const clients = useAmps(name, 'instance/clients', 2000);
  const subscriptions = useAmps(name, 'instance/subscriptions', 2000);
  const pools = useAmps(name, 'instance/raylay/pools', 2000);
  const subscribers = useMemo(() => subscriberRows(name, subscriptions.node), [name, subscriptions.node]);
  const rows = useMemo(
    () => clientRows(name, clients.node, subscribers).filter((each) => each.backlog > 0 || each.offline > 0 || each.seconds > 0 || /offline|slow/.test(each.state)),
    [name, clients.node, subscribers],
  );
  const limits = useMemo(() => {
    const found = Array.isArray(pools.node) ? Object.fromEntries(pools.node.map(({ id, pool, ...others }) => [id ?? pool, others])) : pools.node;
    return found && typeof found === 'object' && Object.keys(found).length ? found : null;
  }, [pools.node]);
  const slow = subscribers.filter((each) => each.seconds > 0 || each.backlog > 0);
  return html`<${Resource} polled=${clients} name=${name}>${() => html`
    ${rows.length || slow.length
      ? html`<${ClientTables} id=${`slow-of-${name}`} clients=${rows} subscribers=${slow} isOneInstance />`
      : html`<${Empty} title="Nobody is slow here" text="A client appears here as soon as messages wait for it in memory or on the disk." />`}
    <h2>Pools and limits</h2>
    ${limits
      ? html`<${BranchTable} id="pools" prefix="pools" caption=${`Pools and limits of slow clients of ${name}`} node=${limits} instance=${name} path="instance/raylay/pools" />`
      : html`<p class="muted">${pools.error ? `${name} does not tell them: ${pools.error.message}` : 'No pool is used.'}</p>`}`}</${Resource}>`;
}

// -- host ------------------------------------------------------------------------------------
function HostTab({ name }) {
  const polled = useAmps(name, 'host', 2000);
  return html`<${Resource} polled=${polled} name=${name}>${() => html`<${Host} name=${name} node=${polled.node} />`}</${Resource}>`;
}

function Host({ name, node }) {
  const memory = node.memory ?? {};
  const inUse = num(memory.in_use), total = num(memory.total);
  const all = (node.cpus ?? []).find((each) => each.id === 'all') ?? {};
  const busy = num(all.idle_percent) === null ? null : 100 - num(all.idle_percent);
  return html`<div class="tiles">
      <${Tile} label="Processors busy" value=${percent(busy)} instance=${name} paths=${['user', 'system', 'iowait', 'idle'].map((each) => `host/cpus/all/${each}_percent`)} note=${`waiting for disks ${percent(num(all.iowait_percent))}`} />
      <${Tile} label="Memory in use" value=${bytes(inUse)} instance=${name} path="host/memory/in_use" note=${total ? `of ${bytes(total)}` : undefined} />
      <${Tile} label="Swap free" value=${bytes(num(memory.swap_free))} instance=${name} path="host/memory/swap_free" note=${`of ${bytes(num(memory.swap_total))}`} />
    </div>
    <h2>Disks</h2>
    <${Table} id="disks" prefix="disks" filter=${false} sort="free" caption=${`Disks of the host of ${name}`} rows=${(node.disks ?? []).map((each) => ({ ...each, path: `host/disks/${step(each.id)}` }))} columns=${[
      { key: 'mount', title: 'Mount point', value: (row) => row.mount_point ?? row.id },
      { ...numeric('free', 'Free', name, 'file_system_free_percent', percent), cell: (row) => html`<${Number} instance=${name} path=${`${row.path}/file_system_free_percent`}>
        ${num(row.file_system_free_percent) < 10 ? html`<${Status} level="attention" text=${percent(num(row.file_system_free_percent))} />` : percent(num(row.file_system_free_percent))}</${Number}>` },
      numeric('read', 'Read', name, 'read_bytes_per_sec', (value) => (value === null ? UNKNOWN : `${bytes(value)}/s`)),
      numeric('write', 'Written', name, 'write_bytes_per_sec', (value) => (value === null ? UNKNOWN : `${bytes(value)}/s`)),
      numeric('readWait', 'Read wait', name, 'read_await', ms),
      numeric('writeWait', 'Write wait', name, 'write_await', ms),
      numeric('busy', 'In progress', name, 'in_progress', exact),
    ]} empty=${html`<p class="muted">No disk is told.</p>`} />
    <h2>Network</h2>
    <${Table} id="network" prefix="network" filter=${false} caption=${`Network of the host of ${name}`} rows=${(node.network ?? []).map((each) => ({ ...each, path: `host/network/${step(each.id)}` }))} columns=${[
      { key: 'interface', title: 'Interface', value: (row) => row.id },
      numeric('in', 'In', name, 'bytes_in_per_second', (value) => (value === null ? UNKNOWN : `${bytes(value)}/s`)),
      numeric('out', 'Out', name, 'bytes_out_per_second', (value) => (value === null ? UNKNOWN : `${bytes(value)}/s`)),
      numeric('bytesIn', 'Bytes in', name, 'bytes_in', bytes),
      numeric('bytesOut', 'Bytes out', name, 'bytes_out', bytes),
      numeric('errors', 'Errors', name, 'errors', exact),
    ]} empty=${html`<p class="muted">No interface is told.</p>`} />
    <h2>Processors</h2>
    <${Table} id="cpus" prefix="cpus" filter=${false} caption=${`Processors of the host of ${name}`} rows=${(node.cpus ?? []).map((each) => ({ ...each, path: `host/cpus/${step(each.id)}` }))} columns=${[
      { key: 'cpu', title: 'Processor', value: (row) => row.id },
      ...['user', 'system', 'iowait', 'idle'].map((each) => numeric(each, titleOf(each), name, `${each}_percent`, percent)),
    ]} />`;
}

// -- configuration ---------------------------------------------------------------------------
const PLAIN = ['name', 'description', 'version', 'pid', 'cwd', 'config_path', 'user_id'];

function ConfigurationTab({ name }) {
  const config = useAmps(name, 'instance/raylay/config', 30_000);
  const own = useAmps(name, 'instance/raylay', 30_000);
  const transports = useAmps(name, 'instance/transports', 5000);
  return html`<section class="card"><h2>Where it listens</h2>
      <${Table} id="transports" prefix="transports" filter=${false} caption=${`Transports of ${name}`} rows=${transports.node ?? []} columns=${[
        { key: 'name', title: 'Transport', value: (row) => row.name ?? row.id },
        { key: 'enabled', title: 'State', value: (row) => row.is_enabled, text: (row) => (isTrue(row.is_enabled) ? 'enabled' : 'disabled'),
          cell: (row) => html`<${Status} level=${isTrue(row.is_enabled) ? 'ready' : 'attention'} text=${isTrue(row.is_enabled) ? 'enabled' : 'disabled'} />` },
        { key: 'type', title: 'Type', value: (row) => row.type },
        { key: 'address', title: 'Address', value: (row) => leaf(row, 'raylay/address') },
        { key: 'types', title: 'Message types', value: (row) => row.message_type },
        { key: 'connections', title: 'Connections', numeric: true, value: (row) => num(leaf(row, 'raylay/connections')) },
        { key: 'problem', title: 'Problem', value: (row) => leaf(row, 'raylay/problem'), text: (row) => leaf(row, 'raylay/problem') || '' },
      ]} empty=${html`<p class="muted">Its transports are not known.</p>`} /></section>
    ${config.node && typeof config.node === 'object'
      ? html`<h2>Settings</h2><${BranchTable} id="settings" caption=${`Settings of ${name}, without secrets`} node=${config.node} instance="" path="" />`
      : typeof config.node === 'string' && config.node
        ? html`<h2>Settings</h2><pre class="config">${config.node}</pre>`
        : config.loading
          ? html`<${Loading} text=${`asking ${name} for its configuration`} />`
          : html`<h2>Settings</h2><${OwnFacts} name=${name} node=${own.node} error=${config.error} />`}
    <p class="muted">Passwords, tokens and keys are left out by the instance: they never reach the browser.</p>`;
}

function OwnFacts({ name, node, error }) {
  const tree = useAmps(name, 'instance', 30_000);
  const facts = PLAIN.map((each) => [titleOf(each), leaf(tree.node, each)]);
  for (const each of ['group', 'client_address', 'replication_address', 'generation']) facts.push([titleOf(each), leaf(node, each)]);
  return html`<section class="card">${error && html`<p class="muted">Its settings are not told: ${error.message}</p>`}<${Facts} facts=${facts} /></section>`;
}

// -- actions ---------------------------------------------------------------------------------
const RISKS = {
  downgrade: 'Acks stop waiting for it. Messages that it lacks count as acknowledged now: if this disk dies they are lost.',
  upgrade: 'Acks wait for it again.',
  reconnect: 'The link begins again, publishers wait meanwhile. Nothing is lost.',
  disconnect: 'It may come back. Its queue messages go to others; live subscriptions miss what comes meanwhile.',
  enable: 'Clients come in again.',
  disable: 'Its clients are cut off until it is enabled or the instance restarts.',
  compact: 'Slower meanwhile.',
  compress: 'Slower meanwhile.',
  archive: 'Slower meanwhile.',
  remove: 'This and older segments, for good: nothing before can be replayed.',
  enable_proxied_transfer: 'Takes over messages of an owner out of reach. If that lives, work may be done twice. At one instance only.',
  disable_proxied_transfer: 'Messages of an owner out of reach wait for it again.',
  reset: 'Its users are disconnected and log on again.',
  admit: 'Clients come in though it may lack acknowledged messages.',
  dump: 'It writes its state to its log. Nothing changes.',
};
const TYPED = new Set(['remove', 'admit']);
const GROUPS = { replication: 'Links', queues: 'Queues', transports: 'Transports', clients: 'Clients', sow: 'SOW topics', transaction_log: 'Journal', authorization: 'Authorization', instance: 'Instance', diagnostics: 'Diagnostics' };

// Every action that the instance lists: paths end in a call, with whether this user may make it.
function actionsOf(node, path = [], found = []) {
  for (const [name, value] of Object.entries(node ?? {})) {
    if (name === 'id') continue;
    if (Array.isArray(value)) value.forEach((entry) => actionsOf(entry, [...path, name, entry.id], found));
    else if (value !== null && typeof value === 'object') actionsOf(value, [...path, name], found);
    else found.push({ steps: [...path, name], isAllowed: isTrue(value) });
  }
  return found;
}

function ActionsTab({ name }) {
  const polled = useAmps(name, 'administrator', 5000);
  const clients = useAmps(name, 'instance/clients', 10_000);
  const names = useMemo(() => new Map((clients.node ?? []).map((each) => [each.id, each.client_name])), [clients.node]);
  return html`<${Resource} polled=${polled} name=${name}>${() => html`<${ActionTable} name=${name} node=${polled.node} names=${names} />`}</${Resource}>`;
}

function ActionTable({ name, node, names }) {
  const rows = useMemo(() => actionsOf(node).map(({ steps, isAllowed }) => ({
    id: steps.join('/'),
    group: GROUPS[steps[0]] ?? titleOf(steps[0]),
    of: steps[0] === 'clients' ? `${names.get(steps[1]) ?? 'client'} (${steps[1]})` : steps.length > 2 ? steps.at(-2) : name,
    call: steps.at(-1),
    steps,
    isAllowed,
  })), [node, name, names]);
  const columns = [
    { key: 'of', title: 'Of', value: (row) => row.of },
    { key: 'group', title: 'Kind', value: (row) => row.group },
    { key: 'call', title: 'Action', value: (row) => row.call, text: (row) => titleOf(row.call),
      cell: (row) => html`<span data-actions><${Action} instance=${name} path=${actionPath(...row.steps)} label=${`${row.call.replaceAll('_', ' ')} ${row.of}`}
        text=${row.call.replaceAll('_', ' ')} typed=${TYPED.has(row.call) ? row.of : ''} risk=${RISKS[row.call] ?? ''} /></span>` },
    { key: 'risk', title: 'What it risks', value: (row) => RISKS[row.call] ?? '', wide: true },
    { key: 'allowed', title: 'You may', value: (row) => row.isAllowed, text: (row) => (row.isAllowed ? 'yes' : 'no'),
      cell: (row) => (row.isAllowed ? html`<${Status} level="ready" text="yes" />` : html`<${Status} level="unknown" text="no permission" />`) },
  ];
  return html`<p class="muted">Each opens a dialog that says in live numbers what it risks, and gives the same as curl and raylay.</p>
    <${Table} id="actions" columns=${columns} rows=${rows} sort="group" caption=${`Actions at ${name}`}
      empty=${html`<${Empty} title="There is nothing to do here" text="This instance has no links, queues or transports that an action could change." />`} />`;
}

